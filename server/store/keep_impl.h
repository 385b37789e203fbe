/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the state directory, for keep.c and keep_pool.c only. */
#ifndef TARN_SERVER_KEEP_IMPL_H
#define TARN_SERVER_KEEP_IMPL_H

#include <stdatomic.h>

#include "server/store/keep.h"

struct presence_place {
    _Atomic uint64_t check; /* 0: void */
    uint64_t number;
    char bytes[TARN_KEEP_PRESENCE];
};

struct old_page {
    char name[80];
    void *page;
    size_t bytes;
};

struct kept_pool {
    int records_fd, keys_fd;
    struct tarn_kept *records; /* address space for all; the file has those of `nslots` */
    char *keys;
    uint32_t nslots, room;
};

struct tarn_keep {
    char path[200];
    int dir, lock, presence_fd;
    struct tarn_keep_owner owner;
    bool found;
    uint64_t epoch, tick_base_ns;
    struct presence_place *presence;
    struct kept_pool pools[TARN_POOLS_MAX];
    struct old_page *pages;
    uint32_t npages;
};

/* Opens a file and allocates its space; 0: leaves its size. */
int keep_file(struct tarn_keep *k, const char *name, uint64_t bytes, int *fd_p);
int keep_map(struct tarn_keep *k, const char *name, uint64_t bytes, int *fd_p, void **base_p);
void keep_pool_close(struct tarn_keep *k, uint32_t index);

#endif
