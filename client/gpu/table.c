/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/error.h"
#include "client/check.h"
#include "client/gpu/proxies.h"
#include "client/gpu/table_impl.h"
#include "client/gpu/tables.h"

/* --- making and freeing ------------------------------------------------------------------------- */

static void enlist(struct tarn_table *t)
{
    pthread_mutex_lock(&t->client->tables_lock);
    DL_APPEND(t->client->tables, t);
    pthread_mutex_unlock(&t->client->tables_lock);
}

static void delist(struct tarn_table *t)
{
    pthread_mutex_lock(&t->client->tables_lock);
    DL_DELETE(t->client->tables, t);
    pthread_mutex_unlock(&t->client->tables_lock);
}

/* The GPU's memory goes first: that waits for kernels, which may still read the nodes' memory. */
static void table_free(struct tarn_table *t)
{
    tarn_table_thread_stop(t);
    tarn_table_memory_free(t);
    for (uint32_t i = 0; i < t->nholds; i++)
        atomic_fetch_sub(&t->holds[i].link->views, 1); /* a retired link may be closed then */
    for (uint32_t p = 0; t->pages && p < t->npages; p++)
        free(t->pages[p].key);
    free(t->pages);
    free(t->holds);
    tarn_table_batch_free(t->batch);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static int check_options(const struct tarn_table_options *o)
{
    int devices, rc = tarn_cuda_count(&devices);
    if (rc)
        return rc;
    if (o->device < 0 || o->device >= devices)
        return tarn_fail(TARN_E_INVALID, "table: device %d: there are devices 0 to %d", o->device,
                         devices - 1);
    if (o->npages == 0 || o->npages > TARN_TABLE_PAGES_MAX)
        return tarn_fail(TARN_E_INVALID, "table: npages %u: 1 to %u", o->npages, TARN_TABLE_PAGES_MAX);
    return 0;
}

static struct tarn_table *table_alloc(struct tarn_client *c, const struct tarn_table_options *o)
{
    struct tarn_table *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->client = c;
    t->device = o->device;
    t->npages = o->npages;
    pthread_mutex_init(&t->lock, NULL);
    t->pages = calloc(o->npages, sizeof(t->pages[0]));
    t->batch = tarn_table_batch_new();
    if (!t->pages || !t->batch) {
        table_free(t);
        return NULL;
    }
    for (uint32_t p = 0; p < o->npages; p++) {
        t->pages[p].status = TARN_E_NOT_FOUND;
        t->pages[p].stamp = 1;
        t->pages[p].halves[0].b = (uint32_t)-TARN_E_NOT_FOUND;
    }
    return t;
}

int tarn_table_new(struct tarn_client *c, const struct tarn_table_options *given, struct tarn_table **t_p)
{
    struct tarn_table_options o;
    struct tarn_reason why;
    int rc = tarn_client_enter(c);
    if (!rc)
        rc = tarn_out_check("table", t_p);
    if (!rc)
        rc = tarn_options_copy(&o, sizeof(o), given);
    if (!rc)
        rc = check_options(&o);
    if (rc)
        return rc;
    struct tarn_table *t = table_alloc(c, &o);
    if (!t)
        return tarn_fail(TARN_E_NO_MEMORY, "table: out of memory for %u pages", o.npages);
    rc = tarn_table_memory_new(t, tarn_client_deadline(c, o.timeout_ms));
    if (!rc)
        rc = tarn_table_renew(t);
    if (!rc)
        rc = tarn_table_thread_start(t);
    if (rc) {
        tarn_reason_keep(&why, rc);
        table_free(t);
        return tarn_reason_fail(&why);
    }
    enlist(t);
    *t_p = t;
    return 0;
}

void tarn_table_free(struct tarn_table *t)
{
    if (!t || tarn_client_enter(t->client) != 0)
        return;
    tarn_proxies_leave(t->client, t);
    delist(t);
    table_free(t);
}

void tarn_tables_close(struct tarn_client *c)
{
    while (c->tables)
        tarn_table_free(c->tables);
}

/* --- pages -------------------------------------------------------------------------------------- */

static int check_set(const struct tarn_table *t, uint32_t first, const struct tarn_key *keys, uint32_t n,
                     const struct tarn_hits *hits)
{
    int rc = 0;
    if (first > t->npages || n > t->npages - first)
        return tarn_fail(TARN_E_INVALID, "table: pages %u to %llu: it has pages 0 to %u", first,
                         (unsigned long long)first + n - 1, t->npages - 1);
    if (hits && (!keys || tarn_hits_count(hits) != n))
        return tarn_fail(TARN_E_INVALID, "table: there are %zu hits for %u keys: one for each key is needed",
                         tarn_hits_count(hits), keys ? n : 0);
    for (uint32_t i = 0; !rc && keys && i < n; i++)
        rc = tarn_key_check(&keys[i]);
    return rc;
}

/* Forgets the pages' objects and notes the new ones, which are looked for afterwards. */
static int name_pages(struct tarn_table *t, uint32_t first, const struct tarn_key *keys, uint32_t n)
{
    const struct tarn_table_found dead = {.status = keys ? TARN_E_STALE : TARN_E_NOT_FOUND};
    int rc = 0;
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; !rc && i < n; i++) {
        struct tarn_table_page *p = &t->pages[first + i];
        uint8_t *key = keys ? malloc(keys[i].bytes) : NULL;
        if (keys && !key)
            rc = tarn_fail(TARN_E_NO_MEMORY, "table: out of memory");
        free(p->key);
        p->key = key;
        p->key_bytes = key ? (uint32_t)keys[i].bytes : 0;
        if (key)
            memcpy(key, keys[i].data, keys[i].bytes);
        p->change++;
        tarn_table_page_set(t, first + i, &dead);
    }
    int written = tarn_table_memory_write(t, first, n);
    pthread_mutex_unlock(&t->lock);
    return rc ? rc : written;
}

int tarn_table_set(struct tarn_table *t, uint32_t first, const struct tarn_key *keys, uint32_t n,
                   const struct tarn_hits *hits, uint32_t timeout_ms, int32_t *statuses)
{
    struct tarn_cancel own, *cancel;
    int rc = t ? tarn_client_enter(t->client) : tarn_fail(TARN_E_INVALID, "table: is NULL"), worst = 0;
    if (!rc)
        rc = check_set(t, first, keys, n, hits);
    if (rc)
        return rc;
    uint64_t deadline = tarn_client_deadline(t->client, timeout_ms);
    cancel = tarn_client_cancel(t->client, &own);
    struct tarn_table_batch *b = tarn_table_batch_new();
    if (!b)
        return tarn_fail(TARN_E_NO_MEMORY, "table: out of memory");
    for (uint32_t at = 0, some; !rc && at < n; at += some) {
        some = n - at < TARN_TABLE_BATCH ? n - at : TARN_TABLE_BATCH;
        rc = name_pages(t, first + at, keys ? keys + at : NULL, some);
        if (rc || !keys)
            continue;
        tarn_table_batch_range(t, b, first + at, some);
        rc = tarn_table_batch_look(t, b, hits, at, deadline, cancel);
        for (uint32_t i = 0; i < some; i++) {
            int status = tarn_table_batch_status(b, i);
            worst = worst ? worst : status;
            if (statuses)
                statuses[at + i] = status;
        }
    }
    tarn_table_batch_free(b);
    return rc ? rc : worst;
}

int tarn_table_key(struct tarn_table *t, uint32_t page, uint8_t room[TARN_KEY_MAX], struct tarn_key *key)
{
    pthread_mutex_lock(&t->lock);
    const struct tarn_table_page *p = &t->pages[page];
    *key = (struct tarn_key){room, p->key_bytes};
    bool there = p->key != NULL;
    if (there)
        memcpy(room, p->key, p->key_bytes);
    pthread_mutex_unlock(&t->lock);
    return there ? 0 : tarn_fail(TARN_E_NOT_FOUND, "table: page %u is of no object: set it", page);
}

/* --- kernels ------------------------------------------------------------------------------------ */

struct tarn_dev_table tarn_table_dev(const struct tarn_table *t, uint32_t row_bytes)
{
    struct tarn_dev_table d = t->dev;
    d.row_bytes = row_bytes;
    d.rows_per_page = 1;
    return d;
}

/* Does the table's GPU reach all of it? */
static int check_memory(const struct tarn_table *t, const char *what, const void *at, uint64_t bytes)
{
    struct tarn_cuda_memory m;
    tarn_cuda_memory_of(at, &m);
    bool reached = m.kind == TARN_CUDA_DEVICE
                       ? m.device == t->device || tarn_cuda_reaches(t->device, m.device)
                       : m.kind != TARN_CUDA_HOST;
    if (!reached)
        return tarn_fail(TARN_E_INVALID, "gather: %s at %p: GPU %d does not reach this memory: use its own",
                         what, at, t->device);
    if ((uintptr_t)at + bytes < (uintptr_t)at || (uintptr_t)at + bytes > m.end)
        return tarn_fail(TARN_E_INVALID,
                         "gather: %s at %p: needs %llu bytes, its memory has %llu from there on", what, at,
                         (unsigned long long)bytes, (unsigned long long)(m.end - (uintptr_t)at));
    return 0;
}

static int check_gather(const struct tarn_table *t, const struct tarn_gather *g)
{
    if (g->row_bytes == 0 || g->stride < g->row_bytes || g->stride > UINT64_MAX / 2 / g->n)
        return tarn_fail(
            TARN_E_INVALID,
            "gather: row_bytes %u, stride %llu: a row has at least one byte, and a stride at least "
            "a row's bytes",
            g->row_bytes, (unsigned long long)g->stride);
    if ((uintptr_t)g->rows % sizeof(*g->rows) || (uintptr_t)g->status % sizeof(*g->status))
        return tarn_fail(TARN_E_INVALID, "gather: rows at %p, status at %p: align them to 4 bytes",
                         (const void *)g->rows, (void *)g->status);
    int rc = check_memory(t, "rows", g->rows, g->n * sizeof(*g->rows));
    if (!rc)
        rc = check_memory(t, "status", g->status, g->n * sizeof(*g->status));
    return rc ? rc : check_memory(t, "to", g->to, (g->n - 1) * g->stride + g->row_bytes);
}

int tarn_table_gather(struct tarn_table *t, const struct tarn_gather *given, void *stream)
{
    struct tarn_gather g;
    int rc = t ? tarn_client_enter(t->client) : tarn_fail(TARN_E_INVALID, "table: is NULL");
    if (!rc)
        rc = tarn_options_copy(&g, sizeof(g), given);
    if (rc || g.n == 0)
        return rc;
    rc = check_gather(t, &g);
    if (rc)
        return rc;
    struct tarn_dev_table d = tarn_table_dev(t, g.row_bytes);
    const struct tarn_cuda_rows rows = {g.rows, g.n, g.to, g.stride, g.status};
    d.offset = g.offset;
    d.rows_per_page = g.rows_per_page ? g.rows_per_page : 1;
    return tarn_cuda_gather(t->device, &d, &rows, stream);
}
