/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens. Anybody can open a data connection, so the client shows its session's token on it. A node half
 * makes one at a session's first ATTACH; it is valid until the session is gone.
 *
 * The caller holds the owner's lock in all calls.
 */
#ifndef TARN_TRANSPORT_NODE_TOKENS_H
#define TARN_TRANSPORT_NODE_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#define TARN_TOKEN 32 /* hex digits */

struct tarn_token {
    struct tarn_token *next, *prev;
    uint64_t session;
    char text[TARN_TOKEN + 1];
};

/* The session's token; makes it if there is none. NULL: out of memory. */
const char *tarn_token_of(struct tarn_token **all, uint64_t session);
/* Is this the token of that session? Takes constant time. */
bool tarn_token_is(struct tarn_token *all, uint64_t session, const char text[TARN_TOKEN]);
void tarn_token_drop(struct tarn_token **all, uint64_t session);
void tarn_tokens_free(struct tarn_token **all);

#endif
