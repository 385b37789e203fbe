/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes by incarnation, and what their records say. */
#ifndef TARN_CLIENT_PEER_NODES_H
#define TARN_CLIENT_PEER_NODES_H

#include <stdbool.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "metadata/directory.h"

struct tarn_client;
struct tarn_peer_node;
struct tarn_side;

/* The incarnation (id, low half of epoch); made when it is new. NULL: out of memory. */
struct tarn_peer_node *tarn_peer_node_of(struct tarn_client *c, const char *id, uint32_t epoch);
/* Index of the pool by name, or -1. */
int tarn_peer_node_pool(struct tarn_peer_node *node, const char *name);
/* Its name by index; "" when unknown. */
void tarn_peer_node_pool_name(struct tarn_peer_node *node, uint32_t index, char out[TARN_POOL_NAME_MAX + 1]);
/* "n1 (127.0.0.1:7700)" for sentences. */
const char *tarn_peer_node_text(struct tarn_peer_node *node, char out[352]);
/* Says at debug level which way an item's bytes are about to take. */
void tarn_tell_route(const struct tarn_side *s, const struct tarn_key *key, uint32_t pool, uint32_t gpu);

#endif
