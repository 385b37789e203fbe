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

#include "client/client.h"

enum tarn_op_state { TARN_OP_QUEUED, TARN_OP_RUNNING, TARN_OP_DONE };

struct tarn_worker {
    struct tarn_client *client;
    pthread_t thread;
    int stop_fd;
};

struct tarn_operation {
    UT_hash_handle hh;                  /* by id */
    struct tarn_operation *prev, *next; /* in `queued`, `waiting` or `completed` */
    tarn_op id;
    uint64_t cookie, deadline_ns;
    enum tarn_op_kind kind;
    enum tarn_op_state state;
    _Atomic bool stop;
    struct tarn_worker *worker;

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
    uint32_t gate;  /* a stream waits: index + 1 of the first gate */
    bool late;      /* gates were opened at its deadline: it can only fail */

    int status;
    struct tarn_hits *hits;
    char error[192];
};

/* gate.c: where streams are held. A gate whose words are its ticket is free. */
#define TARN_GATES 512
struct tarn_gates {
    struct tarn_cuda_gate *page; /* pinned; NULL: no stream has waited yet */
    struct {
        uint32_t ticket, next; /* next: of the same operation, index + 1 */
    } all[TARN_GATES];
};

struct tarn_ops_queue {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct tarn_operation *all, *queued, *waiting, *completed;
    size_t nwaiting;
    bool looking; /* a worker minds the events of `waiting` */
    struct tarn_gates gates;
    uint64_t last_id;
    uint64_t alarm_ns; /* not later than the earliest deadline of those queued, waiting or with a gate */
    int event_fd;
    bool stop;
    struct tarn_worker *workers;
    uint32_t nworkers;
};

/* op.c: a running operation is DONE, with the thread's last error as its sentence. */
void tarn_op_complete(struct tarn_client *c, struct tarn_operation *op, int status);

/* A worker has looked at its event: rc is what tarn_cuda_passed() said. The lock is held. */
void tarn_op_looked_at(struct tarn_ops_queue *q, struct tarn_operation *op, int rc);

/* gate.c: opens the operation's gates. The lock is held. */
void tarn_gates_open(struct tarn_gates *g, struct tarn_operation *op);
/* At close, when all are open. */
void tarn_gates_free(struct tarn_gates *g);

/* op_run.c: starts the workers on first use. The lock is held. One is enough to go on. */
int tarn_ops_start_workers(struct tarn_client *c);

#endif
