/* SPDX-License-Identifier: Apache-2.0 */
/* The node table: nodes' records in the directory. */
#ifndef TARN_CLIENT_REFRESH_H
#define TARN_CLIENT_REFRESH_H

#include <stdint.h>

#include "base/cancel.h"
#include "metadata/directory.h"

struct tarn_client;

/* Reads the node table, or waits for another thread that does. */
int tarn_peer_nodes_refresh(struct tarn_client *c, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* Fails with NODE_DOWN: an operation needs a node, and the directory lists none. */
int tarn_peer_nodes_none(struct tarn_client *c);
/* Applies one record, which was asked for at sent_ns. */
int tarn_peer_node_update(struct tarn_client *c, const struct tarn_node_record *n, uint64_t pass,
                          uint64_t sent_ns);

#endif
