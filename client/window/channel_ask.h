/* SPDX-License-Identifier: Apache-2.0 */
/* Commands to the other end of a channel. Without the channels' lock. */
#ifndef TARN_CLIENT_WINDOW_CHANNEL_ASK_H
#define TARN_CLIENT_WINDOW_CHANNEL_ASK_H

#include "base/cancel.h"
#include "client/window/channels.h"

/* Begins the command: its name, and the channel as the peer calls it. */
void tarn_channel_say(struct tarn_channel *ch, struct tarn_command *c, const char *name);
/*
 * Sends it and waits for the answer. NODE_DOWN: the connection broke, or the peer has no such channel: the
 * channel has ended by that. Frees *c.
 */
int tarn_channel_ask(struct tarn_channel *ch, struct tarn_command *c, uint64_t deadline_ns,
                     struct tarn_cancel *cancel);
/* Has the keeper send it, without a deadline. Takes *c over. */
void tarn_channel_owe(struct tarn_channel *ch, struct tarn_command *c);
/* The channel has ended with NODE_DOWN. The peer may live: then it gets to know. */
int tarn_channel_broken(struct tarn_channel *ch, const char *cause);
/* Tells the peer that the channel has ended here. */
void tarn_channel_hangup(struct tarn_channel *ch);

#endif
