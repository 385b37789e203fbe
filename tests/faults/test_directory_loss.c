/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redis is killed, restarted, paused, read-only or out of memory; nodes are killed and restarted. Checks what
 * a node answers meanwhile, and that directory and stores agree again afterwards.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/node_client.h"

static struct harness_node *start_node(struct node_world *w, const char *id)
{
    return harness_node_start(w->h, id, w->redis, "--pool", "cpu0:bytes=16M", "--heartbeat-ms", "100",
                              "--redis-timeout-ms", "1000", "--scrub-s", "1", NULL);
}

static int setup(void **state)
{
    node_world(state);
    struct node_world *w = *state;
    w->node = start_node(w, "node0");
    w->c = node_connect(w->node->control);
    return 0;
}

static void start_other(struct node_world *w)
{
    w->other = start_node(w, "node1");
    w->other_c = node_connect(w->other->control);
}

/* True if the key's record has a location at this node and pool. */
static bool located(const struct node_world *w, const char *key, const char *location)
{
    return directory_field(w->redis, key, location)[0] != 0;
}

static bool stored_as(const struct node_world *w, const char *key, const char *tensor)
{
    return !strcmp(directory_field(w->redis, key, "tensor"), tensor);
}

static void put_many(struct node_world *w, int n)
{
    node_put_many(&w->c, "k", n, 1000);
}

static void commit_fails(struct node_world *w, const char *key, const char *timeout_ms, const char *a,
                         const char *b)
{
    struct node_grant g = node_reserve(&w->c, "absent", key, 1000);
    redisReply *r = node_commit(&w->c, &g, timeout_ms);
    assert_int_equal(r->type, REDIS_REPLY_ERROR);
    if (strncmp(r->str, a, strlen(a)) && strncmp(r->str, b, strlen(b)))
        fail_msg("wanted %s or %s: %s", a, b, r->str);
    freeReplyObject(r);
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 0);
}

/* --- Redis -------------------------------------------------------------------------------------- */

static void an_empty_restarted_redis_gets_all_objects_again(void **state)
{
    struct node_world *w = *state;
    put_many(w, 700);
    harness_kill(w->redis->process);
    commit_fails(w, "meanwhile", "2000", "DIRECTORY", "DIRECTORY");
    assert_int_equal(node_pool_figure(w->node->control, "objects"), 700);
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "redis_state"), "away"), 5000);
    harness_redis_restart(w->redis);
    HARNESS_UNTIL(directory_count(w->redis) == 700, 5000);
    assert_false(directory_has(w->redis, "meanwhile"));
    assert_int_equal(harness_redis_integer(w->redis, "EXISTS", "tarn:default:node:node0", NULL), 1);
    assert_string_equal(node_put(&w->c, "absent", "meanwhile", 1000), "");
    harness_passed(w->h);
}

static void a_redis_restarted_with_old_data_is_corrected(void **state)
{
    struct node_world *w = *state;
    put_many(w, 5);
    redisReply *r = harness_redis_call(w->redis, "SAVE", NULL);
    assert_int_equal(r->type, REDIS_REPLY_STATUS);
    freeReplyObject(r);
    freeReplyObject(harness_command(w->c.resp, "DELETE", "k0", "k1", NULL));
    assert_string_equal(node_put(&w->c, "replace", "k2", 2000), "");
    assert_string_equal(node_put(&w->c, "absent", "new", 1000), "");
    harness_kill(w->redis->process);
    harness_redis_restart(w->redis);
    HARNESS_UNTIL(directory_has(w->redis, "new") && !directory_has(w->redis, "k0") &&
                      !directory_has(w->redis, "k1"),
                  5000);
    HARNESS_UNTIL(directory_count(w->redis) == 4, 5000);
    HARNESS_UNTIL(stored_as(w, "k2", "u8[2000]"), 5000);
    harness_passed(w->h);
}

static void node_ends_without_redis(void **state)
{
    struct node_world *w = *state;
    put_many(w, 5);
    harness_kill(w->redis->process);
    harness_signal(w->node->process, SIGTERM);
    assert_int_equal(harness_wait(w->node->process, 5000), 0);
    harness_passed(w->h);
}

static void a_flushed_redis_gets_all_objects_again(void **state)
{
    struct node_world *w = *state;
    put_many(w, 10);
    freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
    HARNESS_UNTIL(directory_count(w->redis) == 10, 5000);
    harness_passed(w->h);
}

static void evictions_while_redis_is_away_are_withdrawn_later(void **state)
{
    struct node_world *w = *state;
    struct node_grant g;
    put_many(w, 50);
    /* Paused, Redis keeps its data; a restarted one loses it. */
    harness_signal(w->redis->process, SIGSTOP);
    freeReplyObject(harness_call(w->node->local, "EVICT", "cpu0", "16777216", NULL));
    assert_int_equal(node_pool_figure(w->node->control, "objects"), 0);
    assert_null(node_try_reserve(&w->c, "absent", "k0", 10, &g));
    harness_signal(w->redis->process, SIGCONT);
    HARNESS_UNTIL(directory_count(w->redis) == 0, 5000);
    harness_passed(w->h);
}

/* More withdrawals than the node remembers. A sweep of the directory finds the rest. */
static void forgotten_withdrawals_are_swept_out(void **state)
{
    enum { N = 70000 };
    struct node_world *w = *state;
    struct harness_node *n = harness_node_start(w->h, "many", w->redis, "--pool", "p:bytes=16M,slots=100000",
                                                "--heartbeat-ms", "500", "--redis-timeout-ms", "1000", NULL);
    struct node_client c = node_connect(n->control);
    node_put_many(&c, "many", N, 8);
    assert_int_equal(directory_count(w->redis), N);
    harness_signal(w->redis->process, SIGSTOP);
    freeReplyObject(harness_call(n->local, "EVICT", "p", "16777216", NULL));
    assert_int_equal(node_pool_figure(n->control, "objects"), 0);
    harness_signal(w->redis->process, SIGCONT);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "DBSIZE", NULL) < 100, 20000);
    assert_true(atoll(node_info(n->control, "scrub_withdrawn")) > 0);
    node_close(&c);
    harness_passed(w->h);
}

static void a_paused_redis_blocks_no_command_and_leaves_no_half_put(void **state)
{
    struct node_world *w = *state;
    put_many(w, 1);
    harness_signal(w->redis->process, SIGSTOP);
    uint64_t begun = harness_now_ms();
    commit_fails(w, "late", "200", "TIMEOUT", "DIRECTORY");
    assert_true(harness_now_ms() - begun < 1000 * harness_slower());
    begun = harness_now_ms();
    freeReplyObject(harness_call(w->node->control, "PING", NULL));
    freeReplyObject(harness_call(w->node->control, "INFO", NULL));
    assert_true(harness_now_ms() - begun < 1000 * harness_slower());
    harness_signal(w->redis->process, SIGCONT);
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "redis_state"), "ok") &&
                      !strcmp(node_info(w->node->control, "waiting_withdrawals"), "0"),
                  5000);
    HARNESS_UNTIL(!directory_has(w->redis, "late"), 5000);
    assert_true(directory_has(w->redis, "k0"));
    harness_passed(w->h);
}

/* A replace that was given up leaves the old version readable, or frees it. The key stays usable. */
static void a_timed_out_replace_leaves_the_old_version_or_none(void **state)
{
    struct node_world *w = *state;
    put_many(w, 1);
    harness_signal(w->redis->process, SIGSTOP);
    struct node_grant g = node_reserve(&w->c, "replace", "k0", 2000);
    redisReply *r = node_commit(&w->c, &g, "200");
    assert_int_equal(r->type, REDIS_REPLY_ERROR);
    freeReplyObject(r);
    harness_signal(w->redis->process, SIGCONT);
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "redis_state"), "ok") &&
                      !strcmp(node_info(w->node->control, "waiting_withdrawals"), "0"),
                  5000);
    HARNESS_UNTIL(node_pool_figure(w->node->control, "objects") == stored_as(w, "k0", "u8[1000]") &&
                      directory_has(w->redis, "k0") == stored_as(w, "k0", "u8[1000]"),
                  5000);
    assert_string_equal(node_put(&w->c, "replace", "k0", 3000), "");
    harness_passed(w->h);
}

static void full_redis_is_named(void **state)
{
    struct node_world *w = *state;
    put_many(w, 3);
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "maxmemory", "1", NULL));
    commit_fails(w, "more", "2000", "DIRECTORY", "DIRECTORY");
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "maxmemory", "0", NULL));
    assert_string_equal(node_put(&w->c, "absent", "more", 1000), "");
    HARNESS_UNTIL(directory_count(w->redis) == 4, 5000);
    harness_passed(w->h);
}

static void read_only_redis_is_named(void **state)
{
    struct node_world *w = *state;
    char port[8];
    struct harness_redis *primary = harness_redis_start(w->h, NULL);
    snprintf(port, sizeof(port), "%u", primary->port);
    freeReplyObject(harness_redis_call(w->redis, "REPLICAOF", "127.0.0.1", port, NULL));
    commit_fails(w, "more", "2000", "DIRECTORY", "DIRECTORY");
    freeReplyObject(harness_redis_call(w->redis, "REPLICAOF", "NO", "ONE", NULL));
    assert_string_equal(node_put(&w->c, "absent", "more", 1000), "");
    harness_passed(w->h);
}

/* --- scrub -------------------------------------------------------------------------------------- */

static void scrub_frees_copies_and_removes_records_without_counterpart(void **state)
{
    struct node_world *w = *state;
    put_many(w, 5);
    assert_int_equal(harness_redis_integer(w->redis, "DEL", OBJECT "k3", NULL), 1);
    freeReplyObject(harness_redis_call(w->redis, "HSET", OBJECT "ghost", "tensor", "u8[8]", "ver", "5",
                                       "born", "1", "@node0/cpu0", "0:900:0000000100000002", NULL));
    freeReplyObject(harness_redis_call(w->redis, "HSET", OBJECT "orphan", "tensor", "u8[8]", "ver", "6",
                                       "born", "1", "@nobody/cpu0", "0:900:0000000100000002", NULL));
    HARNESS_UNTIL(node_pool_figure(w->node->control, "objects") == 4, 5000);
    HARNESS_UNTIL(!directory_has(w->redis, "ghost") && !directory_has(w->redis, "orphan"), 5000);
    assert_int_equal(directory_count(w->redis), 4);
    assert_false(directory_has(w->redis, "k3"));
    harness_passed(w->h);
}

static void restore_loses_to_a_newer_version(void **state)
{
    struct node_world *w = *state;
    start_other(w);
    put_many(w, 1);
    assert_int_equal(harness_redis_integer(w->redis, "DEL", OBJECT "k0", NULL), 1);
    /* The versions must differ by a millisecond: otherwise either may win. */
    uint64_t then = tarn_unix_ms();
    HARNESS_UNTIL(tarn_unix_ms() > then, 1000);
    assert_string_equal(node_put(&w->other_c, "absent", "k0", 2000), "");
    HARNESS_UNTIL(node_pool_figure(w->node->control, "objects") == 0, 5000);
    assert_true(located(w, "k0", "@node1/cpu0"));
    assert_false(located(w, "k0", "@node0/cpu0"));
    harness_passed(w->h);
}

/* Both versions are published again, in any order. The replaced one must not stay. */
static void replaced_copy_stays_away_when_nodes_publish_again(void **state)
{
    struct node_world *w = *state;
    start_other(w);
    for (int i = 0; i < 20; i++) {
        char key[8];
        snprintf(key, sizeof(key), "k%d", i);
        assert_string_equal(node_put(&w->other_c, "absent", key, 1000), "");
    }
    uint64_t then = tarn_unix_ms();
    HARNESS_UNTIL(tarn_unix_ms() > then, 1000);
    for (int i = 0; i < 20; i++) {
        char key[8];
        snprintf(key, sizeof(key), "k%d", i);
        assert_string_equal(node_put(&w->c, "replace", key, 2000), "");
    }
    freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
    HARNESS_UNTIL(node_pool_figure(w->other->control, "objects") == 0 && directory_count(w->redis) == 20,
                  5000);
    for (int i = 0; i < 20; i++) {
        char key[8];
        snprintf(key, sizeof(key), "k%d", i);
        assert_true(stored_as(w, key, "u8[2000]") && !located(w, key, "@node1/cpu0"));
    }
    assert_int_equal(node_pool_figure(w->node->control, "objects"), 20);
    harness_passed(w->h);
}

/* --- nodes -------------------------------------------------------------------------------------- */

static void a_record_of_a_dead_node_does_not_block_a_put(void **state)
{
    struct node_world *w = *state;
    start_other(w);
    assert_string_equal(node_put(&w->other_c, "absent", "dup", 1000), "");
    if (strncmp(node_put(&w->c, "absent", "dup", 1000), "EXISTS", 6))
        fail_msg("the living node's copy was ignored");
    harness_kill(w->other->process);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "EXISTS", "tarn:default:node:node1", NULL) == 0, 5000);
    HARNESS_UNTIL(!node_put(&w->c, "absent", "dup", 1000)[0], 2000);
    assert_true(located(w, "dup", "@node0/cpu0"));
    assert_false(located(w, "dup", "@node1/cpu0"));
    harness_passed(w->h);
}

static void restarted_node_keeps_its_id_and_removes_old_records(void **state)
{
    struct node_world *w = *state;
    put_many(w, 300);
    node_close(&w->c);
    harness_kill(w->node->process);
    uint64_t begun = harness_now_ms();
    w->node = start_node(w, "node0");
    assert_true(harness_now_ms() - begun < 2000 * harness_slower());
    w->c = node_connect(w->node->control);
    assert_string_equal(node_put(&w->c, "absent", "k299", 1000), "");
    HARNESS_UNTIL(directory_count(w->redis) == 1, 5000);
    assert_true(located(w, "k299", "@node0/cpu0"));
    harness_passed(w->h);
}

static void node_whose_id_was_taken_ends(void **state)
{
    struct node_world *w = *state;
    put_many(w, 3);
    freeReplyObject(
        harness_redis_call(w->redis, "HSET", "tarn:default:node:node0", "epoch", "0123456789abcdef", NULL));
    harness_redis_integer(w->redis, "PERSIST", "tarn:default:node:node0", NULL);
    assert_int_equal(harness_wait(w->node->process, 5000), 1);
    assert_non_null(strstr(harness_log(w->node->process), "another node has the id node0"));
    assert_int_equal(directory_count(w->redis), 0);
    redisReply *other = harness_redis_call(w->redis, "HGET", "tarn:default:node:node0", "epoch", NULL);
    assert_int_equal(other->type, REDIS_REPLY_STRING);
    assert_string_equal(other->str, "0123456789abcdef");
    freeReplyObject(other);
    harness_passed(w->h);
}

/* Objects that were swept meanwhile may have been replaced or removed, so the node frees its copies. */
static void a_node_frees_its_swept_objects_when_it_returns(void **state)
{
    struct node_world *w = *state;
    start_other(w);
    put_many(w, 20);
    harness_signal(w->node->process, SIGSTOP);
    /* The other node considers the paused one dead, and sweeps its objects. */
    HARNESS_UNTIL(directory_count(w->redis) == 0, 10000);
    harness_signal(w->node->process, SIGCONT);
    HARNESS_UNTIL(node_pool_figure(w->node->control, "objects") == 0, 5000);
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "presence"), "here"), 5000);
    assert_int_equal(directory_count(w->redis), 0);
    assert_string_equal(node_put(&w->c, "absent", "again", 1000), "");
    assert_true(located(w, "again", "@node0/cpu0"));
    harness_passed(w->h);
}

/* --- copies that join --------------------------------------------------------------------------- */

static void join_fails(struct node_world *w)
{
    struct node_grant g = node_reserve(&w->other_c, "absent", "k", 1000);
    redisReply *r = harness_command(w->other_c.resp, "COMMIT", node_deadline(&w->other_c, 2000), "join",
                                    g.pool, g.slot, g.gen, NULL);
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    assert_int_equal(r->elements, 1);
    assert_int_equal(r->element[0]->type, REDIS_REPLY_ERROR);
    assert_prefix(r->element[0]->str, "EXISTS");
    freeReplyObject(r);
    assert_false(located(w, "k", "@node1/cpu0"));
    assert_int_equal(node_pool_figure(w->other->control, "objects"), 0);
    assert_int_equal(node_pool_figure(w->other->control, "reserved"), 0);
}

/* The first copy is removed or replaced before the second one joins: the join fails and restores nothing. */
static void a_copy_does_not_join_a_removed_version(void **state)
{
    struct node_world *w = *state;
    start_other(w);
    join_fails(w);
    assert_string_equal(node_put(&w->c, "absent", "k", 1000), "");
    join_fails(w);
    /* The successor may be on a dead node. */
    harness_kill(w->node->process);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "EXISTS", "tarn:default:node:node0", NULL) == 0, 5000);
    join_fails(w);
    harness_passed(w->h);
}

#define TEST(test_) cmocka_unit_test_setup_teardown(test_, setup, node_world_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_empty_restarted_redis_gets_all_objects_again),
        TEST(a_redis_restarted_with_old_data_is_corrected),
        TEST(node_ends_without_redis),
        TEST(a_flushed_redis_gets_all_objects_again),
        TEST(evictions_while_redis_is_away_are_withdrawn_later),
        WITH_REDIS(forgotten_withdrawals_are_swept_out),
        TEST(a_paused_redis_blocks_no_command_and_leaves_no_half_put),
        TEST(a_timed_out_replace_leaves_the_old_version_or_none),
        TEST(full_redis_is_named),
        TEST(read_only_redis_is_named),
        TEST(scrub_frees_copies_and_removes_records_without_counterpart),
        TEST(restore_loses_to_a_newer_version),
        TEST(replaced_copy_stays_away_when_nodes_publish_again),
        TEST(a_record_of_a_dead_node_does_not_block_a_put),
        TEST(restarted_node_keeps_its_id_and_removes_old_records),
        TEST(node_whose_id_was_taken_ends),
        TEST(a_copy_does_not_join_a_removed_version),
        TEST(a_node_frees_its_swept_objects_when_it_returns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
