/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bare CUDA calls to compare tarn with, and patterns in memory that GPUs reach. The build links one of these:
 *
 *   bench_bare.cu          with the CUDA toolkit
 *   bench_bare_played.c    without it: uses queues of transport/cuda/cuda.h; figures over a stand-in mean
 *                          nothing
 *
 * Functions return when their work has ended: 0 or a negative TARN_E_*.
 */
#ifndef TARN_CLIENT_BENCH_BARE_H
#define TARN_CLIENT_BENCH_BARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define BENCH_ANYWHERE __host__ __device__
#else
#define BENCH_ANYWHERE
#endif

#define BENCH_POISON 0xa5

/* Word `index` of an object's pattern; `seed` is the object's (bench_load.c). */
BENCH_ANYWHERE static inline uint64_t bench_pattern_word(uint64_t seed, uint64_t index)
{
    uint64_t x = (seed + index * 0x9e3779b97f4a7c15ull) * 0xd6e8feb86659fd93ull;
    return x ^ (x >> 32);
}

BENCH_ANYWHERE static inline uint64_t bench_pattern_seed(uint64_t seed, uint64_t object)
{
    return bench_pattern_word(bench_pattern_word(seed, 1), object);
}

/* --- streams ------------------------------------------------------------------------------------ */

/* A stream of a device. One thread at a time. */
struct bench_bare;

int bench_bare_open(int device, struct bench_bare **b_p);
/* NULL is allowed. */
void bench_bare_close(struct bench_bare *b);
/* Its cudaStream_t, or NULL if it is played. */
void *bench_bare_stream(struct bench_bare *b);
/* True for bench_bare_played.c: its figures mean nothing. */
bool bench_bare_played(void);
/* The versions of driver and runtime. */
void bench_bare_describe(char *text, size_t text_bytes);

/* Copies data to new device memory. */
int bench_bare_upload(struct bench_bare *b, const void *data, size_t bytes, void **at_p);
/* Copies it back. */
int bench_bare_fetch(struct bench_bare *b, const void *at, size_t bytes, void *data);
void bench_bare_drop(struct bench_bare *b, void *at);

/* --- copies ------------------------------------------------------------------------------------- */

/* Copies, in the form that cudaMemcpyBatchAsync takes. */
struct bench_copies {
    void **to;
    const void **from;
    size_t *bytes;
    size_t n;
};

/* One cudaMemcpyAsync for each, then cudaStreamSynchronize. */
int bench_bare_each(struct bench_bare *b, const struct bench_copies *c);
/* One cudaMemcpyBatchAsync, then cudaStreamSynchronize. UNSUPPORTED: CUDA before 12.8. */
int bench_bare_batch(struct bench_bare *b, const struct bench_copies *c);

struct bench_run {
    uint64_t to, from, bytes; /* multiples of 16 */
};

/* One launch of a plain kernel for n runs of similar size. `runs` is in device memory. */
int bench_bare_gather(struct bench_bare *b, const struct bench_run *runs, size_t n, uint64_t bytes);

/* --- patterns ----------------------------------------------------------------------------------- */

/* Words [first, first + words) of an object's pattern, at address `at`. */
struct bench_span {
    uint64_t at, words, object, first;
};

int bench_bare_poison(struct bench_bare *b, void *at, uint64_t bytes);
/* The spans are in device memory. */
int bench_bare_fill(struct bench_bare *b, const struct bench_span *spans, size_t n, uint64_t seed);
/* *object_p and *offset_p: the first wrong word; both UINT64_MAX if all are right. */
int bench_bare_check(struct bench_bare *b, const struct bench_span *spans, size_t n, uint64_t seed,
                     uint64_t *object_p, uint64_t *offset_p);

#ifdef __cplusplus
}
#endif
#endif
