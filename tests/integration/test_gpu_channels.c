/* SPDX-License-Identifier: Apache-2.0 */
/* Messages from and into memory of GPUs. Both clients are in this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/channel_pair.h"
#include "tests/device.h"
#include "tests/standin/cuda_standin.h"

enum { LARGE = 1 << 20, SMALL = TARN_SMALL_MAX };

struct scene {
    struct world *w;
    struct channel_end a, b;
    struct device *d;
    uint8_t *sent, *received; /* LARGE bytes each, on the GPU */
    struct tarn_window *window;
};

static int start(void **state)
{
    static const struct world_plan plan = {.nodes = 0};
    struct scene *s = calloc(1, sizeof(*s));
    void *w;
    assert_int_equal(world_start(&w, &plan), 0);
    s->w = w;
    channel_end_open(s->w->redis->url, NULL, NULL, &s->a);
    channel_end_open(s->w->redis->url, NULL, NULL, &s->b);
    channel_connect(&s->a, &s->b);
    if (devices_there() > 0) {
        s->d = device_open(0);
        s->sent = device_alloc(s->d, LARGE);
        s->received = device_alloc(s->d, LARGE);
        assert_int_equal(tarn_window_new(s->b.client, s->received, LARGE, &s->window), 0);
    }
    *state = s;
    return 0;
}

static int stop(void **state)
{
    struct scene *s = *state;
    void *w = s->w;
    channel_end_close(&s->a);
    channel_end_close(&s->b);
    if (s->d) {
        device_drop(s->d, s->sent);
        device_drop(s->d, s->received);
        device_close(s->d);
    }
    free(s);
    return world_stop(&w);
}

/* Sends `bytes` bytes into a receive of `room`. Each end has memory of the GPU, or (NULL) of the host. */
static void message(struct scene *s, struct device *from, struct device *to, size_t bytes, size_t room)
{
    static unsigned char want[LARGE], got[LARGE];
    unsigned char *source = from ? s->sent : s->a.memory, *sink = to ? s->received : s->b.memory;
    struct tarn_piece out[2] = {{.addr = source, .bytes = bytes / 2},
                                {.addr = source + bytes / 2 + 100, .bytes = bytes - bytes / 2}};
    const struct tarn_piece in = {.addr = sink, .bytes = room};
    uint64_t count = 0;
    channel_fill(want, bytes, (unsigned)(bytes + room));
    device_write(from, out[0].addr, want, out[0].bytes);
    device_write(from, out[1].addr, want + out[0].bytes, out[1].bytes);
    device_set(to, sink, 0x55, room + 1);
    tarn_op op = channel_submit_recv(&s->b, 1, &in, 0, &count);
    if (tarn_send(s->a.channel, 1, out, 2, NULL))
        fail_msg("send: %s", tarn_last_error());
    if (channel_done(&s->b, op))
        fail_msg("recv: %s", channel_error());
    assert_int_equal(count, bytes);
    device_read(to, got, sink, bytes);
    assert_memory_equal(got, want, bytes);
    device_expect(to, sink + bytes, 0x55, room + 1 - bytes);
}

static void messages_of_all_sizes(void **state)
{
    static const size_t sizes[][2] = {{1, 1},           {100, SMALL},           {SMALL, SMALL},
                                      {100, LARGE / 2}, {SMALL + 1, LARGE / 2}, {LARGE / 2, LARGE / 2}};
    struct scene *s = *state;
    devices_need(1);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        message(s, s->d, s->d, sizes[i][0], sizes[i][1]);
        message(s, s->d, NULL, sizes[i][0], sizes[i][1]);
        message(s, NULL, s->d, sizes[i][0], sizes[i][1]);
    }
}

/* Neither end waits for ever, and the receive after is not lost. */
static void a_copy_that_fails(void **state)
{
    struct scene *s = *state;
    const struct tarn_piece in = {.addr = s->b.memory, .bytes = 8};
    devices_need(1);
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in can be told to fail");
    tarn_op op = channel_submit_recv(&s->b, 1, &in, 0, NULL);
    tarn_standin_fail("copy:*");
    assert_int_not_equal(channel_send(&s->a, 1, s->sent, 8, 0), 0);
    tarn_standin_fail(NULL);
    assert_int_equal(channel_done(&s->b, op), TARN_E_AGAIN);
    message(s, s->d, NULL, 8, 8);

    const struct tarn_piece gpu = {.addr = s->received, .bytes = 8};
    op = channel_submit_recv(&s->b, 1, &gpu, 0, NULL);
    tarn_standin_fail("copy:*");
    assert_int_equal(channel_send(&s->a, 1, s->a.memory, 8, 0), 0);
    assert_int_not_equal(channel_done(&s->b, op), 0);
    tarn_standin_fail(NULL);
    message(s, NULL, s->d, 8, 8);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(messages_of_all_sizes), TEST(a_copy_that_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
