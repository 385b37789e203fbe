/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extent allocator by itself. Measures how much of a pool is used at the first refusal, and what an
 * operation costs. Used bytes are the bytes asked for, without rounding.
 *
 * One size: allocate until refused. Mixed sizes: fill a part of the pool, then churn (free a random extent
 * and allocate another, CHURN_TURNS times the number of extents), then allocate until refused. A refusal
 * during the churn also counts as the first one: with a tenth of 1 GiB free, random frees leave some 800
 * holes of 130 KiB on average, and the first request near 4 MiB fits none of them. Mixed sizes have a target
 * only for a churn at 80 % of the pool.
 */
#include "client/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/store/alloc.h"

#define ALIGN 64 /* of a pool without align= */
#define CHURN_TURNS 20
#define TARGET 0.95
#define TARGET_CHURN 80 /* percent of the pool */

struct extents {
    struct tarn_alloc *alloc;
    uint64_t pool_bytes, used_bytes;
    struct {
        uint64_t bytes;
        uint32_t handle;
    } * list;
    size_t n, room;
    uint64_t random, ops;
};

/* --- steps -------------------------------------------------------------------------------------- */

/* xorshift64* with a fixed seed: the same sizes in every run. */
static double random01(struct extents *x)
{
    x->random ^= x->random >> 12;
    x->random ^= x->random << 25;
    x->random ^= x->random >> 27;
    return (double)((x->random * 0x2545f4914f6cdd1dull) >> 11) * 0x1p-53;
}

/* bytes 0: log-uniform from 4 KiB to 4 MiB. False when refused. */
static bool allocate(struct extents *x, uint64_t bytes)
{
    uint64_t size = bytes ? bytes : (uint64_t)(4096 * exp2(10 * random01(x)));
    uint32_t handle;

    x->ops++;
    if (x->n == x->room || tarn_extent_new(x->alloc, size, (uint32_t)x->n, &handle) == TARN_ALLOC_NONE)
        return false;
    x->list[x->n].bytes = size;
    x->list[x->n].handle = handle;
    x->n++;
    x->used_bytes += size;
    return true;
}

static void free_random(struct extents *x)
{
    size_t i = (size_t)(random01(x) * (double)x->n);

    x->ops++;
    tarn_extent_free(x->alloc, x->list[i].handle);
    x->used_bytes -= x->list[i].bytes;
    x->list[i] = x->list[--x->n];
}

static bool fill_to(struct extents *x, uint64_t used_bytes)
{
    while (x->used_bytes < used_bytes)
        if (!allocate(x, 0))
            return false;
    return true;
}

static void run_mixed(struct extents *x, uint32_t churn_percent)
{
    uint64_t fill = x->pool_bytes / 100 * churn_percent;
    bool ok = fill_to(x, fill);

    for (size_t turns = CHURN_TURNS * x->n; ok && turns > 0; turns--) {
        free_random(x);
        ok = fill_to(x, fill);
    }
    while (ok)
        ok = allocate(x, 0);
}

/* --- rows --------------------------------------------------------------------------------------- */

static int extents_new(uint64_t pool_bytes, struct extents *x)
{
    *x = (struct extents){
        .pool_bytes = pool_bytes, .room = pool_bytes / 4096 + 1, .random = 88172645463325252ull};
    x->list = calloc(x->room, sizeof *x->list);
    if (!x->list)
        return tarn_fail(TARN_E_NO_MEMORY, "the alloc group: out of memory");
    return tarn_alloc_new(pool_bytes, ALIGN, &x->alloc);
}

static void extents_free(struct extents *x)
{
    if (x->alloc)
        tarn_alloc_free(x->alloc);
    free(x->list);
}

static void run(struct extents *x, uint64_t bytes, uint32_t churn_percent)
{
    while (bytes && allocate(x, bytes))
        ;
    if (!bytes)
        run_mixed(x, churn_percent);
}

static void note_figures(struct bench_row *r, const struct extents *x)
{
    bench_row_figure(r, "utilisation", (double)x->used_bytes / (double)x->pool_bytes);
    bench_row_figure(r, "ns_per_op", r->wall_s * 1e9 / (double)x->ops);
    bench_row_figure(r, "ops", (double)x->ops);
}

/* bytes 0: mixed sizes, with a churn at churn_percent of the pool. */
static int alloc_row(struct bench_report *rep, uint32_t pool_gib, uint64_t bytes, uint32_t churn_percent)
{
    char note[64];
    struct extents x;
    int rc = extents_new((uint64_t)pool_gib << 30, &x);

    if (bytes)
        snprintf(note, sizeof note, "+ 17 in %u GiB", pool_gib);
    else
        snprintf(note, sizeof note, "4 KiB-4 MiB, churn at %u %% of %u GiB", churn_percent, pool_gib);
    struct bench_row *r = bench_row_new("alloc", note, bytes);
    if (rc == 0 && r) {
        uint64_t start = tarn_now_ns();
        run(&x, bytes, churn_percent);
        r->wall_s = (double)(tarn_now_ns() - start) / 1e9;
        note_figures(r, &x);
        if (bytes || churn_percent == TARGET_CHURN)
            bench_at_least(r, "utilisation", (double)x.used_bytes / (double)x.pool_bytes, TARGET);
    }
    extents_free(&x);
    return r ? bench_report_row(rep, r, rc) : TARN_E_NO_MEMORY;
}

int bench_group_alloc(struct bench_env *e, struct bench_report *rep)
{
    int rc = 0;

    (void)e;
    for (int n = 12; rc == 0 && n <= 22; n++)
        rc = alloc_row(rep, 1, (1ull << n) + 17, 0);
    for (uint32_t gib = 1; rc == 0 && gib <= 16; gib *= 16)
        rc = alloc_row(rep, gib, 0, TARGET_CHURN);
    for (uint32_t gib = 1; rc == 0 && gib <= 16; gib *= 16)
        rc = alloc_row(rep, gib, 0, 90);
    return rc;
}
