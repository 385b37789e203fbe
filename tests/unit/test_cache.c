/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor cache: entries are found, unused entries are evicted first, threads see no torn entries. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "client/cache.h"

static struct tarn_key key_of(char text[32], uint32_t i)
{
    return (struct tarn_key){text, (size_t)snprintf(text, 32, "key-%u", i)};
}

/* A descriptor whose fields all follow from `v`. */
static struct tarn_desc desc_of(uint64_t v, uint32_t nlocs)
{
    struct tarn_desc d = {.tensor = tarn_bytes(v), .nlocs = nlocs};
    for (uint32_t i = 0; i < nlocs; i++)
        d.locs[i] = (struct tarn_loc){.offset = v + i, .gen = v * 2, .slot = (uint32_t)v, .pool = i};
    return d;
}

static void assert_desc(const struct tarn_desc *d, uint64_t v, uint32_t nlocs)
{
    assert_int_equal(d->tensor.bytes, v);
    assert_int_equal(d->nlocs, nlocs);
    for (uint32_t i = 0; i < nlocs; i++) {
        assert_int_equal(d->locs[i].offset, v + i);
        assert_int_equal(d->locs[i].gen, v * 2);
        assert_int_equal(d->locs[i].slot, v);
    }
}

static struct tarn_cache *cache_new(uint32_t entries)
{
    struct tarn_cache *c;
    assert_int_equal(tarn_cache_new(entries, &c), 0);
    return c;
}

static void set(struct tarn_cache *c, uint32_t i, uint64_t v, uint32_t nlocs)
{
    char text[32];
    struct tarn_key k = key_of(text, i);
    struct tarn_desc d = desc_of(v, nlocs);
    tarn_cache_set(c, &k, tarn_key_hash(&k), &d);
}

static bool find(struct tarn_cache *c, uint32_t i, struct tarn_desc *d)
{
    char text[32];
    struct tarn_key k = key_of(text, i);
    return tarn_cache_find(c, &k, tarn_key_hash(&k), d);
}

static void a_set_entry_is_found(void **state)
{
    struct tarn_cache *c = cache_new(100000);
    struct tarn_desc d;

    (void)state;
    for (uint32_t i = 0; i < 1000; i++)
        set(c, i, i + 1, 1 + i % TARN_REPLICAS_MAX);
    for (uint32_t i = 0; i < 1000; i++) {
        assert_true(find(c, i, &d));
        assert_desc(&d, i + 1, 1 + i % TARN_REPLICAS_MAX);
    }
    assert_false(find(c, 1000, &d));
    assert_int_equal(tarn_cache_count(c), 1000);
    set(c, 5, 77, 1); /* first the same number of locations, then a different one */
    set(c, 6, 78, 8);
    assert_true(find(c, 5, &d));
    assert_desc(&d, 77, 1);
    assert_true(find(c, 6, &d));
    assert_desc(&d, 78, 8);
    assert_int_equal(tarn_cache_count(c), 1000);
    tarn_cache_free(c);
}

static void only_the_stale_location_is_dropped(void **state)
{
    struct tarn_cache *c = cache_new(1000);
    struct tarn_desc old = desc_of(10, 2), d;
    char text[32];
    struct tarn_key k = key_of(text, 1);

    (void)state;
    set(c, 1, 10, 2);
    set(c, 1, 11, 2);
    tarn_cache_drop(c, &k, tarn_key_hash(&k), &old.locs[1]); /* no longer in the cache */
    assert_true(find(c, 1, &d));
    tarn_cache_drop(c, &k, tarn_key_hash(&k), &d.locs[1]);
    assert_false(find(c, 1, &d));
    set(c, 1, 12, 1);
    tarn_cache_drop(c, &k, tarn_key_hash(&k), NULL);
    assert_false(find(c, 1, &d));
    tarn_cache_free(c);
}

static void used_entries_outlive_unused_ones(void **state)
{
    enum { ROOM = 6400, HOT = 640 };
    struct tarn_cache *c = cache_new(ROOM);
    struct tarn_desc d;
    uint32_t kept = 0;

    (void)state;
    for (uint32_t i = 0; i < HOT; i++)
        set(c, i, i + 1, 1);
    for (uint32_t i = HOT; i < 10 * ROOM; i++) {
        set(c, i, i + 1, 1);
        find(c, i % HOT, &d);
        if (i % 64 == 0)
            for (uint32_t h = 0; h < HOT; h++)
                find(c, h, &d);
    }
    assert_true(tarn_cache_count(c) <= ROOM);
    assert_true(tarn_cache_count(c) > ROOM * 9 / 10);
    for (uint32_t h = 0; h < HOT; h++)
        kept += find(c, h, &d);
    assert_int_equal(kept, HOT);
    tarn_cache_free(c);
}

static void binary_keys_differ_in_every_byte(void **state)
{
    struct tarn_cache *c = cache_new(1000);
    struct tarn_desc d = desc_of(1, 1), out;
    struct tarn_key a = {"a\0b", 3}, b = {"a\0c", 3}, prefix = {"a\0", 2};

    (void)state;
    tarn_cache_set(c, &a, tarn_key_hash(&a), &d);
    assert_true(tarn_cache_find(c, &a, tarn_key_hash(&a), &out));
    assert_false(tarn_cache_find(c, &b, tarn_key_hash(&b), &out));
    assert_false(tarn_cache_find(c, &prefix, tarn_key_hash(&prefix), &out));
    tarn_cache_free(c);
}

/* All want one of the last two places of a table, whatever its size, or the first one. */
static uint64_t crowded_hash(uint32_t i)
{
    return (uint64_t)i << 32 | (uint32_t)(UINT32_MAX - 1 + i % 3);
}

static void set_crowded(struct tarn_cache *c, uint32_t i)
{
    char text[32];
    struct tarn_key k = key_of(text, i);
    struct tarn_desc d = desc_of(i + 1, 1);
    tarn_cache_set(c, &k, crowded_hash(i), &d);
}

static void drop_crowded(struct tarn_cache *c, uint32_t i)
{
    char text[32];
    struct tarn_key k = key_of(text, i);
    tarn_cache_drop(c, &k, crowded_hash(i), NULL);
}

static void assert_crowded(struct tarn_cache *c, uint32_t n, uint32_t gone, uint32_t gone_too)
{
    struct tarn_desc d;
    char text[32];
    for (uint32_t i = 0; i < n; i++) {
        struct tarn_key k = key_of(text, i);
        bool found = tarn_cache_find(c, &k, crowded_hash(i), &d);
        assert_int_equal(found, i != gone && i != gone_too);
        if (found)
            assert_desc(&d, i + 1, 1);
    }
}

static void entries_in_one_anothers_places_are_found(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 40; n++) {
        struct tarn_cache *c = cache_new(1 << 20);
        for (uint32_t i = 0; i < n; i++)
            set_crowded(c, i);
        for (uint32_t first = 0; first < n; first++)
            for (uint32_t second = 0; second < n; second++) {
                drop_crowded(c, first);
                assert_crowded(c, n, first, first);
                drop_crowded(c, second);
                assert_crowded(c, n, first, second);
                set_crowded(c, first);
                set_crowded(c, second);
            }
        assert_int_equal(tarn_cache_count(c), n);
        tarn_cache_free(c);
    }
}

static void a_key_with_anothers_hash_is_not_taken_for_it(void **state)
{
    struct tarn_key a = {"a", 1}, b = {"b", 1};
    struct tarn_desc one = desc_of(1, 1), two = desc_of(2, 2), d;
    struct tarn_cache *c = cache_new(1000);

    (void)state;
    tarn_cache_set(c, &a, 7, &one);
    assert_false(tarn_cache_find(c, &b, 7, &d));
    tarn_cache_drop(c, &b, 7, NULL);
    assert_true(tarn_cache_find(c, &a, 7, &d));
    tarn_cache_set(c, &b, 7, &two);
    assert_true(tarn_cache_find(c, &b, 7, &d));
    assert_desc(&d, 2, 2);
    assert_false(tarn_cache_find(c, &a, 7, &d));
    assert_int_equal(tarn_cache_count(c), 1);
    tarn_cache_free(c);
}

struct writer {
    struct tarn_cache *cache;
    _Atomic bool stop;
};

static void *keep_setting(void *arg)
{
    struct writer *w = arg;
    for (uint64_t v = 1; !atomic_load(&w->stop); v++)
        set(w->cache, 1, v % 1000 + 1, 1 + (uint32_t)(v % 1000) % TARN_REPLICAS_MAX);
    return NULL;
}

static void entries_are_read_whole(void **state)
{
    struct writer w = {.cache = cache_new(1000)};
    struct tarn_desc d;
    pthread_t t;

    (void)state;
    set(w.cache, 1, 1, 1);
    assert_int_equal(pthread_create(&t, NULL, keep_setting, &w), 0);
    for (int i = 0; i < 100000; i++)
        if (find(w.cache, 1, &d))
            assert_desc(&d, d.tensor.bytes, d.nlocs);
    atomic_store(&w.stop, true);
    pthread_join(t, NULL);
    tarn_cache_free(w.cache);
}

static void *keep_looking_ahead(void *arg)
{
    struct writer *w = arg;
    char text[32];
    for (uint32_t i = 0; !atomic_load(&w->stop); i = (i + 1) % 10000) {
        struct tarn_key k = key_of(text, i);
        tarn_cache_prefetch_place(w->cache, tarn_key_hash(&k));
        tarn_cache_prefetch_entry(w->cache, tarn_key_hash(&k));
    }
    return NULL;
}

static void one_thread_looks_ahead_while_another_adds(void **state)
{
    struct writer w = {.cache = cache_new(20000)};
    struct tarn_desc d;
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_create(&t, NULL, keep_looking_ahead, &w), 0);
    for (uint32_t i = 0; i < 10000; i++)
        set(w.cache, i, i + 1, 1);
    atomic_store(&w.stop, true);
    pthread_join(t, NULL);
    for (uint32_t i = 0; i < 10000; i++) {
        assert_true(find(w.cache, i, &d));
        assert_desc(&d, i + 1, 1);
    }
    tarn_cache_free(w.cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_set_entry_is_found),
        cmocka_unit_test(only_the_stale_location_is_dropped),
        cmocka_unit_test(used_entries_outlive_unused_ones),
        cmocka_unit_test(binary_keys_differ_in_every_byte),
        cmocka_unit_test(entries_in_one_anothers_places_are_found),
        cmocka_unit_test(a_key_with_anothers_hash_is_not_taken_for_it),
        cmocka_unit_test(entries_are_read_whole),
        cmocka_unit_test(one_thread_looks_ahead_while_another_adds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
