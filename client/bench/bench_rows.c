/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct gets: 2048 rows that a kernel reads by itself through a hit table, at random places of the node's
 * objects. Against
 *
 *   plain kernel   the same without a table, leases and generations (the limit)
 *   copy           one cudaMemcpyAsync of as many bytes that lie together
 *   batch          one cudaMemcpyBatchAsync with a copy a row
 *   tarn_get       row numbers to the host, then tarn_get with an item a row
 *
 * The first three are timed by the GPU's events, the others by the host. Rows of less than 4 KiB lie in pages
 * of 64; others are a page each. All contestants read the same rows; the bare ones from a copy of the pool.
 */
#include "client/bench/bench_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <tarn/table.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/bench/bench.h"
#include "transport/cuda/cuda.h"

#define OPS 4
#define PER_PAGE 64
#define NAME_BYTES 24
#define PLAIN "plain kernel"
#define COPY "copy"
#define BATCH "batch"
#define GET "tarn_get"

enum way { CPU_POOL, SAME_GPU, OTHER_GPU };

static const struct {
    const char *note, *place;
    int device; /* whose kernel reads */
} ways[] = {
    [CPU_POOL] = {"CPU pool", "bench/cpu0", 0},
    [SAME_GPU] = {"same GPU", "bench/gpu0", 0},
    [OTHER_GPU] = {"other GPU", "bench/gpu0", 1},
};

struct rows_bench {
    struct bench_env *e;
    struct bench_report *rep;
    struct tarn_client *c;
    struct bench_bare *bare[2]; /* [1]: NULL with only one GPU */
    bool played;
    char cuda[96];
};

/* Objects and memory of a row of the table. Row i of an operation has number at[i] in the hit table, and is
 * object i of the load. */
struct scene {
    struct rows_bench *b;
    enum way way;
    uint32_t row_bytes, per_page, n, nrows, npages; /* n: of an operation */
    char *image;                                    /* pinned: all rows, as they lie in the pool */
    uint64_t image_bytes;
    bool pinned;
    void *far; /* the same where the pool is: the image itself, or device memory */
    struct bench_load *near;
    struct bench_watch *watch;
    struct tarn_table *table;
    struct tarn_key *keys;
    char (*names)[NAME_BYTES];
    uint32_t *at;                   /* nrows */
    void *at_there, *status, *from; /* on the device: the same, the statuses, addresses of rows */
    int32_t *status_here;
};

static struct bench_bare *bare_of(const struct scene *s)
{
    return s->b->bare[ways[s->way].device];
}

/* --- making a scene ----------------------------------------------------------------------------- */

static void shuffle(struct scene *s)
{
    uint64_t x = 88172645463325252ull;

    for (uint32_t i = 0; i < s->nrows; i++)
        s->at[i] = i;
    for (uint32_t i = s->nrows - 1; i > 0; i--) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint32_t k = (uint32_t)(x % (i + 1)), other = s->at[k];
        s->at[k] = s->at[i];
        s->at[i] = other;
    }
}

static int image_make(struct scene *s)
{
    int rc = bench_map(s->image_bytes, false, &s->image);

    if (rc == 0)
        rc = tarn_cuda_pin(s->image, s->image_bytes, true);
    s->pinned = rc == 0;
    for (uint32_t i = 0; rc == 0 && i < s->nrows; i++)
        bench_pattern_fill(s->image + (uint64_t)s->at[i] * s->row_bytes, s->row_bytes,
                           bench_pattern_seed(s->near->seed, i), 0);
    s->far = s->image;
    return rc || s->way == CPU_POOL ? rc
                                    : bench_bare_upload(s->b->bare[0], s->image, s->image_bytes, &s->far);
}

static int put_pages(struct scene *s)
{
    struct tarn_put_options o = {.size = sizeof o, .flags = TARN_PUT_REPLACE, .place = ways[s->way].place};
    uint64_t bytes = (uint64_t)s->row_bytes * s->per_page;
    int rc = 0;

    for (uint32_t p = 0; rc == 0 && p < s->npages; p++) {
        struct tarn_piece piece = {.addr = s->image + p * bytes, .bytes = bytes};
        snprintf(s->names[p], NAME_BYTES, "page%u", p);
        s->keys[p] = (struct tarn_key){s->names[p], strlen(s->names[p])};
        struct tarn_item item = {
            .key = s->keys[p], .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(bytes)};
        rc = tarn_put(s->b->c, &item, 1, &o);
    }
    return rc;
}

static int table_make(struct scene *s)
{
    struct tarn_table_options o = {.size = sizeof o, .device = ways[s->way].device, .npages = s->npages};
    int rc = tarn_table_new(s->b->c, &o, &s->table);

    return rc ? rc : tarn_table_set(s->table, 0, s->keys, s->npages, NULL, 0, NULL);
}

static int upload(struct scene *s)
{
    const void **from = calloc(s->nrows, sizeof *from);
    int rc = from ? 0 : tarn_fail(TARN_E_NO_MEMORY, "rows: out of memory");

    for (uint32_t i = 0; rc == 0 && i < s->nrows; i++)
        from[i] = (char *)s->far + (uint64_t)s->at[i] * s->row_bytes;
    if (rc == 0)
        rc = bench_bare_upload(bare_of(s), from, s->nrows * sizeof *from, &s->from);
    if (rc == 0)
        rc = bench_bare_upload(bare_of(s), s->at, s->nrows * sizeof *s->at, &s->at_there);
    if (rc == 0)
        rc = bench_bare_upload(bare_of(s), s->status_here, s->n * sizeof(int32_t), &s->status);
    free(from);
    return rc;
}

static int scene_make(struct scene *s)
{
    const struct bench_site site = {ways[s->way].device, bare_of(s), false};

    s->nrows = s->n * (OPS + 1);
    s->npages = (s->nrows + s->per_page - 1) / s->per_page;
    s->image_bytes = (uint64_t)s->npages * s->per_page * s->row_bytes;
    s->at = calloc(s->nrows, sizeof *s->at);
    s->keys = calloc(s->npages, sizeof *s->keys);
    s->names = calloc(s->npages, sizeof *s->names);
    s->status_here = calloc(s->n, sizeof *s->status_here);
    if (!s->at || !s->keys || !s->names || !s->status_here)
        return tarn_fail(TARN_E_NO_MEMORY, "rows: out of memory");
    shuffle(s);
    int rc = bench_load_new_at(&site, s->row_bytes, 1, s->n, 1, OPS, &s->near);
    if (rc == 0)
        bench_load_fill(s->near, s->row_bytes); /* sets the seed */
    if (rc == 0)
        rc = image_make(s);
    if (rc == 0)
        rc = put_pages(s);
    if (rc == 0)
        rc = table_make(s);
    if (rc == 0)
        rc = upload(s);
    return rc ? rc : bench_watch_new(bare_of(s), &s->watch);
}

static void drop(struct scene *s, void *at)
{
    if (at)
        bench_bare_drop(bare_of(s), at);
}

static void scene_free(struct scene *s)
{
    tarn_table_free(s->table);
    bench_watch_free(s->watch);
    drop(s, s->from);
    drop(s, s->at_there);
    drop(s, s->status);
    if (s->far && s->far != s->image)
        bench_bare_drop(s->b->bare[0], s->far);
    if (s->pinned)
        tarn_cuda_unpin(s->image);
    if (s->image)
        munmap(s->image, s->image_bytes);
    if (s->npages && s->names)
        tarn_remove(s->b->c, s->keys, s->npages, NULL, 0);
    bench_load_free(s->near);
    free(s->status_here);
    free(s->names);
    free(s->keys);
    free(s->at);
}

/* --- contestants -------------------------------------------------------------------------------- */

enum by { BY_TABLE, BY_PLAIN, BY_COPY, BY_BATCH, BY_GET };

struct contest {
    struct scene *s;
    enum by by;
};

static char *near_of(const struct scene *s, uint32_t op)
{
    return s->near->memory + (uint64_t)op * s->n * s->row_bytes;
}

static int launch(const struct contest *k, uint32_t op)
{
    struct scene *s = k->s;
    const struct tarn_gather g = {.size = sizeof g,
                                  .row_bytes = s->row_bytes,
                                  .rows_per_page = s->per_page,
                                  .rows = (uint32_t *)s->at_there + (uint64_t)op * s->n,
                                  .n = s->n,
                                  .to = near_of(s, op),
                                  .stride = s->row_bytes,
                                  .status = s->status};
    if (k->by == BY_TABLE)
        return tarn_table_gather(s->table, &g, bench_bare_stream(bare_of(s)));
    if (k->by == BY_PLAIN)
        return bench_bare_rows(bare_of(s), (const void *const *)s->from + (uint64_t)op * s->n, s->n,
                               near_of(s, op), s->row_bytes);
    return bench_bare_copy(bare_of(s), (char *)s->far + (uint64_t)op * s->n * s->row_bytes, near_of(s, op),
                           (uint64_t)s->n * s->row_bytes);
}

static int check_statuses(struct scene *s)
{
    int rc = bench_bare_fetch(bare_of(s), s->status, s->n * sizeof(int32_t), s->status_here);

    for (uint32_t i = 0; rc == 0 && i < s->n; i++)
        if (s->status_here[i])
            rc = tarn_fail(s->status_here[i], "row %u: %s", i, tarn_error_name(s->status_here[i]));
    return rc;
}

/* An operation that the GPU times. */
static int timed_by_gpu(const struct contest *k, uint32_t op, uint64_t *ns_p)
{
    int rc = bench_watch_begin(k->s->watch);

    if (rc != 0)
        return rc;
    rc = launch(k, op);
    int ended = bench_watch_end(k->s->watch, ns_p);
    rc = rc ? rc : ended;
    return rc || k->by != BY_TABLE ? rc : check_statuses(k->s);
}

/* Lists the rows' copies, or gets them, as a host does that has their numbers on the GPU. */
static int by_host(const struct contest *k, uint32_t op)
{
    struct scene *s = k->s;
    struct tarn_get_options o = {.size = sizeof o, .flags = TARN_GET_RANGE};
    uint32_t *at = calloc(s->n, sizeof *at);
    struct tarn_item *items = calloc(s->n, sizeof *items);
    struct tarn_piece *pieces = calloc(s->n, sizeof *pieces);
    void **to = calloc(s->n, sizeof *to);
    const void **from = calloc(s->n, sizeof *from);
    size_t *bytes = calloc(s->n, sizeof *bytes);
    int rc = at && items && pieces && to && from && bytes ? 0 : tarn_fail(TARN_E_NO_MEMORY, "rows: memory");

    if (rc == 0)
        rc = bench_bare_fetch(bare_of(s), (uint32_t *)s->at_there + (uint64_t)op * s->n, s->n * sizeof *at,
                              at);
    for (uint32_t i = 0; rc == 0 && i < s->n; i++) {
        to[i] = pieces[i].addr = near_of(s, op) + (uint64_t)i * s->row_bytes;
        bytes[i] = pieces[i].bytes = s->row_bytes;
        from[i] = (char *)s->far + (uint64_t)at[i] * s->row_bytes;
        items[i] = (struct tarn_item){.key = s->keys[at[i] / s->per_page],
                                      .pieces = &pieces[i],
                                      .npieces = 1,
                                      .offset = (uint64_t)(at[i] % s->per_page) * s->row_bytes};
    }
    if (rc == 0 && k->by == BY_GET)
        rc = tarn_get(s->b->c, items, s->n, &o);
    else if (rc == 0)
        rc = bench_bare_batch(bare_of(s), &(struct bench_copies){to, from, bytes, s->n});
    free(bytes), free(from), free(to), free(pieces), free(items), free(at);
    return rc;
}

static int run_op(const struct contest *k, uint32_t op, uint64_t *ns_p)
{
    if (k->by < BY_BATCH)
        return timed_by_gpu(k, op, ns_p);
    uint64_t start = tarn_now_ns();
    int rc = by_host(k, op);
    *ns_p = tarn_now_ns() - start;
    return rc;
}

/* All operations; the first one warms up. */
static int slice(void *arg, double *items_s, struct bench_hist *h)
{
    const struct contest *k = arg;
    uint64_t ns = 0, all = 0;
    int rc = 0;

    for (uint32_t op = 0; rc == 0 && op <= OPS; op++) {
        rc = run_op(k, op, &ns);
        if (op == 0)
            continue;
        bench_hist_add(h, ns);
        all += ns;
    }
    *items_s = all ? OPS * 1e9 / (double)all : 0;
    return rc;
}

static int begin(void *arg, uint64_t round)
{
    const struct contest *k = arg;

    (void)round;
    bench_load_poison(k->s->near);
    return 0;
}

static int end(void *arg)
{
    const struct contest *k = arg;

    return k->by == BY_COPY ? 0 : bench_load_check(k->s->near);
}

static const struct bench_ops contest_ops = {.begin = begin, .slice = slice, .end = end, .close = free};

static int add(struct bench_row *r, struct scene *s, enum bench_role role, const char *name, enum by by)
{
    struct contest *k = calloc(1, sizeof *k);

    if (!k)
        return tarn_fail(TARN_E_NO_MEMORY, "rows: out of memory");
    *k = (struct contest){s, by};
    return bench_row_add(r, role, name, &contest_ops, k, NULL);
}

/* --- rows of the table -------------------------------------------------------------------------- */

static void targets(struct bench_row *r, const struct scene *s)
{
    double slower = bench_p50_ratio(r, bench_row_named(r, PLAIN));
    double of_copy = bench_rate_ratio(r, bench_row_named(r, COPY));
    double of_batch = bench_rate_ratio(r, bench_row_named(r, BATCH));

    bench_row_figure(r, "plain_us", bench_hist_us(&bench_row_named(r, PLAIN)->latency, 0.5));
    bench_row_figure(r, "copy_us", bench_hist_us(&bench_row_named(r, COPY)->latency, 0.5));
    bench_row_figure(r, "batch_us", bench_hist_us(&bench_row_named(r, BATCH)->latency, 0.5));
    bench_row_figure(r, "get_us", bench_hist_us(&bench_row_named(r, GET)->latency, 0.5));
    if (s->b->played)
        return;
    if (s->row_bytes < 4096 && s->way == CPU_POOL)
        bench_at_most(r, "time / plain kernel", slower, 1.2);
    if (s->row_bytes == 4096 && s->way == OTHER_GPU)
        bench_at_most(r, "time / plain kernel", slower, 1.25);
    if (s->row_bytes > 4096)
        bench_at_most(r, "time / plain kernel", slower, 1.02);
    if (s->row_bytes >= 4096 && s->way == CPU_POOL)
        bench_at_least(r, "of a contiguous copy", of_copy, s->row_bytes == 4096 ? 0.85 : 0.9);
    if (s->row_bytes == 4096)
        bench_at_least(r, "times a batch", of_batch, 15);
    bench_at_least(r, "times tarn_get", bench_rate_ratio(r, bench_row_named(r, GET)), 2);
}

static int measure(struct scene *s, struct bench_row *r)
{
    int rc = scene_make(s);

    if (rc == 0)
        rc = add(r, s, BENCH_OURS, "direct get", BY_TABLE);
    if (rc == 0)
        rc = add(r, s, BENCH_LIMIT, PLAIN, BY_PLAIN);
    if (rc == 0)
        rc = add(r, s, BENCH_REFERENCE, COPY, BY_COPY);
    if (rc == 0)
        rc = add(r, s, BENCH_PEER, BATCH, BY_BATCH);
    if (rc == 0)
        rc = add(r, s, BENCH_REFERENCE, GET, BY_GET);
    if (rc == 0)
        rc = bench_row_measure(s->b->e, r);
    if (rc == 0)
        targets(r, s);
    return rc;
}

static int rows_row(struct rows_bench *b, enum way way, uint32_t row_bytes)
{
    struct scene s = {.b = b,
                      .way = way,
                      .row_bytes = row_bytes,
                      .per_page = row_bytes < 4096 ? PER_PAGE : 1,
                      .n = b->played ? 32 : 2048};
    char note[48];
    snprintf(note, sizeof note, "%u rows of %u, %s", s.n, row_bytes, ways[way].note);
    struct bench_row *r = bench_row_new("direct_get", note, (uint64_t)s.n * row_bytes);
    int rc = r ? measure(&s, r) : TARN_E_NO_MEMORY;

    if (r) {
        json_object_set_new(r->figures, "cuda", json_string(b->cuda));
        rc = bench_report_row(b->rep, r, rc);
    }
    scene_free(&s);
    return rc;
}

static int open_gpus(struct rows_bench *b)
{
    int n, rc = tarn_cuda_count(&n);

    for (int i = 0; rc == 0 && i < 2 && i < n; i++)
        if (i == 0 || (tarn_cuda_reaches(0, 1) && tarn_cuda_reaches(1, 0)))
            rc = bench_bare_open(i, &b->bare[i]);
    bench_bare_describe(b->cuda, sizeof b->cuda);
    return rc;
}

int bench_group_rows(struct bench_env *e, struct bench_report *rep)
{
    static const uint32_t sizes[] = {576, 656, 4096, 32768};
    struct rows_bench b = {.e = e, .rep = rep, .played = bench_bare_played()};
    int rc = open_gpus(&b);

    if (rc == 0)
        rc = bench_start_node_with(e, b.played ? "gpu0:device=0,bytes=48M" : "gpu0:device=0,bytes=2G",
                                   b.played ? "cpu0:bytes=32M" : "cpu0:bytes=2G");
    e->seconds = b.played ? 0 : e->seconds;
    e->quick |= b.played;
    if (rc == 0)
        rc = bench_client(e, "cuda_ipc", &b.c);
    for (int way = CPU_POOL; way <= OTHER_GPU; way++)
        for (size_t i = 0; rc == 0 && i < sizeof sizes / sizeof sizes[0]; i++)
            if (b.bare[ways[way].device])
                rc = rows_row(&b, (enum way)way, sizes[i]);
    tarn_close(b.c);
    bench_bare_close(b.bare[1]);
    bench_bare_close(b.bare[0]);
    return rc;
}
