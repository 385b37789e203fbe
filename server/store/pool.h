/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of pools, and whether there is enough of it. */
#ifndef TARN_SERVER_POOL_H
#define TARN_SERVER_POOL_H

#include "transport/node_half.h"

/*
 * Creates the memory of a pool. device "": memfds of arena, gen and touch, shared, sealed against resizing,
 * all zero, no page touched yet. Else the arena is in the memory of that GPU, named by its index or its uuid.
 * Fills *m except its name. Checks nothing beforehand; the kernel or the driver may refuse. CONFIG (huge
 * pages do not fit), NO_MEMORY, SYSTEM; UNAVAILABLE: there is no such GPU, with those there are.
 */
int tarn_pool_create(const char *name, uint64_t bytes, uint32_t nslots, bool huge, const char *device,
                     struct tarn_pool_memory *m);
/* The device and arena of a GPU pool (pool_gpu.c), into *m. */
int tarn_pool_take_gpu(const char *name, const char *device, struct tarn_pool_memory *m);
void tarn_pool_destroy(struct tarn_pool_memory *m);

/*
 * Whether `bytes` of memory can be had now: MemAvailable and the limits of this process's cgroups (v1
 * and v2), or free huge pages. NO_MEMORY with the sentence that says what to change. `root` is where
 * /proc and /sys are looked for ("" outside of tests). What cannot be read does not limit.
 */
int tarn_pool_check_memory(const char *root, const char *name, uint64_t bytes);
int tarn_pool_check_huge(const char *root, const char *name, uint64_t bytes);

#endif
