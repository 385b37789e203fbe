/* SPDX-License-Identifier: Apache-2.0 */
/* The store's side of the state directory (keep.h): notes what is at each slot, and takes over what a process
 * that has ended has left. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "server/store/keep.h"
#include "server/store/store_impl.h"

/* --- noting --------------------------------------------------------------------------------------- */

int store_kept_room(const struct tarn_store *s, uint32_t pool, uint32_t slot, size_t key_bytes)
{
    return s->o.keep ? tarn_keep_room(s->o.keep, pool, slot, key_bytes) : 0;
}

static void note(const struct tarn_store *s, const struct object *o, uint64_t gen, enum tarn_kept_state state)
{
    struct tarn_kept r = {
        .gen = gen,
        .offset = atomic_load_explicit(&s->pools[o->pool].slots[o->slot].offset, memory_order_relaxed),
        .version = o->version,
        .born_ms = o->born_ms,
        .expires_ns = o->expires_ns,
        .pinned_until_ns = o->pinned_until_ns,
        .ttl_ms = o->ttl_ms,
        .key_bytes = o->key_bytes,
        .tensor = o->tensor,
    };
    if (s->o.keep)
        tarn_keep_write(s->o.keep, o->pool, o->slot, &r, o->key, state);
}

void store_kept_reserved(const struct tarn_store *s, const struct object *o)
{
    note(s, o, atomic_load(store_gen(s, o->pool, o->slot)), TARN_KEPT_RESERVED);
}

void store_kept_publishing(const struct tarn_store *s, const struct object *o, uint64_t gen)
{
    note(s, o, gen, TARN_KEPT_PUBLISHING);
}

void store_kept_live(const struct tarn_store *s, const struct object *o)
{
    note(s, o, atomic_load(store_gen(s, o->pool, o->slot)), TARN_KEPT_LIVE);
}

void store_kept_limbo(const struct tarn_store *s, const struct object *o)
{
    if (s->o.keep)
        tarn_keep_change(s->o.keep, o->pool, o->slot, TARN_KEPT_LIMBO);
}

void store_kept_free(const struct tarn_store *s, const struct object *o)
{
    if (s->o.keep)
        tarn_keep_change(s->o.keep, o->pool, o->slot, TARN_KEPT_VOID);
}

/* --- taking over ---------------------------------------------------------------------------------- */

struct found {
    const struct tarn_kept *r;
    const char *key;
    uint64_t offset;
    uint32_t slot;
    enum tarn_kept_state state;
    bool whole;
};

struct takeover {
    struct tarn_store *s;
    struct pool *p;
    struct found *all;
    size_t n;
};

static int by_offset(const void *a, const void *b)
{
    uint64_t x = ((const struct found *)a)->offset, y = ((const struct found *)b)->offset;
    return x < y ? -1 : x > y;
}

/*
 * What a record says, as far as it can be believed. One that is not whole was being written, or is damaged.
 * If the slot can be read nevertheless, somebody may look at the extent: it is not to be used as long as that
 * is so. A write of such a record does not change its extent.
 */
static bool read_record(const struct takeover *t, uint32_t slot, struct found *f)
{
    uint64_t gen = atomic_load(store_gen(t->s, t->p->index, slot));
    f->slot = slot;
    f->state = tarn_keep_read(t->s->o.keep, t->p->index, slot, &f->r, &f->key);
    f->offset = f->r->offset;
    f->whole = f->state != TARN_KEPT_VOID;
    if (!f->whole && tarn_gen_readable(gen) && f->r->gen == gen)
        f->state = TARN_KEPT_LIMBO;
    return f->state != TARN_KEPT_VOID && slot < t->p->used_slots && tarn_tensor_check(&f->r->tensor) == 0;
}

static int read_records(struct takeover *t)
{
    const struct tarn_keep *k = t->s->o.keep;
    uint32_t nslots = tarn_keep_slots(k, t->p->index);
    t->all = calloc((size_t)nslots + 1, sizeof(*t->all));
    if (!t->all)
        return tarn_fail(TARN_E_NO_MEMORY, "pool %s: out of memory", t->p->name);
    for (uint32_t slot = 0; slot < nslots; slot++) {
        t->n += read_record(t, slot, &t->all[t->n]);
    }
    qsort(t->all, t->n, sizeof(*t->all), by_offset);
    return 0;
}

static struct object *object_of(const struct takeover *t, const struct found *f)
{
    const struct tarn_kept *r = f->r;
    size_t key_bytes = f->whole ? r->key_bytes : 0;
    struct object *o = calloc(1, sizeof(*o) + key_bytes);
    if (!o)
        return NULL;
    o->tensor = r->tensor;
    o->version = r->version;
    o->born_ms = r->born_ms;
    o->expires_ns = r->expires_ns;
    o->pinned_until_ns = r->pinned_until_ns;
    o->ttl_ms = r->ttl_ms;
    o->pool = t->p->index;
    o->slot = f->slot;
    o->key_bytes = (uint16_t)key_bytes;
    if (key_bytes)
        memcpy(o->key, f->key, key_bytes);
    return o;
}

/* Puts the object of a record at its slot, as one in limbo or as one that may become LIVE. */
static int place_found(struct takeover *t, const struct found *f, uint32_t *top)
{
    struct pool *p = t->p;
    struct slot *slot = &p->slots[f->slot];
    struct object *o = object_of(t, f);
    if (!o)
        return tarn_fail(TARN_E_NO_MEMORY, "pool %s: out of memory", p->name);
    if (!tarn_extent_take(p->alloc, f->r->offset, o->tensor.bytes, f->slot, top, &o->handle)) {
        free(o);
        return !f->whole ? 0
                         : tarn_fail(TARN_E_CONFIG,
                                     "pool %s: its state names one place twice: it was changed by others: "
                                     "remove the state's files",
                                     p->name);
    }
    atomic_store(&slot->offset, f->r->offset);
    atomic_store(&slot->bytes, o->tensor.bytes);
    slot->object = o;
    p->used += tarn_extent_round(p->alloc, o->tensor.bytes);
    tarn_evict_reserve(p->evict, o->slot, (struct tarn_evict_hold){0});
    bool intact = f->state == TARN_KEPT_LIVE && tarn_gen_readable(f->r->gen) &&
                  atomic_load(store_gen(t->s, p->index, f->slot)) == f->r->gen;
    o->state = intact ? OBJECT_LIVE : OBJECT_LIMBO;
    if (f->state == TARN_KEPT_RESERVED) { /* its writer may still write */
        atomic_fetch_add(&slot->writers, 1);
        o->held = t->s->held = true;
    }
    return 0;
}

/* A slot without a LIVE object: nothing that anybody was told of it is true any more. */
static void void_slot(struct takeover *t, uint32_t slot)
{
    _Atomic uint64_t *gen = store_gen(t->s, t->p->index, slot);
    uint64_t g = atomic_load(gen);
    if (g != 0 && (uint32_t)g != UINT32_MAX)
        atomic_store(gen, tarn_gen_readable(g) ? g + 1 : g + 2);
}

static void settle_slot(struct takeover *t, uint32_t slot)
{
    struct pool *p = t->p;
    struct object *o = p->slots[slot].object;
    if (o && o->state == OBJECT_LIVE)
        return;
    void_slot(t, slot);
    if (o) {
        tarn_evict_remove(p->evict, slot, false, tarn_store_now(t->s));
        DL_APPEND2(p->limbo, o, listed.prev, listed.next);
        p->limbos++;
        return;
    }
    if (slot < tarn_keep_slots(t->s->o.keep, p->index))
        tarn_keep_change(t->s->o.keep, p->index, slot, TARN_KEPT_VOID);
    if ((uint32_t)atomic_load(store_gen(t->s, p->index, slot)) != UINT32_MAX) {
        p->slots[slot].next_free = p->free_slots;
        p->free_slots = slot + 1;
    }
}

static uint32_t count_used(const struct takeover *t)
{
    uint32_t n = t->p->memory->nslots;
    while (n > 0 && atomic_load_explicit(store_gen(t->s, t->p->index, n - 1), memory_order_relaxed) == 0)
        n--;
    return n;
}

static int take_pool(struct takeover *t)
{
    uint32_t top = UINT32_MAX;
    t->p->used_slots = count_used(t);
    int rc = read_records(t);
    for (size_t i = 0; !rc && i < t->n; i++)
        rc = place_found(t, &t->all[i], &top);
    for (uint32_t slot = t->p->used_slots; !rc && slot > 0; slot--)
        settle_slot(t, slot - 1);
    return rc;
}

static void go_live_again(struct tarn_store *s, struct object *o)
{
    struct pool *p = &s->pools[o->pool];
    index_add(&s->index, o);
    p->live++;
    tarn_evict_add(p->evict, o->slot, o->hash, o->pinned_until_ns != 0, tarn_store_now(s));
    store_schedule(s, o);
}

/* Nobody knows which of two objects of a key is the older one. */
static void take_object(struct tarn_store *s, struct object *o)
{
    struct object *other = index_find(&s->index, o->key, o->key_bytes);
    if (other)
        store_remove_live(s, other, TARN_LEFT_UNTOLD);
    go_live_again(s, o);
    if (other)
        store_remove_live(s, o, TARN_LEFT_UNTOLD);
}

static void drop_published(struct tarn_store *s, const struct takeover *t)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct found *f = &t->all[i];
        struct object *old =
            f->state == TARN_KEPT_PUBLISHING ? index_find(&s->index, f->key, f->r->key_bytes) : NULL;
        if (old)
            store_remove_live(s, old, TARN_LEFT_UNTOLD);
    }
}

int tarn_store_take_over(struct tarn_store *s)
{
    struct takeover pools[TARN_POOLS_MAX] = {0};
    int rc = 0;
    for (uint32_t i = 0; !rc && i < s->npools; i++) {
        pools[i] = (struct takeover){.s = s, .p = &s->pools[i]};
        rc = take_pool(&pools[i]);
    }
    for (uint32_t i = 0; !rc && i < s->npools; i++) {
        for (uint32_t slot = 0; slot < s->pools[i].used_slots; slot++) {
            struct object *o = s->pools[i].slots[slot].object;
            if (o && o->state == OBJECT_LIVE)
                take_object(s, o);
        }
    }
    for (uint32_t i = 0; i < s->npools; i++) {
        if (!rc)
            drop_published(s, &pools[i]);
        free(pools[i].all);
    }
    return rc;
}

void tarn_store_freeze(struct tarn_store *s)
{
    s->o.keep = NULL;
}

void tarn_store_writers_gone(struct tarn_store *s)
{
    for (uint32_t i = 0; s->held && i < s->npools; i++) {
        struct object *o;
        DL_FOREACH2(s->pools[i].limbo, o, listed.next)
        {
            if (o->held)
                atomic_fetch_sub(&s->pools[i].slots[o->slot].writers, 1);
            o->held = false;
        }
    }
    s->held = false;
}
