/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors: where an object is, for this client. */
#ifndef TARN_CLIENT_DESC_H
#define TARN_CLIENT_DESC_H

#include "transport/transport.h"

struct tarn_peer_node;

struct tarn_loc {
    struct tarn_peer_node *node;
    uint64_t offset, gen;
    uint32_t pool, slot;
};

/* The same copy? Each pool of a node counts its own slots and generations. */
static inline bool tarn_loc_same(const struct tarn_loc *a, const struct tarn_loc *b)
{
    return a->node == b->node && a->pool == b->pool && a->slot == b->slot && a->gen == b->gen;
}

/* Makes it the work that gets `bytes` bytes of an item from the copy. flags: TARN_GET_*; gpu:
 * tarn_pieces_gpu(). Member by member: a work made elsewhere and copied takes 20 ns more. */
static inline void tarn_work_aim(struct tarn_work *w, const struct tarn_item *item, const struct tarn_loc *l,
                                 uint64_t bytes, uint32_t flags, uint32_t gpu)
{
    w->pool = l->pool;
    w->slot = l->slot;
    w->gen = l->gen;
    w->offset = l->offset + item->offset;
    w->bytes = bytes;
    w->lease = NULL;
    w->notify = NULL;
    w->pieces = item->pieces;
    w->npieces = item->npieces;
    w->layout = item->layout;
    w->pages = item->pages;
    w->gpu = gpu;
    w->seen = NULL;
    w->last_copy = NULL;
    w->touch = !(flags & TARN_GET_NO_TOUCH);
    w->untold = false;
}

/* Copied up to the last location in use: tarn_desc_bytes(). */
struct tarn_desc {
    struct tarn_tensor tensor;
    uint32_t nlocs;
    uint32_t nlost; /* copies on nodes that the directory does not list */
    struct tarn_loc locs[TARN_REPLICAS_MAX];
};

static inline size_t tarn_desc_bytes(const struct tarn_desc *d)
{
    return offsetof(struct tarn_desc, locs) + d->nlocs * sizeof d->locs[0];
}

#endif
