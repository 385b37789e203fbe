/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two files of TCP's node half: tcp_server.c (threads, accepting, sessions) and tcp_conn.c (one
 * connection's frames and bytes).
 *
 * Threads. Thread 0 accepts and reads HELLO; a connection that said it is handed to the thread with
 * the fewest. From then on only that thread touches it, except that any thread may doom it: set `doomed`
 * and shut the socket down, both under the server's lock; its own thread then closes it.
 * The lock guards the lists of connections and sessions and is held for nothing else: a connection is
 * unlinked under it before its descriptor is closed. Guard calls are made without it.
 */
#ifndef TARN_TRANSPORT_TCP_NODE_H
#define TARN_TRANSPORT_TCP_NODE_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/tcp_frame.h"
#include "transport/transport.h"

#define TARN_TCP_ANSWERS 64 /* of a connection, not yet sent; reading pauses there */

struct tarn_tcp_thread;

/* An answer in the making: a request first (not ready), then its header and payload. */
struct tarn_tcp_reply {
    struct tarn_tcp_frame frame;
    void *payload;
    bool ready;
    bool pinned;
};

enum tarn_tcp_state {
    TARN_TCP_EXPECT_HELLO,
    TARN_TCP_EXPECT_FIRST, /* the first request makes it a connection for gets or for puts */
    TARN_TCP_GETS,
    TARN_TCP_PUTS,
};

struct tarn_tcp_conn {
    struct tarn_tcp_conn *next, *prev;
    struct tarn_server *server;
    struct tarn_tcp_thread *thread;
    int fd;
    enum tarn_tcp_state state;
    atomic_bool doomed;
    bool same_host, keeps_up; /* its reader takes what is sent without delay */
    uint32_t events; /* what epoll waits for */
    bool admitted;   /* has said HELLO for `session`; written under the lock */
    uint64_t session;
    uint64_t deadline_ns;     /* HELLO, or the next byte the client takes, must come before; 0: none */
    struct tarn_tcp_hello in; /* the message being received */
    uint32_t in_bytes;
    /* Answers in order, a ring; the first one's `sent` bytes are gone. Allocated with the first request. */
    struct tarn_tcp_reply *replies;
    uint32_t first, count;
    uint64_t sent;
    /* The payload of in.frame, a PUT that is being received: into the pool, or dropped when to is NULL. */
    bool receiving;
    uint8_t *to;
    uint64_t left;
    int32_t put_status;
};

struct tarn_tcp_thread {
    struct tarn_server *server;
    pthread_t id;
    bool started;
    int epoll_fd;
    _Atomic uint32_t conns;
    uint32_t timed; /* connections of this thread with a deadline */
};

struct tarn_tcp_session {
    struct tarn_tcp_session *next, *prev;
    uint64_t id;
    char token[TARN_TCP_TOKEN + 1];
};

struct tarn_server {
    struct tarn_serve serve;
    char address[300]; /* "host:port" */
    int listen_fd, wake_fd;
    _Atomic uint64_t refused_log_ns; /* when a refusal was last logged */
    pthread_mutex_t lock;
    struct tarn_tcp_conn *conns;
    struct tarn_tcp_session *sessions;
    bool listening; /* thread 0: false while descriptors have run out */
    uint32_t nthreads;
    struct tarn_tcp_thread threads[];
};

/* tcp_conn.c: does what `events` allow. False: the connection is to be closed. */
bool tarn_tcp_conn_handle(struct tarn_tcp_conn *c, uint32_t events);
/* Gives back pins and memory of a connection whose descriptor is closed. */
void tarn_tcp_conn_free(struct tarn_tcp_conn *c);
/* Sets (0: clears) the connection's deadline. Its own thread only. */
void tarn_tcp_conn_time(struct tarn_tcp_conn *c, uint64_t deadline_ns);

/* tcp_server.c: makes the connection one of the session's if the token is that of the session. */
bool tarn_tcp_admit(struct tarn_tcp_conn *c, uint64_t session, const char token[TARN_TCP_TOKEN]);
/* Logs why a connection is dropped, at most once a second. */
void tarn_tcp_refused(struct tarn_tcp_conn *c, const char *why);

#endif
