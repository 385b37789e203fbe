/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bare calls for the group `rows`, besides those of bench_bare.h:
 *
 *   bare/bench_bare_rows.cu          with the CUDA toolkit
 *   bare/bench_bare_rows_played.c    without it
 */
#ifndef TARN_CLIENT_BENCH_ROWS_H
#define TARN_CLIENT_BENCH_ROWS_H

#include "client/bench/bench_bare.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The GPU's time for what is given to the stream between begin() and end(), which waits for it. The GPU
 * starts when all has been given, so the time is that of a CUDA graph: without the host's launches. Call
 * end() after each begin(). */
struct bench_watch;
int bench_watch_new(struct bench_bare *b, struct bench_watch **w_p);
void bench_watch_free(struct bench_watch *w);
int bench_watch_begin(struct bench_watch *w);
int bench_watch_end(struct bench_watch *w, uint64_t *ns_p);

/* These two only launch. The kernel of a direct get without its checks: n rows, one behind the other in `to`,
 * from addresses that are in device memory. */
int bench_bare_rows(struct bench_bare *b, const void *const *from, uint32_t n, void *to, uint32_t row_bytes);
int bench_bare_copy(struct bench_bare *b, const void *from, void *to, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
