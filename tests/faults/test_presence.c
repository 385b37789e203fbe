/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that were away: given up while stopped, cut off together with all others, or killed. Their objects
 * must not come back if others have replaced, removed or swept them (docs/consistency.md, "Nodes that were
 * away").
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
    return 0;
}

static bool listed(const struct node_world *w, const char *id)
{
    char key[96];
    snprintf(key, sizeof(key), "tarn:default:node:%s", id);
    return harness_redis_integer(w->redis, "EXISTS", key, NULL) == 1;
}

static const char *listed_as(const struct node_world *w, const char *id)
{
    static char text[32];
    char key[96];
    snprintf(key, sizeof(key), "tarn:default:node:%s", id);
    redisReply *r = harness_redis_call(w->redis, "HGET", key, "state", NULL);
    snprintf(text, sizeof(text), "%s", r->type == REDIS_REPLY_STRING ? r->str : "");
    freeReplyObject(r);
    return text;
}

static bool is(const struct harness_node *n, const char *presence)
{
    return !strcmp(node_info(n->control, "presence"), presence);
}

static void stop_until_given_up(struct node_world *w)
{
    harness_signal(w->node->process, SIGSTOP);
    HARNESS_UNTIL(!listed(w, "node0"), SOON_MS);
}

static void is_back(struct node_world *w)
{
    HARNESS_UNTIL(is(w->node, "here") && !strcmp(listed_as(w, "node0"), "ready"), SOON_MS);
    assert_int_equal(node_figure(w->node->control, "given_up"), 1);
}

static void replaced_and_removed_objects_do_not_come_back(void **state)
{
    struct node_world *w = *state;
    stop_until_given_up(w);
    HARNESS_UNTIL(!node_put(&w->other_c, "absent", "k0", 2000)[0], SOON_MS); /* record of a dead node */
    harness_redis_integer(w->redis, "DEL", OBJECT "k1", NULL); /* the sweep may have removed it already */
    harness_signal(w->node->process, SIGCONT);
    is_back(w);
    assert_string_equal(directory_field(w->redis, "k0", "@node0/cpu0"), "");
    assert_string_not_equal(directory_field(w->redis, "k0", "@node1/cpu0"), "");
    assert_false(directory_has(w->redis, "k1"));
    /* Objects that the sweep has not reached may stay, but only if the directory names them. */
    assert_int_equal(directory_count(w->redis), 1 + node_pool_figure(w->node->control, "objects"));
    harness_passed(w->h);
}

/* No node has swept these locations. The node compares its copies with them and keeps the copies. */
static void a_returning_node_keeps_copies_that_records_name(void **state)
{
    struct node_world *w = *state;
    char location[64];
    snprintf(location, sizeof(location), "%s", directory_field(w->redis, "k3", "@node0/cpu0"));
    char version[32], born[32];
    snprintf(version, sizeof(version), "%s", directory_field(w->redis, "k3", "ver"));
    snprintf(born, sizeof(born), "%s", directory_field(w->redis, "k3", "born"));
    stop_until_given_up(w);
    HARNESS_UNTIL(directory_count(w->redis) == 0, SOON_MS);
    freeReplyObject(harness_redis_call(w->redis, "HSET", OBJECT "k3", "tensor", "u8[1000]", "ver", version,
                                       "born", born, "@node0/cpu0", location, NULL));
    harness_signal(w->node->process, SIGCONT);
    is_back(w);
    assert_int_equal(node_pool_figure(w->node->control, "objects"), 1);
    assert_string_equal(directory_field(w->redis, "k3", "@node0/cpu0"), location);
    harness_passed(w->h);
}

/* Before it compares, the node shows its state in its record. It refuses commits and keeps reservations
 * for later. */
static void commits_wait_for_the_comparison(void **state)
{
    struct node_world *w = *state;
    struct node_grant g = node_reserve(&w->c, "absent", "new", 1000);
    stop_until_given_up(w);
    harness_signal(w->node->process, SIGCONT);
    HARNESS_UNTIL(is(w->node, "comparing"), SOON_MS);
    HARNESS_UNTIL(!strcmp(listed_as(w, "node0"), "returning"), SOON_MS);
    redisReply *r = node_commit(&w->c, &g, "2000");
    assert_int_equal(r->type, REDIS_REPLY_ERROR);
    assert_prefix(r->str, "AGAIN");
    freeReplyObject(r);
    assert_string_equal(node_info(w->node->control, "state"), "returning");
    is_back(w);
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 1);
    r = node_commit(&w->c, &g, "2000");
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    freeReplyObject(r);
    assert_true(directory_has(w->redis, "new"));
    harness_passed(w->h);
}

/* A comparison begins a heartbeat after the node has listed itself: until then other nodes may still
 * withdraw. */
static void the_comparison_waits_for_late_sweeps(void **state)
{
    struct node_world *w = *state;
    stop_until_given_up(w);
    HARNESS_UNTIL(directory_count(w->redis) == 0, SOON_MS);
    harness_signal(w->node->process, SIGCONT);
    HARNESS_UNTIL(!strcmp(listed_as(w, "node0"), "returning"), SOON_MS);
    uint64_t seen = harness_now_ms();
    HARNESS_UNTIL(node_pool_figure(w->node->control, "objects") == 0, SOON_MS);
    assert_true(harness_now_ms() - seen + 50 >= HEARTBEAT_MS);
    harness_passed(w->h);
}

/* No node can have taken another for gone. All come back at once, with all objects. */
static void no_node_counts_as_dead_after_a_silence_of_all(void **state)
{
    struct node_world *w = *state;
    harness_signal(w->redis->process, SIGSTOP);
    uint64_t begun = harness_now_ms();
    HARNESS_UNTIL(harness_now_ms() - begun > 2 * TTL_MS, SOON_MS);
    harness_signal(w->redis->process, SIGCONT);
    HARNESS_UNTIL(!strcmp(listed_as(w, "node0"), "ready") && !strcmp(listed_as(w, "node1"), "ready"),
                  SOON_MS);
    begun = harness_now_ms();
    HARNESS_UNTIL(harness_now_ms() - begun > 2 * TTL_MS, SOON_MS);
    assert_int_equal(node_figure(w->node->control, "given_up"), 0);
    assert_int_equal(node_figure(w->other->control, "given_up"), 0);
    assert_int_equal(node_pool_figure(w->node->control, "objects"), N);
    assert_int_equal(directory_count(w->redis), N);
    harness_passed(w->h);
}

/* Just before the silence, a client may have been told that a copy here is settled. The node frees that
 * copy before any client can read again. */
static void after_a_silence_a_node_first_empties_its_recheck_set(void **state)
{
    struct node_world *w = *state;
    static const char fill[] = "for i = 1, 60000 do redis.call('SADD', KEYS[1], 'none:' .. i .. "
                               "string.format(':%016x', 2 * i)) end";
    static const char look[] = "if redis.call('HGET', KEYS[1], 'state') ~= 'ready' then return -1 end "
                               "return redis.call('SCARD', KEYS[2])";
    harness_signal(w->other->process, SIGSTOP);
    freeReplyObject(harness_redis_call(w->redis, "EVAL", fill, "1", "tarn:default:recheck:node1", NULL));
    harness_signal(w->redis->process, SIGSTOP);
    uint64_t begun = harness_now_ms();
    HARNESS_UNTIL(harness_now_ms() - begun > 2 * TTL_MS, SOON_MS);
    harness_signal(w->other->process, SIGCONT);
    harness_signal(w->redis->process, SIGCONT);
    begun = harness_now_ms();
    long long left;
    while ((left = harness_redis_integer(w->redis, "EVAL", look, "2", "tarn:default:node:node1",
                                         "tarn:default:recheck:node1", NULL)) == -1)
        assert_true(harness_now_ms() - begun < SOON_MS);
    assert_int_equal(left, 0);
    assert_int_equal(node_figure(w->other->control, "given_up"), 0);
    harness_passed(w->h);
}

/* A killed node's objects leave the directory within 3 heartbeats and a second, even with a slow scrub. */
static void a_killed_nodes_objects_leave_the_directory_with_its_record(void **state)
{
    struct node_world *w = *state;
    assert_int_equal(directory_count(w->redis), N);
    harness_kill(w->node->process);
    HARNESS_UNTIL(directory_count(w->redis) == 0, TTL_MS + 1000);
    assert_int_equal(harness_redis_integer(w->redis, "SCARD", "tarn:default:nodes", NULL), 1);
    harness_passed(w->h);
}

/* Nothing is swept while it is unknown which nodes live. */
static void nothing_is_swept_after_a_silence(void **state)
{
    struct node_world *w = *state;
    harness_signal(w->redis->process, SIGSTOP);
    harness_signal(w->node->process, SIGSTOP);
    uint64_t begun = harness_now_ms();
    HARNESS_UNTIL(harness_now_ms() - begun > 2 * TTL_MS, SOON_MS);
    harness_signal(w->redis->process, SIGCONT);
    HARNESS_UNTIL(!strcmp(listed_as(w, "node1"), "ready"), SOON_MS);
    begun = harness_now_ms();
    HARNESS_UNTIL(harness_now_ms() - begun > TTL_MS / 2, SOON_MS);
    assert_int_equal(directory_count(w->redis), N);
    HARNESS_UNTIL(directory_count(w->redis) == 0, SOON_MS);
    harness_passed(w->h);
}

#define TEST(test_) cmocka_unit_test_setup_teardown(test_, setup, node_world_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(replaced_and_removed_objects_do_not_come_back),
        TEST(a_returning_node_keeps_copies_that_records_name),
        TEST(commits_wait_for_the_comparison),
        TEST(the_comparison_waits_for_late_sweeps),
        TEST(no_node_counts_as_dead_after_a_silence_of_all),
        TEST(after_a_silence_a_node_first_empties_its_recheck_set),
        TEST(a_killed_nodes_objects_leave_the_directory_with_its_record),
        TEST(nothing_is_swept_after_a_silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
