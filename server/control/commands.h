/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of docs/protocol.md. commands.c has the table and what people use, commands_data.c
 * what moves objects, commands_directory.c COMMIT, commands_displaced.c what ends copies everywhere, attach.c
 * ATTACH and DETACH; arguments.c what they have in common.
 *
 * A handler adds exactly one reply to c->out, or calls tarn_conn_wait() and adds it later. Arguments
 * include the command's name; their number has been checked against the table.
 */
#ifndef TARN_SERVER_COMMANDS_H
#define TARN_SERVER_COMMANDS_H

#include "server/control/control.h"

#define TARN_PROTOCOL 1
#define TARN_PROTOCOL_OLDEST 1

void tarn_command_run(struct tarn_conn *c, const redisReply *request);

#endif
