/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Displaced copies: old copies whose place a put or a remove has taken, until nobody can read them any more
 * (docs/consistency.md). Their nodes are told (RELEASE) all at once; those that do not answer are asked about
 * at another node (SETTLED) until it says that they are freed, or that their node's record has expired.
 * Directory and nodes need no help from here for that: a client that dies in between leaves nothing undone.
 *
 * One thread at a time.
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
    const struct tarn_key *key;  /* stays the caller's */
    size_t item;                 /* the caller's number for what displaced it */
    struct tarn_peer_node *node; /* holds it */
    struct tarn_peer_node *by;   /* told of it; NULL: nobody in particular */
    bool settled;                /* nobody can read it any more */
    struct tarn_location copy;
};

struct tarn_displaced_list {
    struct tarn_displaced *all; /* freed by tarn_displaced_end() */
    size_t n, room;
};

/* Adds a copy that this client knows. NO_MEMORY. */
int tarn_displaced_add(struct tarn_displaced_list *l, const struct tarn_key *key, size_t item,
                       const struct tarn_loc *at);
/* Adds all that `by` has listed in its answer to COMMIT or DELETE. IN_DOUBT: not all could be added. */
int tarn_displaced_note(struct tarn_client *c, struct tarn_displaced_list *l, const struct tarn_key *key,
                        size_t item, struct tarn_peer_node *by, redisReply *const *texts, size_t n);
/* Tells the nodes, without waiting for those that keep silent. */
void tarn_displaced_release(struct tarn_client *c, struct tarn_displaced_list *l, uint64_t deadline_ns,
                            struct tarn_cancel *cancel);
/* Tells them and waits until all are settled: true. False: the deadline has passed, or the caller has
 * canceled; what is not settled is left in the list. */
bool tarn_displaced_settle(struct tarn_client *c, struct tarn_displaced_list *l, uint64_t deadline_ns,
                           struct tarn_cancel *cancel);
/* After that: 0 when none of the item's copies is left; else IN_DOUBT, and the sentence names a node that has
 * one. */
int tarn_displaced_status(const struct tarn_displaced_list *l, size_t item);
void tarn_displaced_end(struct tarn_displaced_list *l);
/* One of which that is true, but not this one (may be NULL). NULL: there is none. */
struct tarn_peer_node *tarn_peer_nodes_any(struct tarn_client *c, const struct tarn_peer_node *but);

#endif
