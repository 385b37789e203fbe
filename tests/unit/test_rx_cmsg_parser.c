/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control messages of recvmsg() about device memory, in both dialects, built here byte by byte as the kernels
 * do: the resulting list, the tokens to give back, and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "tests/tcpx/cmsg.h"
#include "tests/tcpx/list.h"

#define POOL (1ull << 40)
enum { DMABUF = 77 };

/* The result of one recvmsg(). */
struct message {
    struct msghdr m;
    struct iovec iov[2];
    _Alignas(16) uint8_t control[1 << 18];
};

static struct message message;
static struct received received;

static void begin(enum received_dialect dialect)
{
    memset(&received, 0xa5, sizeof(received));
    received_begin(&received, dialect, DMABUF);
}

static void message_new(void)
{
    message.iov[0] = (struct iovec){NULL, 3000};
    message.iov[1] = (struct iovec){NULL, 5000};
    message.m = (struct msghdr){.msg_iov = message.iov, .msg_iovlen = 2, .msg_control = message.control};
}

static void put(int level, int type, const void *data, size_t bytes)
{
    struct cmsghdr c = {.cmsg_len = CMSG_LEN(bytes), .cmsg_level = level, .cmsg_type = type};
    uint8_t *at = message.control + message.m.msg_controllen;
    assert_true(message.m.msg_controllen + CMSG_SPACE(bytes) <= sizeof(message.control));
    memcpy(at, &c, sizeof(c));
    if (bytes)
        memcpy(at + CMSG_LEN(0), data, bytes);
    message.m.msg_controllen += CMSG_SPACE(bytes);
}

static void put_device(uint64_t offset, uint32_t size, uint32_t token)
{
    uint32_t devmem[] = {(uint32_t)offset, size, token};
    uint32_t dmabuf[] = {(uint32_t)offset, (uint32_t)(offset >> 32), size, token, DMABUF, 0};
    if (received.dialect == RECEIVED_DEVMEM)
        put(SOL_SOCKET, 99, devmem, sizeof(devmem));
    else
        put(SOL_SOCKET, 79, dmabuf, sizeof(dmabuf));
}

static void put_linear(uint32_t size)
{
    uint32_t devmem[] = {0xdead, size, 0xdead}, dmabuf[] = {0xdead, 0xdead, size, 0, 0, 0};
    if (received.dialect == RECEIVED_DEVMEM)
        put(SOL_SOCKET, 98, devmem, sizeof(devmem));
    else
        put(SOL_SOCKET, 78, dmabuf, sizeof(dmabuf));
}

static void expect_added(size_t bytes)
{
    if (received_add(&received, &message.m, bytes))
        fail_msg("%s", tarn_last_error());
}

static void expect_refused(const char *words, size_t bytes)
{
    list_refused(received_add(&received, &message.m, bytes), words);
}

static void expect_tokens(const uint32_t *tokens, uint32_t n)
{
    assert_int_equal(received.ntokens, n);
    assert_memory_equal(received.tokens, tokens, n * sizeof(*tokens));
}

static void expect_list(uint64_t expected, const struct tarn_tcpx_fragment *want, uint32_t n)
{
    if (received_end(&received, expected, POOL))
        fail_msg("%s", tarn_last_error());
    list_is(&received.list, expected, want, n);
}

/* Runs the test in both dialects. */
#define BOTH(name_) \
    static void name_##_(void); \
    static void name_(void **state) \
    { \
        (void)state; \
        for (int d = RECEIVED_DEVMEM; d <= RECEIVED_DMABUF; d++) { \
            begin(d); \
            message_new(); \
            name_##_(); \
        } \
    } \
    static void name_##_(void)

BOTH(fragments_follow_each_other)
{
    put_device(40960, 1448, 7);
    put_device(42408, 100, 8);
    put_device(4096, 52, 3);
    expect_added(1600);
    message_new();
    put_device(8192, 400, 9);
    expect_added(400);
    expect_tokens((uint32_t[]){7, 8, 3, 9}, 4);
    expect_list(2000,
                (struct tarn_tcpx_fragment[]){{40960, 0, 1548, 0}, {4096, 1548, 52, 0}, {8192, 1600, 400, 0}},
                3);
}

/* Some bytes are in kernel memory, like those that arrived before the flow was steered. */
BOTH(linear_fragments_mix_with_others)
{
    put_linear(100);
    put_device(4096, 50, 1);
    put_linear(7);
    expect_added(157);
    message_new();
    put_linear(200);
    put_device(4146, 10, 2);
    expect_added(210);
    expect_tokens((uint32_t[]){1, 2}, 2);
    assert_int_equal(received.linear, 307);
    expect_list(367,
                (struct tarn_tcpx_fragment[]){
                    {0, 0, 100, 1}, {4096, 100, 50, 0}, {100, 150, 207, 1}, {4146, 357, 10, 0}},
                4);
}

/* No known control message: the data did not go to the device. */
BOTH(data_without_control_messages_is_linear)
{
    expect_added(500);
    message_new();
    put(SOL_SOCKET, SCM_TIMESTAMP, "sixteen bytes...", 16);
    put(6 /* TCP */, 99, "twelve bytes", 12);
    expect_added(8000);
    expect_tokens(NULL, 0);
    expect_list(8500, (struct tarn_tcpx_fragment[]){{0, 0, 8500, 1}}, 1);
}

BOTH(other_control_messages_are_passed_over)
{
    put(SOL_SOCKET, SCM_TIMESTAMP, "sixteen bytes...", 16);
    put_device(0, 10, 5);
    put(6, 79, NULL, 0);
    put_device(10, 10, 6);
    expect_added(20);
    expect_tokens((uint32_t[]){5, 6}, 2);
    expect_list(20, (struct tarn_tcpx_fragment[]){{0, 0, 20, 0}}, 1);
}

/* The other dialect's numbers mean nothing in this one. */
BOTH(the_other_dialect_is_not_understood)
{
    enum received_dialect own = received.dialect;
    received.dialect = own == RECEIVED_DEVMEM ? RECEIVED_DMABUF : RECEIVED_DEVMEM;
    put_device(4096, 10, 5);
    received.dialect = own;
    expect_added(10);
    expect_tokens(NULL, 0);
    expect_list(10, (struct tarn_tcpx_fragment[]){{0, 0, 10, 1}}, 1);
}

/* The control messages did not fit. The tokens that were named are still recorded. */
BOTH(truncated_control_data_is_refused)
{
    put_device(0, 10, 5);
    put_device(50, 10, 6);
    message.m.msg_flags = MSG_CTRUNC;
    expect_refused("more control messages than fit", 30);
    expect_tokens((uint32_t[]){5, 6}, 2);
}

/* Messages that end before their contents do, whatever the flags say: cut off, too short, or shorter than a
 * header. */
BOTH(truncated_control_messages_are_refused)
{
    size_t whole = received.dialect == RECEIVED_DEVMEM ? 12 : 24;
    for (size_t bytes = 0; bytes < whole; bytes++) {
        begin(received.dialect);
        message_new();
        put_device(0, 10, 5);
        put(SOL_SOCKET, received.dialect == RECEIVED_DEVMEM ? 99 : 79, "twenty-four bytes as it is", bytes);
        expect_refused("speaks another dialect", 20);
        expect_tokens((uint32_t[]){5}, 1);
    }
    for (size_t bytes = 0; bytes < whole; bytes++) { /* the control data ends inside its first message */
        begin(received.dialect);
        message_new();
        put_device(0, 10, 5);
        message.m.msg_controllen = CMSG_LEN(bytes);
        expect_refused("speaks another dialect", 10);
    }
    for (size_t left = 0; left < sizeof(struct cmsghdr); left++) { /* of the last header */
        begin(received.dialect);
        message_new();
        put_device(0, 10, 5);
        size_t first = message.m.msg_controllen;
        put_device(50, 10, 6);
        message.m.msg_controllen = first + left;
        expect_refused("returned 20 and its control messages name 10", 20);
    }
}

BOTH(empty_fragments_are_refused)
{
    put_device(0, 10, 5);
    put_device(50, 0, 6);
    expect_added(10);
    expect_tokens((uint32_t[]){5, 6}, 2);
    assert_int_equal(received_end(&received, 10, POOL), TARN_E_PROTOCOL);
    assert_non_null(strstr(tarn_last_error(), "has no bytes"));
}

BOTH(wrong_sums_are_refused)
{
    put_device(0, 10, 5);
    put_linear(10);
    expect_refused("returned 21 and its control messages name 20", 21);
    begin(received.dialect);
    expect_refused("returned 19 and", 19);
}

/* Sizes whose sum is right only because it wraps, and offsets whose end wraps. */
BOTH(overflows_are_refused)
{
    put_device(0, UINT32_MAX, 5);
    put_device(0, 11, 6);
    expect_refused("name 4294967306 bytes", 10);
    begin(received.dialect);
    message_new();
    put_device(received.dialect == RECEIVED_DEVMEM ? UINT32_MAX : UINT64_MAX, 10, 5);
    expect_added(10);
    assert_int_equal(received_end(&received, 10, UINT32_MAX), TARN_E_PROTOCOL);
    assert_non_null(strstr(tarn_last_error(), "of the bounce memory"));
    begin(received.dialect);
    message_new();
    put_device(0, 1u << 31, 5);
    expect_added(1u << 31);
    assert_int_equal(received_end(&received, 1u << 31, POOL), TARN_E_INVALID);
}

BOTH(messages_longer_or_shorter_than_announced_are_refused)
{
    put_device(0, 100, 5);
    expect_added(100);
    assert_int_equal(received_end(&received, 101, POOL), TARN_E_PROTOCOL);
    assert_int_equal(received_end(&received, 99, POOL), TARN_E_PROTOCOL);
    expect_list(100, (struct tarn_tcpx_fragment[]){{0, 0, 100, 0}}, 1);
}

BOTH(more_in_the_iovec_than_it_holds_is_refused)
{
    put_linear(8000);
    expect_added(8000);
    message_new();
    put_linear(8001);
    expect_refused("in an iovec of 8000", 8001);
}

BOTH(a_message_of_2048_fragments_is_the_longest)
{
    for (uint32_t i = 0; i < TARN_TCPX_FRAGMENTS; i++)
        put_device(4096ull * i, 100, i);
    expect_added(100 * TARN_TCPX_FRAGMENTS);
    message_new();
    put_device(0, 100, 9999);
    expect_refused("more than 2048 fragments", 100);
    assert_int_equal(received.ntokens, TARN_TCPX_FRAGMENTS);
    for (uint32_t i = 0; i < TARN_TCPX_FRAGMENTS; i++)
        assert_int_equal(received.tokens[i], i);
    assert_int_equal(received_end(&received, 100 * TARN_TCPX_FRAGMENTS, POOL), 0);
}

/* Only the newer dialect names a fragment's dma-buf and has 64-bit offsets. */
static void fragments_of_another_dmabuf_are_refused(void **state)
{
    (void)state;
    begin(RECEIVED_DMABUF);
    message_new();
    put_device(5ull << 32, 10, 1);
    expect_added(10);
    expect_list(10, (struct tarn_tcpx_fragment[]){{5ull << 32, 0, 10, 0}}, 1);
    message_new();
    put(SOL_SOCKET, 79, (uint32_t[]){0, 0, 10, 4, DMABUF + 1, 0}, 24);
    expect_refused("lies in dma-buf 78, and the receive queue was given 77", 10);
    expect_tokens((uint32_t[]){1, 4}, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fragments_follow_each_other),
        cmocka_unit_test(linear_fragments_mix_with_others),
        cmocka_unit_test(data_without_control_messages_is_linear),
        cmocka_unit_test(other_control_messages_are_passed_over),
        cmocka_unit_test(the_other_dialect_is_not_understood),
        cmocka_unit_test(truncated_control_data_is_refused),
        cmocka_unit_test(truncated_control_messages_are_refused),
        cmocka_unit_test(empty_fragments_are_refused),
        cmocka_unit_test(wrong_sums_are_refused),
        cmocka_unit_test(overflows_are_refused),
        cmocka_unit_test(messages_longer_or_shorter_than_announced_are_refused),
        cmocka_unit_test(more_in_the_iovec_than_it_holds_is_refused),
        cmocka_unit_test(a_message_of_2048_fragments_is_the_longest),
        cmocka_unit_test(fragments_of_another_dmabuf_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
