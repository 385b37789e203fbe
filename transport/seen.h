/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call knows about the caller's memory. It remembers allocations, because asking CUDA takes longer
 * than most copies, and the last list of pieces, because lists may be long. One thread at a time uses it.
 *
 * Reading a list of thousands of pieces of GPU memory for the first time takes a third of the time of its
 * copy. So the client checks only the first piece (a glance), and a transport with TARN_CAP_CHECKS checks
 * each piece when it writes it into its own list. Other transports get lists that were checked whole.
 */
#ifndef TARN_TRANSPORT_SEEN_H
#define TARN_TRANSPORT_SEEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "transport/transport.h"

#define TARN_SEEN_MAX 128 /* each layer of a model may have its own allocation */
struct tarn_seen {
    const struct tarn_piece *pieces; /* of the last list */
    uint32_t npieces, gpu;
    uint64_t bytes;
    bool at_most;     /* works may have fewer bytes than they say; a done work says how many */
    uint32_t n, last; /* ranges; the one that was hit last */
    struct tarn_seen_range {
        uintptr_t begin, end;
        uint32_t gpu; /* as struct tarn_work's */
    } ranges[TARN_SEEN_MAX];
};

/* Call it at the start of a call: allocations may have changed since the last one. */
static inline void tarn_seen_clear(struct tarn_seen *s)
{
    s->pieces = NULL;
    s->n = s->last = 0;
    s->at_most = false;
}

/* As `gpu` of struct tarn_work. */
uint32_t tarn_memory_gpu(const struct tarn_cuda_memory *m);
/* The allocation that an address lies in. */
struct tarn_seen_range tarn_seen_range(struct tarn_seen *seen, uintptr_t at);

/*
 * Finds the memory that the pieces lie in, as `gpu` of struct tarn_work. INVALID: a piece has no address, or
 * they lie in several GPUs, or in a GPU and the host. If the first is host memory, the others count as host
 * memory.
 */
int tarn_pieces_gpu(const struct tarn_piece *pieces, uint32_t n, struct tarn_seen *seen, uint32_t *gpu_p);
/* Their total, as tarn_pieces_bytes() says. Costs nothing for the list that was checked last. */
uint64_t tarn_seen_bytes(const struct tarn_seen *seen, const struct tarn_piece *pieces, uint32_t n);
/* Is it a long list that begins in a GPU's memory, and whose? Does not check the other pieces. */
bool tarn_pieces_glance(const struct tarn_piece *pieces, uint32_t n, struct tarn_seen *seen, uint32_t *gpu_p);
/* Checks all pieces of a work that has `seen`, and clears it. INVALID; SIZE, without a sentence. */
int tarn_work_look(struct tarn_work *w);

#endif
