/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts: reserve a slot and an extent, then enter the object in the key index or give both back. store.h has
 * the states.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/store/store_impl.h"

/* --- reservers ---------------------------------------------------------------------------------- */

static struct reserver *reserver_find(const struct tarn_store *s, uint64_t id)
{
    struct reserver *reserver = NULL;
    HASH_FIND(hh, s->reservers, &id, sizeof(id), reserver);
    return reserver;
}

/* Gives the reservation to the session's reserver. The first reservation creates the reserver. */
static int reserver_join(struct tarn_store *s, uint64_t id, struct object *o)
{
    struct reserver *reserver = reserver_find(s, id);
    if (!reserver) {
        reserver = calloc(1, sizeof(*reserver));
        if (reserver) {
            reserver->id = id;
            HASH_ADD(hh, s->reservers, id, sizeof(id), reserver);
        }
        if (!reserver || !reserver->hh.tbl) {
            free(reserver);
            return tarn_fail(TARN_E_NO_MEMORY, "session %016" PRIx64 ": out of memory", id);
        }
    }
    DL_APPEND2(reserver->list, o, listed.prev, listed.next);
    reserver->reserved += o->tensor.bytes;
    o->reserver = reserver;
    return 0;
}

static void reserver_leave(struct tarn_store *s, struct object *o)
{
    struct reserver *reserver = o->reserver;
    o->reserver = NULL;
    DL_DELETE2(reserver->list, o, listed.prev, listed.next);
    reserver->reserved -= o->tensor.bytes;
    if (!reserver->list) {
        HASH_DEL(s->reservers, reserver);
        free(reserver);
    }
}

uint64_t tarn_store_session_reserved(const struct tarn_store *s, uint64_t session)
{
    const struct reserver *reserver = reserver_find(s, session);
    return reserver ? reserver->reserved : 0;
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
    if (atomic_load(store_gen(s, p->index, slot)) == 0)
        atomic_store(store_gen(s, p->index, slot), s->o.epoch << 32 | 1);
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
    if (store_kept_room(s, p->index, slot, o->key_bytes)) {
        slot_give_back(p, slot);
        return false;
    }
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

/* May the store choose it? GPU memory is dear, and not every client reaches it: it is for those who ask for
 * it. */
static bool in_choice(const struct tarn_store *s, uint32_t pool)
{
    return s->cpu_pools == 0 || s->memory[pool].kind == TARN_POOL_CPU;
}

/* Tries the pools that are large enough, best score first. */
static bool place_by(struct tarn_store *s, struct object *o, double (*score)(const struct pool *), bool evict)
{
    bool tried[TARN_POOLS_MAX] = {false};
    for (;;) {
        struct pool *best = NULL;
        for (uint32_t i = 0; i < s->npools; i++) {
            if (!tried[i] && in_choice(s, i) && (!best || score(&s->pools[i]) > score(best)))
                best = &s->pools[i];
        }
        if (!best)
            return false;
        tried[best->index] = true;
        if (fits(best, o->tensor.bytes) && place(s, best, o, evict))
            return true;
    }
}

static int check_fits(const struct tarn_store *s, const struct tarn_reserve *r)
{
    if (r->pool >= (int)s->npools || s->npools == 0)
        return tarn_fail(TARN_E_INVALID, "reserve: there is no pool %d: the node has %u", r->pool, s->npools);
    uint64_t largest = 0;
    for (uint32_t i = 0; i < s->npools; i++) {
        bool asked = r->pool < 0 ? in_choice(s, i) : (uint32_t)r->pool == i;
        if (asked && fits(&s->pools[i], r->tensor.bytes))
            return 0;
        if (asked)
            largest = s->memory[i].bytes > largest ? s->memory[i].bytes : largest;
    }
    return tarn_fail(TARN_E_TOO_LARGE,
                     "reserve: %" PRIu64 " bytes do not fit into any pool, the largest has %" PRIu64,
                     r->tensor.bytes, largest);
}

/* An object that is there already becomes part of a chain. */
static void join_chain(struct tarn_store *s, struct tarn_chain *chain, const struct object *o)
{
    if (!chain)
        return;
    struct tarn_evict *e = s->pools[o->pool].evict;
    if (chain->any && chain->pool == o->pool)
        tarn_evict_continue(e, o->slot, tarn_evict_hold(e, chain->slot), tarn_store_now(s));
    *chain = (struct tarn_chain){true, o->pool, o->slot};
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
    struct object *o = index_find(&s->index, r->key.data, r->key.bytes);
    if (o && store_is_expired(o))
        store_expire(s, o);
    else if (o && r->absent) {
        join_chain(s, r->chain, o);
        return tarn_fail(TARN_E_EXISTS, "reserve: the key is held here already");
    }
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
                     " bytes reserved, %" PRIu64 " objects in limbo): unpin or remove objects, or add room",
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

/* As place_as_asked(). What the object continues makes no room for it. */
static bool place_behind(struct tarn_store *s, const struct tarn_reserve *r, struct object *o)
{
    const struct tarn_chain *before = r->chain && r->chain->any ? r->chain : NULL;
    struct tarn_evict *evict = before ? s->pools[before->pool].evict : NULL;
    struct tarn_evict_hold hold = {0}, none = {0};
    if (before)
        hold = tarn_evict_hold(evict, before->slot);
    bool placed = place_as_asked(s, r, o), same = placed && before && before->pool == o->pool;
    if (placed)
        tarn_evict_reserve(s->pools[o->pool].evict, o->slot, same ? hold : none);
    if (before && !same)
        tarn_evict_let_go(evict, hold, tarn_store_now(s));
    if (placed && r->chain)
        *r->chain = (struct tarn_chain){true, o->pool, o->slot};
    return placed;
}

struct tarn_chain tarn_store_chain_from(const struct tarn_store *s, const struct tarn_key *key)
{
    const struct object *o = index_find(&s->index, key->data, key->bytes);
    return o ? (struct tarn_chain){true, o->pool, o->slot} : (struct tarn_chain){false};
}

struct tarn_chain tarn_store_chain_at(const struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen)
{
    bool here = store_object_at(s, pool, slot, gen) || store_object_at(s, pool, slot, gen + 1);
    return here ? (struct tarn_chain){true, pool, slot} : (struct tarn_chain){false};
}

void tarn_store_prefetch(const struct tarn_store *s, const void *key, size_t bytes, bool object)
{
    index_prefetch(&s->index, key, bytes, object);
}

int tarn_store_reserve(struct tarn_store *s, const struct tarn_reserve *r, struct tarn_grant *g)
{
    int rc = check_reserve(s, r);
    if (rc != 0)
        return rc;
    struct object *o = object_new(r);
    if (!o)
        return tarn_fail(TARN_E_NO_MEMORY, "reserve: out of memory");
    rc = reserver_join(s, r->session, o);
    if (rc != 0)
        goto free_object;
    if (!place_behind(s, r, o)) {
        rc = fail_full(s, r);
        goto leave_session;
    }
    struct pool *p = &s->pools[o->pool];
    struct slot *t = &p->slots[o->slot];
    atomic_store(&t->session, r->session);
    store_touch(s, o);
    store_kept_reserved(s, o);
    p->reserved++;
    p->reserved_bytes += tarn_extent_round(p->alloc, o->tensor.bytes);
    *g = (struct tarn_grant){o->pool, o->slot, atomic_load(&t->offset),
                             atomic_load(store_gen(s, o->pool, o->slot))};
    return 0;

leave_session:
    reserver_leave(s, o);
free_object:
    free(o);
    return rc;
}

/* --- committing and aborting -------------------------------------------------------------------- */

static struct object *reservation_at(const struct tarn_store *s, uint64_t session, uint32_t pool,
                                     uint32_t slot, uint64_t gen)
{
    struct object *o = store_object_at(s, pool, slot, gen);
    return o && o->state == OBJECT_RESERVED && o->reserver->id == session ? o : NULL;
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

/* The part of an object that is published. */
static void fill_publish(const struct tarn_store *s, struct object *o, struct tarn_publish *p)
{
    *p = (struct tarn_publish){
        .key = {o->key, o->key_bytes},
        .mode = o->absent ? TARN_PUBLISH_ABSENT : TARN_PUBLISH_REPLACE,
    };
    store_record(s, o, &p->record);
}

/* LIVE, and its commit may be begun once more. */
static struct object *committed_at(const struct tarn_store *s, uint64_t session, uint32_t pool, uint32_t slot,
                                   uint64_t gen)
{
    struct object *o = store_object_at(s, pool, slot, gen + 1);
    return o && o->state == OBJECT_LIVE && o->committer == session ? o : NULL;
}

int tarn_store_commit_begin(struct tarn_store *s, uint64_t session, uint32_t pool, uint32_t slot,
                            uint64_t gen, struct tarn_publish *p)
{
    struct object *o = reservation_at(s, session, pool, slot, gen);
    struct object *again = o || !session ? NULL : committed_at(s, session, pool, slot, gen);
    if (again) {
        fill_publish(s, again, p);
        return 0;
    }
    if (!o)
        return tarn_fail(TARN_E_STALE,
                         "commit: session %016" PRIx64 " has no such reservation (pool %u slot %u)", session,
                         pool, slot);
    if (!end_writing(s, o))
        return tarn_fail(TARN_E_BUSY,
                         "commit: pool %u slot %u is being written: wait for the answers of its puts", pool,
                         slot);
    reserver_leave(s, o);
    o->committer = 0;
    o->state = OBJECT_PUBLISHING;
    o->born_ms = tarn_unix_ms();
    o->expires_ns = o->ttl_ms ? tarn_deadline(o->ttl_ms) : 0;
    store_touch(s, o);
    store_kept_publishing(s, o, gen + 1);
    atomic_store(store_gen(s, pool, slot), gen + 1);
    fill_publish(s, o, p);
    return 0;
}

static void replace(struct tarn_store *s, struct object *old, struct tarn_committed *c)
{
    c->replaced = true;
    store_locate(s, old, &c->old);
    store_remove_live(s, old, TARN_LEFT_UNTOLD);
}

/* LIVE from now on, in place of what the key had here. */
static void go_live(struct tarn_store *s, struct object *o, struct tarn_committed *c)
{
    struct object *old = index_find(&s->index, o->key, o->key_bytes);
    if (old)
        replace(s, old, c);
    index_add(&s->index, o);
    s->pools[o->pool].live++;
    o->state = OBJECT_LIVE;
    store_kept_live(s, o);
    tarn_evict_add(s->pools[o->pool].evict, o->slot, o->hash, o->pinned_until_ns != 0, tarn_store_now(s));
    store_schedule(s, o);
}

/* It was LIVE before it was published once more. */
static void end_again(struct tarn_store *s, struct object *o, uint64_t born_ms, struct tarn_committed *c)
{
    o->committer = 0;
    c->live = born_ms != 0;
    if (c->live) {
        o->born_ms = born_ms;
        store_kept_live(s, o);
    } else {
        replace(s, o, c);
    }
}

struct tarn_committed tarn_store_commit_end(struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen,
                                            uint64_t born_ms)
{
    struct object *o = store_object_at(s, pool, slot, gen + 1);
    struct tarn_committed c = {.live = false};
    if (!o)
        return c;
    if (o->state == OBJECT_LIVE) {
        end_again(s, o, born_ms, &c); /* o may be freed by that */
        return c;
    }
    if (o->state != OBJECT_PUBLISHING)
        return c;
    no_longer_reserved(s, o);
    if (!born_ms || o->displaced) {
        store_reclaim(s, o);
        return c;
    }
    o->born_ms = born_ms;
    go_live(s, o, &c);
    c.live = true;
    return c;
}

void tarn_store_commit_again(struct tarn_store *s, uint64_t session, uint32_t pool, uint32_t slot,
                             uint64_t gen)
{
    struct object *o = store_object_at(s, pool, slot, gen + 1);
    if (o && o->state == OBJECT_LIVE)
        o->committer = session;
    if (!o || o->state != OBJECT_PUBLISHING)
        return;
    if (o->displaced || !session || reserver_join(s, session, o)) {
        no_longer_reserved(s, o);
        store_reclaim(s, o);
        return;
    }
    o->state = OBJECT_RESERVED;
    atomic_store(store_gen(s, pool, slot), gen); /* nobody was told of the even one */
    atomic_store(&s->pools[pool].slots[slot].session, session);
}

static void abort_reservation(struct tarn_store *s, struct object *o)
{
    reserver_leave(s, o);
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
    struct reserver *reserver = reserver_find(s, session);
    for (struct object *o = reserver ? reserver->list : NULL, *next; o; o = next, n++) {
        next = o->listed.next;
        abort_reservation(s, o);
    }
    return n;
}
