/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory: the client maps the pools of a node on its own host and copies.
 *
 * ATTACH hands over the files of each pool (arena, gen, touch), then the session's hazard page. The arena is
 * read-only, or read-write if the session asked to write. A link with a read-write arena is `writable` and
 * serves gets, too. gen is always read-only.
 *
 * get: compare gen[slot], copy, acquire fence, compare again. If gen is the same, nobody else was given the
 * extent while it was copied, because an extent changes hands only after its gen has changed.
 *
 * put: compare gen[slot], which is odd (our reservation), release fence, copy, release fence. Then the COMMIT
 * follows on a socket. Because of the first fence, whoever sees a byte of this put also sees that gen.
 *
 * view: publish a hazard entry, then compare gen. The node changes gen, then looks for entries. Both sides
 * are sequentially consistent, so one of the two sees the other.
 *
 * Every call completes inline and may come from any thread.
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/share.h"

enum { POOLS_MAX = 64 };

/* --- client half: mapping ----------------------------------------------------------------------- */

struct pool {
    struct tarn_mapping arena_map, gen_map, touch_map;
    uint8_t *arena;
    const _Atomic uint64_t *gen;
    _Atomic uint32_t *touch;
    uint64_t bytes;
    uint32_t nslots; /* 0: the node does not share this pool */
};

struct tarn_link {
    char node[64];
    bool writable;
    uint64_t tick_base_ns;
    struct tarn_share_hazards hazards;
    uint32_t npools; /* highest index + 1 */
    struct pool pools[POOLS_MAX];
};

static void shm_close(struct tarn_link *l)
{
    tarn_share_hazards_unmap(&l->hazards);
    for (uint32_t i = 0; i < l->npools; i++) {
        tarn_share_unmap(&l->pools[i].arena_map);
        tarn_share_unmap(&l->pools[i].gen_map);
        tarn_share_unmap(&l->pools[i].touch_map);
    }
    free(l);
}

static int map_file(const struct tarn_link *l, int fd, uint64_t bytes, int prot, const char *what,
                    struct tarn_mapping *m)
{
    struct tarn_share_name name = {"shm", l->node, what};
    return tarn_share_map(&name, fd, bytes, prot, m);
}

static int map_pool(struct tarn_link *l, struct pool *p, const int *fds, uint64_t bytes, uint32_t nslots)
{
    int flags = fcntl(fds[0], F_GETFL);
    bool write = flags >= 0 && (flags & O_ACCMODE) == O_RDWR;
    int r = map_file(l, fds[0], bytes, write ? PROT_READ | PROT_WRITE : PROT_READ, "a pool", &p->arena_map);
    if (!r)
        r = map_file(l, fds[1], nslots * sizeof(*p->gen), PROT_READ, "a pool's generations", &p->gen_map);
    if (!r)
        r = map_file(l, fds[2], nslots * sizeof(*p->touch), PROT_READ | PROT_WRITE, "a pool's use times",
                     &p->touch_map);
    if (r)
        return r;
    p->arena = p->arena_map.addr;
    p->gen = p->gen_map.addr;
    p->touch = p->touch_map.addr;
    p->bytes = bytes;
    p->nslots = nslots;
    l->writable = write;
    return 0;
}

static int malformed(const struct tarn_link *l, const char *text)
{
    return tarn_fail(TARN_E_PROTOCOL, "node %s: shm: malformed ATTACH answer \"%.100s\"", l->node, text);
}

static int map_all(struct tarn_link *l, const struct tarn_peer *peer)
{
    const char *at = peer->text;
    if (strncmp(at, "v1", 2) != 0 || (at[2] != ' ' && at[2] != '\0'))
        return tarn_fail(TARN_E_VERSION,
                         "node %s: shm: ATTACH answer \"%.20s\" where v1 was expected: "
                         "run the same version of tarn on both sides",
                         l->node, at);
    at += 2;
    uint64_t npools;
    if (!tarn_share_number(&at, 10, POOLS_MAX, &npools) || peer->nfds < npools * TARN_SHM_FDS)
        return malformed(l, peer->text);
    for (uint64_t i = 0; i < npools; i++) {
        uint64_t index, bytes, nslots;
        if (!tarn_share_number(&at, 10, POOLS_MAX - 1, &index) ||
            !tarn_share_number(&at, 10, SIZE_MAX / 2, &bytes) ||
            !tarn_share_number(&at, 10, UINT32_MAX, &nslots) || l->pools[index].nslots)
            return malformed(l, peer->text);
        if (index >= l->npools)
            l->npools = (uint32_t)index + 1;
        int r = map_pool(l, &l->pools[index], peer->fds + i * TARN_SHM_FDS, bytes, (uint32_t)nslots);
        if (r)
            return r;
    }
    if (peer->nfds == npools * TARN_SHM_FDS)
        return 0;
    struct tarn_share_name name = {"shm", l->node, "the hazard page"};
    return tarn_share_hazards_map(&name, peer->fds[npools * TARN_SHM_FDS], &l->hazards);
}

static int shm_connect(const struct tarn_peer *peer, struct tarn_link **l_p)
{
    struct tarn_link *l = calloc(1, sizeof(*l));
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: shm: out of memory", peer->node);
    snprintf(l->node, sizeof(l->node), "%s", peer->node);
    l->tick_base_ns = peer->tick_base_ns;
    int r = map_all(l, peer);
    if (r) {
        shm_close(l);
        return r;
    }
    for (uint32_t i = 0; i < peer->nfds; i++) {
        close(peer->fds[i]);
        peer->fds[i] = -1;
    }
    *l_p = l;
    return 0;
}

static bool shm_writable(const struct tarn_link *l)
{
    return l->writable;
}

/* --- client half: moving bytes ------------------------------------------------------------------ */

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif

/*
 * A get may copy from an extent that is being rewritten; the check of gen afterwards throws the result
 * away. That race is the design (a sequence lock), and the only one: ThreadSanitizer, which would see
 * it when both halves run in one process and does not know fences, is kept out of these functions.
 */
#ifdef UNDER_TSAN
__attribute__((no_sanitize("thread"))) static void copy(void *to, const void *from, size_t bytes)
{
    volatile char *t = to;
    const volatile char *f = from;
    for (size_t i = 0; i < bytes; i++)
        t[i] = f[i];
}

static void fence(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}
#else
static inline void copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static inline void fence(void)
{
    atomic_thread_fence(memory_order_acq_rel);
}
#endif

static inline void copy_run(char *piece, uint8_t *extent, uint64_t bytes, bool to_pool)
{
    if (to_pool)
        copy(extent, piece, bytes);
    else
        copy(piece, extent, bytes);
}

static void copy_pieces(const struct tarn_piece *pieces, uint32_t n, uint8_t *extent, bool to_pool)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = pieces[i].bytes, stride = tarn_piece_stride(&pieces[i]),
                 count = tarn_piece_count(&pieces[i]);
        if (stride == bytes) {
            bytes *= count;
            count = 1;
        }
        char *at = pieces[i].addr;
        for (uint64_t run = 0; bytes > 0 && run < count; run++) {
            copy_run(at + run * stride, extent, bytes, to_pool);
            extent += bytes;
        }
    }
}

static int out_of_date(const struct tarn_link *l, uint32_t pool, uint32_t slot)
{
    return tarn_fail(TARN_E_STALE, "node %s: pool %u slot %u: the object has moved or was replaced", l->node,
                     pool, slot);
}

/* The pool, when slot and range lie in it; else NULL: the descriptor was never this node's, or is garbage. */
static const struct pool *pool_at(const struct tarn_link *l, uint32_t pool, uint32_t slot, uint64_t offset,
                                  uint64_t bytes)
{
    if (pool >= l->npools)
        return NULL;
    const struct pool *p = &l->pools[pool];
    bool inside = slot < p->nslots && offset <= p->bytes && bytes <= p->bytes - offset;
    return inside ? p : NULL;
}

static void touch_slot(const struct tarn_link *l, const struct pool *p, uint32_t slot)
{
    tarn_share_touch(&p->touch[slot], l->tick_base_ns);
}

static int transfer(const struct tarn_link *l, const struct tarn_work *w, bool to_pool)
{
    const struct pool *p = pool_at(l, w->pool, w->slot, w->offset, w->bytes);
    if (!p || tarn_gen_readable(w->gen) == to_pool ||
        atomic_load_explicit(&p->gen[w->slot], memory_order_acquire) != w->gen)
        return out_of_date(l, w->pool, w->slot);
    if (to_pool)
        fence();
    copy_pieces(w->pieces, w->npieces, p->arena + w->offset, to_pool);
    fence();
    if (atomic_load_explicit(&p->gen[w->slot], memory_order_relaxed) != w->gen)
        return out_of_date(l, w->pool, w->slot);
    if (w->touch)
        touch_slot(l, p, w->slot);
    return 0;
}

static int shm_get(struct tarn_link *l, struct tarn_work *w)
{
    w->status = transfer(l, w, false);
    return 0;
}

static int shm_put(struct tarn_link *l, struct tarn_work *w)
{
    if (!l->writable)
        return tarn_fail(TARN_E_NOT_REACHABLE, "node %s: shm: mapped read-only: attach with write", l->node);
    w->status = transfer(l, w, true);
    return 0;
}

static void shm_touch(struct tarn_link *l, uint32_t pool, uint32_t slot)
{
    const struct pool *p = pool_at(l, pool, slot, 0, 0);
    if (p)
        touch_slot(l, p, slot);
}

/* --- client half: views ------------------------------------------------------------------------- */

static void shm_unview(struct tarn_link *l, uint32_t hazard)
{
    tarn_share_hazard_drop(&l->hazards, hazard);
}

static int shm_view(struct tarn_link *l, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset,
                    uint64_t bytes, const void **addr_p, uint32_t *hazard_p)
{
    const struct tarn_share_name name = {"shm", l->node, "the hazard page"};
    const struct pool *p = pool_at(l, pool, slot, offset, bytes);
    if (!p || !tarn_gen_readable(gen))
        return out_of_date(l, pool, slot);
    int rc = tarn_share_hazard_claim(&name, &l->hazards, pool, slot, hazard_p);
    if (rc)
        return rc;
    if (atomic_load(&p->gen[slot]) != gen) {
        shm_unview(l, *hazard_p);
        return out_of_date(l, pool, slot);
    }
    touch_slot(l, p, slot);
    *addr_p = p->arena + offset;
    return 0;
}

const struct tarn_transport_ops tarn_shm_ops = {
    .name = "shm",
    .caps = TARN_SHM_CAPS,
    .probe = tarn_shm_probe,
    .local_open = tarn_no_local_open,
    .local_close = tarn_no_local_close,
    .map = tarn_no_map,
    .unmap = tarn_no_map,
    .offer = tarn_no_offer,
    .link_id = tarn_no_link_id,
    .connect = shm_connect,
    .writable = shm_writable,
    .get = shm_get,
    .put = shm_put,
    .progress = tarn_no_progress,
    .wait_fd = tarn_no_wait_fd,
    .wait = tarn_no_wait,
    .touch = shm_touch,
    .view = shm_view,
    .unview = shm_unview,
    .close = shm_close,
};
