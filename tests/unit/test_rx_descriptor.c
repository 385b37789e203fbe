/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of copies, built from fragments that arrive in any order: overlaps and gaps are refused, neighbours
 * are joined, and the rest is cut where the destination's runs end. Random lists are compared with maps of
 * single bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/tcpx/list.h"

#define POOL (1ull << 30)

static struct tarn_tcpx_fragments list;
static unsigned seed;

static uint32_t rnd(uint32_t below)
{
    return ((uint32_t)rand_r(&seed) << 15 ^ (uint32_t)rand_r(&seed)) % below;
}

static int start(void **state)
{
    (void)state;
    seed = (unsigned)tarn_now_ns();
    print_message("           seed %u\n", seed);
    memset(&list, 0xa5, sizeof(list));
    return 0;
}

static int build(uint64_t expected, const struct tarn_tcpx_fragment *f, uint32_t n)
{
    list.n = 0;
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(tarn_tcpx_fragments_add(&list, f[i]), 0);
    return tarn_tcpx_fragments_check(&list, expected, POOL, POOL);
}

static void expect_refused(const char *words, uint64_t expected, const struct tarn_tcpx_fragment *f,
                           uint32_t n)
{
    list_refused(build(expected, f, n), words);
}
#define REFUSED(words_, expected_, ...) \
    expect_refused(words_, expected_, LIST(__VA_ARGS__), COUNT(__VA_ARGS__))

static void expect_list(uint64_t expected, const struct tarn_tcpx_fragment *f, uint32_t n,
                        const struct tarn_tcpx_fragment *want, uint32_t nwant)
{
    assert_int_equal(build(expected, f, n), 0);
    list_is(&list, expected, want, nwant);
}

/* --- lists -------------------------------------------------------------------------------------- */

/* The right number of bytes, but some twice, so others are missing. */
static void overlaps_and_gaps_are_refused(void **state)
{
    (void)state;
    REFUSED("of 6 bytes for offset 0 and of 4 for offset 5 overlap", 10, {0, 0, 6, 0}, {100, 5, 4, 0});
    REFUSED("overlap", 10, {0, 0, 5, 0}, {100, 0, 5, 0});
    REFUSED("overlap", 10, {100, 4, 5, 0}, {0, 0, 5, 0});
    REFUSED("overlap", 12, {0, 6, 3, 0}, {50, 0, 6, 0}, {100, 7, 3, 0});
    REFUSED("overlap", 10, {0, 0, 1, 0}, {1, 2, 8, 0}, {50, 2, 1, 0});
}

static void a_list_takes_at_most_2048_fragments(void **state)
{
    (void)state;
    static struct tarn_tcpx_fragment f[TARN_TCPX_FRAGMENTS];
    for (uint32_t i = 0; i < TARN_TCPX_FRAGMENTS; i++)
        f[i] = (struct tarn_tcpx_fragment){2ull * i, i, 1, 0};
    expect_list(TARN_TCPX_FRAGMENTS - 1, f, TARN_TCPX_FRAGMENTS - 1, f, TARN_TCPX_FRAGMENTS - 1);
    assert_int_equal(tarn_tcpx_fragments_add(&list, f[TARN_TCPX_FRAGMENTS - 1]), 0);
    assert_int_equal(tarn_tcpx_fragments_check(&list, TARN_TCPX_FRAGMENTS, POOL, 0), 0);
    assert_int_equal(list.n, TARN_TCPX_FRAGMENTS);
    assert_int_equal(tarn_tcpx_fragments_add(&list, f[0]), TARN_E_PROTOCOL);
    assert_non_null(strstr(tarn_last_error(), "more than 2048 fragments"));
    assert_int_equal(list.n, TARN_TCPX_FRAGMENTS);
}

/* The worst order, and the longest list. */
static void fragments_in_reverse_order_are_sorted(void **state)
{
    (void)state;
    static struct tarn_tcpx_fragment f[TARN_TCPX_FRAGMENTS];
    for (uint32_t i = 0; i < TARN_TCPX_FRAGMENTS; i++)
        f[i] = (struct tarn_tcpx_fragment){4096ull * i, 4096ull * (TARN_TCPX_FRAGMENTS - 1 - i), 4096, 0};
    assert_int_equal(build(4096 * TARN_TCPX_FRAGMENTS, f, TARN_TCPX_FRAGMENTS), 0);
    for (uint32_t i = 0; i < TARN_TCPX_FRAGMENTS; i++)
        assert_int_equal(list.at[i].src, 4096ull * (TARN_TCPX_FRAGMENTS - 1 - i));
    for (uint32_t i = 0; i < TARN_TCPX_FRAGMENTS; i++)
        f[i].src = f[i].dst;
    expect_list(4096 * TARN_TCPX_FRAGMENTS, f, TARN_TCPX_FRAGMENTS,
                LIST({0, 0, 4096 * TARN_TCPX_FRAGMENTS, 0}), 1);
}

static void neighbours_in_both_memories_become_one(void **state)
{
    (void)state;
    struct tarn_tcpx_fragment f[] = {
        {4096, 0, 100, 0}, {4196, 100, 50, 0}, {8192, 150, 10, 0}, {8203, 160, 10, 0}};
    expect_list(170, f, 4, LIST({4096, 0, 150, 0}, {8192, 150, 10, 0}, {8203, 160, 10, 0}), 3);
    /* Adjacent in the bounce memory but not in the message; then in the wrong order. */
    expect_list(30, LIST({0, 20, 10, 0}, {10, 0, 20, 0}), 2, LIST({10, 0, 20, 0}, {0, 20, 10, 0}), 2);
    expect_list(20, LIST({10, 0, 10, 0}, {0, 10, 10, 0}), 2, LIST({10, 0, 10, 0}, {0, 10, 10, 0}), 2);
}

/* Two sockets: their fragments are adjacent only once the list is sorted. */
static void interleaved_fragments_are_put_in_order_and_joined(void **state)
{
    (void)state;
    struct tarn_tcpx_fragment f[] = {{7000, 30, 10, 0}, {1000, 0, 10, 0},  {7010, 40, 10, 0},
                                     {1010, 10, 10, 0}, {7020, 50, 10, 0}, {1020, 20, 10, 0}};
    expect_list(60, f, 6, LIST({1000, 0, 30, 0}, {7000, 30, 30, 0}), 2);
}

/* A message cut at random into fragments, in order, from several sockets, or shuffled. */
struct cut {
    uint32_t bytes, n;
    struct tarn_tcpx_fragment f[TARN_TCPX_FRAGMENTS];
};

static void cut_random(struct cut *c, uint32_t max_bytes, uint32_t max_n)
{
    c->bytes = 1 + rnd(max_bytes);
    uint32_t most = c->bytes < max_n ? c->bytes : max_n, at = 0, src = rnd(100);
    c->n = 1 + rnd(most);
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t left = c->bytes - at - (c->n - i - 1),
                 bytes = i + 1 == c->n ? left : 1 + rnd(left < 100 ? left : 100);
        src += rnd(2) ? rnd(50) : 0;
        c->f[i] = (struct tarn_tcpx_fragment){src, at, bytes, 0};
        at += bytes;
        src += bytes;
    }
    for (uint32_t i = 1, sort = rnd(3); sort && i < c->n; i++) {
        uint32_t k = sort == 1 ? rnd(i + 1) : i - rnd(i < 8 ? i + 1 : 8); /* anywhere, or nearby */
        struct tarn_tcpx_fragment swap = c->f[i];
        c->f[i] = c->f[k];
        c->f[k] = swap;
    }
}

/* Maps each byte of the message to its place in the source. */
static void map_of(const struct tarn_tcpx_fragment *f, uint32_t n, uint64_t *map)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t b = 0; b < f[i].bytes; b++)
            map[f[i].dst + b] = f[i].src + b;
}

static void random_lists_keep_their_meaning(void **state)
{
    (void)state;
    static struct cut c;
    static uint64_t want[300000], got[300000];
    for (int round = 0; round < 600; round++) {
        cut_random(&c, round % 2 ? 300000 : 400, TARN_TCPX_FRAGMENTS);
        assert_int_equal(build(c.bytes, c.f, c.n), 0);
        map_of(c.f, c.n, want);
        map_of(list.at, list.n, got);
        assert_memory_equal(want, got, c.bytes * sizeof(want[0]));
        for (uint32_t i = 1; i < list.n; i++) {
            assert_int_equal(list.at[i].dst, list.at[i - 1].dst + list.at[i - 1].bytes);
            assert_true(list.at[i].src !=
                        list.at[i - 1].src + list.at[i - 1].bytes); /* all neighbours must be joined */
        }
    }
}

/* --- cutting ------------------------------------------------------------------------------------ */

static uint8_t pool[1 << 16], memory[1 << 18];

static uint32_t pieces_random(struct tarn_piece *p, uint32_t max)
{
    uint32_t n = 1 + rnd(max);
    for (uint32_t i = 0; i < n; i++) {
        p[i] = (struct tarn_piece){memory + rnd(1 << 12), rnd(90), 0, rnd(12)};
        p[i].stride = rnd(3) ? p[i].bytes + rnd(3) * rnd(40) : 0;
        if (i > 0 && rnd(2)) /* often directly after the last piece, if that has no gaps */
            p[i].addr = (uint8_t *)p[i - 1].addr + p[i - 1].bytes * (p[i - 1].count ? p[i - 1].count : 1);
    }
    return n;
}

/* Every byte's address in order, computed byte by byte. */
static uint32_t addresses_of(const struct tarn_piece *p, uint32_t n, uint8_t **out)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t run = 0; run < (p[i].count ? p[i].count : 1); run++)
            for (uint64_t b = 0; b < p[i].bytes; b++)
                out[total++] = (uint8_t *)p[i].addr + run * (p[i].stride ? p[i].stride : p[i].bytes) + b;
    return total;
}

enum { PIECES = 30, ADDRESSES = PIECES * 90 * 12 };

/* Compares every byte, for requests of any size. There are only as many copies as runs and fragments need. */
static void cuts_cover_the_message(void **state)
{
    (void)state;
    static uint8_t *address[ADDRESSES];
    static struct cut c;
    static uint64_t map[ADDRESSES];
    for (int round = 0; round < 5000; round++) {
        struct tarn_piece p[PIECES];
        struct tarn_cuda_piece out[50];
        uint32_t n = pieces_random(p, PIECES), total = addresses_of(p, n, address);
        if (total == 0)
            continue;
        cut_random(&c, total, 400);
        assert_int_equal(build(c.bytes, c.f, c.n), 0);
        map_of(c.f, c.n, map);
        uint64_t offset = rnd(total - c.bytes + 1), at = 0, pieces = 0, breaks = 0;
        struct tarn_tcpx_cut cut = {list.at, list.n, 0, pool, NULL, p, n, tarn_cursor_at(p, n, offset)};
        for (size_t got; (got = tarn_tcpx_cut_next(&cut, out, 1 + rnd(50))) > 0; pieces += got)
            for (size_t i = 0; i < got; i++)
                for (uint64_t b = 0; b < out[i].bytes; b++, at++) {
                    assert_ptr_equal((const uint8_t *)out[i].from + b, pool + map[at]);
                    assert_ptr_equal((uint8_t *)out[i].to + b, address[offset + at]);
                }
        assert_int_equal(at, c.bytes);
        for (uint64_t b = 1; b < c.bytes; b++)
            breaks += map[b] != map[b - 1] + 1 || address[offset + b] != address[offset + b - 1] + 1;
        assert_int_equal(pieces, breaks + 1);
    }
}

static void linear_fragments_come_from_their_own_buffer(void **state)
{
    (void)state;
    static uint8_t linear[64];
    struct tarn_cuda_piece out[4];
    struct tarn_piece to = {memory, 40, 0, 1};
    /* The second is not a neighbour of the first: it is in another buffer. */
    expect_list(40, LIST({10, 0, 10, false}, {20, 10, 10, true}, {30, 20, 20, true}), 3,
                LIST({10, 0, 10, false}, {20, 10, 30, true}), 2);
    assert_int_equal(list.linear_bytes, 30);
    struct tarn_tcpx_cut cut = {list.at, list.n, 0, pool, linear, &to, 1, {0, 0, 0}};
    assert_int_equal(tarn_tcpx_cut_next(&cut, out, 4), 2);
    assert_ptr_equal(out[0].from, pool + 10);
    assert_ptr_equal(out[1].from, linear + 20);
    assert_int_equal(out[1].bytes, 30);
    assert_int_equal(tarn_tcpx_fragments_check(&list, 40, POOL, 49), TARN_E_PROTOCOL);
    assert_non_null(strstr(tarn_last_error(), "linear buffer"));
}

#define TEST(fn_) cmocka_unit_test_setup(fn_, start)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(overlaps_and_gaps_are_refused),
        TEST(a_list_takes_at_most_2048_fragments),
        TEST(fragments_in_reverse_order_are_sorted),
        TEST(neighbours_in_both_memories_become_one),
        TEST(interleaved_fragments_are_put_in_order_and_joined),
        TEST(random_lists_keep_their_meaning),
        TEST(cuts_cover_the_message),
        TEST(linear_fragments_come_from_their_own_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
