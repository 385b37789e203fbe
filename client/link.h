/* SPDX-License-Identifier: Apache-2.0 */
/* Links to nodes. */
#ifndef TARN_CLIENT_LINK_H
#define TARN_CLIENT_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "client/peer_node.h"
#include "transport/transport.h"

/*
 * Makes the side usable. 0 with *l_p NULL: its link is shared, enter it; 0 with a link:
 * the caller's own until tarn_link_give or tarn_link_close. A node that is down or silent is set aside;
 * other errors but BUSY mark the side unreachable for a while. Where no other transport comes after its own,
 * what does not reach the node is waited for until the deadline; TIMEOUT then says what it was. patience_ns:
 * of each step. cancel may be NULL.
 */
int tarn_link_take(struct tarn_side *s, uint64_t deadline_ns, uint64_t patience_ns,
                   struct tarn_cancel *cancel, struct tarn_open_link **l_p, bool *fresh_p);
/* Only one that is at hand, of a node that is up; else NULL. */
struct tarn_open_link *tarn_link_take_idle(struct tarn_side *s);
void tarn_link_give(struct tarn_open_link *l);
/* A link for gets goes to those who look at the node's memory in place (view.c), for as long as the node is
 * up; nothing is posted on it any more. */
void tarn_link_lend(struct tarn_open_link *l);
/*
 * Closes the link. Where the node does not notice by itself it is told, and its answer waited for until the
 * deadline (0: not at all) or a cancel (NULL: none). False: it has not answered; the keeper tells it, and
 * until then what was written may still arrive. So bytes must not take another way into the same reservation;
 * an ABORT goes by the keeper, too, behind it.
 */
bool tarn_link_close(struct tarn_open_link *l, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* The keeper's round of links that wait to be used, which send what they have put off. Returns when to come
 * again. */
uint64_t tarn_links_tend(struct tarn_client *c);
/* The pooled links of a side are doubtful (one of them was dead): closes them. */
void tarn_link_flush(struct tarn_side *s);
/* A link broke that was new, as the last error says. Where another transport reaches the pool this side is
 * set aside for a while and the node doubted. False: there is none, so it is for the node to answer. */
bool tarn_link_lost(struct tarn_side *s, uint32_t pool, uint32_t gpu);
/* Does the node answer on another connection? NODE_DOWN, TIMEOUT: it does not. */
int tarn_link_ask_node(struct tarn_peer_node *node, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* A link gave no sign of life of the work since then, nor did any other of this side since quiet_ns, as the
 * last error says: the same, or as tarn_peer_node_silent() says. */
void tarn_link_silent(struct tarn_side *s, const struct tarn_work *w, uint64_t since_ns, uint64_t quiet_ns);
/* Why no transport is tried, as a code and a sentence. gpu: tarn_pieces_gpu(). */
int tarn_link_unreachable(struct tarn_peer_node *node, bool write, uint32_t gpu, char *text, size_t bytes);
#endif
