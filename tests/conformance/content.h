/* SPDX-License-Identifier: Apache-2.0 */
/* Content that depends on a key, a version and the position, so that foreign, stale or torn bytes show. */
#ifndef TARN_TESTS_CONTENT_H
#define TARN_TESTS_CONTENT_H

#include <stdint.h>
#include <string.h>

#include "base/hash.h"

static inline void content_fill(uint8_t *p, size_t bytes, const char *key, uint64_t version)
{
    uint64_t x = tarn_hash(key, strlen(key), version);
    for (size_t i = 0; i < bytes; i += sizeof x) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        memcpy(p + i, &x, bytes - i < sizeof x ? bytes - i : sizeof x);
    }
}

#endif
