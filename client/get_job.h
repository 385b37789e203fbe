/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside gets, the whole way: what get_slow.c (the look-up, the rounds), get_route.c (which copy, by which
 * transport) and get_attempt.c (one try, and what becomes of it) share.
 *
 * Each item left over by the fast way is a job:
 *
 *   WANTED --look-up, one round trip for all--> RESOLVED --route--> FLYING --0--> final
 *      ^                                         ^   |  ^             |
 *      +---- descriptor stale, or misfit --------|---|--|-------------+
 *                            UNLEASED <----------|---+  |             |
 *         one question for all --+---------------+      +-------------+ copy failed: next copy, inside the
 * same deadline UNLEASED: the chosen copy's node may not be read from until the directory has been asked
 * about it (lease.h).
 */
#ifndef TARN_CLIENT_GET_JOB_H
#define TARN_CLIENT_GET_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "client/client.h"
#include "client/flight.h"
#include "client/get_item.h"

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
    bool known;   /* desc is filled */
    bool asked;   /* desc comes from the directory, in this call */
    bool silent;  /* a copy's node was, in this call */
    bool refused; /* a copy's node wants no readers while Redis is away; `why` says so */
    bool given;   /* GPUs have been given the copies of this attempt, and streams may wait for them */
    uint32_t gpu; /* tarn_pieces_gpu() */
    bool glanced; /* at the pieces, no more so far (transport/seen.h) */
    uint32_t nstale, stales, revivals;
    uint64_t tried;             /* bit location * TARN_TRANSPORTS_MAX + transport */
    struct tarn_get_job *again; /* the next to be routed again */
    int why;                    /* the last copy's failure, and its sentence */
    /* From here on nothing is set until it is used. What most jobs use lies together. */
    uint8_t loc, transport;
    struct tarn_desc desc;
    struct tarn_transfer x;
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
    struct { /* that the last job took whose object has one copy; remote NULL: none yet */
        const struct tarn_peer_node *node;
        uint32_t pool, gpu;
        uint8_t transport;
    } way;
};

static inline struct tarn_item *tarn_get_item(const struct tarn_get_job *j)
{
    return &j->get->items[j->index];
}

static inline bool tarn_get_stopped(const struct tarn_get_job *j)
{
    return tarn_canceled(j->get->cancel);
}

/* The way that was chosen. */
static inline struct tarn_side *tarn_get_side(struct tarn_get_job *j)
{
    return &j->desc.locs[j->loc].node->sides[j->transport][0];
}

/* The directory is to be asked. */
static inline void tarn_get_want_again(struct tarn_get_job *j)
{
    j->stage = TARN_GET_WANTED;
    j->known = false;
}

/* May the transport that was chosen have pieces that were only glanced at? */
static inline bool tarn_get_may_take(const struct tarn_client *c, const struct tarn_get_job *j)
{
    return !j->glanced || (c->transports[j->transport]->caps & TARN_CAP_CHECKS);
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
