/* SPDX-License-Identifier: Apache-2.0 */
/* A lease of another client, as this one reaches it. */
#ifndef TARN_CLIENT_WINDOW_REACH_H
#define TARN_CLIENT_WINDOW_REACH_H

#include <tarn/window.h>

#include "base/resp/resp.h"
#include "client/known.h"
#include "client/window/descriptor.h"

struct tarn_reach {
    struct tarn_reach *prev, *next; /* of the client's */
    struct tarn_client *client;     /* NULL: closed */
    struct tarn_descriptor descriptor;
    struct tarn_peer_node *lender;
    uint32_t window, slot;
    uint64_t gen;
    bool write;
    _Atomic bool doubt;    /* bytes of a write may still arrive */
    _Atomic bool together; /* the last transfer's transport is one where small reads go together */
    struct tarn_known_lease known;
};

/* The lender of which the descriptor tells: epoch, address, Unix path, host and secret. NULL: out of memory.
 */
struct tarn_peer_node *tarn_lender_node(struct tarn_client *c, const struct tarn_descriptor *d);
/*
 * Makes a reach of what the lender tells by itself: a lease, and the n elements that it would answer REACH
 * with. The client's session may use the window already.
 */
struct tarn_told_lease {
    uint32_t window, slot;
    uint64_t gen;
    const char *token; /* of the window; shown when the lender has forgotten the session */
};
int tarn_reach_told(struct tarn_client *c, struct tarn_peer_node *lender, const struct tarn_told_lease *lease,
                    redisReply *const *told, size_t n, struct tarn_reach **r_p);
/* The client closes: reaches that are left may only be freed. */
void tarn_reaches_leave(struct tarn_client *c);
/* The lender has forgotten this client's session, e.g. after a broken connection: shows the token again. */
int tarn_reach_again(const struct tarn_reach *r, uint64_t deadline_ns, struct tarn_cancel *cancel);

#endif
