/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp's client half with a node that is played: a large get comes in two halves, over a connection each. It
 * ends once, with the last half, and well only if both did.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include "tests/unit/fake_node.h"
#include "transport/tcp/tcp_frame.h"

enum { BYTES = (1 << 20) + 7, AROUND = 64, FRAME = sizeof(struct tarn_tcp_frame), CLOSES = 1 };

/* What becomes of each half: 0, a status, or CLOSES; and which comes first. */
struct scene {
    int half[2], first;
};

static struct {
    int listener;
    pthread_t thread;
    const struct scene *scene;
    char address[64];
} node;

static char content(uint64_t at)
{
    return (char)(at * 13 + (at >> 8) * 7 + (at >> 16));
}

static bool take(int fd, void *data, size_t bytes)
{
    return recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static int accept_one(void)
{
    struct tarn_tcp_hello hello;
    struct tarn_tcp_frame f = {
        .magic = TARN_TCP_MAGIC, .version = TARN_TCP_VERSION, .op = TARN_TCP_HELLO | TARN_TCP_ANSWER};
    int fd = accept(node.listener, NULL, NULL);
    if (fd >= 0 && take(fd, &hello, sizeof hello))
        send(fd, &f, FRAME, MSG_NOSIGNAL);
    return fd;
}

/* Answers a get with what the object has there. */
static void answer(int fd, struct tarn_tcp_frame f, int status)
{
    static char payload[BYTES];
    for (uint64_t i = 0; i < f.bytes; i++)
        payload[i] = content(f.offset + i);
    f.bytes = status ? 0 : f.bytes;
    f.status = status;
    f.op = TARN_TCP_GET | TARN_TCP_ANSWER;
    send(fd, &f, FRAME, MSG_NOSIGNAL | MSG_MORE);
    send(fd, payload, f.bytes, MSG_NOSIGNAL);
}

static void *node_main(void *arg)
{
    const struct scene *s = node.scene;
    struct tarn_tcp_frame f[2];
    char byte;
    int fd[2] = {accept_one(), -1};
    (void)arg;
    if (take(fd[0], f, FRAME)) /* a small get */
        answer(fd[0], f[0], 0);
    fd[1] = accept_one();
    bool asked = take(fd[0], &f[0], FRAME) && take(fd[1], &f[1], FRAME);
    for (int i = 0; asked && i < 2; i++) {
        int k = i ^ s->first;
        if (s->half[k] == CLOSES)
            shutdown(fd[k], SHUT_RDWR);
        else
            answer(fd[k], f[k], s->half[k]);
    }
    for (int i = 0; i < 2; i++) {
        while (recv(fd[i], &byte, 1, 0) > 0) /* until the client closes */
            ;
        close(fd[i]);
    }
    return NULL;
}

static struct tarn_link *start(const struct scene *s, const struct tarn_transport_ops *ops)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    struct tarn_link *l = NULL;
    node.scene = s;
    node.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(node.listener, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(node.listener, 4), 0);
    assert_int_equal(getsockname(node.listener, (struct sockaddr *)&at, &bytes), 0);
    snprintf(node.address, sizeof node.address, "v1 127.0.0.1:%u 0123456789abcdef0123456789abcdef",
             ntohs(at.sin_port));
    assert_int_equal(pthread_create(&node.thread, NULL, node_main, NULL), 0);
    struct tarn_peer p = fake_peer(node.address, NULL, 0);
    assert_int_equal(ops->connect(&p, &l), 0);
    return l;
}

static int get(const struct tarn_transport_ops *ops, struct tarn_link *l, void *to, uint64_t bytes)
{
    struct tarn_piece p = {.addr = to, .bytes = bytes};
    struct tarn_work w = {.offset = 3,
                          .bytes = bytes,
                          .pieces = &p,
                          .npieces = 1,
                          .touch = true,
                          .status = 1,
                          .done = work_done};
    uint64_t deadline = tarn_deadline(WAIT_MS);
    submit(ops, l, &w, false);
    while (!w.owner && tarn_now_ns() < deadline)
        ops->wait(l, tarn_deadline(500));
    assert_non_null(w.owner);
    return w.status;
}

static void a_large_get_ends_with_both_halves(void **state)
{
    (void)state;
    static const struct scene scenes[] = {
        {{0, 0}, 0},
        {{0, 0}, 1},
        {{TARN_E_STALE, 0}, 0},
        {{TARN_E_STALE, 0}, 1},
        {{0, TARN_E_STALE}, 0},
        {{0, TARN_E_STALE}, 1},
        {{CLOSES, 0}, 0},
        {{CLOSES, 0}, 1},
        {{0, CLOSES}, 0},
        {{0, CLOSES}, 1},
    };
    static char memory[AROUND + BYTES + AROUND];
    const struct tarn_transport_ops *ops = find_transport("tcp");
    alarm(60); /* ends the test if a client waits for bytes that never come */
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        const struct scene *s = &scenes[i];
        struct tarn_link *l = start(s, ops);
        char *data = memory + AROUND;
        memset(memory, 'd', sizeof memory);
        assert_int_equal(get(ops, l, data, 1), 0);
        bool closes = s->half[0] == CLOSES || s->half[1] == CLOSES;
        int due = closes ? TARN_E_NODE_DOWN : s->half[0] + s->half[1];
        int status = get(ops, l, data, BYTES);
        if (status != due)
            fail_msg("scene %zu: %d, not %d", i, status, due);
        for (uint64_t k = 0; status == 0 && k < BYTES; k++)
            if (data[k] != content(3 + k))
                fail_msg("scene %zu: byte %llu is wrong", i, (unsigned long long)k);
        for (int k = 0; k < AROUND; k++)
            assert_true(memory[k] == 'd' && memory[AROUND + BYTES + k] == 'd');
        ops->close(l);
        shutdown(node.listener, SHUT_RDWR);
        pthread_join(node.thread, NULL);
        close(node.listener);
    }
    alarm(0);
}

/* close() ends it, too, once. */
static void closing_ends_both_halves(void **state)
{
    (void)state;
    static char data[BYTES];
    static const struct scene never = {{CLOSES, CLOSES}, 0};
    const struct tarn_transport_ops *ops = find_transport("tcp");
    struct tarn_link *l = start(&never, ops);
    struct tarn_piece p = {.addr = data, .bytes = BYTES};
    struct tarn_work w = {.bytes = BYTES, .pieces = &p, .npieces = 1, .status = 1, .done = work_done};
    assert_int_equal(get(ops, l, data, 1), 0);
    submit(ops, l, &w, false);
    assert_null(w.owner);
    ops->close(l); /* before anything was sent */
    assert_non_null(w.owner);
    assert_int_equal(w.status, TARN_E_CANCELED);
    shutdown(node.listener, SHUT_RDWR);
    pthread_join(node.thread, NULL);
    close(node.listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_get_ends_with_both_halves),
        cmocka_unit_test(closing_ends_both_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
