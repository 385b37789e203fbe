/* SPDX-License-Identifier: Apache-2.0 */
/* Work for the monitor's threads (monitor.h), handed over by any thread. */
#ifndef TARN_CLIENT_ALERT_H
#define TARN_CLIENT_ALERT_H

#include <stdbool.h>

struct tarn_control_conn;
struct tarn_client;
struct tarn_peer_node;

/* Wakes the keeper for a round: a node was set aside, a command is owed, the node table is old. */
void tarn_monitor_ask(struct tarn_client *c);
/* Wakes the keeper because tarn_ops_expire() or tarn_links_tend() is due earlier than it said. */
void tarn_monitor_alarm(struct tarn_client *c);
/* The watcher watches the connection for its end. False: the node has a watched connection already. */
bool tarn_monitor_watch(struct tarn_peer_node *node, struct tarn_control_conn *conn);
/* The keeper takes the connection over and reads the reply that is outstanding (late_reply.h). */
void tarn_monitor_owe(struct tarn_client *c, struct tarn_control_conn *conn);

#endif
