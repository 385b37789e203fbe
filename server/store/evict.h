/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction policies: which object of a pool goes next.
 *
 * A policy knows slots, nothing else. It is told which slots hold evictable objects, and names victims;
 * the store evicts. A policy instance belongs to one pool and one thread (control).
 */
#ifndef TARN_SERVER_EVICT_H
#define TARN_SERVER_EVICT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tarn_evict;

/* What a policy may look at. */
struct tarn_evict_view {
    const _Atomic uint32_t *touch; /* time of last use in ticks; clients write it, so it may be nonsense */
    uint32_t nslots;
    /* Whether evicting the slot now would give its room back (nobody is reading it). Cheap. */
    bool (*idle)(void *arg, uint32_t slot);
    void *arg;
};

struct tarn_evict_ops {
    const char *name;
    /* `seed` is of the policy's own random source. NO_MEMORY. */
    int (*create)(const struct tarn_evict_view *view, uint64_t seed, struct tarn_evict **e_p);
    void (*destroy)(struct tarn_evict *e);
    /* The slot holds an object that may be evicted from now on; no longer. Paired, never fail. */
    void (*added)(struct tarn_evict *e, uint32_t slot);
    void (*removed)(struct tarn_evict *e, uint32_t slot);
    /*
     * An idle slot that was added, the best to evict at tick `now`; UINT32_MAX when there is none. The
     * store either evicts it (removed() follows) or could not use it: asked again at once, the policy
     * names another one if it can.
     */
    uint32_t (*victim)(struct tarn_evict *e, uint32_t now);
};

/* Least recently used by touch, sampled (evict_lru.c). */
extern const struct tarn_evict_ops tarn_evict_lru;

/* Ticks since a slot was used. A client's clock may run a little ahead of the node's: that is 0. */
static inline uint32_t tarn_evict_age(const _Atomic uint32_t *touch, uint32_t slot, uint32_t now)
{
    int32_t age = (int32_t)(now - atomic_load_explicit(&touch[slot], memory_order_relaxed));
    return age > 0 ? (uint32_t)age : 0;
}

#endif
