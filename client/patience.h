/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patience: how long a peer may be silent before it counts as silent.
 *
 * Round trips are smoothed as RFC 6298 (section 2) has it for TCP's retransmission timer:
 *
 *   first    srtt = R                          rttvar = R / 2
 *   later    srtt = 7/8 srtt + 1/8 R           rttvar = 3/4 rttvar + 1/4 |srtt - R|   (rttvar first)
 *   patience = srtt + max(G, 4 rttvar)
 *
 * G is TARN_PATIENCE_NS here: how long its host may hold up a healthy node. Before the first round trip the
 * patience is 1 s as in the RFC, less where all measured peers are near, and the least on the same host.
 *
 * A call takes several steps (connect, HELLO, a command). Each step has the whole patience; the call's
 * deadline limits them all.
 */
#ifndef TARN_CLIENT_PATIENCE_H
#define TARN_CLIENT_PATIENCE_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/clock.h"

#define TARN_PATIENCE_NS (250 * TARN_NS_PER_MS) /* the least */
#define TARN_PATIENCE_FIRST_NS TARN_NS_PER_S    /* before anything was measured */
/* The most. A host that stood still while a round trip was measured must not make callers wait for ever. */
#define TARN_PATIENCE_MOST_NS (3 * TARN_NS_PER_S)

/* Any thread may use it. All zeros: nothing was measured. */
struct tarn_patience {
    _Atomic uint64_t measured; /* microseconds: rttvar in the high half, srtt in the low one */
};

/* Takes a measured round trip. */
void tarn_patience_learn(struct tarn_patience *p, uint64_t rtt_ns);
/* The smoothed round trip. 0: nothing was measured. */
uint64_t tarn_patience_rtt(const struct tarn_patience *p);
/* 0: nothing was measured. */
uint64_t tarn_patience_ns(const struct tarn_patience *p);
/* The patience with a peer that was never measured: enough for twice the longest round trip to any other
 * peer. 0: there is none. */
uint64_t tarn_patience_first(uint64_t farthest_rtt_ns);

/* The steps of one call. */
struct tarn_steps {
    uint64_t deadline_ns; /* of the call */
    uint64_t patience_ns; /* of a step; UINT64_MAX: only the deadline counts */
    uint64_t since_ns;    /* when the present step began */
};

/* Begins a step. Returns its deadline. */
static inline uint64_t tarn_step(struct tarn_steps *s)
{
    s->since_ns = tarn_now_ns();
    uint64_t left = s->deadline_ns > s->since_ns ? s->deadline_ns - s->since_ns : 0;
    return s->since_ns + (left < s->patience_ns ? left : s->patience_ns);
}

#endif
