/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard: checks that transports make from any thread, without a lock.
 *
 * A reader announces its pin, then reads gen. The store changes gen, then reads the pins. Both orders are
 * sequentially consistent. So either the reader sees the new gen, or the store sees the pin and keeps the
 * extent. While a pin holds, the slot's offset and bytes do not change. A pin announced in vain (gen differs)
 * does no harm; it may keep a slot in limbo for a moment.
 *
 * Commits and writers meet in the same way over the slot's session. A writer announces itself, then checks
 * that the slot belongs to its session. A commit takes the slot from every session, then looks for writers.
 */
#include "base/error.h"
#include "server/store/store_impl.h"

/* Readers know an even gen, writers an odd one. */
static _Atomic uint32_t *pins_of(struct slot *t, uint64_t gen)
{
    return tarn_gen_readable(gen) ? &t->readers : &t->writers;
}

/* Pins the slot if it has generation gen; NULL otherwise. Never used slots have 0, which is no object's. */
static struct slot *pin(struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen)
{
    if (gen == 0 || pool >= s->npools || slot >= s->memory[pool].nslots)
        return NULL;
    struct slot *t = &s->pools[pool].slots[slot];
    atomic_fetch_add(pins_of(t, gen), 1);
    if (atomic_load(&s->memory[pool].gen[slot]) == gen)
        return t;
    atomic_fetch_sub(pins_of(t, gen), 1);
    return NULL;
}

static bool inside(struct slot *t, uint64_t offset, uint64_t bytes)
{
    uint64_t at = atomic_load(&t->offset), room = atomic_load(&t->bytes);
    return offset >= at && offset - at <= room && bytes <= room - (offset - at);
}

static int stale(uint32_t pool, uint32_t slot)
{
    return tarn_fail(TARN_E_STALE, "pool %u slot %u: no such object any more: resolve the key again", pool,
                     slot);
}

static int guard_pin_read(void *arg, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset,
                          uint64_t bytes, void **addr_p)
{
    struct tarn_store *s = arg;
    struct slot *t = tarn_gen_readable(gen) ? pin(s, pool, slot, gen) : NULL;
    if (!t)
        return stale(pool, slot);
    if (!inside(t, offset, bytes)) {
        atomic_fetch_sub(&t->readers, 1);
        return stale(pool, slot);
    }
    *addr_p = (char *)s->memory[pool].base + offset;
    return 0;
}

/*
 * An odd gen is also that of a free slot, but nobody was told it: it is the next reservation's. Should
 * somebody guess, a free slot's bytes are 0. No session has the number 0.
 */
static int guard_pin_write(void *arg, uint64_t session, uint32_t pool, uint32_t slot, uint64_t gen,
                           uint64_t offset, uint64_t bytes, void **addr_p)
{
    struct tarn_store *s = arg;
    struct slot *t = tarn_gen_readable(gen) ? NULL : pin(s, pool, slot, gen);
    if (!t)
        return stale(pool, slot);
    if (session == 0 || atomic_load(&t->session) != session || !inside(t, offset, bytes)) {
        atomic_fetch_sub(&t->writers, 1);
        return stale(pool, slot);
    }
    *addr_p = (char *)s->memory[pool].base + offset;
    return 0;
}

static void guard_unpin(void *arg, uint32_t pool, uint32_t slot, uint64_t gen)
{
    struct tarn_store *s = arg;
    atomic_fetch_sub(pins_of(&s->pools[pool].slots[slot], gen), 1);
}

static void guard_touch(void *arg, uint32_t pool, uint32_t slot)
{
    struct tarn_store *s = arg;
    uint32_t now = tarn_store_now(s);
    _Atomic uint32_t *touch = &s->memory[pool].touch[slot];
    if (atomic_load_explicit(touch, memory_order_relaxed) != now)
        atomic_store_explicit(touch, now, memory_order_relaxed);
}

struct tarn_guard tarn_store_guard(struct tarn_store *s)
{
    return (struct tarn_guard){
        .arg = s,
        .pin_read = guard_pin_read,
        .pin_write = guard_pin_write,
        .unpin = guard_unpin,
        .touch = guard_touch,
    };
}
