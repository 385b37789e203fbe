/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement by weighted rendezvous hashing: each (key, node) pair has a score, and the best score takes the
 * key. A new node takes only the keys it wins; a lost one gives up only its own. With score = -weight /
 * ln(u), u uniform in (0, 1), nodes get keys in proportion to their weight.
 */
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
 * Picks the key's k best candidates, best first, on different hosts as far as possible. Candidates of weight
 * 0 are left out. Returns how many were picked.
 */
uint32_t tarn_place_pick(const struct tarn_key *key, const struct tarn_candidate *cand, uint32_t n,
                         uint32_t k, uint32_t *out);

#endif
