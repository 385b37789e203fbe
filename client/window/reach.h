/* SPDX-License-Identifier: Apache-2.0 */
/* A lease of another client, as this one reaches it. */
#ifndef TARN_CLIENT_WINDOW_REACH_H
#define TARN_CLIENT_WINDOW_REACH_H

#include <tarn/window.h>

#include "client/known.h"
#include "client/window/descriptor.h"

struct tarn_reach {
    struct tarn_client *client;
    struct tarn_descriptor descriptor;
    struct tarn_peer_node *lender;
    uint32_t window, slot;
    uint64_t gen;
    bool write;
    _Atomic bool doubt; /* bytes of a write may still arrive */
    struct tarn_known_lease known;
};

/* The lender has forgotten this client's session, e.g. after a broken connection: shows the token again. */
int tarn_reach_again(const struct tarn_reach *r, uint64_t deadline_ns, struct tarn_cancel *cancel);

#endif
