/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a peer may keep silent before it counts as silent: a round trip, and some more.
 *
 * Round trips are smoothed as RFC 6298 (section 2) has it for TCP's retransmission timer:
 *
 *   first    srtt = R                          rttvar = R / 2
 *   later    srtt = 7/8 srtt + 1/8 R           rttvar = 3/4 rttvar + 1/4 |srtt - R|   (rttvar first)
 *   patience = srtt + max(G, 4 rttvar)
 *
 * G is no clock's granularity here but TARN_PATIENCE_NS: how long a healthy node's host may hold it up.
 * Before the first round trip patience is 1 s, as there; less where all that the client has measured so far
 * is near, and the least on the same host.
 *
 * A call goes through several steps (connect, HELLO, a command ...). Each has the patience for itself: what
 * was answered starts it anew. The deadline of the call is above all of them.
 */
#ifndef TARN_CLIENT_PATIENCE_H
#define TARN_CLIENT_PATIENCE_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/clock.h"

/* The least patience there is. */
#define TARN_PATIENCE_NS (250 * TARN_NS_PER_MS)
/* Before anything was measured. */
#define TARN_PATIENCE_FIRST_NS TARN_NS_PER_S
/* The most: a host that stood still while a round trip was measured must not make callers wait for ever. */
#define TARN_PATIENCE_MOST_NS (3 * TARN_NS_PER_S)

/* Any thread. Zeros: nothing was measured. */
struct tarn_patience {
    _Atomic uint64_t measured; /* microseconds: rttvar in the high half, srtt in the low one */
};

/* A round trip took so long. */
void tarn_patience_learn(struct tarn_patience *p, uint64_t rtt_ns);
/* The smoothed round trip; 0: nothing was measured. */
uint64_t tarn_patience_rtt(const struct tarn_patience *p);
/* 0: nothing was measured. */
uint64_t tarn_patience_ns(const struct tarn_patience *p);
/* Of a peer that was never measured, where the farthest of all others is so far; 0: there are none. Enough
 * for twice that round trip. */
uint64_t tarn_patience_first(uint64_t farthest_rtt_ns);

/* The steps of one call. */
struct tarn_steps {
    uint64_t deadline_ns; /* of the call */
    uint64_t patience_ns; /* of a step; UINT64_MAX: as long as the deadline allows */
    uint64_t since_ns;    /* when the present step began */
};

/* A step begins: until when it is waited for. */
static inline uint64_t tarn_step(struct tarn_steps *s)
{
    s->since_ns = tarn_now_ns();
    uint64_t left = s->deadline_ns > s->since_ns ? s->deadline_ns - s->since_ns : 0;
    return s->since_ns + (left < s->patience_ns ? left : s->patience_ns);
}

#endif
