/* SPDX-License-Identifier: Apache-2.0 */
/* A real tarnd with --state-dir ends in all ways, and is started again: what clients find then. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/node_client.h"
#include "tests/world.h"

enum { OBJECTS = 200, BYTES = 20000 };

static const struct world_plan plan = {.nodes = 0, .client = {.timeout_ms = 3000}};

static struct harness_node *start_with(struct world *w, const char *pool, const char *ns)
{
    return harness_node_start(w->h, "kept", w->redis, "--heartbeat-ms", "300", "--pool", pool, "--ns", ns,
                              "--state-dir", harness_path(w->h, "state"), NULL);
}

static struct harness_node *start_node(struct world *w)
{
    return start_with(w, "cpu0:bytes=16M", "default");
}

static void end(struct harness_node *n, int signum)
{
    harness_signal(n->process, signum);
    harness_wait(n->process, HARNESS_TIMEOUT_MS);
}

static int start(void **state)
{
    return world_start(state, &plan);
}

/* A client that had set the node aside asks it again from time to time. */
static void comes_back(struct tarn_client *c, char byte)
{
    HARNESS_UNTIL(client_get(c, "k0", byte, BYTES) == 0, 2000);
}

/* With a client that knows the objects, and with one that does not. */
static void all_is_there_after(struct world *w, int signum)
{
    struct harness_node *n = start_node(w);
    struct tarn_client *c = world_client(w, NULL), *fresh;
    client_put_each(c, "k", OBJECTS, 'a', BYTES, NULL);
    end(n, signum);
    n = start_node(w);
    fresh = world_client(w, "tcp");
    client_get_each(fresh, "k", OBJECTS, 'a', BYTES);
    comes_back(c, 'a');
    client_get_each(c, "k", OBJECTS, 'a', BYTES);
    assert_int_equal(node_pool_figure(n->control, "objects"), OBJECTS);
    assert_int_equal(client_put(c, "k0", 'b', BYTES, &replacing), 0);
    assert_int_equal(client_get(fresh, "k0", 'b', BYTES), 0);
    tarn_close(fresh);
    tarn_close(c);
    harness_passed(w->h);
}

static void a_killed_node_has_all_again(void **state)
{
    all_is_there_after(*state, SIGKILL);
}

static void a_node_that_was_ended_has_all_again(void **state)
{
    all_is_there_after(*state, SIGTERM);
}

static void drain_takes_all_out(void **state)
{
    struct world *w = *state;
    struct harness_node *n = start_node(w);
    struct tarn_client *c = world_client(w, NULL);
    client_put_each(c, "k", 10, 'a', BYTES, NULL);
    freeReplyObject(harness_call(n->local, "DRAIN", NULL));
    assert_int_equal(harness_wait(n->process, HARNESS_TIMEOUT_MS), 0);
    assert_int_equal(directory_count(w->redis), 0);
    n = start_node(w);
    assert_int_equal(node_pool_figure(n->control, "objects"), 0);
    tarn_close(c);
    harness_passed(w->h);
}

/* --- while it is away ----------------------------------------------------------------------------- */

/* Another node removes and replaces, once the record of the one that is away has expired. */
static void what_changed_while_it_was_away_does_not_come_back(void **state)
{
    struct world *w = *state;
    struct harness_node *n = start_node(w);
    struct tarn_client *c = world_client(w, NULL);
    client_put_each(c, "k", 3, 'a', BYTES, NULL);
    harness_node_start(w->h, "other", w->redis, "--heartbeat-ms", "300", "--pool", "cpu0:bytes=1M", NULL);
    harness_kill(n->process);
    const struct tarn_put_options elsewhere = {
        .size = sizeof(elsewhere), .flags = TARN_PUT_REPLACE, .place = "other", .timeout_ms = 10000};
    assert_int_equal(client_put(c, "k0", 'b', BYTES, &elsewhere), 0);
    const struct tarn_key k1 = key_of("k1");
    HARNESS_UNTIL(tarn_remove(c, &k1, 1, NULL, 3000) == 0 || !directory_has(w->redis, "k1"), 20000);
    n = start_node(w);
    assert_int_equal(client_get(c, "k0", 'b', BYTES), 0);
    char byte;
    assert_int_equal(client_read(c, "k1", BYTES, 0, &byte), TARN_E_NOT_FOUND);
    HARNESS_UNTIL(!strcmp(node_info(n->control, "presence"), "here"), 10000);
    HARNESS_UNTIL(node_pool_figure(n->control, "objects") <= 1, 10000);
    tarn_close(c);
    harness_passed(w->h);
}

/* It finds another directory, and publishes what it has. */
static void it_publishes_again_what_redis_has_lost(void **state)
{
    struct world *w = *state;
    struct harness_node *n = start_node(w);
    struct tarn_client *c = world_client(w, NULL);
    client_put_each(c, "k", 20, 'a', BYTES, NULL);
    harness_kill(n->process);
    freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
    start_node(w);
    HARNESS_UNTIL(directory_count(w->redis) == 20, 10000);
    comes_back(c, 'a');
    client_get_each(c, "k", 20, 'a', BYTES);
    tarn_close(c);
    harness_passed(w->h);
}

/* --- settings ------------------------------------------------------------------------------------- */

static void other_settings_start_empty_and_say_so(void **state)
{
    struct world *w = *state;
    struct harness_node *n = start_node(w);
    struct tarn_client *c = world_client(w, NULL);
    client_put_each(c, "k", 3, 'a', BYTES, NULL);
    harness_kill(n->process);
    n = start_with(w, "cpu0:bytes=8M", "default");
    assert_int_equal(node_pool_figure(n->control, "objects"), 0);
    assert_non_null(strstr(harness_log(n->process), "the pools start empty"));
    assert_non_null(strstr(harness_log(n->process), "the pools differ"));
    harness_kill(n->process);
    n = start_with(w, "cpu0:bytes=8M", "elsewhere");
    assert_non_null(strstr(harness_log(n->process), "--ns differs"));
    tarn_close(c);
    harness_passed(w->h);
}

static void refused(struct world *w, const char *option, const char *value, const char *dir,
                    const char *words)
{
    struct harness_process *p =
        harness_node_spawn(w->h, "refused", w->redis, "--state-dir", dir, option, value, NULL);
    assert_true(harness_wait(p, HARNESS_TIMEOUT_MS) != 0);
    if (!strstr(harness_log(p), words))
        fail_msg("%s", harness_log(p));
}

static void what_cannot_be_kept_is_refused(void **state)
{
    struct world *w = *state;
    const char *dir = harness_path(w->h, "state");
    start_node(w);
    refused(w, "--ns", "default", dir, "another node runs with it");
    refused(w, "--ns", "default", "/proc/none", "give a directory that can be made");
    refused(w, "--ns", "default", "/", "mode 0700");
    refused(w, "--pool", "p:bytes=2M,huge=1", harness_path(w->h, "huge"), "huge=always");
    refused(w, "--pool", "gpu0:bytes=2M,device=0", harness_path(w->h, "gpu"), "does not outlive the process");
    harness_passed(w->h);
}

#define WITH(test_) cmocka_unit_test_setup_teardown(test_, start, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(a_killed_node_has_all_again),
        WITH(a_node_that_was_ended_has_all_again),
        WITH(drain_takes_all_out),
        WITH(what_changed_while_it_was_away_does_not_come_back),
        WITH(it_publishes_again_what_redis_has_lost),
        WITH(other_settings_start_empty_and_say_so),
        WITH(what_cannot_be_kept_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
