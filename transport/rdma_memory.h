/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that devices may reach.
 *
 * The client's: ranges the caller has registered, found again by address. Nothing is registered behind the
 * caller's back and kept: memory that was freed and mapped again at the same address would then be reached
 * through its old pages. A work on other memory is carried by registrations of its own, which end with it.
 *
 * The node's: arenas in slices, since devices limit the size of a region; each slice once for reading
 * and once for writing, so that the key a reader gets cannot write.
 */
#ifndef TARN_TRANSPORT_RDMA_MEMORY_H
#define TARN_TRANSPORT_RDMA_MEMORY_H

#include <pthread.h>

#include "transport/rdma_rail.h"
#include "transport/transport.h"

/* One range, registered with every rail. */
struct tarn_region {
    char *addr;
    uint64_t bytes;
    uint32_t users; /* works in flight, and the caller's registration */
    bool mapped;    /* by the caller, who may take it back */
    struct ibv_mr *mr[TARN_RAILS_MAX];
};

struct tarn_local {
    struct tarn_rails rails;
    _Atomic uint64_t aside_ns[TARN_RAILS_MAX]; /* the rail failed: links do without it until then */
    pthread_rwlock_t lock;
    struct tarn_region **regions; /* by address; they may overlap */
    uint32_t n, room;
};

int tarn_region_new(const struct tarn_rails *rails, void *addr, uint64_t bytes, int access,
                    struct tarn_region **r_p);
void tarn_region_free(struct tarn_region *r);

int tarn_rdma_local_open(const char *devices, struct tarn_local **local_p);
void tarn_rdma_local_close(struct tarn_local *local);
int tarn_rdma_map(struct tarn_local *local, void *addr, uint64_t bytes);
int tarn_rdma_unmap(struct tarn_local *local, void *addr, uint64_t bytes);

/* What covers a work's pieces. Zero it to begin. */
struct tarn_cover {
    struct tarn_region **regions; /* those in use, the caller's and own ones */
    uint32_t n, room;
};

/* Finds or makes what covers [addr, +bytes). After a failure what was covered before still is. */
int tarn_cover_add(struct tarn_local *local, struct tarn_cover *c, void *addr, uint64_t bytes);
/* The key for [addr, ...) on a rail and how many bytes it holds for; 0 bytes when it is not covered. */
uint64_t tarn_cover_key(const struct tarn_cover *c, const void *addr, uint32_t rail, uint32_t *lkey_p);
/* Covers with a region that outlives the work. */
int tarn_cover_borrow(struct tarn_cover *c, struct tarn_region *r);
/* Has the caller registered all of these? */
bool tarn_rdma_mapped(struct tarn_local *local, const struct tarn_piece *pieces, uint32_t n);
void tarn_cover_end(struct tarn_local *local, struct tarn_cover *c);

#endif
