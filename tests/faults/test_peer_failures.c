/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How other stores fail, one test each: what was measured of them in the same situation must not
 * happen here. The comments name the system and what it does.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include <tarn/tarn.h>

#define MIB (1024u * 1024u)
#define TIMEOUT_MS 3000

struct world {
    struct harness *h;
    struct harness_redis *redis;
    struct harness_node *nodes[2];
    struct tarn_client *client;
};

static struct tarn_client *client_of(struct harness_redis *r, const char *transports)
{
    struct tarn_options o = {.size = sizeof o, .redis = r->url, .timeout_ms = TIMEOUT_MS, .transports = transports};
    struct tarn_client *c;
    if (tarn_open(&o, &c))
        fail_msg("open: %s", tarn_last_error());
    return c;
}

static int start(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    w->h = harness_new();
    w->redis = harness_redis_start(w->h, NULL);
    for (int i = 0; i < 2; i++)
        w->nodes[i] = harness_node_start(w->h, i ? "node1" : "node0", w->redis, "--pool", "cpu0:bytes=64M",
                                         "--heartbeat-ms", "300", NULL);
    w->client = client_of(w->redis, NULL);
    *state = w;
    return 0;
}

static int stop(void **state)
{
    struct world *w = *state;
    tarn_close(w->client);
    harness_free(w->h);
    free(w);
    return 0;
}

static int put(struct tarn_client *c, const char *key, char byte, size_t bytes, const struct tarn_put_options *o)
{
    char *data = malloc(bytes + 1);
    memset(data, byte, bytes);
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = {
        .key = {key, strlen(key)}, .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(bytes)};
    int status = tarn_put(c, &item, 1, o);
    free(data);
    return status;
}

/* The status; with 0 every byte is `byte`. */
static int get(struct tarn_client *c, const char *key, char byte, size_t bytes)
{
    char *data = calloc(1, bytes + 1);
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = {.key = {key, strlen(key)}, .pieces = &piece, .npieces = 1};
    int status = tarn_get(c, &item, 1, NULL);
    for (size_t i = 0; status == 0 && i < bytes; i++)
        if (data[i] != byte)
            fail_msg("%s: byte %zu is %d, not %d", key, i, data[i], byte);
    free(data);
    return status;
}

static const struct tarn_put_options replace = {.size = sizeof replace, .flags = TARN_PUT_REPLACE};
static const struct tarn_put_options twice = {.size = sizeof twice, .replicas = 2};
static const struct tarn_put_options on_node0 = {.size = sizeof on_node0, .place = "node0"};

/* Mooncake: the second put returns 0 and drops the bytes; an empty value and an absent one are the same. */
static void second_put_is_not_silent(void **state)
{
    struct world *w = *state;
    assert_int_equal(put(w->client, "k", 'a', 100, NULL), 0);
    assert_int_equal(put(w->client, "k", 'b', 100, NULL), TARN_E_EXISTS);
    assert_int_equal(get(w->client, "k", 'a', 100), 0);
    assert_int_equal(put(w->client, "empty", 'a', 0, NULL), 0);
    assert_int_equal(get(w->client, "empty", 'a', 0), 0);
    assert_int_equal(get(w->client, "absent", 'a', 0), TARN_E_NOT_FOUND);
    harness_passed(w->h);
}

/* Mooncake: half of the gets and of the new puts fail for 11 s after kill -9 of one of two nodes. */
static void puts_go_on_when_a_node_is_killed(void **state)
{
    struct world *w = *state;
    char key[16];
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "before-%d", i);
        assert_int_equal(put(w->client, key, 'b', 10000, NULL), 0);
    }
    harness_kill(w->nodes[0]->process);
    uint64_t begun = harness_now_ms();
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "after-%d", i);
        if (put(w->client, key, 'a', 10000, NULL))
            fail_msg("put %s: %s", key, tarn_last_error());
        assert_int_equal(get(w->client, key, 'a', 10000), 0);
    }
    int lost = 0;
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "before-%d", i);
        int status = get(w->client, key, 'b', 10000);
        assert_true(status == 0 || status == TARN_E_NODE_DOWN || status == TARN_E_NOT_FOUND);
        lost += status != 0;
    }
    assert_true(lost > 0 && lost < 40);
    assert_true(harness_now_ms() - begun < 3000);
    harness_passed(w->h);
}

/* Mooncake: 18 of 40 gets fail although the other replica is healthy. */
static void second_replica_serves_at_once(void **state)
{
    struct world *w = *state;
    char key[16];
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "r-%d", i);
        assert_int_equal(put(w->client, key, 'r', 20000, &twice), 0);
    }
    harness_kill(w->nodes[1]->process);
    uint64_t begun = harness_now_ms();
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "r-%d", i);
        if (get(w->client, key, 'r', 20000))
            fail_msg("get %s: %s", key, tarn_last_error());
    }
    assert_true(harness_now_ms() - begun < 2000);
    harness_passed(w->h);
}

/* Mooncake: one get blocks 30 s on a paused node. Here the deadline holds, and only the first one waits. */
static void paused_node_delays_once(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w->redis, "tcp");
    char key[16];
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "p-%d", i);
        assert_int_equal(put(c, key, 'p', 5000, &twice), 0);
        assert_int_equal(get(c, key, 'p', 5000), 0);
    }
    harness_signal(w->nodes[0]->process, SIGSTOP);
    uint64_t begun = harness_now_ms();
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "p-%d", i);
        if (get(c, key, 'p', 5000))
            fail_msg("get %s: %s", key, tarn_last_error());
    }
    assert_true(harness_now_ms() - begun < TIMEOUT_MS);
    harness_signal(w->nodes[0]->process, SIGCONT);
    tarn_close(c);
    harness_passed(w->h);
}

/* Mooncake: after kill -9 of the metadata server everything is unreachable at once. */
static void directory_killed_leaves_cached_gets(void **state)
{
    struct world *w = *state;
    assert_int_equal(put(w->client, "c", 'c', 100000, NULL), 0);
    assert_int_equal(get(w->client, "c", 'c', 100000), 0);
    harness_kill(w->redis->process);
    for (int i = 0; i < 50; i++)
        assert_int_equal(get(w->client, "c", 'c', 100000), 0);
    harness_passed(w->h);
}

/* Mooncake: Redis keys of a killed node stay for ever, and its keys cannot be put again. */
static void killed_nodes_entries_vanish(void **state)
{
    struct world *w = *state;
    assert_int_equal(put(w->client, "orphan", 'o', 1000, &on_node0), 0);
    harness_kill(w->nodes[0]->process);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "EXISTS", "tarn:default:node:node0", NULL) == 0, 10000);
    /* A node that has just started does not judge others before one life of a record has passed. */
    HARNESS_UNTIL(put(w->client, "orphan", 'n', 1000, NULL) == 0, 3000);
    assert_int_equal(get(w->client, "orphan", 'n', 1000), 0);
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
        if (put(w->client, key, 'f', sizes[i % 5], NULL))
            fail_msg("put %s of %zu bytes: %s", key, sizes[i % 5], tarn_last_error());
    }
    assert_int_equal(get(w->client, "full-599", 'f', sizes[599 % 5]), 0);
    harness_passed(w->h);
}

/* InfiniStore: a replaced object's old LRU entry evicts the new value. */
static void replacing_does_not_evict_the_new_value(void **state)
{
    struct world *w = *state;
    char key[32];
    for (int i = 0; i < 20; i++)
        assert_int_equal(put(w->client, "kept", (char)('a' + i), MIB, &replace), 0);
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "filler-%d", i);
        assert_int_equal(put(w->client, key, 'x', MIB, NULL), 0);
        assert_int_equal(get(w->client, "kept", 't', MIB), 0); /* in use, so never the coldest */
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
            assert_int_equal(put(w->client, names[i], 'b', 100, NULL), 0);
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
    assert_int_equal(put(w->client, "short", 's', 500, NULL), 0);
    assert_int_equal(get(w->client, "short", 's', 1000), TARN_E_SIZE);
    harness_passed(w->h);
}

/* UCCL: a transfer of no bytes is never acknowledged. By every transport. */
static void empty_transfer_completes(void **state)
{
    struct world *w = *state;
    static const char *const transports[] = {"shm", "tcp"};
    for (int i = 0; i < 2; i++) {
        struct tarn_client *c = client_of(w->redis, transports[i]);
        assert_int_equal(put(c, transports[i], 'x', 0, NULL), 0);
        assert_int_equal(get(c, transports[i], 'x', 0), 0);
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

/* Mooncake: a node that comes back under the same name is asked for what its earlier run held. */
static void restarted_node_never_serves_the_old_run(void **state)
{
    struct world *w = *state;
    assert_int_equal(put(w->client, "old", 'o', 100000, &on_node0), 0);
    assert_int_equal(get(w->client, "old", 'o', 100000), 0);
    harness_kill(w->nodes[0]->process);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "EXISTS", "tarn:default:node:node0", NULL) == 0, 10000);
    w->nodes[0] = harness_node_start(w->h, "node0", w->redis, "--pool", "cpu0:bytes=64M", NULL);
    int status = get(w->client, "old", 'o', 100000);
    assert_true(status == TARN_E_NOT_FOUND || status == TARN_E_NODE_DOWN);
    HARNESS_UNTIL(put(w->client, "old", 'n', 100000, &on_node0) == 0, 10000);
    assert_int_equal(get(w->client, "old", 'n', 100000), 0);
    /* Its own scrub takes the old run's entries out even if nobody asks. */
    HARNESS_UNTIL(harness_redis_integer(w->redis, "HLEN", "tarn:default:o:old", NULL) > 0, 10000);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

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
