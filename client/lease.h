/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: until when a client may read from a node (docs/consistency.md has why). A get that begins before
 * until_ns may; one that begins later asks. What the directory answers, and that it does not, is turned into
 * until_ns here, by rules that know no clock and no thread. lease_ask.c asks.
 *
 *   confirmed  by the life that the node's record had, counted from before it was asked about.
 *   unsure     Redis does not answer: read on for a moment, and for the next, until it does.
 *   gone       Redis has answered that the node is not there, or compares what it holds: not read.
 *
 * Each question is about all nodes that descriptors name. So a client that reads anything learns within a
 * sixth of a ttl that a lease has ended, and still knows it when Redis goes away: only a lease that had not
 * ended at the last question that was answered is read on. A client that was idle or stopped since the
 * lease's end cannot know of it, and reads on.
 *
 * until_ns is compared with the coarse clock, which is late by a tick, and by some more in a virtual machine
 * whose time-keeping CPU was held up (Linux lets another one step in after 5 ticks): so a lease ends that
 * much earlier.
 */
#ifndef TARN_CLIENT_LEASE_H
#define TARN_CLIENT_LEASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "metadata/directory.h"

/* How long an unsure lease runs, and how often Redis is asked while it is away. */
#define TARN_LEASE_UNSURE_NS (250 * TARN_NS_PER_MS)

struct tarn_lease {
    _Atomic uint64_t until_ns;
    _Atomic bool used;  /* a get has read under it since it was asked about last */
    _Atomic bool named; /* some descriptor named it, ever: it may be read later */
    _Atomic bool gone;
    /* the rest: tarn_leases.lock */
    bool unsure, refuses;
    uint64_t sent_ns;      /* when the question was sent whose answer this is */
    uint64_t confirmed_ns; /* the end that Redis's last answer gave it */
    uint64_t ttl_ns;       /* how long the node's records live; at least, until it is known */
    bool ttl_known;
    uint64_t due_ns; /* when to renew it, if it is in use */
};

enum tarn_lease_word {
    TARN_LEASE_RUNS,
    TARN_LEASE_GONE,    /* nothing is to be read there */
    TARN_LEASE_REFUSED, /* Redis does not answer, and the node wants its readers to refuse then */
    TARN_LEASE_ASK,     /* Redis is to be asked */
};

/* May a get that began at now_ns read there? */
static inline bool tarn_lease_runs(const struct tarn_lease *l, uint64_t now_ns)
{
    return now_ns < atomic_load_explicit(&l->until_ns, memory_order_acquire);
}

/* The same for who is about to read: a lease in use is renewed. */
static inline bool tarn_lease_read(struct tarn_lease *l, uint64_t now_ns)
{
    if (!tarn_lease_runs(l, now_ns))
        return false;
    if (!atomic_load_explicit(&l->used, memory_order_relaxed))
        atomic_store_explicit(&l->used, true, memory_order_relaxed);
    return true;
}

/*
 * Redis has answered a question that was sent at sent_ns; now_ns: when the answer came. epoch: the low half
 * of this incarnation's. True: another incarnation has its place.
 */
bool tarn_lease_answered(struct tarn_lease *l, uint32_t epoch, const struct tarn_lease_answer *a,
                         const struct tarn_pulse *p, uint64_t sent_ns, uint64_t now_ns);
/*
 * Redis does not answer, and the lease has ended. RUNS: for a moment. REFUSED. GONE: as Redis said last, or
 * since it had ended at answered_ns, when the last question that was answered was sent.
 */
enum tarn_lease_word tarn_lease_unanswered(struct tarn_lease *l, uint64_t answered_ns, uint64_t now_ns);
/* Another incarnation has its place. */
void tarn_lease_end(struct tarn_lease *l);

#endif
