/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "client/gpu/table_impl.h"
#include "client/lookup.h"
#include "client/resolve.h"

struct tarn_table_batch {
    uint32_t n, page[TARN_TABLE_BATCH], change[TARN_TABLE_BATCH];
    struct tarn_key keys[TARN_TABLE_BATCH];
    struct tarn_table_found found[TARN_TABLE_BATCH];
    struct tarn_resolved resolved[TARN_TABLE_BATCH];
    uint8_t room[TARN_TABLE_BATCH][TARN_KEY_MAX]; /* the keys' bytes */
};

struct tarn_table_batch *tarn_table_batch_new(void)
{
    return malloc(sizeof(struct tarn_table_batch));
}

void tarn_table_batch_free(struct tarn_table_batch *b)
{
    free(b);
}

/* The lock is held. */
static void take(const struct tarn_table *t, struct tarn_table_batch *b, uint32_t page)
{
    const struct tarn_table_page *p = &t->pages[page];
    if (!p->key)
        return;
    memcpy(b->room[b->n], p->key, p->key_bytes);
    b->keys[b->n] = (struct tarn_key){b->room[b->n], p->key_bytes};
    b->page[b->n] = page;
    b->change[b->n++] = p->change;
}

uint32_t tarn_table_marked(const struct tarn_table *t, uint32_t page)
{
    const uint8_t *at = memchr(t->marks + page, 1, t->npages - page);
    return at ? (uint32_t)(at - t->marks) : t->npages;
}

void tarn_table_batch_told(struct tarn_table *t, struct tarn_table_batch *b, uint32_t *page)
{
    b->n = 0;
    pthread_mutex_lock(&t->lock);
    while (*page < t->npages && b->n < TARN_TABLE_BATCH) {
        *page = tarn_table_marked(t, *page);
        if (*page < t->npages)
            take(t, b, (*page)++);
    }
    pthread_mutex_unlock(&t->lock);
}

void tarn_table_batch_range(struct tarn_table *t, struct tarn_table_batch *b, uint32_t first, uint32_t n)
{
    b->n = 0;
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < n; i++)
        take(t, b, first + i);
    pthread_mutex_unlock(&t->lock);
}

/* Descriptors from hits, or from the directory. Without its answer all are DIRECTORY. */
static void resolve(struct tarn_table *t, struct tarn_table_batch *b, const struct tarn_hits *hits,
                    size_t first, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    int rc =
        hits || b->n == 0 ? 0 : tarn_resolve_keys(t->client, b->keys, b->n, deadline_ns, cancel, b->resolved);
    for (uint32_t i = 0; i < b->n; i++) {
        struct tarn_resolved *r = &b->resolved[i];
        if (rc)
            r->status = rc;
        else if (hits)
            r->status = tarn_hits_desc(hits, first + i, &r->desc) ? 0 : TARN_E_NOT_FOUND;
    }
}

/* Writes runs of neighbouring pages together. The lock is held. */
static int write_runs(struct tarn_table *t, const struct tarn_table_batch *b)
{
    int rc = 0;
    for (uint32_t i = 0, n; !rc && i < b->n; i += n) {
        for (n = 1; i + n < b->n && b->page[i + n] == b->page[i] + n;)
            n++;
        rc = tarn_table_memory_write(t, b->page[i], n);
    }
    return rc;
}

int tarn_table_batch_look(struct tarn_table *t, struct tarn_table_batch *b, const struct tarn_hits *hits,
                          size_t first, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    resolve(t, b, hits, first, deadline_ns, cancel);
    for (uint32_t i = 0; i < b->n; i++) {
        b->found[i] = (struct tarn_table_found){.status = b->resolved[i].status};
        if (b->found[i].status == 0)
            tarn_table_find(t, &b->resolved[i].desc, deadline_ns, cancel, &b->found[i]);
    }
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < b->n; i++)
        if (t->pages[b->page[i]].change == b->change[i])
            tarn_table_page_set(t, b->page[i], &b->found[i]);
    int rc = tarn_table_renew(t); /* before kernels see pages of nodes whose leases end earlier */
    if (!rc)
        rc = write_runs(t, b);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int tarn_table_batch_status(const struct tarn_table_batch *b, uint32_t i)
{
    return b->found[i].status;
}

int tarn_table_look_again(struct tarn_table *t, uint32_t page, uint64_t deadline_ns,
                          struct tarn_cancel *cancel)
{
    struct tarn_table_batch *b = tarn_table_batch_new();
    if (!b)
        return tarn_fail(TARN_E_NO_MEMORY, "table: out of memory");
    tarn_table_batch_range(t, b, page, 1);
    int rc = b->n ? tarn_table_batch_look(t, b, NULL, 0, deadline_ns, cancel)
                  : tarn_fail(TARN_E_NOT_FOUND, "table: page %u is of no object: set it", page);
    rc = rc ? rc : tarn_table_batch_status(b, 0);
    tarn_table_batch_free(b);
    return rc;
}
