/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests: write and compare lists of fragments. */
#ifndef TARN_TESTS_TCPX_LIST_H
#define TARN_TESTS_TCPX_LIST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "transport/tcpx/tcpx_fragments.h"

#define LIST(...) ((struct tarn_tcpx_fragment[]){__VA_ARGS__})
#define COUNT(...) (sizeof(LIST(__VA_ARGS__)) / sizeof(struct tarn_tcpx_fragment))

/* Expects that a list was refused with `words` in the error. */
static inline void list_refused(int rc, const char *words)
{
    assert_int_equal(rc, TARN_E_PROTOCOL);
    if (!strstr(tarn_last_error(), words))
        fail_msg("no \"%s\" in: %s", words, tarn_last_error());
}

/* Expects that a checked list equals `want`, for a message of this many bytes. */
static inline void list_is(const struct tarn_tcpx_fragments *list, uint64_t bytes,
                           const struct tarn_tcpx_fragment *want, uint32_t n)
{
    assert_int_equal(list->bytes, bytes);
    assert_int_equal(list->n, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(list->at[i].src, want[i].src);
        assert_int_equal(list->at[i].dst, want[i].dst);
        assert_int_equal(list->at[i].bytes, want[i].bytes);
        assert_int_equal(list->at[i].linear, want[i].linear);
    }
}

#endif
