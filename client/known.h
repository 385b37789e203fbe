/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a link knows of a lender's windows. Transports that share memory are told of a window once. Transports
 * with TARN_CAP_KEYS enter it under each lease that they use: the lender answers with a pass, and makes the
 * keys of a pass void when a lease ends that has been entered under it. So keys serve a lease only if both
 * have the same pass.
 */
#ifndef TARN_CLIENT_KNOWN_H
#define TARN_CLIENT_KNOWN_H

#include "client/peer_node.h"

/* A lease that works may name. */
struct tarn_known_lease {
    struct tarn_leased lease;
    pthread_mutex_t lock;
    _Atomic uint64_t pass[2]; /* [write]; 0: not entered so far */
    uint32_t times;           /* how often for writing, under that pass. lock */
};

/* Makes the link know the window of that work, if it does not; that asks the lender. STALE: the lease has
 * ended. NOT_REACHABLE: not by this transport. */
int tarn_link_know(struct tarn_open_link *l, const struct tarn_work *w, uint64_t deadline_ns,
                   struct tarn_cancel *cancel);
/* The lease is written no more: tells the lender, without waiting. */
void tarn_link_leave(struct tarn_peer_node *lender, struct tarn_known_lease *k, const struct tarn_work *w);

#endif
