/* SPDX-License-Identifier: Apache-2.0 */
#include "client/read_lease.h"

#define ROUND_NS TARN_NS_PER_MS /* PTTL counts whole milliseconds */
#define LATE_TICKS 6            /* of the coarse clock */

static uint64_t less_margin(uint64_t ns)
{
    return ns - ns / 100;
}

static uint64_t shorter_by(uint64_t ns, uint64_t by)
{
    return ns > by ? ns - by : 0;
}

/* The end of a lease that Redis grants for so long, for the coarse clock. */
static uint64_t end_after(uint64_t sent_ns, uint64_t left_ns)
{
    return sent_ns + shorter_by(less_margin(left_ns), ROUND_NS + LATE_TICKS * tarn_coarse_tick_ns());
}

/* What is left of a record is no measure of a silence: it may have been seen first at its end. */
static void learn_ttl(struct tarn_read_lease *l, uint64_t left_ms, const struct tarn_directory_state *p)
{
    uint64_t left_ns = left_ms * TARN_NS_PER_MS;

    if (p->heartbeat_ms) {
        l->ttl_ns = 3 * p->heartbeat_ms * TARN_NS_PER_MS;
        l->ttl_known = true;
    } else if (!l->ttl_known && left_ns > l->ttl_ns) {
        l->ttl_ns = left_ns;
    }
}

static void granted(struct tarn_read_lease *l, uint64_t left_ms, uint64_t sent_ns)
{
    uint64_t until = end_after(sent_ns, left_ms * TARN_NS_PER_MS);

    l->unsure = false;
    l->confirmed_ns = until;
    l->due_ns = shorter_by(until, l->ttl_ns / 3);
    if (l->due_ns < sent_ns + l->ttl_ns / 6)
        l->due_ns = sent_ns + l->ttl_ns / 6;
    atomic_store(&l->gone, false);
    atomic_store_explicit(&l->until_ns, until, memory_order_release);
}

/* By this client's clock, a moment of Redis's: not after it (seen from sent_ns), or not before (from when the
 * answer came). */
static uint64_t moment(uint64_t from_ns, const struct tarn_directory_state *p, uint64_t ms)
{
    return shorter_by(from_ns, shorter_by(p->now_ms, ms) * TARN_NS_PER_MS);
}

/*
 * All nodes were silent, and had no time to report since; or still are. Nobody has taken this one's record
 * for expired then, unless that was before the silence had lasted for 2 heartbeats. Until when it is read on;
 * 0: it is not.
 */
static uint64_t silence_of_all(const struct tarn_read_lease *l, const struct tarn_directory_state *p,
                               uint64_t sent_ns, uint64_t now_ns)
{
    uint64_t beats2 = l->ttl_ns / 3 * 2, silent_ms = p->silent_ms, resumed_ms = p->resumed_ms;

    if (!l->ttl_known || p->beat_ms == 0)
        return 0;
    if (shorter_by(p->now_ms, p->beat_ms) * TARN_NS_PER_MS > l->ttl_ns / 4 * 3) { /* it goes on */
        silent_ms = p->beat_ms;
        resumed_ms = p->now_ms;
    }
    if (silent_ms == 0 || resumed_ms == 0)
        return 0;
    if (!l->unsure && l->confirmed_ns < moment(now_ns, p, silent_ms) + beats2)
        return 0;
    uint64_t until =
        shorter_by(moment(sent_ns, p, resumed_ms) + less_margin(beats2), LATE_TICKS * tarn_coarse_tick_ns());
    return until > now_ns ? until : 0;
}

void tarn_read_lease_end(struct tarn_read_lease *l)
{
    atomic_store(&l->gone, true);
    atomic_store_explicit(&l->until_ns, 0, memory_order_release);
}

static void not_there(struct tarn_read_lease *l, const struct tarn_directory_state *p, uint64_t sent_ns,
                      uint64_t now_ns)
{
    l->due_ns = now_ns + l->ttl_ns / 6;
    uint64_t until = silence_of_all(l, p, sent_ns, now_ns);
    if (until == 0) {
        tarn_read_lease_end(l);
        l->unsure = false;
        return;
    }
    l->unsure = true;
    l->confirmed_ns = until;
    atomic_store(&l->gone, false);
    atomic_store_explicit(&l->until_ns, until, memory_order_release);
}

bool tarn_read_lease_answered(struct tarn_read_lease *l, uint32_t epoch,
                              const struct tarn_read_lease_answer *a, const struct tarn_directory_state *p,
                              uint64_t sent_ns, uint64_t now_ns)
{
    if (sent_ns < l->sent_ns) /* overtaken by a later one's */
        return false;
    l->sent_ns = sent_ns;
    if (a->epoch && (uint32_t)a->epoch != epoch) {
        tarn_read_lease_end(l);
        return true;
    }
    learn_ttl(l, a->left_ms, p);
    if (a->epoch)
        l->refuses = a->refuses;
    if (a->epoch && !a->returning) {
        granted(l, a->left_ms, sent_ns);
    } else if (a->epoch || l->unsure || !tarn_read_lease_runs(l, now_ns)) {
        not_there(l, p, sent_ns, now_ns);
    } else { /* the record was deleted; nobody may take it for expired before its time */
        l->due_ns = now_ns + l->ttl_ns / 6;
    }
    return false;
}

enum tarn_read_lease_word tarn_read_lease_unanswered(struct tarn_read_lease *l, uint64_t answered_ns,
                                                     uint64_t now_ns)
{
    if (atomic_load(&l->gone))
        return TARN_READ_LEASE_GONE;
    if (l->refuses)
        return TARN_READ_LEASE_REFUSED;
    if (l->confirmed_ns <= answered_ns) {
        tarn_read_lease_end(l);
        return TARN_READ_LEASE_GONE;
    }
    l->unsure = true;
    atomic_store_explicit(&l->until_ns, now_ns + TARN_READ_LEASE_UNSURE_NS, memory_order_release);
    return TARN_READ_LEASE_RUNS;
}
