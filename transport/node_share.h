/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's side of share.h: node halves that hand out descriptors of the pools' files, which clients map.
 * They have no thread and touch no data. There is nothing to revoke at the end of a session: mappings last as
 * long as their process, whose end the node awaits.
 */
#ifndef TARN_TRANSPORT_NODE_SHARE_H
#define TARN_TRANSPORT_NODE_SHARE_H

#include "base/container.h"
#include "transport/node_half.h"
#include "transport/share.h"

#define TARN_SHARE_MORE 224 /* bytes of text */

/* Read-only descriptors of a pool's files, for clients. The node keeps the writable ones. */
struct tarn_share_files {
    int arena, gen; /* -1: none */
};

struct tarn_share_node {
    struct tarn_node_half half;
    const char *transport;
    bool (*is_served)(const struct tarn_pool_memory *p);
    uint32_t nserved;                /* pools; windows are entered one by one */
    struct tarn_share_files files[]; /* of each pool */
};

static inline struct tarn_share_node *tarn_share_node(const struct tarn_node_half *h)
{
    return TARN_CONTAINER_OF(h, struct tarn_share_node, half);
}

int tarn_share_serve(const char *transport, const struct tarn_serve *serve,
                     bool (*is_served)(const struct tarn_pool_memory *p), struct tarn_node_half **h_p);
bool tarn_share_serves(const struct tarn_node_half *h, uint32_t pool);
/*
 * Answers with the text `begin`, the number of served pools, and for each pool its index, bytes, slots and
 * what `more` appends (NULL: nothing). Its descriptors: for each pool arena (unless it is GPU memory), gen,
 * touch; then the session's hazard page.
 */
int tarn_share_attach(struct tarn_node_half *h, const char *begin,
                      void (*more)(const struct tarn_pool_memory *p, char text[TARN_SHARE_MORE]),
                      struct tarn_attach *a);
/* Of windows; tarn_share_enter() answers as tarn_share_attach() does, for that window alone, with the offset
 * of its memory in the file behind, and without a hazard page. */
void tarn_share_lend(struct tarn_node_half *h, uint32_t window);
void tarn_share_withdraw(struct tarn_node_half *h, uint32_t window);
int tarn_share_enter(struct tarn_node_half *h, uint32_t window, const char *begin,
                     void (*more)(const struct tarn_pool_memory *p, char text[TARN_SHARE_MORE]),
                     struct tarn_attach *a);
void tarn_share_detach(struct tarn_node_half *h, uint64_t session);
void tarn_share_stop(struct tarn_node_half *h);

#endif
