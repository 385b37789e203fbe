/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU pools and GPU memory with tcpx, over the fixture plugin with bounce memory on the GPU: what the
 * conformance suite does not cover. Only the stand-in has GPUs that fail on demand.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/device.h"
#include "tests/standin/cuda_standin.h"
#include "tests/tcpx/child.h"
#include "tests/world.h"

enum { BYTES = 5 * MIB + 77, TIMEOUT_MS = 5000 };

static const struct world_plan plan = {.nodes = 0,
                                       .args = {"--pool", "gpu0:device=0,bytes=64M", "--transports", "tcpx"}};

static int start(void **state)
{
    child_configure("fixture-v7");
    setenv("TCPX_FIXTURE", "gpu=1,pages=4096,cut_min=2048", 1);
    return devices_there() ? world_start(state, &plan) : 0;
}

static int stop(void **state)
{
    return *state ? world_stop(state) : 0;
}

static void need_standin(void)
{
    devices_need(1);
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in fails on demand");
}

static struct tarn_client *client(const struct world *w)
{
    return client_open(w->redis->url, (struct tarn_options){.timeout_ms = TIMEOUT_MS, .transports = "tcpx"});
}

static void every_way_to_unpack_brings_the_same(void **state)
{
    static const char *const ways[] = {"d2d", "host", "kernel"};
    devices_need(1);
    struct world *w = *state;
    struct device *d = device_open(devices_there() - 1);
    uint8_t *there = device_alloc(d, BYTES);
    w->nodes[0] = world_node(w, "node0");
    for (int i = 0; i < 3; i++) {
        setenv("TARN_TCPX_UNPACK_IMPL", ways[i], 1);
        struct tarn_client *c = client(w);
        device_set(d, there, (uint8_t)(1 + i), BYTES);
        assert_int_equal(piece_put(c, "k", there, BYTES, NULL), 0);
        device_set(d, there, 0, BYTES);
        assert_int_equal(piece_get(c, "k", there, BYTES), 0);
        device_expect(d, there, (uint8_t)(1 + i), BYTES);
        assert_int_equal(client_get(c, "k", (char)(1 + i), BYTES), 0); /* into host memory */
        tarn_close(c);
    }
    unsetenv("TARN_TCPX_UNPACK_IMPL");
    device_drop(d, there);
    device_close(d);
    harness_passed(w->h);
}

/* A put fails with its reason and publishes nothing. The next put finds the GPU working. */
static void a_put_fails_when_the_nodes_gpu_fails_once(void **state)
{
    need_standin();
    struct world *w = *state;
    setenv("STANDIN_FAIL", "mark:5", 1);
    w->nodes[0] = world_node(w, "node0");
    unsetenv("STANDIN_FAIL");
    struct tarn_client *c = client(w);
    assert_int_equal(client_put(c, "k", 'a', BYTES, NULL), TARN_E_UNAVAILABLE);
    if (!strstr(tarn_last_error(), "at the node: stand-in: device 0: mark was told to fail"))
        fail_msg("%s", tarn_last_error());
    assert_int_equal(client_get(c, "k", 'a', BYTES), TARN_E_NOT_FOUND);
    assert_int_equal(client_put(c, "k", 'b', BYTES, NULL), 0);
    assert_int_equal(client_get(c, "k", 'b', BYTES), 0);
    tarn_close(c);
    harness_passed(w->h);
}

/* A get is retried over another link. A put reports the failure. */
static void a_gpu_that_fails_once_at_the_client(void **state)
{
    need_standin();
    struct world *w = *state;
    struct device *d = device_open(0);
    uint8_t *there = device_alloc(d, BYTES);
    w->nodes[0] = world_node(w, "node0");
    struct tarn_client *c = client(w);
    assert_int_equal(client_put(c, "k", 'a', BYTES, NULL), 0);
    device_set(d, there, 0, BYTES);
    tarn_standin_fail("mark:3");
    assert_int_equal(piece_get(c, "k", there, BYTES), 0);
    assert_non_null(strstr(tarn_last_error(), "mark was told to fail"));
    device_expect(d, there, 'a', BYTES);
    device_set(d, there, 0, BYTES);
    tarn_standin_fail("mark:2");
    assert_int_equal(piece_put(c, "other", there, BYTES, NULL), TARN_E_SYSTEM);
    assert_non_null(strstr(tarn_last_error(), "mark was told to fail"));
    assert_int_equal(piece_put(c, "other", there, BYTES, NULL), 0);
    tarn_standin_fail(NULL);
    assert_int_equal(client_get(c, "other", 0, BYTES), 0);
    tarn_close(c);
    device_drop(d, there);
    device_close(d);
    harness_passed(w->h);
}

#define TEST(f_) cmocka_unit_test_setup_teardown(f_, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_way_to_unpack_brings_the_same),
        TEST(a_put_fails_when_the_nodes_gpu_fails_once),
        TEST(a_gpu_that_fails_once_at_the_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
