/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How other stores fail, one test each: tarn must not show the failure that was measured there in the same
 * situation. The comments name the system and its failure.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/world.h"

#define TIMEOUT_MS 3000

static const struct world_plan plan = {.nodes = 2,
                                       .args = {"--pool", "cpu0:bytes=64M", "--heartbeat-ms", "300"},
                                       .client = {.timeout_ms = TIMEOUT_MS}};

static int start(void **state)
{
    return world_start_client(state, &plan);
}

static const struct tarn_put_options on_node0 = {.size = sizeof on_node0, .place = "node0"};

/* Mooncake: the second put returns 0 and drops the bytes; an empty value and an absent one are the same. */
static void second_put_is_not_silent(void **state)
{
    struct world *w = *state;
    assert_int_equal(client_put(w->client, "k", 'a', 100, NULL), 0);
    assert_int_equal(client_put(w->client, "k", 'b', 100, NULL), TARN_E_EXISTS);
    assert_int_equal(client_get(w->client, "k", 'a', 100), 0);
    assert_int_equal(client_put(w->client, "empty", 'a', 0, NULL), 0);
    assert_int_equal(client_get(w->client, "empty", 'a', 0), 0);
    assert_int_equal(client_get(w->client, "absent", 'a', 0), TARN_E_NOT_FOUND);
    harness_passed(w->h);
}

/* Mooncake: half of the gets and of the new puts fail for 11 s after kill -9 of one of two nodes. */
static void puts_go_on_when_a_node_is_killed(void **state)
{
    struct world *w = *state;
    char key[16];
    client_put_each(w->client, "before-", 40, 'b', 10000, NULL);
    harness_kill(w->nodes[0]->process);
    uint64_t begun = harness_now_ms();
    client_put_each(w->client, "after-", 40, 'a', 10000, NULL);
    client_get_each(w->client, "after-", 40, 'a', 10000);
    int lost = 0;
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "before-%d", i);
        int status = client_get(w->client, key, 'b', 10000);
        assert_true(status == 0 || status == TARN_E_NODE_DOWN || status == TARN_E_NOT_FOUND);
        lost += status != 0;
    }
    assert_true(lost > 0 && lost < 40);
    assert_true(harness_now_ms() - begun < 3000 * harness_slower());
    harness_passed(w->h);
}

/* Mooncake: 18 of 40 gets fail although the other replica is healthy. */
static void second_replica_serves_at_once(void **state)
{
    struct world *w = *state;
    client_put_each(w->client, "r-", 40, 'r', 20000, &twice);
    harness_kill(w->nodes[1]->process);
    uint64_t begun = harness_now_ms();
    client_get_each(w->client, "r-", 40, 'r', 20000);
    assert_true(harness_now_ms() - begun < 2000 * harness_slower());
    harness_passed(w->h);
}

/* Mooncake: one get blocks 30 s on a paused node. Here the deadline holds, and only the first get waits. */
static void paused_node_delays_once(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "tcp");
    client_put_each(c, "p-", 20, 'p', 5000, &twice);
    client_get_each(c, "p-", 20, 'p', 5000);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    uint64_t begun = harness_now_ms();
    client_get_each(c, "p-", 20, 'p', 5000);
    assert_true(harness_now_ms() - begun < TIMEOUT_MS);
    harness_signal(w->nodes[0]->process, SIGCONT);
    tarn_close(c);
    harness_passed(w->h);
}

/* Mooncake: after kill -9 of the metadata server everything is unreachable at once. */
static void directory_killed_leaves_cached_gets(void **state)
{
    struct world *w = *state;
    assert_int_equal(client_put(w->client, "c", 'c', 100000, NULL), 0);
    assert_int_equal(client_get(w->client, "c", 'c', 100000), 0);
    harness_kill(w->redis->process);
    for (int i = 0; i < 50; i++)
        assert_int_equal(client_get(w->client, "c", 'c', 100000), 0);
    harness_passed(w->h);
}

/* Mooncake: Redis keys of a killed node stay forever, and its keys cannot be put again. */
static void killed_nodes_entries_vanish(void **state)
{
    struct world *w = *state;
    assert_int_equal(client_put(w->client, "orphan", 'o', 1000, &on_node0), 0);
    harness_kill(w->nodes[0]->process);
    HARNESS_UNTIL(!world_lists(w, "node0"), 10000);
    /* A newly started node judges others only after the lifetime of a record. */
    HARNESS_UNTIL(client_put(w->client, "orphan", 'n', 1000, NULL) == 0, 3000);
    assert_int_equal(client_get(w->client, "orphan", 'n', 1000), 0);
    harness_passed(w->h);
}

/* Mooncake: 18 to 60 % of puts fail in a burst into a full pool; 2^n + 17 bytes make it worse. */
static void full_pool_takes_every_put(void **state)
{
    struct world *w = *state;
    static const size_t sizes[] = {MIB, MIB + 17, 256 * 1024 + 17, 3 * MIB + 12345, 4113};
    char key[32];
    for (int i = 0; i < 600; i++) {
        snprintf(key, sizeof key, "full-%d", i);
        if (client_put(w->client, key, 'f', sizes[i % 5], NULL))
            fail_msg("put %s of %zu bytes: %s", key, sizes[i % 5], tarn_last_error());
    }
    assert_int_equal(client_get(w->client, "full-599", 'f', sizes[599 % 5]), 0);
    harness_passed(w->h);
}

/* InfiniStore: a replaced object's old LRU entry evicts the new value. */
static void replacing_does_not_evict_the_new_value(void **state)
{
    struct world *w = *state;
    char key[32];
    for (int i = 0; i < 20; i++)
        assert_int_equal(client_put(w->client, "kept", (char)('a' + i), MIB, &replacing), 0);
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "filler-%d", i);
        assert_int_equal(client_put(w->client, key, 'x', MIB, NULL), 0);
        /* In use, so never the least recently used. */
        assert_int_equal(client_get(w->client, "kept", 't', MIB), 0);
    }
    harness_passed(w->h);
}

/* InfiniStore: prefix match is a binary search, wrong once eviction has punched holes. */
static void prefix_ends_at_the_first_hole(void **state)
{
    struct world *w = *state;
    static const bool there[] = {true, true, true, false, true, true, true, true};
    struct tarn_key keys[8];
    char names[8][8];
    for (int i = 0; i < 8; i++) {
        snprintf(names[i], sizeof names[i], "b%d", i);
        keys[i] = (struct tarn_key){names[i], 2};
        if (there[i])
            assert_int_equal(client_put(w->client, names[i], 'b', 100, NULL), 0);
    }
    struct tarn_hits *hits;
    size_t pages = 99;
    assert_int_equal(tarn_match_prefix(w->client, keys, 8, NULL, &hits, &pages), 0);
    assert_int_equal(pages, 3);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(tarn_hits_state(hits, i), there[i] ? TARN_STATE_HIT : TARN_STATE_MISS);
    tarn_hits_free(hits);
    struct tarn_lookup_options o = {.size = sizeof o, .stride = 2};
    assert_int_equal(tarn_match_prefix(w->client, keys, 8, &o, &hits, &pages), 0);
    assert_int_equal(pages, 1);
    tarn_hits_free(hits);
    assert_int_equal(tarn_match_prefix(w->client, keys + 3, 5, NULL, &hits, &pages), 0);
    assert_int_equal(pages, 0);
    tarn_hits_free(hits);
    harness_passed(w->h);
}

/* InfiniStore: a short object silently leaves the buffer's tail as it was. */
static void short_object_is_not_padded(void **state)
{
    struct world *w = *state;
    assert_int_equal(client_put(w->client, "short", 's', 500, NULL), 0);
    assert_int_equal(client_get(w->client, "short", 's', 1000), TARN_E_SIZE);
    harness_passed(w->h);
}

/* UCCL: a transfer of no bytes is never acknowledged. Tested with every transport. */
static void empty_transfer_completes(void **state)
{
    struct world *w = *state;
    static const char *const transports[] = {"shm", "tcp"};
    for (int i = 0; i < 2; i++) {
        struct tarn_client *c = world_client(w, transports[i]);
        assert_int_equal(client_put(c, transports[i], 'x', 0, NULL), 0);
        assert_int_equal(client_get(c, transports[i], 'x', 0), 0);
        tarn_close(c);
    }
    harness_passed(w->h);
}

/* UCCL: failed transfers look successful; a second poll is a use after free. */
static void failed_operation_completes_once_with_its_error(void **state)
{
    struct world *w = *state;
    char data[8];
    struct tarn_piece piece = {.addr = data, .bytes = 8};
    struct tarn_item item = {.key = {"none", 4}, .pieces = &piece, .npieces = 1};
    struct tarn_completion done;
    tarn_op op;
    assert_int_equal(tarn_submit_get(w->client, &item, 1, NULL, 42, &op), 0);
    assert_int_equal(tarn_wait(w->client, op, TIMEOUT_MS, &done), 0);
    assert_int_equal(done.status, TARN_E_NOT_FOUND);
    assert_int_equal(done.cookie, 42);
    assert_non_null(strstr(done.error, "none"));
    assert_int_equal(tarn_wait(w->client, op, 10, &done), TARN_E_NOT_FOUND);
    assert_int_equal(tarn_cancel(w->client, op), TARN_E_NOT_FOUND);
    harness_passed(w->h);
}

/* Mooncake: clients ask a node that restarted under the same name for what its earlier run held. */
static void restarted_node_never_serves_the_old_run(void **state)
{
    struct world *w = *state;
    assert_int_equal(client_put(w->client, "old", 'o', 100000, &on_node0), 0);
    assert_int_equal(client_put(w->client, "forgotten", 'o', 1000, &on_node0), 0);
    assert_int_equal(client_get(w->client, "old", 'o', 100000), 0);
    assert_int_equal(harness_redis_integer(w->redis, "EXISTS", "tarn:default:o:forgotten", NULL), 1);
    harness_kill(w->nodes[0]->process);
    HARNESS_UNTIL(!world_lists(w, "node0"), 10000);
    w->nodes[0] = world_node(w, "node0");
    int status = client_get(w->client, "old", 'o', 100000);
    assert_true(status == TARN_E_NOT_FOUND || status == TARN_E_NODE_DOWN);
    HARNESS_UNTIL(client_put(w->client, "old", 'n', 100000, &on_node0) == 0, 10000);
    assert_int_equal(client_get(w->client, "old", 'n', 100000), 0);
    /* The node's own scrub removes the old run's entries even if no client asks for them. */
    HARNESS_UNTIL(harness_redis_integer(w->redis, "EXISTS", "tarn:default:o:forgotten", NULL) == 0, 10000);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(second_put_is_not_silent),
        CASE(puts_go_on_when_a_node_is_killed),
        CASE(second_replica_serves_at_once),
        CASE(paused_node_delays_once),
        CASE(directory_killed_leaves_cached_gets),
        CASE(killed_nodes_entries_vanish),
        CASE(full_pool_takes_every_put),
        CASE(replacing_does_not_evict_the_new_value),
        CASE(prefix_ends_at_the_first_hole),
        CASE(short_object_is_not_padded),
        CASE(empty_transfer_completes),
        CASE(failed_operation_completes_once_with_its_error),
        CASE(restarted_node_never_serves_the_old_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
