/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking in all three ways, with every kind of memory at both ends: random messages in random fragments to
 * random pieces. Every byte of the destination is compared, also those around the message. Without a GPU both
 * ends are host memory; make check-gpu and check-standin run the rest. Tests of behaviour that only the
 * stand-in shows (a ticket does not end while copies are under way, how failures end) are skipped with other
 * implementations. Times are measured on GPUs, unless NO_TIMES is set.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "tests/device.h"
#include "tests/harness.h"
#include "tests/standin/cuda_standin.h"
#include "tests/stream.h"
#include "transport/tcpx/plugin/tcpx_settings.h"
#include "transport/tcpx/tcpx_unpack.h"

enum { WAYS = 3, CHUNK = 256 << 10, DEPTH = 6, PIECES = 40 };

/* A message's share of the bounce memory (with room for gaps between fragments) and of the destination. */
enum { SHARE = 2 * CHUNK, LINEAR = CHUNK };

static struct device *device; /* NULL: no device */
static uint64_t seed;

static uint32_t rnd(uint32_t below)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 33) % below;
}

static void must(int rc)
{
    if (rc)
        fail_msg("%s: %s", tarn_error_name(rc), tarn_last_error());
}

static int start(void **state)
{
    (void)state;
    seed = tarn_random64();
    print_message("           seed %llu\n", (unsigned long long)seed);
    if (devices_there() > 0)
        device = device_open(0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    if (tarn_standin_fail) {
        tarn_standin_fail(NULL);
        tarn_standin_delay(0);
    }
    device_close(device);
    device = NULL;
    return 0;
}

static void need_standin(void)
{
    if (!tarn_standin_fail)
        harness_skip("standin", "only a stand-in for GPUs can be told to do this: make check-standin");
}

/* --- memory of each kind ------------------------------------------------------------------------ */

struct region {
    enum tarn_cuda_kind kind;
    size_t bytes;
    uint8_t *at;
    uint8_t *holds; /* the actual or expected bytes, in host memory */
};

/* Changes most of the bytes. */
static void region_fill(struct region *r, size_t at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 4)
        memcpy(r->holds + at + i, &(uint32_t){rnd(UINT32_MAX)}, bytes - i < 4 ? bytes - i : 4);
    device_write(r->kind == TARN_CUDA_DEVICE ? device : NULL, r->at + at, r->holds + at, bytes);
}

static void region_new(struct region *r, enum tarn_cuda_kind kind, size_t bytes)
{
    *r = (struct region){kind, bytes, NULL, malloc(bytes)};
    assert_non_null(r->holds);
    if (kind == TARN_CUDA_DEVICE)
        r->at = device_alloc(device, bytes);
    else
        r->at = kind == TARN_CUDA_PINNED ? pinned_new(bytes) : device_alloc(NULL, bytes);
    region_fill(r, 0, bytes);
}

static void region_check(const struct region *r)
{
    uint8_t *got = malloc(r->bytes);
    assert_non_null(got);
    device_read(r->kind == TARN_CUDA_DEVICE ? device : NULL, got, r->at, r->bytes);
    for (size_t i = 0; i < r->bytes; i++)
        if (got[i] != r->holds[i])
            fail_msg("byte %zu is %02x and ought to be %02x", i, got[i], r->holds[i]);
    free(got);
}

static void region_free(struct region *r)
{
    if (r->kind == TARN_CUDA_PINNED)
        pinned_free(r->at, r->bytes);
    else
        device_drop(r->kind == TARN_CUDA_DEVICE ? device : NULL, r->at);
    free(r->holds);
}

/* --- messages ----------------------------------------------------------------------------------- */

struct world {
    enum tarn_tcpx_way way;
    struct tarn_tcpx_unpacker *unpacker;
    struct region bounce, linear, to;
    struct tarn_tcpx_fragments list;
    uint64_t tickets[DEPTH];
    struct tarn_piece pieces[DEPTH][PIECES];
};

static void world_new(struct world *w, enum tarn_tcpx_way way, enum tarn_cuda_kind from,
                      enum tarn_cuda_kind to)
{
    w->way = way;
    must(tarn_tcpx_unpack_open(way, device ? 0 : -1, CHUNK, DEPTH, &w->unpacker));
    region_new(&w->bounce, from, (size_t)DEPTH * SHARE);
    region_new(&w->linear, device ? TARN_CUDA_PINNED : TARN_CUDA_HOST, (size_t)DEPTH * LINEAR);
    region_new(&w->to, to, (size_t)DEPTH * SHARE);
}

static void world_free(struct world *w)
{
    tarn_tcpx_unpack_close(w->unpacker);
    region_free(&w->bounce);
    region_free(&w->linear);
    region_free(&w->to);
}

/* Runs that are close or far apart, large, small or tiny, at any alignment, all in message i's share. */
static uint32_t pieces_random(struct world *w, uint32_t i, struct tarn_tcpx_into *into)
{
    static const uint32_t sizes[] = {40, 5000, 200000};
    struct tarn_piece *p = w->pieces[i];
    size_t at = (size_t)i * SHARE + rnd(32), end = (size_t)(i + 1) * SHARE;
    uint32_t n = 0, most = sizes[rnd(3)];
    for (; n < PIECES; n++) {
        uint64_t bytes = 1 + rnd(most), stride = rnd(2) ? bytes + rnd(50) : 0;
        uint64_t count = 1 + rnd(SHARE / 4 / (most + 50) + 1);
        uint64_t spans = (count - 1) * (stride ? stride : bytes) + bytes;
        if (spans > end - at)
            break;
        p[n] = (struct tarn_piece){w->to.at + at, bytes, stride, count};
        at += spans + rnd(2) * rnd(100);
        at = at < end ? at : end;
    }
    *into = (struct tarn_tcpx_into){
        .kind = w->to.kind, .pieces = p, .npieces = n, .bytes = tarn_pieces_bytes(p, n)};
    return n;
}

/* Makes the message's changes in the expected destination, byte by byte. */
static void play(struct world *w, const struct tarn_tcpx_into *into, const struct tarn_tcpx_fragment *f,
                 uint32_t n)
{
    static uint8_t message[CHUNK];
    uint64_t bytes = 0, at = 0;
    for (uint32_t i = 0; i<n; i++, bytes = at> bytes ? at : bytes) {
        memcpy(message + f[i].dst, (f[i].linear ? w->linear.holds : w->bounce.holds) + f[i].src, f[i].bytes);
        at = f[i].dst + f[i].bytes;
    }
    at = 0;
    for (uint32_t i = 0; i < into->npieces; i++)
        for (uint64_t run = 0; run < into->pieces[i].count; run++)
            for (uint64_t b = 0; b < into->pieces[i].bytes; b++, at++) {
                uint64_t stride = into->pieces[i].stride ? into->pieces[i].stride : into->pieces[i].bytes;
                size_t there = (size_t)((uint8_t *)into->pieces[i].addr - w->to.at + run * stride + b);
                if (at >= into->offset && at - into->offset < bytes)
                    w->to.holds[there] = message[at - into->offset];
            }
}

/* A message of `bytes` bytes in up to n fragments, from message i's shares, in any order. */
static uint32_t fragments_random(uint32_t i, uint32_t bytes, uint32_t n, struct tarn_tcpx_fragment *f)
{
    uint64_t src = (uint64_t)i * SHARE + rnd(64), linear = (uint64_t)i * LINEAR;
    uint32_t gap = bytes ? (SHARE - 64 - bytes) / (bytes < n ? bytes : n) : 0, at = 0, made = 0;
    for (; at < bytes; made++) {
        uint32_t left = bytes - at, most = 2 * (bytes / n + 1), size = 1 + rnd(most < left ? most : left);
        size = made + 1 == TARN_TCPX_FRAGMENTS ? left : size;
        bool is_linear = rnd(20) == 0;
        f[made] = (struct tarn_tcpx_fragment){is_linear ? linear : src, at, size, is_linear};
        linear += is_linear ? size : 0;
        src += (is_linear ? 0 : size) +
               (rnd(2) && src + gap + left < (uint64_t)(i + 1) * SHARE ? rnd(gap + 1) : 0);
        at += size;
    }
    for (uint32_t k = 1, shuffle = rnd(3); shuffle && k < made; k++) {
        uint32_t other = shuffle == 1 ? rnd(k + 1) : k - rnd(k < 4 ? k + 1 : 4);
        struct tarn_tcpx_fragment swap = f[k];
        f[k] = f[other];
        f[other] = swap;
    }
    return made;
}

/* Begins a message in message i's shares. Its arguments are overwritten at once, because the unpacker must
 * not keep them. */
static int message_start(struct world *w, uint32_t i)
{
    static struct tarn_tcpx_fragment f[TARN_TCPX_FRAGMENTS];
    static const uint32_t most[] = {1, 10, 130, 1500};
    struct tarn_tcpx_into into;
    pieces_random(w, i, &into);
    uint64_t room = into.bytes < CHUNK ? into.bytes : CHUNK;
    uint32_t bytes = rnd(10) ? 1 + rnd((uint32_t)room) : 0;
    uint32_t n = fragments_random(i, bytes, most[rnd(4)], f);
    into.offset = rnd((uint32_t)(into.bytes - bytes + 1));
    play(w, &into, f, n);
    w->list.n = 0;
    for (uint32_t k = 0; k < n; k++)
        must(tarn_tcpx_fragments_add(&w->list, f[k]));
    must(tarn_tcpx_fragments_check(&w->list, bytes, w->bounce.bytes, w->linear.bytes));
    struct tarn_tcpx_bounce bounce = {w->bounce.kind, 0, w->bounce.at, w->linear.at};
    uint64_t until = harness_now_ms() + DEVICE_TIMEOUT_MS;
    int rc;
    while ((rc = tarn_tcpx_unpack_start(w->unpacker, &w->list, &bounce, &into, &w->tickets[i])) ==
               TARN_E_AGAIN &&
           harness_now_ms() < until) {
        sched_yield();
        tarn_tcpx_unpack_poll(w->unpacker, 0); /* ends nothing, but advances earlier messages */
    }
    memset(&w->list, 0xee, sizeof(w->list));
    memset(&bounce, 0xee, sizeof(bounce));
    memset(&into, 0xee, sizeof(into));
    return rc;
}

/* Waits for message i. Then the plugin may reuse its bounce memory. */
static void message_end(struct world *w, uint32_t i)
{
    uint64_t until = harness_now_ms() + DEVICE_TIMEOUT_MS;
    int rc;
    while ((rc = tarn_tcpx_unpack_poll(w->unpacker, w->tickets[i])) == TARN_E_AGAIN &&
           harness_now_ms() < until)
        sched_yield();
    must(rc);
    region_fill(&w->bounce, (size_t)i * SHARE, SHARE);
    region_fill(&w->linear, (size_t)i * LINEAR, LINEAR);
    memset(w->pieces[i], 0xee, sizeof(w->pieces[i]));
}

static const struct {
    enum tarn_cuda_kind from, to;
} kinds[] = {
    {TARN_CUDA_HOST, TARN_CUDA_HOST},     {TARN_CUDA_DEVICE, TARN_CUDA_DEVICE},
    {TARN_CUDA_DEVICE, TARN_CUDA_PINNED}, {TARN_CUDA_DEVICE, TARN_CUDA_HOST},
    {TARN_CUDA_PINNED, TARN_CUDA_DEVICE}, {TARN_CUDA_HOST, TARN_CUDA_DEVICE},
    {TARN_CUDA_PINNED, TARN_CUDA_PINNED}, {TARN_CUDA_PINNED, TARN_CUDA_HOST},
    {TARN_CUDA_HOST, TARN_CUDA_PINNED},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static void run_all(void (*play_one)(struct world *w))
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    for (int way = 0; way < WAYS; way++)
        for (int k = 0; k < (device ? KINDS : 1); k++) {
            world_new(w, (enum tarn_tcpx_way)way, kinds[k].from, kinds[k].to);
            play_one(w);
            region_check(&w->to);
            world_free(w);
        }
    free(w);
}

/* --- bytes -------------------------------------------------------------------------------------- */

static void in_turn(struct world *w)
{
    for (uint32_t i = 0; i < 5 * DEPTH; i++) {
        if (i >= DEPTH)
            message_end(w, i % DEPTH);
        must(message_start(w, i % DEPTH));
    }
    for (uint32_t i = 0; i < DEPTH; i++)
        message_end(w, i);
}

static void test_all_ways_bring_the_same_bytes(void **state)
{
    (void)state;
    run_all(in_turn);
}

/* Waits only for the youngest message. When it has ended, all earlier ones have. */
static void the_youngest_only(struct world *w)
{
    for (int round = 0; round < 4; round++) {
        uint32_t n = 1 + rnd(DEPTH);
        for (uint32_t i = 0; i < n; i++)
            must(message_start(w, i));
        message_end(w, n - 1);
        for (uint32_t i = 0; i < n; i++) {
            must(tarn_tcpx_unpack_poll(w->unpacker, w->tickets[i]));
            assert_true(i == 0 || w->tickets[i] == w->tickets[i - 1] + 1);
        }
        region_check(&w->to);
        region_fill(&w->bounce, 0, w->bounce.bytes);
    }
}

static void test_tickets_end_in_order(void **state)
{
    (void)state;
    run_all(the_youngest_only);
}

/* When close returns, each message is done or will never be: no copy touches memory that is freed then. */
static void closed_early(struct world *w)
{
    struct tarn_tcpx_unpacker *u = w->unpacker;
    for (uint32_t i = 0; i < DEPTH; i++)
        must(message_start(w, i));
    tarn_tcpx_unpack_close(u);
    region_fill(&w->bounce, 0, w->bounce.bytes);
    region_fill(&w->to, 0, w->to.bytes);
    must(tarn_tcpx_unpack_open(w->way, device ? 0 : -1, CHUNK, DEPTH, &w->unpacker));
}

static void test_close_waits_for_copies(void **state)
{
    (void)state;
    run_all(closed_early);
}

static void too_many(struct world *w)
{
    struct tarn_tcpx_bounce bounce = {w->bounce.kind, 0, w->bounce.at, NULL};
    struct tarn_tcpx_into into = {.kind = w->to.kind, .pieces = w->pieces[0]};
    uint64_t ticket = 12345, until = harness_now_ms() + DEVICE_TIMEOUT_MS;
    for (uint32_t i = 0; i < DEPTH; i++)
        must(message_start(w, i));
    memset(&w->list, 0, sizeof(w->list));
    assert_int_equal(tarn_tcpx_unpack_start(w->unpacker, &w->list, &bounce, &into, &ticket), TARN_E_AGAIN);
    assert_int_equal(ticket, 12345);
    message_end(w, 0);
    int rc;
    while ((rc = tarn_tcpx_unpack_start(w->unpacker, &w->list, &bounce, &into, &ticket)) == TARN_E_AGAIN &&
           harness_now_ms() < until)
        tarn_tcpx_unpack_poll(w->unpacker, 0);
    must(rc);
    assert_int_equal(ticket, DEPTH + 1);
    w->tickets[0] = ticket;
    message_end(w, 0);
}

static void test_a_full_unpacker_begins_nothing(void **state)
{
    (void)state;
    run_all(too_many);
}

/* --- what is refused ---------------------------------------------------------------------------- */

static void expect_way(const char *text, enum tarn_tcpx_way want)
{
    enum tarn_tcpx_way way = want == TARN_TCPX_WAY_D2D ? TARN_TCPX_WAY_HOST : TARN_TCPX_WAY_D2D;
    must(tarn_tcpx_way_parse(text, &way));
    assert_int_equal(way, want);
    assert_true(!text || !*text || !strcmp(tarn_tcpx_way_name(way), text));
}

static void expect_no_way(const char *text, const char *words)
{
    enum tarn_tcpx_way way;
    assert_int_equal(tarn_tcpx_way_parse(text, &way), TARN_E_CONFIG);
    if (!strstr(tarn_last_error(), words))
        fail_msg("no \"%s\" in: %s", words, tarn_last_error());
}

static void test_ways_are_chosen_by_name(void **state)
{
    (void)state;
    expect_way(NULL, TARN_TCPX_WAY_KERNEL);
    expect_way("", TARN_TCPX_WAY_KERNEL);
    expect_way("d2d", TARN_TCPX_WAY_D2D);
    expect_way("host", TARN_TCPX_WAY_HOST);
    expect_way("kernel", TARN_TCPX_WAY_KERNEL);
    expect_no_way("kernal",
                  "TARN_TCPX_UNPACK_IMPL=kernal: there is no such way to unpack: name d2d, host or kernel; "
                  "did you mean \"kernel\"?");
    expect_no_way("d2", "did you mean \"d2d\"?");
    expect_no_way("something", "=something: there is no such way to unpack: name d2d, host or kernel");
}

/* Both ends read their settings from the environment. Empty counts as not set. */
static void test_settings_come_from_the_environment(void **state)
{
    enum { BAD = 1 };
    static const struct {
        const char *text;
        uint32_t ms;
    } times[] = {{"", 0},    {"100", 100}, {"60000", 60000}, {"99", BAD},
                 {"0", BAD}, {"-1", BAD},  {"60001", BAD},   {"3s", BAD}};
    struct tarn_tcpx_settings s;
    (void)state;
    unsetenv("TARN_TCPX_PLUGIN");
    unsetenv("TARN_TCPX_UNPACK_IMPL");
    must(tarn_tcpx_settings(&s));
    assert_true(!s.plugin && s.way == TARN_TCPX_WAY_KERNEL);

    must(tarn_tcpx_settings_export("/a/plugin.so", "host"));
    must(tarn_tcpx_settings_export(NULL, NULL));
    must(tarn_tcpx_settings(&s));
    assert_string_equal(s.plugin, "/a/plugin.so");
    assert_int_equal(s.way, TARN_TCPX_WAY_HOST);

    must(tarn_tcpx_settings_export("", "slow"));
    assert_int_equal(tarn_tcpx_settings(&s), TARN_E_CONFIG);
    assert_non_null(strstr(tarn_last_error(), "TARN_TCPX_UNPACK_IMPL=slow"));
    must(tarn_tcpx_settings_export(NULL, ""));
    must(tarn_tcpx_settings(&s));
    assert_true(!s.plugin && s.way == TARN_TCPX_WAY_KERNEL && s.stall_ms == 0);
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        setenv("TARN_TCPX_STALL_MS", times[i].text, 1);
        int rc = tarn_tcpx_settings(&s);
        if (times[i].ms == BAD ? rc != TARN_E_CONFIG || !strstr(tarn_last_error(), "TARN_TCPX_STALL_MS=")
                               : rc || s.stall_ms != times[i].ms)
            fail_msg("\"%s\": %d, %u ms", times[i].text, rc, s.stall_ms);
    }
    unsetenv("TARN_TCPX_STALL_MS");
    unsetenv("TARN_TCPX_PLUGIN");
    unsetenv("TARN_TCPX_UNPACK_IMPL");
}

static int start_one(struct tarn_tcpx_unpacker *u, struct tarn_tcpx_bounce bounce, struct tarn_tcpx_into into,
                     uint32_t bytes)
{
    static struct tarn_tcpx_fragments list;
    uint64_t ticket;
    list = (struct tarn_tcpx_fragments){.n = 1, .at[0] = {0, 0, bytes, bounce.linear != NULL}};
    must(tarn_tcpx_fragments_check(&list, bytes, UINT64_MAX, UINT64_MAX));
    bounce.linear = NULL;
    return tarn_tcpx_unpack_start(u, &list, &bounce, &into, &ticket);
}

static void test_requests_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static uint8_t bounce[200], to[200];
    struct tarn_tcpx_unpacker *u;
    struct tarn_piece p = {to, 100, 0, 1};
    struct tarn_tcpx_bounce b = {TARN_CUDA_HOST, -1, bounce, NULL};
    struct tarn_tcpx_into t = {TARN_CUDA_HOST, -1, &p, 1, 100, 40};
    must(tarn_tcpx_unpack_open(TARN_TCPX_WAY_D2D, -1, 80, 1, &u));
    assert_int_equal(start_one(u, b, t, 61), TARN_E_INVALID);
    t.offset = 101;
    assert_int_equal(start_one(u, b, t, 1), TARN_E_INVALID);
    t.offset = 0;
    assert_int_equal(start_one(u, b, t, 81), TARN_E_INVALID);
    b.linear = bounce;
    assert_int_equal(start_one(u, b, t, 10), TARN_E_INVALID); /* linear fragments, but no linear memory */
    b.linear = NULL;
    b.kind = TARN_CUDA_DEVICE; /* and no queue */
    assert_int_equal(start_one(u, b, t, 10), TARN_E_INVALID);
    b.kind = TARN_CUDA_HOST;
    must(start_one(u, b, t, 80));
    tarn_tcpx_unpack_close(u);
    assert_int_equal(tarn_tcpx_unpack_open(TARN_TCPX_WAY_D2D, -1, 80, 0, &u), TARN_E_INVALID);
    assert_int_equal(tarn_tcpx_unpack_open(TARN_TCPX_WAY_D2D, -1, 80, 17, &u), TARN_E_INVALID);
    assert_int_equal(tarn_tcpx_unpack_open(TARN_TCPX_WAY_D2D, -1, 0, 1, &u), TARN_E_INVALID);
    assert_int_not_equal(tarn_tcpx_unpack_open(TARN_TCPX_WAY_D2D, 99, 80, 1, &u), 0);
}

/* --- other devices ------------------------------------------------------------------------------ */

static void test_a_message_goes_to_another_device(void **state)
{
    (void)state;
    if (devices_there() < 2)
        harness_skip("gpus", "there are no two");
    struct device *other = device_open(1);
    uint8_t *from = device_alloc(device, 1000), *to = device_alloc(other, 1000), got[1000];
    struct tarn_piece p = {to, 10, 20, 50};
    for (int way = 0; way < WAYS; way++) {
        struct tarn_tcpx_unpacker *u;
        device_set(device, from, (uint8_t)(way + 1), 1000);
        must(tarn_tcpx_unpack_open((enum tarn_tcpx_way)way, 0, 1000, 1, &u));
        must(start_one(u, (struct tarn_tcpx_bounce){TARN_CUDA_DEVICE, 0, from, NULL},
                       (struct tarn_tcpx_into){TARN_CUDA_DEVICE, 1, &p, 1, 500, 0}, 500));
        tarn_tcpx_unpack_close(u);
        device_read(other, got, to, 1000);
        for (int i = 0; i < 1000; i++)
            assert_int_equal(got[i], i % 20 < 10 ? way + 1 : 0);
    }
    device_drop(device, from);
    device_drop(other, to);
    device_close(other);
}

/* Runs in a separate process whose devices do not reach each other. */
static void apart(void **state)
{
    (void)state;
    struct device *other = device_open(1);
    uint8_t *from = device_alloc(device, 1000), *to = device_alloc(other, 1000);
    struct tarn_piece there = {to, 500, 0, 1}, here = {from + 500, 500, 0, 1};
    struct tarn_tcpx_bounce bounce = {TARN_CUDA_DEVICE, 0, from, NULL};
    struct tarn_tcpx_unpacker *u;
    must(tarn_tcpx_unpack_open(TARN_TCPX_WAY_KERNEL, 0, 1000, 1, &u));
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            start_one(u, bounce, (struct tarn_tcpx_into){TARN_CUDA_DEVICE, 1, &there, 1, 500, 0}, 500),
            TARN_E_NOT_REACHABLE);
    assert_non_null(strstr(tarn_last_error(), "device 0 does not reach memory of device 1"));
    must(start_one(u, bounce, (struct tarn_tcpx_into){TARN_CUDA_DEVICE, 0, &here, 1, 500, 0}, 500));
    tarn_tcpx_unpack_close(u);
    device_drop(device, from);
    device_drop(other, to);
    device_close(other);
}

static void test_an_unreachable_device_is_refused(void **state)
{
    (void)state;
    int status;
    need_standin();
    pid_t pid = fork();
    if (pid == 0) {
        setenv("STANDIN_PEERS", "0", 1);
        execl("/proc/self/exe", "test_tcpx_unpack", "--apart", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* --- what only the stand-in shows --------------------------------------------------------------- */

static void late(struct world *w)
{
    enum { DELAY_MS = 100 };
    tarn_standin_delay(DELAY_MS * 1000);
    uint64_t begun = harness_now_ms();
    must(message_start(w, 0));
    int rc = tarn_tcpx_unpack_poll(w->unpacker, w->tickets[0]);
    bool on_host = w->bounce.kind != TARN_CUDA_DEVICE && w->to.kind != TARN_CUDA_DEVICE;
    assert_true(harness_now_ms() - begun >= DELAY_MS || rc == (on_host ? 0 : TARN_E_AGAIN));
    message_end(w, 0);
    tarn_standin_delay(0);
}

static void test_start_does_not_wait(void **state)
{
    (void)state;
    need_standin();
    run_all(late);
}

static void test_failures_are_passed_on(void **state)
{
    (void)state;
    need_standin();
    static const struct {
        const char *what;
        int rc;
        bool staged_only;
    } fails[] = {{"copy:1", TARN_E_SYSTEM, false}, {"copy:2", TARN_E_SYSTEM, true},
                 {"mark:1", TARN_E_SYSTEM, false}, {"poll:1", TARN_E_SYSTEM, false},
                 {"pin:1", TARN_E_SYSTEM, true},   {"lost:1", TARN_E_UNAVAILABLE, false}};
    uint8_t *from = device_alloc(device, 1000), *to = device_alloc(device, 1000);
    struct tarn_piece p = {to, 1000, 0, 1};
    for (int way = 0; way < WAYS; way++)
        for (size_t i = 0; i < sizeof(fails) / sizeof(fails[0]); i++) {
            struct tarn_tcpx_unpacker *u;
            if (fails[i].staged_only && way != TARN_TCPX_WAY_HOST)
                continue;
            must(tarn_tcpx_unpack_open((enum tarn_tcpx_way)way, 0, 1000, 1, &u));
            tarn_standin_fail(fails[i].what);
            int rc = start_one(u, (struct tarn_tcpx_bounce){TARN_CUDA_DEVICE, 0, from, NULL},
                               (struct tarn_tcpx_into){TARN_CUDA_DEVICE, 0, &p, 1, 1000, 0}, 1000);
            if (!rc)
                rc = tarn_tcpx_unpack_poll(u, 1);
            assert_int_equal(rc, fails[i].rc);
            tarn_tcpx_unpack_close(u);
            tarn_standin_fail(NULL);
        }
    tarn_standin_fail("queue:1");
    struct tarn_tcpx_unpacker *u;
    assert_int_equal(tarn_tcpx_unpack_open(TARN_TCPX_WAY_D2D, 0, 1000, 1, &u), TARN_E_SYSTEM);
    tarn_standin_fail(NULL);
    device_drop(device, from);
    device_drop(device, to);
}

/* --- times -------------------------------------------------------------------------------------- */

enum { PAGE = 4096, TIMED_BYTES = TARN_TCPX_FRAGMENTS * PAGE, TIMES = 31 };

/* n pages in random order, no two adjacent, as in a pool that has been used for a while. */
static void list_of_pages(struct tarn_tcpx_fragments *f, uint32_t n)
{
    f->n = n;
    for (uint32_t i = 0; i < n; i++)
        f->at[i] = (struct tarn_tcpx_fragment){2ull * PAGE * i, (uint64_t)PAGE * i, PAGE, false};
    for (uint32_t i = 1; i < n; i++) {
        uint32_t k = rnd(i + 1);
        uint64_t src = f->at[i].src;
        f->at[i].src = f->at[k].src;
        f->at[k].src = src;
    }
    must(tarn_tcpx_fragments_check(f, (uint64_t)PAGE * n, UINT64_MAX, 0));
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The median time from start to the end of the ticket. */
static uint64_t time_ns(enum tarn_tcpx_way way, const struct tarn_tcpx_fragments *f, const uint8_t *from,
                        uint8_t *to)
{
    struct tarn_tcpx_unpacker *u;
    struct tarn_piece p = {to, f->bytes, 0, 1};
    struct tarn_tcpx_bounce bounce = {TARN_CUDA_DEVICE, 0, from, NULL};
    struct tarn_tcpx_into into = {TARN_CUDA_DEVICE, 0, &p, 1, f->bytes, 0};
    uint64_t took[TIMES];
    must(tarn_tcpx_unpack_open(way, 0, TIMED_BYTES, 1, &u));
    for (int i = -3; i < TIMES; i++) {
        uint64_t ticket, begun = tarn_now_ns();
        int rc;
        must(tarn_tcpx_unpack_start(u, f, &bounce, &into, &ticket));
        while ((rc = tarn_tcpx_unpack_poll(u, ticket)) == TARN_E_AGAIN)
            ;
        must(rc);
        if (i >= 0)
            took[i] = tarn_now_ns() - begun;
    }
    tarn_tcpx_unpack_close(u);
    qsort(took, TIMES, sizeof(took[0]), by_size);
    return took[TIMES / 2];
}

/* The same copies by cudaMemcpyAsync(), one each, without tarn. */
static uint64_t bare_time_ns(const struct tarn_tcpx_fragments *f, const uint8_t *from, uint8_t *to)
{
    static struct tarn_cuda_piece pieces[TARN_TCPX_FRAGMENTS];
    struct stream *s = stream_open(0);
    uint64_t took[TIMES];
    for (uint32_t i = 0; i < f->n; i++)
        pieces[i] = (struct tarn_cuda_piece){from + f->at[i].src, to + f->at[i].dst, f->at[i].bytes};
    for (int i = -3; i < TIMES; i++) {
        uint64_t begun = tarn_now_ns();
        stream_copy_each(s, pieces, f->n);
        if (i >= 0)
            took[i] = tarn_now_ns() - begun;
    }
    stream_close(s);
    qsort(took, TIMES, sizeof(took[0]), by_size);
    return took[TIMES / 2];
}

static void test_one_launch_is_faster_than_a_copy_each(void **state)
{
    (void)state;
    static const uint32_t counts[] = {128, 256, 512, 1024, 2047};
    if (tarn_standin_fail)
        harness_skip("times", "a stand-in's copies say nothing about a GPU's");
    if (getenv("NO_TIMES"))
        harness_skip("times", "NO_TIMES is set: a tool that checks every access is looking on");
    devices_need(1);
    struct tarn_tcpx_fragments *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    uint8_t *from = device_alloc(device, 2 * TIMED_BYTES), *to = device_alloc(device, TIMED_BYTES);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        list_of_pages(f, counts[i]);
        double us[WAYS];
        for (int way = 0; way < WAYS; way++)
            us[way] = (double)time_ns((enum tarn_tcpx_way)way, f, from, to) / 1000;
        double bare = (double)bare_time_ns(f, from, to) / 1000, ratio = bare / us[TARN_TCPX_WAY_KERNEL];
        print_message(
            "times: %u fragments of %d bytes: a cudaMemcpyAsync each %.1f us, d2d %.1f us, host %.1f us, "
            "kernel %.1f us, %.0f times as fast as a cudaMemcpyAsync each\n",
            counts[i], PAGE, bare, us[TARN_TCPX_WAY_D2D], us[TARN_TCPX_WAY_HOST], us[TARN_TCPX_WAY_KERNEL],
            ratio);
        assert_true(ratio >= 10);
    }
    device_drop(device, from);
    device_drop(device, to);
    free(f);
}

#define TEST(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest of_child[] = {TEST(apart)};
    const struct CMUnitTest tests[] = {
        TEST(test_all_ways_bring_the_same_bytes),
        TEST(test_tickets_end_in_order),
        TEST(test_close_waits_for_copies),
        TEST(test_a_full_unpacker_begins_nothing),
        TEST(test_ways_are_chosen_by_name),
        TEST(test_settings_come_from_the_environment),
        TEST(test_requests_that_do_not_fit_are_refused),
        TEST(test_a_message_goes_to_another_device),
        TEST(test_an_unreachable_device_is_refused),
        TEST(test_start_does_not_wait),
        TEST(test_failures_are_passed_on),
        TEST(test_one_launch_is_faster_than_a_copy_each),
    };
    if (argc == 2 && strcmp(argv[1], "--apart") == 0)
        return cmocka_run_group_tests(of_child, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
