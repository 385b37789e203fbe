/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: until when a client may read from a node (docs/consistency.md says why). A get that begins before
 * until_ns may read; a later one asks first. The rules here turn Redis's answers, or their absence, into
 * until_ns. They use no clock and no thread. read_lease_ask.c asks.
 *
 *   confirmed  Redis has shown the node's record. The lease runs for what was left of the record's life,
 *              counted from before the question.
 *   unsure     Redis does not answer. The lease runs for a moment at a time, until Redis answers.
 *   gone       Redis has answered that the node is not there, or still compares what it holds. No reading.
 *
 * Each question includes all nodes that descriptors name. So a client that reads anything learns of a lease's
 * end within a sixth of a ttl, and remembers it when Redis goes away: only a lease that ran at the last
 * answered question is prolonged. A client that was idle or stopped meanwhile cannot know, and reads on.
 *
 * Gets compare until_ns with the coarse clock. It is a tick late, and more in a virtual machine whose
 * time-keeping CPU is held up (Linux lets another CPU take over after 5 ticks). Leases end that much earlier.
 */
#ifndef TARN_CLIENT_READ_LEASE_H
#define TARN_CLIENT_READ_LEASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "metadata/directory.h"

/* How long an unsure lease runs, and the time between questions while Redis is away. */
#define TARN_READ_LEASE_UNSURE_NS (250 * TARN_NS_PER_MS)

struct tarn_read_lease {
    _Atomic uint64_t until_ns;
    _Atomic bool used;  /* a get has read under it since the last question */
    _Atomic bool named; /* a descriptor has named the node: it may be read later */
    _Atomic bool gone;
    /* the rest: tarn_read_leases.lock */
    bool unsure, refuses;  /* refuses: without Redis the node wants no readers */
    uint64_t sent_ns;      /* when the last answered question was sent */
    uint64_t confirmed_ns; /* the end that Redis's last answer gave it */
    uint64_t ttl_ns;       /* the life of the node's records; a lower bound until it is known */
    bool ttl_known;
    uint64_t due_ns; /* when to renew it, if it is in use */
};

enum tarn_read_lease_word {
    TARN_READ_LEASE_RUNS,    /* read */
    TARN_READ_LEASE_GONE,    /* do not read */
    TARN_READ_LEASE_REFUSED, /* do not read: Redis does not answer, and the node wants no readers then */
    TARN_READ_LEASE_ASK,     /* ask Redis first */
};

/* May a get that began at now_ns read there? */
static inline bool tarn_read_lease_runs(const struct tarn_read_lease *l, uint64_t now_ns)
{
    return now_ns < atomic_load_explicit(&l->until_ns, memory_order_acquire);
}

/* The same before a read. It marks the lease as used, so that it is renewed. */
static inline bool tarn_read_lease_read(struct tarn_read_lease *l, uint64_t now_ns)
{
    if (!tarn_read_lease_runs(l, now_ns))
        return false;
    if (!atomic_load_explicit(&l->used, memory_order_relaxed))
        atomic_store_explicit(&l->used, true, memory_order_relaxed);
    return true;
}

/*
 * Takes Redis's answer to a question sent at sent_ns; it came at now_ns. epoch: the low half of this
 * incarnation's. True: another incarnation has its place.
 */
bool tarn_read_lease_answered(struct tarn_read_lease *l, uint32_t epoch,
                              const struct tarn_read_lease_answer *a, const struct tarn_directory_state *p,
                              uint64_t sent_ns, uint64_t now_ns);
/*
 * The lease has ended and Redis does not answer. RUNS: for a moment more. REFUSED. GONE: Redis said so, or
 * the lease had ended before answered_ns, when the last answered question was sent.
 */
enum tarn_read_lease_word tarn_read_lease_unanswered(struct tarn_read_lease *l, uint64_t answered_ns,
                                                     uint64_t now_ns);
/* Ends it for good: another incarnation has the node's place. */
void tarn_read_lease_end(struct tarn_read_lease *l);

#endif
