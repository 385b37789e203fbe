/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a lender answers to the other ends of channels. On the lender's thread.
 *
 *   LENDER    says who it is, and gives the secret of its control connections
 *   CONNECT   makes a channel, which waits to be accepted
 *   POST      announces a receive
 *   UNPOST    withdraws it
 *   DELIVER   ends a receive
 *   HANGUP    the peer has ended the channel
 *
 * The last four name the channel as this lender calls it; only the session that it belongs to may.
 */
#ifndef TARN_CLIENT_WINDOW_CHANNEL_COMMANDS_H
#define TARN_CLIENT_WINDOW_CHANNEL_COMMANDS_H

#include "client/window/channels.h"
#include "transport/host/commands.h"

/* As tarn_command_fn. */
int tarn_channel_command_lender(struct tarn_channels *all, struct tarn_conn *c, size_t n, redisReply **args);
int tarn_channel_command_connect(struct tarn_channels *all, struct tarn_conn *c, size_t n, redisReply **args);
int tarn_channel_command_post(struct tarn_channels *all, struct tarn_conn *c, size_t n, redisReply **args);
int tarn_channel_command_unpost(struct tarn_channels *all, struct tarn_conn *c, redisReply **args);
int tarn_channel_command_deliver(struct tarn_channels *all, struct tarn_conn *c, redisReply **args);
int tarn_channel_command_hangup(struct tarn_channels *all, struct tarn_conn *c, redisReply **args);

#endif
