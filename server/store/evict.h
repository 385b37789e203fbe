/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which object of a pool is evicted next.
 *
 * It knows slots, nothing else. It is told which slots hold evictable objects, and names victims; the store
 * evicts. An instance belongs to one pool and one thread (control). Readers tell of a use by touch[slot]
 * alone, so a use is noticed later: when the slot is looked at.
 *
 * LRU: least recently used first, to a factor of 1.5 of the age.
 *
 * ADAPTIVE: least worth first, as reuse.h learns it for classes of objects by their age. The class is how
 * often the object was used, and whether another object has continued it. A block of a prompt is worth more
 * the more turns its conversation had, so an object begins with the uses of the one that it continues; not if
 * that was used by many, as a common beginning is. The uses of an object that was evicted are remembered, and
 * its key has them again when it is put again.
 *
 * An object that others continue is not evicted before them, in either policy: they could not be used without
 * it.
 */
#ifndef TARN_SERVER_EVICT_H
#define TARN_SERVER_EVICT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum tarn_eviction { TARN_EVICT_LRU, TARN_EVICT_ADAPTIVE };

/* lru or adaptive. CONFIG. */
int tarn_eviction_parse(const char *name, enum tarn_eviction *policy_p);

struct tarn_evict;

/* What it may look at. */
struct tarn_evict_view {
    /* Time of last use in ticks. Clients write it, so it may be nonsense: what is far ahead is set to now. */
    _Atomic uint32_t *touch;
    uint32_t nslots;
    /* Whether evicting the slot now would give its room back (nobody is reading it). Cheap. */
    bool (*idle)(void *arg, uint32_t slot);
    void *arg;
};

/* NO_MEMORY. */
int tarn_evict_new(const struct tarn_evict_view *view, enum tarn_eviction policy, struct tarn_evict **e_p);
/* NULL is allowed. */
void tarn_evict_free(struct tarn_evict *e);

/* That an object is about to be continued: it is not evicted before what continues it. born 0: none is held.
 */
struct tarn_evict_hold {
    uint32_t slot, born;
};
/* Holds the object of a slot, added or only reserved. tarn_evict_let_go() or tarn_evict_reserve() ends the
 * hold. */
struct tarn_evict_hold tarn_evict_hold(struct tarn_evict *e, uint32_t slot);
void tarn_evict_let_go(struct tarn_evict *e, struct tarn_evict_hold hold, uint32_t now);
/* The slot is reserved for an object that continues the one held, if any. Not evictable until
 * tarn_evict_add(). */
void tarn_evict_reserve(struct tarn_evict *e, uint32_t slot, struct tarn_evict_hold after);
/* The same for an object that is there already and continues nothing that is there. */
void tarn_evict_continue(struct tarn_evict *e, uint32_t slot, struct tarn_evict_hold after, uint32_t now);
/* The reserved object may be evicted from now on, unless it is pinned. key: a hash of its key. */
void tarn_evict_add(struct tarn_evict *e, uint32_t slot, uint32_t key, bool pinned, uint32_t now);
void tarn_evict_pin(struct tarn_evict *e, uint32_t slot, bool pinned, uint32_t now);
/* The slot comes free, added or only reserved. evicted: for want of room. */
void tarn_evict_remove(struct tarn_evict *e, uint32_t slot, bool evicted, uint32_t now);

/* The nth (from 0) idle slot in the order of eviction at tick `now`; UINT32_MAX when there are not so many.
 */
uint32_t tarn_evict_victim(struct tarn_evict *e, uint32_t now, uint32_t nth);
/* Of two slots, the one with the smaller rank should go first. */
uint64_t tarn_evict_rank(const struct tarn_evict *e, uint32_t slot, uint32_t now);
/* To be called every 100 ms or so. */
void tarn_evict_tick(struct tarn_evict *e, uint32_t now);

#endif
