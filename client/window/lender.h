/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lender: a client in the node's place. One thread answers peers on control connections, as a node does;
 * the node halves of transports move or share the bytes. It begins with the client's first window, and ends
 * with the client.
 */
#ifndef TARN_CLIENT_WINDOW_LENDER_H
#define TARN_CLIENT_WINDOW_LENDER_H

#include "client/window/channels.h"
#include "client/window/lent.h"
#include "transport/host/host.h"

struct tarn_client;

struct tarn_lender {
    struct tarn_client *client;
    struct tarn_host host;
    struct tarn_lent lent;
    struct tarn_channels channels;
    char id[80]; /* "lender of process 4711" */
    uint64_t epoch;
    char secret[TARN_WINDOW_TOKEN / 2 + 1]; /* opens control connections; each descriptor has it */
    char address[128], unix_path[108];
    pthread_t thread;
    bool started;
    struct tarn_watch *tick, *bell;
    struct tarn_lender_watch { /* for a transport */
        struct tarn_watch *watch;
        void (*fn)(void *arg);
        void *arg;
    } watches[TARN_TRANSPORTS_MAX];
    uint32_t nwatches;
    struct tarn_attach entry; /* the thread's, for ENTER: too large for its stack */
};

/* Runs fn(l, arg) on the lender's thread and waits for it; there nothing of the lender changes meanwhile. */
int tarn_lender_run(struct tarn_lender *l, int (*fn)(struct tarn_lender *l, void *arg), void *arg);
/* Ends the lease; then waits until nobody is at its runs, and gives its slot back. As tarn_recall(). */
int tarn_lender_recall(struct tarn_lease *lease, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* The same on the lender's thread, without waiting. BUSY: somebody is at the runs. */
int tarn_lender_recall_now(struct tarn_lease *lease);
/* The client's lender; starts it if there is none. */
int tarn_lender_of(struct tarn_client *c, struct tarn_lender **l_p);
/* At close. All windows have been freed. NULL is allowed. */
void tarn_lender_stop(struct tarn_lender *l);

#endif
