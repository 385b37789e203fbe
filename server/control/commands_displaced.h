/* SPDX-License-Identifier: Apache-2.0 */
/* DELETE, RELEASE, SETTLED: they free copies on all nodes. */
#ifndef TARN_SERVER_COMMANDS_DISPLACED_H
#define TARN_SERVER_COMMANDS_DISPLACED_H

#include "server/control/control.h"

void tarn_command_delete(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_release(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_settled(struct tarn_conn *c, size_t n, redisReply **args);

/* Copies of keys. The directory thread may still read a key after the store has freed its object. */
struct tarn_key_copies {
    char *data; /* room for all keys */
    size_t bytes;
};
void tarn_copy_key(struct tarn_key_copies *k, struct tarn_key *key);

/*
 * Frees a displaced copy that the directory's answer names, if it is this node's. named: the record names it,
 * so it is withdrawn, too. True: the client need not release it. False: it is another node's, or its own
 * commit has not ended.
 */
bool tarn_free_displaced(struct tarn_node *n, const struct tarn_key *key, const struct tarn_location *l,
                         bool named);
/* An array of "@<node>/<pool>=<offset>:<slot>:<gen>". */
void tarn_reply_copies(struct tarn_buf *out, const struct tarn_location *const *copies, size_t n);

#endif
