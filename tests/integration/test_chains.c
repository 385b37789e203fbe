/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains (TARN_PUT_CHAIN): a node evicts a chain from its end. Over a real node, whose pool has few slots;
 * tests wait for its clock where the order of uses counts.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/node_client.h"
#include "tests/world.h"

enum { BYTES = 100, SLOTS = 8, LONG_CHAIN = 200 };

static const struct world_plan plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=1M,slots=8"}, .client = {.timeout_ms = 10000}};
static const struct world_plan large = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=1M,slots=200"}, .client = {.timeout_ms = 10000}};

static int start(void **state)
{
    return world_start_client(state, &plan);
}

static int start_large(void **state)
{
    return world_start_client(state, &large);
}

/* Until the node's ticks of 10 ms tell what comes next from what was before. */
static void wait_for_ticks(void)
{
    uint64_t since = tarn_now_ns();
    HARNESS_UNTIL(tarn_now_ns() - since > 50 * TARN_NS_PER_MS, 10000);
}

static int put_after(struct tarn_client *c, const char *key, const char *before)
{
    struct tarn_key continues = before ? key_of(before) : (struct tarn_key){0};
    struct tarn_put_options o = {
        .size = sizeof o, .flags = TARN_PUT_CHAIN, .continues = before ? &continues : NULL};
    return client_put(c, key, 'c', BYTES, &o);
}

static bool has(struct tarn_client *c, const char *key)
{
    char byte;
    int rc = client_read(c, key, BYTES, 0, &byte);
    assert_true(rc == 0 || rc == TARN_E_NOT_FOUND);
    return rc == 0;
}

/* Fills the pool: "begin", "end", which continues it or not, and others; all but "begin" are younger and
 * used. */
static void fill(struct tarn_client *c, bool chain)
{
    char key[16];
    assert_int_equal(put_after(c, "begin", NULL), 0);
    wait_for_ticks();
    assert_int_equal(put_after(c, "end", chain ? "begin" : NULL), 0);
    wait_for_ticks();
    for (int i = 2; i < SLOTS; i++) {
        snprintf(key, sizeof key, "other%d", i);
        assert_int_equal(client_put(c, key, 'c', BYTES, NULL), 0);
        wait_for_ticks();
    }
}

static void an_end_is_evicted_before_its_beginning(void **state)
{
    struct world *w = *state;
    fill(w->client, true);
    assert_int_equal(client_put(w->client, "more", 'c', BYTES, NULL), 0);
    assert_true(has(w->client, "begin"));
    assert_false(has(w->client, "end"));
    wait_for_ticks();
    harness_passed(w->h);
}

static void without_a_chain_the_oldest_is_evicted(void **state)
{
    struct world *w = *state;
    fill(w->client, false);
    assert_int_equal(client_put(w->client, "more", 'c', BYTES, NULL), 0);
    assert_false(has(w->client, "begin"));
    assert_true(has(w->client, "end"));
    harness_passed(w->h);
}

/* What a put continues is never evicted for it, though nothing else is as old. */
static void a_put_does_not_evict_what_it_continues(void **state)
{
    struct world *w = *state;
    char key[16], before[16] = "";
    for (int i = 0; i < SLOTS; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(put_after(w->client, key, NULL), 0);
        wait_for_ticks();
    }
    snprintf(before, sizeof before, "k0");
    for (int i = SLOTS; i < 2 * SLOTS - 1; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(put_after(w->client, key, before), 0);
        memcpy(before, key, sizeof before);
    }
    assert_true(has(w->client, "k0"));
    for (int i = SLOTS; i < 2 * SLOTS - 1; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_true(has(w->client, key));
    }
    harness_passed(w->h);
}

static char names[LONG_CHAIN][8];
static struct tarn_item items[LONG_CHAIN];

/* Items "k0", "k1" and so on. */
static void make_items(void)
{
    static char data[BYTES];
    static struct tarn_piece piece = {.addr = data, .bytes = BYTES};
    memset(data, 'c', sizeof data);
    for (int i = 0; i < LONG_CHAIN; i++) {
        snprintf(names[i], sizeof names[i], "k%d", i);
        items[i] = (struct tarn_item){
            .key = key_of(names[i]), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
    }
}

/* A put of several chunks is one chain: though only its middle is unused, its end goes. `odd`: some items are
 * there already. */
static void long_chain(struct world *w, bool odd)
{
    struct tarn_put_options o = {.size = sizeof o, .flags = TARN_PUT_CHAIN};
    make_items();
    for (int i = 60; odd && i < 70; i++)
        assert_int_equal(client_put(w->client, names[i], 'c', BYTES, NULL), 0);
    int rc = tarn_put(w->client, items, LONG_CHAIN, &o);
    assert_int_equal(rc, odd ? TARN_E_EXISTS : 0);
    wait_for_ticks();
    for (int i = 0; i < LONG_CHAIN; i++) {
        if (i < 20 || i >= 150)
            assert_true(has(w->client, names[i]));
    }
    wait_for_ticks();
    for (int i = 0; i < 10; i++) {
        char key[16];
        snprintf(key, sizeof key, "more%d", i);
        assert_int_equal(client_put(w->client, key, 'm', BYTES, NULL), 0);
        wait_for_ticks();
    }
    int here = 0;
    while (here < LONG_CHAIN && has(w->client, names[here]))
        here++;
    for (int i = here; i < LONG_CHAIN; i++)
        assert_false(has(w->client, names[i])); /* no hole in the chain */
    assert_in_range(here, LONG_CHAIN - 11, LONG_CHAIN - 1);
    harness_passed(w->h);
}

static void a_put_of_several_chunks_is_one_chain(void **state)
{
    long_chain(*state, false);
}

static void what_is_there_already_is_part_of_the_chain(void **state)
{
    long_chain(*state, true);
}

/* Of a chain that is longer than the pool the beginning stays: the end would be of no use without it. */
static void the_end_of_too_long_a_chain_is_refused(void **state)
{
    struct world *w = *state;
    struct tarn_put_options o = {.size = sizeof o, .flags = TARN_PUT_CHAIN};
    make_items();
    assert_int_equal(client_put(w->client, "other", 'c', BYTES, NULL), 0);
    assert_int_equal(tarn_put(w->client, items, LONG_CHAIN, &o), TARN_E_FULL);
    for (int i = 0; i < LONG_CHAIN; i++) {
        assert_int_equal(items[i].status, i < SLOTS ? 0 : TARN_E_FULL);
        assert_int_equal(has(w->client, names[i]), i < SLOTS);
    }
    assert_int_equal(client_put(w->client, "more", 'c', BYTES, NULL),
                     0); /* when it has ended, its end may go */
    assert_true(has(w->client, "k0") && !has(w->client, "k7"));
    harness_passed(w->h);
}

static void wrong_options_are_refused(void **state)
{
    struct world *w = *state;
    struct tarn_key key = key_of("a"), none = {0};
    struct tarn_put_options o = {.size = sizeof o, .continues = &key};
    assert_int_equal(client_put(w->client, "k", 'c', BYTES, &o), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "TARN_PUT_CHAIN"));
    o = (struct tarn_put_options){.size = sizeof o, .flags = TARN_PUT_CHAIN, .continues = &none};
    assert_int_equal(client_put(w->client, "k", 'c', BYTES, &o), TARN_E_INVALID);
    o.continues = &key; /* which is not there */
    assert_int_equal(client_put(w->client, "k", 'c', BYTES, &o), 0);
    harness_passed(w->h);
}

static void wrong_words_are_refused(void **state)
{
    static const struct {
        const char *chain;
        bool good;
    } words[] = {{"", true},
                 {"+", true},
                 {"+nothing", true},
                 {"@15/0/1", true},
                 {"@0/5/0000000000000001", true},
                 {"@0/4294967295/1", true},
                 {"x", false},
                 {"@", false},
                 {"@0", false},
                 {"@0/1", false},
                 {"@0/a/1", false},
                 {"@0/1/x", false},
                 {"@9999/0/1", false},
                 {"@0/4294967296/1", false},
                 {"@-1/0/1", false},
                 {"@0/0/", false}};
    struct world *w = *state;
    struct node_client c = node_connect(w->nodes[0]->control);

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        redisReply *r = harness_command(c.resp, "RESERVE", "*", "absent", "7", "0", "0", words[i].chain, "k",
                                        "10", "u8", "10", NULL);
        print_message("\"%s\"\n", words[i].chain);
        assert_int_equal(r->type, words[i].good ? REDIS_REPLY_ARRAY : REDIS_REPLY_ERROR);
        if (!words[i].good)
            assert_memory_equal(r->str, "INVALID", 7);
        freeReplyObject(r);
    }
    node_close(&c);
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_end_is_evicted_before_its_beginning, start, world_stop),
        cmocka_unit_test_setup_teardown(without_a_chain_the_oldest_is_evicted, start, world_stop),
        cmocka_unit_test_setup_teardown(a_put_does_not_evict_what_it_continues, start, world_stop),
        cmocka_unit_test_setup_teardown(a_put_of_several_chunks_is_one_chain, start_large, world_stop),
        cmocka_unit_test_setup_teardown(what_is_there_already_is_part_of_the_chain, start_large, world_stop),
        cmocka_unit_test_setup_teardown(the_end_of_too_long_a_chain_is_refused, start, world_stop),
        cmocka_unit_test_setup_teardown(wrong_options_are_refused, start, world_stop),
        cmocka_unit_test_setup_teardown(wrong_words_are_refused, start, world_stop),
    };
    return cmocka_run_group_tests_name("chains", tests, NULL, NULL);
}
