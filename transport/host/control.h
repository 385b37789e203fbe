/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control connections: RESP over TCP and the Unix socket, all on the control thread.
 *
 * States of a connection
 *   READING   requests are parsed and run one after the other; reading stops while much output waits
 *   WAITING   the command's answer needs the directory or a transport; nothing is parsed until then, so
 *             answers keep the order of the requests
 *   CLOSING   the output is sent, then the connection is closed
 *
 * The descriptors of an ATTACH go out with the first byte of its answer. No request runs before that.
 */
#ifndef TARN_TRANSPORT_CONTROL_H
#define TARN_TRANSPORT_CONTROL_H

#include "transport/host/host.h"
#include "transport/host/session.h"

/* What a connection waits for. */
struct tarn_waiter {
    void (*gone)(struct tarn_waiter *w); /* the connection is gone; the work goes on without an answer */
};

enum tarn_conn_state { TARN_CONN_READING, TARN_CONN_WAITING, TARN_CONN_CLOSING };

/* What a node's RESERVE of one item was granted. gen 0: nothing. */
struct tarn_conn_grant {
    uint32_t pool, slot;
    uint64_t gen, offset, bytes;
};

struct tarn_conn {
    struct tarn_conn *prev, *next;
    struct tarn_control *control;
    struct tarn_host *host;
    struct tarn_watch *watch;
    struct tarn_resp_parser *parser;
    int fd, events;
    bool local;         /* came over the Unix socket */
    bool admitted;      /* has sent a request, and has shown the secret if there is one */
    bool authenticated; /* has shown the secret, or there is none */
    bool admin; /* the peer is the host's user or root on the Unix socket, or has shown the admin secret */
    enum tarn_conn_state state;
    char peer[64];
    uint64_t id, since_ns, commands;
    const char *last_command;
    bool refused;                 /* a refusal has been logged */
    struct tarn_session *session; /* NULL before HELLO */
    struct tarn_waiter *waiter;   /* WAITING */
    bool pushed;                  /* WAITING: more input has come, which waits */
    bool holds_answers;           /* WAITING: earlier answers go with this one; see tarn_conn_hold() */
    struct tarn_conn_grant grant; /* by the last RESERVE; STORE writes there */

    size_t holds; /* bytes of unfinished requests, as counted in the control's sum */
    struct tarn_buf out;
    size_t sent; /* of out */
    int fds[sizeof(((struct tarn_attach *)0)->fds) / sizeof(int)];
    bool close_fds[sizeof(((struct tarn_attach *)0)->fds) / sizeof(int)];
    uint32_t nfds;
    size_t fds_at; /* offset in out of the byte they are sent with */
};

/* Listens on both sockets; *listen gets the port taken. BUSY: another program has the port or socket. */
int tarn_control_start(struct tarn_host *h, struct tarn_addr *listen, const struct tarn_addr *unix_addr,
                       struct tarn_control **c_p);
/* Closes everything. NULL is allowed. */
void tarn_control_stop(struct tarn_control *c);
/* At each heartbeat: drops connections that were not admitted in time, listens again after a shortage. */
void tarn_control_tick(struct tarn_control *c);
/* Closes all connections of a session. */
void tarn_control_drop(struct tarn_control *c, const struct tarn_session *s);

/* The connection's session has begun: accepts large requests from now on. */
void tarn_conn_trust(struct tarn_conn *c);

/* The current command's answer comes later. */
void tarn_conn_wait(struct tarn_conn *c, struct tarn_waiter *w);
/* Before that: the answers to earlier commands go with this one's, or by tarn_conn_tell(). Saves both ends a
 * wake-up when the answer comes soon. */
void tarn_conn_hold(struct tarn_conn *c);
/* Sends answers that are held. The connection may be freed by this call. */
void tarn_conn_tell(struct tarn_conn *c);
/* The awaited answer is in the output. The connection may be freed by this call. */
void tarn_conn_resume(struct tarn_conn *c);
/* Descriptors to send with what is added to the output next. */
void tarn_conn_send_fds(struct tarn_conn *c, const struct tarn_attach *a);

/* All admitted connections, for CLIENT LIST. */
const struct tarn_conn *tarn_control_first(const struct tarn_control *c);

#endif
