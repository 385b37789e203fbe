/* SPDX-License-Identifier: Apache-2.0 */
/* Proxies: what kernels write into windows of other clients, and tell them. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include <tarn/proxy.h>

#include "base/clock.h"
#include "tests/transports.h"
#include "tests/window_pair.h"

#define LONG_NS (60 * TARN_NS_PER_S)

enum { RINGS = 2, SIZE = 8, EACH = 600, PART = 256 };
#define TAG 0xfffffffeu /* no other notification has it */

/* Two leases and a proxy of the peer that reaches them. Most tests need only the first. */
struct rig {
    const struct window_pair *pair;
    struct tarn_lease *lease, *other;
    struct tarn_reach *reach, *other_reach;
    struct tarn_proxy *proxy;
    struct tarn_ring_producer ring; /* ring 0, open */
};

static void open_rig(struct rig *g, const struct window_pair *p, uint32_t lease_flags, uint32_t timeout_ms)
{
    struct tarn_ring ring;
    *g = (struct rig){.pair = p,
                      .lease = window_lease(p, NULL, 0, lease_flags),
                      .other = window_lease(p, NULL, 0, lease_flags)};
    g->reach = window_reach(p, g->lease);
    g->other_reach = window_reach(p, g->other);
    struct tarn_reach *const reaches[] = {g->reach, g->other_reach};
    const struct tarn_proxy_range range = {p->own, WINDOW_ROOM};
    const struct tarn_proxy_options o = {.size = sizeof(o),
                                         .device = -1,
                                         .nrings = RINGS,
                                         .ring_size = SIZE,
                                         .timeout_ms = timeout_ms,
                                         .ranges = &range,
                                         .nranges = 1,
                                         .reaches = reaches,
                                         .nreaches = 2};
    if (tarn_proxy_new(p->peer, &o, &g->proxy))
        fail_msg("a proxy: %s", tarn_last_error());
    assert_int_equal(tarn_proxy_ring(g->proxy, 0, &ring), 0);
    assert_int_equal(tarn_dev_ring_open(&g->ring, &ring), 0);
}

static void close_rig(struct rig *g)
{
    tarn_proxy_free(g->proxy);
    tarn_reach_free(g->reach);
    tarn_reach_free(g->other_reach);
}

static struct tarn_ring_command write_of(const void *from, uint32_t bytes, uint32_t offset, uint32_t notify)
{
    return (struct tarn_ring_command){.op = TARN_RING_WRITE,
                                      .bytes = bytes,
                                      .address = (uintptr_t)from,
                                      .offset = offset,
                                      .notify = notify};
}

static uint64_t push(struct rig *g, const struct tarn_ring_command *c)
{
    uint64_t number = UINT64_MAX;
    assert_int_equal(tarn_dev_ring_push(&g->ring, c, LONG_NS, &number), 0);
    return number;
}

static int status_of(struct rig *g, uint64_t number)
{
    int status = 1;
    assert_int_equal(tarn_dev_ring_wait(&g->ring, number, LONG_NS, &status), 0);
    return status;
}

static int ask(struct rig *g, const struct tarn_ring_command *c)
{
    return status_of(g, push(g, c));
}

static void assert_told(const struct rig *g, uint64_t tag)
{
    struct tarn_notification got;
    assert_int_equal(tarn_notification_next(g->pair->window, 20000, &got), 0);
    assert_true(got.tag == tag && got.lease == g->lease && got.bytes == 0);
}

static void assert_nothing_told(const struct rig *g)
{
    struct tarn_notification got;
    assert_int_equal(tarn_notification_next(g->pair->window, 20, &got), TARN_E_TIMEOUT);
}

static void a_write_tells(void **state)
{
    const struct window_pair *p = *state;
    struct rig g;
    open_rig(&g, p, TARN_LEASE_WRITE, 0);
    const struct tarn_ring_command told = write_of(p->own + 100, 5000, 3, 77);
    const struct tarn_ring_command untold = write_of(p->own, 1, WINDOW_ROOM - 1, 0);
    assert_int_equal(ask(&g, &told), 0);
    assert_told(&g, 77);
    assert_memory_equal(p->memory + 3, p->own + 100, 5000);
    assert_int_equal(ask(&g, &untold), 0);
    assert_int_equal(p->memory[WINDOW_ROOM - 1], p->own[0]);
    assert_nothing_told(&g);
    close_rig(&g);
}

static void a_quiet_waits_for_writes(void **state)
{
    const struct window_pair *p = *state;
    const struct tarn_ring_command quiet = {.op = TARN_RING_QUIET};
    struct rig g;
    open_rig(&g, p, TARN_LEASE_WRITE, 0);
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < 5; i++) {
            const struct tarn_ring_command c = write_of(p->own + round, 1000, i * 1000, 0);
            push(&g, &c);
        }
        assert_int_equal(ask(&g, &quiet), 0);
        for (uint32_t i = 0; i < 5; i++)
            assert_memory_equal(p->memory + i * 1000, p->own + round, 1000);
    }
    close_rig(&g);
}

static void wrong_writes(void **state)
{
    const struct window_pair *p = *state;
    struct rig g;
    open_rig(&g, p, TARN_LEASE_WRITE, 0);
    const struct {
        struct tarn_ring_command c;
        int status;
    } wrong[] = {
        {write_of(p->own, 2, WINDOW_ROOM - 1, 1), TARN_E_SIZE},
        {write_of(p->own, 1, WINDOW_ROOM, 1), TARN_E_SIZE},
        {write_of(p->own, 1, UINT32_MAX, 1), TARN_E_SIZE},
        {write_of(p->own - 1, 2, 0, 1), TARN_E_INVALID},
        {write_of(p->own + WINDOW_ROOM - 1, 2, 0, 1), TARN_E_INVALID},
        {write_of(p->own, 0, 0, 1), TARN_E_INVALID},
        {write_of(NULL, 1, 0, 1), TARN_E_INVALID},
        {{.op = TARN_RING_WRITE, .bytes = 1, .address = (uintptr_t)p->own, .index = 2}, TARN_E_INVALID},
        {{.op = TARN_RING_GET, .bytes = 1, .address = (uintptr_t)p->own}, TARN_E_INVALID}, /* no table */
        {{.op = TARN_RING_REFRESH}, TARN_E_INVALID},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (ask(&g, &wrong[i].c) != wrong[i].status)
            fail_msg("wrong write %zu: %s", i, tarn_error_name(status_of(&g, g.ring.tail - 1)));
    assert_nothing_told(&g);
    const struct tarn_ring_command good = write_of(p->own, 1, 0, 1);
    assert_int_equal(ask(&g, &good), 0);
    assert_told(&g, 1);
    assert_int_equal(tarn_recall(g.lease, 0), 0);
    assert_int_equal(ask(&g, &good), TARN_E_STALE);
    close_rig(&g);
    open_rig(&g, p, 0, 0); /* for reading */
    assert_int_equal(ask(&g, &good), TARN_E_AUTH);
    close_rig(&g);
}

/* --- counts ------------------------------------------------------------------------------------- */

/* A kernel: writes its parts 1 .. EACH, each to its place, and tells ring << 16 | part. */
struct kernel {
    const struct rig *rig;
    struct tarn_ring ring;
    uint32_t number;
    int rc;
    pthread_t thread;
};

static uint32_t place_of(uint32_t tag)
{
    return ((tag >> 16) * EACH + (tag & 0xffff) - 1) * PART;
}

static void *play(void *arg)
{
    struct kernel *k = arg;
    struct tarn_ring_producer p;
    uint64_t number = 0;
    int status = 0, rc = tarn_dev_ring_open(&p, &k->ring);
    for (uint32_t i = 1; rc == 0 && status == 0 && i <= EACH; i++) {
        uint32_t tag = k->number << 16 | i;
        const struct tarn_ring_command c =
            write_of(k->rig->pair->own + place_of(tag), PART, place_of(tag), tag);
        rc = tarn_dev_ring_push(&p, &c, LONG_NS, &number);
        if (rc == 0 && i % SIZE == 0)
            rc = tarn_dev_ring_wait(&p, number, LONG_NS, &status);
    }
    k->rc = rc ? rc : status ? status : tarn_dev_ring_wait_all(&p, LONG_NS);
    return NULL;
}

/* Each is told once, with its bytes in place. */
static void each_count_is_told_once(void **state)
{
    const struct window_pair *p = *state;
    struct rig g;
    struct kernel kernels[RINGS];
    bool told[RINGS][EACH + 1] = {{0}};
    open_rig(&g, p, TARN_LEASE_WRITE, 60000);
    for (uint32_t i = 0; i < RINGS; i++) {
        kernels[i] = (struct kernel){.rig = &g, .number = i};
        assert_int_equal(tarn_proxy_ring(g.proxy, i, &kernels[i].ring), 0);
        assert_int_equal(pthread_create(&kernels[i].thread, NULL, play, &kernels[i]), 0);
    }
    for (uint32_t n = 0; n < RINGS * EACH; n++) {
        struct tarn_notification got;
        assert_int_equal(tarn_notification_next(p->window, 30000, &got), 0);
        uint32_t tag = (uint32_t)got.tag, ring = tag >> 16, part = tag & 0xffff;
        assert_true(ring < RINGS && part >= 1 && part <= EACH && !told[ring][part]);
        told[ring][part] = true;
        assert_memory_equal(p->memory + place_of(tag), p->own + place_of(tag), PART);
    }
    for (uint32_t i = 0; i < RINGS; i++) {
        pthread_join(kernels[i].thread, NULL);
        assert_int_equal(kernels[i].rc, 0);
    }
    assert_nothing_told(&g);
    close_rig(&g);
}

/* Takes what is told: some others, and TAG by at least least and at most most commands. */
static void assert_drained(const struct rig *g, uint64_t others, uint32_t least, uint32_t most)
{
    struct tarn_notification got;
    uint64_t mine = 0;
    for (uint64_t n = 0; n < others; n += got.tag != TAG, mine += got.tag == TAG)
        assert_int_equal(tarn_notification_next(g->pair->window, 20000, &got), 0);
    while (mine < most && tarn_notification_next(g->pair->window, mine < least ? 20000 : 20, &got) == 0) {
        assert_int_equal(got.tag, TAG);
        mine++;
    }
    assert_true(mine >= least && mine <= most);
    assert_nothing_told(g);
}

/*
 * While the lender's queue is full, a write waits. It is told once, when there is room; or its time is over:
 * AGAIN. A machine under load may cut the last telling short: TIMEOUT, and it may yet be told.
 */
static void a_full_queue(void **state)
{
    const struct window_pair *p = *state;
    const struct tarn_ring_command c = write_of(p->own, 100, 0, TAG);
    struct rig g;
    uint32_t cut = 0;
    int status;
    open_rig(&g, p, TARN_LEASE_WRITE, 600);
    uint64_t filled = window_fill(p, g.reach);
    while ((status = ask(&g, &c)) == TARN_E_TIMEOUT)
        assert_true(++cut < 20);
    assert_int_equal(status, TARN_E_AGAIN);
    assert_memory_equal(p->memory, p->own, 100);
    close_rig(&g);
    assert_drained(&g, filled, 0, cut);
    open_rig(&g, p, TARN_LEASE_WRITE, 60000);
    filled = window_fill(p, g.reach);
    uint64_t number = push(&g, &c);
    assert_int_equal(tarn_dev_ring_wait(&g.ring, number, 50 * TARN_NS_PER_MS, &status), TARN_E_TIMEOUT);
    assert_drained(&g, filled, 1, 1);
    assert_int_equal(status_of(&g, number), 0);
    close_rig(&g);
}

/* --- together ----------------------------------------------------------------------------------- */

/* Has both workers of the lender wait for room in its full queue: what is pushed next is queued together. */
static void hold_up(struct rig *g)
{
    window_fill(g->pair, g->reach);
    const struct tarn_ring_command c = write_of(g->pair->own, 1, 0, TAG);
    push(g, &c);
    push(g, &c);
}

/* Takes what is told until all of `tags` were, each once, and TAG twice. Odd ones are the first lease's. */
static void assert_told_all(const struct rig *g, const uint64_t *tags, size_t n)
{
    uint32_t told[8] = {0}, mine = 0;
    struct tarn_notification got;
    for (size_t left = n + 2; left > 0;) {
        if (tarn_notification_next(g->pair->window, 20000, &got))
            fail_msg("%zu are not told: %s", left, tarn_last_error());
        left -= got.tag == TAG;
        mine += got.tag == TAG;
        for (size_t i = 0; i < n; i++) {
            if (got.tag != tags[i])
                continue;
            assert_ptr_equal(got.lease, got.tag % 2 ? g->lease : g->other);
            told[i]++;
            left--;
        }
    }
    for (size_t i = 0; i < n; i++)
        assert_int_equal(told[i], 1);
    assert_int_equal(mine, 2);
}

/* Writes that go together each have their own status and notification. */
static void writes_that_go_together(void **state)
{
    const struct window_pair *p = *state;
    struct rig g;
    open_rig(&g, p, TARN_LEASE_WRITE, 60000);
    const struct {
        struct tarn_ring_command c;
        int status;
    } mixed[] = {
        {write_of(p->own + 1000, 1000, 1000, 0xffff0001), 0},
        {write_of(p->own, 2, WINDOW_ROOM - 1, 0xffff0002), TARN_E_SIZE},
        {write_of(p->own + 3000, 500, 3000, 0), 0},
        {write_of(p->own - 1, 2, 0, 0xffff0003), TARN_E_INVALID},
        {write_of(p->own + 4000, 1, 4000, 0xffff0007), 0},
        {write_of(p->own + 5000, 3000, 5000, 0xffff0005), 0},
    };
    const uint64_t told[] = {0xffff0001, 0xffff0007, 0xffff0005};
    for (uint32_t round = 0; round < 5; round++) {
        uint64_t numbers[WINDOW_COUNT(mixed)];
        memset(p->memory, 0, WINDOW_ROOM);
        hold_up(&g);
        for (size_t i = 0; i < WINDOW_COUNT(mixed); i++)
            numbers[i] = push(&g, &mixed[i].c);
        assert_told_all(&g, told, WINDOW_COUNT(told));
        for (size_t i = 0; i < WINDOW_COUNT(mixed); i++)
            if (status_of(&g, numbers[i]) != mixed[i].status)
                fail_msg("write %zu: %s", i, tarn_error_name(status_of(&g, numbers[i])));
        assert_memory_equal(p->memory + 1000, p->own + 1000, 1000);
        assert_memory_equal(p->memory + 3000, p->own + 3000, 500);
        assert_memory_equal(p->memory + 4000, p->own + 4000, 1);
        assert_memory_equal(p->memory + 5000, p->own + 5000, 3000);
        assert_int_equal(p->memory[WINDOW_ROOM - 1], 0);
        assert_nothing_told(&g);
    }
    close_rig(&g);
}

static void writes_to_two_leases(void **state)
{
    const struct window_pair *p = *state;
    uint64_t numbers[6], tags[6];
    struct rig g;
    open_rig(&g, p, TARN_LEASE_WRITE, 60000);
    hold_up(&g);
    for (uint32_t i = 0; i < 6; i++) {
        tags[i] = 0xffff0001 + i;
        struct tarn_ring_command c = write_of(p->own + 1000 * i, 1000, 1000 * i, (uint32_t)tags[i]);
        c.index = i % 2;
        numbers[i] = push(&g, &c);
    }
    assert_told_all(&g, tags, 6);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(status_of(&g, numbers[i]), 0);
    assert_memory_equal(p->memory, p->own, 6000);
    close_rig(&g);
}

/* The client closes while writes are under way and nobody takes what is told. */
static void a_client_that_closes(void **state)
{
    struct window_pair *p = *state;
    struct rig g;
    struct kernel k;
    struct tarn_notification got;
    open_rig(&g, p, TARN_LEASE_WRITE, 60000);
    k = (struct kernel){.rig = &g, .ring = g.ring.ring};
    assert_int_equal(pthread_create(&k.thread, NULL, play, &k), 0);
    assert_int_equal(tarn_notification_next(p->window, 20000, &got), 0);
    tarn_proxy_abort(g.proxy);
    pthread_join(k.thread, NULL);
    assert_true(k.rc == 0 || k.rc == TARN_E_CANCELED);
    tarn_close(p->peer); /* frees the proxy */
    tarn_reach_free(g.reach);
    tarn_reach_free(g.other_reach);
    p->peer = world_client(p->w, p->over);
}

#define TESTS(T) \
    T(a_write_tells) \
    T(a_quiet_waits_for_writes) \
    T(wrong_writes) \
    T(each_count_is_told_once) \
    T(a_full_queue) \
    T(writes_that_go_together) \
    T(writes_to_two_leases) \
    T(a_client_that_closes)

int main(int argc, char **argv)
{
    const struct CMUnitTest here[] = {TESTS(WINDOW_TCP) TESTS(WINDOW_SHM)},
                            gpu[] = {TESTS(WINDOW_GPU) TESTS(WINDOW_GPU_TCP)}, rdma[] = {TESTS(WINDOW_RDMA)};
    return window_run(argc, argv, here, WINDOW_COUNT(here), gpu, WINDOW_COUNT(gpu), rdma, WINDOW_COUNT(rdma));
}
