/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All nodes of a namespace have the same heartbeat (docs/consistency.md, "One heartbeat"). A node with
 * another heartbeat is refused while the others live, takes over the directory when they are gone, and counts
 * as cut off when they have taken over its directory.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/node_client.h"
#include "tests/world.h"

#define TTL_MS (900 * harness_slower()) /* 3 heartbeats */
#define SOON_MS 15000
#define BYTES 1000
#define HASH "tarn:default:directory"

static const struct world_plan plan = {.nodes = 1,
                                       .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "300"},
                                       .client = {.timeout_ms = 8000}};

static int start(void **state)
{
    return world_start_client(state, &plan);
}

/* A field of the directory's hash. Valid until the next call. */
static const char *directory(const struct world *w, const char *field)
{
    static char text[64];
    redisReply *r = harness_redis_call(w->redis, "HGET", HASH, field, NULL);
    snprintf(text, sizeof text, "%s", r->type == REDIS_REPLY_STRING ? r->str : "");
    freeReplyObject(r);
    return text;
}

static struct harness_node *start_at_100(struct world *w, const char *id)
{
    return harness_node_start(w->h, id, w->redis, "--pool", "cpu0:bytes=16M", "--heartbeat-ms", "100", NULL);
}

static bool is(const struct harness_node *n, const char *presence)
{
    return !strcmp(node_info(n->control, "presence"), presence);
}

static int times_said(const struct harness_node *n, const char *sentence)
{
    int times = 0;
    for (const char *at = harness_log(n->process); (at = strstr(at, sentence)); at++)
        times++;
    return times;
}

/* The node gives up only after 3 heartbeats: by then the record of a dead directory would have expired. */
static void another_heartbeat_is_refused_at_start(void **state)
{
    struct world *w = *state;
    char id[64], sentence[256];
    const unsigned own = 300 * harness_slower();
    HARNESS_UNTIL(atoi(directory(w, "heartbeat")) == (int)own, SOON_MS);
    snprintf(id, sizeof id, "%s", directory(w, "id"));
    uint64_t begun = harness_now_ms();
    struct harness_process *p =
        harness_node_spawn(w->h, "odd", w->redis, "--pool", "p:bytes=1M", "--heartbeat-ms", "500", NULL);
    assert_int_equal(harness_wait(p, SOON_MS), 1);
    assert_true(harness_now_ms() - begun + 400 >= TTL_MS);
    snprintf(sentence, sizeof sentence,
             "tarnd: --heartbeat-ms %u: the other nodes of namespace 'default' (redis at redis://%s) beat "
             "every %u ms: "
             "start with --heartbeat-ms %u, or stop them first",
             500 * harness_slower(), w->redis->address, own, own);
    if (!strstr(harness_log(p), sentence))
        fail_msg("no \"%s\" in: %s", sentence, harness_log(p));
    assert_string_equal(directory(w, "id"), id);
    assert_int_equal(atoi(directory(w, "heartbeat")), own);
    assert_true(is(w->nodes[0], "here"));
    assert_false(world_lists(w, "odd"));
    harness_passed(w->h);
}

/* The node is killed, so that its last beat and its record are still in Redis. */
static void a_node_restarted_alone_takes_over_the_directory(void **state)
{
    struct world *w = *state;
    char id[64];
    snprintf(id, sizeof id, "%s", directory(w, "id"));
    harness_kill(w->nodes[0]->process);
    struct harness_node *n = start_at_100(w, "node0");
    assert_string_equal(node_info(n->control, "state"), "ready");
    assert_int_equal(atoi(directory(w, "heartbeat")), 100 * harness_slower());
    assert_string_not_equal(directory(w, "id"), id);
    struct tarn_client *c = world_client(w, NULL);
    if (client_put(c, "k", 'k', BYTES, &replacing))
        fail_msg("put: %s", tarn_last_error());
    assert_int_equal(client_get(c, "k", 'k', BYTES), 0);
    tarn_close(c);
    harness_passed(w->h);
}

/* Another node takes over the directory while this one is stopped. The old value on the stopped node is
 * not read again. */
static void a_running_node_whose_directory_was_taken_over_is_cut_off(void **state)
{
    struct world *w = *state;
    struct harness_node *old = w->nodes[0];
    const char *const fields[] = {"id", "heartbeat", "since", "lost", "lived"};
    char before[5][64], byte = 0;
    assert_int_equal(client_put(w->client, "k", 'o', BYTES, NULL), 0);
    assert_int_equal(client_get(w->client, "k", 'o', BYTES), 0);
    harness_signal(old->process, SIGSTOP);
    struct harness_node *other = start_at_100(w, "node1");
    struct tarn_client *writer = world_client(w, NULL);
    if (client_put(writer, "k", 'n', BYTES, &replacing))
        fail_msg("put: %s", tarn_last_error());
    tarn_close(writer);
    for (int i = 0; i < 5; i++)
        snprintf(before[i], sizeof before[i], "%s", directory(w, fields[i]));
    struct node_client c = {0};
    harness_signal(old->process, SIGCONT);
    HARNESS_UNTIL(is(old, "conflict"), SOON_MS);
    for (uint64_t end = harness_now_ms() + 2 * TTL_MS; harness_now_ms() < end; harness_pause()) {
        assert_int_equal(client_get(w->client, "k", 'n', BYTES), 0);
        assert_false(world_lists(w, "node0"));
        for (int i = 0; i < 5; i++)
            assert_string_equal(directory(w, fields[i]), before[i]);
    }
    char sentence[64];
    snprintf(sentence, sizeof sentence, "start with --heartbeat-ms %u, or stop them first",
             100 * harness_slower());
    assert_int_equal(times_said(old, sentence), 1);
    assert_string_equal(node_info(old->control, "directory_state"), "unsettled");
    c = node_connect(old->control);
    struct node_grant g = node_reserve(&c, "absent", "late", BYTES);
    redisReply *r = node_commit(&c, &g, "2000");
    assert_int_equal(r->type, REDIS_REPLY_ERROR);
    assert_prefix(r->str, "AGAIN");
    freeReplyObject(r);
    node_close(&c);
    assert_true(is(other, "here"));
    /* The node comes back when the other one is gone, without its objects. */
    harness_kill(other->process);
    HARNESS_UNTIL(is(old, "here") && world_lists(w, "node0"), SOON_MS);
    assert_int_equal(atoi(directory(w, "heartbeat")), 300 * harness_slower());
    assert_int_equal(node_pool_figure(old->control, "objects"), 0);
    assert_int_not_equal(client_read(w->client, "k", BYTES, 2000, &byte), 0);
    harness_passed(w->h);
}

#define TEST(test_) cmocka_unit_test_setup_teardown(test_, start, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(another_heartbeat_is_refused_at_start),
        TEST(a_node_restarted_alone_takes_over_the_directory),
        TEST(a_running_node_whose_directory_was_taken_over_is_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
