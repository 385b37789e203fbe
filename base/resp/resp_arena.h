/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies without an allocation each: a connection whose reader uses an arena gives replies that live
 * in the arena, until it is emptied. hiredis's own take two allocations an element, which is as much
 * time as all the rest of a look-up.
 */
#ifndef TARN_BASE_RESP_ARENA_H
#define TARN_BASE_RESP_ARENA_H

#include "base/resp/resp.h"

struct tarn_arena_chunk;

struct tarn_arena {
    struct tarn_arena_chunk *first; /* the one in use; NULL: none yet */
};

/* From now on replies of `r` live in `a`, must not be freed, and r must be freed before a. */
void tarn_arena_use(struct tarn_arena *a, struct tarn_resp *r);
/* Ends the life of all replies in it. Between replies only. */
void tarn_arena_empty(struct tarn_arena *a);
void tarn_arena_free(struct tarn_arena *a);

#endif
