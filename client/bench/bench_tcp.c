/* SPDX-License-Identifier: Apache-2.0 */
/* TCP over loopback against a bare socket loop and the peers. */
#include "client/bench/bench.h"

#include "base/error.h"

static const uint64_t sizes[] = {4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

struct tcp_bench {
    struct bench_env *e;
    struct bench_report *rep;
    struct tarn_client *c, *viewer;
    uint16_t loop_port;
};

/* --- rows --------------------------------------------------------------------------------------- */

static void get_targets(struct bench_row *r)
{
    const struct bench_contestant *limit = bench_row_limit(r), *other = bench_row_find(r, BENCH_REFERENCE);

    if (r->bytes >= 1 << 20 && r->threads == 1)
        bench_at_least(r, "of socket loop", bench_rate_ratio(r, limit), 0.90);
    if (r->bytes == 4096 && r->depth == 1) {
        bench_row_figure(r, "p50_ratio", bench_p50_ratio(r, limit));
        bench_at_most(r, "p50 / socket loop", bench_p50_ratio(r, limit), 1.2);
    }
    if (other && r->depth > 1)
        bench_at_least(r, "of one in flight", bench_rate_ratio(r, other), 3);
    if (other && r->threads > 1)
        bench_at_least(r, "of one thread", bench_rate_ratio(r, other), 1);
}

struct get_row {
    struct bench_load *load, *reference; /* reference: the same objects one by one; may be NULL */
    struct bench_objects *objects, *reference_objects;
};

static void get_row_free(struct get_row *g)
{
    bench_objects_free(g->objects);
    bench_objects_free(g->reference_objects);
    bench_load_free(g->load);
    bench_load_free(g->reference);
}

/* The reference has as many objects, but one thread and one object in flight. */
static int get_row_new(struct tcp_bench *b, uint64_t bytes, uint32_t depth, uint32_t threads,
                       struct get_row *g)
{
    size_t ops = bench_load_ops(bytes, depth, threads);
    int rc = bench_load_new(bytes, 1, depth, threads, ops, &g->load);

    if (rc == 0)
        rc = bench_objects_new(b->c, b->viewer, "get", g->load, &g->objects);
    if (rc == 0)
        rc = bench_objects_put(g->objects);
    if (rc != 0 || (depth == 1 && threads == 1))
        return rc;
    rc = bench_load_new(bytes, 1, 1, 1, ops * depth, &g->reference);
    if (rc == 0)
        rc = bench_objects_new(b->c, b->viewer, "reference", g->reference, &g->reference_objects);
    return rc ? rc : bench_objects_put(g->reference_objects);
}

static int get_contestants(struct tcp_bench *b, struct bench_row *r, const struct get_row *g)
{
    int rc = bench_row_add(r, BENCH_OURS, "tarn", &bench_get_ops, g->objects, g->load);

    if (rc == 0)
        rc = bench_add_loops(r, b->loop_port, false, g->load);
    if (rc == 0 && g->reference)
        rc = bench_row_add(r, BENCH_REFERENCE, "tarn, 1 thread, 1 in flight", &bench_get_ops,
                           g->reference_objects, g->reference);
    return rc ? rc : bench_add_peers(b->e, r, false, true, g->load);
}

static int get_row(struct tcp_bench *b, uint64_t bytes, uint32_t depth, uint32_t threads)
{
    struct bench_row *r = bench_row_new("tcp_get", "", bytes);
    struct get_row g = {0};
    int rc = r ? get_row_new(b, bytes, depth, threads, &g) : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = get_contestants(b, r, &g);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0)
        get_targets(r);
    if (r)
        rc = bench_report_row(b->rep, r, rc);
    get_row_free(&g);
    return rc;
}

static int put_contestants(struct tcp_bench *b, struct bench_row *r, struct bench_load *l,
                           struct bench_objects *o)
{
    int rc = bench_row_add(r, BENCH_OURS, "tarn", &bench_put_ops, o, l);

    if (rc == 0)
        rc = bench_add_loops(r, b->loop_port, true, l);
    return rc ? rc : bench_add_peers(b->e, r, true, true, l);
}

static int put_row(struct tcp_bench *b, uint64_t bytes, uint32_t depth)
{
    struct bench_row *r = bench_row_new("tcp_put", "", bytes);
    struct bench_load *l = NULL;
    struct bench_objects *o = NULL;
    int rc = r ? bench_load_new(bytes, 1, depth, 1, bench_load_ops(bytes, depth, 1), &l) : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = bench_objects_new(b->c, b->viewer, "put", l, &o);
    if (rc == 0)
        rc = put_contestants(b, r, l, o);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0 && bytes >= 1 << 20)
        bench_at_least(r, "of socket loop", bench_rate_ratio(r, bench_row_limit(r)), 0.90);
    if (r)
        rc = bench_report_row(b->rep, r, rc);
    bench_objects_free(o);
    bench_load_free(l);
    return rc;
}

static int rows(struct tcp_bench *b)
{
    size_t n = sizeof sizes / sizeof sizes[0];
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = get_row(b, sizes[i], 1, 1);
    if (rc == 0)
        rc = get_row(b, 4096, 64, 1);
    if (rc == 0)
        rc = get_row(b, 4 << 20, 1, 8);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = put_row(b, sizes[i], 1);
    for (size_t i = 0; rc == 0 && sizes[i] <= 4 << 20; i++)
        rc = put_row(b, sizes[i], 16);
    return rc;
}

int bench_group_tcp(struct bench_env *e, struct bench_report *rep)
{
    struct tcp_bench b = {.e = e, .rep = rep};
    pid_t loop = 0;
    int rc = bench_start_loop(&b.loop_port, &loop);

    if (rc == 0)
        rc = bench_start_peers(e);
    if (rc == 0)
        rc = bench_start_node(e, "cpu0:bytes=1G");
    if (rc == 0)
        rc = bench_client(e, "tcp", &b.c);
    if (rc == 0)
        rc = bench_client(e, "shm", &b.viewer);
    if (rc == 0)
        rc = rows(&b);
    tarn_close(b.viewer);
    tarn_close(b.c);
    bench_stop_loop(loop);
    return rc;
}
