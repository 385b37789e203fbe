/* SPDX-License-Identifier: Apache-2.0 */
/* tarn_pinned(): how long objects are kept from eviction, as reported by the nodes with their copies. */
#include <stdlib.h>
#include <string.h>

#include "tests/node_client.h"
#include "tests/world.h"

static const struct world_plan plan = {.nodes = 2,
                                       .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "200"},
                                       .client = {.timeout_ms = 5000}};

static int setup(void **state)
{
    return world_start_client(state, &plan);
}

static int64_t pinned_ms(struct world *w, const char *name)
{
    struct tarn_key key = key_of(name);
    int64_t ms = 12345;
    assert_int_equal(tarn_pinned(w->client, &key, 1, &ms, 0), 0);
    return ms;
}

static void a_pin_is_seen_until_it_ends(void **state)
{
    struct world *w = *state;
    struct tarn_put_options pin = {.size = sizeof pin, .flags = TARN_PUT_PIN};
    struct tarn_key keys[] = {key_of("put"), key_of("later"), key_of("none")};
    int64_t ms[3];

    assert_int_equal(client_put(w->client, "put", 'a', 100, &pin), 0);
    assert_int_equal(client_put(w->client, "later", 'a', 100, NULL), 0);
    assert_int_equal(tarn_pin(w->client, &keys[1], 60000, 0), 0);
    assert_int_equal(tarn_pinned(w->client, keys, 3, ms, 0), 0);
    assert_true(ms[0] == TARN_PINNED_FOREVER);
    assert_true(ms[1] > 50000 && ms[1] <= 60000);
    assert_int_equal(ms[2], TARN_E_NOT_FOUND);
    assert_int_equal(tarn_unpin(w->client, &keys[0], 0), 0);
    assert_int_equal(pinned_ms(w, "put"), 0);
    assert_int_equal(tarn_pin(w->client, &keys[0], 20, 0), 0);
    HARNESS_UNTIL(pinned_ms(w, "put") == 0, 5000);
    assert_int_equal(tarn_pinned(w->client, NULL, 0, NULL, 0), 0);
    assert_int_equal(tarn_pinned(w->client, keys, 1, NULL, 0), TARN_E_INVALID);
    harness_passed(w->h);
}

static void the_longest_pin_of_all_copies_counts(void **state)
{
    struct world *w = *state;

    assert_int_equal(client_put(w->client, "k", 'a', 100, &twice), 0);
    for (int i = 0; i < 2; i++) {
        struct node_client c = node_connect(w->nodes[i]->control);
        freeReplyObject(harness_command(c.resp, "PIN", i ? "60000" : "30000", "k", NULL));
        node_close(&c);
    }
    assert_true(pinned_ms(w, "k") > 50000);
    harness_passed(w->h);
}

static void pins_of_a_killed_node_are_an_error(void **state)
{
    struct world *w = *state;
    struct tarn_put_options there = {.size = sizeof there, .flags = TARN_PUT_PIN, .place = "node1"};
    struct tarn_key key = key_of("k");
    int64_t ms = 12345;

    assert_int_equal(client_put(w->client, "k", 'a', 100, &there), 0);
    harness_kill(w->nodes[1]->process);
    assert_true(tarn_pinned(w->client, &key, 1, &ms, 2000) < 0);
    assert_true(ms < 0);
    harness_passed(w->h);
}

#define PINNED_TEST(f_) cmocka_unit_test_setup_teardown(f_, setup, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PINNED_TEST(a_pin_is_seen_until_it_ends),
        PINNED_TEST(the_longest_pin_of_all_copies_counts),
        PINNED_TEST(pins_of_a_killed_node_are_an_error),
    };
    return cmocka_run_group_tests_name("pinned", tests, NULL, NULL);
}
