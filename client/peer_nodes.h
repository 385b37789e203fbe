/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's nodes. There is one struct for each incarnation (id, low half of the epoch). Generations carry
 * the same 32 bits, so a descriptor names exactly the incarnation that wrote it. Structs live as long as the
 * client, so descriptors may point to them.
 */
#ifndef TARN_CLIENT_PEER_NODES_H
#define TARN_CLIENT_PEER_NODES_H

#include <stdbool.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "base/resp/resp.h"
#include "metadata/directory.h"

struct tarn_client;
struct tarn_peer_node;
struct tarn_side;

#define TARN_NODE_TEXT 352

/* Finds or makes it. NULL: out of memory. */
struct tarn_peer_node *tarn_peer_node_of(struct tarn_client *c, const char *id, uint32_t epoch);
/* Index of the pool by name, or -1. */
int tarn_peer_node_pool(struct tarn_peer_node *node, const char *name);
/* Its name by index; "" when unknown. */
void tarn_peer_node_pool_name(struct tarn_peer_node *node, uint32_t index, char out[TARN_POOL_NAME_MAX + 1]);
/* "n1 (127.0.0.1:7700)" for sentences. */
const char *tarn_peer_node_text(struct tarn_peer_node *node, char out[TARN_NODE_TEXT]);
/* tarn_resp_error() of an answer by this node. */
int tarn_peer_node_error(struct tarn_peer_node *node, const redisReply *reply);
/* tarn_fail() with the node's name and address in front of the sentence. */
int tarn_peer_node_fail(struct tarn_peer_node *node, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Logs at debug level which way an item's bytes will take. */
void tarn_tell_route(const struct tarn_side *s, const struct tarn_key *key, uint32_t pool, uint32_t gpu);
/* The same of a "put" or "get" by something that is no side. */
void tarn_tell_way(struct tarn_peer_node *node, const char *what, const char *transport,
                   const struct tarn_key *key, uint32_t pool, uint32_t gpu);

#endif
