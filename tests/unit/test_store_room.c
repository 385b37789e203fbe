/* SPDX-License-Identifier: Apache-2.0 */
/* The store's rules about room and time: what may be evicted, what is counted, and what ends when. */
#include <stdlib.h>

#include "base/clock.h"
#include "tests/unit/store_fixture.h"

static void wait_ms(uint32_t ms)
{
    uint64_t due = tarn_deadline(ms);
    while (tarn_now_ns() < due)
        continue;
}

/* --- eviction avoids readers -------------------------------------------------------------------- */

enum how { PINNED, VIEWED };

/* Every fourth of 16 objects is being read, the last but one first. A large put evicts the three neighbours
 * between two of them. */
static void runs_go_round(enum how how)
{
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_guard guard = tarn_store_guard(s);
    struct tarn_hazard_page *page = calloc(1, sizeof(*page));
    struct tarn_grant g[16];
    char key[8];
    atomic_store(&page->used, how == VIEWED ? 4 : 0);
    assert_int_equal(tarn_store_hazard_add(s, page), 0);
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        g[i] = put(s, key, 64 * KIB);
    }
    for (int i = 2; i < 16; i += 4) {
        void *addr;
        if (how == PINNED)
            assert_int_equal(guard.pin_read(guard.arg, 0, g[i].slot, g[i].gen + 1, g[i].offset, 1, &addr), 0);
        else
            atomic_store(&page->entry[i / 4], g[i].slot + 1);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof(key), "l%d", i);
        struct tarn_reserve r = want(key, 3 * 64 * KIB);
        struct tarn_grant large;
        r.pin = true;
        assert_int_equal(put_as(s, &r, &large), 0);
    }
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        assert_int_equal(has(s, key), i % 4 == 2 || i < 2 || i == 15);
        if (how == PINNED && i % 4 == 2)
            guard.unpin(guard.arg, 0, g[i].slot, g[i].gen + 1);
    }
    assert_int_equal(stats(s).limbo, 0);
    tarn_store_free(s);
    free(page);
}

static void test_runs_avoid_objects_with_readers(void **state)
{
    (void)state;
    runs_go_round(PINNED);
    runs_go_round(VIEWED);
}

/* Other evictions also leave objects that are being read, as long as others exist. */
static void test_victims_are_not_read(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = new_store(&gone, 0);
    add_pool(s, "p", MIB, 16);
    struct tarn_guard guard = tarn_store_guard(s);
    struct tarn_grant g = put(s, "read", 64 * KIB);
    void *addr;
    char key[8];
    assert_int_equal(guard.pin_read(guard.arg, 0, g.slot, g.gen + 1, g.offset, 1, &addr), 0);
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        put(s, key, 64 * KIB);
        assert_true(has(s, "read"));
    }
    assert_int_equal(stats(s).objects, 16);
    assert_int_equal(tarn_store_evict(s, 0, UINT64_MAX), 15 * 64 * KIB);
    assert_true(has(s, "read"));
    guard.unpin(guard.arg, 0, g.slot, g.gen + 1);
    tarn_store_free(s);
}

/* A pool of small objects. Readers pin most of them. */
enum { MANY = 1024 };

static void put_many(struct tarn_store *s, struct tarn_grant *g)
{
    char key[16];
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        g[i] = put(s, key, 64);
    }
}

static void read_all_but(struct tarn_store *s, const struct tarn_grant *g, int but)
{
    struct tarn_guard guard = tarn_store_guard(s);
    void *addr;
    char key[16];
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        if (i != but && has(s, key))
            assert_int_equal(guard.pin_read(s, 0, g[i].slot, g[i].gen + 1, g[i].offset, 1, &addr), 0);
    }
}

/* The only possible victim is found, though a random draw hardly hits it. */
static void test_the_only_victim_is_found(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, MANY);
    struct tarn_grant g[MANY];
    put_many(s, g);
    read_all_but(s, g, 700);
    assert_int_equal(tarn_store_evict(s, 0, 1), 64);
    assert_string_equal(gone.key, "k700");
    tarn_store_free(s);
}

/* A victim that was chosen before a reader came is left alone. */
static void test_a_candidate_with_a_reader_is_not_evicted(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, MANY);
    struct tarn_grant g[MANY];
    put_many(s, g);
    assert_int_equal(tarn_store_evict(s, 0, 1), 64); /* draws more candidates than it evicts */
    read_all_but(s, g, -1);
    assert_int_equal(tarn_store_evict(s, 0, UINT64_MAX), 0);
    assert_int_equal(gone.n, 1);
    assert_int_equal(stats(s).limbo, 0);
    tarn_store_free(s);
}

/* Viewed objects are not evicted either, whatever the room is for. */
static void test_victims_are_not_viewed(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 2);
    struct tarn_hazard_page *page = calloc(1, sizeof(*page));
    struct tarn_grant g = put(s, "viewed", 64 * KIB);
    put(s, "other", 64 * KIB);
    assert_int_equal(tarn_store_hazard_add(s, page), 0);
    atomic_store(&page->entry[0], g.slot + 1);
    atomic_store(&page->used, 1);
    assert_int_equal(tarn_store_evict(s, 0, UINT64_MAX), 64 * KIB);
    assert_true(has(s, "viewed") && !has(s, "other"));
    struct tarn_reserve r = want("pinned", 64 * KIB);
    r.pin = true;
    assert_int_equal(put_as(s, &r, &g), 0);
    r = want("no slot", 64 * KIB);
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_FULL);
    assert_true(has(s, "viewed"));
    atomic_store(&page->entry[0], 0);
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_false(has(s, "viewed"));
    tarn_store_free(s);
    free(page);
}

/* The same where room is made for bytes. */
static void test_holes_are_not_made_of_what_is_viewed(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_hazard_page *page = calloc(1, sizeof(*page));
    char key[8];
    struct tarn_grant g[16];
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        g[i] = put(s, key, 64 * KIB);
    }
    uint32_t first = g[15].slot; /* of one tick, the last goes first */
    assert_int_equal(tarn_store_hazard_add(s, page), 0);
    atomic_store(&page->entry[0], first + 1);
    atomic_store(&page->used, 1);
    put(s, "more", 64 * KIB);
    assert_true(has(s, "k15"));
    assert_int_equal(gone.n, 1);
    tarn_store_free(s);
    free(page);
}

/* A hazard names a slot of one pool only. */
static void test_hazards_of_another_pool(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = new_store(&gone, 0);
    add_pool(s, "a", MIB, 0);
    add_pool(s, "b", MIB, 0);
    struct tarn_hazard_page *page = calloc(1, sizeof(*page));
    struct tarn_reserve r = want("second", 1000);
    struct tarn_grant first = put(s, "first", 1000), second_pools;
    r.pool = 1;
    assert_int_equal(put_as(s, &r, &second_pools), 0);
    assert_int_equal(first.pool, 0);
    assert_int_equal(first.slot, second_pools.slot);
    assert_int_equal(tarn_store_hazard_add(s, page), 0);
    atomic_store(&page->entry[0], (1ull << 32 | second_pools.slot) + 1);
    atomic_store(&page->used, 1);
    assert_true(tarn_store_release(s, 0, first.slot, first.gen + 1));
    assert_true(tarn_store_release(s, 1, second_pools.slot, second_pools.gen + 1));
    struct tarn_pool_stats b;
    tarn_store_stats(s, 1, &b);
    assert_int_equal(stats(s).limbo, 0);
    assert_int_equal(b.limbo, 1);
    tarn_store_tick(s);
    tarn_store_stats(s, 1, &b);
    assert_int_equal(b.limbo, 1);
    tarn_store_free(s);
    free(page);
}

/* --- puts in flight ----------------------------------------------------------------------------- */

/* Eviction takes no reservation and no copy that is being published: only their session may give them up. */
static void test_puts_in_flight_are_not_evicted(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_grant g[16], large;
    struct tarn_publish p;
    char key[8];
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        struct tarn_reserve r = want(key, 64 * KIB);
        assert_int_equal(tarn_store_reserve(s, &r, &g[i]), 0);
        if (i % 3)
            assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g[i].slot, g[i].gen, &p), 0);
        if (i % 3 == 2)
            tarn_store_commit_end(s, 0, g[i].slot, g[i].gen, true);
    }
    struct tarn_reserve r = want("large", 128 * KIB);
    assert_int_equal(tarn_store_reserve(s, &r, &large), TARN_E_FULL);
    for (int i = 0; i < 16; i++) {
        if (i % 3 == 0)
            assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g[i].slot, g[i].gen, &p), 0);
        if (i % 3 != 2)
            tarn_store_commit_end(s, 0, g[i].slot, g[i].gen, true);
        snprintf(key, sizeof(key), "k%d", i);
        assert_true(has(s, key));
    }
    assert_int_equal(tarn_store_reserve(s, &r, &large), 0);
    tarn_store_free(s);
}

/* RELEASE applies to copies in the directory, not to reservations. */
static void test_release_leaves_reservations(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_reserve r = want("a", 1000);
    struct tarn_grant g;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_false(tarn_store_release(s, 0, g.slot, g.gen));
    assert_int_equal(stats(s).reserved, 1);
    commit(s, &g, true);
    assert_true(has(s, "a"));
    tarn_store_free(s);
}

/* Listed objects are published, scrubbed and withdrawn, so only LIVE objects are listed. */
static void test_only_live_objects_are_listed(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_guard guard = tarn_store_guard(s);
    struct tarn_grant limbo = put(s, "limbo", 1000), g;
    struct tarn_reserve r = want("publishing", 1000);
    struct tarn_publish p;
    struct tarn_stored found[4];
    uint64_t cursor = 0;
    void *addr;
    put(s, "live", 1000);
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g.slot, g.gen, &p), 0);
    r = want("reserved", 1000);
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_int_equal(guard.pin_read(s, 0, limbo.slot, limbo.gen + 1, limbo.offset, 1, &addr), 0);
    assert_true(tarn_store_release(s, 0, limbo.slot, limbo.gen + 1));
    assert_int_equal(tarn_store_list(s, &cursor, found, 4), 1);
    assert_memory_equal(found[0].key, "live", 4);
    guard.unpin(s, 0, limbo.slot, limbo.gen + 1);
    tarn_store_free(s);
}

/* Reserved room counts for the pool and the session. Commit and abort give it back. */
static void test_reserved_room_is_counted(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = new_store(&gone, 3000);
    add_pool(s, "p", MIB, 0);
    struct tarn_reserve r = want("a", 1000);
    struct tarn_grant g[3], more;
    for (int i = 0; i < 3; i++)
        assert_int_equal(tarn_store_reserve(s, &r, &g[i]), 0);
    assert_int_equal(stats(s).reserved_bytes, 3 * 1024);
    assert_int_equal(stats(s).used, 3 * 1024);
    assert_int_equal(tarn_store_session_reserved(s, SESSION), 3000);
    assert_int_equal(tarn_store_reserve(s, &r, &more), TARN_E_BUSY);
    commit(s, &g[0], true);
    assert_int_equal(tarn_store_session_reserved(s, SESSION), 2000);
    assert_true(tarn_store_abort(s, SESSION, 0, g[1].slot, g[1].gen));
    assert_int_equal(tarn_store_session_reserved(s, SESSION), 1000);
    assert_int_equal(stats(s).reserved_bytes, 1024);
    assert_int_equal(stats(s).used, 2 * 1024);
    commit(s, &g[2], false);
    assert_int_equal(stats(s).reserved_bytes, 0);
    assert_int_equal(stats(s).reserved, 0);
    assert_int_equal(stats(s).used, 1024);
    tarn_store_free(s);
}

/* A commit counts as use: an object that took long to write is not evicted first. */
static void test_commit_is_use(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_reserve r = want("a", 1000);
    struct tarn_grant g;
    uint32_t n;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    _Atomic uint32_t *touch = &tarn_store_pools(s, &n)[0].touch[g.slot];
    atomic_store(touch, tarn_store_now(s) - 100000);
    commit(s, &g, true);
    assert_in_range(tarn_store_now(s) - atomic_load(touch), 0, 1000);
    tarn_store_free(s);
}

/* --- times -------------------------------------------------------------------------------------- */

/* An expired object does not exist, even before the next tick. */
static void test_expired_before_its_tick(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_reserve r = want("a", 100);
    struct tarn_grant g;
    r.ttl_ms = 20;
    assert_int_equal(put_as(s, &r, &g), 0);
    assert_true(has(s, "a"));
    wait_ms(21);
    assert_false(has(s, "a"));
    assert_false(tarn_store_touch(s, &r.key));
    assert_false(tarn_store_pin(s, &r.key, 0));
    assert_int_equal(gone.n, 0);
    r.absent = true;
    r.ttl_ms = 0;
    assert_int_equal(put_as(s, &r, &g), 0);
    assert_true(has(s, "a"));
    assert_int_equal(gone.n, 1);
    tarn_store_free(s);
}

/* The time to live begins with the commit, however long the bytes took. */
static void test_time_to_live_begins_with_the_commit(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_reserve r = want("a", 100);
    struct tarn_grant g;
    r.ttl_ms = 1000;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    wait_ms(200);
    commit(s, &g, true);
    wait_ms(850);
    assert_true(has(s, "a"));
    tarn_store_free(s);
}

/* Of several pins, the longest counts. */
static void test_a_shorter_pin_does_not_end_a_longer_one(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_key key = key_of("a");
    put(s, "a", 1000);
    assert_true(tarn_store_pin(s, &key, 0));
    assert_true(tarn_store_pin(s, &key, 1));
    wait_ms(2);
    tarn_store_tick(s);
    assert_int_equal(tarn_store_evict(s, 0, UINT64_MAX), 0);
    assert_true(has(s, "a"));
    tarn_store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_avoid_objects_with_readers),
        cmocka_unit_test(test_victims_are_not_read),
        cmocka_unit_test(test_the_only_victim_is_found),
        cmocka_unit_test(test_a_candidate_with_a_reader_is_not_evicted),
        cmocka_unit_test(test_victims_are_not_viewed),
        cmocka_unit_test(test_holes_are_not_made_of_what_is_viewed),
        cmocka_unit_test(test_hazards_of_another_pool),
        cmocka_unit_test(test_puts_in_flight_are_not_evicted),
        cmocka_unit_test(test_release_leaves_reservations),
        cmocka_unit_test(test_only_live_objects_are_listed),
        cmocka_unit_test(test_reserved_room_is_counted),
        cmocka_unit_test(test_commit_is_use),
        cmocka_unit_test(test_expired_before_its_tick),
        cmocka_unit_test(test_time_to_live_begins_with_the_commit),
        cmocka_unit_test(test_a_shorter_pin_does_not_end_a_longer_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
