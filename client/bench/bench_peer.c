/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: reads and writes between two clients, compared with the bare limit of their transport: memcpy in a
 * mapping that both processes have, the bare socket loop, perftest, or bare copies between the same GPUs.
 * Both ways, two of these run at once, and there is no limit for rdma. memcpy is in the same pieces; the
 * objects of the others are contiguous.
 *
 * Over a stand-in for CUDA nothing is timed, and targets are not checked.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "client/bench/bench_peer.h"

#define VECTORS 128
#define PASS_BYTES (32ull << 20)
#define PASS_BYTES_QUICK (4ull << 20)
#define PASS_BYTES_GPU (256ull << 20)
#define OPS_MAX 1000
#define OPS_MAX_SCATTERED 15 /* so that leases have at most 2048 runs */

static const uint64_t sizes[] = {256,       1 << 10, 4 << 10,  16 << 10, 64 << 10,
                                 256 << 10, 1 << 20, 10 << 20, 16 << 20, 100 << 20};
static const uint64_t sizes_quick[] = {4 << 10, 1 << 20, 16 << 20};
/* Of submitted transfers and notifications. */
static const uint64_t sizes_some[] = {4 << 10, 1 << 20};
#define COUNT(_array) (sizeof(_array) / sizeof(_array)[0])

struct peer_bench {
    struct bench_env *e;
    struct bench_report *rep;
    struct bench_peer_pair pair;
    size_t way;
    bool played; /* by a stand-in for CUDA */
};

/* --- ways --------------------------------------------------------------------------------------- */

static int add_loops(struct bench_peer_side *s)
{
    if (!bench_peer_moves(s))
        return 0;
    bench_load_fill(s->flat, 1);
    return bench_add_loops(s->row, s->loop_port, s->plan.write, s->flat);
}

static void small_memcpy(struct bench_row *r, bool write)
{
    double extra_us = bench_p50_extra_us(r, bench_row_limit(r));

    (void)write;
    bench_row_figure(r, "p50_extra_us", extra_us);
    bench_at_most(r, "p50 - memcpy, us", extra_us, 1);
}

static void small_ratio(struct bench_row *r, const char *what, double bound)
{
    double ratio = bench_p50_ratio(r, bench_row_limit(r));

    bench_row_figure(r, "p50_ratio", ratio);
    bench_at_most(r, what, ratio, bound);
}

static void small_loop(struct bench_row *r, bool write)
{
    (void)write;
    small_ratio(r, "p50 / socket loop", 1.2);
}

static void small_copy(struct bench_row *r, bool write)
{
    (void)write;
    small_ratio(r, "p50 / bare copy", 1.3);
}

static int open_plain(const struct bench_peer_side *s, struct tarn_client **c_p)
{
    return bench_client(s->e, bench_peer_way(s)->transport, c_p);
}

const struct bench_peer_way bench_peer_ways[] = {
    {"shm", "", false, BENCH_PEER_SHARED, {0}, open_plain, bench_peer_add_memcpy, small_memcpy},
    {"tcp", "", false, BENCH_PEER_PRIVATE, {0}, open_plain, add_loops, small_loop},
    {"rdma",
     "",
     true,
     BENCH_PEER_SHARED,
     {0},
     bench_peer_rdma_client,
     bench_peer_add_perftest,
     bench_peer_small_perftest},
    {"cuda_ipc", "same GPU", true, BENCH_PEER_GPU, {0, 0}, open_plain, bench_peer_add_copies, small_copy},
    {"cuda_ipc", "other GPU", true, BENCH_PEER_GPU, {0, 1}, open_plain, bench_peer_add_copies, small_copy},
};
#define WAYS COUNT(bench_peer_ways)

static const struct bench_peer_way *way_of(const struct peer_bench *b)
{
    return &bench_peer_ways[b->way];
}

/* --- a row -------------------------------------------------------------------------------------- */

static void set_targets(const struct peer_bench *b, struct bench_row *r, const struct bench_peer_plan *p)
{
    const struct bench_contestant *limit = bench_row_limit(r),
                                  *reference = bench_row_find(r, BENCH_REFERENCE);

    if (p->how == BENCH_PEER_CONNECT)
        bench_at_most(r, "p50, us", bench_hist_us(&bench_row_find(r, BENCH_OURS)->latency, 0.5), 50000);
    if (p->how != BENCH_PEER_CALL)
        return;
    if (reference)
        bench_at_least(r, "of contiguous", bench_rate_ratio(r, reference), 0.9);
    else if (limit && p->vectors == 1 && p->bytes >= 16 << 20)
        bench_at_least(r, "of the limit", bench_rate_ratio(r, limit), 0.95);
    else if (p->vectors == 1 && p->bytes == 4096 && !p->both)
        way_of(b)->small_target(r, p->write);
}

static void set_figures(const struct peer_bench *b, struct bench_row *r, const struct bench_peer_plan *p)
{
    const struct bench_peer_mover *m = b->pair.side.movers[0];

    if (p->how == BENCH_PEER_SUBMIT)
        r->post_us = bench_hist_us(&m->post, 0.5);
    if (p->how == BENCH_PEER_PING)
        bench_row_figure(r, "half_us", bench_hist_us(&bench_row_find(r, BENCH_OURS)->latency, 0.5) / 2);
    if (!p->both && p->how != BENCH_PEER_CONNECT)
        bench_row_figure(r, "lender_cpu_ms_per_GB", bench_peer_lender_ms(r, 0));
}

static size_t pass_ops(const struct peer_bench *b, const struct bench_peer_plan *p)
{
    uint64_t pass = b->e->quick                           ? PASS_BYTES_QUICK
                    : way_of(b)->memory == BENCH_PEER_GPU ? PASS_BYTES_GPU
                                                          : PASS_BYTES;
    size_t ops = pass / p->bytes / p->depth;
    size_t most = p->vectors > 1 ? OPS_MAX_SCATTERED : OPS_MAX;

    ops = ops > most ? most : ops;
    return ops < 2 ? 2 : ops;
}

/* Measures a plan. 0: the number of operations is the usual one. */
static int row(struct peer_bench *b, const char *note, struct bench_peer_plan p)
{
    const struct bench_peer_way *w = way_of(b);
    char name[32], full_note[64];

    snprintf(name, sizeof name, "%s_%s", w->transport, p.write ? "write" : "read");
    snprintf(full_note, sizeof full_note, "%s%s%s", w->note, w->note[0] && note[0] ? ", " : "", note);
    struct bench_row *r = bench_row_new(name, full_note, p.bytes);
    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory", name);
    p.way = b->way;
    p.ops = p.ops ? p.ops : pass_ops(b, &p);
    r->moves_nothing = p.how == BENCH_PEER_PING || p.how == BENCH_PEER_CONNECT;
    int rc = bench_peer_set_up(&b->pair, &p, r);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0)
        set_figures(b, r, &p);
    if (rc == 0 && !b->played)
        set_targets(b, r, &p);
    rc = bench_report_row(b->rep, r, rc);
    bench_peer_tear_down(&b->pair);
    return rc;
}

/* --- rows --------------------------------------------------------------------------------------- */

static int size_rows(struct peer_bench *b, bool write, bool both, uint32_t vectors)
{
    const uint64_t *size = b->e->quick ? sizes_quick : sizes;
    size_t n = b->e->quick ? COUNT(sizes_quick) : COUNT(sizes);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct bench_peer_plan p = {
            .write = write, .both = both, .bytes = size[i], .vectors = vectors, .depth = 1};
        if (size[i] / vectors >= 8) /* a pattern's words are whole */
            rc = row(b, both ? "both ways" : "", p);
    }
    return rc;
}

static int transfer_rows(struct peer_bench *b)
{
    int rc = 0;

    for (int both = 0; rc == 0 && both < 2; both++)
        for (int write = 0; rc == 0 && write < 2; write++) {
            rc = size_rows(b, write, both, 1);
            if (rc == 0 && !(both && b->e->quick))
                rc = size_rows(b, write, both, VECTORS);
        }
    return rc;
}

/* 128 pieces of 32 KiB, and a lease of many runs, of which each transfer takes four. */
static int scattered_rows(struct peer_bench *b)
{
    const struct bench_peer_plan pages = {
        .bytes = 4 << 20, .vectors = VECTORS, .depth = 1, .reference = "contiguous"};
    const struct bench_peer_plan runs = {
        .bytes = 4096, .vectors = 4, .depth = 1, .ops = 4095, .reference = "contiguous"};
    int rc = 0;

    for (int write = 0; rc == 0 && write < 2; write++) {
        struct bench_peer_plan p = pages;
        p.write = write;
        rc = row(b, "", p);
    }
    return rc ? rc : row(b, "of 16384 runs", runs);
}

static int submit_rows(struct peer_bench *b, uint64_t bytes)
{
    struct bench_peer_plan p = {.how = BENCH_PEER_SUBMIT, .bytes = bytes, .vectors = 1, .depth = 8};
    int rc = row(b, "submitted", p);

    p.write = true;
    return rc ? rc : row(b, "submitted", p);
}

static int notify_rows(struct peer_bench *b, uint64_t bytes)
{
    struct bench_peer_plan p = {.how = BENCH_PEER_NOTIFY,
                                .write = true,
                                .bytes = bytes,
                                .vectors = 1,
                                .depth = 1,
                                .reference = "plain write"};
    int rc = row(b, "notified", p);

    p.how = BENCH_PEER_PING;
    p.both = true;
    p.reference = NULL;
    return rc ? rc : row(b, "ping-pong", p);
}

static int connect_row(struct peer_bench *b)
{
    return row(b, "first connect",
               (struct bench_peer_plan){
                   .how = BENCH_PEER_CONNECT, .bytes = 4096, .vectors = 1, .depth = 1, .ops = 3});
}

static int rows(struct peer_bench *b)
{
    int rc = transfer_rows(b);

    if (rc == 0)
        rc = scattered_rows(b);
    for (size_t i = 0; rc == 0 && i < COUNT(sizes_some); i++)
        rc = submit_rows(b, sizes_some[i]);
    for (size_t i = 0; rc == 0 && i < COUNT(sizes_some); i++)
        rc = notify_rows(b, sizes_some[i]);
    return rc ? rc : connect_row(b);
}

/* --- the group ---------------------------------------------------------------------------------- */

static bool wanted(const struct bench_env *e, const struct bench_peer_way *w)
{
    return e->transport ? strcmp(e->transport, w->transport) == 0 : !w->named;
}

static int check_transport(const struct bench_env *e)
{
    for (size_t i = 0; i < WAYS; i++)
        if (wanted(e, &bench_peer_ways[i]))
            return 0;
    return tarn_fail(TARN_E_CONFIG, "no windows over \"%s\": give shm, tcp, rdma or cuda_ipc as --transport",
                     e->transport);
}

static int way_rows(struct peer_bench *b)
{
    const struct bench_peer_way *w = way_of(b);

    if (!wanted(b->e, w))
        return 0;
    if (w->memory != BENCH_PEER_GPU)
        return rows(b);
    if (!bench_peer_gpus_exist(w))
        return 0;
    b->played = bench_bare_played();
    b->e->quick |= b->played;
    b->e->seconds = b->played ? 0 : b->e->seconds;
    return rows(b);
}

int bench_group_peer(struct bench_env *e, struct bench_report *rep)
{
    struct peer_bench b = {.e = e, .rep = rep, .pair.fd = -1};
    int rc = check_transport(e);

    if (rc == 0)
        rc = bench_start_directory(e);
    if (rc == 0)
        rc = bench_peer_start(e, &b.pair);
    for (; rc == 0 && b.way < WAYS; b.way++)
        rc = way_rows(&b);
    bench_peer_stop(&b.pair);
    return rc;
}
