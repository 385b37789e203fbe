/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the store, for its own files only:
 *   store.c   pools, objects
 *   slot.c    what is at a slot
 *   reserve.c putting: reservations, until they are objects
 *   index.c   objects by key
 *   reclaim.c how slots and extents come free: limbo, hazards, expiry
 *   room.c    eviction
 *   guard.c   what transports call from their threads
 *   kept.c    what outlives the process
 *
 * Threads: guard functions use the atomic members of struct slot and the shared gen and touch arrays.
 * Everything else belongs to the control thread. There is no lock.
 */
#ifndef TARN_SERVER_STORE_IMPL_H
#define TARN_SERVER_STORE_IMPL_H

#include <stdatomic.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>
#include <utlist.h>

#include "server/store/alloc.h"
#include "server/store/evict.h"
#include "server/store/store.h"

#define NO_SLOT UINT32_MAX
#define FOREVER UINT64_MAX

enum object_state { OBJECT_RESERVED, OBJECT_PUBLISHING, OBJECT_LIVE, OBJECT_LIMBO };

struct list_link {
    struct object *prev, *next;
};

struct reserver {
    uint64_t id;
    uint64_t reserved;   /* bytes reserved and not committed */
    struct object *list; /* its reservations; never empty */
    UT_hash_handle hh;
};

/* What a slot that is not free holds. */
struct object {
    struct object *chain;    /* LIVE: in the key index */
    struct list_link listed; /* RESERVED: of its reserver; LIMBO: in its pool's limbo */
    struct list_link timed;  /* with is_timed: in a list of the wheel */
    union {
        struct reserver *reserver; /* RESERVED */
        uint64_t committer;        /* LIVE: the session that may begin its commit once more; 0: none */
    };
    struct tarn_tensor tensor;
    uint64_t version, born_ms;
    uint64_t expires_ns;      /* 0: never */
    uint64_t pinned_until_ns; /* 0: not pinned */
    uint32_t ttl_ms;
    uint32_t pool, slot, handle;
    uint32_t hash;     /* LIVE: of the key */
    uint16_t timed_in; /* with is_timed: which list */
    uint16_t key_bytes;
    uint8_t state; /* enum object_state */
    bool absent, displaced, is_timed;
    bool held; /* LIMBO, taken over: a process that was there before the start may write to it */
    char key[];
};

/*
 * The node's half of a slot. object is NULL while the slot is free. offset and bytes are written only while
 * no pin can be taken (guard.c). session is 0 while nobody may write.
 */
struct slot {
    struct object *object;
    _Atomic uint64_t offset, bytes, session;
    _Atomic uint32_t readers, writers; /* pins */
    uint32_t next_free;                /* plus 1 */
    uint32_t hazard;                   /* the last hazard_reading in which a page named the slot */
};

struct pool {
    struct tarn_store *store;
    char name[TARN_POOL_NAME_MAX + 1];
    uint32_t index;
    struct tarn_pool_memory *memory;
    struct tarn_alloc *alloc;
    struct slot *slots;  /* only slots that were used take memory */
    uint32_t used_slots; /* slots below were used at some time */
    uint32_t free_slots; /* the slot freed last, plus 1 */
    struct tarn_evict *evict;
    struct object *limbo;
    uint64_t used; /* bytes of extents */
    uint64_t live, reserved, reserved_bytes, limbos;
    uint64_t evicted, evicted_bytes, expired, refused;
};

/* LIVE objects by key; index.c says how it grows. */
struct key_index {
    struct object **buckets;
    uint64_t room; /* buckets there may be: one a slot */
    uint64_t nbuckets, mask, n;
    uint64_t seed;
};

/*
 * LIVE objects with an expiry or a pin that ends, each in the list of the earlier time. Lists are WHEEL_NS
 * apart. A turn has WHEEL lists; objects of a later turn are skipped. The wheel never allocates.
 */
#define WHEEL 4096
#define WHEEL_NS 100000000ull
struct wheel {
    struct object *lists[WHEEL];
    uint32_t n[WHEEL]; /* members of each list */
    uint64_t at;       /* the current list: time / WHEEL_NS */
    uint32_t left;     /* members of the current list not looked at yet */
};

struct tarn_store {
    struct tarn_store_options o;
    char node[TARN_NODE_ID_MAX + 1];
    uint64_t tick_base_ns;
    struct pool pools[TARN_POOLS_MAX];
    struct tarn_pool_memory memory[TARN_POOLS_MAX];
    uint32_t npools, cpu_pools;
    uint64_t promised_bytes; /* of pools whose pages are allocated when touched */
    struct key_index index;
    struct reserver *reservers; /* those with reservations */
    const struct tarn_hazard_page **pages;
    uint32_t npages, pages_room;
    uint32_t hazard_reading; /* number of the last reading of all pages; never 0 */
    struct wheel wheel;
    bool held; /* some objects in limbo are */
};

static inline _Atomic uint64_t *store_gen(const struct tarn_store *s, uint32_t pool, uint32_t slot)
{
    return &s->memory[pool].gen[slot];
}

/* --- slot.c ------------------------------------------------------------------------------------- */

/* What is at a slot under a generation; NULL: nothing. */
struct object *store_object_at(const struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen);
void store_locate(const struct tarn_store *s, const struct object *o, struct tarn_location *l);
void store_record(const struct tarn_store *s, const struct object *o, struct tarn_record *r);
/* Sets the time of last use to now. */
void store_touch(struct tarn_store *s, const struct object *o);
/* A slot is free without eviction. */
bool store_has_slot(const struct pool *p);

/* --- index.c ------------------------------------------------------------------------------------ */

/* Room for so many objects. The index must be empty. NO_MEMORY. */
int index_make_room(struct key_index *x, uint64_t objects);
void index_free(struct key_index *x);
struct object *index_find(const struct key_index *x, const void *key, size_t bytes);
/* Loads what index_find() will read into the processor's cache: first, of several keys, their buckets, then
 * (`object`) the first object of each. */
void index_prefetch(const struct key_index *x, const void *key, size_t bytes, bool object);
/* The key must not be there. */
void index_add(struct key_index *x, struct object *o);
void index_remove(struct key_index *x, struct object *o);

/* --- reclaim.c ---------------------------------------------------------------------------------- */

/* Changes the slot's gen and frees the object; from limbo later if its extent is being read or written. */
void store_reclaim(struct tarn_store *s, struct object *o);
/* Takes a LIVE object out of index, wheel and eviction, calls `gone`, and reclaims it. */
void store_remove_live(struct tarn_store *s, struct object *o, enum tarn_left why);
/* The same for an eviction, but leaves the object in limbo: many are swept together. */
void store_retire_evicted(struct tarn_store *s, struct object *o);
void store_sweep_limbo(struct tarn_store *s, struct pool *p);

/* Reads all hazard pages, for store_is_idle(). */
void store_read_hazards(struct tarn_store *s);
/* Nobody is known to read or write the slot; for struct tarn_evict_view, arg is the pool. */
bool store_is_idle(void *arg, uint32_t slot);

/* Pins a LIVE object: no eviction takes it. until_ns 0: unpins it. */
void store_set_pin(struct tarn_store *s, struct object *o, uint64_t until_ns);
/* To be called when expires_ns or pinned_until_ns has changed. */
void store_schedule(struct tarn_store *s, struct object *o);
/* Handles up to max objects that wait for a time, in about the order of time. True: a time had come. */
bool store_run_timed(struct tarn_store *s, uint64_t max);
bool store_is_expired(const struct object *o);
void store_expire(struct tarn_store *s, struct object *o);

/* --- kept.c (all do nothing without a state directory) ------------------------------------------- */

/* Before a slot is used for an object with such a key. */
int store_kept_room(const struct tarn_store *s, uint32_t pool, uint32_t slot, size_t key_bytes);
/* Before the reservation is answered. */
void store_kept_reserved(const struct tarn_store *s, const struct object *o);
/* Before the slot has that gen. */
void store_kept_publishing(const struct tarn_store *s, const struct object *o, uint64_t gen);
/* When it is LIVE, and what the key had here is not any more; or when its times have changed. */
void store_kept_live(const struct tarn_store *s, const struct object *o);
/* Before the gen changes. */
void store_kept_limbo(const struct tarn_store *s, const struct object *o);
/* Before slot and extent are free. */
void store_kept_free(const struct tarn_store *s, const struct object *o);

/* --- room.c ------------------------------------------------------------------------------------- */

/* Evicts until a hole of `bytes`, or a slot, is free. False: no eviction makes one. */
bool store_make_hole(struct tarn_store *s, struct pool *p, uint64_t bytes);
bool store_make_slot(struct tarn_store *s, struct pool *p);

#endif
