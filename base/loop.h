/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An event loop on epoll. One thread runs it; every call is made on that thread, except tarn_loop_post and
 * tarn_loop_stop. Level-triggered.
 */
#ifndef TARN_BASE_LOOP_H
#define TARN_BASE_LOOP_H

#include <stdint.h>

struct tarn_loop;
struct tarn_watch;

enum { TARN_READABLE = 1, TARN_WRITABLE = 2 };

typedef void (*tarn_watch_fn)(void *arg, int events);
typedef void (*tarn_call_fn)(void *arg);

int tarn_loop_new(struct tarn_loop **l_p);
/* All watches must have been freed. */
void tarn_loop_free(struct tarn_loop *l);
/* Runs until tarn_loop_stop(). Posted calls are run before it returns. */
void tarn_loop_run(struct tarn_loop *l);
void tarn_loop_stop(struct tarn_loop *l);
/* Runs fn(arg) on the loop's thread, in the order posted. Any thread. NO_MEMORY. */
int tarn_loop_post(struct tarn_loop *l, tarn_call_fn fn, void *arg);

/* Watches fd for `events`; tarn_watch_set changes them (0 pauses). An error or hang-up counts as the events
 * that are watched for. Free the watch before closing fd. */
int tarn_watch_new(struct tarn_loop *l, int fd, int events, tarn_watch_fn fn, void *arg,
                   struct tarn_watch **w_p);
int tarn_watch_set(struct tarn_watch *w, int events);
/* Calls fn every period_ms. */
int tarn_timer_new(struct tarn_loop *l, uint32_t period_ms, tarn_call_fn fn, void *arg,
                   struct tarn_watch **w_p);
/* Either of the two; also in its own callback. NULL is allowed. */
void tarn_watch_free(struct tarn_watch *w);

#endif
