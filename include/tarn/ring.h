/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command ring: a kernel asks a thread of the CPU for what the GPU cannot do by itself, and waits for the
 * answer inside the kernel. docs/gpu-driven.md has the picture, tests/model/ring.pml the order of accesses.
 *
 * The *producer* is one thread of a kernel; the *consumer* is one thread of the CPU (client/gpu/ring.h). They
 * share memory that the GPU reaches:
 *
 *   slots      `size` commands of 32 bytes, two halves each        the producer writes
 *   statuses   a word for each slot: stamp and status              the consumer writes
 *   done       how many commands have completed, without a gap     the consumer writes
 *   state      0, or the TARN_E_* with which every wait ends       the consumer writes
 *   tail       where the next producer goes on                     the producer writes when it closes
 *
 * Commands are numbered from 0; number n goes to slot n modulo size, and may go there once `done` counts the
 * number n - size. Commands complete in any order. Stamps stand for fences: a half is there when it has the
 * stamp of the expected number, and so is a status. `done` orders nothing, it only counts.
 *
 * A half: word b has the stamp in its upper 32 bits.
 *
 *   half 0   a: address                             b, lower half: row or range
 *   half 1   a: notification << 32 | offset         b, lower half: opcode << 24 | bytes
 *
 * One thread at a time is the producer: it opens the ring, pushes, waits, and closes it. Threads of a block
 * may share an open producer in shared memory and take turns, with a barrier between turns. Several threads
 * of a warp that push at once would wait for one another: they are refused. Who needs more uses several
 * rings.
 */
#ifndef TARN_RING_H
#define TARN_RING_H

#include <stdint.h>

#include <tarn/device_base.h>
#include <tarn/error.h>

#ifndef TARN_DEV_GPU
#include <sched.h>
#endif

enum tarn_ring_op {
    TARN_RING_GET = 1, /* part of a row's object to `address` */
    TARN_RING_WRITE,   /* from `address` to part of a window's range; then tells the lender `notify` */
    TARN_RING_REFRESH, /* looks a row's object up again */
    TARN_RING_QUIET,   /* completes when all commands before it have completed */
};

#define TARN_RING_BYTES_MAX ((1u << 24) - 1) /* of one command; more takes several, by `offset` */
#define TARN_RING_OPS 256
#define TARN_RING_POLLS 16 /* a wait looks at clock and state with every 16th poll */

struct tarn_ring_command {
    uint32_t op;      /* enum tarn_ring_op */
    uint32_t bytes;   /* GET, WRITE: 1 to TARN_RING_BYTES_MAX; else 0 */
    uint64_t address; /* GET, WRITE: memory that the consumer knows; else 0 */
    uint32_t index;   /* GET, REFRESH: row; WRITE: range; else 0 */
    uint32_t offset;  /* GET, WRITE: of the first byte in the object or range */
    uint32_t notify;  /* WRITE: the tag of what the lender is told; 0: nothing */
};

/* Where a ring is, for kernels: an argument by value, or in GPU memory. */
struct tarn_ring {
    struct tarn_half *slots;
    uint64_t *statuses;
    uint64_t *done;
    uint32_t *state;
    uint64_t *tail;
    uint32_t size; /* a power of two */
};

/* An open producer: its own counters, so that it reads `done` only when the ring seems full. */
struct tarn_ring_producer {
    struct tarn_ring ring;
    uint64_t tail; /* number of the next command */
    uint64_t done; /* as last read */
};

/* Never 0; repeats after 2^31 commands, when nothing is left of the command before. */
TARN_DEV uint32_t tarn_ring_stamp(uint64_t number)
{
    return (uint32_t)(number & 0x7fffffff) + 1;
}

/* --- open and close ----------------------------------------------------------------------------- */

/* INVALID: the producer before did not close the ring, so nobody knows what it has pushed. */
TARN_DEV int tarn_dev_ring_open(struct tarn_ring_producer *p, const struct tarn_ring *ring)
{
    p->ring = *ring;
    p->tail = tarn_dev_load64(ring->tail);
    p->done = tarn_dev_load64(ring->done);
    return p->done > p->tail ? TARN_E_INVALID : 0;
}

/* Commands may still be under way. The next producer may open the ring behind a barrier or in a later kernel
 * of the same stream. */
TARN_DEV void tarn_dev_ring_close(struct tarn_ring_producer *p)
{
    tarn_dev_store64(p->ring.tail, p->tail);
}

/* --- waits -------------------------------------------------------------------------------------- */

/* A wait. Its time counts from its first look at the clock, so that what comes soon costs none. */
struct tarn_ring_patience {
    uint64_t timeout_ns, start, polls;
};

/* 0: poll again. */
TARN_DEV int tarn_dev_ring_over(const struct tarn_ring *ring, struct tarn_ring_patience *w)
{
    if (++w->polls % TARN_RING_POLLS != 0)
        return 0;
    int state = (int)tarn_dev_load32(ring->state);
    if (state != 0)
        return state;
#ifndef TARN_DEV_GPU
    sched_yield();
#endif
    uint64_t now = tarn_dev_now();
    if (w->polls == TARN_RING_POLLS)
        w->start = now;
    return now - w->start >= w->timeout_ns ? TARN_E_TIMEOUT : 0;
}

/* Waits until the first `count` commands have completed. */
TARN_DEV int tarn_dev_ring_wait_done(struct tarn_ring_producer *p, uint64_t count, uint64_t timeout_ns)
{
    struct tarn_ring_patience w = {timeout_ns, 0, 0};
    int rc = 0;

    while (p->done < count && rc == 0) {
        p->done = tarn_dev_load64(p->ring.done);
        if (p->done < count)
            rc = tarn_dev_ring_over(&p->ring, &w);
    }
    return rc;
}

/*
 * Waits until all commands of the ring have completed. TIMEOUT. CANCELED: the ring was aborted. PROTOCOL: the
 * consumer found what no producer writes. After a failure commands may still be under way: the memory that
 * they name must stay.
 *
 * Call tarn_dev_fence() before you read what a GET has brought.
 */
TARN_DEV int tarn_dev_ring_wait_all(struct tarn_ring_producer *p, uint64_t timeout_ns)
{
    return tarn_dev_ring_wait_done(p, p->tail, timeout_ns);
}

/*
 * Waits for one command's status, 0 or a TARN_E_*. The ring keeps it until number + size is pushed. INVALID:
 * that was pushed already, or `number` never was. Fails as tarn_dev_ring_wait_all() does, and wants the same
 * fence. Several threads of the block may wait at once, while none pushes.
 */
TARN_DEV int tarn_dev_ring_wait(const struct tarn_ring_producer *p, uint64_t number, uint64_t timeout_ns,
                                int *status)
{
    const uint64_t *at = &p->ring.statuses[number & (p->ring.size - 1)];
    struct tarn_ring_patience w = {timeout_ns, 0, 0};

    if (number >= p->tail || p->tail - number > p->ring.size)
        return TARN_E_INVALID;
    uint64_t word = tarn_dev_load64(at);
    while (word >> 32 != tarn_ring_stamp(number)) {
        int rc = tarn_dev_ring_over(&p->ring, &w);
        if (rc != 0)
            return rc;
        word = tarn_dev_load64(at);
    }
    *status = (int)(uint32_t)word;
    return 0;
}

/* --- push --------------------------------------------------------------------------------------- */

/* Does the command fit into its halves, and does one thread of the warp push alone? */
TARN_DEV int tarn_ring_can_push(const struct tarn_ring_command *c)
{
#ifdef TARN_DEV_GPU
    if (__popc(__activemask()) != 1)
        return 0;
#endif
    return c->bytes <= TARN_RING_BYTES_MAX && c->op < TARN_RING_OPS;
}

TARN_DEV void tarn_ring_write(const struct tarn_ring *ring, uint64_t number,
                              const struct tarn_ring_command *c)
{
    struct tarn_half *slot = &ring->slots[2 * (number & (ring->size - 1))];
    uint64_t stamp = (uint64_t)tarn_ring_stamp(number) << 32;
    struct tarn_half half0 = {c->address, stamp | c->index};
    struct tarn_half half1 = {(uint64_t)c->notify << 32 | c->offset, stamp | c->op << 24 | c->bytes};

    tarn_dev_half_write(&slot[0], half0, 0);
    tarn_dev_half_write(&slot[1], half1, 0);
}

/*
 * Pushes a command and gives its number. Waits at most timeout_ns while the ring is full; then TIMEOUT,
 * CANCELED or PROTOCOL as tarn_dev_ring_wait_all(), and nothing was pushed. INVALID: op or bytes too large,
 * or several threads of a warp push at once.
 *
 * What a WRITE reads must be fenced first, with tarn_dev_fence().
 */
TARN_DEV int tarn_dev_ring_push(struct tarn_ring_producer *p, const struct tarn_ring_command *c,
                                uint64_t timeout_ns, uint64_t *number)
{
    if (!tarn_ring_can_push(c))
        return TARN_E_INVALID;
    if (p->tail - p->done >= p->ring.size) {
        int rc = tarn_dev_ring_wait_done(p, p->tail - p->ring.size + 1, timeout_ns);
        if (rc != 0)
            return rc;
    }
    tarn_ring_write(&p->ring, p->tail, c);
    *number = p->tail++;
    return 0;
}

#endif
