/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures for how long the host kept this process from running, so that a test can subtract that time from a
 * delay. A thread on each processor (8 at most) wakes every 2 ms and records when it woke late. Being stopped
 * (SIGSTOP) counts, too.
 *
 *   struct stalls *s = stalls_start(NULL, NULL);
 *   ... begun = tarn_now_ns(); the operation; ended = tarn_now_ns() ...
 *   late_ns = ended - begun - allowed_ns - stalls_within(s, begun, ended);
 *   stalls_stop(s);
 */
#ifndef TARN_TESTS_STALL_H
#define TARN_TESTS_STALL_H

#include <stdint.h>

struct stalls;

/* Called for each stall by any of the meter's threads; may be NULL. */
typedef void (*stall_fn)(void *arg, uint64_t from_ns, uint64_t to_ns);

/* Fails the running cmocka test if it cannot start. */
struct stalls *stalls_start(stall_fn fn, void *arg);
/* NULL is allowed. */
void stalls_stop(struct stalls *s);
/* Nanoseconds between from_ns and to_ns in which the host stalled this process on some processor. Only
 * stalls of 10 ms or more count. A stall is recorded a few milliseconds after its end; the call waits for
 * that. */
uint64_t stalls_within(struct stalls *s, uint64_t from_ns, uint64_t to_ns);

#endif
