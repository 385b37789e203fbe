/* SPDX-License-Identifier: Apache-2.0 */
/* Percentiles from log-linear histograms; medians of per-round figures, and whether they have settled. */
#include "client/bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXACT_BELOW (2 * BENCH_HIST_STEPS)

/* --- histograms --------------------------------------------------------------------------------- */

static size_t bucket_of(uint64_t ns)
{
    if (ns < EXACT_BELOW)
        return ns;
    /* The 7 bits after the leading bit select the step. */
    unsigned shift = 63 - (unsigned)__builtin_clzll(ns) - 7;
    return (size_t)shift * BENCH_HIST_STEPS + (size_t)(ns >> shift);
}

/* The middle of a bucket's range. */
static double bucket_ns(size_t bucket)
{
    if (bucket < EXACT_BELOW)
        return (double)bucket;
    size_t shift = bucket / BENCH_HIST_STEPS - 1;
    double low = ldexp((double)(bucket - shift * BENCH_HIST_STEPS), (int)shift);
    return low + (ldexp(1, (int)shift) - 1) / 2;
}

void bench_hist_clear(struct bench_hist *h)
{
    memset(h, 0, sizeof *h);
}

void bench_hist_add(struct bench_hist *h, uint64_t ns)
{
    h->count++;
    h->bucket[bucket_of(ns)]++;
}

void bench_hist_merge(struct bench_hist *to, const struct bench_hist *from)
{
    to->count += from->count;
    for (size_t i = 0; i < BENCH_HIST_BUCKETS; i++)
        to->bucket[i] += from->bucket[i];
}

double bench_hist_us(const struct bench_hist *h, double quantile)
{
    uint64_t rank = (uint64_t)ceil(quantile * (double)h->count), seen = 0;

    if (rank == 0)
        rank = 1;
    for (size_t i = 0; i < BENCH_HIST_BUCKETS; i++) {
        seen += h->bucket[i];
        if (seen >= rank)
            return bucket_ns(i) / 1000;
    }
    return 0;
}

/* --- series ------------------------------------------------------------------------------------- */

void bench_series_add(struct bench_series *s, double value)
{
    if (s->n < BENCH_ROUNDS_MAX)
        s->value[s->n++] = value;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const struct bench_series *s)
{
    struct bench_series sorted = *s;
    size_t n = s->n;

    if (n == 0)
        return 0;
    qsort(sorted.value, n, sizeof sorted.value[0], compare_doubles);
    return n % 2 ? sorted.value[n / 2] : (sorted.value[n / 2 - 1] + sorted.value[n / 2]) / 2;
}

void bench_ratios(const struct bench_series *a, const struct bench_series *b, struct bench_series *out)
{
    out->n = 0;
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (b->value[i] != 0)
            bench_series_add(out, a->value[i] / b->value[i]);
}

void bench_differences(const struct bench_series *a, const struct bench_series *b, struct bench_series *out)
{
    out->n = 0;
    for (size_t i = 0; i < a->n && i < b->n; i++)
        bench_series_add(out, a->value[i] - b->value[i]);
}

bool bench_settled(const struct bench_series *s, double part)
{
    struct bench_series sorted = *s;
    size_t n = s->n, reach = (size_t)ceil(sqrt((double)n) / 2);

    if (n < 5)
        return false;
    qsort(sorted.value, n, sizeof sorted.value[0], compare_doubles);
    /* For any distribution the true median is within sqrt(n)/2 ranks of the middle with 68 % probability. */
    double low = sorted.value[(n - 1) / 2 - reach], high = sorted.value[n / 2 + reach];
    return (high - low) / 2 < part * fabs(bench_median(s));
}
