/* SPDX-License-Identifier: Apache-2.0 */
/* COMMIT. */
#ifndef TARN_SERVER_COMMANDS_DIRECTORY_H
#define TARN_SERVER_COMMANDS_DIRECTORY_H

#include "server/control/control.h"

void tarn_command_commit(struct tarn_conn *c, size_t n, redisReply **args);

#endif
