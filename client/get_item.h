/* SPDX-License-Identifier: Apache-2.0 */
/* One get: its items, what is known of them, and how each becomes final. */
#ifndef TARN_CLIENT_GET_ITEM_H
#define TARN_CLIENT_GET_ITEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "client/desc.h"
#include "client/verdict.h"
#include "transport/seen.h"

struct tarn_client;
struct tarn_get;

/* What a get that was submitted tells its operation, by the worker. */
struct tarn_get_calls {
    void (*done)(struct tarn_get *g);   /* the last item is final */
    void (*shrunk)(struct tarn_get *g); /* an item is, not the last */
    bool (*given)(struct tarn_get *g,
                  struct tarn_work *w); /* a work has called given(); false: it is not minded */
    void (*landed)(struct tarn_get *g, struct tarn_work *w); /* it came back */
    /* Before a copy is made once more. False: a stream was let go behind the first one. */
    bool (*again)(struct tarn_get *g);
};

/* One tarn_get call, or one submitted get. */
struct tarn_get {
    struct tarn_client *client;
    struct tarn_item *items;
    size_t n, left; /* left: items without a final status */
    uint32_t flags;
    const struct tarn_hits *hits;
    size_t hits_first;
    uint64_t since_ns; /* of tarn_get(): when it began to wait */
    uint64_t deadline_ns;
    struct tarn_cancel *cancel; /* NULL: none */
    struct tarn_verdict verdict;
    struct tarn_seen seen;
    const struct tarn_get_calls *calls; /* NULL: it is no operation's */
    void *owner;                        /* theirs */
    uint64_t got, got_bytes;            /* items that jobs have brought; counted with the last item */
    size_t looked;                      /* tarn_get_fast() has left the items from here on as they were */
    /* What it found of the last item that it looked at and left. */
    size_t found; /* SIZE_MAX: nothing */
    uint32_t found_gpu;
    bool found_glanced; /* at its pieces, see transport/seen.h */
    bool found_fits;
    int found_way;        /* the transport whose pooled links reach its only copy; -1: not known */
    uint64_t found_bytes; /* that are asked for */
    struct tarn_desc found_desc;
};

void tarn_get_prepare(struct tarn_get *g, struct tarn_client *c, struct tarn_item *items, size_t n,
                      const struct tarn_get_options *o);
/* INVALID: the item's key or pieces are. */
int tarn_get_check(const struct tarn_get *g, size_t i);
/* An item is final. */
void tarn_get_final(struct tarn_get *g, size_t i, int status);
/* Is a glance at the item's pieces enough (transport/seen.h), since they are to have as many bytes as the
 * object? */
bool tarn_get_glance(struct tarn_get *g, size_t i, uint32_t *gpu_p);
/* Do the item's pieces fit the object? Their total comes out in any case. */
bool tarn_get_fits(const struct tarn_get *g, size_t i, const struct tarn_tensor *t, uint64_t *bytes_p);
/* They do not: the item is final with SIZE, its tensor set. */
void tarn_get_misfit(struct tarn_get *g, size_t i, const struct tarn_tensor *t);

#endif
