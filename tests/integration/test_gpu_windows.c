/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows over memory of a GPU, whose lender is another process: the peer opens the lender's handle. The
 * lender is this program, started anew, since CUDA does not survive a fork. test_window.c has what all
 * windows do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/wait.h>
#include <unistd.h>

#include <tarn/window.h>

#include "client/client.h"
#include "client/window/lender.h"
#include "tests/device.h"
#include "tests/standin/cuda_standin.h"
#include "tests/world.h"

enum { BYTES = 4 << 20, SHIFT = 4096, ROOM = BYTES + 2 * SHIFT };

static const struct world_plan plan = {.nodes = 0};

/* What the lender says first. Then it answers each order. */
struct told {
    char text[TARN_DESCRIPTOR_MAX];
};
enum order { RECALL = 'r', CHECK = 'c', END = 'e' };

struct scene {
    struct world *w;
    const char *transport; /* of the peer */
    pid_t lender;
    int orders, answers; /* pipes */
    struct tarn_client *peer;
    struct tarn_reach *reach;
    struct told told;
};

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 7 + i / 251);
}

/* Runs of different kinds: plain ones, strided ones, and a large one. */
static const struct tarn_run runs[] = {
    {.offset = 1 << 20, .bytes = 300, .stride = 1000, .count = 500},
    {.offset = 0, .bytes = 777},
    {.offset = 2 << 20, .bytes = 2 << 20},
    {.offset = 5000, .bytes = 1, .stride = 2, .count = 100},
};
enum { NRUNS = 4, LEASED = 300 * 500 + 777 + (2 << 20) + 100 };

/* --- the lender --------------------------------------------------------------------------------- */

static void must_be(bool is)
{
    if (!is)
        _exit(3);
}

/* Are the bytes of the lease all `want`, and those between as they were? */
static int check(struct device *d, uint8_t *base, uint8_t want)
{
    uint8_t *all = malloc(ROOM), *expected = malloc(ROOM);
    for (size_t i = 0; i < ROOM; i++)
        expected[i] = byte_at(i);
    for (int i = 0; i < NRUNS; i++)
        for (uint64_t k = 0; k < (runs[i].count ? runs[i].count : 1); k++)
            memset(expected + SHIFT + runs[i].offset + k * runs[i].stride, want, runs[i].bytes);
    device_read(d, all, base, ROOM);
    int differs = memcmp(all, expected, ROOM);
    free(all);
    free(expected);
    return differs ? 1 : 0;
}

static void lend(const char *redis, int orders, int answers)
{
    const struct tarn_lease_options writable = {.size = sizeof(writable), .flags = TARN_LEASE_WRITE};
    struct tarn_client *c = client_open(redis, (struct tarn_options){0});
    struct device *d = device_open(0);
    struct tarn_window *window;
    struct tarn_lease *lease;
    struct told told;
    uint8_t *base = device_alloc(d, ROOM), *first = malloc(ROOM);
    char order[2];
    for (size_t i = 0; i < ROOM; i++)
        first[i] = byte_at(i);
    device_write(d, base, first, ROOM);
    must_be(tarn_window_new(c, base + SHIFT, BYTES, &window) == 0);
    must_be(tarn_lease(window, runs, NRUNS, &writable, &lease) == 0);
    must_be(tarn_lease_descriptor(lease, told.text) == 0);
    must_be(write(answers, &told, sizeof(told)) == sizeof(told));
    while (read(orders, order, 2) == 2 && order[0] != END) {
        int rc = 0;
        if (order[0] == CHECK && tarn_expect(lease, 5, 1, 10000) == 0)
            rc = check(d, base, (uint8_t)order[1]);
        else if (order[0] == RECALL)
            rc = tarn_recall(lease, 10000);
        else
            rc = -1;
        must_be(write(answers, &rc, sizeof(rc)) == sizeof(rc));
    }
    tarn_close(c);
    _exit(0);
}

static int lender_says(struct scene *s, enum order order, uint8_t byte)
{
    const char text[2] = {(char)order, (char)byte};
    int rc;
    assert_int_equal(write(s->orders, text, 2), 2);
    assert_int_equal(read(s->answers, &rc, sizeof(rc)), sizeof(rc));
    return rc;
}

/* --- the peer ----------------------------------------------------------------------------------- */

static int start(void **state)
{
    struct scene *s = calloc(1, sizeof(*s));
    int to[2], from[2];
    void *w;
    assert_int_equal(world_start(&w, &plan), 0);
    s->w = w;
    s->transport = *state;
    assert_int_equal(pipe(to) | pipe(from), 0);
    s->lender = fork();
    assert_true(s->lender >= 0);
    if (s->lender == 0) {
        char ends[2][16];
        snprintf(ends[0], sizeof(ends[0]), "%d", to[0]);
        snprintf(ends[1], sizeof(ends[1]), "%d", from[1]);
        close(to[1]);
        close(from[0]);
        execl("/proc/self/exe", "lender", s->w->redis->url, ends[0], ends[1], NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    s->orders = to[1];
    s->answers = from[0];
    *state = s;
    return 0;
}

static int stop(void **state)
{
    struct scene *s = *state;
    void *w = s->w;
    int status;
    tarn_reach_free(s->reach);
    tarn_close(s->peer);
    close(s->orders);
    waitpid(s->lender, &status, 0);
    close(s->answers);
    free(s);
    return world_stop(&w) || status;
}

static void reach(struct scene *s)
{
    devices_need(1);
    s->peer = world_client(s->w, s->transport);
    assert_int_equal(read(s->answers, &s->told, sizeof(s->told)), sizeof(s->told));
    if (tarn_reach(s->peer, s->told.text, 0, &s->reach))
        fail_msg("reach: %s", tarn_last_error());
    assert_int_equal(tarn_reach_bytes(s->reach), LEASED);
}

/* The lease's bytes as they are at first. */
static void first_bytes(uint8_t *out)
{
    for (int i = 0; i < NRUNS; i++)
        for (uint64_t k = 0; k < (runs[i].count ? runs[i].count : 1); k++)
            for (uint64_t b = 0; b < runs[i].bytes; b++)
                *out++ = byte_at(SHIFT + runs[i].offset + k * runs[i].stride + b);
}

/* Reads all, then writes all with a notification, from memory in pieces that fit no run. */
static void all_ways(struct scene *s, struct device *d)
{
    enum { PIECES = 1000, PIECE = LEASED / PIECES };
    static uint8_t want[LEASED], got[LEASED];
    static struct tarn_piece pieces[PIECES + 1];
    const struct tarn_notify notify = {.tag = 5};
    const struct tarn_move_options o = {.size = sizeof(o), .notify = &notify};
    reach(s);
    uint8_t *own = device_alloc(d, LEASED);
    for (int i = 0; i <= PIECES; i++) /* in reverse, so that no two adjoin */
        pieces[i] = (struct tarn_piece){.addr = own + (PIECES - 1 - i) * PIECE, .bytes = PIECE};
    pieces[PIECES] = (struct tarn_piece){.addr = own + PIECES * PIECE, .bytes = LEASED - PIECES * PIECE};
    struct tarn_move m = {.pieces = pieces, .npieces = PIECES + 1};
    if (tarn_read(s->reach, &m, 1, NULL))
        fail_msg("read: %s", tarn_last_error());
    first_bytes(want);
    device_read(d, got, own, LEASED);
    for (int i = 0; i < PIECES; i++)
        assert_memory_equal(got + (PIECES - 1 - i) * PIECE, want + i * PIECE, PIECE);
    assert_memory_equal(got + PIECES * PIECE, want + PIECES * PIECE, LEASED - PIECES * PIECE);
    device_set(d, own, 0xa5, LEASED);
    if (tarn_write(s->reach, &m, 1, &o))
        fail_msg("write: %s", tarn_last_error());
    assert_int_equal(lender_says(s, CHECK, 0xa5), 0);
    assert_int_equal(lender_says(s, RECALL, 0), 0);
    assert_int_equal(tarn_read(s->reach, &m, 1, NULL), TARN_E_STALE);
    assert_int_equal(tarn_write(s->reach, &m, 1, NULL), TARN_E_STALE);
    device_drop(d, own);
}

static void with_memory_of_the_host(void **state)
{
    all_ways(*state, NULL);
}

static void with_memory_of_the_same_gpu(void **state)
{
    devices_need(1);
    struct device *d = device_open(0);
    all_ways(*state, d);
    device_close(d);
}

static void with_memory_of_another_gpu(void **state)
{
    devices_need(2);
    struct device *d = device_open(1);
    all_ways(*state, d);
    device_close(d);
}

/* --- what cannot be lent ------------------------------------------------------------------------ */

static void refused(struct tarn_client *c, void *addr, uint64_t bytes, int code, const char *why)
{
    struct tarn_window *w;
    assert_int_equal(tarn_window_new(c, addr, bytes, &w), code);
    if (!strstr(tarn_last_error(), why))
        fail_msg("\"%s\" without \"%s\"", tarn_last_error(), why);
}

static void memory_that_cannot_be_lent(void **state)
{
    struct scene *s = *state;
    devices_need(1);
    struct device *d = device_open(0);
    uint8_t *memory = device_alloc(d, BYTES);
    struct tarn_window *w;
    s->peer = world_client(s->w, NULL);
    refused(s->peer, memory + SHIFT, 1ull << 40, TARN_E_INVALID, "one allocation");
    if (tarn_standin_managed) {
        void *managed = tarn_standin_managed(BYTES);
        refused(s->peer, managed, BYTES, TARN_E_UNSUPPORTED, "managed");
        tarn_standin_managed_free(managed, BYTES);
        tarn_standin_fail("export:1");
        refused(s->peer, memory, BYTES, TARN_E_SYSTEM, "export");
        tarn_standin_fail(NULL);
    }
    assert_int_equal(tarn_window_new(s->peer, memory, BYTES, &w), 0);
    assert_int_equal(tarn_window_close(w, 0), 0);
    device_drop(d, memory);
    device_close(d);
}

/* The GPU cannot be used, then it can. */
static void a_handle_that_does_not_open(void **state)
{
    struct scene *s = *state;
    uint8_t bytes[LEASED % 1000];
    const struct tarn_piece piece = {.addr = bytes, .bytes = sizeof(bytes)};
    struct tarn_move m = {.pieces = &piece, .npieces = 1};
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in can be told to fail");
    reach(s);
    tarn_standin_fail("open:*");
    int rc = tarn_read(s->reach, &m, 1, NULL);
    tarn_standin_fail(NULL);
    assert_int_not_equal(rc, 0);
    assert_non_null(strstr(tarn_last_error(), "open"));
    HARNESS_UNTIL(tarn_read(s->reach, &m, 1, NULL) == 0, 10000);
    assert_int_equal(bytes[0], byte_at(SHIFT + runs[0].offset));
    assert_int_equal(lender_says(s, RECALL, 0), 0);
}

/* --- copies that take long, and copies that fail ------------------------------------------------ */

/* Lender and peer in this process. */
struct both {
    const char *transports; /* the lender's; NULL: all */
    struct tarn_client *lender;
    struct device *d;
    uint8_t *memory, *own;
    struct tarn_window *window;
    struct tarn_lease *lease;
    struct tarn_piece piece;
    struct tarn_move move;
};

static void both_open(struct scene *s, struct both *b)
{
    const struct tarn_lease_options writable = {.size = sizeof(writable), .flags = TARN_LEASE_WRITE};
    char text[TARN_DESCRIPTOR_MAX];
    devices_need(1);
    b->lender = world_client(s->w, b->transports);
    s->peer = world_client(s->w, s->transport);
    b->d = device_open(0);
    b->memory = device_alloc(b->d, BYTES);
    b->own = device_alloc(b->d, BYTES);
    b->piece = (struct tarn_piece){.addr = b->own, .bytes = BYTES};
    b->move = (struct tarn_move){.pieces = &b->piece, .npieces = 1};
    assert_int_equal(tarn_window_new(b->lender, b->memory, BYTES, &b->window), 0);
    assert_int_equal(tarn_lease(b->window, NULL, 0, &writable, &b->lease), 0);
    assert_int_equal(tarn_lease_descriptor(b->lease, text), 0);
    assert_int_equal(tarn_reach(s->peer, text, 0, &s->reach), 0);
}

static void both_begin(struct scene *s, struct both *b)
{
    both_open(s, b);
    if (tarn_write(s->reach, &b->move, 1, NULL)) /* all is open after that */
        fail_msg("write: %s", tarn_last_error());
}

static void both_end(struct both *b)
{
    tarn_close(b->lender);
    device_drop(b->d, b->memory);
    device_drop(b->d, b->own);
    device_close(b->d);
}

static void no_transport(struct scene *s, const char *lender, const char *peer)
{
    struct both b = {.transports = lender};
    s->transport = peer;
    both_open(s, &b);
    assert_int_equal(tarn_read(s->reach, &b.move, 1, NULL), TARN_E_NOT_REACHABLE);
    assert_non_null(strstr(tarn_last_error(), "cuda_ipc, all by tcpx or tcp"));
    assert_int_equal(tarn_write(s->reach, &b.move, 1, NULL), TARN_E_NOT_REACHABLE);
    both_end(&b);
}

static void a_lender_of_another_transport(void **state)
{
    no_transport(*state, "cuda_ipc", "tcp");
}

static void a_peer_of_another_transport(void **state)
{
    no_transport(*state, NULL, "shm");
}

static bool is_marked(const struct both *b)
{
    struct tarn_lent *lent = &b->lender->lender->lent;
    bool marked = false;
    pthread_mutex_lock(&lent->lock);
    for (const struct tarn_lent_page *p = lent->pages; p; p = p->next)
        for (uint32_t i = 0; i < atomic_load(&p->page->used); i++)
            marked |= atomic_load(&p->page->entry[i]) != 0;
    pthread_mutex_unlock(&lent->lock);
    return marked;
}

static void a_recall_waits_for_copies(void **state)
{
    struct scene *s = *state;
    struct tarn_completion done;
    struct both b = {.lease = NULL};
    tarn_op op;
    if (!tarn_standin_delay)
        harness_skip("standin", "only the stand-in's copies can be delayed");
    both_begin(s, &b);
    device_set(b.d, b.own, 0x77, BYTES);
    tarn_standin_delay(1000000);
    assert_int_equal(tarn_submit_write(s->reach, &b.move, 1, NULL, 1, &op), 0);
    HARNESS_UNTIL(is_marked(&b), 10000);
    assert_int_equal(tarn_recall(b.lease, 1), TARN_E_BUSY);
    assert_int_equal(tarn_recall(b.lease, 20000), 0);
    tarn_standin_delay(0);
    device_expect(b.d, b.memory, 0x77, BYTES);
    assert_int_equal(tarn_wait(s->peer, op, 10000, &done), 0);
    assert_int_equal(b.move.status, 0);
    assert_int_equal(tarn_write(s->reach, &b.move, 1, NULL), TARN_E_STALE);
    both_end(&b);
}

/* Each window has the index of the one before, and memory of its own. */
static void one_allocation_after_the_other(void **state)
{
    struct scene *s = *state;
    struct both b = {.lease = NULL};
    both_begin(s, &b);
    for (int i = 0; i < 5; i++) {
        char text[TARN_DESCRIPTOR_MAX];
        uint8_t *memory = device_alloc(b.d, BYTES + SHIFT);
        device_set(b.d, memory, (uint8_t)(i + 1), BYTES + SHIFT);
        assert_int_equal(tarn_window_close(b.window, 0), 0);
        assert_int_equal(tarn_window_new(b.lender, memory + SHIFT, BYTES, &b.window), 0);
        assert_int_equal(tarn_lease(b.window, NULL, 0, NULL, &b.lease), 0);
        assert_int_equal(tarn_lease_descriptor(b.lease, text), 0);
        tarn_reach_free(s->reach);
        assert_int_equal(tarn_reach(s->peer, text, 0, &s->reach), 0);
        for (int k = 0; k < 2; k++) {
            device_set(b.d, b.own, 0, BYTES);
            assert_int_equal(tarn_read(s->reach, &b.move, 1, NULL), 0);
            device_expect(b.d, b.own, (uint8_t)(i + 1), BYTES);
        }
        device_drop(b.d, b.memory);
        b.memory = memory;
    }
    both_end(&b);
}

static void copies_that_fail(void **state)
{
    struct scene *s = *state;
    struct both b = {.lease = NULL};
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in can be told to fail");
    both_begin(s, &b);
    tarn_standin_fail("copy:*");
    assert_int_not_equal(tarn_write(s->reach, &b.move, 1, NULL), 0);
    tarn_standin_fail(NULL);
    assert_false(is_marked(&b));
    assert_int_equal(tarn_recall(b.lease, 10000), 0);
    both_end(&b);
}

/* Tests of both transports. */
#define BOTH_TESTS(T) \
    T(with_memory_of_the_host) \
    T(with_memory_of_the_same_gpu) \
    T(with_memory_of_another_gpu) \
    T(one_allocation_after_the_other)
#define IPC_TESTS(T) \
    T(memory_that_cannot_be_lent) \
    T(a_lender_of_another_transport) \
    T(a_peer_of_another_transport) \
    T(a_handle_that_does_not_open) \
    T(a_recall_waits_for_copies) \
    T(copies_that_fail)
#define IPC(test) {"cuda_ipc: " #test, test, start, stop, "cuda_ipc"},
#define TCP(test) {"tcp: " #test, test, start, stop, "tcp"},

int main(int argc, char **argv)
{
    if (argc == 4) {
        if (devices_there() > 0)
            lend(argv[1], atoi(argv[2]), atoi(argv[3]));
        return 0;
    }
    const struct CMUnitTest tests[] = {BOTH_TESTS(IPC) BOTH_TESTS(TCP) IPC_TESTS(IPC)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
