/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command whose answer needs the directory: COMMIT, DELETE and SETTLED.
 *
 *   begun --the directory answered--> answered, freed
 *   begun --time is up, not yet tried--> answered, freed
 *   begun --time is up, being tried--> answered, ABANDONED --the directory answered--> cleaned up, freed
 *
 * `answer` puts the store right, whether the command succeeded or not. `late` undoes what the directory did
 * after that.
 *
 * A command's own struct begins with its tarn_pending, which owns the request's arrays and copies of all
 * keys: the directory thread may still read a key after the store has freed its object.
 */
#ifndef TARN_SERVER_PENDING_H
#define TARN_SERVER_PENDING_H

#include "server/parts.h"
#include "transport/host/control.h"

struct tarn_pending {
    struct tarn_request request;
    struct tarn_waiter waiter;
    struct tarn_node *node;
    struct tarn_conn *conn; /* NULL once it is gone */
    char *keys;             /* copies; room for all */
    size_t key_bytes;       /* of the copies made */
    struct tarn_pending *prev, *next;
    uint64_t begun_ns, deadline_ns;
    bool abandoned;
    bool untried; /* abandoned, and the directory has not been asked */
    /* Puts the store right. Adds the reply if there is a connection. Code 0: the request succeeded. */
    void (*answer)(struct tarn_pending *p, const struct tarn_reason *why);
    void (*late)(struct tarn_pending *p); /* may be NULL */
};

/* A zeroed struct of `bytes`, with the arrays of a request of up to n items, and room for key_bytes of keys.
 * NULL: out of memory. */
void *tarn_pending_new(size_t bytes, enum tarn_request_kind kind, size_t n, size_t key_bytes);
void tarn_pending_free(struct tarn_pending *p);
/* Replaces the key's data by a copy. */
void tarn_pending_copy_key(struct tarn_pending *p, struct tarn_key *key);
/* Hands p->request over; the connection waits. */
void tarn_pending_start(struct tarn_pending *p, struct tarn_conn *c, uint64_t timeout_ms);

#endif
