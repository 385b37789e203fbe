/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA calls may take seconds: the driver starts, contexts are created, a large pool is registered. The
 * stand-in's calls take as long as the test tells them to. An operation ends at its deadline, whichever of
 * these calls it needs, and works once the calls have ended.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/device.h"
#include "tests/standin/cuda_standin.h"
#include "tests/world.h"

enum { SOON_MS = 200, SLACK_MS = 150, BYTES = 300000, CALLS_MAX = 12 };

static const struct world_plan one_node = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=64M", "--pool", "gpu0:device=0,bytes=64M"}};

/* The number of further calls that end at once. */
static atomic_int quick;

static bool may_end(void *arg)
{
    (void)arg;
    return atomic_load(&quick) > 0;
}

static bool takes_one(void *arg)
{
    (void)arg;
    int n = atomic_load(&quick);
    while (n > 0 && !atomic_compare_exchange_weak(&quick, &n, n - 1))
        ;
    return n > 0;
}

static int start(void **state)
{
    return devices_there() ? world_start_client(state, &one_node) : 0;
}

static int stop(void **state)
{
    atomic_store(&quick, INT32_MAX); /* a failed test may have left calls blocked */
    if (tarn_standin_block)
        tarn_standin_block(NULL, NULL);
    return *state ? world_stop(state) : 0;
}

struct scene {
    struct tarn_client *c;
    struct device *d; /* the second GPU */
    uint8_t *there;
};

/* An operation on an object of a pool, with memory of the second GPU or of the host. */
struct operation {
    const char *name, *place;
    bool gpu, put, view;
};

static const struct operation operations[] = {
    {"get from the GPU's pool into host memory", "node0/gpu0", false, false, false},
    {"get from the GPU's pool into another's memory", "node0/gpu0", true, false, false},
    {"get from the host's pool into a GPU's memory", "node0/cpu0", true, false, false},
    {"put of host memory into the GPU's pool", "node0/gpu0", false, true, false},
    {"put of another GPU's memory", "node0/gpu0", true, true, false},
    {"view of the GPU's pool", "node0/gpu0", false, false, true},
};

static int carry_out(struct scene *x, const struct operation *o, uint32_t timeout_ms)
{
    static uint8_t host[BYTES];
    struct tarn_key k = {.data = "k", .bytes = 1};
    struct tarn_piece piece = {.addr = o->gpu ? x->there : host, .bytes = BYTES};
    struct tarn_item item = {.key = k, .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
    struct tarn_put_options p = {
        .size = sizeof p, .flags = TARN_PUT_REPLACE, .timeout_ms = timeout_ms, .place = o->place};
    struct tarn_get_options g = {.size = sizeof g, .timeout_ms = timeout_ms};
    struct tarn_view v;
    memset(host, 'h', sizeof host);
    if (o->gpu)
        device_set(x->d, x->there, 'h', BYTES);
    if (o->put)
        return tarn_put(x->c, &item, 1, &p);
    if (!o->view) {
        int rc = tarn_get(x->c, &item, 1, &g);
        if (!rc)
            device_expect(o->gpu ? x->d : NULL, piece.addr, 'v', BYTES);
        return rc;
    }
    int rc = tarn_view(x->c, &k, timeout_ms, &v);
    if (!rc)
        tarn_release(x->c, &v);
    return rc;
}

static void put_there(struct world *w, const char *place)
{
    const struct tarn_put_options o = {.size = sizeof o, .flags = TARN_PUT_REPLACE, .place = place};
    assert_int_equal(client_put(w->client, "k", 'v', BYTES, &o), 0);
}

/* A client that has not used a GPU yet. Its slow calls after the first n do not end. True: it needs only n
 * calls. */
static bool is_enough(struct world *w, const struct operation *o, int n)
{
    uint8_t *there;
    struct scene x = {.c = world_client(w, "cuda_ipc"), .d = device_open(1)};
    x.there = there = device_alloc(x.d, BYTES);
    put_there(w, o->place);
    atomic_store(&quick, n);
    tarn_standin_block(takes_one, NULL);
    uint64_t begun = tarn_now_ns();
    int rc = carry_out(&x, o, SOON_MS);
    uint64_t ms = (tarn_now_ns() - begun) / TARN_NS_PER_MS;
    print_message("           %s, %d calls: %s after %d ms\n", o->name, n, tarn_error_name(rc), (int)ms);
    assert_in_range(ms, 0, SOON_MS + SLACK_MS);
    if (rc)
        assert_int_equal(rc, TARN_E_TIMEOUT);
    atomic_store(&quick, INT32_MAX);
    tarn_standin_block(may_end, NULL);
    if (n % 2 == 0) /* otherwise it is closed at once */
        assert_int_equal(carry_out(&x, o, DEVICE_TIMEOUT_MS), 0);
    tarn_close(x.c);
    tarn_standin_block(NULL, NULL);
    device_drop(x.d, there);
    device_close(x.d);
    return rc == 0;
}

static void a_deadline_holds_during_a_slow_first_use(void **state)
{
    devices_need(2);
    if (!tarn_standin_block)
        harness_skip("standin", "only the stand-in can take a chosen time");
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        int n = 0;
        while (n < CALLS_MAX && !is_enough(*state, &operations[i], n))
            n++;
        assert_in_range(n, 1, CALLS_MAX - 1);
    }
    harness_passed(((struct world *)*state)->h);
}

/* The driver does not start. Another transport gets its turn within the deadline. */
static void another_transport_is_taken_while_the_driver_starts(void **state)
{
    devices_need(2);
    if (!tarn_standin_block)
        harness_skip("standin", "only the stand-in can take a chosen time");
    struct world *w = *state;
    struct scene x = {.c = world_client(w, "cuda_ipc,tcp")};
    put_there(w, "node0/cpu0");
    atomic_store(&quick, 0);
    tarn_standin_block(may_end, NULL);
    assert_int_equal(carry_out(&x, &(struct operation){.place = "node0/cpu0"}, 4 * SOON_MS), 0);
    atomic_store(&quick, 1);
    tarn_close(x.c);
    tarn_standin_block(NULL, NULL);
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_deadline_holds_during_a_slow_first_use, start, stop),
        cmocka_unit_test_setup_teardown(another_transport_is_taken_while_the_driver_starts, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
