/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of pools, and whether there is enough of it. */
#ifndef TARN_SERVER_POOL_H
#define TARN_SERVER_POOL_H

#include "transport/node_half.h"

/*
 * Creates and maps the memfds of a pool: arena, gen, touch. Shared, sealed against resizing, all zero,
 * no page touched yet. Fills *m except its name. Checks nothing beforehand; the kernel may refuse.
 * CONFIG (huge pages do not fit), NO_MEMORY, SYSTEM.
 */
int tarn_pool_create(const char *name, uint64_t bytes, uint32_t nslots, bool huge,
                     struct tarn_pool_memory *m);
/*
 * The same with the arena in the memory of a GPU (pool_gpu.c), named by its index or its uuid.
 * UNAVAILABLE: there is no such GPU, with those there are; NO_MEMORY: with what is free on it.
 */
int tarn_pool_create_gpu(const char *name, uint64_t bytes, uint32_t nslots, const char *device,
                         struct tarn_pool_memory *m);
/* The slot arrays alone, into m->gen and m->touch; m->nslots says how many. */
int tarn_pool_create_slots(const char *name, struct tarn_pool_memory *m);
void tarn_pool_destroy(struct tarn_pool_memory *m);

/*
 * Whether `bytes` of memory can be had now: MemAvailable and the limits of this process's cgroups (v1
 * and v2), or free huge pages. NO_MEMORY with the sentence that says what to change. `root` is where
 * /proc and /sys are looked for ("" outside of tests). What cannot be read does not limit.
 */
int tarn_pool_check_memory(const char *root, const char *name, uint64_t bytes);
int tarn_pool_check_huge(const char *root, const char *name, uint64_t bytes);

/* Private zeroed memory that takes a page only where it is touched; NULL when out of memory. */
void *tarn_lazy_new(uint64_t bytes);
void tarn_lazy_free(void *p, uint64_t bytes);

#endif
