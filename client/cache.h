/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor cache: key -> where the object is. Any thread may call. */
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

/* Holds about `entries` descriptors at most and evicts by second chance. */
int tarn_cache_new(uint32_t entries, struct tarn_cache **c_p);
void tarn_cache_free(struct tarn_cache *c);
/* hash: tarn_key_hash() of the key, here and below. */
bool tarn_cache_find(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, struct tarn_desc *d);
/* Load what tarn_cache_find() of that hash will read into the CPU's cache: first the place, which takes a
 * while to come, then the entry. */
void tarn_cache_prefetch_place(struct tarn_cache *c, uint64_t hash);
void tarn_cache_prefetch_entry(struct tarn_cache *c, uint64_t hash);
/* When memory runs out the entry is not kept. */
void tarn_cache_set(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, const struct tarn_desc *d);
/* Drops the key's entry. With a location it drops only an entry that contains it. */
void tarn_cache_drop(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, const struct tarn_loc *l);
uint64_t tarn_cache_count(struct tarn_cache *c);

#endif
