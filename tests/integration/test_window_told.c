/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: notifications, waiting for them, and what is submitted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tarn/window.h>

#include "client/client.h"
#include "client/health.h"
#include "client/window/lender.h"
#include "client/window/reach.h"
#include "tests/standin/cuda_standin.h"
#include "tests/transports.h"
#include "tests/window_pair.h"

#define BYTES WINDOW_ROOM

static void a_write_tells(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    const struct tarn_piece piece = {.addr = p->own, .bytes = BYTES};
    struct tarn_move m = {.pieces = &piece, .npieces = 1};
    struct pollfd fd = {.fd = tarn_notification_fd(p->window), .events = POLLIN};
    struct tarn_notification got;
    assert_int_equal(poll(&fd, 1, 0), 0);
    assert_int_equal(window_tell(r, &m, 1, 7, "the first"), 0);
    assert_int_equal(window_tell(r, NULL, 0, UINT64_MAX, ""), 0);
    assert_int_equal(poll(&fd, 1, 5000), 1);
    assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
    assert_memory_equal(p->memory, p->own, BYTES);
    assert_true(got.tag == 7 && got.lease == l && got.bytes == 9 && !memcmp(got.data, "the first", 9));
    assert_true(strlen(got.peer) > 0);
    assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
    assert_true(got.tag == UINT64_MAX && got.bytes == 0);
    assert_int_equal(poll(&fd, 1, 0), 0);
    assert_int_equal(tarn_notification_next(p->window, 20, &got), TARN_E_TIMEOUT);
    /* A write that fails tells nothing. */
    m.offset = 1;
    assert_int_equal(window_tell(r, &m, 1, 8, "x"), TARN_E_SIZE);
    assert_int_equal(poll(&fd, 1, 0), 0);
    const struct tarn_notify notify = {.tag = 1};
    const struct tarn_move_options o = {.size = sizeof(o), .notify = &notify};
    assert_int_equal(tarn_read(r, &m, 1, &o), TARN_E_INVALID);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

static void messages_of_any_size(void **state)
{
    static const uint32_t sizes[] = {0, 1, 8, 255, TARN_NOTIFY_MAX};
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    const struct tarn_piece piece = {.addr = p->own, .bytes = 100};
    struct tarn_move m = {.pieces = &piece, .npieces = 1};
    struct tarn_notification got;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (size_t moves = 0; moves < 2; moves++) {
            const struct tarn_notify notify = {.tag = i, .data = p->own + i, .bytes = sizes[i]};
            const struct tarn_move_options o = {.size = sizeof(o), .notify = &notify};
            assert_int_equal(tarn_write(r, &m, moves, &o), 0);
            assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
            assert_true(got.tag == i && got.bytes == sizes[i]);
            assert_memory_equal(got.data, p->own + i, sizes[i]);
        }
    const struct tarn_notify longer = {.data = p->own, .bytes = TARN_NOTIFY_MAX + 1};
    const struct tarn_move_options o = {.size = sizeof(o), .notify = &longer};
    assert_int_equal(tarn_write(r, &m, 1, &o), TARN_E_INVALID);
    assert_int_equal(tarn_notification_next(p->window, 20, &got), TARN_E_TIMEOUT);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

enum { WRITERS = 6, EACH = 150 };

struct many_writer {
    const struct window_pair *p;
    struct tarn_lease *lease;
    uint64_t number;
    int failed;
    pthread_t thread;
};

/* Where the writer puts that value: nothing else is written there. */
static uint64_t place_of(uint64_t number, uint64_t value)
{
    return (number * EACH + value - 1) * sizeof(value);
}

/* Writes 1, 2, ... each to its place, and tells of each. */
static void *write_and_tell(void *arg)
{
    struct many_writer *w = arg;
    struct tarn_client *c = world_client(w->p->w, w->p->peer->transports[0]->name);
    struct tarn_reach *r;
    uint64_t value = 0;
    const struct tarn_piece piece = {.addr = &value, .bytes = sizeof(value)};
    struct tarn_move m = {.pieces = &piece, .npieces = 1};
    char text[TARN_DESCRIPTOR_MAX];
    w->failed = tarn_lease_descriptor(w->lease, text) || tarn_reach(c, text, 0, &r);
    for (value = 1; !w->failed && value <= EACH; value++) {
        m.offset = place_of(w->number, value);
        int rc = window_tell(r, &m, 1, w->number << 32 | value, "x");
        while (rc == TARN_E_AGAIN)
            rc = window_tell(r, NULL, 0, w->number << 32 | value, "x");
        w->failed = rc;
    }
    tarn_reach_free(r);
    tarn_close(c);
    return NULL;
}

/* Each one's notifications come in its order, none is lost, and the bytes are there before. */
static void many_writers(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct many_writer w[WRITERS];
    uint64_t seen[WRITERS] = {0};
    struct tarn_notification got;
    for (uint64_t i = 0; i < WRITERS; i++) {
        w[i] = (struct many_writer){.p = p, .lease = l, .number = i};
        assert_int_equal(pthread_create(&w[i].thread, NULL, write_and_tell, &w[i]), 0);
    }
    for (int i = 0; i < WRITERS * EACH; i++) {
        if (tarn_notification_next(p->window, 30000, &got))
            fail_msg("%d have come: %s", i, tarn_last_error());
        uint64_t from = got.tag >> 32, value = got.tag & UINT32_MAX, there;
        assert_true(from < WRITERS && value == ++seen[from]);
        memcpy(&there, p->memory + place_of(from, value), sizeof(there));
        assert_int_equal(there, value);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].failed, 0);
    }
    assert_int_equal(tarn_notification_next(p->window, 20, &got), TARN_E_TIMEOUT);
    assert_int_equal(tarn_recall(l, 0), 0);
}

static void a_full_queue_loses_nothing(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    struct tarn_notification got;
    uint64_t sent = window_fill(p, r), read = 0;
    assert_true(sent >= 1000);
    for (; read < 10; read++) {
        assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
        assert_int_equal(got.tag, read);
    }
    assert_int_equal(window_tell(r, NULL, 0, sent++, "abc"), 0);
    for (; read < sent; read++) {
        assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
        assert_int_equal(got.tag, read);
    }
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* A lease that goes makes room for the others' notifications, though nobody takes any. */
static void a_recall_makes_room(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *a = window_lease(p, NULL, 0, TARN_LEASE_WRITE),
                      *b = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *ra = window_reach(p, a), *rb = window_reach(p, b);
    window_fill(p, ra);
    assert_int_equal(window_tell(rb, NULL, 0, 2, ""), TARN_E_AGAIN);
    assert_int_equal(tarn_recall(a, 0), 0);
    assert_int_equal(window_tell(rb, NULL, 0, 2, ""), 0);
    struct pollfd fd = {.fd = tarn_notification_fd(p->window), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 10000), 1);
    tarn_reach_free(ra);
    tarn_reach_free(rb);
    assert_int_equal(tarn_recall(b, 0), 0);
}

static void expects_by_tag_and_number(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE),
                      *other = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l), *r2 = window_reach(p, other);
    struct tarn_notification got;
    assert_int_equal(window_tell(r, NULL, 0, 5, "a"), 0);
    assert_int_equal(window_tell(r2, NULL, 0, 5, "of another lease"), 0);
    assert_int_equal(tarn_expect(l, 5, 2, 20), TARN_E_TIMEOUT);
    assert_int_equal(window_tell(r, NULL, 0, 6, "b"), 0);
    assert_int_equal(window_tell(r, NULL, 0, 5, "c"), 0);
    assert_int_equal(tarn_expect(l, 5, 2, 0), 0);
    assert_int_equal(tarn_expect(l, 5, 1, 20), TARN_E_TIMEOUT);
    assert_int_equal(tarn_expect(l, 6, 1, 0), 0);
    assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
    assert_true(got.lease == other && got.tag == 5);
    /* A recalled lease takes its notifications with it. */
    assert_int_equal(window_tell(r, NULL, 0, 9, "d"), 0);
    assert_int_equal(tarn_recall(l, 0), 0);
    assert_int_equal(tarn_notification_next(p->window, 20, &got), TARN_E_TIMEOUT);
    assert_int_equal(window_tell(r, NULL, 0, 9, "e"), TARN_E_STALE);
    tarn_reach_free(r);
    tarn_reach_free(r2);
    assert_int_equal(tarn_recall(other, 0), 0);
}

static tarn_op submit_expect(struct tarn_lease *l, uint64_t tag, uint32_t n, uint32_t timeout_ms)
{
    tarn_op op;
    assert_int_equal(tarn_submit_expect(l, tag, n, timeout_ms, tag, &op), 0);
    return op;
}

static int done(struct tarn_client *client, tarn_op op, enum tarn_op_kind kind)
{
    struct tarn_completion c;
    assert_int_equal(tarn_wait(client, op, 20000, &c), 0);
    assert_int_equal(c.kind, kind);
    return c.status ? tarn_fail(c.status, "%s", c.error) : 0;
}

static int expected(const struct window_pair *p, tarn_op op)
{
    return done(p->lender, op, TARN_OP_EXPECT);
}

/* A writer in a process of its own reaches the lease, then ends: in order, or not. */
static pid_t writer_process(const struct window_pair *p, const struct tarn_lease *l, bool orderly,
                            int *reached_p)
{
    int fds[2];
    char text[TARN_DESCRIPTOR_MAX];
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct tarn_client *c = world_client(p->w, NULL);
        struct tarn_reach *r;
        int rc = tarn_reach(c, text, 0, &r);
        if (write(fds[1], &rc, sizeof(rc)) != sizeof(rc) || rc)
            _exit(1);
        if (orderly) {
            tarn_reach_free(r);
            tarn_close(c);
        }
        _exit(0);
    }
    close(fds[1]);
    *reached_p = fds[0];
    return pid;
}

static void a_writer_that_is_gone(void **state)
{
#ifdef __SANITIZE_THREAD__
    harness_skip("fork", "ThreadSanitizer does not follow a child of a process with threads");
#endif
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    int fd, rc = -1;
    char name[40];
    pid_t pid = writer_process(p, l, true, &fd);
    assert_int_equal(read(fd, &rc, sizeof(rc)), sizeof(rc));
    assert_int_equal(rc, 0);
    waitpid(pid, NULL, 0);
    close(fd);
    assert_int_equal(tarn_expect(l, 1, 1, 300), TARN_E_TIMEOUT); /* it has said so */
    pid = writer_process(p, l, false, &fd);
    assert_int_equal(read(fd, &rc, sizeof(rc)), sizeof(rc));
    tarn_op op = submit_expect(l, 1, 1, 20000);
    waitpid(pid, NULL, 0);
    close(fd);
    assert_int_equal(tarn_expect(l, 1, 1, 20000), TARN_E_NODE_DOWN);
    snprintf(name, sizeof(name), "pid=%d", (int)pid);
    assert_non_null(strstr(tarn_last_error(), name));
    assert_int_equal(expected(p, op), TARN_E_NODE_DOWN);
    assert_non_null(strstr(tarn_last_error(), name));
    assert_int_equal(tarn_recall(l, 0), 0);
}

static void *expect_always(void *arg)
{
    static const uint64_t tag = 77;
    return (void *)(intptr_t)tarn_expect(arg, tag, 1, 20000);
}

static uint32_t waiters(const struct tarn_lease *l)
{
    pthread_mutex_lock(&l->window->lender->lent.lock);
    uint32_t n = l->waiters;
    pthread_mutex_unlock(&l->window->lender->lent.lock);
    return n;
}

static void a_recall_ends_those_who_expect(void **state)
{
    struct window_pair *p = *state;
    for (int i = 0; i < 20; i++) {
        struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
        pthread_t thread;
        void *rc;
        assert_int_equal(pthread_create(&thread, NULL, expect_always, l), 0);
        HARNESS_UNTIL(waiters(l) == 1, 5000);
        assert_int_equal(tarn_recall(l, 0), 0);
        pthread_join(thread, &rc);
        assert_int_equal((intptr_t)rc, TARN_E_STALE);
    }
}

static int submit_reach(const struct window_pair *p, const char *text, struct tarn_reach **r)
{
    tarn_op op;
    int rc = tarn_submit_reach(p->peer, text, 0, 0, r, &op);
    return rc ? rc : done(p->peer, op, TARN_OP_REACH);
}

static void submitted_reaches(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, 0);
    struct tarn_reach *r;
    char text[TARN_DESCRIPTOR_MAX];
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    assert_int_equal(submit_reach(p, text, &r), 0);
    assert_int_equal(window_move(r, false, p->own, 100, 0), 0);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
    assert_int_equal(submit_reach(p, text, &r), TARN_E_STALE);
    assert_int_equal(submit_reach(p, "nobody", &r), TARN_E_NOT_FOUND);
    assert_int_equal(submit_reach(p, NULL, &r), TARN_E_INVALID);
    assert_int_equal(submit_reach(p, text, NULL), TARN_E_INVALID);
}

/* More of them than workers, which none of them holds up. */
static void submitted_expects(void **state)
{
    enum { MANY = 64 };
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE),
                      *other = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l), *r2 = window_reach(p, other);
    tarn_op waiting[MANY], late = submit_expect(l, 1000, 1, 20), never = submit_expect(l, 1001, 1, 0);
    for (uint64_t i = 0; i < MANY; i++)
        waiting[i] = submit_expect(i % 2 ? l : other, i, 2, 0);
    assert_int_equal(expected(p, late), TARN_E_TIMEOUT);
    assert_non_null(strstr(tarn_last_error(), "tag 1000"));
    for (uint64_t i = MANY; i-- > 0;) {
        assert_int_equal(window_tell(i % 2 ? r : r2, NULL, 0, i, "one"), 0);
        assert_int_equal(window_tell(i % 2 ? r : r2, NULL, 0, i, "two"), 0);
        assert_int_equal(expected(p, waiting[i]), 0);
    }
    assert_int_equal(tarn_cancel(p->lender, never), 0);
    assert_int_equal(expected(p, never), TARN_E_CANCELED);
    assert_int_equal(window_tell(r, NULL, 0, 1001, "x"), 0);
    assert_int_equal(expected(p, submit_expect(l, 1001, 1, 0)), 0); /* the canceled one has not taken it */
    never = submit_expect(l, 7, 1, 0);
    assert_int_equal(tarn_recall(l, 0), 0);
    assert_int_equal(expected(p, never), TARN_E_STALE);
    never = submit_expect(other, 7, 1, 0);
    assert_int_equal(tarn_window_close(p->window, 0), 0);
    assert_int_equal(expected(p, never), TARN_E_STALE);
    assert_int_equal(tarn_window_new(p->lender, p->memory, WINDOW_ROOM, &p->window), 0);
    assert_int_equal(tarn_submit_expect(NULL, 1, 1, 0, 0, NULL), TARN_E_INVALID);
    tarn_reach_free(r);
    tarn_reach_free(r2);
}

#define TESTS(T) \
    T(a_write_tells) \
    T(messages_of_any_size) \
    T(many_writers) \
    T(a_full_queue_loses_nothing) \
    T(a_recall_makes_room) \
    T(expects_by_tag_and_number) \
    T(a_writer_that_is_gone) \
    T(a_recall_ends_those_who_expect) \
    T(submitted_expects) \
    T(submitted_reaches)

int main(int argc, char **argv)
{
    const struct CMUnitTest here[] = {TESTS(WINDOW_TCP) TESTS(WINDOW_TCPX) TESTS(WINDOW_SHM)},
                            gpu[] = {TESTS(WINDOW_GPU) TESTS(WINDOW_GPU_TCP)}, rdma[] = {TESTS(WINDOW_RDMA)};
    return window_run(argc, argv, here, WINDOW_COUNT(here), gpu, WINDOW_COUNT(gpu), rdma, WINDOW_COUNT(rdma));
}
