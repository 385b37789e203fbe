/* SPDX-License-Identifier: Apache-2.0 */
/*
 * STORE: a put of one small object to the only node that may take it is one message with its bytes. Whatever
 * stops meanwhile, it ends as a put in two steps does.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/resp/resp.h"
#include "client/client.h"
#include "tests/node_client.h"
#include "tests/relay.h"
#include "tests/world.h"

enum { SMALL = 16384, SOON_MS = 5000 };

static const struct world_plan plan = {.nodes = 1,
                                       .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "1000"},
                                       .client = {.timeout_ms = SOON_MS}};

static int start(void **state)
{
    return world_start_client(state, &plan);
}

static int start_without_tcp(void **state)
{
    static const struct world_plan without = {.nodes = 1,
                                              .args = {"--pool", "cpu0:bytes=16M", "--transports", "shm"},
                                              .client = {.timeout_ms = SOON_MS}};
    return world_start_client(state, &without);
}

static int start_two(void **state)
{
    static const struct world_plan two = {
        .nodes = 2, .args = {"--pool", "cpu0:bytes=16M"}, .client = {.timeout_ms = SOON_MS}};
    return world_start_client(state, &two);
}

static long long stores(const struct world *w)
{
    return node_figure(w->nodes[0]->local, "stores");
}

/* Does a put of that size go by STORE? */
static bool is_stored(const struct world *w, struct tarn_client *c, const char *key, size_t bytes,
                      const struct tarn_put_options *o)
{
    long long before = stores(w);
    assert_int_equal(client_put(c, key, 's', bytes, o), 0);
    assert_int_equal(client_get(c, key, 's', bytes), 0);
    return stores(w) > before;
}

static void nothing_is_reserved(const struct world *w)
{
    HARNESS_UNTIL(node_pool_figure(w->nodes[0]->local, "reserved") == 0, SOON_MS);
}

/* --- which puts --------------------------------------------------------------------------------- */

static void small_objects_are_stored_by_one_message(void **state)
{
    struct world *w = *state;
    static const size_t sizes[] = {0, 1, 63, 4096, SMALL};
    char key[16];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        snprintf(key, sizeof key, "k%zu", i);
        client_put(w->client, "first", 'f', 1, &replacing); /* the node's clock is known */
        assert_true(is_stored(w, w->client, key, sizes[i], NULL));
        assert_true(is_stored(w, w->client, key, sizes[i], &replacing));
    }
    assert_false(is_stored(w, w->client, "large", SMALL + 1, NULL));
    nothing_is_reserved(w);
    harness_passed(w->h);
}

static void pieces_come_in_their_order(void **state)
{
    struct world *w = *state;
    unsigned char put[2 * SMALL], got[SMALL] = {0}, want[SMALL];
    const struct tarn_piece pieces[] = {
        {.addr = put + 9000, .bytes = 7384},
        {.addr = put, .bytes = 1},
        {.addr = put + 20000, .bytes = 500, .stride = 700, .count = 8},
        {.addr = put + 1, .bytes = 4999},
    };
    const struct tarn_piece whole = {.addr = got, .bytes = SMALL};
    struct tarn_item item = {.key = key_of("k"), .pieces = pieces, .npieces = 4, .tensor = tarn_bytes(SMALL)};
    struct tarn_item back = {.key = key_of("k"), .pieces = &whole, .npieces = 1};
    for (size_t i = 0; i < sizeof put; i++)
        put[i] = (unsigned char)(i * 7 + i / 256);
    memcpy(want, put + 9000, 7384);
    want[7384] = put[0];
    for (size_t i = 0; i < 8; i++)
        memcpy(want + 7385 + 500 * i, put + 20000 + 700 * i, 500);
    memcpy(want + 11385, put + 1, 4999);
    client_put(w->client, "first", 'f', 1, NULL);
    long long before = stores(w);
    assert_int_equal(tarn_put(w->client, &item, 1, NULL), 0);
    assert_int_equal(stores(w), before + 1);
    assert_int_equal(tarn_get(w->client, &back, 1, NULL), 0);
    assert_memory_equal(got, want, SMALL);
    harness_passed(w->h);
}

static void long_lists_of_pieces_are_checked(void **state)
{
    struct world *w = *state;
    struct tarn_piece pieces[9] = {{.addr = NULL}};
    struct tarn_item item = {.key = key_of("k"), .pieces = pieces, .npieces = 9, .tensor = tarn_bytes(9)};
    for (int i = 0; i < 8; i++)
        pieces[i] = (struct tarn_piece){.addr = (char[]){"a"}, .bytes = 1};
    pieces[8].bytes = 1;
    client_put(w->client, "first", 'f', 1, NULL);
    assert_int_equal(tarn_put(w->client, &item, 1, NULL), TARN_E_INVALID);
    nothing_is_reserved(w);
    harness_passed(w->h);
}

/* As over tcp, so both ends must use tcp. */
static void a_client_without_tcp_writes_by_itself(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "shm");
    client_put(c, "first", 'f', 1, NULL);
    assert_false(is_stored(w, c, "k", 100, NULL));
    tarn_close(c);
    harness_passed(w->h);
}

static void a_node_without_tcp_takes_no_bytes(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->nodes[0]->control);
    client_put(w->client, "first", 'f', 1, NULL);
    assert_false(is_stored(w, w->client, "k", 100, NULL));
    node_reserve(&c, "absent", "mine", 3);
    assert_error(harness_command(c.resp, "STORE", node_deadline(&c, SOON_MS), "abc", NULL), "NOT_REACHABLE");
    assert_false(directory_has(w->redis, "mine"));
    node_close(&c);
    harness_passed(w->h);
}

/* With another node to turn to, a silent one must not publish behind the client's back. */
static void with_two_nodes_only_a_named_one_stores(void **state)
{
    struct world *w = *state;
    static const struct tarn_put_options there = {.size = sizeof there, .place = "node0"};
    static const struct tarn_put_options both = {.size = sizeof both, .replicas = 2};
    client_put(w->client, "first", 'f', 1, &there);
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_false(is_stored(w, w->client, key, 100, NULL));
    }
    assert_false(is_stored(w, w->client, "copies", 100, &both));
    assert_true(is_stored(w, w->client, "there", 100, &there));
    harness_passed(w->h);
}

/* --- outcomes ----------------------------------------------------------------------------------- */

static void a_refused_put_leaves_the_connection_usable(void **state)
{
    struct world *w = *state;
    assert_int_equal(client_put(w->client, "k", 'a', 100, NULL), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(client_put(w->client, "k", 'b', 100, NULL), TARN_E_EXISTS);
        assert_int_equal(client_put(w->client, "k2", (char)('A' + i), 100, &replacing), 0);
        assert_int_equal(client_get(w->client, "k2", (char)('A' + i), 100), 0);
    }
    assert_int_equal(client_get(w->client, "k", 'a', 100), 0);
    nothing_is_reserved(w);
    harness_passed(w->h);
}

static void others_read_no_older_value_after_a_replace(void **state)
{
    struct world *w = *state;
    struct tarn_client *other = world_client(w, NULL);
    for (int i = 0; i < 200; i++) {
        char value = (char)('a' + i % 26);
        assert_int_equal(client_put(i % 2 ? w->client : other, "k", value, 3000, &replacing), 0);
        assert_int_equal(client_get(i % 2 ? other : w->client, "k", value, 3000), 0);
    }
    tarn_close(other);
    harness_passed(w->h);
}

/* --- what stops meanwhile ----------------------------------------------------------------------- */

static const struct tarn_put_options soon = {.size = sizeof soon, .timeout_ms = 400};

/* Redis may carry out what it was sent before it stopped. Then the node takes it out at once. */
static void is_not_stored(struct world *w, const char *key)
{
    char byte;
    HARNESS_UNTIL(client_put(w->client, "after", 'a', 100, &replacing) == 0, SOON_MS);
    HARNESS_UNTIL(!directory_has(w->redis, key), SOON_MS);
    assert_int_equal(client_read(w->client, key, 100, 0, &byte), TARN_E_NOT_FOUND);
    assert_int_equal(node_pool_figure(w->nodes[0]->local, "objects"), 2); /* "first" and "after" */
}

static void a_put_that_timed_out_is_not_stored_later(void **state)
{
    struct world *w = *state;
    assert_int_equal(client_put(w->client, "first", 'f', 1, NULL), 0);
    for (int who = 0; who < 2; who++) {
        struct harness_process *process = who ? w->redis->process : w->nodes[0]->process;
        harness_signal(process, SIGSTOP);
        int rc = client_put(w->client, "k", 'a', 100, &soon);
        harness_signal(process, SIGCONT);
        assert_true(rc == TARN_E_TIMEOUT || rc == TARN_E_NODE_DOWN || rc == TARN_E_DIRECTORY);
        nothing_is_reserved(w);
        is_not_stored(w, "k");
    }
    harness_passed(w->h);
}

static bool owes_replies(struct tarn_monitor *m)
{
    pthread_mutex_lock(&m->lock);
    bool owes = m->owing != NULL;
    pthread_mutex_unlock(&m->lock);
    return owes;
}

static void a_canceled_put_is_not_stored_later(void **state)
{
    struct world *w = *state;
    const struct tarn_piece piece = {.addr = (char[]){"abc"}, .bytes = 3};
    struct tarn_item item = {.key = key_of("k"), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(3)};
    struct tarn_completion done;
    tarn_op op;
    assert_int_equal(client_put(w->client, "first", 'f', 1, NULL), 0);
    harness_signal(w->redis->process, SIGSTOP);
    assert_int_equal(tarn_submit_put(w->client, &item, 1, NULL, 0, &op), 0);
    HARNESS_UNTIL(node_pool_figure(w->nodes[0]->local, "reserved") == 1, SOON_MS);
    assert_int_equal(tarn_cancel(w->client, op), 0);
    assert_int_equal(tarn_wait(w->client, op, SOON_MS, &done), 0);
    assert_int_equal(done.status, TARN_E_CANCELED);
    nothing_is_reserved(w); /* Redis is still stopped: the grant was told, and given back */
    harness_signal(w->redis->process, SIGCONT);
    is_not_stored(w, "k");
    harness_passed(w->h);
}

/* Both replies come at once, when nobody waits for them any more. */
static void a_canceled_put_gives_its_connection_back(void **state)
{
    struct world *w = *state;
    struct relay *relay = relay_start(w->nodes[0]->unix_path);
    struct tarn_client *c = world_client(w, "tcp");
    const struct tarn_piece piece = {.addr = (char[]){"abc"}, .bytes = 3};
    struct tarn_item item = {.key = key_of("k"), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(3)};
    struct tarn_completion done;
    tarn_op op;
    assert_int_equal(client_put(c, "first", 'f', 1, NULL), 0);
    relay_hold(relay, "RESERVE");
    assert_int_equal(tarn_submit_put(c, &item, 1, NULL, 0, &op), 0);
    HARNESS_UNTIL(relay_held(relay, "RESERVE") == 1, SOON_MS);
    assert_int_equal(tarn_cancel(c, op), 0);
    assert_int_equal(tarn_wait(c, op, SOON_MS, &done), 0);
    assert_int_equal(done.status, TARN_E_CANCELED);
    assert_true(owes_replies(&c->monitor));
    relay_hold(relay, NULL);
    HARNESS_UNTIL(!owes_replies(&c->monitor), SOON_MS);
    nothing_is_reserved(w);
    tarn_close(c);
    relay_stop(relay);
    harness_passed(w->h);
}

/* --- the command -------------------------------------------------------------------------------- */

static void send_store(struct node_client *c, const char *key, const char *bytes)
{
    char size[16];
    snprintf(size, sizeof size, "%zu", strlen(bytes));
    assert_int_equal(tarn_resp_append_strs(c->resp, "RESERVE", "*", "absent", "77", "0", "0", "", key, size,
                                           "u8", size, NULL),
                     0);
    assert_int_equal(tarn_resp_append_strs(c->resp, "STORE", node_deadline(c, SOON_MS), bytes, NULL), 0);
    assert_int_equal(tarn_resp_flush(c->resp, tarn_deadline(SOON_MS), NULL), 0);
}

static redisReply *next_reply(struct node_client *c, int timeout_ms)
{
    redisReply *reply;
    if (tarn_resp_read(c->resp, tarn_deadline((unsigned)timeout_ms), NULL, &reply))
        fail_msg("no answer: %s", tarn_last_error());
    return reply;
}

/* What a RESERVE has granted is told soon, though the directory does not answer. */
static void grants_do_not_wait_for_the_directory(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->nodes[0]->control);
    harness_signal(w->redis->process, SIGSTOP);
    send_store(&c, "k", "abc");
    redisReply *grant = next_reply(&c, 2000);
    assert_int_equal(grant->element[0]->elements, 4);
    freeReplyObject(grant);
    harness_signal(w->redis->process, SIGCONT);
    redisReply *stored = next_reply(&c, SOON_MS);
    assert_int_equal(stored->element[0]->type, REDIS_REPLY_ARRAY);
    freeReplyObject(stored);
    assert_true(directory_has(w->redis, "k"));
    node_close(&c);
    harness_passed(w->h);
}

static double cpu_s(pid_t pid)
{
    struct timespec t;
    clockid_t clock;
    assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
    assert_int_equal(clock_gettime(clock, &t), 0);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The node reads no more on a connection that waits for the directory, and does not turn in circles. */
static void more_requests_wait_without_cost(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->nodes[0]->control);
    pid_t node = harness_pid(w->nodes[0]->process);
    harness_signal(w->redis->process, SIGSTOP);
    send_store(&c, "k", "abc");
    freeReplyObject(next_reply(&c, 2000));
    assert_int_equal(tarn_resp_append_strs(c.resp, "PING", "behind", NULL), 0);
    assert_int_equal(tarn_resp_flush(c.resp, tarn_deadline(SOON_MS), NULL), 0);
    double before = cpu_s(node);
    for (uint64_t until = harness_now_ms() + 500; harness_now_ms() < until; harness_pause())
        ;
    assert_true(cpu_s(node) - before < 0.2);
    harness_signal(w->redis->process, SIGCONT);
    freeReplyObject(next_reply(&c, SOON_MS));
    redisReply *pong = next_reply(&c, SOON_MS);
    assert_string_equal(pong->str, "behind");
    freeReplyObject(pong);
    node_close(&c);
    harness_passed(w->h);
}

static void store_wants_what_was_granted_on_its_connection(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->nodes[0]->control);
    struct tarn_resp *same_session = node_join(w->nodes[0]->control, c.session);
    const char *deadline = node_deadline(&c, 60000);
    char kept[24];
    snprintf(kept, sizeof kept, "%s", deadline);
    assert_error(harness_command(c.resp, "STORE", kept, "abc", NULL), "STALE");
    struct node_grant g = node_reserve(&c, "absent", "k", 3);
    assert_error(harness_command(same_session, "STORE", kept, "abc", NULL), "STALE");
    assert_error(harness_command(c.resp, "STORE", kept, "abcd", NULL), "INVALID");
    assert_error(harness_command(c.resp, "STORE", kept, "abc", NULL), "STALE"); /* once for a RESERVE */
    assert_int_equal(node_pool_figure(w->nodes[0]->local, "reserved"), 1);
    redisReply *r = node_commit(&c, &g, "5000"); /* the reservation is still there */
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    freeReplyObject(r);
    node_reserve(&c, "absent", "late", 3);
    assert_error(harness_command(c.resp, "STORE", "1", "abc", NULL), "TIMEOUT");
    node_reserve(&c, "absent", "refused", 3);
    const char *error = node_try_reserve(&c, "absent", "k", 3, &g);
    assert_prefix(error, "EXISTS");
    assert_error(harness_command(c.resp, "STORE", kept, "abc", NULL), "STALE");
    freeReplyObject(harness_command(c.resp, "RESERVE", "*", "absent", "9", "0", "0", "", "two", "3", "u8",
                                    "3", "three", "3", "u8", "3", NULL));
    assert_error(harness_command(c.resp, "STORE", kept, "abc", NULL), "STALE");
    static char large[65537 + 1];
    memset(large, 'x', sizeof large - 1);
    node_reserve(&c, "absent", "large", 65537);
    assert_error(harness_command(c.resp, "STORE", kept, large, NULL), "INVALID");
    assert_false(directory_has(w->redis, "late"));
    assert_false(directory_has(w->redis, "two"));
    tarn_resp_free(same_session);
    node_close(&c);
    nothing_is_reserved(w);
    harness_passed(w->h);
}

static void an_aborted_reservation_is_not_stored(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->nodes[0]->control);
    struct node_grant g = node_reserve(&c, "absent", "k", 3);
    freeReplyObject(harness_command(c.resp, "ABORT", g.pool, g.slot, g.gen, NULL));
    assert_error(harness_command(c.resp, "STORE", node_deadline(&c, SOON_MS), "abc", NULL), "STALE");
    assert_false(directory_has(w->redis, "k"));
    node_close(&c);
    harness_passed(w->h);
}

#define CASE(fn_, start_) cmocka_unit_test_setup_teardown(fn_, start_, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(small_objects_are_stored_by_one_message, start),
        CASE(pieces_come_in_their_order, start),
        CASE(long_lists_of_pieces_are_checked, start),
        CASE(a_client_without_tcp_writes_by_itself, start),
        CASE(a_node_without_tcp_takes_no_bytes, start_without_tcp),
        CASE(with_two_nodes_only_a_named_one_stores, start_two),
        CASE(a_refused_put_leaves_the_connection_usable, start),
        CASE(others_read_no_older_value_after_a_replace, start),
        CASE(a_put_that_timed_out_is_not_stored_later, start),
        CASE(a_canceled_put_is_not_stored_later, start),
        CASE(a_canceled_put_gives_its_connection_back, start),
        CASE(grants_do_not_wait_for_the_directory, start),
        CASE(more_requests_wait_without_cost, start),
        CASE(store_wants_what_was_granted_on_its_connection, start),
        CASE(an_aborted_reservation_is_not_stored, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
