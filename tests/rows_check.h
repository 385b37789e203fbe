/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that check rows on the GPU, for tests of more rows than the host can look at. Implemented in
 * tests/gpu/rows_check.cu, or by the stand-in; NULL in other builds.
 */
#ifndef TARN_TESTS_ROWS_CHECK_H
#define TARN_TESTS_ROWS_CHECK_H

#include <tarn/device.h>

#ifdef __cplusplus
extern "C" {
#endif

struct stream;

/* Rows of objects, all of whose 32-bit words are the object's version. All memory is the device's. */
struct rows_check {
    const uint32_t *rows;
    const int32_t *status;
    const uint8_t *to; /* the rows, one behind the other */
    uint32_t n, row_bytes, rows_per_page;
    /* By page: the version that a get must find at least, as it was before the gather; and the newest that
     * had been begun when the gather had ended. */
    const uint32_t *least, *most;
    unsigned long long *good, *stale, *wrong, *other; /* counts are added */
};

/* Behind the work given to the stream (tests/stream.h) so far. Does not wait. */
void rows_check(struct stream *s, const struct rows_check *c) __attribute__((weak));

enum { ROWS_LOOP_BLOCK = 32 }; /* rows of a block */

/* Pinned memory. */
struct rows_loop_host {
    uint32_t gone, runs; /* runs: of the first block, so far */
};

struct rows_loop_found {
    unsigned long long good, stale, wrong, other;
    unsigned long long late_ns; /* the last good row came by a get that began so long after `gone` was seen */
};

/*
 * A kernel that gets rows again and again, and checks them. It ends so long after the host has set `gone`,
 * and after a minute at the latest. All memory is the device's, but `host`.
 */
struct rows_loop {
    struct tarn_dev_table table;
    const uint32_t *rows;
    int32_t *status;
    uint8_t *to; /* the rows, one behind the other */
    uint32_t n;  /* a multiple of ROWS_LOOP_BLOCK */
    uint64_t after_ns;
    struct rows_loop_host *host;
    struct rows_loop_found *found; /* outcomes are added */
};

/* Rows of objects, all of whose 32-bit words are the number of the page, plus 1. As rows_check(). */
void rows_loop(struct stream *s, const struct rows_loop *l) __attribute__((weak));

#ifdef __cplusplus
}
#endif
#endif
