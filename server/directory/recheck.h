/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's recheck set in Redis: displaced copies that this node must free if it still holds them. It is
 * read at every heartbeat, and again at once while it has copies that can be freed. On the control thread
 * only.
 */
#ifndef TARN_SERVER_RECHECK_H
#define TARN_SERVER_RECHECK_H

#include "server/directory/directory_thread.h"
#include "server/store/store.h"

struct tarn_recheck;

/* all_read(arg) is called when the set has been read to its end. */
int tarn_recheck_new(struct tarn_store *s, struct tarn_directory_thread *dt, void (*all_read)(void *arg),
                     void *arg, struct tarn_recheck **r_p);
void tarn_recheck_free(struct tarn_recheck *r);
void tarn_recheck_tick(struct tarn_recheck *r);
/* Starts reading the set, again if it is being read. When tarn_recheck_rounds() reaches the returned number,
 * all that is in the set now has been freed. */
uint64_t tarn_recheck_anew(struct tarn_recheck *r);
/* How many times the set was read to its end. */
uint64_t tarn_recheck_rounds(const struct tarn_recheck *r);

/*
 * Frees a displaced copy of this node. False: its own commit has not ended. The copy can be read until the
 * commit ends, which frees it.
 */
bool tarn_recheck_free_copy(struct tarn_store *s, const struct tarn_location *l);

#endif
