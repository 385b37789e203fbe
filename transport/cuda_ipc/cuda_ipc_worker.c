/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cuda_ipc/cuda_ipc_worker.h"

#include <string.h>
#include <utlist.h>

#include "base/thread.h"

void tarn_ipc_worker_init(struct tarn_ipc_worker *w)
{
    tarn_cond_init(&w->changed);
    pthread_mutex_init(&w->lock, NULL);
}

/* --- its thread --------------------------------------------------------------------------------- */

/* Called with the lock held; releases it while the task runs. */
static void carry_out(struct tarn_ipc_worker *w, struct tarn_ipc_task *t)
{
    if (!t->left || t->anyway) {
        pthread_mutex_unlock(&w->lock);
        tarn_reason_keep(&t->result, t->run(t));
        pthread_mutex_lock(&w->lock);
    }
    t->ended = true;
    pthread_cond_broadcast(&w->changed);
    if (!t->left)
        return;
    pthread_mutex_unlock(&w->lock);
    t->drop(t);
    pthread_mutex_lock(&w->lock);
}

static void *work(void *arg)
{
    struct tarn_ipc_worker *w = arg;
    pthread_mutex_lock(&w->lock);
    while (w->tasks || !w->ends) {
        struct tarn_ipc_task *t = w->tasks;
        if (!t) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        DL_DELETE(w->tasks, t);
        carry_out(w, t);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* The lock is held. */
static int start(struct tarn_ipc_worker *w)
{
    int error = w->started ? 0 : tarn_thread_start(&w->thread, work, w);
    w->started |= error == 0;
    return error ? tarn_fail(TARN_E_SYSTEM, "cuda_ipc: a thread for CUDA: %s: raise the limit of threads",
                             strerror(error))
                 : 0;
}

void tarn_ipc_worker_end(struct tarn_ipc_worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->started)
        pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}

/* --- tasks -------------------------------------------------------------------------------------- */

int tarn_ipc_worker_give(struct tarn_ipc_worker *w, struct tarn_ipc_task *t)
{
    pthread_mutex_lock(&w->lock);
    int rc = start(w);
    if (!rc) {
        DL_APPEND(w->tasks, t);
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

int tarn_ipc_worker_wait(struct tarn_ipc_worker *w, struct tarn_ipc_task *t, uint64_t until_ns)
{
    pthread_mutex_lock(&w->lock);
    while (!t->ended && until_ns && tarn_cond_wait(&w->changed, &w->lock, until_ns))
        ;
    int status = t->ended ? tarn_reason_fail(&t->result) : TARN_E_AGAIN;
    pthread_mutex_unlock(&w->lock);
    return status;
}

void tarn_ipc_worker_leave(struct tarn_ipc_worker *w, struct tarn_ipc_task *t)
{
    pthread_mutex_lock(&w->lock);
    bool ended = t->ended;
    t->left = true;
    pthread_mutex_unlock(&w->lock);
    if (ended)
        t->drop(t);
}
