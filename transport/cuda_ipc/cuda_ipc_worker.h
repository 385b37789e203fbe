/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that makes the calls of CUDA that take long: contexts, handles, registering, and undoing these. An
 * operation gives the worker a task and looks again later whether it has ended, so its deadline holds
 * whatever CUDA takes: seconds, where many processes begin to use a GPU at once.
 *
 * One worker a client; its thread begins with the first task. Tasks run one after the other, as given.
 */
#ifndef TARN_TRANSPORT_CUDA_IPC_WORKER_H
#define TARN_TRANSPORT_CUDA_IPC_WORKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct tarn_ipc_task {
    /* Set by whoever gives it, and not changed. run: by the worker's thread, without a lock; its result is
     * the status. drop: nobody needs the task any more; frees it. anyway: it is run even if it was left
     * before. */
    int (*run)(struct tarn_ipc_task *t);
    void (*drop)(struct tarn_ipc_task *t);
    bool anyway;
    /* The worker's. */
    struct tarn_ipc_task *prev, *next;
    bool ended, left;
    int status;
    char why[TARN_SENTENCE];
};

struct tarn_ipc_worker {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, ends;
    struct tarn_ipc_task *tasks; /* those that wait for their turn */
};

void tarn_ipc_worker_init(struct tarn_ipc_worker *w);
/* All tasks have been left. Waits for the one that runs, and for those that run anyway; drops the others. */
void tarn_ipc_worker_end(struct tarn_ipc_worker *w);

/* Any thread. The task is the worker's until it has ended or was left. SYSTEM: no thread could be started. */
int tarn_ipc_worker_give(struct tarn_ipc_worker *w, struct tarn_ipc_task *t);
/* Waits for its end until then, 0: does not wait. AGAIN: it has not ended. Else its status, with its
 * sentence. */
int tarn_ipc_worker_wait(struct tarn_ipc_worker *w, struct tarn_ipc_task *t, uint64_t until_ns);
/* Its giver does not wait for it any more; the task is dropped when it does not run (any more). */
void tarn_ipc_worker_leave(struct tarn_ipc_worker *w, struct tarn_ipc_task *t);

#endif
