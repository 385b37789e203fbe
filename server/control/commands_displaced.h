/* SPDX-License-Identifier: Apache-2.0 */
/* DELETE, RELEASE, SETTLED: copies that are to go wherever they are. */
#ifndef TARN_SERVER_COMMANDS_DISPLACED_H
#define TARN_SERVER_COMMANDS_DISPLACED_H

#include "server/control/control.h"

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
 * For a displaced copy in the directory's answer. True: the client need not release it, since it is freed
 * here, and taken out of the record where that names it. False: another node's, or one here whose own commit
 * has not ended.
 */
bool tarn_free_displaced(struct tarn_node *n, const struct tarn_key *key, const struct tarn_location *l,
                         bool named);
/* An array of "@<node>/<pool>=<offset>:<slot>:<gen>". */
void tarn_reply_copies(struct tarn_buf *out, const struct tarn_location *const *copies, size_t n);

#endif
