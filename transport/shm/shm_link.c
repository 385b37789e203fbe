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
 * Leases of windows: claim an entry of the hazard page, compare gen, copy, drop the entry. Whoever recalls a
 * lease changes its gen, then waits for entries. So no byte moves after a recall.
 *
 * Every call completes inline and may come from any thread.
 */
#include "transport/shm/shm.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/container.h"
#include "base/error.h"
#include <tarn/window.h>

#include "transport/answer.h"
#include "transport/share.h"

enum { POOLS_MAX = 64 };

/* --- mapping ------------------------------------------------------------------------------------ */

struct tarn_shm_link {
    struct tarn_link link;
    uint64_t tick_base_ns;
    struct tarn_share_hazards hazards;
    struct tarn_share_notices notices;
    uint32_t npools; /* highest index + 1 */
    struct tarn_share_pool pools[POOLS_MAX];
    _Atomic(struct window *) windows[TARN_WINDOWS_MAX]; /* as it was learnt last */
    struct window *learnt;                              /* all of them, until the link is closed */
};

/* A window is unmapped when another has its index and nobody copies. */
struct window {
    struct window *next;
    _Atomic uint32_t users;
    atomic_bool replaced; /* and still mapped */
    struct tarn_share_pool pool;
};

static struct tarn_shm_link *own(const struct tarn_link *l)
{
    return TARN_CONTAINER_OF(l, struct tarn_shm_link, link);
}

static void shm_close(struct tarn_link *link)
{
    struct tarn_shm_link *l = own(link);
    tarn_share_hazards_unmap(&l->hazards);
    tarn_share_notices_unmap(&l->notices);
    for (uint32_t i = 0; i < l->npools; i++)
        tarn_share_pool_unmap(&l->pools[i]);
    while (l->learnt) {
        struct window *w = l->learnt;
        l->learnt = w->next;
        tarn_share_pool_unmap(&w->pool);
        free(w);
    }
    free(l);
}

/* Whether it may write to the arena is said by the arena's descriptor. */
static int map_pool(struct tarn_shm_link *l, struct tarn_share_pool *p, const int *fds)
{
    int flags = fcntl(fds[0], F_GETFL);
    l->link.writable = flags >= 0 && (flags & O_ACCMODE) == O_RDWR;
    return tarn_share_pool_map(&l->link, fds[0], fds + 1, l->link.writable, p);
}

static int map_all(struct tarn_shm_link *l, const struct tarn_peer *peer)
{
    struct tarn_answer a;
    int rc = tarn_answer_begin(&a, &l->link, peer->text);
    if (rc)
        return rc;
    uint64_t npools = tarn_answer_number(&a, 10, POOLS_MAX);
    if (a.failed || peer->nfds < npools * TARN_SHARE_FDS)
        return tarn_answer_malformed(&a);
    for (uint64_t i = 0; !rc && i < npools; i++) {
        uint32_t index = (uint32_t)tarn_answer_number(&a, 10, POOLS_MAX - 1);
        struct tarn_share_pool *p = &l->pools[index];
        bool twice = p->nslots > 0;
        p->bytes = tarn_answer_number(&a, 10, SIZE_MAX / 2);
        p->nslots = (uint32_t)tarn_answer_number(&a, 10, UINT32_MAX);
        if (a.failed || twice)
            return tarn_answer_malformed(&a);
        if (index >= l->npools)
            l->npools = index + 1;
        rc = map_pool(l, p, peer->fds + i * TARN_SHARE_FDS);
    }
    if (rc || peer->nfds == npools * TARN_SHARE_FDS)
        return rc;
    return tarn_share_hazards_map(&l->link, peer->fds[npools * TARN_SHARE_FDS], &l->hazards);
}

static void close_fds(const struct tarn_peer *peer)
{
    for (uint32_t i = 0; i < peer->nfds; i++) {
        if (peer->fds[i] >= 0)
            close(peer->fds[i]);
        peer->fds[i] = -1;
    }
}

/* "v1 1 <window> <bytes> <slots> <offset in the file>" with the files of arena and gen, and, for writing, the
 * ring of notifications and its bell. */
static int map_window(struct tarn_shm_link *l, const struct tarn_peer *peer, struct window *w,
                      uint32_t *index_p)
{
    struct tarn_answer a;
    int rc = tarn_answer_begin(&a, &l->link, peer->text);
    if (rc)
        return rc;
    uint64_t n = tarn_answer_number(&a, 10, 1);
    *index_p = (uint32_t)tarn_answer_number(&a, 10, TARN_WINDOWS_MAX - 1);
    w->pool.bytes = tarn_answer_number(&a, 10, SIZE_MAX / 4);
    w->pool.nslots = (uint32_t)tarn_answer_number(&a, 10, UINT32_MAX);
    w->pool.file_offset = tarn_answer_number(&a, 10, SIZE_MAX / 4);
    if (a.failed || n != 1 || peer->nfds != (peer->write ? 4 : 2))
        return tarn_answer_malformed(&a);
    const int fds[2] = {peer->fds[1], -1};
    rc = peer->write ? tarn_share_notices_map(&l->link, peer->fds + 2, &l->notices) : 0;
    if (rc)
        return rc;
    return tarn_share_pool_map(&l->link, peer->fds[0], fds, peer->write, &w->pool);
}

/* Once, when the last user has left. */
static void unmap_unused(struct window *w)
{
    if (atomic_load(&w->users) == 0 && atomic_exchange(&w->replaced, false))
        tarn_share_pool_unmap(&w->pool);
}

static void window_leave(struct window *w)
{
    if (atomic_fetch_sub(&w->users, 1) == 1)
        unmap_unused(w);
}

/* The window of that index stays mapped until window_leave(). A new one is stored before its predecessor's
 * users are looked at; whoever enters counts first, then compares. NULL: there is none. */
static struct window *window_enter(struct tarn_shm_link *l, uint32_t index)
{
    struct window *w;
    while (index < TARN_WINDOWS_MAX && (w = atomic_load(&l->windows[index])) != NULL) {
        atomic_fetch_add(&w->users, 1);
        if (atomic_load(&l->windows[index]) == w)
            return w;
        window_leave(w);
    }
    return NULL;
}

static int shm_learn(struct tarn_link *link, const struct tarn_peer *peer)
{
    struct tarn_shm_link *l = own(link);
    struct window *w = calloc(1, sizeof(*w));
    uint32_t index;
    if (!w)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: shm: out of memory", link->node);
    int rc = map_window(l, peer, w, &index);
    if (rc) {
        tarn_share_pool_unmap(&w->pool);
        free(w);
        return rc;
    }
    close_fds(peer);
    w->next = l->learnt;
    l->learnt = w;
    struct window *old = atomic_exchange(&l->windows[index], w);
    if (old) {
        atomic_store(&old->replaced, true);
        unmap_unused(old);
    }
    return 0;
}

static int shm_connect(const struct tarn_peer *peer, struct tarn_link **l_p)
{
    struct tarn_shm_link *l = tarn_link_new("shm", peer, sizeof(*l));
    if (!l)
        return TARN_E_NO_MEMORY;
    l->tick_base_ns = peer->tick_base_ns;
    int r = map_all(l, peer);
    if (r) {
        shm_close(&l->link);
        return r;
    }
    close_fds(peer);
    if (peer->windows)
        l->link.writable = peer->write;
    *l_p = &l->link;
    return 0;
}

/* --- moving bytes ------------------------------------------------------------------------------- */

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

/* The pool, when slot and range lie in it; else NULL. */
static const struct tarn_share_pool *pool_at(const struct tarn_shm_link *l, uint32_t pool, uint32_t slot,
                                             uint64_t offset, uint64_t bytes)
{
    bool inside = pool < l->npools && tarn_share_has(&l->pools[pool], slot, offset, bytes);
    return inside ? &l->pools[pool] : NULL;
}

static int transfer(const struct tarn_shm_link *l, const struct tarn_work *w, bool to_pool)
{
    const struct tarn_share_pool *p = pool_at(l, w->pool, w->slot, w->offset, w->bytes);
    if (!p || tarn_gen_readable(w->gen) == to_pool ||
        atomic_load_explicit(&p->gen[w->slot], memory_order_acquire) != w->gen)
        return tarn_link_stale(&l->link, w->pool, w->slot);
    if (to_pool)
        fence();
    copy_pieces(w->pieces, w->npieces, (uint8_t *)p->arena.addr + w->offset, to_pool);
    fence();
    if (atomic_load_explicit(&p->gen[w->slot], memory_order_relaxed) != w->gen)
        return tarn_link_stale(&l->link, w->pool, w->slot);
    if (w->touch)
        tarn_share_touch(&p->touch[w->slot], l->tick_base_ns);
    return 0;
}

/* --- leases ------------------------------------------------------------------------------------- */

/* Runs and pieces, side by side. Runs lie in the window: work_window() has looked. */
static void copy_runs(const struct tarn_share_pool *p, const struct tarn_work *w, bool to_pool)
{
    uint8_t *base = (uint8_t *)p->arena.addr + p->file_offset;
    const struct tarn_runs *runs = &w->lease->runs;
    struct tarn_cursor far = tarn_runs_at(runs, w->offset), near = {0};
    for (uint64_t left = w->bytes, bytes; left > 0; left -= bytes) {
        void *at, *piece;
        bytes = tarn_cursor_next_both(&far, runs, &near, w->pieces, w->npieces, left, &at, &piece);
        copy_run(piece, base + (uintptr_t)at, bytes, to_pool);
    }
}

/* Under a mark in the hazard page: whoever recalls the lease waits for it. */
static int move_marked(struct tarn_shm_link *l, const struct tarn_share_pool *p, struct tarn_work *w,
                       bool to_pool)
{
    uint32_t mark;
    if (w->slot >= p->nslots || w->lease->runs.end > p->bytes || !tarn_gen_readable(w->gen))
        return tarn_link_stale(&l->link, w->pool, w->slot);
    int rc = tarn_share_hazard_claim(&l->link, &l->hazards, p, w->pool, w->slot, w->gen, &mark);
    if (rc)
        return rc;
    copy_runs(p, w, to_pool);
    w->untold = w->notify && tarn_notices_push(atomic_load(&l->notices.ring), l->notices.bell, w);
    tarn_share_hazard_drop(&l->hazards, mark);
    return 0;
}

static int move_leased(struct tarn_shm_link *l, struct tarn_work *w, bool to_pool)
{
    struct window *window = window_enter(l, w->pool);
    if (!window)
        return tarn_link_stale(&l->link, w->pool, w->slot);
    int rc = move_marked(l, &window->pool, w, to_pool);
    window_leave(window);
    return rc;
}

/* --- gets and puts ------------------------------------------------------------------------------ */

static int shm_get(struct tarn_link *l, struct tarn_work *w)
{
    w->status = w->lease ? move_leased(own(l), w, false) : transfer(own(l), w, false);
    return 0;
}

static int shm_put(struct tarn_link *l, struct tarn_work *w)
{
    if (!l->writable)
        return tarn_fail(TARN_E_NOT_REACHABLE, "node %s: shm: mapped read-only: attach with write", l->node);
    w->status = w->lease ? move_leased(own(l), w, true) : transfer(own(l), w, true);
    return 0;
}

static void shm_touch(struct tarn_link *l, uint32_t pool, uint32_t slot)
{
    const struct tarn_share_pool *p = pool_at(own(l), pool, slot, 0, 0);
    if (p)
        tarn_share_touch(&p->touch[slot], own(l)->tick_base_ns);
}

/* --- views -------------------------------------------------------------------------------------- */

static void shm_unview(struct tarn_link *l, uint32_t hazard)
{
    tarn_share_hazard_drop(&own(l)->hazards, hazard);
}

static int shm_view(struct tarn_link *link, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset,
                    uint64_t bytes, const void **addr_p, uint32_t *hazard_p)
{
    struct tarn_shm_link *l = own(link);
    const struct tarn_share_pool *p = pool_at(l, pool, slot, offset, bytes);
    if (!p || !tarn_gen_readable(gen))
        return tarn_link_stale(link, pool, slot);
    int rc = tarn_share_hazard_claim(link, &l->hazards, p, pool, slot, gen, hazard_p);
    if (rc)
        return rc;
    tarn_share_touch(&p->touch[slot], l->tick_base_ns);
    *addr_p = (uint8_t *)p->arena.addr + offset;
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
    .ready = tarn_no_ready,
    .offer = tarn_no_offer,
    .connect = shm_connect,
    .learn = shm_learn,
    .get = shm_get,
    .put = shm_put,
    .progress = tarn_no_progress,
    .wait_fd = tarn_no_wait_fd,
    .wait = tarn_no_wait,
    .touch = shm_touch,
    .view = shm_view,
    .unview = shm_unview,
    .address = tarn_no_address,
    .close = shm_close,
};
