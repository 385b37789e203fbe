/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache is sharded, so that threads seldom contend for a lock. A shard's table has a place for each
 * entry: the first free one from its hash on. The hash stands there, too, so a look-up touches one line of
 * the table and no entry but its own. Half of the places at least are free.
 *
 * A full shard evicts its oldest entry; one that was used since the last look is moved to the end of the list
 * instead (second chance: close to LRU, and a hit does not touch the list).
 */
#include "client/cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define SHARDS 64
#define PLACES 16       /* of an empty shard */
#define ENTRY_BYTES 256 /* of most entries */

struct entry {
    struct entry *prev, *next; /* oldest first */
    uint64_t hash;
    struct tarn_key key; /* its bytes are behind the descriptor, */
    bool used;
    struct tarn_desc desc; /* which is cut to its locations */
};

struct place {
    uint64_t hash;
    struct entry *entry; /* NULL: free */
};

struct shard {
    _Alignas(64) pthread_mutex_t lock;
    _Atomic(struct place *) places;
    struct entry *entries;
    uint32_t n;            /* entries */
    _Atomic uint32_t last; /* number of the last place: one less than a power of 2 */
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
    bool made = c != NULL;

    for (int i = 0; c && i < SHARDS; i++) {
        struct shard *s = &c->shards[i];
        *s = (struct shard){.places = calloc(PLACES, sizeof *s->places), .last = PLACES - 1};
        pthread_mutex_init(&s->lock, NULL);
        made &= s->places != NULL;
    }
    if (!made) {
        tarn_cache_free(c);
        return tarn_fail(TARN_E_NO_MEMORY, "descriptor cache: out of memory");
    }
    c->limit = entries / SHARDS ? entries / SHARDS : 1;
    *c_p = c;
    return 0;
}

void tarn_cache_free(struct tarn_cache *c)
{
    if (!c)
        return;
    for (int i = 0; i < SHARDS; i++) {
        struct entry *e, *next;
        DL_FOREACH_SAFE(c->shards[i].entries, e, next)
        free(e);
        free(c->shards[i].places);
        pthread_mutex_destroy(&c->shards[i].lock);
    }
    free(c);
}

/* --- places ------------------------------------------------------------------------------------- */

/* The first place with this hash, or the free one where it ends. */
static struct place *place_of(struct shard *s, uint64_t hash)
{
    uint32_t i = (uint32_t)hash & s->last;

    while (s->places[i].entry && s->places[i].hash != hash)
        i = (i + 1) & s->last;
    return &s->places[i];
}

/* Two keys with one hash would take each other's place, which is as rare as it is harmless: the cache may
 * forget. */
static struct entry *entry_find(struct shard *s, const struct tarn_key *k, uint64_t hash)
{
    struct entry *e = place_of(s, hash)->entry;

    return e && e->key.bytes == k->bytes && memcmp(e->key.data, k->data, k->bytes) == 0 ? e : NULL;
}

/* False: out of memory. */
static bool grow(struct shard *s)
{
    struct shard wide = {.last = s->last * 2 + 1};
    struct entry *e;

    if (s->n < s->last / 2)
        return true;
    struct place *places = calloc((size_t)wide.last + 1, sizeof *places);
    if (!places)
        return false;
    wide.places = places;
    DL_FOREACH (s->entries, e)
        *place_of(&wide, e->hash) = (struct place){e->hash, e};
    free(s->places);
    s->places = places;
    s->last = wide.last;
    return true;
}

/* Frees a place. Those behind it move up, where they would not be found otherwise. */
static void place_free(struct shard *s, struct place *p)
{
    uint32_t hole = (uint32_t)(p - s->places);

    for (uint32_t i = (hole + 1) & s->last; s->places[i].entry; i = (i + 1) & s->last) {
        uint32_t from_home = (i - (uint32_t)s->places[i].hash) & s->last;
        if (from_home < ((i - hole) & s->last))
            continue;
        s->places[hole] = s->places[i];
        hole = i;
    }
    s->places[hole].entry = NULL;
}

/* --- entries ------------------------------------------------------------------------------------ */

static void entry_drop(struct shard *s, struct entry *e)
{
    place_free(s, place_of(s, e->hash));
    DL_DELETE(s->entries, e);
    s->n--;
    free(e);
}

static void make_room(struct shard *s, uint32_t limit)
{
    while (s->n >= limit) {
        struct entry *oldest = s->entries;
        if (!oldest->used) {
            entry_drop(s, oldest);
            continue;
        }
        oldest->used = false;
        DL_DELETE(s->entries, oldest);
        DL_APPEND(s->entries, oldest);
    }
}

bool tarn_cache_find(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, struct tarn_desc *d)
{
    struct shard *s = shard_of(c, hash);

    pthread_mutex_lock(&s->lock);
    struct entry *e = entry_find(s, k, hash);
    if (e) {
        if (!e->used)
            e->used = true;
        memcpy(d, &e->desc, tarn_desc_bytes(&e->desc));
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

/* Needs no lock, since it reads no place. When the table is just being replaced, it loads something else. */
void tarn_cache_prefetch_place(struct tarn_cache *c, uint64_t hash)
{
    const struct shard *s = shard_of(c, hash);
    uint32_t last = atomic_load_explicit(&s->last, memory_order_relaxed);

    __builtin_prefetch(atomic_load_explicit(&s->places, memory_order_relaxed) + ((uint32_t)hash & last));
}

void tarn_cache_prefetch_entry(struct tarn_cache *c, uint64_t hash)
{
    struct shard *s = shard_of(c, hash);

    pthread_mutex_lock(&s->lock);
    const char *e = (const char *)place_of(s, hash)->entry;
    for (size_t at = 0; e && at < ENTRY_BYTES; at += 64)
        __builtin_prefetch(e + at);
    pthread_mutex_unlock(&s->lock);
}

static struct entry *entry_new(const struct tarn_key *k, uint64_t hash, const struct tarn_desc *d)
{
    size_t desc = tarn_desc_bytes(d);
    struct entry *e = malloc(offsetof(struct entry, desc) + desc + k->bytes);

    if (!e)
        return NULL;
    char *key = (char *)&e->desc + desc;
    e->hash = hash;
    e->key = (struct tarn_key){key, k->bytes};
    e->used = false;
    memcpy(&e->desc, d, desc);
    memcpy(key, k->data, k->bytes);
    return e;
}

void tarn_cache_set(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, const struct tarn_desc *d)
{
    struct shard *s = shard_of(c, hash);
    size_t bytes = tarn_desc_bytes(d);

    pthread_mutex_lock(&s->lock);
    struct entry *e = entry_find(s, k, hash);
    if (e && tarn_desc_bytes(&e->desc) == bytes) { /* most look-ups find what is known */
        memcpy(&e->desc, d, bytes);
        e->used = true;
    } else {
        struct place *p = place_of(s, hash);
        if (p->entry)
            entry_drop(s, p->entry);
        make_room(s, c->limit);
        if (grow(s) && (e = entry_new(k, hash, d)) != NULL) {
            *place_of(s, hash) = (struct place){hash, e};
            DL_APPEND(s->entries, e);
            s->n++;
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
    if (e && (!l || has_location(&e->desc, l)))
        entry_drop(s, e);
    pthread_mutex_unlock(&s->lock);
}

uint64_t tarn_cache_count(struct tarn_cache *c)
{
    uint64_t n = 0;

    for (int i = 0; i < SHARDS; i++) {
        pthread_mutex_lock(&c->shards[i].lock);
        n += c->shards[i].n;
        pthread_mutex_unlock(&c->shards[i].lock);
    }
    return n;
}
