/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the other nodes count on this one (docs/consistency.md, "Losing the directory" and "Nodes that were
 * away"). When the node's record has expired, the others have given the node up: its copies may have been
 * replaced and removed since. Redis may also have lost the records that would show this.
 *
 * States. A node starts as HERE.
 *   HERE        the node commits. While `restoring`, it publishes its objects again
 *   COMPARING   the node compares its objects with the directory (scrub.h)
 *   RECHECKING  the node frees the copies in its recheck set (recheck.h)
 *   WAITING     the node waits to learn whether the other nodes were cut off from Redis, too
 *
 * HERE is listed as "ready", the others as "returning". No client reads from a returning node. No client and
 * no other node calls it expired.
 *
 * Transitions. The first line that fits counts. "All freed": the node frees all objects, then is COMPARING.
 *   state            what a beat finds                                                 next
 *   not HERE         another directory                                                 all freed
 *   HERE, restoring  another directory                                                 all freed
 *   HERE             another directory, a ttl old or older                             all freed
 *   HERE             another directory, less than a ttl after the last good beat       HERE, restoring
 *   HERE             another directory in the same run of Redis                        all freed
 *   HERE             another directory                                                 WAITING
 *   HERE (both)      the record gone before it expired, for the first time             no change
 *   HERE, restoring  the record gone                                                   all freed
 *   WAITING          the record gone                                                   all freed
 *   HERE             the record gone; no node beat from before its expiry until now    RECHECKING
 *   any              the record gone                                                   COMPARING
 *   HERE, restoring  all objects are published                                         HERE
 *   COMPARING        all objects are compared, and the record is still there           HERE
 *   RECHECKING       the recheck set is freed                                          HERE
 *   WAITING          the directory is a ttl old, and all nodes were cut off            HERE, restoring
 *   WAITING          the directory is a ttl old, and not all nodes say that they were  all freed
 *
 * Rules
 * - A record that is gone before it expired means that the directory was lost, perhaps between the two round
 *   trips of the beat. The next beat shows it.
 * - A comparison begins one heartbeat after the node has listed itself. Until then, nodes that found its
 *   record missing may withdraw its locations.
 * - A comparison begins only when no commit is under way.
 * - RECHECKING: just before the silence, a client may have been told that no reader can get a displaced copy
 *   of this node any more.
 * - Conflict, in any state: other nodes have another heartbeat, so this node's beats are refused. The node is
 *   cut off as if Redis were away: its record expires, and it commits, restores and compares nothing. The
 *   first beat that is accepted again finds another directory, and the table above decides.
 * - The answer of a beat decides what the record says. The next beat, which is sent at once, writes it.
 * - A beat that makes a record carries a time limit by Redis's clock. A beat that is delayed until its reason
 *   is gone makes no record.
 */
#ifndef TARN_SERVER_PRESENCE_H
#define TARN_SERVER_PRESENCE_H

#include "server/parts.h"

/* The record and the conditions of the next beat. */
void tarn_presence_fill(struct tarn_node *n, struct tarn_beat *b);
/* The first beat, which made the record. */
void tarn_presence_begin(struct tarn_node *n, const struct tarn_beat *b);
/* Goes on with the presence that a state directory has. False: it has none, and the node must hold nothing.
 */
bool tarn_presence_take_over(struct tarn_node *n);
/* A beat was answered, and no other node has the id. True: beat again at once. */
bool tarn_presence_beaten(struct tarn_node *n, const struct tarn_beat *b, uint64_t sent_ns);
/* Other nodes have the directory, with another heartbeat; `cause` says so. */
void tarn_presence_conflict(struct tarn_node *n, const char *cause);
/* The recheck set was read to its end. True: beat at once. */
bool tarn_presence_rechecked(const struct tarn_node *n);
/* May the node commit? */
bool tarn_presence_here(const struct tarn_node *n);
/* May the scrub compare objects with the directory? Not before they are published again, after a loss. */
bool tarn_presence_scrubs(const struct tarn_node *n);
/* "ready", "returning", "draining". */
const char *tarn_node_state_name(const struct tarn_node *n);
/* "here", "restoring", "comparing", "rechecking", "waiting". */
const char *tarn_presence_name(const struct tarn_node *n);

#endif
