/* SPDX-License-Identifier: Apache-2.0 */
/* Taking connections and links to a node out of use, and closing them. */
#ifndef TARN_CLIENT_RETIRE_H
#define TARN_CLIENT_RETIRE_H

#include <stdbool.h>

struct tarn_control_conn;
struct tarn_open_link;
struct tarn_peer_node;

/* Its pools, whatever they hold, are void: links are taken out of use (closed when nobody is inside). */
void tarn_peer_node_retire(struct tarn_peer_node *node);
/* Closes what was retired and is no longer in use; false when something still is. */
bool tarn_peer_node_reap(struct tarn_peer_node *node);
/* Frees a remote and all it holds; at close. */
void tarn_peer_node_free(struct tarn_peer_node *node);
/* Closes a connection. */
void tarn_control_conn_drop(struct tarn_control_conn *conn);
/* Closes a link whose node needs no telling: its incarnation or this client's session is over.
 * tarn_link_close() tells it. */
void tarn_link_free(struct tarn_open_link *l);

#endif
