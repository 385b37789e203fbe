/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submitted reads that a worker runs together: each ends for itself. The test holds up the lender by its
 * lock, so that reads stay under way as long as it likes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>

#include "client/client.h"
#include "client/op.h"
#include "client/peer_node.h"
#include "client/window/lender.h"
#include "client/window/reach.h"
#include "tests/window_pair.h"

enum { N = 16, EACH = 4096 };

struct reads {
    struct window_pair *p;
    struct tarn_lease *lease;
    struct tarn_reach *reach;
    struct tarn_piece pieces[N];
    struct tarn_move moves[N];
    tarn_op ops[N];
};

static pthread_mutex_t *held; /* the lender's lock */

static void hold(const struct reads *r)
{
    held = &r->p->lender->lender->lent.lock;
    pthread_mutex_lock(held);
}

static void let_go(void)
{
    if (held)
        pthread_mutex_unlock(held);
    held = NULL;
}

/* A test that fails may still hold up the lender. */
static int stop(void **state)
{
    let_go();
    return window_stop(state);
}

static bool none_is_queued(const struct reads *r)
{
    struct tarn_ops_queue *q = r->p->peer->ops;
    pthread_mutex_lock(&q->lock);
    bool none = !q->queued;
    pthread_mutex_unlock(&q->lock);
    return none;
}

static void *read_one(void *arg)
{
    struct reads *r = arg;
    struct tarn_move m = r->moves[1];
    return (void *)(intptr_t)tarn_read(r->reach, &m, 1, NULL);
}

/* Two reads at once, by a thread and by the worker. True: each had a link of its own. */
static bool has_two_links(struct reads *r)
{
    struct tarn_completion done;
    pthread_t thread;
    void *rc;
    hold(r);
    assert_int_equal(tarn_submit_read(r->reach, &r->moves[0], 1, NULL, 0, &r->ops[0]), 0);
    assert_int_equal(pthread_create(&thread, NULL, read_one, r), 0);
    HARNESS_UNTIL(none_is_queued(r), 10000);
    let_go();
    pthread_join(thread, &rc);
    assert_int_equal((intptr_t)rc, 0);
    assert_int_equal(tarn_wait(r->p->peer, r->ops[0], 20000, &done), 0);
    assert_int_equal(done.status, 0);
    return atomic_load(&r->reach->lender->sides[0][0].nidle) >= 2;
}

/* The peer has one worker, and two links. */
static void begin(struct window_pair *p, struct reads *r)
{
    memset(r, 0, sizeof(*r));
    r->p = p;
    tarn_close(p->peer);
    p->peer = client_open(p->w->redis->url, (struct tarn_options){.transports = "tcp", .workers = 1});
    r->lease = window_lease(p, NULL, 0, 0);
    r->reach = window_reach(p, r->lease);
    for (int i = 0; i < N; i++) {
        r->pieces[i] = (struct tarn_piece){.addr = p->own + i * EACH, .bytes = EACH};
        r->moves[i] =
            (struct tarn_move){.pieces = &r->pieces[i], .npieces = 1, .offset = (uint64_t)(N - i) * EACH};
    }
    HARNESS_UNTIL(has_two_links(r), 20000);
    memset(p->own, 0, N * EACH);
}

static void end(struct reads *r)
{
    tarn_reach_free(r->reach);
    assert_int_equal(tarn_recall(r->lease, 0), 0);
}

/*
 * Submits all, the i-th with that timeout, while the worker is busy with another read. That one is canceled
 * then: so the worker takes all of them, which are under way when this returns.
 */
static void submit_all(struct reads *r, int i, uint32_t timeout_ms)
{
    struct tarn_move m = r->moves[0];
    struct tarn_completion done;
    tarn_op busy;
    assert_int_equal(tarn_submit_read(r->reach, &m, 1, NULL, 0, &busy), 0);
    HARNESS_UNTIL(none_is_queued(r), 10000);
    for (int k = 0; k < N; k++) {
        const struct tarn_move_options o = {.size = sizeof(o), .timeout_ms = k == i ? timeout_ms : 20000};
        assert_int_equal(tarn_submit_read(r->reach, &r->moves[k], 1, &o, (uint64_t)k, &r->ops[k]), 0);
    }
    assert_int_equal(tarn_cancel(r->p->peer, busy), 0);
    assert_int_equal(tarn_wait(r->p->peer, busy, 0, &done), 0);
    HARNESS_UNTIL(none_is_queued(r), 10000);
}

static void ends_with(struct reads *r, int i, int status)
{
    struct tarn_completion done;
    assert_int_equal(tarn_wait(r->p->peer, r->ops[i], 20000, &done), 0);
    if (done.status != status)
        fail_msg("read %d ended with %d, not %d: %s", i, done.status, status, done.error);
    assert_int_equal(r->moves[i].status, status);
    if (status == 0)
        assert_memory_equal(r->pieces[i].addr, r->p->memory + r->moves[i].offset, r->pieces[i].bytes);
}

static void others_end_well(struct reads *r, int but)
{
    for (int i = 0; i < N; i++)
        if (i != but)
            ends_with(r, i, 0);
}

static void all_are_under_way_at_once(void **state)
{
    struct reads r;
    begin(*state, &r);
    hold(&r);
    submit_all(&r, -1, 0);
    let_go();
    others_end_well(&r, -1);
    end(&r);
}

static void one_is_canceled(void **state)
{
    struct reads r;
    for (int i = 0; i < N; i += 5) {
        begin(*state, &r);
        hold(&r);
        submit_all(&r, -1, 0);
        assert_int_equal(tarn_cancel(r.p->peer, r.ops[i]), 0);
        ends_with(&r, i, TARN_E_CANCELED);
        let_go();
        others_end_well(&r, i);
        end(&r);
    }
}

static void one_is_out_of_time(void **state)
{
    struct reads r;
    for (int i = 0; i < N; i += 5) {
        begin(*state, &r);
        hold(&r);
        submit_all(&r, i, 50); /* less than makes the lender count as silent */
        ends_with(&r, i, TARN_E_TIMEOUT);
        let_go();
        others_end_well(&r, i);
        end(&r);
    }
}

/* The worker is busy, so they end where they wait. */
static void some_end_before_they_run(void **state)
{
    struct reads r;
    struct tarn_move busy_move;
    struct tarn_completion done;
    tarn_op busy;
    begin(*state, &r);
    hold(&r);
    busy_move = r.moves[0];
    assert_int_equal(tarn_submit_read(r.reach, &busy_move, 1, NULL, 0, &busy), 0);
    HARNESS_UNTIL(none_is_queued(&r), 10000);
    const struct tarn_move_options soon = {.size = sizeof(soon), .timeout_ms = 50};
    assert_int_equal(tarn_submit_read(r.reach, r.moves, 2, &soon, 0, &r.ops[0]), 0);
    assert_int_equal(tarn_submit_write(r.reach, &r.moves[2], 1, NULL, 2, &r.ops[2]), TARN_E_AUTH);
    assert_int_equal(tarn_submit_read(r.reach, &r.moves[3], 1, NULL, 3, &r.ops[3]), 0);
    assert_int_equal(tarn_cancel(r.p->peer, r.ops[3]), 0);
    ends_with(&r, 3, TARN_E_CANCELED);
    ends_with(&r, 0, TARN_E_TIMEOUT);
    assert_int_equal(r.moves[1].status, TARN_E_TIMEOUT);
    let_go();
    assert_int_equal(tarn_wait(r.p->peer, busy, 20000, &done), 0);
    assert_int_equal(done.status, 0);
    end(&r);
}

static void one_is_refused(void **state)
{
    struct reads r;
    begin(*state, &r);
    r.moves[3].offset = WINDOW_ROOM;
    r.pieces[5].addr = NULL;
    r.pieces[7].bytes = 0;
    hold(&r);
    submit_all(&r, -1, 0);
    let_go();
    for (int i = 0; i < N; i++)
        ends_with(&r, i, i == 3 ? TARN_E_SIZE : i == 5 ? TARN_E_INVALID : 0);
    end(&r);
}

/* Every second one is of a lease that has ended. */
static void the_lease_has_ended(void **state)
{
    struct reads r;
    begin(*state, &r);
    struct tarn_lease *other = window_lease(r.p, NULL, 0, 0);
    struct tarn_reach *ended = window_reach(r.p, other);
    assert_int_equal(window_move(ended, false, r.p->own, EACH, 0), 0);
    assert_int_equal(tarn_recall(other, 0), 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(
            tarn_submit_read(i % 2 ? ended : r.reach, &r.moves[i], 1, NULL, (uint64_t)i, &r.ops[i]), 0);
    for (int i = 0; i < N; i++)
        ends_with(&r, i, i % 2 ? TARN_E_STALE : 0);
    tarn_reach_free(ended);
    end(&r);
}

/* The lender closes their connections. */
static void their_link_breaks(void **state)
{
    struct reads r;
    begin(*state, &r);
    const struct tarn_host *h = &r.p->lender->lender->host;
    uint64_t session = r.p->window->grants->session;
    hold(&r);
    submit_all(&r, -1, 0);
    for (uint32_t i = 0; i < h->ntransports; i++)
        if (!strcmp(h->transports[i].ops->name, "tcp"))
            h->transports[i].ops->detach(h->transports[i].half, session);
    let_go();
    others_end_well(&r, -1);
    end(&r);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, window_start_tcp, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(all_are_under_way_at_once), TEST(one_is_canceled),
        TEST(one_is_out_of_time),        TEST(one_is_refused),
        TEST(some_end_before_they_run),  TEST(the_lease_has_ended),
        TEST(their_link_breaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
