/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call has found out about the caller's memory: allocations, since asking CUDA takes longer than most
 * copies, and the list of pieces that it looked at last, which may be long. Used by one thread at a time.
 *
 * A list of thousands of pieces that lies in a GPU's memory takes as long to read as a third of its copy
 * does, for the first time. So the client only glances at it, and a transport with TARN_CAP_CHECKS looks at
 * each piece when it writes it into its own list; others are given lists that have been looked at.
 */
#ifndef TARN_TRANSPORT_SEEN_H
#define TARN_TRANSPORT_SEEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "transport/transport.h"

#define TARN_SEEN_MAX 128 /* layers of a model have allocations of their own */
struct tarn_seen {
    const struct tarn_piece *pieces; /* of the last list */
    uint32_t npieces, gpu;
    uint64_t bytes;
    bool at_most; /* works may have fewer bytes than they say; then `bytes` is corrected when they are done */
    uint32_t n, last; /* ranges; the one that was hit last */
    struct tarn_seen_range {
        uintptr_t begin, end;
        uint32_t gpu; /* as struct tarn_work's */
    } ranges[TARN_SEEN_MAX];
};

/* At the start of a call: what was an allocation may be another's since. */
static inline void tarn_seen_clear(struct tarn_seen *s)
{
    s->pieces = NULL;
    s->n = s->last = 0;
    s->at_most = false;
}

/* As struct tarn_work has it. */
uint32_t tarn_memory_gpu(const struct tarn_cuda_memory *m);
/* The allocation that an address lies in. */
struct tarn_seen_range tarn_seen_range(struct tarn_seen *seen, uintptr_t at);

/*
 * Which memory the pieces are in, as struct tarn_work's gpu. INVALID: one of them has no address; or they are
 * in that of several GPUs, or of a GPU and of the host. Where the first is host memory, the others are taken
 * for that, too.
 */
int tarn_pieces_gpu(const struct tarn_piece *pieces, uint32_t n, struct tarn_seen *seen, uint32_t *gpu_p);
/* Their total, as tarn_pieces_bytes() says; free of charge for the list that was looked at last. */
uint64_t tarn_seen_bytes(const struct tarn_seen *seen, const struct tarn_piece *pieces, uint32_t n);
/* Is it a long list that begins in a GPU's memory, in which? The other pieces are not looked at. */
bool tarn_pieces_glance(const struct tarn_piece *pieces, uint32_t n, struct tarn_seen *seen, uint32_t *gpu_p);
/* Looks at all pieces of a work that has only been glanced at, which then has not. INVALID; SIZE: without a
 * sentence. */
int tarn_work_look(struct tarn_work *w);

#endif
