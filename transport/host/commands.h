/* SPDX-License-Identifier: Apache-2.0 */
/* Commands on control connections: the table, those that every host has, and what handlers need. */
#ifndef TARN_TRANSPORT_HOST_COMMANDS_H
#define TARN_TRANSPORT_HOST_COMMANDS_H

#include "transport/host/control.h"

#define TARN_PROTOCOL 1
#define TARN_PROTOCOL_OLDEST 1

/*
 * A handler adds exactly one reply to c->out, or calls tarn_conn_wait() and adds it later, or returns a
 * failure, which becomes the reply. Arguments include the command's name. Their number has been checked
 * against the table.
 */
typedef int tarn_command_fn(struct tarn_conn *c, size_t n, redisReply **args);

/* Who may. */
enum tarn_right {
    TARN_ANYBODY, /* without the secret, too */
    TARN_TRUSTED, /* who has shown the secret, and administrators */
    TARN_SESSION, /* after HELLO, which wants the secret */
    TARN_ADMIN,
};

struct tarn_control_command {
    const char *name;
    tarn_command_fn *fn;
    size_t min_args; /* with the name */
    size_t head;     /* arguments before the items, with the name; 0: no items */
    size_t item;     /* arguments of an item */
    enum tarn_right right;
    const char *usage;
};

/* What a host adds to HELLO, AUTH, PING, QUIT, HELP, COMMAND, CLIENT, ATTACH and DETACH. */
struct tarn_command_table {
    const struct tarn_control_command *commands;
    size_t n;
    const char *note; /* HELP's last line */
};

/* Runs a request: adds exactly one reply to c->out, or calls tarn_conn_wait() and has it added later. */
void tarn_command_run(struct tarn_conn *c, const redisReply *request);

/* Is this the secret? Takes as long whatever the two have in common. */
bool tarn_secret_is(const char *secret, const redisReply *given);

/* Adds a name and its value, as in the answer to HELLO. */
void tarn_reply_pair(struct tarn_buf *out, const char *name, const char *value);
void tarn_reply_pair_u64(struct tarn_buf *out, const char *name, uint64_t value);

/* --- arguments.c -------------------------------------------------------------------------------- */

/* Adds the thread's last error as a reply. */
void tarn_reply_failure(struct tarn_conn *c, int code);
/* A number of an argument; INVALID names it. */
int tarn_arg_u64(const redisReply *arg, const char *what, int base, uint64_t max, uint64_t *out);
/* Pool index, slot and generation from args[0], args[1] and args[2]. */
int tarn_arg_slot(redisReply **args, uint32_t *pool, uint32_t *slot, uint64_t *gen);
/* A key; INVALID when empty or too long. */
int tarn_arg_key(const redisReply *arg, struct tarn_key *key);

/* --- attach.c ----------------------------------------------------------------------------------- */

tarn_command_fn tarn_command_attach, tarn_command_detach;
/* Frees all ATTACHes that still wait. The transports must have stopped. */
void tarn_attaching_free(struct tarn_host *h);

#endif
