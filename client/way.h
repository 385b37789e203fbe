/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which copy, by which transport: gets, views and puts all decide it here, and `tarn info` shows it.
 *
 * Transports come in order of preference, and for each all copies. The first copy depends on the client, so
 * clients spread over replicas. The caller notes what it has tried and asks again.
 */
#ifndef TARN_CLIENT_WAY_H
#define TARN_CLIENT_WAY_H

#include <stdbool.h>
#include <stdint.h>

#include "client/desc.h"
#include "client/peer_node.h"

struct tarn_client;

struct tarn_choice {
    const struct tarn_loc *locs; /* node and pool of each copy */
    uint32_t nlocs;
    uint32_t gpu; /* tarn_pieces_gpu() */
    bool write;
    bool view;      /* only by transports with views; through a shared link also while the node is slow */
    uint64_t tried; /* ways not to choose: tarn_way_bit(), tarn_way_bits_to() */
};

_Static_assert(64 >= TARN_REPLICAS_MAX * TARN_TRANSPORTS_MAX, "tried has a bit for each way");

struct tarn_way {
    struct tarn_side *side;
    uint32_t loc; /* index of the copy */
    bool more;    /* another copy can be reached, too */
};

static inline uint64_t tarn_way_bit_of(uint32_t loc, int transport)
{
    return (uint64_t)1 << (loc * TARN_TRANSPORTS_MAX + (uint32_t)transport);
}

static inline uint64_t tarn_way_bit(const struct tarn_way *w)
{
    return tarn_way_bit_of(w->loc, w->side->transport);
}

/* All ways to a copy. */
static inline uint64_t tarn_way_bits_to(uint32_t loc)
{
    return (((uint64_t)1 << TARN_TRANSPORTS_MAX) - 1) << (loc * TARN_TRANSPORTS_MAX);
}

/* The best way not tried yet. False: none is left. */
bool tarn_way_choose(const struct tarn_client *c, const struct tarn_choice *q, uint64_t now_ns,
                     struct tarn_way *w);

#endif
