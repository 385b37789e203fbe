/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of descriptors. */
#ifndef TARN_CLIENT_CACHE_H
#define TARN_CLIENT_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "client/desc.h"

struct tarn_cache;

static inline uint64_t tarn_key_hash(const struct tarn_key *k)
{
    return tarn_hash(k->data, k->bytes, 0);
}

/* At most about `entries` descriptors; the least recently used go first (second chance). */
int tarn_cache_new(uint32_t entries, struct tarn_cache **c_p);
void tarn_cache_free(struct tarn_cache *c);
bool tarn_cache_find(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, struct tarn_desc *d);
/* Out of memory only means that the entry is not kept. */
void tarn_cache_set(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, const struct tarn_desc *d);
/* Drops the key's entry; with a location, only an entry that has it. */
void tarn_cache_drop(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, const struct tarn_loc *l);
uint64_t tarn_cache_count(struct tarn_cache *c);

#endif
