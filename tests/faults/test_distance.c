/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that is 100, 200 or 300 ms of round trip away from Redis and the nodes. Each of its operations
 * ends within the default deadline, and a first put takes at most six round trips.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/client.h"
#include "client/peer_node.h"
#include "tests/node_client.h"
#include "tests/router.h"
#include "tests/stall.h"
#include "tests/world.h"

enum { NODES = 2, LIMIT_MS = 5000, FIRST_PUT_TRIPS = 6, MANY = 20, BYTES = 100000 };

struct far {
    struct harness *h;
    struct harness_redis *redis;
    struct harness_node *nodes[NODES];
    struct router *router;
    struct relay *relays[1 + 2 * NODES];
    int nrelays;
    struct stalls *stalls;
    char url[64];
};

static struct relay *add(struct far *f, const char *to)
{
    return f->relays[f->nrelays++] = router_add(f->router, "127.0.0.1:0", to);
}

static void start_node(struct far *f, int i)
{
    char id[16], port[16], data[32];

    snprintf(id, sizeof id, "node%d", i);
    snprintf(port, sizeof port, "%u", harness_free_port());
    snprintf(data, sizeof data, "127.0.0.1:%s", port);
    f->nodes[i] = harness_node_start(f->h, id, f->redis, "--pool", "p0:bytes=64M", "--data-port", port, NULL);
    router_route(f->nodes[i]->control, relay_address(add(f, f->nodes[i]->control)));
    router_route(data, relay_address(add(f, data)));
}

static int start(void **state)
{
    struct far *f = calloc(1, sizeof *f);
    assert_non_null(f);
    *state = f;
    f->h = harness_new();
    f->redis = harness_redis_start(f->h, NULL);
    f->router = router_start(1);
    f->stalls = stalls_start(NULL, NULL);
    snprintf(f->url, sizeof f->url, "redis://%s", relay_address(add(f, f->redis->address)));
    for (int i = 0; i < NODES; i++)
        start_node(f, i);
    return 0;
}

static int stop(void **state)
{
    struct far *f = *state;
    router_no_unix(false);
    router_stop(f->router);
    stalls_stop(f->stalls);
    harness_free(f->h);
    free(f);
    return 0;
}

/* From now on every connection has this round trip, and nodes look remote. */
static void move_away(struct far *f, uint32_t round_trip_ms)
{
    router_no_unix(true);
    for (int i = 0; i < f->nrelays; i++)
        relay_set(f->relays[i], &(struct relay_state){.delay_ms = round_trip_ms / 2});
}

static struct tarn_client *open_client(const struct far *f)
{
    return client_open(f->url, (struct tarn_options){.transports = "tcp"});
}

/* Milliseconds since `begun`, without the time in which the host stalled. */
static uint64_t taken_ms(const struct far *f, uint64_t begun)
{
    uint64_t ended = tarn_now_ns();
    return (ended - begun - stalls_within(f->stalls, begun, ended)) / TARN_NS_PER_MS;
}

#define IN_TIME(f_, what_) \
    do { \
        uint64_t begun_ = tarn_now_ns(); \
        int rc_ = (what_); \
        if (rc_ != 0) \
            fail_msg("%s: %d: %s", #what_, rc_, tarn_last_error()); \
        print_message("  %5u ms: %s\n", (unsigned)taken_ms(f_, begun_), #what_); \
        assert_in_range(taken_ms(f_, begun_), 0, LIMIT_MS); \
    } while (0)

static int put_many(struct tarn_client *c, char kind)
{
    static char data[MANY][BYTES];
    struct tarn_piece pieces[MANY];
    struct tarn_item items[MANY];
    char keys[MANY][16];

    memset(data, kind, sizeof data);
    for (int i = 0; i < MANY; i++) {
        snprintf(keys[i], sizeof keys[i], "many%d", i);
        pieces[i] = (struct tarn_piece){.addr = data[i], .bytes = BYTES};
        items[i] = (struct tarn_item){
            .key = key_of(keys[i]), .pieces = &pieces[i], .npieces = 1, .tensor = tarn_bytes(BYTES)};
    }
    return tarn_put(c, items, MANY, NULL);
}

static int remove_one(struct tarn_client *c, const char *key)
{
    struct tarn_key k = key_of(key);
    return tarn_remove(c, &k, 1, NULL, 0);
}

static void assert_no_node_aside(struct tarn_client *c)
{
    char id[16];
    for (int i = 0; i < NODES; i++) {
        snprintf(id, sizeof id, "node%d", i);
        assert_int_equal(atomic_load(&client_remote(c, id)->health), TARN_UP);
    }
}

static void all_is_done_in_time(struct far *f, uint32_t round_trip_ms)
{
    static const struct tarn_put_options both = {
        .size = sizeof both, .flags = TARN_PUT_REPLACE, .replicas = 2};

    print_message("%u ms of round trip\n", round_trip_ms);
    move_away(f, round_trip_ms);
    struct tarn_client *c = open_client(f), *other = open_client(f);
    IN_TIME(f, client_put(c, "k", 'a', BYTES, NULL));
    IN_TIME(f, client_get(c, "k", 'a', BYTES));
    IN_TIME(f, client_get(c, "k", 'a', BYTES));     /* over an existing link */
    IN_TIME(f, client_get(other, "k", 'a', BYTES)); /* this client knows neither the key nor the node */
    IN_TIME(f, put_many(c, 'm'));
    IN_TIME(f, client_get(other, "many7", 'm', BYTES));
    IN_TIME(f, client_put(c, "k", 'b', BYTES, &replacing));
    IN_TIME(f, client_get(c, "k", 'b', BYTES));
    IN_TIME(f, client_put(c, "twice", 't', BYTES, &both));
    IN_TIME(f, client_get(other, "twice", 't', BYTES));
    IN_TIME(f, remove_one(c, "k"));
    assert_int_equal(client_get(c, "k", 'b', BYTES), TARN_E_NOT_FOUND);
    assert_no_node_aside(c);
    assert_no_node_aside(other);
    tarn_close(other);
    tarn_close(c);
    harness_passed(f->h);
}

static void at_100_ms(void **state)
{
    all_is_done_in_time(*state, 100);
}

static void at_200_ms(void **state)
{
    all_is_done_in_time(*state, 200);
}

static void at_300_ms(void **state)
{
    all_is_done_in_time(*state, 300);
}

static void a_first_put_takes_six_round_trips(void **state)
{
    static const uint32_t trips[] = {100, 200, 300};
    struct far *f = *state;
    char key[16];

    for (int i = 0; i < 3; i++) {
        move_away(f, trips[i]);
        struct tarn_client *c = open_client(f);
        snprintf(key, sizeof key, "k%d", i);
        uint64_t begun = tarn_now_ns();
        assert_int_equal(client_put(c, key, 'a', 1000, NULL), 0);
        uint64_t ms = taken_ms(f, begun);
        print_message("  %u ms of round trip: %u ms, %.2f round trips\n", trips[i], (unsigned)ms,
                      (double)ms / trips[i]);
        assert_in_range(ms, 0, FIRST_PUT_TRIPS * trips[i] + trips[i] / 2);
        tarn_close(c);
    }
    harness_passed(f->h);
}

/* Redis is near, so the client expects the nodes to be near. (HELLO on a new connection takes two round
 * trips here.) */
static void nodes_are_far_and_redis_is_near(void **state)
{
    struct far *f = *state;

    move_away(f, 200);
    relay_set(f->relays[0], NULL);
    struct tarn_client *c = open_client(f);
    IN_TIME(f, client_put(c, "k", 'a', BYTES, NULL));
    IN_TIME(f, client_get(c, "k", 'a', BYTES));
    assert_no_node_aside(c);
    tarn_close(c);
    harness_passed(f->h);
}

/* The nodes were near when the client measured them. Operations in flight at the change may count as
 * silence, later ones must not. */
static void nodes_that_become_far_are_used_again(void **state)
{
    struct far *f = *state;

    move_away(f, 2);
    struct tarn_client *c = open_client(f);
    assert_int_equal(client_put(c, "k", 'a', BYTES, NULL), 0);
    assert_int_equal(client_get(c, "k", 'a', BYTES), 0);
    move_away(f, 300);
    HARNESS_UNTIL(client_put(c, "k", 'b', BYTES, &replacing) == 0, 15000);
    IN_TIME(f, client_get(c, "k", 'b', BYTES));
    IN_TIME(f, client_put(c, "k", 'c', BYTES, &replacing));
    tarn_close(c);
    harness_passed(f->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(a_first_put_takes_six_round_trips),
        CASE(at_100_ms),
        CASE(at_200_ms),
        CASE(at_300_ms),
        CASE(nodes_are_far_and_redis_is_near),
        CASE(nodes_that_become_far_are_used_again),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("distance", tests, NULL, NULL);
}
