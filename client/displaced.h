/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Displaced copies: copies whose place a put or a remove has taken, until nobody can read them any more
 * (docs/consistency.md). All their nodes get RELEASE at once. About copies whose node does not answer,
 * another node is asked (SETTLED) until it says that they are freed or that their node's record has expired.
 * Directory and nodes settle them without this client, too, so a client that dies leaves nothing undone.
 *
 * A list belongs to one thread.
 */
#ifndef TARN_CLIENT_DISPLACED_H
#define TARN_CLIENT_DISPLACED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/resp/resp.h"
#include "client/desc.h"
#include "metadata/directory.h"

struct tarn_client;

struct tarn_displaced {
    const struct tarn_key *key;  /* the caller's */
    size_t item;                 /* the caller's number of the item that displaced it */
    struct tarn_peer_node *node; /* holds the copy */
    struct tarn_peer_node *by;   /* has named the copy; NULL: this client knew it */
    bool told;                   /* its node was sent RELEASE, or is set aside */
    bool settled;
    struct tarn_location copy;
};

struct tarn_displaced_list {
    struct tarn_displaced *all; /* freed by tarn_displaced_end() */
    size_t n, room;
};

/* Adds a copy that this client knows. NO_MEMORY. */
int tarn_displaced_add(struct tarn_displaced_list *l, const struct tarn_key *key, size_t item,
                       const struct tarn_loc *at);
/* Adds the copies in an answer of `by` to COMMIT or DELETE. IN_DOUBT: not all could be added. */
int tarn_displaced_note(struct tarn_client *c, struct tarn_displaced_list *l, const struct tarn_key *key,
                        size_t item, struct tarn_peer_node *by, redisReply *const *texts, size_t n);
/* Sends RELEASE to the nodes. Waits a patience for each answer at most. */
void tarn_displaced_release(struct tarn_client *c, struct tarn_displaced_list *l, uint64_t deadline_ns,
                            struct tarn_cancel *cancel);
/* The same, then waits until all copies are settled. Those that are not by the deadline, or a cancel, stay in
 * the list. */
void tarn_displaced_settle(struct tarn_client *c, struct tarn_displaced_list *l, uint64_t deadline_ns,
                           struct tarn_cancel *cancel);
/* After that: IN_DOUBT when a copy of the item is left; the sentence names its node. */
int tarn_displaced_status(const struct tarn_displaced_list *l, size_t item);
void tarn_displaced_end(struct tarn_displaced_list *l);
/* Any node that answers, except `but`. NULL: there is none. */
struct tarn_peer_node *tarn_peer_nodes_any(struct tarn_client *c, const struct tarn_peer_node *but);

#endif
