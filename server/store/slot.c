/* SPDX-License-Identifier: Apache-2.0 */
/* Looking up slots of a pool, and the store's clock of uses. */
#include <string.h>

#include "base/clock.h"
#include "server/store/store_impl.h"

uint32_t tarn_store_now(const struct tarn_store *s)
{
    return (uint32_t)((tarn_now_ns() - s->tick_base_ns) / TARN_TICK_NS);
}

uint64_t tarn_store_tick_base_ns(const struct tarn_store *s)
{
    return s->tick_base_ns;
}

struct object *store_object_at(const struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen)
{
    if (pool >= s->npools || slot >= s->pools[pool].used_slots ||
        atomic_load_explicit(store_gen(s, pool, slot), memory_order_relaxed) != gen)
        return NULL;
    return s->pools[pool].slots[slot].object;
}

void store_touch(struct tarn_store *s, const struct object *o)
{
    atomic_store_explicit(&s->memory[o->pool].touch[o->slot], tarn_store_now(s), memory_order_relaxed);
}

void store_locate(const struct tarn_store *s, const struct object *o, struct tarn_location *l)
{
    *l = (struct tarn_location){
        .offset = atomic_load_explicit(&s->pools[o->pool].slots[o->slot].offset, memory_order_relaxed),
        .gen = atomic_load_explicit(store_gen(s, o->pool, o->slot), memory_order_relaxed),
        .slot = o->slot,
    };
    memcpy(l->node, s->node, sizeof(l->node));
    memcpy(l->pool, s->pools[o->pool].name, sizeof(l->pool));
}

void store_record(const struct tarn_store *s, const struct object *o, struct tarn_record *r)
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

bool store_has_slot(const struct pool *p)
{
    return p->free_slots || p->used_slots < p->memory->nslots;
}
