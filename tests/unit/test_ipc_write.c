/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From pieces to lists of copies (transport/cuda_ipc/cuda_ipc_write.h). Every byte is written once and in its
 * place, however small the lists are. Touching pieces are joined up to the longest piece that a list takes;
 * large ones stay apart. For unchecked works (transport/seen.h): each piece must lie where the work says, and
 * the pieces must have as many bytes as the work. No memory is touched.
 */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "tests/harness.h"
#include "transport/cuda_ipc/cuda_ipc_write.h"
#include "transport/seen.h"

#define LARGE (16ull << 20)
#define POOL ((uint8_t *)0x700000000000)

static uint64_t seed;

static uint64_t rnd(uint64_t below)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (seed >> 33) % below;
}

static int start(void **state)
{
    (void)state;
    seed = tarn_random64();
    print_message("           seed %llu\n", (unsigned long long)seed);
    return 0;
}

/* The expected pieces, from the cursor of pieces.c. */
struct expected {
    const struct tarn_work *w;
    struct tarn_cursor c;
    uint64_t done;
};

/* Checks the next piece of the lists. */
static void expect(struct expected *e, const struct tarn_cuda_piece *p, bool put)
{
    void *memory;
    uint64_t n = tarn_cursor_next(&e->c, e->w->pieces, e->w->npieces, p->bytes, &memory);
    assert_int_equal(n, p->bytes);
    assert_ptr_equal(put ? p->from : p->to, memory);
    assert_ptr_equal(put ? p->to : p->from, POOL + e->done);
    e->done += n;
}

/* Writes a whole work into lists of up to `room` pieces. Returns the number of pieces written. */
static size_t write_all(struct tarn_work *w, size_t room, bool put)
{
    struct tarn_cuda_piece *list = calloc(room + 1, sizeof(*list));
    struct tarn_ipc_place place = {0};
    struct expected e = {.w = w};
    size_t count = 0;
    assert_non_null(list);
    for (bool all = false; !all;) {
        size_t n = 1 + rnd(room);
        struct tarn_ipc_writer o = {.at = list, .end = list + n, .put = put};
        uint64_t before = e.done, large;
        int rc = tarn_ipc_write_work(&o, w, POOL, &place);
        assert_true(rc == 0 || rc == TARN_E_AGAIN);
        all = rc == 0;
        assert_true(o.at <= list + n && (all || o.at > list || o.large.bytes));
        for (struct tarn_cuda_piece *p = list; p < o.at; p++) {
            assert_in_range(p->bytes, 1, TARN_CUDA_PIECE_MAX);
            expect(&e, p, put);
        }
        assert_int_equal(o.bytes, e.done - before);
        large = o.large.bytes;
        assert_true(large == 0 || large >= LARGE);
        if (large)
            expect(&e, &o.large, put);
        count += (size_t)(o.at - list) + (large > 0);
    }
    assert_int_equal(e.done, w->bytes);
    free(list);
    return count;
}

static uint64_t random_size(void)
{
    static const uint64_t edges[] = {0, 1, TARN_CUDA_PIECE_MAX - 1, TARN_CUDA_PIECE_MAX,
                                     TARN_CUDA_PIECE_MAX + 1};
    switch (rnd(8)) {
    case 0:
        return edges[rnd(5)];
    case 1:
        return rnd(40) ? 5 * TARN_CUDA_PIECE_MAX + rnd(9) : LARGE + rnd(3) - 1;
    default:
        return 1 + rnd(9000);
    }
}

/* GPU 0 has two adjacent allocations and a separate one. GPU 1 has one. All other addresses are host
 * memory. */
static struct tarn_seen two_gpus(void)
{
    return (struct tarn_seen){.n = 4,
                              .ranges = {{0x10000000, 0x50000000, 1},
                                         {0x50000000, 0x200000000, 1},
                                         {0x300000000, 0x310000000, 1},
                                         {0x400000000, 0x410000000, 2}}};
}

static void every_byte_is_written_once(void **state)
{
    enum { ROUNDS = 400, N = 300 };
    (void)state;
    for (int k = 0; k < ROUNDS; k++) {
        struct tarn_piece pieces[N];
        char *at = (char *)0x10000000;
        uint32_t n = (uint32_t)rnd(N);
        for (uint32_t i = 0; i < n; i++) {
            struct tarn_piece *p = &pieces[i];
            *p = (struct tarn_piece){.addr = at, .bytes = random_size(), .count = rnd(3)};
            if (rnd(3) == 0 && p->bytes < 10000) {
                p->count = rnd(50);
                p->stride = rnd(2) ? p->bytes : rnd(2) ? p->bytes + rnd(20) : rnd(p->bytes + 1);
            }
            at += (p->count ? p->count : 1) * (p->stride ? p->stride : p->bytes) + (rnd(2) ? rnd(100) : 0);
            if (rnd(10) == 0)
                at = (char *)0x10000000 + rnd(1ull << 31);
        }
        struct tarn_seen seen = two_gpus();
        struct tarn_work w = {
            .pieces = pieces, .npieces = n, .bytes = tarn_pieces_bytes(pieces, n), .gpu = 1};
        w.seen = k % 8 < 4 ? &seen : NULL;
        write_all(&w, 1 + rnd(k % 2 ? 5 : 600), k % 4 < 2);
    }
}

static void touching_pieces_are_joined(void **state)
{
    struct tarn_piece pieces[100];
    struct tarn_work w = {.pieces = pieces, .npieces = 100};
    (void)state;
    for (int i = 0; i < 100; i++)
        pieces[i] = (struct tarn_piece){.addr = (char *)0x1000000 + i * 6553, .bytes = 6553};
    w.bytes = tarn_pieces_bytes(pieces, 100);
    assert_int_equal(write_all(&w, 64, false), (w.bytes + TARN_CUDA_PIECE_MAX - 1) / TARN_CUDA_PIECE_MAX);
    pieces[50].addr = (char *)0x9000000; /* 5 whole ones before it; 49 pieces in 5 after it */
    assert_int_equal(write_all(&w, 64, true), 5 + 1 + 5);
}

/* The application may change its pieces meanwhile: pieces with more bytes than the work do not lead out of
 * its range. */
static void nothing_is_written_behind_the_end(void **state)
{
    struct tarn_piece piece = {.addr = (char *)0x1000000, .bytes = 5000, .stride = 6000, .count = 10};
    struct tarn_work w = {.pieces = &piece, .npieces = 1, .bytes = 7000};
    struct tarn_cuda_piece list[8];
    struct tarn_ipc_writer o = {.at = list, .end = list + 8};
    struct tarn_ipc_place place = {0};
    (void)state;
    assert_int_equal(tarn_ipc_write_work(&o, &w, POOL, &place), 0);
    assert_int_equal(o.at - list, 2);
    assert_int_equal(o.bytes, 7000);
}

/* Writes an unchecked work into lists of up to `room` pieces. Returns the result. */
static int write_unseen(struct tarn_work *w, size_t room, bool at_most)
{
    struct tarn_cuda_piece list[64];
    struct tarn_seen seen = two_gpus();
    struct tarn_ipc_place place = {0};
    int rc = TARN_E_AGAIN;
    seen.at_most = at_most;
    w->seen = &seen;
    w->gpu = 1;
    while (rc == TARN_E_AGAIN) {
        struct tarn_ipc_writer o = {.at = list, .end = list + room};
        rc = tarn_ipc_write_work(&o, w, POOL, &place);
        assert_true(place.done <= w->bytes);
    }
    return rc;
}

enum { UNSEEN = 300 };

static struct tarn_work unseen(struct tarn_piece pieces[UNSEEN])
{
    for (int i = 0; i < UNSEEN; i++)
        pieces[i] = (struct tarn_piece){.addr = (char *)0x10000000 + i * 9000, .bytes = 5000};
    return (struct tarn_work){.pieces = pieces, .npieces = UNSEEN, .bytes = 5000 * UNSEEN};
}

static void pieces_of_other_memory_are_found(void **state)
{
    static const uintptr_t wrong[] = {0, 0x1000, 0x310000000 - 4999, 0x400000000, UINTPTR_MAX - 2};
    struct tarn_piece pieces[UNSEEN];
    (void)state;
    for (uint32_t k = 0; k < 5; k++)
        for (uint32_t at = 1; at < UNSEEN; at += 1 + (uint32_t)rnd(40)) {
            struct tarn_work w = unseen(pieces);
            pieces[at].addr = (void *)wrong[k]; // NOLINT: none of it is touched
            assert_int_equal(write_unseen(&w, 1 + rnd(64), false), TARN_E_INVALID);
        }
}

/* Every run of a strided piece is checked, wherever the lists begin and end. */
static void runs_of_other_memory_are_found(void **state)
{
    enum { RUNS = 64, BYTES = 5000, STRIDE = 9000, SPAN = (RUNS - 1) * STRIDE + BYTES };
    static const struct {
        uintptr_t addr;
        uint64_t stride;
        int rc;
    } tried[] = {
        {0x310000000 - SPAN, STRIDE, 0},
        {0x310000000 - SPAN + 1, STRIDE, TARN_E_INVALID},
        {0x310000000 - SPAN / 2, STRIDE, TARN_E_INVALID},
        {0x50000000 - SPAN / 2, STRIDE, 0},                         /* continues in the adjacent allocation */
        {0x10000000, 0x2f0000000 / (RUNS - 1) + 1, TARN_E_INVALID}, /* valid at both ends only */
        {0x10000000, UINT64_MAX / 32, TARN_E_INVALID},
        {0x10000000 + STRIDE, (uint64_t)-STRIDE, TARN_E_INVALID},
    };
    (void)state;
    for (size_t k = 0; k < sizeof tried / sizeof *tried; k++)
        for (int i = 0; i < 50; i++) {
            // NOLINTNEXTLINE: none of it is touched
            struct tarn_piece p = {(void *)tried[k].addr, BYTES, tried[k].stride, RUNS};
            struct tarn_work w = {.pieces = &p, .npieces = 1, .bytes = RUNS * BYTES};
            assert_int_equal(write_unseen(&w, 1 + rnd(64), false), tried[k].rc);
        }
}

static void pieces_of_several_allocations_are_taken(void **state)
{
    struct tarn_piece pieces[UNSEEN];
    (void)state;
    for (uint32_t k = 0; k < 100; k++) {
        struct tarn_work w = unseen(pieces);
        for (uint32_t i = 0; i < UNSEEN; i++)
            if (rnd(3) == 0)
                pieces[i].addr =
                    (char *)(rnd(2) ? 0x300000000 : 0x50000000) + i * 9000 - (i ? 2500 : 0) * rnd(2);
        for (uint32_t i = 0; i < UNSEEN; i++)
            if ((uintptr_t)pieces[i].addr > 0x200000000 && (uintptr_t)pieces[i].addr < 0x300000000)
                pieces[i].addr = (char *)0x50000000 - 2500; /* lies across the two adjacent allocations */
        assert_int_equal(write_unseen(&w, 1 + rnd(64), false), 0);
    }
}

static void bytes_are_counted(void **state)
{
    struct tarn_piece pieces[UNSEEN];
    (void)state;
    for (int at_most = 0; at_most < 2; at_most++)
        for (uint32_t k = 0; k < 200; k++) {
            struct tarn_work w = unseen(pieces);
            uint32_t at = (uint32_t)rnd(UNSEEN);
            uint64_t said = w.bytes, before = pieces[at].bytes;
            pieces[at].bytes = k % 4 == 0 ? 0 : k % 4 == 1 ? 4999 : k % 4 == 2 ? 5001 : 5000;
            if (k % 8 == 7)
                pieces[at] = (struct tarn_piece){pieces[at].addr, 1ull << 40, 1ull << 40, 1u << 31};
            bool more = pieces[at].bytes > before, fewer = pieces[at].bytes < before;
            int rc = write_unseen(&w, 1 + rnd(64), at_most);
            if (k % 8 == 7)
                assert_true(rc == TARN_E_INVALID || rc == TARN_E_SIZE);
            else
                assert_int_equal(rc, more || (fewer && !at_most) ? TARN_E_SIZE : 0);
            if (rc == 0)
                assert_int_equal(w.bytes, said - before + pieces[at].bytes);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_byte_is_written_once, start),
        cmocka_unit_test(touching_pieces_are_joined),
        cmocka_unit_test(nothing_is_written_behind_the_end),
        cmocka_unit_test_setup(pieces_of_other_memory_are_found, start),
        cmocka_unit_test_setup(runs_of_other_memory_are_found, start),
        cmocka_unit_test_setup(pieces_of_several_allocations_are_taken, start),
        cmocka_unit_test_setup(bytes_are_counted, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
