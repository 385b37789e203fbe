/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX's node half: tcpx_node.c (thread, accepting, sessions), tcpx_node_link.c (a client's requests),
 * tcpx_node_lane.c (its works) and tcpx_node_window.c (those of leases).
 *
 * One thread does everything except attach() and detach(). It owns links, lanes, comms and the gear. The lock
 * guards the list of links, the tokens, what is known of windows, and the fields of a link that others read.
 * Any thread may doom a link: under the lock it sets `doomed` and shuts the socket down; the thread then
 * closes the link.
 *
 * While progress is made, the thread polls all busy links continuously. After a while without progress it
 * naps between rounds. Polling is necessary because plugins signal nothing.
 */
#ifndef TARN_TRANSPORT_TCPX_NODE_H
#define TARN_TRANSPORT_TCPX_NODE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/container.h"
#include "transport/node_half.h"
#include "transport/tcpx/tcpx.h"
#include "transport/tcpx/tcpx_comm.h"
#include "transport/tcpx/tcpx_stage.h"

/* A get or put, from its request to its end. */
struct tarn_tcpx_work {
    struct tarn_tcpx_node_lane *lane;
    struct tarn_tcpx_frame frame;
    struct tarn_piece piece; /* its bytes in the pool */
    bool pinned, over;
    uint64_t posted, done; /* in bytes */
    /* of a lease: */
    int status;                 /* why it has ended early */
    uint64_t handled;           /* puts: bytes that have come; gets: that have been copied */
    uint32_t pins;              /* puts: messages that are being unpacked under a pin */
    struct tarn_notice *notice; /* what to tell when it is over; NULL: nothing */
};

struct tarn_tcpx_node_lane {
    struct tarn_tcpx_node_lane *next, *prev;
    struct tarn_tcpx_node_link *link;
    uint32_t id, pool;
    bool puts, told /* puts: the client knows the handle */, ready;
    struct tarn_tcpx_comm *comm;
    struct tarn_tcpx_into into;   /* for puts; without the pieces */
    int gpu;                      /* of the pool or window */
    struct tarn_tcpx_stage stage; /* gets from a window */
    uint64_t copied;              /* ... and messages that have been copied to it */
    struct tarn_cursor gathered_at;
    struct tarn_notice *notice; /* puts: the next one's notification */
    /* A ring of works, and counts of them: came >= begun >= over, and begun >= posting, the first not
     * fully posted. */
    uint64_t came, begun, posting, over;
    struct tarn_tcpx_work works[TARN_TCPX_OPS];
};

struct tarn_tcpx_node_link {
    struct tarn_tcpx_node_link *next, *prev;
    struct tarn_tcpx_node *node;
    struct tarn_tcpx_wire wire;
    bool admitted, busy, closing; /* closing: waits only for running unpacking */
    atomic_bool doomed;
    uint64_t session;
    uint32_t chunk_bytes;    /* size of its messages */
    uint64_t hello_until_ns; /* deadline for HELLO; 0: it has come */
    bool wants_out;          /* epoll waits for EPOLLOUT */
    struct tarn_tcpx_node_lane *lanes;
    uint32_t nlanes;
};

struct tarn_tcpx_node {
    struct tarn_node_half half;
    char address[300];
    int listen_fd, wake_fd, epoll_fd;
    pthread_t thread;
    bool started;
    struct tarn_tcpx_gear gear;
    uint64_t complained_ns;
    bool moved;        /* the last round made progress */
    bool waits;        /* at that moment, bytes were awaited */
    uint64_t moved_ns; /* time of the last progress */
    pthread_mutex_t lock;
    struct tarn_tcpx_node_link *links;
    struct tarn_token *tokens;
    int window_gpu[TARN_WINDOWS_MAX]; /* TARN_TCPX_UNLENT: there is no such window */
};
#define TARN_TCPX_UNLENT (-2)

static inline struct tarn_tcpx_node *tarn_tcpx_node(const struct tarn_node_half *h)
{
    return TARN_CONTAINER_OF(h, struct tarn_tcpx_node, half);
}

/* The pool's GPU; -1: the host's memory. */
static inline int tarn_tcpx_gpu_of(const struct tarn_pool_memory *p)
{
    return p->kind == TARN_POOL_GPU ? p->device : -1;
}

/* tcpx_node_link.c: handles the client's messages. False: the link must be closed. */
bool tarn_tcpx_node_hear(struct tarn_tcpx_node_link *l);
/* Moves its works on. IDLE: nothing to do until the client says something. OPENS: waits only for
 * connections of the plugin. */
enum tarn_tcpx_moved { TARN_TCPX_IDLE, TARN_TCPX_OPENS, TARN_TCPX_WAITS, TARN_TCPX_MOVED, TARN_TCPX_BROKEN };
enum tarn_tcpx_moved tarn_tcpx_node_move(struct tarn_tcpx_node_link *l);
/* Closes its comms. AGAIN: bytes are still being unpacked into pools. */
int tarn_tcpx_node_let_go(struct tarn_tcpx_node_link *l);
/* Tells the client why the link ends. Best effort. */
void tarn_tcpx_node_fail(struct tarn_tcpx_node_link *l, uint32_t lane, int status);
/* Logs why the link was closed, at most once a second. */
void tarn_tcpx_complain(struct tarn_tcpx_node_link *l, const char *why);

/* tcpx_node_lane.c */
bool tarn_tcpx_serves(const struct tarn_node_half *h, uint32_t pool);
/* An error ends the link. */
int tarn_tcpx_lane_open(struct tarn_tcpx_node_link *l, const struct tarn_tcpx_message *m);
int tarn_tcpx_lane_ask(struct tarn_tcpx_node_lane *n, const struct tarn_tcpx_frame *f);
/* 1: progress was made; 0: none. */
int tarn_tcpx_lane_move(struct tarn_tcpx_node_lane *n);
bool tarn_tcpx_lane_busy(const struct tarn_tcpx_node_lane *n);
int tarn_tcpx_lane_close(struct tarn_tcpx_node_lane *n);
void tarn_tcpx_lane_say(struct tarn_tcpx_work *w, enum tarn_tcpx_op op, int status);
/* The work to post next; NULL: none. */
struct tarn_tcpx_work *tarn_tcpx_lane_next(struct tarn_tcpx_node_lane *n);

/* tcpx_node_window.c */
static inline bool tarn_tcpx_lends(const struct tarn_tcpx_node_lane *n)
{
    return n->link->node->half.serve.guard.pin_lease != NULL;
}
/* The GPU of a pool or window; -1: the host's memory; TARN_TCPX_UNLENT. Any thread. */
int tarn_tcpx_gpu(struct tarn_tcpx_node *s, uint32_t pool);
/* The table's. */
void tarn_tcpx_window_lend(struct tarn_node_half *h, uint32_t window);
void tarn_tcpx_window_withdraw(struct tarn_node_half *h, uint32_t window);
/* Prepares a lane of a window, and its comm once it is ready. */
int tarn_tcpx_window_open(struct tarn_tcpx_node_lane *n);
int tarn_tcpx_window_ready(struct tarn_tcpx_node_lane *n);
/* Frees what they made. Nothing is copied any more. */
void tarn_tcpx_window_close(struct tarn_tcpx_node_lane *n);
/* The next PUT's notification. */
int tarn_tcpx_window_tell(struct tarn_tcpx_node_lane *n, const struct tarn_notice *notice);
/* May the session do that to the lease just now? 0, or why not. */
int tarn_tcpx_window_begin(struct tarn_tcpx_work *w);
/* Gathers and sends messages of gets: 1: some; 0: none now. */
int tarn_tcpx_window_send(struct tarn_tcpx_node_lane *n);
/* A message was sent or unpacked. */
void tarn_tcpx_window_moved(struct tarn_tcpx_work *w);
/* All of a put is in place: tells of it. Returns DONE's status. */
int tarn_tcpx_window_end(struct tarn_tcpx_work *w);

#endif
