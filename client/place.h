/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes a key is put to. */
#ifndef TARN_CLIENT_PLACE_H
#define TARN_CLIENT_PLACE_H

#include <stdint.h>

#include <tarn/tarn.h>

struct tarn_peer_node;

struct tarn_candidate {
    struct tarn_peer_node *node;
    double weight; /* bytes of its pools */
    uint64_t seed; /* hash of the node id */
    uint64_t host; /* hash of the host id */
};

/*
 * Picks the k best candidates of a key, best first, each on a host of its own as long as there are
 * such; those of weight 0 are left out. Returns how many there were.
 */
uint32_t tarn_place_pick(const struct tarn_key *key, const struct tarn_candidate *cand, uint32_t n,
                         uint32_t k, uint32_t *out);

#endif
