/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A key has one value. Once a put has replaced it or a remove has removed it, no read that begins later
 * returns it, whatever process stops, pauses, dies or is cut off. Every test runs over shm and over tcp. Node
 * records live 600 ms, or 3 s where a call must end before the record does: a client waits for a stalled node
 * first (TARN_PATIENCE_NS), and on a busy host another node then needs time to answer.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/node_client.h"
#include "tests/router.h"
#include "tests/stall.h"
#include "tests/world.h"

#define BYTES 4096
#define HEARTBEAT_MS (200 * harness_slower())
#define TTL_MS (3 * HEARTBEAT_MS)
#define SHORT_MS 1000 /* a deadline shorter than the life of a record of 3 s */
#define WATCH_MS 1500 /* how long the test checks that the old value does not come back */

static const struct world_plan plan = {
    .nodes = 3, .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "200", "--scrub-s", "600"}};
static const struct world_plan long_plan = {
    .nodes = 3, .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "1000", "--scrub-s", "600"}};

static const char *transport; /* of this run of the tests */

static int start(void **state)
{
    router_no_unix(false); /* a failed test may have left it on */
    return world_start(state, &plan);
}

static int start_long(void **state)
{
    router_no_unix(false);
    return world_start(state, &long_plan);
}

static struct tarn_client *open_client(const struct world *w)
{
    return world_client(w, transport);
}

static int put_on(struct tarn_client *c, const char *node, char byte, uint32_t timeout_ms)
{
    const struct tarn_put_options o = {
        .size = sizeof(o), .flags = TARN_PUT_REPLACE, .place = node, .timeout_ms = timeout_ms};
    return client_put(c, "k", byte, BYTES, &o);
}

static int remove_k(struct tarn_client *c, uint32_t timeout_ms)
{
    const struct tarn_key k = key_of("k");
    return tarn_remove(c, &k, 1, NULL, timeout_ms);
}

/* The byte that the client reads, or 0 for a miss or a failure. */
static char seen(struct tarn_client *c)
{
    char byte = 0;
    return client_read(c, "k", BYTES, 300, &byte) == 0 ? byte : 0;
}

/* Opens a reader that has k cached from node1. */
static struct tarn_client *reader_of_node1(const struct world *w, struct tarn_client *writer)
{
    struct tarn_client *reader = open_client(w);
    if (put_on(writer, "node1", 'a', 0))
        fail_msg("put: %s", tarn_last_error());
    assert_int_equal(client_get(reader, "k", 'a', BYTES), 0);
    return reader;
}

/* Checks that from now on neither the reader nor a new client reads `old`. */
static void never(const struct world *w, struct tarn_client *reader, char old)
{
    struct tarn_client *fresh = open_client(w);
    for (uint64_t end = harness_now_ms() + WATCH_MS; harness_now_ms() < end; harness_pause()) {
        assert_int_not_equal(seen(reader), old);
        assert_int_not_equal(seen(fresh), old);
    }
    tarn_close(fresh);
}

static void stop_node(const struct world *w, int i)
{
    harness_signal(w->nodes[i]->process, SIGSTOP);
}

static void go_on(const struct world *w, int i)
{
    harness_signal(w->nodes[i]->process, SIGCONT);
}

/* --- the holder stops --------------------------------------------------------------------------- */

/* Checks that node1's copy is not read, neither now nor after the node continues. */
static void end_unread(struct world *w, struct tarn_client *writer, struct tarn_client *reader)
{
    assert_int_not_equal(seen(reader), 'a');
    go_on(w, 1);
    never(w, reader, 'a');
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

static void replaced_while_its_node_stands_still(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    stop_node(w, 1);
    uint64_t begun = harness_now_ms();
    if (put_on(writer, "node0", 'b', 0))
        fail_msg("%s", tarn_last_error());
    assert_true(harness_now_ms() - begun < TTL_MS + 3000 * harness_slower());
    assert_int_not_equal(seen(reader), 'a');
    go_on(w, 1);
    never(w, reader, 'a');
    assert_int_equal(client_get(reader, "k", 'b', BYTES), 0);
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

static void removed_while_its_node_stands_still(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    stop_node(w, 1);
    if (remove_k(writer, 0))
        fail_msg("%s", tarn_last_error());
    end_unread(w, writer, reader);
}

/* The deadline is too short to learn the outcome: the status says so, and the new value can be read. */
static void too_short_a_deadline_is_in_doubt(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    struct stalls *stalls = stalls_start(NULL, NULL);
    assert_int_equal(seen(writer), 'a');
    stop_node(w, 1);
    uint64_t begun = tarn_now_ns();
    assert_int_equal(put_on(writer, "node0", 'b', SHORT_MS), TARN_E_IN_DOUBT);
    uint64_t ended = tarn_now_ns();
    assert_non_null(strstr(tarn_last_error(), "node1"));
    uint64_t took_ns = ended - begun - stalls_within(stalls, begun, ended);
    stalls_stop(stalls);
    assert_true(took_ns < (SHORT_MS + 100 * harness_slower()) * TARN_NS_PER_MS);
    assert_int_equal(client_get(writer, "k", 'b', BYTES), 0);
    /* This put also waits for what the first one left undone. */
    assert_int_equal(put_on(writer, "node0", 'c', 0), 0);
    end_unread(w, writer, reader);
}

/* The object is gone, but its copy might still be read. The second remove waits for that copy and finds no
 * object. */
static void removed_again_while_its_node_stands_still(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    stop_node(w, 1);
    assert_int_equal(remove_k(writer, SHORT_MS), TARN_E_IN_DOUBT);
    assert_int_not_equal(remove_k(writer, SHORT_MS / 2), TARN_E_NOT_FOUND);
    assert_int_equal(remove_k(writer, 0), TARN_E_NOT_FOUND);
    end_unread(w, writer, reader);
}

static void *go_on_later(void *arg)
{
    struct world *w = arg;
    poll(NULL, 0, 1500); /* part of the fault: how long the node stays stopped */
    go_on(w, 1);
    return NULL;
}

/* The node continues in the middle of the put. */
static void replaced_while_its_node_pauses(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    pthread_t thread;
    stop_node(w, 1);
    assert_int_equal(pthread_create(&thread, NULL, go_on_later, w), 0);
    if (put_on(writer, "node0", 'b', 0))
        fail_msg("%s", tarn_last_error());
    never(w, reader, 'a');
    pthread_join(thread, NULL);
    never(w, reader, 'a');
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

/* --- the writer is cut off from the holder ------------------------------------------------------ */

struct cut {
    struct router *router;
    struct relay *relay;
};

/* Opens a client whose connection to node1 can be cut. Other connections are not affected. */
static struct tarn_client *open_cut(const struct world *w, struct cut *cut)
{
    cut->router = router_start(1);
    cut->relay = router_add(cut->router, "127.0.0.1:0", w->nodes[1]->control);
    router_route(w->nodes[1]->control, relay_address(cut->relay));
    router_no_unix(true);
    struct tarn_client *c = world_client(w, "tcp");
    assert_int_equal(client_get(c, "k", 'a', BYTES), 0);
    relay_set(cut->relay, &(struct relay_state){.cut = RELAY_BOTH});
    return c;
}

static void heal(const struct world *w, struct cut *cut)
{
    relay_set(cut->relay, NULL);
    router_no_unix(false);
    router_route(w->nodes[1]->control, w->nodes[1]->control);
}

static void replaced_by_a_writer_that_does_not_reach_the_node(void **state)
{
    struct world *w = *state;
    struct tarn_client *other = open_client(w), *reader = reader_of_node1(w, other);
    struct cut cut;
    struct tarn_client *writer = open_cut(w, &cut);
    if (put_on(writer, "node0", 'b', 0))
        fail_msg("%s", tarn_last_error());
    never(w, reader, 'a');
    heal(w, &cut);
    never(w, reader, 'a');
    tarn_close(writer);
    tarn_close(reader);
    tarn_close(other);
    router_stop(cut.router);
    harness_passed(w->h);
}

static void removed_by_a_writer_that_does_not_reach_the_node(void **state)
{
    struct world *w = *state;
    struct tarn_client *other = open_client(w), *reader = reader_of_node1(w, other);
    struct cut cut;
    struct tarn_client *writer = open_cut(w, &cut);
    if (remove_k(writer, 0))
        fail_msg("%s", tarn_last_error());
    never(w, reader, 'a');
    heal(w, &cut);
    never(w, reader, 'a');
    tarn_close(writer);
    tarn_close(reader);
    tarn_close(other);
    router_stop(cut.router);
    harness_passed(w->h);
}

/* --- the directory is lost ---------------------------------------------------------------------- */

static void flush(const struct world *w)
{
    freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
}

static void removed_from_an_empty_directory(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    flush(w);
    if (remove_k(writer, 0))
        fail_msg("%s", tarn_last_error());
    never(w, reader, 'a');
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

/* A client that has never seen the key gets NOT_FOUND only if that is final: the node may be too late to
 * publish the key again. */
static void removed_from_an_empty_directory_by_a_stranger(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer),
                       *stranger = open_client(w);
    flush(w);
    int rc = remove_k(stranger, 0);
    assert_true(rc == 0 || rc == TARN_E_DIRECTORY || rc == TARN_E_NOT_FOUND);
    if (rc != TARN_E_DIRECTORY)
        never(w, reader, 'a');
    tarn_close(stranger);
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

/* The node with the old value is stopped while the directory is lost. If the put returns 0, that must stay
 * true. */
static void replaced_in_an_empty_directory(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    stop_node(w, 1);
    flush(w);
    int rc = put_on(writer, "node0", 'b', 0);
    if (rc && rc != TARN_E_DIRECTORY && rc != TARN_E_IN_DOUBT)
        fail_msg("%d: %s", rc, tarn_last_error());
    go_on(w, 1);
    if (!rc)
        never(w, reader, 'a');
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

static void too_short_a_deadline_after_a_loss_says_directory(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    flush(w);
    /* Until a node has noticed the loss, a remove may return 0 only if it succeeded. */
    HARNESS_UNTIL(world_lists(w, "node0"), 3000);
    int rc = remove_k(writer, TTL_MS / 4);
    if (rc && rc != TARN_E_DIRECTORY && rc != TARN_E_TIMEOUT && rc != TARN_E_NODE_DOWN)
        fail_msg("%d: %s", rc, tarn_last_error());
    if (rc == TARN_E_DIRECTORY)
        assert_true(strstr(tarn_last_error(), "director") || strstr(tarn_last_error(), "Redis"));
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

/* --- writers that die or fail ------------------------------------------------------------------- */

/* The writer dies between the COMMITs of its two copies. Soon all readers agree. */
static void writer_dies_between_its_copies(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    struct node_client raw = node_connect(w->nodes[0]->control);
    assert_string_equal(node_put(&raw, "replace", "k", BYTES), "");
    node_close(&raw);
    HARNESS_UNTIL(node_pool_figure(w->nodes[1]->control, "objects") == 0, 2 * HEARTBEAT_MS + 2000);
    never(w, reader, 'a');
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

/* Replaces the key with two copies while one of three nodes is killed or stopped at the commit. */
static void replace_without(struct world *w, int victim, bool killed)
{
    const struct tarn_put_options o = {.size = sizeof(o), .flags = TARN_PUT_REPLACE, .replicas = 2};
    struct tarn_client *writer = open_client(w);
    char old = (char)('a' + 2 * victim), bytes[BYTES];
    struct tarn_piece piece = {.addr = bytes, .bytes = BYTES};
    struct tarn_item item = {.key = key_of("k"), .tensor = tarn_bytes(BYTES)};
    struct tarn_put_session *s;
    if (client_put(writer, "k", old, BYTES, &o))
        fail_msg("%s", tarn_last_error());
    assert_int_equal(tarn_put_begin(writer, &item, 1, &o, &s), 0);
    memset(bytes, old + 1, BYTES);
    assert_int_equal(tarn_put_write(s, 0, 0, &piece, 1, 0), 0);
    if (killed)
        harness_kill(w->nodes[victim]->process);
    else
        stop_node(w, victim);
    int rc = tarn_put_commit(s, NULL, 2000);
    struct tarn_client *fresh = open_client(w);
    char byte = 0, id[16];
    HARNESS_UNTIL(client_read(fresh, "k", BYTES, 1000, &byte) == 0, TTL_MS + 3000);
    assert_true(byte == old + 1 || (rc && byte == old));
    tarn_close(fresh);
    tarn_close(writer);
    snprintf(id, sizeof(id), "node%d", victim);
    if (killed)
        w->nodes[victim] = world_node(w, id);
    else
        go_on(w, victim);
}

/* A replace with two copies fails on one of its nodes. The key keeps its old or gets its new value. */
static void failed_replace_keeps_the_key(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 6; i++)
        replace_without(w, i % 3, i < 3);
    harness_passed(w->h);
}

/* ------------------------------------------------------------------------------------------------ */

#define CASE(test_) cmocka_unit_test_setup_teardown(test_, start, world_stop)
#define LONG_CASE(test_) cmocka_unit_test_setup_teardown(test_, start_long, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(replaced_while_its_node_stands_still),
        CASE(removed_while_its_node_stands_still),
        LONG_CASE(removed_again_while_its_node_stands_still),
        LONG_CASE(too_short_a_deadline_is_in_doubt),
        CASE(replaced_while_its_node_pauses),
        CASE(removed_from_an_empty_directory),
        CASE(removed_from_an_empty_directory_by_a_stranger),
        CASE(replaced_in_an_empty_directory),
        CASE(too_short_a_deadline_after_a_loss_says_directory),
        CASE(writer_dies_between_its_copies),
        CASE(failed_replace_keeps_the_key),
        CASE(replaced_by_a_writer_that_does_not_reach_the_node),
        CASE(removed_by_a_writer_that_does_not_reach_the_node),
    };
    transport = "shm";
    int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
    transport = "tcp";
    return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
