/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client has of CUDA and of the pools of nodes on its host, for the CUDA IPC transport: mappings of
 * their files, handles opened, arenas made reachable by its GPUs, queues and pinned rings. All of that is
 * costly, so there is one of it a client (struct tarn_local), whatever the number of links, which count
 * themselves in and out of pools. With the last link to a node its pools go; queues and rings are kept for
 * the next link.
 *
 * Only the client's worker opens and closes any of it: tarn_ipc_ask(). The other calls here look at what is
 * there, and wait for nothing. Any thread. What a link has been given stays as it is until the link gives it
 * back.
 */
#ifndef TARN_TRANSPORT_CUDA_IPC_POOL_H
#define TARN_TRANSPORT_CUDA_IPC_POOL_H

#include <pthread.h>

#include "transport/cuda_ipc/cuda_ipc_worker.h"
#include "transport/share.h"

enum {
    TARN_IPC_DEVICES = 32, /* of a client at most */
    TARN_IPC_SPARE = 16,   /* queues of a device, and rings, that are kept for the next link */
    TARN_IPC_RING = 8 << 20,
};

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
    const struct tarn_logger *log;
    char node[64];
    struct tarn_ipc_offer of;
    uint32_t users; /* links, and tasks of the worker */
    int device;     /* GPU: which of this process's it is on; -1: none that is visible */
    const _Atomic uint64_t *gen;
    _Atomic uint32_t *touch;
    struct tarn_mapping arena_map, gen_map, touch_map;
    bool pinned;
    void *opened[TARN_IPC_DEVICES];                      /* GPU: the arena as each device reaches it */
    bool asked[TARN_IPC_DEVICES], far[TARN_IPC_DEVICES]; /* far: the two devices do not reach each other */
    bool fresh; /* opened or pinned, and no link has used that: kept for the next link to the node */
};

struct tarn_local {
    pthread_mutex_t lock;
    struct tarn_ipc_pool *pools;
    void *queues[TARN_IPC_DEVICES][TARN_IPC_SPARE], *rings[TARN_IPC_SPARE]; /* that nobody uses */
    _Atomic bool driver;                                                    /* it has been started */
    _Atomic bool lost;       /* CUDA is of no more use to this process: */
    char why[TARN_SENTENCE]; /* set before `lost`, and once */
    struct tarn_ipc_worker worker;
};

int tarn_ipc_local_open(const char *devices, struct tarn_local **local_p);
void tarn_ipc_local_close(struct tarn_local *local);

/* The pool of an offer, mapped. fds: as TARN_CUDA_IPC_FDS says; still the caller's. */
int tarn_ipc_pool_take(struct tarn_local *local, const struct tarn_peer *peer,
                       const struct tarn_ipc_offer *of, const int *fds, struct tarn_ipc_pool **p_p);
/* Nothing under way uses it any more. */
void tarn_ipc_pool_give(struct tarn_local *local, struct tarn_ipc_pool *p);

/* --- what is there ------------------------------------------------------------------------------ */

/* Is it on a GPU of this process that `device` does not reach? AGAIN: ask for TARN_IPC_PEER. */
int tarn_ipc_pool_is_far(struct tarn_local *local, struct tarn_ipc_pool *p, int device, bool *far_p);
/* Its arena as `device` reaches it. NULL: ask for TARN_IPC_ARENA. */
uint8_t *tarn_ipc_pool_base(struct tarn_local *local, struct tarn_ipc_pool *p, int device);
/* A queue that nobody uses, or a ring of pinned memory. NULL: ask for TARN_IPC_QUEUE, TARN_IPC_PINNED. */
struct tarn_cuda_queue *tarn_ipc_queue_take(struct tarn_local *local, int device);
uint8_t *tarn_ipc_ring_take(struct tarn_local *local);
/* Back again; nothing is under way in them. NULL is allowed. */
void tarn_ipc_queue_give(struct tarn_local *local, int device, struct tarn_cuda_queue *q);
void tarn_ipc_ring_give(struct tarn_local *local, uint8_t *ring);

/* --- what the worker opens ---------------------------------------------------------------------- */

enum tarn_ipc_what {
    TARN_IPC_DRIVER,
    TARN_IPC_PEER,   /* whether device and pool reach each other */
    TARN_IPC_QUEUE,  /* of a device */
    TARN_IPC_PINNED, /* a ring of pinned memory */
    TARN_IPC_ARENA,  /* of a pool, for a device */
};

/* device, pool: -1 and NULL where `what` names none. */
struct tarn_ipc_want {
    enum tarn_ipc_what what;
    struct tarn_ipc_pool *pool;
    int device;
};

struct tarn_ipc_opening;

int tarn_ipc_ask(struct tarn_local *local, const struct tarn_ipc_want *want, struct tarn_ipc_opening **o_p);
bool tarn_ipc_asked_for(const struct tarn_ipc_opening *o, const struct tarn_ipc_want *want);
/* AGAIN: it is not open at until_ns (0: now). Else the outcome; what is there shows it. */
int tarn_ipc_opened(struct tarn_local *local, struct tarn_ipc_opening *o, uint64_t until_ns);
/* Its asker looks at it no more. NULL is allowed. */
void tarn_ipc_leave(struct tarn_local *local, struct tarn_ipc_opening *o);

/* Notes the last error as what ended CUDA for this process. True for the first to do so. */
bool tarn_ipc_lose(struct tarn_local *local);

#endif
