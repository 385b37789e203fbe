/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks rows on the GPU that a gather has just brought, for tests of more rows than the host can look at.
 * Implemented as a kernel (tests/gpu/rows_check.cu), or by the stand-in; NULL in other builds.
 */
#ifndef TARN_TESTS_ROWS_CHECK_H
#define TARN_TESTS_ROWS_CHECK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct stream;

/* Rows of objects, all of whose 32-bit words are the object's version. All memory is the device's, but
 * `most`, which is pinned. */
struct rows_check {
    const uint32_t *rows;
    const int32_t *status;
    const uint8_t *to; /* the rows, one behind the other */
    uint32_t n, row_bytes, rows_per_page;
    const uint32_t
        *least; /* by page: the version that a get must find at least; as it was before the gather */
    const uint32_t *most; /* by page: the newest that has been begun; as it is now */
    unsigned long long *good, *stale, *wrong, *other; /* counts are added */
};

/* Behind the work given to the stream (tests/stream.h) so far. Does not wait. */
void rows_check(struct stream *s, const struct rows_check *c) __attribute__((weak));

#ifdef __cplusplus
}
#endif
#endif
