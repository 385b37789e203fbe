/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a node in order:
 *   READY --SIGTERM, DRAIN--> DRAINING     no new reservations; the record says so at once
 *   DRAINING --none left, or time is up--> WITHDRAWING   no commits; own objects leave the directory
 *   WITHDRAWING --done, or Redis fails--> the node's record goes, the loop ends; before that, commits that
 *     have begun are waited for, at most twice --redis-timeout-ms: they fail, and what the directory took of
 *     them is withdrawn
 * A node whose id another node has taken starts at WITHDRAWING, and leaves the record to the other node.
 */
#ifndef TARN_SERVER_DRAIN_H
#define TARN_SERVER_DRAIN_H

#include "server/parts.h"

/* True: the drain begins now; the state in the record has changed. */
bool tarn_drain_begin(struct tarn_node *n);
/* Takes the next step if it can: all reservations have ended, or time is up. */
void tarn_drain_check(struct tarn_node *n);
/* Another living node has this node's id. */
void tarn_drain_taken(struct tarn_node *n, uint64_t other_epoch);

#endif
