/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extent allocator: extents never overlap, freed extents merge, and the pool gets full before a request
 * is refused. Utilisation figures use fixed seeds, so they are the same in every run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "server/store/alloc.h"
#include "server/store/alloc_impl.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

static uint64_t next_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static struct tarn_alloc *new_alloc(uint64_t bytes, uint64_t align)
{
    struct tarn_alloc *a = NULL;
    assert_int_equal(tarn_alloc_new(bytes, align, &a), 0);
    return a;
}

/* --- every invariant ---------------------------------------------------------------------------- */

static bool is_hole(const struct tarn_alloc *a, uint32_t i)
{
    return i != NONE && a->nodes[i].owner == NONE;
}

static int broken(const char *what, uint64_t where)
{
    tarn_fail(TARN_E_INVALID, "allocator: %s at unit %llu", what, (unsigned long long)where);
    return -1;
}

static int verify_addresses(const struct tarn_alloc *a, uint64_t *holes_p)
{
    uint32_t i = LOWEST, below = NONE;
    uint64_t at = 0, used = 0, extents = 0;
    for (; i != NONE; below = i, i = a->nodes[i].above) {
        const struct extent *e = &a->nodes[i];
        if (e->at != at || e->units == 0 || e->below != below)
            return broken("extents do not join", at);
        if (is_hole(a, i) && is_hole(a, below))
            return broken("two holes side by side", at);
        at += e->units;
        used += is_hole(a, i) ? 0 : e->units;
        extents += !is_hole(a, i);
        *holes_p += is_hole(a, i);
    }
    if (at != a->units || used != a->used || extents != a->extents || *holes_p != a->holes)
        return broken("totals are wrong", at);
    return 0;
}

static int verify_class(const struct tarn_alloc *a, const struct band *b, uint32_t c, uint64_t *holes_p)
{
    bool marked = b->columns[c / CLASSES_A_ROW] >> c % CLASSES_A_ROW & 1;
    if (marked != (b->heads[c] != 0) || (marked && !(b->rows >> c / CLASSES_A_ROW & 1)))
        return broken("bitmaps and lists differ", c);
    uint32_t prev = NONE;
    for (uint32_t i = b->heads[c] - 1; i != NONE; prev = i, i = a->nodes[i].next) {
        const struct extent *e = &a->nodes[i];
        if (!is_hole(a, i) || class_of(e->units) != c || e->prev != prev ||
            &a->bands[e->at / a->band_units] != b)
            return broken("a list has a wrong member", e->at);
        ++*holes_p;
    }
    return 0;
}

static int verify_band(const struct tarn_alloc *a, const struct band *b, uint64_t *holes_p)
{
    for (uint32_t c = 0; c < CLASSES; c++) {
        if (verify_class(a, b, c, holes_p) != 0)
            return -1;
    }
    for (uint32_t row = 0; row < ROWS; row++) {
        if ((b->rows >> row & 1) != (b->columns[row] != 0))
            return broken("a row is marked wrongly", row);
    }
    return 0;
}

/* Checks all invariants. Returns 0, or -1 with the reason in the last error. */
static int walk(const struct tarn_alloc *a)
{
    uint64_t by_address = 0, by_class = 0, extents = 0;
    if (verify_addresses(a, &by_address) != 0)
        return -1;
    for (const struct band *b = a->bands; b < a->bands + BANDS; b++) {
        if (verify_band(a, b, &by_class) != 0)
            return -1;
        extents += b->extents;
    }
    if (by_address != by_class)
        return broken("a hole is in no list", by_class);
    if (extents != a->extents)
        return broken("bands' totals are wrong", extents);
    return 0;
}

static void verify(const struct tarn_alloc *a)
{
    if (walk(a) != 0)
        fail_msg("%s", tarn_last_error());
}

/* --- single calls ------------------------------------------------------------------------------- */

static void test_rounding_and_edges(void **state)
{
    (void)state;
    struct tarn_alloc *a = NULL;
    assert_int_equal(tarn_alloc_new(MIB, 32, &a), TARN_E_INVALID);
    assert_int_equal(tarn_alloc_new(MIB, 96, &a), TARN_E_INVALID);
    assert_int_equal(tarn_alloc_new(4095, 4096, &a), TARN_E_INVALID);
    a = new_alloc(MIB + 100, 4096); /* the last 100 bytes are less than a unit */
    assert_int_equal(tarn_extent_round(a, 0), 4096);
    assert_int_equal(tarn_extent_round(a, 4096), 4096);
    assert_int_equal(tarn_extent_round(a, 4097), 8192);
    uint32_t h, other;
    assert_true(tarn_extent_new(a, MIB + 1, 1, &h) == TARN_ALLOC_NONE);
    assert_true(tarn_extent_new(a, UINT64_MAX, 1, &h) == TARN_ALLOC_NONE);
    assert_int_equal(tarn_extent_new(a, MIB, 1, &h), 0);
    assert_true(tarn_extent_new(a, 0, 1, &other) == TARN_ALLOC_NONE);
    verify(a);
    tarn_extent_free(a, h);
    assert_true(tarn_extent_new(a, 0, 1, &h) != TARN_ALLOC_NONE);
    struct tarn_alloc_stats s;
    tarn_alloc_stats(a, &s);
    assert_int_equal(s.bytes, MIB);
    assert_int_equal(s.used, 4096);
    assert_int_equal(s.largest_hole, MIB - 4096);
    assert_int_equal(s.extents, 1);
    assert_int_equal(s.holes, 1);
    verify(a);
    tarn_alloc_free(a);
    tarn_alloc_free(NULL);
}

static void test_neighbours(void **state)
{
    (void)state;
    struct tarn_alloc *a = new_alloc(256 * MIB, 64); /* so that 64 KiB is small */
    uint32_t h[3], owner;
    uint64_t bytes;
    assert_int_equal(tarn_extent_neighbour(a, UINT32_MAX, -1, &bytes, &owner), UINT32_MAX);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(tarn_extent_new(a, 64 * KIB, 10 + i, &h[i]), i * 64 * KIB);
    assert_int_equal(tarn_extent_neighbour(a, UINT32_MAX, +1, &bytes, &owner), h[0]);
    assert_int_equal(owner, 10);
    assert_int_equal(bytes, 64 * KIB);
    assert_int_equal(tarn_extent_neighbour(a, h[0], -1, &bytes, &owner), UINT32_MAX);
    assert_int_equal(tarn_extent_neighbour(a, h[0], +1, &bytes, &owner), h[1]);
    assert_int_equal(owner, 11);
    assert_int_equal(tarn_extent_neighbour(a, h[2], -1, &bytes, &owner), h[1]);
    uint32_t rest = tarn_extent_neighbour(a, h[2], +1, &bytes, &owner);
    assert_int_equal(owner, UINT32_MAX);
    assert_int_equal(bytes, 256 * MIB - 3 * 64 * KIB);
    assert_int_equal(tarn_extent_neighbour(a, rest, +1, &bytes, &owner), UINT32_MAX);
    tarn_extent_free(a, h[1]);
    tarn_extent_neighbour(a, h[0], +1, &bytes, &owner);
    assert_int_equal(owner, UINT32_MAX);
    assert_int_equal(bytes, 64 * KIB);
    tarn_extent_free(a, h[0]);
    tarn_extent_free(a, h[2]);
    struct tarn_alloc_stats s;
    tarn_alloc_stats(a, &s);
    assert_int_equal(s.largest_hole, 256 * MIB);
    assert_int_equal(s.holes, 1);
    tarn_alloc_free(a);
}

/* --- against a map ------------------------------------------------------------------------------ */

#define UNITS 4096
#define OBJECTS 600

struct object {
    uint32_t handle;
    uint64_t unit, units; /* units 0: unused */
};

/* Toggles an extent's units in the map. Each must be `from`. */
static void mark(uint8_t *map, const struct object *o, uint8_t from)
{
    assert_true(o->unit + o->units <= UNITS);
    for (uint64_t u = o->unit; u < o->unit + o->units; u++) {
        assert_int_equal(map[u], from);
        map[u] = !from;
    }
}

static bool has_run(const uint8_t *map, uint64_t units)
{
    uint64_t run = 0;
    for (uint64_t u = 0; u < UNITS && run < units; u++)
        run = map[u] ? 0 : run + 1;
    return run >= units;
}

/* Random requests and frees. Extents lie inside the pool and do not overlap. A request with room is never
 * refused. */
static void test_random_against_map(void **state)
{
    (void)state;
    uint64_t seed = tarn_random64();
    print_message("seed %" PRIu64 "\n", seed);
    struct tarn_alloc *a = new_alloc(UNITS * 64, 64);
    static uint8_t map[UNITS];
    static struct object objects[OBJECTS];
    memset(map, 0, sizeof(map));
    memset(objects, 0, sizeof(objects));
    for (int i = 0; i < 60000; i++) {
        struct object *o = &objects[next_random(&seed) % OBJECTS];
        if (o->units) {
            tarn_extent_free(a, o->handle);
            mark(map, o, 1);
            o->units = 0;
        } else {
            uint64_t max = 1ull << next_random(&seed) % 9, bytes = 1 + next_random(&seed) % (64 * max);
            uint64_t at = tarn_extent_new(a, bytes, (uint32_t)(o - objects), &o->handle);
            o->units = (bytes + 63) / 64;
            o->unit = at / 64;
            if (at == TARN_ALLOC_NONE) {
                assert_false(has_run(map, o->units));
                o->units = 0;
            } else {
                assert_int_equal(at % 64, 0);
                mark(map, o, 0);
            }
        }
        if (i % 256 == 0)
            verify(a);
    }
    for (int i = 0; i < OBJECTS; i++) {
        if (objects[i].units)
            tarn_extent_free(a, objects[i].handle);
    }
    verify(a);
    struct tarn_alloc_stats s;
    tarn_alloc_stats(a, &s);
    assert_int_equal(s.largest_hole, UNITS * 64);
    assert_int_equal(s.used + s.extents, 0);
    tarn_alloc_free(a);
}

/* --- how full it gets --------------------------------------------------------------------------- */

typedef uint64_t (*size_fn)(uint64_t *seed);

struct fill {
    struct tarn_alloc *a;
    size_fn size;
    uint64_t seed, bytes, sum;
    struct {
        uint32_t handle;
        uint64_t bytes;
    } * objects;
    size_t n, room;
};

static bool fill_add(struct fill *f, uint64_t bytes)
{
    if (f->n == f->room) {
        f->room = f->room ? 2 * f->room : 1024;
        f->objects = realloc(f->objects, f->room * sizeof(f->objects[0]));
        assert_non_null(f->objects);
    }
    if (tarn_extent_new(f->a, bytes, 0, &f->objects[f->n].handle) == TARN_ALLOC_NONE)
        return false;
    f->objects[f->n++].bytes = bytes;
    f->sum += bytes;
    return true;
}

static void fill_drop_any(struct fill *f)
{
    size_t i = next_random(&f->seed) % f->n;
    tarn_extent_free(f->a, f->objects[i].handle);
    f->sum -= f->objects[i].bytes;
    f->objects[i] = f->objects[--f->n];
}

/*
 * Fills to `percent`, then replaces as many objects at that level as there are, `rounds` times, then fills
 * until the first refusal. An earlier refusal ends it, too. Returns the share of the pool that was requested.
 */
static double utilisation(uint64_t bytes, size_fn size, unsigned percent, unsigned rounds, uint64_t seed)
{
    struct fill f = {.a = new_alloc(bytes, 64), .size = size, .seed = seed, .bytes = bytes};
    uint64_t level = bytes / 100 * percent, next = size(&f.seed);
    bool ok = true;
    while (ok && f.sum + next <= level) {
        ok = fill_add(&f, next);
        next = size(&f.seed);
    }
    for (size_t i = f.n * rounds; ok && i > 0; i--) {
        while (f.sum + next > level)
            fill_drop_any(&f);
        ok = fill_add(&f, next);
        next = size(&f.seed);
    }
    while (ok)
        ok = fill_add(&f, size(&f.seed));
    verify(f.a);
    tarn_alloc_free(f.a);
    free(f.objects);
    return (double)f.sum / (double)bytes;
}

static unsigned power;

static uint64_t odd_power(uint64_t *seed)
{
    (void)seed;
    return (1ull << power) + 17;
}

static uint64_t any_odd_power(uint64_t *seed)
{
    return (1ull << (12 + next_random(seed) % 11)) + 17;
}

static uint64_t log_uniform(uint64_t *seed)
{
    return (uint64_t)exp2(12 + 10 * ((double)(next_random(seed) >> 11) * 0x1p-53));
}

static void test_one_odd_size_fills(void **state)
{
    (void)state;
    double least = 1;
    for (power = 12; power <= 22; power++) {
        double fresh = utilisation(GIB, odd_power, 0, 0, power),
               churned = utilisation(GIB, odd_power, 88, 1, power);
        double large = power >= 15 ? utilisation(16 * GIB, odd_power, 88, 1, power) : 1;
        assert_true(fresh >= 0.98 && churned >= 0.98 && large >= 0.98);
        least = fmin(least, fmin(fresh, fmin(churned, large)));
    }
    print_message("one size 2^n+17: at least %.4f\n", least);
}

static void check_seeds(const char *what, uint64_t bytes, size_fn size, unsigned percent, unsigned rounds,
                        uint64_t seeds, double target)
{
    double least = 1, sum = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        double u = utilisation(bytes, size, percent, rounds, seed);
        least = fmin(least, u);
        sum += u;
    }
    print_message("%s, %u rounds at %u %%: least %.4f, mean %.4f\n", what, rounds, percent, least,
                  sum / (double)seeds);
    assert_true(sum / (double)seeds >= target);
    assert_true(least >= target - 0.02);
}

static void test_mixed_sizes_fill(void **state)
{
    (void)state;
    check_seeds("mixed 2^n+17, 1 GiB", GIB, any_odd_power, 0, 0, 10, 0.99);
    check_seeds("mixed 2^n+17, 1 GiB", GIB, any_odd_power, 85, 10, 10, 0.95);
    check_seeds("log-uniform, 1 GiB", GIB, log_uniform, 0, 0, 10, 0.99);
    check_seeds("log-uniform, 1 GiB", GIB, log_uniform, 85, 20, 10, 0.95);
    check_seeds("log-uniform, 16 GiB", 16 * GIB, log_uniform, 90, 3, 1, 0.98);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding_and_edges), cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_random_against_map), cmocka_unit_test(test_one_odd_size_fills),
        cmocka_unit_test(test_mixed_sizes_fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
