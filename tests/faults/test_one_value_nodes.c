/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redis loses its data while nodes live, are stopped, or are late: which nodes publish again, which free
 * their objects, and when a missing object counts as absent (docs/consistency.md, "Losing the directory").
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/node_client.h"

#define HEARTBEAT_MS (300 * harness_slower())
#define TTL_MS (3 * HEARTBEAT_MS)
#define SOON_MS 10000
#define N 20

static struct harness_node *start_node(struct node_world *w, const char *id)
{
    return harness_node_start(w->h, id, w->redis, "--pool", "cpu0:bytes=16M", "--heartbeat-ms", "300",
                              "--redis-timeout-ms", "1000", NULL);
}

static int setup(void **state)
{
    node_world(state);
    struct node_world *w = *state;
    w->node = start_node(w, "node0");
    w->c = node_connect(w->node->control);
    w->other = start_node(w, "node1");
    w->other_c = node_connect(w->other->control);
    node_put_many(&w->c, "k", N, 1000);
    node_put_many(&w->other_c, "m", N, 1000);
    return 0;
}

static bool is(const struct harness_node *n, const char *presence)
{
    return !strcmp(node_info(n->control, "presence"), presence);
}

static bool settled(const struct harness_node *n)
{
    return !strcmp(node_info(n->local, "directory_state"), "settled");
}

static void wait_ms(uint64_t ms)
{
    uint64_t begun = harness_now_ms();
    HARNESS_UNTIL(harness_now_ms() - begun >= ms, SOON_MS);
}

static long long objects(const struct harness_node *n)
{
    return node_pool_figure(n->control, "objects");
}

static void flush(struct node_world *w)
{
    freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
}

/* Waits until node0 has freed its objects and is back without them. */
static void freed_all(struct node_world *w)
{
    HARNESS_UNTIL(objects(w->node) == 0 && is(w->node, "here"), SOON_MS);
    assert_int_equal(node_figure(w->node->control, "freed_as_late"), N);
    HARNESS_UNTIL(directory_count(w->redis) == N, SOON_MS);
    assert_false(directory_has(w->redis, "k0"));
    assert_string_equal(node_put(&w->c, "absent", "new", 1000), "");
    assert_true(directory_has(w->redis, "new"));
}

static void living_nodes_publish_again_before_the_directory_settles(void **state)
{
    struct node_world *w = *state;
    HARNESS_UNTIL(settled(w->node) && settled(w->other), SOON_MS);
    flush(w);
    HARNESS_UNTIL(!settled(w->node) && !settled(w->other), SOON_MS);
    uint64_t begun = harness_now_ms();
    HARNESS_UNTIL(directory_count(w->redis) == 2 * N, SOON_MS);
    HARNESS_UNTIL(settled(w->node) && settled(w->other), SOON_MS);
    assert_true(harness_now_ms() - begun + HEARTBEAT_MS + 100 >= TTL_MS);
    assert_int_equal(node_figure(w->node->control, "freed_as_late"), 0);
    assert_int_equal(objects(w->node), N);
    assert_true(is(w->node, "here"));
    harness_passed(w->h);
}

/* Others have treated the missing objects as absent, so none of them may come back. */
static void a_late_node_frees_all_its_objects(void **state)
{
    struct node_world *w = *state;
    harness_signal(w->node->process, SIGSTOP);
    flush(w);
    HARNESS_UNTIL(!settled(w->other), SOON_MS);
    HARNESS_UNTIL(settled(w->other), SOON_MS);
    harness_signal(w->node->process, SIGCONT);
    freed_all(w);
    harness_passed(w->h);
}

/* The node alone was cut off before the loss, so its copies may have been replaced or removed. */
static void a_node_cut_off_alone_frees_all_its_objects(void **state)
{
    struct node_world *w = *state;
    harness_signal(w->node->process, SIGSTOP);
    wait_ms(TTL_MS + HEARTBEAT_MS);
    harness_kill(w->redis->process);
    harness_redis_restart(w->redis);
    harness_signal(w->node->process, SIGCONT);
    HARNESS_UNTIL(is(w->node, "waiting"), SOON_MS);
    freed_all(w);
    harness_passed(w->h);
}

/* Redis kept running, so other nodes may have reached it, even if none of them is left to say so. */
static void nodes_cut_off_from_a_running_redis_free_all_objects(void **state)
{
    struct node_world *w = *state;
    HARNESS_UNTIL(settled(w->node) && settled(w->other), SOON_MS);
    harness_signal(w->node->process, SIGSTOP);
    harness_signal(w->other->process, SIGSTOP);
    wait_ms(TTL_MS + HEARTBEAT_MS);
    flush(w);
    harness_signal(w->node->process, SIGCONT);
    harness_signal(w->other->process, SIGCONT);
    HARNESS_UNTIL(is(w->node, "here") && node_figure(w->node->control, "freed_as_late") == N, SOON_MS);
    HARNESS_UNTIL(is(w->other, "here") && node_figure(w->other->control, "freed_as_late") == N, SOON_MS);
    assert_int_equal(directory_count(w->redis), 0);
    harness_passed(w->h);
}

/* The node that could have told that node0 was cut off alone is dead. */
static void a_node_cut_off_without_a_living_witness_frees_all_objects(void **state)
{
    struct node_world *w = *state;
    HARNESS_UNTIL(node_figure(w->node->control, "nodes") == 2 && settled(w->node), SOON_MS);
    harness_signal(w->node->process, SIGSTOP);
    HARNESS_UNTIL(directory_count(w->redis) == N, SOON_MS); /* node0 was given up: its objects are swept */
    harness_kill(w->other->process);
    harness_kill(w->redis->process);
    harness_redis_restart(w->redis);
    harness_signal(w->node->process, SIGCONT);
    HARNESS_UNTIL(is(w->node, "waiting"), SOON_MS);
    HARNESS_UNTIL(objects(w->node) == 0 && is(w->node, "here"), SOON_MS);
    assert_int_equal(node_figure(w->node->control, "freed_as_late"), N);
    assert_int_equal(directory_count(w->redis), 0);
    harness_passed(w->h);
}

/* A node that has left in order knows nothing that the other nodes do not know. */
static void the_directory_does_not_wait_for_a_node_that_has_left(void **state)
{
    struct node_world *w = *state;
    harness_signal(w->other->process, SIGTERM);
    HARNESS_UNTIL(directory_count(w->redis) == N, SOON_MS);
    HARNESS_UNTIL(node_figure(w->node->control, "nodes") == 1, SOON_MS);
    harness_kill(w->redis->process);
    wait_ms(2 * TTL_MS);
    harness_redis_restart(w->redis);
    HARNESS_UNTIL(directory_count(w->redis) == N, SOON_MS);
    assert_int_equal(objects(w->node), N);
    harness_passed(w->h);
}

/* Redis is unreachable for all nodes for a long time, and comes back empty. All objects are published
 * again. */
static void a_redis_away_for_all_nodes_gets_all_objects_again(void **state)
{
    struct node_world *w = *state;
    harness_kill(w->redis->process);
    wait_ms(2 * TTL_MS);
    harness_redis_restart(w->redis);
    HARNESS_UNTIL(is(w->node, "waiting"), SOON_MS);
    assert_false(settled(w->node));
    HARNESS_UNTIL(directory_count(w->redis) == 2 * N, SOON_MS);
    HARNESS_UNTIL(settled(w->node) && settled(w->other), SOON_MS);
    assert_int_equal(objects(w->node), N);
    assert_int_equal(objects(w->other), N);
    harness_passed(w->h);
}

/* Redis comes back with old data. Objects removed or replaced since then stay so. */
static void a_redis_with_old_data_restores_no_removed_object(void **state)
{
    struct node_world *w = *state;
    freeReplyObject(harness_redis_call(w->redis, "SAVE", NULL));
    freeReplyObject(harness_command(w->c.resp, "DELETE", "k0", NULL));
    HARNESS_UNTIL(!directory_has(w->redis, "k0"), SOON_MS);
    harness_kill(w->redis->process);
    harness_redis_restart(w->redis);
    HARNESS_UNTIL(!settled(w->node) && !settled(w->other), SOON_MS);
    HARNESS_UNTIL(settled(w->node) && settled(w->other), SOON_MS);
    HARNESS_UNTIL(!directory_has(w->redis, "k0"), SOON_MS);
    assert_int_equal(directory_count(w->redis), 2 * N - 1);
    harness_passed(w->h);
}

/* While a listed node still publishes again, the directory does not count as settled, however old it is. */
static void the_directory_waits_for_a_restoring_node(void **state)
{
    struct node_world *w = *state;
    freeReplyObject(harness_redis_call(w->redis, "SADD", "tarn:default:nodes", "slow", NULL));
    flush(w);
    /* The record of a node that has a lot to publish. */
    freeReplyObject(harness_redis_call(w->redis, "HSET", "tarn:default:node:slow", "epoch",
                                       "00000000000000aa", "host", "h", "hostid", "h", "pid", "1", "control",
                                       "127.0.0.1:1", "unix", "/x", "version", "0", "started", "1", "state",
                                       "ready", "restoring", "1", "pools", "", NULL));
    freeReplyObject(harness_redis_call(w->redis, "SADD", "tarn:default:nodes", "slow", NULL));
    HARNESS_UNTIL(directory_count(w->redis) == 2 * N, SOON_MS);
    wait_ms(2 * TTL_MS);
    assert_false(settled(w->node));
    assert_non_null(strstr(node_info(w->node->control, "directory_unsettled"), "slow"));
    freeReplyObject(harness_redis_call(w->redis, "HSET", "tarn:default:node:slow", "restoring", "0", NULL));
    HARNESS_UNTIL(settled(w->node), SOON_MS);
    harness_passed(w->h);
}

/* A second loss before all objects were published: the nodes can no longer tell which copies are valid. */
static void a_second_loss_leaves_store_and_directory_equal(void **state)
{
    struct node_world *w = *state;
    flush(w);
    HARNESS_UNTIL(is(w->node, "restoring") || objects(w->node) == 0, SOON_MS);
    flush(w);
    HARNESS_UNTIL(is(w->node, "here") && is(w->other, "here") && settled(w->node), SOON_MS);
    /* The second loss may come before or after the first is repaired. Either way store and directory must
     * agree. */
    assert_int_equal(directory_count(w->redis), objects(w->node) + objects(w->other));
    harness_passed(w->h);
}

/* --- removes and replaces ----------------------------------------------------------------------- */

/* The reply to DELETE of one key: "AGAIN ...", or the number. */
static const char *delete (struct node_client *c, const char *key)
{
    static char text[400];
    redisReply *r = harness_command(c->resp, "DELETE", key, NULL);
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    const redisReply *item = r->element[0];
    if (item->type == REDIS_REPLY_INTEGER)
        snprintf(text, sizeof(text), "%lld", item->integer);
    else
        snprintf(text, sizeof(text), "%s", item->type == REDIS_REPLY_ERROR ? item->str : "copies");
    freeReplyObject(r);
    return text;
}

/* A node does not report an object as absent while the object's node may only not have reported yet. */
static void removes_and_replaces_wait_until_the_directory_settles(void **state)
{
    struct node_world *w = *state;
    harness_signal(w->node->process, SIGSTOP);
    flush(w);
    HARNESS_UNTIL(!settled(w->other), SOON_MS);
    assert_prefix(delete (&w->other_c, "k0"), "AGAIN");
    assert_prefix(node_put(&w->other_c, "replace", "k1", 2000), "AGAIN");
    assert_int_equal(node_pool_figure(w->other->control, "reserved"), 1);
    assert_string_equal(node_put(&w->other_c, "absent", "k2", 2000), "");
    HARNESS_UNTIL(settled(w->other), SOON_MS);
    assert_string_equal(delete (&w->other_c, "k0"), "0");
    assert_string_equal(node_put(&w->other_c, "replace", "k3", 2000), "");
    harness_signal(w->node->process, SIGCONT);
    HARNESS_UNTIL(objects(w->node) == 0 && is(w->node, "here"), SOON_MS);
    assert_false(directory_has(w->redis, "k0"));
    assert_string_equal(directory_field(w->redis, "k3", "tensor"), "u8[2000]");
    harness_passed(w->h);
}

/* At the node's last beat the directory was settled. The node must not trust what it has read since the
 * loss. */
static void a_loss_since_the_last_beat_is_noticed(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n =
        harness_node_start(w->h, "slow", w->redis, "--pool", "p:bytes=1M", "--heartbeat-ms", "20000", NULL);
    struct node_client c = node_connect(n->control);
    /* A ready node has ended its first beat. */
    HARNESS_UNTIL(settled(n) && strcmp(node_info(n->local, "calls"), "0") != 0, SOON_MS);
    flush(w);
    assert_prefix(delete (&c, "k0"), "AGAIN");
    assert_prefix(node_put(&c, "replace", "k1", 2000), "AGAIN");
    assert_true(settled(n)); /* it has not beaten since */
    node_close(&c);
    harness_passed(w->h);
}

/* --- new directories ---------------------------------------------------------------------------- */

static void a_new_directory_settles_after_a_ttl_and_a_private_one_at_once(void **state)
{
    struct node_world *w = *state;
    struct harness_redis *empty = harness_redis_start_new(w->h, NULL);
    struct harness_node *n =
        harness_node_start(w->h, "first", empty, "--pool", "p:bytes=1M", "--heartbeat-ms", "300", NULL);
    uint64_t begun = harness_now_ms();
    HARNESS_UNTIL(n->control[0] && !settled(n), SOON_MS);
    HARNESS_UNTIL(settled(n), SOON_MS);
    assert_true(harness_now_ms() - begun + HEARTBEAT_MS >= TTL_MS);
    struct node_client c = node_connect(n->control);
    assert_string_equal(node_put(&c, "replace", "k", 100), "");
    node_close(&c);
    struct harness_node *alone =
        harness_node_start(w->h, "alone", NULL, "--pool", "p:bytes=1M", "--heartbeat-ms", "60000", NULL);
    HARNESS_UNTIL(settled(alone), 2000);
    harness_passed(w->h);
}

static void an_evicting_redis_is_refused_and_logged(void **state)
{
    struct node_world *w = *state;
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "maxmemory", "100mb", NULL));
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru", NULL));
    HARNESS_UNTIL(node_info(w->node->control, "redis_evicts")[0], SOON_MS);
    assert_non_null(strstr(harness_log(w->node->process), "noeviction"));
    struct harness_process *p = harness_node_spawn(w->h, "refused", w->redis, "--pool", "p:bytes=1M", NULL);
    assert_int_equal(harness_wait(p, SOON_MS), 1);
    assert_non_null(strstr(harness_log(p), "maxmemory-policy allkeys-lru"));
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "maxmemory-policy", "noeviction", NULL));
    HARNESS_UNTIL(!node_info(w->node->control, "redis_evicts")[0], SOON_MS);
    harness_passed(w->h);
}

static void a_node_record_has_the_setting_for_cut_off_readers(void **state)
{
    struct node_world *w = *state;
    harness_node_start(w->h, "strict", w->redis, "--pool", "p:bytes=1M", "--heartbeat-ms", "300",
                       "--when-cut-off", "refuse", NULL);
    redisReply *r = harness_redis_call(w->redis, "HGET", "tarn:default:node:strict", "when_cut_off", NULL);
    assert_string_equal(r->str, "refuse");
    freeReplyObject(r);
    r = harness_redis_call(w->redis, "HGET", "tarn:default:node:node0", "when_cut_off", NULL);
    assert_string_equal(r->str, "serve");
    freeReplyObject(r);
    struct harness_process *p =
        harness_node_spawn(w->h, "odd", w->redis, "--pool", "p:bytes=1M", "--when-cut-off", "never", NULL);
    assert_int_equal(harness_wait(p, SOON_MS), 2);
    harness_passed(w->h);
}

#define TEST(test_) cmocka_unit_test_setup_teardown(test_, setup, node_world_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(living_nodes_publish_again_before_the_directory_settles),
        TEST(a_late_node_frees_all_its_objects),
        TEST(a_node_cut_off_alone_frees_all_its_objects),
        TEST(nodes_cut_off_from_a_running_redis_free_all_objects),
        TEST(a_node_cut_off_without_a_living_witness_frees_all_objects),
        TEST(the_directory_does_not_wait_for_a_node_that_has_left),
        TEST(a_redis_away_for_all_nodes_gets_all_objects_again),
        TEST(a_redis_with_old_data_restores_no_removed_object),
        TEST(the_directory_waits_for_a_restoring_node),
        TEST(a_second_loss_leaves_store_and_directory_equal),
        TEST(removes_and_replaces_wait_until_the_directory_settles),
        WITH_REDIS(a_loss_since_the_last_beat_is_noticed),
        TEST(a_new_directory_settles_after_a_ttl_and_a_private_one_at_once),
        TEST(an_evicting_redis_is_refused_and_logged),
        TEST(a_node_record_has_the_setting_for_cut_off_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
