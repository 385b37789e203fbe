/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transports within a host (shm, cuda_ipc) share in the client: mapping the files of a node's pools, and
 * hazards. node_share.h has the node's side.
 *
 * If the owner shrank a file, the reader would die by SIGBUS. So files that are short or not sealed against
 * shrinking are refused. fork() does not inherit mappings: for the node all writing and viewing ends when the
 * process that attached exits, and no child may prolong that.
 */
#ifndef TARN_TRANSPORT_SHARE_H
#define TARN_TRANSPORT_SHARE_H

#include "transport/notices.h"

#define TARN_SHARE_FDS 3 /* of a pool in an ATTACH answer: arena (unless it is GPU memory), gen, touch */

struct tarn_mapping {
    void *addr;
    size_t bytes;
};

/* A pool that the node shares. */
struct tarn_share_pool {
    uint64_t bytes;
    uint32_t nslots; /* 0: the node does not share it */
    const _Atomic uint64_t *gen;
    _Atomic uint32_t *touch;
    struct tarn_mapping arena, gen_map, touch_map; /* arena: unmapped if it is GPU memory */
    uint64_t file_offset;                          /* of a window in its file */
};

/* Maps the pool's files: arena (unless arena_fd is -1), then those of gen and touch (unless that is -1).
 * Makes sure before that no access can fault. `bytes`, `nslots` and `file_offset` are set. write: the arena,
 * too, is mapped for writing. */
int tarn_share_pool_map(const struct tarn_link *l, int arena_fd, const int fds[2], bool write,
                        struct tarn_share_pool *p);
/* What was not mapped may be unmapped. */
void tarn_share_pool_unmap(struct tarn_share_pool *p);

/* Do slot and range lie in the pool? If not, the descriptor is another node's, or garbage. */
static inline bool tarn_share_has(const struct tarn_share_pool *p, uint32_t slot, uint64_t offset,
                                  uint64_t bytes)
{
    return slot < p->nslots && offset <= p->bytes && bytes <= p->bytes - offset;
}

/* Counts as use: sets a slot's touch to the node's time. Writes only when the tick has changed, so that gets
 * of a hot object do not bounce its cache line. */
void tarn_share_touch(_Atomic uint32_t *touch, uint64_t tick_base_ns);

/* A link's part of the session's hazard page. page NULL: the node gave none. Any thread may claim and drop.
 */
struct tarn_share_hazards {
    struct tarn_mapping map;
    struct tarn_hazard_page *page;
    _Atomic uint64_t claimed[TARN_HAZARDS / 64]; /* bit i: entry i is this link's */
};

/* A lender's ring of notifications and its bell; ring NULL: not yet. */
struct tarn_share_notices {
    struct tarn_mapping map;
    _Atomic(struct tarn_notice_ring *) ring;
    int bell;
};
/* fds: the ring, and the bell, which is taken over (then -1). Once; later calls do nothing. */
int tarn_share_notices_map(const struct tarn_link *l, int fds[2], struct tarn_share_notices *n);
void tarn_share_notices_unmap(struct tarn_share_notices *n);

int tarn_share_hazards_map(const struct tarn_link *l, int fd, struct tarn_share_hazards *h);
/* Drops what is still claimed. The page belongs to the session, so the entries would stay for good. */
void tarn_share_hazards_unmap(struct tarn_share_hazards *h);
/* Keeps the extent of slot `slot` of pool number `pool`, which is `p`, from being reused from now on. STALE:
 * the slot has another generation. AGAIN: too many views. NOT_REACHABLE: there is no page. */
int tarn_share_hazard_claim(const struct tarn_link *l, struct tarn_share_hazards *h,
                            const struct tarn_share_pool *p, uint32_t pool, uint32_t slot, uint64_t gen,
                            uint32_t *hazard_p);
void tarn_share_hazard_drop(struct tarn_share_hazards *h, uint32_t hazard);

#endif
