/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links: a transport's client half to one node, for gets or for puts (a side). The first use sends ATTACH
 * over a control connection and lets the transport connect. The result makes the side shared (one link,
 * entered by any thread) or pooled (a link for each caller, kept for the next).
 *
 *   UNKNOWN --> OPENING --> SHARED | POOLED          SHARED --retired--> UNKNOWN
 *                       \-> UNREACHABLE --later--> tried again       (node failure) --> UNKNOWN
 *
 * One thread opens a side and others wait for it: a second mapping of a pool would be wasted work. A side
 * being retried is waited for only if it is the last transport, until the caller's deadline; otherwise
 * callers use the next one.
 *
 * A missing answer to ATTACH may be the node's silence or the transport's alone, since some transports ask
 * the network first. So the node is asked on another connection. If it answers there, only this side is
 * UNREACHABLE for a while; if not, the node is silent. The same holds for a transport that asks the network
 * while connecting.
 *
 * When a new link breaks at once, the node may have failed or only the transport's own network. Where another
 * transport reaches the pool, the side is set aside and the node is only doubted.
 *
 * One-sided links put off work that nobody waits for (times of last use). The next get sends it; if none
 * follows, the keeper has it sent.
 */
#ifndef TARN_CLIENT_LINK_H
#define TARN_CLIENT_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "client/peer_node.h"
#include "transport/transport.h"

/*
 * Makes the side usable. 0 with *l_p NULL: its link is shared, enter it. 0 with a link: the caller's own
 * until tarn_link_give() or tarn_link_close(). A node that is down or silent is set aside; other failures but
 * BUSY make the side unreachable for a while. TIMEOUT of the last transport says what it waited for.
 * patience_ns: of each step.
 */
int tarn_link_take(struct tarn_side *s, uint64_t deadline_ns, uint64_t patience_ns,
                   struct tarn_cancel *cancel, struct tarn_open_link **l_p, bool *fresh_p);
/* An idle link of a node that is up, or NULL. */
struct tarn_open_link *tarn_link_take_idle(struct tarn_side *s);
/* Gives the link back to its side. */
void tarn_link_give(struct tarn_open_link *l);
/* Lends a link for gets to views, as the side's shared link. Nothing is posted on it any more. */
void tarn_link_lend(struct tarn_open_link *l);
/*
 * Closes the link. Where the node does not notice that by itself, it gets DETACH; the answer is waited for
 * until the deadline (0: not at all). False: it has not answered, and the keeper repeats DETACH. Until then
 * bytes written may still arrive, so no other way may write to the same reservation; an ABORT goes through
 * the keeper, behind the DETACH.
 */
bool tarn_link_close(struct tarn_open_link *l, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* The keeper's round: idle links send what they have put off. Returns when to come again. */
uint64_t tarn_links_tend(struct tarn_client *c);
/* Closes a side's idle links, after one of them was found dead. */
void tarn_link_flush(struct tarn_side *s);
/* A new link broke. Where another transport reaches the pool, sets this side aside for a while and doubts the
 * node: true. False: there is none, so the node has failed. cause: for the log. */
bool tarn_link_lost(struct tarn_side *s, uint32_t pool, uint32_t gpu, const char *cause);
/* Does the node answer on another connection? NODE_DOWN, TIMEOUT: it does not. */
int tarn_link_ask_node(struct tarn_peer_node *node, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* A link was silent about the work since since_ns, and the side's others since quiet_ns. Acts like
 * tarn_link_lost() or tarn_peer_node_failed(). */
void tarn_link_silent(struct tarn_side *s, const struct tarn_work *w, uint64_t since_ns, uint64_t quiet_ns,
                      const char *cause);
/* Fails with why no transport is tried. write: for a put; gpu: tarn_pieces_gpu(). */
int tarn_link_unreachable(struct tarn_peer_node *node, bool write, uint32_t gpu);

#endif
