/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a location in the directory can still be read, on a real Redis with node records made by this test.
 * DEAD lets others take its place, so it must be certain.
 */
#include <signal.h>
#include <stdatomic.h>

#include "server/directory/liveness.h"
#include "tests/directory_fixture.h"

#define HEARTBEAT_MS 20000
#define TTL_MS 60000
#define EPOCH 0xabcdef0111223344ull
#define HASH "tarn:" NS ":directory"

static _Atomic uint64_t gens[2][64];
static const struct tarn_pool_memory pools[2] = {{.name = "cpu0", .gen = gens[0], .nslots = 64},
                                                 {.name = "cpu1", .gen = gens[1], .nslots = 32}};

static struct tarn_living living(const struct fixture *f, uint64_t fresh_ms)
{
    return (struct tarn_living){.directory = f->d,
                                .self = "self",
                                .pools = pools,
                                .npools = 2,
                                .fresh_ns = fresh_ms * TARN_NS_PER_MS,
                                .heartbeat_ms = HEARTBEAT_MS,
                                .ttl_ms = TTL_MS};
}

/* The generation of a copy that a node made in its run with this epoch. */
static uint64_t gen_of(uint64_t epoch)
{
    return epoch << 32 | 2;
}

static enum tarn_liveness check(struct tarn_living *v, const char *node, uint64_t gen, uint64_t seen_ns)
{
    struct tarn_location l = location(node, 4096, gen);
    return tarn_living_check(v, &l, seen_ns, soon());
}

static enum tarn_liveness check_now(struct tarn_living *v, const char *node, uint64_t gen)
{
    return check(v, node, gen, tarn_now_ns());
}

/* Makes the directory old enough, with nodes that beat: a missing node then counts as dead. */
static void calm(struct fixture *f)
{
    struct tarn_directory_state s;
    char text[24];
    assert_int_equal(tarn_directory_look(f->d, soon(), &s), 0);
    snprintf(text, sizeof text, "%llu", (unsigned long long)(s.now_ms - TTL_MS - 1));
    command(f, "HSET", HASH, "since", text);
}

static void list(struct fixture *f, const char *id, uint64_t epoch)
{
    struct tarn_node_record n = node(id, epoch);
    assert_int_equal(beat(f->d, &n).rc, 0);
}

static void test_only_the_listed_run_lives(void **state)
{
    struct fixture *f = *state;
    struct tarn_living v = living(f, 10000);
    list(f, "other", EPOCH);
    calm(f);
    assert_int_equal(check_now(&v, "other", gen_of(EPOCH)), TARN_ALIVE);
    for (int fresh = 0; fresh < 2; fresh++) { /* with a new list, then with the known list */
        uint64_t seen_ns = fresh ? 0 : tarn_now_ns();
        assert_int_equal(check(&v, "other", gen_of(EPOCH + 1), seen_ns), TARN_DEAD);
        assert_int_equal(check(&v, "other", 2, seen_ns), TARN_DEAD);
        assert_int_equal(check(&v, "other", gen_of(EPOCH), seen_ns), TARN_ALIVE);
    }
    tarn_living_free(&v);
}

/* A node that is not listed may only be late: the directory is young, no node beats, or Redis was silent. */
static void test_a_missing_node_is_dead_only_in_a_calm_directory(void **state)
{
    struct fixture *f = *state;
    struct tarn_living v = living(f, 10000);
    list(f, "other", EPOCH);
    assert_int_equal(check_now(&v, "missing", gen_of(5)), TARN_UNCERTAIN);
    calm(f);
    assert_int_equal(check_now(&v, "missing", gen_of(5)), TARN_DEAD);
    command(f, "DEL", HASH);
    assert_int_equal(check_now(&v, "missing", gen_of(5)), TARN_UNCERTAIN);
    tarn_living_free(&v);
}

/* A node may have started after the list was read. So a list proves a copy dead only if the copy was seen
 * before the list was read. */
static void test_only_a_later_list_shows_that_a_node_is_dead(void **state)
{
    struct fixture *f = *state;
    struct tarn_living v = living(f, 10000);
    list(f, "other", EPOCH);
    calm(f);
    assert_int_equal(check_now(&v, "late", gen_of(9)), TARN_DEAD);
    list(f, "late", 9);
    assert_int_equal(check_now(&v, "late", gen_of(9)), TARN_ALIVE);
    tarn_living_free(&v);
}

/* A list proves a node alive only while the list is fresh. */
static void test_only_a_fresh_list_shows_that_a_node_lives(void **state)
{
    struct fixture *f = *state;
    struct tarn_living v = living(f, 10000), never = living(f, 0);
    list(f, "other", EPOCH);
    calm(f);
    assert_int_equal(check_now(&v, "other", gen_of(EPOCH)), TARN_ALIVE);
    assert_int_equal(check_now(&never, "other", gen_of(EPOCH)), TARN_ALIVE);
    command(f, "DEL", "tarn:" NS ":node:other");
    list(f, "third", 3);
    assert_int_equal(check_now(&v, "other", gen_of(EPOCH)), TARN_ALIVE);
    assert_int_equal(check_now(&never, "other", gen_of(EPOCH)), TARN_DEAD);
    tarn_living_free(&v);
    tarn_living_free(&never);
}

/* No node is dead because Redis does not answer. */
static void test_without_an_answer_nothing_is_known(void **state)
{
    struct fixture *f = *state;
    struct tarn_living v = living(f, 0);
    list(f, "other", EPOCH);
    calm(f);
    harness_signal(f->redis, SIGSTOP);
    struct tarn_location l = location("missing", 4096, gen_of(5));
    assert_int_equal(tarn_living_check(&v, &l, tarn_now_ns(), tarn_deadline(100)), TARN_UNCERTAIN);
    harness_signal(f->redis, SIGCONT);
    assert_int_equal(check_now(&v, "missing", gen_of(5)), TARN_DEAD);
    tarn_living_free(&v);
}

/* Copies on this node: the slot in its pool decides. */
static void test_own_slots_decide_about_own_copies(void **state)
{
    struct fixture *f = *state;
    struct tarn_living v = living(f, 10000);
    struct tarn_location l = location("self", 4096, gen_of(7));
    atomic_store(&gens[0][1], gen_of(7) + 2);
    atomic_store(&gens[1][1], gen_of(7));
    assert_int_equal(tarn_living_check(&v, &l, tarn_now_ns(), soon()), TARN_DEAD);
    snprintf(l.pool, sizeof l.pool, "cpu1");
    assert_int_equal(tarn_living_check(&v, &l, tarn_now_ns(), soon()), TARN_ALIVE);
    atomic_fetch_add(&gens[1][1], 1ull << 32);
    assert_int_equal(tarn_living_check(&v, &l, tarn_now_ns(), soon()), TARN_DEAD);
    l.slot = 32; /* outside the pool */
    assert_int_equal(tarn_living_check(&v, &l, tarn_now_ns(), soon()), TARN_DEAD);
    l.slot = 1;
    snprintf(l.pool, sizeof l.pool, "cpu2");
    assert_int_equal(tarn_living_check(&v, &l, tarn_now_ns(), soon()), TARN_DEAD);
}

/* A record is alive while any copy is, and dead when all copies are. */
static void test_a_record_is_dead_when_all_its_copies_are(void **state)
{
    struct fixture *f = *state;
    struct tarn_living v = living(f, 10000);
    struct tarn_record r = {.nlocations = 2};
    const struct tarn_location alive = location("other", 0, gen_of(EPOCH)),
                               dead = location("other", 0, gen_of(1)),
                               unknown = location("missing", 0, gen_of(5));
    const struct {
        const struct tarn_location *a, *b;
        enum tarn_liveness want;
    } cases[] = {
        {&alive, &dead, TARN_ALIVE},    {&dead, &alive, TARN_ALIVE},       {&dead, &dead, TARN_DEAD},
        {&unknown, &alive, TARN_ALIVE}, {&unknown, &dead, TARN_UNCERTAIN}, {&dead, &unknown, TARN_UNCERTAIN},
    };
    list(f, "other", EPOCH); /* young directory: a missing node is uncertain */
    for (size_t i = 0; i < COUNT(cases); i++) {
        r.locations[0] = *cases[i].a;
        r.locations[1] = *cases[i].b;
        assert_int_equal(tarn_living_record(&v, &r, tarn_now_ns(), soon()), cases[i].want);
    }
    tarn_living_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_only_the_listed_run_lives, empty),
        cmocka_unit_test_setup(test_a_missing_node_is_dead_only_in_a_calm_directory, empty),
        cmocka_unit_test_setup(test_only_a_later_list_shows_that_a_node_is_dead, empty),
        cmocka_unit_test_setup(test_only_a_fresh_list_shows_that_a_node_lives, empty),
        cmocka_unit_test_setup(test_without_an_answer_nothing_is_known, empty),
        cmocka_unit_test_setup(test_own_slots_decide_about_own_copies, empty),
        cmocka_unit_test_setup(test_a_record_is_dead_when_all_its_copies_are, empty),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
