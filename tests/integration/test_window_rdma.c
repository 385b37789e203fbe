/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows over rdma on stand-in devices (fake_verbs.h), both clients in this process: when notifications are
 * posted, seen, refused and dropped. Devices that run no requests for a while, or fail at a chosen one, show
 * what no real device shows at will. tests/rdma-vm/windows.sh runs test_window over soft-RoCE.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "client/client.h"
#include "client/window/lender.h"
#include "client/window/reach.h"
#include "tests/unit/fake_verbs.h"
#include "tests/window_pair.h"

enum { RAILS = 2, PLACES = TARN_LINK_NOTICES };

#define SOFT_ROCE 0xffffff /* its fences are not relied on */

static int start_on(void **state, uint32_t vendor)
{
    fake_reset();
    fake.vendor = vendor;
    for (uint8_t i = 0; i < RAILS; i++) {
        char name[8];
        snprintf(name, sizeof(name), "d%u", i);
        fake_add(name, (uint8_t)(i + 1));
    }
    return window_start_rdma(state);
}

static int start(void **state)
{
    return start_on(state, 0);
}

static int start_soft(void **state)
{
    return start_on(state, SOFT_ROCE);
}

static int stop(void **state)
{
    fake.before = NULL;
    int rc = window_stop(state);
    assert_true(fake_goes_to(NULL, 0));
    return rc;
}

/* Whole rails are used from a write of this size on. */

#define LARGE WINDOW_ROOM

static uint64_t moved(int device)
{
    pthread_mutex_lock(&fake_lock);
    uint64_t bytes = fake.device[device].moved;
    pthread_mutex_unlock(&fake_lock);
    return bytes;
}

static struct tarn_move move_of(const struct tarn_piece *piece)
{
    return (struct tarn_move){.pieces = piece, .npieces = 1};
}

static bool tells(const struct fake_posted *p)
{
    return p->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static uint32_t posted_tells(void)
{
    uint32_t n = 0;
    pthread_mutex_lock(&fake_lock);
    for (uint32_t i = 0; i < fake.nposted; i++)
        n += tells(&fake.posted[i]);
    pthread_mutex_unlock(&fake_lock);
    return n;
}

/* --- when ----------------------------------------------------------------------------------------- */

static void goes_directly_behind_the_bytes(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    const struct tarn_piece piece = {.addr = p->own, .bytes = 4096};
    struct tarn_move m = move_of(&piece);
    for (uint32_t i = 0; i < 3; i++) {
        fake_forget();
        assert_int_equal(window_tell(r, &m, 1, i, "x"), 0);
        /* One chain on one queue pair; nothing asks the lender for anything. */
        const struct fake_posted *w = &fake.posted[fake.nposted - 2];
        assert_int_equal(w[0].opcode, IBV_WR_RDMA_WRITE);
        assert_true(tells(&w[1]));
        assert_int_equal(w[1].imm, htonl(i));
        assert_true(w[0].call == w[1].call && w[0].device == w[1].device);
    }
    assert_int_equal(tarn_expect(l, 2, 1, 0), 0);
    fake_forget();
    assert_int_equal(window_move(r, true, p->own, 4096, 0), 0);
    assert_int_equal(fake.nposted, 1); /* a plain write neither tells nor reads */
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

struct teller {
    struct tarn_reach *reach;
    struct tarn_move *move;
    int rc;
    pthread_t thread;
};

static void *tell_once(void *arg)
{
    struct teller *t = arg;
    t->rc = window_tell(t->reach, t->move, 1, 7, "large");
    return NULL;
}

/* A rail holds its bytes back. The other's have arrived long since. */
static void waits_for_the_slowest_rail(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    const struct tarn_piece piece = {.addr = p->own, .bytes = LARGE};
    struct tarn_move m = move_of(&piece);
    HARNESS_UNTIL(window_move(r, true, p->own, LARGE, 0) == 0 && moved(0) > 0 && moved(1) > 0,
                  10000); /* both rails are up */
    for (int slow = 0; slow < RAILS; slow++) {
        struct teller t = {.reach = r, .move = &m};
        uint64_t before = moved(1 - slow);
        struct tarn_notification got;
        memset(p->memory, 0, LARGE);
        fake_forget();
        fake.device[slow].held = true;
        assert_int_equal(pthread_create(&t.thread, NULL, tell_once, &t), 0);
        HARNESS_UNTIL(moved(1 - slow) > before, 10000);
        int early = tarn_notification_next(p->window, 100, &got);
        uint32_t posted = posted_tells();
        fake.device[slow].held = false;
        pthread_join(t.thread, NULL);
        assert_int_equal(early, TARN_E_TIMEOUT);
        assert_int_equal(posted, 0);
        assert_int_equal(t.rc, 0);
        assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
        assert_memory_equal(p->memory, p->own, LARGE);
        assert_int_equal(posted_tells(), 1);
    }
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* --- room ----------------------------------------------------------------------------------------- */

/* More than 65536, taken in bursts of any size: each finds a receive, none is lost, all keep their order. */
static void numbers_go_beyond_16_bits(void **state)
{
    enum { N = 70000 };
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    struct tarn_notification got;
    uint64_t sent = 0, taken = 0, refused = 0, x = harness_now_ms() | 1;
    print_message("seed %llu\n", (unsigned long long)x);
    while (taken < N) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        fake_forget();
        for (uint64_t k = (x >> 33) % 2000; k > 0 && sent < N; k--) {
            int rc = window_tell(r, NULL, 0, sent, "");
            assert_true(rc == 0 || rc == TARN_E_AGAIN);
            assert_true(rc == 0 || taken < sent);
            refused += rc != 0;
            if (rc)
                break;
            sent++;
        }
        for (uint64_t k = (x >> 20) % 2000; k > 0 && taken < sent; k--, taken++) {
            assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
            assert_int_equal(got.tag, taken);
        }
    }
    assert_true(refused > 0);
    assert_int_equal(fake.unready, 0);
    fake_forget();
    assert_int_equal(window_tell(r, NULL, 0, sent, ""), 0);
    for (uint32_t i = 0; i < fake.nposted; i++)
        if (tells(&fake.posted[i]))
            assert_int_equal(fake.posted[i].imm, htonl(N));
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* The bytes of a write whose notification finds no room are in place. The lender is asked once a try. */
static void a_full_ring_refuses_only_the_notification(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    const struct tarn_piece piece = {.addr = p->own, .bytes = 4096};
    struct tarn_move m = move_of(&piece);
    struct tarn_notification got;
    uint64_t sent = window_fill(p, r);
    assert_int_equal(sent, TARN_LENT_NOTICES + PLACES);
    memset(p->memory, 0, 4096);
    fake_forget();
    assert_int_equal(window_tell(r, &m, 1, sent, ""), TARN_E_AGAIN);
    assert_int_equal(m.status, 0);
    assert_memory_equal(p->memory, p->own, 4096);
    assert_int_equal(posted_tells(), 0);
    assert_int_equal(fake.nposted, 2);
    assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
    assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
    assert_int_equal(window_tell(r, NULL, 0, sent, ""), 0);
    assert_int_equal(fake.unready, 0);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* --- leases that end ------------------------------------------------------------------------------ */

/* With bytes the keys tell, without them the generation does. */
static void of_a_recalled_lease_does_not_count(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE), *next;
    struct tarn_reach *r = window_reach(p, l);
    const struct tarn_piece piece = {.addr = p->own, .bytes = 64};
    struct tarn_move m = move_of(&piece);
    struct tarn_notification got;
    assert_int_equal(window_tell(r, &m, 1, 1, "x"), 0);
    assert_int_equal(tarn_expect(l, 1, 1, 0), 0);
    assert_int_equal(tarn_recall(l, 0), 0);
    next = window_lease(p, NULL, 0, TARN_LEASE_WRITE); /* in the same slot */
    assert_int_equal(window_tell(r, NULL, 0, 1, "x"), TARN_E_STALE);
    assert_int_equal(window_tell(r, &m, 1, 1, "x"), TARN_E_STALE);
    assert_int_equal(tarn_notification_next(p->window, 50, &got), TARN_E_TIMEOUT);
    tarn_reach_free(r);
    r = window_reach(p, next);
    assert_int_equal(window_tell(r, &m, 1, 2, "x"), 0);
    assert_int_equal(tarn_expect(next, 2, 1, 0), 0);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(next, 0), 0);
}

/* The lender's thread stands still until it is let go on. */
struct stand_still {
    sem_t stands, go_on;
    struct tarn_lender *lender;
    uint64_t ends; /* a session that it ends first then; 0: none */
    pthread_t thread;
};

static int stand(struct tarn_lender *l, void *arg)
{
    struct stand_still *s = arg;
    sem_post(&s->stands);
    sem_wait(&s->go_on);
    for (uint32_t i = 0; s->ends && i < l->host.ntransports; i++)
        l->host.transports[i].ops->detach(l->host.transports[i].half, s->ends);
    if (s->ends)
        tarn_lent_forget(&l->lent, s->ends, false);
    return 0;
}

static void *run_stand(void *arg)
{
    struct stand_still *s = arg;
    return (void *)(intptr_t)tarn_lender_run(s->lender, stand, s);
}

static void stop_lender(struct stand_still *s, const struct window_pair *p)
{
    s->lender = p->lender->lender;
    sem_init(&s->stands, 0, 0);
    sem_init(&s->go_on, 0, 0);
    assert_int_equal(pthread_create(&s->thread, NULL, run_stand, s), 0);
    sem_wait(&s->stands);
}

static void let_go_on(struct stand_still *s)
{
    sem_post(&s->go_on);
    pthread_join(s->thread, NULL);
}

static void nothing(void *arg, const struct tarn_lease *lease)
{
    (void)arg, (void)lease;
}

/* It is on its way when the lease ends: the write was in time, but the next lease must not see it, though the
 * same session has reached that. */
static void one_that_is_late_is_dropped(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE), *other;
    struct tarn_reach *r = window_reach(p, l), *next;
    const struct tarn_piece piece = {.addr = p->own, .bytes = 64};
    struct tarn_move m = move_of(&piece);
    struct tarn_notification got;
    struct stand_still s = {.ends = 0};
    assert_int_equal(window_move(r, true, p->own, 64, 0), 0);
    stop_lender(&s, p);
    assert_int_equal(window_tell(r, &m, 1, 1, "late"), 0);
    assert_int_equal(tarn_lent_recall(&p->lender->lender->lent, l, 0, NULL), 0);
    tarn_lease_free(l);
    other = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    assert_int_equal(other->slot, r->slot);
    assert_int_equal(tarn_lent_visit(&p->lender->lender->lent, p->peer->session, "peer", p->window->index,
                                     other->slot, other->gen, nothing, NULL),
                     0);
    let_go_on(&s);
    next = window_reach(p, other);
    assert_int_equal(window_tell(next, &m, 1, 2, "in time"), 0);
    assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
    assert_int_equal(got.tag, 2);
    tarn_reach_free(r);
    tarn_reach_free(next);
    assert_int_equal(tarn_recall(other, 0), 0);
}

/* Rounds of a lease, under a writer that tells all the time. */
struct racer {
    struct window_pair *p;
    _Atomic(struct tarn_reach *) reach;
    atomic_uint round;
    atomic_bool end;
    uint64_t told, stale;
    atomic_uint wrong;
};

static void *tell_always(void *arg)
{
    struct racer *k = arg;
    uint64_t round = 0;
    const struct tarn_piece piece = {.addr = &round, .bytes = sizeof(round)};
    struct tarn_move m = move_of(&piece);
    while (!atomic_load(&k->end)) {
        round = atomic_load(&k->round);
        struct tarn_reach *r = atomic_load(&k->reach);
        int rc = window_tell(r, &m, round % 2, round, "");
        k->told += rc == 0;
        k->stale += rc == TARN_E_STALE;
        if (rc != 0 && rc != TARN_E_STALE && rc != TARN_E_AGAIN)
            atomic_fetch_add(&k->wrong, 1);
    }
    return NULL;
}

/* Takes one: of that lease, and with its bytes in place. */
static bool sees_one(const struct window_pair *p, const struct tarn_lease *l)
{
    struct tarn_notification got;
    return tarn_notification_next(p->window, 5000, &got) == 0 && got.lease == l &&
           (got.tag % 2 == 0 || !memcmp(p->memory, &got.tag, sizeof(got.tag)));
}

static void recalls_race_with_notifications(void **state)
{
    enum { ROUNDS = 200 };
    struct window_pair *p = *state;
    struct racer k = {.p = p};
    struct tarn_reach *all[ROUNDS];
    unsigned rounds = 0, bad = 0;
    pthread_t thread;
    for (unsigned i = 0; i < ROUNDS && !bad && !atomic_load(&k.wrong); i++, rounds++) {
        memset(p->memory, 0xee, 64);
        struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
        all[i] = window_reach(p, l);
        atomic_store(&k.reach, all[i]); /* the round last: it never is ahead of its reach */
        atomic_store(&k.round, i);
        if (i == 0)
            assert_int_equal(pthread_create(&thread, NULL, tell_always, &k), 0);
        for (int n = 0; n < 3 && !bad; n++)
            bad += !sees_one(p, l);
        bad += tarn_recall(l, 0) != 0;
    }
    atomic_store(&k.end, true);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&k.wrong), 0);
    assert_int_equal(bad, 0);
    assert_true(k.told > 0 && k.stale > 0);
    for (unsigned i = 0; i < rounds; i++)
        tarn_reach_free(all[i]);
}

/* --- failures ------------------------------------------------------------------------------------- */

/* The lender is gone when the notification comes to it; the bytes have arrived. */
static void fail_telling(const struct ibv_send_wr *wr)
{
    if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        for (int i = 0; i < RAILS; i++)
            fake.device[i].dead = true;
}

static void the_lender_is_gone_in_between(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    const struct tarn_piece piece = {.addr = p->own, .bytes = 4096};
    struct tarn_move m = move_of(&piece);
    struct tarn_notification got;
    assert_int_equal(window_move(r, true, p->own + 1, 4096, 0), 0);
    fake.before = fail_telling;
    assert_int_equal(window_tell(r, &m, 1, 1, "x"), TARN_E_NODE_DOWN);
    assert_memory_equal(p->memory, p->own, 4096);
    assert_int_equal(tarn_notification_next(p->window, 50, &got), TARN_E_TIMEOUT);
    fake.before = NULL;
    for (int i = 0; i < RAILS; i++)
        fake.device[i].dead = false;
    HARNESS_UNTIL(window_tell(r, &m, 1, 2, "x") == 0, 20000);
    assert_int_equal(tarn_expect(l, 2, 1, 0), 0);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* Cut before the bytes, or while it asks for room: nothing is told, and the writer learns of it. */
static void the_way_is_cut(void **state)
{
    static const uint64_t CUT = UINT64_MAX;
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    const struct tarn_piece piece = {.addr = p->own, .bytes = 4096};
    struct tarn_move m = move_of(&piece);
    struct tarn_notification got;
    for (int full = 0; full < 2; full++) {
        HARNESS_UNTIL(window_tell(r, &m, 1, 1, "x") == 0, 20000);
        if (full)
            window_fill(p, r);
        for (int i = 0; i < RAILS; i++)
            fake.device[i].dead = true;
        assert_int_equal(window_tell(r, &m, 1, CUT, "x"), TARN_E_NODE_DOWN);
        for (int i = 0; i < RAILS; i++)
            fake.device[i].dead = false;
        while (tarn_notification_next(p->window, 50, &got) == 0)
            assert_int_not_equal(got.tag, CUT);
    }
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* What the writer has told before it ends counts, though the lender sees both at once. */
static void counts_when_its_writer_has_ended(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    struct stand_still s = {.ends = p->peer->session};
    assert_int_equal(window_tell(r, NULL, 0, 0, ""), 0); /* it is connected */
    stop_lender(&s, p);
    const struct tarn_piece piece = {.addr = p->own, .bytes = 64};
    struct tarn_move m = move_of(&piece);
    for (int i = 0; i < 10; i++)
        assert_int_equal(window_tell(r, &m, 1, 5, "x"), 0);
    let_go_on(&s);
    assert_int_equal(tarn_expect(l, 5, 10, 0), 0);
    assert_int_equal(tarn_expect(l, 5, 1, 0), TARN_E_NODE_DOWN);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* --- who may -------------------------------------------------------------------------------------- */

static int enters(struct window_pair *p, const struct tarn_lease *l, uint64_t session, bool write)
{
    struct tarn_lent_visitor v = {.session = session,
                                  .window = l->window->index,
                                  .slot = l->slot,
                                  .gen = l->gen,
                                  .write = write,
                                  .keys = true};
    return tarn_lent_enter(&p->lender->lender->lent, &v);
}

static void only_who_has_reached_a_lease_enters_it(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE),
                      *other = window_lease(p, NULL, 0, TARN_LEASE_WRITE),
                      *reading = window_lease(p, NULL, 0, 0);
    struct tarn_reach *r = window_reach(p, l), *rr = window_reach(p, reading);
    uint64_t session = p->peer->session;
    assert_int_equal(enters(p, l, session, true), 0);
    assert_int_equal(enters(p, other, session, true), TARN_E_AUTH);
    assert_int_equal(enters(p, other, session, false), 0); /* keys for reading are of the window */
    assert_int_equal(enters(p, reading, session, true), TARN_E_AUTH);
    assert_int_equal(enters(p, l, session + 1, true), TARN_E_AUTH);
    assert_int_equal(enters(p, l, session + 1, false), TARN_E_AUTH);
    tarn_reach_free(r);
    tarn_reach_free(rr);
    assert_int_equal(tarn_recall(l, 0), 0);
    assert_int_equal(tarn_recall(other, 0), 0);
    assert_int_equal(tarn_recall(reading, 0), 0);
    assert_int_equal(enters(p, window_lease(p, NULL, 0, TARN_LEASE_WRITE), session, true), TARN_E_AUTH);
}

#define TESTS(T) \
    T(goes_directly_behind_the_bytes) \
    T(waits_for_the_slowest_rail) \
    T(numbers_go_beyond_16_bits) \
    T(a_full_ring_refuses_only_the_notification) \
    T(of_a_recalled_lease_does_not_count) \
    T(one_that_is_late_is_dropped) \
    T(recalls_race_with_notifications) \
    T(the_lender_is_gone_in_between) \
    T(the_way_is_cut) \
    T(counts_when_its_writer_has_ended) \
    T(only_who_has_reached_a_lease_enters_it)
#define FENCED(test) {#test, test, start, stop, NULL},
#define UNFENCED(test) {"without fences: " #test, test, start_soft, stop, NULL},

int main(void)
{
    const struct CMUnitTest tests[] = {TESTS(FENCED) TESTS(UNFENCED)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
