/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retiring takes a node's links and connections out of use; reaping closes them once nobody is inside. The
 * node is not told: its incarnation, this client's session or the connection itself is over.
 */
#ifndef TARN_CLIENT_RETIRE_H
#define TARN_CLIENT_RETIRE_H

#include <stdbool.h>

struct tarn_control_conn;
struct tarn_open_link;
struct tarn_peer_node;

void tarn_peer_node_retire(struct tarn_peer_node *node);
/* False: something retired is still in use. */
bool tarn_peer_node_reap(struct tarn_peer_node *node);
/* At close. */
void tarn_peer_node_free(struct tarn_peer_node *node);
void tarn_control_conn_drop(struct tarn_control_conn *conn);
/* tarn_link_close() also tells the node. */
void tarn_link_free(struct tarn_open_link *l);

#endif
