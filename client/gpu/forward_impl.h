/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of forwardings (include/tarn/forward.h).
 *
 *   forward.c          the calls
 *   forward_memory.c   the two places, and the counts
 *   forward_thread.c   the thread that takes notices, copies and counts
 *
 * The thread works in batches: what has been told is copied by one launch, then waited for, then counted.
 * Meanwhile the next batch gathers. Copies of one launch have no order, so no slot and no part is twice in a
 * batch.
 */
#ifndef TARN_CLIENT_GPU_FORWARD_IMPL_H
#define TARN_CLIENT_GPU_FORWARD_IMPL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <tarn/forward.h>

#include "base/cancel.h"
#include "client/window/lent.h"
#include "transport/cuda/cuda.h"

#define TARN_FORWARD_BATCH TARN_LENT_NOTICES

/* The landing place or the final one. */
struct tarn_forward_place {
    const char *name; /* in sentences */
    uint8_t *at;
    uint64_t bytes;
    int device;   /* -1: it is of the host */
    bool pinned;  /* by us */
    void *waited; /* memory of the device: giving it up waits for the kernels that run there */
};

/* The counts. What the thread writes for all is on lines of its own, of the GPU's size. */
#define TARN_FORWARD_LINE 128
struct tarn_forward_counts {
    _Alignas(TARN_FORWARD_LINE) uint64_t total;
    _Alignas(TARN_FORWARD_LINE) uint32_t state;
    _Alignas(TARN_FORWARD_LINE) uint64_t parts[];
};

struct tarn_forward {
    struct tarn_forward *prev, *next; /* in client.forwards */
    struct tarn_client *client;
    struct tarn_lease *lease;
    bool owns; /* the lease's notices are ours */
    struct tarn_forward_place landing, final;
    uint32_t bytes, slots, parts;
    int device; /* that copies; -1: the thread does */
    struct tarn_cuda_queue *queue;
    struct tarn_forward_counts *counts;
    size_t counts_bytes;
    bool counts_pinned;

    pthread_t thread;
    bool started;
    struct tarn_cancel cancel;

    /* The thread's own. */
    uint64_t tags[TARN_FORWARD_BATCH]; /* taken */
    struct tarn_cuda_piece pieces[TARN_FORWARD_BATCH];
    uint32_t numbers[TARN_FORWARD_BATCH]; /* of the pieces' parts */
    uint64_t batch;                       /* its number */
    uint64_t *slot_batch, *part_batch;    /* of each slot and part: the last batch that it was in */
    bool zero_told;                       /* the log has a line for a tag 0 */
};

/* --- forward_memory.c --------------------------------------------------------------------------- */

/* Looks whose memory the places are, and which device copies. INVALID, NOT_REACHABLE. */
int tarn_forward_memory_look(struct tarn_forward *f);
/* Pins the places as far as that is needed, and makes the counts and the queue. */
int tarn_forward_memory_new(struct tarn_forward *f);
/* Waits for kernels of the places' devices, then undoes that. */
void tarn_forward_memory_free(struct tarn_forward *f);

/* --- forward_thread.c --------------------------------------------------------------------------- */

int tarn_forward_thread_start(struct tarn_forward *f);
/* Ends all waits with this code, unless they have ended already. */
void tarn_forward_end(struct tarn_forward *f, int code);

#endif
