/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a history obey docs/consistency.md, "The rule"? Each key by itself is to be a regular register of
 * which a get may always say miss:
 *
 *   - A get returns a value whose put began before the get ended, of this key, with all bytes right.
 *   - A replace that returned 0, and a remove that returned 0 or NOT_FOUND, *displace* all older values: a
 * get that begins later returns none of a put that was over before the displacing operation began (STALE
 * after a replace, RESURRECTED after a remove).
 *   - Puts that overlapped have one order. Gets that begin when they are over agree on which was last
 * (IN_TURN when they do not).
 *   - A get that overlaps a put may return that put's value, and another get after it an older one.
 *
 * A put only where there is none (HISTORY_PUT) displaces nothing: its value is held to the rule, not the ones
 * before it.
 *
 * What did not return 0 (errors, IN_DOUBT, clients that were killed) may have taken effect or not, and at any
 * time after its begin: what a node has read it may carry out when nobody waits any more. But only once. So a
 * put that failed is over when its call had returned (its process was gone) and its value was seen: what
 * comes later displaces it. Values of failed puts that are seen for the first time after a displacing
 * operation are legal, and counted (late_effects). A failed remove changes nothing: misses are legal anyway.
 *
 * An operation is LATE when it took 50 ms longer than its deadline, or was killed then, not counting the time
 * for which its process or the host stood still (HISTORY_STALL, waited_ns).
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
    HISTORY_EARLY,   /* read before its put began */
    HISTORY_UNKNOWN, /* nobody put it under this key */
    HISTORY_BYTES,   /* see enum history_wrong */
    HISTORY_LATE,
    HISTORY_FINDINGS,
};

enum { HISTORY_PARTS_MAX = 12, HISTORY_SHOWN_MAX = 3, HISTORY_STATUSES = 40 };

/* The few operations of one key that suffice to show it, by their begin. */
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
    uint64_t refused_seen; /* values seen whose put said EXISTS */
    uint64_t latest_ns;    /* the most that any operation was beyond its deadline, stalls taken off */
    uint64_t first_ns;     /* the first operation's begin */
};

/* The history is sorted by it. False: out of memory. */
bool history_check(struct history *h, struct history_report *r);
/* Is there nothing that must not be? */
bool history_is_legal(const struct history_report *r);
/* Operations by kind and status, findings, and the shown violations. */
void history_print(const struct history_report *r, FILE *to);
const char *history_finding_name(enum history_finding f);

#endif
