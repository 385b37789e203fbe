/* SPDX-License-Identifier: Apache-2.0 */
/* What others leave to the monitor's threads (monitor.h). */
#ifndef TARN_CLIENT_ALERT_H
#define TARN_CLIENT_ALERT_H

#include <stdbool.h>

struct tarn_control_conn;
struct tarn_client;
struct tarn_peer_node;

/* Something needs the keeper: a node was set aside, a reply is owed, the table is old. */
void tarn_monitor_ask(struct tarn_client *c);
/* tarn_ops_expire() or tarn_links_tend() is to be called earlier than it said. */
void tarn_monitor_alarm(struct tarn_client *c);
/* Watches the connection for its end, if the node has no watched one yet; else false. */
bool tarn_monitor_watch(struct tarn_peer_node *node, struct tarn_control_conn *conn);
/* The keeper reads the reply that the connection owes (late_reply.c). */
void tarn_monitor_owe(struct tarn_client *c, struct tarn_control_conn *conn);

#endif
