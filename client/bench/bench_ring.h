/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `tarn-bench ring` runs on a GPU: producers of command rings, tarn's (tarn/ring.h) and bare ones. A
 * bare ring is the least that does the same: commands of two stamped halves in pinned memory, and a counter
 * by which the CPU says how many it has seen. It checks nothing, answers in order, and has no status and no
 * abort.
 *
 * Each producer is a block of one thread with a ring of its own. The build links one of these:
 *
 *   bare/bench_bare_ring.cu          with the CUDA toolkit
 *   bare/bench_bare_ring_played.c    without it: a thread of the CPU a producer; its figures mean nothing
 */
#ifndef TARN_CLIENT_BENCH_RING_H
#define TARN_CLIENT_BENCH_RING_H

#include <stdbool.h>

#include <tarn/ring.h>

#include "client/bench/bench_bare.h"

#ifdef __cplusplus
extern "C" {
#endif

/* No producer works for longer. */
#define BENCH_RING_LIMIT_NS 20000000000ull

/* In memory that the producer reaches, all of it. */
struct bench_ring_report {
    uint64_t ticks, ns; /* how long it worked, by both clocks */
    int rc;
};

struct bench_ring_task {
    struct tarn_ring ring; /* a bare one has no statuses and no state */
    bool bare;
    bool one_by_one;   /* waits for each command before the next */
    uint64_t commands; /* to push */
    uint64_t to;       /* address of each command; 0: bench_ring_address() */
    uint64_t gap;      /* ticks from one command to the next; 0: as fast as it can */
    uint32_t *took;    /* ticks of each command, from when it was due until it was seen to be done */
    struct bench_ring_report *report;
};

/* Starts n producers; the tasks are in the device's memory. */
struct bench_ring_run;
int bench_ring_start(struct bench_bare *b, const struct bench_ring_task *tasks, uint32_t n,
                     struct bench_ring_run **run_p);
/* Waits for them. */
int bench_ring_finish(struct bench_ring_run *run);

/* --- a bare ring, as the CPU sees it (bench_ring_bare.c) ----------------------------------------- */

#define BENCH_RING_SIZE 1024 /* commands */

struct bench_bare_memory;
struct bench_bare_ring {
    struct bench_bare_memory *memory; /* NULL: there is none */
    bool pinned;
    uint64_t head;
};
int bench_bare_ring_new(struct bench_bare_ring *r);
void bench_bare_ring_free(struct bench_bare_ring *r);
struct tarn_ring bench_bare_ring_shared(const struct bench_bare_ring *r);
/* AGAIN, or the address in the next command. */
int bench_bare_ring_next(const struct bench_bare_ring *r, uint64_t *address_p);
void bench_bare_ring_answer(struct bench_bare_ring *r);

/* --- a producer --------------------------------------------------------------------------------- */

/* Ticks of a clock finer than tarn_dev_now(). */
TARN_DEV uint64_t bench_ring_ticks(void)
{
#ifdef TARN_DEV_GPU
    return (uint64_t)clock64();
#else
    return tarn_dev_now();
#endif
}

/* Command n of a ring, which its consumer checks. */
TARN_DEV uint64_t bench_ring_address(uint64_t n)
{
    return 4096 * (n + 1);
}

/* There is room. */
TARN_DEV int bench_ring_push(const struct bench_ring_task *t, struct tarn_ring_producer *p)
{
    uint64_t n = p->tail, to = t->to ? t->to : bench_ring_address(n),
             stamp = (uint64_t)tarn_ring_stamp(n) << 32;

    if (!t->bare) {
        struct tarn_ring_command c = {TARN_RING_GET, 4096, to, 0, 0, 0};
        return tarn_dev_ring_push(p, &c, BENCH_RING_LIMIT_NS, &n);
    }
    struct tarn_half *slot = &p->ring.slots[2 * (n & (p->ring.size - 1))];
    struct tarn_half half0 = {to, stamp}, half1 = {0, stamp | TARN_RING_GET << 24 | 4096};
    tarn_dev_half_write(&slot[0], half0, 0);
    tarn_dev_half_write(&slot[1], half1, 0);
    p->tail++;
    return 0;
}

TARN_DEV int bench_ring_late(uint64_t start_ns)
{
#ifndef TARN_DEV_GPU
    sched_yield();
#endif
    return tarn_dev_now() - start_ns > BENCH_RING_LIMIT_NS ? TARN_E_TIMEOUT : 0;
}

/* Waits for the command that was pushed last. */
TARN_DEV int bench_ring_await(const struct bench_ring_task *t, struct tarn_ring_producer *p)
{
    int rc = 0, status = 0;

    if (!t->bare) {
        rc = tarn_dev_ring_wait(p, p->tail - 1, BENCH_RING_LIMIT_NS, &status);
        return rc ? rc : status;
    }
    uint64_t start = tarn_dev_now();
    for (uint32_t polls = 1; rc == 0 && tarn_dev_load64(p->ring.done) < p->tail; polls++)
        if (polls % TARN_RING_POLLS == 0)
            rc = bench_ring_late(start);
    p->done = p->tail;
    return rc;
}

TARN_DEV int bench_ring_round_trips(const struct bench_ring_task *t, struct tarn_ring_producer *p)
{
    int rc = 0;

    for (uint64_t i = 0; rc == 0 && i < t->commands; i++) {
        uint64_t start = bench_ring_ticks();
        rc = bench_ring_push(t, p);
        if (rc == 0)
            rc = bench_ring_await(t, p);
        t->took[i] = (uint32_t)(bench_ring_ticks() - start);
    }
    return rc;
}

/* Pushes what is due and has room, then looks at what is done. What is late counts from when it was due. */
TARN_DEV int bench_ring_stream(const struct bench_ring_task *t, struct tarn_ring_producer *p)
{
    uint64_t first = p->tail, end = first + t->commands, seen = first;
    uint64_t start = bench_ring_ticks(), start_ns = tarn_dev_now();
    int rc = 0;

    while (rc == 0 && seen < end) {
        uint64_t now = bench_ring_ticks();
        while (rc == 0 && p->tail < end && p->tail - p->done < p->ring.size &&
               start + (p->tail - first) * t->gap <= now)
            rc = bench_ring_push(t, p);
        p->done = tarn_dev_load64(p->ring.done);
        if (seen == p->done && rc == 0)
            rc = bench_ring_late(start_ns);
        now = bench_ring_ticks();
        for (; seen < p->done; seen++)
            t->took[seen - first] = (uint32_t)(now - (start + (seen - first) * t->gap));
    }
    return rc;
}

TARN_DEV void bench_ring_produce(const struct bench_ring_task *t)
{
    uint64_t ticks = bench_ring_ticks(), ns = tarn_dev_now();
    struct tarn_ring_producer p;
    int rc = tarn_dev_ring_open(&p, &t->ring);

    if (rc == 0)
        rc = t->one_by_one ? bench_ring_round_trips(t, &p) : bench_ring_stream(t, &p);
    tarn_dev_ring_close(&p);
    t->report->ticks = bench_ring_ticks() - ticks;
    t->report->ns = tarn_dev_now() - ns;
    t->report->rc = rc;
}

#ifdef __cplusplus
}
#endif
#endif
