/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forwarding: what peers write into a landing place is at its final place when it is counted. The final place
 * is memory of the host, and then of the last GPU, if there is one. Landing places on a GPU need the
 * stand-in.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include <tarn/forward.h>

#include "base/clock.h"
#include "client/window/lender.h"
#include "tests/device.h"
#include "tests/standin/cuda_standin.h"
#include "tests/window_pair.h"

#define LONG_NS (60 * TARN_NS_PER_S)
#define WAIT_NS (20 * TARN_NS_PER_S) /* for what does not come */
#define BYTES 4096

/* --- a forwarding ------------------------------------------------------------------------------- */

/* Copies of one launch have no order, so they must not overlap. */
static _Atomic bool overlapped;

__typeof__(tarn_cuda_copy) __real_tarn_cuda_copy, __wrap_tarn_cuda_copy;
int __wrap_tarn_cuda_copy(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n,
                          size_t *taken)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (pieces[i].to == pieces[j].to || pieces[i].from == pieces[j].from)
                overlapped = true;
    return __real_tarn_cuda_copy(q, pieces, n, taken);
}

/* While `stuck`, copies seem not to end, as if a kernel that waits filled the GPU. */
static _Atomic bool stuck, was_stuck;

__typeof__(tarn_cuda_poll) __real_tarn_cuda_poll, __wrap_tarn_cuda_poll;
int __wrap_tarn_cuda_poll(struct tarn_cuda_queue *q, uint64_t mark)
{
    was_stuck = stuck;
    return stuck ? TARN_E_AGAIN : __real_tarn_cuda_poll(q, mark);
}

/* Both clients map a ring of notices, at two addresses. ThreadSanitizer does not know that they are the same
 * memory: it sees by this what a reader has read before the part is written again. */
static _Atomic uint64_t reads;

__typeof__(tarn_lent_take) __real_tarn_lent_take, __wrap_tarn_lent_take;
int __wrap_tarn_lent_take(struct tarn_lent *l, struct tarn_lease *lease, struct tarn_cancel *cancel,
                          uint64_t *tags, uint32_t room, uint32_t *n_p)
{
    int rc = __real_tarn_lent_take(l, lease, cancel, tags, room, n_p);
    (void)atomic_load(&reads);
    return rc;
}

struct rig {
    const struct window_pair *pair;
    struct tarn_lease *lease;
    struct tarn_reach *reach;
    struct tarn_forward *forward;
    struct tarn_arrivals a;
    struct device *device; /* of the final place; NULL: it is of the host */
    uint8_t *to;
    uint32_t slots, parts, bytes;
};

/* -1: there is none. */
static int last_gpu(void)
{
    return devices_there() - 1;
}
/* -1, then that. */
#define EACH_FINAL(gpu_) \
    for (int gpu_ = -1, last_ = last_gpu(); gpu_ <= last_; gpu_ += last_ < 0 ? 1 : last_ + 1)

/* Without a forwarding so far. */
static void prepare(struct rig *g, const struct window_pair *p, int gpu, uint32_t slots, uint32_t parts,
                    uint32_t bytes)
{
    *g = (struct rig){.pair = p, .slots = slots, .parts = parts, .bytes = bytes};
    g->lease = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    g->reach = window_reach(p, g->lease);
    g->device = gpu < 0 ? NULL : device_open(gpu);
    g->to = device_alloc(g->device, (size_t)parts * bytes);
}

static struct tarn_forward_options options(const struct rig *g)
{
    return (struct tarn_forward_options){.size = sizeof(struct tarn_forward_options),
                                         .lease = g->lease,
                                         .to = g->to,
                                         .bytes = g->bytes,
                                         .slots = g->slots,
                                         .parts = g->parts};
}

static void begin(struct rig *g)
{
    const struct tarn_forward_options o = options(g);
    if (tarn_forward_new(g->pair->lender, &o, &g->forward))
        fail_msg("a forwarding: %s", tarn_last_error());
    assert_int_equal(tarn_forward_arrivals(g->forward, &g->a), 0);
}

static void start(struct rig *g, const struct window_pair *p, int gpu, uint32_t slots, uint32_t parts,
                  uint32_t bytes)
{
    prepare(g, p, gpu, slots, parts, bytes);
    begin(g);
}

static void final_free(const struct rig *g)
{
    device_drop(g->device, g->to);
    device_close(g->device);
}

static void end(struct rig *g)
{
    tarn_forward_free(g->forward);
    tarn_reach_free(g->reach);
    if (tarn_recall(g->lease, 20000))
        fail_msg("recall: %s", tarn_last_error());
    final_free(g);
    assert_false(overlapped);
}

/* --- tags and their bytes ----------------------------------------------------------------------- */

static void fill(uint8_t *room, uint64_t tag, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        room[i] = (uint8_t)(tag * 31 + tag / 256 * 7 + i * 3 + i / 256);
}

static bool is_there(const struct rig *g, uint64_t tag)
{
    uint8_t *want = malloc(g->bytes), *part = malloc(g->bytes);
    fill(want, tag, g->bytes);
    device_read(g->device, part, g->to + (tag - 1) % g->parts * g->bytes, g->bytes);
    bool there = memcmp(want, part, g->bytes) == 0;
    free(want);
    free(part);
    return there;
}

/* Writes the tag's slot, and tells. */
static int try_tag(const struct rig *g, struct tarn_reach *r, uint64_t tag)
{
    uint8_t *room = malloc(g->bytes);
    const struct tarn_piece piece = {.addr = room, .bytes = g->bytes};
    struct tarn_move m = {.pieces = &piece, .npieces = 1, .offset = (tag - 1) % g->slots * g->bytes};
    fill(room, tag, g->bytes);
    int rc = window_tell(r, &m, 1, tag, "");
    free(room);
    return rc;
}

/* The same. While the queue is full, it tells again. */
static int write_tag(const struct rig *g, struct tarn_reach *r, uint64_t tag)
{
    uint64_t until = harness_now_ms() + 60000;
    int rc = try_tag(g, r, tag);
    while (rc == TARN_E_AGAIN && harness_now_ms() < until) {
        sched_yield();
        rc = window_tell(r, NULL, 0, tag, "");
    }
    return rc;
}

static void must_write(const struct rig *g, uint64_t first, uint64_t last)
{
    for (uint64_t tag = first; tag <= last; tag++)
        if (write_tag(g, g->reach, tag))
            fail_msg("tag %llu: %s", (unsigned long long)tag, tarn_last_error());
}

static void must_arrive(const struct rig *g, uint64_t total)
{
    int rc = tarn_dev_wait_parts(&g->a, total, LONG_NS);
    if (rc)
        fail_msg("%llu of %llu have arrived: %s", (unsigned long long)tarn_dev_load64(g->a.total),
                 (unsigned long long)total, tarn_error_name(rc));
    assert_true(tarn_dev_load64(g->a.total) == total);
}

/* --- counts ------------------------------------------------------------------------------------- */

enum { PARTS = 8, WRITERS = 2 };

/* Writers and readers of N tags. A reader has looked at a part so often as checked[part] says. */
struct play {
    struct rig *g;
    uint64_t n;
    _Atomic uint64_t checked[PARTS];
    _Atomic(const char *) wrong; /* what went wrong first */
    int rc;
    uint64_t number; /* a tag or count */
};

struct actor {
    struct play *play;
    struct tarn_reach *reach;
    uint32_t number;
    pthread_t thread;
};

static uint64_t times_of(const struct play *y, uint32_t part)
{
    return (y->n + y->g->parts - 1 - part) / y->g->parts;
}

static void wrong(struct play *y, const char *what, int rc, uint64_t number)
{
    const char *right = NULL;
    if (!atomic_compare_exchange_strong(&y->wrong, &right, what))
        return;
    y->rc = rc;
    y->number = number;
}

static void *read_part(void *arg)
{
    const struct actor *x = arg;
    struct play *y = x->play;
    for (uint64_t k = 1; k <= times_of(y, x->number) && !y->wrong; k++) {
        uint64_t tag = (k - 1) * y->g->parts + x->number + 1;
        int rc = tarn_dev_wait_part(&y->g->a, x->number, k, LONG_NS);
        tarn_dev_fence();
        if (rc)
            wrong(y, "a wait", rc, tag);
        else if (tarn_dev_load64(&y->g->a.counts[x->number]) != k)
            wrong(y, "a count", 0, tag);
        else if (!is_there(y->g, tag))
            wrong(y, "a part's bytes", 0, tag);
        reads++;
        y->checked[x->number] = k;
    }
    return NULL;
}

static void await_reader(struct play *y, uint32_t part, uint64_t k)
{
    for (uint64_t until = tarn_now_ns() + LONG_NS; y->checked[part] < k && !y->wrong; sched_yield())
        if (tarn_now_ns() > until)
            wrong(y, "a reader", TARN_E_TIMEOUT, k);
}

static void *write_parts(void *arg)
{
    const struct actor *x = arg;
    struct play *y = x->play;
    const struct rig *g = y->g;
    for (uint64_t tag = x->number + 1; tag <= y->n && !y->wrong; tag += WRITERS) {
        uint64_t before = tag > g->slots ? tag - g->slots : 0; /* in this slot */
        await_reader(y, (uint32_t)((tag - 1) % g->parts), (tag - 1) / g->parts);
        int rc = before ? tarn_dev_wait_part(&g->a, (uint32_t)((before - 1) % g->parts),
                                             (before - 1) / g->parts + 1, LONG_NS)
                        : 0;
        if (rc)
            wrong(y, "a writer's wait", rc, before);
        if (!y->wrong && (rc = write_tag(g, x->reach, tag)) != 0)
            wrong(y, "a write", rc, tag);
    }
    return NULL;
}

static void play(struct rig *g, uint64_t n, struct tarn_reach *other)
{
    struct play y = {.g = g, .n = n};
    struct actor readers[PARTS], writers[WRITERS];
    for (uint32_t i = 0; i < g->parts; i++) {
        readers[i] = (struct actor){.play = &y, .number = i};
        assert_int_equal(pthread_create(&readers[i].thread, NULL, read_part, &readers[i]), 0);
    }
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i] = (struct actor){.play = &y, .reach = i ? other : g->reach, .number = i};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, write_parts, &writers[i]), 0);
    }
    for (uint32_t i = 0; i < WRITERS; i++)
        pthread_join(writers[i].thread, NULL);
    for (uint32_t i = 0; i < g->parts; i++)
        pthread_join(readers[i].thread, NULL);
    if (y.wrong)
        fail_msg("%s: %s, tag %llu", y.wrong, tarn_error_name(y.rc), (unsigned long long)y.number);
    must_arrive(g, n);
}

/* Two clients write; each count comes once, with its bytes in place. */
static void each_part_arrives_once(void **state)
{
    static const struct {
        uint32_t slots, parts, bytes;
        uint64_t n;
    } cases[] = {{8, 8, BYTES, 200}, {6, 4, 1000, 150}, {3, 7, 64, 150}, {1, 1, 3, 60}, {2, 3, 200000, 40}};
    struct window_pair *p = *state, other = *p;
    other.peer = world_client(p->w, p->over);
    EACH_FINAL(gpu)
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig g;
        start(&g, p, gpu, cases[i].slots, cases[i].parts, cases[i].bytes);
        struct tarn_reach *r = window_reach(&other, g.lease);
        /* Over soft-RoCE two that connect at once may take longer than a write has. */
        assert_int_equal(window_move(g.reach, true, p->own, 1, 0), 0);
        assert_int_equal(window_move(r, true, p->own, 1, 0), 0);
        play(&g, cases[i].n, r);
        tarn_reach_free(r);
        end(&g);
    }
    tarn_close(other.peer);
}

/* Tells more than the queue holds; `full`: it has been AGAIN. */
struct flood {
    const struct rig *g;
    uint64_t n;
    _Atomic bool full;
    int rc;
    pthread_t thread;
};

static void *pour(void *arg)
{
    struct flood *f = arg;
    for (uint64_t tag = 1; tag <= f->n && !f->rc; tag++) {
        f->rc = try_tag(f->g, f->g->reach, tag);
        f->full |= f->rc == TARN_E_AGAIN;
        if (f->rc == TARN_E_AGAIN)
            f->rc = write_tag(f->g, f->g->reach, tag);
    }
    return NULL;
}

/* What was told before the forwarding begins arrives, too, and nothing is lost where the queue was full. */
static void more_than_the_queue(void **state)
{
    const struct window_pair *p = *state;
    EACH_FINAL(gpu)
    {
        struct rig g;
        struct flood f = {.g = &g, .n = 3000};
        prepare(&g, p, gpu, 4096, 4096, 64);
        assert_int_equal(pthread_create(&f.thread, NULL, pour, &f), 0);
        HARNESS_UNTIL(f.full, 60000);
        begin(&g);
        must_arrive(&g, f.n);
        pthread_join(f.thread, NULL);
        assert_int_equal(f.rc, 0);
        for (uint64_t tag = 1; tag <= f.n; tag++)
            assert_true(g.a.counts[tag - 1] == 1 && is_there(&g, tag));
        end(&g);
    }
}

/* A slot or part that comes again waits for the next launch, and the last one of a part stays. */
static void what_comes_twice_is_copied_in_order(void **state)
{
    const struct window_pair *p = *state;
    EACH_FINAL(gpu)
    {
        struct rig g;
        prepare(&g, p, gpu, 60, 7, 512);
        must_write(&g, 1, 60);
        begin(&g);
        must_arrive(&g, 60);
        for (uint64_t tag = 54; tag <= 60; tag++)
            assert_true(is_there(&g, tag));
        assert_true(g.a.counts[0] == 9 && g.a.counts[6] == 8);
        end(&g);
        prepare(&g, p, gpu, 1, 60, 512);
        for (uint64_t tag = 1; tag <= 60; tag++)
            assert_int_equal(window_tell(g.reach, NULL, 0, tag, "data is not looked at"), 0);
        begin(&g);
        must_arrive(&g, 60);
        end(&g);
    }
}

/* --- leases and their notices ------------------------------------------------------------------- */

static void notices_of_other_leases_are_left(void **state)
{
    const struct window_pair *p = *state;
    struct tarn_notification got;
    struct rig g;
    struct tarn_lease *other = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, other);
    prepare(&g, p, -1, 4, 4, BYTES);
    must_write(&g, 1, 1);
    assert_int_equal(window_tell(r, NULL, 0, 100, ""), 0);
    begin(&g);
    must_write(&g, 2, 4);
    assert_int_equal(window_tell(r, NULL, 0, 101, ""), 0);
    must_arrive(&g, 4);
    assert_int_equal(tarn_expect(g.lease, 1, 1, 20), TARN_E_TIMEOUT);
    for (uint64_t tag = 100; tag <= 101; tag++) {
        assert_int_equal(tarn_notification_next(p->window, 20000, &got), 0);
        assert_true(got.lease == other && got.tag == tag);
    }
    assert_int_equal(tarn_notification_next(p->window, 20, &got), TARN_E_TIMEOUT);
    tarn_forward_free(g.forward);
    g.forward = NULL;
    assert_int_equal(window_tell(g.reach, NULL, 0, 5, ""), 0);
    assert_int_equal(tarn_notification_next(p->window, 20000, &got), 0);
    assert_true(got.lease == g.lease && got.tag == 5);
    tarn_reach_free(r);
    end(&g);
}

static void it_is_busy_until_it_is_freed(void **state)
{
    struct window_pair *p = *state;
    struct rig g;
    struct tarn_forward *second = NULL;
    start(&g, p, -1, 4, 4, BYTES);
    const struct tarn_forward_options o = options(&g);
    assert_int_equal(tarn_forward_new(p->lender, &o, &second), TARN_E_BUSY);
    assert_int_equal(tarn_recall(g.lease, 0), TARN_E_BUSY);
    assert_non_null(strstr(tarn_last_error(), "free the forwarding first"));
    assert_int_equal(tarn_window_close(p->window, 0), TARN_E_BUSY);
    assert_non_null(strstr(tarn_last_error(), "free the forwarding first"));
    must_write(&g, 1, 4); /* nothing has ended */
    must_arrive(&g, 4);
    tarn_forward_abort(g.forward);
    assert_int_equal(tarn_recall(g.lease, 0), TARN_E_BUSY);
    tarn_forward_free(g.forward);
    begin(&g); /* another may begin */
    tarn_forward_free(g.forward);
    assert_int_equal(tarn_window_close(p->window, 20000), 0);
    tarn_reach_free(g.reach);
    final_free(&g);
}

static void count_zeros(void *arg, enum tarn_log_level level, const char *line)
{
    (void)level;
    *(_Atomic int *)arg += strstr(line, "tag 0") != NULL;
}

static void a_tag_0_is_dropped(void **state)
{
    const struct window_pair *p = *state;
    struct window_pair q = *p;
    _Atomic int zeros = 0;
    struct rig g;
    const struct tarn_options co = {
        .timeout_ms = 20000, .log = count_zeros, .log_arg = (void *)&zeros, .log_level = TARN_LOG_WARN};
    q.lender = client_open(p->w->redis->url, co);
    if (tarn_window_new(q.lender, p->lent, WINDOW_ROOM, &q.window))
        fail_msg("%s", tarn_last_error());
    start(&g, &q, -1, 4, 4, BYTES);
    must_write(&g, 1, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(window_tell(g.reach, NULL, 0, 0, ""), 0);
    must_write(&g, 2, 2);
    must_arrive(&g, 2);
    assert_true(g.a.counts[0] == 1 && g.a.counts[1] == 1 && is_there(&g, 1) && is_there(&g, 2));
    end(&g);
    assert_int_equal(zeros, 1);
    tarn_close(q.lender);
}

/* --- ends --------------------------------------------------------------------------------------- */

/* Threads that wait for what does not come. */
enum { WAITING = 3 };
struct waiting {
    struct tarn_arrivals a;
    uint32_t number;
    _Atomic bool waits;
    int rc;
    pthread_t thread;
};

static void wait_for_one(void *arg)
{
    struct waiting *w = arg;
    w->waits = true;
    w->rc = w->number == 0 ? tarn_dev_wait_parts(&w->a, 1000, WAIT_NS)
                           : tarn_dev_wait_part(&w->a, w->number, 1000, WAIT_NS);
}

static void *wait_main(void *arg)
{
    wait_for_one(arg);
    return NULL;
}

static void *play_main(void *arg)
{
    tarn_standin_play(wait_for_one, arg);
    return NULL;
}

static void start_waiting(const struct rig *g, struct waiting *w, void *(*fn)(void *arg))
{
    for (uint32_t i = 0; i < WAITING; i++) {
        w[i] = (struct waiting){.a = g->a, .number = i};
        assert_int_equal(pthread_create(&w[i].thread, NULL, fn, &w[i]), 0);
        HARNESS_UNTIL(w[i].waits, 20000);
    }
}

static void join(struct waiting *w)
{
    for (uint32_t i = 0; i < WAITING; i++)
        pthread_join(w[i].thread, NULL);
}

static void expect_ends(struct waiting *w, int rc)
{
    join(w);
    for (uint32_t i = 0; i < WAITING; i++)
        assert_int_equal(w[i].rc, rc);
}

static void an_abort_ends_waits(void **state)
{
    const struct window_pair *p = *state;
    EACH_FINAL(gpu)
    {
        struct waiting w[WAITING];
        struct rig g;
        start(&g, p, gpu, 4, 4, BYTES);
        must_write(&g, 1, 2);
        must_arrive(&g, 2);
        start_waiting(&g, w, wait_main);
        tarn_forward_abort(g.forward);
        expect_ends(w, TARN_E_CANCELED);
        assert_int_equal(tarn_dev_wait_part(&g.a, 0, 1, 0), 0);
        assert_int_equal(tarn_dev_wait_part(&g.a, 3, 1, LONG_NS), TARN_E_CANCELED);
        tarn_forward_abort(g.forward);
        end(&g);
    }
}

static void *abort_main(void *arg)
{
    tarn_forward_abort(arg);
    return NULL;
}

/* The copy waits for a kernel that waits for the copy. */
static void an_abort_does_not_wait_for_copies(void **state)
{
    const struct window_pair *p = *state;
    struct waiting w[WAITING];
    pthread_t aborts;
    struct rig g;
    prepare(&g, p, last_gpu(), 4, 4, BYTES);
    must_write(&g, 1, 1);
    stuck = true;
    begin(&g);
    HARNESS_UNTIL(was_stuck, 20000);
    start_waiting(&g, w, wait_main);
    assert_int_equal(pthread_create(&aborts, NULL, abort_main, g.forward), 0);
    join(w);
    uint64_t total = tarn_dev_load64(g.a.total);
    stuck = false;
    pthread_join(aborts, NULL);
    for (uint32_t i = 0; i < WAITING; i++)
        assert_int_equal(w[i].rc, TARN_E_CANCELED);
    assert_true(total == 0);
    end(&g);
}

static void waits_have_a_time(void **state)
{
    const struct window_pair *p = *state;
    struct rig g;
    start(&g, p, -1, 4, 4, BYTES);
    assert_int_equal(tarn_dev_wait_part(&g.a, 0, 1, TARN_NS_PER_MS), TARN_E_TIMEOUT);
    assert_int_equal(tarn_dev_wait_parts(&g.a, 1, TARN_NS_PER_MS), TARN_E_TIMEOUT);
    assert_int_equal(tarn_dev_wait_part(&g.a, 4, 1, TARN_NS_PER_MS), TARN_E_INVALID);
    end(&g);
}

static void a_lease_that_ends_by_its_time(void **state)
{
    const struct window_pair *p = *state;
    const struct tarn_lease_options o = {.size = sizeof(o), .flags = TARN_LEASE_WRITE, .ttl_ms = 300};
    struct waiting w[WAITING];
    struct rig g = {.pair = p, .to = calloc(4, BYTES), .slots = 4, .parts = 4, .bytes = BYTES};
    assert_int_equal(tarn_lease(p->window, NULL, 0, &o, &g.lease), 0);
    begin(&g);
    start_waiting(&g, w, wait_main);
    expect_ends(w, TARN_E_STALE);
    assert_int_equal(tarn_recall(g.lease, 0), TARN_E_BUSY);
    end(&g);
}

/* Kernels still wait. */
static void freed_under_kernels(void **state)
{
    const struct window_pair *p = *state;
    struct waiting w[WAITING];
    struct rig g;
    start(&g, p, 1, 4, 4, BYTES);
    must_write(&g, 1, 1);
    must_arrive(&g, 1);
    start_waiting(&g, w, play_main);
    end(&g);
    expect_ends(w, TARN_E_CANCELED);
}

static void closed_under_kernels(void **state)
{
    struct window_pair *p = *state;
    struct waiting w[WAITING];
    struct rig g;
    start(&g, p, 1, 4, 4, BYTES);
    must_write(&g, 1, 1);
    must_arrive(&g, 1);
    start_waiting(&g, w, play_main);
    tarn_close(p->lender);
    expect_ends(w, TARN_E_CANCELED);
    tarn_reach_free(g.reach);
    final_free(&g);
    p->lender = world_client(p->w, NULL);
}

static void closed_while_parts_come(void **state)
{
    struct window_pair *p = *state;
    struct rig g;
    struct flood f = {.g = &g, .n = UINT64_MAX};
    start(&g, p, last_gpu(), 64, 64, 64);
    assert_int_equal(pthread_create(&f.thread, NULL, pour, &f), 0);
    assert_int_equal(tarn_dev_wait_parts(&g.a, 100, LONG_NS), 0);
    tarn_close(p->lender);
    pthread_join(f.thread, NULL);
    assert_int_not_equal(f.rc, 0);
    tarn_reach_free(g.reach);
    final_free(&g);
    p->lender = world_client(p->w, NULL);
}

/* --- wrong uses --------------------------------------------------------------------------------- */

static void refused(const struct rig *g, const struct tarn_forward_options *o, const char *says)
{
    struct tarn_forward *f = NULL;
    int rc = tarn_forward_new(g->pair->lender, o, &f);
    if (rc != TARN_E_INVALID || f || !strstr(tarn_last_error(), says))
        fail_msg("%s: %s: %s", says, tarn_error_name(rc), tarn_last_error());
}

#define REFUSED(says_, ...) \
    do { \
        struct tarn_forward_options o_ = options(&g); \
        __VA_ARGS__; \
        refused(&g, &o_, says_); \
    } while (0)

/* Leases that cannot be landing places. */
static void refuse_leases(struct window_pair *p, const struct rig *given)
{
    const struct rig g = *given;
    const struct tarn_run two[] = {{.bytes = 4 * BYTES}, {.offset = 5 * BYTES, .bytes = 4 * BYTES}};
    const struct tarn_run strided = {.bytes = BYTES, .stride = 2 * BYTES, .count = 4};
    const struct tarn_run small = {.bytes = 4 * BYTES - 1};
    struct window_pair other = *p;
    struct tarn_lease *lease;
    REFUSED("lease is NULL", o_.lease = NULL);
    REFUSED("only read", o_.lease = lease = window_lease(p, NULL, 0, 0));
    assert_int_equal(tarn_recall(lease, 20000), 0);
    REFUSED("several runs", o_.lease = lease = window_lease(p, two, 2, TARN_LEASE_WRITE));
    assert_int_equal(tarn_recall(lease, 20000), 0);
    REFUSED("several runs", o_.lease = lease = window_lease(p, &strided, 1, TARN_LEASE_WRITE));
    assert_int_equal(tarn_recall(lease, 20000), 0);
    REFUSED("need 16384", o_.lease = lease = window_lease(p, &small, 1, TARN_LEASE_WRITE));
    assert_int_equal(tarn_recall(lease, 20000), 0);
    assert_int_equal(tarn_window_new(p->peer, p->own, WINDOW_ROOM, &other.window), 0);
    REFUSED("another client", o_.lease = window_lease(&other, NULL, 0, TARN_LEASE_WRITE));
    assert_int_equal(tarn_window_close(other.window, 20000), 0);
}

static void wrong_options(void **state)
{
    struct window_pair *p = *state;
    struct tarn_forward *f;
    struct rig g;
    prepare(&g, p, last_gpu(), 4, 4, BYTES);
    const struct tarn_forward_options good = options(&g);
    assert_int_equal(tarn_forward_new(NULL, &good, &f), TARN_E_INVALID);
    assert_int_equal(tarn_forward_new(p->lender, &good, NULL), TARN_E_INVALID);
    assert_int_equal(tarn_forward_new(p->lender, NULL, &f), TARN_E_INVALID);
    REFUSED("flags 0x1", o_.flags = 1);
    REFUSED("bytes 0", o_.bytes = 0);
    REFUSED("slots 0", o_.slots = 0);
    REFUSED("slots 1048577", o_.slots = TARN_FORWARD_PARTS_MAX + 1);
    REFUSED("parts 0", o_.parts = 0);
    REFUSED("parts 1048577", o_.parts = TARN_FORWARD_PARTS_MAX + 1);
    REFUSED("need 4294967295", o_.slots = 1, o_.bytes = UINT32_MAX);
    REFUSED("no memory is there", o_.to = NULL);
    REFUSED("no memory is there", o_.to = (void *)(UINTPTR_MAX - 100));
    REFUSED("landing place", o_.to = (char *)p->lent + 4 * BYTES - 1);
    REFUSED("landing place", o_.to = (char *)p->lent - 4 * BYTES + 1);
    refuse_leases(p, &g);
    if (g.device)
        REFUSED("one allocation", o_.parts = 5);
    if (tarn_standin_managed) {
        void *managed = tarn_standin_managed(4 * BYTES);
        REFUSED("managed", o_.to = managed);
        tarn_standin_managed_free(managed, 4 * BYTES);
    }
    begin(&g); /* nothing of all this was kept */
    assert_int_equal(tarn_forward_arrivals(NULL, &g.a), TARN_E_INVALID);
    assert_int_equal(tarn_forward_arrivals(g.forward, NULL), TARN_E_INVALID);
    tarn_forward_abort(NULL);
    tarn_forward_free(NULL);
    end(&g);
}

/* --- GPUs that fail ----------------------------------------------------------------------------- */

static void a_gpu_that_fails(void **state)
{
    static const char *const faults[] = {"copy:1", "mark:1", "poll:1", "lost:1"};
    const struct window_pair *p = *state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct waiting w[WAITING];
        struct rig g;
        prepare(&g, p, 1, 4, 4, BYTES);
        must_write(&g, 1, 1);
        tarn_standin_fail(faults[i]);
        begin(&g);
        start_waiting(&g, w, wait_main);
        expect_ends(w, TARN_E_UNAVAILABLE);
        assert_true(tarn_dev_load64(g.a.total) == 0);
        tarn_forward_free(g.forward);
        g.forward = NULL;
        tarn_standin_fail(NULL);
        end(&g);
    }
}

/* What cannot be made leaves nothing behind. */
static void a_beginning_that_fails(void **state)
{
    static const char *const faults[] = {"alloc:1", "pin:1", "pin:2", "queue:1"};
    const struct window_pair *p = *state;
    struct rig g;
    prepare(&g, p, 1, 4, 4, BYTES);
    const struct tarn_forward_options o = options(&g);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        tarn_standin_fail(faults[i]);
        assert_int_equal(tarn_forward_new(p->lender, &o, &g.forward), TARN_E_SYSTEM);
        assert_non_null(strstr(tarn_last_error(), "was told to fail"));
        tarn_standin_fail(NULL);
    }
    begin(&g);
    must_write(&g, 1, 4);
    must_arrive(&g, 4);
    end(&g);
}

/* Memory that is pinned already stays so; what is pinned in part is refused. */
static void memory_that_is_pinned(void **state)
{
    const struct window_pair *p = *state;
    struct tarn_cuda_memory m;
    struct rig g;
    prepare(&g, p, 1, 4, 4, BYTES);
    const struct tarn_forward_options o = options(&g);
    assert_int_equal(tarn_cuda_pin(p->memory, 2 * BYTES, true), 0);
    assert_int_equal(tarn_forward_new(p->lender, &o, &g.forward), TARN_E_SYSTEM);
    assert_non_null(strstr(tarn_last_error(), "pin all of it before"));
    tarn_cuda_unpin(p->memory);
    assert_int_equal(tarn_cuda_pin(p->memory, WINDOW_ROOM, true), 0);
    begin(&g);
    must_write(&g, 1, 4);
    must_arrive(&g, 4);
    end(&g);
    tarn_cuda_memory_of(p->memory, &m);
    assert_int_equal(m.kind, TARN_CUDA_PINNED);
    tarn_cuda_unpin(p->memory);
}

/* From a GPU of its own to one that it does not reach: in a process where none reaches another. */
static void gpu_out_of_reach(void **state)
{
    const struct window_pair *p = *state;
    struct tarn_forward *f = NULL;
    struct rig g;
    prepare(&g, p, 1, 4, 4, BYTES);
    const struct tarn_forward_options o = options(&g);
    assert_int_equal(tarn_forward_new(p->lender, &o, &f), TARN_E_NOT_REACHABLE);
    assert_non_null(strstr(tarn_last_error(), "GPU 0 of the landing place does not reach GPU 1"));
    end(&g);
}

static char *self;

static void gpus_out_of_reach(void **state)
{
    const struct window_pair *p = *state;
    const char *argv[] = {self, "--far", NULL};
    setenv("STANDIN_PEERS", "0", 1);
    struct harness_process *far = harness_spawn(p->w->h, "far", argv);
    unsetenv("STANDIN_PEERS");
    assert_int_equal(harness_wait(far, HARNESS_TIMEOUT_MS), 0);
}

/* --- all of it ---------------------------------------------------------------------------------- */

#define COUNTS(T) T(each_part_arrives_once) T(more_than_the_queue) T(what_comes_twice_is_copied_in_order)
#define ALL(T) \
    COUNTS(T) \
    T(notices_of_other_leases_are_left) \
    T(it_is_busy_until_it_is_freed) \
    T(a_tag_0_is_dropped) \
    T(an_abort_ends_waits) \
    T(waits_have_a_time) \
    T(a_lease_that_ends_by_its_time) \
    T(closed_while_parts_come) \
    T(wrong_options)
#define KERNELS(T) T(freed_under_kernels) T(closed_under_kernels) T(a_gpu_that_fails)
#define FROM_HOST(T) \
    KERNELS(T) \
    T(an_abort_does_not_wait_for_copies) \
    T(a_beginning_that_fails) \
    T(memory_that_is_pinned) \
    T(gpus_out_of_reach)

int main(int argc, char **argv)
{
    const struct CMUnitTest here[] = {ALL(WINDOW_TCP) ALL(WINDOW_SHM)}, rdma[] = {ALL(WINDOW_RDMA)},
                            far[] = {WINDOW_GPU_TCP(gpu_out_of_reach)},
                            gpu[] = {ALL(WINDOW_GPU) COUNTS(WINDOW_GPU_TCP) KERNELS(WINDOW_GPU)
                                         FROM_HOST(WINDOW_SHM)};
    self = argv[0];
    if (argc > 1 && !strcmp(argv[1], "--far"))
        return cmocka_run_group_tests(far, NULL, NULL);
    return window_run(argc, argv, here, WINDOW_COUNT(here), gpu, WINDOW_COUNT(gpu), rdma, WINDOW_COUNT(rdma));
}
