/* SPDX-License-Identifier: Apache-2.0 */
/* Threads and conditions. */
#ifndef TARN_BASE_THREAD_H
#define TARN_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A condition on CLOCK_MONOTONIC. */
void tarn_cond_init(pthread_cond_t *cond);
/* False: the deadline has passed. */
bool tarn_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);
/* Starts a thread with all signals blocked: the program's own threads handle them. 0, or an errno. */
int tarn_thread_start(pthread_t *t, void *(*fn)(void *), void *arg);
/* The same for a thread that is not joined. */
int tarn_thread_detached(void *(*fn)(void *), void *arg);
/* How many processors the calling thread may use. */
uint32_t tarn_processors(void);

#endif
