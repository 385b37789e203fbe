/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the checker's files: the operations of one key. */
#ifndef TARN_TESTS_HISTORY_KEY_H
#define TARN_TESTS_HISTORY_KEY_H

#include "tests/history/check.h"

/* A put, or an operation that displaces. */
struct history_write {
    const struct history_op *op;
    bool displaces;
    bool is_in_order;              /* it is known to have taken effect */
    uint64_t over_ns;              /* after this time it has taken effect or never will */
    const struct history_op *seen; /* the get that returned it and ended first */
    const struct history_op *last; /* the last get that returned it and began after it was over */
    struct history_write *latest;
    bool is_placed; /* for order.c */
};

struct history_key {
    const struct history_op *ops;
    size_t nops, nwrites, ndisplacing;
    struct history_write *writes, **displacing; /* sorted by version; sorted by end */
};

void history_found(struct history_report *r, enum history_finding what, const struct history_op *const *parts,
                   size_t nparts);
/* False: out of memory. */
bool history_check_order(struct history_key *k, struct history_report *r);
bool history_check_times(const struct history *h, struct history_report *r);

#endif
