/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a node answer? The first failure seen anywhere makes it SLOW (silent for longer than its patience) or
 * GONE (its connection broke), and suspect until the keeper (monitor.c) has asked it, which happens at once.
 * Only the keeper makes it UP again. Calls with no other copy or node wait for the keeper's word; all others
 * go elsewhere. So a hiccup costs a round trip, a failure costs one bounded delay, and no get or put tries a
 * node that is known to be in trouble.
 *
 * A caller's deadline may be shorter than the patience. The node then stays UP, but is doubted: the keeper
 * asks it, and only its silence towards the keeper counts.
 */
#ifndef TARN_CLIENT_HEALTH_H
#define TARN_CLIENT_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "client/peer_node.h"

/* Sets the node aside until the keeper has seen it answer. cause: for the log. */
void tarn_peer_node_aside(struct tarn_peer_node *node, enum tarn_health h, const char *cause);
/* How long it may be silent before another copy or node is tried. */
uint64_t tarn_peer_node_patience(const struct tarn_peer_node *node);
/* Takes a measured round trip. */
void tarn_peer_node_answered(struct tarn_peer_node *node, uint64_t rtt_ns);
/* Something asked at since_ns has failed with rc. cause: for the log. NODE_DOWN: the node is gone. TIMEOUT:
 * it was silent; aside after its patience, else doubted. Other codes say nothing of its health. */
void tarn_peer_node_failed(struct tarn_peer_node *node, int rc, const char *cause, uint64_t since_ns);
/* Has the keeper ask the node. */
void tarn_peer_node_doubt(struct tarn_peer_node *node);
/* Is it up? Waits for the keeper's word on a suspect: a moment, or the patience of each silent suspect. Does
 * not wait for nodes known to be down. */
bool tarn_peer_node_settled(struct tarn_peer_node *node, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* The keeper's word on a suspect. */
void tarn_peer_node_judged(struct tarn_peer_node *node, bool up);

#endif
