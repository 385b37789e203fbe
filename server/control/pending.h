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
 */
#ifndef TARN_SERVER_PENDING_H
#define TARN_SERVER_PENDING_H

#include "server/control/control.h"

struct tarn_pending {
    struct tarn_request request;
    struct tarn_waiter waiter;
    struct tarn_node *node;
    struct tarn_conn *conn; /* NULL once it is gone */
    struct tarn_pending *prev, *next;
    uint64_t begun_ns, deadline_ns;
    bool abandoned;
    /* Puts the store right. Adds the reply if there is a connection. code: 0, or why the command failed. */
    void (*answer)(struct tarn_pending *p, int code, const char *sentence);
    void (*late)(struct tarn_pending *p);
    void (*free)(struct tarn_pending *p);
};

/* Hands p->request over; the connection waits. */
void tarn_pending_start(struct tarn_pending *p, struct tarn_conn *c, uint64_t timeout_ms);

#endif
