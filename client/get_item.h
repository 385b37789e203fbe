/* SPDX-License-Identifier: Apache-2.0 */
/* One get and its items, until each is final. */
#ifndef TARN_CLIENT_GET_ITEM_H
#define TARN_CLIENT_GET_ITEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "client/cache.h"
#include "client/check.h"
#include "client/client.h"
#include "client/desc.h"
#include "client/lookup.h"
#include "client/verdict.h"
#include "transport/layout.h"
#include "transport/seen.h"

struct tarn_get;

/* What a submitted get tells its operation, on the worker's thread. */
struct tarn_get_calls {
    void (*done)(struct tarn_get *g);                        /* the last item is final */
    void (*shrunk)(struct tarn_get *g);                      /* another item is final */
    bool (*given)(struct tarn_get *g, struct tarn_work *w);  /* given() was called; false: not noted */
    void (*landed)(struct tarn_get *g, struct tarn_work *w); /* the work came back */
    /* Asked before a copy is made again. False: a stream was let go behind the first copy. */
    bool (*again)(struct tarn_get *g);
};

/* tarn_get_now() writes down how far it came, and what it found about the last item that it looked at and
 * left. get.c, get_start.c and tarn_get_first_far() read it, so that this item is not looked up twice. */
struct tarn_get_memo {
    size_t looked; /* it has not looked at the items from here on */
    size_t found;  /* the item that the rest is about; SIZE_MAX: none */
    uint32_t gpu;
    bool glanced; /* at its pieces, see transport/seen.h */
    struct tarn_desc desc;
};

/* One tarn_get call, or one submitted get. */
struct tarn_get {
    struct tarn_client *client;
    struct tarn_item *items;
    size_t n, left; /* left: items without a final status */
    uint32_t flags;
    const struct tarn_hits *hits;
    size_t hits_first;
    uint64_t deadline_ns;
    struct tarn_cancel *cancel; /* NULL: none */
    struct tarn_verdict verdict;
    struct tarn_seen seen;
    const struct tarn_get_calls *calls; /* NULL: it is no operation's */
    void *owner;                        /* theirs */
    uint64_t got, got_bytes;            /* items that jobs have brought; counted with the last item */
    struct tarn_get_memo memo;
};

void tarn_get_prepare(struct tarn_get *g, struct tarn_client *c, struct tarn_item *items, size_t n,
                      const struct tarn_get_options *o);
/* An item is final. */
void tarn_get_final(struct tarn_get *g, size_t i, int status);
/* The item's pieces do not fit the object: it is final with SIZE, and its tensor is set. */
void tarn_get_misfit(struct tarn_get *g, size_t i, const struct tarn_tensor *t);

/* Inline, since a get of 4 KiB from mapped memory takes some 400 ns and runs through all of this. */

/* INVALID: the item's key or pieces are wrong. */
static inline int tarn_get_check(const struct tarn_get *g, size_t i)
{
    const struct tarn_item *item = &g->items[i];
    int rc = tarn_key_check(&item->key);

    if (rc == 0 && item->layout)
        return tarn_layout_check("get", i, item->layout, item->pages, item->npieces);
    return rc ? rc : tarn_pieces_check("get", i, item->pieces, tarn_first_pieces(item->npieces));
}

/* Which memory the item's pieces are in (tarn_pieces_gpu()). A glance may do when they take the whole object
 * (transport/seen.h). */
static inline int tarn_get_memory(struct tarn_get *g, size_t i, uint32_t *gpu_p, bool *glanced_p)
{
    const struct tarn_item *item = &g->items[i];

    *glanced_p = false;
    if (item->layout) {
        *gpu_p = item->layout->gpu;
        return 0;
    }
    *glanced_p = !(g->flags & TARN_GET_RANGE) && item->offset == 0 &&
                 tarn_pieces_glance(item->pieces, item->npieces, &g->seen, gpu_p);
    return *glanced_p ? 0 : tarn_pieces_gpu(item->pieces, item->npieces, &g->seen, gpu_p);
}

/* Finds the descriptor in the hits or the cache. hash: the key's. */
static inline bool tarn_get_find(const struct tarn_get *g, size_t i, uint64_t hash, struct tarn_desc *d)
{
    return g->hits ? tarn_hits_desc(g->hits, g->hits_first + i, d)
                   : tarn_cache_find(g->client->cache, &g->items[i].key, hash, d);
}

/* Do the item's pieces fit the object? *bytes_p is their total in any case. */
static inline bool tarn_get_fits(const struct tarn_get *g, size_t i, const struct tarn_tensor *t,
                                 uint64_t *bytes_p)
{
    const struct tarn_item *item = &g->items[i];
    uint64_t bytes = item->layout ? tarn_layout_bytes(item->layout, item->npieces)
                                  : tarn_seen_bytes(&g->seen, item->pieces, item->npieces);

    *bytes_p = bytes;
    if (g->flags & TARN_GET_RANGE)
        return item->offset <= t->bytes && bytes <= t->bytes - item->offset;
    return bytes == t->bytes && item->offset == 0;
}

#endif
