/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which copy, by which transport: the one place where that is decided, for gets, views and puts.
 *
 * Order: transports in order of preference, for each all copies, beginning at one that depends on the client,
 * so that clients spread over replicas. The caller notes what it has tried and asks again.
 */
#ifndef TARN_CLIENT_WAY_H
#define TARN_CLIENT_WAY_H

#include <stdbool.h>
#include <stdint.h>

#include "client/desc.h"
#include "client/peer_node.h"

struct tarn_client;

/* What is to be reached. */
struct tarn_choice {
    const struct tarn_loc *locs; /* node and pool of each copy */
    uint32_t nlocs;
    uint32_t gpu; /* tarn_pieces_gpu() */
    bool write;
    bool view;      /* in place: by transports that can, also while the node is slow */
    uint64_t tried; /* ways not to choose: tarn_way_bit(), tarn_way_bits_to() */
};

struct tarn_way {
    struct tarn_side *side;
    uint32_t loc; /* of the copies */
    bool more;    /* another copy can be reached besides */
};

static inline uint64_t tarn_way_bit(const struct tarn_way *w)
{
    return (uint64_t)1 << (w->loc * TARN_TRANSPORTS_MAX + (uint32_t)w->side->transport);
}

/* All ways to a copy. */
static inline uint64_t tarn_way_bits_to(uint32_t loc)
{
    return (uint64_t)0xff << (loc * TARN_TRANSPORTS_MAX);
}

/* The best way not tried yet; false: none is left. */
bool tarn_way_choose(const struct tarn_client *c, const struct tarn_choice *q, uint64_t now_ns,
                     struct tarn_way *w);

#endif
