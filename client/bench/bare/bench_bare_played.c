/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_bare.h with queues of transport/cuda/cuda.h, for builds without the CUDA runtime. With it the
 * benchmark can be tested over a stand-in. Without GPU support it starts and says that there is no GPU.
 */
#include "client/bench/bench.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/cuda/cuda.h"

#define STAGE (1u << 20)
#define PAGE 4096
#define WAIT_MS 20000

struct bench_bare {
    int device;
    struct tarn_cuda_queue *queue;
    char *stage; /* pinned */
};

bool bench_bare_played(void)
{
    return true;
}

void bench_bare_describe(char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "a STAND-IN for CUDA: the figures mean nothing");
}

/* --- streams ------------------------------------------------------------------------------------ */

int bench_bare_open(int device, struct bench_bare **b_p)
{
    struct bench_bare *b = calloc(1, sizeof *b);

    if (!b)
        return tarn_fail(TARN_E_NO_MEMORY, "bare calls: out of memory");
    b->device = device;
    int rc = tarn_cuda_queue_open(device, &b->queue);
    if (rc == 0)
        rc = bench_map(STAGE, false, &b->stage);
    if (rc == 0)
        rc = tarn_cuda_pin(b->stage, STAGE, true);
    if (rc != 0) {
        bench_bare_close(b);
        return rc;
    }
    *b_p = b;
    return 0;
}

void bench_bare_close(struct bench_bare *b)
{
    if (!b)
        return;
    tarn_cuda_queue_close(b->queue);
    if (b->stage) {
        tarn_cuda_unpin(b->stage);
        munmap(b->stage, STAGE);
    }
    free(b);
}

void *bench_bare_stream(struct bench_bare *b)
{
    (void)b;
    return NULL;
}

/* Pinned host memory, behind a page that has its size. */
int bench_bare_upload(struct bench_bare *b, const void *data, size_t bytes, void **at_p)
{
    uint64_t all = PAGE + bytes;
    char *memory;
    int rc = bench_map(all, false, &memory);

    (void)b;
    if (rc == 0 && (rc = tarn_cuda_pin(memory, all, true)) != 0)
        munmap(memory, all);
    if (rc != 0)
        return rc;
    memcpy(memory, &all, sizeof all);
    memcpy(memory + PAGE, data, bytes);
    *at_p = memory + PAGE;
    return 0;
}

int bench_bare_fetch(struct bench_bare *b, const void *at, size_t bytes, void *data)
{
    (void)b;
    memcpy(data, at, bytes);
    return 0;
}

void bench_bare_drop(struct bench_bare *b, void *at)
{
    char *memory = (char *)at - PAGE;
    uint64_t all;

    (void)b;
    memcpy(&all, memory, sizeof all);
    tarn_cuda_unpin(memory);
    munmap(memory, all);
}

/* --- copies ------------------------------------------------------------------------------------- */

static int give(struct bench_bare *b, const void *from, void *to, uint64_t bytes)
{
    const struct tarn_cuda_piece piece = {from, to, bytes};
    uint64_t deadline = tarn_deadline(WAIT_MS);
    size_t taken = 0;
    int rc = 0;

    while (rc == 0 && taken == 0 && tarn_now_ns() < deadline) {
        rc = tarn_cuda_copy(b->queue, &piece, 1, &taken);
        if (rc == 0 && taken == 0)
            sched_yield();
    }
    return rc || taken ? rc : tarn_fail(TARN_E_TIMEOUT, "bare calls: a queue takes nothing");
}

static int finish(struct bench_bare *b)
{
    uint64_t mark, deadline = tarn_deadline(WAIT_MS);
    int rc = tarn_cuda_mark(b->queue, &mark);

    while (rc == 0 && (rc = tarn_cuda_poll(b->queue, mark)) == TARN_E_AGAIN && tarn_now_ns() < deadline) {
        sched_yield();
        rc = 0;
    }
    return rc;
}

int bench_bare_each(struct bench_bare *b, const struct bench_copies *c)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->n; i++)
        rc = give(b, c->from[i], c->to[i], c->bytes[i]);
    return rc ? rc : finish(b);
}

int bench_bare_batch(struct bench_bare *b, const struct bench_copies *c)
{
    return bench_bare_each(b, c);
}

int bench_bare_gather(struct bench_bare *b, const struct bench_run *runs, size_t n, uint64_t bytes)
{
    int rc = 0;

    (void)bytes;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = give(b, (const void *)(uintptr_t)runs[i].from, (void *)(uintptr_t)runs[i].to, runs[i].bytes);
    return rc ? rc : finish(b);
}

/* --- patterns ----------------------------------------------------------------------------------- */

int bench_bare_poison(struct bench_bare *b, void *at, uint64_t bytes)
{
    int rc = 0;

    memset(b->stage, BENCH_POISON, STAGE);
    for (uint64_t done = 0, n; rc == 0 && done < bytes; done += n) {
        n = bytes - done < STAGE ? bytes - done : STAGE;
        rc = give(b, b->stage, (char *)at + done, n);
    }
    return rc ? rc : finish(b);
}

int bench_bare_fill(struct bench_bare *b, const struct bench_span *spans, size_t n, uint64_t seed)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct bench_span *s = &spans[i];
        bench_pattern_fill(b->stage, s->words * 8, bench_pattern_seed(seed, s->object), s->first * 8);
        rc = give(b, b->stage, (void *)(uintptr_t)s->at, s->words * 8);
        if (rc == 0)
            rc = finish(b);
    }
    return rc;
}

int bench_bare_check(struct bench_bare *b, const struct bench_span *spans, size_t n, uint64_t seed,
                     uint64_t *object_p, uint64_t *offset_p)
{
    int rc = 0;

    *object_p = *offset_p = UINT64_MAX;
    for (size_t i = 0; rc == 0 && *offset_p == UINT64_MAX && i < n; i++) {
        const struct bench_span *s = &spans[i];
        rc = give(b, (const void *)(uintptr_t)s->at, b->stage, s->words * 8);
        if (rc == 0)
            rc = finish(b);
        if (rc == 0)
            *offset_p = bench_pattern_check(b->stage, s->words * 8, bench_pattern_seed(seed, s->object),
                                            s->first * 8);
        *object_p = *offset_p == UINT64_MAX ? UINT64_MAX : s->object;
    }
    return rc;
}
