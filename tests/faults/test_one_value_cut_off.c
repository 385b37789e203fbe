/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What clients may read when a client, a node, or both together (an island) are cut off from Redis, and what
 * holds when they are back (docs/consistency.md, "Cut off from Redis").
 *
 * node1 and the reader reach Redis through relays of their own; node0 and the writer are never cut off.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/router.h"
#include "tests/world.h"

#define TTL_MS (900 * harness_slower()) /* 3 heartbeats */
#define BYTES 4096
#define BACK_MS 10000
#define BACK_READS_MS 2600 /* time to give up a question to Redis, 2/3 of a TTL, and some margin */

struct scene {
    struct harness *h;
    struct harness_redis *redis, behind; /* behind: the address through node1's relay */
    struct harness_node *nodes[2];
    struct router *router;
    struct relay *of_node, *of_reader;
    struct tarn_client *writer, *reader;
};

static const struct relay_state cut = {.cut = RELAY_BOTH};
static const struct tarn_put_options on_node1 = {.size = sizeof on_node1, .place = "node1"};
static const struct tarn_put_options replacing_on_node0 = {
    .size = sizeof replacing_on_node0, .place = "node0", .flags = TARN_PUT_REPLACE};

static struct tarn_client *open_at(const char *redis)
{
    const struct tarn_options o = {.timeout_ms = 1500};
    return client_open(redis, o);
}

static void begin(void **state, const char *way)
{
    struct scene *s = calloc(1, sizeof *s);
    const char *args[] = {"--pool",
                          "cpu0:bytes=32M",
                          "--heartbeat-ms",
                          "300",
                          "--redis-timeout-ms",
                          "500",
                          "--when-cut-off",
                          way,
                          NULL};
    char url[160];
    assert_non_null(s);
    *state = s;
    s->h = harness_new();
    s->redis = harness_redis_start(s->h, NULL);
    s->router = router_start(1);
    s->of_node = router_add(s->router, "127.0.0.1:0", s->redis->address);
    s->of_reader = router_add(s->router, "127.0.0.1:0", s->redis->address);
    s->behind = *s->redis;
    snprintf(s->behind.url, sizeof s->behind.url, "redis://%s", relay_address(s->of_node));
    s->nodes[0] = harness_node_startv(s->h, "node0", s->redis, args);
    s->nodes[1] = harness_node_startv(s->h, "node1", &s->behind, args);
    s->writer = open_at(s->redis->url);
    snprintf(url, sizeof url, "redis://%s", relay_address(s->of_reader));
    s->reader = open_at(url);
    assert_int_equal(client_put(s->writer, "k", 'o', BYTES, &on_node1), 0);
    assert_int_equal(client_get(s->reader, "k", 'o', BYTES), 0);
}

static int serve(void **state)
{
    begin(state, "serve");
    return 0;
}

static int refuse(void **state)
{
    begin(state, "refuse");
    return 0;
}

static int stop(void **state)
{
    struct scene *s = *state;
    relay_set(s->of_node, NULL);
    relay_set(s->of_reader, NULL);
    tarn_close(s->reader);
    tarn_close(s->writer);
    harness_free(s->h);
    router_stop(s->router);
    free(s);
    return 0;
}

static bool lists_node1(const struct scene *s)
{
    return harness_redis_integer(s->redis, "EXISTS", "tarn:default:node:node1", NULL) == 1;
}

/* Gets "k" and returns the status. On success the object must have this byte. */
static int got(struct scene *s, char byte)
{
    return client_get(s->reader, "k", byte, BYTES);
}

static void read_on(struct scene *s, uint64_t ms)
{
    for (uint64_t until = harness_now_ms() + ms; harness_now_ms() < until; harness_pause())
        assert_int_equal(got(s, 'o'), 0);
}

/* From now on no get may return the old version. In the end gets return the new one. */
static void only_new_from_here(struct scene *s)
{
    HARNESS_UNTIL(got(s, 'n') == 0, BACK_MS);
    for (int i = 0; i < 300; i++)
        assert_int_equal(got(s, 'n'), 0);
}

/* The client learns of the replace from the generation on the node. */
static void a_cut_off_client_sees_a_replace_at_the_node(void **state)
{
    struct scene *s = *state;
    read_on(s, TTL_MS);
    relay_set(s->of_reader, &cut);
    read_on(s, 2 * TTL_MS);
    assert_int_equal(client_put(s->writer, "k", 'n', BYTES, &replacing_on_node0), 0);
    got(s, 'n'); /* may fail: the client does not know the new location */
    relay_set(s->of_reader, NULL);
    only_new_from_here(s);
    harness_passed(s->h);
}

static void a_cut_off_node_is_not_read(void **state)
{
    struct scene *s = *state;
    read_on(s, TTL_MS);
    relay_set(s->of_node, &cut);
    HARNESS_UNTIL(!lists_node1(s), BACK_MS);
    assert_int_equal(got(s, 'o'), TARN_E_NOT_FOUND);
    client_put(s->writer, "k", 'n', BYTES, &replacing_on_node0);
    assert_int_equal(got(s, 'n'), 0);
    relay_set(s->of_node, NULL);
    only_new_from_here(s);
    HARNESS_UNTIL(lists_node1(s), BACK_MS);
    only_new_from_here(s);
    harness_passed(s->h);
}

/* The old version may be read while the island lasts, and for a bounded time after it. */
static void a_cut_off_client_and_node_read_on(void **state)
{
    struct scene *s = *state;
    char byte;
    read_on(s, TTL_MS);
    relay_set(s->of_node, &cut);
    relay_set(s->of_reader, &cut);
    HARNESS_UNTIL(!lists_node1(s), BACK_MS);
    read_on(s, 2 * TTL_MS);
    client_put(s->writer, "k", 'n', BYTES, &replacing_on_node0);
    relay_set(s->of_reader, NULL);
    uint64_t back = harness_now_ms();
    while (client_read(s->reader, "k", BYTES, 0, &byte) != 0 || byte == 'o')
        assert_true(harness_now_ms() - back < BACK_READS_MS);
    only_new_from_here(s);
    relay_set(s->of_node, NULL);
    HARNESS_UNTIL(lists_node1(s), BACK_MS);
    only_new_from_here(s);
    harness_passed(s->h);
}

static void a_cut_off_client_refuses_reads(void **state)
{
    struct scene *s = *state;
    read_on(s, TTL_MS);
    relay_set(s->of_reader, &cut);
    uint64_t begun = harness_now_ms();
    HARNESS_UNTIL(got(s, 'o') != 0, TTL_MS + 2000);
    assert_true(harness_now_ms() - begun > TTL_MS / 3); /* not before the lease has ended */
    for (int i = 0; i < 20; i++) {
        uint64_t asked = harness_now_ms();
        assert_int_equal(got(s, 'o'), TARN_E_DIRECTORY);
        assert_non_null(strstr(tarn_last_error(), "when-cut-off"));
        assert_true(harness_now_ms() - asked < 1000 * harness_slower());
    }
    struct tarn_view v;
    struct tarn_key key = key_of("k");
    assert_int_equal(tarn_view(s->reader, &key, 0, &v), TARN_E_DIRECTORY);
    relay_set(s->of_reader, NULL);
    HARNESS_UNTIL(got(s, 'o') == 0, BACK_MS);
    read_on(s, TTL_MS);
    harness_passed(s->h);
}

/* An island reads nothing that was replaced elsewhere. */
static void a_cut_off_client_and_node_refuse_reads(void **state)
{
    struct scene *s = *state;
    read_on(s, TTL_MS);
    relay_set(s->of_node, &cut);
    relay_set(s->of_reader, &cut);
    HARNESS_UNTIL(!lists_node1(s), BACK_MS);
    client_put(s->writer, "k", 'n', BYTES, &replacing_on_node0);
    for (int i = 0; i < 50; i++)
        assert_int_not_equal(got(s, 'n'), 0);
    relay_set(s->of_reader, NULL);
    only_new_from_here(s);
    relay_set(s->of_node, NULL);
    HARNESS_UNTIL(lists_node1(s), BACK_MS);
    only_new_from_here(s);
    harness_passed(s->h);
}

#define SERVE(fn_) cmocka_unit_test_setup_teardown(fn_, serve, stop)
#define REFUSE(fn_) cmocka_unit_test_setup_teardown(fn_, refuse, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVE(a_cut_off_client_sees_a_replace_at_the_node), SERVE(a_cut_off_node_is_not_read),
        SERVE(a_cut_off_client_and_node_read_on),           REFUSE(a_cut_off_client_refuses_reads),
        REFUSE(a_cut_off_client_and_node_refuse_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
