/* SPDX-License-Identifier: Apache-2.0 */
/* Control connections and the commands on them. A connection belongs to one thread at a time. */
#ifndef TARN_CLIENT_CONTROL_CONN_H
#define TARN_CLIENT_CONTROL_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/resp/resp.h"
#include "client/patience.h"
#include "client/peer_node.h"

/* Takes an idle connection or makes one, on which this incarnation has answered HELLO. NODE_DOWN, TIMEOUT
 * (these also judge the node's health); AUTH, VERSION. */
int tarn_control_conn_take(struct tarn_peer_node *node, uint64_t deadline_ns, struct tarn_cancel *cancel,
                           struct tarn_control_conn **conn_p);
enum tarn_control_conn_kind {
    TARN_CONTROL_CONN_ANY,
    TARN_CONTROL_CONN_LOCAL, /* over the Unix socket; NOT_REACHABLE when the node is elsewhere */
    /* A new one over TCP sends HELLO with the first command, so both take one round trip. A refused HELLO is
     * a failure of tarn_control_conn_reply(), which sets conn->refused. */
    TARN_CONTROL_CONN_EARLY,
};
/* The same, of that kind and with a patience for each step. */
int tarn_control_conn_take_in(struct tarn_peer_node *node, enum tarn_control_conn_kind kind,
                              struct tarn_steps *steps, struct tarn_cancel *cancel,
                              struct tarn_control_conn **conn_p);
/* Makes a connection, without judging the node's health. */
int tarn_control_conn_connect(struct tarn_peer_node *node, struct tarn_steps *steps,
                              struct tarn_cancel *cancel, struct tarn_control_conn **conn_p);
/* Gives it back. With a reply outstanding it goes to the keeper. NULL is allowed. */
void tarn_control_conn_give(struct tarn_control_conn *conn);
/* The same for a connection that this thread takes again soon: it does not become the watched one. */
void tarn_control_conn_rest(struct tarn_control_conn *conn);
int tarn_control_conn_send(struct tarn_control_conn *conn, const struct tarn_command *c, uint64_t deadline_ns,
                           struct tarn_cancel *cancel);
/* The same behind a command that was appended to conn->resp and not sent. Both replies are to be read. */
int tarn_control_conn_send_behind(struct tarn_control_conn *conn, const struct tarn_command *c,
                                  uint64_t deadline_ns, struct tarn_cancel *cancel);
/* Waits for the reply. An error in place of the whole reply is a failure. */
int tarn_control_conn_reply(struct tarn_control_conn *conn, uint64_t deadline_ns, struct tarn_cancel *cancel,
                            redisReply **reply_p);
/* The same; then judges the node's health by the outcome and gives the connection back. */
int tarn_control_conn_finish(struct tarn_control_conn *conn, uint64_t deadline_ns, struct tarn_cancel *cancel,
                             redisReply **reply_p);
/* Takes, sends and finishes. Waits for the keeper's word on a suspect node; NODE_DOWN when it is down. */
int tarn_control_conn_call(struct tarn_peer_node *node, const struct tarn_command *c, uint64_t deadline_ns,
                           struct tarn_cancel *cancel, redisReply **reply_p);
/* Converts a time of this host's clock to nanoseconds since the node's tick 0. HELLO was answered before. */
uint64_t tarn_peer_node_clock(struct tarn_peer_node *node, uint64_t when_ns);

#endif
