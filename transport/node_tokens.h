/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens: what a session shows on data connections of its own, which anybody could open. Each session of a
 * node half has one, made at its first ATTACH and good until the session is gone.
 *
 * No lock of its own: the owner's is held in all calls.
 */
#ifndef TARN_TRANSPORT_TOKENS_H
#define TARN_TRANSPORT_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#define TARN_TOKEN 32 /* hex digits */

struct tarn_token {
    struct tarn_token *next, *prev;
    uint64_t session;
    char text[TARN_TOKEN + 1];
};

/* The session's token, which is made if there is none; NULL: out of memory. */
const char *tarn_token_of(struct tarn_token **all, uint64_t session);
/* Is this the token of that session? In constant time. */
bool tarn_token_is(struct tarn_token *all, uint64_t session, const char text[TARN_TOKEN]);
void tarn_token_drop(struct tarn_token **all, uint64_t session);
void tarn_tokens_free(struct tarn_token **all);

#endif
