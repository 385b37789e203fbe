/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP moves payload without a staging buffer. Both halves run in this process, and every socket call is
 * intercepted at link time. Each payload byte is sent from, or received into, the pool or the caller's buffer
 * itself. Only frame headers and the HELLO token pass through other memory, and they are counted.
 */
#include "tests/unit/fake_node.h"

#include <sys/uio.h>

#include "transport/tcp/tcp_frame.h"

enum { WORKS = 64 };
#define PAYLOAD (EXTENT - 17)

/* Where payload may be: the pool and the caller's memory. */
struct range {
    const char *from, *to;
};
static struct range allowed[2];
static _Atomic uint64_t direct, aside;

ssize_t __real_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t __real_recvmsg(int fd, struct msghdr *m, int flags);
ssize_t __real_send(int fd, const void *data, size_t bytes, int flags);
ssize_t __real_recv(int fd, void *data, size_t bytes, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *m, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags);
ssize_t __wrap___recv_chk(int fd, void *data, size_t bytes, size_t room, int flags);

static void account(const void *data, size_t bytes)
{
    for (int i = 0; i < 2; i++)
        if ((const char *)data >= allowed[i].from && (const char *)data + bytes <= allowed[i].to) {
            direct += bytes;
            return;
        }
    aside += bytes;
}

static void account_iov(const struct msghdr *m, ssize_t moved)
{
    size_t left = moved > 0 ? (size_t)moved : 0;
    for (size_t i = 0; i < m->msg_iovlen && left > 0; i++) {
        size_t bytes = m->msg_iov[i].iov_len < left ? m->msg_iov[i].iov_len : left;
        account(m->msg_iov[i].iov_base, bytes);
        left -= bytes;
    }
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags)
{
    ssize_t n = __real_sendmsg(fd, m, flags);
    account_iov(m, n);
    return n;
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *m, int flags)
{
    ssize_t n = __real_recvmsg(fd, m, flags);
    account_iov(m, n);
    return n;
}

ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags)
{
    ssize_t n = __real_send(fd, data, bytes, flags);
    account(data, n > 0 ? (size_t)n : 0);
    return n;
}

ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags)
{
    ssize_t n = __real_recv(fd, data, bytes, flags);
    account(data, n > 0 ? (size_t)n : 0);
    return n;
}

/* recv() as compiled with fortification, the default on Ubuntu. */
ssize_t __wrap___recv_chk(int fd, void *data, size_t bytes, size_t room, int flags)
{
    (void)room;
    return __wrap_recv(fd, data, bytes, flags);
}

/* Each payload byte passes two socket ends, and so does the header of each request and answer. */
static void payload_is_moved_without_a_copy(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    char *buffer = malloc(WORKS * PAYLOAD);
    assert_non_null(buffer);
    fill(buffer, WORKS * PAYLOAD, 1);
    allowed[0] = (struct range){n->pool.base, (char *)n->pool.base + n->pool.bytes};
    allowed[1] = (struct range){buffer, buffer + WORKS * PAYLOAD};
    direct = aside = 0;
    struct tarn_link *l = fake_link(n, true);
    struct tarn_work works[WORKS];
    struct tarn_piece pieces[WORKS];
    for (int put = 1; put >= 0; put--) {
        for (uint32_t i = 0; i < WORKS; i++) {
            pieces[i] = (struct tarn_piece){.addr = buffer + i * PAYLOAD, .bytes = PAYLOAD};
            works[i] = fake_work(n, i, &pieces[i], 1);
            submit(n->ops, l, &works[i], put);
        }
        assert_int_equal(finish_works(n->ops, l, works, WORKS), 0);
        for (uint32_t i = 0; i < WORKS; i++) {
            assert_int_equal(works[i].status, 0);
            assert_memory_equal((char *)n->pool.base + i * EXTENT, buffer + i * PAYLOAD, PAYLOAD);
            if (put)
                commit(n, i);
        }
        if (put)
            memset(buffer, 0, WORKS * PAYLOAD);
    }
    n->ops->close(l);
    fake_stop(n);
    assert_int_equal(direct, 2 * 2 * WORKS * PAYLOAD);
    uint64_t frames = 2 * 2 * 2 * WORKS * sizeof(struct tarn_tcp_frame);
    uint64_t hellos = 2 * (2 * sizeof(struct tarn_tcp_frame) + TARN_TOKEN) * 2;
    assert_in_range(aside, frames, frames + hellos);
    free(buffer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(payload_is_moved_without_a_copy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
