/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/history/lease_word.h"

#define SIMULTANEOUS 64 /* writes; among more, any bytes will do */

uint64_t lease_word(const struct lease_word *w)
{
    uint32_t writer = w->number ? w->writer + 1 : 0;
    uint64_t word = (uint64_t)w->lender << 54 | (uint64_t)w->area << 50 | w->lease << 26 |
                    (uint64_t)writer << 24 | w->number;
    return word << 8 | (word * 0x9e3779b97f4a7c15ull) >> 56;
}

bool lease_word_may_be(uint64_t word, struct lease_word w, uint32_t low, uint32_t high)
{
    uint64_t wrong = UINT64_MAX;
    if (low > high || high - low > SIMULTANEOUS)
        return low <= high;
    for (w.number = low; wrong && w.number <= high; w.number++) {
        uint64_t differs = word ^ lease_word(&w);
        for (int byte = 0; byte < 64; byte += 8)
            if (!(differs >> byte & 0xff))
                wrong &= ~(0xffull << byte);
    }
    return !wrong;
}
