/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submitted operations. op.c keeps them, op_submit.c queues them, the workers of op_run.c run them.
 *
 *   QUEUED --taken by a worker--> RUNNING --> DONE (in `completed`) --drained--> freed
 *      \--- canceled, or out of time ----------^
 *
 * An operation with an event is QUEUED in `waiting` first. It is RUNNING for a moment each time an idle
 * worker looks at the event, without the lock; when the event has passed, it moves to `queued`. So a late
 * event holds up no worker, and no buffer is touched before it.
 *
 * An operation that waits for a peer without a worker (send, receive, expect) is PARKED: its run() has
 * returned TARN_INPROGRESS. tarn_op_wake(), its deadline or tarn_cancel() makes it QUEUED again, and run()
 * looks what has happened. So only its run() ends it, also when it was canceled or out of time before it ran:
 *
 *   QUEUED --taken by a worker--> RUNNING --> DONE
 *      ^---- woken ---- PARKED <-----'
 *
 * One lock guards everything here. Taking a completion frees the operation, so nothing may touch it after
 * tarn_op_complete().
 */
#ifndef TARN_CLIENT_OP_H
#define TARN_CLIENT_OP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "client/client.h"
#include "client/get_item.h"

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define TARN_GIVEN_MAX 8

enum tarn_op_state { TARN_OP_QUEUED, TARN_OP_RUNNING, TARN_OP_PARKED, TARN_OP_DONE };

struct tarn_worker {
    struct tarn_client *client;
    pthread_t thread;
    int cancel_fd; /* of all that it runs */
};

struct tarn_operation {
    UT_hash_handle hh;                  /* by id */
    struct tarn_operation *prev, *next; /* in `queued`, `waiting` or `completed` */
    tarn_op id;
    uint64_t cookie, deadline_ns;
    enum tarn_op_kind kind;
    enum tarn_op_state state;
    struct tarn_cancel cancel; /* fd: that of the worker that runs it */

    struct tarn_item *items;
    const struct tarn_key *keys;
    size_t n;
    int32_t *statuses;
    struct tarn_get_options get_options;
    struct tarn_put_options put_options;
    char *place; /* copy of put_options.place */
    struct tarn_get get;
    /* READ to CONNECT: what the worker calls. `arg` is freed with the operation. */
    int (*run)(void *arg, uint64_t deadline_ns, struct tarn_cancel *cancel);
    void (*unrun)(void *arg, int status); /* it ends without having run; NULL: nothing is to be done then */
    void *arg;
    /* What a worker calls for several of one group. It ends each by tarn_op_complete(), or queues it again.
     * NULL: it runs alone. */
    void (*run_together)(struct tarn_client *c, struct tarn_operation *const *ops, size_t n, int cancel_fd);
    const void *group;
    uint64_t bytes;                                                  /* that it moves */
    bool (*uses)(const void *arg, const void *addr, uint64_t bytes); /* does it use any of that memory? */
    bool parks;                                                      /* run() may return TARN_INPROGRESS */
    bool woken;                                                      /* since a worker took it */
    void *after;    /* the event to wait for; NULL: none, or it has passed */
    size_t on_gpus; /* how many items were in GPU memory at submit */

    /* Streams (stream.c). */
    struct {
        const void *queue;
        void *event;
    } given[TARN_GIVEN_MAX]; /* the last event of each queue with copies for it */
    uint32_t ngiven;
    uint32_t waiters; /* tarn_stream_wait() calls */
    size_t flying;    /* items whose copies were given to a GPU and have not come back */
    bool issued;      /* all items are final or flying */
    bool let_go;      /* a stream was let go behind them, so none may be copied again */

    struct tarn_reason why; /* DONE: how it ended */
    struct tarn_hits *hits;
};

struct tarn_ops_queue {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct tarn_operation *all, *queued, *waiting, *completed;
    size_t nwaiting;
    bool looking; /* a worker looks at the events of `waiting` */
    uint64_t last_id;
    uint64_t alarm_ns; /* at most the earliest deadline of those queued or waiting */
    int event_fd;
    bool stop;
    struct tarn_worker *workers;
    uint32_t nworkers;
};

/* Ends a running operation; when it failed, the last error is its sentence. */
void tarn_op_complete(struct tarn_client *c, struct tarn_operation *op, int status);

/* It has not ended, and runs again, alone, before all that are queued. */
void tarn_op_requeue(struct tarn_client *c, struct tarn_operation *op);
/* Its run() has returned TARN_INPROGRESS. */
void tarn_op_park(struct tarn_client *c, struct tarn_operation *op);
/* Has run() called again, if the operation is not done. */
void tarn_op_wake(struct tarn_client *c, tarn_op id);
/* Takes a parked operation from its workers: the caller ends it with tarn_op_complete(), or parks it again.
 * NULL: it is not parked; it is woken. */
struct tarn_operation *tarn_op_claim(struct tarn_client *c, tarn_op id);

/* Puts it into `waiting` or `queued`. The lock is held. */
void tarn_op_queue(struct tarn_ops_queue *q, struct tarn_operation *op);

/* A worker has looked at its event; rc: tarn_cuda_passed()'s. The lock is held. */
void tarn_op_looked_at(struct tarn_ops_queue *q, struct tarn_operation *op, int rc);

/* The lock is held. */
struct tarn_operation *tarn_op_find(struct tarn_ops_queue *q, tarn_op id);

/* Submits an operation that is not one of the store's. On failure `arg` stays the caller's. */
struct tarn_op_task {
    enum tarn_op_kind kind;
    uint32_t timeout_ms;
    uint64_t cookie;
    void *after;
    int (*run)(void *arg, uint64_t deadline_ns, struct tarn_cancel *cancel);
    void (*unrun)(void *arg, int status);
    void (*run_together)(struct tarn_client *c, struct tarn_operation *const *ops, size_t n, int cancel_fd);
    const void *group; /* of those that run_together() takes at once */
    uint64_t bytes;
    bool (*uses)(const void *arg, const void *addr, uint64_t bytes);
    void *arg;
    bool parks;            /* run() may return TARN_INPROGRESS */
    _Atomic tarn_op *id_p; /* set before run() is called; NULL: nobody wakes it */
};
int tarn_op_submit(struct tarn_client *c, const struct tarn_op_task *t, tarn_op *op_p);

int tarn_ops_new(struct tarn_client *c);
/* Cancels everything and ends the workers. */
void tarn_ops_stop(struct tarn_client *c);
void tarn_ops_free(struct tarn_client *c);
/* Ends queued operations whose deadline has passed. Returns when to come again. */
uint64_t tarn_ops_expire(struct tarn_client *c);
/* Does a submitted operation use [addr, addr + bytes)? */
bool tarn_ops_use(struct tarn_client *c, const void *addr, uint64_t bytes);

#endif
