/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client has of the pools of nodes on its host, for the CUDA IPC transport: mappings of their files,
 * handles opened, arenas made reachable by its GPUs. All of that is costly, so there is one of it a client
 * (struct tarn_local), whatever the number of links, which count themselves in and out. With the last link to
 * a node it goes.
 *
 * Any thread; one lock, held while something is mapped, opened or registered. What a link has been given
 * stays as it is until the link gives it back.
 */
#ifndef TARN_TRANSPORT_CUDA_IPC_POOL_H
#define TARN_TRANSPORT_CUDA_IPC_POOL_H

#include <pthread.h>

#include "transport/share.h"

enum { TARN_IPC_DEVICES = 32 }; /* of a client at most */

/* A pool as ATTACH describes it. */
struct tarn_ipc_offer {
    uint64_t epoch, bytes;
    uint32_t index, nslots;
    enum tarn_pool_kind kind;
    bool writable; /* CPU: the arena is */
    uint8_t uuid[TARN_CUDA_UUID];
    uint8_t handle[TARN_CUDA_HANDLE];
};

struct tarn_ipc_pool {
    struct tarn_ipc_pool *next;
    struct tarn_ipc_offer of;
    uint32_t links;
    int device; /* GPU: which of this process's it is on; -1: none that is visible */
    const _Atomic uint64_t *gen;
    _Atomic uint32_t *touch;
    struct tarn_mapping arena_map, gen_map, touch_map;
    bool pinned;
    void *opened[TARN_IPC_DEVICES];                      /* GPU: the arena as each device reaches it */
    bool asked[TARN_IPC_DEVICES], far[TARN_IPC_DEVICES]; /* far: the two devices do not reach each other */
};

struct tarn_local {
    pthread_mutex_t lock;
    struct tarn_ipc_pool *pools;
    _Atomic bool lost; /* CUDA is of no more use to this process: */
    char why[256];     /* set before `lost`, and once */
};

int tarn_ipc_local_open(const char *devices, struct tarn_local **local_p);
void tarn_ipc_local_close(struct tarn_local *local);

/* The pool of an offer, mapped. fds: as TARN_CUDA_IPC_FDS says; still the caller's. */
int tarn_ipc_pool_take(struct tarn_local *local, const char *node, const struct tarn_ipc_offer *of,
                       const int *fds, struct tarn_ipc_pool **p_p);
/* Nothing under way uses it any more. */
void tarn_ipc_pool_give(struct tarn_local *local, struct tarn_ipc_pool *p);
/* For messages. */
struct tarn_ipc_node {
    const struct tarn_logger *log;
    const char *name;
};

/* Is it on a GPU of this process that `device` does not reach? */
bool tarn_ipc_pool_is_far(struct tarn_local *local, const struct tarn_ipc_node *node, struct tarn_ipc_pool *p,
                          int device);
/* Its arena as `device` reaches it. NOT_REACHABLE: it does not. */
int tarn_ipc_pool_reach(struct tarn_local *local, const struct tarn_ipc_node *node, struct tarn_ipc_pool *p,
                        int device, uint8_t **base_p);

/* Notes the last error as what ended CUDA for this process. True for the first to do so. */
bool tarn_ipc_lose(struct tarn_local *local);

#endif
