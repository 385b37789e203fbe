/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's recheck set: displaced copies that it is to free if it still holds them. Read at every
 * heartbeat, and again at once while it has any that can go. All on the control thread.
 */
#ifndef TARN_SERVER_RECHECK_H
#define TARN_SERVER_RECHECK_H

#include "server/parts.h"

struct tarn_recheck;

/* all_read: the set was read to its end. */
int tarn_recheck_new(struct tarn_node *n, void (*all_read)(struct tarn_node *n), struct tarn_recheck **r_p);
void tarn_recheck_free(struct tarn_recheck *r);
void tarn_recheck_tick(struct tarn_recheck *r);
/* Begins to read the set, or to read it once more. Returns what tarn_recheck_rounds() has reached once all
 * that is in the set now has been freed. */
uint64_t tarn_recheck_anew(struct tarn_recheck *r);
/* How many times the set was read to its end. */
uint64_t tarn_recheck_rounds(const struct tarn_recheck *r);

/*
 * Frees a copy of this node that is displaced. False: its own commit has not ended, which will free it; until
 * then it can be read.
 */
bool tarn_recheck_free_copy(struct tarn_node *n, const struct tarn_location *l);

#endif
