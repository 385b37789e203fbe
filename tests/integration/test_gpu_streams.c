/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How operations respect the order of an application's streams: a put runs after the kernels that write, a
 * get after the kernels that still read, and kernels after a get in flight. Also what happens if an event
 * never comes. Uses the machine's GPUs or the stand-in.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/device.h"
#include "tests/standin/cuda_standin.h"
#include "tests/stream.h"
#include "tests/world.h"

enum { BYTES = 300000, OLD = 1, NEW = 2, SOON_MS = 300, STREAMS = 40 };

static const struct world_plan one_gpu = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=64M", "--pool", "gpu0:device=0,bytes=64M"}};
static const char *self;
/* A failed test must end it: otherwise the process could not end. */
static struct late *pending;

struct scene {
    struct world *w;
    struct device *d;
    struct stream *s;
    uint8_t *memory, *other; /* in device memory */
    struct late *late;
    void *event; /* an event after `late` */
    struct tarn_piece piece;
    struct tarn_item item, source; /* of `memory`, key "k": item for gets, source for puts */
};

static tarn_op submit_get(struct scene *x, void *after, uint32_t timeout_ms)
{
    struct tarn_get_options o = {.size = sizeof o, .after = after, .timeout_ms = timeout_ms};
    tarn_op op = 0;
    assert_int_equal(tarn_submit_get(x->w->client, &x->item, 1, &o, 7, &op), 0);
    return op;
}

static tarn_op submit_put(struct scene *x, void *after, uint32_t timeout_ms)
{
    struct tarn_put_options o = {.size = sizeof o,
                                 .after = after,
                                 .timeout_ms = timeout_ms,
                                 .place = "node0/gpu0",
                                 .flags = TARN_PUT_REPLACE};
    tarn_op op = 0;
    assert_int_equal(tarn_submit_put(x->w->client, &x->source, 1, &o, 7, &op), 0);
    return op;
}

static int outcome(struct scene *x, tarn_op op)
{
    struct tarn_completion done;
    assert_int_equal(tarn_wait(x->w->client, op, HARNESS_TIMEOUT_MS, &done), 0);
    if (done.status)
        tarn_fail(done.status, "%s", done.error);
    return done.status;
}

/* "k" holds NEW; `memory` and `other` hold OLD. */
static struct scene *scene_new(void **state)
{
    devices_need(1);
    struct scene *x = calloc(1, sizeof(*x));
    assert_non_null(x);
    x->w = *state;
    x->d = device_open(0);
    x->s = stream_open(0);
    x->memory = device_alloc(x->d, BYTES);
    x->other = device_alloc(x->d, BYTES);
    device_set(x->d, x->memory, NEW, BYTES);
    assert_int_equal(piece_put(x->w->client, "k", x->memory, BYTES, "node0/gpu0"), 0);
    assert_int_equal(piece_get(x->w->client, "k", x->other, BYTES), 0);
    device_set(x->d, x->memory, OLD, BYTES);
    device_set(x->d, x->other, OLD, BYTES);
    x->piece = (struct tarn_piece){.addr = x->memory, .bytes = BYTES};
    x->item = (struct tarn_item){
        .key = key_of("k"), .pieces = &x->piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
    x->source = x->item;
    return x;
}

/* From now on the stream waits, until late_end(). */
static void scene_late(struct scene *x)
{
    x->late = pending = late_begin(x->s);
}

static void scene_end(struct scene *x)
{
    if (x->late)
        late_end(x->late);
    stream_settle(x->s);
    if (x->late)
        late_free(x->late);
    pending = NULL;
    if (x->event)
        stream_event_free(x->event);
    stream_close(x->s);
    device_drop(x->d, x->memory);
    device_drop(x->d, x->other);
    device_close(x->d);
    harness_passed(x->w->h);
    free(x);
}

static int start(void **state)
{
    return devices_there() ? world_start_client(state, &one_gpu) : 0;
}

static int stop(void **state)
{
    if (pending)
        late_end(pending);
    pending = NULL;
    if (tarn_standin_delay)
        tarn_standin_delay(0);
    return *state ? world_stop(state) : 0;
}

/* Checks that the operation still waits. */
static void not_yet(struct scene *x, tarn_op op)
{
    struct tarn_completion done;
    assert_int_equal(tarn_wait(x->w->client, op, 50, &done), TARN_E_TIMEOUT);
}

/* --- puts and gets that wait -------------------------------------------------------------------- */

static void a_put_waits_for_its_event(void **state)
{
    struct scene *x = scene_new(state);
    scene_late(x);
    stream_fill(x->s, x->memory, 33, BYTES);
    x->event = stream_event(x->s);
    tarn_op op = submit_put(x, x->event, 0);
    not_yet(x, op);
    late_end(x->late);
    assert_int_equal(outcome(x, op), 0);
    assert_int_equal(piece_get(x->w->client, "k", x->other, BYTES), 0);
    device_expect(x->d, x->other, 33, BYTES);
    scene_end(x);
}

static void a_get_waits_for_its_event(void **state)
{
    struct scene *x = scene_new(state);
    scene_late(x);
    device_set(x->d, x->memory, 44, BYTES);
    stream_copy(x->s, x->other, x->memory, BYTES);
    x->event = stream_event(x->s);
    tarn_op op = submit_get(x, x->event, 0);
    not_yet(x, op);
    late_end(x->late);
    assert_int_equal(outcome(x, op), 0);
    device_expect(x->d, x->memory, NEW, BYTES);
    device_expect(x->d, x->other, 44, BYTES);
    scene_end(x);
}

static void *end_soon(void *late)
{
    for (int i = 0; i < 5; i++)
        harness_pause();
    late_end(late);
    return NULL;
}

static void blocking_calls_wait_for_their_events(void **state)
{
    struct scene *x = scene_new(state);
    pthread_t t;
    scene_late(x);
    stream_fill(x->s, x->memory, 55, BYTES);
    x->event = stream_event(x->s);
    assert_int_equal(pthread_create(&t, NULL, end_soon, x->late), 0);
    struct tarn_put_options p = {
        .size = sizeof p, .after = x->event, .place = "node0/gpu0", .flags = TARN_PUT_REPLACE};
    assert_int_equal(tarn_put(x->w->client, &x->item, 1, &p), 0);
    pthread_join(t, NULL);
    struct tarn_get_options g = {.size = sizeof g, .after = x->event};
    device_set(x->d, x->memory, OLD, BYTES);
    assert_int_equal(tarn_get(x->w->client, &x->item, 1, &g), 0);
    device_expect(x->d, x->memory, 55, BYTES);
    scene_end(x);
}

static void reserving_for_a_session_waits_for_nothing(void **state)
{
    struct scene *x = scene_new(state);
    struct tarn_put_session *s;
    x->event = stream_event(x->s);
    struct tarn_put_options p = {.size = sizeof p, .after = x->event, .flags = TARN_PUT_REPLACE};
    assert_int_equal(tarn_put_begin(x->w->client, &x->item, 1, &p, &s), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "tarn_put_write"));
    scene_end(x);
}

/* --- events that never come --------------------------------------------------------------------- */

static void at_the_deadline_an_operation_ends_without_its_event(void **state)
{
    struct scene *x = scene_new(state);
    struct tarn_get_options g = {.size = sizeof g, .timeout_ms = SOON_MS};
    scene_late(x);
    g.after = x->event = stream_event(x->s);
    uint64_t begun = harness_now_ms();
    tarn_op put = submit_put(x, x->event, SOON_MS), get = submit_get(x, x->event, SOON_MS);
    assert_int_equal(outcome(x, put), TARN_E_TIMEOUT);
    assert_non_null(strstr(tarn_last_error(), "event"));
    assert_int_equal(outcome(x, get), TARN_E_TIMEOUT);
    assert_int_equal(x->item.status, TARN_E_TIMEOUT);
    assert_int_equal(tarn_get(x->w->client, &x->item, 1, &g), TARN_E_TIMEOUT);
    assert_int_equal(x->item.status, TARN_E_TIMEOUT);
    assert_in_range(harness_now_ms() - begun, 2 * SOON_MS - 1, 2 * SOON_MS + 2000 * harness_slower());
    /* If the event comes after all, no memory is touched. */
    late_end(x->late);
    stream_settle(x->s);
    device_expect(x->d, x->memory, OLD, BYTES);
    assert_int_equal(piece_get(x->w->client, "k", x->other, BYTES), 0);
    device_expect(x->d, x->other, NEW, BYTES);
    device_expect(x->d, x->memory, OLD, BYTES);
    scene_end(x);
}

static void canceled_operations_do_not_wait_on(void **state)
{
    struct scene *x = scene_new(state);
    scene_late(x);
    x->event = stream_event(x->s);
    tarn_op put = submit_put(x, x->event, 0), get = submit_get(x, x->event, 0);
    not_yet(x, put);
    assert_int_equal(tarn_cancel(x->w->client, put), 0);
    assert_int_equal(tarn_cancel(x->w->client, get), 0);
    /* From here on, event and memory belong to the application again. */
    late_end(x->late);
    stream_settle(x->s);
    stream_event_free(x->event);
    x->event = NULL;
    assert_int_equal(outcome(x, put), TARN_E_CANCELED);
    assert_int_equal(outcome(x, get), TARN_E_CANCELED);
    device_expect(x->d, x->memory, OLD, BYTES);
    scene_end(x);
}

static void operations_that_wait_for_events_delay_no_others(void **state)
{
    enum { N = 9 };
    struct scene *x = scene_new(state);
    tarn_op waiting[N];
    struct tarn_item items[N];
    scene_late(x);
    x->event = stream_event(x->s);
    for (int i = 0; i < N; i++) {
        struct tarn_get_options o = {.size = sizeof o, .after = x->event};
        items[i] = x->item;
        assert_int_equal(tarn_submit_get(x->w->client, &items[i], 1, &o, 0, &waiting[i]), 0);
    }
    for (int i = 0; i < 20; i++)
        assert_int_equal(outcome(x, submit_get(x, NULL, 0)), 0);
    late_end(x->late);
    for (int i = 0; i < N; i++)
        assert_int_equal(outcome(x, waiting[i]), 0);
    scene_end(x);
}

static void a_failed_event_fails_only_its_own_operation(void **state)
{
    struct scene *x = scene_new(state);
    int event = -1;
    if (!tarn_standin_fail)
        harness_skip("standin", "this process cannot use a GPU that has failed");
    assert_int_equal(outcome(x, submit_put(x, &event, 0)), TARN_E_UNAVAILABLE);
    assert_non_null(strstr(tarn_last_error(), "illegal"));
    assert_int_equal(outcome(x, submit_get(x, NULL, 0)), 0);
    device_expect(x->d, x->memory, NEW, BYTES);
    scene_end(x);
}

/* On a GPU, cudaFree() of memory that a held stream might use waits for that stream. */
static void memory_freed_during_the_wait_is_not_touched(void **state)
{
    struct scene *x = scene_new(state);
    if (!tarn_standin_fail)
        harness_skip("standin", "cudaFree waits for the device");
    scene_late(x);
    x->event = stream_event(x->s);
    tarn_op put = submit_put(x, x->event, 0), get = submit_get(x, x->event, 0);
    device_drop(x->d, x->memory);
    late_end(x->late);
    assert_int_equal(outcome(x, put), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "keep it until"));
    assert_int_equal(outcome(x, get), TARN_E_INVALID);
    x->memory = device_alloc(x->d, BYTES);
    scene_end(x);
}

/* --- streams that wait -------------------------------------------------------------------------- */

/* Delays the stand-in's copies by this time. A GPU's copies take time when they are large. */
static void copies_take(uint64_t us)
{
    if (tarn_standin_delay)
        tarn_standin_delay(us);
}

static void make_wait(struct scene *x, tarn_op op, struct stream *s)
{
    if (tarn_stream_wait(x->w->client, op, stream_handle(s)))
        fail_msg("tarn_stream_wait: %s", tarn_last_error());
}

/* The kernel is given to its stream while the copies run, and finds their bytes. */
static void a_stream_waits_for_a_get(void **state)
{
    struct scene *x = scene_new(state);
    struct stream *consumer = stream_open(0);
    copies_take(200000);
    tarn_op op = submit_get(x, NULL, 0);
    make_wait(x, op, consumer);
    stream_copy(consumer, x->other, x->memory, BYTES);
    if (tarn_standin_delay) {
        assert_false(stream_is_idle(consumer));
        not_yet(x, op);
    }
    stream_settle(consumer);
    assert_int_equal(outcome(x, op), 0);
    copies_take(0);
    device_expect(x->d, x->other, NEW, BYTES);
    stream_close(consumer);
    scene_end(x);
}

/* The same with a copy that takes a GPU some time: from host memory to a GPU. */
static void a_stream_waits_for_a_large_get(void **state)
{
    enum { LARGE = 48 << 20 };
    struct scene *x = scene_new(state);
    struct stream *consumer = stream_open(0);
    uint8_t *to = device_alloc(x->d, LARGE), *copy = device_alloc(x->d, LARGE);
    struct tarn_piece piece = {.addr = to, .bytes = LARGE};
    x->item = (struct tarn_item){.key = key_of("large"), .pieces = &piece, .npieces = 1};
    device_set(x->d, to, 66, LARGE);
    assert_int_equal(piece_put(x->w->client, "large", to, LARGE, "node0/cpu0"), 0);
    int early = 0;
    for (int i = 0; i < 5; i++) {
        device_set(x->d, to, OLD, LARGE);
        tarn_op op = submit_get(x, NULL, 0);
        make_wait(x, op, consumer);
        early += !stream_is_idle(consumer);
        stream_copy(consumer, copy, to, LARGE);
        stream_settle(consumer);
        assert_int_equal(outcome(x, op), 0);
        device_expect(x->d, copy, 66, LARGE);
    }
    print_message("           %d of 5 waits were over before the copies\n", early);
    device_drop(x->d, to);
    device_drop(x->d, copy);
    stream_close(consumer);
    scene_end(x);
}

struct waiter {
    struct scene *x;
    tarn_op op;
    struct stream *s;
    int rc;
};

static void *wait_in_thread(void *arg)
{
    struct waiter *a = arg;
    a->rc = tarn_stream_wait(a->x->w->client, a->op, stream_handle(a->s));
    return NULL;
}

/* The host, not the stream, waits for the event that the operation waits for. */
static void a_wait_first_waits_for_the_event_of_its_get(void **state)
{
    struct scene *x = scene_new(state);
    struct waiter a = {.x = x, .s = stream_open(0)};
    pthread_t t;
    scene_late(x);
    stream_fill(x->s, x->memory, 77, BYTES);
    x->event = stream_event(x->s);
    a.op = submit_get(x, x->event, 0);
    assert_int_equal(pthread_create(&t, NULL, wait_in_thread, &a), 0);
    not_yet(x, a.op);
    late_end(x->late);
    pthread_join(t, NULL);
    assert_int_equal(a.rc, 0);
    stream_copy(a.s, x->other, x->memory, BYTES);
    stream_settle(a.s);
    assert_int_equal(outcome(x, a.op), 0);
    device_expect(x->d, x->other, NEW, BYTES);
    stream_close(a.s);
    scene_end(x);
}

/* The wait ends, whatever the operation's result. The completion says that there is nothing to use. */
static void a_wait_ends_when_its_operation_fails(void **state)
{
    struct scene *x = scene_new(state);
    struct stream *consumer = stream_open(0);
    struct waiter a = {.x = x, .s = consumer};
    pthread_t t;
    scene_late(x);
    x->event = stream_event(x->s);
    x->item.key = key_of("nothing");
    tarn_op op = submit_get(x, NULL, 0);
    make_wait(x, op, consumer);
    assert_int_equal(outcome(x, op), TARN_E_NOT_FOUND);
    uint64_t begun = harness_now_ms();
    op = submit_get(x, x->event, SOON_MS);
    int rc = tarn_stream_wait(x->w->client, op, stream_handle(consumer));
    assert_true(rc == 0 || rc == TARN_E_TIMEOUT);
    assert_in_range(harness_now_ms() - begun, SOON_MS - 1, SOON_MS + 2000 * harness_slower());
    assert_int_equal(outcome(x, op), TARN_E_TIMEOUT);
    a.op = op = submit_get(x, x->event, 0);
    assert_int_equal(pthread_create(&t, NULL, wait_in_thread, &a), 0);
    not_yet(x, op);
    assert_int_equal(tarn_cancel(x->w->client, op), 0);
    pthread_join(t, NULL);
    assert_int_equal(a.rc, 0);
    assert_int_equal(outcome(x, op), TARN_E_CANCELED);
    assert_true(stream_is_idle(consumer));
    device_expect(x->d, x->memory, OLD, BYTES);
    stream_close(consumer);
    scene_end(x);
}

/* Waits, cancels and ends of several operations that share links, at varying moments. The bytes of
 * successful operations must be right. */
static void waits_and_cancels_cross(void **state)
{
    enum { ROUNDS = 60, OPS = 4 };
    struct scene *x = scene_new(state);
    struct waiter a[OPS];
    struct tarn_item items[OPS];
    struct tarn_piece pieces[OPS];
    pthread_t threads[OPS];
    int went_well = 0;
    for (int i = 0; i < OPS; i++) {
        pieces[i] = (struct tarn_piece){.addr = device_alloc(x->d, BYTES), .bytes = BYTES};
        items[i] = (struct tarn_item){.key = key_of("k"), .pieces = &pieces[i], .npieces = 1};
        a[i] = (struct waiter){.x = x, .s = stream_open(0)};
    }
    for (int round = 0; round < ROUNDS; round++) {
        copies_take((uint64_t)round % 3 * 1000);
        for (int i = 0; i < OPS; i++)
            assert_int_equal(tarn_submit_get(x->w->client, &items[i], 1, NULL, 0, &a[i].op), 0);
        for (int i = 0; i < OPS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, wait_in_thread, &a[i]), 0);
        uint64_t until = tarn_now_ns() + (uint64_t)round * 50000;
        while (tarn_now_ns() < until)
            sched_yield();
        assert_int_equal(tarn_cancel(x->w->client, a[round % OPS].op), 0);
        for (int i = 0; i < OPS; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(a[i].rc, 0);
            stream_settle(a[i].s);
            int rc = outcome(x, a[i].op);
            went_well += rc == 0;
            assert_true(rc == 0 || (rc == TARN_E_CANCELED && i == round % OPS));
            copies_take(0);
            if (rc == 0)
                device_expect(x->d, pieces[i].addr, NEW, BYTES);
            device_set(x->d, pieces[i].addr, OLD, BYTES);
        }
    }
    print_message("           %d of %d went well\n", went_well, ROUNDS * OPS);
    for (int i = 0; i < OPS; i++) {
        device_drop(x->d, pieces[i].addr);
        stream_close(a[i].s);
    }
    scene_end(x);
}

static bool has_opened(void *opens)
{
    return atomic_load((atomic_bool *)opens);
}

/* The wait ends at the deadline even if a worker is in a CUDA call that takes longer. */
static void a_wait_ends_at_the_deadline_during_a_slow_cuda_call(void **state)
{
    struct scene *x = scene_new(state);
    if (!tarn_standin_block)
        harness_skip("standin", "only a stand-in for GPUs can do this");
    struct tarn_client *own = x->w->client;
    x->w->client = world_client(x->w, "cuda_ipc");
    static atomic_bool opens;
    tarn_standin_block(has_opened, &opens);
    uint64_t begun = harness_now_ms();
    tarn_op op = submit_get(x, NULL, SOON_MS);
    int rc = tarn_stream_wait(x->w->client, op, stream_handle(x->s));
    uint64_t took = harness_now_ms() - begun;
    atomic_store(&opens, true);
    outcome(x, op);
    tarn_standin_block(NULL, NULL);
    assert_true(rc == 0 ||
                /* 0: the operation, which has the same deadline, ended first. */
                rc == TARN_E_TIMEOUT);
    assert_in_range(took, SOON_MS - 1, SOON_MS + 2000 * harness_slower());
    tarn_close(x->w->client);
    x->w->client = own;
    scene_end(x);
}

static void without_gpu_copies_a_stream_waits_for_the_completion(void **state)
{
    struct scene *x = scene_new(state);
    struct tarn_client *own = x->w->client;
    x->w->client = world_client(x->w, "tcp");
    tarn_op op = submit_get(x, NULL, 0);
    make_wait(x, op, x->s);
    assert_true(stream_is_idle(x->s));
    stream_copy(x->s, x->other, x->memory, BYTES);
    stream_settle(x->s);
    assert_int_equal(outcome(x, op), 0);
    device_expect(x->d, x->other, NEW, BYTES);
    device_set(x->d, x->memory, 88, BYTES);
    op = submit_put(x, NULL, 0);
    make_wait(x, op, x->s);
    stream_fill(x->s, x->memory, 1, BYTES); /* nothing reads the pieces any more */
    stream_settle(x->s);
    assert_int_equal(outcome(x, op), 0);
    assert_int_equal(piece_get(own, "k", x->other, BYTES), 0);
    device_expect(x->d, x->other, 88, BYTES);
    tarn_close(x->w->client);
    x->w->client = own;
    scene_end(x);
}

/* A copy that is stale when posted is repeated before any stream continues. */
static void a_stream_reads_the_bytes_that_the_completion_reports(void **state)
{
    struct scene *x = scene_new(state);
    struct tarn_options o = {.timeout_ms = 5000};
    struct tarn_client *own = x->w->client;
    struct stream *consumer = stream_open(0);
    x->w->client = client_open_faulty(x->w->redis->url, o, "cuda_ipc:stale=0.5");
    for (int i = 0; i < 30; i++) {
        device_set(x->d, x->memory, OLD, BYTES);
        tarn_op op = submit_get(x, NULL, 0);
        make_wait(x, op, consumer);
        stream_copy(consumer, x->other, x->memory, BYTES);
        stream_settle(consumer);
        if (outcome(x, op) == 0)
            device_expect(x->d, x->other, NEW, BYTES);
    }
    tarn_close(x->w->client);
    x->w->client = own;
    stream_close(consumer);
    scene_end(x);
}

/* The object is replaced during the copy. A retry would return bytes that the stream has not read. */
static void a_copy_found_stale_behind_a_stream_is_not_repeated(void **state)
{
    struct scene *x = scene_new(state);
    struct stream *consumer = stream_open(0);
    struct tarn_client *other = world_client(x->w, "tcp");
    uint8_t *host = malloc(BYTES);
    assert_non_null(host);
    memset(host, 99, BYTES);
    piece_get(other, "k", host, BYTES);
    memset(host, 99, BYTES);
    copies_take(300000);
    tarn_op op = submit_get(x, NULL, 0);
    make_wait(x, op, consumer);
    assert_int_equal(piece_put(other, "k", host, BYTES, "node0/gpu0"), 0);
    stream_copy(consumer, x->other, x->memory, BYTES);
    stream_settle(consumer);
    int rc = outcome(x, op);
    copies_take(0);
    if (tarn_standin_delay || rc != 0) {
        assert_int_equal(rc, TARN_E_STALE);
        assert_int_equal(x->item.status, TARN_E_STALE);
        assert_non_null(strstr(tarn_last_error(), "get it again"));
    } else {
        device_expect(x->d, x->other, NEW, BYTES);
    }
    assert_int_equal(outcome(x, submit_get(x, NULL, 0)), 0);
    device_expect(x->d, x->memory, 99, BYTES);
    /* No stream waits: then the get is retried. */
    device_set(x->d, x->memory, OLD, BYTES);
    memset(host, 100, BYTES);
    copies_take(300000);
    op = submit_get(x, NULL, 0);
    if (tarn_standin_delay)
        not_yet(x, op);
    assert_int_equal(piece_put(other, "k", host, BYTES, "node0/gpu0"), 0);
    copies_take(0);
    assert_int_equal(outcome(x, op), 0);
    if (tarn_standin_delay)
        device_expect(x->d, x->memory, 100, BYTES);
    tarn_close(other);
    free(host);
    stream_close(consumer);
    scene_end(x);
}

static void a_stream_waits_for_no_complete_or_unknown_operation(void **state)
{
    struct scene *x = scene_new(state);
    tarn_op op = submit_get(x, NULL, 0);
    struct tarn_completion done;
    HARNESS_UNTIL(tarn_stream_wait(x->w->client, op, stream_handle(x->s)) == 0 && stream_is_idle(x->s),
                  HARNESS_TIMEOUT_MS);
    assert_int_equal(tarn_wait(x->w->client, op, HARNESS_TIMEOUT_MS, &done), 0);
    assert_int_equal(tarn_stream_wait(x->w->client, op, stream_handle(x->s)), TARN_E_NOT_FOUND);
    assert_true(stream_is_idle(x->s));
    scene_end(x);
}

/* Items of one operation on several ways and queues. Some of them fail. */
static void a_stream_waits_for_all_items(void **state)
{
    enum { N = 24 };
    struct scene *x = scene_new(state);
    struct stream *consumer = stream_open(0);
    struct tarn_item items[N];
    struct tarn_piece pieces[N];
    uint8_t *host = malloc(BYTES), *to[N];
    assert_non_null(host);
    assert_int_equal(piece_put(x->w->client, "c", x->memory, BYTES, "node0/cpu0"), 0); /* holds OLD */
    for (int i = 0; i < N; i++) {
        to[i] = i % 4 == 3 ? host : device_alloc(x->d, BYTES);
        pieces[i] = (struct tarn_piece){.addr = to[i], .bytes = BYTES};
        items[i] = (struct tarn_item){.key = key_of(i % 4 == 2   ? "none"
                                                    : i % 4 == 1 ? "c"
                                                                 : "k"),
                                      .pieces = &pieces[i],
                                      .npieces = 1};
    }
    for (int round = 0; round < 4; round++) {
        tarn_op op = 0;
        copies_take(round % 2 ? 50000 : 0);
        assert_int_equal(tarn_submit_get(x->w->client, items, N, NULL, 7, &op), 0);
        make_wait(x, op, consumer);
        stream_copy(consumer, x->memory, to[1], BYTES);
        stream_copy(consumer, x->other, to[N - 4], BYTES);
        stream_settle(consumer);
        assert_int_equal(outcome(x, op), TARN_E_NOT_FOUND);
        for (int i = 0; i < N; i++)
            assert_int_equal(items[i].status, i % 4 == 2 ? TARN_E_NOT_FOUND : 0);
        device_expect(x->d, x->memory, OLD, BYTES);
        device_expect(x->d, x->other, NEW, BYTES);
        device_set(x->d, x->memory, 0, BYTES);
    }
    copies_take(0);
    for (int i = 0; i < N; i++)
        if (to[i] != host)
            device_drop(x->d, to[i]);
    free(host);
    stream_close(consumer);
    scene_end(x);
}

static void closing_the_client_releases_its_streams(void **state)
{
    struct scene *x = scene_new(state);
    struct stream *consumer = stream_open(0);
    struct tarn_client *own = x->w->client;
    x->w->client = world_client(x->w, NULL);
    assert_int_equal(outcome(x, submit_get(x, NULL, 0)), 0);
    copies_take(100000);
    tarn_op op = submit_get(x, NULL, 0);
    make_wait(x, op, consumer);
    tarn_close(x->w->client);
    copies_take(0);
    x->w->client = own;
    stream_settle(consumer);
    stream_close(consumer);
    scene_end(x);
}

/*
 * Streams share the device's hardware channels. A waiting stream must not block the copies that it waits for.
 * More waits are added while these are pending.
 */
static void held(struct scene *x)
{
    struct stream *streams[STREAMS];
    struct tarn_item items[2 * STREAMS];
    struct tarn_piece pieces[2 * STREAMS];
    tarn_op ops[2 * STREAMS];
    uint8_t *to = device_alloc(x->d, 2 * STREAMS * BYTES), *copy = device_alloc(x->d, 2 * STREAMS * BYTES);
    device_set(x->d, to, OLD, 2 * STREAMS * BYTES);
    for (int i = 0; i < STREAMS; i++)
        streams[i] = stream_open(0);
    copies_take(20000);
    for (int i = 0; i < 2 * STREAMS; i++) {
        pieces[i] = (struct tarn_piece){.addr = to + i * BYTES, .bytes = BYTES};
        items[i] = (struct tarn_item){.key = key_of("k"), .pieces = &pieces[i], .npieces = 1};
        assert_int_equal(tarn_submit_get(x->w->client, &items[i], 1, NULL, 0, &ops[i]), 0);
        make_wait(x, ops[i], streams[i % STREAMS]);
        stream_copy(streams[i % STREAMS], copy + i * BYTES, to + i * BYTES, BYTES);
    }
    for (int i = 0; i < 2 * STREAMS; i++)
        assert_int_equal(outcome(x, ops[i]), 0);
    for (int i = 0; i < STREAMS; i++)
        stream_close(streams[i]);
    copies_take(0);
    device_expect(x->d, copy, NEW, 2 * STREAMS * BYTES);
    device_drop(x->d, to);
    device_drop(x->d, copy);
}

static void waiting_streams_block_no_other_work(void **state)
{
    struct scene *x = scene_new(state);
    held(x);
    scene_end(x);
}

/* Nor may it block what CUDA does at a first use. */
static void a_stream_can_wait_for_a_first_use(void **state)
{
    struct scene *x = scene_new(state);
    struct tarn_client *own = x->w->client;
    x->w->client = world_client(x->w, "cuda_ipc");
    tarn_op op = submit_get(x, NULL, 0);
    make_wait(x, op, x->s);
    stream_copy(x->s, x->other, x->memory, BYTES);
    stream_settle(x->s);
    assert_int_equal(outcome(x, op), 0);
    device_expect(x->d, x->other, NEW, BYTES);
    tarn_close(x->w->client);
    x->w->client = own;
    scene_end(x);
}

static int start_alone(void **state)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    return start(state);
}

/* Some frameworks set CUDA_DEVICE_MAX_CONNECTIONS to 1. It applies to a whole process, so this test starts
 * one. */
static void waiting_streams_block_nothing_on_a_shared_channel(void **state)
{
    devices_need(1);
    struct world *w = *state;
    const char *argv[] = {self, "--one-channel", NULL};
    struct harness_process *p = harness_spawn(w->h, "one-channel", argv);
    int rc = harness_wait(p, 3 * HARNESS_TIMEOUT_MS);
    if (rc)
        fail_msg("%s%s", harness_stdout(p, NULL), harness_log(p));
    harness_passed(w->h);
}

#define TEST(_f) cmocka_unit_test_setup_teardown(_f, start, stop)

int main(int argc, char **argv)
{
    self = argv[0];
    const struct CMUnitTest one_channel[] = {
        cmocka_unit_test_setup_teardown(waiting_streams_block_no_other_work, start_alone, stop),
    };
    if (argc == 2 && strcmp(argv[1], "--one-channel") == 0)
        return cmocka_run_group_tests_name("one channel", one_channel, NULL, NULL);
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        TEST(a_put_waits_for_its_event),
        TEST(a_get_waits_for_its_event),
        TEST(blocking_calls_wait_for_their_events),
        TEST(reserving_for_a_session_waits_for_nothing),
        TEST(at_the_deadline_an_operation_ends_without_its_event),
        TEST(canceled_operations_do_not_wait_on),
        TEST(operations_that_wait_for_events_delay_no_others),
        TEST(a_failed_event_fails_only_its_own_operation),
        TEST(memory_freed_during_the_wait_is_not_touched),
        TEST(a_stream_waits_for_a_get),
        TEST(a_stream_waits_for_a_large_get),
        TEST(a_wait_first_waits_for_the_event_of_its_get),
        TEST(a_wait_ends_when_its_operation_fails),
        TEST(waits_and_cancels_cross),
        TEST(a_wait_ends_at_the_deadline_during_a_slow_cuda_call),
        TEST(without_gpu_copies_a_stream_waits_for_the_completion),
        TEST(a_stream_reads_the_bytes_that_the_completion_reports),
        TEST(a_copy_found_stale_behind_a_stream_is_not_repeated),
        TEST(a_stream_waits_for_all_items),
        TEST(a_stream_waits_for_no_complete_or_unknown_operation),
        TEST(closing_the_client_releases_its_streams),
        TEST(waiting_streams_block_no_other_work),
        TEST(waiting_streams_block_nothing_on_a_shared_channel),
        TEST(a_stream_can_wait_for_a_first_use),
    };
    return cmocka_run_group_tests_name("gpu streams", tests, NULL, NULL);
}
