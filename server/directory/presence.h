/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the others count on this node (docs/consistency.md, "Losing the directory" and "Nodes that were
 * away"). A node whose record has expired was given up: its copies may have been replaced and removed since.
 * Redis may also have lost what would tell.
 *
 *              +--------------------- all compared, and the record is still there --------------------+
 *              v                                                                                      |
 *   start --> HERE --the record is gone, and not for everybody's silence---------------------> COMPARING
 *              |  \                                                                            ^      ^
 *              |   \--another directory, found out within a ttl--> HERE, restoring --lost------|      |
 *              |                                                     |      again, given up: all freed
 *              |                                                     v                                |
 *              |                                              HERE, all published                     |
 *              |                                                                                      |
 *              +-----another directory, later, that is younger than a ttl--> WAITING --it was away ---|
 *              |                                                              |  alone, or given up:  |
 *              |         HERE, restoring <--all nodes say: Redis was away-----+  all freed            |
 *              +-----another directory, older than a ttl, or later in the same run of Redis: all freed--+
 *
 * HERE, the record gone for everybody's silence --> RECHECKING --the recheck set is freed--> HERE
 *
 * HERE is listed as ready, the others as returning: nobody reads there, nobody calls the node expired. A
 * comparison begins a heartbeat after the node has listed itself, since who found its record missing before
 * may withdraw its locations for so long; and when no commit is under way. RECHECKING: just before the
 * silence somebody may have been told that a displaced copy here cannot be read any more.
 *
 * Conflict, in any state: other nodes beat with another heartbeat, so this one's beats are refused. It is cut
 * off as from a Redis that is away: its record expires, it commits, restores and compares nothing. The first
 * beat that is taken again finds another directory, and decides.
 *
 * What a record says is decided from one beat's answer and written by the next, which is sent at once.
 * Records that are made come with a time limit by Redis's clock, so that a beat that is held up makes none
 * when the reason for it is gone.
 */
#ifndef TARN_SERVER_PRESENCE_H
#define TARN_SERVER_PRESENCE_H

#include "server/parts.h"

/* The record and the conditions of the next beat. */
void tarn_presence_fill(struct tarn_node *n, struct tarn_beat *b);
/* The first beat, which made the record. */
void tarn_presence_begin(struct tarn_node *n, const struct tarn_beat *b);
/* A beat was answered, and nobody else has the id. True: beat again at once. */
bool tarn_presence_beaten(struct tarn_node *n, const struct tarn_beat *b, uint64_t sent_ns);
/* Other nodes have the directory, with another heartbeat; `cause` says so. */
void tarn_presence_conflict(struct tarn_node *n, const char *cause);
/* The recheck set was read to its end. True: beat at once. */
bool tarn_presence_rechecked(const struct tarn_node *n);
/* May it commit? */
bool tarn_presence_here(const struct tarn_node *n);
/* May objects be compared with the directory now? Not before it has been told of them again. */
bool tarn_presence_scrubs(const struct tarn_node *n);
/* "ready", "returning", "draining". */
const char *tarn_node_state_name(const struct tarn_node *n);
/* "here", "restoring", "comparing", "rechecking", "waiting". */
const char *tarn_presence_name(const struct tarn_node *n);

#endif
