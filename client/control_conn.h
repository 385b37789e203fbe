/* SPDX-License-Identifier: Apache-2.0 */
/* Control commands. */
#ifndef TARN_CLIENT_CONTROL_CONN_H
#define TARN_CLIENT_CONTROL_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/resp/resp.h"
#include "client/patience.h"
#include "client/peer_node.h"

/* A connection on which HELLO was answered by this incarnation. NODE_DOWN, TIMEOUT (and the node is set
 * aside); AUTH, VERSION. local_only: over the Unix socket or NOT_REACHABLE. */
int tarn_control_conn_take(struct tarn_peer_node *node, bool local_only, uint64_t deadline_ns,
                           struct tarn_cancel *cancel, struct tarn_control_conn **conn_p);
/* The same with a patience for each step. */
int tarn_control_conn_take_in(struct tarn_peer_node *node, bool local_only, struct tarn_steps *steps,
                              struct tarn_cancel *cancel, struct tarn_control_conn **conn_p);
/* The same, and a new one over TCP has not had its HELLO answered: that is sent with the command that
 * follows, and its failure is that of tarn_control_conn_reply(), with call->refused set. */
int tarn_control_conn_take_early(struct tarn_peer_node *node, struct tarn_steps *steps,
                                 struct tarn_cancel *cancel, struct tarn_control_conn **conn_p);
/* A new one, never from the pool; does not judge the node's health. */
int tarn_control_conn_connect(struct tarn_peer_node *node, struct tarn_steps *steps,
                              struct tarn_cancel *cancel, struct tarn_control_conn **conn_p);
/* Back to the pool; a connection that still owes a reply is looked after by the keeper. NULL is allowed. */
void tarn_control_conn_give(struct tarn_control_conn *conn);
/* The same for one that this thread needs again in a moment: it is not made the one that is watched. */
void tarn_control_conn_rest(struct tarn_control_conn *conn);
int tarn_control_conn_send(struct tarn_control_conn *conn, const struct tarn_command *c, uint64_t deadline_ns,
                           struct tarn_cancel *cancel);
/* Waits for the reply; an error reply to the whole command is a failure. cancel may be NULL. */
int tarn_control_conn_reply(struct tarn_control_conn *conn, uint64_t deadline_ns, struct tarn_cancel *cancel,
                            redisReply **reply_p);
/* Sends and waits. A node set aside a moment ago is waited for, one known to be down is NODE_DOWN. */
int tarn_control_conn_call(struct tarn_peer_node *node, const struct tarn_command *c, uint64_t deadline_ns,
                           struct tarn_cancel *cancel, redisReply **reply_p);
/* A moment of this host's clock as nanoseconds since the node's tick 0; HELLO was answered before. */
uint64_t tarn_peer_node_clock(struct tarn_peer_node *node, uint64_t when_ns);

#endif
