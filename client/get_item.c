/* SPDX-License-Identifier: Apache-2.0 */
#include "client/get_item.h"

void tarn_get_prepare(struct tarn_get *g, struct tarn_client *c, struct tarn_item *items, size_t n,
                      const struct tarn_get_options *o)
{
    g->client = c;
    g->items = items;
    g->n = g->left = n;
    g->flags = o->flags;
    g->hits = o->hits;
    g->hits_first = o->hits_first;
    g->deadline_ns = 0;
    g->cancel = NULL;
    g->verdict.why.code = 0;
    tarn_seen_clear(&g->seen);
    g->calls = NULL;
    g->owner = NULL;
    g->got = g->got_bytes = 0;
    g->memo.looked = 0;
    g->memo.found = SIZE_MAX;
}

void tarn_get_misfit(struct tarn_get *g, size_t i, const struct tarn_tensor *t)
{
    struct tarn_item *item = &g->items[i];
    uint64_t bytes = tarn_item_bytes(item);

    item->tensor = *t;
    if (g->flags & TARN_GET_RANGE)
        tarn_verdict_say(&g->verdict, i, TARN_E_SIZE, "get", &item->key,
                         "%llu bytes from offset %llu reach past the object's %llu: ask for less",
                         (unsigned long long)bytes, (unsigned long long)item->offset,
                         (unsigned long long)t->bytes);
    else
        tarn_verdict_say(
            &g->verdict, i, TARN_E_SIZE, "get", &item->key,
            "the object has %llu bytes, the pieces %llu from offset %llu: size them alike or ask for a range",
            (unsigned long long)t->bytes, (unsigned long long)bytes, (unsigned long long)item->offset);
    tarn_get_final(g, i, TARN_E_SIZE);
}

void tarn_get_final(struct tarn_get *g, size_t i, int status)
{
    struct tarn_item *item = &g->items[i];
    uint32_t stripe = (uint32_t)i % TARN_STRIPES;

    item->status = status;
    if (status == TARN_E_NOT_FOUND)
        tarn_count(g->client, stripe, TARN_COUNT_MISSES, 1);
    else if (status != 0)
        tarn_count(g->client, stripe, TARN_COUNT_ERRORS, 1);
    g->left--;
    if (g->left == 0 && g->got > 0) {
        tarn_count(g->client, stripe, TARN_COUNT_GETS, g->got);
        tarn_count(g->client, stripe, TARN_COUNT_GET_BYTES, g->got_bytes);
    }
    if (g->calls && g->left == 0)
        g->calls->done(g);
    else if (g->calls)
        g->calls->shrunk(g);
}
