/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory: get and view. The limit of a get is memcpy from the objects in the pool (through views) into
 * the same buffers. Puts are in bench_put.c.
 */
#include "client/bench/bench.h"

#include "base/clock.h"
#include "base/error.h"

#define SCATTERED_PIECES 1024

static const uint64_t sizes[] = {4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

struct shm_bench {
    struct bench_env *e;
    struct bench_report *rep;
    struct tarn_client *c, *viewer;
};

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
        rc = bench_add_memcpy(r, l, addrs);
    if (rc == 0 && l->npieces == 1)
        rc = bench_add_peers(b->e, r, false, false, l);
    return rc;
}

static int get_row(struct shm_bench *b, uint64_t bytes, uint32_t pieces)
{
    struct bench_row *r = bench_row_new("shm_get", "", bytes);
    struct bench_load *l = NULL;
    struct bench_objects *o = NULL;
    int rc = r ? bench_load_new(bytes, pieces, 1, 1, bench_load_ops(bytes, 1, 1), &l) : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = bench_objects_new(b->c, b->viewer, r->bench, l, &o);
    if (rc == 0)
        rc = get_contestants(b, r, l, o);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0)
        get_targets(r);
    if (r)
        rc = bench_report_row(b->rep, r, rc);
    bench_objects_free(o);
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

static int rows(struct shm_bench *b)
{
    int rc = bench_warm_pool(b->c, b->viewer);

    for (size_t i = 0; rc == 0 && i < sizeof sizes / sizeof sizes[0]; i++)
        rc = get_row(b, sizes[i], 1);
    if (rc == 0)
        rc = get_row(b, SCATTERED_PIECES * 4096, SCATTERED_PIECES);
    if (rc == 0)
        rc = view_row(b, 64 << 20);
    return rc ? rc : node_cpu_row(b);
}

int bench_group_shm(struct bench_env *e, struct bench_report *rep)
{
    struct shm_bench b = {.e = e, .rep = rep};
    int rc = bench_start_peers(e);

    if (rc == 0)
        rc = bench_start_node(e, BENCH_POOL);
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
