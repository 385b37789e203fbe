/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host lends memory over the node halves of transports: tarnd its pools, a client its windows. What both
 * share is here:
 *   control.c    control connections
 *   session.c    who is at their other ends
 *   commands.c   the commands that every host has
 *   attach.c     ATTACH and DETACH
 *   arguments.c  arguments and failures of commands
 *
 * All of it runs on one thread, that of the host's loop.
 */
#ifndef TARN_TRANSPORT_HOST_H
#define TARN_TRANSPORT_HOST_H

#include "base/log.h"
#include "base/loop.h"
#include "base/resp/resp.h"
#include "transport/node_half.h"

struct tarn_attaching;
struct tarn_command_table;
struct tarn_conn;
struct tarn_control;
struct tarn_host;
struct tarn_session;
struct tarn_sessions;

/* What one host does in another way than the next. */
struct tarn_host_ops {
    /* tarn_command_run(), with `commands` besides those that every host has. */
    void (*run)(struct tarn_conn *c, const redisReply *request);
    const struct tarn_command_table *commands;
    /* Must a peer show a secret? */
    bool (*wants_secret)(const struct tarn_host *h);
    /* The peer has shown `given`. Sets c->authenticated, or c->admin, or fails with AUTH. */
    int (*authenticate)(struct tarn_conn *c, const redisReply *given);
    /* Adds the answer to HELLO. */
    void (*greet)(struct tarn_conn *c);
    /* Where an administrator has to go, for a refusal. */
    const char *(*unix_path)(const struct tarn_host *h);
    /* A file for a session's hazard page, which outlives the host. NULL, or *fd_p stays -1: the page is
     * anonymous. */
    int (*hazard_file)(struct tarn_session *s, size_t bytes, int *fd_p);
    /* A session's hazard page is to be looked at from now on, or no more. */
    int (*hazard_add)(struct tarn_session *s, struct tarn_hazard_page *page);
    void (*hazard_remove)(struct tarn_session *s, struct tarn_hazard_page *page);
    /* Nothing is written for the session any more; over: it is gone. Takes its reservations back. True: it
     * had some; then released() is called once the session's state is settled. */
    bool (*release)(struct tarn_session *s, bool over);
    void (*released)(struct tarn_host *h);
};

struct tarn_host_transport {
    const struct tarn_node_half_ops *ops;
    struct tarn_node_half *half;
};

struct tarn_host {
    const struct tarn_host_ops *ops;
    const struct tarn_logger *log;
    const char *id; /* for messages */
    struct tarn_loop *loop;
    struct tarn_host_transport transports[TARN_TRANSPORTS_MAX];
    uint32_t ntransports;
    struct tarn_sessions *sessions;
    struct tarn_control *control;
    struct tarn_attaching *attaching;       /* ATTACHes that wait for their transport */
    uint64_t connections, commands, errors; /* so far */
    struct tarn_refusals {
        uint64_t second_ns;        /* start of the current second */
        uint32_t logged, left_out; /* lines in this second; lines left out since the last one */
    } refusals;
};

#endif
