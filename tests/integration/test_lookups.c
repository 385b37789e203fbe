/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Look-ups of keys that the client knows: they cost no round trip where the node's memory is mapped, and they
 * say what a get would find, whatever other clients, the node or Redis did meanwhile.
 */
#include <signal.h>
#include <stdio.h>

#include "tests/world.h"

enum { BYTES = 3000, MORE = 5000, MANY = 100 };

static const struct world_plan plan = {.nodes = 2,
                                       .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "300"},
                                       .client = {.timeout_ms = 5000}};

static int start(void **state)
{
    return world_start_client(state, &plan);
}

static int start_refusing(void **state)
{
    static const struct world_plan refusing = {
        .nodes = 1,
        .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "300", "--when-cut-off", "refuse"},
        .client = {.timeout_ms = 5000}};
    return world_start_client(state, &refusing);
}

static const struct tarn_put_options on_node0 = {
    .size = sizeof on_node0, .flags = TARN_PUT_REPLACE, .place = "node0"};
static const struct tarn_put_options on_node1 = {
    .size = sizeof on_node1, .flags = TARN_PUT_REPLACE, .place = "node1"};

static uint64_t round_trips(struct tarn_client *c)
{
    struct tarn_stats s = {.size = sizeof s};
    tarn_client_stats(c, &s);
    return s.directory_round_trips;
}

/* Looks the key up; the object's bytes, 0 unless it is a hit. */
static uint64_t bytes_of(struct tarn_client *c, const char *name, enum tarn_state *state_p)
{
    struct tarn_key key = key_of(name);
    struct tarn_tensor t = {.bytes = 0};
    struct tarn_hits *hits;
    if (tarn_lookup(c, &key, 1, NULL, &hits))
        fail_msg("look-up: %s", tarn_last_error());
    *state_p = tarn_hits_state(hits, 0);
    if (*state_p == TARN_STATE_HIT)
        assert_int_equal(tarn_hits_tensor(hits, 0, &t), 0);
    tarn_hits_free(hits);
    return t.bytes;
}

static void assert_hit(struct tarn_client *c, const char *name, uint64_t bytes)
{
    enum tarn_state state;
    uint64_t found = bytes_of(c, name, &state);
    assert_int_equal(state, TARN_STATE_HIT);
    assert_int_equal(found, bytes);
}

static void assert_missed(struct tarn_client *c, const char *name)
{
    enum tarn_state state;
    bytes_of(c, name, &state);
    assert_int_equal(state, TARN_STATE_MISS);
}

/* Puts the key on the node and gets it once, so that the client knows it and has the memory mapped. */
static void know(struct world *w, const char *name, const struct tarn_put_options *on)
{
    assert_int_equal(client_put(w->client, name, 'a', BYTES, on), 0);
    assert_int_equal(client_get(w->client, name, 'a', BYTES), 0);
}

static bool is_free(struct tarn_client *c, const char *name)
{
    uint64_t before = round_trips(c);
    assert_hit(c, name, BYTES);
    return round_trips(c) == before;
}

/* --- tests -------------------------------------------------------------------------------------- */

static void known_keys_cost_no_round_trip(void **state)
{
    struct world *w = *state;
    know(w, "k", &on_node0);
    HARNESS_UNTIL(is_free(w->client, "k"), 5000);
    for (uint64_t until = harness_now_ms() + 1500; harness_now_ms() < until; harness_pause())
        assert_hit(w->client, "k", BYTES); /* the lease is renewed for look-ups alone */
    HARNESS_UNTIL(is_free(w->client, "k"), 5000);
    harness_passed(w->h);
}

/* Every third key is known, every third unknown to this client, every third missing. */
static void known_and_other_keys_in_one_call(void **state)
{
    struct world *w = *state;
    struct tarn_client *other = world_client(w, NULL);
    static char names[MANY][16];
    struct tarn_key keys[MANY];
    struct tarn_hits *hits;
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "m%d", i);
        keys[i] = key_of(names[i]);
        if (i % 3 == 0)
            know(w, names[i], i % 2 ? &on_node0 : &on_node1);
        else if (i % 3 == 1)
            assert_int_equal(client_put(other, names[i], 'b', MORE, &on_node1), 0);
    }
    HARNESS_UNTIL(is_free(w->client, "m0") && is_free(w->client, "m3"), 5000);
    uint64_t before = round_trips(w->client);
    assert_int_equal(tarn_lookup(w->client, keys, MANY, NULL, &hits), 0);
    assert_in_range(round_trips(w->client), before + 1, before + 2); /* a lease may be renewed beside it */
    for (int i = 0; i < MANY; i++) {
        struct tarn_tensor t;
        assert_int_equal(tarn_hits_state(hits, (size_t)i), i % 3 == 2 ? TARN_STATE_MISS : TARN_STATE_HIT);
        if (i % 3 == 2)
            continue;
        assert_int_equal(tarn_hits_tensor(hits, (size_t)i, &t), 0);
        assert_int_equal(t.bytes, i % 3 ? MORE : BYTES);
    }
    tarn_hits_free(hits);
    tarn_close(other);
    harness_passed(w->h);
}

static void what_others_replaced_or_removed_is_not_known_any_more(void **state)
{
    struct world *w = *state;
    struct tarn_client *other = world_client(w, NULL);
    struct tarn_key key = key_of("k");
    for (int i = 0; i < 20; i++) {
        know(w, "k", i % 2 ? &on_node0 : &on_node1);
        assert_hit(w->client, "k", BYTES);
        assert_int_equal(client_put(other, "k", 'b', MORE, i % 3 ? &on_node0 : &on_node1), 0);
        assert_hit(w->client, "k", MORE);
        assert_int_equal(client_get(w->client, "k", 'b', MORE), 0);
        assert_int_equal(tarn_remove(other, &key, 1, NULL, 0), 0);
        assert_missed(w->client, "k");
    }
    tarn_close(other);
    harness_passed(w->h);
}

/* The node is stopped, so its memory still holds the old value when the key gets a new one elsewhere. */
static void the_copy_of_a_stopped_node_is_not_known_after_a_replace(void **state)
{
    struct world *w = *state;
    struct tarn_client *other = world_client(w, NULL);
    know(w, "k", &on_node0);
    HARNESS_UNTIL(is_free(w->client, "k"), 5000);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    HARNESS_UNTIL(client_put(other, "k", 'b', MORE, &on_node1) == 0, 10000);
    assert_hit(w->client, "k", MORE);
    harness_signal(w->nodes[0]->process, SIGCONT);
    tarn_close(other);
    harness_passed(w->h);
}

static bool is_hit(struct tarn_client *c, const char *name)
{
    enum tarn_state state;
    bytes_of(c, name, &state);
    return state == TARN_STATE_HIT;
}

static void the_copy_of_a_killed_node_is_no_hit(void **state)
{
    struct world *w = *state;
    know(w, "k", &on_node0);
    HARNESS_UNTIL(is_free(w->client, "k"), 5000);
    harness_kill(w->nodes[0]->process);
    HARNESS_UNTIL(!is_hit(w->client, "k"), 5000);
    harness_passed(w->h);
}

/* As gets do. Keys that the client does not know end with the reason. */
static void known_keys_are_found_while_redis_is_away(void **state)
{
    struct world *w = *state;
    struct tarn_key unknown = key_of("unknown");
    struct tarn_lookup_options soon = {.size = sizeof soon, .timeout_ms = 500};
    struct tarn_hits *hits;
    know(w, "k", &on_node0);
    HARNESS_UNTIL(is_free(w->client, "k"), 5000);
    harness_signal(w->redis->process, SIGSTOP);
    for (uint64_t until = harness_now_ms() + 2500; harness_now_ms() < until; harness_pause())
        assert_hit(w->client, "k", BYTES); /* also while the lease ends and Redis is waited for */
    int rc = tarn_lookup(w->client, &unknown, 1, &soon, &hits);
    assert_true(rc == TARN_E_TIMEOUT || rc == TARN_E_DIRECTORY);
    harness_signal(w->redis->process, SIGCONT);
    HARNESS_UNTIL(is_free(w->client, "k"), 5000);
    assert_missed(w->client, "unknown");
    harness_passed(w->h);
}

/* Such a node's memory may be read only under a lease that Redis has confirmed. */
static void a_node_that_refuses_readers_without_redis_is_not_looked_at(void **state)
{
    struct world *w = *state;
    struct tarn_key key = key_of("k");
    struct tarn_lookup_options soon = {.size = sizeof soon, .timeout_ms = 500};
    struct tarn_hits *hits = NULL;
    int rc = 0;
    know(w, "k", &on_node0);
    HARNESS_UNTIL(is_free(w->client, "k"), 5000);
    harness_signal(w->redis->process, SIGSTOP);
    HARNESS_UNTIL((tarn_hits_free(hits), rc = tarn_lookup(w->client, &key, 1, &soon, &hits)) != 0, 10000);
    assert_true(rc == TARN_E_TIMEOUT || rc == TARN_E_DIRECTORY);
    harness_signal(w->redis->process, SIGCONT);
    HARNESS_UNTIL(is_free(w->client, "k"), 5000);
    harness_passed(w->h);
}

/* Where the memory is not mapped, the client cannot look. */
static void without_shared_memory_the_directory_is_asked(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "tcp");
    assert_int_equal(client_put(c, "k", 'a', BYTES, &on_node0), 0);
    assert_int_equal(client_get(c, "k", 'a', BYTES), 0);
    for (int i = 0; i < 5; i++)
        assert_false(is_free(c, "k"));
    tarn_close(c);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(known_keys_cost_no_round_trip),
        CASE(known_and_other_keys_in_one_call),
        CASE(what_others_replaced_or_removed_is_not_known_any_more),
        CASE(the_copy_of_a_stopped_node_is_not_known_after_a_replace),
        CASE(the_copy_of_a_killed_node_is_no_hit),
        CASE(known_keys_are_found_while_redis_is_away),
        cmocka_unit_test_setup_teardown(a_node_that_refuses_readers_without_redis_is_not_looked_at,
                                        start_refusing, world_stop),
        CASE(without_shared_memory_the_directory_is_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
