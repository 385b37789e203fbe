/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes publish their objects again after Redis has lost its data. What was not answered is repeated; what
 * lost against a newer version is freed; a node that was given up meanwhile brings nothing back
 * (docs/consistency.md, "Losing the directory").
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/node_client.h"
#include "tests/redis_relay.h"

#define PATIENCE_MS 15000

/* Starts a node whose scrub is too rare to repair anything in a test. */
static struct harness_node *start_node(struct node_world *w, const char *id, const struct redis_relay *relay,
                                       const char *timeout_ms)
{
    struct harness_redis redis = *w->redis;
    if (relay)
        snprintf(redis.url, sizeof(redis.url), "unix://%.150s", relay->path);
    return harness_node_start(w->h, id, &redis, "--pool", "cpu0:bytes=1M", "--heartbeat-ms", "300",
                              "--redis-timeout-ms", timeout_ms, "--scrub-s", "600", NULL);
}

/* Starts node0 behind a relay that can hold requests about key "k", and node1 without one. */
static struct redis_relay *start_nodes(struct node_world *w, const char *timeout_ms)
{
    struct redis_relay *relay = redis_relay_start(w->h, w->redis->unix_path, "tarn:default:o:k\r\n");
    w->node = start_node(w, "node0", relay, timeout_ms);
    w->other = start_node(w, "node1", NULL, "3000");
    w->c = node_connect(w->node->control);
    w->other_c = node_connect(w->other->control);
    return relay;
}

static long long objects(const struct harness_node *n)
{
    return node_pool_figure(n->control, "objects");
}

static bool listed(const struct node_world *w, const char *id)
{
    char key[96];
    snprintf(key, sizeof(key), "tarn:default:node:%s", id);
    return harness_redis_integer(w->redis, "EXISTS", key, NULL) == 1;
}

static bool is_here(const struct harness_node *n)
{
    return !strcmp(node_info(n->control, "presence"), "here");
}

/* Redis loses its data. The relay holds the node's question whether the directory still has "k". */
static void flush_held(struct node_world *w, struct redis_relay *relay)
{
    relay->armed = true;
    freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
    HARNESS_UNTIL(!relay->armed, PATIENCE_MS);
    assert_false(directory_has(w->redis, "k"));
}

static void an_unanswered_publish_is_repeated(void **state)
{
    struct node_world *w = *state;
    struct redis_relay *relay = start_nodes(w, "300");
    assert_string_equal(node_put(&w->c, "absent", "k", 1000), "");
    flush_held(w, relay);
    HARNESS_UNTIL(directory_has(w->redis, "k"), PATIENCE_MS); /* though the held question never arrives */
    HARNESS_UNTIL(is_here(w->node), PATIENCE_MS);
    assert_int_equal(objects(w->node), 1);
    redis_relay_end(relay);
    harness_passed(w->h);
}

/* The newer version is in the directory first. The older one is freed, because clients may have its
 * location cached. */
static void a_copy_older_than_the_directorys_version_is_freed(void **state)
{
    struct node_world *w = *state;
    struct redis_relay *relay = start_nodes(w, "3000");
    assert_string_equal(node_put(&w->c, "absent", "k", 1000), "");
    uint64_t then = tarn_unix_ms();
    HARNESS_UNTIL(tarn_unix_ms() > then, 1000);
    flush_held(w, relay);
    assert_string_equal(node_put(&w->other_c, "absent", "k", 2000), "");
    relay->deliver = true;
    HARNESS_UNTIL(objects(w->node) == 0, PATIENCE_MS);
    assert_string_equal(directory_field(w->redis, "k", "tensor"), "u8[2000]");
    assert_string_equal(directory_field(w->redis, "k", "@node0/cpu0"), "");
    assert_int_equal(objects(w->other), 1);
    redis_relay_end(relay);
    harness_passed(w->h);
}

static bool is_removed(struct node_client *c, const char *key)
{
    redisReply *r = harness_command(c->resp, "DELETE", key, NULL);
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    bool removed = r->element[0]->type == REDIS_REPLY_INTEGER;
    freeReplyObject(r);
    return removed;
}

/* The node publishes a key that was removed when the node counted as gone. It must free all its objects,
 * and not trust that publish. */
static void a_node_that_counted_as_dead_restores_nothing(void **state)
{
    struct node_world *w = *state;
    struct redis_relay *relay = start_nodes(w, "20000");
    assert_string_equal(node_put(&w->c, "absent", "k", 1000), "");
    flush_held(w, relay); /* also holds everything that node0 sends after it */
    HARNESS_UNTIL(!listed(w, "node0"), PATIENCE_MS);
    HARNESS_UNTIL(is_removed(&w->other_c, "k"), PATIENCE_MS);
    relay->deliver = true;
    HARNESS_UNTIL(relay->delivered, PATIENCE_MS);
    HARNESS_UNTIL(node_figure(w->node->control, "given_up") > 0 && is_here(w->node), PATIENCE_MS);
    assert_int_equal(objects(w->node), 0);
    HARNESS_UNTIL(!directory_has(w->redis, "k"), PATIENCE_MS);
    redis_relay_end(relay);
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_REDIS(an_unanswered_publish_is_repeated),
        WITH_REDIS(a_copy_older_than_the_directorys_version_is_freed),
        WITH_REDIS(a_node_that_counted_as_dead_restores_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
