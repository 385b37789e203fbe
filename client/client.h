/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside libtarn. Data flows one way:
 *
 *   tarn_get/put/...  ->  resolve, place (which copy, which node)  ->  flight (works on links)
 *                                                                  ->  call   (control commands)
 *   and below these: remote (what the client knows of a node), cache (descriptors).
 *
 * Blocking calls run on the caller's thread from beginning to end; op_run.c's workers run the same code
 * for submitted operations. Two threads of the client's own look after health (monitor.c), one after leases
 * (lease_ask.c).
 *
 * Here is the client's struct. What files share besides has a header of its own: node.h, desc.h, get_item.h,
 * get_job.h, put_job.h. Any other header is its .c file's.
 *
 * Lock order: client.nodes_lock -> remote.lock -> client.monitor.lock; cache shards, leases, op queue, the
 * list of put sessions and verdicts are leaves. No lock is held across anything that waits for a peer.
 */
#ifndef TARN_CLIENT_CLIENT_H
#define TARN_CLIENT_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/log.h"
#include "client/patience.h"
#include "client/peer_node.h"
#include "metadata/directory.h"
#include "transport/transport.h"

struct tarn_cache;
struct tarn_owed_command;
struct tarn_mr;
struct tarn_ops_queue;
struct tarn_put_session;

enum tarn_links {
    TARN_LINKS_TENDED,  /* nothing is put off */
    TARN_LINKS_RESTING, /* none was used since they were looked after last */
    TARN_LINKS_USED,
};

struct tarn_monitor {
    pthread_t watcher, keeper;
    bool watching, keeping; /* the threads run */
    int wake_fd;            /* the watcher's */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the keeper's */
    bool stop, asked;
    bool alarmed;                    /* the operations' alarm was set to an earlier time */
    struct tarn_control_conn *owing; /* connections with an outstanding reply nobody waits for */
    struct tarn_owed_command *owed_commands;
    uint64_t watches;  /* changes whenever a watch connection comes or goes */
    _Atomic int links; /* enum tarn_links, of those that put things off */
    uint64_t links_ns; /* when to look after them; the keeper's */
};

/* A thread asks, and sleeps while no lease is in use. */
struct tarn_leases {
    pthread_t thread;
    bool running;
    struct tarn_cancel cancel; /* at the end: of its waits, and of those for an answer */
    bool wanted;               /* ask at once */
    pthread_mutex_t lock;
    pthread_cond_t wake, answered;
    uint64_t asking_ns;            /* since when a question is outstanding; 0: none is */
    uint64_t sent_ns;              /* when the last one was sent */
    uint64_t answered_ns;          /* when the last one that was answered was sent */
    uint64_t failed_ns;            /* when the last one ended without an answer; 0: it was answered */
    uint64_t wanted_ns;            /* when a get last needed an answer */
    uint64_t questions;            /* that have ended */
    struct tarn_patience patience; /* by how long answers take */
};

enum tarn_counter {
    TARN_COUNT_GETS,
    TARN_COUNT_GET_BYTES,
    TARN_COUNT_MISSES,
    TARN_COUNT_STALE,
    TARN_COUNT_PUTS,
    TARN_COUNT_PUT_BYTES,
    TARN_COUNT_ERRORS,
    TARN_COUNT_FAILOVERS,
    TARN_COUNTERS,
};

struct tarn_client {
    struct tarn_logger log;
    struct tarn_directory *directory;
    struct tarn_cache *cache;
    const struct tarn_transport_ops *transports[TARN_TRANSPORTS_MAX];
    struct tarn_local *locals[TARN_TRANSPORTS_MAX];
    int ntransports;
    struct tarn_faulty *faulty; /* NULL: none */
    char *secret;               /* NULL: that of each node's record */
    bool secret_of_env;         /* it is TARN_SECRET's */
    uint64_t session;
    uint32_t timeout_ms, workers;
    _Atomic uint64_t farthest_ns; /* the longest round trip to a node so far */
    tarn_interrupt_fn interrupt;  /* NULL: none */
    void *interrupt_arg;
    char host_id[40];
    _Atomic uint32_t *alive; /* a page that fork() wipes: 0 in the child */

    pthread_rwlock_t nodes_lock;
    struct tarn_peer_node *nodes; /* by (id, epoch) */
    uint64_t pass;
    _Atomic uint64_t refreshed_ns;
    pthread_mutex_t refresh_lock; /* one refresh at a time: the others wait for it */
    pthread_cond_t refresh_done;
    bool refreshing;

    struct tarn_monitor monitor;
    struct tarn_leases leases;
    struct tarn_ops_queue *ops;
    pthread_mutex_t sessions_lock;
    struct tarn_put_session *sessions; /* open ones, for tarn_close() */
    pthread_mutex_t memory_lock;
    struct tarn_mr *memory; /* what is registered */

    struct {
        _Alignas(64) _Atomic uint64_t n[TARN_COUNTERS];
    } counters[TARN_STRIPES];
};

static inline void tarn_count(struct tarn_client *c, uint32_t stripe, enum tarn_counter what, uint64_t n)
{
    atomic_fetch_add_explicit(&c->counters[stripe].n[what], n, memory_order_relaxed);
}

/* 0, or CLOSED in a forked child, INVALID for NULL. Begins every public call. */
int tarn_client_enter(struct tarn_client *c);
/* The cancel of a call of the application's, made in *own. NULL: there is nobody to ask. */
struct tarn_cancel *tarn_client_cancel(const struct tarn_client *c, struct tarn_cancel *own);
uint64_t tarn_client_deadline(const struct tarn_client *c, uint32_t timeout_ms);

/* timeout_ms, or the client's own when that is 0. */
static inline uint64_t tarn_client_timeout_ns(const struct tarn_client *c, uint32_t timeout_ms)
{
    return (timeout_ms ? timeout_ms : c->timeout_ms) * TARN_NS_PER_MS;
}

#endif
