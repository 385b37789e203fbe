/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: pools, the key index, reservations, objects. How slots come free again is in reclaim.c,
 * eviction in room.c, what transports ask from their threads in guard.c, and what holds between them in
 * store.h.
 *
 * gen of a slot is 0 until its first use (the memfd is all zero, and is not touched ahead of use), then
 * (low half of the epoch) << 32 | 1. No object ever has gen 0: the epoch's low half must not be 0.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "server/pool.h"
#include "server/store_impl.h"

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
    if (o->low_watermark > o->high_watermark || o->high_watermark > 100)
        return tarn_fail(TARN_E_CONFIG, "store: watermarks %u and %u are not in the order low <= high <= 100",
                         o->low_watermark, o->high_watermark);
    struct tarn_store *s = calloc(1, sizeof(*s));
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "store: out of memory");
    s->o = *o;
    memcpy(s->node, o->node, strlen(o->node));
    s->o.node = s->node;
    s->tick_base_ns = tarn_now_ns();
    s->seed = tarn_random64();
    s->hazard_reading = 1;
    s->wheel.at = s->tick_base_ns / WHEEL_NS;
    *s_p = s;
    return 0;
}

static void pool_close(struct pool *p)
{
    for (uint32_t i = 0; i < p->used_slots; i++)
        free(p->slots[i].object);
    tarn_lazy_free(p->slots, p->memory->nslots * sizeof(struct slot));
    tarn_evict_lru.destroy(p->evict);
    tarn_alloc_free(p->alloc);
    tarn_pool_destroy(p->memory);
}

void tarn_store_free(struct tarn_store *s)
{
    if (!s)
        return;
    struct session *ses, *next;
    HASH_ITER (hh, s->sessions, ses, next) {
        HASH_DEL(s->sessions, ses);
        free(ses);
    }
    HASH_CLEAR(hh, s->index);
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
    if (o->huge)
        return tarn_pool_check_huge("", o->name, o->bytes);
    return tarn_pool_check_memory("", o->name, s->promised_bytes + o->bytes);
}

static uint32_t slots_of(const struct tarn_pool_options *o)
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
    rc = tarn_pool_create(p->name, o->bytes, slots_of(o), o->huge, p->memory);
    if (rc != 0)
        return rc;
    p->memory->name = p->name;
    p->slots = tarn_lazy_new(p->memory->nslots * sizeof(struct slot));
    rc = p->slots
             ? tarn_alloc_new(o->bytes, align, &p->alloc)
             : tarn_fail(TARN_E_NO_MEMORY, "pool %s: %u slots: out of memory", p->name, p->memory->nslots);
    struct tarn_evict_view view = {p->memory->touch, p->memory->nslots, store_is_idle, p};
    if (rc == 0)
        rc = tarn_evict_lru.create(&view, tarn_random64(), &p->evict);
    if (rc != 0) {
        pool_close(p);
        return rc;
    }
    s->promised_bytes += o->huge ? 0 : o->bytes;
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

uint32_t tarn_store_now(const struct tarn_store *s)
{
    return (uint32_t)((tarn_now_ns() - s->tick_base_ns) / TARN_TICK_NS);
}

uint64_t tarn_store_tick_base_ns(const struct tarn_store *s)
{
    return s->tick_base_ns;
}

/* --- key index ---------------------------------------------------------------------------------- */

static unsigned hash_key(const struct tarn_store *s, const void *key, size_t bytes)
{
    return (unsigned)tarn_hash(key, bytes, s->seed);
}

static struct object *index_find(const struct tarn_store *s, const void *key, size_t bytes)
{
    struct object *o = NULL;
    HASH_FIND_BYHASHVALUE(hh, s->index, key, bytes, hash_key(s, key, bytes), o);
    return o;
}

/* The LIVE object of a key that has not expired. */
static struct object *find_live(const struct tarn_store *s, const struct tarn_key *key)
{
    struct object *o = index_find(s, key->data, key->bytes);
    return o && !store_is_expired(o) ? o : NULL;
}

static bool index_add(struct tarn_store *s, struct object *o)
{
    unsigned hash = hash_key(s, o->key, o->key_bytes);
    HASH_ADD_KEYPTR_BYHASHVALUE(hh, s->index, o->key, o->key_bytes, hash, o);
    return o->hh.tbl != NULL;
}

void store_unindex(struct tarn_store *s, struct object *o)
{
    HASH_DEL(s->index, o);
}

static _Atomic uint64_t *gen_of(const struct tarn_store *s, uint32_t pool, uint32_t slot)
{
    return &s->memory[pool].gen[slot];
}

static void touch_now(struct tarn_store *s, const struct object *o)
{
    atomic_store_explicit(&s->memory[o->pool].touch[o->slot], tarn_store_now(s), memory_order_relaxed);
}

void store_locate(const struct tarn_store *s, const struct object *o, struct tarn_location *l)
{
    *l = (struct tarn_location){
        .offset = atomic_load_explicit(&s->pools[o->pool].slots[o->slot].offset, memory_order_relaxed),
        .gen = atomic_load_explicit(gen_of(s, o->pool, o->slot), memory_order_relaxed),
        .slot = o->slot,
    };
    memcpy(l->node, s->node, sizeof(l->node));
    memcpy(l->pool, s->pools[o->pool].name, sizeof(l->pool));
}

static void fill_record(const struct tarn_store *s, const struct object *o, struct tarn_record *r)
{
    *r = (struct tarn_record){
        .tensor = o->tensor,
        .version = o->version,
        .born_ms = o->born_ms,
        .ttl_ms = o->ttl_ms,
        .nlocations = 1,
    };
    store_locate(s, o, &r->locations[0]);
}

/* --- sessions ----------------------------------------------------------------------------------- */

static struct session *session_find(const struct tarn_store *s, uint64_t id)
{
    struct session *ses = NULL;
    HASH_FIND(hh, s->sessions, &id, sizeof(id), ses);
    return ses;
}

/* Makes the reservation the session's, which comes into being with its first. */
static int session_join(struct tarn_store *s, uint64_t id, struct object *o)
{
    struct session *ses = session_find(s, id);
    if (!ses) {
        ses = calloc(1, sizeof(*ses));
        if (ses) {
            ses->id = id;
            HASH_ADD(hh, s->sessions, id, sizeof(id), ses);
        }
        if (!ses || !ses->hh.tbl) {
            free(ses);
            return tarn_fail(TARN_E_NO_MEMORY, "session %016" PRIx64 ": out of memory", id);
        }
    }
    DL_APPEND2(ses->list, o, listed.prev, listed.next);
    ses->reserved += o->tensor.bytes;
    o->session = ses;
    return 0;
}

static void session_leave(struct tarn_store *s, struct object *o)
{
    struct session *ses = o->session;
    o->session = NULL;
    DL_DELETE2(ses->list, o, listed.prev, listed.next);
    ses->reserved -= o->tensor.bytes;
    if (!ses->list) {
        HASH_DEL(s->sessions, ses);
        free(ses);
    }
}

uint64_t tarn_store_session_reserved(const struct tarn_store *s, uint64_t session)
{
    const struct session *ses = session_find(s, session);
    return ses ? ses->reserved : 0;
}

/* A session with nothing reserved may always have one reservation, however large. */
static int check_session_limit(const struct tarn_store *s, const struct tarn_reserve *r)
{
    uint64_t held = tarn_store_session_reserved(s, r->session), max = s->o.session_reserved_max;
    if (!max || !held || held + r->tensor.bytes <= max)
        return 0;
    return tarn_fail(TARN_E_BUSY,
                     "session %016" PRIx64 ": %" PRIu64 " bytes are reserved already and %" PRIu64
                     " more are asked for, %" PRIu64 " are allowed: commit or abort some first",
                     r->session, held, r->tensor.bytes, max);
}

/* --- reserving ---------------------------------------------------------------------------------- */

static uint32_t slot_take(struct tarn_store *s, struct pool *p)
{
    uint32_t slot;
    if (p->free_slots) {
        slot = p->free_slots - 1;
        p->free_slots = p->slots[slot].next_free;
    } else {
        slot = p->used_slots++;
    }
    if (atomic_load(gen_of(s, p->index, slot)) == 0)
        atomic_store(gen_of(s, p->index, slot), s->o.epoch << 32 | 1);
    return slot;
}

static void slot_give_back(struct pool *p, uint32_t slot)
{
    p->slots[slot].next_free = p->free_slots;
    p->free_slots = slot + 1;
}

static bool take_extent(struct pool *p, struct object *o, uint32_t slot, uint64_t *offset_p)
{
    *offset_p = tarn_extent_new(p->alloc, o->tensor.bytes, slot, &o->handle);
    return *offset_p != TARN_ALLOC_NONE;
}

/* Finds slot and extent in a pool; with `evict`, makes room for them. */
static bool place(struct tarn_store *s, struct pool *p, struct object *o, bool evict)
{
    if (!store_has_slot(p) && !(evict && store_make_slot(s, p)))
        return false;
    uint32_t slot = slot_take(s, p);
    uint64_t offset;
    bool found = take_extent(p, o, slot, &offset);
    if (!found && p->limbo) {
        store_sweep_limbo(s, p);
        found = take_extent(p, o, slot, &offset);
    }
    while (!found && evict && store_make_hole(s, p, o->tensor.bytes))
        found = take_extent(p, o, slot, &offset);
    if (!found) {
        slot_give_back(p, slot);
        return false;
    }
    o->pool = p->index;
    o->slot = slot;
    p->used += tarn_extent_round(p->alloc, o->tensor.bytes);
    atomic_store(&p->slots[slot].offset, offset);
    atomic_store(&p->slots[slot].bytes, o->tensor.bytes);
    p->slots[slot].object = o;
    return true;
}

static double score_free(const struct pool *p)
{
    return (double)(p->memory->bytes - p->used);
}

/* Pools whose objects were evicted least for their size first, so that all pools age alike. */
static double score_evicted(const struct pool *p)
{
    return -(double)p->evicted_bytes / (double)p->memory->bytes;
}

static bool fits(const struct pool *p, uint64_t bytes)
{
    return bytes <= p->memory->bytes && tarn_extent_round(p->alloc, bytes) <= p->memory->bytes;
}

/* Tries the pools that are large enough, best score first. */
static bool place_by(struct tarn_store *s, struct object *o, double (*score)(const struct pool *), bool evict)
{
    bool tried[TARN_POOLS_MAX] = {false};
    for (uint32_t n = 0; n < s->npools; n++) {
        struct pool *best = NULL;
        for (uint32_t i = 0; i < s->npools; i++) {
            if (!tried[i] && (!best || score(&s->pools[i]) > score(best)))
                best = &s->pools[i];
        }
        tried[best->index] = true;
        if (fits(best, o->tensor.bytes) && place(s, best, o, evict))
            return true;
    }
    return false;
}

static int check_fits(const struct tarn_store *s, const struct tarn_reserve *r)
{
    if (r->pool >= (int)s->npools || s->npools == 0)
        return tarn_fail(TARN_E_INVALID, "reserve: there is no pool %d: the node has %u", r->pool, s->npools);
    uint64_t largest = 0;
    for (uint32_t i = 0; i < s->npools; i++) {
        if ((r->pool < 0 || (uint32_t)r->pool == i) && fits(&s->pools[i], r->tensor.bytes))
            return 0;
        if (r->pool < 0 || (uint32_t)r->pool == i)
            largest = s->memory[i].bytes > largest ? s->memory[i].bytes : largest;
    }
    return tarn_fail(TARN_E_TOO_LARGE,
                     "reserve: %" PRIu64 " bytes do not fit into any pool, the largest has %" PRIu64,
                     r->tensor.bytes, largest);
}

static int check_reserve(struct tarn_store *s, const struct tarn_reserve *r)
{
    if (r->key.bytes == 0 || r->key.bytes > TARN_KEY_MAX)
        return tarn_fail(TARN_E_INVALID, "reserve: the key has %zu bytes: use 1 to %d", r->key.bytes,
                         TARN_KEY_MAX);
    int rc = tarn_tensor_check(&r->tensor);
    if (rc == 0)
        rc = check_fits(s, r);
    if (rc != 0)
        return rc;
    struct object *o = index_find(s, r->key.data, r->key.bytes);
    if (o && store_is_expired(o))
        store_expire(s, o);
    else if (o && r->absent)
        return tarn_fail(TARN_E_EXISTS, "reserve: the key is held here already");
    return check_session_limit(s, r);
}

static struct object *object_new(const struct tarn_reserve *r)
{
    struct object *o = calloc(1, sizeof(*o) + r->key.bytes);
    if (!o)
        return NULL;
    o->tensor = r->tensor;
    o->version = r->version;
    o->ttl_ms = r->ttl_ms;
    o->absent = r->absent;
    o->pinned_until_ns = r->pin ? FOREVER : 0;
    o->state = OBJECT_RESERVED;
    o->key_bytes = (uint16_t)r->key.bytes;
    memcpy(o->key, r->key.data, r->key.bytes);
    return o;
}

static int fail_full(struct tarn_store *s, const struct tarn_reserve *r)
{
    struct pool *p = &s->pools[r->pool < 0 ? 0 : r->pool];
    struct tarn_pool_stats st;
    p->refused++;
    tarn_store_stats(s, p->index, &st);
    return tarn_fail(TARN_E_FULL,
                     "pool %s: no room for %" PRIu64 " bytes: %" PRIu64 " of %" PRIu64 " bytes and %" PRIu64
                     " of %" PRIu64
                     " slots are used, and what is used is pinned, being read or reserved (%" PRIu64
                     " bytes reserved, %" PRIu64 " objects in limbo): unpin, or add room",
                     p->name, r->tensor.bytes, st.used, st.bytes, st.objects + st.reserved + st.limbo,
                     st.slots, st.reserved_bytes, st.limbo);
}

static bool place_as_asked(struct tarn_store *s, const struct tarn_reserve *r, struct object *o)
{
    bool hopeless = r->refused && *r->refused && o->tensor.bytes >= *r->refused;
    if (!hopeless && r->pool >= 0 && place(s, &s->pools[r->pool], o, true))
        return true;
    if (!hopeless && r->pool < 0 &&
        (place_by(s, o, score_free, false) || place_by(s, o, score_evicted, true)))
        return true;
    if (r->refused && !hopeless)
        *r->refused = o->tensor.bytes;
    return false;
}

int tarn_store_reserve(struct tarn_store *s, const struct tarn_reserve *r, struct tarn_grant *g)
{
    int rc = check_reserve(s, r);
    if (rc != 0)
        return rc;
    struct object *o = object_new(r);
    if (!o)
        return tarn_fail(TARN_E_NO_MEMORY, "reserve: out of memory");
    rc = session_join(s, r->session, o);
    if (rc != 0)
        goto free_object;
    if (!place_as_asked(s, r, o)) {
        rc = fail_full(s, r);
        goto leave_session;
    }
    struct pool *p = &s->pools[o->pool];
    struct slot *t = &p->slots[o->slot];
    atomic_store(&t->session, r->session);
    touch_now(s, o);
    p->reserved++;
    p->reserved_bytes += tarn_extent_round(p->alloc, o->tensor.bytes);
    *g = (struct tarn_grant){o->pool, o->slot, atomic_load(&t->offset),
                             atomic_load(gen_of(s, o->pool, o->slot))};
    return 0;

leave_session:
    session_leave(s, o);
free_object:
    free(o);
    return rc;
}

/* --- committing and aborting -------------------------------------------------------------------- */

static struct object *object_at(const struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen)
{
    if (pool >= s->npools || slot >= s->pools[pool].used_slots ||
        atomic_load_explicit(gen_of(s, pool, slot), memory_order_relaxed) != gen)
        return NULL;
    return s->pools[pool].slots[slot].object;
}

static struct object *reservation_at(const struct tarn_store *s, uint64_t session, uint32_t pool,
                                     uint32_t slot, uint64_t gen)
{
    struct object *o = object_at(s, pool, slot, gen);
    return o && o->state == OBJECT_RESERVED && o->session->id == session ? o : NULL;
}

static void no_longer_reserved(struct tarn_store *s, const struct object *o)
{
    struct pool *p = &s->pools[o->pool];
    p->reserved--;
    p->reserved_bytes -= tarn_extent_round(p->alloc, o->tensor.bytes);
}

/* Takes the slot from its writers; false when one is at it. guard.c says why none is missed. */
static bool end_writing(struct tarn_store *s, const struct object *o)
{
    struct slot *t = &s->pools[o->pool].slots[o->slot];
    uint64_t session = atomic_load(&t->session);
    atomic_store(&t->session, 0);
    if (atomic_load(&t->writers) == 0)
        return true;
    atomic_store(&t->session, session);
    return false;
}

int tarn_store_commit_begin(struct tarn_store *s, uint64_t session, uint32_t pool, uint32_t slot,
                            uint64_t gen, struct tarn_publish *p)
{
    struct object *o = reservation_at(s, session, pool, slot, gen);
    if (!o)
        return tarn_fail(TARN_E_STALE,
                         "commit: session %016" PRIx64 " has no such reservation (pool %u slot %u)", session,
                         pool, slot);
    if (!end_writing(s, o))
        return tarn_fail(TARN_E_BUSY,
                         "commit: pool %u slot %u is being written: wait for the answers of its puts", pool,
                         slot);
    session_leave(s, o);
    o->state = OBJECT_PUBLISHING;
    o->born_ms = tarn_unix_ms();
    o->expires_ns = o->ttl_ms ? tarn_deadline(o->ttl_ms) : 0;
    touch_now(s, o);
    atomic_store(gen_of(s, pool, slot), gen + 1);
    *p = (struct tarn_publish){
        .key = {o->key, o->key_bytes},
        .mode = o->absent ? TARN_PUBLISH_ABSENT : TARN_PUBLISH_REPLACE,
    };
    fill_record(s, o, &p->record);
    return 0;
}

/* LIVE from now on, in place of what the key had here. */
static void go_live(struct tarn_store *s, struct object *o)
{
    struct object *old = index_find(s, o->key, o->key_bytes);
    if (old)
        store_remove_live(s, old, "replaced");
    if (!index_add(s, o)) { /* out of memory */
        store_tell_gone(s, o, "evicted");
        store_reclaim(s, o);
        return;
    }
    s->pools[o->pool].live++;
    o->state = OBJECT_LIVE;
    if (!o->pinned_until_ns)
        tarn_evict_lru.added(s->pools[o->pool].evict, o->slot);
    store_schedule(s, o);
}

void tarn_store_commit_end(struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen, bool published)
{
    struct object *o = object_at(s, pool, slot, gen + 1);
    if (!o || o->state != OBJECT_PUBLISHING)
        return;
    no_longer_reserved(s, o);
    if (published && !o->displaced)
        go_live(s, o);
    else
        store_reclaim(s, o);
}

static void abort_reservation(struct tarn_store *s, struct object *o)
{
    session_leave(s, o);
    no_longer_reserved(s, o);
    store_reclaim(s, o);
}

bool tarn_store_abort(struct tarn_store *s, uint64_t session, uint32_t pool, uint32_t slot, uint64_t gen)
{
    struct object *o = reservation_at(s, session, pool, slot, gen);
    if (o)
        abort_reservation(s, o);
    return o != NULL;
}

uint32_t tarn_store_abort_session(struct tarn_store *s, uint64_t session)
{
    uint32_t n = 0;
    struct session *ses = session_find(s, session);
    for (struct object *o = ses ? ses->list : NULL, *next; o; o = next, n++) {
        next = o->listed.next;
        abort_reservation(s, o);
    }
    return n;
}

/* --- objects ------------------------------------------------------------------------------------ */

bool tarn_store_find(const struct tarn_store *s, const struct tarn_key *key, struct tarn_record *r,
                     struct tarn_location *l)
{
    const struct object *o = find_live(s, key);
    if (o && r)
        fill_record(s, o, r);
    if (o && l)
        store_locate(s, o, l);
    return o != NULL;
}

bool tarn_store_remove(struct tarn_store *s, const struct tarn_key *key, const char *why)
{
    struct object *o = index_find(s, key->data, key->bytes);
    if (o)
        store_remove_live(s, o, why);
    return o != NULL;
}

bool tarn_store_release(struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen)
{
    struct object *o = object_at(s, pool, slot, gen);
    if (!o || (o->state != OBJECT_LIVE && o->state != OBJECT_PUBLISHING))
        return false;
    if (o->state == OBJECT_LIVE)
        store_remove_live(s, o, "replaced");
    else
        o->displaced = true; /* a later put won before the commit of this one has ended */
    return true;
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

bool tarn_store_touch(struct tarn_store *s, const struct tarn_key *key)
{
    const struct object *o = find_live(s, key);
    if (o)
        touch_now(s, o);
    return o != NULL;
}

/* The cursor is pool << 32 | slot. A call looks at a bounded number of slots, used or not. */
bool tarn_store_walk(struct tarn_store *s, uint64_t *cursor, uint32_t max, tarn_store_walk_fn fn, void *arg)
{
    uint32_t pool = (uint32_t)(*cursor >> 32), slot = (uint32_t)*cursor;
    struct tarn_record r;
    for (uint64_t looks = 16ull * max + 1024; looks > 0 && max > 0 && pool < s->npools; looks--) {
        if (slot >= s->pools[pool].used_slots) {
            pool++;
            slot = 0;
            continue;
        }
        const struct object *o = s->pools[pool].slots[slot++].object;
        if (!o || o->state != OBJECT_LIVE)
            continue;
        fill_record(s, o, &r);
        fn(arg, &(struct tarn_key){o->key, o->key_bytes}, &r);
        max--;
    }
    *cursor = (uint64_t)pool << 32 | slot;
    return pool < s->npools;
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
    };
}
