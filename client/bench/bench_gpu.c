/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU pools, and CPU pools with GPU memory, against the bare CUDA calls between the same kinds of memory. The
 * node is its own process with a pool on GPU 0 and a CPU pool. The clients are in this process.
 *
 *   same GPU    pool and client's memory on GPU 0
 *   other GPU   pool on GPU 0, client's memory on GPU 1; GPU 1 copies
 *   CPU pool    client's memory on GPU 0
 *   CPU memory  pool on GPU 0, client's memory pinned on the host
 *
 * gpu_get is tarn_get with known descriptors. gpu_write is the data phase of a put (tarn_put_write), with the
 * whole put as its reference. gpu_put is the whole put of several items, with the data phase as its
 * reference: a put takes all items in one call, the data phase needs a call an item.
 *
 * Over a stand-in for CUDA everything is 256 times smaller, and targets are not checked.
 */
#include "client/bench/bench.h"

#include <poll.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/cuda/cuda.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

#define ARRAYS 64  /* of a KV cache: a key and a value array for each of 32 layers */
#define SHRUNK 256 /* over a stand-in sizes are divided by this */
#define PASS_BYTES (256 * MIB)
#define PASS_OPS_MIN 2
#define PASS_OPS_MAX 512
#define ROW_PART 0.4 /* a row takes this part of --seconds, because there are many rows */
#define ROW_PART_QUICK 0.25

enum way { SAME_GPU, OTHER_GPU, CPU_POOL, CPU_MEMORY };

static const struct {
    const char *note, *place;
    int device; /* has the client's memory; its stream copies */
    bool pinned_near, pinned_far;
} ways[] = {
    [SAME_GPU] = {"same GPU", "bench/gpu0", 0, false, false},
    [OTHER_GPU] = {"other GPU", "bench/gpu0", 1, false, false},
    [CPU_POOL] = {"CPU pool", "bench/cpu0", 0, false, true},
    [CPU_MEMORY] = {"CPU memory", "bench/gpu0", 0, true, false},
};

struct gpu_bench {
    struct bench_env *e;
    struct bench_report *rep;
    struct tarn_client *c;
    struct bench_bare *bare[2]; /* [1]: NULL with only one GPU */
    bool played;
    char cuda[96], gpus[160];
};

struct plan {
    enum way way;
    bool put;
    uint64_t piece; /* bytes */
    uint32_t pieces, depth;
    bool brief;      /* latency counts; the limit is the gather kernel */
    uint32_t arrays; /* 0: items have pieces; else pages of so many arrays */
};

/* Memory and objects of a row. `near` is the client's memory; `far` takes the place of the pool. */
struct side {
    struct bench_load *near, *flat, *far; /* flat: as large as near but contiguous; may be near itself */
    struct bench_objects *objects, *whole;
};

/* --- sides -------------------------------------------------------------------------------------- */

static size_t ops_of(const struct gpu_bench *b, const struct plan *p)
{
    uint64_t ops = PASS_BYTES / (b->played ? SHRUNK : 1) / (p->piece * p->pieces * p->depth);

    return ops < PASS_OPS_MIN ? PASS_OPS_MIN : ops > PASS_OPS_MAX ? PASS_OPS_MAX : ops;
}

static int side_loads(const struct gpu_bench *b, const struct plan *p, struct side *s)
{
    int device = ways[p->way].device;
    struct bench_site near = {device, b->bare[device], ways[p->way].pinned_near};
    struct bench_site far = {0, b->bare[0], ways[p->way].pinned_far};
    uint64_t bytes = p->piece * p->pieces;
    size_t ops = ops_of(b, p);
    int rc = p->arrays ? bench_load_new_paged(&near, bytes, p->pieces, p->arrays, p->depth, ops, &s->near)
                       : bench_load_new_at(&near, bytes, p->pieces, p->depth, 1, ops, &s->near);

    s->flat = s->near;
    if (rc == 0 && p->pieces > 1) {
        s->flat = NULL;
        rc = bench_load_new_at(&near, bytes, 1, p->depth, 1, ops, &s->flat);
    }
    if (rc == 0)
        rc = bench_load_new_at(&far, bytes, 1, p->depth, 1, ops, &s->far);
    return rc;
}

static int side_new(const struct gpu_bench *b, const struct plan *p, struct side *s)
{
    int rc = side_loads(b, p, s);

    if (rc == 0)
        rc = bench_objects_new(b->c, NULL, "gpu", s->near, &s->objects);
    if (rc == 0 && p->put)
        rc = bench_objects_new(b->c, NULL, "whole", s->near, &s->whole);
    if (rc != 0)
        return rc;
    bench_objects_place(s->objects, ways[p->way].place);
    if (p->put) {
        bench_objects_place(s->whole, ways[p->way].place);
        return 0;
    }
    bench_load_fill(s->far, s->near->bytes);
    return bench_objects_put(s->objects);
}

static void side_free(struct side *s)
{
    bench_objects_free(s->whole);
    bench_objects_free(s->objects);
    bench_load_free(s->far);
    if (s->flat != s->near)
        bench_load_free(s->flat);
    bench_load_free(s->near);
}

/* --- contestants -------------------------------------------------------------------------------- */

#define COPY "copy"
#define GATHER "gather kernel"
#define EACH "a copy a piece"
#define BATCH "batch"
#define WHOLE_PUT "whole put"
#define WRITE "data phase"

static int add_ours(struct bench_row *r, const struct plan *p, const struct side *s)
{
    if (!p->put)
        return bench_row_add(r, BENCH_OURS, "tarn", &bench_get_ops, s->objects, s->near);
    if (p->depth == 1) {
        int rc = bench_row_add(r, BENCH_OURS, WRITE, &bench_put_write_ops, s->objects, s->near);
        return rc ? rc : bench_row_add(r, BENCH_REFERENCE, WHOLE_PUT, &bench_put_ops, s->whole, s->near);
    }
    int rc = bench_row_add(r, BENCH_OURS, WHOLE_PUT, &bench_put_ops, s->whole, s->near);
    return rc ? rc : bench_row_add(r, BENCH_REFERENCE, WRITE, &bench_put_write_ops, s->objects, s->near);
}

static int add_bare(const struct gpu_bench *b, struct bench_row *r, const struct plan *p,
                    const struct side *s)
{
    struct bench_bare *bare = b->bare[ways[p->way].device];
    bool by_pages = p->arrays > 0;
    enum bench_role copy = p->brief || by_pages ? BENCH_REFERENCE : BENCH_LIMIT;
    enum bench_role gather = p->brief || by_pages ? BENCH_LIMIT : BENCH_REFERENCE;
    int rc = bench_add_copies(r, copy, COPY, BENCH_WHOLE, bare, p->put, s->flat, s->far);

    if (rc == 0 && p->pieces > 1)
        rc = bench_add_copies(r, gather, GATHER, BENCH_GATHER, bare, p->put, s->near, s->far);
    if (rc == 0 && p->pieces > 1 && p->depth == 1)
        rc = bench_add_copies(r, BENCH_PEER, EACH, BENCH_EACH, bare, p->put, s->near, s->far);
    if (rc == 0 && p->pieces > 1 && p->depth == 1)
        rc = bench_add_copies(r, BENCH_PEER, BATCH, BENCH_BATCH, bare, p->put, s->near, s->far);
    return rc;
}

/* --- targets ------------------------------------------------------------------------------------ */

static void piece_targets(struct bench_row *r, const struct plan *p, const struct bench_contestant *copy)
{
    if (p->piece >= 16 * MIB && p->way != CPU_MEMORY)
        bench_at_least(r, "of the bare copy", bench_rate_ratio(r, copy), 0.95);
    if (p->piece == 4 * KIB && !p->put)
        bench_at_most(r, "p50 / bare copy", bench_p50_ratio(r, copy), 1.3);
}

static void brief_targets(struct bench_row *r, const struct plan *p)
{
    const struct bench_contestant *each = bench_row_named(r, EACH), *gather = bench_row_named(r, GATHER);

    bench_at_most(r, "time / gather kernel", bench_p50_ratio(r, gather), p->arrays ? 1.1 : 1.25);
    bench_at_least(r, "times a copy a piece", bench_rate_ratio(r, each), p->way == SAME_GPU ? 50 : 30);
}

static void targets(struct bench_row *r, const struct plan *p)
{
    const struct bench_contestant *copy = bench_row_named(r, COPY);

    if (p->pieces == 1)
        piece_targets(r, p, copy);
    else if (p->brief)
        brief_targets(r, p);
    else if (p->arrays && !p->put)
        bench_at_least(r, "of the gather kernel", bench_rate_ratio(r, bench_row_named(r, GATHER)),
                       p->depth == 1 ? 0.9 : 0.85);
    else if (p->arrays)
        return;
    else if (p->way == CPU_POOL)
        bench_at_least(r, "of the contiguous copy", bench_rate_ratio(r, copy), 0.80);
    else if (p->piece == 32 * KIB && (!p->put || p->depth == 1))
        bench_at_least(r, "of the contiguous copy", bench_rate_ratio(r, copy), 0.70);
}

/* Adds a contestant's speed to the row's figures. NULL for `time` leaves out the time of an operation. */
static void note_speed(struct bench_row *r, const char *name, const char *rate, const char *time)
{
    const struct bench_contestant *c = bench_row_named(r, name);

    if (!c || c->dropped)
        return;
    bench_row_figure(r, rate, bench_median(&c->items_s) * (double)r->bytes / 1e9);
    if (time)
        bench_row_figure(r, time, bench_hist_us(&c->latency, 0.5));
}

static void note_machine(const struct gpu_bench *b, struct bench_row *r)
{
    json_object_set_new(r->figures, "cuda", json_string(b->cuda));
    json_object_set_new(r->figures, "gpus", json_string(b->gpus));
}

/* --- rows of copies ----------------------------------------------------------------------------- */

/* The plan, with smaller sizes over a stand-in. */
static struct plan shrunk(const struct gpu_bench *b, struct plan p)
{
    if (!b->played)
        return p;
    if (p.piece >= MIB)
        p.piece /= SHRUNK;
    if (p.depth > 1)
        p.depth = p.depth / SHRUNK + 1;
    else if (p.pieces > 1)
        p.pieces = p.pieces / SHRUNK;
    p.arrays = p.arrays > 1 ? p.arrays / 16 : p.arrays; /* pieces stay a multiple */
    return p;
}

static int measure(struct gpu_bench *b, struct bench_row *r, const struct plan *p, struct side *s)
{
    int rc = side_new(b, p, s);

    if (rc == 0)
        rc = add_ours(r, p, s);
    if (rc == 0)
        rc = add_bare(b, r, p, s);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc != 0)
        return rc;
    note_speed(r, COPY, "copy_GBps", p->pieces == 1 ? "copy_us" : NULL);
    note_speed(r, GATHER, "gather_GBps", p->brief ? "gather_us" : NULL);
    note_speed(r, EACH, "each_GBps", NULL);
    note_speed(r, BATCH, "batch_GBps", NULL);
    if (p->depth == 1)
        note_speed(r, WHOLE_PUT, "put_GBps", "put_us");
    else
        note_speed(r, WRITE, "write_GBps", NULL);
    return 0;
}

static int copy_row(struct gpu_bench *b, const struct plan *of_gpus)
{
    const struct plan p = shrunk(b, *of_gpus);
    const char *name = !p.put ? "gpu_get" : p.depth > 1 ? "gpu_put" : "gpu_write";
    char note[32];
    snprintf(note, sizeof note, "%s%s", ways[p.way].note, p.arrays ? ", by page" : "");
    struct bench_row *r = bench_row_new(name, note, p.piece * p.pieces);
    struct side s = {0};
    int rc = r ? measure(b, r, &p, &s) : TARN_E_NO_MEMORY;

    if (rc == 0 && !b->played)
        targets(r, &p);
    if (r) {
        note_machine(b, r);
        rc = bench_report_row(b->rep, r, rc);
    }
    side_free(&s);
    return rc;
}

/* --- the node's CPU during gets ----------------------------------------------------------------- */

/* Gets until `bytes` have moved and a minimum time has passed. */
static int get_much(const struct gpu_bench *b, const struct side *s, double bytes, double *moved,
                    double *seconds)
{
    uint64_t start = tarn_now_ns(), least = b->e->quick ? 500000000 : 2000000000;
    int rc = 0;

    *moved = 0;
    while (rc == 0 && !bench_interrupted() && (*moved < bytes || tarn_now_ns() - start < least)) {
        for (size_t i = 0; rc == 0 && i < s->near->ops; i++)
            rc = bench_get_ops.op(s->objects, 0, i);
        *moved += (double)(s->near->ops * s->near->bytes);
    }
    *seconds = (double)(tarn_now_ns() - start) / 1e9;
    return rc ? rc : bench_load_check(s->near);
}

static int node_cpu(struct gpu_bench *b, struct bench_row *r, const struct side *s)
{
    pid_t node = b->e->node.pid;
    double t0 = bench_cpu_s(node), moved;
    int rc = get_much(b, s, b->played ? 1e6 : b->e->quick ? 1e11 : 1e12, &moved, &r->wall_s);
    double t1 = bench_cpu_s(node);

    if (rc != 0)
        return rc;
    poll(NULL, 0, (int)(r->wall_s * 1000));
    double busy = t1 - t0, idle = bench_cpu_s(node) - t1;
    r->node_cpu_s = busy;
    bench_row_figure(r, "moved_GB", moved / 1e9);
    bench_row_figure(r, "GBps", moved / 1e9 / r->wall_s);
    bench_row_figure(r, "cpu_ms", 1e3 * busy);
    bench_row_figure(r, "idle_cpu_ms", 1e3 * idle);
    if (!b->played)
        bench_at_most(r, "node CPU beyond idle, % of a core", 100 * (busy - idle) / r->wall_s, 0.5);
    return 0;
}

static int node_cpu_row(struct gpu_bench *b)
{
    const struct plan p = shrunk(b, (struct plan){SAME_GPU, false, 256 * MIB, 1, 1, false, 0});
    struct bench_row *r = bench_row_new("node_cpu", "gpu gets", p.piece);
    struct side s = {0};
    int rc = r ? side_new(b, &p, &s) : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = node_cpu(b, r, &s);
    if (r) {
        note_machine(b, r);
        rc = bench_report_row(b->rep, r, rc);
    }
    side_free(&s);
    return rc;
}

/* --- the group ---------------------------------------------------------------------------------- */

static int size_rows(struct gpu_bench *b, enum way way, const uint64_t *sizes, size_t n)
{
    int rc = 0;

    for (int put = 0; put < 2; put++)
        for (size_t i = 0; rc == 0 && i < n; i++)
            rc = copy_row(b, &(struct plan){way, put, sizes[i], 1, 1, false, 0});
    return rc;
}

/* Pages of KV caches, scattered on the client's side. */
static int page_rows(struct gpu_bench *b)
{
    static const struct plan plans[] = {
        {SAME_GPU, false, 16 * KIB, 1024, 1, true, 0},
        {SAME_GPU, true, 16 * KIB, 1024, 1, true, 0},
        {OTHER_GPU, false, 16 * KIB, 1024, 1, true, 0},
        {OTHER_GPU, true, 16 * KIB, 1024, 1, true, 0},
        {CPU_POOL, false, 16 * KIB, 1024, 1, false, 0},
        {CPU_POOL, true, 16 * KIB, 1024, 1, false, 0},
        {SAME_GPU, false, 32 * KIB, 32768, 1, false, 0},
        {SAME_GPU, true, 32 * KIB, 32768, 1, false, 0},
        {SAME_GPU, false, 32 * KIB, 64, 512, false, 0},
        {SAME_GPU, true, 32 * KIB, 64, 512, false, 0},
        {OTHER_GPU, false, 32 * KIB, 32768, 1, false, 0},
        {OTHER_GPU, true, 32 * KIB, 32768, 1, false, 0},
        {SAME_GPU, false, 4 * KIB, 81920, 1, false, 0},
        {SAME_GPU, true, 4 * KIB, 81920, 1, false, 0},
        {SAME_GPU, false, 4 * KIB, 64, 1280, false, 0},
        {SAME_GPU, true, 4 * KIB, 64, 1280, false, 0},
        {SAME_GPU, false, 16 * KIB, 1024, 1, true, ARRAYS},
        {SAME_GPU, true, 16 * KIB, 1024, 1, true, ARRAYS},
        {SAME_GPU, false, 4 * KIB, 81920, 1, false, ARRAYS},
        {SAME_GPU, true, 4 * KIB, 81920, 1, false, ARRAYS},
        {SAME_GPU, false, 4 * KIB, 81920, 1, false, 1},
        {SAME_GPU, false, 32 * KIB, 64, 512, false, ARRAYS},
        {SAME_GPU, false, 4 * KIB, 64, 1280, false, ARRAYS},
        {SAME_GPU, true, 4 * KIB, 64, 1280, false, ARRAYS},
    };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof plans / sizeof plans[0]; i++)
        if (plans[i].way != OTHER_GPU || b->bare[1])
            rc = copy_row(b, &plans[i]);
    return rc;
}

static int rows(struct gpu_bench *b)
{
    static const uint64_t sizes[] = {4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB};
    static const uint64_t large[] = {16 * MIB, 64 * MIB, 256 * MIB, GIB};
    static const uint64_t host[] = {16 * MIB, 256 * MIB};
    int rc = size_rows(b, SAME_GPU, sizes, sizeof sizes / sizeof sizes[0]);

    if (rc == 0 && b->bare[1])
        rc = size_rows(b, OTHER_GPU, sizes, sizeof sizes / sizeof sizes[0]);
    if (rc == 0)
        rc = size_rows(b, CPU_POOL, large, sizeof large / sizeof large[0]);
    if (rc == 0)
        rc = size_rows(b, CPU_MEMORY, host, sizeof host / sizeof host[0]);
    if (rc == 0)
        rc = page_rows(b);
    return rc ? rc : node_cpu_row(b);
}

/* Opens the first GPU, and the second one if the two reach each other. */
static int open_gpus(struct gpu_bench *b)
{
    int n, rc = tarn_cuda_count(&n);
    size_t at = 0;

    for (int i = 0; rc == 0 && i < 2 && i < n; i++) {
        struct tarn_cuda_device d;
        if (i == 1 && !(tarn_cuda_reaches(0, 1) && tarn_cuda_reaches(1, 0)))
            break;
        rc = tarn_cuda_describe(i, &d);
        if (rc == 0)
            rc = bench_bare_open(i, &b->bare[i]);
        if (rc == 0)
            rc = bench_gpu_memory_prove(&(struct bench_site){i, b->bare[i], false});
        if (rc == 0)
            at += (size_t)snprintf(b->gpus + at, sizeof b->gpus - at, "%s%d %s", i ? ", " : "", i, d.name);
    }
    bench_bare_describe(b->cuda, sizeof b->cuda);
    return rc;
}

int bench_group_gpu(struct bench_env *e, struct bench_report *rep)
{
    struct gpu_bench b = {.e = e, .rep = rep, .played = bench_bare_played()};
    int rc = open_gpus(&b);

    if (rc == 0) {
        printf("GPU %s; %s\n", b.gpus, b.cuda);
        rc = bench_start_node_with(e, b.played ? "gpu0:device=0,bytes=48M" : "gpu0:device=0,bytes=12G",
                                   b.played ? "cpu0:bytes=32M" : "cpu0:bytes=8G");
    }
    e->seconds = b.played ? 0 : e->seconds * (e->quick ? ROW_PART_QUICK : ROW_PART);
    e->quick |= b.played;
    if (rc == 0)
        rc = bench_client(e, "cuda_ipc", &b.c);
    if (rc == 0)
        rc = rows(&b);
    tarn_close(b.c);
    bench_bare_close(b.bare[1]);
    bench_bare_close(b.bare[0]);
    return rc;
}
