/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that devices may access.
 *
 * A *region* is a range registered with every rail. A client's *mappings* are the ranges that its caller
 * registered, each with a region that covers it. A mapping inside another shares its region. Works look for
 * mappings, never for regions. A region may be larger than what is still registered, and memory outside the
 * mappings may have been freed and mapped again, which devices do not notice.
 *
 * For the same reason no memory is registered and kept without the caller's request. A work on other memory
 * uses temporary regions, which end with the work.
 *
 * A node registers its arenas in slices, because devices limit the size of a region. Each slice is registered
 * once for reading and once for writing, so that a reader's key does not permit writes.
 *
 * fork(): the devices' objects belong to the parent; the child cannot use them. Since Linux 5.12 the child
 * gets copies of registered pages at once, so parent and devices keep the originals. On older kernels
 * libibverbs removes registered memory from the child (ibv_fork_init).
 */
#ifndef TARN_TRANSPORT_RDMA_MEMORY_H
#define TARN_TRANSPORT_RDMA_MEMORY_H

#include <pthread.h>

#include "transport/rdma/rdma_rail.h"
#include "transport/transport.h"

/* Memory to register. */
struct tarn_memory {
    uint32_t kind; /* enum tarn_memory_kind */
    void *addr;
    uint64_t bytes;
    /* CUDA: */
    int dmabuf; /* exports the memory; -1: not possible, and why */
    uint64_t dmabuf_offset;
    struct tarn_reason why;
};

/* One range, registered with every rail. */
struct tarn_region {
    char *addr;
    uint64_t bytes;
    bool writable;
    uint32_t users; /* freed with the last user */
    struct ibv_mr *mr[TARN_RAILS_MAX];
    void *copy; /* mapped for the region if the memory cannot be registered; freed with it */
    uint64_t copy_bytes;
};

/* One registration by the caller. */
struct tarn_rdma_mapping {
    char *addr;
    uint64_t bytes;
    char *reach; /* the highest end of all mappings up to this one, in the order of addresses */
    struct tarn_region *region;
    uint32_t users; /* works in flight */
};

struct tarn_rdma_local {
    struct tarn_rails rails;
    _Atomic uint64_t aside_ns[TARN_RAILS_MAX]; /* the rail failed: links do not use it until then */
    pthread_rwlock_t lock;
    struct tarn_rdma_mapping **mappings; /* sorted by address; may overlap */
    uint32_t n, room;
    /* The GPU whose memory the devices last refused. Until then, works with unregistered memory of that
     * GPU are refused at once. Asking the devices again would take longer than another transport's
     * transfer. */
    struct {
        uint32_t gpu; /* as in struct tarn_work; 0: none */
        uint64_t until_ns;
        struct tarn_reason why;
    } refused;
};

/*
 * `access`: IBV_ACCESS_*. INVALID: there is no such memory, or it is not writable. UNSUPPORTED: neither
 * dma-buf nor peermem makes this GPU memory accessible. SYSTEM: other failures.
 */
int tarn_region_new(const struct tarn_rails *rails, bool gpu, void *addr, uint64_t bytes, int access,
                    struct tarn_region **r_p);
/* Drops one use. NULL is allowed. SYSTEM: a device has not ended the registration, so its keys may still
 * work. */
int tarn_region_free(struct tarn_region *r);

static inline struct tarn_rdma_local *tarn_rdma_local(struct tarn_local *local)
{
    return (struct tarn_rdma_local *)local;
}

int tarn_rdma_local_open(const char *devices, struct tarn_local **local_p);
void tarn_rdma_local_close(struct tarn_local *local);
/* Registers host memory or a GPU's. UNSUPPORTED: the devices refuse that GPU's memory. */
int tarn_rdma_map(struct tarn_local *local, void *addr, uint64_t bytes);
int tarn_rdma_map_memory(struct tarn_rdma_local *local, const struct tarn_memory *m);
int tarn_rdma_unmap(struct tarn_local *local, void *addr, uint64_t bytes);

/* A part of a work's memory and its region. */
struct tarn_span {
    char *addr;
    uint64_t bytes;
    struct tarn_region *region;
    struct tarn_rdma_mapping *mapping; /* NULL: not registered by the caller */
};

/* What covers a work's pieces. Zero it first; it must not move. */
struct tarn_cover {
    struct tarn_span *spans;
    uint32_t n, room;
    bool gpu;               /* GPU memory: the CPU must not access it */
    struct tarn_span first; /* enough for most works */
};

/* Finds or makes a cover for [addr, +bytes), which devices read (put) or write. Memory of a put that cannot
 * be registered is copied if `copy`, as a range that also has bytes outside the pieces must not be; else it
 * is INVALID. A GPU's is UNSUPPORTED. A failure keeps what was covered before. */
int tarn_cover_add(struct tarn_rdma_local *local, struct tarn_cover *c, char *addr, uint64_t bytes, bool put,
                   bool copy);
/* Covers a work's pieces if the caller has registered them all; otherwise returns false. */
bool tarn_cover_mapped(struct tarn_rdma_local *local, struct tarn_cover *c, const struct tarn_work *w,
                       bool put);
/* Covers with a region that outlives the work. */
int tarn_cover_borrow(struct tarn_cover *c, struct tarn_region *r);
/* The key for [addr, ...) on a rail, and for how many bytes it is valid; 0 bytes if addr is not covered. */
uint64_t tarn_cover_key(const struct tarn_cover *c, const void *addr, uint32_t rail, uint32_t *lkey_p);
/* Has the caller registered all these pieces? */
bool tarn_rdma_mapped(struct tarn_rdma_local *local, const struct tarn_piece *pieces, uint32_t n);
void tarn_cover_end(struct tarn_cover *c);

/* NOT_REACHABLE, with the reason, if memory of that GPU was refused recently; else 0. */
int tarn_gpu_refused(struct tarn_rdma_local *local, uint32_t gpu);
/* Remembers the failure of the call before as the reason for refusing. Returns NOT_REACHABLE. */
int tarn_gpu_refuse(struct tarn_rdma_local *local, uint32_t gpu);

#endif
