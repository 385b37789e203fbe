/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's CUDA objects and pools of nodes on its host, for the CUDA IPC transport: mappings of their
 * files, opened handles, arenas accessible to its GPUs, queues and pinned rings. These are costly, so each
 * client has one set (struct tarn_ipc_local) for all its links. Links count as users of pools. When the last
 * link to a node ends, its pools are closed; queues and rings are kept for the next link.
 *
 * Only the client's worker opens and closes these objects: tarn_ipc_ask(). The other calls here look at
 * what exists and never wait. Any thread. What a link has taken stays unchanged until the link gives it
 * back.
 */
#ifndef TARN_TRANSPORT_CUDA_IPC_POOL_H
#define TARN_TRANSPORT_CUDA_IPC_POOL_H

#include <pthread.h>

#include "transport/cuda_ipc/cuda_ipc_worker.h"
#include "transport/share.h"

enum {
    TARN_IPC_DEVICES = 32, /* of a client, at most */
    TARN_IPC_SPARE = 16,   /* queues of each device, and rings, kept for the next link */
    TARN_IPC_RING = 8 << 20,
};

/* A pool as ATTACH describes it, or the allocation of windows as ENTER does: its index and bytes are 0. */
struct tarn_ipc_offer {
    uint64_t epoch, bytes;
    uint32_t index, nslots;
    enum tarn_pool_kind kind;
    bool writable; /* CPU: the arena is writable */
    uint8_t uuid[TARN_CUDA_UUID];
    uint8_t handle[TARN_CUDA_HANDLE];
    uint64_t allocation, process; /* its number in the lender's process, the number of that process, */
    uintptr_t begin;              /* and its address there; 0: a pool */
};

struct tarn_ipc_pool {
    struct tarn_ipc_pool *next;
    const struct tarn_logger *log;
    char node[64];
    struct tarn_ipc_offer of;
    struct tarn_share_pool share;
    uint32_t users; /* links and tasks of the worker */
    int device;     /* GPU: this process's ordinal of its device; -1: not visible */
    bool pinned, gen_pinned;
    bool is_own;                                         /* memory of this process, at its own address */
    void *opened[TARN_IPC_DEVICES];                      /* GPU: the arena's address for each device */
    bool asked[TARN_IPC_DEVICES], far[TARN_IPC_DEVICES]; /* far: the two devices cannot access each other */
    bool fresh; /* opened or pinned, but not used by a link yet: kept for the next link to the node */
};

struct tarn_ipc_local {
    pthread_mutex_t lock;
    struct tarn_ipc_pool *pools;
    void *queues[TARN_IPC_DEVICES][TARN_IPC_SPARE], *rings[TARN_IPC_SPARE]; /* unused ones */
    _Atomic bool driver;                                                    /* the driver has been started */
    _Atomic bool lost;      /* CUDA is unusable in this process: */
    struct tarn_reason why; /* set once, before `lost` */
    struct tarn_ipc_worker worker;
};

static inline struct tarn_ipc_local *tarn_ipc_local(struct tarn_local *local)
{
    return (struct tarn_ipc_local *)local;
}

int tarn_ipc_local_open(const char *devices, struct tarn_local **local_p);
void tarn_ipc_local_close(struct tarn_local *local);
/* Opens queues until n are unused; at most TARN_IPC_SPARE. */
int tarn_ipc_local_ready(struct tarn_local *local, int device, unsigned n, uint64_t deadline_ns);

/* Maps the pool of an offer. fds: see TARN_SHARE_FDS; they stay the caller's. */
int tarn_ipc_pool_take(struct tarn_ipc_local *local, const struct tarn_link *l,
                       const struct tarn_ipc_offer *of, const int *fds, struct tarn_ipc_pool **p_p);
/* Gives a pool back; nothing in flight may use it. */
void tarn_ipc_pool_give(struct tarn_ipc_local *local, struct tarn_ipc_pool *p);

/* --- what is there ------------------------------------------------------------------------------ */

/* Is the pool on a GPU of this process that `device` does not reach? AGAIN: ask for TARN_IPC_PEER. */
int tarn_ipc_pool_is_far(struct tarn_ipc_local *local, struct tarn_ipc_pool *p, int device, bool *far_p);
/* The arena's address for `device`. NULL: ask for TARN_IPC_ARENA. */
uint8_t *tarn_ipc_pool_base(struct tarn_ipc_local *local, struct tarn_ipc_pool *p, int device);
/* The generations, which all devices can read there. NULL: ask for TARN_IPC_GEN. */
const uint64_t *tarn_ipc_pool_gen(struct tarn_ipc_local *local, struct tarn_ipc_pool *p);
/* Take an unused queue, or ring of pinned memory. NULL: ask for TARN_IPC_QUEUE or TARN_IPC_PINNED. */
struct tarn_cuda_queue *tarn_ipc_queue_take(struct tarn_ipc_local *local, int device);
uint8_t *tarn_ipc_ring_take(struct tarn_ipc_local *local);
/* Give it back; nothing may be in flight in it. NULL is allowed. */
void tarn_ipc_queue_give(struct tarn_ipc_local *local, int device, struct tarn_cuda_queue *q);
void tarn_ipc_ring_give(struct tarn_ipc_local *local, uint8_t *ring);

/* --- what the worker opens ---------------------------------------------------------------------- */

enum tarn_ipc_what {
    TARN_IPC_DRIVER,
    TARN_IPC_PEER,   /* whether device and pool can access each other */
    TARN_IPC_QUEUE,  /* for a device */
    TARN_IPC_PINNED, /* a ring of pinned memory */
    /* Carried out even if nobody waits for it any more: */
    TARN_IPC_ARENA, /* of a pool, for a device */
    TARN_IPC_GEN,   /* of a pool: its generations */
    TARN_IPC_END,   /* of a pool that nobody uses: frees it */
};

/* device, pool: -1 and NULL if `what` needs none. */
struct tarn_ipc_want {
    enum tarn_ipc_what what;
    struct tarn_ipc_pool *pool;
    int device;
};

struct tarn_ipc_opening;

int tarn_ipc_ask(struct tarn_ipc_local *local, const struct tarn_ipc_want *want,
                 struct tarn_ipc_opening **o_p);
bool tarn_ipc_asked_for(const struct tarn_ipc_opening *o, const struct tarn_ipc_want *want);
/* AGAIN: not open by until_ns (0: now). Other results are final; what exists now shows the outcome. */
int tarn_ipc_opened(struct tarn_ipc_local *local, struct tarn_ipc_opening *o, uint64_t until_ns);
/* The asker does not need the result any more. NULL is allowed. */
void tarn_ipc_leave(struct tarn_ipc_local *local, struct tarn_ipc_opening *o);

/* Records the failure `rc`, just returned, as the end of CUDA in this process. True for the first caller. */
bool tarn_ipc_lose(struct tarn_ipc_local *local, int rc);

#endif
