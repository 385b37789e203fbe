/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache is sharded, so that threads seldom contend for a lock. uthash keeps a shard's entries in
 * insertion order. A full shard evicts its oldest entry; one that was used since the last look is moved to
 * the end instead (second chance: close to LRU, and a hit does not touch the list).
 */
#include "client/cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define SHARDS 64
#define ENTRY_BYTES 320 /* of most entries */

struct entry {
    UT_hash_handle hh;
    struct tarn_desc *desc; /* behind this struct, cut to its locations; then the key */
    bool used;
};

struct shard {
    _Alignas(64) pthread_mutex_t lock;
    struct entry *entries;
};

struct tarn_cache {
    uint32_t limit; /* of a shard */
    struct shard shards[SHARDS];
};

static struct shard *shard_of(struct tarn_cache *c, uint64_t hash)
{
    return &c->shards[hash >> 58];
}

int tarn_cache_new(uint32_t entries, struct tarn_cache **c_p)
{
    struct tarn_cache *c = aligned_alloc(64, sizeof *c);

    if (!c)
        return tarn_fail(TARN_E_NO_MEMORY, "descriptor cache: out of memory");
    memset(c, 0, sizeof *c);
    c->limit = entries / SHARDS ? entries / SHARDS : 1;
    for (int i = 0; i < SHARDS; i++)
        pthread_mutex_init(&c->shards[i].lock, NULL);
    *c_p = c;
    return 0;
}

void tarn_cache_free(struct tarn_cache *c)
{
    if (!c)
        return;
    for (int i = 0; i < SHARDS; i++) {
        struct entry *e, *next;
        HASH_ITER (hh, c->shards[i].entries, e, next) {
            HASH_DEL(c->shards[i].entries, e);
            free(e);
        }
        pthread_mutex_destroy(&c->shards[i].lock);
    }
    free(c);
}

static struct entry *entry_find(struct shard *s, const struct tarn_key *k, uint64_t hash)
{
    struct entry *e = NULL;

    HASH_FIND_BYHASHVALUE(hh, s->entries, k->data, k->bytes, (unsigned)hash, e);
    return e;
}

static void entry_add(struct shard *s, struct entry *e, unsigned hash)
{
    unsigned before = HASH_COUNT(s->entries);

    HASH_ADD_KEYPTR_BYHASHVALUE(hh, s->entries, e->hh.key, e->hh.keylen, hash, e);
    if (HASH_COUNT(s->entries) == before) /* out of memory: only not remembered */
        free(e);
}

static void entry_drop(struct shard *s, struct entry *e)
{
    HASH_DEL(s->entries, e);
    free(e);
}

static void make_room(struct shard *s, uint32_t limit)
{
    while (HASH_COUNT(s->entries) >= limit) {
        struct entry *oldest = s->entries;
        if (!oldest->used) {
            entry_drop(s, oldest);
            continue;
        }
        unsigned hash = oldest->hh.hashv;
        oldest->used = false;
        HASH_DEL(s->entries, oldest);
        entry_add(s, oldest, hash);
    }
}

bool tarn_cache_find(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, struct tarn_desc *d)
{
    struct shard *s = shard_of(c, hash);

    pthread_mutex_lock(&s->lock);
    struct entry *e = entry_find(s, k, hash);
    if (e) {
        e->used = true;
        memcpy(d, e->desc, tarn_desc_bytes(e->desc));
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

void tarn_cache_prefetch(struct tarn_cache *c, uint64_t hash)
{
    struct shard *s = shard_of(c, hash);

    pthread_mutex_lock(&s->lock);
    if (s->entries) {
        const UT_hash_table *t = s->entries->hh.tbl;
        unsigned bucket;
        HASH_TO_BKT((unsigned)hash, t->num_buckets, bucket);
        const char *e = (const char *)t->buckets[bucket].hh_head;
        for (size_t at = 0; e && at < ENTRY_BYTES; at += 64)
            __builtin_prefetch(e + at);
    }
    pthread_mutex_unlock(&s->lock);
}

static struct entry *entry_new(const struct tarn_key *k, const struct tarn_desc *d)
{
    size_t desc = tarn_desc_bytes(d);
    struct entry *e = malloc(sizeof *e + desc + k->bytes);

    if (!e)
        return NULL;
    memset(e, 0, sizeof *e);
    e->desc = (struct tarn_desc *)(e + 1);
    memcpy(e->desc, d, desc);
    memcpy((char *)e->desc + desc, k->data, k->bytes);
    e->hh.key = (char *)e->desc + desc;
    e->hh.keylen = (unsigned)k->bytes;
    return e;
}

void tarn_cache_set(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, const struct tarn_desc *d)
{
    struct shard *s = shard_of(c, hash);
    size_t bytes = tarn_desc_bytes(d);

    pthread_mutex_lock(&s->lock);
    struct entry *e = entry_find(s, k, hash);
    if (e && tarn_desc_bytes(e->desc) == bytes) { /* most look-ups find what is known */
        memcpy(e->desc, d, bytes);
        e->used = true;
    } else {
        if (e)
            entry_drop(s, e);
        if ((e = entry_new(k, d)) != NULL) {
            make_room(s, c->limit);
            entry_add(s, e, (unsigned)hash);
        }
    }
    pthread_mutex_unlock(&s->lock);
}

static bool has_location(const struct tarn_desc *d, const struct tarn_loc *l)
{
    for (uint32_t i = 0; i < d->nlocs; i++)
        if (tarn_loc_same(&d->locs[i], l))
            return true;
    return false;
}

void tarn_cache_drop(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, const struct tarn_loc *l)
{
    struct shard *s = shard_of(c, hash);

    pthread_mutex_lock(&s->lock);
    struct entry *e = entry_find(s, k, hash);
    if (e && (!l || has_location(e->desc, l)))
        entry_drop(s, e);
    pthread_mutex_unlock(&s->lock);
}

uint64_t tarn_cache_count(struct tarn_cache *c)
{
    uint64_t n = 0;

    for (int i = 0; i < SHARDS; i++) {
        pthread_mutex_lock(&c->shards[i].lock);
        n += HASH_COUNT(c->shards[i].entries);
        pthread_mutex_unlock(&c->shards[i].lock);
    }
    return n;
}
