/* SPDX-License-Identifier: Apache-2.0 */
/* The store: life of a slot, which put wins, bad requests, what delays reuse, times, and listings. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/text.h"
#include "tests/unit/store_fixture.h"

/* --- life of a slot ----------------------------------------------------------------------------- */

static void test_put_find_remove(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, 4 * MIB, 0);
    struct tarn_tensor t = {.bytes = 96, .dtype = TARN_F32, .ndim = 2, .shape = {4, 6}};
    struct tarn_reserve r = want("a", 0);
    r.tensor = t;
    r.ttl_ms = 3600000;
    struct tarn_grant g;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_int_equal(g.gen, (EPOCH << 32) | 1);
    assert_int_equal(gen_at(s, &g), g.gen);
    assert_false(has(s, "a"));
    assert_int_equal(tarn_store_session_reserved(s, SESSION), 96);

    struct tarn_publish p;
    assert_int_equal(tarn_store_commit_begin(s, SESSION, g.pool, g.slot, g.gen, &p), 0);
    assert_int_equal(p.key.bytes, 1);
    assert_memory_equal(p.key.data, "a", 1);
    assert_int_equal(p.mode, TARN_PUBLISH_REPLACE);
    assert_int_equal(p.record.nlocations, 1);
    assert_int_equal(p.record.version, 5);
    assert_int_equal(p.record.ttl_ms, 3600000);
    assert_memory_equal(&p.record.tensor, &t, sizeof(t));
    assert_string_equal(p.record.locations[0].node, "n1");
    assert_string_equal(p.record.locations[0].pool, "p");
    assert_int_equal(p.record.locations[0].gen, g.gen + 1);
    assert_int_equal(p.record.locations[0].offset, g.offset);
    assert_int_equal(tarn_store_session_reserved(s, SESSION), 0);
    assert_false(has(s, "a"));
    assert_true(tarn_store_commit_end(s, g.pool, g.slot, g.gen, p.record.born_ms + 5).live);

    struct tarn_record found;
    struct tarn_location l;
    struct tarn_key key = key_of("a");
    assert_true(tarn_store_find(s, &key, &found, &l));
    assert_int_equal(l.gen, g.gen + 1);
    assert_int_equal(found.born_ms, p.record.born_ms + 5); /* the directory's value */
    assert_int_equal(stats(s).objects, 1);

    assert_true(tarn_store_remove(s, &key, TARN_LEFT_REMOVED));
    assert_int_equal(gen_at(s, &g), g.gen + 2);
    assert_int_equal(gone.n, 1);
    assert_int_equal(gone.why, TARN_LEFT_REMOVED);
    assert_string_equal(gone.key, "a");
    assert_int_equal(gone.location.gen, g.gen + 1);
    assert_int_equal(gone.bytes, 96);
    assert_false(tarn_store_remove(s, &key, TARN_LEFT_REMOVED));
    assert_int_equal(stats(s).used, 0);

    struct tarn_grant again = put(s, "b", 96); /* reuses the slot, with a later generation */
    assert_int_equal(again.slot, g.slot);
    assert_int_equal(again.gen, g.gen + 2);
    tarn_store_free(s);
}

static void test_refused_publish_leaves_nothing(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_reserve r = want("a", 1000);
    r.absent = true;
    struct tarn_grant g;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    struct tarn_publish p;
    assert_int_equal(tarn_store_commit_begin(s, SESSION, g.pool, g.slot, g.gen, &p), 0);
    assert_int_equal(p.mode, TARN_PUBLISH_ABSENT);
    tarn_store_commit_end(s, g.pool, g.slot, g.gen, false);
    assert_false(has(s, "a"));
    assert_int_equal(gone.n, 0);
    assert_int_equal(stats(s).used, 0);
    assert_int_equal(stats(s).reserved, 0);
    assert_int_equal(gen_at(s, &g), g.gen + 2);
    tarn_store_free(s);
}

static void test_absent_and_replace(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_grant first = put(s, "a", 1000), second;
    struct tarn_reserve r = want("a", 2000);
    r.absent = true;
    assert_int_equal(tarn_store_reserve(s, &r, &second), TARN_E_EXISTS);
    r.absent = false;
    assert_int_equal(tarn_store_reserve(s, &r, &second), 0);
    struct tarn_location l;
    struct tarn_key key = key_of("a");
    assert_true(tarn_store_find(s, &key, NULL, &l)); /* the old one stays until the new one is committed */
    assert_int_equal(l.gen, first.gen + 1);
    struct tarn_committed c = commit(s, &second, true);
    assert_true(tarn_store_find(s, &key, NULL, &l));
    assert_int_equal(l.slot, second.slot);
    assert_int_equal(gone.n, 0); /* the committer learns it from the result */
    assert_true(c.live && c.replaced);
    assert_string_equal(c.old.pool, "p");
    assert_int_equal(c.old.gen, first.gen + 1);
    assert_int_equal(stats(s).objects, 1);
    tarn_store_free(s);
}

/* Another client's later put won while this one was being published. */
static void test_release_while_publishing(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_reserve r = want("a", 1000);
    struct tarn_grant a, b;
    struct tarn_publish p;
    assert_int_equal(tarn_store_reserve(s, &r, &a), 0);
    assert_int_equal(tarn_store_reserve(s, &r, &b), 0);
    assert_int_equal(tarn_store_commit_begin(s, SESSION, a.pool, a.slot, a.gen, &p), 0);
    assert_int_equal(tarn_store_commit_begin(s, SESSION, b.pool, b.slot, b.gen, &p), 0);
    tarn_store_commit_end(s, b.pool, b.slot, b.gen, true);
    assert_true(tarn_store_release(s, a.pool, a.slot, a.gen + 1));
    tarn_store_commit_end(s, a.pool, a.slot, a.gen, true);
    struct tarn_location l;
    struct tarn_key key = key_of("a");
    assert_true(tarn_store_find(s, &key, NULL, &l));
    assert_int_equal(l.slot, b.slot);
    assert_int_equal(stats(s).objects, 1);

    assert_false(tarn_store_release(s, b.pool, b.slot, b.gen));
    assert_true(tarn_store_release(s, b.pool, b.slot, b.gen + 1));
    assert_int_equal(gone.why, TARN_LEFT_RELEASED);
    assert_false(has(s, "a"));
    assert_int_equal(stats(s).used, 0);
    tarn_store_free(s);
}

static void test_abort(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_grant g[3], other;
    struct tarn_publish p;
    for (int i = 0; i < 3; i++) {
        struct tarn_reserve r = want("a", 1000);
        assert_int_equal(tarn_store_reserve(s, &r, &g[i]), 0);
    }
    struct tarn_reserve r = want("b", 1000);
    r.session = 78;
    assert_int_equal(tarn_store_reserve(s, &r, &other), 0);
    assert_int_equal(tarn_store_commit_begin(s, 78, 0, g[0].slot, g[0].gen, &p), TARN_E_STALE);
    assert_false(tarn_store_abort(s, 78, 0, g[0].slot, g[0].gen));
    assert_true(tarn_store_abort(s, SESSION, 0, g[0].slot, g[0].gen));
    assert_false(tarn_store_abort(s, SESSION, 0, g[0].slot, g[0].gen));
    assert_int_equal(gen_at(s, &g[0]), g[0].gen + 2);
    assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g[0].slot, g[0].gen, &p), TARN_E_STALE);
    assert_int_equal(tarn_store_abort_session(s, SESSION), 2);
    assert_int_equal(tarn_store_abort_session(s, SESSION), 0);
    assert_int_equal(stats(s).reserved, 1);
    assert_int_equal(tarn_store_session_reserved(s, 78), 1000);
    assert_int_equal(gone.n, 0);
    tarn_store_free(s);
}

static void test_worn_out_slot_is_retired(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_grant g = put(s, "a", 100), next;
    struct tarn_key key = key_of("a");
    assert_true(tarn_store_remove(s, &key, TARN_LEFT_REMOVED));
    uint32_t n;
    atomic_store(&tarn_store_pools(s, &n)[0].gen[g.slot], EPOCH << 32 | 0xfffffffd);
    next = put(s, "a", 100);
    assert_int_equal(next.slot, g.slot); /* the slot's last use */
    assert_true(tarn_store_remove(s, &key, TARN_LEFT_REMOVED));
    next = put(s, "a", 100);
    assert_int_not_equal(next.slot, g.slot);
    tarn_store_free(s);
}

/* --- bad requests ------------------------------------------------------------------------------- */

static void test_refusals(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = new_store(&gone, 2 * MIB);
    add_pool(s, "small", 512 * KIB, 0);
    add_pool(s, "large", 4 * MIB, 0);
    static char long_key[TARN_KEY_MAX + 2];
    memset(long_key, 'k', TARN_KEY_MAX + 1);
    struct tarn_grant g;
    struct tarn_reserve r = want("", 10);
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_INVALID);
    r = want(long_key, 10);
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_INVALID);
    r = want("a", 4 * MIB + 1);
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_TOO_LARGE);
    r = want("a", MIB);
    r.pool = 0;
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_TOO_LARGE);
    r.pool = 2;
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_INVALID);
    r = want("a", 10);
    r.tensor.shape[0] = 11;
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_INVALID);
    r = want("a", UINT64_MAX);
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_TOO_LARGE);

    r = want("a", 3 * MIB); /* over the session's limit, but the only one */
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    r = want("b", 1);
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_BUSY);
    r.session = 78;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_int_equal(tarn_store_abort_session(s, SESSION), 1);
    r = want("z", 0); /* zero-length tensors are legal */
    assert_int_equal(put_as(s, &r, &g), 0);
    assert_true(has(s, "z"));
    tarn_store_free(s);
}

static void test_bad_options(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_pool_options o = {.name = "p", .bytes = MIB};
    assert_int_equal(tarn_store_add_pool(s, &o), TARN_E_CONFIG); /* the name is taken */
    o = (struct tarn_pool_options){.name = "q", .bytes = MIB, .align = 100};
    assert_int_equal(tarn_store_add_pool(s, &o), TARN_E_CONFIG);
    o = (struct tarn_pool_options){.name = "q", .bytes = 1ull << 60};
    assert_int_equal(tarn_store_add_pool(s, &o), TARN_E_NO_MEMORY);
    assert_non_null(strstr(tarn_last_error(), "make the pool smaller"));
    assert_int_equal(tarn_store_pool_find(s, "p", 1), 0);
    assert_int_equal(tarn_store_pool_find(s, "q", 1), -1);
    tarn_store_free(s);

    struct tarn_store_options bad = {.epoch = 1ull << 32, .node = "n"};
    assert_int_equal(tarn_store_new(&bad, &s), TARN_E_INVALID);
}

static void test_full_of_pinned(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    char key[16];
    struct tarn_grant g;
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        struct tarn_reserve r = want(key, 64 * KIB);
        r.pin = true;
        assert_int_equal(put_as(s, &r, &g), 0);
    }
    struct tarn_reserve r = want("new", 64 * KIB);
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_FULL);
    assert_int_equal(stats(s).refused, 1);
    struct tarn_key k3 = key_of("k3");
    assert_true(tarn_store_unpin(s, &k3));
    assert_int_equal(put_as(s, &r, &g), 0);
    assert_false(has(s, "k3"));
    assert_int_equal(stats(s).objects, 16);
    tarn_store_free(s);
}

/* --- pins and hazards --------------------------------------------------------------------------- */

static void test_guard_checks(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_guard guard = tarn_store_guard(s);
    uint32_t n;
    char *base = tarn_store_pools(s, &n)[0].base;
    struct tarn_reserve r = want("a", 1000);
    struct tarn_grant g;
    void *addr;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_int_equal(guard.pin_read(guard.arg, 0, g.slot, g.gen, g.offset, 1000, &addr), TARN_E_STALE);
    assert_int_equal(guard.pin_write(guard.arg, 78, 0, g.slot, g.gen, g.offset, 1000, &addr), TARN_E_STALE);
    assert_int_equal(guard.pin_write(guard.arg, SESSION, 0, g.slot, g.gen, g.offset, 1001, &addr),
                     TARN_E_STALE);
    assert_int_equal(guard.pin_write(guard.arg, SESSION, 0, g.slot, g.gen, g.offset + 400, 600, &addr), 0);
    assert_ptr_equal(addr, base + g.offset + 400);
    guard.unpin(guard.arg, 0, g.slot, g.gen);
    commit(s, &g, true);
    uint64_t gen = g.gen + 1;
    assert_int_equal(guard.pin_write(guard.arg, SESSION, 0, g.slot, g.gen, g.offset, 1, &addr), TARN_E_STALE);
    assert_int_equal(guard.pin_write(guard.arg, SESSION, 0, g.slot, gen, g.offset, 1, &addr), TARN_E_STALE);
    assert_int_equal(guard.pin_read(guard.arg, 0, g.slot, gen, g.offset, 1000, &addr), 0);
    guard.unpin(guard.arg, 0, g.slot, gen);
    assert_int_equal(guard.pin_read(guard.arg, 0, g.slot, gen, g.offset + 1, 1000, &addr), TARN_E_STALE);
    assert_int_equal(guard.pin_read(guard.arg, 0, g.slot, gen, g.offset + 1, UINT64_MAX, &addr),
                     TARN_E_STALE);
    assert_int_equal(guard.pin_read(guard.arg, 0, g.slot, gen, g.offset - 1, 1, &addr), TARN_E_STALE);
    assert_int_equal(guard.pin_read(guard.arg, 0, g.slot + 1, 0, 0, 0, &addr), TARN_E_STALE);
    assert_int_equal(guard.pin_read(guard.arg, 1, g.slot, gen, g.offset, 1, &addr), TARN_E_STALE);
    assert_int_equal(guard.pin_read(guard.arg, 0, UINT32_MAX, gen, g.offset, 1, &addr), TARN_E_STALE);
    tarn_store_evict(s, 0, UINT64_MAX);
    assert_int_equal(stats(s).limbo, 0); /* refused pins leave nothing behind */
    tarn_store_free(s);
}

static void test_pinned_extent_is_not_reused(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_guard guard = tarn_store_guard(s);
    struct tarn_grant a = put(s, "a", MIB), g;
    void *addr;
    assert_int_equal(guard.pin_read(guard.arg, 0, a.slot, a.gen + 1, a.offset, MIB, &addr), 0);
    struct tarn_reserve r = want("b", MIB);
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_FULL);
    assert_true(has(s, "a")); /* evicting it would free nothing */
    struct tarn_key key = key_of("a");
    assert_true(tarn_store_remove(s, &key, TARN_LEFT_REMOVED));
    assert_false(has(s, "a"));
    assert_int_equal(stats(s).limbo, 1);
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_FULL);
    guard.unpin(guard.arg, 0, a.slot, a.gen + 1);
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_int_equal(stats(s).limbo, 0);

    assert_int_equal(guard.pin_write(guard.arg, SESSION, 0, g.slot, g.gen, g.offset, MIB, &addr), 0);
    assert_true(tarn_store_abort(s, SESSION, 0, g.slot, g.gen));
    assert_int_equal(tarn_store_reserve(s, &r, &g), TARN_E_FULL);
    guard.unpin(guard.arg, 0, g.slot, g.gen);
    tarn_store_tick(s);
    assert_int_equal(stats(s).used, 0);
    tarn_store_free(s);
}

static void test_hazards(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_hazard_page *pages = calloc(20, sizeof(*pages));
    for (int i = 0; i < 20; i++)
        assert_int_equal(tarn_store_hazard_add(s, &pages[i]), 0);
    struct tarn_grant a = put(s, "a", 512 * KIB), b = put(s, "b", 512 * KIB), g;
    atomic_store(&pages[17].used, UINT32_MAX); /* clients may write garbage */
    atomic_store(&pages[17].entry[TARN_HAZARDS - 1], a.slot + 1);
    atomic_store(&pages[3].entry[5], b.slot + 1); /* beyond `used`: not announced */
    struct tarn_reserve r = want("c", 512 * KIB);
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_true(has(s, "a"));
    assert_false(has(s, "b"));
    struct tarn_key key = key_of("a");
    tarn_store_remove(s, &key, TARN_LEFT_REMOVED);
    assert_int_equal(stats(s).limbo, 1);
    tarn_store_tick(s);
    assert_int_equal(stats(s).limbo, 1);
    tarn_store_hazard_remove(s, &pages[17]);
    tarn_store_tick(s);
    assert_int_equal(stats(s).limbo, 0);
    tarn_store_free(s);
    free(pages);
}

/* --- times -------------------------------------------------------------------------------------- */

static void test_expiry(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_reserve r = want("a", 100);
    r.ttl_ms = 20;
    struct tarn_grant g;
    uint64_t end = tarn_deadline(20), give_up = tarn_deadline(10000);
    assert_int_equal(put_as(s, &r, &g), 0);
    put(s, "b", 100);
    while (stats(s).expired == 0 && tarn_now_ns() < give_up)
        tarn_store_tick(s);
    assert_true(tarn_now_ns() >= end);
    assert_false(has(s, "a"));
    assert_true(has(s, "b"));
    assert_int_equal(gone.why, TARN_LEFT_EXPIRED);
    assert_int_equal(gone.n, 1);

    r.absent = true; /* an expired object does not exist, whether a look-up noticed that or not */
    r.ttl_ms = 1;
    assert_int_equal(put_as(s, &r, &g), 0);
    while (has(s, "a") && tarn_now_ns() < give_up)
        continue;
    assert_int_equal(put_as(s, &r, &g), 0);
    assert_int_equal(gone.n, 2);
    tarn_store_free(s);
}

static void test_pin_that_ends(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    put(s, "a", MIB);
    struct tarn_key key = key_of("a");
    assert_true(tarn_store_pin(s, &key, 20));
    uint64_t end = tarn_deadline(18), give_up = tarn_deadline(10000);
    struct tarn_reserve r = want("b", MIB);
    struct tarn_grant g;
    int rc;
    while ((rc = tarn_store_reserve(s, &r, &g)) == TARN_E_FULL && tarn_now_ns() < give_up)
        continue;
    assert_int_equal(rc, 0);
    assert_true(tarn_now_ns() >= end);
    assert_false(tarn_store_pin(s, &key, 0));
    assert_false(tarn_store_unpin(s, &key));
    assert_false(tarn_store_touch(s, &key));
    tarn_store_free(s);
}

/* --- lists and look-ups ------------------------------------------------------------------------- */

static void test_list(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = new_store(&gone, 0);
    add_pool(s, "a", MIB, 0);
    add_pool(s, "b", MIB, 0);
    char key[32];
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof(key), "k%04d", i);
        put(s, key, 64);
    }
    struct tarn_reserve r = want("other", 64);
    struct tarn_grant g;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    struct tarn_stored found[7];
    bool seen[1000] = {false};
    uint64_t cursor = 0;
    for (size_t n, all = 0;; all += n) {
        n = tarn_store_list(s, &cursor, found, 7);
        if (n == 0) {
            assert_int_equal(all, 1000);
            break;
        }
        assert_true(n <= 7);
        for (size_t i = 0; i < n; i++) {
            int number = (int)strtol(found[i].key + 1, NULL, 10);
            assert_int_equal(found[i].key_bytes, 5);
            assert_int_equal(found[i].record.nlocations, 1);
            assert_in_range(number, 0, 999);
            assert_false(seen[number]);
            seen[number] = true;
        }
    }
    tarn_store_free(s);
}

/* Objects may follow a long row of freed slots. The list must not end before them. */
static void test_list_passes_gaps(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 16384);
    char key[32];
    for (int i = 0; i < 10000; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        put(s, key, 64);
    }
    for (int i = 0; i < 9999; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        struct tarn_key k = key_of(key);
        assert_true(tarn_store_remove(s, &k, TARN_LEFT_REMOVED));
    }
    struct tarn_stored found;
    uint64_t cursor = 0;
    assert_int_equal(tarn_store_list(s, &cursor, &found, 1), 1);
    assert_memory_equal(found.key, "k9999", 5);
    assert_int_equal(tarn_store_list(s, &cursor, &found, 1), 0);
    tarn_store_free(s);
}

/* Each key is found only while its object exists, whatever was added and removed earlier. */
static void test_every_key_is_found(void **state)
{
    (void)state;
    enum { KEYS = 3000, STEPS = 30000 };
    struct gone gone;
    struct tarn_store *s = new_store(&gone, 0);
    add_pool(s, "a", MIB, 1024);
    add_pool(s, "b", MIB, 4096);
    bool here[KEYS] = {false};
    unsigned seed = (unsigned)tarn_random64(), n = 0;
    print_message("seed %u\n", seed);
    for (int i = 0; i < STEPS; i++) {
        int which = rand_r(&seed) % KEYS;
        char key[16];
        snprintf(key, sizeof(key), "%d", which);
        struct tarn_key k = key_of(key);
        assert_int_equal(has(s, key), here[which]);
        if (!here[which] && rand_r(&seed) % 4)
            put(s, key, 1);
        else
            assert_int_equal(tarn_store_remove(s, &k, TARN_LEFT_REMOVED), here[which]);
        here[which] = has(s, key);
    }
    for (int i = 0; i < KEYS; i++) {
        char key[16];
        snprintf(key, sizeof(key), "%d", i);
        assert_int_equal(has(s, key), here[i]);
        n += here[i];
    }
    struct tarn_pool_stats b;
    tarn_store_stats(s, 1, &b);
    assert_int_equal(stats(s).objects + b.objects, n);
    tarn_store_free(s);
}

/* --- committing against writing ----------------------------------------------------------------- */

/* Published bytes do not change: a commit is refused while a put of the slot is being received. */
static void test_commit_is_refused_while_written(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_guard guard = tarn_store_guard(s);
    struct tarn_reserve r = want("a", 1000);
    struct tarn_grant g;
    struct tarn_publish p;
    void *addr;
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_int_equal(guard.pin_write(guard.arg, SESSION, 0, g.slot, g.gen, g.offset, 500, &addr), 0);
    assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g.slot, g.gen, &p), TARN_E_BUSY);
    assert_int_equal(gen_at(s, &g), g.gen); /* the slot stays the session's */
    assert_int_equal(guard.pin_write(guard.arg, SESSION, 0, g.slot, g.gen, g.offset, 500, &addr), 0);
    guard.unpin(guard.arg, 0, g.slot, g.gen);
    assert_int_equal(tarn_store_commit_begin(s, SESSION, 0, g.slot, g.gen, &p), TARN_E_BUSY);
    guard.unpin(guard.arg, 0, g.slot, g.gen);
    commit(s, &g, true);
    assert_int_equal(guard.pin_write(guard.arg, SESSION, 0, g.slot, g.gen, g.offset, 500, &addr),
                     TARN_E_STALE);
    assert_true(has(s, "a"));

    struct tarn_grant again = put(s, "b", 1000); /* a reader does not block a commit */
    assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
    assert_int_equal(guard.pin_read(guard.arg, 0, again.slot, again.gen + 1, again.offset, 1, &addr), 0);
    commit(s, &g, true);
    guard.unpin(guard.arg, 0, again.slot, again.gen + 1);
    tarn_store_free(s);
}

struct writer {
    struct tarn_guard guard;
    const _Atomic uint64_t *gens;
    _Atomic uint64_t slot_offset, gen; /* what may be written; gen 0: stop */
    _Atomic uint64_t wrote, wrong;
};

static void *write_on(void *arg)
{
    struct writer *w = arg;
    uint64_t gen, where;
    while ((gen = atomic_load(&w->gen)) != 0) {
        void *addr;
        where = atomic_load(&w->slot_offset);
        uint32_t slot = (uint32_t)(where >> 32);
        if (w->guard.pin_write(w->guard.arg, SESSION, 0, slot, gen, (uint32_t)where, 64, &addr) != 0)
            continue;
        for (int i = 0; i < 20; i++)
            atomic_fetch_add(&w->wrong, atomic_load(&w->gens[slot]) != gen);
        atomic_fetch_add(&w->wrote, 1);
        w->guard.unpin(w->guard.arg, 0, slot, gen);
    }
    return NULL;
}

static void test_writers_against_commits(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    uint32_t n, busy = 0;
    struct writer *w = calloc(1, sizeof(*w));
    w->guard = tarn_store_guard(s);
    w->gens = tarn_store_pools(s, &n)[0].gen;
    pthread_t thread;
    bool started = false;
    for (int i = 0; i < 2000 || (atomic_load(&w->wrote) < 1000 && i < 2000000); i++) {
        struct tarn_reserve r = want("a", 64);
        struct tarn_grant g;
        struct tarn_publish p;
        assert_int_equal(tarn_store_reserve(s, &r, &g), 0);
        atomic_store(&w->slot_offset, (uint64_t)g.slot << 32 | g.offset);
        atomic_store(&w->gen, g.gen);
        if (!started)
            assert_int_equal(pthread_create(&thread, NULL, write_on, w), 0);
        started = true;
        int rc;
        while ((rc = tarn_store_commit_begin(s, SESSION, 0, g.slot, g.gen, &p)) == TARN_E_BUSY)
            busy++;
        assert_int_equal(rc, 0);
        tarn_store_commit_end(s, 0, g.slot, g.gen, true);
    }
    atomic_store(&w->gen, 0);
    pthread_join(thread, NULL);
    print_message("%u commits refused, %" PRIu64 " writes\n", busy, atomic_load(&w->wrote));
    assert_int_equal(atomic_load(&w->wrong), 0);
    assert_true(atomic_load(&w->wrote) >= 1000);
    tarn_store_free(s);
    free(w);
}

/* --- many times --------------------------------------------------------------------------------- */

static void put_for(struct tarn_store *s, int i, uint32_t ttl_ms)
{
    char key[32];
    struct tarn_grant g;
    snprintf(key, sizeof(key), "t%d", i);
    struct tarn_reserve r = want(key, 64);
    r.ttl_ms = ttl_ms;
    assert_int_equal(put_as(s, &r, &g), 0);
}

/* An object expires at its tick, however many others expire later. */
static void test_expiry_does_not_wait_for_others(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, 4 * MIB, 40000);
    for (int i = 0; i < 30000; i++)
        put_for(s, i, 3600000 + (uint32_t)i);
    put_for(s, 30000, 20);
    uint64_t due = tarn_deadline(21);
    while (tarn_now_ns() < due)
        ;
    tarn_store_tick(s);
    assert_int_equal(gone.n, 1);
    assert_string_equal(gone.key, "t30000");
    assert_int_equal(gone.why, TARN_LEFT_EXPIRED);
    tarn_store_free(s);
}

/* Every due object expires, whatever is put, pinned and removed meanwhile. None expires early. */
static void test_many_expiries_in_any_order(void **state)
{
    (void)state;
    enum { N = 10000 };
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, 4 * MIB, 40000);
    uint64_t seed = tarn_random64(), give_up = tarn_deadline(60000);
    print_message("seed %" PRIu64 "\n", seed);
    uint32_t removed = 0, ticks = 0;
    for (int i = 0; i < N; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        put_for(s, i, seed >> 63 ? 3600000 : 1 + (uint32_t)(seed >> 40) % 500);
        char key[32];
        snprintf(key, sizeof(key), "t%d", (int)((seed >> 20) % (uint64_t)(i + 1)));
        struct tarn_key k = key_of(key);
        if (i % 5 == 0)
            tarn_store_pin(s, &k, 1 + (uint32_t)(seed >> 30) % 300);
        if (i % 7 == 0)
            removed += tarn_store_remove(s, &k, TARN_LEFT_REMOVED);
        if (i % 100 == 0)
            tarn_store_tick(s);
    }
    uint64_t all_due = tarn_deadline(501), before;
    for (bool late = false; !late && tarn_now_ns() < give_up;) {
        late = tarn_now_ns() >= all_due;
        tarn_store_tick(s);
    }
    do {
        before = stats(s).expired;
        tarn_store_tick(s);
    } while (stats(s).expired != before && ++ticks < 100);
    assert_int_equal(stats(s).expired + removed + stats(s).objects, N);
    for (int i = 0; i < N; i++) {
        char key[32];
        struct tarn_record r;
        snprintf(key, sizeof(key), "t%d", i);
        struct tarn_key k = key_of(key);
        if (tarn_store_find(s, &k, &r, NULL))
            assert_int_equal(r.ttl_ms, 3600000);
    }
    assert_true(stats(s).objects > N / 4); /* the long-lived half, less the removed ones */
    tarn_store_evict(s, 0, UINT64_MAX);
    assert_int_equal(stats(s).objects, 0); /* no pin is left */
    tarn_store_free(s);
}

/* Clients write hazard pages: an entry that names no slot has no effect. */
static void test_nonsense_in_hazard_pages(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    struct tarn_hazard_page *page = calloc(1, sizeof(*page));
    const uint64_t names[] = {UINT64_MAX, 1ull << 32, (7ull << 32) + 1, UINT32_MAX, 1025, 0};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        atomic_store(&page->entry[i], names[i]);
    atomic_store(&page->used, UINT32_MAX);
    assert_int_equal(tarn_store_hazard_add(s, page), 0);
    put(s, "a", 1000);
    assert_int_equal(tarn_store_evict(s, 0, UINT64_MAX), 1024);
    assert_int_equal(stats(s).limbo, 0);
    tarn_store_free(s);
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_find_remove),
        cmocka_unit_test(test_refused_publish_leaves_nothing),
        cmocka_unit_test(test_absent_and_replace),
        cmocka_unit_test(test_release_while_publishing),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_worn_out_slot_is_retired),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_full_of_pinned),
        cmocka_unit_test(test_guard_checks),
        cmocka_unit_test(test_pinned_extent_is_not_reused),
        cmocka_unit_test(test_hazards),
        cmocka_unit_test(test_expiry),
        cmocka_unit_test(test_pin_that_ends),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_list_passes_gaps),
        cmocka_unit_test(test_every_key_is_found),
        cmocka_unit_test(test_commit_is_refused_while_written),
        cmocka_unit_test(test_writers_against_commits),
        cmocka_unit_test(test_expiry_does_not_wait_for_others),
        cmocka_unit_test(test_many_expiries_in_any_order),
        cmocka_unit_test(test_nonsense_in_hazard_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
