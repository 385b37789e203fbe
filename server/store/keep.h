/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state directory (--state-dir): what of a node outlives its process.
 *
 * A node that starts with the state of a process that has ended goes on as that process would after a pause
 * in which all its connections broke: same epoch, same ticks, same presence (presence.h), same files. So the
 * rules for nodes that were away (docs/consistency.md) say what it may trust, and no rule is new.
 *
 * Files
 * - lock: held (flock) while a node runs.
 * - node: what the state belongs to, with a checksum. It is made last and removed first: without it there is
 *   no state.
 * - presence: two places, used in turn, each with a checksum.
 * - N.arena, N.gen, N.touch: the memory of pool N.
 * - N.records: a record for each slot that was used (struct tarn_kept); the file's size tells how many.
 * - N.keys: keys that are too long for a record.
 * - page-...: hazard pages; the name says which process has it.
 *
 * Rules
 *  1. A record is LIVE only while the slot's gen is the record's, and only after all bytes are in place. A
 * LIVE object is what the store holds as LIVE, nothing else: it becomes LIVE before the COMMIT is answered,
 * and is no longer LIVE before anything says that the copy is gone.
 *  2. Before a record says LIVE, the object that it replaces here does not any more.
 *  3. A publish is under way only while the record says PUBLISHING. Redis may have run it, and then does not
 * name what the key had here before. So no object is taken over whose key is PUBLISHING elsewhere in the
 * node.
 *  4. A record changes its state in one store of eight bytes, and its contents only while it is void. So a
 * process that is killed leaves the old state, the new one, or none.
 *  5. Of slots that hold no LIVE object the gen changes at the start, so what was told of them is void. Gens
 * count on in their file: none comes twice.
 *  6. An extent that was not free is not free after the start: what was RESERVED until all processes have
 * exited that had pools mapped, and what is not RESERVED until no hazard page names the slot. The pages are
 * files, so the node reads those of processes that live on.
 *  7. A state of another boot, node, namespace, Redis, set of pools or format is not looked at. Then the
 * epoch is a new one, and so are the files: who has mapped the old ones sees no change.
 *  8. Space in files is allocated before it is mapped: a full file system is an error, not a SIGBUS.
 */
#ifndef TARN_SERVER_KEEP_H
#define TARN_SERVER_KEEP_H

#include <sys/types.h>

#include "base/log.h"
#include "metadata/directory.h"
#include "transport/node_half.h"

struct tarn_keep;

/* What the state belongs to. All of it must be the same at the next start. */
struct tarn_keep_pool {
    char name[TARN_POOL_NAME_MAX + 1];
    uint64_t bytes, align;
    uint32_t slots, unused;
};
struct tarn_keep_owner {
    char id[TARN_NODE_ID_MAX + 1], ns[64];
    uint64_t redis; /* a hash of its address */
    uint32_t npools, heartbeat_ms;
    struct tarn_keep_pool pools[TARN_POOLS_MAX];
};

/*
 * Opens the directory, makes it where it is missing, and takes its lock. BUSY: another node runs with it;
 * CONFIG, SYSTEM: it cannot be used. A state that is not the owner's is removed, with a line in the log.
 * *epoch_p and *tick_base_ns_p: those of a new state; out, those of the state that is there.
 */
int tarn_keep_open(const char *dir, const struct tarn_keep_owner *owner, const struct tarn_logger *log,
                   uint64_t *epoch_p, uint64_t *tick_base_ns_p, struct tarn_keep **k_p);
/* Unlocks. Pools must be closed. NULL is allowed. */
void tarn_keep_close(struct tarn_keep *k);
/* There was a state, which is taken over. */
bool tarn_keep_found(const struct tarn_keep *k);
/* All files are there: from now on the next start finds them. */
int tarn_keep_begin(struct tarn_keep *k);

/* The last presence that was kept whole; false: none. `bytes` at most TARN_KEEP_PRESENCE. */
#define TARN_KEEP_PRESENCE 480
bool tarn_keep_presence(const struct tarn_keep *k, void *out, size_t bytes);
void tarn_keep_set_presence(struct tarn_keep *k, const void *presence, size_t bytes);

/* --- pools -------------------------------------------------------------------------------------- */

/* Opens the files of pool `index`, with all their space, and maps them into *m, as tarn_pool_create(). */
int tarn_keep_pool_open(struct tarn_keep *k, uint32_t index, const char *name, struct tarn_pool_memory *m);

enum tarn_kept_state {
    TARN_KEPT_VOID,
    TARN_KEPT_RESERVED,
    TARN_KEPT_PUBLISHING,
    TARN_KEPT_LIVE,
    TARN_KEPT_LIMBO
};

#define TARN_KEPT_KEY 112
struct tarn_kept {
    _Atomic uint64_t check; /* of what follows and the key, plus the state; 0: void */
    uint64_t gen, offset, version, born_ms;
    uint64_t expires_ns, pinned_until_ns;
    uint32_t ttl_ms;
    uint16_t key_bytes, unused;
    struct tarn_tensor tensor;
    char key[TARN_KEPT_KEY]; /* a longer one is in N.keys */
};

/* Slots below have a record. */
uint32_t tarn_keep_slots(const struct tarn_keep *k, uint32_t pool);
/* Makes room for a slot's record, and for its key. NO_MEMORY: the file system is full. */
int tarn_keep_room(struct tarn_keep *k, uint32_t pool, uint32_t slot, size_t key_bytes);
/* Writes a record. There must be room. `r` without check and key. */
void tarn_keep_write(struct tarn_keep *k, uint32_t pool, uint32_t slot, const struct tarn_kept *r,
                     const void *key, enum tarn_kept_state state);
/* Changes the state of a whole record. VOID: empties it. */
void tarn_keep_change(struct tarn_keep *k, uint32_t pool, uint32_t slot, enum tarn_kept_state state);
/* The record of a slot, and its key; VOID: none, or it is not whole. */
enum tarn_kept_state tarn_keep_read(const struct tarn_keep *k, uint32_t pool, uint32_t slot,
                                    const struct tarn_kept **r_p, const char **key_p);

/* --- processes that have pools mapped -------------------------------------------------------------- */

/* A file for a hazard page of that process. */
int tarn_keep_page_new(struct tarn_keep *k, pid_t pid, size_t bytes, int *fd_p);
/* The session of that page has ended. The file goes if nothing can be mapped any more: its process has said
 * so, or has exited. */
void tarn_keep_page_end(struct tarn_keep *k, int fd, bool unmapped);
/* Pages of processes that were there before the start and live on; maps each and calls fn. Removes the
 * others. */
int tarn_keep_pages(struct tarn_keep *k, size_t bytes, void (*fn)(void *arg, void *page), void *arg);
/* Calls fn for each of those whose process has exited, then unmaps and removes it. Returns how many are left.
 */
uint32_t tarn_keep_pages_tick(struct tarn_keep *k, void (*fn)(void *arg, void *page), void *arg);

#endif
