/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Producers of `tarn-bench ring --peer` (bench_writes.h): each fills a source with a part's bytes and pushes
 * a WRITE of it into its command ring. Part n is known by its count, from 1 on:
 *
 *   ring (n - 1) % rings     slot (n - 1) % slots     words bench_pattern_word(n, 0), (n, 1), ...
 *
 * A slot is written again once rank 1 has verified what was in it: `credit` says how many parts, without a
 * gap. A source is filled again once its command has completed: source i is that of the ring's slot i.
 *
 * A producer is a block of threads on a GPU, or one thread of the CPU. Thread 0 of a block has the ring.
 */
#ifndef TARN_CLIENT_BENCH_WRITES_PRODUCE_H
#define TARN_CLIENT_BENCH_WRITES_PRODUCE_H

#include "client/bench/bench_bare.h"
#include "client/bench/bench_ring.h"

#ifndef TARN_DEV_GPU
#include <time.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What rank 1 writes over any transport, perhaps not at once: both words belong together, or neither counts.
 */
struct bench_credit {
    uint64_t count, inverse; /* ~count */
};

struct bench_writes_task {
    struct tarn_ring ring;
    const struct bench_credit *credit;
    uint64_t *sources;
    uint64_t counted; /* parts of slices before */
    uint32_t parts;   /* to write */
    uint32_t number, rings, slots, bytes;
    bool one_by_one; /* waits for each command before the next */
    uint32_t *took;  /* ticks of each command, until it and all before it were seen to be done */
    struct bench_ring_report *report;
};

/* Starts n producers on a GPU; the tasks are in its memory (bare/bench_bare_writes*). */
int bench_writes_start(struct bench_bare *b, const struct bench_writes_task *tasks, uint32_t n);
/* Waits for them. */
int bench_writes_finish(struct bench_bare *b);

/* --- a producer --------------------------------------------------------------------------------- */

#ifdef TARN_DEV_GPU
#define BENCH_WRITES_THREAD threadIdx.x
#define BENCH_WRITES_THREADS blockDim.x
#define BENCH_WRITES_BARRIER() __syncthreads()
#else
#define BENCH_WRITES_THREAD 0
#define BENCH_WRITES_THREADS 1
#define BENCH_WRITES_BARRIER() (void)0
#endif

/* Of all threads of the producer. */
struct bench_writes_state {
    struct tarn_ring_producer p;
    uint64_t first, seen; /* numbers of commands: the first, and how far they were seen to be done */
    uint64_t credit;
    int rc;
};

TARN_DEV uint64_t bench_writes_count(const struct bench_writes_task *t, uint64_t i)
{
    return t->counted + i * t->rings + t->number + 1;
}

TARN_DEV void bench_writes_read_credit(const struct bench_writes_task *t, struct bench_writes_state *s)
{
    uint64_t inverse = tarn_dev_load64(&t->credit->inverse), count = tarn_dev_load64(&t->credit->count);

    if (count == ~inverse)
        s->credit = count;
}

/* Looks at the statuses of commands, in order. The first that is not 0 ends the producer. */
TARN_DEV void bench_writes_look(const struct bench_writes_task *t, struct bench_writes_state *s)
{
    for (; s->rc == 0 && s->seen < s->p.tail; s->seen++) {
        uint64_t word = tarn_dev_load64(&t->ring.statuses[s->seen & (t->ring.size - 1)]);
        if (word >> 32 != tarn_ring_stamp(s->seen))
            return;
        s->rc = (int)(uint32_t)word;
        t->took[s->seen - s->first] = (uint32_t)bench_ring_ticks() - t->took[s->seen - s->first];
    }
}

/* Threads that wait leave the CPU to those who work. */
TARN_DEV void bench_writes_pause(const struct tarn_ring_patience *w)
{
#ifdef TARN_DEV_GPU
    (void)w;
#else
    const struct timespec nap = {.tv_nsec = 20000};
    if (w->polls % (4 * TARN_RING_POLLS) == 0)
        nanosleep(&nap, NULL);
#endif
}

/* Waits until at most so many commands are under way, and rank 1 has verified so many parts. */
TARN_DEV void bench_writes_await(const struct bench_writes_task *t, struct bench_writes_state *s,
                                 uint64_t under_way, uint64_t credit)
{
    struct tarn_ring_patience w = {BENCH_RING_LIMIT_NS, 0, 0};

    for (;;) {
        uint64_t seen = s->seen, had = s->credit;
        bench_writes_look(t, s);
        if (s->credit < credit)
            bench_writes_read_credit(t, s);
        if (s->rc != 0 || (s->p.tail - s->seen <= under_way && s->credit >= credit))
            return;
        if (s->seen != seen || s->credit != had)
            w.polls = 0;
        s->rc = tarn_dev_ring_over(&t->ring, &w);
        bench_writes_pause(&w);
    }
}

TARN_DEV void bench_writes_push(const struct bench_writes_task *t, struct bench_writes_state *s,
                                const uint64_t *source, uint64_t count)
{
    uint32_t slot = (uint32_t)((count - 1) % t->slots);
    struct tarn_ring_command c = {TARN_RING_WRITE, t->bytes,       (uintptr_t)source, 0,
                                  slot * t->bytes, (uint32_t)count};
    uint64_t number;

    t->took[s->p.tail - s->first] = (uint32_t)bench_ring_ticks();
    s->rc = tarn_dev_ring_push(&s->p, &c, BENCH_RING_LIMIT_NS, &number);
}

/* One part. All threads; they get the same result, for thread 0 changes s->rc only outside of the barriers.
 */
TARN_DEV int bench_writes_part(const struct bench_writes_task *t, struct bench_writes_state *s,
                               uint64_t count)
{
    uint32_t words = t->bytes / 8;
    bool leads = BENCH_WRITES_THREAD == 0;

    if (leads)
        bench_writes_await(t, s, t->one_by_one ? 0 : t->ring.size - 1,
                           count > t->slots ? count - t->slots : 0);
    BENCH_WRITES_BARRIER();
    int rc = s->rc;
    uint64_t *source = t->sources + (s->p.tail & (t->ring.size - 1)) * words;
    if (rc == 0)
        for (uint32_t i = BENCH_WRITES_THREAD; i < words; i += BENCH_WRITES_THREADS)
            source[i] = bench_pattern_word(count, i);
    tarn_dev_fence();
    BENCH_WRITES_BARRIER();
    if (leads && rc == 0)
        bench_writes_push(t, s, source, count);
    return rc;
}

TARN_DEV void bench_writes_begin(const struct bench_writes_task *t, struct bench_writes_state *s)
{
    s->rc = tarn_dev_ring_open(&s->p, &t->ring);
    s->first = s->seen = s->p.tail;
    s->credit = 0;
}

TARN_DEV void bench_writes_end(const struct bench_writes_task *t, struct bench_writes_state *s,
                               uint64_t ticks, uint64_t ns)
{
    if (s->rc == 0)
        bench_writes_await(t, s, 0, bench_writes_count(t, t->parts - 1));
    t->report->ticks = bench_ring_ticks() - ticks;
    t->report->ns = tarn_dev_now() - ns;
    t->report->rc = s->rc;
    tarn_dev_ring_close(&s->p);
}

/* All threads. `s` is memory that they share. */
TARN_DEV void bench_writes_produce(const struct bench_writes_task *t, struct bench_writes_state *s)
{
    uint64_t ticks = bench_ring_ticks(), ns = tarn_dev_now();
    int rc = 0;

    if (BENCH_WRITES_THREAD == 0)
        bench_writes_begin(t, s);
    for (uint32_t i = 0; rc == 0 && i < t->parts; i++)
        rc = bench_writes_part(t, s, bench_writes_count(t, i));
    if (BENCH_WRITES_THREAD == 0)
        bench_writes_end(t, s, ticks, ns);
}

#ifdef __cplusplus
}
#endif
#endif
