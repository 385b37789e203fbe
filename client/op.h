/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside submitted operations: the queue that op.c keeps, op_submit.c fills and the workers of op_run.c
 * empty.
 *
 *   QUEUED --taken by a worker--> RUNNING --> DONE (in `completed`) --drained--> freed
 *      \--- canceled, or out of time ----------^
 *
 * One that waits for an event is QUEUED in `waiting` first. It is RUNNING for a moment each time an idle
 * worker looks at its event, outside the lock; when that has passed, it goes to `queued`. So no worker is
 * held up by an event that is late, and nothing is touched before it.
 *
 * One lock guards everything here. An operation's struct is freed when its completion is taken, so
 * nothing may look at it after tarn_op_complete() let go of the lock.
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

enum tarn_op_state { TARN_OP_QUEUED, TARN_OP_RUNNING, TARN_OP_DONE };

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
    struct tarn_cancel cancel; /* with the descriptor of the worker that runs it */

    struct tarn_item *items;
    const struct tarn_key *keys;
    size_t n;
    int32_t *statuses;
    struct tarn_get_options get_options;
    struct tarn_put_options put_options;
    char *place; /* copy of put_options.place */
    struct tarn_get get;
    void *after;    /* the event to wait for; NULL: none, or it has passed */
    size_t on_gpus; /* items in memory of GPUs at submit */

    /* Streams (stream.c). */
    struct {
        const void *queue;
        void *event;
    } given[TARN_GIVEN_MAX]; /* the last event of each queue that copies for it */
    uint32_t ngiven;
    uint32_t waiters; /* tarn_stream_wait() calls */
    size_t flying;    /* items whose copies have been given, and not come back */
    bool issued;      /* these are all that is not final */
    bool let_go;      /* behind them: none may be made again */

    int status;
    struct tarn_hits *hits;
    char error[TARN_SENTENCE];
};

struct tarn_ops_queue {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct tarn_operation *all, *queued, *waiting, *completed;
    size_t nwaiting;
    bool looking; /* a worker minds the events of `waiting` */
    uint64_t last_id;
    uint64_t alarm_ns; /* not later than the earliest deadline of those queued or waiting */
    int event_fd;
    bool stop;
    struct tarn_worker *workers;
    uint32_t nworkers;
};

/* A running operation is DONE, with the thread's last error as its sentence. */
void tarn_op_complete(struct tarn_client *c, struct tarn_operation *op, int status);

/* A worker has looked at its event: rc is what tarn_cuda_passed() said. The lock is held. */
void tarn_op_looked_at(struct tarn_ops_queue *q, struct tarn_operation *op, int rc);

/* The lock is held. */
struct tarn_operation *tarn_op_find(struct tarn_ops_queue *q, tarn_op id);

int tarn_ops_new(struct tarn_client *c);
/* Cancels everything and ends the workers. */
void tarn_ops_stop(struct tarn_client *c);
void tarn_ops_free(struct tarn_client *c);
/* Ends queued operations whose deadline has passed. Returns when to come again. */
uint64_t tarn_ops_expire(struct tarn_client *c);
/* Does a submitted operation use [addr, addr + bytes)? */
bool tarn_ops_use(struct tarn_client *c, const void *addr, uint64_t bytes);

#endif
