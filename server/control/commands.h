/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of docs/protocol.md. commands.c has the table and what people use, commands_data.c
 * what moves objects, commands_directory.c COMMIT, commands_displaced.c what ends copies everywhere.
 *
 * A handler adds exactly one reply to c->out, or calls tarn_conn_wait() and adds it later. Arguments
 * include the command's name; their number has been checked against the table.
 */
#ifndef TARN_SERVER_COMMANDS_H
#define TARN_SERVER_COMMANDS_H

#include "server/control/control.h"

#define TARN_PROTOCOL 1
#define TARN_PROTOCOL_OLDEST 1

typedef void (*tarn_command_fn)(struct tarn_conn *c, size_t n, redisReply **args);

void tarn_command_run(struct tarn_conn *c, const redisReply *request);

/* Adds the thread's last error as a reply. */
void tarn_reply_failure(struct tarn_conn *c, int code);
/* A number of an argument; INVALID names it. */
int tarn_arg_u64(const redisReply *arg, const char *what, int base, uint64_t max, uint64_t *out);
/* pool index, slot and generation of the three arguments from args[0]. */
int tarn_arg_slot(redisReply **args, uint32_t *pool, uint32_t *slot, uint64_t *gen);
/* A key; INVALID when empty or too long. */
int tarn_arg_key(const redisReply *arg, struct tarn_key *key);

/* commands_data.c */
void tarn_command_reserve(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_abort(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_pin(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_unpin(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_touch(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_evict(struct tarn_conn *c, size_t n, redisReply **args);

/* commands_directory.c */
void tarn_command_commit(struct tarn_conn *c, size_t n, redisReply **args);

/* commands_displaced.c */
void tarn_command_delete(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_release(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_settled(struct tarn_conn *c, size_t n, redisReply **args);

/* Keys outlive the store's own copies: the directory thread may still read them when an object is gone. */
struct tarn_key_copies {
    char *data; /* has room for all that are copied */
    size_t bytes;
};
void tarn_copy_key(struct tarn_key_copies *k, struct tarn_key *key);

/*
 * For a displaced copy in the directory's answer. True: the client need not release it, since it is freed here, and
 * taken out of the record where that names it. False: another node's, or one here whose own commit has not ended.
 */
bool tarn_free_displaced(struct tarn_node *n, const struct tarn_key *key, const struct tarn_location *l, bool named);
/* An array of "@<node>/<pool>=<offset>:<slot>:<gen>". */
void tarn_reply_copies(struct tarn_buf *out, const struct tarn_location *const *copies, size_t n);

#endif
