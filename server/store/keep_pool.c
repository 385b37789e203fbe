/* SPDX-License-Identifier: Apache-2.0 */
/* The pools' part of the state directory: memory and records. keep.h has the rules. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "server/store/keep_impl.h"

#define RECORDS 4096u /* allocated at once */

static int open_part(struct tarn_keep *k, uint32_t index, const char *part, uint64_t bytes, int *fd_p,
                     void **base_p)
{
    char name[32];
    snprintf(name, sizeof(name), "%u.%s", index, part);
    return keep_map(k, name, bytes, fd_p, base_p);
}

/* The file may grow up to `bytes`: mapped whole, used as far as it is allocated. */
static int open_growing(struct tarn_keep *k, uint32_t index, const char *part, uint64_t bytes, int *fd_p,
                        void **at_p)
{
    char name[32];
    snprintf(name, sizeof(name), "%u.%s", index, part);
    int rc = keep_file(k, name, 0, fd_p);
    if (rc)
        return rc;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, *fd_p, 0);
    if (at == MAP_FAILED)
        return tarn_fail(TARN_E_SYSTEM, "--state-dir %s: %s: mmap: %m", k->path, name);
    *at_p = at;
    return 0;
}

static int open_records(struct tarn_keep *k, uint32_t index, uint32_t nslots)
{
    struct kept_pool *p = &k->pools[index];
    struct stat st;
    *p = (struct kept_pool){.records_fd = -1, .keys_fd = -1, .room = nslots};
    int rc = open_growing(k, index, "records", (uint64_t)nslots * sizeof(*p->records), &p->records_fd,
                          (void **)&p->records);
    if (!rc)
        rc = open_growing(k, index, "keys", (uint64_t)nslots * TARN_KEY_MAX, &p->keys_fd, (void **)&p->keys);
    if (!rc && fstat(p->records_fd, &st))
        rc = tarn_fail(TARN_E_SYSTEM, "--state-dir %s: %m", k->path);
    if (!rc)
        p->nslots = (uint32_t)((uint64_t)st.st_size / sizeof(*p->records));
    if (!rc && p->nslots > nslots)
        p->nslots = nslots;
    return rc;
}

int tarn_keep_pool_open(struct tarn_keep *k, uint32_t index, const char *name, struct tarn_pool_memory *m)
{
    const struct tarn_keep_pool *o = &k->owner.pools[index];
    struct tarn_pool_memory made = {
        .name = name, .bytes = o->bytes, .nslots = o->slots, .memfd = -1, .gen_fd = -1, .touch_fd = -1};
    void *gen = NULL, *touch = NULL;
    int rc = open_part(k, index, "arena", o->bytes, &made.memfd, &made.base);
    if (!rc)
        rc = open_part(k, index, "gen", o->slots * sizeof(uint64_t), &made.gen_fd, &gen);
    if (!rc)
        rc = open_part(k, index, "touch", o->slots * sizeof(uint32_t), &made.touch_fd, &touch);
    if (!rc)
        rc = open_records(k, index, o->slots);
    made.gen = gen;
    made.touch = touch;
    *m = made;
    return rc;
}

void keep_pool_close(struct tarn_keep *k, uint32_t index)
{
    struct kept_pool *p = &k->pools[index];
    if (!p->room)
        return;
    if (p->records)
        munmap(p->records, (uint64_t)p->room * sizeof(*p->records));
    if (p->keys)
        munmap(p->keys, (uint64_t)p->room * TARN_KEY_MAX);
    if (p->records_fd >= 0)
        close(p->records_fd);
    if (p->keys_fd >= 0)
        close(p->keys_fd);
}

uint32_t tarn_keep_slots(const struct tarn_keep *k, uint32_t pool)
{
    return k->pools[pool].nslots;
}

int tarn_keep_room(struct tarn_keep *k, uint32_t pool, uint32_t slot, size_t key_bytes)
{
    struct kept_pool *p = &k->pools[pool];
    int rc = 0;
    if (slot >= p->nslots) {
        uint32_t n = slot / RECORDS * RECORDS + RECORDS;
        n = n < p->room ? n : p->room;
        rc = fallocate(p->records_fd, 0, 0, (off_t)n * (off_t)sizeof(*p->records));
        p->nslots = rc ? p->nslots : n;
    }
    if (!rc && key_bytes > TARN_KEPT_KEY)
        rc = fallocate(p->keys_fd, 0, (off_t)slot * TARN_KEY_MAX, TARN_KEY_MAX);
    return rc ? tarn_fail(TARN_E_NO_MEMORY,
                          "--state-dir %s: no room to note another object: %m: make room there", k->path)
              : 0;
}

static char *key_of(const struct tarn_keep *k, uint32_t pool, uint32_t slot, size_t bytes)
{
    const struct kept_pool *p = &k->pools[pool];
    return bytes > TARN_KEPT_KEY ? p->keys + (uint64_t)slot * TARN_KEY_MAX : p->records[slot].key;
}

/* The low bits are the state's, and never all 0. */
#define STATES 8u
static uint64_t check_of(const struct tarn_kept *r, const char *key, uint32_t slot)
{
    const char *from = (const char *)&r->gen;
    uint64_t body = tarn_hash(from, (size_t)(r->key - from), slot);
    return tarn_hash(key, r->key_bytes, body) & ~(uint64_t)(STATES - 1);
}

void tarn_keep_write(struct tarn_keep *k, uint32_t pool, uint32_t slot, const struct tarn_kept *r,
                     const void *key, enum tarn_kept_state state)
{
    struct tarn_kept *to = &k->pools[pool].records[slot];
    char *to_key = key_of(k, pool, slot, r->key_bytes);
    size_t skip = offsetof(struct tarn_kept, gen);
    atomic_store(&to->check, 0);
    memcpy((char *)to + skip, (const char *)r + skip, offsetof(struct tarn_kept, key) - skip);
    memcpy(to_key, key, r->key_bytes);
    atomic_store(&to->check, check_of(to, to_key, slot) | state);
}

void tarn_keep_change(struct tarn_keep *k, uint32_t pool, uint32_t slot, enum tarn_kept_state state)
{
    struct tarn_kept *r = &k->pools[pool].records[slot];
    uint64_t check = atomic_load(&r->check);
    atomic_store(&r->check,
                 state == TARN_KEPT_VOID || !check ? 0 : (check & ~(uint64_t)(STATES - 1)) | state);
}

enum tarn_kept_state tarn_keep_read(const struct tarn_keep *k, uint32_t pool, uint32_t slot,
                                    const struct tarn_kept **r_p, const char **key_p)
{
    const struct tarn_kept *r = &k->pools[pool].records[slot];
    uint64_t check = atomic_load(&r->check), state = check % STATES;
    struct stat st;
    *r_p = r;
    if (!check || state < TARN_KEPT_RESERVED || state > TARN_KEPT_LIMBO || r->key_bytes < 1 ||
        r->key_bytes > TARN_KEY_MAX)
        return TARN_KEPT_VOID;
    if (r->key_bytes > TARN_KEPT_KEY &&
        (fstat(k->pools[pool].keys_fd, &st) || st.st_size < (off_t)(slot + 1) * TARN_KEY_MAX))
        return TARN_KEPT_VOID;
    *key_p = key_of(k, pool, slot, r->key_bytes);
    return check_of(r, *key_p, slot) == (check & ~(uint64_t)(STATES - 1)) ? (enum tarn_kept_state)state
                                                                          : TARN_KEPT_VOID;
}
