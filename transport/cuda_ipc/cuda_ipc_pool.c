/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cuda_ipc/cuda_ipc_pool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "transport/cuda/cuda_text.h"

int tarn_ipc_local_open(const char *devices, struct tarn_local **local_p)
{
    (void)devices;
    struct tarn_local *local = calloc(1, sizeof(*local));
    if (!local)
        return tarn_fail(TARN_E_NO_MEMORY, "cuda_ipc: out of memory");
    pthread_mutex_init(&local->lock, NULL);
    *local_p = local;
    return 0;
}

void tarn_ipc_local_close(struct tarn_local *local)
{
    if (!local)
        return;
    pthread_mutex_destroy(&local->lock);
    free(local);
}

bool tarn_ipc_lose(struct tarn_local *local)
{
    pthread_mutex_lock(&local->lock);
    bool first = !atomic_load(&local->lost);
    if (first)
        snprintf(local->why, sizeof(local->why), "%s", tarn_last_error());
    atomic_store(&local->lost, true);
    pthread_mutex_unlock(&local->lock);
    return first;
}

/* --- making and ending -------------------------------------------------------------------------- */

static void pool_free(struct tarn_ipc_pool *p)
{
    for (int d = 0; d < TARN_IPC_DEVICES; d++)
        if (p->opened[d])
            tarn_cuda_close(d, p->opened[d]);
    if (p->pinned)
        tarn_cuda_unpin(p->arena_map.addr);
    tarn_share_unmap(&p->arena_map);
    tarn_share_unmap(&p->gen_map);
    tarn_share_unmap(&p->touch_map);
    free(p);
}

static int map_one(const char *node, int fd, uint64_t bytes, int prot, const char *what,
                   struct tarn_mapping *m)
{
    struct tarn_share_name name = {"cuda_ipc", node, what};
    return tarn_share_map(&name, fd, bytes, prot, m);
}

static int map_files(struct tarn_ipc_pool *p, const char *node, const int *fds)
{
    const struct tarn_ipc_offer *of = &p->of;
    int rc = 0, write = PROT_READ | PROT_WRITE;
    if (of->kind == TARN_POOL_CPU)
        rc = map_one(node, *fds++, of->bytes, of->writable ? write : PROT_READ, "a pool", &p->arena_map);
    if (!rc)
        rc = map_one(node, fds[0], of->nslots * sizeof(*p->gen), PROT_READ, "a pool's generations",
                     &p->gen_map);
    if (!rc)
        rc =
            map_one(node, fds[1], of->nslots * sizeof(*p->touch), write, "a pool's use times", &p->touch_map);
    p->gen = p->gen_map.addr;
    p->touch = p->touch_map.addr;
    return rc;
}

static int pool_new(const char *node, const struct tarn_ipc_offer *of, const int *fds,
                    struct tarn_ipc_pool **p_p)
{
    struct tarn_ipc_pool *p = calloc(1, sizeof(*p));
    if (!p)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: cuda_ipc: out of memory", node);
    p->of = *of;
    int rc = map_files(p, node, fds);
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

/* A writable mapping serves readers, too. */
static struct tarn_ipc_pool *find(struct tarn_local *local, const struct tarn_ipc_offer *of)
{
    for (struct tarn_ipc_pool *p = local->pools; p; p = p->next)
        if (p->of.epoch == of->epoch && p->of.index == of->index && p->of.kind == of->kind &&
            p->of.bytes == of->bytes && p->of.nslots == of->nslots && (p->of.writable || !of->writable))
            return p;
    return NULL;
}

int tarn_ipc_pool_take(struct tarn_local *local, const char *node, const struct tarn_ipc_offer *of,
                       const int *fds, struct tarn_ipc_pool **p_p)
{
    pthread_mutex_lock(&local->lock);
    struct tarn_ipc_pool *p = find(local, of);
    int rc = p ? 0 : pool_new(node, of, fds, &p);
    if (!rc && p->links++ == 0) {
        p->next = local->pools;
        local->pools = p;
    }
    pthread_mutex_unlock(&local->lock);
    *p_p = p;
    return rc;
}

void tarn_ipc_pool_give(struct tarn_local *local, struct tarn_ipc_pool *p)
{
    pthread_mutex_lock(&local->lock);
    if (--p->links == 0) {
        struct tarn_ipc_pool **at = &local->pools;
        while (*at != p)
            at = &(*at)->next;
        *at = p->next;
        pool_free(p);
    }
    pthread_mutex_unlock(&local->lock);
}

/* --- reaching ----------------------------------------------------------------------------------- */

static int unreachable(const struct tarn_ipc_node *node, const struct tarn_ipc_pool *p, const char *why)
{
    char uuid[TARN_CUDA_UUID_TEXT];
    tarn_cuda_uuid_format(p->of.uuid, uuid);
    return tarn_fail(TARN_E_NOT_REACHABLE, "node %s: cuda_ipc: pool %u is on %s: %s", node->name, p->of.index,
                     uuid, why);
}

/* A pinned mapping can be used by all devices; it is only ever pinned whole. */
static int pin_arena(const struct tarn_ipc_node *node, struct tarn_ipc_pool *p)
{
    if (p->pinned)
        return 0;
    int rc = tarn_cuda_pin(p->arena_map.addr, p->arena_map.bytes, p->of.writable);
    if (rc)
        return rc;
    p->pinned = true;
    tarn_log(node->log, TARN_LOG_DEBUG, "cuda_ipc",
             "msg=\"registered a pool with CUDA\" node=%s pool=%u bytes=%zu write=%d", node->name,
             p->of.index, p->arena_map.bytes, p->of.writable);
    return 0;
}

static int open_arena(const struct tarn_ipc_node *node, struct tarn_ipc_pool *p, int device)
{
    if (p->device < 0)
        return unreachable(node, p, "a GPU this process does not see: look at CUDA_VISIBLE_DEVICES");
    if (p->opened[device])
        return 0;
    int rc = tarn_cuda_open(device, p->of.handle, &p->opened[device]);
    if (rc)
        return rc;
    tarn_log(node->log, TARN_LOG_DEBUG, "cuda_ipc",
             "msg=\"opened a pool\" node=%s pool=%u device=%d of_device=%d peer=%d", node->name, p->of.index,
             device, p->device, device != p->device);
    return 0;
}

bool tarn_ipc_pool_is_far(struct tarn_local *local, const struct tarn_ipc_node *node, struct tarn_ipc_pool *p,
                          int device)
{
    if (p->device < 0 || p->device == device)
        return false;
    pthread_mutex_lock(&local->lock);
    if (!p->asked[device]) {
        p->asked[device] = true;
        p->far[device] = !tarn_cuda_reaches(device, p->device);
        if (p->far[device])
            tarn_log(
                node->log, TARN_LOG_DEBUG, "cuda_ipc",
                "msg=\"no peer access: copies go through the host\" node=%s pool=%u device=%d of_device=%d",
                node->name, p->of.index, device, p->device);
    }
    bool is_far = p->far[device];
    pthread_mutex_unlock(&local->lock);
    return is_far;
}

int tarn_ipc_pool_reach(struct tarn_local *local, const struct tarn_ipc_node *node, struct tarn_ipc_pool *p,
                        int device, uint8_t **base_p)
{
    pthread_mutex_lock(&local->lock);
    int rc = p->of.kind == TARN_POOL_CPU ? pin_arena(node, p) : open_arena(node, p, device);
    *base_p = rc ? NULL : p->of.kind == TARN_POOL_CPU ? p->arena_map.addr : p->opened[device];
    pthread_mutex_unlock(&local->lock);
    return rc;
}
