/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading objects where they lie: views and hit tables. Chooses the copy and a link that offers it, asks for
 * the node's lease, and makes the link if there is none.
 *
 * Links are the sides' shared ones. Where links are pooled (pools of GPUs), one is lent to all such uses, and
 * moves nothing any more.
 */
#ifndef TARN_CLIENT_DIRECT_H
#define TARN_CLIENT_DIRECT_H

#include <stdint.h>

#include "client/desc.h"
#include "client/peer_node.h"

struct tarn_client;

struct tarn_direct {
    /* Uses the copy through the link. Keeps the link by counting itself in link->views. BUSY: the transport
     * is still opening the memory, call again. INPROGRESS: not by this transport. */
    int (*use)(struct tarn_direct *d, struct tarn_open_link *l, const struct tarn_desc *desc,
               const struct tarn_loc *loc);
};

/*
 * Uses one copy of the object. deadline_ns 0: only through links that are there, without waiting. Otherwise
 * STALE, AGAIN, DIRECTORY, TIMEOUT, NOT_REACHABLE; why: of the last three, code 0: there is no more to say.
 */
int tarn_direct_use(struct tarn_client *c, const struct tarn_desc *desc, uint64_t deadline_ns,
                    struct tarn_cancel *cancel, struct tarn_direct *d, struct tarn_reason *why);

#endif
