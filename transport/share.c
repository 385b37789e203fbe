/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/share.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/map.h"

/* Maps a received file: whole, since huge pages need that. */
static int map_file(const struct tarn_link *l, const char *what, int fd, uint64_t bytes, int prot,
                    struct tarn_mapping *m)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    seals = seals < 0 ? 0 : seals; /* of files that are not in memory */
    if (fstat(fd, &st) < 0)
        return tarn_fail(TARN_E_PROTOCOL, "node %s: %s: the descriptor of %s is no file: %m", l->node,
                         l->transport, what);
    /* A state directory has files, which cannot be sealed: only of who could end this process anyway. */
    bool kept = st.st_nlink > 0 && S_ISREG(st.st_mode) && !(st.st_mode & 077) &&
                (st.st_uid == geteuid() || st.st_uid == 0);
    if (!(seals & F_SEAL_SHRINK) && !kept)
        return tarn_fail(TARN_E_PROTOCOL, "node %s: %s: %s is not sealed against shrinking", l->node,
                         l->transport, what);
    if ((uint64_t)st.st_size < bytes || bytes == 0)
        return tarn_fail(TARN_E_PROTOCOL, "node %s: %s: %s has %lld bytes where %llu were announced", l->node,
                         l->transport, what, (long long)st.st_size, (unsigned long long)bytes);
    size_t align = st.st_blksize > (long)TARN_HUGE_PAGE ? (size_t)st.st_blksize : TARN_HUGE_PAGE;
    void *addr = tarn_map_aligned(fd, (size_t)st.st_size, align, prot);
    if (addr == MAP_FAILED)
        return tarn_fail(TARN_E_SYSTEM, "node %s: %s: mapping %lld bytes of %s: %m", l->node, l->transport,
                         (long long)st.st_size, what);
    *m = (struct tarn_mapping){addr, (size_t)st.st_size};
    if (madvise(addr, (size_t)st.st_size, MADV_DONTFORK))
        return tarn_fail(TARN_E_SYSTEM, "node %s: %s: cannot keep %s from child processes: %m", l->node,
                         l->transport, what);
    return 0;
}

static void unmap(struct tarn_mapping *m)
{
    if (m->addr)
        munmap(m->addr, m->bytes);
    m->addr = NULL;
}

int tarn_share_pool_map(const struct tarn_link *l, int arena_fd, const int fds[2], bool write,
                        struct tarn_share_pool *p)
{
    int rc = 0, both = PROT_READ | PROT_WRITE;
    if (arena_fd >= 0)
        rc = map_file(l, "a pool", arena_fd, p->file_offset + p->bytes, write ? both : PROT_READ, &p->arena);
    if (!rc)
        rc = map_file(l, "a pool's generations", fds[0], p->nslots * sizeof(*p->gen), PROT_READ, &p->gen_map);
    if (!rc && fds[1] >= 0)
        rc = map_file(l, "a pool's use times", fds[1], p->nslots * sizeof(*p->touch), both, &p->touch_map);
    p->gen = p->gen_map.addr;
    p->touch = p->touch_map.addr;
    return rc;
}

void tarn_share_pool_unmap(struct tarn_share_pool *p)
{
    unmap(&p->arena);
    unmap(&p->gen_map);
    unmap(&p->touch_map);
}

void tarn_share_touch(_Atomic uint32_t *touch, uint64_t tick_base_ns)
{
    uint32_t tick = tarn_tick_now(tick_base_ns);
    if (atomic_load_explicit(touch, memory_order_relaxed) != tick)
        atomic_store_explicit(touch, tick, memory_order_relaxed);
}

/* --- hazards ------------------------------------------------------------------------------------ */

int tarn_share_hazards_map(const struct tarn_link *l, int fd, struct tarn_share_hazards *h)
{
    int rc = map_file(l, "the hazard page", fd, sizeof(*h->page), PROT_READ | PROT_WRITE, &h->map);
    h->page = h->map.addr;
    return rc;
}

void tarn_share_hazards_unmap(struct tarn_share_hazards *h)
{
    for (uint32_t i = 0; h->page && i < TARN_HAZARDS; i++)
        if (atomic_load(&h->claimed[i / 64]) >> i % 64 & 1)
            atomic_store(&h->page->entry[i], 0);
    unmap(&h->map);
    h->page = NULL;
}

static void raise_used(struct tarn_hazard_page *page, uint32_t used)
{
    uint32_t seen = atomic_load(&page->used);
    while (seen < used && !atomic_compare_exchange_weak(&page->used, &seen, used))
        ;
}

/* The lowest free entry, so that the node, which looks at all that were ever used, has as few to look at as
 * there were views. */
int tarn_share_hazard_claim(const struct tarn_link *l, struct tarn_share_hazards *h,
                            const struct tarn_share_pool *p, uint32_t pool, uint32_t slot, uint64_t gen,
                            uint32_t *hazard_p)
{
    if (!h->page)
        return tarn_fail(TARN_E_NOT_REACHABLE, "node %s: %s: the session has no hazard page", l->node,
                         l->transport);
    for (uint32_t i = 0; i < TARN_HAZARDS; i++) {
        uint64_t none = 0, value = ((uint64_t)pool << 32 | slot) + 1;
        if (atomic_load_explicit(&h->page->entry[i], memory_order_relaxed) != 0)
            continue;
        raise_used(h->page, i + 1);
        if (!atomic_compare_exchange_strong(&h->page->entry[i], &none, value))
            continue;
        atomic_fetch_or(&h->claimed[i / 64], 1ull << i % 64);
        *hazard_p = i;
        if (atomic_load(&p->gen[slot]) == gen)
            return 0;
        tarn_share_hazard_drop(h, i);
        return tarn_link_stale(l, pool, slot);
    }
    return tarn_fail(TARN_E_AGAIN, "node %s: %d views are open: release some", l->node, TARN_HAZARDS);
}

void tarn_share_hazard_drop(struct tarn_share_hazards *h, uint32_t hazard)
{
    if (!h->page || hazard >= TARN_HAZARDS)
        return;
    /* In this order: once the entry is free, another thread may claim it through this link. */
    atomic_fetch_and(&h->claimed[hazard / 64], ~(1ull << hazard % 64));
    atomic_store(&h->page->entry[hazard], 0);
}

/* --- notifications ------------------------------------------------------------------------------ */

int tarn_share_notices_map(const struct tarn_link *l, int fds[2], struct tarn_share_notices *n)
{
    if (atomic_load(&n->ring))
        return 0;
    int rc = map_file(l, "the ring of notifications", fds[0], tarn_notices_bytes(TARN_NOTICES),
                      PROT_READ | PROT_WRITE, &n->map);
    if (rc)
        return rc;
    n->bell = fds[1];
    fds[1] = -1;
    atomic_store(&n->ring, n->map.addr);
    return 0;
}

void tarn_share_notices_unmap(struct tarn_share_notices *n)
{
    if (atomic_load(&n->ring))
        close(n->bell);
    unmap(&n->map);
}
