/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases of a node from which a client has not read for a while, while Redis answers and when it is away. A
 * client reads from a node only while the node's record lives (docs/consistency.md, "Who can read an old
 * copy").
 */
#include <signal.h>

#include "tests/node_client.h"
#include "tests/world.h"

#define BEAT_MS (300 * harness_slower())
#define TTL_MS (3 * BEAT_MS)
#define BYTES 4096
#define BACK_MS 10000

static const struct world_plan plan = {.nodes = 2,
                                       .args = {"--pool", "cpu0:bytes=32M", "--heartbeat-ms", "300"},
                                       .client = {.timeout_ms = 5000}};

static const struct tarn_put_options on_node0 = {.size = sizeof on_node0, .place = "node0"};
static const struct tarn_put_options on_node1 = {.size = sizeof on_node1, .place = "node1"};

static int start(void **state)
{
    return world_start_client(state, &plan);
}

static uint64_t round_trips(struct tarn_client *c)
{
    struct tarn_stats s = {.size = sizeof s};
    assert_int_equal(tarn_client_stats(c, &s), 0);
    return s.directory_round_trips;
}

/* A client that has not read for long has no lease. It asks once. */
static void an_idle_client_asks_once(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "shm");
    assert_int_equal(client_put(w->client, "k", 'v', BYTES, &on_node1), 0);
    assert_int_equal(client_get(c, "k", 'v', BYTES), 0);
    uint64_t before = round_trips(c);
    for (uint64_t until = harness_now_ms() + 2 * TTL_MS; harness_now_ms() < until; harness_pause())
        ;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(client_get(c, "k", 'v', BYTES), 0);
    assert_int_equal(round_trips(c), before); /* no new look-up */
    tarn_close(c);
    harness_passed(w->h);
}

/* The reader uses another node while this one is given up. It would notice only at its next read there,
 * when Redis is unreachable. */
static void a_node_lost_before_redis_is_not_read(void **state)
{
    struct world *w = *state;
    struct tarn_client *reader = world_client(w, "shm");
    char byte;
    assert_int_equal(client_put(w->client, "k", 'o', BYTES, &on_node1), 0);
    assert_int_equal(client_put(w->client, "other", 'x', BYTES, &on_node0), 0);
    assert_int_equal(client_get(reader, "k", 'o', BYTES), 0);
    harness_signal(w->nodes[1]->process, SIGSTOP);
    for (uint64_t gone = 0; gone == 0 || harness_now_ms() < gone + BEAT_MS; harness_pause()) {
        assert_int_equal(client_get(reader, "other", 'x', BYTES), 0);
        if (gone == 0 && !world_lists(w, "node1"))
            gone = harness_now_ms();
    }
    harness_signal(w->redis->process, SIGSTOP);
    for (uint64_t until = harness_now_ms() + 2 * TTL_MS; harness_now_ms() < until; harness_pause()) {
        assert_int_not_equal(client_read(reader, "k", BYTES, 100, &byte), 0);
        assert_int_equal(client_get(reader, "other", 'x', BYTES), 0);
    }
    harness_signal(w->redis->process, SIGCONT);
    harness_signal(w->nodes[1]->process, SIGCONT);
    HARNESS_UNTIL(client_read(reader, "other", BYTES, 0, &byte) == 0, BACK_MS);
    tarn_close(reader);
    harness_passed(w->h);
}

/* The client has not read from node1 for long, but has renewed its lease together with the other node's.
 * Reads continue. */
static void renewed_leases_serve_copies_not_read_for_long(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "shm");
    assert_int_equal(client_put(w->client, "k", 'v', BYTES, &on_node1), 0);
    assert_int_equal(client_put(w->client, "other", 'x', BYTES, &on_node0), 0);
    assert_int_equal(client_get(c, "k", 'v', BYTES), 0);
    client_gets_for(c, "other", 'x', BYTES, 3 * TTL_MS);
    harness_signal(w->redis->process, SIGSTOP);
    client_gets_for(c, "other", 'x', BYTES, TTL_MS);
    client_gets_quickly_for(c, "k", 'v', BYTES, TTL_MS);
    harness_signal(w->redis->process, SIGCONT);
    tarn_close(c);
    harness_passed(w->h);
}

/* The client's earlier questions were not about this object's node. */
static void a_copy_just_looked_up_stays_readable_without_redis(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "shm");
    struct tarn_key key = key_of("k");
    struct tarn_hits *hits;
    assert_int_equal(client_put(w->client, "k", 'v', BYTES, &on_node1), 0);
    assert_int_equal(client_put(w->client, "other", 'x', BYTES, &on_node0), 0);
    client_gets_for(c, "other", 'x', BYTES, 3 * TTL_MS);
    for (uint64_t until = harness_now_ms() + 2 * TTL_MS; harness_now_ms() < until; harness_pause())
        ;
    assert_int_equal(tarn_lookup(c, &key, 1, NULL, &hits), 0);
    tarn_hits_free(hits);
    for (uint64_t until = harness_now_ms() + BEAT_MS; harness_now_ms() < until; harness_pause())
        ;
    harness_signal(w->redis->process, SIGSTOP);
    client_gets_quickly_for(c, "k", 'v', BYTES, 2 * TTL_MS);
    harness_signal(w->redis->process, SIGCONT);
    tarn_close(c);
    harness_passed(w->h);
}

/* The client's leases ended long ago, while Redis answered and the client was idle. It asks once, then
 * reads on. */
static void an_idle_client_reads_on_without_redis(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "shm");
    assert_int_equal(client_put(w->client, "k", 'v', BYTES, &on_node1), 0);
    assert_int_equal(client_get(c, "k", 'v', BYTES), 0);
    for (uint64_t until = harness_now_ms() + 2 * TTL_MS; harness_now_ms() < until; harness_pause())
        ;
    harness_signal(w->redis->process, SIGSTOP);
    client_gets_quickly_for(c, "k", 'v', BYTES, 3 * TTL_MS);
    harness_signal(w->redis->process, SIGCONT);
    tarn_close(c);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_node_lost_before_redis_is_not_read),
        CASE(renewed_leases_serve_copies_not_read_for_long),
        CASE(a_copy_just_looked_up_stays_readable_without_redis),
        CASE(an_idle_client_reads_on_without_redis),
        CASE(an_idle_client_asks_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
