/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the node table. */
#ifndef TARN_CLIENT_REFRESH_H
#define TARN_CLIENT_REFRESH_H

#include <stdint.h>

#include "base/cancel.h"
#include "metadata/directory.h"

struct tarn_client;

/* Reads the node table from the directory. */
int tarn_peer_nodes_refresh(struct tarn_client *c, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* NODE_DOWN with its sentence: the directory lists none, and an operation needs one. */
int tarn_peer_nodes_none(struct tarn_client *c);
/* Applies one record that was asked for at sent_ns (also used by a refresh). */
int tarn_peer_node_update(struct tarn_client *c, const struct tarn_node_record *n, uint64_t pass,
                          uint64_t sent_ns);

#endif
