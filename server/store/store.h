/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a node holds: pools, slots, the key index, reservations, and when an extent may be reused.
 *
 * The control thread calls everything here, except the guard: transports call that from their threads.
 * The store knows nothing of the directory. It reports objects that are gone to `gone`, and the caller
 * withdraws them.
 *
 * Life of a slot
 *   FREE --reserve--> RESERVED --commit--> PUBLISHING --published--> LIVE
 *   RESERVED --abort, owner gone--> (reclaim)     PUBLISHING --refused--> (reclaim)
 *   LIVE --evict, remove, replaced, expired--> (reclaim)
 *   reclaim: gen becomes odd and new. The slot is FREE once no pin and no hazard names it;
 *   until then it is LIMBO. LIMBO slots are checked when room is needed, and by tarn_store_tick().
 *
 * Why reuse is safe: a reader announces itself first (by a pin or a hazard entry) and then checks gen. The
 * store changes gen first and then looks for announcements. Both use sequentially consistent accesses, so one
 * of the two always sees the other. One-sided readers announce nothing and check gen after they have read.
 */
#ifndef TARN_SERVER_STORE_H
#define TARN_SERVER_STORE_H

#include "metadata/directory.h"
#include "server/store/evict.h"
#include "transport/node_half.h"

struct tarn_store;
struct tarn_keep;

/* Why an object left the store. */
enum tarn_left {
    TARN_LEFT_UNTOLD, /* the caller knows: `gone` is not called */
    TARN_LEFT_EVICTED,
    TARN_LEFT_EXPIRED,
    TARN_LEFT_REMOVED,
    TARN_LEFT_RELEASED,
};

struct tarn_store_options {
    uint64_t epoch;   /* its low half must not be 0: INVALID */
    const char *node; /* id, for locations */
    enum tarn_eviction eviction;
    struct tarn_keep *keep; /* the state directory (keep.h), with the pools that will be added; NULL: none */
    uint64_t tick_base_ns;  /* with `keep`: when tick 0 was */
    uint64_t session_reserved_max; /* bytes that a session with several reservations may hold; 0: no limit */
    /* An object left the store. */
    void (*gone)(void *arg, const struct tarn_key *key, const struct tarn_location *l, uint64_t bytes,
                 enum tarn_left why);
    void *arg;
};

struct tarn_pool_options {
    char name[TARN_POOL_NAME_MAX + 1];
    uint64_t bytes;
    uint64_t align;  /* of extents; 0: 64 */
    uint32_t slots;  /* objects at most; 0: bytes / 4096, at least 1024, at most 2^28 */
    bool huge;       /* MFD_HUGETLB */
    char device[48]; /* of a GPU pool: its index, or its uuid as nvidia-smi -L prints it; "": a CPU pool */
};

/* How many slots such a pool has. */
uint32_t tarn_pool_slots(const struct tarn_pool_options *o);

int tarn_store_new(const struct tarn_store_options *o, struct tarn_store **s_p);
/* Frees all memory; transports must have stopped. */
void tarn_store_free(struct tarn_store *s);

/*
 * Adds a pool: memfds for arena, gen and touch, mapped; or an arena in the memory of a GPU. Only before the
 * first reserve. Says what is free and which setting to change when memory, memlock, huge pages or /dev/shm
 * do not suffice (checked before anything can be killed for it). CONFIG, NO_MEMORY, SYSTEM; UNAVAILABLE: no
 * such GPU, or none at all.
 */
int tarn_store_add_pool(struct tarn_store *s, const struct tarn_pool_options *o);
const struct tarn_pool_memory *tarn_store_pools(const struct tarn_store *s, uint32_t *n_p);
/* Index of a pool by name, -1 when there is none. */
int tarn_store_pool_find(const struct tarn_store *s, const char *name, size_t bytes);

struct tarn_guard tarn_store_guard(struct tarn_store *s);
/* Node time in ticks. */
uint32_t tarn_store_now(const struct tarn_store *s);
uint64_t tarn_store_tick_base_ns(const struct tarn_store *s);

/* --- putting ------------------------------------------------------------------------------------ */

/* An object that another one is to continue. */
struct tarn_chain {
    bool any; /* else there is none */
    uint32_t pool, slot;
};

struct tarn_reserve {
    struct tarn_key key;
    struct tarn_tensor tensor;
    int pool;    /* index, -1: the store chooses: a GPU pool only where there is no other */
    bool absent; /* EXISTS when the key is here already */
    bool pin;
    uint64_t version;
    uint32_t ttl_ms;
    uint64_t session;
    /* The smallest of several items that found no room; 0 at first. Items of that size or more are refused
     * without a search. NULL: always search. */
    uint64_t *refused;
    /* The object that this one continues (evict.h). Afterwards this one, reserved or here already; unchanged
     * by other refusals. NULL: they have nothing to do with each other. */
    struct tarn_chain *chain;
};

/* The LIVE object of a key, or none. */
struct tarn_chain tarn_store_chain_from(const struct tarn_store *s, const struct tarn_key *key);
/* The object that was reserved under `gen` at a slot, committed or not; none if it has left. */
struct tarn_chain tarn_store_chain_at(const struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen);

struct tarn_grant {
    uint32_t pool, slot;
    uint64_t offset, gen;
};

/* tarn_store_reserve() of the key comes soon: for several keys, first call it for each without, then with
 * `object`. */
void tarn_store_prefetch(const struct tarn_store *s, const void *key, size_t bytes, bool object);
/* Reserves room, evicting inline. EXISTS, TOO_LARGE, FULL (why nothing can go), BUSY (the session's limit).
 */
int tarn_store_reserve(struct tarn_store *s, const struct tarn_reserve *r, struct tarn_grant *g);

/*
 * Begins a commit: the slot becomes PUBLISHING and its gen even. *p gets key (owned by the store until
 * commit_end), mode (ABSENT or REPLACE, as reserved), record and location to publish.
 * STALE: no such reservation of this session. BUSY: it is being written; it stays reserved.
 */
int tarn_store_commit_begin(struct tarn_store *s, uint64_t session, uint32_t pool, uint32_t slot,
                            uint64_t gen, struct tarn_publish *p);
struct tarn_committed {
    bool live;
    bool replaced; /* a LIVE object of the key is gone: another one, or the refused object itself */
    struct tarn_location old; /* replaced: where it was. The caller withdraws it; `gone` is not called */
};
/* Ends a commit. gen is the reservation's. born_ms is the published record's: the object becomes LIVE, unless
 * it was released meanwhile. 0: nothing was published; the object is reclaimed, and `gone` is not called. */
struct tarn_committed tarn_store_commit_end(struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen,
                                            uint64_t born_ms);
/* Lets the session begin the commit again. A PUBLISHING object, of which nothing was published, becomes a
 * reservation again; a LIVE one stays LIVE. session 0: the session is gone; a PUBLISHING object is reclaimed.
 */
void tarn_store_commit_again(struct tarn_store *s, uint64_t session, uint32_t pool, uint32_t slot,
                             uint64_t gen);

/* Gives a reservation back. False: the session has no such reservation. */
bool tarn_store_abort(struct tarn_store *s, uint64_t session, uint32_t pool, uint32_t slot, uint64_t gen);
/* Gives back all reservations of a session that can no longer write. Returns how many. */
uint32_t tarn_store_abort_session(struct tarn_store *s, uint64_t session);

/* --- objects ------------------------------------------------------------------------------------ */

/* The LIVE object of a key: fills record and location (any may be NULL). False when there is none. */
bool tarn_store_find(const struct tarn_store *s, const struct tarn_key *key, struct tarn_record *r,
                     struct tarn_location *l);
/* Reclaims a key's object. False when there is none. */
bool tarn_store_remove(struct tarn_store *s, const struct tarn_key *key, enum tarn_left why);
/* Reclaims the object at slot if it still has the (even) generation, and calls `gone`. The commit_end of a
 * PUBLISHING object reclaims it later and does not call `gone`. */
bool tarn_store_release(struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen);
bool tarn_store_is_publishing(const struct tarn_store *s, uint32_t pool, uint32_t slot, uint64_t gen);
/* Keeps an object from eviction. ttl_ms 0: until unpinned. Of several pins the longest counts. One unpin ends
 * all. */
bool tarn_store_pin(struct tarn_store *s, const struct tarn_key *key, uint32_t ttl_ms);
bool tarn_store_unpin(struct tarn_store *s, const struct tarn_key *key);
/* Milliseconds until the pin ends; -1: only an unpin ends it; 0: not pinned, or no such object. */
int64_t tarn_store_pinned(const struct tarn_store *s, const struct tarn_key *key);
bool tarn_store_touch(struct tarn_store *s, const struct tarn_key *key);
/* Evicts objects in the order of the policy until `bytes` more are free or none can be evicted. Returns bytes
 * freed.
 */
uint64_t tarn_store_evict(struct tarn_store *s, uint32_t pool, uint64_t bytes);

/* A LIVE object as the directory should have it. */
struct tarn_stored {
    struct tarn_record record;
    size_t key_bytes;
    char key[TARN_KEY_MAX];
};
/*
 * Lists LIVE objects for republishing, scrub and drain: copies at most `max` of them, from *cursor (0 at the
 * start); 0 only at the end. Objects may come and go between calls.
 */
size_t tarn_store_list(const struct tarn_store *s, uint64_t *cursor, struct tarn_stored *out, size_t max);

/* For the end of a node: changes every copy's generation, so that no copy can be read. Does not call `gone`.
 */
void tarn_store_retire_all(struct tarn_store *s);

/* --- hazards, housekeeping, figures ------------------------------------------------------------- */

/* Hazard pages of sessions. A page must stay mapped until it is removed. */
int tarn_store_hazard_add(struct tarn_store *s, const struct tarn_hazard_page *page);
void tarn_store_hazard_remove(struct tarn_store *s, const struct tarn_hazard_page *page);

/* With a state directory that has a state, behind the last pool: takes over what is intact. CONFIG: the state
 * contradicts itself; NO_MEMORY. */
int tarn_store_take_over(struct tarn_store *s);
/* From now on the state stays as it is: the end of sessions, at the node's own end, does not end their
 * processes. */
void tarn_store_freeze(struct tarn_store *s);
/* All processes have exited that had pools mapped before the start. */
void tarn_store_writers_gone(struct tarn_store *s);

/* Every 100 ms: limbo, expiry, ages. */
void tarn_store_tick(struct tarn_store *s);

struct tarn_pool_stats {
    uint64_t bytes, used, free, largest_hole, objects, reserved, reserved_bytes, limbo, slots;
    uint64_t room; /* the largest object that fits without an eviction */
    uint64_t evicted, evicted_bytes, expired, refused;
};
void tarn_store_stats(const struct tarn_store *s, uint32_t pool, struct tarn_pool_stats *out);
uint64_t tarn_store_session_reserved(const struct tarn_store *s, uint64_t session);

#endif
