/* SPDX-License-Identifier: Apache-2.0 */
/* One incarnation of a node as the client knows it, with its sides, links and control connections. */
#ifndef TARN_CLIENT_PEER_NODE_H
#define TARN_CLIENT_PEER_NODE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tarn/window.h>

#include "base/error.h"
#include "base/resp/resp.h"
#include "client/patience.h"
#include "client/read_lease.h"
#include "metadata/directory.h"
#include "transport/transport.h"

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

struct tarn_client;

#define TARN_STRIPES 8

enum tarn_health {
    TARN_UP,
    TARN_SLOW, /* was silent: only links that work without it (shared memory) are used */
    TARN_GONE, /* its connection broke, or another incarnation has its place: no link is used */
};

struct tarn_side;

/* A link of a side, and the table to call it by (the transport's, or the fault decorator's). */
struct tarn_open_link {
    struct tarn_open_link *next;
    struct tarn_side *side;
    const struct tarn_transport_ops *ops;
    struct tarn_link *link;
    uint64_t term;          /* of the session, when the node made its end */
    _Atomic uint32_t views; /* of a shared link */
    /* By index of a window: the id or pass that the link knows there (known.h). NULL: none so far. */
    _Atomic(_Atomic uint64_t *) known;
};

enum tarn_side_state {
    TARN_SIDE_UNKNOWN,
    TARN_SIDE_OPENING,
    TARN_SIDE_SHARED,
    TARN_SIDE_POOLED,
    TARN_SIDE_UNREACHABLE
};

/*
 * One transport to a node, for gets or for puts. To enter the shared link a thread counts itself in, then
 * reads the pointer. To retire it a thread clears the pointer, then waits for the counts to become 0.
 */
struct tarn_side {
    struct tarn_peer_node *node;
    const struct tarn_transport_ops *ops;
    int transport; /* its index in the client's list */
    bool last;     /* the list's last */
    bool write;
    _Atomic int state;                       /* enum tarn_side_state */
    _Atomic(struct tarn_open_link *) shared; /* of a POOLED side: for views alone */
    struct tarn_open_link *idle, *retired;   /* the node's lock */
    _Atomic uint32_t nidle;
    _Atomic uint64_t retry_ns; /* UNREACHABLE: when it may be tried again */
    uint64_t silent_ns;        /* when ATTACH began to be unanswered; 0: the last one was answered */
    _Atomic int code;          /* why the last attempt made it UNREACHABLE; 0: it did not */
    struct tarn_reason why;    /* the same with its sentence; the node's lock */
    struct {
        _Alignas(64) _Atomic uint32_t n;
    } busy[TARN_STRIPES];
};

struct tarn_peer_node_pool {
    char name[TARN_POOL_NAME_MAX + 1];
    uint32_t index;
    uint64_t bytes;
    bool gpu;
};

/* A control connection with at most one command outstanding; RESERVE with STORE counts as one. */
struct tarn_control_conn {
    struct tarn_control_conn *next;
    struct tarn_resp *resp;
    struct tarn_peer_node *node;
    uint8_t replies_due; /* replies are outstanding */
    bool local;          /* over the Unix socket */
    bool grants;         /* the next reply is RESERVE's */
    bool behind;         /* the next reply is the second of two, and may have been received with the first */
    bool greets;         /* ... and HELLO's comes before it */
    bool refused;        /* HELLO was refused, or another incarnation has answered: not to be used again */
    bool published;      /* HELLO has shown the secret from the node's record */
    bool spins;          /* who waits for the next reply has a processor to spare */
    uint64_t since_ns, hello_ns;
    uint64_t term; /* of the session, as HELLO's answer said */
};

/* One incarnation of a node. Lives until the client is closed. */
struct tarn_peer_node {
    UT_hash_handle hh;
    struct tarn_client *client;
    struct {
        char id[TARN_NODE_ID_MAX + 1];
        uint32_t epoch; /* low half of the node's epoch = high half of its generations */
    } key;
    _Atomic int health;
    _Atomic bool suspect; /* just set aside; the keeper has not asked it yet */
    _Atomic bool doubted; /* UP, but left a call unanswered; the keeper asks it */
    _Atomic bool lends;   /* a client that lends windows (client/window/): in no directory, always listed */
    _Atomic bool listed;  /* the directory listed it when last asked */
    _Atomic bool superseded; /* another incarnation has its place */
    _Atomic bool local;      /* its Unix socket answered: it is on this host */
    _Atomic bool near;       /* its record names this host, and its Unix socket has not shown otherwise */
    _Atomic bool draining;
    _Atomic uint64_t
        store_bytes; /* HELLO's answer: what STORE takes; 0: there is no STORE, or no answer yet */
    struct tarn_read_lease lease;
    _Atomic uint8_t
        pool_transports[TARN_WINDOWS_MAX]; /* by pool or window; bit t: the client's transport t serves it */
    _Atomic uint64_t asked_ns;             /* not listed: when the directory was last asked about it */
    struct tarn_patience patience;         /* measured by HELLO */
    uint64_t pass;                         /* the last refresh that saw it; nodes_lock */

    /* From here on all is guarded by lock, unless it says otherwise. */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a side left OPENING, or the keeper judged a suspect */
    char control[280], unix_path[108], host_id[40], secret[40];
    uint32_t npools;
    struct tarn_peer_node_pool pools[TARN_POOLS_MAX];

    /* This host's clock at the node's tick 0, by how much that may be late, when it was measured. */
    uint64_t tick_base_ns, tick_error_ns, tick_learned_ns;
    struct tarn_control_conn *idle_conns;
    uint32_t nidle_conns;
    struct tarn_control_conn *watch; /* idle; its end shows that the node has ended; monitor.lock */
    _Atomic uint32_t owed_commands;  /* how many are not settled */
    uint64_t probe_ns, backoff_ns;   /* the keeper's */
    struct tarn_side sides[TARN_TRANSPORTS_MAX][2]; /* [transport][write], for the client's transports */
};

/* Its copies are lost: another incarnation has its place, or the directory says that it is not there. */
static inline bool tarn_peer_node_gone(const struct tarn_peer_node *node)
{
    return atomic_load(&node->superseded) || atomic_load(&node->lease.gone);
}

/* Is it listed and up? */
static inline bool tarn_peer_node_answers(const struct tarn_peer_node *node)
{
    return atomic_load(&node->listed) && !atomic_load(&node->superseded) &&
           atomic_load(&node->health) == TARN_UP;
}

#endif
