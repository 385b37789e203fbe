/* SPDX-License-Identifier: Apache-2.0 */
/* Values of which each 32 bytes name the key, the version and their place: torn, foreign and recycled bytes
 * show. */
#ifndef TARN_TESTS_HISTORY_VALUE_H
#define TARN_TESTS_HISTORY_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include "tests/history/history.h"

enum { VALUE_BYTES_MIN = 32 };

void value_fill(void *data, size_t bytes, uint32_t key, uint64_t version);

/* What is wrong with bytes that were got under this key. *version_p: of the first piece; 0 where that is
 * garbled. *at_p: the offset of the first piece that is wrong. */
enum history_wrong value_inspect(const void *data, size_t bytes, uint32_t key, uint64_t *version_p,
                                 size_t *at_p);

#endif
