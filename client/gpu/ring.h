/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The consumer's side of a command ring (tarn/ring.h has the protocol). It has no thread: who owns the ring
 * polls it.
 *
 *   take: number n is in its slot --> under way --complete--> its status is published; `done` counts it once
 *   all numbers before it have completed, too
 *
 * What a kernel writes is foreign input. The consumer copies a command before it looks at it, and uses only
 * its own counters to find slots. A command that is wrong in itself gets its status, and the ring goes on. A
 * stamp that no producer writes there means that nobody knows any more which command is which: the ring is
 * broken, and every wait ends with PROTOCOL. Addresses and the rows behind numbers are for the caller to
 * check.
 *
 * One thread at a time, except tarn_ring_abort().
 */
#ifndef TARN_CLIENT_GPU_RING_H
#define TARN_CLIENT_GPU_RING_H

#include <stdbool.h>

#include <tarn/ring.h>

#define TARN_RING_SIZE_MAX 65536

struct tarn_ring_options {
    uint32_t size;   /* commands: a power of two, 2 to TARN_RING_SIZE_MAX */
    uint32_t rows;   /* GET and REFRESH name a row below this */
    uint32_t ranges; /* WRITE names a range below this */
    bool pinned;     /* GPUs are to reach it; false: threads of this process play them */
};

struct tarn_ring_consumer;

/* The calling thread touches the memory first, so the kernel places it near. Errors: INVALID, NO_MEMORY, and
 * those of tarn_cuda_pin(). */
int tarn_ring_new(const struct tarn_ring_options *o, struct tarn_ring_consumer **r_p);
/* No kernel uses the ring any more: abort it, and wait for the kernels. NULL is allowed. */
void tarn_ring_free(struct tarn_ring_consumer *r);
/* For kernels; valid as long as the ring. */
const struct tarn_ring *tarn_ring_shared(const struct tarn_ring_consumer *r);

/*
 * Takes the next command. AGAIN, without a sentence: there is none. INVALID: there was a wrong one, number
 * *number_p, which has got that as its status; take the next. CANCELED, PROTOCOL: the ring was aborted or is
 * broken: nothing will come any more.
 */
int tarn_ring_take(struct tarn_ring_consumer *r, struct tarn_ring_command *c, uint64_t *number_p);
/* Publishes the status, 0 or a TARN_E_*, of a command that was taken. Its bytes are in place. INVALID: no
 * such command is under way. */
int tarn_ring_complete(struct tarn_ring_consumer *r, uint64_t number, int status);
/* How many commands have completed without a gap. */
uint64_t tarn_ring_done(const struct tarn_ring_consumer *r);
/* Commands that were taken and have not completed. */
uint32_t tarn_ring_under_way(const struct tarn_ring_consumer *r);

/* Ends every wait with CANCELED, in kernels, too. The ring stays aborted. Any thread. */
void tarn_ring_abort(struct tarn_ring_consumer *r);

#endif
