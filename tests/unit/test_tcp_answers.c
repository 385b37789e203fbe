/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp's client half with a node that answers wrongly: other sizes, answers to other requests, unasked
 * answers, more bytes than requested. The link breaks, no work succeeds, and nothing is written past a work's
 * pieces. And with one that answers rightly, to many gets at once of which some fail, cut anywhere.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include "tests/unit/fake_node.h"
#include "transport/tcp/tcp_frame.h"

enum { BYTES = 1000, PAST = 200, FRAME = sizeof(struct tarn_tcp_frame), MOST_GETS = 150 };

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

/* Gets in flight at once. */
struct batch {
    uint32_t n, fail_percent, most_sent; /* most_sent: bytes of one send() */
    unsigned seed;
};

static struct {
    int listener;
    pthread_t thread;
    const struct lie *lie;
    const struct batch *batch; /* in place of the lie */
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

static char content(uint32_t get, uint64_t at)
{
    return (char)(get * 31 + at * 7 + (at >> 8));
}

static bool fails(const struct batch *b, uint32_t get)
{
    unsigned seed = b->seed + get * 977;
    return (uint32_t)rand_r(&seed) % 100 < b->fail_percent;
}

/* Answers all of a batch's requests, once they are there. The slot is the get's number. */
static void answer_batch(int fd, const struct batch *b)
{
    struct tarn_tcp_frame f[MOST_GETS];
    if (!take(fd, f, b->n * FRAME))
        return;
    size_t bytes = 0, room = b->n * FRAME;
    for (uint32_t i = 0; i < b->n; i++)
        room += f[i].bytes;
    char *all = malloc(room);
    for (uint32_t i = 0; all && i < b->n; i++) {
        uint64_t asked = f[i].bytes;
        bool failed = fails(b, f[i].slot);
        f[i].op = TARN_TCP_GET | TARN_TCP_ANSWER;
        f[i].status = failed ? TARN_E_STALE : 0;
        f[i].bytes = failed ? 0 : asked;
        memcpy(all + bytes, &f[i], FRAME);
        bytes += FRAME;
        for (uint64_t k = 0; k < f[i].bytes; k++)
            all[bytes++] = content(f[i].slot, k);
    }
    unsigned seed = b->seed;
    for (size_t sent = 0, some; all && sent < bytes; sent += some) {
        some = 1 + (size_t)rand_r(&seed) % b->most_sent;
        if (some > bytes - sent)
            some = bytes - sent;
        if (send(fd, all + sent, some, MSG_NOSIGNAL) != (ssize_t)some)
            break;
    }
    free(all);
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
    if (node.batch)
        answer_batch(fd, node.batch);
    else if (take(fd, &f, FRAME) && (!node.lie->put || take(fd, data, BYTES)))
        answer(fd, f, node.lie);
    while (recv(fd, data, sizeof data, 0) > 0) /* until the client closes */
        ;
    close(fd);
    return NULL;
}

static void node_start(const struct lie *lie, const struct batch *batch)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    node.lie = lie;
    node.batch = batch;
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
        node_start(lie, NULL);
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
        node_start(&truth, NULL);
        struct tarn_link *l = connect_link(ops);
        submit(ops, l, &w, put);
        assert_in_range(runs(ops, l, &w), 0, 1);
        assert_int_equal(w.status, 0);
        assert_int_equal(data[BYTES - 1], put ? 0 : 'p');
        ops->close(l);
        node_end();
    }
}

enum { MOST_PIECES = 12, GET_ROOM = 8192 };

/* One get of a batch. Its pieces lie in `memory`, with gaps. */
struct part {
    struct tarn_work w;
    struct tarn_piece p[MOST_PIECES];
    char memory[GET_ROOM];
};

static void lay_out(struct part *g, uint32_t get, unsigned *seed)
{
    char *at = g->memory;
    uint32_t n = 1 + (uint32_t)rand_r(seed) % MOST_PIECES;
    bool large = rand_r(seed) % 4 == 0;
    memset(g->memory, 'd', sizeof g->memory);
    g->w = (struct tarn_work){.slot = get, .pieces = g->p, .npieces = n, .status = 1, .done = work_done};
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = (uint64_t)rand_r(seed) % (large ? 600 : 20);
        g->p[i] = (struct tarn_piece){.addr = at, .bytes = bytes};
        at += bytes + 1 + (uint64_t)rand_r(seed) % 10;
        g->w.bytes += bytes;
    }
}

/* Its status is that of the answer, its bytes are in place, and none was written between its pieces. */
static void check_part(const struct part *g, const struct batch *b)
{
    uint64_t done = 0;
    const char *at = g->memory;
    uint32_t get = g->w.slot;
    int status = fails(b, get) ? TARN_E_STALE : 0;
    if (g->w.status != status)
        fail_msg("get %u: status %d, not %d", get, g->w.status, status);
    for (uint32_t i = 0; i <= g->w.npieces; i++) {
        const char *begin = i < g->w.npieces ? g->p[i].addr : g->memory + GET_ROOM;
        for (; at < begin; at++)
            if (*at != 'd')
                fail_msg("get %u: a byte ahead of piece %u was written", get, i);
        for (uint64_t k = 0; i < g->w.npieces && k < g->p[i].bytes; k++, at++, done++)
            if (!status && *at != content(get, done))
                fail_msg("get %u: byte %llu is wrong", get, (unsigned long long)done);
    }
}

static void run_batch(const struct tarn_transport_ops *ops, const struct batch *b)
{
    static struct part parts[MOST_GETS];
    unsigned seed = b->seed;
    node_start(NULL, b);
    struct tarn_link *l = connect_link(ops);
    for (uint32_t i = 0; i < b->n; i++) {
        lay_out(&parts[i], i, &seed);
        submit(ops, l, &parts[i].w, false);
    }
    for (uint32_t i = 0; i < b->n; i++)
        if (runs(ops, l, &parts[i].w) < 0)
            fail_msg("get %u: %s", i, tarn_last_error());
    for (uint32_t i = 0; i < b->n; i++)
        check_part(&parts[i], b);
    ops->close(l);
    node_end();
}

/* Gets fail in between others, and answers are cut anywhere: the others' bytes come to their places. */
static void failures_in_between(void **state)
{
    (void)state;
    static const uint32_t percent[] = {0, 3, 30, 80, 100}, most[] = {3, 50, 1000, 100000};
    const struct tarn_transport_ops *ops = find_transport("tcp");
    unsigned seed = (unsigned)tarn_now_ns();
    print_message("seed %u\n", seed);
    alarm(120); /* ends the test if a client waits for bytes that never come */
    for (uint32_t i = 0; i < 100; i++) {
        struct batch b = {.n = 1 + (uint32_t)rand_r(&seed) % MOST_GETS,
                          .fail_percent = percent[i % 5],
                          .most_sent = most[i / 5 % 4],
                          .seed = seed};
        run_batch(ops, &b);
    }
    alarm(0);
}

/* A node passes sessions that only read one connection. */
static void one_passed_connection_is_for_gets(void **state)
{
    (void)state;
    const struct tarn_transport_ops *ops = find_transport("tcp");
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    struct tarn_peer p = fake_peer("v1 127.0.0.1:1 0123456789abcdef0123456789abcdef", &ends[1], 1);
    struct tarn_link *l = NULL;
    struct tarn_work w = {.done = work_done};
    assert_int_equal(ops->connect(&p, &l), 0);
    assert_int_equal(ends[1], -1); /* the link's own now */
    assert_false(l->writable);
    assert_int_equal(ops->put(l, &w), TARN_E_NOT_REACHABLE);
    assert_int_equal(ops->get(l, &w), TARN_INPROGRESS);
    ops->close(l);
    close(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_answers_keep_the_link),
        cmocka_unit_test(wrong_answers_end_the_link),
        cmocka_unit_test(failures_in_between),
        cmocka_unit_test(one_passed_connection_is_for_gets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
