/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of docs/protocol.md:
 *   commands.c            the table, and commands for operators
 *   commands_data.c       RESERVE, ABORT and other commands of the store
 *   commands_directory.c  COMMIT, STORE
 *   commands_displaced.c  DELETE, RELEASE, SETTLED: they free copies on all nodes
 *   names.c               LEND, UNLEND
 * transport/host/commands.h has those that every host has.
 */
#ifndef TARN_SERVER_COMMANDS_H
#define TARN_SERVER_COMMANDS_H

#include "base/container.h"
#include "server/parts.h"
#include "transport/host/commands.h"

/* What STORE takes: the control thread copies the bytes. */
#define TARN_STORE_BYTES_MAX 65536

static inline struct tarn_node *tarn_conn_node(const struct tarn_conn *c)
{
    return TARN_CONTAINER_OF(c->host, struct tarn_node, host);
}

extern const struct tarn_command_table tarn_node_commands;
/* Of struct tarn_host_ops. */
int tarn_node_authenticate(struct tarn_conn *c, const redisReply *given);
void tarn_node_greet(struct tarn_conn *c);

tarn_command_fn tarn_command_reserve, tarn_command_abort, tarn_command_pin, tarn_command_unpin,
    tarn_command_pinned, tarn_command_touch, tarn_command_evict, tarn_command_commit, tarn_command_store,
    tarn_command_delete, tarn_command_release, tarn_command_settled, tarn_command_lend, tarn_command_unlend;

/* --- commands_data.c ----------------------------------------------------------------------------- */

/* Updates reserving_since_ns. To be called after reservations were added or ended. */
void tarn_reservations_changed(struct tarn_session *s);

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
