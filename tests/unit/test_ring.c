/* SPDX-License-Identifier: Apache-2.0 */
/* The command ring, with threads that play the GPU. RING_SEED repeats a random order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "client/gpu/ring.h"
#include "transport/cuda/cuda.h"

enum { ROWS = 100, RANGES = 7 };
#define LONG_NS (30 * TARN_NS_PER_S)
#define SHORT_NS TARN_NS_PER_MS

#define MANY 300000ull

static struct tarn_ring_consumer *ring_of(uint32_t size)
{
    const struct tarn_ring_options o = {.size = size, .rows = ROWS, .ranges = RANGES};
    struct tarn_ring_consumer *r = NULL;
    assert_int_equal(tarn_ring_new(&o, &r), 0);
    return r;
}

static struct tarn_ring_producer open_ring(const struct tarn_ring_consumer *r)
{
    struct tarn_ring_producer p;
    assert_int_equal(tarn_dev_ring_open(&p, tarn_ring_shared(r)), 0);
    return p;
}

static const struct tarn_ring_command quiet = {.op = TARN_RING_QUIET};

static uint64_t push(struct tarn_ring_producer *p, const struct tarn_ring_command *c)
{
    uint64_t number = UINT64_MAX;
    assert_int_equal(tarn_dev_ring_push(p, c, LONG_NS, &number), 0);
    return number;
}

static uint64_t take(struct tarn_ring_consumer *r)
{
    struct tarn_ring_command c;
    uint64_t number = UINT64_MAX;
    assert_int_equal(tarn_ring_take(r, &c, &number), 0);
    return number;
}

static void assert_nothing_to_take(struct tarn_ring_consumer *r)
{
    struct tarn_ring_command c;
    uint64_t number;
    assert_int_equal(tarn_ring_take(r, &c, &number), TARN_E_AGAIN);
}

static void assert_status(const struct tarn_ring_producer *p, uint64_t number, int expected)
{
    int status = 1;
    assert_int_equal(tarn_dev_ring_wait(p, number, LONG_NS, &status), 0);
    assert_int_equal(status, expected);
}

/* --- many commands ------------------------------------------------------------------------------ */

/* Everything in a command follows from its number. */
static struct tarn_ring_command command_of(uint64_t n)
{
    uint64_t x = (n + 1) * 0x9e3779b97f4a7c15ull;
    switch (n % 4) {
    case 0:
        return (struct tarn_ring_command){.op = TARN_RING_GET,
                                          .bytes = 1 + (uint32_t)x % TARN_RING_BYTES_MAX,
                                          .address = 1 + (x >> 16),
                                          .index = (uint32_t)(n % ROWS),
                                          .offset = (uint32_t)(x >> 32)};
    case 1:
        return (struct tarn_ring_command){.op = TARN_RING_WRITE,
                                          .bytes = 1 + (uint32_t)x % TARN_RING_BYTES_MAX,
                                          .address = 1 + (x >> 16),
                                          .index = (uint32_t)(n % RANGES),
                                          .offset = (uint32_t)(x >> 32),
                                          .notify = (uint32_t)n};
    case 2:
        return (struct tarn_ring_command){.op = TARN_RING_REFRESH, .index = (uint32_t)(n % ROWS)};
    default:
        return quiet;
    }
}

static bool same(const struct tarn_ring_command *a, const struct tarn_ring_command *b)
{
    return a->op == b->op && a->bytes == b->bytes && a->address == b->address && a->index == b->index &&
           a->offset == b->offset && a->notify == b->notify;
}

static int status_of(uint64_t n)
{
    return n % 5 == 0 ? TARN_E_STALE : 0;
}

/* What a GPU would do: pushes `many`, reads each status before its slot is used again. `brought[n % size]` is
 * where command n brings its number, in plain memory. */
struct play {
    struct tarn_ring ring;
    const uint64_t *brought;
    uint64_t many, wrong, kernels;
    int rc;
};

static int collect(struct play *g, const struct tarn_ring_producer *p, uint64_t number)
{
    int status, rc = tarn_dev_ring_wait(p, number, LONG_NS, &status);
    tarn_dev_fence();
    g->wrong += rc == 0 && (status != status_of(number) || g->brought[number % g->ring.size] != number);
    return rc;
}

static int play_kernel(struct play *g, uint64_t first, uint64_t end)
{
    struct tarn_ring_producer p;
    uint64_t number, size = g->ring.size;
    int rc = tarn_dev_ring_open(&p, &g->ring);
    for (uint64_t n = first; rc == 0 && n < end; n++) {
        const struct tarn_ring_command c = command_of(n);
        if (n >= size)
            rc = collect(g, &p, n - size);
        if (rc == 0)
            rc = tarn_dev_ring_push(&p, &c, LONG_NS, &number);
        g->wrong += rc == 0 && number != n;
    }
    for (uint64_t n = end > size ? end - size : 0; rc == 0 && end == g->many && n < end; n++)
        rc = collect(g, &p, n);
    if (rc == 0 && end == g->many)
        rc = tarn_dev_ring_wait_all(&p, LONG_NS);
    tarn_dev_ring_close(&p);
    return rc;
}

static void *play_gpu(void *arg)
{
    struct play *g = arg;
    for (uint64_t k = 0; g->rc == 0 && k < g->kernels; k++)
        g->rc = play_kernel(g, g->many * k / g->kernels, g->many * (k + 1) / g->kernels);
    return NULL;
}

static uint64_t random_of(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Those under way, in no order. */
struct under_way {
    uint64_t *number;
    uint32_t n;
};

static bool complete_any(struct tarn_ring_consumer *r, struct under_way *u, uint64_t *brought, uint64_t *seed)
{
    uint32_t i = (uint32_t)(random_of(seed) % u->n);
    uint64_t number = u->number[i];
    u->number[i] = u->number[--u->n];
    brought[number % tarn_ring_shared(r)->size] = number;
    return tarn_ring_complete(r, number, status_of(number)) == 0 && tarn_ring_under_way(r) == u->n;
}

/* Takes a run of commands, then completes some of those under way, in a random order. Returns what is wrong.
 */
static const char *consume(struct tarn_ring_consumer *r, struct under_way *u, uint64_t many,
                           uint64_t *brought, uint64_t *seed)
{
    uint32_t size = tarn_ring_shared(r)->size;
    uint64_t next = 0, number, seen_ns = tarn_now_ns();
    struct tarn_ring_command c;
    while (next < many || u->n > 0) {
        int rc = tarn_ring_take(r, &c, &number);
        if (rc == 0) {
            const struct tarn_ring_command expected = command_of(next);
            if (number != next++ || !same(&c, &expected) || u->n == size)
                return "a command is not the next one";
            u->number[u->n++] = number;
        } else if (rc != TARN_E_AGAIN) {
            return tarn_last_error();
        }
        for (uint64_t k = u->n == size || rc != 0 ? 1 + random_of(seed) % size : 0; k > 0 && u->n > 0; k--)
            if (!complete_any(r, u, brought, seed))
                return "a command does not complete";
        if (rc == 0) {
            seen_ns = tarn_now_ns();
            continue;
        }
        if (tarn_now_ns() - seen_ns > LONG_NS)
            return "commands do not come";
        sched_yield();
    }
    return NULL;
}

static uint64_t seed_of_test(void)
{
    const char *text = tarn_env_raw("RING_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : tarn_now_ns() | 1;
    print_message("RING_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static void run_many(uint32_t size, uint64_t many, uint64_t kernels)
{
    uint64_t seed = seed_of_test();
    struct tarn_ring_consumer *r = ring_of(size);
    uint64_t *brought = calloc(size, sizeof *brought);
    struct under_way u = {.number = calloc(size, sizeof *u.number)};
    struct play g = {.ring = *tarn_ring_shared(r), .brought = brought, .many = many, .kernels = kernels};
    pthread_t gpu;
    assert_int_equal(pthread_create(&gpu, NULL, play_gpu, &g), 0);
    const char *wrong = consume(r, &u, many, brought, &seed);
    if (wrong)
        tarn_ring_abort(r);
    pthread_join(gpu, NULL);
    if (wrong)
        fail_msg("%s", wrong);
    assert_int_equal(g.rc, 0);
    assert_int_equal(g.wrong, 0);
    assert_nothing_to_take(r);
    free(u.number);
    free(brought);
    tarn_ring_free(r);
}

static void each_command_is_seen_once(void **state)
{
    (void)state;
    run_many(64, MANY / 10, 1);
    run_many(1024, MANY, 1);
}

static void the_smallest_ring_wraps(void **state)
{
    (void)state;
    run_many(2, MANY / 100, 1);
}

static void kernels_follow_one_another(void **state)
{
    (void)state;
    run_many(16, MANY / 10, 1000);
}

/* --- full, empty, order ------------------------------------------------------------------------- */

static void an_empty_ring_gives_nothing(void **state)
{
    (void)state;
    struct tarn_ring_consumer *r = ring_of(4);
    struct tarn_ring_producer p = open_ring(r);
    assert_nothing_to_take(r);
    assert_int_equal(tarn_dev_ring_wait_all(&p, 0), 0);
    push(&p, &quiet);
    assert_int_equal(take(r), 0);
    assert_nothing_to_take(r);
    tarn_ring_free(r);
}

static void a_full_ring_has_room_when_its_oldest_completes(void **state)
{
    (void)state;
    struct tarn_ring_consumer *r = ring_of(4);
    struct tarn_ring_producer p = open_ring(r);
    uint64_t number = 77;
    for (uint64_t n = 0; n < 4; n++)
        assert_int_equal(push(&p, &quiet), n);
    for (uint64_t n = 0; n < 4; n++)
        assert_int_equal(take(r), n);
    assert_int_equal(tarn_ring_complete(r, 2, 0), 0);
    assert_int_equal(tarn_ring_complete(r, 1, TARN_E_STALE), 0);
    assert_int_equal(tarn_dev_ring_push(&p, &quiet, SHORT_NS, &number), TARN_E_TIMEOUT);
    assert_int_equal(number, 77);
    assert_int_equal(*tarn_ring_shared(r)->done, 0);
    assert_status(&p, 2, 0);
    assert_int_equal(tarn_ring_complete(r, 0, 0), 0);
    assert_int_equal(*tarn_ring_shared(r)->done, 3);
    assert_int_equal(push(&p, &quiet), 4);
    assert_status(&p, 1, TARN_E_STALE);
    assert_int_equal(tarn_dev_ring_wait_all(&p, SHORT_NS), TARN_E_TIMEOUT);
    assert_int_equal(tarn_ring_complete(r, 3, 0), 0);
    assert_int_equal(take(r), 4);
    assert_int_equal(tarn_ring_complete(r, 4, 0), 0);
    assert_int_equal(tarn_dev_ring_wait_all(&p, LONG_NS), 0);
    tarn_ring_free(r);
}

static void a_status_is_kept_until_its_slot_is_used_again(void **state)
{
    (void)state;
    struct tarn_ring_consumer *r = ring_of(2);
    struct tarn_ring_producer p = open_ring(r);
    int status = 77;
    assert_int_equal(tarn_dev_ring_wait(&p, 0, LONG_NS, &status), TARN_E_INVALID);
    for (uint64_t n = 0; n < 3; n++) {
        push(&p, &quiet);
        assert_int_equal(tarn_ring_complete(r, take(r), -(int)n), 0);
    }
    assert_int_equal(tarn_dev_ring_wait(&p, 0, LONG_NS, &status), TARN_E_INVALID);
    assert_int_equal(tarn_dev_ring_wait(&p, 3, LONG_NS, &status), TARN_E_INVALID);
    assert_int_equal(status, 77);
    assert_status(&p, 1, -1);
    assert_status(&p, 2, -2);
    tarn_ring_free(r);
}

static void a_status_of_the_command_before_is_not_taken_for_the_next(void **state)
{
    (void)state;
    struct tarn_ring_consumer *r = ring_of(2);
    struct tarn_ring_producer p = open_ring(r);
    int status = 77;
    for (uint64_t n = 0; n < 2; n++) {
        push(&p, &quiet);
        assert_int_equal(tarn_ring_complete(r, take(r), 0), 0);
    }
    push(&p, &quiet);
    assert_int_equal(tarn_dev_ring_wait(&p, 2, SHORT_NS, &status), TARN_E_TIMEOUT);
    assert_int_equal(status, 77);
    tarn_ring_free(r);
}

static void stamps_are_never_zero_nor_those_of_the_lap_before(void **state)
{
    (void)state;
    const uint64_t at[] = {0, 1, 0x7fffffff, 0x80000000ull, 0xffffffffull, 0x100000000ull, UINT64_MAX};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        assert_int_not_equal(tarn_ring_stamp(at[i]), 0);
        for (uint64_t size = 2; size <= TARN_RING_SIZE_MAX; size *= 2)
            assert_int_not_equal(tarn_ring_stamp(at[i]), tarn_ring_stamp(at[i] - size));
    }
}

/* --- wrong commands ----------------------------------------------------------------------------- */

/* The command gets INVALID as its status, and the ring goes on. */
static void assert_refused(struct tarn_ring_consumer *r, struct tarn_ring_producer *p,
                           const struct tarn_ring_command *wrong, const char *sentence)
{
    struct tarn_ring_command c;
    uint64_t number = push(p, wrong), next = push(p, &quiet);
    assert_int_equal(tarn_ring_take(r, &c, &number), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), sentence));
    assert_status(p, number, TARN_E_INVALID);
    assert_int_equal(take(r), next);
    assert_int_equal(tarn_ring_complete(r, next, 0), 0);
    assert_int_equal(tarn_dev_ring_wait_all(p, LONG_NS), 0);
}

static void wrong_commands_fail_alone(void **state)
{
    (void)state;
    enum { GET = TARN_RING_GET, WRITE, REFRESH, QUIET };
    static const struct {
        struct tarn_ring_command c;
        const char *sentence;
    } wrong[] = {
        {{.op = GET, .bytes = 1, .address = 1, .index = ROWS}, "GET names number 100: there are 100"},
        {{.op = GET, .bytes = 1, .address = 1, .index = UINT32_MAX}, "GET names number 4294967295"},
        {{.op = GET, .address = 1}, "GET of 0 bytes"},
        {{.op = GET, .bytes = 1}, "no memory is there"},
        {{.op = GET, .bytes = 2, .address = UINT64_MAX}, "no memory is there"},
        {{.op = GET, .bytes = 1, .address = 1, .notify = 1}, "only WRITE"},
        {{.op = WRITE, .bytes = 1, .address = 1, .index = RANGES}, "WRITE names number 7: there are 7"},
        {{.op = WRITE, .address = 1}, "WRITE of 0 bytes"},
        {{.op = REFRESH, .index = ROWS}, "REFRESH names number 100"},
        {{.op = REFRESH, .bytes = 1}, "REFRESH moves nothing"},
        {{.op = QUIET, .address = 1}, "QUIET moves nothing"},
        {{.op = QUIET, .offset = 1}, "QUIET moves nothing"},
        {{.op = QUIET, .index = 1}, "QUIET names number 1"},
    };
    struct tarn_ring_consumer *r = ring_of(8);
    struct tarn_ring_producer p = open_ring(r);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_refused(r, &p, &wrong[i].c, wrong[i].sentence);
    tarn_ring_free(r);
}

static void unknown_opcodes_fail_alone(void **state)
{
    (void)state;
    struct tarn_ring_consumer *r = ring_of(8);
    struct tarn_ring_producer p = open_ring(r);
    for (uint32_t op = 0; op < TARN_RING_OPS; op++) {
        const struct tarn_ring_command c = {.op = op, .bytes = 1, .address = 1};
        if (op == 0 || op > TARN_RING_QUIET)
            assert_refused(r, &p, &c, "there is no such command");
    }
    tarn_ring_free(r);
}

static void what_does_not_fit_is_not_pushed(void **state)
{
    (void)state;
    struct tarn_ring_consumer *r = ring_of(8);
    struct tarn_ring_producer p = open_ring(r);
    uint64_t number = 77;
    struct tarn_ring_command c = {.op = TARN_RING_GET, .bytes = TARN_RING_BYTES_MAX + 1, .address = 1};
    assert_int_equal(tarn_dev_ring_push(&p, &c, LONG_NS, &number), TARN_E_INVALID);
    c = (struct tarn_ring_command){.op = TARN_RING_OPS + TARN_RING_QUIET};
    assert_int_equal(tarn_dev_ring_push(&p, &c, LONG_NS, &number), TARN_E_INVALID);
    assert_int_equal(number, 77);
    assert_nothing_to_take(r);
    tarn_ring_free(r);
}

static bool valid(const struct tarn_ring_command *c)
{
    bool moves = c->op == TARN_RING_GET || c->op == TARN_RING_WRITE;
    uint32_t limit = c->op == TARN_RING_WRITE ? RANGES : c->op == TARN_RING_QUIET ? 1 : ROWS;
    return c->op >= TARN_RING_GET && c->op <= TARN_RING_QUIET && c->index < limit &&
           (moves ? c->bytes > 0 && c->address > 0 && c->address + c->bytes >= c->address
                  : !c->bytes && !c->address && !c->offset) &&
           (c->notify == 0 || c->op == TARN_RING_WRITE);
}

/* What a kernel may write by mistake, with stamps that are right: each is a command or fails alone. */
static void random_commands_are_valid_or_refused(void **state)
{
    (void)state;
    uint64_t seed = seed_of_test(), taken = 0, many = 200000;
    struct tarn_ring_consumer *r = ring_of(8);
    struct tarn_ring_producer p = open_ring(r);
    for (uint64_t n = 0; n < many; n++) {
        /* few bits, so that some are valid */
        struct tarn_ring_command c, in = {.op = (uint32_t)(random_of(&seed) % 8)};
        uint64_t x = random_of(&seed), number = UINT64_MAX;
        in.bytes = x & 1 ? (uint32_t)(random_of(&seed) % TARN_RING_BYTES_MAX) : 0;
        in.address = x & 2 ? random_of(&seed) | random_of(&seed) : 0;
        in.index = x & 4 ? (uint32_t)random_of(&seed) % (2 * ROWS) : 0;
        in.offset = x & 8 ? (uint32_t)random_of(&seed) : 0;
        in.notify = x & 16 ? (uint32_t)random_of(&seed) : 0;
        push(&p, &in);
        int rc = tarn_ring_take(r, &c, &number);
        assert_int_equal(rc, valid(&in) ? 0 : TARN_E_INVALID);
        if (rc == 0) {
            assert_true(number == n && same(&c, &in));
            assert_int_equal(tarn_ring_complete(r, n, 0), 0);
            taken++;
        }
        assert_status(&p, n, rc);
    }
    assert_in_range(taken, many / 100, many / 2);
    tarn_ring_free(r);
}

/* --- foreign stamps ----------------------------------------------------------------------------- */

/* Nothing is taken any more, and every wait ends. */
static void assert_broken(struct tarn_ring_consumer *r, const struct tarn_ring_producer *pushed)
{
    struct tarn_ring_producer p = *pushed;
    struct tarn_ring_command c;
    uint64_t number;
    int status;
    assert_int_equal(tarn_ring_take(r, &c, &number), TARN_E_PROTOCOL);
    assert_non_null(strstr(tarn_last_error(), "write to the ring only by"));
    tarn_ring_abort(r); /* the first reason stays */
    assert_int_equal(tarn_ring_take(r, &c, &number), TARN_E_PROTOCOL);
    assert_non_null(strstr(tarn_last_error(), "what is no command"));
    assert_int_equal(tarn_dev_ring_wait(&p, p.tail - 1, LONG_NS, &status), TARN_E_PROTOCOL);
    assert_int_equal(tarn_dev_ring_wait_all(&p, LONG_NS), TARN_E_PROTOCOL);
}

/* After `taken` commands the next one's half has the stamp of another. */
static void foreign_half(uint32_t half, uint64_t taken, uint64_t stamped)
{
    struct tarn_ring_consumer *r = ring_of(4);
    struct tarn_ring_producer p = open_ring(r);
    for (uint64_t n = 0; n < taken; n++) {
        push(&p, &quiet);
        assert_int_equal(tarn_ring_complete(r, take(r), 0), 0);
    }
    push(&p, &quiet);
    const struct tarn_half foreign = {0, (uint64_t)tarn_ring_stamp(stamped) << 32};
    tarn_dev_half_write(&tarn_ring_shared(r)->slots[2 * (taken % 4) + half], foreign, 0);
    assert_broken(r, &p);
    tarn_ring_free(r);
}

static void a_foreign_stamp_breaks_the_ring(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 2; half++) {
        foreign_half(half, 0, 1);
        foreign_half(half, 0, 4);          /* the next lap's */
        foreign_half(half, 0, 0x7ffffffc); /* the lap's before the first */
        foreign_half(half, 4, 8);
        foreign_half(half, 4, 1);
    }
}

/* Pushed without room, over commands under way: they are not read before there is room. */
static void what_comes_without_room_waits(void **state)
{
    (void)state;
    struct tarn_ring_consumer *r = ring_of(2);
    struct tarn_ring_producer p = open_ring(r);
    for (uint64_t n = 0; n < 2; n++) {
        push(&p, &quiet);
        assert_int_equal(take(r), n);
    }
    for (uint64_t n = 2; n < 4; n++)
        tarn_ring_write(tarn_ring_shared(r), n, &quiet);
    assert_nothing_to_take(r);
    assert_int_equal(tarn_ring_complete(r, 1, 0), 0);
    assert_nothing_to_take(r);
    assert_int_equal(tarn_ring_complete(r, 0, 0), 0);
    assert_int_equal(take(r), 2);
    tarn_ring_free(r);
}

/* One half alone is no command. */
static void half_a_command_waits_for_the_other(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 2; half++) {
        struct tarn_ring_consumer *r = ring_of(2);
        struct tarn_ring_producer p = open_ring(r);
        struct tarn_half *slot = tarn_ring_shared(r)->slots;
        push(&p, &quiet);
        const struct tarn_half whole = slot[half];
        tarn_dev_half_write(&slot[half], (struct tarn_half){0, 0}, 0);
        assert_nothing_to_take(r);
        tarn_dev_half_write(&slot[half], whole, 0);
        assert_int_equal(take(r), 0);
        tarn_ring_free(r);
    }
}

/* --- the consumer's own mistakes ---------------------------------------------------------------- */

static void only_what_is_under_way_completes(void **state)
{
    (void)state;
    struct tarn_ring_consumer *r = ring_of(2);
    struct tarn_ring_producer p = open_ring(r);
    assert_int_equal(tarn_ring_complete(r, 0, 0), TARN_E_INVALID);
    push(&p, &quiet);
    push(&p, &quiet);
    assert_int_equal(tarn_ring_complete(r, 0, 0), TARN_E_INVALID);
    take(r);
    take(r);
    assert_int_equal(tarn_ring_complete(r, 1, 0), 0);
    assert_int_equal(tarn_ring_complete(r, 1, 0), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "command 1 is not under way"));
    assert_int_equal(tarn_ring_complete(r, 0, 0), 0);
    assert_int_equal(tarn_ring_complete(r, 0, 0), TARN_E_INVALID);
    assert_int_equal(tarn_ring_complete(r, UINT64_MAX, 0), TARN_E_INVALID);
    assert_int_equal(tarn_ring_under_way(r), 0);
    tarn_ring_free(r);
}

static void sizes_are_powers_of_two(void **state)
{
    (void)state;
    const uint32_t wrong[] = {0, 1, 3, 100, TARN_RING_SIZE_MAX + 1, 2 * TARN_RING_SIZE_MAX, 0x80000000};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct tarn_ring_options o = {.size = wrong[i]};
        struct tarn_ring_consumer *r = NULL;
        assert_int_equal(tarn_ring_new(&o, &r), TARN_E_INVALID);
        assert_null(r);
        assert_non_null(strstr(tarn_last_error(), "give a power of two"));
    }
    tarn_ring_free(ring_of(TARN_RING_SIZE_MAX));
    tarn_ring_free(NULL);
}

static void a_pinned_ring_needs_a_gpu(void **state)
{
    (void)state;
    const struct tarn_ring_options o = {.size = 64, .pinned = true};
    struct tarn_ring_consumer *r = NULL;
    int gpus, no_gpu = tarn_cuda_count(&gpus);
    int rc = tarn_ring_new(&o, &r);
    if (no_gpu) {
        assert_true(rc < 0);
        assert_null(r);
        return;
    }
    struct tarn_cuda_memory m;
    assert_int_equal(rc, 0);
    tarn_cuda_memory_of(tarn_ring_shared(r)->slots, &m);
    assert_int_equal(m.kind, TARN_CUDA_PINNED);
    tarn_ring_free(r);
}

/* --- the producer's end ------------------------------------------------------------------------- */

static void a_ring_that_was_not_closed_is_not_opened(void **state)
{
    (void)state;
    struct tarn_ring_consumer *r = ring_of(4);
    struct tarn_ring_producer p = open_ring(r), next;
    push(&p, &quiet);
    assert_int_equal(tarn_ring_complete(r, take(r), 0), 0);
    assert_int_equal(tarn_dev_ring_open(&next, tarn_ring_shared(r)), TARN_E_INVALID);
    tarn_dev_ring_close(&p);
    assert_int_equal(tarn_dev_ring_open(&next, tarn_ring_shared(r)), 0);
    assert_int_equal(push(&next, &quiet), 1);
    tarn_ring_free(r);
}

static void waits_end_in_time(void **state)
{
    (void)state;
    struct tarn_ring_consumer *r = ring_of(2);
    struct tarn_ring_producer p = open_ring(r);
    uint64_t number, start = tarn_now_ns();
    int status;
    push(&p, &quiet);
    push(&p, &quiet);
    assert_int_equal(tarn_dev_ring_wait(&p, 1, 20 * SHORT_NS, &status), TARN_E_TIMEOUT);
    assert_true(tarn_now_ns() - start >= 20 * SHORT_NS);
    start = tarn_now_ns();
    assert_int_equal(tarn_dev_ring_push(&p, &quiet, 20 * SHORT_NS, &number), TARN_E_TIMEOUT);
    assert_true(tarn_now_ns() - start >= 20 * SHORT_NS);
    assert_int_equal(tarn_dev_ring_wait_all(&p, 0), TARN_E_TIMEOUT);
    tarn_ring_free(r);
}

enum wait_for { ROOM, STATUS, ALL };

struct waiter {
    struct tarn_ring_producer p;
    enum wait_for what;
    int rc;
};

static void *wait_in_kernel(void *arg)
{
    struct waiter *w = arg;
    uint64_t number;
    int status;
    w->rc = w->what == ROOM     ? tarn_dev_ring_push(&w->p, &quiet, LONG_NS, &number)
            : w->what == STATUS ? tarn_dev_ring_wait(&w->p, 1, LONG_NS, &status)
                                : tarn_dev_ring_wait_all(&w->p, LONG_NS);
    return NULL;
}

static void an_abort_ends_waits(void **state)
{
    (void)state;
    for (enum wait_for what = ROOM; what <= ALL; what++) {
        struct tarn_ring_consumer *r = ring_of(2);
        struct waiter w = {.p = open_ring(r), .what = what, .rc = 1};
        struct tarn_ring_command c;
        uint64_t number, start = tarn_now_ns();
        pthread_t kernel;
        push(&w.p, &quiet);
        push(&w.p, &quiet);
        assert_int_equal(pthread_create(&kernel, NULL, wait_in_kernel, &w), 0);
        tarn_ring_abort(r);
        pthread_join(kernel, NULL);
        assert_int_equal(w.rc, TARN_E_CANCELED);
        assert_true(tarn_now_ns() - start < LONG_NS);
        assert_int_equal(tarn_ring_take(r, &c, &number), TARN_E_CANCELED);
        assert_non_null(strstr(tarn_last_error(), "aborted"));
        tarn_ring_free(r);
    }
}

/* What had completed before an abort keeps its status. */
static void an_abort_leaves_statuses(void **state)
{
    (void)state;
    struct tarn_ring_consumer *r = ring_of(2);
    struct tarn_ring_producer p = open_ring(r);
    push(&p, &quiet);
    push(&p, &quiet);
    take(r);
    take(r);
    assert_int_equal(tarn_ring_complete(r, 0, TARN_E_STALE), 0);
    tarn_ring_abort(r);
    assert_status(&p, 0, TARN_E_STALE);
    assert_int_equal(tarn_ring_complete(r, 1, 0), 0); /* the proxy ends its works */
    assert_status(&p, 1, 0);
    tarn_ring_free(r);
}

/* Ends this program if a wait does not end. */
static int limit_time(void **state)
{
    (void)state;
    alarm(90);
    return 0;
}

#define TEST(name_) cmocka_unit_test_setup(name_, limit_time)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_command_is_seen_once),
        TEST(the_smallest_ring_wraps),
        TEST(kernels_follow_one_another),
        TEST(an_empty_ring_gives_nothing),
        TEST(a_full_ring_has_room_when_its_oldest_completes),
        TEST(a_status_is_kept_until_its_slot_is_used_again),
        TEST(a_status_of_the_command_before_is_not_taken_for_the_next),
        TEST(stamps_are_never_zero_nor_those_of_the_lap_before),
        TEST(wrong_commands_fail_alone),
        TEST(unknown_opcodes_fail_alone),
        TEST(random_commands_are_valid_or_refused),
        TEST(what_does_not_fit_is_not_pushed),
        TEST(a_foreign_stamp_breaks_the_ring),
        TEST(what_comes_without_room_waits),
        TEST(half_a_command_waits_for_the_other),
        TEST(only_what_is_under_way_completes),
        TEST(sizes_are_powers_of_two),
        TEST(a_pinned_ring_needs_a_gpu),
        TEST(a_ring_that_was_not_closed_is_not_opened),
        TEST(waits_end_in_time),
        TEST(an_abort_ends_waits),
        TEST(an_abort_leaves_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
