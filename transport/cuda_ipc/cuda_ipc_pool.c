/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cuda_ipc/cuda_ipc_pool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <utlist.h>

#include "base/container.h"
#include "base/error.h"
#include "base/process.h"
#include "transport/cuda/cuda_text.h"

int tarn_ipc_local_open(const char *devices, struct tarn_local **local_p)
{
    (void)devices;
    struct tarn_ipc_local *local = calloc(1, sizeof(*local));
    if (!local)
        return tarn_fail(TARN_E_NO_MEMORY, "cuda_ipc: out of memory");
    pthread_mutex_init(&local->lock, NULL);
    tarn_ipc_worker_init(&local->worker);
    *local_p = (struct tarn_local *)local;
    return 0;
}

bool tarn_ipc_lose(struct tarn_ipc_local *local, int rc)
{
    pthread_mutex_lock(&local->lock);
    bool first = !atomic_load(&local->lost);
    if (first)
        tarn_reason_keep(&local->why, rc);
    atomic_store(&local->lost, true);
    pthread_mutex_unlock(&local->lock);
    return first;
}

/* --- making and ending -------------------------------------------------------------------------- */

static void pool_free(struct tarn_ipc_pool *p)
{
    for (int d = 0; d < TARN_IPC_DEVICES; d++)
        if (p->opened[d] && !p->is_own)
            tarn_cuda_close(d, p->opened[d]);
    if (p->pinned)
        tarn_cuda_unpin(p->share.arena.addr);
    if (p->gen_pinned)
        tarn_cuda_unpin(p->share.gen_map.addr);
    tarn_share_pool_unmap(&p->share);
    free(p);
}

static int pool_new(const struct tarn_link *l, const struct tarn_ipc_offer *of, const int *fds,
                    struct tarn_ipc_pool **p_p)
{
    struct tarn_ipc_pool *p = calloc(1, sizeof(*p));
    if (!p)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: cuda_ipc: out of memory", l->node);
    p->of = *of;
    p->log = l->log;
    snprintf(p->node, sizeof(p->node), "%s", l->node);
    p->share.bytes = of->bytes;
    p->share.nslots = of->nslots;
    int arena_fd = of->kind == TARN_POOL_CPU ? *fds++ : -1;
    int rc = tarn_share_pool_map(l, arena_fd, fds, of->writable, &p->share);
    if (rc) {
        pool_free(p);
        return rc;
    }
    p->device = -1;
    if (of->kind == TARN_POOL_GPU && (tarn_cuda_find(of->uuid, &p->device) || p->device >= TARN_IPC_DEVICES))
        p->device = -1;
    *p_p = p;
    return 0;
}

static bool is_in_cuda(const struct tarn_ipc_pool *p)
{
    bool is = p->pinned || p->gen_pinned;
    for (int d = 0; d < TARN_IPC_DEVICES; d++)
        is |= p->opened[d] != NULL;
    return is;
}

/* In the worker if CUDA must release something. */
static void pool_end(struct tarn_ipc_local *local, struct tarn_ipc_pool *p)
{
    const struct tarn_ipc_want end = {TARN_IPC_END, p, -1};
    struct tarn_ipc_opening *o;
    if (is_in_cuda(p) && tarn_ipc_ask(local, &end, &o) == 0)
        tarn_ipc_leave(local, o);
    else
        pool_free(p);
}

/* A writable mapping also serves readers. */
static struct tarn_ipc_pool *find(struct tarn_ipc_local *local, const struct tarn_ipc_offer *of)
{
    for (struct tarn_ipc_pool *p = local->pools; p; p = p->next)
        if (p->of.epoch == of->epoch && p->of.index == of->index && p->of.kind == of->kind &&
            p->of.bytes == of->bytes && p->of.nslots == of->nslots && p->of.allocation == of->allocation &&
            p->of.begin == of->begin && (p->of.writable || !of->writable))
            return p;
    return NULL;
}

/* Takes kept pools of other nodes. The lock is held. */
static struct tarn_ipc_pool *take_kept(struct tarn_ipc_local *local, uint64_t epoch)
{
    struct tarn_ipc_pool *p, *next, *kept = NULL;
    LL_FOREACH_SAFE(local->pools, p, next)
    {
        if (p->users > 0 || p->of.epoch == epoch)
            continue;
        LL_DELETE(local->pools, p);
        LL_PREPEND(kept, p);
    }
    return kept;
}

int tarn_ipc_pool_take(struct tarn_ipc_local *local, const struct tarn_link *l,
                       const struct tarn_ipc_offer *of, const int *fds, struct tarn_ipc_pool **p_p)
{
    pthread_mutex_lock(&local->lock);
    struct tarn_ipc_pool *p = find(local, of), *kept = take_kept(local, of->epoch);
    int rc = p ? 0 : pool_new(l, of, fds, &p);
    if (!rc && p->users++ == 0 && !p->fresh)
        LL_PREPEND(local->pools, p);
    pthread_mutex_unlock(&local->lock);
    for (struct tarn_ipc_pool *next; kept; kept = next) {
        next = kept->next;
        pool_end(local, kept);
    }
    *p_p = p;
    return rc;
}

void tarn_ipc_pool_give(struct tarn_ipc_local *local, struct tarn_ipc_pool *p)
{
    pthread_mutex_lock(&local->lock);
    bool last = --p->users == 0 && !p->fresh;
    if (last)
        LL_DELETE(local->pools, p);
    pthread_mutex_unlock(&local->lock);
    if (last)
        pool_end(local, p);
}

/* --- what is there ------------------------------------------------------------------------------ */

int tarn_ipc_pool_is_far(struct tarn_ipc_local *local, struct tarn_ipc_pool *p, int device, bool *far_p)
{
    *far_p = false;
    if (p->device < 0 || p->device == device)
        return 0;
    pthread_mutex_lock(&local->lock);
    *far_p = p->far[device];
    int rc = p->asked[device] ? 0 : TARN_E_AGAIN;
    pthread_mutex_unlock(&local->lock);
    return rc;
}

uint8_t *tarn_ipc_pool_base(struct tarn_ipc_local *local, struct tarn_ipc_pool *p, int device)
{
    pthread_mutex_lock(&local->lock);
    uint8_t *base = p->of.kind == TARN_POOL_CPU ? p->pinned ? p->share.arena.addr : NULL : p->opened[device];
    p->fresh &= !base;
    pthread_mutex_unlock(&local->lock);
    return base;
}

const uint64_t *tarn_ipc_pool_gen(struct tarn_ipc_local *local, struct tarn_ipc_pool *p)
{
    pthread_mutex_lock(&local->lock);
    const void *gen = p->gen_pinned ? p->share.gen_map.addr : NULL;
    pthread_mutex_unlock(&local->lock);
    return gen;
}

static void *spare_take(struct tarn_ipc_local *local, void **spare)
{
    void *taken = NULL;
    pthread_mutex_lock(&local->lock);
    for (int i = 0; !taken && i < TARN_IPC_SPARE; i++) {
        taken = spare[i];
        spare[i] = NULL;
    }
    pthread_mutex_unlock(&local->lock);
    return taken;
}

/* False: no room. */
static bool spare_keep(struct tarn_ipc_local *local, void **spare, void *given)
{
    int i = 0;
    pthread_mutex_lock(&local->lock);
    while (i < TARN_IPC_SPARE && spare[i])
        i++;
    if (i < TARN_IPC_SPARE)
        spare[i] = given;
    pthread_mutex_unlock(&local->lock);
    return i < TARN_IPC_SPARE;
}

struct tarn_cuda_queue *tarn_ipc_queue_take(struct tarn_ipc_local *local, int device)
{
    return spare_take(local, local->queues[device]);
}

void tarn_ipc_queue_give(struct tarn_ipc_local *local, int device, struct tarn_cuda_queue *q)
{
    if (q && !spare_keep(local, local->queues[device], q))
        tarn_cuda_queue_close(q);
}

uint8_t *tarn_ipc_ring_take(struct tarn_ipc_local *local)
{
    return spare_take(local, local->rings);
}

static void ring_close(uint8_t *ring)
{
    tarn_cuda_unpin(ring);
    munmap(ring, TARN_IPC_RING);
}

void tarn_ipc_ring_give(struct tarn_ipc_local *local, uint8_t *ring)
{
    if (ring && !spare_keep(local, local->rings, ring))
        ring_close(ring);
}

/* --- what the worker opens ---------------------------------------------------------------------- */

struct tarn_ipc_opening {
    struct tarn_ipc_task task;
    struct tarn_ipc_local *local;
    struct tarn_ipc_want want;
};

static int start_driver(struct tarn_ipc_local *local)
{
    int n, rc = tarn_cuda_count(&n);
    if (!rc)
        atomic_store(&local->driver, true);
    return rc;
}

static int ask_peer(struct tarn_ipc_local *local, struct tarn_ipc_pool *p, int device)
{
    bool reaches = tarn_cuda_reaches(device, p->device);
    pthread_mutex_lock(&local->lock);
    p->asked[device] = true;
    p->far[device] = !reaches;
    pthread_mutex_unlock(&local->lock);
    if (!reaches)
        tarn_log(p->log, TARN_LOG_DEBUG, "cuda_ipc",
                 "msg=\"no peer access: copies go through the host\" node=%s pool=%u device=%d of_device=%d",
                 p->node, p->of.index, device, p->device);
    return 0;
}

static int open_queue(struct tarn_ipc_local *local, int device)
{
    struct tarn_cuda_queue *q = NULL;
    int rc = tarn_cuda_queue_open(device, &q);
    tarn_ipc_queue_give(local, device, q);
    return rc;
}

static int open_ring(struct tarn_ipc_local *local)
{
    void *ring = mmap(NULL, TARN_IPC_RING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED)
        return tarn_fail(TARN_E_NO_MEMORY, "cuda_ipc: out of memory");
    int rc = tarn_cuda_pin(ring, TARN_IPC_RING, true);
    if (rc)
        munmap(ring, TARN_IPC_RING);
    else
        tarn_ipc_ring_give(local, ring);
    return rc;
}

static int unseen(const struct tarn_ipc_pool *p)
{
    char uuid[TARN_CUDA_UUID_TEXT];
    tarn_cuda_uuid_format(p->of.uuid, uuid);
    return tarn_fail(TARN_E_NOT_REACHABLE,
                     "node %s: cuda_ipc: pool %u is on %s: a GPU this process does not see: look at "
                     "CUDA_VISIBLE_DEVICES",
                     p->node, p->of.index, uuid);
}

/* All devices can use a pinned mapping. It is always pinned as a whole. */
static int pin_arena(struct tarn_ipc_pool *p)
{
    int rc = tarn_cuda_pin(p->share.arena.addr, p->share.arena.bytes, p->of.writable);
    if (!rc)
        tarn_log(p->log, TARN_LOG_DEBUG, "cuda_ipc",
                 "msg=\"registered a pool with CUDA\" node=%s pool=%u bytes=%zu write=%d", p->node,
                 p->of.index, p->share.arena.bytes, p->of.writable);
    return rc;
}

/* A process cannot open its own handles. CUDA gives another handle whenever it is asked, so handles cannot be
 * compared. Whoever told the address may as well have opened the handle. */
static bool is_own(const struct tarn_ipc_pool *p)
{
    uint8_t handle[TARN_CUDA_HANDLE];
    struct tarn_cuda_memory m;
    uint64_t number;
    if (p->of.process != tarn_process_number())
        return false;
    tarn_cuda_memory_of((void *)p->of.begin, &m);
    return m.kind == TARN_CUDA_DEVICE && m.device == p->device &&
           tarn_cuda_export(p->device, (void *)p->of.begin, handle, &number) == 0 &&
           number == p->of.allocation;
}

static int open_handle(struct tarn_ipc_pool *p, int device, void **addr_p)
{
    p->is_own = p->of.begin && is_own(p);
    if (p->is_own) {
        *addr_p = (void *)p->of.begin;
        return 0;
    }
    int rc = tarn_cuda_open(device, p->of.handle, addr_p);
    if (!rc)
        tarn_log(p->log, TARN_LOG_DEBUG, "cuda_ipc",
                 "msg=\"opened a pool\" node=%s pool=%u device=%d of_device=%d peer=%d", p->node, p->of.index,
                 device, p->device, device != p->device);
    return rc;
}

/* Reads without the lock what only the worker changes. */
static int open_arena(struct tarn_ipc_local *local, struct tarn_ipc_pool *p, int device)
{
    bool is_cpu = p->of.kind == TARN_POOL_CPU;
    void *opened = NULL;
    if (!is_cpu && p->device < 0)
        return unseen(p);
    if (is_cpu ? p->pinned : p->opened[device] != NULL)
        return 0;
    int rc = is_cpu ? pin_arena(p) : open_handle(p, device, &opened);
    pthread_mutex_lock(&local->lock);
    if (is_cpu)
        p->pinned = rc == 0;
    else
        p->opened[device] = opened;
    p->fresh |= rc == 0;
    pthread_mutex_unlock(&local->lock);
    return rc;
}

static int pin_gen(struct tarn_ipc_local *local, struct tarn_ipc_pool *p)
{
    if (p->gen_pinned)
        return 0;
    int rc = tarn_cuda_pin(p->share.gen_map.addr, p->share.gen_map.bytes, false);
    pthread_mutex_lock(&local->lock);
    p->gen_pinned = rc == 0;
    pthread_mutex_unlock(&local->lock);
    return rc;
}

static int open_it(struct tarn_ipc_task *t)
{
    struct tarn_ipc_opening *o = TARN_CONTAINER_OF(t, struct tarn_ipc_opening, task);
    const struct tarn_ipc_want *want = &o->want;
    switch (want->what) {
    case TARN_IPC_DRIVER:
        return start_driver(o->local);
    case TARN_IPC_PEER:
        return ask_peer(o->local, want->pool, want->device);
    case TARN_IPC_QUEUE:
        return open_queue(o->local, want->device);
    case TARN_IPC_PINNED:
        return open_ring(o->local);
    case TARN_IPC_ARENA:
        return open_arena(o->local, want->pool, want->device);
    case TARN_IPC_GEN:
        return pin_gen(o->local, want->pool);
    case TARN_IPC_END:
        pool_free(want->pool);
    }
    return 0;
}

static void drop(struct tarn_ipc_task *t)
{
    struct tarn_ipc_opening *o = TARN_CONTAINER_OF(t, struct tarn_ipc_opening, task);
    if (o->want.pool && o->want.what != TARN_IPC_END)
        tarn_ipc_pool_give(o->local, o->want.pool);
    free(o);
}

int tarn_ipc_ask(struct tarn_ipc_local *local, const struct tarn_ipc_want *want,
                 struct tarn_ipc_opening **o_p)
{
    struct tarn_ipc_opening *o = calloc(1, sizeof(*o));
    if (!o)
        return tarn_fail(TARN_E_NO_MEMORY, "cuda_ipc: out of memory");
    *o = (struct tarn_ipc_opening){
        .task = {.run = open_it, .drop = drop, .anyway = want->what >= TARN_IPC_ARENA},
        .local = local,
        .want = *want};
    if (want->pool && want->what != TARN_IPC_END) {
        pthread_mutex_lock(&local->lock);
        want->pool->users++;
        pthread_mutex_unlock(&local->lock);
    }
    int rc = tarn_ipc_worker_give(&local->worker, &o->task);
    if (rc)
        drop(&o->task);
    else
        *o_p = o;
    return rc;
}

bool tarn_ipc_asked_for(const struct tarn_ipc_opening *o, const struct tarn_ipc_want *want)
{
    return o->want.what == want->what && o->want.pool == want->pool && o->want.device == want->device;
}

int tarn_ipc_opened(struct tarn_ipc_local *local, struct tarn_ipc_opening *o, uint64_t until_ns)
{
    return tarn_ipc_worker_wait(&local->worker, &o->task, until_ns);
}

void tarn_ipc_leave(struct tarn_ipc_local *local, struct tarn_ipc_opening *o)
{
    if (o)
        tarn_ipc_worker_leave(&local->worker, &o->task);
}

/* --- before kernels run -------------------------------------------------------------------------- */

static unsigned unused_queues(struct tarn_ipc_local *local, int device)
{
    unsigned n = 0;
    pthread_mutex_lock(&local->lock);
    for (int i = 0; i < TARN_IPC_SPARE; i++)
        n += local->queues[device][i] != NULL;
    pthread_mutex_unlock(&local->lock);
    return n;
}

static int open_and_wait(struct tarn_ipc_local *local, const struct tarn_ipc_want *want, uint64_t deadline_ns)
{
    struct tarn_ipc_opening *o = NULL;
    int rc = tarn_ipc_ask(local, want, &o);
    if (!rc)
        rc = tarn_ipc_opened(local, o, deadline_ns);
    tarn_ipc_leave(local, o);
    return rc != TARN_E_AGAIN ? rc
                              : tarn_fail(TARN_E_TIMEOUT,
                                          "cuda_ipc: GPU %d: a queue has not been opened in time: raise "
                                          "timeout_ms, and let no kernel run meanwhile",
                                          want->device);
}

int tarn_ipc_local_ready(struct tarn_local *l, int device, unsigned n, uint64_t deadline_ns)
{
    struct tarn_ipc_local *local = tarn_ipc_local(l);
    const struct tarn_ipc_want driver = {TARN_IPC_DRIVER, NULL, device};
    const struct tarn_ipc_want queue = {TARN_IPC_QUEUE, NULL, device};
    if (device >= TARN_IPC_DEVICES)
        return 0;
    int rc = open_and_wait(local, &driver, deadline_ns);
    n = n < TARN_IPC_SPARE ? n : TARN_IPC_SPARE;
    for (unsigned i = unused_queues(local, device); !rc && i < n; i++)
        rc = open_and_wait(local, &queue, deadline_ns);
    return rc;
}

/* --- the end ------------------------------------------------------------------------------------ */

void tarn_ipc_local_close(struct tarn_local *l)
{
    struct tarn_ipc_local *local = tarn_ipc_local(l);
    if (!local)
        return;
    tarn_ipc_worker_end(&local->worker);
    for (struct tarn_ipc_pool *p = local->pools, *next; p; p = next) {
        next = p->next;
        pool_free(p);
    }
    for (int i = 0; i < TARN_IPC_SPARE; i++) {
        for (int d = 0; d < TARN_IPC_DEVICES; d++)
            tarn_cuda_queue_close(local->queues[d][i]);
        if (local->rings[i])
            ring_close(local->rings[i]);
    }
    pthread_mutex_destroy(&local->lock);
    free(local);
}
