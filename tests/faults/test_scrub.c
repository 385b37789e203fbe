/* SPDX-License-Identifier: Apache-2.0 */
/* Which objects a node frees because the directory does not name them, and which it must keep. */
#include <stdio.h>
#include <string.h>

#include "tests/node_client.h"
#include "tests/redis_relay.h"

#define PATIENCE_MS 8000

static struct harness_node *start_behind(struct node_world *w, const struct redis_relay *r)
{
    struct harness_redis through = *w->redis;
    snprintf(through.url, sizeof(through.url), "unix://%.150s", r->path);
    return harness_node_start(w->h, "node0", &through, "--pool", "cpu0:bytes=1M", "--heartbeat-ms", "300",
                              "--redis-timeout-ms", "5000", "--scrub-s", "1", NULL);
}

/*
 * Redis loses its data between a look-up's request and its answer. The look-up finds nothing, and the node
 * must free nothing. The relay may hold the sweep's look-up instead, so the test runs twice.
 */
static void copies_whose_records_redis_lost_are_not_freed(void **state)
{
    struct node_world *w = *state;
    for (int i = 0; i < 2; i++) {
        struct redis_relay *relay = redis_relay_start(w->h, w->redis->unix_path, "o:kept");
        char before[64];
        w->node = start_behind(w, relay);
        struct node_client c = node_connect(w->node->control);
        assert_string_equal(node_put(&c, "absent", "kept", 100), "");
        snprintf(before, sizeof(before), "%s", directory_field(w->redis, "kept", "@node0/cpu0"));
        relay->armed = true;
        HARNESS_UNTIL(!relay->armed, PATIENCE_MS);
        freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
        relay->deliver = true;
        HARNESS_UNTIL(directory_has(w->redis, "kept") || !node_pool_figure(w->node->control, "objects"),
                      PATIENCE_MS);
        assert_string_equal(directory_field(w->redis, "kept", "@node0/cpu0"), before);
        assert_int_equal(node_pool_figure(w->node->control, "objects"), 1);
        node_close(&c);
        harness_kill(w->node->process);
        redis_relay_end(relay);
        freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
    }
    harness_passed(w->h);
}

/* A record is missing although Redis has lost nothing: the object was replaced or removed, so the copy is
 * freed. */
static void copies_that_no_record_names_are_freed(void **state)
{
    struct node_world *w = *state;
    w->node = harness_node_start(w->h, "node0", w->redis, "--pool", "cpu0:bytes=1M", "--heartbeat-ms", "300",
                                 "--scrub-s", "1", NULL);
    struct node_client c = node_connect(w->node->control);
    assert_string_equal(node_put(&c, "absent", "gone", 100), "");
    assert_string_equal(node_put(&c, "absent", "elsewhere", 100), "");
    assert_string_equal(node_put(&c, "absent", "kept", 100), "");
    assert_int_equal(harness_redis_integer(w->redis, "DEL", OBJECT "gone", NULL), 1);
    /* The record names another slot, not this copy's. */
    harness_redis_integer(w->redis, "HSET", OBJECT "elsewhere", "@node0/cpu0", "0:77:0000000100000002", NULL);
    HARNESS_UNTIL(node_pool_figure(w->node->control, "objects") == 1, PATIENCE_MS);
    assert_true(directory_has(w->redis, "kept"));
    node_close(&c);
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_REDIS(copies_whose_records_redis_lost_are_not_freed),
        WITH_REDIS(copies_that_no_record_names_are_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
