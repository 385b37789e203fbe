/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"

void tarn_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool tarn_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    const struct timespec until = {(time_t)(deadline_ns / TARN_NS_PER_S),
                                   (long)(deadline_ns % TARN_NS_PER_S)};
    return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}

int tarn_thread_start(pthread_t *t, void *(*fn)(void *), void *arg)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(t, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

int tarn_thread_detached(void *(*fn)(void *), void *arg)
{
    pthread_t thread;
    int rc = tarn_thread_start(&thread, fn, arg);
    if (rc == 0)
        pthread_detach(thread);
    return rc;
}

uint32_t tarn_processors(void)
{
    cpu_set_t mine; /* too small for a host of more than 1024 */
    return (uint32_t)(sched_getaffinity(0, sizeof(mine), &mine) ? sysconf(_SC_NPROCESSORS_ONLN)
                                                                : CPU_COUNT(&mine));
}
