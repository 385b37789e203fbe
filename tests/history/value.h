/* SPDX-License-Identifier: Apache-2.0 */
/* Values in which every 32 bytes name the key, the version and their place. So torn, foreign and recycled
 * bytes are detected. */
#ifndef TARN_TESTS_HISTORY_VALUE_H
#define TARN_TESTS_HISTORY_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include "tests/history/history.h"

enum { VALUE_BYTES_MIN = 32 };

void value_fill(void *data, size_t bytes, uint32_t key, uint64_t version);

/* Checks bytes that were got under this key. *version_p: version of the first piece; 0 if it is garbled.
 * *at_p: offset of the first wrong piece. */
enum history_wrong value_inspect(const void *data, size_t bytes, uint32_t key, uint64_t *version_p,
                                 size_t *at_p);

#endif
