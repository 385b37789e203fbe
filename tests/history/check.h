/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a history obey docs/consistency.md, "The rule"? Each key must be a regular register whose gets may
 * always miss:
 *
 * - A get returns a value of this key, with all bytes right, whose put began before the get ended.
 * - A replace that returned 0, and a remove that returned 0 or NOT_FOUND, *displace* all older values: a get
 *   that begins later returns no value whose put ended before the displacing operation began (STALE after a
 *   replace, RESURRECTED after a remove).
 * - Overlapping puts have one order. Gets that begin after them agree on the last one (otherwise IN_TURN).
 * - A get that overlaps a put may return that put's value, and a later get that overlaps it an older value.
 *
 * A put only if absent (HISTORY_PUT) displaces no older values. Later operations can displace its value.
 *
 * An operation that did not return 0 (errors, IN_DOUBT, killed clients) may have taken effect or not, at any
 * time after its begin, because a node may carry out a command when no client waits any more. But it takes
 * effect only once. So a failed put is over when its call has returned (or its process is gone) and its value
 * has been seen: later operations displace it. If the value of a failed put is first seen after a displacing
 * operation, that is legal and counted (late_effects). A failed remove changes nothing, since misses are
 * always legal.
 *
 * An operation is LATE if it returned or was killed more than 50 ms after its deadline. The time in which its
 * process or the host stood still (HISTORY_STALL, waited_ns) does not count.
 */
#ifndef TARN_TESTS_HISTORY_CHECK_H
#define TARN_TESTS_HISTORY_CHECK_H

#include <stdio.h>

#include "tests/history/history.h"

enum { HISTORY_LATE_MS = 50 };

enum history_finding {
    HISTORY_STALE,
    HISTORY_RESURRECTED,
    HISTORY_IN_TURN,
    HISTORY_EARLY,   /* a value was read before its put began */
    HISTORY_UNKNOWN, /* no put wrote the value under this key */
    HISTORY_BYTES,   /* see enum history_wrong */
    HISTORY_LATE,
    HISTORY_FINDINGS,
};

enum { HISTORY_PARTS_MAX = 12, HISTORY_SHOWN_MAX = 3, HISTORY_STATUSES = 40 };

/* A finding and the few operations of one key that prove it, sorted by begin. */
struct history_violation {
    enum history_finding what;
    size_t nparts;
    const struct history_op *parts[HISTORY_PARTS_MAX];
};

struct history_report {
    uint64_t found[HISTORY_FINDINGS];
    size_t nshown[HISTORY_FINDINGS];
    struct history_violation shown[HISTORY_FINDINGS][HISTORY_SHOWN_MAX]; /* of different keys */
    uint64_t wrong[HISTORY_WRONGS];
    uint64_t by_status[HISTORY_KINDS][HISTORY_STATUSES]; /* [kind][-status] */
    uint64_t unfinished[HISTORY_KINDS];
    uint64_t nops, late_effects;
    uint64_t refused_seen; /* values seen although their put returned EXISTS */
    uint64_t latest_ns;    /* longest time that an operation exceeded its deadline, without stalls */
    uint64_t first_ns;     /* begin of the first operation */
};

/* Sorts the history by begin. False: out of memory. */
bool history_check(struct history *h, struct history_report *r);
/* Is there no violation? */
bool history_is_legal(const struct history_report *r);
/* Prints operations by kind and status, findings, and the shown violations. */
void history_print(const struct history_report *r, FILE *to);
const char *history_finding_name(enum history_finding f);

#endif
