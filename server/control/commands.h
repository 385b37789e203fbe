/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of docs/protocol.md:
 *   commands.c            the table, and commands for operators
 *   commands_data.c       RESERVE, ABORT and other commands of the store
 *   commands_directory.c  COMMIT
 *   commands_displaced.c  DELETE, RELEASE, SETTLED
 *   attach.c              ATTACH, DETACH
 *   arguments.c           arguments and failures of all of them
 *
 * A handler adds exactly one reply to c->out, or calls tarn_conn_wait() and adds it later. Arguments
 * include the command's name. Their number has been checked against the table.
 */
#ifndef TARN_SERVER_COMMANDS_H
#define TARN_SERVER_COMMANDS_H

#include "server/control/control.h"

#define TARN_PROTOCOL 1
#define TARN_PROTOCOL_OLDEST 1

void tarn_command_run(struct tarn_conn *c, const redisReply *request);

#endif
