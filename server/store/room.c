/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction: making room, and housekeeping.
 *
 * A large object needs one large hole. Random victims leave small holes all over the pool, which may never
 * join. So the victim's neighbours in address are evicted, too, first that of the two sides which would be
 * evicted first, until the hole suffices. If objects that must stay block both sides, the next victim is
 * tried, and at last every place of the pool. So a reservation is refused only if no run of holes and
 * evictable objects is long enough.
 */
#include "server/store/store_impl.h"

#define VICTIMS_MAX 32    /* places to be tried before all are */
#define TIMED_A_TICK 4096 /* objects whose times are looked at in a tick */

/* --- eviction ----------------------------------------------------------------------------------- */

static struct object *object_at(const struct pool *p, uint32_t slot)
{
    return p->slots[slot].object;
}

static bool is_evictable(struct pool *p, uint32_t slot)
{
    const struct object *o = object_at(p, slot);
    return o && o->state == OBJECT_LIVE && !o->pinned_until_ns && store_is_idle(p, slot);
}

static uint32_t nth_victim(struct pool *p, uint32_t nth)
{
    return tarn_evict_victim(p->evict, tarn_store_now(p->store), nth);
}

/* One side of a run: the extent that it could grow by. */
struct side {
    uint32_t handle; /* NO_SLOT: it can't grow here */
    uint32_t owner;  /* NO_SLOT: a hole */
    uint64_t bytes;
    uint64_t rank; /* among victims; 0: a hole */
};

/* A run of neighbours, holes and evictable objects, by its ends. */
struct run {
    uint32_t low, low_owner, high;
    uint64_t bytes;
};

static struct side look(struct pool *p, uint32_t handle, int dir, uint32_t now)
{
    struct side side = {.rank = 0};
    side.handle = tarn_extent_neighbour(p->alloc, handle, dir, &side.bytes, &side.owner);
    if (side.handle == NO_SLOT || side.owner == NO_SLOT)
        return side;
    if (is_evictable(p, side.owner))
        side.rank = tarn_evict_rank(p->evict, side.owner, now);
    else
        side.handle = NO_SLOT;
    return side;
}

static void grow_low(struct run *r, const struct side *low)
{
    r->low = low->handle;
    r->low_owner = low->owner;
    r->bytes += low->bytes;
}

static void grow_high(struct run *r, const struct side *high)
{
    r->high = high->handle;
    r->bytes += high->bytes;
}

/* Grows a run until it has `need` bytes; holes first, then what would be evicted first. */
static bool grow_run(struct pool *p, struct run *r, uint64_t need)
{
    uint32_t now = tarn_store_now(p->store);
    while (r->bytes < need) {
        struct side low = look(p, r->low, -1, now), high = look(p, r->high, +1, now);
        if (low.handle == NO_SLOT && high.handle == NO_SLOT)
            return false;
        if (high.handle == NO_SLOT || (low.handle != NO_SLOT && low.rank < high.rank))
            grow_low(r, &low);
        else
            grow_high(r, &high);
    }
    return true;
}

/* The first run of the pool that has `need` bytes, from the lowest address on. */
static bool search_run(struct pool *p, uint64_t need, struct run *r)
{
    uint32_t h = NO_SLOT, owner;
    uint64_t bytes;
    r->bytes = 0;
    while ((h = tarn_extent_neighbour(p->alloc, h, +1, &bytes, &owner)) != NO_SLOT) {
        if (owner != NO_SLOT && !is_evictable(p, owner)) {
            r->bytes = 0;
            continue;
        }
        if (r->bytes == 0) {
            r->low = h;
            r->low_owner = owner;
        }
        r->high = h;
        r->bytes += bytes;
        if (r->bytes >= need)
            return true;
    }
    return false;
}

/* Evicts all objects of a run; whether there were any. They are collected first: freeing joins extents. */
static bool evict_run(struct tarn_store *s, struct pool *p, const struct run *r)
{
    struct object *first = NULL;
    uint32_t h = r->low, owner = r->low_owner;
    for (;;) {
        if (owner != NO_SLOT) {
            object_at(p, owner)->listed.next = first;
            first = object_at(p, owner);
        }
        if (h == r->high)
            break;
        uint64_t bytes;
        h = tarn_extent_neighbour(p->alloc, h, +1, &bytes, &owner);
    }
    bool any = first != NULL;
    while (first) {
        struct object *o = first;
        first = o->listed.next;
        store_retire_evicted(s, o);
    }
    store_sweep_limbo(s, p);
    return any;
}

bool store_make_hole(struct tarn_store *s, struct pool *p, uint64_t bytes)
{
    uint64_t need = tarn_extent_round(p->alloc, bytes);
    uint32_t victim = NO_SLOT;
    struct run r;
    store_read_hazards(s);
    for (uint32_t i = 0; i < VICTIMS_MAX && (victim = nth_victim(p, i)) != NO_SLOT; i++) {
        const struct object *o = object_at(p, victim);
        r = (struct run){o->handle, victim, o->handle, tarn_extent_round(p->alloc, o->tensor.bytes)};
        if (grow_run(p, &r, need))
            return evict_run(s, p, &r);
    }
    if (victim != NO_SLOT && search_run(p, need, &r))
        return evict_run(s, p, &r);
    return store_run_timed(s, UINT64_MAX);
}

/*
 * Evicts up to *max_p victims of together at least `bytes` and frees them in one go. The bytes that came
 * free: fewer when somebody has got at a victim meanwhile, 0 when there was none.
 */
static uint64_t evict_some(struct tarn_store *s, struct pool *p, uint64_t bytes, uint64_t *max_p)
{
    uint64_t before = p->used, retired = 0;
    uint32_t victim;
    while (retired<bytes && * max_p> 0 && (victim = nth_victim(p, 0)) != NO_SLOT) {
        struct object *o = object_at(p, victim);
        retired += tarn_extent_round(p->alloc, o->tensor.bytes);
        store_retire_evicted(s, o);
        --*max_p;
    }
    store_sweep_limbo(s, p);
    return before - p->used;
}

bool store_make_slot(struct tarn_store *s, struct pool *p)
{
    store_sweep_limbo(s, p);
    while (!store_has_slot(p)) {
        store_read_hazards(s);
        uint64_t one = 1;
        evict_some(s, p, 1, &one);
        if (one > 0 && !store_run_timed(s, UINT64_MAX))
            return false;
    }
    return true;
}

uint64_t tarn_store_evict(struct tarn_store *s, uint32_t pool, uint64_t bytes)
{
    uint64_t freed = 0, before, left = UINT64_MAX;
    if (pool >= s->npools)
        return 0;
    store_read_hazards(s);
    do {
        before = left;
        freed += evict_some(s, &s->pools[pool], bytes - freed, &left);
    } while (freed < bytes && left < before);
    return freed;
}

/* --- housekeeping ------------------------------------------------------------------------------- */

void tarn_store_tick(struct tarn_store *s)
{
    store_run_timed(s, TIMED_A_TICK);
    for (uint32_t i = 0; i < s->npools; i++) {
        store_sweep_limbo(s, &s->pools[i]);
        tarn_evict_tick(s->pools[i].evict, tarn_store_now(s));
    }
}
