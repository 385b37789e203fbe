/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows of GPU memory over tcp and tcpx (its plugin is a fixture): what a recall waits for, what ends in
 * the middle, when a notification counts, and clients that stop. Lender and peer are in this process. Tests
 * that delay copies or let them fail need the stand-in.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tarn/window.h>

#include "base/clock.h"
#include "base/net.h"
#include "client/client.h"
#include "client/window/lender.h"
#include "tests/device.h"
#include "tests/standin/cuda_standin.h"
#include "tests/tcpx/child.h"
#include "tests/world.h"
#include "transport/tcp/tcp.h"
#include "transport/tcp/tcp_frame.h"

enum { BYTES = 4 << 20, PART = 100000, LATE_US = 500 * 1000, TAG = 5 };

static const struct world_plan plan = {.nodes = 0};

struct scene {
    struct world *w;
    struct tarn_client *lender, *peer;
    const char *over; /* the peer's transports */
    struct device *d;
    uint8_t *memory, *own, *seen; /* own: the peer's, in host memory; seen: what is in `memory` */
    struct tarn_window *window;
    struct tarn_lease *lease;
    struct tarn_reach *reach;
    struct tarn_piece piece;
    struct tarn_move move;
};

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 7 + i / 251);
}

static void grant(struct scene *s)
{
    const struct tarn_lease_options writable = {.size = sizeof(writable), .flags = TARN_LEASE_WRITE};
    char text[TARN_DESCRIPTOR_MAX];
    tarn_reach_free(s->reach);
    assert_int_equal(tarn_lease(s->window, NULL, 0, &writable, &s->lease), 0);
    assert_int_equal(tarn_lease_descriptor(s->lease, text), 0);
    assert_int_equal(tarn_reach(s->peer, text, 0, &s->reach), 0);
}

static int start(void **state)
{
    struct scene *s = calloc(1, sizeof(*s));
    void *w;
    assert_int_equal(world_start(&w, &plan), 0);
    s->w = w;
    s->over = "tcp";
    *state = s;
    return 0;
}

static int start_tcpx(void **state)
{
    child_configure("fixture-v7");
    setenv("TCPX_FIXTURE", "gpu=1,pages=4096,cut_min=2048", 0);
    start(state);
    ((struct scene *)*state)->over = "tcpx";
    return 0;
}

/* Everything is open afterwards: a read has passed through. */
static void begin(struct scene *s, uint64_t bytes)
{
    devices_need(1);
    s->lender = world_client(s->w, NULL);
    s->peer = world_client(s->w, s->over);
    s->d = device_open(0);
    s->memory = device_alloc(s->d, BYTES);
    s->own = malloc(BYTES);
    s->seen = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        s->own[i] = byte_at(i);
    device_write(s->d, s->memory, s->own, BYTES);
    s->piece = (struct tarn_piece){.addr = s->own, .bytes = bytes};
    s->move = (struct tarn_move){.pieces = &s->piece, .npieces = 1};
    assert_int_equal(tarn_window_new(s->lender, s->memory, BYTES, &s->window), 0);
    grant(s);
    if (tarn_read(s->reach, &s->move, 1, NULL))
        fail_msg("read: %s", tarn_last_error());
}

static void need_standin(void)
{
    devices_need(1);
    if (!tarn_standin_delay)
        harness_skip("standin", "only the stand-in's copies can be delayed, and fail");
}

static int stop(void **state)
{
    struct scene *s = *state;
    void *w = s->w;
    if (tarn_standin_delay) {
        tarn_standin_delay(0);
        tarn_standin_fail(NULL);
    }
    tarn_reach_free(s->reach);
    tarn_close(s->peer);
    tarn_close(s->lender);
    if (s->memory)
        device_drop(s->d, s->memory);
    device_close(s->d);
    free(s->own);
    free(s->seen);
    free(s);
    return world_stop(&w);
}

static uint32_t pins(const struct scene *s)
{
    struct tarn_lent *lent = &s->lender->lender->lent;
    pthread_mutex_lock(&lent->lock);
    uint32_t n = s->lease->pins;
    pthread_mutex_unlock(&lent->lock);
    return n;
}

/* What is in the window now; no copy is waited for. */
static const uint8_t *window_now(struct scene *s)
{
    if (tarn_standin_delay)
        tarn_standin_delay(0);
    device_read(s->d, s->seen, s->memory, BYTES);
    return s->seen;
}

static bool all_are(const uint8_t *at, uint8_t byte, size_t bytes)
{
    return bytes == 0 || (at[0] == byte && !memcmp(at, at + 1, bytes - 1));
}

/* The window's bytes as they were at first. */
static bool are_first(const uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != byte_at(i))
            return false;
    return true;
}

static tarn_op submit(struct scene *s, bool write, const struct tarn_move_options *o)
{
    tarn_op op;
    assert_int_equal((write ? tarn_submit_write : tarn_submit_read)(s->reach, &s->move, 1, o, 1, &op), 0);
    return op;
}

static int wait_op(struct scene *s, tarn_op op)
{
    struct tarn_completion done;
    assert_int_equal(tarn_wait(s->peer, op, 20000, &done), 0);
    return done.status;
}

/* --- recalls ------------------------------------------------------------------------------------ */

static void a_recall_waits_for_a_writes_copy(void **state)
{
    struct scene *s = *state;
    need_standin();
    begin(s, PART);
    memset(s->own, 0x77, PART);
    tarn_standin_delay(LATE_US);
    tarn_op op = submit(s, true, NULL);
    HARNESS_UNTIL(pins(s) > 0, 10000);
    assert_int_equal(tarn_recall(s->lease, 1), TARN_E_BUSY);
    assert_int_equal(tarn_recall(s->lease, 20000), 0);
    assert_memory_equal(window_now(s), s->own, PART);
    assert_int_equal(wait_op(s, op), 0);
    assert_int_equal(tarn_write(s->reach, &s->move, 1, NULL), TARN_E_STALE);
}

/* The lender writes to its memory as soon as recall() returns. */
static void a_recall_waits_for_a_reads_copy(void **state)
{
    struct scene *s = *state;
    need_standin();
    begin(s, PART);
    memset(s->own, 0, PART);
    tarn_standin_delay(LATE_US);
    tarn_op op = submit(s, false, NULL);
    HARNESS_UNTIL(pins(s) > 0, 10000);
    assert_int_equal(tarn_recall(s->lease, 20000), 0);
    tarn_standin_delay(0);
    device_set(s->d, s->memory, 0xee, BYTES);
    assert_int_equal(wait_op(s, op), 0);
    assert_true(are_first(s->own, PART));
}

/* A transfer that does not fit into the pinned memory at once. */
static void ends_in_the_middle(struct scene *s, bool write)
{
    need_standin();
    begin(s, BYTES);
    tarn_standin_delay(LATE_US);
    tarn_op op = submit(s, write, NULL);
    HARNESS_UNTIL(pins(s) > 0, 10000);
    assert_int_equal(tarn_recall(s->lease, 20000), 0);
    tarn_standin_delay(0);
    device_set(s->d, s->memory, 0xee, BYTES);
    assert_int_equal(wait_op(s, op), TARN_E_STALE);
    assert_true(all_are(window_now(s), 0xee, BYTES));
}

static void a_write_that_ends_in_the_middle(void **state)
{
    struct scene *s = *state;
    ends_in_the_middle(s, true);
    grant(s);
    assert_int_equal(tarn_write(s->reach, &s->move, 1, NULL), 0);
    assert_memory_equal(window_now(s), s->own, BYTES);
}

static void a_read_that_ends_in_the_middle(void **state)
{
    struct scene *s = *state;
    ends_in_the_middle(s, false);
    grant(s);
    assert_int_equal(tarn_read(s->reach, &s->move, 1, NULL), 0);
    assert_memory_equal(window_now(s), s->own, BYTES);
}

static void a_peer_that_goes_leaves_no_pin(void **state)
{
    struct scene *s = *state;
    need_standin();
    begin(s, BYTES);
    for (int write = 0; write < 2; write++) {
        tarn_standin_delay(LATE_US);
        tarn_op op = submit(s, write, NULL);
        HARNESS_UNTIL(pins(s) > 0, 10000);
        assert_int_equal(tarn_cancel(s->peer, op), 0); /* its link is closed */
        assert_int_equal(wait_op(s, op), TARN_E_CANCELED);
        assert_int_equal(tarn_recall(s->lease, 20000), 0);
        tarn_standin_delay(0);
        grant(s);
        assert_int_equal(tarn_read(s->reach, &s->move, 1, NULL), 0);
        assert_int_equal(pins(s), 0);
    }
}

/* --- notifications ------------------------------------------------------------------------------ */

static void a_notification_waits_for_the_copies(void **state)
{
    struct scene *s = *state;
    const struct tarn_notify notify = {.tag = TAG};
    const struct tarn_move_options o = {.size = sizeof(o), .notify = &notify};
    need_standin();
    begin(s, PART);
    memset(s->own, 0x77, PART);
    tarn_standin_delay(LATE_US);
    tarn_op op = submit(s, true, &o);
    HARNESS_UNTIL(pins(s) > 0, 10000);
    assert_int_equal(tarn_expect(s->lease, TAG, 1, 10000), 0);
    assert_memory_equal(window_now(s), s->own, PART);
    assert_int_equal(wait_op(s, op), 0);
}

static void a_failed_write_tells_nothing(void **state)
{
    struct scene *s = *state;
    const struct tarn_notify notify = {.tag = TAG};
    const struct tarn_move_options o = {.size = sizeof(o), .notify = &notify};
    need_standin();
    begin(s, PART);
    tarn_standin_fail("copy:*");
    assert_int_not_equal(tarn_write(s->reach, &s->move, 1, &o), 0);
    tarn_standin_fail(NULL);
    assert_int_equal(tarn_expect(s->lease, TAG, 1, 100), TARN_E_TIMEOUT);
    assert_int_equal(tarn_write(s->reach, &s->move, 1, &o), 0);
    assert_int_equal(tarn_expect(s->lease, TAG, 1, 10000), 0);
    assert_int_equal(pins(s), 0);
}

static void a_failed_read_ends_alone(void **state)
{
    struct scene *s = *state;
    need_standin();
    begin(s, BYTES);
    tarn_standin_fail("copy:2");
    assert_int_not_equal(tarn_read(s->reach, &s->move, 1, NULL), 0);
    tarn_standin_fail(NULL);
    memset(s->own, 0, BYTES);
    assert_int_equal(tarn_read(s->reach, &s->move, 1, NULL), 0);
    assert_true(are_first(s->own, BYTES));
    assert_int_equal(tarn_recall(s->lease, 10000), 0);
}

/* --- peers that keep to no order of this library ------------------------------------------------ */

/* A data connection of the peer's session. */
static int greeted(const struct scene *s)
{
    const struct tarn_host *h = &s->lender->lender->host;
    struct tarn_attach a = {.session = s->window->grants->session, .offer = ""};
    struct tarn_tcp_hello hello = {.frame = {.magic = TARN_TCP_MAGIC,
                                             .version = TARN_TCP_VERSION,
                                             .op = TARN_TCP_HELLO,
                                             .gen = a.session,
                                             .bytes = TARN_TOKEN}};
    char address[128], token[TARN_TOKEN + 1];
    struct tarn_addr to;
    int fd;
    for (uint32_t i = 0; i < h->ntransports; i++)
        if (!strcmp(h->transports[i].ops->name, "tcp"))
            assert_int_equal(h->transports[i].ops->attach(h->transports[i].half, &a), 0);
    assert_int_equal(sscanf(a.text, "v1 %127s %32s", address, token), 2);
    memcpy(hello.token, token, TARN_TOKEN);
    assert_int_equal(tarn_addr_parse(address, "tcp", &to), 0);
    assert_int_equal(tarn_net_connect(&to, tarn_deadline(10000), NULL, &fd), 0);
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
    tarn_tcp_tune(fd, true); /* the kernel holds little of what is not read */
    assert_int_equal(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
    assert_int_equal(recv(fd, &hello.frame, sizeof(hello.frame), MSG_WAITALL), sizeof(hello.frame));
    assert_int_equal(hello.frame.status, 0);
    return fd;
}

static struct tarn_tcp_frame request(const struct scene *s, uint8_t op, uint64_t bytes)
{
    return (struct tarn_tcp_frame){.magic = TARN_TCP_MAGIC,
                                   .version = TARN_TCP_VERSION,
                                   .op = op,
                                   .pool = (uint16_t)s->window->index,
                                   .slot = s->lease->slot,
                                   .gen = s->lease->gen,
                                   .bytes = bytes};
}

static void say(int fd, const void *data, size_t bytes)
{
    assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
}

static struct tarn_tcp_frame hear(int fd)
{
    struct tarn_tcp_frame f;
    assert_int_equal(recv(fd, &f, sizeof(f), MSG_WAITALL), sizeof(f));
    return f;
}

/* Writes with notifications, one behind the other in one segment. */
static void notifications_one_behind_the_other(void **state)
{
    enum { N = 20, EACH = 1000 };
    struct {
        struct tarn_tcp_frame frame;
        uint8_t payload[EACH];
        uint64_t tag;
    } __attribute__((packed)) all[N];
    struct scene *s = *state;
    begin(s, PART);
    for (uint64_t i = 0; i < N; i++) {
        all[i].frame = request(s, TARN_TCP_PUT, EACH + sizeof(all[i].tag));
        all[i].frame.status = sizeof(all[i].tag);
        all[i].frame.offset = i * EACH;
        all[i].tag = i;
        memset(all[i].payload, (int)(i + 1), EACH);
    }
    int fd = greeted(s);
    say(fd, all, sizeof(all));
    for (uint64_t i = 0; i < N; i++) {
        struct tarn_notification got;
        assert_int_equal(tarn_notification_next(s->window, 10000, &got), 0);
        assert_int_equal(got.tag, i);
        assert_true(all_are(window_now(s) + i * EACH, (uint8_t)(i + 1), EACH));
        assert_int_equal(hear(fd).status, 0);
    }
    close(fd);
}

/* A write's last bytes come long after the others, which are copied meanwhile. */
static void a_notification_that_comes_late(void **state)
{
    struct scene *s = *state;
    uint64_t tag = TAG;
    begin(s, PART);
    memset(s->own, 0x77, PART);
    struct tarn_tcp_frame f = request(s, TARN_TCP_PUT, PART + sizeof(tag));
    f.status = sizeof(tag);
    int fd = greeted(s);
    say(fd, &f, sizeof(f));
    say(fd, s->own, PART);
    HARNESS_UNTIL(memcmp(window_now(s), s->own, PART) == 0 && pins(s) == 0, 10000);
    assert_int_equal(tarn_expect(s->lease, TAG, 1, 20), TARN_E_TIMEOUT);
    say(fd, &tag, sizeof(tag));
    assert_int_equal(hear(fd).status, 0);
    assert_int_equal(tarn_expect(s->lease, TAG, 1, 0), 0);
    close(fd);
}

/* Readers and writers that stop, more than there is pinned memory for. */
static void a_recall_waits_for_no_peer(void **state)
{
    enum { SLOW = 20, ASKED = 4 };
    struct scene *s = *state;
    int reads[SLOW], writes[SLOW];
    begin(s, BYTES);
    uint8_t *got = malloc(BYTES);
    for (int i = 0; i < SLOW; i++) {
        struct tarn_tcp_frame f = request(s, TARN_TCP_GET, BYTES), put = request(s, TARN_TCP_PUT, PART);
        reads[i] = greeted(s);
        writes[i] = greeted(s);
        for (int k = 0; k < ASKED; k++)
            say(reads[i], &f, sizeof(f));
        say(writes[i], &put, sizeof(put));
        say(writes[i], s->own, PART / 2);
    }
    for (int i = 0; i < SLOW; i++) { /* one whole answer from each, so all have had pinned memory */
        assert_int_equal(hear(reads[i]).status, 0);
        assert_int_equal(recv(reads[i], got, BYTES, MSG_WAITALL), BYTES);
        assert_memory_equal(got, s->own, BYTES);
        assert_int_equal(hear(reads[i]).status, 0);
    }
    assert_int_equal(tarn_recall(s->lease, 10000), 0);
    device_set(s->d, s->memory, 0xee, BYTES);
    for (int i = 0; i < SLOW; i++) {
        say(writes[i], s->own, PART / 2);
        assert_int_equal(hear(writes[i]).status, TARN_E_STALE);
        struct tarn_tcp_frame verdict = {.status = 0};
        for (int k = 1; k < ASKED && !verdict.status; k++) {
            struct tarn_tcp_frame f = hear(reads[i]);
            assert_int_equal(recv(reads[i], got, f.bytes, MSG_WAITALL), f.bytes);
            verdict = f.bytes ? hear(reads[i]) : f;
            size_t right = 0;
            while (right < f.bytes && got[right] == byte_at(right))
                right++;
            assert_true(right == f.bytes || (verdict.status && all_are(got + right, 0, f.bytes - right)));
        }
        assert_int_equal(verdict.status, TARN_E_STALE);
        close(reads[i]);
        close(writes[i]);
    }
    assert_true(all_are(window_now(s), 0xee, BYTES));
    free(got);
}

/* --- a peer with a GPU -------------------------------------------------------------------------- */

/* The lease ends while the peer's GPU copies what has come: the read ends after that. */
static void a_stale_read_ends_with_its_copies(void **state)
{
    struct scene *s = *state;
    need_standin();
    begin(s, BYTES);
    uint8_t *own = device_alloc(s->d, BYTES), *other = device_alloc(s->d, BYTES);
    s->piece.addr = own;
    tarn_standin_delay(LATE_US);
    tarn_op op = submit(s, false, NULL);
    HARNESS_UNTIL(pins(s) > 0, 10000);
    assert_int_equal(tarn_recall(s->lease, 20000), 0);
    assert_int_equal(wait_op(s, op), TARN_E_STALE);
    tarn_standin_delay(0);
    device_set(s->d, own, 0x11, BYTES);
    grant(s);
    s->piece.addr = other; /* behind all that the link still had to copy */
    assert_int_equal(tarn_read(s->reach, &s->move, 1, NULL), 0);
    device_expect(s->d, own, 0x11, BYTES);
    device_drop(s->d, other);
    device_drop(s->d, own);
}

/* --- copies that end at any moment --------------------------------------------------------------- */

static void many_reads_with_slow_copies(void **state)
{
    enum { READS = 400 };
    struct scene *s = *state;
    need_standin();
    begin(s, PART);
    for (int i = 0; i < READS; i++) {
        s->own[i] = 0;
        tarn_standin_delay((uint64_t)(1 + i % 97));
        if (tarn_read(s->reach, &s->move, 1, NULL))
            fail_msg("read %d: %s", i, tarn_last_error());
        assert_int_equal(pins(s), 0);
        assert_true(are_first(s->own, PART));
    }
}

/* --- windows one after the other ---------------------------------------------------------------- */

/* Another window takes the place of the one that there is. Reads it and writes to it. */
static void replace_window(struct scene *s, void *memory, uint8_t *got)
{
    uint32_t index = s->window->index;
    assert_int_equal(tarn_window_close(s->window, 20000), 0);
    assert_int_equal(tarn_window_new(s->lender, memory, PART, &s->window), 0);
    assert_int_equal(s->window->index, index);
    grant(s);
    s->piece.addr = got;
    if (tarn_read(s->reach, &s->move, 1, NULL))
        fail_msg("read: %s", tarn_last_error());
    if (tarn_write(s->reach, &s->move, 1, NULL))
        fail_msg("write: %s", tarn_last_error());
}

/* A lane of tcpx is for the memory of the window that it was opened for: of a GPU, or of the host. */
static void another_window_comes_under_the_index(void **state)
{
    struct scene *s = *state;
    static uint8_t host[PART], got[PART];
    begin(s, PART);
    for (int from_host = 0; from_host < 2; from_host++) {
        tarn_reach_free(s->reach);
        s->reach = NULL;
        tarn_close(s->peer);
        s->peer = world_client(s->w, "tcpx,tcp");
        replace_window(s, from_host ? host : s->memory, got);
        memset(host, 0x3c + from_host, PART);
        device_set(s->d, s->memory, 0x5c + from_host, PART);
        replace_window(s, from_host ? s->memory : host, got);
        assert_true(all_are(got, (uint8_t)((from_host ? 0x5c : 0x3c) + from_host), PART));
    }
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, start, stop)
#define TCPX(t) \
    { \
        "tcpx: " #t, t, start_tcpx, stop, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_recall_waits_for_a_writes_copy),    TEST(a_recall_waits_for_a_reads_copy),
        TEST(a_write_that_ends_in_the_middle),     TEST(a_read_that_ends_in_the_middle),
        TEST(a_peer_that_goes_leaves_no_pin),      TEST(a_notification_waits_for_the_copies),
        TEST(a_failed_write_tells_nothing),        TEST(a_failed_read_ends_alone),
        TEST(notifications_one_behind_the_other),  TEST(a_notification_that_comes_late),
        TEST(a_recall_waits_for_no_peer),          TEST(a_stale_read_ends_with_its_copies),
        TCPX(a_recall_waits_for_a_writes_copy),    TCPX(a_recall_waits_for_a_reads_copy),
        TCPX(a_notification_waits_for_the_copies), TCPX(another_window_comes_under_the_index),
        TCPX(many_reads_with_slow_copies),         TEST(many_reads_with_slow_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
