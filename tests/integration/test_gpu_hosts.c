/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU pools for clients that cannot open them: clients without a GPU, or on other hosts, use TCP. Also what
 * remains when the node's GPU fails or is slow, or its clients die. Uses the machine's GPUs or the stand-in.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/device.h"
#include "tests/standin/cuda_standin.h"
#include "tests/world.h"

static const struct world_plan one_gpu = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=64M", "--pool", "gpu0:device=0,bytes=64M"}};
/* Each test starts its nodes itself, with the faults that it needs. */
static const struct world_plan no_node = {
    .nodes = 0, .args = {"--pool", "cpu0:bytes=64M", "--pool", "gpu0:device=0,bytes=64M"}};
static const char *self;

static int start(void **state)
{
    return devices_there() ? world_start_client(state, &one_gpu) : 0;
}

static int start_empty(void **state)
{
    return devices_there() ? world_start(state, &no_node) : 0;
}

static int stop(void **state)
{
    return *state ? world_stop(state) : 0;
}

static void need_standin(void)
{
    devices_need(1);
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in fails and is late on demand");
}

static struct tarn_put_options into(const char *place)
{
    return (struct tarn_put_options){
        .size = sizeof(struct tarn_put_options), .place = place, .flags = TARN_PUT_REPLACE};
}

static struct tarn_client *client_with(const struct world *w, const char *transports, const char *faults)
{
    return client_open_faulty(w->redis->url,
                              (struct tarn_options){.transports = transports, .timeout_ms = 5000}, faults);
}

/* --- clients without a GPU ---------------------------------------------------------------------- */

/* test_gpu_hosts --client REDIS: gets "from-gpu", puts "by-tcp" into the GPU pool, gets it. */
static int client_main(const char *redis)
{
    struct tarn_client *c = client_open(redis, (struct tarn_options){.timeout_ms = 3000});
    struct tarn_put_options o = into("node0/gpu0");
    int got = client_get(c, "from-gpu", 'g', 5 * MIB + 3),
        put = client_put(c, "by-tcp", 't', 3 * MIB + 1, &o);
    int again = client_get(c, "by-tcp", 't', 3 * MIB + 1);
    printf("devices %d get %s put %s get %s\n", devices_there(), tarn_error_name(got), tarn_error_name(put),
           tarn_error_name(again));
    tarn_close(c);
    return 0;
}

/* test_gpu_hosts --writer REDIS: puts into the GPU pool until it is killed. */
static int writer_main(const char *redis)
{
    struct tarn_client *c =
        client_open(redis, (struct tarn_options){.timeout_ms = 3000, .transports = "tcp"});
    struct tarn_put_options o = into("node0/gpu0");
    for (int i = 0; i < 100000; i++) {
        char key[32];
        snprintf(key, sizeof key, "w%d", i % 8);
        client_put(c, key, (char)('a' + i % 20), 3 * MIB, &o);
        if (i == 2)
            dprintf(1, "ready\n");
    }
    return 1;
}

static void a_client_without_a_gpu_reaches_the_pool(void **state)
{
    devices_need(1);
    struct world *w = *state;
    const char *argv[] = {self, "--client", w->redis->url, NULL};
    struct tarn_put_options o = into("node0/gpu0");
    assert_int_equal(client_put(w->client, "from-gpu", 'g', 5 * MIB + 3, &o), 0);
    setenv("STANDIN_VISIBLE", "", 1);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    struct harness_process *p = harness_spawn(w->h, "client", argv);
    unsetenv("STANDIN_VISIBLE");
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(harness_wait(p, HARNESS_TIMEOUT_MS), 0);
    assert_string_equal(harness_stdout(p, NULL), "devices 0 get OK put OK get OK\n");
    assert_int_equal(client_get(w->client, "by-tcp", 't', 3 * MIB + 1), 0);
    harness_passed(w->h);
}

/* tcp refuses every connection: an attempt to use it would have set the node aside. */
static void a_pool_of_this_host_is_opened_before_tcp_is_used(void **state)
{
    devices_need(1);
    struct world *w = *state;
    struct tarn_put_options o = into("node0/gpu0");
    struct tarn_client *by_ipc = client_with(w, "cuda_ipc,tcp", "tcp:refuse=1"),
                       *by_none = client_with(w, "cuda_ipc,tcp", "cuda_ipc:refuse=1");
    char byte;
    assert_int_equal(client_put(by_ipc, "k", 'k', MIB, &o), 0);
    assert_int_equal(client_get(by_ipc, "k", 'k', MIB), 0);
    assert_int_equal(client_read(by_none, "k", MIB, 500, &byte), TARN_E_NODE_DOWN);
    tarn_close(by_ipc);
    tarn_close(by_none);
    harness_passed(w->h);
}

/* As a client on another host does. */
static void tcp_alone_moves_gpu_memory(void **state)
{
    devices_need(1);
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "tcp");
    struct device *d = device_open(devices_there() - 1);
    size_t bytes = 9 * MIB + 1;
    uint8_t *there = device_alloc(d, bytes);
    for (int gpu = 0; gpu < 2; gpu++) {
        const char *place = gpu ? "node0/gpu0" : "node0/cpu0";
        device_set(d, there, (uint8_t)(7 + gpu), bytes);
        assert_int_equal(piece_put(c, "k", there, bytes, place), 0);
        device_set(d, there, 0, bytes);
        assert_int_equal(piece_get(c, "k", there, bytes), 0);
        device_expect(d, there, (uint8_t)(7 + gpu), bytes);
        assert_int_equal(client_get(w->client, "k", (char)(7 + gpu), bytes), 0);
    }
    tarn_close(c);
    device_drop(d, there);
    device_close(d);
    harness_passed(w->h);
}

/* --- the node's GPU ----------------------------------------------------------------------------- */

static struct harness_node *node_with(struct world *w, const char *id, const char *name, const char *value)
{
    setenv(name, value, 1);
    struct harness_node *n = world_node(w, id);
    unsetenv(name);
    return n;
}

/* A copy fails at any place in an object of many parts. No get returns wrong bytes, and the next try
 * works. */
static void a_copy_that_fails_once_does_no_lasting_harm(void **state)
{
    static const char *const fails[] = {"copy:1",  "copy:5",  "copy:9", "copy:14",
                                        "copy:23", "poll:30", "mark:12"};
    need_standin();
    struct world *w = *state;
    w->client = world_client(w, "tcp");
    for (size_t i = 0; i < sizeof fails / sizeof *fails; i++) {
        char id[16], place[32], key[16];
        snprintf(id, sizeof id, "node%zu", i);
        snprintf(place, sizeof place, "%s/gpu0", id);
        snprintf(key, sizeof key, "k%zu", i);
        struct tarn_put_options o = into(place);
        node_with(w, id, "STANDIN_FAIL", fails[i]);
        int failed = 0;
        for (int round = 0; round < 4; round++) {
            char byte;
            int put = client_put(w->client, key, (char)('a' + round), 9 * MIB, &o);
            int got = client_read(w->client, key, 9 * MIB, 3000, &byte);
            failed += put != 0 || got != 0;
            if (put == 0 && got == 0)
                assert_int_equal(byte, 'a' + round);
        }
        assert_in_range(failed, 0, 1);
        assert_int_equal(client_get(w->client, key, 'd', 9 * MIB), 0);
    }
    harness_passed(w->h);
}

static void a_node_outlives_its_gpu(void **state)
{
    need_standin();
    struct world *w = *state;
    struct tarn_put_options o = into("node0/gpu0"), cpu = into("node0/cpu0");
    struct harness_node *n = node_with(w, "node0", "STANDIN_FAIL", "lost:4");
    char byte;
    w->client = world_client(w, "tcp");
    assert_int_equal(client_put(w->client, "k", 'k', 100, &o), 0);
    int rc = 0;
    for (int i = 0; i < 6 && rc == 0; i++)
        rc = client_read(w->client, "k", 100, 3000, &byte);
    assert_int_equal(rc, TARN_E_UNAVAILABLE);
    assert_int_equal(client_read(w->client, "k", 100, 3000, &byte), TARN_E_UNAVAILABLE);
    assert_int_equal(client_put(w->client, "l", 'l', 100, &o), TARN_E_UNAVAILABLE);
    assert_int_equal(client_put(w->client, "c", 'c', 100, &cpu), 0);
    assert_int_equal(client_get(w->client, "c", 'c', 100), 0);
    assert_non_null(strstr(harness_log(n->process), "of no more use"));
    harness_passed(w->h);
}

/* The extents of writers killed during a transfer are given to others, whose bytes must stay intact. */
static void killed_writers_write_nothing_later(void **state)
{
    need_standin();
    struct world *w = *state;
    struct tarn_put_options o = into("node0/gpu0");
    const char *argv[] = {self, "--writer", w->redis->url, NULL};
    node_with(w, "node0", "STANDIN_DELAY_US", "20000");
    w->client = world_client(w, "tcp");
    for (int round = 0; round < 6; round++) {
        struct harness_process *p = harness_spawn(w->h, "writer", argv);
        assert_non_null(harness_wait_line(p, "ready", HARNESS_TIMEOUT_MS));
        harness_kill(p);
        char key[16];
        for (int i = 0; i < 20; i++) {
            snprintf(key, sizeof key, "mine%d", i);
            assert_int_equal(client_put(w->client, key, (char)i, MIB, &o), 0);
        }
        for (int i = 0; i < 20; i++) {
            snprintf(key, sizeof key, "mine%d", i);
            int rc = client_get(w->client, key, (char)i, MIB);
            assert_true(rc == 0 || rc == TARN_E_NOT_FOUND); /* evicted */
        }
    }
    harness_passed(w->h);
}

#define TEST(_f) cmocka_unit_test_setup_teardown(_f, start, stop)
#define ALONE(_f) cmocka_unit_test_setup_teardown(_f, start_empty, stop)

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "--client") == 0)
        return client_main(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--writer") == 0)
        return writer_main(argv[2]);
    const struct CMUnitTest tests[] = {
        TEST(a_client_without_a_gpu_reaches_the_pool),
        TEST(a_pool_of_this_host_is_opened_before_tcp_is_used),
        TEST(tcp_alone_moves_gpu_memory),
        ALONE(a_copy_that_fails_once_does_no_lasting_harm),
        ALONE(a_node_outlives_its_gpu),
        ALONE(killed_writers_write_nothing_later),
    };
    return cmocka_run_group_tests_name("gpu pools of other hosts", tests, NULL, NULL);
}
