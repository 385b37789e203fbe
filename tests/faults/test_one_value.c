/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A key has one value (one_value.h) while the node that holds the old one stops. Where a call must end before
 * the node's record does, records live 3 s: a client waits for a stalled node first (TARN_PATIENCE_NS), and
 * on a busy host another node then needs time to answer.
 */
#include <poll.h>
#include <pthread.h>

#include "base/clock.h"
#include "tests/faults/one_value.h"
#include "tests/stall.h"

#define SHORT_MS 1000 /* a deadline shorter than the life of a record of 3 s */

static const struct world_plan long_plan = {
    .nodes = 3, .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "1000", "--scrub-s", "600"}};

static int start_long(void **state)
{
    router_no_unix(false);
    return world_start(state, &long_plan);
}

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

#define LONG_CASE(test_) cmocka_unit_test_setup_teardown(test_, start_long, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(replaced_while_its_node_stands_still),
        CASE(removed_while_its_node_stands_still),
        LONG_CASE(removed_again_while_its_node_stands_still),
        LONG_CASE(too_short_a_deadline_is_in_doubt),
        CASE(replaced_while_its_node_pauses),
    };
    transport = "shm";
    int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
    transport = "tcp";
    return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
