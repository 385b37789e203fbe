/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts over shm: one at a time and in batches. Small ones beside Redis' SET (pipelined for batches), large
 * ones beside memcpy into a memfd. The client may use tcp, too, so a single small object goes by STORE. The
 * rows of CPU time count client, node and the node's Redis while batches of new objects are put, not while
 * these are verified and removed.
 */
#include "client/bench/bench.h"

#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define SCATTERED_PIECES 1024
#define CPU_ROUNDS 60

enum measure { P50_OF_REDIS, RATE_OF_REDIS, RATE_OF_MEMCPY };

/* One row, and what it must reach on a machine of two cores and of 16. */
struct plan {
    uint64_t bytes;
    uint32_t pieces, depth;
    enum measure measure;
    double target[2];
};

static const struct plan plans[] = {
    {4096, 1, 1, P50_OF_REDIS, {2, 2}},
    {65536, 1, 1, P50_OF_REDIS, {1, 1}},
    {1 << 20, 1, 1, RATE_OF_MEMCPY, {.55, .75}},
    {4 << 20, 1, 1, RATE_OF_MEMCPY, {.80, .90}},
    {16 << 20, 1, 1, RATE_OF_MEMCPY, {.95, .95}},
    {64 << 20, 1, 1, RATE_OF_MEMCPY, {.95, .95}},
    {4096, 1, 64, RATE_OF_REDIS, {1, 1}},
    {65536, 1, 64, RATE_OF_REDIS, {3, 3}},
    {16384, 1, 256, RATE_OF_REDIS, {2, 2}},
    {1 << 20, 1, 16, RATE_OF_MEMCPY, {.93, .93}},
    {4 << 20, 1, 16, RATE_OF_MEMCPY, {.95, .95}},
    {SCATTERED_PIECES * 4096, SCATTERED_PIECES, 1, RATE_OF_MEMCPY, {.80, .90}},
};

struct put_bench {
    struct bench_env *e;
    struct bench_report *rep;
    struct tarn_client *c, *viewer;
};

static double target_of(const struct plan *p)
{
    return p->target[sysconf(_SC_NPROCESSORS_ONLN) >= 16];
}

static void judge(struct bench_row *r, const struct plan *p)
{
    const struct bench_contestant *redis = bench_row_find(r, BENCH_PEER), *copy = bench_row_limit(r);

    if (p->measure == RATE_OF_MEMCPY)
        bench_at_least(r, "of memcpy", bench_rate_ratio(r, copy), target_of(p));
    else if (redis && p->measure == RATE_OF_REDIS)
        bench_at_least(r, "of Redis", bench_rate_ratio(r, redis), target_of(p));
    if (redis && p->measure == P50_OF_REDIS)
        bench_at_most(r, "p50 of Redis'", bench_p50_ratio(r, redis), target_of(p));
    if (redis)
        bench_row_figure(r, "p50_of_redis", bench_p50_ratio(r, redis));
}

static int measure_row(struct put_bench *b, struct bench_row *r, struct bench_load *l,
                       struct bench_objects *o)
{
    int rc = bench_row_add(r, BENCH_OURS, "tarn", &bench_put_ops, o, l);

    if (rc == 0)
        rc = bench_add_memcpy(r, l, NULL);
    if (rc == 0 && l->npieces == 1)
        rc = bench_add_peers(b->e, r, true, false, l);
    return rc ? rc : bench_row_measure(b->e, r);
}

static int put_row(struct put_bench *b, const struct plan *p)
{
    struct bench_row *r = bench_row_new("shm_put", "", p->bytes);
    size_t ops = bench_load_ops(p->bytes, p->depth, 1);
    struct bench_load *l = NULL;
    struct bench_objects *o = NULL;
    int rc = r ? bench_load_new(p->bytes, p->pieces, p->depth, 1, ops, &l) : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = bench_objects_new(b->c, b->viewer, r->bench, l, &o);
    if (rc == 0)
        rc = measure_row(b, r, l, o);
    if (rc == 0)
        judge(r, p);
    if (r)
        rc = bench_report_row(b->rep, r, rc);
    bench_objects_free(o);
    bench_load_free(l);
    return rc;
}

/* --- CPU time of an object ---------------------------------------------------------------------- */

enum { CLIENT, NODE, DIRECTORY, COUNTED };

struct cpu {
    double s[COUNTED];
};

static struct cpu cpu_now(const struct bench_env *e)
{
    return (struct cpu){.s = {[CLIENT] = bench_cpu_s(getpid()),
                              [NODE] = bench_cpu_s(e->node.pid),
                              [DIRECTORY] = bench_cpu_s(e->directory.pid)}};
}

/* One slice of puts, the load's spare one first; adds each one's microseconds an object. */
static int cpu_round(struct put_bench *b, struct bench_load *l, struct bench_objects *o, uint64_t round,
                     struct bench_series *us)
{
    int rc = bench_put_ops.begin(o, round);
    if (rc == 0)
        rc = bench_put_ops.op(o, 0, l->ops);
    struct cpu before = cpu_now(b->e);

    for (size_t i = 0; rc == 0 && i < l->ops; i++)
        rc = bench_put_ops.op(o, 0, i);
    struct cpu after = cpu_now(b->e);
    for (int k = 0; rc == 0 && k < COUNTED; k++)
        bench_series_add(&us[k], (after.s[k] - before.s[k]) * 1e6 / (double)(l->ops * l->depth));
    int ended = bench_put_ops.end(o);
    return rc ? rc : ended;
}

static int measure_cpu(struct put_bench *b, struct bench_row *r, struct bench_load *l,
                       struct bench_objects *o)
{
    static const char *const names[] = {"client_us", "node_us", "directory_us"};
    struct bench_series us[COUNTED] = {{0}};
    uint64_t rounds = b->e->seconds > 0 ? CPU_ROUNDS : 3;
    int rc = 0;

    for (uint64_t i = 0; rc == 0 && i < rounds; i++)
        rc = bench_interrupted() ? TARN_E_CANCELED : cpu_round(b, l, o, i, us);
    for (int k = 0; rc == 0 && k < COUNTED; k++)
        bench_row_figure(r, names[k], bench_median(&us[k]));
    if (rc == 0 && r->depth > 1) {
        bench_at_most(r, "node, us an object", bench_median(&us[NODE]), 2);
        bench_at_most(r, "directory, us an object", bench_median(&us[DIRECTORY]), 5);
    }
    return rc;
}

static int cpu_row(struct put_bench *b, uint64_t bytes, uint32_t depth)
{
    struct bench_row *r = bench_row_new("put_cpu", "CPU time", bytes);
    struct bench_load *l = NULL;
    struct bench_objects *o = NULL;
    int rc = r ? bench_load_new(bytes, 1, depth, 1, bench_load_ops(bytes, depth, 1), &l) : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = bench_objects_new(b->c, b->viewer, "cpu", l, &o);
    if (rc == 0) {
        r->depth = depth;
        rc = measure_cpu(b, r, l, o);
    }
    if (r)
        rc = bench_report_row(b->rep, r, rc);
    bench_objects_free(o);
    bench_load_free(l);
    return rc;
}

/* --- the group ---------------------------------------------------------------------------------- */

static int rows(struct put_bench *b)
{
    int rc = bench_warm_pool(b->c, b->viewer);

    for (size_t i = 0; rc == 0 && i < sizeof plans / sizeof plans[0]; i++)
        rc = put_row(b, &plans[i]);
    if (rc == 0)
        rc = cpu_row(b, 4096, 64);
    return rc ? rc : cpu_row(b, 4096, 1);
}

int bench_group_put(struct bench_env *e, struct bench_report *rep)
{
    struct put_bench b = {.e = e, .rep = rep};
    int rc = bench_start_peers(e);

    if (rc == 0)
        rc = bench_start_node(e, BENCH_POOL);
    if (rc == 0)
        rc = bench_client(e, "shm,tcp", &b.c);
    if (rc == 0)
        rc = bench_client(e, "shm", &b.viewer);
    if (rc == 0)
        rc = rows(&b);
    tarn_close(b.viewer);
    tarn_close(b.c);
    return rc;
}
