/* SPDX-License-Identifier: Apache-2.0 */
/* Contestants that make bare CUDA calls. */
#include "client/bench/bench.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"

struct copier {
    enum bench_copies_by by;
    struct bench_bare *bare;
    bool put;
    struct bench_load *near, *far;
    size_t each;                /* copies in one operation */
    struct bench_copies copies; /* of all operations */
    void *runs;                 /* GATHER: the same, on the device */
};

/* --- copies ------------------------------------------------------------------------------------- */

static void set_copy(struct copier *k, size_t i, char *near, char *far, uint64_t bytes)
{
    k->copies.to[i] = k->put ? far : near;
    k->copies.from[i] = k->put ? near : far;
    k->copies.bytes[i] = bytes;
}

static void list_whole(struct copier *k)
{
    uint64_t bytes = k->near->bytes * k->near->depth;

    for (size_t i = 0; i < k->copies.n; i++)
        set_copy(k, i, k->near->memory + i * bytes, k->far->memory + i * bytes, bytes);
}

static void list_pieces(struct copier *k)
{
    char *far = k->far->memory;

    for (size_t i = 0; i < k->copies.n; far += k->near->pieces[i].bytes, i++)
        set_copy(k, i, k->near->pieces[i].addr, far, k->near->pieces[i].bytes);
}

static int upload_runs(struct copier *k)
{
    struct bench_run *runs = calloc(k->copies.n, sizeof *runs);

    if (!runs)
        return tarn_fail(TARN_E_NO_MEMORY, "bare copies: out of memory");
    for (size_t i = 0; i < k->copies.n; i++)
        runs[i] = (struct bench_run){(uint64_t)(uintptr_t)k->copies.to[i],
                                     (uint64_t)(uintptr_t)k->copies.from[i], k->copies.bytes[i]};
    int rc = bench_bare_upload(k->bare, runs, k->copies.n * sizeof *runs, &k->runs);
    free(runs);
    return rc;
}

static int list_copies(struct copier *k)
{
    struct bench_copies *c = &k->copies;

    k->each = k->by == BENCH_WHOLE ? 1 : (size_t)k->near->depth * k->near->npieces;
    c->n = (k->near->ops + k->near->threads) * k->each;
    c->to = calloc(c->n, sizeof *c->to);
    c->from = calloc(c->n, sizeof *c->from);
    c->bytes = calloc(c->n, sizeof *c->bytes);
    if (!c->to || !c->from || !c->bytes)
        return tarn_fail(TARN_E_NO_MEMORY, "bare copies: out of memory");
    if (k->by == BENCH_WHOLE)
        list_whole(k);
    else
        list_pieces(k);
    return k->by == BENCH_GATHER ? upload_runs(k) : 0;
}

/* --- the contestant ----------------------------------------------------------------------------- */

/* Poisons the destination. For gets the content of `far` stays. */
static int begin(void *arg, uint64_t round)
{
    struct copier *k = arg;

    if (k->put) {
        bench_load_fill(k->near, round + 1);
        bench_load_poison(k->far);
        k->far->seed = k->near->seed;
    } else {
        bench_load_poison(k->near);
        k->near->seed = k->far->seed;
    }
    return 0;
}

static int copy_op(void *arg, uint32_t thread, size_t i)
{
    struct copier *k = arg;
    size_t first = i * k->each;
    const struct bench_copies c = {k->copies.to + first, k->copies.from + first, k->copies.bytes + first,
                                   k->each};

    (void)thread;
    if (k->by == BENCH_GATHER)
        return bench_bare_gather(k->bare, (const struct bench_run *)k->runs + first, k->each, c.bytes[0]);
    return k->by == BENCH_BATCH ? bench_bare_batch(k->bare, &c) : bench_bare_each(k->bare, &c);
}

static int end(void *arg)
{
    struct copier *k = arg;
    return bench_load_check(k->put ? k->far : k->near);
}

static int first_op(void *arg, double *items_s, struct bench_hist *h)
{
    struct copier *k = arg;
    uint64_t start = tarn_now_ns();
    int rc = copy_op(k, 0, 0);
    uint64_t took = tarn_now_ns() - start;

    bench_hist_add(h, took);
    *items_s = k->near->depth * 1e9 / (double)took;
    return rc;
}

static int end_first(void *arg)
{
    struct copier *k = arg;
    return bench_load_check_first(k->put ? k->far : k->near, k->near->depth);
}

static void close_copier(void *arg)
{
    struct copier *k = arg;

    if (k->runs)
        bench_bare_drop(k->bare, k->runs);
    free(k->copies.to);
    free(k->copies.from);
    free(k->copies.bytes);
    free(k);
}

static const struct bench_ops copy_ops = {.begin = begin, .op = copy_op, .end = end, .close = close_copier};
static const struct bench_ops slow_copy_ops = {
    .begin = begin, .slice = first_op, .end = end_first, .close = close_copier};

int bench_add_copies(struct bench_row *r, enum bench_role role, const char *name, enum bench_copies_by by,
                     struct bench_bare *bare, bool put, struct bench_load *near, struct bench_load *far)
{
    struct copier *k = calloc(1, sizeof *k);
    bool slow = by == BENCH_EACH || by == BENCH_BATCH;

    if (!k)
        return tarn_fail(TARN_E_NO_MEMORY, "bare copies: out of memory");
    *k = (struct copier){.by = by, .bare = bare, .put = put, .near = near, .far = far};
    int rc = list_copies(k);
    if (rc != 0) {
        close_copier(k);
        return rc;
    }
    return bench_row_add(r, role, name, slow ? &slow_copy_ops : &copy_ops, k, near);
}
