/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a slot of a plugin's metadata to a list of valid addresses, and from there to copies: what is refused
 * and with which message, how the list is sorted and joined, and where it is cut. Random lists are compared
 * with maps of single bytes. Also tests the arithmetic of the copy kernel, on the CPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/tcpx/list.h"
#include "transport/cuda/kernels_run.h"

#define POOL (1ull << 30)

static struct tarn_tcpx_meta meta;
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
    memset(&meta, 0xa5, sizeof(meta));
    memset(&list, 0xa5, sizeof(list));
    return 0;
}

static void slot_set(uint32_t slot, const struct tarn_tcpx_fragment *f, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        meta.mem[slot][i] =
            (union tarn_tcpx_load){.src_off = (uint32_t)f[i].src, .len = f[i].bytes, .dst_off = f[i].dst};
    meta.cnt[slot] = n;
}

/* Reads slot 0, filled with these fragments. It must be refused with a message that contains `words`. */
static void expect_refused(const char *words, uint64_t expected, const struct tarn_tcpx_fragment *f,
                           uint64_t n)
{
    slot_set(0, f, n);
    list_refused(tarn_tcpx_fragments_read(&list, &meta, 0, expected, POOL), words);
}
#define REFUSED(words_, expected_, ...) \
    expect_refused(words_, expected_, LIST(__VA_ARGS__), COUNT(__VA_ARGS__))

static void expect_list(uint64_t expected, const struct tarn_tcpx_fragment *f, uint64_t n,
                        const struct tarn_tcpx_fragment *want, uint32_t nwant)
{
    slot_set(0, f, n);
    assert_int_equal(tarn_tcpx_fragments_read(&list, &meta, 0, expected, POOL), 0);
    list_is(&list, expected, want, nwant);
}

/* --- what is refused ---------------------------------------------------------------------------- */

static void fragments_outside_the_message_are_refused(void **state)
{
    (void)state;
    REFUSED("is 11 bytes for offset 0 of a message of 10", 10, {0, 0, 11, 0});
    REFUSED("for offset 10 of a message of 10", 10, {0, 0, 9, 0}, {50, 10, 1, 0});
    REFUSED("for offset 18446744073709551615", 10, {0, UINT64_MAX, 1, 0});
    REFUSED("for offset 18446744073709551611", 10, {0, UINT64_MAX - 4, 10, 0}); /* would wrap to 5 */
    REFUSED("for offset 4294967296", 10, {0, 1ull << 32, 10, 0});               /* 0 if cut to 32 bits */
    REFUSED("of a message of 0 bytes", 0, {0, 0, 1, 0});
}

static void fragments_outside_the_bounce_memory_are_refused(void **state)
{
    (void)state;
    REFUSED("fragment 1 is 2 bytes at offset 1073741823 of the bounce memory, which has 1073741824", 4,
            {0, 0, 2, 0}, {POOL - 1, 2, 2, 0});
    REFUSED("bounce memory", 1, {POOL, 0, 1, 0});
    REFUSED("bounce memory", 64, {UINT32_MAX, 0, 64, 0});
    slot_set(0, LIST({UINT32_MAX, 0, 64, 0}), 1); /* allowed if the size is unknown */
    assert_int_equal(tarn_tcpx_fragments_read(&list, &meta, 0, 64, UINT64_MAX), 0);
}

static void empty_fragments_are_refused(void **state)
{
    (void)state;
    REFUSED("fragment 1 has no bytes", 10, {0, 0, 10, 0}, {20, 10, 0, 0});
    REFUSED("has no bytes", 0, {0, 0, 0, 0});
}

static void wrong_sums_are_refused(void **state)
{
    (void)state;
    REFUSED("the 2 fragments are 9 bytes, and the sender announced 10", 10, {0, 0, 5, 0}, {9, 5, 4, 0});
    REFUSED("the 2 fragments are 11 bytes", 10, {0, 0, 6, 0}, {9, 5, 5, 0});
    expect_refused("the 0 fragments are 0 bytes", 10, NULL, 0);
}

static void a_list_of_2048_is_the_longest(void **state)
{
    (void)state;
    static struct tarn_tcpx_fragment f[TARN_TCPX_FRAGMENTS];
    for (uint32_t i = 0; i < TARN_TCPX_FRAGMENTS; i++)
        f[i] = (struct tarn_tcpx_fragment){2ull * i, i, 1, 0};
    for (uint32_t n = TARN_TCPX_FRAGMENTS - 1; n <= TARN_TCPX_FRAGMENTS; n++)
        expect_list(n, f, n, f, n);
    uint64_t counts[] = {TARN_TCPX_FRAGMENTS + 1, UINT32_MAX, 1ull << 32, UINT64_MAX};
    for (int i = 0; i < 4; i++) {
        meta.cnt[0] = counts[i]; /* more would be read from the next slot, or from nowhere */
        assert_int_equal(tarn_tcpx_fragments_read(&list, &meta, 0, 1, POOL), TARN_E_PROTOCOL);
        assert_non_null(strstr(tarn_last_error(), "has room for 2048"));
    }
}

static void messages_of_2_gib_are_refused(void **state)
{
    (void)state;
    slot_set(0, LIST({0, 0, 1u << 31, 0}), 1);
    assert_int_equal(tarn_tcpx_fragments_read(&list, &meta, 0, 1ull << 31, UINT64_MAX), TARN_E_INVALID);
    slot_set(0, LIST({0, 0, INT32_MAX, 0}), 1);
    assert_int_equal(tarn_tcpx_fragments_read(&list, &meta, 0, INT32_MAX, UINT64_MAX), 0);
}

/* Random slots: they are refused, or the list covers the message and stays in the memory. */
static void random_damage_is_refused_or_harmless(void **state)
{
    (void)state;
    int taken = 0;
    for (int round = 0; round < 200000; round++) {
        struct tarn_tcpx_fragment f[6];
        uint32_t n = 1 + rnd(6), expected = 1 + rnd(20), at = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t bytes = i + 1 == n && expected > at ? expected - at : 1 + rnd(expected);
            f[i] = (struct tarn_tcpx_fragment){rnd(60), at, bytes, 0};
            at += bytes;
        }
        if (rnd(2))
            f[rnd(n)].dst += rnd(9) - 4ull;
        if (rnd(4) == 0)
            f[rnd(n)].bytes = rnd(25);
        slot_set(0, f, n);
        if (tarn_tcpx_fragments_read(&list, &meta, 0, expected, 64))
            continue;
        taken++;
        uint64_t end = 0;
        for (uint32_t i = 0; i < list.n; i++) {
            assert_int_equal(list.at[i].dst, end);
            assert_true(list.at[i].bytes > 0 && list.at[i].src + list.at[i].bytes <= 64);
            end += list.at[i].bytes;
        }
        assert_int_equal(end, expected);
    }
    assert_true(taken > 1000);
}

/* --- what is accepted --------------------------------------------------------------------------- */

static void the_kth_receive_has_slot_k_modulo_16(void **state)
{
    (void)state;
    for (uint32_t slot = 0; slot < TARN_TCPX_SLOTS; slot++)
        slot_set(slot, LIST({slot * 100, 0, slot + 1, 0}), 1);
    for (uint64_t k = 0; k < 100; k++) {
        assert_int_equal(tarn_tcpx_fragments_read(&list, &meta, k, k % 16 + 1, POOL), 0);
        assert_int_equal(list.at[0].src, k % 16 * 100);
    }
}

static void an_empty_message_is_an_empty_list(void **state)
{
    (void)state;
    expect_list(0, NULL, 0, NULL, 0);
}

/* --- the kernel's arithmetic -------------------------------------------------------------------- */

/* All alignments of both ends, and sizes around the widths. Each byte is copied once, and every access is
 * aligned. */
static void plans_of_runs_fit_all_alignments(void **state)
{
    (void)state;
    for (uint64_t from = 0; from < 32; from++)
        for (uint64_t to = 0; to < 32; to++)
            for (uint64_t bytes = 0; bytes < 70; bytes++) {
                uint64_t base = 0x7f0000000000ull;
                struct tarn_run_plan p = tarn_run_plan(base + from, base + to, bytes);
                uint64_t wide = (bytes - p.head) / p.width, tail = bytes - p.head - wide * p.width;
                assert_true(p.width == 1 || p.width == 2 || p.width == 4 || p.width == 8 || p.width == 16);
                assert_true(p.head < p.width && p.head <= bytes && tail < p.width);
                if (wide) {
                    assert_int_equal((from + p.head) % p.width, 0);
                    assert_int_equal((to + p.head) % p.width, 0);
                }
                /* No wider access fits both ends. */
                assert_true(p.width == 16 || (from ^ to) % (2 * p.width) != 0);
            }
}

#define TEST(fn_) cmocka_unit_test_setup(fn_, start)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(fragments_outside_the_message_are_refused),
        TEST(fragments_outside_the_bounce_memory_are_refused),
        TEST(empty_fragments_are_refused),
        TEST(wrong_sums_are_refused),
        TEST(a_list_of_2048_is_the_longest),
        TEST(messages_of_2_gib_are_refused),
        TEST(random_damage_is_refused_or_harmless),
        TEST(the_kth_receive_has_slot_k_modulo_16),
        TEST(an_empty_message_is_an_empty_list),
        TEST(plans_of_runs_fit_all_alignments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
