/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of commands, and failures as replies. */
#ifndef TARN_SERVER_ARGUMENTS_H
#define TARN_SERVER_ARGUMENTS_H

#include "server/control/control.h"

/* Adds the thread's last error as a reply. */
void tarn_reply_failure(struct tarn_conn *c, int code);
/* A number of an argument; INVALID names it. */
int tarn_arg_u64(const redisReply *arg, const char *what, int base, uint64_t max, uint64_t *out);
/* Pool index, slot and generation from args[0], args[1] and args[2]. */
int tarn_arg_slot(redisReply **args, uint32_t *pool, uint32_t *slot, uint64_t *gen);
/* A key; INVALID when empty or too long. */
int tarn_arg_key(const redisReply *arg, struct tarn_key *key);

#endif
