/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a work's pieces to the list of a launch in one pass. Adjacent pieces become one run. Runs are cut
 * to what a list takes; a large one is kept for the copy engines.
 */
#ifndef TARN_TRANSPORT_CUDA_IPC_WRITE_H
#define TARN_TRANSPORT_CUDA_IPC_WRITE_H

#include "transport/transport.h"

/* Bytes contiguous in both the work's memory and the pool. */
struct tarn_ipc_run {
    uint8_t *pool, *memory;
    uint64_t bytes;
};

/* Where runs are written to, and what has been written. */
struct tarn_ipc_writer {
    struct tarn_cuda_piece *at, *end;
    uint64_t bytes;
    struct tarn_cuda_piece large; /* bytes 0: none; nothing is written after it */
    bool put;                     /* direction: from memory to the pool */
};

/* How much of a work has been written. Zero it first. */
struct tarn_ipc_place {
    struct tarn_cursor cursor; /* in the work's pieces */
    struct tarn_cursor far;    /* in the runs of its lease */
    uint64_t done;             /* bytes the cursor has passed */
    struct tarn_ipc_run run;   /* the last run; not written yet, since the next piece may be adjacent */
    uintptr_t begin, end;      /* if pieces must be checked: an allocation they may lie in */
};

/* Takes a whole run for the copy engines. */
void tarn_ipc_write_large(struct tarn_ipc_writer *o, struct tarn_ipc_run *r);
/* False: no room for the whole run; the rest stays in *r. */
bool tarn_ipc_write_run(struct tarn_ipc_writer *o, struct tarn_ipc_run *r);
/* Writes as much of a work as there is room for. `pool`: address of its range of the pool. AGAIN: some is
 * left. INVALID, SIZE: a check of the work's pieces (tarn_work.seen) failed. */
int tarn_ipc_write_work(struct tarn_ipc_writer *o, struct tarn_work *w, uint8_t *pool,
                        struct tarn_ipc_place *place);
/* The same for a work of a lease whose range is several runs. `window`: the window's address. It has no
 * checks to make. */
int tarn_ipc_write_runs(struct tarn_ipc_writer *o, const struct tarn_work *w, uint8_t *window,
                        struct tarn_ipc_place *place);

#endif
