/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hit tables: objects that kernels of one GPU read by themselves (device.h), chosen on the GPU, inside CUDA
 * graphs, without the host.
 *
 * A table has a fixed number of pages. tarn_table_set() says which object each of them is. Kernels then get
 * rows of pages with tarn_dev_get(), or the host launches tarn_table_gather() on a stream. What kernels take
 * of a table (struct tarn_dev_table) stays the same until the table is freed, so it may be in a CUDA graph.
 *
 * A thread of the client keeps its tables current. It looks again for objects whose rows a kernel found
 * STALE, ends the reading of nodes that may not be read, and tells nodes what was used. It comes about every
 * 10 ms, and never makes a kernel wait.
 *
 * A kernel reads objects in pools on this host that its GPU reaches: of the CPU, of this GPU, of others
 * with peer access. Rows of all other objects end with NOT_REACHABLE: get those with tarn_get().
 *
 * What gets promise (tarn.h) holds: a row with status 0 has bytes of the object whole and unmixed; and once
 * a put that replaces the object has returned 0, no row that is got later has the old ones.
 */
#ifndef TARN_TABLE_H
#define TARN_TABLE_H

#include <tarn/device.h>
#include <tarn/tarn.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* exported by libtarn.so, see client/libtarn.map */

#define TARN_TABLE_PAGES_MAX (1u << 24)

struct tarn_table;

struct tarn_table_options {
    size_t size;
    int32_t device;      /* whose kernels use it, as this process counts them */
    uint32_t npages;     /* 1 to TARN_TABLE_PAGES_MAX */
    uint32_t timeout_ms; /* 0: the client's */
};

/*
 * Makes a table. Its pages are of no object: NOT_FOUND. It takes 32 bytes a page of the GPU's memory, and
 * more of the host's. The object belongs to one thread at a time, and to its client: tarn_close() frees it.
 * Errors: INVALID, UNAVAILABLE (no GPU, or it failed), NO_MEMORY, TIMEOUT.
 *
 * As every call that allocates memory of a GPU, this one and tarn_table_free() may wait for the kernels that
 * run there. Memory of a node whose objects a table has had stays mapped until the table is freed.
 */
int tarn_table_new(struct tarn_client *c, const struct tarn_table_options *o, struct tarn_table **t_p);
/* No kernel may be launched with it any more. NULL is allowed. */
void tarn_table_free(struct tarn_table *t);

/*
 * Makes pages [first, first + n) those objects; keys NULL: of no object. hits: of these keys, hit i of key i;
 * NULL: looks them up. Each page has its own status in statuses (n of them; may be NULL): 0, NOT_FOUND,
 * NOT_REACHABLE, TOO_LARGE (4 GiB or more), NODE_DOWN, STALE (the table's thread looks again), DIRECTORY. A
 * kernel that runs meanwhile finds a page as it was, as it is, or STALE.
 */
int tarn_table_set(struct tarn_table *t, uint32_t first, const struct tarn_key *keys, uint32_t n,
                   const struct tarn_hits *hits, uint32_t timeout_ms, int32_t *statuses);

/* What kernels take. Rows are whole pages of row_bytes bytes; set the last three fields for others. */
struct tarn_dev_table tarn_table_dev(const struct tarn_table *t, uint32_t row_bytes);

/* Rows to get. All memory is the GPU's, or such that it reaches. */
struct tarn_gather {
    size_t size;
    uint64_t offset; /* of the rows in their pages, in bytes */
    uint32_t row_bytes;
    uint32_t rows_per_page; /* 0: 1 */
    const uint32_t *rows;   /* numbers, see struct tarn_dev_table */
    uint32_t n;
    void *to; /* row i at to + i * stride */
    uint64_t stride;
    int32_t *status; /* n of them, see tarn_dev_get() */
};

/*
 * Launches the get of these rows on a stream (cudaStream_t) of the table's device, and does not wait. It may
 * be captured in a CUDA graph. INVALID: memory that the GPU does not reach.
 */
int tarn_table_gather(struct tarn_table *t, const struct tarn_gather *g, void *stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
