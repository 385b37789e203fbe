/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts that lose their reservation before the commit, as when a session breaks off. A put is tried up to
 * three times.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "client/client.h"
#include "tests/node_client.h"
#include "tests/relay.h"
#include "tests/world.h"

enum { BYTES = 20000, TRIES = 3, WAIT_MS = 10000 }; /* by COMMIT, not by STORE */

static const struct world_plan plan = {.nodes = 1,
                                       .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "2000"},
                                       .client = {.timeout_ms = 10000, .transports = "tcp"}};

static struct relay *relay;
static struct tarn_resp *control; /* another connection of the client's session, not through the relay */

/* A put in another thread. */
static struct {
    pthread_t thread;
    struct tarn_client *client;
    int status;
    atomic_bool running, ended;
} putting;

static void end_putting(void)
{
    if (atomic_exchange(&putting.running, false))
        pthread_join(putting.thread, NULL);
}

static int start(void **state)
{
    int rc = world_start(state, &plan);
    struct world *w = *state;
    char session[17];
    relay = relay_start(w->nodes[0]->unix_path);
    w->client = world_client(w, "tcp");
    assert_int_equal(client_put(w->client, "first", 'f', BYTES, NULL), 0); /* opens its connections */
    snprintf(session, sizeof session, "%016" PRIx64, w->client->session);
    control = node_join(relay_node(relay), session);
    return rc;
}

static int stop(void **state)
{
    struct world *w = *state;
    relay_hold(relay, NULL);
    end_putting();
    tarn_resp_free(control);
    tarn_close(w->client);
    w->client = NULL;
    relay_stop(relay);
    return world_stop(state);
}

static void *put_main(void *arg)
{
    (void)arg;
    putting.status = client_put(putting.client, "k", 'k', BYTES, NULL);
    atomic_store(&putting.ended, true);
    return NULL;
}

static void start_putting(struct world *w)
{
    putting.client = w->client;
    atomic_store(&putting.ended, false);
    relay_hold(relay, "COMMIT");
    assert_int_equal(pthread_create(&putting.thread, NULL, put_main, NULL), 0);
    atomic_store(&putting.running, true);
}

/* Aborts the reservation named by the COMMIT that the relay holds. */
static void fail_a_try(void)
{
    char pool[16], slot[16], gen[24];
    HARNESS_UNTIL(relay_held(relay, "COMMIT") > 0, WAIT_MS);
    relay_argument(relay, "COMMIT", 3, pool, sizeof pool);
    relay_argument(relay, "COMMIT", 4, slot, sizeof slot);
    relay_argument(relay, "COMMIT", 5, gen, sizeof gen);
    redisReply *reply = harness_command(control, "ABORT", pool, slot, gen, NULL);
    assert_int_equal(reply->elements, 1);
    assert_int_equal(reply->element[0]->integer, 1);
    freeReplyObject(reply);
    relay_pass(relay);
}

static void a_put_is_tried_again(void **state)
{
    struct world *w = *state;
    unsigned before = relay_passed(relay, "RESERVE");
    start_putting(w);
    for (int i = 1; i < TRIES; i++)
        fail_a_try();
    HARNESS_UNTIL(relay_held(relay, "COMMIT") > 0, WAIT_MS);
    relay_hold(relay, NULL);
    end_putting();
    if (putting.status)
        fail_msg("put: %s", tarn_error_name(putting.status));
    assert_int_equal(relay_passed(relay, "RESERVE") - before, TRIES);
    assert_int_equal(client_get(w->client, "k", 'k', BYTES), 0);
    harness_passed(w->h);
}

static void a_put_has_a_limited_number_of_tries(void **state)
{
    struct world *w = *state;
    unsigned before = relay_passed(relay, "RESERVE");
    start_putting(w);
    for (int i = 0; i < TRIES; i++)
        fail_a_try();
    HARNESS_UNTIL(atomic_load(&putting.ended), WAIT_MS);
    assert_int_equal(putting.status, TARN_E_NODE_DOWN);
    assert_int_equal(relay_passed(relay, "RESERVE") - before, TRIES);
    assert_int_equal(client_get(w->client, "k", 'k', BYTES), TARN_E_NOT_FOUND);
    assert_int_equal(node_pool_figure(relay_node(relay), "reserved"), 0);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(a_put_is_tried_again),
        CASE(a_put_has_a_limited_number_of_tries),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
