/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts (tarn/layout.h), as transports see them. */
#ifndef TARN_TRANSPORT_LAYOUT_H
#define TARN_TRANSPORT_LAYOUT_H

#include <stdbool.h>

#include <tarn/layout.h>

#include "transport/cuda/cuda.h"
#include "transport/pieces.h"
#include "transport/transport.h"

struct tarn_layout {
    struct tarn_cuda_paged buffer;
    uint64_t npages;
    uint32_t gpu;     /* as struct tarn_work's */
    bool in_one_list; /* tarn_cuda_start_pages() takes it */
    void *bases[];
};

/* Of n pages of all bases. */
static inline uint64_t tarn_layout_bytes(const struct tarn_layout *l, uint32_t n)
{
    return (uint64_t)n * l->buffer.nbases * l->buffer.page_bytes;
}
/* Of an item's pieces or pages; UINT64_MAX when it overflows. */
static inline uint64_t tarn_item_bytes(const struct tarn_item *item)
{
    return item->layout ? tarn_layout_bytes(item->layout, item->npieces)
                        : tarn_pieces_bytes(item->pieces, item->npieces);
}
/* Must its pages become pieces for a transport with these capabilities? NULL: there is no layout. */
static inline bool tarn_layout_wants_pieces(const struct tarn_layout *l, uint32_t caps)
{
    return l && !(l->in_one_list && (caps & TARN_CAP_LAYOUTS));
}
/* Has it pages in [addr, addr + bytes), or between its pages there? */
bool tarn_layout_overlaps(const struct tarn_layout *l, const void *addr, uint64_t bytes);
/* INVALID: item number `item` names no pages of its layout; `what` begins the sentence. */
int tarn_layout_check(const char *what, size_t item, const struct tarn_layout *l, const uint32_t *pages,
                      uint32_t n);
/* The n pages as pieces, base after base. Free them. NO_MEMORY. */
int tarn_layout_pieces(const struct tarn_layout *l, const uint32_t *pages, uint32_t n,
                       struct tarn_piece **pieces_p, uint32_t *npieces_p);

#endif
