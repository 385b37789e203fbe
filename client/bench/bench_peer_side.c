/* SPDX-License-Identifier: Apache-2.0 */
/* What one process of `tarn-bench peer` sets up for a row: buffers, leases, contestants. */
#include <string.h>

#include "base/error.h"
#include "client/bench/bench_peer.h"

int bench_peer_client(const struct bench_peer_side *s, struct tarn_client **c_p)
{
    return bench_client(s->e, bench_peer_way(s)->transport, c_p);
}

static int make_loads(struct bench_peer_side *s)
{
    const struct bench_peer_plan *p = &s->plan;
    int rc = bench_peer_load_new(s, 1, &s->flat);

    if (rc == 0 && p->vectors > 1)
        rc = bench_peer_load_new(s, p->vectors, &s->scattered);
    return rc;
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
    tarn_close(s->c);
    s->c = NULL;
    bench_load_free(s->far);
    bench_load_free(s->scattered);
    bench_load_free(s->flat);
    s->row = NULL;
    s->scattered = s->flat = s->far = NULL;
    s->nmovers = 0;
}
