/* SPDX-License-Identifier: Apache-2.0 */
/* One incarnation of a node, as the client knows it, and what leads there: connections, links. */
#ifndef TARN_CLIENT_PEER_NODE_H
#define TARN_CLIENT_PEER_NODE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/resp/resp.h"
#include "client/lease.h"
#include "client/patience.h"
#include "metadata/directory.h"
#include "transport/transport.h"

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

struct tarn_client;

#define TARN_STRIPES 8

enum tarn_health {
    TARN_UP,
    TARN_SLOW, /* did not answer in time: only links that do not need it (shared memory) are used */
    TARN_GONE, /* its connection broke, or another incarnation has its place: nothing is used */
};

struct tarn_side;

/* A link of a side, and the table to call it by (the transport's, or the fault decorator's). */
struct tarn_open_link {
    struct tarn_open_link *next;
    struct tarn_side *side;
    const struct tarn_transport_ops *ops;
    struct tarn_link *link;
    _Atomic uint32_t views; /* of a shared link */
};

enum tarn_side_state {
    TARN_SIDE_UNKNOWN,
    TARN_SIDE_OPENING,
    TARN_SIDE_SHARED,
    TARN_SIDE_POOLED,
    TARN_SIDE_UNREACHABLE
};

/*
 * One transport to a node, for gets or for puts. A shared link is entered by counting oneself in,
 * then reading the pointer; whoever retires it takes the pointer away, then waits for the counts.
 */
struct tarn_side {
    struct tarn_peer_node *node;
    const struct tarn_transport_ops *ops;
    int transport; /* its index in the client's */
    bool last;     /* no other transport comes after it */
    bool write;
    _Atomic int state;
    _Atomic(struct tarn_open_link *) shared; /* POOLED: for views alone, once there has been one */
    struct tarn_open_link *idle, *retired;   /* remote.lock */
    _Atomic uint32_t nidle;
    _Atomic uint64_t retry_ns; /* UNREACHABLE: not tried again before */
    uint64_t silent_ns;        /* since then no ATTACH has been answered; 0: the last one was */
    _Atomic int code;          /* why the last attempt said that it is UNREACHABLE; 0: it did not */
    char why[TARN_SENTENCE];
    struct {
        _Alignas(64) _Atomic uint32_t n;
    } busy[TARN_STRIPES];
};

struct tarn_peer_node_pool {
    char name[TARN_POOL_NAME_MAX + 1];
    uint32_t index;
    uint64_t bytes;
};

/* A control connection with at most one command outstanding. */
struct tarn_control_conn {
    struct tarn_control_conn *next;
    struct tarn_resp *resp;
    struct tarn_peer_node *node;
    bool local;     /* Unix socket */
    bool reply_due; /* a reply is outstanding */
    bool grants;    /* ... and it answers RESERVE */
    bool greets;    /* HELLO's answer comes before it */
    bool refused;   /* HELLO was, or another incarnation has answered */
    bool published; /* HELLO has shown the secret of the node's record */
    uint64_t since_ns, hello_ns;
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
    _Atomic bool suspect;    /* set aside a moment ago; the keeper has not asked it yet */
    _Atomic bool doubted;    /* up, but a call had no answer in its time; the keeper is to ask it */
    _Atomic bool listed;     /* in the directory when last asked */
    _Atomic bool superseded; /* another incarnation is there now */
    _Atomic bool local;      /* its Unix socket answered: same host */
    _Atomic bool near;       /* the same host by its record, and its Unix socket has not said otherwise */
    _Atomic bool draining;
    struct tarn_lease lease; /* until when it may be read from */
    _Atomic uint8_t
        pool_transports[TARN_POOLS_MAX]; /* by index; bit t: the client's transport t serves the pool */
    _Atomic uint64_t asked_ns;           /* unlisted: when the directory was last asked about it */
    struct tarn_patience patience;       /* by how long it takes to answer HELLO */
    uint64_t pass;                       /* of the refresh that last saw it; nodes_lock */

    /* written by a refresh under lock */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a side left OPENING, or the keeper has judged a suspect */
    char control[280], unix_path[108], host_id[40], secret[40];
    uint32_t npools;
    struct tarn_peer_node_pool pools[TARN_POOLS_MAX];

    /* this host's clock at the node's tick 0, how much too late that may be, when it was found */
    uint64_t tick_base_ns, tick_error_ns, tick_learned_ns;
    struct tarn_control_conn *idle_conns;
    uint32_t nidle_conns;
    struct tarn_control_conn *watch; /* idle connection whose end shows the node's; monitor.lock */
    _Atomic uint32_t owed_commands;  /* not run yet */
    uint64_t probe_ns, backoff_ns;   /* keeper only */
    struct tarn_side sides[TARN_TRANSPORTS_MAX][2]; /* [transport][write], as many as the client has */
};

/* Another incarnation has its place, or the directory has said that it is not there: its copies are none. */
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
