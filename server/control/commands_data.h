/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that need the store only, not the directory. */
#ifndef TARN_SERVER_COMMANDS_DATA_H
#define TARN_SERVER_COMMANDS_DATA_H

#include "server/control/control.h"

void tarn_command_reserve(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_abort(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_pin(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_unpin(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_pinned(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_touch(struct tarn_conn *c, size_t n, redisReply **args);
void tarn_command_evict(struct tarn_conn *c, size_t n, redisReply **args);

#endif
