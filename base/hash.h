/* SPDX-License-Identifier: Apache-2.0 */
/* The one hash function: XXH3 (xxhash.com), and rendezvous scores made from it. */
#ifndef TARN_BASE_HASH_H
#define TARN_BASE_HASH_H

#define XXH_INLINE_ALL
#include <xxhash.h>

static inline uint64_t tarn_hash(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

#endif
