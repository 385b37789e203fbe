/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's struct. Calls go downwards only:
 *
 *   get, put, view, remove, manage   what a public call does
 *   resolve, way, place              which copy, which transport, which node
 *   flight, link, control_conn       bytes on links, commands on control connections
 *   peer_node, cache                 what the client knows of nodes and objects
 *
 * Blocking calls run on the caller's thread. Workers (op_run.c) run the same code for submitted operations.
 * Three threads belong to the client: watcher and keeper (monitor.c), leases (read_lease_ask.c).
 *
 * Lock order: nodes_lock -> a node's lock -> monitor.lock; proxies_lock -> a proxy's and a table's lock. The
 * locks of cache shards, leases, the queue of operations, put sessions and registered memory are held alone.
 * No lock is held while waiting for a peer.
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
struct tarn_forward;
struct tarn_lender;
struct tarn_reach;
struct tarn_owed_command;
struct tarn_mr;
struct tarn_ops_queue;
struct tarn_proxy;
struct tarn_put_session;

/* Do idle links have work put off that the keeper must send? */
enum tarn_links {
    TARN_LINKS_TENDED,  /* no */
    TARN_LINKS_RESTING, /* perhaps; none was used since the keeper's last look */
    TARN_LINKS_USED,    /* perhaps; some were used */
};

struct tarn_monitor {
    pthread_t watcher, keeper;
    bool watching, keeping; /* the threads run */
    int wake_fd;            /* wakes the watcher */
    pthread_mutex_t lock;
    pthread_cond_t wake;             /* wakes the keeper */
    bool stop, asked;                /* asked: a round is wanted */
    bool alarmed;                    /* something is due earlier than the keeper knows */
    struct tarn_control_conn *owing; /* connections with a late reply */
    struct tarn_owed_command *owed_commands;
    uint64_t watches;  /* changes whenever a watched connection comes or goes */
    _Atomic int links; /* enum tarn_links */
    uint64_t links_ns; /* when to look at them next; the keeper's */
};

/* One thread asks about leases; it sleeps while none is in use. */
struct tarn_read_leases {
    pthread_t thread;
    bool running;
    struct tarn_cancel cancel; /* at close: ends the thread's waits and the waits for an answer */
    bool wanted;               /* ask at once */
    bool changed;              /* a lease may be due earlier than the thread knows */
    pthread_mutex_t lock;
    pthread_cond_t wake, answered;
    uint64_t asking_ns;            /* when the outstanding question was sent; 0: none is outstanding */
    uint64_t sent_ns;              /* when the last question was sent */
    uint64_t answered_ns;          /* when the last answered question was sent */
    uint64_t failed_ns;            /* when the last question failed; 0: it was answered */
    uint64_t wanted_ns;            /* when a get last needed an answer */
    uint64_t questions;            /* how many have ended */
    struct tarn_patience patience; /* with Redis's answers */
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
    struct tarn_faulty *faulty; /* NULL: no fault is injected */
    char *secret;               /* NULL: the secret in each node's record */
    bool secret_of_env;         /* it comes from TARN_SECRET */
    uint64_t session;
    uint32_t timeout_ms, workers;
    _Atomic uint64_t farthest_ns; /* the longest round trip to a node so far */
    tarn_interrupt_fn interrupt;  /* NULL: none */
    void *interrupt_arg;
    char host_id[40];
    _Atomic uint32_t *alive; /* on a page that fork() wipes: 0 in the child */

    pthread_rwlock_t nodes_lock;
    struct tarn_peer_node *nodes; /* by (id, epoch) */
    struct tarn_reach *reaches;   /* all that have not been freed */
    uint64_t pass;                /* counts refreshes of the node table */
    _Atomic uint64_t refreshed_ns;
    pthread_mutex_t refresh_lock; /* one refresh at a time; others wait for it */
    pthread_cond_t refresh_done;
    bool refreshing;

    struct tarn_monitor monitor;
    struct tarn_read_leases leases;
    struct tarn_ops_queue *ops;
    pthread_mutex_t sessions_lock;
    struct tarn_put_session *sessions; /* the open ones */
    pthread_mutex_t tables_lock;
    struct tarn_table *tables; /* all hit tables */
    pthread_mutex_t proxies_lock;
    struct tarn_proxy *proxies; /* all proxies */
    pthread_mutex_t forwards_lock;
    struct tarn_forward *forwards; /* all forwardings */
    pthread_mutex_t memory_lock;
    struct tarn_mr *memory; /* registered ranges */
    char *listen;           /* where the lender answers; NULL: on this host only */
    pthread_mutex_t lender_lock;
    struct tarn_lender *lender; /* NULL: nothing was lent so far */

    struct {
        _Alignas(64) _Atomic uint64_t n[TARN_COUNTERS];
    } counters[TARN_STRIPES];
};

static inline void tarn_count(struct tarn_client *c, uint32_t stripe, enum tarn_counter what, uint64_t n)
{
    atomic_fetch_add_explicit(&c->counters[stripe].n[what], n, memory_order_relaxed);
}

/* Begins every public call. CLOSED in a forked child; INVALID for NULL. */
int tarn_client_enter(struct tarn_client *c);
/* Makes *own the cancel of a blocking call, which asks the application's interrupt. NULL: there is none. */
struct tarn_cancel *tarn_client_cancel(const struct tarn_client *c, struct tarn_cancel *own);
/* timeout_ms from now. 0: the client's own timeout. */
uint64_t tarn_client_deadline(const struct tarn_client *c, uint32_t timeout_ms);
/* An eventfd, or SYSTEM. */
int tarn_client_eventfd(int *fd_p);
/* tarn_thread_start(), or SYSTEM. */
int tarn_client_thread(pthread_t *thread, void *(*fn)(void *), void *arg);

#endif
