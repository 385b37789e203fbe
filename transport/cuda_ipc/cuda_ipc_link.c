/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA IPC: the client opens GPU pools of nodes on its own host and lets a GPU copy. It also moves the
 * client's GPU memory to and from CPU pools, which it maps like shm and makes accessible to its GPUs. Host
 * memory goes to and from CPU pools by shm, which has precedence.
 *
 *   get   gen[slot] == gen? copy; after the copy's mark: gen[slot] == gen still? Then the extent had no other
 *         owner during the copy.
 *   put   the same with the reservation's odd gen; COMMIT follows on a socket after the mark.
 *
 * Leases of windows: claim an entry of the hazard page, compare gen, copy; drop the entry after the copy's
 * mark. Whoever recalls a lease changes its gen, then waits for entries. So no byte moves after a recall, and
 * nobody looks at gen again. A put's notification is pushed before the entry is dropped. Windows of one
 * allocation share its handle, which is opened once. A replaced window's allocation is given back when no
 * work is under way.
 *
 * Which GPU copies: the one that owns the pieces; for host memory, the pool's. The copying GPU opens a pool
 * of another GPU, so the bytes pass directly between the two (NVLink, PCIe). If they cannot access each
 * other, both copy through pinned host memory. GPUs are identified by uuid. If the pool's GPU is not visible
 * to this process, works end with NOT_REACHABLE and the next transport is tried.
 *
 * get() and put() queue works; works of a call are carried out together (cuda_ipc_lane.h). Costly objects,
 * handles and mappings, belong to the client, not to a link (cuda_ipc_pool.h). The first use of a GPU or pool
 * takes long: contexts, handles, registering an arena. The client's worker does it; until then get() and
 * put() return AGAIN.
 *
 * CUDA is not used before the first link, because starting it takes a quarter of a second, and afterwards
 * children by fork() cannot use CUDA. Clients with only host memory and CPU pools make no such link.
 *
 * If CUDA has failed permanently in a process, it gets no more links of this transport. The process's
 * running copies end.
 */
#include "transport/cuda_ipc/cuda_ipc.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "transport/answer.h"
#include "transport/cuda/cuda_text.h"
#include "transport/cuda_ipc/cuda_ipc_lane.h"
#include "transport/cuda_ipc/cuda_ipc_link.h"
#include "transport/cuda_ipc/cuda_ipc_pool.h"
#include "transport/seen.h"

#define SPIN_NS (3 * TARN_NS_PER_MS)
#define POLITE_NS (100 * 1000)
#define NAP_NS (20 * 1000)

/* --- connecting --------------------------------------------------------------------------------- */

static bool parse_handle(struct tarn_answer *a, struct tarn_ipc_offer *of)
{
    size_t n;
    const char *word = tarn_answer_word(a, &n);
    if (!tarn_cuda_uuid_parse(word, n, of->uuid))
        return false;
    word = tarn_answer_word(a, &n);
    return tarn_cuda_handle_parse(word, n, of->handle);
}

static bool parse_pool(struct tarn_answer *a, struct tarn_ipc_offer *of)
{
    size_t n;
    of->index = (uint32_t)tarn_answer_number(a, 10, TARN_IPC_POOLS - 1);
    of->bytes = tarn_answer_number(a, 10, SIZE_MAX / 2);
    of->nslots = (uint32_t)tarn_answer_number(a, 10, UINT32_MAX);
    const char *word = tarn_answer_word(a, &n);
    if (a->failed || of->nslots == 0 || n != 3)
        return false;
    of->kind = memcmp(word, "gpu", 3) ? TARN_POOL_CPU : TARN_POOL_GPU;
    if (of->kind == TARN_POOL_CPU)
        return memcmp(word, "cpu", 3) == 0;
    return parse_handle(a, of);
}

static int take_pool(struct tarn_ipc_link *l, const struct tarn_peer *peer, struct tarn_answer *a,
                     uint64_t epoch, uint32_t *nfds)
{
    struct tarn_ipc_offer of = {.epoch = epoch, .writable = peer->write};
    if (!parse_pool(a, &of) || l->pools[of.index])
        return tarn_answer_malformed(a);
    of.writable |= of.kind == TARN_POOL_GPU; /* a handle always permits writes */
    uint32_t fds = of.kind == TARN_POOL_CPU ? TARN_SHARE_FDS : TARN_SHARE_FDS - 1;
    if (peer->nfds - *nfds < fds)
        return tarn_answer_malformed(a);
    *nfds += fds;
    return tarn_ipc_pool_take(l->local, &l->link, &of, peer->fds + *nfds - fds, &l->pools[of.index]);
}

static int take_pools(struct tarn_ipc_link *l, const struct tarn_peer *peer)
{
    struct tarn_answer a;
    uint32_t nfds = 0;
    int rc = tarn_answer_begin(&a, &l->link, peer->text);
    if (rc)
        return rc;
    uint64_t epoch = tarn_answer_number(&a, 16, UINT64_MAX),
             npools = tarn_answer_number(&a, 10, TARN_IPC_POOLS);
    if (a.failed)
        return tarn_answer_malformed(&a);
    l->epoch = epoch;
    for (uint64_t i = 0; !rc && i < npools; i++)
        rc = take_pool(l, peer, &a, epoch, &nfds);
    if (rc || nfds == peer->nfds)
        return rc;
    return tarn_share_hazards_map(&l->link, peer->fds[nfds], &l->hazards);
}

/* Gives back what replaced windows have left. Nothing is under way. */
static void give_left(struct tarn_ipc_link *l)
{
    struct tarn_ipc_left *left;
    if (l->left)
        l->last.pool = NULL;
    while ((left = l->left) != NULL) {
        l->left = left->next;
        tarn_ipc_pool_give(l->local, left->pool);
        free(left);
    }
}

static void link_free(struct tarn_ipc_link *l)
{
    tarn_ipc_leave(l->local, l->opening);
    tarn_share_hazards_unmap(&l->hazards);
    tarn_share_notices_unmap(&l->notices);
    give_left(l);
    for (int i = 0; i < TARN_WINDOWS_MAX; i++)
        if (l->windows[i].pool)
            tarn_ipc_pool_give(l->local, l->windows[i].pool);
    for (int i = 0; i < TARN_IPC_POOLS; i++)
        if (l->pools[i])
            tarn_ipc_pool_give(l->local, l->pools[i]);
    free(l);
}

/* See cuda_ipc_node.c. The files: gen; for writing the ring of notifications and its bell, too. */
static int take_window(struct tarn_ipc_link *l, const struct tarn_peer *peer, struct tarn_ipc_window *w,
                       uint32_t *index_p)
{
    struct tarn_ipc_offer of = {.kind = TARN_POOL_GPU, .writable = true};
    struct tarn_answer a;
    size_t n;
    int rc = tarn_answer_begin(&a, &l->link, peer->text);
    if (rc)
        return rc;
    uint64_t one = tarn_answer_number(&a, 10, 1);
    *index_p = (uint32_t)tarn_answer_number(&a, 10, TARN_WINDOWS_MAX - 1);
    w->bytes = tarn_answer_number(&a, 10, SIZE_MAX / 4);
    of.nslots = (uint32_t)tarn_answer_number(&a, 10, UINT32_MAX);
    const char *word = tarn_answer_word(&a, &n);
    if (a.failed || one != 1 || n != 3 || memcmp(word, "gpu", 3) || !parse_handle(&a, &of))
        return tarn_answer_malformed(&a);
    of.allocation = tarn_answer_number(&a, 16, UINT64_MAX);
    of.process = tarn_answer_number(&a, 16, UINT64_MAX);
    of.begin = (uintptr_t)tarn_answer_number(&a, 16, UINTPTR_MAX);
    w->offset = tarn_answer_number(&a, 10, SIZE_MAX / 4);
    if (a.failed || !of.begin || peer->nfds != (peer->write ? 3 : 1))
        return tarn_answer_malformed(&a);
    of.epoch = l->epoch;
    const int fds[2] = {peer->fds[0], -1};
    rc = peer->write ? tarn_share_notices_map(&l->link, peer->fds + 1, &l->notices) : 0;
    return rc ? rc : tarn_ipc_pool_take(l->local, &l->link, &of, fds, &w->pool);
}

static int cuda_learn(struct tarn_link *link, const struct tarn_peer *peer)
{
    struct tarn_ipc_link *l = tarn_ipc_link(link);
    struct tarn_ipc_left *left = malloc(sizeof(*left));
    struct tarn_ipc_window w = {.pool = NULL};
    uint32_t index;
    if (!left)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: cuda_ipc: out of memory", l->link.node);
    int rc = take_window(l, peer, &w, &index);
    if (rc || !l->windows[index].pool) {
        free(left);
    } else {
        *left = (struct tarn_ipc_left){l->left, l->windows[index].pool};
        l->left = left;
    }
    if (!rc)
        l->windows[index] = w;
    return rc;
}

static struct tarn_ipc_link *link_new(const struct tarn_peer *peer)
{
    struct tarn_ipc_link *l = tarn_link_new("cuda_ipc", peer, sizeof(*l));
    if (!l)
        return NULL;
    l->local = tarn_ipc_local(peer->local);
    l->tick_base_ns = peer->tick_base_ns;
    return l;
}

/* Waits until it is open or has failed. AGAIN: not open by until_ns (0: now). */
static int have_opened(struct tarn_ipc_link *l, const struct tarn_ipc_want *want, uint64_t until_ns)
{
    if (l->opening && !tarn_ipc_asked_for(l->opening, want)) {
        tarn_ipc_leave(l->local, l->opening);
        l->opening = NULL;
    }
    int rc = l->opening ? 0 : tarn_ipc_ask(l->local, want, &l->opening);
    if (!rc)
        rc = tarn_ipc_opened(l->local, l->opening, until_ns);
    if (rc != TARN_E_AGAIN) {
        tarn_ipc_leave(l->local, l->opening);
        l->opening = NULL;
    }
    return rc;
}

/* Starting the driver can take seconds. */
static int start_driver(struct tarn_ipc_link *l, uint64_t deadline_ns)
{
    const struct tarn_ipc_want driver = {TARN_IPC_DRIVER, NULL, -1};
    if (atomic_load(&l->local->driver))
        return 0;
    int rc = have_opened(l, &driver, tarn_slice_end(deadline_ns));
    return rc == TARN_E_AGAIN ? TARN_INPROGRESS : rc;
}

static int cuda_connect(const struct tarn_peer *peer, struct tarn_link **l_p)
{
    const struct tarn_ipc_local *local = tarn_ipc_local(peer->local);
    struct tarn_ipc_link *l = *l_p ? tarn_ipc_link(*l_p) : NULL;
    *l_p = NULL;
    if (atomic_load(&local->lost)) {
        if (l)
            link_free(l);
        return tarn_fail(TARN_E_UNAVAILABLE, "node %s: cuda_ipc: %s", peer->node, local->why.text);
    }
    if (!l && !(l = link_new(peer)))
        return TARN_E_NO_MEMORY;
    int rc = start_driver(l, peer->deadline_ns);
    if (!rc)
        rc = take_pools(l, peer);
    if (rc && rc != TARN_INPROGRESS)
        link_free(l);
    else
        *l_p = &l->link;
    return rc;
}

/* --- works -------------------------------------------------------------------------------------- */

static bool has_gen(const struct tarn_ipc_pool *p, const struct tarn_work *w)
{
    return atomic_load_explicit(&p->share.gen[w->slot], memory_order_acquire) == w->gen;
}

/* No copy of the work is under way any more. */
static void end_leased(struct tarn_ipc_link *l, struct tarn_work *w, int status)
{
    if (!status && w->notify)
        w->untold = tarn_notices_push(atomic_load(&l->notices.ring), l->notices.bell, w);
    tarn_share_hazard_drop(&l->hazards, tarn_ipc_course(w)->mark);
    w->status = status;
    w->why = status && status != TARN_E_CANCELED ? l->broken.text : NULL;
    w->done(w);
}

/* Ends a work whose bytes have moved or will not. */
static void ended(void *arg, struct tarn_work *w, int status)
{
    struct tarn_ipc_link *l = arg;
    if (w->lease) {
        end_leased(l, w, status);
        return;
    }
    const struct tarn_ipc_pool *p = l->pools[w->pool];
    atomic_thread_fence(memory_order_acquire);
    w->status = status || has_gen(p, w) ? status : TARN_E_STALE;
    bool checked = w->seen && (status == TARN_E_INVALID || status == TARN_E_SIZE);
    w->why = status && status != TARN_E_CANCELED && !checked ? l->broken.text : NULL;
    if (!w->status && w->touch)
        tarn_share_touch(&p->share.touch[w->slot], l->tick_base_ns);
    w->done(w);
}

/* Is one of the pieces in memory that GPUs cannot access? INVALID: a piece is in GPU memory although the
 * caller said it is the CPU's. */
static int is_pageable(const struct tarn_work *w, bool *pageable_p)
{
    struct tarn_cuda_memory m = {.begin = 1, .end = 0};
    *pageable_p = false;
    for (const struct tarn_piece *p = w->pieces; p < w->pieces + w->npieces; p++) {
        uintptr_t at = (uintptr_t)p->addr, end = at + tarn_piece_span(p);
        if (p->bytes == 0)
            continue;
        if (at < m.begin || end > m.end)
            tarn_cuda_memory_of(p->addr, &m);
        if (m.kind == TARN_CUDA_DEVICE)
            return tarn_fail(
                TARN_E_INVALID,
                "piece at %p: is memory of GPU %d, where other pieces of the item are the host's: make "
                "it an item for each",
                p->addr, m.device);
        *pageable_p |= m.kind == TARN_CUDA_HOST || end > m.end;
    }
    return 0;
}

/* How a work is carried out. */
struct way {
    int device; /* this process's ordinal of the copying GPU */
    enum tarn_ipc_way way;
    uint8_t *base; /* the pool's address for that GPU */
};

/* Chooses the GPU and how it accesses the work's memory. AGAIN: *want must be opened first. */
static int choose(struct tarn_ipc_link *l, struct tarn_ipc_pool *p, struct tarn_work *w, struct way *way,
                  struct tarn_ipc_want *want)
{
    bool pageable = false, far = false;
    int gpu = (int)w->gpu - 1, rc = w->gpu ? 0 : is_pageable(w, &pageable);
    if (!rc && w->gpu) {
        *want = (struct tarn_ipc_want){TARN_IPC_PEER, p, gpu};
        rc = tarn_ipc_pool_is_far(l->local, p, gpu, &far);
    }
    if (!rc && far)
        rc = w->layout ? TARN_E_UNSUPPORTED : w->seen ? tarn_work_look(w) : 0;
    way->way = far ? TARN_IPC_FAR : pageable ? TARN_IPC_STAGED : TARN_IPC_DIRECT;
    way->device = w->gpu && !far ? gpu : p->device < 0 ? 0 : p->device;
    return rc;
}

/* Logs the choice for debugging. */
static void tell(const struct tarn_ipc_link *l, const struct tarn_ipc_pool *p, const struct tarn_work *w,
                 bool put, int device, enum tarn_ipc_way way)
{
    const char *copy = way == TARN_IPC_FAR          ? "through the host, without peer access"
                       : way == TARN_IPC_STAGED     ? "DMA by way of pinned memory"
                       : !w->gpu || p->device == -1 ? "DMA"
                       : p->device == device        ? "within the GPU"
                                                    : "peer access";
    tarn_log(l->link.log, TARN_LOG_DEBUG, "cuda_ipc",
             "msg=\"%s\" copy=\"%s\" node=%s pool=%u slot=%u bytes=%llu pieces=%u device=%d memory=%s%d",
             put ? "put" : "get", copy, l->link.node, w->pool, w->slot, (unsigned long long)w->bytes,
             w->npieces, device, w->gpu ? "gpu" : "host", w->gpu ? (int)w->gpu - 1 : 0);
}

static int lane_for(struct tarn_ipc_link *l, int device, struct tarn_ipc_want *want)
{
    if (l->lanes[device])
        return 0;
    struct tarn_cuda_queue *q = tarn_ipc_queue_take(l->local, device);
    if (!q) {
        *want = (struct tarn_ipc_want){TARN_IPC_QUEUE, NULL, device};
        return TARN_E_AGAIN;
    }
    int rc = tarn_ipc_lane_open(l->local, device, q, ended, l, &l->lanes[device]);
    if (rc)
        tarn_ipc_queue_give(l->local, device, q);
    tarn_log(l->link.log, TARN_LOG_DEBUG, "cuda_ipc", "msg=\"copies by a GPU\" node=%s device=%d status=%d",
             l->link.node, device, rc);
    return rc;
}

/* CUDA has failed permanently: logged once for each client. */
static void lose(struct tarn_ipc_link *l, int rc)
{
    if (tarn_ipc_lose(l->local, rc))
        tarn_log(l->link.log, TARN_LOG_WARN, "cuda_ipc", "msg=\"set aside for good\" cause=\"%s\"",
                 l->local->why.text);
}

/* What a link uses of a pool does not change. */
static bool is_like_last(const struct tarn_ipc_link *l, const struct tarn_ipc_pool *p,
                         const struct tarn_work *w)
{
    return l->last.pool == p && w->gpu > 0 && l->last.gpu == w->gpu && l->lanes[l->last.device];
}

/* AGAIN: *want must be opened first. */
static int try_way(struct tarn_ipc_link *l, struct tarn_ipc_pool *p, struct tarn_work *w, struct way *way,
                   struct tarn_ipc_want *want)
{
    if (w->gpu > TARN_IPC_DEVICES)
        return tarn_fail(TARN_E_NOT_REACHABLE, "node %s: cuda_ipc: device %d: only the first %d are used",
                         l->link.node, (int)w->gpu - 1, TARN_IPC_DEVICES);
    int rc = choose(l, p, w, way, want);
    if (!rc)
        rc = lane_for(l, way->device, want);
    if (!rc)
        rc = tarn_ipc_lane_ready(l->lanes[way->device], way->way, (int)w->gpu - 1, want);
    if (rc)
        return rc;
    way->base = tarn_ipc_pool_base(l->local, p, way->device);
    *want = (struct tarn_ipc_want){TARN_IPC_ARENA, p, way->device};
    return way->base ? 0 : TARN_E_AGAIN;
}

/* AGAIN: the worker is opening something. */
static int find_way(struct tarn_ipc_link *l, struct tarn_ipc_pool *p, struct tarn_work *w, struct way *way)
{
    struct tarn_ipc_want want;
    int rc;
    while ((rc = try_way(l, p, w, way, &want)) == TARN_E_AGAIN)
        if ((rc = have_opened(l, &want, 0)) != 0)
            break;
    if (rc == TARN_E_UNAVAILABLE)
        lose(l, rc);
    if (!rc && w->gpu && way->way == TARN_IPC_DIRECT) {
        l->last.pool = p;
        l->last.gpu = w->gpu;
        l->last.device = way->device;
        l->last.base = way->base;
    }
    return rc;
}

/* `offset`: of the work's range in the pool, or of its window. */
static int queue_work(struct tarn_ipc_link *l, struct tarn_ipc_pool *p, struct tarn_work *w, bool put,
                      uint64_t offset)
{
    struct way way = {l->last.device, TARN_IPC_DIRECT, l->last.base};
    int rc = is_like_last(l, p, w) ? 0 : find_way(l, p, w, &way);
    if (!rc && w->lease)
        rc = tarn_share_hazard_claim(&l->link, &l->hazards, &p->share, w->pool, w->slot, w->gen,
                                     &tarn_ipc_course(w)->mark);
    if (rc)
        return rc;
    if (tarn_log_wants(l->link.log, TARN_LOG_DEBUG))
        tell(l, p, w, put, way.device, way.way);
    tarn_ipc_lane_post(l->lanes[way.device], w, put, way.way, way.base + offset);
    return TARN_INPROGRESS;
}

/* A work without bytes: looks at the lease, and tells. */
static int tell_only(struct tarn_ipc_link *l, const struct tarn_ipc_window *window, struct tarn_work *w)
{
    uint32_t mark;
    int rc =
        tarn_share_hazard_claim(&l->link, &l->hazards, &window->pool->share, w->pool, w->slot, w->gen, &mark);
    if (!rc && w->notify)
        w->untold = tarn_notices_push(atomic_load(&l->notices.ring), l->notices.bell, w);
    if (!rc)
        tarn_share_hazard_drop(&l->hazards, mark);
    return rc;
}

static int post_leased(struct tarn_ipc_link *l, struct tarn_work *w, bool put)
{
    const struct tarn_ipc_window *window = w->pool < TARN_WINDOWS_MAX ? &l->windows[w->pool] : NULL;
    int rc;
    if (!window || !window->pool || w->slot >= window->pool->share.nslots ||
        w->lease->runs.end > window->bytes || !tarn_gen_readable(w->gen))
        rc = tarn_link_stale(&l->link, w->pool, w->slot);
    else
        rc = w->bytes ? queue_work(l, window->pool, w, put, window->offset) : tell_only(l, window, w);
    if (rc && rc != TARN_E_STALE)
        return rc;
    w->status = rc;
    return 0;
}

static int post(struct tarn_ipc_link *l, struct tarn_work *w, bool put)
{
    if (l->broken.code)
        return tarn_fail(l->broken.code, "node %s: cuda_ipc: the link is broken", l->link.node);
    if (w->lease)
        return post_leased(l, w, put);
    struct tarn_ipc_pool *p = tarn_ipc_link_pool(l, w->pool, w->slot, w->offset, w->bytes);
    if (!p || tarn_gen_readable(w->gen) == put || !has_gen(p, w)) {
        w->status = tarn_link_stale(&l->link, w->pool, w->slot);
        return 0;
    }
    if (w->bytes > 0)
        return queue_work(l, p, w, put, w->offset);
    w->status = 0;
    if (w->touch)
        tarn_share_touch(&p->share.touch[w->slot], l->tick_base_ns);
    return 0;
}

static int cuda_get(struct tarn_link *l, struct tarn_work *w)
{
    return post(tarn_ipc_link(l), w, false);
}

static int cuda_put(struct tarn_link *l, struct tarn_work *w)
{
    if (!l->writable)
        return tarn_fail(TARN_E_NOT_REACHABLE, "node %s: cuda_ipc: attached for reading: attach with write",
                         l->node);
    return post(tarn_ipc_link(l), w, true);
}

static void cuda_touch(struct tarn_link *l, uint32_t pool, uint32_t slot)
{
    const struct tarn_ipc_pool *p = tarn_ipc_link_pool(tarn_ipc_link(l), pool, slot, 0, 0);
    if (p)
        tarn_share_touch(&p->share.touch[slot], tarn_ipc_link(l)->tick_base_ns);
}

/* --- progress ----------------------------------------------------------------------------------- */

/* Ends all works with `status`. Nothing accesses their memory any more. */
static void end_lanes(struct tarn_ipc_link *l, int status)
{
    tarn_reason_keep(&l->broken, status);
    for (int i = 0; i < TARN_IPC_DEVICES; i++) {
        struct tarn_ipc_lane *lane = l->lanes[i];
        l->lanes[i] = NULL;
        if (lane)
            tarn_ipc_lane_close(lane, status);
    }
}

/* 1: progress was made. */
static int advance(struct tarn_ipc_link *l)
{
    int moved = 0;
    for (int i = 0; i < TARN_IPC_DEVICES; i++) {
        int rc = l->lanes[i] && tarn_ipc_lane_busy(l->lanes[i]) ? tarn_ipc_lane_progress(l->lanes[i]) : 0;
        if (rc < 0) {
            if (rc == TARN_E_UNAVAILABLE)
                lose(l, rc);
            else
                tarn_log(l->link.log, TARN_LOG_WARN, "cuda_ipc",
                         "msg=\"copies failed\" node=%s device=%d cause=\"%s\"", l->link.node, i,
                         tarn_last_error());
            end_lanes(l, rc);
            return rc;
        }
        moved |= rc;
    }
    return moved;
}

static bool is_busy(const struct tarn_ipc_link *l)
{
    for (int i = 0; i < TARN_IPC_DEVICES; i++)
        if (l->lanes[i] && tarn_ipc_lane_busy(l->lanes[i]))
            return true;
    return false;
}

/* What a GPU or the worker is doing counts as progress, however long it takes. */
static int cuda_progress(struct tarn_link *link)
{
    struct tarn_ipc_link *l = tarn_ipc_link(link);
    int rc = l->broken.code ? l->broken.code : advance(l);
    if (l->left && !is_busy(l))
        give_left(l);
    return rc ? rc : is_busy(l) || l->opening;
}

/*
 * Copies have no descriptor to wait for. Polls continuously first, then now and then. A nap takes some 80
 * us even if it should be shorter, so naps start only when the wait has been much longer.
 */
static int cuda_wait(struct tarn_link *link, uint64_t deadline_ns)
{
    struct tarn_ipc_link *l = tarn_ipc_link(link);
    uint64_t begun = tarn_now_ns(), now = begun, until = tarn_slice_end(deadline_ns);
    const struct timespec nap = {0, NAP_NS};
    if (l->broken.code)
        return l->broken.code;
    while (is_busy(l)) {
        int rc = advance(l);
        if (rc)
            return rc;
        now = tarn_now_ns();
        if (now >= until)
            return 1;
        if (now - begun > SPIN_NS)
            nanosleep(&nap, NULL);
        else if (now - begun > POLITE_NS)
            sched_yield();
    }
    if (l->opening)
        tarn_ipc_opened(l->local, l->opening, until);
    return l->opening != NULL;
}

static void cuda_close(struct tarn_link *l)
{
    end_lanes(tarn_ipc_link(l), TARN_E_CANCELED);
    link_free(tarn_ipc_link(l));
}

const struct tarn_transport_ops tarn_cuda_ipc_ops = {
    .name = "cuda_ipc",
    .caps = TARN_CUDA_IPC_CAPS,
    .probe = tarn_cuda_ipc_probe,
    .local_open = tarn_ipc_local_open,
    .local_close = tarn_ipc_local_close,
    .map = tarn_no_map,
    .unmap = tarn_no_map,
    .ready = tarn_ipc_local_ready,
    .offer = tarn_no_offer,
    .connect = cuda_connect,
    .learn = cuda_learn,
    .get = cuda_get,
    .put = cuda_put,
    .progress = cuda_progress,
    .wait_fd = tarn_no_wait_fd,
    .wait = cuda_wait,
    .touch = cuda_touch,
    .view = tarn_ipc_view,
    .unview = tarn_ipc_unview,
    .address = tarn_ipc_address,
    .close = cuda_close,
};
