/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between clients, nodes and Redis that are late, lost or repeated. Replaced bytes never come back.
 * The directory stops naming a copy that no node holds as soon as the node can report it.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/node_client.h"
#include "tests/redis_relay.h"

#define PATIENCE_MS 8000
#define NODE0 "tarn:default:node:node0"

static struct harness_node *start_node(struct node_world *w, const char *id, const char *scrub_s)
{
    return harness_node_start(w->h, id, w->redis, "--pool", "cpu0:bytes=16M", "--heartbeat-ms", "300",
                              "--redis-timeout-ms", "1500", "--scrub-s", scrub_s, NULL);
}

static void start_nodes(struct node_world *w, const char *scrub_s)
{
    w->node = start_node(w, "node0", scrub_s);
    w->other = start_node(w, "node1", scrub_s);
    w->c = node_connect(w->node->control);
    w->other_c = node_connect(w->other->control);
}

static bool located(const struct node_world *w, const char *key, const char *node)
{
    char field[80];
    snprintf(field, sizeof(field), "@%s/cpu0", node);
    return directory_field(w->redis, key, field)[0] != 0;
}

/* True if the record has an object. (A record may also consist of displaced copies only.) */
static bool exists(const struct node_world *w, const char *key)
{
    return directory_field(w->redis, key, "ver")[0] != 0;
}

static long long objects(const struct harness_node *n)
{
    return node_pool_figure(n->control, "objects");
}

/* Puts v1 on node1 and replaces it with v2 on node0. The client never sends RELEASE; node1 frees v1 at its
 * next heartbeat. */
static void replace_without_release(struct node_world *w, const char *key)
{
    assert_string_equal(node_put(&w->other_c, "absent", key, 1000), "");
    assert_string_equal(node_put(&w->c, "replace", key, 2000), "");
    assert_true(located(w, key, "node0") && !located(w, key, "node1"));
}

/* Waits until node1 has freed its copy. The directory must not name that copy at any time. */
static void never_named_until_freed(struct node_world *w, const char *key)
{
    uint64_t end = harness_now_ms() + PATIENCE_MS;
    while (objects(w->other)) {
        assert_false(located(w, key, "node1"));
        assert_true(harness_now_ms() < end);
        harness_pause();
    }
    assert_false(located(w, key, "node1"));
}

/* --- replaced copies ---------------------------------------------------------------------------- */

static void replaced_copy_stays_away_when_its_successor_is_deleted(void **state)
{
    struct node_world *w = *state;
    start_nodes(w, "1");
    replace_without_release(w, "k");
    freeReplyObject(harness_command(w->c.resp, "DELETE", "k", NULL));
    never_named_until_freed(w, "k");
    harness_passed(w->h);
}

static void replaced_copy_stays_away_when_its_successor_is_evicted(void **state)
{
    struct node_world *w = *state;
    start_nodes(w, "1");
    replace_without_release(w, "k");
    freeReplyObject(harness_call(w->node->local, "EVICT", "cpu0", "16777216", NULL));
    never_named_until_freed(w, "k");
    harness_passed(w->h);
}

static void replaced_copy_stays_away_when_its_successor_dies(void **state)
{
    struct node_world *w = *state;
    start_nodes(w, "1");
    replace_without_release(w, "k");
    harness_kill(w->node->process);
    never_named_until_freed(w, "k");
    harness_passed(w->h);
}

/* A node that was given up does not bring back an old copy whose successor died with its node. */
static void a_returning_node_does_not_restore_a_replaced_copy(void **state)
{
    struct node_world *w = *state;
    start_nodes(w, "600");
    assert_string_equal(node_put(&w->other_c, "absent", "k", 1000), "");
    uint64_t then = tarn_unix_ms();
    HARNESS_UNTIL(tarn_unix_ms() > then, 1000);
    assert_string_equal(node_put(&w->c, "replace", "k", 2000), "");
    harness_kill(w->node->process);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "EXISTS", "tarn:default:node:node0", NULL) == 0,
                  PATIENCE_MS);
    assert_int_equal(harness_redis_integer(w->redis, "DEL", "tarn:default:node:node1", NULL), 1);
    never_named_until_freed(w, "k");
    harness_passed(w->h);
}

/* A commit whose answer came too late for its client is undone. Nothing else changes. */
static void undoing_a_late_commit_restores_no_other_object(void **state)
{
    struct node_world *w = *state;
    start_nodes(w, "600");
    replace_without_release(w, "k");
    freeReplyObject(harness_command(w->c.resp, "DELETE", "k", NULL));
    assert_false(exists(w, "k"));
    struct node_grant g = node_reserve(&w->other_c, "replace", "late", 1000);
    harness_signal(w->redis->process, SIGSTOP);
    assert_error(node_commit(&w->other_c, &g, "200"), "TIMEOUT");
    harness_signal(w->redis->process, SIGCONT);
    /* The directory thread does each of these after the work that the late answer has caused. */
    for (int i = 0; i < 3; i++)
        assert_string_equal(node_put(&w->other_c, "replace", "other", 1000), "");
    HARNESS_UNTIL(!directory_has(w->redis, "late"), PATIENCE_MS);
    for (int i = 0; i < 3; i++)
        assert_string_equal(node_put(&w->other_c, "replace", "other", 1000), "");
    assert_false(exists(w, "k"));
    harness_passed(w->h);
}

/* A failed replace may lose the old version. The directory then names exactly the copies that exist, and
 * the key stays usable. */
static void failed_replace_leaves_the_old_version_or_none(void **state)
{
    struct node_world *w = *state;
    start_nodes(w, "1");
    assert_string_equal(node_put(&w->other_c, "absent", "k", 1000), "");
    struct node_grant g = node_reserve(&w->c, "replace", "k", 2000);
    harness_signal(w->redis->process, SIGSTOP);
    assert_error(node_commit(&w->c, &g, "200"), "TIMEOUT");
    harness_signal(w->redis->process, SIGCONT);
    HARNESS_UNTIL(!located(w, "k", "node0") && located(w, "k", "node1") == (objects(w->other) == 1),
                  PATIENCE_MS);
    assert_int_equal(objects(w->node), 0);
    assert_string_equal(node_put(&w->c, "replace", "k", 2000), "");
    harness_passed(w->h);
}

/* --- what the directory names ------------------------------------------------------------------- */

static void release_removes_the_location_from_the_directory(void **state)
{
    struct node_world *w = *state;
    char at[64], *save = NULL;
    start_nodes(w, "600");
    assert_string_equal(node_put(&w->c, "absent", "k", 1000), "");
    snprintf(at, sizeof(at), "%s", directory_field(w->redis, "k", "@node0/cpu0"));
    assert_non_null(strtok_r(at, ":", &save));
    const char *slot = strtok_r(NULL, ":", &save), *gen = strtok_r(NULL, ":", &save);
    redisReply *r = harness_command(w->c.resp, "RELEASE", "cpu0", slot, gen, NULL);
    assert_int_equal(r->element[0]->integer, 1);
    freeReplyObject(r);
    HARNESS_UNTIL(!directory_has(w->redis, "k"), PATIENCE_MS);
    harness_passed(w->h);
}

/* Both puts are in one batch, as a client may send them by mistake. */
static void two_puts_of_one_key_and_version_are_not_both_stored(void **state)
{
    static const char *const sizes[][2] = {{"4096", "16"}, {"16", "4096"}, {"64", "64"}};
    struct node_world *w = *state;
    start_nodes(w, "600");
    for (size_t i = 0; i < 3; i++) {
        const char *s0 = sizes[i][0], *s1 = sizes[i][1];
        char key[16], slots[2][24];
        snprintf(key, sizeof(key), "k%zu", i);
        redisReply *g = harness_command(w->c.resp, "RESERVE", "*", "absent", "777", "0", "0", "", key, s0,
                                        "u8", s0, key, s1, "u8", s1, NULL);
        for (int k = 0; k < 2; k++)
            snprintf(slots[k], sizeof(slots[k]), "%lld", g->element[k]->element[2]->integer);
        redisReply *r = harness_command(w->c.resp, "COMMIT", node_deadline(&w->c, 5000), "put", "0", slots[0],
                                        g->element[0]->element[3]->str, "0", slots[1],
                                        g->element[1]->element[3]->str, NULL);
        assert_int_equal(r->element[0]->type, REDIS_REPLY_ARRAY);
        assert_int_equal(r->element[1]->type, REDIS_REPLY_ERROR);
        assert_prefix(r->element[1]->str, "EXISTS");
        const char *at = strchr(directory_field(w->redis, key, "@node0/cpu0"), ':');
        assert_non_null(at);
        assert_int_equal(atoi(at + 1), atoi(slots[0]));
        freeReplyObject(g);
        freeReplyObject(r);
    }
    assert_int_equal(objects(w->node), 3);
    harness_passed(w->h);
}

/* Withdrawals are the only way in which a Redis without eviction gets free memory again. */
static void full_redis_takes_withdrawals(void **state)
{
    struct node_world *w = *state;
    start_nodes(w, "600");
    node_put_many(&w->c, "k", 500, 64);
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "maxmemory", "1", NULL));
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "redis_state"), "away"), PATIENCE_MS);
    freeReplyObject(harness_call(w->node->local, "EVICT", "cpu0", "16777216", NULL));
    HARNESS_UNTIL(directory_count(w->redis) == 0, PATIENCE_MS);
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "maxmemory", "0", NULL));
    harness_passed(w->h);
}

static void a_stale_commit_does_not_report_redis_as_back(void **state)
{
    struct node_world *w = *state;
    start_nodes(w, "600");
    harness_kill(w->redis->process);
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "redis_state"), "away"), PATIENCE_MS);
    redisReply *r = harness_command(w->c.resp, "COMMIT", node_deadline(&w->c, 500), "put", "0", "0",
                                    "0000000000000001", NULL);
    assert_int_equal(r->elements, 1);
    assert_int_equal(r->element[0]->type, REDIS_REPLY_ERROR);
    assert_prefix(r->element[0]->str, "STALE");
    freeReplyObject(r);
    freeReplyObject(harness_command(w->c.resp, "PING", NULL));
    assert_null(strstr(harness_log(w->node->process), "redis is back"));
    harness_passed(w->h);
}

/* --- a network that delivers late --------------------------------------------------------------- */

static struct harness_node *start_behind(struct node_world *w, const struct redis_relay *r,
                                         const char *timeout_ms)
{
    struct harness_redis through = *w->redis;
    snprintf(through.url, sizeof(through.url), "unix://%.150s", r->path);
    return harness_node_start(w->h, "node0", &through, "--pool", "cpu0:bytes=16M", "--heartbeat-ms", "300",
                              "--redis-timeout-ms", timeout_ms, "--scrub-s", "600", NULL);
}

/* A node's pools are written before its record, so a client that sees the record finds the pools. A
 * rewrite of the record removes the mark. */
static void a_nodes_record_is_written_after_its_pools(void **state)
{
    struct node_world *w = *state;
    struct redis_relay *relay = redis_relay_start(w->h, w->redis->unix_path, "pool:node0/cpu0");
    w->node = start_behind(w, relay, "5000");
    relay->armed = true;
    freeReplyObject(harness_redis_call(w->redis, "HSET", NODE0, "mark", "old", NULL));
    HARNESS_UNTIL(!relay->armed, PATIENCE_MS);
    assert_int_equal(harness_redis_integer(w->redis, "HEXISTS", NODE0, "mark", NULL), 1);
    relay->deliver = true;
    HARNESS_UNTIL(harness_redis_integer(w->redis, "HEXISTS", NODE0, "mark", NULL) == 0, PATIENCE_MS);
    redis_relay_end(relay);
    harness_passed(w->h);
}

/* A publish reaches Redis after the node has given it up, withdrawn it and stored another version. */
static void deliver_late(struct node_world *w)
{
    struct redis_relay *relay = redis_relay_start(w->h, w->redis->unix_path, "o:held");
    char before[64];
    w->node = start_behind(w, relay, "400");
    w->c = node_connect(w->node->control);
    assert_string_equal(node_put(&w->c, "absent", "warm", 1000), "");
    struct node_grant g = node_reserve(&w->c, "replace", "held", 1000);
    relay->armed = true;
    redisReply *r = node_commit(&w->c, &g, "5000");
    assert_int_equal(r->type, REDIS_REPLY_ERROR);
    freeReplyObject(r);
    assert_false(relay->armed);
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "waiting_withdrawals"), "0"), PATIENCE_MS);
    HARNESS_UNTIL(!node_put(&w->c, "replace", "held", 2000)[0], PATIENCE_MS);
    snprintf(before, sizeof(before), "%s", directory_field(w->redis, "held", "@node0/cpu0"));
    assert_true(before[0]);
    relay->deliver = true;
    HARNESS_UNTIL(relay->delivered, PATIENCE_MS);
    assert_string_equal(directory_field(w->redis, "held", "@node0/cpu0"), before);
    assert_int_equal(objects(w->node), 2);
    redis_relay_end(relay);
    harness_passed(w->h);
}

static void publish_delivered_late_changes_nothing(void **state)
{
    deliver_late(*state);
}

/* Redis before 6.2 has no CLIENT INFO. */
static void publish_delivered_late_changes_nothing_in_an_old_redis(void **state)
{
    struct node_world *w = *state;
    freeReplyObject(harness_redis_call(w->redis, "ACL", "SETUSER", "default", "-client|info", NULL));
    redisReply *r = harness_redis_call(w->redis, "CLIENT", "INFO", NULL);
    assert_int_equal(r->type, REDIS_REPLY_ERROR);
    freeReplyObject(r);
    deliver_late(w);
}

/* The node's restore reaches Redis after the node was given up and another node, whose clock is behind,
 * has put the key. */
static void restore_delivered_late_changes_nothing(void **state)
{
    struct node_world *w = *state;
    struct redis_relay *relay = redis_relay_start(w->h, w->redis->unix_path, "restore\r\n");
    w->node = start_behind(w, relay, "8000");
    w->c = node_connect(w->node->control);
    w->other = start_node(w, "node1", "600");
    w->other_c = node_connect(w->other->control);
    assert_string_equal(node_put(&w->c, "absent", "k", 1000), "");
    relay->armed = true;
    freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
    HARNESS_UNTIL(!relay->armed, PATIENCE_MS);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "EXISTS", NODE0, NULL) == 0, PATIENCE_MS);
    assert_string_equal(node_put(&w->other_c, "absent", "k", 2000), "");
    freeReplyObject(harness_redis_call(w->redis, "HSET", OBJECT "k", "born", "1", NULL));
    relay->deliver = true;
    HARNESS_UNTIL(objects(w->node) == 0, PATIENCE_MS);
    assert_true(located(w, "k", "node1"));
    assert_string_equal(directory_field(w->redis, "k", "tensor"), "u8[2000]");
    redis_relay_end(relay);
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_REDIS(replaced_copy_stays_away_when_its_successor_is_deleted),
        WITH_REDIS(replaced_copy_stays_away_when_its_successor_is_evicted),
        WITH_REDIS(replaced_copy_stays_away_when_its_successor_dies),
        WITH_REDIS(a_returning_node_does_not_restore_a_replaced_copy),
        WITH_REDIS(undoing_a_late_commit_restores_no_other_object),
        WITH_REDIS(failed_replace_leaves_the_old_version_or_none),
        WITH_REDIS(release_removes_the_location_from_the_directory),
        WITH_REDIS(two_puts_of_one_key_and_version_are_not_both_stored),
        WITH_REDIS(full_redis_takes_withdrawals),
        WITH_REDIS(a_stale_commit_does_not_report_redis_as_back),
        WITH_REDIS(a_nodes_record_is_written_after_its_pools),
        WITH_REDIS(publish_delivered_late_changes_nothing),
        WITH_REDIS(publish_delivered_late_changes_nothing_in_an_old_redis),
        WITH_REDIS(restore_delivered_late_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
