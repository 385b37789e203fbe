/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp's client half with a node that answers wrongly: other sizes, answers to other requests, unasked
 * answers, more bytes than requested. The link breaks, no work succeeds, and nothing is written past a work's
 * pieces.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include "tests/unit/fake_node.h"
#include "transport/tcp/tcp_frame.h"

enum { BYTES = 1000, PAST = 200, FRAME = sizeof(struct tarn_tcp_frame) };

/* One lie: what is wrong in the answer to the first request. */
struct lie {
    const char *what;
    bool put;
    uint32_t magic;
    uint8_t version, op;
    int32_t status;
    uint64_t tag;    /* added */
    int64_t bytes;   /* announced beyond the request */
    int64_t payload; /* sent beyond the request */
    bool unasked;    /* a second answer to one request */
};

static const struct lie lies[] = {
    {.what = "another magic", .magic = 1},
    {.what = "another version", .version = 1},
    {.what = "a request's op", .op = TARN_TCP_ANSWER},
    {.what = "a put's answer", .op = TARN_TCP_GET ^ TARN_TCP_PUT},
    {.what = "a status above 0", .status = 1},
    {.what = "another tag", .tag = 1},
    {.what = "an old tag", .tag = UINT64_MAX},
    {.what = "a byte more", .bytes = 1, .payload = 1},
    {.what = "a byte less", .bytes = -1, .payload = -1},
    {.what = "no bytes", .bytes = -BYTES, .payload = -BYTES},
    {.what = "many more", .bytes = PAST, .payload = PAST},
    {.what = "bytes with a failure", .status = TARN_E_STALE},
    {.what = "bytes behind a failure", .status = TARN_E_STALE, .bytes = -BYTES},
    {.what = "more than it says", .payload = PAST},
    {.what = "twice", .unasked = true},
    {.what = "a get's answer", .put = true, .op = TARN_TCP_GET ^ TARN_TCP_PUT},
    {.what = "another tag to a put", .put = true, .tag = 1},
    {.what = "a status above 0 to a put", .put = true, .status = 1},
    {.what = "a put's answer twice", .put = true, .unasked = true},
};

static struct {
    int listener;
    pthread_t thread;
    const struct lie *lie;
    char address[64];
} node;

static bool take(int fd, void *data, size_t bytes)
{
    return recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* Sends the answer, with its payload, to one request. */
static void answer(int fd, struct tarn_tcp_frame f, const struct lie *lie)
{
    static char payload[BYTES + PAST];
    bool get = f.op == (TARN_TCP_GET | TARN_TCP_NO_TOUCH) || f.op == TARN_TCP_GET;
    uint64_t asked = get ? f.bytes : 0;
    memset(payload, 'p', sizeof payload);
    f.op = (uint8_t)((get ? TARN_TCP_GET : TARN_TCP_PUT) | TARN_TCP_ANSWER) ^ lie->op;
    f.magic ^= lie->magic;
    f.version ^= lie->version;
    f.status = lie->status;
    f.tag += lie->tag;
    f.bytes = asked + (uint64_t)lie->bytes;
    for (int i = 0; i < 1 + lie->unasked; i++) {
        send(fd, &f, FRAME, MSG_NOSIGNAL | MSG_MORE);
        send(fd, payload, asked + (uint64_t)lie->payload, MSG_NOSIGNAL);
    }
}

static void *node_main(void *arg)
{
    struct tarn_tcp_hello hello;
    struct tarn_tcp_frame f;
    static char data[BYTES];
    (void)arg;
    int fd = accept(node.listener, NULL, NULL);
    if (fd < 0 || !take(fd, &hello, sizeof hello))
        return NULL;
    f = (struct tarn_tcp_frame){
        .magic = TARN_TCP_MAGIC, .version = TARN_TCP_VERSION, .op = TARN_TCP_HELLO | TARN_TCP_ANSWER};
    send(fd, &f, FRAME, MSG_NOSIGNAL);
    if (take(fd, &f, FRAME) && (!node.lie->put || take(fd, data, BYTES)))
        answer(fd, f, node.lie);
    while (recv(fd, data, sizeof data, 0) > 0) /* until the client closes */
        ;
    close(fd);
    return NULL;
}

static void node_start(const struct lie *lie)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    node.lie = lie;
    node.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(node.listener, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(node.listener, 4), 0);
    assert_int_equal(getsockname(node.listener, (struct sockaddr *)&at, &bytes), 0);
    snprintf(node.address, sizeof node.address, "127.0.0.1:%u", ntohs(at.sin_port));
    assert_int_equal(pthread_create(&node.thread, NULL, node_main, NULL), 0);
}

static void node_end(void)
{
    shutdown(node.listener, SHUT_RDWR);
    pthread_join(node.thread, NULL);
    close(node.listener);
}

static struct tarn_link *connect_link(const struct tarn_transport_ops *ops)
{
    char text[128];
    int fds[1];
    struct tarn_link *l = NULL;
    snprintf(text, sizeof text, "v1 %s 0123456789abcdef0123456789abcdef", node.address);
    struct tarn_peer p = fake_peer(text, fds, 0);
    p.write = true;
    int rc;
    while ((rc = ops->connect(&p, &l)) == TARN_INPROGRESS)
        ;
    if (rc)
        fail_msg("connect: %s", tarn_last_error());
    return l;
}

/* The final result of progress() on a link whose answers are all there. */
static int runs(const struct tarn_transport_ops *ops, struct tarn_link *l, struct tarn_work *w)
{
    uint64_t deadline = tarn_deadline(WAIT_MS);
    int rc = 0;
    while (rc >= 0 && !w->owner && tarn_now_ns() < deadline)
        rc = ops->wait(l, tarn_deadline(50));
    return rc;
}

static void wrong_answers_end_the_link(void **state)
{
    (void)state;
    const struct tarn_transport_ops *ops = find_transport("tcp");
    alarm(60); /* ends the test if a client waits for bytes that never come */
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        const struct lie *lie = &lies[i];
        static char data[BYTES + 2 * PAST];
        struct tarn_piece p = {.addr = data, .bytes = BYTES};
        struct tarn_work w = {
            .gen = lie->put, .bytes = BYTES, .pieces = &p, .npieces = 1, .status = 1, .done = work_done};
        struct tarn_work next = w; /* submitted after the first answer */
        memset(data, 'd', sizeof data);
        node_start(lie);
        struct tarn_link *l = connect_link(ops);
        submit(ops, l, &w, lie->put);
        int rc = runs(ops, l, &w);
        if (lie->unasked || lie->payload > lie->bytes) {
            /* The first answer is right. What follows is detected with the next work at the latest. */
            if (rc >= 0) {
                submit(ops, l, &next, lie->put);
                rc = next.owner ? TARN_E_NODE_DOWN : runs(ops, l, &next);
                if (next.status == 0)
                    fail_msg("%s: the next work ended well", lie->what);
            }
        } else if (w.status == 0) {
            fail_msg("%s: the work ended well", lie->what);
        }
        if (rc >= 0)
            fail_msg("%s: the link goes on", lie->what);
        for (int k = BYTES; k < BYTES + 2 * PAST; k++)
            if (data[k] != 'd')
                fail_msg("%s: byte %d behind the piece was written", lie->what, k - BYTES);
        ops->close(l);
        node_end();
    }
    alarm(0);
}

/* The same node without a lie. */
static void right_answers_keep_the_link(void **state)
{
    (void)state;
    const struct tarn_transport_ops *ops = find_transport("tcp");
    for (int put = 0; put < 2; put++) {
        const struct lie truth = {.put = put};
        static char data[BYTES];
        struct tarn_piece p = {.addr = data, .bytes = BYTES};
        struct tarn_work w = {
            .gen = (uint64_t)put, .bytes = BYTES, .pieces = &p, .npieces = 1, .status = 1, .done = work_done};
        memset(data, 0, sizeof data);
        node_start(&truth);
        struct tarn_link *l = connect_link(ops);
        submit(ops, l, &w, put);
        assert_in_range(runs(ops, l, &w), 0, 1);
        assert_int_equal(w.status, 0);
        assert_int_equal(data[BYTES - 1], put ? 0 : 'p');
        ops->close(l);
        node_end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_answers_keep_the_link),
        cmocka_unit_test(wrong_answers_end_the_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
