/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key index: LIVE objects by key, in chained buckets (W. Litwin, "Linear hashing: a new tool for file
 * and table addressing", VLDB 1980).
 *
 * The table grows by one bucket when an object finds none free, and one chain is divided between two. So no
 * put pays for doubling the table. Address space for as many buckets as slots is mapped at the start; memory
 * backs what was touched. So adding cannot fail.
 *
 * `mask` is the smallest 2^k - 1 that reaches the last bucket. If a hash leads to a bucket that does not
 * exist yet, its objects are in the bucket that will be divided to make it.
 */
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "server/store/lazy.h"
#include "server/store/store_impl.h"

int index_make_room(struct key_index *x, uint64_t objects)
{
    struct object **buckets = tarn_lazy_new(objects * sizeof(*buckets));
    if (!buckets)
        return tarn_fail(TARN_E_NO_MEMORY, "store: an index of %llu keys: out of memory",
                         (unsigned long long)objects);
    index_free(x);
    x->buckets = buckets;
    x->room = objects;
    x->nbuckets = 1;
    return 0;
}

void index_free(struct key_index *x)
{
    tarn_lazy_free(x->buckets, x->room * sizeof(*x->buckets));
    *x = (struct key_index){.seed = x->seed};
}

static struct object **bucket_of(const struct key_index *x, uint32_t hash)
{
    uint64_t i = hash & x->mask;
    return &x->buckets[i < x->nbuckets ? i : i & x->mask >> 1];
}

static uint32_t hash_key(const struct key_index *x, const void *key, size_t bytes)
{
    return (uint32_t)tarn_hash(key, bytes, x->seed);
}

struct object *index_find(const struct key_index *x, const void *key, size_t bytes)
{
    uint32_t hash = hash_key(x, key, bytes);
    struct object *o = x->buckets ? *bucket_of(x, hash) : NULL;
    while (o && (o->hash != hash || o->key_bytes != bytes || memcmp(o->key, key, bytes)))
        o = o->chain;
    return o;
}

void index_prefetch(const struct key_index *x, const void *key, size_t bytes, bool object)
{
    struct object *const *bucket = x->buckets ? bucket_of(x, hash_key(x, key, bytes)) : NULL;
    if (bucket)
        __builtin_prefetch(object ? (const void *)*bucket : bucket);
}

static void chain_to(struct object **bucket, struct object *o)
{
    o->chain = *bucket;
    *bucket = o;
}

/* Adds a bucket and moves its objects there, from the bucket that held them so far. */
static void grow(struct key_index *x)
{
    uint64_t added = x->nbuckets++;
    if (added > x->mask)
        x->mask = x->mask << 1 | 1;
    struct object **from = &x->buckets[added & x->mask >> 1], *o = *from;
    *from = NULL;
    while (o) {
        struct object *next = o->chain;
        chain_to(bucket_of(x, o->hash), o);
        o = next;
    }
}

void index_add(struct key_index *x, struct object *o)
{
    if (++x->n > x->nbuckets && x->nbuckets < x->room)
        grow(x);
    o->hash = hash_key(x, o->key, o->key_bytes);
    chain_to(bucket_of(x, o->hash), o);
}

void index_remove(struct key_index *x, struct object *o)
{
    struct object **at = bucket_of(x, o->hash);
    while (*at != o)
        at = &(*at)->chain;
    *at = o->chain;
    x->n--;
}
