/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a work's pieces to the list of a launch, in one pass: pieces that touch become one run, runs are cut
 * to what a list takes, and one that is large is kept for the copy engines.
 */
#ifndef TARN_TRANSPORT_CUDA_IPC_WRITE_H
#define TARN_TRANSPORT_CUDA_IPC_WRITE_H

#include "transport/transport.h"

/* Bytes that are contiguous in memory and in the pool. */
struct tarn_ipc_run {
    uint8_t *pool, *memory;
    uint64_t bytes;
};

/* Where runs are written to, and what has been. */
struct tarn_ipc_writer {
    struct tarn_cuda_piece *at, *end;
    uint64_t bytes;
    struct tarn_cuda_piece large; /* bytes 0: none; nothing is written behind it */
    bool put;                     /* from memory to the pool */
};

/* How much of a work has been written. Zero it to start. */
struct tarn_ipc_place {
    struct tarn_cursor cursor;
    uint64_t done;           /* bytes that the cursor has passed */
    struct tarn_ipc_run run; /* the last of them, not written so far, since the next piece may touch it */
    uintptr_t begin, end;    /* of a work nobody has looked at: an allocation that pieces may lie in */
};

/* Takes the whole of a run for the copy engines. */
void tarn_ipc_write_large(struct tarn_ipc_writer *o, struct tarn_ipc_run *r);
/* False: there is no room for all of the run; what is left stays in *r. */
bool tarn_ipc_write_run(struct tarn_ipc_writer *o, struct tarn_ipc_run *r);
/* Writes what there is room for of a work whose range of the pool is at `pool`. AGAIN: some is left. INVALID,
 * SIZE: what is to be found out of the work's pieces (tarn_work.seen) is not so. */
int tarn_ipc_write_work(struct tarn_ipc_writer *o, struct tarn_work *w, uint8_t *pool,
                        struct tarn_ipc_place *place);

#endif
