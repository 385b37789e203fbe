/* SPDX-License-Identifier: Apache-2.0 */
/* Threads and conditions as all of tarn uses them. */
#ifndef TARN_BASE_THREAD_H
#define TARN_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A condition on CLOCK_MONOTONIC. */
void tarn_cond_init(pthread_cond_t *cond);
/* False: the deadline has passed. */
bool tarn_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);
/* A thread that takes no signals: those are for the threads of the program. 0, or an errno. */
int tarn_thread_start(pthread_t *t, void *(*fn)(void *), void *arg);
/* The same, and nobody joins it. */
int tarn_thread_detached(void *(*fn)(void *), void *arg);

#endif
