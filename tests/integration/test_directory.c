/* SPDX-License-Identifier: Apache-2.0 */
/* The directory on a real Redis: what nodes and clients rely on. test_directory_faults.c tests failures. */
#include "tests/directory_fixture.h"

#include <pthread.h>

#include "base/text.h"

/* --- objects ------------------------------------------------------------------------------------ */

static void a_published_object_is_found(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish p = copy_of("k", TARN_PUBLISH_ABSENT, 7, "node0", 0xfedcba9800000002);
    assert_int_equal(look(f->d, "k").status, TARN_E_NOT_FOUND);
    assert_int_equal(publish(f->d, &p), 0);
    struct found found = look(f->d, "k");
    assert_int_equal(found.status, 0);
    assert_memory_equal(&found.record.tensor, &p.record.tensor, sizeof p.record.tensor);
    assert_int_equal(found.record.version, 7);
    assert_true(found.record.born_ms == p.record.born_ms);
    assert_int_equal(found.record.nlocations, 1);
    assert_string_equal(found.record.locations[0].node, "node0");
    assert_string_equal(found.record.locations[0].pool, "cpu0");
    assert_true(found.record.locations[0].gen == 0xfedcba9800000002);
    assert_int_equal(found.record.locations[0].offset, 7 * 4096);
    assert_int_equal(found.record.locations[0].slot, 7);
}

/* People read the record: these are exactly the fields that KEYS.md shows. */
static void record_reads_well(void **state)
{
    static const char *const expected[] = {
        "tensor", "bf16[2,16]",    "ver",         "7",
        "born",   "1764000000007", "@node0/cpu0", "28672:7:0000000100000002",
    };
    struct fixture *f = *state;
    assert_int_equal(put(f->d, "a key %", TARN_PUBLISH_ABSENT, 7, "node0", 0x100000002), 0);
    redisReply *r = harness_call(f->address, "HGETALL", "tarn:" NS ":o:a%20key%20%25", NULL);
    assert_int_equal(r->elements, COUNT(expected));
    for (size_t i = 0; i < r->elements; i++)
        assert_string_equal(r->element[i]->str, expected[i]);
    freeReplyObject(r);
}

static void keys_of_any_bytes(void **state)
{
    struct fixture *f = *state;
    static char longest[TARN_KEY_MAX];
    memset(longest, '\xff', sizeof longest);
    const struct tarn_key keys[] = {
        {"\0", 1}, {"\r\n*3\r\n", 6}, {"%00", 3}, {"{a}:*?[", 7}, {longest, sizeof longest}};
    for (size_t i = 0; i < COUNT(keys); i++) {
        struct tarn_publish p = copy_of("", TARN_PUBLISH_ABSENT, i + 1, "node0", 2);
        p.key = keys[i];
        assert_int_equal(publish(f->d, &p), 0);
    }
    for (size_t i = 0; i < COUNT(keys); i++) {
        struct found found = {.status = 1};
        assert_int_equal(tarn_directory_lookup(f->d, &keys[i], 1, soon(), NULL, take_one, &found), 0);
        assert_int_equal(found.status, 0);
        assert_int_equal(found.record.version, i + 1);
    }
    const struct tarn_key bad[] = {{"", 0}, {longest, sizeof longest + 1}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct found none = {.status = 1};
        assert_int_equal(tarn_directory_lookup(f->d, &bad[i], 1, soon(), NULL, take_one, &none),
                         TARN_E_INVALID);
        assert_int_equal(none.calls, 0);
    }
}

static void count_hits(void *arg, size_t i, int status, const struct tarn_record *r)
{
    size_t *hits = arg;
    assert_int_equal(status, i % 2 ? TARN_E_NOT_FOUND : 0);
    *hits += status == 0 && r->version == i + 1;
}

static void many_keys_in_one_round_trip(void **state)
{
    enum { N = 5000 };
    struct fixture *f = *state;
    struct tarn_publish *p = calloc(N / 2, sizeof *p);
    struct tarn_key *keys = calloc(N, sizeof *keys);
    char(*texts)[24] = calloc(N, sizeof *texts);
    size_t hits = 0;
    assert_true(p && keys && texts);
    for (size_t i = 0; i < N; i++) {
        snprintf(texts[i], sizeof texts[i], "block-%zu", i);
        keys[i] = key_of(texts[i]);
        if (i % 2 == 0)
            p[i / 2] = copy_of(texts[i], TARN_PUBLISH_ABSENT, i + 1, "node0", 2);
    }
    assert_int_equal(put(f->d, "warm", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    uint64_t before = tarn_directory_round_trips(f->d);
    assert_int_equal(tarn_directory_publish(f->d, p, N / 2, soon()), 0);
    assert_int_equal(tarn_directory_round_trips(f->d) - before, 1);
    assert_int_equal(tarn_directory_lookup(f->d, keys, N, soon(), NULL, count_hits, &hits), 0);
    assert_int_equal(tarn_directory_round_trips(f->d) - before, 2);
    assert_int_equal(hits, N / 2);
    for (size_t i = 0; i < N / 2; i++)
        assert_int_equal(p[i].status, 0);
    free(texts);
    free(keys);
    free(p);
}

static void empty_requests_succeed(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(tarn_directory_lookup(f->d, NULL, 0, soon(), NULL, take_one, NULL), 0);
    assert_int_equal(tarn_directory_publish(f->d, NULL, 0, soon()), 0);
    assert_int_equal(tarn_directory_withdraw(f->d, NULL, 0, soon()), 0);
}

/* --- publish ------------------------------------------------------------------------------------ */

static void absent_keeps_an_existing_object(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish late = copy_of("k", TARN_PUBLISH_ABSENT, 2, "node1", 4);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(publish(f->d, &late), TARN_E_EXISTS);
    assert_int_equal(late.found.version, 1);
    assert_string_equal(late.found.locations[0].node, "node0");
    assert_int_equal(late.ndisplaced, 0);
    assert_int_equal(look(f->d, "k").record.version, 1);
}

static void same_version_adds_a_copy(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish again = copy_of("k", TARN_PUBLISH_REPLACE, 1, "node0", 2);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node1", 6), 0);
    assert_int_equal(look(f->d, "k").record.nlocations, 2);
    /* Publishing the same copy again changes nothing. Another generation in the same place displaces the old
     * one. */
    assert_int_equal(publish(f->d, &again), 0);
    assert_int_equal(again.ndisplaced, 0);
    again.record.locations[0].gen = 8;
    assert_int_equal(publish(f->d, &again), 0);
    assert_int_equal(again.ndisplaced, 1);
    assert_int_equal(again.displaced[0].gen, 2);
    struct found found = look(f->d, "k");
    assert_int_equal(found.record.nlocations, 2);
}

static void replace_displaces_all_copies(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish p = copy_of("k", TARN_PUBLISH_REPLACE, 2, "node0", 10);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node1", 4), 0);
    assert_int_equal(publish(f->d, &p), 0);
    assert_int_equal(p.ndisplaced, 2);
    assert_int_equal(p.nnamed, 1); /* the node frees its own copy when it gets the answer */
    assert_string_equal(p.displaced[0].node, "node1");
    assert_int_equal(p.displaced[0].gen, 4);
    assert_string_equal(p.displaced[1].node, "node0");
    assert_int_equal(p.displaced[1].gen, 2);
    struct found found = look(f->d, "k");
    assert_int_equal(found.record.version, 2);
    assert_int_equal(found.record.nlocations, 1);
    assert_int_equal(found.record.locations[0].gen, 10);
    /* A second copy of the new version joins it. */
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_REPLACE, 2, "node1", 12), 0);
    assert_int_equal(look(f->d, "k").record.nlocations, 2);
}

static void replace_of_one_version_only(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish p = copy_of("k", TARN_PUBLISH_REPLACE, 3, "node1", 4);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    p.replaces = 2;
    assert_int_equal(publish(f->d, &p), TARN_E_EXISTS);
    assert_int_equal(p.found.version, 1);
    p.replaces = 1;
    assert_int_equal(publish(f->d, &p), 0);
    assert_int_equal(p.ndisplaced, 1);
    assert_int_equal(look(f->d, "k").record.version, 3);
}

static void restore_lets_the_newer_win(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish older = copy_of("k", TARN_PUBLISH_RESTORE, 1, "node0", 2);
    struct tarn_publish newer = copy_of("k", TARN_PUBLISH_RESTORE, 2, "node1", 4);
    struct tarn_publish twin = copy_of("k", TARN_PUBLISH_RESTORE, 10, "node2", 6);
    twin.record.born_ms = newer.record.born_ms; /* equal age: versions compare as numbers, not as text */
    assert_int_equal(publish(f->d, &older), 0);
    assert_int_equal(publish(f->d, &newer), 0);
    assert_int_equal(newer.ndisplaced, 1);
    assert_int_equal(newer.displaced[0].gen, 2);
    assert_int_equal(publish(f->d, &older), TARN_E_EXISTS);
    assert_int_equal(older.found.version, 2);
    assert_int_equal(publish(f->d, &twin), 0);
    assert_int_equal(publish(f->d, &newer), TARN_E_EXISTS);
    assert_int_equal(look(f->d, "k").record.version, 10);
}

static void malformed_publishes_are_refused(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish p = copy_of("k", TARN_PUBLISH_ABSENT, 1, "node0", 3);
    assert_int_equal(publish(f->d, &p), TARN_E_INVALID); /* odd generation: still being written */
    p = copy_of("k", TARN_PUBLISH_ABSENT, 0, "node0", 2);
    assert_int_equal(publish(f->d, &p), TARN_E_INVALID);
    p = copy_of("k", TARN_PUBLISH_ABSENT, 1, "node0", 2);
    p.record.tensor.bytes++;
    assert_int_equal(publish(f->d, &p), TARN_E_INVALID);
    assert_int_equal(look(f->d, "k").status, TARN_E_NOT_FOUND);
}

static void time_to_live(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish p = copy_of("k", TARN_PUBLISH_ABSENT, 1, "node0", 2);
    p.record.born_ms = tarn_unix_ms();
    p.record.ttl_ms = 50000;
    assert_int_equal(publish(f->d, &p), 0);
    assert_int_equal(look(f->d, "k").record.ttl_ms, 50000);
    long long left = command(f, "PTTL", "tarn:" NS ":o:k");
    assert_in_range(left, 50001, 110000); /* Redis expires it some time after the node removes it */
    /* Its replacement has no time to live and must not inherit one. */
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_REPLACE, 2, "node0", 4), 0);
    assert_int_equal(command(f, "PTTL", "tarn:" NS ":o:k"), -1);
}

/* Copies of one object have the same bytes. A tensor with another size or shape is not a copy, whatever its
 * version. */
static void another_tensor_of_the_same_version_is_no_copy(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish p = copy_of("k", TARN_PUBLISH_ABSENT, 1, "node1", 4);
    p.record.tensor = (struct tarn_tensor){.bytes = 16, .dtype = TARN_U8, .ndim = 1, .shape = {16}};
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(publish(f->d, &p), TARN_E_EXISTS);
    assert_int_equal(p.found.version, 1);
    assert_int_equal(look(f->d, "k").record.nlocations, 1);
    p.mode = TARN_PUBLISH_REPLACE;
    assert_int_equal(publish(f->d, &p), 0);
    assert_int_equal(p.ndisplaced, 1);
    struct found found = look(f->d, "k");
    assert_int_equal(found.record.tensor.bytes, 16);
    assert_int_equal(found.record.nlocations, 1);
    assert_string_equal(found.record.locations[0].node, "node1");
}

/* Two puts of one version at one node: the second must not silently take the first one's place. */
static void absent_does_not_replace_a_copy_of_the_same_version(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 4), TARN_E_EXISTS);
    assert_int_equal(look(f->d, "k").record.locations[0].gen, 2);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0); /* the same copy again */
}

/* --- withdraw ----------------------------------------------------------------------------------- */

/* JOIN adds a copy only to its own version: it must not bring back an object that was removed or replaced. */
static void join_only_adds_a_copy(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish late = copy_of("k", TARN_PUBLISH_JOIN, 1, "node1", 4);
    struct tarn_publish place = copy_of("k", TARN_PUBLISH_JOIN, 1, "node0", 8);
    assert_int_equal(publish(f->d, &late), TARN_E_EXISTS);
    assert_int_equal(late.found.nlocations, 0);
    assert_said("version 1 is no longer in the directory");
    assert_int_equal(look(f->d, "k").status, TARN_E_NOT_FOUND);

    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(publish(f->d, &late), 0);
    assert_int_equal(publish(f->d, &late), 0);
    assert_int_equal(publish(f->d, &place), TARN_E_EXISTS);
    assert_int_equal(look(f->d, "k").record.nlocations, 2);

    assert_int_equal(put(f->d, "k", TARN_PUBLISH_REPLACE, 2, "node0", 10), 0);
    assert_int_equal(publish(f->d, &late), 0); /* it was there, and was displaced since */
    assert_true(late.nnamed == 1 && late.displaced[0].gen == 4);
    struct tarn_publish later = copy_of("k", TARN_PUBLISH_JOIN, 1, "node2", 6);
    assert_int_equal(publish(f->d, &later), TARN_E_EXISTS);
    assert_int_equal(later.found.version, 2);
    assert_int_equal(look(f->d, "k").record.nlocations, 1);

    struct tarn_publish other = copy_of("k", TARN_PUBLISH_JOIN, 2, "node1", 12);
    other.record.tensor = tarn_bytes(64);
    assert_int_equal(publish(f->d, &other), TARN_E_EXISTS);
    assert_int_equal(look(f->d, "k").record.nlocations, 1);
}

static void withdraw_takes_exactly_one_copy(void **state)
{
    struct fixture *f = *state;
    struct tarn_location first = location("node0", 4096, 2), second = location("node1", 4096, 4);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node1", 4), 0);
    struct tarn_location other = first;
    other.gen = 6;
    assert_false(withdraw(f->d, "k", other));
    other = first;
    other.slot++;
    assert_false(withdraw(f->d, "k", other));
    assert_int_equal(look(f->d, "k").record.nlocations, 2);
    assert_true(withdraw(f->d, "k", first));
    assert_false(withdraw(f->d, "k", first));
    assert_int_equal(look(f->d, "k").record.nlocations, 1);
    assert_true(withdraw(f->d, "k", second));
    assert_int_equal(look(f->d, "k").status, TARN_E_NOT_FOUND);
    assert_int_equal(command(f, "DBSIZE"), 0);
    assert_false(withdraw(f->d, "never there", first));
}

/* --- damage ------------------------------------------------------------------------------------- */

static void damaged_records_are_misses_that_heal(void **state)
{
    struct fixture *f = *state;
    command(f, "SET", "tarn:" NS ":o:text", "x");
    command(f, "HSET", "tarn:" NS ":o:odd", "tensor", "x");
    command(f, "HSET", "tarn:" NS ":o:bare", "tensor", "u8[1]", "ver", "1", "born", "1");
    assert_int_equal(look(f->d, "text").status, TARN_E_FORMAT);
    assert_int_equal(look(f->d, "odd").status, TARN_E_FORMAT);
    assert_int_equal(look(f->d, "bare").status, TARN_E_FORMAT); /* no copy */
    assert_int_equal(put(f->d, "odd", TARN_PUBLISH_ABSENT, 5, "node0", 2), 0);
    assert_int_equal(put(f->d, "bare", TARN_PUBLISH_ABSENT, 5, "node0", 2), 0);
    assert_int_equal(look(f->d, "odd").record.version, 5);
    assert_int_equal(look(f->d, "bare").record.version, 5);
    assert_int_equal(put(f->d, "text", TARN_PUBLISH_ABSENT, 5, "node0", 2), TARN_E_DIRECTORY);
    assert_said("WRONGTYPE");
}

/* An item that Redis refuses does not affect the others. */
static void items_fail_alone(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish p[] = {
        copy_of("a", TARN_PUBLISH_ABSENT, 1, "node0", 2),
        copy_of("text", TARN_PUBLISH_ABSENT, 1, "node0", 2),
        copy_of("b", TARN_PUBLISH_ABSENT, 1, "node0", 2),
    };
    command(f, "SET", "tarn:" NS ":o:text", "x");
    assert_int_equal(tarn_directory_publish(f->d, p, COUNT(p), soon()), 0);
    assert_int_equal(p[0].status, 0);
    assert_int_equal(p[1].status, TARN_E_DIRECTORY);
    assert_int_equal(p[2].status, 0);
}

/* Each object of a call differs from the one before it in one thing. */
static void each_object_keeps_what_is_its_own(void **state)
{
    static const struct {
        const char *key, *pool;
        enum tarn_publish_mode mode;
        uint64_t replaces, ttl_ms, later_ms;
        int status;
    } c[] = {
        {"fresh", "cpu0", TARN_PUBLISH_ABSENT, 0, 0, 0, 0},
        {"there", "cpu0", TARN_PUBLISH_ABSENT, 0, 0, 0, TARN_E_EXISTS},
        {"other", "cpu0", TARN_PUBLISH_REPLACE, 0, 0, 0, 0},
        {"right", "cpu0", TARN_PUBLISH_REPLACE, 77, 0, 0, 0},
        {"wrong", "cpu0", TARN_PUBLISH_REPLACE, 87, 0, 0, TARN_E_EXISTS},
        {"plain", "cpu0", TARN_PUBLISH_ABSENT, 0, 0, 0, 0},
        {"place", "cpu1", TARN_PUBLISH_ABSENT, 0, 0, 0, 0},
        {"short", "cpu1", TARN_PUBLISH_ABSENT, 0, 20000, 0, 0},
        {"later", "cpu1", TARN_PUBLISH_ABSENT, 0, 20000, 100000, 0},
        {"never", "cpu1", TARN_PUBLISH_ABSENT, 0, 0, 100000, 0},
        {"older", "cpu1", TARN_PUBLISH_ABSENT, 0, 0, 0, 0},
    };
    struct fixture *f = *state;
    struct tarn_publish p[COUNT(c)];
    uint64_t now_ms = tarn_unix_ms();
    char redis_key[64];
    for (size_t i = 1; i < 5; i++)
        assert_int_equal(put(f->d, c[i].key, TARN_PUBLISH_ABSENT, 77, "node0", 8), 0);
    for (size_t i = 0; i < COUNT(c); i++) {
        p[i] = copy_of(c[i].key, c[i].mode, i + 1, "node0", 2);
        p[i].replaces = c[i].replaces;
        p[i].record.born_ms = now_ms + c[i].later_ms;
        p[i].record.ttl_ms = c[i].ttl_ms;
        snprintf(p[i].record.locations[0].pool, sizeof p[i].record.locations[0].pool, "%s", c[i].pool);
    }
    assert_int_equal(tarn_directory_publish(f->d, p, COUNT(p), soon()), 0);
    for (size_t i = 0; i < COUNT(c); i++) {
        const struct tarn_record r = look(f->d, c[i].key).record;
        long long life_ms = (long long)(c[i].later_ms + c[i].ttl_ms) + 60000;
        snprintf(redis_key, sizeof redis_key, "tarn:" NS ":o:%s", c[i].key);
        long long left = command(f, "PTTL", redis_key);
        assert_int_equal(p[i].status, c[i].status);
        assert_int_equal(r.version, c[i].status ? 77 : i + 1);
        if (c[i].status)
            continue;
        assert_string_equal(r.locations[0].pool, c[i].pool);
        assert_true(r.ttl_ms == c[i].ttl_ms && r.born_ms == now_ms + c[i].later_ms);
        assert_true(c[i].ttl_ms ? left > life_ms - 15000 && left <= life_ms : left == -1);
    }
}

/* --- scan --------------------------------------------------------------------------------------- */

static int count_objects(void *arg, const struct tarn_key *key, const struct tarn_record *r)
{
    size_t *n = arg;
    assert_true(key->bytes > 0);
    assert_int_equal(r->nlocations, 1);
    ++*n;
    return 0;
}

static int count_copies(void *arg, const struct tarn_key *key, const struct tarn_location *copies,
                        uint32_t nlocations, uint32_t n)
{
    (void)key, (void)copies;
    assert_true(nlocations == 1 && n == 1);
    ++*(size_t *)arg;
    return 0;
}

static int stop_at_once(void *arg, const struct tarn_key *key, const struct tarn_record *r)
{
    (void)arg, (void)key, (void)r;
    return 42;
}

static void scan_walks_all_objects(void **state)
{
    enum { N = 3000 };
    struct fixture *f = *state;
    struct tarn_publish *p = calloc(N, sizeof *p);
    char(*texts)[24] = calloc(N, sizeof *texts);
    size_t n = 0, pages = 0;
    uint64_t cursor = 0;
    assert_true(p && texts);
    for (size_t i = 0; i < N; i++) {
        snprintf(texts[i], sizeof texts[i], "%s/%zu", i % 3 ? "a b" : "c", i);
        p[i] = copy_of(texts[i], TARN_PUBLISH_ABSENT, i + 1, "node0", 2);
    }
    assert_int_equal(tarn_directory_publish(f->d, p, N, soon()), 0);
    command(f, "SET", "tarn:" NS ":o:damaged", "x");
    command(f, "SET", "tarn:" NS ":o:%zz", "x");
    command(f, "SET", "tarn:other:o:x", "x");

    uint64_t before = tarn_directory_round_trips(f->d);
    assert_int_equal(tarn_directory_scan(f->d, NULL, soon(), NULL, count_objects, &n), 0);
    assert_int_equal(n, N);
    assert_true(tarn_directory_round_trips(f->d) - before <= N / 1000 + 3);
    n = 0;
    assert_int_equal(tarn_directory_scan(f->d, "a%20b/*", soon(), NULL, count_objects, &n), 0);
    assert_int_equal(n, N / 3 * 2);
    assert_int_equal(tarn_directory_scan(f->d, NULL, soon(), NULL, stop_at_once, NULL), 42);
    n = 0;
    do {
        assert_int_equal(tarn_directory_scan_page(f->d, 100, &cursor, soon(), count_copies, &n), 0);
        pages++;
    } while (cursor);
    assert_int_equal(n, N);
    assert_true(pages > 10);
    free(texts);
    free(p);
}

/* --- nodes -------------------------------------------------------------------------------------- */

struct listed {
    size_t n;
    struct tarn_node_record nodes[4];
    struct tarn_pool_record pools[4][2];
};

static int list(void *arg, const struct tarn_node_record *n)
{
    struct listed *l = arg;
    assert_true(l->n < 4 && n->npools <= 2);
    l->nodes[l->n] = *n;
    for (uint32_t i = 0; i < n->npools; i++)
        l->pools[l->n][i] = n->pools[i];
    l->n++;
    return 0;
}

static size_t living(struct tarn_directory *d)
{
    struct listed l = {0};
    assert_int_equal(tarn_directory_nodes(d, soon(), NULL, list, &l), 0);
    return l.n;
}

static void a_beat_lists_the_node(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 0xfedcba9876543210);
    struct listed l = {0};
    assert_int_equal(living(f->d), 0);
    struct beaten b = beat(f->d, &n);
    assert_int_equal(b.rc, 0);
    assert_false(b.b.other); /* no earlier directory */
    assert_int_equal(b.b.taken_epoch, 0);
    assert_int_equal(tarn_directory_nodes(f->d, soon(), NULL, list, &l), 0);
    assert_int_equal(l.n, 1);
    struct tarn_node_record *back = &l.nodes[0];
    assert_string_equal(back->id, "node0");
    assert_true(back->epoch == n.epoch);
    assert_string_equal(back->host, n.host);
    assert_string_equal(back->host_id, n.host_id);
    assert_string_equal(back->control, n.control);
    assert_string_equal(back->unix_path, n.unix_path);
    assert_string_equal(back->version, n.version);
    assert_string_equal(back->state, n.state);
    assert_string_equal(back->secret, n.secret);
    assert_int_equal(back->pid, 77);
    assert_true(back->started_ms == n.started_ms);
    assert_int_equal(back->npools, 2);
    assert_memory_equal(&l.pools[0][0], &two_pools[0], sizeof two_pools[0]);
    assert_string_equal(l.pools[0][1].name, "cpu1");
    assert_int_equal(l.pools[0][1].index, 1);
    assert_in_range(command(f, "PTTL", "tarn:" NS ":node:node0"), 1, 60000);
    assert_in_range(command(f, "PTTL", "tarn:" NS ":pool:node0/cpu1"), 1, 60000);
    assert_false(beat_again(f->d, &n, &b.b).b.other);
}

static void lost_directory_is_noticed(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    struct beaten first = beat(f->d, &n);
    assert_int_equal(first.rc, 0);
    assert_false(beat_again(f->d, &n, &first.b).b.other);
    command(f, "FLUSHALL");
    struct beaten second = beat_again(f->d, &n, &first.b);
    assert_true(second.b.other && second.b.state.lost);
    assert_false(beat_again(f->d, &n, &second.b).b.other);
    harness_kill(f->redis);
    assert_int_equal(beat_again(f->d, &n, &second.b).rc, TARN_E_DIRECTORY);
    start_redis(f);
    struct beaten third = beat_again(f->d, &n, &second.b);
    assert_true(third.b.other);
    assert_false(beat_again(f->d, &n, &third.b).b.other);
    assert_int_equal(living(f->d), 1);
}

static void another_node_with_the_same_id(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record first = node("node0", 5), second = node("node0", 6);
    struct tarn_directory *d = open_directory(f->uri);
    struct listed l = {0};
    assert_int_equal(beat(f->d, &first).rc, 0);
    snprintf(second.host, sizeof second.host, "elsewhere");
    second.npools = 1;
    struct beaten b = beat(d, &second);
    assert_int_equal(b.rc, 0);
    assert_int_equal(b.b.taken_epoch, 5);
    assert_int_equal(tarn_directory_leave(d, &second, soon()), 0); /* keeps the first run's records */
    assert_int_equal(tarn_directory_nodes(f->d, soon(), NULL, list, &l), 0);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.nodes[0].host, "somewhere");
    assert_int_equal(l.nodes[0].npools, 2);
    assert_int_equal(tarn_directory_leave(f->d, &first, soon()), 0);
    b = beat(d, &second);
    assert_true(!b.b.gone && !b.b.taken_epoch);
    tarn_directory_close(d);
}

static void leave_removes_all_records_of_the_node(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    assert_int_equal(beat(f->d, &n).rc, 0);
    assert_int_equal(command(f, "DBSIZE"), 5);
    assert_int_equal(tarn_directory_leave(f->d, &n, soon()), 0);
    assert_int_equal(command(f, "DBSIZE"), 1); /* the directory's own hash */
    assert_int_equal(living(f->d), 0);
}

/* A dead node is no longer listed at once. Later beats of other nodes remove its id from the set. */
static void dead_nodes_are_forgotten(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record dead = node("dead", 5), alive = node("alive", 6);
    assert_int_equal(beat(f->d, &dead).rc, 0);
    assert_int_equal(beat(f->d, &alive).rc, 0);
    assert_int_equal(living(f->d), 2);
    command(f, "DEL", "tarn:" NS ":node:dead"); /* as if it expired */
    command(f, "HSET", "tarn:" NS ":directory", "since", "1");
    assert_int_equal(living(f->d), 1);
    for (int i = 0; i < 200 && command(f, "SCARD", "tarn:" NS ":nodes") > 1; i++)
        assert_int_equal(beat(f->d, &alive).rc, 0);
    assert_int_equal(command(f, "SCARD", "tarn:" NS ":nodes"), 1);
    assert_int_equal(living(f->d), 1);
}

static void damaged_nodes_hide_no_others(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    assert_int_equal(beat(f->d, &n).rc, 0);
    command(f, "SADD", "tarn:" NS ":nodes", "a", "b", "c d", "../../x");
    command(f, "SET", "tarn:" NS ":node:a", "x");
    command(f, "HSET", "tarn:" NS ":node:b", "epoch", "many");
    /* A pool of an earlier run, and a key that is not a hash. */
    command(f, "HSET", "tarn:" NS ":pool:node0/cpu0", "epoch", "4");
    command(f, "DEL", "tarn:" NS ":pool:node0/cpu1");
    command(f, "SET", "tarn:" NS ":pool:node0/cpu1", "x");
    struct listed l = {0};
    assert_int_equal(tarn_directory_nodes(f->d, soon(), NULL, list, &l), 0);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.nodes[0].id, "node0");
    assert_int_equal(l.nodes[0].npools, 0);
}

static void names_are_checked(void **state)
{
    struct fixture *f = *state;
    struct tarn_directory *d = NULL;
    struct tarn_node_record n = node("no de", 5);
    assert_int_equal(beat(f->d, &n).rc, TARN_E_CONFIG);
    assert_said("no de");
    n = node("", 5);
    assert_int_equal(beat(f->d, &n).rc, TARN_E_CONFIG);
    const char *const bad[] = {
        "", "a b", "a:b", "a*", "{a}", "0123456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(tarn_directory_open(f->uri, bad[i], NULL, soon(), NULL, &d), TARN_E_CONFIG);
    assert_null(d);
}

/* --- threads ------------------------------------------------------------------------------------ */

struct worker {
    struct tarn_directory *d;
    pthread_t thread;
    int number, failures;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < 100; i++) {
        char text[32];
        snprintf(text, sizeof text, "%d-%d", w->number, i);
        struct tarn_publish p =
            copy_of(text, TARN_PUBLISH_ABSENT, (uint64_t)(w->number * 1000 + i + 1), "node0", 2);
        struct found found = {.status = 1};
        int rc = tarn_directory_publish(w->d, &p, 1, soon());
        w->failures += rc || p.status;
        rc = tarn_directory_lookup(w->d, &p.key, 1, soon(), NULL, take_one, &found);
        w->failures += rc || found.status || found.record.version != p.record.version;
    }
    return NULL;
}

/* More threads than pooled connections. */
static void many_threads(void **state)
{
    enum { N = 24 };
    struct fixture *f = *state;
    struct worker workers[N];
    for (int i = 0; i < N; i++) {
        workers[i] = (struct worker){.d = f->d, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].failures, 0);
    }
}

/* --- memory ------------------------------------------------------------------------------------- */

static long long used_memory(const struct fixture *f)
{
    redisReply *r = harness_call(f->address, "INFO", "memory", NULL);
    const char *at = strstr(r->str, "used_memory:");
    assert_non_null(at);
    long long used = strtoll(at + strlen("used_memory:"), NULL, 10);
    freeReplyObject(r);
    return used;
}

/* The published figure: at most 256 bytes of Redis memory for an object with a 40-byte key and one copy. */
static void a_record_takes_at_most_256_bytes(void **state)
{
    enum { N = 30000 };
    struct fixture *f = *state;
    struct tarn_publish *p = calloc(N, sizeof *p);
    char(*texts)[48] = calloc(N, sizeof *texts);
    assert_true(p && texts);
    for (size_t i = 0; i < N; i++) {
        snprintf(texts[i], sizeof texts[i], "%016llx/layer/%016zx.", (unsigned long long)tarn_random64(), i);
        assert_int_equal(strlen(texts[i]), 40);
        p[i] = copy_of(texts[i], TARN_PUBLISH_ABSENT, tarn_random64() >> 1 | 1, "node0",
                       tarn_random64() & ~1ull);
        p[i].record.tensor =
            (struct tarn_tensor){.bytes = 1 << 20, .dtype = TARN_BF16, .ndim = 4, .shape = {2, 16, 128, 128}};
        p[i].record.born_ms = tarn_unix_ms();
        p[i].record.locations[0].offset = i << 20;
        p[i].record.locations[0].slot = (uint32_t)i;
    }
    assert_int_equal(put(f->d, "warm", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    long long before = used_memory(f);
    assert_int_equal(tarn_directory_publish(f->d, p, N, soon()), 0);
    double each = (double)(used_memory(f) - before) / N;
    char name[96];
    snprintf(name, sizeof name, "tarn:" NS ":o:%s", texts[N / 2]);
    long long reported = command(f, "MEMORY", "USAGE", name);
    print_message("%.1f bytes of Redis memory an object, MEMORY USAGE %lld\n", each, reported);
    assert_true(each <= 256);
    assert_in_range(reported, 1, 256);
    free(texts);
    free(p);
}

#define TEST(name_) cmocka_unit_test_setup(name_, empty)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_published_object_is_found),
        TEST(record_reads_well),
        TEST(keys_of_any_bytes),
        TEST(many_keys_in_one_round_trip),
        TEST(empty_requests_succeed),
        TEST(absent_keeps_an_existing_object),
        TEST(same_version_adds_a_copy),
        TEST(replace_displaces_all_copies),
        TEST(replace_of_one_version_only),
        TEST(restore_lets_the_newer_win),
        TEST(malformed_publishes_are_refused),
        TEST(time_to_live),
        TEST(another_tensor_of_the_same_version_is_no_copy),
        TEST(absent_does_not_replace_a_copy_of_the_same_version),
        TEST(join_only_adds_a_copy),
        TEST(withdraw_takes_exactly_one_copy),
        TEST(damaged_records_are_misses_that_heal),
        TEST(items_fail_alone),
        TEST(each_object_keeps_what_is_its_own),
        TEST(scan_walks_all_objects),
        TEST(a_beat_lists_the_node),
        TEST(lost_directory_is_noticed),
        TEST(another_node_with_the_same_id),
        TEST(leave_removes_all_records_of_the_node),
        TEST(dead_nodes_are_forgotten),
        TEST(damaged_nodes_hide_no_others),
        TEST(names_are_checked),
        TEST(many_threads),
        TEST(a_record_takes_at_most_256_bytes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
