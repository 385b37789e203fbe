/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts: paged buffers, such as the KV cache of an engine, whose pages gets and puts name by number.
 *
 * A layout has `nbases` arrays of pages, one for each layer, say. Page p of array b lies at
 * bases[b] + p * stride and has page_bytes bytes. An item with a layout (tarn.h) names pages in place of
 * pieces; each stands for that page of every array. The object's bytes are array after array, and within an
 * array the pages in the order in which the item names them: as an item would have them that names
 * nbases * npages pieces.
 *
 * It costs less than those pieces. Between GPUs of this host the GPU computes the addresses, so the CPU's
 * work no longer grows with the number of arrays. Over other transports tarn makes the pieces itself.
 */
#ifndef TARN_LAYOUT_H
#define TARN_LAYOUT_H

#include <tarn/tarn.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* exported by libtarn.so, see client/libtarn.map */

#define TARN_LAYOUT_BASES_MAX 4096

struct tarn_layout_options {
    size_t size;
    void *const *bases; /* nbases addresses, 1 to TARN_LAYOUT_BASES_MAX; copied */
    uint32_t nbases;
    uint64_t page_bytes; /* of one array, at least 1; of all of them at most 1 GiB */
    uint64_t stride;     /* from one page to the next, at least page_bytes; 0: page_bytes */
    uint64_t npages;     /* of each array; 1 to 2^32 */
};

/*
 * Makes a layout over memory of the host, or of one GPU. It belongs to no client: any number of clients and
 * threads may use it at once. The memory is looked at here, and not again: it must stay until the layout is
 * freed. Errors: INVALID, NO_MEMORY.
 */
int tarn_layout_new(const struct tarn_layout_options *o, struct tarn_layout **l_p);
/* No call or operation may use it any more. NULL is allowed. The buffer is the caller's. */
void tarn_layout_free(struct tarn_layout *l);

/* tarn_put_write() of pages: writes them to item i of the session, from `offset` of the object on. */
int tarn_put_write_pages(struct tarn_put_session *s, size_t i, uint64_t offset,
                         const struct tarn_layout *layout, const uint32_t *pages, uint32_t npages,
                         uint32_t timeout_ms);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
