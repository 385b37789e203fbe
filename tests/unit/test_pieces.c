/* SPDX-License-Identifier: Apache-2.0 */
/* Strided pieces: totals, runs, merging and limits, compared with a byte-by-byte model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "transport/transport.h"

static char memory[1 << 16];

static void totals(void **state)
{
    (void)state;
    struct tarn_piece p[] = {{memory, 10, 0, 0}, {memory, 10, 20, 3}, {memory, 0, 5, 7}};
    assert_int_equal(tarn_pieces_bytes(p, 0), 0);
    assert_int_equal(tarn_pieces_bytes(p, 1), 10);
    assert_int_equal(tarn_pieces_bytes(p, 3), 40);
}

static void totals_that_overflow(void **state)
{
    (void)state;
    struct tarn_piece product = {memory, 1ull << 40, 0, 1ull << 40};
    struct tarn_piece sum[] = {{memory, 1ull << 63, 0, 1}, {memory, 1ull << 63, 0, 1}};
    assert_true(tarn_pieces_bytes(&product, 1) == UINT64_MAX);
    assert_true(tarn_pieces_bytes(sum, 2) == UINT64_MAX);
}

static void expect_run(struct tarn_cursor *c, const struct tarn_piece *p, uint32_t n, uint64_t max, long at,
                       uint64_t bytes)
{
    void *addr;
    assert_int_equal(tarn_cursor_next(c, p, n, max, &addr), bytes);
    if (bytes)
        assert_ptr_equal(addr, memory + at);
}

static void runs_that_touch_are_one(void **state)
{
    (void)state;
    struct tarn_piece p[] = {
        {memory, 8, 8, 4}, {memory + 32, 8, 0, 1}, {memory + 100, 4, 10, 2}, {memory, 0, 0, 0}};
    struct tarn_cursor c = {0};
    expect_run(&c, p, 4, UINT64_MAX, 0, 40);
    expect_run(&c, p, 4, UINT64_MAX, 100, 4);
    expect_run(&c, p, 4, UINT64_MAX, 110, 4);
    expect_run(&c, p, 4, UINT64_MAX, 0, 0);
    expect_run(&c, p, 4, UINT64_MAX, 0, 0);
}

static void runs_may_overlap(void **state)
{
    (void)state;
    struct tarn_piece p[] = {{memory, 8, 5, 3}};
    struct tarn_cursor c = {0};
    expect_run(&c, p, 1, UINT64_MAX, 0, 8);
    expect_run(&c, p, 1, UINT64_MAX, 5, 8);
    expect_run(&c, p, 1, UINT64_MAX, 10, 8);
    expect_run(&c, p, 1, UINT64_MAX, 0, 0);
    c = tarn_cursor_at(p, 1, 17);
    expect_run(&c, p, 1, UINT64_MAX, 11, 7);
}

static void a_limit_splits_runs(void **state)
{
    (void)state;
    struct tarn_piece p[] = {{memory, 8, 16, 2}};
    struct tarn_cursor c = {0};
    expect_run(&c, p, 1, 5, 0, 5);
    expect_run(&c, p, 1, 5, 5, 3);
    expect_run(&c, p, 1, 5, 16, 5);
    expect_run(&c, p, 1, 5, 21, 3);
    expect_run(&c, p, 1, 5, 0, 0);
}

static uint32_t random_pieces(struct tarn_piece *p, unsigned *seed)
{
    uint32_t n = (uint32_t)rand_r(seed) % 6;
    for (uint32_t i = 0; i < n; i++) {
        p[i] = (struct tarn_piece){memory + rand_r(seed) % 4096, (uint64_t)rand_r(seed) % 40, 0,
                                   (uint64_t)rand_r(seed) % 5};
        /* May be less than bytes: then runs overlap. */
        p[i].stride =
            rand_r(seed) % 3 ? p[i].bytes + (uint64_t)rand_r(seed) % 3 : (uint64_t)rand_r(seed) % 40;
    }
    return n;
}

/* Every byte's address in order, computed byte by byte. */
static size_t model(const struct tarn_piece *p, uint32_t n, char **out)
{
    size_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t run = 0; run < (p[i].count ? p[i].count : 1); run++)
            for (uint64_t b = 0; b < p[i].bytes; b++)
                out[total++] = (char *)p[i].addr + run * (p[i].stride ? p[i].stride : p[i].bytes) + b;
    return total;
}

static void every_byte_once_and_in_order(void **state)
{
    (void)state;
    unsigned seed = (unsigned)tarn_now_ns();
    print_message("seed %u\n", seed);
    for (int round = 0; round < 20000; round++) {
        struct tarn_piece p[6];
        char *bytes[6 * 40 * 5];
        uint32_t n = random_pieces(p, &seed);
        size_t total = model(p, n, bytes), at = 0;
        assert_int_equal(tarn_pieces_bytes(p, n), total);
        struct tarn_cursor c = {0};
        void *addr;
        uint64_t got, max;
        while ((got = tarn_cursor_next(&c, p, n, max = 1 + (uint64_t)rand_r(&seed) % 100, &addr)) > 0) {
            assert_true(got <= max && at + got <= total);
            for (uint64_t i = 0; i < got; i++)
                assert_ptr_equal((char *)addr + i, bytes[at++]);
            if (got < max && at < total)
                assert_ptr_not_equal(bytes[at], bytes[at - 1] + 1); /* touching runs must be merged */
        }
        assert_int_equal(at, total);
    }
}

/* Two lists side by side: the far end's runs, and pieces of a caller. */
static void two_lists_byte_by_byte(void **state)
{
    (void)state;
    unsigned seed = (unsigned)tarn_now_ns();
    print_message("seed %u\n", seed);
    for (int round = 0; round < 20000; round++) {
        struct tarn_piece p[2][6];
        char *bytes[2][6 * 40 * 5];
        struct tarn_runs runs = {.piece = p[0], .n = random_pieces(p[0], &seed)};
        uint32_t n = random_pieces(p[1], &seed);
        size_t totals[2] = {model(p[0], runs.n, bytes[0]), model(p[1], n, bytes[1])}, at = 0;
        size_t total = totals[0] < totals[1] ? totals[0] : totals[1];
        struct tarn_cursor far = {0}, near = {0};
        while (at < total) {
            uint64_t max = 1 + (uint64_t)rand_r(&seed) % 100;
            void *a, *b;
            max = max < total - at ? max : total - at;
            uint64_t got = tarn_cursor_next_both(&far, &runs, &near, p[1], n, max, &a, &b);
            assert_in_range(got, 1, max);
            for (uint64_t i = 0; i < got; i++, at++) {
                assert_ptr_equal((char *)a + i, bytes[0][at]);
                assert_ptr_equal((char *)b + i, bytes[1][at]);
            }
        }
    }
}

static void plain_pieces_that_touch_in_both_lists_are_one(void **state)
{
    (void)state;
    struct tarn_piece a[] = {{memory, 8, 0, 1}, {memory + 8, 8, 0, 0}, {memory + 16, 4, 0, 0}};
    struct tarn_piece b[] = {{memory + 100, 4, 0, 0}, {memory + 104, 12, 0, 0}, {memory + 200, 4, 0, 0}};
    const struct tarn_runs runs = {.piece = a, .n = 3};
    struct tarn_cursor far = {0}, near = {0};
    void *x, *y;
    assert_int_equal(tarn_cursor_next_both(&far, &runs, &near, b, 3, 20, &x, &y), 16);
    assert_ptr_equal(x, memory);
    assert_ptr_equal(y, memory + 100);
    assert_int_equal(tarn_cursor_next_both(&far, &runs, &near, b, 3, 4, &x, &y), 4);
    assert_ptr_equal(x, memory + 16);
    assert_ptr_equal(y, memory + 200);
}

static void a_cursor_can_begin_anywhere(void **state)
{
    (void)state;
    unsigned seed = (unsigned)tarn_now_ns();
    print_message("seed %u\n", seed);
    for (int round = 0; round < 20000; round++) {
        struct tarn_piece p[6];
        char *bytes[6 * 40 * 5];
        uint32_t n = random_pieces(p, &seed);
        size_t total = model(p, n, bytes), at = (size_t)rand_r(&seed) % (total + 1);
        struct tarn_cursor c = tarn_cursor_at(p, n, at);
        void *addr;
        uint64_t got;
        while ((got = tarn_cursor_next(&c, p, n, 1 + (uint64_t)rand_r(&seed) % 100, &addr)) > 0)
            for (uint64_t i = 0; i < got; i++)
                assert_ptr_equal((char *)addr + i, bytes[at++]);
        assert_int_equal(at, total);
        c = tarn_cursor_at(p, n, total + (size_t)rand_r(&seed) % 3);
        assert_int_equal(tarn_cursor_next(&c, p, n, 1, &addr), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals),
        cmocka_unit_test(totals_that_overflow),
        cmocka_unit_test(runs_that_touch_are_one),
        cmocka_unit_test(runs_may_overlap),
        cmocka_unit_test(a_limit_splits_runs),
        cmocka_unit_test(every_byte_once_and_in_order),
        cmocka_unit_test(two_lists_byte_by_byte),
        cmocka_unit_test(plain_pieces_that_touch_in_both_lists_are_one),
        cmocka_unit_test(a_cursor_can_begin_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
