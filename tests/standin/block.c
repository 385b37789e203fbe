/* SPDX-License-Identifier: Apache-2.0 */
/* Lets a test make CUDA calls slow. */
#include <pthread.h>
#include <time.h>

#include "tests/standin/cuda_standin.h"

static struct {
    pthread_mutex_t lock;
    bool (*until)(void *arg);
    void *arg;
} block = {.lock = PTHREAD_MUTEX_INITIALIZER};

void tarn_standin_block(bool (*until)(void *arg), void *arg)
{
    pthread_mutex_lock(&block.lock);
    block.until = until;
    block.arg = arg;
    pthread_mutex_unlock(&block.lock);
}

void tarn_standin_wait(void)
{
    pthread_mutex_lock(&block.lock);
    bool (*until)(void *arg) = block.until;
    void *arg = block.arg;
    pthread_mutex_unlock(&block.lock);
    while (until && !until(arg))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); /* CUDA's delay, not synchronisation */
}
