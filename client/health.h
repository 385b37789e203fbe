/* SPDX-License-Identifier: Apache-2.0 */
/* Does a node answer? */
#ifndef TARN_CLIENT_HEALTH_H
#define TARN_CLIENT_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "client/peer_node.h"

/* Sets the node aside: no get or put waits for it again until the keeper has seen it answer. */
void tarn_peer_node_aside(struct tarn_peer_node *node, enum tarn_health h, const char *why);
/* How long it may keep silent before another copy or node is tried. */
uint64_t tarn_peer_node_patience(const struct tarn_peer_node *node);
/* It answered after so long. */
void tarn_peer_node_answered(struct tarn_peer_node *node, uint64_t rtt_ns);
/* It did not answer what it was asked at since_ns, as the last error says: aside after its patience, else
 * doubted. */
void tarn_peer_node_silent(struct tarn_peer_node *node, uint64_t since_ns);
/* A call ran out of time, which may be the node's doing: the keeper finds out. */
void tarn_peer_node_doubt(struct tarn_peer_node *node);
/* Waits until the keeper has asked a suspect node (which takes a moment, or the patience for each suspect
 * that keeps silent): is it up? Does not wait for nodes that are known to be down. cancel may be NULL. */
bool tarn_peer_node_settled(struct tarn_peer_node *node, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* The keeper's word on a suspect. */
void tarn_peer_node_judged(struct tarn_peer_node *node, bool up);

#endif
