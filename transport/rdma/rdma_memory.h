/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that devices may reach.
 *
 * A *region* is a range registered with every rail. The client's *mappings* are what its caller has
 * registered: each has a range and the region that reaches it; one inside another shares its region. Works
 * look for mappings, never for regions: a region may reach further than what is still registered, and what
 * lies there may have been freed and mapped again, which devices do not see.
 *
 * For the same reason nothing is registered behind the caller's back and kept. A work on other memory is
 * carried by regions of its own, which end with it.
 *
 * The node's: arenas in slices, since devices limit the size of a region; each slice once for reading
 * and once for writing, so that the key a reader gets cannot write.
 *
 * fork(): the devices' objects are the parent's; a child has neither. Linux 5.12 copies registered pages for
 * the child at once, so that parent and devices keep theirs. Before that libibverbs takes registered memory
 * out of the child (ibv_fork_init).
 */
#ifndef TARN_TRANSPORT_RDMA_MEMORY_H
#define TARN_TRANSPORT_RDMA_MEMORY_H

#include <pthread.h>

#include "transport/rdma/rdma_rail.h"
#include "transport/transport.h"

/* What is to be registered. */
struct tarn_memory {
    uint32_t kind; /* enum tarn_memory_kind */
    void *addr;
    uint64_t bytes;
    /* CUDA: */
    int dmabuf; /* exports the memory; -1: it cannot be exported, and why */
    uint64_t dmabuf_offset;
    char why[TARN_SENTENCE];
};

/* One range, registered with every rail. */
struct tarn_region {
    char *addr;
    uint64_t bytes;
    bool writable;
    uint32_t users; /* freed with the last */
    struct ibv_mr *mr[TARN_RAILS_MAX];
    void *copy; /* of memory that cannot be registered: mapped for the region, gone with it */
    uint64_t copy_bytes;
};

/* One registration of the caller's. */
struct tarn_mapping {
    char *addr;
    uint64_t bytes;
    char *reach; /* the furthest end of all mappings up to here, in the order of addresses */
    struct tarn_region *region;
    uint32_t users; /* works in flight */
};

struct tarn_local {
    struct tarn_rails rails;
    _Atomic uint64_t aside_ns[TARN_RAILS_MAX]; /* the rail failed: links do without it until then */
    pthread_rwlock_t lock;
    struct tarn_mapping **mappings; /* by address; they may overlap */
    uint32_t n, room;
    /* Whose memory the devices refused last: works with memory of that GPU that is not registered are refused
     * until then without asking again, which would take longer than it takes the next transport. */
    struct {
        uint32_t gpu; /* as in struct tarn_work; 0: none */
        uint64_t until_ns;
        char why[TARN_SENTENCE];
    } refused;
};

/*
 * `access`: IBV_ACCESS_*. INVALID: there is no such memory, or it may not be written; UNSUPPORTED: GPU memory
 * that neither dma-buf nor peermem gives the device; else SYSTEM.
 */
int tarn_region_of(const struct tarn_rails *rails, const struct tarn_memory *m, int access,
                   struct tarn_region **r_p);
/* Of the host's memory. */
int tarn_region_new(const struct tarn_rails *rails, void *addr, uint64_t bytes, int access,
                    struct tarn_region **r_p);
/* Of a GPU's memory. */
int tarn_region_gpu(const struct tarn_rails *rails, void *addr, uint64_t bytes, int access,
                    struct tarn_region **r_p);
/* Gives it back. NULL is allowed. */
void tarn_region_free(struct tarn_region *r);

int tarn_rdma_local_open(const char *devices, struct tarn_local **local_p);
void tarn_rdma_local_close(struct tarn_local *local);
/* Of the host's memory or a GPU's. UNSUPPORTED: the devices take none of that GPU's. */
int tarn_rdma_map(struct tarn_local *local, void *addr, uint64_t bytes);
int tarn_rdma_map_memory(struct tarn_local *local, const struct tarn_memory *m);
int tarn_rdma_unmap(struct tarn_local *local, void *addr, uint64_t bytes);

/* A part of a work's memory and what reaches it. */
struct tarn_span {
    char *addr;
    uint64_t bytes;
    struct tarn_region *region;
    struct tarn_mapping *mapping; /* NULL: none of the caller's */
};

/* What covers a work's pieces. Zero it to begin; it stays where it is. */
struct tarn_cover {
    struct tarn_span *spans;
    uint32_t n, room;
    bool gpu;               /* the pieces are a GPU's memory: the CPU must not touch them */
    struct tarn_span first; /* most works need no more */
};

/* Finds or makes what covers [addr, +bytes): for devices to read (put), or to write. What a put cannot
 * register is copied; not a GPU's: UNSUPPORTED. After a failure what was covered before still is. */
int tarn_cover_add(struct tarn_local *local, struct tarn_cover *c, void *addr, uint64_t bytes, bool put);
/* The same for a range that also holds what is no piece: INVALID where it cannot be registered. */
int tarn_cover_range(struct tarn_local *local, struct tarn_cover *c, void *addr, uint64_t bytes, bool put);
/* Covers a work's pieces if the caller has registered them all. */
bool tarn_cover_mapped(struct tarn_local *local, struct tarn_cover *c, const struct tarn_work *w, bool put);
/* Covers with a region that outlives the work. */
int tarn_cover_borrow(struct tarn_cover *c, struct tarn_region *r);
/* The key for [addr, ...) on a rail and how many bytes it holds for; 0 bytes when it is not covered. */
uint64_t tarn_cover_key(const struct tarn_cover *c, const void *addr, uint32_t rail, uint32_t *lkey_p);
/* Has the caller registered all of these? */
bool tarn_rdma_mapped(struct tarn_local *local, const struct tarn_piece *pieces, uint32_t n);
void tarn_cover_end(struct tarn_local *local, struct tarn_cover *c);

/* Has memory of that GPU been refused a moment ago? Then NOT_REACHABLE with the reason, else 0. */
int tarn_gpu_refused(struct tarn_local *local, uint32_t gpu);
/* Remembers the last error as the reason; NOT_REACHABLE. */
int tarn_gpu_refuse(struct tarn_local *local, uint32_t gpu);

#endif
