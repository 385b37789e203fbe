/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: pools and the objects in them. Puts are in reserve.c, the key index in index.c, slots in slot.c,
 * freeing in reclaim.c, eviction in room.c, checks by transports in guard.c. store.h has the rules between
 * them.
 *
 * A slot's gen is 0 until its first use: the memfd is zero and not touched before. Then it is (low half of
 * the epoch) << 32 | 1. No object has gen 0, so the epoch's low half must not be 0.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "server/store/keep.h"
#include "server/store/lazy.h"
#include "server/store/pool.h"
#include "server/store/store_impl.h"

#define SLOTS_MIN 1024u
#define SLOTS_MAX (1u << 28)
#define SLOT_BYTES 4096 /* of the pool, for each slot by default */

/* --- store and pools ---------------------------------------------------------------------------- */

int tarn_store_new(const struct tarn_store_options *o, struct tarn_store **s_p)
{
    if ((uint32_t)o->epoch == 0)
        return tarn_fail(TARN_E_INVALID, "store: the low half of the epoch is 0: choose another epoch");
    if (strlen(o->node) > TARN_NODE_ID_MAX)
        return tarn_fail(TARN_E_CONFIG, "store: node id \"%s\" is longer than %d bytes", o->node,
                         TARN_NODE_ID_MAX);
    struct tarn_store *s = calloc(1, sizeof(*s));
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "store: out of memory");
    s->o = *o;
    memcpy(s->node, o->node, strlen(o->node));
    s->o.node = s->node;
    s->tick_base_ns = o->keep ? o->tick_base_ns : tarn_now_ns();
    s->index.seed = tarn_random64();
    s->hazard_reading = 1;
    s->wheel.at = tarn_now_ns() / WHEEL_NS;
    *s_p = s;
    return 0;
}

static void pool_close(struct pool *p)
{
    for (uint32_t i = 0; i < p->used_slots; i++)
        free(p->slots[i].object);
    tarn_lazy_free(p->slots, p->memory->nslots * sizeof(struct slot));
    tarn_evict_free(p->evict);
    tarn_alloc_free(p->alloc);
    tarn_pool_destroy(p->memory);
}

void tarn_store_free(struct tarn_store *s)
{
    if (!s)
        return;
    struct reserver *reserver, *next;
    HASH_ITER (hh, s->reservers, reserver, next) {
        HASH_DEL(s->reservers, reserver);
        free(reserver);
    }
    index_free(&s->index);
    for (uint32_t i = 0; i < s->npools; i++)
        pool_close(&s->pools[i]);
    free(s->pages);
    free(s);
}

static int check_pool_options(const struct tarn_store *s, const struct tarn_pool_options *o, uint64_t align)
{
    if (s->npools == TARN_POOLS_MAX)
        return tarn_fail(TARN_E_CONFIG, "pool %s: a node has at most %d pools", o->name, TARN_POOLS_MAX);
    if (o->name[0] == 0 || tarn_store_pool_find(s, o->name, strlen(o->name)) >= 0)
        return tarn_fail(TARN_E_CONFIG, "pool \"%s\": the name is empty or taken: choose another", o->name);
    if (align < 64 || (align & (align - 1)) || o->bytes < align)
        return tarn_fail(TARN_E_CONFIG,
                         "pool %s: alignment %" PRIu64 " of %" PRIu64
                         " bytes: use a power of two from 64 up to the size",
                         o->name, align, o->bytes);
    if (o->slots > SLOTS_MAX)
        return tarn_fail(TARN_E_CONFIG, "pool %s: %u slots: at most %u are possible", o->name, o->slots,
                         SLOTS_MAX);
    if (o->device[0]) /* what is free there is found out by taking it */
        return 0;
    if (s->o.keep && tarn_keep_found(s->o.keep)) /* its memory is there */
        return 0;
    if (o->huge)
        return tarn_pool_check_huge("", o->name, o->bytes);
    return tarn_pool_check_memory("", o->name, s->promised_bytes + o->bytes);
}

uint32_t tarn_pool_slots(const struct tarn_pool_options *o)
{
    if (o->slots)
        return o->slots;
    uint64_t n = o->bytes / SLOT_BYTES;
    return n < SLOTS_MIN ? SLOTS_MIN : n > SLOTS_MAX ? SLOTS_MAX : (uint32_t)n;
}

int tarn_store_add_pool(struct tarn_store *s, const struct tarn_pool_options *o)
{
    uint64_t align = o->align ? o->align : 64;
    int rc = check_pool_options(s, o, align);
    if (rc != 0)
        return rc;
    struct pool *p = &s->pools[s->npools];
    *p = (struct pool){.store = s, .index = s->npools, .memory = &s->memory[s->npools]};
    memcpy(p->name, o->name, sizeof(p->name));
    rc = s->o.keep ? tarn_keep_pool_open(s->o.keep, p->index, p->name, p->memory)
                   : tarn_pool_create(p->name, o->bytes, tarn_pool_slots(o), o->huge, o->device, p->memory);
    if (rc != 0) {
        if (s->o.keep)
            tarn_pool_destroy(p->memory);
        return rc;
    }
    p->memory->name = p->name;
    p->slots = tarn_lazy_new(p->memory->nslots * sizeof(struct slot));
    rc = p->slots
             ? tarn_alloc_new(o->bytes, align, &p->alloc)
             : tarn_fail(TARN_E_NO_MEMORY, "pool %s: %u slots: out of memory", p->name, p->memory->nslots);
    struct tarn_evict_view view = {p->memory->touch, p->memory->nslots, store_is_idle, p};
    if (rc == 0)
        rc = tarn_evict_new(&view, s->o.eviction, &p->evict);
    if (rc == 0)
        rc = index_make_room(&s->index, s->index.room + p->memory->nslots);
    if (rc != 0) {
        pool_close(p);
        return rc;
    }
    s->promised_bytes += o->huge || o->device[0] ? 0 : o->bytes;
    s->cpu_pools += o->device[0] == 0;
    s->npools++;
    return 0;
}

const struct tarn_pool_memory *tarn_store_pools(const struct tarn_store *s, uint32_t *n_p)
{
    *n_p = s->npools;
    return s->memory;
}

int tarn_store_pool_find(const struct tarn_store *s, const char *name, size_t bytes)
{
    for (uint32_t i = 0; i < s->npools; i++) {
        if (strlen(s->pools[i].name) == bytes && memcmp(s->pools[i].name, name, bytes) == 0)
            return (int)i;
    }
    return -1;
}

/* --- objects ------------------------------------------------------------------------------------ */

/* The LIVE object of a key that has not expired. */
static struct object *find_live(const struct tarn_store *s, const struct tarn_key *key)
{
    struct object *o = index_find(&s->index, key->data, key->bytes);
    return o && !store_is_expired(o) ? o : NULL;
}

bool tarn_store_find(const struct tarn_store *s, const struct tarn_key *key, struct tarn_record *r,
                     struct tarn_location *l)
{
    const struct object *o = find_live(s, key);
    if (o && r)
        store_record(s, o, r);
    if (o && l)
        store_locate(s, o, l);
    return o != NULL;
}

bool tarn_store_remove(struct tarn_store *s, const struct tarn_key *key, enum tarn_left why)
{
    struct object *o = index_find(&s->index, key->data, key->bytes);
    if (o)
        store_remove_live(s, o, why);
    return o != NULL;
}

bool tarn_store_release(struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen)
{
    struct object *o = store_object_at(s, pool, slot, gen);
    if (!o || (o->state != OBJECT_LIVE && o->state != OBJECT_PUBLISHING))
        return false;
    if (o->state == OBJECT_LIVE)
        store_remove_live(s, o, TARN_LEFT_RELEASED);
    else
        o->displaced = true; /* a later put won before the commit of this one has ended */
    return true;
}

bool tarn_store_is_publishing(const struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen)
{
    const struct object *o = store_object_at(s, pool, slot, gen);
    return o && o->state == OBJECT_PUBLISHING;
}

bool tarn_store_pin(struct tarn_store *s, const struct tarn_key *key, uint32_t ttl_ms)
{
    struct object *o = find_live(s, key);
    uint64_t until = ttl_ms ? tarn_deadline(ttl_ms) : FOREVER;
    if (o && until > o->pinned_until_ns) /* the longest of several pins counts */
        store_set_pin(s, o, until);
    return o != NULL;
}

bool tarn_store_unpin(struct tarn_store *s, const struct tarn_key *key)
{
    struct object *o = find_live(s, key);
    if (o)
        store_set_pin(s, o, 0);
    return o != NULL;
}

int64_t tarn_store_pinned(const struct tarn_store *s, const struct tarn_key *key)
{
    const struct object *o = find_live(s, key);
    uint64_t now = tarn_now_ns(), until = o ? o->pinned_until_ns : 0;
    if (until == FOREVER)
        return -1;
    return until > now ? (int64_t)((until - now + TARN_NS_PER_MS - 1) / TARN_NS_PER_MS) : 0;
}

bool tarn_store_touch(struct tarn_store *s, const struct tarn_key *key)
{
    const struct object *o = find_live(s, key);
    if (o)
        store_touch(s, o);
    return o != NULL;
}

/* The cursor is pool << 32 | slot. A call that has found something looks at a bounded number of slots. */
size_t tarn_store_list(const struct tarn_store *s, uint64_t *cursor, struct tarn_stored *out, size_t max)
{
    uint32_t pool = (uint32_t)(*cursor >> 32), slot = (uint32_t)*cursor;
    size_t n = 0, looks = 0, enough = 16 * max + 1024;
    while (pool < s->npools && n < max && (n == 0 || looks < enough)) {
        if (slot >= s->pools[pool].used_slots) {
            pool++;
            slot = 0;
            continue;
        }
        const struct object *o = s->pools[pool].slots[slot++].object;
        looks++;
        if (!o || o->state != OBJECT_LIVE)
            continue;
        store_record(s, o, &out[n].record);
        out[n].key_bytes = o->key_bytes;
        memcpy(out[n++].key, o->key, o->key_bytes);
    }
    *cursor = (uint64_t)pool << 32 | slot;
    return n;
}

void tarn_store_stats(const struct tarn_store *s, uint32_t pool, struct tarn_pool_stats *out)
{
    const struct pool *p = &s->pools[pool];
    struct tarn_alloc_stats a;
    tarn_alloc_stats(p->alloc, &a);
    *out = (struct tarn_pool_stats){
        .bytes = p->memory->bytes,
        .used = p->used,
        .free = p->memory->bytes - p->used,
        .largest_hole = a.largest_hole,
        .objects = p->live,
        .reserved = p->reserved,
        .reserved_bytes = p->reserved_bytes,
        .limbo = p->limbos,
        .slots = p->memory->nslots,
        .evicted = p->evicted,
        .evicted_bytes = p->evicted_bytes,
        .expired = p->expired,
        .refused = p->refused,
        .room = store_has_slot(p) ? a.largest_hole : 0,
    };
}
