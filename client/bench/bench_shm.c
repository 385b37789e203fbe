/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory: get, put and view, compared with memcpy. The limit of a get copies from the objects in the
 * pool (through views) into the same buffers. The limit of a put copies the same buffers into a memfd mapping
 * of the same size.
 */
#include "client/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"

#define POOL_BYTES (1ull << 30) /* "1G" below */
#define SCATTERED_PIECES 1024

static const uint64_t sizes[] = {4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

struct shm_bench {
    struct bench_env *e;
    struct bench_report *rep;
    struct tarn_client *c, *viewer;
};

/* --- limits: memcpy ----------------------------------------------------------------------------- */

struct copier {
    struct bench_load *load;
    const void **from; /* get: the objects in the pool */
    char *memory;      /* put: the memfd mapping */
};

static int copy_begin(void *arg, uint64_t round)
{
    struct copier *m = arg;

    if (m->memory)
        bench_load_fill(m->load, round + 1);
    else
        bench_load_poison(m->load);
    return 0;
}

static int copy_get(void *arg, uint32_t thread, size_t i)
{
    struct copier *m = arg;

    (void)thread;
    for (size_t k = i * m->load->depth; k < (i + 1) * m->load->depth; k++) {
        const struct tarn_piece *p = bench_load_pieces(m->load, k);
        const char *from = m->from[k];
        for (uint32_t n = 0; n < m->load->npieces; from += p[n].bytes, n++)
            memcpy(p[n].addr, from, p[n].bytes);
    }
    return 0;
}

static int copy_put(void *arg, uint32_t thread, size_t i)
{
    struct copier *m = arg;

    (void)thread;
    for (size_t k = i * m->load->depth; k < (i + 1) * m->load->depth; k++) {
        const struct tarn_piece *p = bench_load_pieces(m->load, k);
        char *to = m->memory + k * m->load->bytes;
        for (uint32_t n = 0; n < m->load->npieces; to += p[n].bytes, n++)
            memcpy(to, p[n].addr, p[n].bytes);
    }
    return 0;
}

static int copy_end(void *arg)
{
    struct copier *m = arg;
    int rc = 0;

    if (!m->memory)
        return bench_load_check(m->load);
    for (size_t i = 0; rc == 0 && i < m->load->objects; i++)
        rc = bench_check(m->memory + i * m->load->bytes, m->load->bytes, m->load->seed, i);
    return rc;
}

static void copy_close(void *arg)
{
    struct copier *m = arg;

    if (m->memory)
        munmap(m->memory, m->load->memory_bytes);
    free(m);
}

static const struct bench_ops copy_get_ops = {
    .begin = copy_begin, .op = copy_get, .end = copy_end, .close = copy_close};
static const struct bench_ops copy_put_ops = {
    .begin = copy_begin, .op = copy_put, .end = copy_end, .close = copy_close};

static int add_memcpy(struct bench_row *r, struct bench_load *l, const void **from)
{
    struct copier *m = calloc(1, sizeof *m);
    int rc = m ? 0 : TARN_E_NO_MEMORY;

    if (rc == 0) {
        *m = (struct copier){.load = l, .from = from};
        rc = from ? 0 : bench_map(l->memory_bytes, true, &m->memory);
    }
    if (rc != 0) {
        free(m);
        return tarn_fail(rc, "memcpy: out of memory");
    }
    return bench_row_add(r, BENCH_LIMIT, "memcpy", from ? &copy_get_ops : &copy_put_ops, m, l);
}

/* --- rows --------------------------------------------------------------------------------------- */

static void get_targets(struct bench_row *r)
{
    const struct bench_contestant *limit = bench_row_limit(r), *redis = bench_row_find(r, BENCH_PEER);

    if (r->pieces > 1)
        bench_at_least(r, "of memcpy", bench_rate_ratio(r, limit), 0.90);
    else if (r->bytes >= 1 << 20)
        bench_at_least(r, "of memcpy", bench_rate_ratio(r, limit), 0.95);
    if (r->bytes != 4096)
        return;
    bench_at_most(r, "p50 - memcpy, us", bench_p50_extra_us(r, limit), 0.7);
    bench_row_figure(r, "p50_extra_us", bench_p50_extra_us(r, limit));
    if (redis)
        bench_at_least(r, "of Redis", bench_rate_ratio(r, redis), 10);
}

static int get_contestants(struct shm_bench *b, struct bench_row *r, struct bench_load *l,
                           struct bench_objects *o)
{
    const void **addrs;
    int rc = bench_objects_put(o);

    if (rc == 0)
        rc = bench_objects_views(o, &addrs);
    if (rc == 0)
        rc = bench_row_add(r, BENCH_OURS, "tarn", &bench_get_ops, o, l);
    if (rc == 0)
        rc = add_memcpy(r, l, addrs);
    if (rc == 0 && l->npieces == 1)
        rc = bench_add_peers(b->e, r, false, false, l);
    return rc;
}

static int put_contestants(struct shm_bench *b, struct bench_row *r, struct bench_load *l,
                           struct bench_objects *o)
{
    int rc = bench_row_add(r, BENCH_OURS, "tarn", &bench_put_ops, o, l);

    if (rc == 0)
        rc = add_memcpy(r, l, NULL);
    if (rc == 0 && l->npieces == 1)
        rc = bench_add_peers(b->e, r, true, false, l);
    return rc;
}

static int measure_row(struct shm_bench *b, struct bench_row *r, bool put, struct bench_load *l)
{
    struct bench_objects *o = NULL;
    int rc = bench_objects_new(b->c, b->viewer, r->bench, l, &o);

    if (rc == 0)
        rc = put ? put_contestants(b, r, l, o) : get_contestants(b, r, l, o);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0 && !put)
        get_targets(r);
    if (rc == 0 && put && r->bytes >= 1 << 20)
        bench_at_least(r, "of memcpy", bench_rate_ratio(r, bench_row_limit(r)), 0.90);
    rc = bench_report_row(b->rep, r, rc);
    bench_objects_free(o);
    return rc;
}

static int copy_row(struct shm_bench *b, bool put, uint64_t bytes, uint32_t pieces, uint32_t depth)
{
    struct bench_row *r = bench_row_new(put ? "shm_put" : "shm_get", "", bytes);
    struct bench_load *l = NULL;
    int rc =
        r ? bench_load_new(bytes, pieces, depth, 1, bench_load_ops(bytes, depth, 1), &l) : TARN_E_NO_MEMORY;

    if (rc != 0)
        return r ? bench_report_row(b->rep, r, rc) : rc;
    rc = measure_row(b, r, put, l);
    bench_load_free(l);
    return rc;
}

/* A view moves no bytes, so the row has neither limit nor peers. */
static int view_row(struct shm_bench *b, uint64_t bytes)
{
    struct bench_row *r = bench_row_new("shm_view", "view+release", bytes);
    struct bench_load *l = NULL;
    struct bench_objects *o = NULL;
    int rc = r ? bench_load_new(bytes, 1, 1, 1, bench_load_ops(bytes, 1, 1), &l) : TARN_E_NO_MEMORY;

    if (rc == 0) {
        r->moves_nothing = true;
        rc = bench_objects_new(b->c, b->viewer, "view", l, &o);
    }
    if (rc == 0)
        rc = bench_objects_put(o);
    if (rc == 0)
        rc = bench_row_add(r, BENCH_OURS, "tarn", &bench_view_ops, o, l);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0)
        bench_at_most(r, "p50, us", bench_hist_us(&bench_row_find(r, BENCH_OURS)->latency, 0.5), 3);
    if (r)
        rc = bench_report_row(b->rep, r, rc);
    bench_objects_free(o);
    bench_load_free(l);
    return rc;
}

/* --- the node's CPU during gets ----------------------------------------------------------------- */

static int get_for(struct shm_bench *b, struct bench_row *r, struct bench_load *l, struct bench_objects *o,
                   double seconds)
{
    double cpu = bench_cpu_s(b->e->node.pid);
    uint64_t start = tarn_now_ns(), gets = 0;
    int rc = 0;

    while (rc == 0 && !bench_interrupted() && (double)(tarn_now_ns() - start) < seconds * 1e9) {
        for (size_t i = 0; rc == 0 && i < l->ops; i++)
            rc = bench_get_ops.op(o, 0, i);
        gets += l->ops;
    }
    r->wall_s = (double)(tarn_now_ns() - start) / 1e9;
    r->node_cpu_s = bench_cpu_s(b->e->node.pid) - cpu;
    bench_row_figure(r, "gets", (double)gets);
    bench_row_figure(r, "node_cpu_percent", 100 * r->node_cpu_s / r->wall_s);
    bench_at_most(r, "node CPU, % of a core", 100 * r->node_cpu_s / r->wall_s, 0.5);
    return rc ? rc : bench_load_check(l);
}

static int node_cpu_row(struct shm_bench *b)
{
    struct bench_row *r = bench_row_new("node_cpu", "shm gets", 65536);
    struct bench_load *l = NULL;
    struct bench_objects *o = NULL;
    int rc = r ? bench_load_new(65536, 1, 1, 1, bench_load_ops(65536, 1, 1), &l) : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = bench_objects_new(b->c, b->viewer, "cpu", l, &o);
    if (rc == 0)
        rc = bench_objects_put(o);
    if (rc == 0)
        rc = get_for(b, r, l, o, b->e->quick ? 2 : 10);
    if (r)
        rc = bench_report_row(b->rep, r, rc);
    bench_objects_free(o);
    bench_load_free(l);
    return rc;
}

/* --- the group ---------------------------------------------------------------------------------- */

/* Makes the node touch every page of its pool once, so that no row includes that cost. */
static int warm_pool(struct shm_bench *b)
{
    uint64_t bytes = 64 << 20;
    struct bench_load *l;
    struct bench_objects *o;
    int rc = bench_load_new(bytes, 1, 1, 1, POOL_BYTES / bytes - 3, &l);

    if (rc != 0)
        return rc;
    rc = bench_objects_new(b->c, b->viewer, "warm", l, &o);
    if (rc == 0) {
        rc = bench_objects_put(o);
        bench_objects_free(o);
    }
    bench_load_free(l);
    return rc;
}

static int rows(struct shm_bench *b)
{
    int rc = warm_pool(b);
    size_t n = sizeof sizes / sizeof sizes[0];

    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = copy_row(b, false, sizes[i], 1, 1);
    if (rc == 0)
        rc = copy_row(b, false, SCATTERED_PIECES * 4096, SCATTERED_PIECES, 1);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = copy_row(b, true, sizes[i], 1, 1);
    for (size_t i = 0; rc == 0 && sizes[i] <= 4 << 20; i++)
        rc = copy_row(b, true, sizes[i], 1, 16);
    if (rc == 0)
        rc = copy_row(b, true, SCATTERED_PIECES * 4096, SCATTERED_PIECES, 1);
    if (rc == 0)
        rc = view_row(b, 64 << 20);
    return rc ? rc : node_cpu_row(b);
}

int bench_group_shm(struct bench_env *e, struct bench_report *rep)
{
    struct shm_bench b = {.e = e, .rep = rep};
    int rc = bench_start_peers(e);

    if (rc == 0)
        rc = bench_start_node(e, "cpu0:bytes=1G");
    if (rc == 0)
        rc = bench_client(e, "shm", &b.c);
    if (rc == 0)
        rc = bench_client(e, "shm", &b.viewer);
    if (rc == 0)
        rc = rows(&b);
    tarn_close(b.viewer);
    tarn_close(b.c);
    return rc;
}
