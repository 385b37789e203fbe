/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a node in order:
 *   READY --SIGTERM, DRAIN--> DRAINING     no new reservations; the record says so at once
 *   DRAINING --none left, or time is up--> WITHDRAWING   no commits; own objects leave the directory
 *   WITHDRAWING --done, or Redis fails--> the node's record goes, the loop ends; before that, commits that
 *     were begun are waited for (twice the time limit of Redis at most): they fail, and what the directory
 *     took of them is withdrawn
 * A node whose id was taken by another starts at WITHDRAWING and leaves no record behind to remove.
 */
#ifndef TARN_SERVER_DRAIN_H
#define TARN_SERVER_DRAIN_H

#include "server/parts.h"

/* True: it begins now, so the record's state has changed. */
bool tarn_drain_begin(struct tarn_node *n);
/* Goes on if it can: reservations have ended, or time has gone by. */
void tarn_drain_check(struct tarn_node *n);
/* Another living node has this node's id. */
void tarn_drain_taken(struct tarn_node *n, uint64_t other_epoch);

#endif
