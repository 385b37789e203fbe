/* SPDX-License-Identifier: Apache-2.0 */
/* What one process of `tarn-bench peer` sets up for a row: buffers, leases, contestants. */
#include <string.h>

#include "base/error.h"
#include "client/bench/bench_peer.h"

int bench_peer_client(const struct bench_peer_side *s, struct tarn_client **c_p)
{
    return bench_peer_way(s)->open(s, c_p);
}

/* Buffers of the host are registered: devices pin them once. */
static int make_load(struct bench_peer_side *s, uint32_t vectors, struct bench_load **l_p,
                     struct tarn_mr **mr_p)
{
    int rc = bench_peer_load_new(s, vectors, l_p);

    if (rc != 0 || bench_peer_way(s)->memory == BENCH_PEER_GPU)
        return rc;
    return tarn_register(s->c, (*l_p)->memory, (*l_p)->memory_bytes, TARN_MEMORY_HOST, mr_p);
}

static int make_loads(struct bench_peer_side *s)
{
    int rc = make_load(s, 1, &s->flat, &s->flat_mr);

    if (rc == 0 && s->plan.vectors > 1)
        rc = make_load(s, s->plan.vectors, &s->scattered, &s->scattered_mr);
    return rc;
}

static void drop_load(struct bench_peer_side *s, struct bench_load **l_p, struct tarn_mr **mr_p)
{
    if (*mr_p)
        tarn_deregister(s->c, *mr_p);
    bench_load_free(*l_p);
    *mr_p = NULL;
    *l_p = NULL;
}

static int add_contestants(struct bench_peer_side *s)
{
    const struct bench_peer_plan *p = &s->plan;
    int rc = bench_peer_add_mover(s, BENCH_OURS, "tarn", p->how, p->vectors);

    if (rc == 0 && p->reference)
        rc = bench_peer_add_mover(s, BENCH_REFERENCE, p->reference, BENCH_PEER_CALL, 1);
    if (rc != 0 || p->how == BENCH_PEER_PING || p->how == BENCH_PEER_CONNECT)
        return rc;
    return bench_peer_way(s)->add_limits(s);
}

int bench_peer_side_set_up(struct bench_peer_side *s, const struct bench_peer_plan *plan)
{
    s->plan = *plan;
    s->row = bench_row_new("", "", plan->bytes);
    int rc = s->row ? 0 : tarn_fail(TARN_E_NO_MEMORY, "a row of the benchmark: out of memory");

    if (rc == 0)
        rc = bench_peer_gpus_open(s);
    if (rc == 0)
        rc = bench_peer_client(s, &s->c);
    if (rc == 0 && bench_peer_moves(s))
        rc = make_loads(s);
    if (rc == 0)
        rc = add_contestants(s);
    if (rc != 0)
        bench_peer_side_tear_down(s);
    return rc;
}

int bench_peer_side_describe(const struct bench_peer_side *s, bench_peer_descriptors texts)
{
    int rc = 0;

    memset(texts, 0, sizeof(bench_peer_descriptors));
    for (size_t i = 0; rc == 0 && bench_peer_lends(s) && i < s->nmovers; i++)
        rc = tarn_lease_descriptor(s->movers[i]->lease, texts[i]);
    return rc;
}

int bench_peer_side_reach(struct bench_peer_side *s, const bench_peer_descriptors texts)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && bench_peer_moves(s) && i < s->nmovers; i++)
        rc = bench_peer_reach(s->movers[i], texts[i]);
    return rc;
}

void bench_peer_side_tear_down(struct bench_peer_side *s)
{
    bench_row_free(s->row);
    drop_load(s, &s->scattered, &s->scattered_mr);
    drop_load(s, &s->flat, &s->flat_mr);
    tarn_close(s->c);
    s->c = NULL;
    bench_load_free(s->far);
    s->far = NULL;
    s->row = NULL;
    s->nmovers = 0;
}
