/* SPDX-License-Identifier: Apache-2.0 */
/* Owed commands: the keeper repeats them until the node has answered. */
#ifndef TARN_CLIENT_OWED_COMMAND_H
#define TARN_CLIENT_OWED_COMMAND_H

#include <stdbool.h>

#include "base/resp/command.h"

struct tarn_monitor;
struct tarn_peer_node;

/* The keeper sends the command (DETACH, ABORT: what may be said twice) until the node has answered it or
 * its incarnation is over. Takes *c over. */
void tarn_owed_command_add(struct tarn_peer_node *node, struct tarn_command *c);
/* One round of the keeper; true when it should come again soon. */
bool tarn_owed_commands_run(struct tarn_monitor *m);
void tarn_owed_commands_end(struct tarn_monitor *m);

#endif
