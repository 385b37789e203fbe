/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of docs/protocol.md:
 *   commands.c            the table, and commands for operators
 *   commands_data.c       RESERVE, ABORT and other commands of the store
 *   commands_directory.c  COMMIT
 *   commands_displaced.c  DELETE, RELEASE, SETTLED: they free copies on all nodes
 *   attach.c              ATTACH, DETACH
 *   arguments.c           arguments and failures of all of them
 */
#ifndef TARN_SERVER_COMMANDS_H
#define TARN_SERVER_COMMANDS_H

#include "server/control/control.h"

#define TARN_PROTOCOL 1
#define TARN_PROTOCOL_OLDEST 1

void tarn_command_run(struct tarn_conn *c, const redisReply *request);

/*
 * A handler adds exactly one reply to c->out, or calls tarn_conn_wait() and adds it later, or returns a
 * failure, which becomes the reply. Arguments include the command's name. Their number has been checked
 * against the table.
 */
typedef int tarn_command_fn(struct tarn_conn *c, size_t n, redisReply **args);

tarn_command_fn tarn_command_reserve, tarn_command_abort, tarn_command_pin, tarn_command_unpin,
    tarn_command_pinned, tarn_command_touch, tarn_command_evict, tarn_command_commit, tarn_command_delete,
    tarn_command_release, tarn_command_settled, tarn_command_attach, tarn_command_detach;

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

/* Frees all ATTACHes that still wait. The transports must have stopped. */
void tarn_attaching_free(struct tarn_node *n);

/* --- commands_displaced.c ----------------------------------------------------------------------- */

/*
 * Frees a displaced copy that the directory's answer names, if it is this node's. named: the record names it,
 * so it is withdrawn, too. True: the client need not release it. False: it is another node's, or its own
 * commit has not ended.
 */
bool tarn_free_displaced(struct tarn_node *n, const struct tarn_key *key, const struct tarn_location *l,
                         bool named);
/* Adds each copy as "@<node>/<pool>=<offset>:<slot>:<gen>". */
void tarn_reply_copies(struct tarn_buf *out, const struct tarn_location *const *copies, size_t n);

#endif
