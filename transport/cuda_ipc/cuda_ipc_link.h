/* SPDX-License-Identifier: Apache-2.0 */
/* Links of the CUDA IPC transport. cuda_ipc_link.c moves bytes; cuda_ipc_view.c gives addresses. */
#ifndef TARN_TRANSPORT_CUDA_IPC_LINK_H
#define TARN_TRANSPORT_CUDA_IPC_LINK_H

#include "base/container.h"
#include "transport/cuda_ipc/cuda_ipc_pool.h"

enum { TARN_IPC_POOLS = 64 }; /* of a node, at most */

/* A lender's. pool: its allocation; NULL: not learnt. */
struct tarn_ipc_window {
    struct tarn_ipc_pool *pool;
    uint64_t offset, bytes;
};

/* An allocation that no window of the link is in any more. */
struct tarn_ipc_left {
    struct tarn_ipc_left *next;
    struct tarn_ipc_pool *pool;
};

struct tarn_ipc_link {
    struct tarn_link link;
    struct tarn_ipc_local *local;
    struct tarn_reason broken; /* the error after which it takes no more works; code 0: none */
    uint64_t tick_base_ns, epoch;
    struct tarn_ipc_pool *pools[TARN_IPC_POOLS]; /* NULL: not served */
    struct tarn_ipc_lane *lanes[TARN_IPC_DEVICES];
    struct tarn_ipc_opening *opening; /* what the last refused work needs; NULL: nothing */
    struct tarn_share_hazards hazards;
    struct tarn_share_notices notices;
    struct tarn_ipc_window windows[TARN_WINDOWS_MAX];
    struct tarn_ipc_left *left;
    struct { /* the last work straight to or from GPU memory; the next one is mostly similar */
        const struct tarn_ipc_pool *pool; /* NULL: none so far */
        uint32_t gpu;
        int device;
        uint8_t *base;
    } last;
};

static inline struct tarn_ipc_link *tarn_ipc_link(const struct tarn_link *l)
{
    return TARN_CONTAINER_OF(l, struct tarn_ipc_link, link);
}

/* The pool, if slot and range lie in it; else NULL. */
static inline struct tarn_ipc_pool *tarn_ipc_link_pool(const struct tarn_ipc_link *l, uint32_t pool,
                                                       uint32_t slot, uint64_t offset, uint64_t bytes)
{
    struct tarn_ipc_pool *p = pool < TARN_IPC_POOLS ? l->pools[pool] : NULL;
    return p && tarn_share_has(&p->share, slot, offset, bytes) ? p : NULL;
}

/* Of the table of functions; any thread. */
int tarn_ipc_view(struct tarn_link *link, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset,
                  uint64_t bytes, const void **addr_p, uint32_t *hazard_p);
void tarn_ipc_unview(struct tarn_link *l, uint32_t hazard);
int tarn_ipc_address(struct tarn_link *l, int device, const struct tarn_range *r, struct tarn_address *a);

#endif
