/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcpx transport in whole stores, over the fixture plugin: when it is chosen, how that shows, what
 * happens where it is unavailable, and what remains when the plugin ends the node's process.
 *
 * A process starts a plugin only once, with the environment of that moment, so clients are separate
 * processes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/stall.h"
#include "tests/tcpx/child.h"
#include "tests/world.h"

enum { STALLED_MS = 50 }; /* a fifth of the shortest patience */

static const struct world_plan plan = {
    .nodes = 0, .args = {"--pool", "cpu0:bytes=128M", "--transports", "tcpx,tcp", "--heartbeat-ms", "200"}};
static const char *self;

static int start(void **state)
{
    unsetenv("TCPX_FIXTURE");
    unsetenv("TARN_TCPX_PLUGIN");
    return world_start(state, &plan);
}

static void node_with(struct world *w, const char *plugin, const char *options)
{
    char path[512] = "", id[16];
    int i = 0;
    while (w->nodes[i])
        i++;
    snprintf(id, sizeof id, "node%d", i);
    if (plugin)
        snprintf(path, sizeof path, "%s", child_plugin(plugin));
    setenv("TARN_TCPX_PLUGIN", path, 1);
    setenv("TCPX_FIXTURE", options, 1);
    w->nodes[i] = world_node(w, id);
    unsetenv("TCPX_FIXTURE");
    unsetenv("TARN_TCPX_PLUGIN");
}

/* --- a client ----------------------------------------------------------------------------------- */

static void print_route(void *arg, enum tarn_log_level level, const char *line)
{
    const char *by = strstr(line, "transport=");
    (void)arg, (void)level;
    if (strstr(line, "route of a") && by)
        printf("%.*s ", (int)strcspn(by, " "), by);
    if (strstr(line, "set aside"))
        printf("aside ");
}

static int print_copy(void *arg, const struct tarn_object *o)
{
    (void)arg;
    printf("stat=%s ", o->copies[0].transport ? o->copies[0].transport : "none");
    return 0;
}

/* --client REDIS TRANSPORTS COPIES: puts and gets, and prints which transports it used, and the result. */
static int client_main(const char *redis, const char *transports, const char *copies)
{
    const struct tarn_put_options o = {
        .size = sizeof o, .flags = TARN_PUT_REPLACE, .replicas = (uint32_t)atoi(copies)};
    struct tarn_client *c = client_open(redis, (struct tarn_options){.transports = transports,
                                                                     .timeout_ms = 5000,
                                                                     .log = print_route,
                                                                     .log_level = TARN_LOG_DEBUG});
    struct tarn_key k = key_of("key");
    int put = client_put(c, "key", 'p', 5 * MIB + 3, &o);
    if (put)
        printf("%s: %s\n", tarn_error_name(put), tarn_last_error());
    int get = put ? put : client_get(c, "key", 'p', 5 * MIB + 3);
    if (!put && get)
        printf("%s: %s\n", tarn_error_name(get), tarn_last_error());
    if (!get && tarn_stat(c, &k, 0, print_copy, NULL) == 0)
        printf("ok\n");
    tarn_close(c);
    return get != 0;
}

static const char *client_of(struct world *w, const char *plugin, const char *transports, const char *copies)
{
    const char *argv[] = {self, "--client", w->redis->url, transports, copies, NULL};
    if (plugin)
        setenv("TARN_TCPX_PLUGIN", child_plugin(plugin), 1);
    struct harness_process *p = harness_spawn(w->h, "client", argv);
    unsetenv("TARN_TCPX_PLUGIN");
    harness_wait(p, HARNESS_TIMEOUT_MS);
    return harness_stdout(p, NULL);
}

static const char *client(struct world *w, const char *plugin, const char *transports)
{
    return client_of(w, plugin, transports, "1");
}

/* Checks that a client prints `lines`. If the host stalled, the run says nothing about patience and is
 * repeated. */
static void goes(struct world *w, const char *plugin, const char *transports, const char *copies,
                 const char *lines)
{
    struct stalls *s = stalls_start(NULL, NULL);
    for (;;) {
        uint64_t begun = tarn_now_ns();
        const char *said = client_of(w, plugin, transports, copies);
        uint64_t stalled_ms = stalls_within(s, begun, tarn_now_ns()) / TARN_NS_PER_MS;
        if (strcmp(said, lines) == 0)
            break;
        if (stalled_ms < STALLED_MS)
            fail_msg("the host was there but for %u ms: %s != %s", (unsigned)stalled_ms, said, lines);
        print_message("again: the host stood still for %u ms: %s", (unsigned)stalled_ms, said);
    }
    stalls_stop(s);
}

#define BY_TCPX "transport=tcpx transport=tcpx stat=tcpx ok\n"
#define BY_TCP "transport=tcp transport=tcp stat=tcp ok\n"

static void tcpx_is_chosen_where_no_faster_transport_reaches(void **state)
{
    struct world *w = *state;
    node_with(w, "fixture-v7", "");
    goes(w, "fixture-v7", "", "1", BY_TCPX);
    goes(w, "fixture-v7", "tcp", "1", BY_TCP);
    goes(w, NULL, "", "1", BY_TCP); /* no plugin is named here */
    harness_passed(w->h);
}

/* After a quarter of a second of silence, the client would use another copy. */
static void the_set_up_of_tcpx_does_not_count_as_silence(void **state)
{
    struct world *w = *state;
    setenv("TCPX_FIXTURE", "setup_ms=300", 1);
    for (int i = 0; i < 2; i++)
        node_with(w, "fixture-v7", "setup_ms=300");
    setenv("TCPX_FIXTURE", "setup_ms=300", 1);
    goes(w, "fixture-v7", "tcpx,tcp", "2", "transport=tcpx transport=tcpx transport=tcpx stat=tcpx ok\n");
    harness_passed(w->h);
}

static void a_node_without_a_plugin_does_not_offer_tcpx(void **state)
{
    struct world *w = *state;
    const struct world_plan any = {.args = {"--pool", "cpu0:bytes=64M"}};
    const char *shm_too = "transport=shm transport=shm stat=shm ok\n";
    w->plan = &any;
    node_with(w, NULL, "");
    goes(w, "fixture-v7", "tcpx,tcp", "1", BY_TCP);
    goes(w, "fixture-v7", "", "1", shm_too);
    const char *said = client(w, "fixture-v7", "tcpx");
    if (!strstr(said, "NOT_REACHABLE"))
        fail_msg("%s", said);
    w->plan = &plan;
    harness_passed(w->h);
}

/* The handles of one plugin mean nothing to another. That is found before they are used. */
static void a_node_with_another_plugin_is_not_used(void **state)
{
    struct world *w = *state;
    node_with(w, "fixture-v7", "");
    goes(w, "fixture-v6", "", "1", /* tried, then given up */
         "transport=tcpx transport=tcp transport=tcpx transport=tcp stat=tcp ok\n");
    const char *said = client(w, "fixture-v6", "tcpx");
    if (!strstr(said, "NOT_REACHABLE") || !strstr(said, "GPUDirectTCPX_v7, and this process fixture_v6"))
        fail_msg("%s", said);
    harness_passed(w->h);
}

static void info_reports_whether_tcpx_is_usable(void **state)
{
    struct world *w = *state;
    struct harness_process *p;
    node_with(w, "fixture-v7", "");
    setenv("TARN_TCPX_PLUGIN", child_plugin("fixture-v7"), 1);
    setenv("TARN_REDIS", w->redis->url, 1);
    assert_int_equal(harness_run(w->h, &p, "tarn", "info", NULL), 0);
    const char *line = strstr(harness_stdout(p, NULL), "\ntcpx ");
    assert_non_null(line);
    assert_non_null(memmem(line + 1, strcspn(line + 1, "\n"), "usable", 6));

    setenv("TARN_TCPX_PLUGIN", "/nowhere/libtcpx.so", 1);
    assert_int_equal(harness_run(w->h, &p, "tarn", "info", NULL), 0);
    assert_non_null(strstr(harness_stdout(p, NULL), "/nowhere/libtcpx.so"));
    unsetenv("TARN_TCPX_PLUGIN");
    assert_int_equal(harness_run(w->h, &p, "tarn", "info", NULL), 0);
    assert_non_null(strstr(harness_stdout(p, NULL), "tcpx plugin: none of libnccl-net-tcpx.so"));
    unsetenv("TARN_REDIS");
    harness_passed(w->h);
}

static bool has_key(const struct world *w, const char *pattern)
{
    redisReply *r = harness_redis_call(w->redis, "KEYS", pattern, NULL);
    bool has = r->elements > 0;
    freeReplyObject(r);
    return has;
}

/* Sets the variable. Saves the old value in *before; restore() sets and frees it. */
static void replace(const char *name, const char *value, char **before)
{
    const char *text = getenv(name);
    *before = text ? strdup(text) : NULL;
    setenv(name, value, 1);
}

static void restore(const char *name, char *before)
{
    if (before)
        setenv(name, before, 1);
    else
        unsetenv(name);
    free(before);
}

/*
 * The plugin calls exit(), which its caller cannot prevent. The node's objects leave the directory at once.
 * The node need not free its memory or wait for its threads.
 */
static void a_plugin_that_ends_the_node_leaves_no_descriptors(void **state)
{
    struct world *w = *state;
    char *before, *before_threads;
    replace("ASAN_OPTIONS", "detect_leaks=0", &before);
    replace("TSAN_OPTIONS", "halt_on_error=1:report_thread_leaks=0", &before_threads);
    node_with(w, "fixture-v7", "send_exit=5");
    restore("TSAN_OPTIONS", before_threads);
    restore("ASAN_OPTIONS", before);
    struct tarn_client *c = world_client(w, "tcp");
    client_put_each(c, "other-", 700, 'o', 5000, NULL);
    tarn_close(c);
    assert_true(has_key(w, "tarn:default:o:*"));
    const char *said = client(w, "fixture-v7", "tcpx");
    if (!strstr(said, "NODE_DOWN") && !strstr(said, "TIMEOUT") && !strstr(said, "NOT_FOUND"))
        fail_msg("%s", said);
    assert_int_equal(harness_wait(w->nodes[0]->process, HARNESS_TIMEOUT_MS), 1);
    assert_non_null(strstr(harness_log(w->nodes[0]->process), "tcpx fixture: exit"));
    assert_false(has_key(w, "tarn:default:o:*"));
    assert_false(has_key(w, "tarn:default:node:*"));
    harness_passed(w->h);
}

#define TEST(f_) cmocka_unit_test_setup_teardown(f_, start, world_stop)

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 5 && strcmp(argv[1], "--client") == 0)
        return client_main(argv[2], argv[3], argv[4]);
    const struct CMUnitTest tests[] = {
        TEST(tcpx_is_chosen_where_no_faster_transport_reaches),
        TEST(the_set_up_of_tcpx_does_not_count_as_silence),
        TEST(a_node_without_a_plugin_does_not_offer_tcpx),
        TEST(a_node_with_another_plugin_is_not_used),
        TEST(info_reports_whether_tcpx_is_usable),
        TEST(a_plugin_that_ends_the_node_leaves_no_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
