/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which object of a pool is evicted next: least recently used, sampled.
 *
 * It knows slots, nothing else. It is told which slots hold evictable objects, and names victims; the store
 * evicts. An instance belongs to one pool and one thread (control).
 */
#ifndef TARN_SERVER_EVICT_H
#define TARN_SERVER_EVICT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tarn_evict;

/* What it may look at. */
struct tarn_evict_view {
    const _Atomic uint32_t *touch; /* time of last use in ticks; clients write it, so it may be nonsense */
    uint32_t nslots;
    /* Whether evicting the slot now would give its room back (nobody is reading it). Cheap. */
    bool (*idle)(void *arg, uint32_t slot);
    void *arg;
};

/* `seed` is of its own random source. NO_MEMORY. */
int tarn_evict_new(const struct tarn_evict_view *view, uint64_t seed, struct tarn_evict **e_p);
/* NULL is allowed. */
void tarn_evict_free(struct tarn_evict *e);
/* The slot holds an object that may be evicted from now on; no longer. Paired, never fail. */
void tarn_evict_add(struct tarn_evict *e, uint32_t slot);
void tarn_evict_remove(struct tarn_evict *e, uint32_t slot);
/*
 * An idle slot that was added, the best to evict at tick `now`; UINT32_MAX when there is none. The store
 * either evicts it (tarn_evict_remove() follows) or could not use it: asked again at once, another one if
 * there is one.
 */
uint32_t tarn_evict_victim(struct tarn_evict *e, uint32_t now);

/* Ticks since a slot was used. A client's clock may run a little ahead of the node's: that is 0. */
static inline uint32_t tarn_evict_age(const _Atomic uint32_t *touch, uint32_t slot, uint32_t now)
{
    int32_t age = (int32_t)(now - atomic_load_explicit(&touch[slot], memory_order_relaxed));
    return age > 0 ? (uint32_t)age : 0;
}

#endif
