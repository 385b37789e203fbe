/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reclaiming: how a slot and its extent become free again.
 *
 * Reclaiming changes the slot's gen, then looks for users of the old gen: pins (guard.c) and hazard entries.
 * Without any, the extent and the slot become free. Until then the object is in limbo. A user that announces
 * itself after the change sees that gen has changed.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/store/store_impl.h"

/* --- hazards ------------------------------------------------------------------------------------ */

static uint64_t hazard_name(uint32_t pool, uint32_t slot)
{
    return ((uint64_t)pool << 32 | slot) + 1;
}

/* Clients write these pages: nothing in them is trusted. */
static uint32_t page_used(const struct tarn_hazard_page *page)
{
    uint32_t used = atomic_load(&page->used);
    return used < TARN_HAZARDS ? used : TARN_HAZARDS;
}

static bool is_hazard(const struct tarn_store *s, const struct object *o)
{
    uint64_t name = hazard_name(o->pool, o->slot);
    for (uint32_t i = 0; i < s->npages; i++) {
        uint32_t used = page_used(s->pages[i]);
        for (uint32_t k = 0; k < used; k++) {
            if (atomic_load(&s->pages[i]->entry[k]) == name)
                return true;
        }
    }
    return false;
}

/* Slots that were never used hold nothing, and stay without memory. */
static void mark_hazard(struct tarn_store *s, uint64_t name)
{
    uint64_t pool = (name - 1) >> 32;
    uint32_t slot = (uint32_t)(name - 1);
    if (name && pool < s->npools && slot < s->pools[pool].used_slots)
        s->pools[pool].slots[slot].hazard = s->hazard_reading;
}

/* Reads all pages, for many look-ups. Marks of an earlier reading are not wiped: they have its number. */
void store_read_hazards(struct tarn_store *s)
{
    if (++s->hazard_reading == 0)
        s->hazard_reading = 1; /* 0 is that of slots that were never marked */
    for (uint32_t i = 0; i < s->npages; i++) {
        uint32_t used = page_used(s->pages[i]);
        for (uint32_t k = 0; k < used; k++)
            mark_hazard(s, atomic_load(&s->pages[i]->entry[k]));
    }
}

static bool was_hazard(const struct pool *p, uint32_t slot)
{
    return p->slots[slot].hazard == p->store->hazard_reading;
}

int tarn_store_hazard_add(struct tarn_store *s, const struct tarn_hazard_page *page)
{
    if (s->npages == s->pages_room) {
        uint32_t room = s->pages_room ? 2 * s->pages_room : 8;
        const struct tarn_hazard_page **pages = realloc(s->pages, room * sizeof(*pages));
        if (!pages)
            return tarn_fail(TARN_E_NO_MEMORY, "hazard page %u: out of memory", s->npages);
        s->pages = pages;
        s->pages_room = room;
    }
    s->pages[s->npages++] = page;
    return 0;
}

void tarn_store_hazard_remove(struct tarn_store *s, const struct tarn_hazard_page *page)
{
    for (uint32_t i = 0; i < s->npages; i++) {
        if (s->pages[i] == page) {
            s->pages[i] = s->pages[--s->npages];
            return;
        }
    }
}

/* --- reclaiming --------------------------------------------------------------------------------- */

/* After the gen: nobody can get at the object any more but who is there already. */
static void retire(struct tarn_store *s, struct object *o, bool evicted)
{
    struct pool *p = &s->pools[o->pool];
    tarn_evict_remove(p->evict, o->slot, evicted, tarn_store_now(s));
    store_kept_limbo(s, o);
    _Atomic uint64_t *gen = &p->memory->gen[o->slot];
    uint64_t g = atomic_load(gen);
    atomic_store(gen, tarn_gen_readable(g) ? g + 1 : g + 2);
    o->state = OBJECT_LIMBO;
    DL_APPEND2(p->limbo, o, listed.prev, listed.next);
    p->limbos++;
}

/* A slot whose counter is used up is never handed out again, since its next gen would be an old one. */
static bool is_worn_out(const struct pool *p, uint32_t slot)
{
    return (uint32_t)atomic_load_explicit(&p->memory->gen[slot], memory_order_relaxed) == UINT32_MAX;
}

static void free_retired(struct pool *p, struct object *o)
{
    struct slot *t = &p->slots[o->slot];
    store_kept_free(p->store, o);
    DL_DELETE2(p->limbo, o, listed.prev, listed.next);
    p->limbos--;
    tarn_extent_free(p->alloc, o->handle);
    p->used -= tarn_extent_round(p->alloc, o->tensor.bytes);
    t->object = NULL;
    atomic_store(&t->bytes, 0);
    atomic_store(&t->session, 0);
    if (!is_worn_out(p, o->slot)) {
        t->next_free = p->free_slots;
        p->free_slots = o->slot + 1;
    }
    free(o);
}

void tarn_store_retire_all(struct tarn_store *s)
{
    for (uint32_t pool = 0; pool < s->npools; pool++) {
        for (uint32_t slot = 0; slot < s->pools[pool].used_slots; slot++) {
            _Atomic uint64_t *gen = store_gen(s, pool, slot);
            if (tarn_gen_readable(atomic_load(gen)))
                atomic_fetch_add(gen, 1);
        }
    }
}

static bool is_pinned(const struct pool *p, uint32_t slot)
{
    return atomic_load(&p->slots[slot].readers) != 0 || atomic_load(&p->slots[slot].writers) != 0;
}

void store_reclaim(struct tarn_store *s, struct object *o)
{
    retire(s, o, false);
    if (!is_pinned(&s->pools[o->pool], o->slot) && !is_hazard(s, o))
        free_retired(&s->pools[o->pool], o);
}

void store_sweep_limbo(struct tarn_store *s, struct pool *p)
{
    if (!p->limbo)
        return;
    store_read_hazards(s);
    struct object *o, *next;
    DL_FOREACH_SAFE2(p->limbo, o, next, listed.next)
    {
        if (!is_pinned(p, o->slot) && !was_hazard(p, o->slot))
            free_retired(p, o);
    }
}

bool store_is_idle(void *arg, uint32_t slot)
{
    const struct pool *p = arg;
    return !is_pinned(p, slot) && !was_hazard(p, slot);
}

static void wheel_remove(struct wheel *w, struct object *o)
{
    if (!o->is_timed)
        return;
    o->is_timed = false;
    DL_DELETE2(w->lists[o->timed_in], o, timed.prev, timed.next);
    w->n[o->timed_in]--;
}

/* All of a removal but freeing: o is in limbo afterwards. `gone` may say at once that the copy is no more, so
 * the gen has changed before. */
static void retire_live(struct tarn_store *s, struct object *o, enum tarn_left why)
{
    struct pool *p = &s->pools[o->pool];
    struct tarn_location l;
    index_remove(&s->index, o);
    wheel_remove(&s->wheel, o);
    p->live--;
    store_locate(s, o, &l);
    retire(s, o, why == TARN_LEFT_EVICTED);
    if (s->o.gone && why != TARN_LEFT_UNTOLD)
        s->o.gone(s->o.arg, &(struct tarn_key){o->key, o->key_bytes}, &l, o->tensor.bytes, why);
}

void store_remove_live(struct tarn_store *s, struct object *o, enum tarn_left why)
{
    retire_live(s, o, why);
    if (!is_pinned(&s->pools[o->pool], o->slot) && !is_hazard(s, o))
        free_retired(&s->pools[o->pool], o);
}

void store_retire_evicted(struct tarn_store *s, struct object *o)
{
    struct pool *p = &s->pools[o->pool];
    p->evicted++;
    p->evicted_bytes += o->tensor.bytes;
    retire_live(s, o, TARN_LEFT_EVICTED);
}

/* --- times -------------------------------------------------------------------------------------- */

bool store_is_expired(const struct object *o)
{
    return o->expires_ns && o->expires_ns <= tarn_now_ns();
}

void store_expire(struct tarn_store *s, struct object *o)
{
    s->pools[o->pool].expired++;
    store_remove_live(s, o, TARN_LEFT_EXPIRED);
}

/* When to look at the object next; FOREVER: never. */
static uint64_t next_time(const struct object *o)
{
    uint64_t expires = o->expires_ns ? o->expires_ns : FOREVER,
             unpinned = o->pinned_until_ns ? o->pinned_until_ns : FOREVER;
    return expires < unpinned ? expires : unpinned;
}

/* A time whose list is being looked at, or was already, becomes the next to be looked at. */
void store_schedule(struct tarn_store *s, struct object *o)
{
    struct wheel *w = &s->wheel;
    uint64_t when = next_time(o), at = when / WHEEL_NS;
    wheel_remove(w, o);
    if (when == FOREVER)
        return;
    o->is_timed = true;
    o->timed_in = (uint16_t)((at > w->at ? at : w->at) % WHEEL);
    w->n[o->timed_in]++;
    if (at > w->at) {
        DL_APPEND2(w->lists[o->timed_in], o, timed.prev, timed.next);
    } else {
        DL_PREPEND2(w->lists[o->timed_in], o, timed.prev, timed.next);
        w->left++;
    }
}

void store_set_pin(struct tarn_store *s, struct object *o, uint64_t until_ns)
{
    if (!o->pinned_until_ns != !until_ns)
        tarn_evict_pin(s->pools[o->pool].evict, o->slot, until_ns != 0, tarn_store_now(s));
    o->pinned_until_ns = until_ns;
    store_kept_live(s, o);
    store_schedule(s, o);
}

/* Does what the object's times ask for; one whose time has not come goes behind the others of its list. */
static bool run_times_of(struct tarn_store *s, struct object *o, uint64_t now)
{
    if (o->expires_ns && o->expires_ns <= now) {
        store_expire(s, o);
        return true;
    }
    if (o->pinned_until_ns && o->pinned_until_ns <= now) {
        store_set_pin(s, o, 0);
        return true;
    }
    struct object **list = &s->wheel.lists[o->timed_in];
    DL_DELETE2(*list, o, timed.prev, timed.next);
    DL_APPEND2(*list, o, timed.prev, timed.next);
    return false;
}

/*
 * Goes on where the last call stopped. What was looked at while its list was the present's may come due
 * before the list is left, so all of that one is to be looked at again.
 */
bool store_run_timed(struct tarn_store *s, uint64_t max)
{
    struct wheel *w = &s->wheel;
    uint64_t now = tarn_now_ns(), present = now / WHEEL_NS;
    bool any = false;
    if (present - w->at >= WHEEL) { /* more than a turn behind */
        w->at = present - WHEEL + 1;
        w->left = w->n[w->at % WHEEL];
    }
    for (;;) {
        struct object **list = &w->lists[w->at % WHEEL];
        for (; w->left > 0 && *list && max > 0; w->left--, max--)
            any |= run_times_of(s, *list, now);
        if (w->at == present || max == 0)
            break;
        w->left = w->n[++w->at % WHEEL];
    }
    if (w->at == present)
        w->left = w->n[present % WHEEL];
    return any;
}
