/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests transport/cuda/cuda.h, for whichever implementation is linked: what copies move, the order in which
 * marks pass, and what handles carry to another process. Tests of behaviour that only the stand-in shows
 * (when a copy runs, what follows a fault) are skipped with other implementations.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "tests/device.h"
#include "tests/harness.h"
#include "tests/standin/cuda_standin.h"

#define MIB (1u << 20)

static const char *self;

struct fixture {
    struct device *device;
    struct tarn_cuda_queue *queue;
    uint64_t seed;
};

static void must(int rc)
{
    if (rc)
        fail_msg("%s: %s", tarn_error_name(rc), tarn_last_error());
}

static int start(void **state)
{
    static struct fixture f;
    f = (struct fixture){.seed = tarn_random64()};
    *state = &f;
    if (devices_there() == 0)
        return 0; /* each test reports it */
    print_message("           seed %llu\n", (unsigned long long)f.seed);
    f.device = device_open(0);
    must(tarn_cuda_queue_open(0, &f.queue));
    return 0;
}

static int stop(void **state)
{
    struct fixture *f = *state;
    if (tarn_standin_fail) {
        tarn_standin_fail(NULL);
        tarn_standin_delay(0);
    }
    tarn_cuda_queue_close(f->queue);
    if (f->device)
        device_close(f->device);
    return 0;
}

static struct fixture *need(void **state)
{
    devices_need(1);
    return *state;
}

static struct fixture *need_standin(void **state)
{
    if (!tarn_standin_fail)
        harness_skip("standin", "only a stand-in for GPUs can be told to do this: make check-standin");
    return *state;
}

static uint64_t rnd(struct fixture *f, uint64_t below)
{
    f->seed = f->seed * 6364136223846793005ull + 1442695040888963407ull;
    return (f->seed >> 33) % below;
}

static uint8_t *random_bytes(struct fixture *f, size_t bytes)
{
    uint8_t *p = malloc(bytes + 8);
    assert_non_null(p);
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t x = (uint32_t)rnd(f, UINT32_MAX);
        memcpy(p + i, &x, sizeof(x));
    }
    return p;
}

/* --- bytes -------------------------------------------------------------------------------------- */

enum side { ON_DEVICE, IN_PINNED };

/* Two ranges on either side, the source's bytes, and the expected bytes of the destination. */
struct ranges {
    struct fixture *f;
    enum side from_side, to_side;
    size_t bytes;
    uint8_t *from, *to;       /* addresses passed to copies */
    uint8_t *source, *wanted; /* in host memory */
};

static void ranges_new(struct ranges *r, struct fixture *f, enum side from, enum side to, size_t bytes)
{
    *r = (struct ranges){.f = f, .from_side = from, .to_side = to, .bytes = bytes};
    r->source = random_bytes(f, bytes);
    r->wanted = malloc(bytes);
    assert_non_null(r->wanted);
    memset(r->wanted, 0xee, bytes);
    r->from = from == ON_DEVICE ? device_alloc(f->device, bytes) : pinned_new(bytes);
    r->to = to == ON_DEVICE ? device_alloc(f->device, bytes) : pinned_new(bytes);
    device_write(f->device, r->from, r->source, bytes);
    device_write(f->device, r->to, r->wanted, bytes);
}

static struct tarn_cuda_piece piece_of(struct ranges *r, size_t from, size_t to, size_t bytes)
{
    assert_true(from + bytes <= r->bytes && to + bytes <= r->bytes);
    memcpy(r->wanted + to, r->source + from, bytes);
    return (struct tarn_cuda_piece){r->from + from, r->to + to, bytes};
}

/* Checks every byte of the destination, also those around the copies. */
static void ranges_check(struct ranges *r)
{
    uint8_t *got = malloc(r->bytes);
    assert_non_null(got);
    device_read(r->f->device, got, r->to, r->bytes);
    for (size_t i = 0; i < r->bytes; i++)
        if (got[i] != r->wanted[i])
            fail_msg("byte %zu is %02x and ought to be %02x", i, got[i], r->wanted[i]);
    free(got);
}

static void ranges_free(struct ranges *r)
{
    if (r->from_side == ON_DEVICE)
        device_drop(r->f->device, r->from);
    else
        pinned_free(r->from, r->bytes);
    if (r->to_side == ON_DEVICE)
        device_drop(r->f->device, r->to);
    else
        pinned_free(r->to, r->bytes);
    free(r->source);
    free(r->wanted);
}

static const enum side sides[][2] = {{ON_DEVICE, ON_DEVICE}, {IN_PINNED, ON_DEVICE}, {ON_DEVICE, IN_PINNED}};

/* Sizes 0 to 80 at each of 16 alignments of source and destination. Each copy has its own 128 bytes. */
static void test_small_sizes_at_all_alignments(void **state)
{
    enum { SIZES = 81, N = SIZES * 256, APART = 128 };
    struct fixture *f = need(state);
    struct tarn_cuda_piece *pieces = calloc(N, sizeof(*pieces));
    assert_non_null(pieces);
    for (size_t s = 0; s < 3; s++) {
        struct ranges r;
        ranges_new(&r, f, sides[s][0], sides[s][1], (size_t)N * APART);
        for (size_t i = 0; i < N; i++)
            pieces[i] = piece_of(&r, i * APART + i % 16, i * APART + i / 16 % 16, i / 256);
        queue_copy(f->queue, pieces, N);
        ranges_check(&r);
        ranges_free(&r);
    }
    free(pieces);
}

/* Random sizes up to MiBs at random places, none overlapping: in one call, then a few alone. */
static void test_mixed_sizes(void **state)
{
    enum { TOTAL = 48 * MIB, N = 2000 };
    static const size_t edges[] = {1, 15, 16, 17, 4096, 8191, 8193, 65535, 65536, 65537, 131073};
    struct fixture *f = need(state);
    struct tarn_cuda_piece pieces[N];
    for (size_t s = 0; s < 3; s++) {
        struct ranges r;
        size_t n = 0;
        ranges_new(&r, f, sides[s][0], sides[s][1], TOTAL);
        for (size_t at = 0; n < N; n++) {
            size_t bytes = rnd(f, 3) ? 1 + rnd(f, 3000) : edges[rnd(f, 11)];
            bytes = n % 500 == 7 ? MIB + rnd(f, MIB) : bytes;
            at += rnd(f, 40);
            if (at + bytes > TOTAL)
                break;
            pieces[n] = piece_of(&r, rnd(f, TOTAL - bytes), at, bytes);
            at += bytes;
        }
        queue_copy(f->queue, pieces, n);
        ranges_check(&r);
        ranges_free(&r);
    }
}

/* Copies that use the copy engines: large ones among small ones, and a single one. */
static void test_large_sizes(void **state)
{
    struct fixture *f = need(state);
    struct ranges r;
    ranges_new(&r, f, ON_DEVICE, ON_DEVICE, 48 * MIB);
    struct tarn_cuda_piece pieces[] = {piece_of(&r, 5, 3, 100), piece_of(&r, 1000, 777, 17 * MIB + 13),
                                       piece_of(&r, 0, 18 * MIB, 16 * MIB), piece_of(&r, 99, 35 * MIB, 5000)};
    queue_copy(f->queue, pieces, 4);
    struct tarn_cuda_piece one = piece_of(&r, 40 * MIB, 36 * MIB + 1, 3 * MIB + 1);
    queue_copy(f->queue, &one, 1);
    ranges_check(&r);
    ranges_free(&r);
}

/* Rows of a paged layer: far apart on one side and packed on the other, both ways. */
static void test_strides(void **state)
{
    static const size_t rows[][2] = {{256, 4096}, {100, 171}, {16384, 32768}, {1, 3}, {12, 16}};
    struct fixture *f = need(state);
    for (size_t k = 0; k < 2 * sizeof(rows) / sizeof(*rows); k++) {
        size_t bytes = rows[k / 2][0], stride = rows[k / 2][1], count = 300;
        struct tarn_cuda_piece pieces[300];
        struct ranges r;
        ranges_new(&r, f, ON_DEVICE, ON_DEVICE, count * stride);
        for (size_t i = 0; i < count; i++)
            pieces[i] = k % 2 ? piece_of(&r, i * stride, i * bytes, bytes)
                              : piece_of(&r, i * bytes, i * stride, bytes);
        queue_copy(f->queue, pieces, count);
        ranges_check(&r);
        ranges_free(&r);
    }
}

/* More pieces than any queue can hold at once. */
static void test_more_pieces_than_there_is_room(void **state)
{
    enum { N = 100000, APART = 48 };
    struct fixture *f = need(state);
    struct tarn_cuda_piece *pieces = calloc(N, sizeof(*pieces));
    struct ranges r;
    assert_non_null(pieces);
    ranges_new(&r, f, ON_DEVICE, ON_DEVICE, (size_t)N * APART);
    for (size_t i = 0; i < N; i++)
        pieces[i] = piece_of(&r, (N - 1 - i) * APART, i * APART, 33);
    queue_copy(f->queue, pieces, N);
    ranges_check(&r);
    ranges_free(&r);
    free(pieces);
}

/* A launch divides its work by the mean size. Each mean size is tested at all alignments of both sides, and
 * one byte smaller and larger. */
static void test_all_alignments_at_each_mean_size(void **state)
{
    static const size_t means[] = {2000, 4096, 6000, 8192, 12288, 16384, 20000, 65536};
    enum { APART = 65536 + 64 };
    struct fixture *f = need(state);
    struct tarn_cuda_piece pieces[256];
    for (size_t k = 0; k < sizeof(means) / sizeof(*means); k++) {
        struct ranges r;
        ranges_new(&r, f, ON_DEVICE, ON_DEVICE, 256 * APART);
        for (size_t i = 0; i < 256; i++)
            pieces[i] =
                piece_of(&r, (255 - i) * APART + i % 16, i * APART + i / 16, means[k] - 1 + rnd(f, 3));
        queue_copy(f->queue, pieces, 256);
        ranges_check(&r);
        ranges_free(&r);
    }
}

/* --- lists -------------------------------------------------------------------------------------- */

/* Waits for room. Sometimes adds a mark, as callers have outstanding marks. */
static struct tarn_cuda_piece *list_of(struct fixture *f, size_t *room)
{
    uint64_t until = harness_now_ms() + DEVICE_TIMEOUT_MS, mark;
    struct tarn_cuda_piece *list;
    while (!(list = tarn_cuda_list(f->queue, room))) {
        assert_true(harness_now_ms() < until);
        if (tarn_cuda_mark(f->queue, &mark) == 0)
            queue_wait(f->queue, mark);
    }
    assert_true(*room > 0);
    return list;
}

/* Lists of 1 piece up to all the room, of mixed sizes. Some are abandoned unstarted, with other copies in
 * between. The total is several times a queue's capacity, so its ring wraps in the middle. */
static void test_lists_started_in_parts(void **state)
{
    enum { TOTAL = 40 * MIB, N = 150000 };
    struct fixture *f = need(state);
    struct ranges r;
    size_t at = 0, given = 0, room;
    ranges_new(&r, f, ON_DEVICE, ON_DEVICE, TOTAL);
    while (given < N && at + TARN_CUDA_PIECE_MAX < TOTAL) {
        struct tarn_cuda_piece *list = list_of(f, &room);
        size_t n = rnd(f, 3) ? room : 1 + rnd(f, room), i = 0;
        uint64_t bytes = 0;
        memset(list, 0xff, n * sizeof(*list));
        if (rnd(f, 4) == 0) {
            struct tarn_cuda_piece p[] = {piece_of(&r, rnd(f, MIB), at, 70),
                                          piece_of(&r, rnd(f, MIB), at + 70, 5)};
            queue_give(f->queue, p, 2);
            at += 75;
            list = list_of(f, &room);
            n = n < room ? n : room;
        }
        for (; i < n && at + TARN_CUDA_PIECE_MAX < TOTAL; i++) {
            size_t size = 1 + rnd(f, rnd(f, 2000) ? 200 : TARN_CUDA_PIECE_MAX);
            list[i] = piece_of(&r, rnd(f, TOTAL - size), at, size);
            at += size;
            bytes += size;
        }
        must(tarn_cuda_start(f->queue, i, bytes));
        given += i;
    }
    assert_true(given > 100000);
    queue_copy(f->queue, NULL, 0);
    ranges_check(&r);
    ranges_free(&r);
}

/* --- order -------------------------------------------------------------------------------------- */

/* Copies run in the order given: the last writer's bytes stay. */
static void test_copies_keep_their_order(void **state)
{
    struct fixture *f = need(state);
    struct ranges r;
    ranges_new(&r, f, ON_DEVICE, ON_DEVICE, 8 * MIB);
    for (size_t i = 0; i < 40; i++) {
        size_t bytes = i % 2 ? 3 * MIB : 50000;
        struct tarn_cuda_piece p[] = {piece_of(&r, i * 1000, 0, bytes), piece_of(&r, i, 4 * MIB, bytes)};
        queue_give(f->queue, p, 2);
    }
    queue_copy(f->queue, NULL, 0);
    ranges_check(&r);
    ranges_free(&r);
}

/* --- allocations that adjoin -------------------------------------------------------------------- */

/* Copies pieces across the border of two allocations; the border is `border` bytes into `both`. The pieces
 * are large or small, alone or with others. */
static void copy_across(struct fixture *f, uint8_t *both, size_t border, size_t bytes)
{
    uint8_t *want = random_bytes(f, bytes), *got = malloc(bytes), *near = device_alloc(f->device, bytes);
    size_t first = border - MIB - 3;
    assert_non_null(got);
    device_write(f->device, near, want, bytes);
    struct tarn_cuda_piece in[] = {{near, both, first}, {near + first, both + first, bytes - first}};
    device_set(f->device, both, 0, border); /* set up with pieces that stay on one side */
    device_set(f->device, both + border, 0, bytes - border);
    queue_copy(f->queue, &in[0], 1);
    queue_copy(f->queue, &in[1], 1);
    device_set(f->device, near, 0, bytes);
    struct tarn_cuda_piece out[] = {{both, near, border - 100}, /* then in a list */
                                    {both + border - 100, near + border - 100, 1000},
                                    {both + border + 900, near + border + 900, bytes - border - 900}};
    queue_copy(f->queue, out, 3);
    device_read(f->device, got, near, bytes);
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            fail_msg("byte %zu, %zd from the border, is %02x, not %02x", i, (ssize_t)(i - border), got[i],
                     want[i]);
    device_drop(f->device, near);
    free(want);
    free(got);
}

static void test_a_piece_lies_across_two_pinned_ranges(void **state)
{
    enum { HALF = 12 * MIB };
    struct fixture *f = need(state);
    uint8_t *both = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(both, MAP_FAILED);
    must(tarn_cuda_pin(both, HALF, true));
    must(tarn_cuda_pin(both + HALF, HALF, true));
    copy_across(f, both, HALF, 2 * HALF);
    tarn_cuda_unpin(both);
    tarn_cuda_unpin(both + HALF);
    munmap(both, 2 * HALF);
}

/* Allocates until one allocation begins where another ends. */
static void test_a_piece_lies_across_two_allocations(void **state)
{
    enum { HALF = 12 * MIB, TRIES = 32 };
    struct fixture *f = need(state);
    uint8_t *have[TRIES], *first = NULL;
    for (int i = 0; i < TRIES; i++)
        have[i] = device_alloc(f->device, HALF);
    for (int i = 0; !first && i < TRIES; i++)
        for (int k = 0; k < TRIES; k++)
            first = have[i] + HALF == have[k] ? have[i] : first;
    if (first)
        copy_across(f, first, HALF, 2 * HALF);
    for (int i = 0; i < TRIES; i++)
        device_drop(f->device, have[i]);
    if (!first)
        harness_skip("adjoining", "no two allocations adjoin");
}

/* --- marks -------------------------------------------------------------------------------------- */

static void test_marks_count_up_and_pass_in_order(void **state)
{
    enum { ROUNDS = 12, BYTES = 100000 };
    struct fixture *f = need(state);
    struct ranges r;
    uint64_t marks[ROUNDS], mark, last = 0;
    size_t taken;
    ranges_new(&r, f, ON_DEVICE, IN_PINNED, ROUNDS * BYTES);
    for (size_t i = 0; i < ROUNDS; i++) {
        struct tarn_cuda_piece p = piece_of(&r, (ROUNDS - 1 - i) * BYTES, i * BYTES, BYTES);
        must(tarn_cuda_copy(f->queue, &p, 1, &taken));
        must(tarn_cuda_mark(f->queue, &marks[i]));
        assert_int_equal(marks[i], i + 1);
    }
    for (size_t i = 0; i < ROUNDS; i++) {
        queue_wait(f->queue, marks[i]);
        assert_memory_equal(r.to + i * BYTES, r.wanted + i * BYTES, BYTES);
        for (size_t k = 0; k < i; k++)
            assert_int_equal(tarn_cuda_poll(f->queue, marks[k]), 0);
    }
    /* Only the last mark is waited for; it covers all before it. There are more marks than a queue can
     * hold. */
    for (int i = 0; i < 2000; i++) {
        int rc = tarn_cuda_mark(f->queue, &mark);
        if (rc == TARN_E_AGAIN)
            queue_wait(f->queue, last);
        else
            must(rc);
        last = rc ? last : mark;
    }
    queue_wait(f->queue, last);
    ranges_free(&r);
}

/* When close returns, no copy is under way: all bytes have arrived, and the memory is the caller's. */
static void test_close_waits_for_copies_under_way(void **state)
{
    struct fixture *f = need(state);
    for (int i = 0; i < 8; i++) {
        struct ranges r;
        size_t taken;
        ranges_new(&r, f, i % 2 ? ON_DEVICE : IN_PINNED, i % 2 ? IN_PINNED : ON_DEVICE, 12 * MIB);
        struct tarn_cuda_piece p[] = {piece_of(&r, 0, 1, 5 * MIB), piece_of(&r, 7 * MIB, 6 * MIB, 300),
                                      piece_of(&r, 7 * MIB, 8 * MIB, 3 * MIB)};
        struct tarn_cuda_queue *q;
        must(tarn_cuda_queue_open(0, &q));
        must(tarn_cuda_copy(q, p, 3, &taken));
        assert_int_equal(taken, 3);
        tarn_cuda_queue_close(q);
        ranges_check(&r);
        ranges_free(&r);
    }
}

/* --- memory ------------------------------------------------------------------------------------- */

static void test_the_kind_of_memory_is_found(void **state)
{
    struct fixture *f = need(state);
    struct tarn_cuda_memory m;
    uint8_t *there = device_alloc(f->device, 3 * MIB), *pinned = pinned_new(MIB);
    tarn_cuda_memory_of(there + 2 * MIB + 1, &m);
    assert_int_equal(m.kind, TARN_CUDA_DEVICE);
    assert_int_equal(m.device, 0);
    assert_true(m.begin == (uintptr_t)there && m.end >= (uintptr_t)there + 3 * MIB);
    tarn_cuda_memory_of(pinned + 100, &m);
    assert_int_equal(m.kind, TARN_CUDA_PINNED);
    tarn_cuda_memory_of(&m, &m);
    assert_int_equal(m.kind, TARN_CUDA_HOST);
    assert_int_equal(m.device, -1);
    pinned_free(pinned, MIB);
    device_drop(f->device, there);
    tarn_cuda_memory_of(there, &m);
    assert_int_equal(m.kind, TARN_CUDA_HOST);
}

static void test_too_much_memory_is_refused_with_a_remedy(void **state)
{
    struct fixture *f = need(state);
    uint8_t handle[TARN_CUDA_HANDLE];
    uint64_t unused;
    void *addr;
    must(tarn_cuda_free_bytes(0, &unused));
    assert_int_equal(tarn_cuda_alloc(0, unused + (1ull << 40), &addr, handle), TARN_E_NO_MEMORY);
    assert_non_null(strstr(tarn_last_error(), "are free: make the pool smaller"));
    device_drop(f->device, device_alloc(f->device, MIB)); /* a smaller allocation still succeeds */
}

static void test_unknown_devices_and_handles_are_refused(void **state)
{
    struct fixture *f = need(state);
    uint8_t uuid[TARN_CUDA_UUID] = {1}, handle[TARN_CUDA_HANDLE] = {2};
    struct tarn_cuda_device d;
    int device = -1;
    void *addr;
    must(tarn_cuda_describe(0, &d));
    must(tarn_cuda_find(d.uuid, &device));
    assert_int_equal(device, 0);
    assert_int_equal(tarn_cuda_find(uuid, &device), TARN_E_NOT_REACHABLE);
    assert_non_null(strstr(tarn_last_error(), "VISIBLE"));
    assert_int_not_equal(tarn_cuda_open(0, handle, &addr), 0);
    device_drop(f->device, device_alloc(f->device, MIB)); /* the device still works */
    test_copies_keep_their_order(state);
}

static void test_two_devices_reach_each_other(void **state)
{
    enum { BYTES = 3 * MIB + 5 };
    devices_need(2);
    struct fixture *f = need(state);
    if (!tarn_cuda_reaches(0, 1))
        harness_skip("gpus", "devices 0 and 1 do not reach each other");
    struct device *other = device_open(1);
    uint8_t *far = device_alloc(other, BYTES), *near = device_alloc(f->device, BYTES);
    uint8_t *want = random_bytes(f, BYTES), *got = malloc(BYTES);
    device_write(other, far, want, BYTES);
    struct tarn_cuda_piece p[] = {{far + 1, near + 2, 1000}, {far + 2000, near + 5000, BYTES - 5000}};
    queue_copy(f->queue, p, 2);
    device_read(f->device, got, near, BYTES);
    assert_memory_equal(got + 2, want + 1, 1000);
    assert_memory_equal(got + 5000, want + 2000, BYTES - 5000);
    device_drop(f->device, near);
    device_drop(other, far);
    device_close(other);
    free(want);
    free(got);
}

/* --- another process ---------------------------------------------------------------------------- */

enum { SHARED = 2 * MIB };

static void hex(char *out, const uint8_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", in[i]);
}

/* test_cuda_queue --peer DEVICE HANDLE: adds 1 to each byte of that memory, from DEVICE. */
static int peer_main(int device, const char *text)
{
    uint8_t handle[TARN_CUDA_HANDLE], *bytes = malloc(SHARED);
    void *there, *again;
    for (size_t i = 0; i < sizeof(handle); i++)
        handle[i] = (uint8_t)strtoul((char[]){text[2 * i], text[2 * i + 1], 0}, NULL, 16);
    struct device *d = device_open(device);
    must(tarn_cuda_open(device, handle, &there));
    must(tarn_cuda_open(device, handle, &again)); /* two links of a process may each open it */
    tarn_cuda_close(device, again);
    device_read(d, bytes, there, SHARED);
    for (size_t i = 0; i < SHARED; i++)
        bytes[i]++;
    device_write(d, there, bytes, SHARED);
    tarn_cuda_close(device, there);
    device_close(d);
    free(bytes);
    return 0;
}

static void shared_with(struct fixture *f, int device)
{
    uint8_t handle[TARN_CUDA_HANDLE];
    char text[2 * TARN_CUDA_HANDLE + 1], ordinal[8];
    void *addr;
    struct harness *h = harness_new();
    uint8_t *want = random_bytes(f, SHARED), *got = malloc(SHARED);
    must(tarn_cuda_alloc(0, SHARED, &addr, handle));
    hex(text, handle, sizeof(handle));
    snprintf(ordinal, sizeof(ordinal), "%d", device);
    device_write(f->device, addr, want, SHARED);
    assert_int_equal(harness_run(h, NULL, self, "--peer", ordinal, text, NULL), 0);
    device_read(f->device, got, addr, SHARED);
    for (size_t i = 0; i < SHARED; i++)
        assert_int_equal(got[i], (uint8_t)(want[i] + 1));
    tarn_cuda_free(0, addr);
    harness_passed(h);
    harness_free(h);
    free(want);
    free(got);
}

static void test_another_process_opens_a_handle(void **state)
{
    shared_with(need(state), 0);
}

static void test_another_process_opens_a_handle_on_another_device(void **state)
{
    devices_need(2);
    if (!tarn_cuda_reaches(1, 0))
        harness_skip("gpus", "devices 0 and 1 do not reach each other");
    shared_with(need(state), 1);
}

/* --- what only the stand-in can tell ------------------------------------------------------------ */

/* The stand-in reads the source and writes the destination when the copy runs, not when it is submitted. */
static void test_standin_copies_late(void **state)
{
    struct fixture *f = need_standin(state);
    uint8_t *a = pinned_new(4096), *b = pinned_new(4096);
    uint64_t mark;
    size_t taken;
    memset(a, 1, 4096);
    tarn_standin_delay(3600ull * 1000000);
    must(tarn_cuda_copy(f->queue, &(struct tarn_cuda_piece){a, b, 4096}, 1, &taken));
    must(tarn_cuda_mark(f->queue, &mark));
    assert_int_equal(tarn_cuda_poll(f->queue, mark), TARN_E_AGAIN);
    assert_int_equal(b[0], 0);
    memset(a, 2, 4096);
    tarn_cuda_queue_close(f->queue);
    f->queue = NULL;
    assert_int_equal(b[0], 2);
    assert_int_equal(b[4095], 2);
    tarn_standin_delay(0);
    pinned_free(a, 4096);
    pinned_free(b, 4096);
}

static void test_standin_device_memory_is_not_the_hosts(void **state)
{
    struct fixture *f = need_standin(state);
    volatile uint8_t *there = device_alloc(f->device, 4096);
    int status;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        there[0] = 1;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    device_drop(f->device, (void *)there);
}

/* The device is lost for all queues, until the stand-in is reset. */
static void expect_lost(struct fixture *f, const void *from, void *to, size_t bytes)
{
    struct tarn_cuda_piece p = {from, to, bytes};
    struct tarn_cuda_queue *q, *other;
    uint64_t mark;
    size_t taken;
    must(tarn_cuda_queue_open(0, &q));
    must(tarn_cuda_copy(q, &p, 1, &taken));
    must(tarn_cuda_mark(q, &mark));
    assert_int_equal(tarn_cuda_poll(q, mark), TARN_E_UNAVAILABLE);
    assert_int_equal(tarn_cuda_poll(q, mark), TARN_E_UNAVAILABLE);
    assert_int_equal(tarn_cuda_copy(f->queue, &p, 1, &taken), TARN_E_UNAVAILABLE);
    assert_int_equal(tarn_cuda_queue_open(0, &other), TARN_E_UNAVAILABLE);
    tarn_cuda_queue_close(q);
    tarn_standin_fail(NULL);
}

static void test_standin_loses_the_device_to_bad_addresses(void **state)
{
    struct fixture *f = need_standin(state);
    static uint8_t pageable[64];
    uint8_t *there = device_alloc(f->device, 4096), *gone = device_alloc(f->device, 4096);
    device_drop(f->device, gone);
    expect_lost(f, pageable, there, 64);
    expect_lost(f, there, pageable, 64);
    expect_lost(f, there + 4000, there, 200);
    expect_lost(f, there, gone, 200);
    tarn_standin_fail("lost:1");
    expect_lost(f, there, there + 200, 200);
    queue_copy(f->queue, &(struct tarn_cuda_piece){there, there + 200, 200}, 1);
    device_drop(f->device, there);
}

static void test_standin_fails_the_named_calls(void **state)
{
    struct fixture *f = need_standin(state);
    uint8_t handle[TARN_CUDA_HANDLE], *there = device_alloc(f->device, 4096);
    void *addr;
    size_t taken;
    struct tarn_cuda_piece p = {there, there + 100, 100};
    tarn_standin_fail("alloc:*,copy:2");
    assert_int_equal(tarn_cuda_alloc(0, 4096, &addr, handle), TARN_E_SYSTEM);
    assert_int_equal(tarn_cuda_alloc(0, 4096, &addr, handle), TARN_E_SYSTEM);
    must(tarn_cuda_copy(f->queue, &p, 1, &taken));
    assert_int_equal(tarn_cuda_copy(f->queue, &p, 1, &taken), TARN_E_SYSTEM);
    assert_int_equal(taken, 0);
    must(tarn_cuda_copy(f->queue, &p, 1, &taken));
    queue_copy(f->queue, NULL, 0);
    device_drop(f->device, there);
}

#define TEST(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 4 && strcmp(argv[1], "--peer") == 0)
        return peer_main(atoi(argv[2]), argv[3]);
    const struct CMUnitTest tests[] = {
        TEST(test_small_sizes_at_all_alignments),
        TEST(test_mixed_sizes),
        TEST(test_large_sizes),
        TEST(test_strides),
        TEST(test_more_pieces_than_there_is_room),
        TEST(test_all_alignments_at_each_mean_size),
        TEST(test_lists_started_in_parts),
        TEST(test_copies_keep_their_order),
        TEST(test_a_piece_lies_across_two_pinned_ranges),
        TEST(test_a_piece_lies_across_two_allocations),
        TEST(test_marks_count_up_and_pass_in_order),
        TEST(test_close_waits_for_copies_under_way),
        TEST(test_the_kind_of_memory_is_found),
        TEST(test_too_much_memory_is_refused_with_a_remedy),
        TEST(test_unknown_devices_and_handles_are_refused),
        TEST(test_two_devices_reach_each_other),
        TEST(test_another_process_opens_a_handle),
        TEST(test_another_process_opens_a_handle_on_another_device),
        TEST(test_standin_copies_late),
        TEST(test_standin_device_memory_is_not_the_hosts),
        TEST(test_standin_loses_the_device_to_bad_addresses),
        TEST(test_standin_fails_the_named_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
