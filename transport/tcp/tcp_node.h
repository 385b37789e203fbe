/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of TCP's node half: tcp_node.c (threads, accepting, sessions), tcp_node_conn.c (one connection's
 * frames and bytes), tcp_node_gpu.c (those of GPU memory) and tcp_node_window.c (those of windows).
 *
 * Threads. Thread 0 accepts connections and reads HELLO, then hands each connection to a thread without any,
 * which it starts if there may be more, or to the one with the fewest. From then on only that thread uses it.
 * The one exception: any thread may doom it, by setting `doomed` and shutting the socket down, both under the
 * node half's lock. Its own thread then closes it.
 *
 * The lock guards only the lists of connections and sessions. A connection is unlinked under it before its
 * descriptor is closed. Nobody holds it in calls of the guard.
 */
#ifndef TARN_TRANSPORT_TCP_NODE_H
#define TARN_TRANSPORT_TCP_NODE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#include "transport/node_half.h"
#include "transport/node_tokens.h"
#include "transport/tcp/tcp_frame.h"
#include "transport/tcp/tcp_stage.h"

#define TARN_TCP_TURN_BYTES \
    (4u << 20) /* a connection that streams lets others have their turn after so many */
#define TARN_TCP_WINDOW_IOVS 256
#define TARN_TCP_ANSWERS 64 /* unsent ones of a connection; at so many, reading pauses */

struct tarn_tcp_thread;

/* An answer. Until it is `ready` the frame is the request, then the answer's header. */
struct tarn_tcp_reply {
    struct tarn_tcp_frame frame;
    struct tarn_tcp_frame verdict; /* windows: follows the payload, tcp_frame.h */
    void *payload;
    int device; /* of the GPU whose memory it is, once ready; -1: the CPU's */
    bool ready;
    bool pinned;
};

enum tarn_tcp_state {
    TARN_TCP_EXPECT_HELLO,
    TARN_TCP_EXPECT_FIRST, /* the first request decides: gets or puts */
    TARN_TCP_GETS,
    TARN_TCP_PUTS,
};

struct tarn_tcp_conn {
    struct tarn_tcp_conn *next, *prev;
    struct tarn_tcp_node *node;
    struct tarn_tcp_thread *thread;
    int fd;
    enum tarn_tcp_state state;
    atomic_bool doomed;
    bool same_host, keeps_up; /* keeps_up: its reader takes what is sent without delay */
    uint32_t events;          /* what epoll waits for */
    bool admitted;            /* has said HELLO for `session`; written under the lock */
    uint64_t session;
    uint64_t deadline_ns;     /* for HELLO, or for the client to take the next byte; 0: none */
    struct tarn_tcp_hello in; /* the message being received */
    uint32_t in_bytes;
    /* Answers in order, a ring; the first one's `sent` bytes are gone. Allocated with the first request. */
    struct tarn_tcp_reply *replies;
    uint32_t first, count;
    uint64_t sent;
    /* The payload of in.frame, a PUT. It is received to `to` in the pool; NULL: it is dropped. */
    bool receiving;
    uint8_t *to;
    uint64_t left;
    int put_device; /* of the GPU whose memory it is for; -1: the CPU's */
    int32_t put_status;
    /* Windows: the payload ends with so many bytes of a notification. */
    uint32_t notice_bytes;
    struct {
        uint64_t tag;
        char data[TARN_NOTIFY_MAX];
    } notice;
    /* Of the put with that notification, which is landing; meanwhile no other begins. NULL: there is none. */
    struct tarn_tcp_reply *telling;
    /* GPU memory: */
    struct tarn_tcp_conn *gpu_next, *gpu_prev; /* in its thread's list */
    bool listed;                               /* it is in that list */
    bool starved;                              /* it waits for a stage, or for room in its stage */
    bool closed;                               /* it is freed after its last copies */
    struct tarn_stage *stage;                  /* on loan; NULL: none */
    uint32_t staged;       /* GETS: answers, from the first on, that are completely in the stage */
    uint64_t staged_bytes; /* ... and payload bytes of the next one */
    uint64_t lent_ns;      /* when it was lent */
    int32_t landed_status; /* PUTS: so far, of the put whose parts are passing */
};

struct tarn_tcp_thread {
    struct tarn_tcp_node *node;
    pthread_t id;
    int epoll_fd;
    _Atomic uint32_t conns;
    uint32_t timed; /* connections of this thread with a deadline */
    int ready;      /* events of the round that is being handled */
    /* GPU memory: */
    struct tarn_copiers copiers;
    struct tarn_tcp_conn *gpu_conns; /* connections that have or want a stage, in the order of arrival */
    struct tarn_stage *stages;       /* unused ones */
    uint32_t nstages;                /* with those on loan */
    bool no_more;                    /* there is no memory for another */
    bool hungry;                     /* a connection waits for a stage, and none is left */
    uint64_t moved_ns;               /* when a copy last passed */
};

struct tarn_tcp_node {
    struct tarn_node_half half;
    char address[300]; /* "host:port" */
    int listen_fd, wake_fd;
    _Atomic uint64_t refused_log_ns; /* when a refusal was last logged */
    pthread_mutex_t lock;
    struct tarn_tcp_conn *conns;
    struct tarn_token *tokens;
    bool listening;            /* thread 0: false while descriptors have run out */
    _Atomic uint32_t nthreads; /* started so far; thread 0 starts more */
    uint32_t most_threads;
    struct tarn_tcp_thread threads[];
};

/* tcp_node_conn.c: does what `events` allow. False: the connection is to be closed. */
bool tarn_tcp_conn_handle(struct tarn_tcp_conn *c, uint32_t events);
/* Gives back pins and memory of a connection whose descriptor is closed. No copy may be under way. */
void tarn_tcp_conn_free(struct tarn_tcp_conn *c);
/* Sets (0: clears) the connection's deadline. Its own thread only. */
void tarn_tcp_conn_time(struct tarn_tcp_conn *c, uint64_t deadline_ns);

/* The i-th answer. */
struct tarn_tcp_reply *tarn_tcp_reply_at(struct tarn_tcp_conn *c, uint32_t i);
/* Turns a GET request into its answer: pins the object, or says why not. */
void tarn_tcp_ready_get(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r);
void tarn_tcp_unpin(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r);
void tarn_tcp_unpin_slot(struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f);
/* Logs what was done to a connection, and why, at most once a second. */
void tarn_tcp_complain(struct tarn_tcp_conn *c, const char *what, const char *why);

/* Payload bytes of a put that are to come, without the notification. */
static inline uint64_t tarn_tcp_put_left(const struct tarn_tcp_conn *c)
{
    return c->left > c->notice_bytes ? c->left - c->notice_bytes : 0;
}

/* tcp_node_window.c */
static inline bool tarn_tcp_lends_windows(const struct tarn_tcp_conn *c)
{
    return c->node->half.serve.guard.pin_lease != NULL;
}

/* Pins `bytes` bytes of a request from byte `done` on: for one system call, or one copy of a GPU. */
int tarn_tcp_window_pin(const struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f, bool write,
                        uint64_t done, uint64_t bytes, struct tarn_pinned *p);
/* Turns a GET request into an answer, which may begin. */
void tarn_tcp_window_ready_get(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r);
/* Can the next byte of an answer be sent? sent: how many were; part: where in the stage its payload goes on.
 */
bool tarn_tcp_window_may_send(struct tarn_tcp_conn *c, const struct tarn_tcp_reply *r, uint64_t sent,
                              uint32_t part);

struct tarn_tcp_window_turn {
    struct iovec iov[TARN_TCP_WINDOW_IOVS];
    uint32_t niov;
    uint64_t bytes;
    const struct tarn_tcp_frame *pinned[TARN_TCP_ANSWERS];
    uint32_t npinned;
};
/* Gathers a turn's worth of answers, of at most so many bytes, from the first unsent byte on, and pins what
 * it takes from leases. */
void tarn_tcp_window_gather(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t, uint64_t most);
/* A put's header has come: does a notification end it? False: the header is malformed. */
bool tarn_tcp_window_notice_begins(struct tarn_tcp_conn *c);
/* Where the next payload bytes of a put go, pinned or in the stage. Sets c->put_status, and leaves *t empty,
 * if the lease has ended. False: nowhere yet. */
bool tarn_tcp_window_room(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t);
/* The bytes of that put are in place: tells of it. 0, or the put's status. */
int tarn_tcp_window_notify(struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f);
/* The turn's system call is over. */
void tarn_tcp_window_unpin(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t);
/* A put's header has come. May the session write to the lease just now? 0, or why not. Sets c->put_device. */
int tarn_tcp_window_begin_put(struct tarn_tcp_conn *c);
/* Bytes of an answer to a get: header, payload, verdict. */
uint64_t tarn_tcp_window_reply_bytes(const struct tarn_tcp_reply *r);

/* tcp_node_gpu.c: looks at the copies under way, and ends puts that have landed. */
void tarn_tcp_gpu_land(struct tarn_tcp_conn *c);
/* Puts answers into the stage as far as there is room, and gives their copies to the GPU. Answers from
 * windows become ready with it. False: an answer that has begun cannot be completed. */
bool tarn_tcp_gpu_stage(struct tarn_tcp_conn *c);
/* Makes the GPU's queue ready. 0, or why nothing can be copied. */
int tarn_tcp_gpu_open(struct tarn_tcp_conn *c, int device);
/* Room for the next bytes of a put. 0: none yet. Negative: the put fails. */
int64_t tarn_tcp_gpu_room(struct tarn_tcp_conn *c, uint8_t **memory_p);
/* So many bytes were received into that room. */
void tarn_tcp_gpu_received(struct tarn_tcp_conn *c, uint64_t bytes);
/* The put's last byte was received. True: `r` becomes its answer once it has landed. False: it has landed,
 * and c->put_status says how. */
bool tarn_tcp_gpu_end_put(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r);
/* Ends a connection's turn: gives copies to the GPU, lends and takes back stages. */
void tarn_tcp_gpu_settle(struct tarn_tcp_conn *c);
void tarn_tcp_gpu_leave(struct tarn_tcp_conn *c);

/* For how long the thread may sleep. `otherwise`: if there are no copies. */
int tarn_tcp_gpu_timeout(const struct tarn_tcp_thread *t, int otherwise);
/* Looks at the copies of a listed connection. True: some have passed (if it is closed: all), or there is a
 * stage that it waits for. */
bool tarn_tcp_gpu_due(struct tarn_tcp_conn *c);
/* All listed connections were looked at. waits: one still has no stage. */
void tarn_tcp_gpu_waited(struct tarn_tcp_thread *t, bool waits);
/* Frees the stages. The thread has ended, and all its connections are freed. */
void tarn_tcp_gpu_stop(struct tarn_tcp_thread *t);

#endif
