/* SPDX-License-Identifier: Apache-2.0 */
/* Words that say of which lease they are, and by which write they came there. */
#ifndef TARN_TESTS_HISTORY_LEASE_WORD_H
#define TARN_TESTS_HISTORY_LEASE_WORD_H

#include <stdbool.h>
#include <stdint.h>

enum { LEASE_WORD_LEASES = 1 << 24 };

struct lease_word {
    uint64_t lease;        /* less than LEASE_WORD_LEASES */
    uint32_t lender, area; /* at most 3, 15 */
    uint32_t writer,
        number; /* writer at most 2; his write, at most 2^24 - 1. number 0: the lender's own word */
};

uint64_t lease_word(const struct lease_word *w);
/* May it be of the writer's writes low to high? While it is written a word may have bytes of several. */
bool lease_word_may_be(uint64_t word, struct lease_word w, uint32_t low, uint32_t high);

#endif
