/* SPDX-License-Identifier: Apache-2.0 */
/* The node's side of share.h: descriptors of the pools' files, which clients map. */
#ifndef TARN_TRANSPORT_NODE_SHARE_H
#define TARN_TRANSPORT_NODE_SHARE_H

#include "transport/node_half.h"

/* Read-only descriptors of a pool's files, for clients. The server keeps the writable ones. */
struct tarn_share_files {
    int arena, gen; /* -1: none */
};

/* Opens files for the pools that are `served`. When it fails, nothing is open. */
int tarn_share_open(const char *transport, const struct tarn_pool_memory *pools, uint32_t n,
                    bool (*served)(const struct tarn_pool_memory *p), struct tarn_share_files *files);
void tarn_share_close(struct tarn_share_files *files, uint32_t n);

#endif
