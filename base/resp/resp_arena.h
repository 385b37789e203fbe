/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies and requests without allocations: what a reader with an arena returns lives there until it is
 * emptied. By itself hiredis allocates twice for each element, which takes as long as the rest of a look-up.
 */
#ifndef TARN_BASE_RESP_ARENA_H
#define TARN_BASE_RESP_ARENA_H

#include "base/resp/resp.h"

struct tarn_arena_chunk;

struct tarn_arena {
    struct tarn_arena_chunk *first; /* the one in use; NULL: none yet */
};

/* What the reader reads lives in `a` from now on and must not be freed. It must be freed before a. */
void tarn_arena_use(struct tarn_arena *a, redisReader *reader);
/* Frees all replies. Not while a reply is incomplete. */
void tarn_arena_empty(struct tarn_arena *a);
void tarn_arena_free(struct tarn_arena *a);

#endif
