/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of the benchmark: percentiles, medians, ratios, and when a median has settled. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "client/bench/bench.h"

/* 60 KiB each: too large for every test's stack. */
static int setup(void **state)
{
    *state = calloc(2, sizeof(struct bench_hist));
    return *state ? 0 : -1;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

static void assert_near(double value, double expected, double part)
{
    if (fabs(value - expected) > part * fabs(expected))
        fail_msg("%g is not within %g %% of %g", value, 100 * part, expected);
}

static void small_latencies_are_exact(void **state)
{
    struct bench_hist *h = *state;

    for (uint64_t ns = 1; ns <= 100; ns++)
        bench_hist_add(h, ns);
    assert_near(bench_hist_us(h, 0.50), 0.050, 1e-12);
    assert_near(bench_hist_us(h, 0.99), 0.099, 1e-12);
    assert_near(bench_hist_us(h, 1.00), 0.100, 1e-12);
    assert_near(bench_hist_us(h, 0.00), 0.001, 1e-12);
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Log-uniform from 1 ns to 1000 s: covers every bucket width, compared with a sorted array. */
static void percentiles_match_sorted_samples(void **state)
{
    enum { N = 20000 };
    struct bench_hist *h = *state;
    uint64_t *sorted = calloc(N, sizeof *sorted);
    static const double quantiles[] = {0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1};

    assert_non_null(sorted);
    srand48(20240217);
    for (size_t i = 0; i < N; i++) {
        sorted[i] = (uint64_t)exp2(drand48() * 39.8);
        bench_hist_add(h, sorted[i]);
    }
    qsort(sorted, N, sizeof *sorted, compare_u64);
    for (size_t q = 0; q < sizeof quantiles / sizeof quantiles[0]; q++) {
        double exact = (double)sorted[(size_t)ceil(quantiles[q] * N) - 1] / 1000;
        assert_near(bench_hist_us(h, quantiles[q]), exact, 0.004);
    }
    free(sorted);
}

static void extremes_have_a_bucket(void **state)
{
    struct bench_hist *h = *state;

    bench_hist_add(h, 0);
    bench_hist_add(h, UINT64_MAX);
    assert_int_equal(h->count, 2);
    assert_true(bench_hist_us(h, 0.5) == 0);
    assert_near(bench_hist_us(h, 1), (double)UINT64_MAX / 1000, 0.004);
}

static void empty_histogram_is_zero(void **state)
{
    assert_true(bench_hist_us(*state, 0.5) == 0);
}

static void merged_is_as_if_added_to_one(void **state)
{
    struct bench_hist *a = *state, *b = a + 1;

    for (uint64_t ns = 0; ns < 200; ns++)
        bench_hist_add(ns % 2 ? a : b, ns);
    bench_hist_merge(a, b);
    assert_int_equal(a->count, 200);
    assert_near(bench_hist_us(a, 0.5), 0.099, 1e-12);
    bench_hist_clear(a);
    assert_int_equal(a->count, 0);
}

static void fill(struct bench_series *s, const double *values, size_t n)
{
    s->n = 0;
    for (size_t i = 0; i < n; i++)
        bench_series_add(s, values[i]);
}

static void medians(void **state)
{
    struct bench_series s;

    (void)state;
    fill(&s, (double[]){3, 1, 100}, 3);
    assert_true(bench_median(&s) == 3);
    assert_true(s.value[0] == 3); /* the array must stay in order */
    fill(&s, (double[]){4, 1, 100, 2}, 4);
    assert_true(bench_median(&s) == 3);
    s.n = 0;
    assert_true(bench_median(&s) == 0);
}

/* One slow round of both contestants, or one bad round of either, must not move the ratio. */
static void ratio_is_the_median_of_rounds(void **state)
{
    struct bench_series ours, limit, out;

    (void)state;
    fill(&ours, (double[]){90, 45, 90, 9, 90}, 5);
    fill(&limit, (double[]){100, 50, 100, 100, 100}, 5);
    bench_ratios(&ours, &limit, &out);
    assert_int_equal(out.n, 5);
    assert_near(bench_median(&out), 0.9, 1e-12);
    bench_differences(&ours, &limit, &out);
    assert_near(bench_median(&out), -10, 1e-12);
}

static void ratio_leaves_out_rounds_without_a_rate(void **state)
{
    struct bench_series a, b, out;

    (void)state;
    fill(&a, (double[]){1, 2, 3}, 3);
    fill(&b, (double[]){2, 0}, 2);
    bench_ratios(&a, &b, &out);
    assert_int_equal(out.n, 1);
    assert_near(out.value[0], 0.5, 1e-12);
}

static void settles_when_rounds_agree(void **state)
{
    struct bench_series s = {.n = 0};

    (void)state;
    for (int i = 0; i < 4; i++)
        bench_series_add(&s, 1);
    assert_false(bench_settled(&s, 0.01)); /* too few values */
    bench_series_add(&s, 1.001);
    assert_true(bench_settled(&s, 0.01));
    s.n = 0;
    for (int i = 0; i < 9; i++)
        bench_series_add(&s, i % 2 ? 0.5 : 1.5);
    assert_false(bench_settled(&s, 0.01));
}

static void a_full_series_ignores_more_rounds(void **state)
{
    struct bench_series s = {.n = 0};

    (void)state;
    for (int i = 0; i < BENCH_ROUNDS_MAX + 10; i++)
        bench_series_add(&s, i);
    assert_int_equal(s.n, BENCH_ROUNDS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(small_latencies_are_exact, setup, teardown),
        cmocka_unit_test_setup_teardown(percentiles_match_sorted_samples, setup, teardown),
        cmocka_unit_test_setup_teardown(extremes_have_a_bucket, setup, teardown),
        cmocka_unit_test_setup_teardown(empty_histogram_is_zero, setup, teardown),
        cmocka_unit_test_setup_teardown(merged_is_as_if_added_to_one, setup, teardown),
        cmocka_unit_test(medians),
        cmocka_unit_test(ratio_is_the_median_of_rounds),
        cmocka_unit_test(ratio_leaves_out_rounds_without_a_rate),
        cmocka_unit_test(settles_when_rounds_agree),
        cmocka_unit_test(a_full_series_ignores_more_rounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
