/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of proxies (include/tarn/proxy.h).
 *
 *   proxy.c         the calls
 *   proxy_serve.c   threads that take commands out of rings and complete them
 *   proxy_work.c    workers, for commands that may wait for others
 *   proxy_pages.c   the table, and gets of its pages
 *
 *   taken --at once, by the ring's thread-----------------------------> complete
 *      \---- queued --taken by a worker--> carried out --> ended -------^ by the ring's thread
 *       \--- QUIET: waits until all before it are complete ------------/
 *
 * A ring belongs to one thread: only that one takes and completes. It carries out a GET itself if nothing but
 * this host's memory and GPUs can hold it up, and gives up on it after some milliseconds. A transfer that is
 * cut short costs its link, so the thread decides by what it knows (TARN_GET_NOW), not by a short deadline.
 *
 * GETs into memory of a GPU are carried out one by one: then the copy engines move them, which do not wait
 * for a kernel that fills the GPU.
 *
 * Locks, each alone but for client.proxies_lock -> pages_lock -> a table's lock: `lock` guards the queue, the
 * ended works and the threads' rest.
 */
#ifndef TARN_CLIENT_GPU_PROXY_IMPL_H
#define TARN_CLIENT_GPU_PROXY_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tarn/proxy.h>

#include "base/cancel.h"
#include "client/get_item.h"
#include "client/gpu/ring.h"

enum { TARN_PROXY_WORKERS = 8, TARN_PROXY_PER_NODE = 2, TARN_PROXY_TOGETHER = 32 };

struct tarn_proxy_thread;
struct tarn_proxy_ring;

/* A range, and whose memory it is: `gpu` as struct tarn_work's. */
struct tarn_proxy_memory {
    uintptr_t begin, end;
    uint32_t gpu;
};

/* A command that a worker carries out. Each slot of a ring has one. */
struct tarn_proxy_work {
    struct tarn_proxy_work *prev, *next; /* in `queued` or `ended` */
    struct tarn_proxy_ring *ring;
    struct tarn_ring_command command;
    const struct tarn_peer_node *node; /* that it waits for, to compare only; NULL: it is not known */
    uint64_t number, deadline_ns;
    int status;
};

struct tarn_proxy_ring {
    struct tarn_proxy_thread *thread;
    struct tarn_ring_consumer *consumer;
    struct tarn_proxy_work *works; /* by slot */
    bool *quiets;                  /* by slot: a QUIET that waits */
    uint32_t size;
    bool ended; /* nothing will come any more */
};

/* A get of part of a page's object. */
struct tarn_proxy_get {
    struct tarn_get get;
    struct tarn_item item;
    struct tarn_piece piece;
    uint8_t key[TARN_KEY_MAX];
};

/* What a WRITE moves and tells. */
struct tarn_proxy_write {
    struct tarn_piece piece;
    struct tarn_notify notify;
};

struct tarn_proxy_thread {
    struct tarn_proxy *proxy;
    struct tarn_proxy_ring *rings;
    uint32_t nrings;
    pthread_t thread;
    bool started;
    struct tarn_cancel cancel;
    pthread_cond_t wake;
    _Atomic(struct tarn_proxy_work *) ended; /* changed with the lock */
    struct tarn_proxy_get get;
};

struct tarn_proxy_worker {
    struct tarn_proxy *proxy;
    pthread_t thread;
    bool started;
    struct tarn_cancel cancel;
    bool busy;                         /* with the lock, as `node` */
    const struct tarn_peer_node *node; /* of its works */
    struct tarn_proxy_work *works[TARN_PROXY_TOGETHER];
    struct tarn_proxy_get gets[TARN_PROXY_TOGETHER];
    struct tarn_proxy_write writes[TARN_PROXY_TOGETHER];
    struct tarn_reason untold; /* why a WRITE must tell again */
};

struct tarn_proxy {
    struct tarn_proxy *prev, *next; /* in client.proxies */
    struct tarn_client *client;
    int device;   /* -1: none */
    void *waited; /* memory of the device: giving it up waits for the kernels that run there */
    uint32_t timeout_ms;
    uint32_t nrings, nthreads, nranges, nreaches;
    struct tarn_proxy_ring *rings;
    struct tarn_proxy_thread *threads;
    struct tarn_proxy_worker *workers; /* TARN_PROXY_WORKERS of them */
    struct tarn_proxy_memory *ranges;
    struct tarn_reach **reaches;
    _Atomic bool stop;

    pthread_mutex_t pages_lock;
    pthread_cond_t unused;
    struct tarn_table *table; /* NULL: none, or it was freed */
    uint32_t users;           /* workers that use the table without the lock */

    pthread_mutex_t lock;
    pthread_cond_t work;
    struct tarn_proxy_work *queued;
};

/* --- proxy_serve.c ------------------------------------------------------------------------------ */

int tarn_proxy_thread_start(struct tarn_proxy_thread *t);
/* Puts a reason into the log: this thread's last error. */
void tarn_proxy_tell(const struct tarn_proxy_ring *r, uint64_t number, int status);

/* --- proxy_work.c ------------------------------------------------------------------------------- */

int tarn_proxy_worker_start(struct tarn_proxy_worker *w);
/* Has a worker carry it out. */
void tarn_proxy_queue(struct tarn_proxy *p, struct tarn_proxy_work *w);

/* --- proxy_pages.c ------------------------------------------------------------------------------ */

/* The range that holds all of this memory, or NULL, with a sentence. */
const struct tarn_proxy_memory *tarn_proxy_memory_of(const struct tarn_proxy *p,
                                                     const struct tarn_ring_command *c);
/* Makes a get of the command. INVALID, NOT_FOUND. */
int tarn_proxy_get_make(struct tarn_proxy *p, const struct tarn_ring_command *c, struct tarn_proxy_get *g,
                        uint64_t deadline_ns, struct tarn_cancel *cancel);
/* The node that a get would be served by, which tarn_get_now() has left. NULL: it is not known. */
const struct tarn_peer_node *tarn_proxy_get_node(const struct tarn_proxy_get *g);
int tarn_proxy_refresh(struct tarn_proxy *p, uint32_t page, uint64_t deadline_ns, struct tarn_cancel *cancel);

#endif
