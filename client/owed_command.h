/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owed commands: DETACHes and ABORTs that their node did not answer. What they release would stay writable or
 * reserved for as long as this client lives, so the keeper repeats them until the node answers or its
 * incarnation is over. Repeating them does no harm. A node gets them in order, and nothing overtakes them: it
 * must not free a reservation before DETACH has cut off whoever could still write to it.
 */
#ifndef TARN_CLIENT_OWED_COMMAND_H
#define TARN_CLIENT_OWED_COMMAND_H

#include <stdbool.h>

#include "base/resp/command.h"

struct tarn_monitor;
struct tarn_peer_node;

/* Takes *c over. */
void tarn_owed_command_add(struct tarn_peer_node *node, struct tarn_command *c);
/* One round of the keeper. True: it should come again soon. */
bool tarn_owed_commands_run(struct tarn_monitor *m);
/* At close. */
void tarn_owed_commands_end(struct tarn_monitor *m);

#endif
