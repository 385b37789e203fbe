/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA in `tarn-bench peer`: A's client on --devices, B's on --node-devices, over the first rail of these;
 * the limit is perftest between the same two ports. The latency tools are the limit of 4 KiB in one piece.
 * perftest moves one contiguous buffer, whatever the row's pieces are, and one way only.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "client/bench/bench_peer.h"

#define LATENCY_BYTES 4096
#define LARGE (1 << 20)
#define DEPTH 16      /* messages of perftest in flight */
#define DEPTH_LARGE 2 /* of LARGE and more: a slice must not last for ever on slow devices */

static bool is_latency(const struct bench_peer_plan *p)
{
    return p->bytes == LATENCY_BYTES && p->vectors == 1;
}

static enum bench_perftest tool_of(const struct bench_peer_plan *p)
{
    if (is_latency(p))
        return p->write ? BENCH_WRITE_LAT : BENCH_READ_LAT;
    return p->write ? BENCH_WRITE_BW : BENCH_READ_BW;
}

int bench_peer_add_perftest(struct bench_peer_side *s)
{
    const struct bench_peer_plan *p = &s->plan;
    struct bench_rails rails;

    if (!s->first || p->both)
        return 0;
    int rc = bench_rails_find(s->e, &rails);
    return rc ? rc
              : bench_add_perftest(s->e, s->row, tool_of(p), &rails.rail[0], p->bytes,
                                   p->bytes < LARGE ? DEPTH : DEPTH_LARGE);
}

/* B's device is the one that A's first rail reaches. */
static int other_client(const struct bench_peer_side *s, const struct bench_rail *r, struct tarn_client **c_p)
{
    char device[96];

    snprintf(device, sizeof device, "%s:%u@%u", r->node_device, r->node_port, r->node_gid_index);
    setenv("TARN_RDMA_DEVICES", device, 1);
    return bench_client(s->e, "rdma", c_p);
}

int bench_peer_rdma_client(const struct bench_peer_side *s, struct tarn_client **c_p)
{
    struct bench_rails rails;
    int rc = bench_rails_find(s->e, &rails);

    if (rc != 0)
        return rc;
    return s->first ? bench_rdma_client(s->e, &rails, 1, c_p) : other_client(s, &rails.rail[0], c_p);
}

/* A read needs a second one, of the generation. */
void bench_peer_small_perftest(struct bench_row *r, bool write)
{
    const struct bench_contestant *limit = bench_row_limit(r);

    if (!limit)
        return;
    double ratio = bench_p50_ratio(r, limit);
    bench_row_figure(r, "p50_ratio", ratio);
    bench_row_figure(r, "perftest_us", bench_median(&limit->p50_us));
    bench_at_most(r, "p50 / perftest", ratio, write ? 1.1 : 2.1);
}
