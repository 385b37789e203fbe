/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of hit tables (include/tarn/table.h).
 *
 *   table.c          the calls
 *   table_pages.c    which object a page is, and where it lies
 *   table_batch.c    looking for many objects
 *   table_memory.c   what kernels see: memory of the GPU, written by copies
 *   table_thread.c   keeps a table current
 *
 * A page is *live* (its object has an address) or *dead*, with the status of its rows. A page changes only
 * under the table's lock; whoever has looked up an object without it compares the page's `change` first, so
 * that the answer to an older question does not replace a newer object.
 *
 * A table *holds* each link whose memory its pages have had, by being counted among the link's views, until
 * it is freed: kernels may still read an address from which the page has moved on.
 */
#ifndef TARN_CLIENT_GPU_TABLE_IMPL_H
#define TARN_CLIENT_GPU_TABLE_IMPL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <tarn/table.h>

#include "base/cancel.h"
#include "client/client.h"
#include "client/desc.h"
#include "transport/transport.h"

struct tarn_table_hold {
    struct tarn_open_link *link;
    struct tarn_peer_node *node;
    uint32_t pages;    /* live ones */
    uint64_t since_ns; /* how long its lease has been asked for; 0: it runs */
};

struct tarn_table_page {
    struct tarn_half halves[2]; /* what kernels shall see, without stamps */
    uint8_t *key;               /* NULL: of no object */
    uint32_t key_bytes;
    uint32_t change; /* counts its objects */
    uint32_t stamp;
    int32_t status;            /* 0: live */
    uint32_t hold, pool, slot; /* of a live one */
};

/* Memory of the host that the GPU reads and writes, behind the mirror of the pages. */
struct tarn_table_shared {
    _Alignas(64) uint32_t news;
    _Alignas(64) uint64_t time; /* the GPU's; 0: asked for and not there */
    uint64_t until;
};

struct tarn_table {
    struct tarn_table *prev, *next; /* in client.tables */
    struct tarn_client *client;
    int device;
    uint32_t npages;
    pthread_mutex_t lock;
    /* The lock, from here on. */
    struct tarn_table_page *pages;
    struct tarn_table_hold *holds;
    uint32_t nholds;
    /* table_memory.c */
    uint8_t *gpu; /* pages, until, used, told */
    size_t pinned_bytes;
    struct tarn_half *mirror; /* pinned: the GPU's pages */
    uint8_t *marks;           /* pinned: what kernels have marked, then zeros */
    struct tarn_table_shared *shared;
    struct tarn_dev_table dev;
    uint64_t gpu_ns, host_ns, asked_ns; /* the GPU had the time gpu_ns at host_ns at the latest */
    uint64_t until_ns;                  /* of the host; what the GPU has */
    struct tarn_reason failure;         /* of CUDA; code 0: there was none */
    /* table_thread.c, without the lock */
    pthread_t thread;
    bool started;
    struct tarn_cancel cancel;
    struct tarn_table_batch *batch;
    uint64_t used_ns; /* when use was last told */
};

/* --- table.c ------------------------------------------------------------------------------------ */

/* Copies the page's key. NOT_FOUND: it is of no object. */
int tarn_table_key(struct tarn_table *t, uint32_t page, uint8_t room[TARN_KEY_MAX], struct tarn_key *key);

/* --- table_memory.c ----------------------------------------------------------------------------- */

int tarn_table_memory_new(struct tarn_table *t, uint64_t deadline_ns);
/* Waits for the GPU's kernels. */
void tarn_table_memory_free(struct tarn_table *t);
/* Has kernels see pages [first, first + n) as t->pages has them. A row that is read meanwhile is STALE. */
int tarn_table_memory_write(struct tarn_table *t, uint32_t first, uint32_t n);
/* Gets that begin before until_ns, of the host's clock, may read. */
int tarn_table_memory_lease(struct tarn_table *t, uint64_t until_ns);
/* Copies the marks (dev.used, dev.told) to t->marks and clears them. A mark that is set meanwhile may be
 * lost. */
int tarn_table_memory_take(struct tarn_table *t, uint8_t *marks);
/* Compares the two clocks now and then. */
int tarn_table_memory_time(struct tarn_table *t);

/* --- table_pages.c ------------------------------------------------------------------------------ */

/* Where an object lies. */
struct tarn_table_found {
    int status;
    struct tarn_range range;
    struct tarn_address address;
    uint32_t hold;
};

/* These two with the lock. Makes it the page's object; tarn_table_memory_write() comes next. */
void tarn_table_page_set(struct tarn_table *t, uint32_t page, const struct tarn_table_found *f);
/* All pages of the hold die. */
int tarn_table_kill(struct tarn_table *t, uint32_t hold, int status);
/* Finds it; without the lock. */
void tarn_table_find(struct tarn_table *t, const struct tarn_desc *desc, uint64_t deadline_ns,
                     struct tarn_cancel *cancel, struct tarn_table_found *f);

/* --- table_batch.c: pages whose objects are looked for together; without the lock ------------------ */

enum { TARN_TABLE_BATCH = 256 };

struct tarn_table_batch *tarn_table_batch_new(void);
void tarn_table_batch_free(struct tarn_table_batch *b);
/* Takes pages with marks in t->marks, from *page on; *page: where the next batch begins. */
void tarn_table_batch_told(struct tarn_table *t, struct tarn_table_batch *b, uint32_t *page);
/* The next page with a mark in t->marks, from `page` on; npages: there is none. */
uint32_t tarn_table_marked(const struct tarn_table *t, uint32_t page);
/* Takes pages [first, first + n). */
void tarn_table_batch_range(struct tarn_table *t, struct tarn_table_batch *b, uint32_t first, uint32_t n);
/* Looks for the objects and sets the pages that still are of the same. hits: hit first + i is the batch's
 * i-th page's; NULL: asks the directory. Fails if CUDA does. */
int tarn_table_batch_look(struct tarn_table *t, struct tarn_table_batch *b, const struct tarn_hits *hits,
                          size_t first, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* What has become of the i-th page. */
int tarn_table_batch_status(const struct tarn_table_batch *b, uint32_t i);
/* Looks for the object of one page. Its status; NOT_FOUND also if the page is of no object. */
int tarn_table_look_again(struct tarn_table *t, uint32_t page, uint64_t deadline_ns,
                          struct tarn_cancel *cancel);

/* --- table_thread.c ----------------------------------------------------------------------------- */

int tarn_table_thread_start(struct tarn_table *t);
void tarn_table_thread_stop(struct tarn_table *t);
/* Renews the lease. Call it with the lock. */
int tarn_table_renew(struct tarn_table *t);

#endif
