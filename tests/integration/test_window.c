/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: what a lease gives, what it refuses, and that it ends when it is recalled. */
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

/* --- what a lease gives ------------------------------------------------------------------------- */

static void reads_and_writes_the_whole_window(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    assert_int_equal(tarn_reach_bytes(r), BYTES);
    memset(p->own, 0, BYTES);
    assert_int_equal(window_move(r, false, p->own, BYTES, 0), 0);
    assert_memory_equal(p->own, p->memory, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        p->own[i] = (unsigned char)(i * 3 + 1);
    assert_int_equal(window_move(r, true, p->own, BYTES, 0), 0);
    assert_memory_equal(p->own, p->memory, BYTES);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* Far runs of one size, pieces of another, and a part of the lease. */
static void runs_and_pieces_of_any_size(void **state)
{
    struct window_pair *p = *state;
    const struct tarn_run runs[] = {{.offset = 1000, .bytes = 100, .stride = 300, .count = 50},
                                    {.offset = 500000, .bytes = 7},
                                    {.offset = 500007, .bytes = 1},
                                    {.offset = 0, .bytes = 999}};
    unsigned char flat[50 * 100 + 8 + 999], got[sizeof(flat)];
    size_t n = 0;
    for (int i = 0; i < 50; i++, n += 100)
        memcpy(flat + n, p->memory + 1000 + 300 * i, 100);
    memcpy(flat + n, p->memory + 500000, 8);
    memcpy(flat + n + 8, p->memory, 999);
    struct tarn_lease *l = window_lease(p, runs, 4, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    assert_int_equal(tarn_reach_bytes(r), sizeof(flat));
    const struct tarn_piece pieces[] = {{.addr = got, .bytes = 33},
                                        {.addr = got + 33, .bytes = 11, .stride = 11, .count = 300},
                                        {.addr = got + 33 + 3300, .bytes = sizeof(flat) - 3333 - 10}};
    struct tarn_move m = {.pieces = pieces, .npieces = 3, .offset = 10};
    assert_int_equal(tarn_read(r, &m, 1, NULL), 0);
    assert_memory_equal(got, flat + 10, sizeof(flat) - 10);
    unsigned char before[BYTES / 256];
    memcpy(before, p->memory + 1100, 200); /* between two runs */
    memset(got, 0xa5, sizeof(got));
    assert_int_equal(tarn_write(r, &m, 1, NULL), 0);
    assert_memory_equal(p->memory + 1100, before, 200);
    assert_memory_equal(p->memory + 1000, flat, 10);
    for (size_t i = 10; i < 100; i++)
        assert_int_equal(p->memory[1000 + i], 0xa5);
    for (size_t i = 0; i < 999; i++)
        assert_int_equal(p->memory[i], 0xa5);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

static void many_ranges_in_one_call(void **state)
{
    enum { N = 300 };
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    struct tarn_piece pieces[N];
    struct tarn_move m[N];
    memset(m, 0, sizeof(m));
    for (int i = 0; i < N; i++) {
        pieces[i] = (struct tarn_piece){.addr = p->own + i * 1000, .bytes = (uint64_t)(i % 1000)};
        m[i] = (struct tarn_move){.pieces = &pieces[i], .npieces = 1, .offset = (uint64_t)(i * 3000)};
    }
    assert_int_equal(tarn_read(r, m, N, NULL), 0);
    for (int i = 0; i < N; i++)
        assert_memory_equal(p->own + i * 1000, p->memory + i * 3000, (size_t)(i % 1000));
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

static void submitted_moves(void **state)
{
    enum { N = 64 };
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    struct tarn_piece pieces[N];
    struct tarn_move m[N];
    struct tarn_completion done[N];
    const struct tarn_notify notify = {.tag = 3, .data = "all", .bytes = 3};
    const struct tarn_move_options o = {.size = sizeof(o), .notify = &notify};
    memset(m, 0, sizeof(m));
    for (int i = 0; i < N; i++) {
        tarn_op op;
        pieces[i] = (struct tarn_piece){.addr = p->own + i * (BYTES / N), .bytes = BYTES / N};
        m[i] = (struct tarn_move){.pieces = &pieces[i], .npieces = 1, .offset = (uint64_t)i * (BYTES / N)};
        assert_int_equal(tarn_submit_write(r, &m[i], 1, &o, (uint64_t)i, &op), 0);
    }
    uint64_t seen = 0;
    for (int left = N; left > 0;) {
        struct pollfd fd = {.fd = tarn_event_fd(p->peer), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, 20000), 1);
        int n = tarn_drain(p->peer, done, N);
        for (int i = 0; i < n; i++) {
            assert_int_equal(done[i].status, 0);
            assert_int_equal(done[i].kind, TARN_OP_WRITE);
            seen |= 1ull << done[i].cookie;
        }
        left -= n;
    }
    assert_true(seen == UINT64_MAX);
    assert_memory_equal(p->memory, p->own, BYTES);
    assert_int_equal(tarn_expect(l, 3, N, 0), 0);
    tarn_op op;
    memset(p->own, 0, BYTES);
    assert_int_equal(tarn_submit_read(r, m, N, NULL, 99, &op), 0);
    assert_int_equal(tarn_wait(p->peer, op, 0, done), 0);
    assert_true(done[0].status == 0 && done[0].kind == TARN_OP_READ && done[0].cookie == 99);
    assert_memory_equal(p->memory, p->own, BYTES);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* --- what it refuses ---------------------------------------------------------------------------- */

static void ranges_outside_of_the_lease(void **state)
{
    struct window_pair *p = *state;
    const struct tarn_run half = {.offset = 0, .bytes = BYTES / 2};
    struct tarn_lease *l = window_lease(p, &half, 1, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    assert_int_equal(window_move(r, false, p->own, 1, BYTES / 2), TARN_E_SIZE);
    assert_int_equal(window_move(r, false, p->own, BYTES / 2, 1), TARN_E_SIZE);
    assert_int_equal(window_move(r, true, p->own, 2, UINT64_MAX), TARN_E_SIZE);
    assert_int_equal(window_move(r, false, p->own, 0, BYTES / 2), 0);
    assert_int_equal(window_move(r, true, p->own, 0, 0), 0);
    assert_int_equal(window_move(r, false, p->own, 1, BYTES / 2 - 1), 0);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

static void runs_outside_of_the_window(void **state)
{
    struct window_pair *p = *state;
    const struct tarn_run bad[] = {{.offset = BYTES, .bytes = 1},
                                   {.offset = 1, .bytes = BYTES},
                                   {.offset = UINT64_MAX, .bytes = 2},
                                   {.offset = 0, .bytes = 2, .stride = UINT64_MAX / 2, .count = 5},
                                   {.offset = 0, .bytes = 16, .stride = 16, .count = BYTES / 16 + 1},
                                   {.offset = 0, .bytes = 0}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct tarn_lease *l = NULL;
        assert_int_equal(tarn_lease(p->window, &bad[i], 1, NULL, &l), TARN_E_INVALID);
        assert_null(l);
    }
}

static void a_lease_for_reading_is_not_written(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, 0);
    struct tarn_reach *r = window_reach(p, l);
    unsigned char before = p->memory[5];
    p->own[0] = (unsigned char)~before;
    assert_int_equal(window_move(r, true, p->own, 1, 5), TARN_E_AUTH);
    assert_int_equal(p->memory[5], before);
    assert_int_equal(window_move(r, false, p->own, 1, 5), 0);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* Any byte changed, and any length. */
static void descriptors_that_were_cut_or_altered(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = NULL;
    char text[TARN_DESCRIPTOR_MAX], bad[2 * TARN_DESCRIPTOR_MAX];
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        snprintf(bad, sizeof(bad), "%.*s", (int)i, text);
        int rc = tarn_reach(p->peer, bad, 0, &r); /* a word alone is a name */
        assert_int_equal(rc, i > 0 && i <= strlen("tarn-window") ? TARN_E_NOT_FOUND : TARN_E_INVALID);
        memcpy(bad, text, n + 1);
        bad[i] = bad[i] == '3' ? '4' : '3';
        rc = tarn_reach(p->peer, bad, 0, &r);
        assert_true(rc == TARN_E_INVALID || rc == TARN_E_VERSION);
    }
    snprintf(bad, sizeof(bad), "%s0", text);
    assert_int_equal(tarn_reach(p->peer, bad, 0, &r), TARN_E_INVALID);
    memset(bad, 'a', sizeof(bad) - 1);
    bad[sizeof(bad) - 1] = 0;
    assert_int_equal(tarn_reach(p->peer, bad, 0, &r), TARN_E_INVALID);
    assert_int_equal(tarn_reach(p->peer, "", 0, &r), TARN_E_INVALID);
    assert_int_equal(tarn_reach(p->peer, NULL, 0, &r), TARN_E_INVALID);
    assert_null(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* --- its end ------------------------------------------------------------------------------------ */

static void nothing_goes_through_a_recalled_lease(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *old = window_reach(p, l), *r;
    char text[TARN_DESCRIPTOR_MAX];
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    assert_int_equal(window_move(old, true, p->own, 100, 0), 0);
    assert_int_equal(tarn_recall(l, 0), 0);
    unsigned char before[100];
    memcpy(before, p->memory, 100);
    memset(p->own, 0x77, 100);
    assert_int_equal(window_move(old, true, p->own, 100, 0), TARN_E_STALE);
    assert_int_equal(window_move(old, false, p->own, 100, 0), TARN_E_STALE);
    assert_memory_equal(p->memory, before, 100);
    assert_int_equal(tarn_reach(p->peer, text, 0, &r), TARN_E_STALE);
    /* The next lease has the same slot. */
    l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    r = window_reach(p, l);
    assert_int_equal(window_move(old, true, p->own, 100, 0), TARN_E_STALE);
    assert_int_equal(window_move(old, false, p->own, 0, 0), TARN_E_STALE);
    assert_memory_equal(p->memory, before, 100);
    assert_int_equal(window_move(r, true, p->own, 100, 0), 0);
    tarn_reach_free(old);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

static void a_lease_ends_by_its_time(void **state)
{
    struct window_pair *p = *state;
    const struct tarn_lease_options o = {.size = sizeof(o), .flags = TARN_LEASE_WRITE, .ttl_ms = 200};
    struct tarn_lease *l;
    assert_int_equal(tarn_lease(p->window, NULL, 0, &o, &l), 0);
    struct tarn_reach *r = window_reach(p, l);
    HARNESS_UNTIL(window_move(r, true, p->own, 1, 0) == TARN_E_STALE, 5000);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* A thread writes and reads all the time; leases end under it. What it writes says which lease it had. */
struct writer {
    struct window_pair *p;
    _Atomic(struct tarn_reach *) reach;
    atomic_uint round, done; /* done: the last round of which something was written */
    atomic_bool end;
    uint64_t written, stale, wrong;
};

#define SPAN 65536

static void *write_always(void *arg)
{
    struct writer *wr = arg;
    unsigned char *buffer = malloc(SPAN);
    while (!atomic_load(&wr->end)) {
        unsigned round = atomic_load(&wr->round);
        struct tarn_reach *r = atomic_load(&wr->reach);
        memset(buffer, (int)(round & 0xff), SPAN);
        int rc = window_move(r, true, buffer, SPAN, 0);
        wr->written += rc == 0;
        if (rc == 0)
            atomic_store(&wr->done, round);
        wr->stale += rc == TARN_E_STALE;
        wr->wrong += rc != 0 && rc != TARN_E_STALE;
    }
    free(buffer);
    return NULL;
}

static void no_late_byte_after_a_recall(void **state)
{
    enum { ROUNDS = 300 };
    struct window_pair *p = *state;
    const struct tarn_run run = {.bytes = SPAN};
    struct writer wr = {.p = p};
    struct tarn_reach *all[ROUNDS + 1];
    struct tarn_lease *l = window_lease(p, &run, 1, TARN_LEASE_WRITE);
    pthread_t thread;
    all[0] = window_reach(p, l);
    atomic_store(&wr.reach, all[0]);
    assert_int_equal(pthread_create(&thread, NULL, write_always, &wr), 0);
    for (unsigned i = 1; i <= ROUNDS; i++) {
        HARNESS_UNTIL(atomic_load(&wr.done) == i - 1, 10000);
        assert_int_equal(tarn_recall(l, 0), 0);
        memset(p->memory, 0xee, SPAN); /* the memory is the lender's again */
        for (int k = 0; k < 20; k++)
            for (size_t b = 0; b < SPAN; b += 97)
                assert_int_equal(p->memory[b], 0xee);
        l = window_lease(p, &run, 1, TARN_LEASE_WRITE);
        all[i] = window_reach(p, l);
        atomic_store(&wr.round, i);
        atomic_store(&wr.reach, all[i]);
    }
    atomic_store(&wr.end, true);
    pthread_join(thread, NULL);
    assert_int_equal(wr.wrong, 0);
    assert_true(wr.written > 0 && wr.stale > 0);
    for (unsigned i = 0; i <= ROUNDS; i++)
        tarn_reach_free(all[i]);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* Two leases of one window, written over the same links: what the end of one means for the other. */
static void a_lease_ends_alone(void **state)
{
    struct window_pair *p = *state;
    const struct tarn_run low = {.bytes = 4096}, high = {.offset = 8192, .bytes = 4096};
    struct tarn_lease *a = window_lease(p, &low, 1, TARN_LEASE_WRITE), *b;
    struct tarn_reach *ra = window_reach(p, a), *rb;
    for (int written = 0; written < 3; written++) {
        b = window_lease(p, &high, 1, TARN_LEASE_WRITE);
        rb = window_reach(p, b);
        assert_int_equal(window_move(ra, true, p->own, 4096, 0), 0);
        for (int i = 0; i < written; i++)
            assert_int_equal(window_move(rb, true, p->own, 4096, 0), 0);
        assert_int_equal(tarn_recall(b, 0), 0);
        memset(p->memory, 0xee, 16384);
        assert_int_equal(window_move(rb, true, p->own, 4096, 0), TARN_E_STALE);
        assert_int_equal(window_move(ra, true, p->own, 4096, 0), 0);
        assert_int_equal(window_move(rb, true, p->own, 4096, 0), TARN_E_STALE);
        assert_memory_equal(p->memory, p->own, 4096);
        for (size_t i = 4096; i < 16384; i++)
            assert_int_equal(p->memory[i], 0xee);
        tarn_reach_free(rb);
    }
    tarn_reach_free(ra);
    assert_int_equal(tarn_recall(a, 0), 0);
}

/* Keys are made void only for a lease that somebody may still write to: it has entered it, and not left. */
static void who_has_left_is_not_cut_off(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *a = window_lease(p, NULL, 0, TARN_LEASE_WRITE),
                      *b = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *ra = window_reach(p, a), *rb = window_reach(p, b), *again = window_reach(p, b);
    bool keys = p->peer->transports[0]->caps & TARN_CAP_KEYS;
    assert_int_equal(window_move(ra, true, p->own, 100, 0), 0);
    assert_int_equal(window_move(rb, true, p->own, 100, 0), 0);
    assert_int_equal(window_move(again, true, p->own, 100, 0), 0);
    tarn_reach_free(ra);
    HARNESS_UNTIL(!a->writers || a->writers->entered == 0, 5000);
    assert_int_equal(tarn_recall(a, 0), 0);
    assert_int_equal(p->window->ends, 0);
    tarn_reach_free(rb); /* the other reach of b is still there */
    assert_int_equal(tarn_recall(b, 0), 0);
    assert_int_equal(p->window->ends, keys);
    assert_int_equal(p->window->cut, keys);
    assert_int_equal(window_move(again, true, p->own, 100, 0), TARN_E_STALE);
    tarn_reach_free(again);
}

/* --- names -------------------------------------------------------------------------------------- */

static struct tarn_lease *named(struct window_pair *p, const char *name)
{
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    if (tarn_lease_publish(l, name, 0, 0))
        fail_msg("publish: %s", tarn_last_error());
    return l;
}

static int named_status(const struct window_pair *p, const char *name)
{
    struct tarn_reach *r = NULL;
    int rc = tarn_reach(p->peer, name, 0, &r);
    tarn_reach_free(r);
    return rc;
}

static void leases_have_names(void **state)
{
    struct window_pair *p = *state;
    struct tarn_reach *r;
    world_node(p->w, "node0");
    HARNESS_UNTIL(world_lists(p->w, "node0"), 5000);
    struct tarn_client *c = world_client(p->w, NULL);
    tarn_close(p->lender);
    p->lender = c;
    assert_int_equal(tarn_window_new(c, p->lent, BYTES, &p->window), 0);
    struct tarn_lease *l = named(p, "kv.decode-0"), *other = window_lease(p, NULL, 0, 0);
    assert_int_equal(tarn_reach(p->peer, "kv.decode-0", 0, &r), 0);
    assert_int_equal(window_move(r, true, p->own, 100, 0), 0);
    tarn_reach_free(r);
    assert_int_equal(tarn_lease_publish(other, "kv.decode-0", 0, 0), TARN_E_EXISTS);
    assert_int_equal(tarn_lease_publish(other, "no name", 0, 0), TARN_E_INVALID);
    assert_int_equal(tarn_reach(p->peer, "nobody", 0, &r), TARN_E_NOT_FOUND);
    /* It outlives the node's record by far, as the node writes it again. */
    for (uint64_t until = harness_now_ms() + 3000; harness_now_ms() < until;)
        assert_int_equal(named_status(p, "kv.decode-0"), 0);
    assert_int_equal(tarn_lease_publish(other, "short", 300, 0), 0);
    HARNESS_UNTIL(named_status(p, "short") == TARN_E_NOT_FOUND, 20000);
    assert_int_equal(tarn_recall(other, 0), 0);
    /* A lease's names end with it. Others may have them then. */
    assert_int_equal(tarn_lease_publish(l, "second", 0, 0), 0);
    assert_int_equal(tarn_recall(l, 0), 0);
    assert_int_equal(named_status(p, "kv.decode-0"), TARN_E_NOT_FOUND);
    assert_int_equal(named_status(p, "second"), TARN_E_NOT_FOUND);
    named(p, "second");
    assert_int_equal(tarn_window_close(p->window, 0), 0);
    assert_int_equal(named_status(p, "second"), TARN_E_NOT_FOUND);
    assert_int_equal(tarn_window_new(c, p->lent, BYTES, &p->window), 0);
    named(p, "kv.decode-0");
    assert_int_equal(named_status(p, "kv.decode-0"), 0);
    tarn_close(p->lender);
    p->lender = NULL;
    HARNESS_UNTIL(named_status(p, "kv.decode-0") == TARN_E_NOT_FOUND, 20000);
}

/* --- windows, lenders and connections that end ---------------------------------------------------- */

static void windows_come_and_go(void **state)
{
    struct window_pair *p = *state;
    struct tarn_window *more[TARN_WINDOWS_MAX], *w;
    uint32_t n = 0;
    int rc;
    while ((rc = tarn_window_new(p->lender, p->lent, 4096, &more[n])) == 0)
        n++;
    assert_int_equal(rc, TARN_E_BUSY);
    assert_int_equal(n, TARN_WINDOWS_MAX - 1);
    assert_int_equal(tarn_window_close(more[7], 0), 0);
    assert_int_equal(tarn_window_new(p->lender, p->lent, 4096, &w), 0);
    more[7] = w;
    while (n-- > 0)
        assert_int_equal(tarn_window_close(more[n], 0), 0);
    assert_int_equal(tarn_window_new(p->lender, NULL, 4096, &w), TARN_E_INVALID);
    assert_int_equal(tarn_window_new(p->lender, p->lent, 0, &w), TARN_E_INVALID);
    assert_int_equal(tarn_window_new(p->lender, p->lent, UINT64_MAX, &w), TARN_E_INVALID);
}

static int mapped(const char *what)
{
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, what) != NULL;
    fclose(f);
    return n;
}

/* Peers do not keep the memory of windows that are gone. */
static void closed_windows_are_unmapped(void **state)
{
    struct window_pair *p = *state;
    int before = mapped("tarn-window");
    for (int i = 0; i < 20; i++) {
        struct tarn_window *old = p->window;
        unsigned char *memory;
        assert_int_equal(tarn_window_alloc(65536, 0, (void **)&memory), 0);
        memset(memory, i + 1, 65536);
        assert_int_equal(tarn_window_new(p->lender, memory, 65536, &p->window), 0);
        struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
        struct tarn_reach *r = window_reach(p, l);
        assert_int_equal(window_move(r, false, p->own, 65536, 0), 0);
        assert_int_equal(p->own[65535], i + 1);
        assert_int_equal(window_move(r, true, p->own, 65536, 0), 0);
        tarn_reach_free(r);
        assert_int_equal(tarn_window_close(p->window, 0), 0);
        p->window = old;
        tarn_window_free(memory);
    }
    assert_in_range(mapped("tarn-window"), before, before + 2); /* one for reading, one for writing */
}

/* Ends the connection that the client watches. False: it watches none just now. */
static bool cut(struct tarn_client *c)
{
    struct tarn_peer_node *node, *next;
    bool done = false;
    pthread_rwlock_rdlock(&c->nodes_lock);
    pthread_mutex_lock(&c->monitor.lock);
    HASH_ITER (hh, c->nodes, node, next)
        if (atomic_load(&node->lends) && node->watch)
            done = shutdown(tarn_resp_fd(node->watch->resp), SHUT_RDWR) == 0;
    pthread_mutex_unlock(&c->monitor.lock);
    pthread_rwlock_unlock(&c->nodes_lock);
    return done;
}

/* The session ends with its connections, and with it what the token has opened. */
static void connections_that_break(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    for (int i = 0; i < 5; i++) {
        p->own[0] = (unsigned char)(i + 1);
        HARNESS_UNTIL(window_move(r, true, p->own, 100, 0) == 0,
                      10000); /* the end before may be noticed late */
        HARNESS_UNTIL(cut(p->peer), 5000);
        p->own[0] = (unsigned char)(i + 100);
        HARNESS_UNTIL(window_move(r, true, p->own, 100, 0) == 0, 10000);
        assert_int_equal(p->memory[0], i + 100);
        HARNESS_UNTIL(window_move(r, false, p->own, 100, 0) == 0, 10000);
    }
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* A lender that one call found gone is asked at once. Others wait for its answer. */
static void a_lender_that_was_set_aside(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    for (int i = 0; i < 5; i++) {
        tarn_peer_node_aside(r->lender, TARN_GONE, "the test says so");
        p->own[0] = (unsigned char)i;
        assert_int_equal(window_move(r, true, p->own, 100, 0), 0);
        assert_int_equal(p->memory[0], i);
        tarn_peer_node_aside(r->lender, TARN_GONE, "the test says so");
        assert_int_equal(window_move(r, false, p->own, 100, 0), 0);
    }
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* Three of ten tries break the connection: of ten reads not even one breaks it twice. */
static void reads_are_tried_once_more(void **state)
{
    enum { READS = 200, MOST = READS / 5 };
    struct window_pair *p = *state;
    const struct tarn_options o = {.transports = p->shared ? "shm" : "tcp"};
    struct tarn_client *c = client_open_faulty(p->w->redis->url, o, "shm:error=0.3;tcp:error=0.3");
    struct tarn_lease *l = window_lease(p, NULL, 0, 0);
    struct tarn_reach *r;
    char text[TARN_DESCRIPTOR_MAX];
    int failed = 0;
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    assert_int_equal(tarn_reach(c, text, 0, &r), 0);
    for (int i = 0; i < READS; i++) {
        int rc = window_move(r, false, p->own, 100, 0);
        assert_true(rc == 0 || rc == TARN_E_NODE_DOWN);
        failed += rc != 0;
    }
    assert_in_range(failed, 0, MOST);
    tarn_reach_free(r);
    tarn_close(c);
    assert_int_equal(tarn_recall(l, 0), 0);
}

static void a_reach_outlives_its_client(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l), *freed = window_reach(p, l);
    assert_int_equal(window_move(r, true, p->own, 100, 0), 0);
    tarn_reach_free(freed);
    tarn_close(p->peer);
    p->peer = NULL;
    assert_null(r->client);
    assert_null(r->lender);
    assert_int_equal(window_move(r, false, p->own, 100, 0), TARN_E_INVALID);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

static void the_lender_is_gone(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l), *other;
    char text[TARN_DESCRIPTOR_MAX];
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    assert_int_equal(window_move(r, false, p->own, 100, 0), 0);
    tarn_close(p->lender);
    p->lender = NULL;
    int rc = window_move(r, false, p->own, 100, 0);
    if (rc != TARN_E_NODE_DOWN && rc != TARN_E_STALE)
        fail_msg("%d: %s", rc, tarn_last_error());
    assert_int_equal(tarn_reach(p->peer, text, 0, &other), TARN_E_NODE_DOWN);
    HARNESS_UNTIL(window_move(r, true, p->own, 100, 0) == TARN_E_NODE_DOWN, 10000);
    tarn_reach_free(r);
}

#define TESTS(T) \
    T(reads_and_writes_the_whole_window) \
    T(runs_and_pieces_of_any_size) \
    T(many_ranges_in_one_call) \
    T(submitted_moves) \
    T(ranges_outside_of_the_lease) \
    T(runs_outside_of_the_window) \
    T(a_lease_for_reading_is_not_written) \
    T(descriptors_that_were_cut_or_altered) \
    T(nothing_goes_through_a_recalled_lease) \
    T(a_lease_ends_by_its_time) \
    T(no_late_byte_after_a_recall) \
    T(a_lease_ends_alone) \
    T(who_has_left_is_not_cut_off) \
    T(leases_have_names) \
    T(windows_come_and_go) \
    T(connections_that_break) \
    T(a_lender_that_was_set_aside) \
    T(a_reach_outlives_its_client) \
    T(the_lender_is_gone)
#define HOST_TESTS(T) T(closed_windows_are_unmapped) T(reads_are_tried_once_more)

int main(int argc, char **argv)
{
    const struct CMUnitTest here[] = {TESTS(WINDOW_TCP) HOST_TESTS(WINDOW_TCP) TESTS(WINDOW_TCPX)
                                          TESTS(WINDOW_SHM) HOST_TESTS(WINDOW_SHM)},
                            gpu[] = {TESTS(WINDOW_GPU) TESTS(WINDOW_GPU_TCP)},
                            rdma[] = {TESTS(WINDOW_RDMA) HOST_TESTS(WINDOW_RDMA)};
    return window_run(argc, argv, here, WINDOW_COUNT(here), gpu, WINDOW_COUNT(gpu), rdma, WINDOW_COUNT(rdma));
}
