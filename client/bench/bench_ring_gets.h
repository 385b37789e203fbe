/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel asks a proxy for in `tarn-bench ring`, and the bare copy beside it. */
#ifndef TARN_CLIENT_BENCH_RING_GETS_H
#define TARN_CLIENT_BENCH_RING_GETS_H

#include <tarn/proxy.h>

#define BENCH_GETS_BYTES 4096

struct bench_env;
/* A node with the object, a client, and a table with the object as its page 0. */
struct bench_gets;
int bench_gets_open(struct bench_env *e, struct bench_gets **g_p);
/* Frees the proxies, too. NULL is allowed. */
void bench_gets_close(struct bench_gets *g);
/* Where the bytes are to go. */
uint64_t bench_gets_to(const struct bench_gets *g);
/* A proxy with one ring. */
int bench_gets_proxy(struct bench_gets *g, struct tarn_proxy **p_p);
/* The same by a bare copy. */
int bench_gets_copy(struct bench_gets *g);
int bench_gets_poison(struct bench_gets *g);
/* Have the bytes come? */
int bench_gets_check(struct bench_gets *g);

#endif
