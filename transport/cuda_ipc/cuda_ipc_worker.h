/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread for slow CUDA calls: contexts, handles, registering, and undoing these. An operation gives the
 * worker a task and polls for its end. So the operation's deadline holds even if CUDA takes seconds, as it
 * does when many processes start to use a GPU.
 *
 * Each client has one worker. Its thread starts with the first task. Tasks run one after the other, in
 * order.
 */
#ifndef TARN_TRANSPORT_CUDA_IPC_WORKER_H
#define TARN_TRANSPORT_CUDA_IPC_WORKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct tarn_ipc_task {
    /* Set by the giver and constant. run: called in the worker's thread without a lock; gives the
     * result. drop: frees the task when nobody needs it any more. anyway: run the task even if its giver
     * has left it. */
    int (*run)(struct tarn_ipc_task *t);
    void (*drop)(struct tarn_ipc_task *t);
    bool anyway;
    /* Used by the worker. */
    struct tarn_ipc_task *prev, *next;
    bool ended, left;
    struct tarn_reason result; /* once it has ended */
};

struct tarn_ipc_worker {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, ends;
    struct tarn_ipc_task *tasks; /* waiting tasks */
};

void tarn_ipc_worker_init(struct tarn_ipc_worker *w);
/* All tasks have been left. Waits for the running one and for those with `anyway`; drops the others. */
void tarn_ipc_worker_end(struct tarn_ipc_worker *w);

/* Any thread. The worker owns the task until it has ended or was left. SYSTEM: the thread could not be
 * started. */
int tarn_ipc_worker_give(struct tarn_ipc_worker *w, struct tarn_ipc_task *t);
/* Waits for the task until until_ns; 0: does not wait. AGAIN: not ended. Else its result, with its
 * sentence. */
int tarn_ipc_worker_wait(struct tarn_ipc_worker *w, struct tarn_ipc_task *t, uint64_t until_ns);
/* The giver stops waiting. The task is dropped when it is not running. */
void tarn_ipc_worker_leave(struct tarn_ipc_worker *w, struct tarn_ipc_task *t);

#endif
