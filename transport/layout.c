/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/layout.h"

#include <stdlib.h>

#include "base/error.h"

#define TOGETHER 128 /* pages */

/* False: perhaps not all are the layout's. It takes no branch for each, since the copying of many pages waits
 * for this. A number that is too large, and what it exceeds the last one by, set the highest bit. */
static bool are_right(const struct tarn_layout *l, const uint32_t pages[TOGETHER])
{
    const uint32_t last = (uint32_t)(l->npages - 1);
    uint32_t all = last;
    for (uint32_t i = 0; i < TOGETHER; i++)
        all |= pages[i] | (last - pages[i]);
    return all >> 31 == 0;
}

int tarn_layout_check(const char *what, size_t item, const struct tarn_layout *l, const uint32_t *pages,
                      uint32_t n)
{
    if (n > 0 && !pages)
        return tarn_fail(TARN_E_INVALID, "%s: item %zu: pages are NULL: give their numbers", what, item);
    for (uint32_t i = 0, some; i < n; i += some) {
        some = n - i < TOGETHER ? n - i : TOGETHER;
        if (some == TOGETHER && are_right(l, pages + i))
            continue;
        for (uint32_t k = i; k < i + some; k++)
            if (pages[k] >= l->npages)
                return tarn_fail(TARN_E_INVALID, "%s: item %zu: page %u is %u: the layout has %llu", what,
                                 item, k, pages[k], (unsigned long long)l->npages);
    }
    return 0;
}

bool tarn_layout_overlaps(const struct tarn_layout *l, const void *addr, uint64_t bytes)
{
    const struct tarn_cuda_paged *b = &l->buffer;
    for (uint32_t i = 0; i < b->nbases; i++) {
        const struct tarn_piece whole = {l->bases[i], b->page_bytes, b->stride, l->npages};
        if (tarn_piece_overlaps(&whole, addr, bytes))
            return true;
    }
    return false;
}

int tarn_layout_pieces(const struct tarn_layout *l, const uint32_t *pages, uint32_t n,
                       struct tarn_piece **pieces_p, uint32_t *npieces_p)
{
    uint64_t total = (uint64_t)n * l->buffer.nbases;
    struct tarn_piece *pieces = total <= UINT32_MAX ? malloc(total * sizeof(*pieces) + 1) : NULL;
    if (!pieces)
        return tarn_fail(TARN_E_NO_MEMORY, "layout: out of memory for %llu pieces",
                         (unsigned long long)total);
    struct tarn_piece *p = pieces;
    for (uint32_t b = 0; b < l->buffer.nbases; b++)
        for (uint32_t i = 0; i < n; i++)
            *p++ = (struct tarn_piece){.addr = (char *)l->bases[b] + pages[i] * l->buffer.stride,
                                       .bytes = l->buffer.page_bytes};
    *pieces_p = pieces;
    *npieces_p = (uint32_t)total;
    return 0;
}
