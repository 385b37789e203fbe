/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: a batch of gets has one for each item that get_now.c has left.
 *
 *   WANTED --look-up, one round trip for all--> RESOLVED --route--> FLYING --0--> FINAL
 *      ^                                         ^   |  ^             |
 *      +---- descriptor stale, or misfit --------|---|--|-------------+
 *                            UNLEASED <----------|---+  |             |
 *         one question for all --+---------------+      +-------------+ copy failed: next copy, inside the
 *                                                                       same deadline
 *
 * UNLEASED: the directory must be asked before the chosen copy's node may be read from (read_lease.h).
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

/* What a try to move a job on has come to. */
enum tarn_get_move {
    TARN_GET_UNMOVED, /* the next try has its turn */
    TARN_GET_MOVED,   /* its stage says what comes next */
    TARN_GET_LATER    /* it waits for another round, so that others need not wait for it */
};

/* What a job's failed attempts leave. It lies behind all jobs of the batch, since most have none: a batch of
 * many jobs then fits into the CPU's cache. */
struct tarn_get_past {
    struct tarn_reason why;                    /* the last copy's failure; code 0: there was none */
    struct tarn_reason refusal;                /* x.why */
    struct tarn_loc stale[TARN_GET_STALE_MAX]; /* the last copies found stale */
};

/* What most jobs use lies together, and `desc` is last: few copies have more than one location. */
struct tarn_get_job {
    struct tarn_get *get;
    size_t index; /* of the item */
    enum tarn_get_stage stage;
    bool asked;   /* desc comes from the directory, in this call */
    bool silent;  /* a copy's node was silent in this call */
    bool refused; /* a copy's node wants no readers while Redis is away; `why` says so */
    bool given;   /* GPUs have this attempt's copies, and streams may wait for them */
    uint32_t gpu; /* tarn_pieces_gpu() */
    bool glanced; /* the pieces were only glanced at (transport/seen.h) */
    uint32_t nstale, revivals;
    uint64_t tried;             /* as in struct tarn_choice */
    struct tarn_get_job *again; /* next in the list of jobs to be routed again */
    struct tarn_piece *made;    /* of the item's pages; NULL: not needed so far */
    uint32_t nmade;
    struct tarn_get_past *past; /* NULL: no attempt has failed so far */
    struct tarn_way way;        /* the chosen one; from here on nothing is initialized */
    struct tarn_transfer x;
    struct tarn_last_copy last_copy;
    struct tarn_desc desc;
};

struct tarn_get_batch {
    struct tarn_client *client;
    struct tarn_get_job *jobs;
    struct tarn_get_past *pasts; /* one for each job */
    size_t n, open;              /* open: not TARN_GET_FINAL */
    struct tarn_flight flight;
    struct tarn_cancel any;               /* of several operations: canceled when one of them is */
    struct tarn_cancel *cancel;           /* NULL: none */
    bool postponed;                       /* some job waits for another round */
    const struct tarn_peer_node *answers; /* a node that answered after a transport had failed; or NULL */
};

static inline struct tarn_item *tarn_get_item(const struct tarn_get_job *j)
{
    return &j->get->items[j->index];
}

static inline bool tarn_get_canceled(const struct tarn_get_job *j)
{
    return tarn_canceled(j->get->cancel);
}

/* The chosen copy. */
static inline const struct tarn_loc *tarn_get_copy(const struct tarn_get_job *j)
{
    return &j->desc.locs[j->way.loc];
}

/* The job's past, which begins with this call if it had none. */
struct tarn_get_past *tarn_get_past(const struct tarn_get_batch *b, struct tarn_get_job *j);
/* The last copy's failure. Code 0: there was none. */
const struct tarn_reason *tarn_get_why(const struct tarn_get_job *j);
/* Was the copy found stale in this call? The directory may still show it. */
bool tarn_get_known_stale(const struct tarn_get_job *j, const struct tarn_loc *l);
/* Allows all ways again, except to copies that were found stale: their nodes are just taking them out. */
void tarn_get_try_all(struct tarn_get_job *j);
/* The directory must be asked. */
static inline void tarn_get_want_again(struct tarn_get_job *j)
{
    j->stage = TARN_GET_WANTED;
}

/* Has a job that is not final been canceled? Then all waits end, until that job is final. The argument is a
 * struct tarn_get_batch. */
bool tarn_get_any_canceled(void *batch);
/* The earliest deadline of the other open jobs: this job may hold them up until then. */
uint64_t tarn_get_others_deadline(const struct tarn_get_batch *b, const struct tarn_get_job *j);
/* The job is final; the caller sees to the item. */
void tarn_get_job_end(struct tarn_get_batch *b, struct tarn_get_job *j);
/* Job and item are final. */
void tarn_get_job_finish(struct tarn_get_batch *b, struct tarn_get_job *j, int status);
/* The same, with this thread's last error as its sentence. */
void tarn_get_job_fail(struct tarn_get_batch *b, struct tarn_get_job *j, int status);
/* NOT_FOUND. */
void tarn_get_job_miss(struct tarn_get_batch *b, struct tarn_get_job *j);
/* Looks at all pieces of a job that were only glanced at. The job is RESOLVED then, or has failed. */
void tarn_get_look(struct tarn_get_batch *b, struct tarn_get_job *j);
/* Makes the pieces of a job whose item has a layout. The job is RESOLVED then, or has failed. */
void tarn_get_make_pieces(struct tarn_get_batch *b, struct tarn_get_job *j);

#endif
