/* SPDX-License-Identifier: Apache-2.0 */
/* Direct gets (include/tarn/device.h), played by a thread, over a table made by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include <tarn/device.h>

#include "tests/harness.h"

enum { PAGES = 40, BYTES = 640 };

struct scene {
    struct tarn_half halves[2 * PAGES + 2]; /* behind the table there is one that seems good */
    uint64_t gen[PAGES], until;
    uint8_t used[PAGES], told[PAGES];
    uint32_t news;
    uint8_t objects[PAGES][BYTES];
    struct tarn_dev_table table;
    uint8_t to[PAGES * BYTES];
    int32_t status[PAGES];
};

static void live(struct scene *s, uint32_t page, uint32_t stamp)
{
    s->halves[2 * page] =
        (struct tarn_half){(uintptr_t)s->objects[page], (uint64_t)stamp << 32 | sizeof(s->objects[page])};
    s->halves[2 * page + 1] =
        (struct tarn_half){(uintptr_t)&s->gen[page], (uint64_t)stamp << 32 | (uint32_t)s->gen[page]};
}

static int start(void **state)
{
    struct scene *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    for (uint32_t p = 0; p < PAGES; p++) {
        memset(s->objects[p], (int)p + 1, BYTES);
        s->gen[p] = (uint64_t)0xabcd << 32 | 2 * p;
        live(s, p, p + 7);
    }
    memcpy(s->halves + 2 * PAGES, s->halves, 2 * sizeof(s->halves[0]));
    s->until = UINT64_MAX;
    s->table = (struct tarn_dev_table){.pages = s->halves,
                                       .used = s->used,
                                       .told = s->told,
                                       .until = &s->until,
                                       .news = &s->news,
                                       .npages = PAGES,
                                       .row_bytes = BYTES,
                                       .rows_per_page = 1};
    *state = s;
    return 0;
}

static int stop(void **state)
{
    free(*state);
    return 0;
}

static int32_t get(struct scene *s, uint32_t row)
{
    memset(s->to, 0xee, s->table.row_bytes + 1);
    s->status[0] = 77;
    tarn_dev_get(&s->table, &row, 1, s->to, s->table.row_bytes, s->status);
    assert_int_equal(s->to[s->table.row_bytes], 0xee);
    return s->status[0];
}

static void expect_nothing(const struct scene *s)
{
    for (uint32_t i = 0; i < s->table.row_bytes; i++)
        assert_int_equal(s->to[i], 0xee);
}

static void many_rows(void **state)
{
    struct scene *s = *state;
    uint32_t rows[PAGES];
    for (uint32_t i = 0; i < PAGES; i++)
        rows[i] = PAGES - 1 - i;
    tarn_dev_get(&s->table, rows, PAGES, s->to, BYTES, s->status);
    for (uint32_t i = 0; i < PAGES; i++) {
        assert_int_equal(s->status[i], 0);
        assert_memory_equal(s->to + i * BYTES, s->objects[rows[i]], BYTES);
    }
    for (uint32_t p = 0; p < PAGES; p++)
        assert_true(s->used[p] && !s->told[p]);
    assert_int_equal(s->news, 0);
    tarn_dev_get(&s->table, rows, 0, s->to, BYTES, s->status); /* none */
}

static void another_generation(void **state)
{
    struct scene *s = *state;
    s->gen[3] += 2;
    assert_int_equal(get(s, 3), TARN_E_STALE);
    assert_int_equal(s->told[3], 1);
    assert_int_equal(s->news, 1);
    assert_int_equal(s->used[3], 0);
    s->gen[3] -= 1;
    assert_int_equal(get(s, 3), TARN_E_STALE);
    s->gen[3] -= 1;
    assert_int_equal(get(s, 3), 0);
}

/* On its way the page has stamps of which one is old, or 0. */
static void a_page_that_is_being_changed(void **state)
{
    struct scene *s = *state;
    live(s, 5, 0);
    assert_int_equal(get(s, 5), TARN_E_STALE);
    expect_nothing(s);
    live(s, 5, 2);
    assert_int_equal(get(s, 5), 0);
    for (int half = 0; half < 2; half++) {
        live(s, 5, 2);
        s->halves[10 + half].b += (uint64_t)1 << 32;
        assert_int_equal(get(s, 5), TARN_E_STALE);
        expect_nothing(s);
        live(s, 5, 2);
        s->halves[10 + half].b &= UINT32_MAX;
        assert_int_equal(get(s, 5), TARN_E_STALE);
        expect_nothing(s);
    }
}

static void a_lease_that_has_ended(void **state)
{
    struct scene *s = *state;
    s->until = tarn_dev_now();
    assert_int_equal(get(s, 1), TARN_E_STALE);
    expect_nothing(s);
    assert_int_equal(s->told[1] | s->news | s->used[1], 0); /* the page itself is good */
    s->until = tarn_dev_now() + 60000000000;
    assert_int_equal(get(s, 1), 0);
    s->until = 0;
    assert_int_equal(get(s, 1), TARN_E_STALE);
}

static void dead_pages(void **state)
{
    static const int32_t statuses[] = {TARN_E_NOT_FOUND, TARN_E_NOT_REACHABLE, TARN_E_NODE_DOWN,
                                       TARN_E_STALE};
    struct scene *s = *state;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        s->halves[4] = (struct tarn_half){0, (uint64_t)9 << 32 | (uint32_t)-statuses[i]};
        s->halves[5] = (struct tarn_half){0, (uint64_t)9 << 32};
        s->told[2] = 0;
        s->news = 0;
        assert_int_equal(get(s, 2), statuses[i]);
        expect_nothing(s);
        assert_int_equal(s->told[2], 1);
        assert_int_equal(s->news, 1);
    }
}

static void rows_of_pages(void **state)
{
    struct scene *s = *state;
    for (uint32_t i = 0; i < BYTES; i++)
        s->objects[1][i] = (uint8_t)i;
    s->table.rows_per_page = 6;
    s->table.row_bytes = 100;
    assert_int_equal(get(s, 6 + 5), 0);
    assert_memory_equal(s->to, s->objects[1] + 500, 100);
    s->table.offset = 40; /* the last row ends with the page */
    assert_int_equal(get(s, 6 + 5), 0);
    assert_memory_equal(s->to, s->objects[1] + 540, 100);
    s->table.offset = 41;
    assert_int_equal(get(s, 6 + 5), TARN_E_INVALID);
    expect_nothing(s);
    s->table.offset = BYTES + 1;
    assert_int_equal(get(s, 6), TARN_E_INVALID);
    s->table.offset = UINT64_MAX - 50;
    assert_int_equal(get(s, 6), TARN_E_INVALID);
    assert_int_equal(get(s, 6 + 1), TARN_E_INVALID);
    s->table.offset = 0;
    assert_int_equal(get(s, 6 * PAGES), TARN_E_INVALID);
    assert_int_equal(get(s, 6 * PAGES + 5), TARN_E_INVALID);
    assert_int_equal(get(s, UINT32_MAX), TARN_E_INVALID);
    s->table.row_bytes = UINT32_MAX;
    assert_int_equal(tarn_dev_find(&s->table, 6 + 5, false).status, TARN_E_INVALID);
    assert_int_equal(s->told[1] | s->news, 0);
}

/* Each distance of the two addresses from an aligned one, and each length around the accesses' widths. */
static void all_alignments(void **state)
{
    struct scene *s = *state;
    for (uint32_t i = 0; i < BYTES; i++)
        s->objects[0][i] = (uint8_t)(i * 7);
    for (uint32_t from = 0; from < 17; from++)
        for (uint32_t to = 0; to < 17; to++)
            for (uint32_t bytes = 1; bytes < 70; bytes++) {
                memset(s->to, 0xee, 100);
                tarn_dev_copy(s->to + to + 1, s->objects[0] + from, bytes, 0, 1);
                assert_memory_equal(s->to + to + 1, s->objects[0] + from, bytes);
                assert_int_equal(s->to[to], 0xee);
                assert_int_equal(s->to[to + 1 + bytes], 0xee);
            }
}

/* --- a page that a writer changes while gets run --------------------------------------------------- */

struct race {
    struct scene *scene;
    _Atomic bool stop;
};

/* As the table's thread does: stamps away, the rest, stamps. */
static void *change_main(void *arg)
{
    struct race *r = arg;
    struct scene *s = r->scene;
    struct tarn_half *h = s->halves;
    for (uint32_t stamp = 100; !r->stop; stamp++) {
        uint32_t object = stamp % PAGES;
        for (int i = 0; i < 2; i++)
            tarn_dev_store64(&h[i].b, (uint32_t)h[i].b);
        tarn_dev_store64(&h[0].a, (uintptr_t)s->objects[object]);
        tarn_dev_store64(&h[1].a, (uintptr_t)&s->gen[object]);
        tarn_dev_store64(&h[1].b, (uint32_t)s->gen[object]);
        for (int i = 0; i < 2; i++)
            tarn_dev_store64(&h[i].b, (uint32_t)h[i].b | (uint64_t)stamp << 32);
    }
    return NULL;
}

/* The bytes are of one object, whose generation was compared. */
static void a_page_under_change(void **state)
{
    struct scene *s = *state;
    struct race r = {.scene = s};
    pthread_t writer;
    unsigned good = 0;
    for (uint32_t p = 1; p < PAGES; p += 2)
        s->gen[p] = 0; /* odd objects have this one, even ones others: no mixture passes */
    assert_int_equal(pthread_create(&writer, NULL, change_main, &r), 0);
    for (uint64_t end = harness_now_ms() + 500; harness_now_ms() < end;) {
        struct tarn_dev_row row = tarn_dev_find(&s->table, 0, false);
        if (row.status)
            continue;
        uint64_t object = (uint64_t)(row.at - s->objects[0]) / BYTES;
        assert_ptr_equal(row.gen_at, &s->gen[object]);
        assert_int_equal(row.gen, (uint32_t)s->gen[object]);
        good++;
    }
    r.stop = true;
    pthread_join(writer, NULL);
    assert_true(good > 0);
}

#define TEST(name_) cmocka_unit_test_setup_teardown(name_, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(many_rows),
        TEST(another_generation),
        TEST(a_page_that_is_being_changed),
        TEST(a_lease_that_has_ended),
        TEST(dead_pages),
        TEST(rows_of_pages),
        TEST(all_alignments),
        TEST(a_page_under_change),
    };
    return cmocka_run_group_tests_name("direct gets", tests, NULL, NULL);
}
