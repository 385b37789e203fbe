/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside gets: what the files of get.c's batch share. Each item left by get_now.c is a job:
 *
 *   WANTED --look-up, one round trip for all--> RESOLVED --route--> FLYING --0--> FINAL
 *      ^                                         ^   |  ^             |
 *      +---- descriptor stale, or misfit --------|---|--|-------------+
 *                            UNLEASED <----------|---+  |             |
 *         one question for all --+---------------+      +-------------+ copy failed: next copy, inside the
 *                                                                       same deadline
 *
 * UNLEASED: the chosen copy's node may not be read from until the directory has been asked about it
 * (lease.h).
 */
#ifndef TARN_CLIENT_GET_JOB_H
#define TARN_CLIENT_GET_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "client/client.h"
#include "client/flight.h"
#include "client/get_item.h"
#include "client/way.h"

#define TARN_GET_STALE_MAX 4

enum tarn_get_stage {
    TARN_GET_WANTED,
    TARN_GET_RESOLVED,
    TARN_GET_UNLEASED,
    TARN_GET_FLYING,
    TARN_GET_FINAL
};

struct tarn_get_job {
    struct tarn_get *get;
    size_t index; /* of the item */
    enum tarn_get_stage stage;
    bool asked;   /* desc comes from the directory, in this call */
    bool silent;  /* a copy's node was, in this call */
    bool refused; /* a copy's node wants no readers while Redis is away; `why` says so */
    bool given;   /* GPUs have been given the copies of this attempt, and streams may wait for them */
    uint32_t gpu; /* tarn_pieces_gpu() */
    bool glanced; /* at the pieces, no more so far (transport/seen.h) */
    uint32_t nstale, stales, revivals;
    uint64_t tried;             /* as in struct tarn_choice */
    struct tarn_get_job *again; /* the next to be routed again */
    int why;                    /* the last copy's failure, and its sentence */
    /* From here on nothing is set until it is used. What most jobs use lies together. */
    struct tarn_way way; /* that was chosen */
    struct tarn_desc desc;
    struct tarn_transfer x;
    struct tarn_last_copy last_copy;
    char text[TARN_SENTENCE];
    struct tarn_loc stale[TARN_GET_STALE_MAX]; /* the last ones found stale */
};

struct tarn_get_batch {
    struct tarn_client *client;
    struct tarn_get_job *jobs;
    size_t n, open; /* open: not TARN_GET_FINAL */
    struct tarn_flight flight;
    struct tarn_cancel any;               /* of a batch of operations: ends when one of them is canceled */
    struct tarn_cancel *cancel;           /* NULL: none */
    bool opening;                         /* jobs that need a link made first have their turn, too */
    bool later;                           /* the job being routed waits for another round */
    bool postponed;                       /* some job does */
    bool stopped;                         /* a look-up was cut short for a job that was canceled */
    const struct tarn_peer_node *answers; /* asked after a transport had failed; NULL: none was */
};

static inline struct tarn_item *tarn_get_item(const struct tarn_get_job *j)
{
    return &j->get->items[j->index];
}

static inline bool tarn_get_stopped(const struct tarn_get_job *j)
{
    return tarn_canceled(j->get->cancel);
}

/* The copy that was chosen. */
static inline const struct tarn_loc *tarn_get_copy(const struct tarn_get_job *j)
{
    return &j->desc.locs[j->way.loc];
}

/* Was the copy found stale in this call? The directory may still show it. */
bool tarn_get_known_stale(const struct tarn_get_job *j, const struct tarn_loc *l);
/* All ways may be tried, but to copies that were found stale: their nodes are just taking them out. */
void tarn_get_try_all(struct tarn_get_job *j);
/* The directory is to be asked. */
static inline void tarn_get_want_again(struct tarn_get_job *j)
{
    j->stage = TARN_GET_WANTED;
}

/* Has a job that is not final been canceled? Until it is final nothing is waited for. The argument is
 * a struct tarn_get_batch. */
bool tarn_get_any_stopped(void *batch);
/* The earliest deadline of the other open jobs: how long this one may hold them up. */
uint64_t tarn_get_others_deadline(const struct tarn_get_batch *b, const struct tarn_get_job *j);
/* The job is final; with a sentence when it failed. */
void tarn_get_job_finish(struct tarn_get_batch *b, struct tarn_get_job *j, int status);
void tarn_get_job_fail(struct tarn_get_batch *b, struct tarn_get_job *j, int status, const char *text);
/* Looks at all pieces of a job that was glanced at: it is resolved, or has failed. */
void tarn_get_look(struct tarn_get_batch *b, struct tarn_get_job *j);

#endif
