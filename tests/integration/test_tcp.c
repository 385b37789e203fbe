/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP's node half with clients of every kind (wrong, rude, slow, dying, too many), and links whose node dies.
 */
#include "tests/unit/fake_node.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <time.h>

#include "transport/tcp/tcp_frame.h"

/* The clock can be moved forward, so that a limit of half a minute needs no half minute of test. */
static _Atomic int64_t clock_ahead_s;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, t);
    t->tv_sec += atomic_load(&clock_ahead_s);
    return rc;
}

struct client {
    struct sockaddr_in address;
    char token[TARN_TOKEN + 1];
};

/* What a client knows after ATTACH. */
static struct client attach(struct fake_node *n, uint64_t session)
{
    struct client c = {.address.sin_family = AF_INET};
    char text[TARN_ATTACH_TEXT], host[64];
    int fds[56];
    unsigned port;
    assert_int_equal(fake_attach(n, session, false, "", text, fds), 0);
    assert_int_equal(sscanf(text, "v1 %63[^:]:%u %32s", host, &port, c.token), 3);
    assert_int_equal(inet_pton(AF_INET, host, &c.address.sin_addr), 1);
    c.address.sin_port = htons((uint16_t)port);
    return c;
}

static int dial(const struct client *c)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct timeval limit = {.tv_sec = WAIT_MS / 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    assert_int_equal(connect(fd, (const struct sockaddr *)&c->address, sizeof(c->address)), 0);
    return fd;
}

static struct tarn_tcp_frame frame(uint8_t op)
{
    return (struct tarn_tcp_frame){.magic = TARN_TCP_MAGIC, .version = TARN_TCP_VERSION, .op = op};
}

static struct tarn_tcp_hello hello(const struct client *c)
{
    struct tarn_tcp_hello h = {.frame = frame(TARN_TCP_HELLO)};
    h.frame.gen = SESSION;
    h.frame.bytes = TARN_TOKEN;
    memcpy(h.token, c->token, TARN_TOKEN);
    return h;
}

static void say(int fd, const void *data, size_t bytes)
{
    assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
}

/* The status of the next answer; 1 if the node closed the connection. */
static int answer(int fd)
{
    struct tarn_tcp_frame f;
    ssize_t n = recv(fd, &f, sizeof(f), MSG_WAITALL);
    if (n <= 0)
        return n == 0 || errno == ECONNRESET ? 1 : 2;
    assert_int_equal(n, sizeof(f));
    assert_int_equal(f.magic, TARN_TCP_MAGIC);
    assert_true(f.op & TARN_TCP_ANSWER);
    return f.status;
}

static int greeted(const struct client *c)
{
    int fd = dial(c);
    struct tarn_tcp_hello h = hello(c);
    say(fd, &h, sizeof(h));
    assert_int_equal(answer(fd), 0);
    return fd;
}

static struct tarn_tcp_frame request(struct fake_node *n, uint8_t op, uint32_t slot, uint64_t bytes)
{
    struct tarn_tcp_frame f = frame(op);
    f.slot = slot;
    f.gen = atomic_load(&n->pool.gen[slot]);
    f.offset = slot * EXTENT;
    f.bytes = bytes;
    return f;
}

/* Checks that the node still serves other clients. */
static void node_works(struct fake_node *n)
{
    struct tarn_link *l = fake_link(n, false);
    char in[1000], out[1000];
    fill(in, sizeof(in), 1);
    wait_until(atomic_load(&n->shared->pins[SLOTS - 1]) == 0); /* like a node before it reuses an extent */
    atomic_store(&n->pool.gen[SLOTS - 1], ((uint64_t)EPOCH << 32) + 1);
    assert_int_equal(put_bytes(n, l, SLOTS - 1, in, sizeof(in)), 0);
    commit(n, SLOTS - 1);
    assert_int_equal(get_bytes(n, l, SLOTS - 1, out, sizeof(out)), 0);
    assert_memory_equal(in, out, sizeof(in));
    n->ops->close(l);
}

/* --- HELLO -------------------------------------------------------------------------------------- */

/* The first get or put finds the answer to HELLO. */
static void first_work_is_refused(const struct tarn_transport_ops *ops, struct tarn_link *l, int status)
{
    char byte;
    struct tarn_piece p = {.addr = &byte, .bytes = 1};
    struct tarn_work w = {.pieces = &p, .npieces = 1, .bytes = 1, .done = work_done};
    submit(ops, l, &w, false);
    assert_int_equal(finish_works(ops, l, &w, 1), status);
    assert_non_null(w.owner);
    assert_int_equal(w.status, status);
    assert_non_null(strstr(w.why, "n1"));
    ops->close(l);
}

static void a_wrong_token_is_refused(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    struct client c = attach(n, SESSION);
    struct client again = attach(n, SESSION), other = attach(n, SESSION + 1);
    assert_string_equal(c.token, again.token);
    assert_string_not_equal(c.token, other.token);
    int fd = dial(&c);
    struct tarn_tcp_hello h = hello(&other); /* another session's */
    say(fd, &h, sizeof(h));
    assert_int_equal(answer(fd), TARN_E_AUTH);
    assert_int_equal(answer(fd), 1);
    close(fd);

    char text[TARN_ATTACH_TEXT];
    snprintf(text, sizeof(text), "v1 127.0.0.1:%u 00000000000000000000000000000000",
             ntohs(c.address.sin_port));
    struct tarn_link *l = NULL;
    struct tarn_peer p = fake_peer(text, NULL, 0);
    assert_int_equal(n->ops->connect(&p, &l), 0);
    first_work_is_refused(n->ops, l, TARN_E_AUTH);
    fake_stop(n);
}

static void a_client_of_another_version_is_refused(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    struct client c = attach(n, SESSION);
    int fd = dial(&c);
    struct tarn_tcp_frame f = frame(TARN_TCP_HELLO); /* the header suffices */
    f.version = 2;
    say(fd, &f, sizeof(f));
    assert_int_equal(answer(fd), TARN_E_VERSION);
    assert_int_equal(answer(fd), 1);
    close(fd);
    node_works(n);
    fake_stop(n);
}

/* A node of another version, as seen by a client. */
static void a_node_of_another_version_is_named(void **state)
{
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, bytes), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &bytes), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = accept(listener, NULL, NULL);
        struct tarn_tcp_hello h;
        struct tarn_tcp_frame f = frame(TARN_TCP_HELLO | TARN_TCP_ANSWER);
        f.version = 2;
        f.status = TARN_E_VERSION;
        /* Closing with unread bytes would reset the connection, and the answer could be lost. */
        recv(fd, &h, sizeof(h), MSG_WAITALL);
        send(fd, &f, sizeof(f), MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        while (recv(fd, &h, sizeof(h), 0) > 0)
            ;
        _exit(0);
    }
    char text[TARN_ATTACH_TEXT];
    snprintf(text, sizeof(text), "v1 127.0.0.1:%u 00000000000000000000000000000000", ntohs(a.sin_port));
    struct tarn_link *l = NULL;
    struct tarn_peer p = fake_peer(text, NULL, 0);
    assert_int_equal(find_transport("tcp")->connect(&p, &l), 0);
    first_work_is_refused(find_transport("tcp"), l, TARN_E_VERSION);
    close(listener);
    waitpid(pid, NULL, 0);
}

static void connecting_does_not_wait_for_a_silent_node(void **state)
{
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, bytes), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &bytes), 0);
    char text[TARN_ATTACH_TEXT];
    snprintf(text, sizeof(text), "v1 127.0.0.1:%u 00000000000000000000000000000000", ntohs(a.sin_port));
    struct tarn_link *l = NULL;
    struct tarn_peer p = fake_peer(text, NULL, 0);
    p.deadline_ns = tarn_deadline(50);
    assert_int_equal(find_transport("tcp")->connect(&p, &l), 0);
    find_transport("tcp")->close(l);
    close(listener);
    p.deadline_ns = tarn_deadline(5000);
    assert_int_equal(find_transport("tcp")->connect(&p, &l), TARN_E_NODE_DOWN); /* and no node at all */
}

/* --- passed over the Unix socket ---------------------------------------------------------------- */

static void passed_connections_end_with_their_session(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp-unix", false, 0);
    char text[TARN_ATTACH_TEXT];
    int reads[1], writes[2], fds[56];
    assert_int_equal(fake_attach(n, SESSION, false, "", text, reads), 1);
    assert_int_equal(fake_attach(n, SESSION, true, "", text, writes), 2);
    assert_int_equal(fake_attach(n, SESSION + 1, true, "", text, fds), 2);
    fake_detach(n, SESSION);
    assert_int_equal(answer(reads[0]), 1);
    assert_int_equal(answer(writes[0]), 1);
    assert_int_equal(answer(writes[1]), 1);
    assert_true(recv(fds[1], text, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN); /* the other one goes on */
    const int all[] = {reads[0], writes[0], writes[1], fds[0], fds[1]};
    for (int i = 0; i < 5; i++)
        close(all[i]);
    fake_stop(n);
}

/* They have no time limit for HELLO, and ask for the token as others do. */
static void passed_connections_need_the_token(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp-unix", false, 0);
    char text[TARN_ATTACH_TEXT];
    int fds[2];
    assert_int_equal(fake_attach(n, SESSION, true, "", text, fds), 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(fcntl(fds[i], F_SETFL, 0), 0);
    struct tarn_tcp_hello h = {.frame = frame(TARN_TCP_HELLO)};
    h.frame.gen = SESSION;
    h.frame.bytes = TARN_TOKEN;
    memset(h.token, '0', TARN_TOKEN);
    say(fds[0], &h, sizeof(h));
    assert_int_equal(answer(fds[0]), TARN_E_AUTH);
    assert_int_equal(answer(fds[0]), 1);
    struct tarn_tcp_frame f = frame(TARN_TCP_GET);
    say(fds[1], &f, sizeof(f));
    assert_int_equal(answer(fds[1]), 1);
    close(fds[0]);
    close(fds[1]);
    fake_stop(n);
}

/* When descriptors run out, a session gets all its connections or none. */
static void passed_connections_come_together(void **state)
{
    (void)state;
    char text[TARN_ATTACH_TEXT];
    int fds[56];
    for (rlim_t limit = 60; limit < 66; limit++) {
        struct fake_node *n = fake_start("tcp-unix", true, limit);
        int held[200];
        uint32_t count = 0, got = 2;
        for (int i = 0; i < 100 && got; i++) {
            got = fake_attach(n, SESSION, true, "", text, fds);
            assert_true(got == 0 || got == 2);
            memcpy(held + count, fds, got * sizeof(int));
            count += got;
        }
        assert_int_equal(got, 0);
        assert_int_equal(strncmp(text, "v1 127.0.0.1:", 13), 0); /* by which it can connect */
        while (count > 0)
            close(held[--count]);
        wait_until(fake_attach(n, SESSION, true, "", text, fds) == 2); /* descriptors come back */
        close(fds[0]);
        close(fds[1]);
        fake_stop(n);
    }
}

/* --- malformed ---------------------------------------------------------------------------------- */

static void misbehaving_clients_are_closed(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    struct client c = attach(n, SESSION);
    for (int kind = 0; kind < 8; kind++) {
        int fd = kind < 3 ? dial(&c) : greeted(&c);
        struct tarn_tcp_hello h = hello(&c);
        struct tarn_tcp_frame f = request(n, TARN_TCP_GET, 0, 10);
        if (kind == 0) {
            say(fd, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: x\r\n\r\n", 51);
        } else if (kind == 1) { /* a request before HELLO */
            say(fd, &f, sizeof(f));
        } else if (kind == 2) { /* a HELLO of another length */
            h.frame.bytes = 1 << 30;
            say(fd, &h, sizeof(h));
        } else if (kind == 3) { /* a second HELLO */
            say(fd, &h, sizeof(h.frame));
        } else if (kind == 4) { /* an unknown operation */
            f.op = 77;
            say(fd, &f, sizeof(f));
        } else if (kind == 5) { /* shifted by one byte */
            say(fd, (char *)&f + 1, sizeof(f) - 1);
            say(fd, &f, 1);
        } else if (kind == 6) { /* a put on a connection for gets */
            say(fd, &f, sizeof(f));
            assert_int_equal(answer(fd), TARN_E_STALE); /* gen is odd */
            f.op = TARN_TCP_PUT;
            say(fd, &f, sizeof(f));
        } else { /* a get on a connection for puts */
            f.op = TARN_TCP_PUT;
            f.bytes = 0;
            say(fd, &f, sizeof(f));
            assert_int_equal(answer(fd), 0);
            f.op = TARN_TCP_GET;
            say(fd, &f, sizeof(f));
        }
        assert_int_equal(answer(fd), 1);
        close(fd);
    }
    node_works(n);
    fake_stop(n);
}

static void random_bytes_do_no_harm(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    struct client c = attach(n, SESSION);
    uint64_t seed = tarn_now_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 100; round++) {
        int fd = round % 2 ? greeted(&c) : dial(&c);
        struct {
            struct tarn_tcp_frame f;
            uint8_t noise[500];
        } m;
        fill(&m, sizeof(m), seed + (uint64_t)round);
        if (round % 4 == 1) { /* valid first bytes, random fields */
            m.f.magic = TARN_TCP_MAGIC;
            m.f.version = TARN_TCP_VERSION;
            m.f.op = round % 8 == 1 ? TARN_TCP_GET : TARN_TCP_PUT;
        }
        send(fd, &m, sizeof(m), MSG_NOSIGNAL);
        close(fd);
    }
    wait_until(fake_pins(n) == 0);
    node_works(n);
    fake_stop(n);
}

static void clients_that_leave_halfway_leave_no_pins(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    struct client c = attach(n, SESSION);
    struct tarn_tcp_hello h = hello(&c);
    struct tarn_tcp_frame put = request(n, TARN_TCP_PUT, 0, EXTENT);
    struct tarn_tcp_frame get = request(n, TARN_TCP_GET, 1, EXTENT);
    char half[EXTENT / 2];
    memset(half, 7, sizeof(half));
    commit(n, 1);
    get.gen++;

    int fd = dial(&c); /* half a HELLO */
    say(fd, &h, 60);
    close(fd);
    fd = greeted(&c); /* half a frame */
    say(fd, &put, 20);
    close(fd);
    fd = greeted(&c); /* half a payload */
    say(fd, &put, sizeof(put));
    say(fd, half, sizeof(half));
    wait_until(atomic_load(&n->shared->pins[0]) == 1);
    close(fd);
    wait_until(atomic_load(&n->shared->pins[0]) == 0);
    fd = greeted(&c); /* reads half an answer */
    for (int i = 0; i < 20; i++)
        say(fd, &get, sizeof(get));
    assert_int_equal(answer(fd), 0);
    close(fd);
    wait_until(fake_pins(n) == 0);
    node_works(n);
    fake_stop(n);
}

/* A HELLO that arrives byte by byte, and requests cut anywhere, work like whole ones. */
static void frames_may_arrive_in_pieces(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    struct client c = attach(n, SESSION);
    struct tarn_tcp_hello h = hello(&c);
    int fd = dial(&c);
    for (size_t i = 0; i < sizeof(h); i++)
        say(fd, (char *)&h + i, 1);
    assert_int_equal(answer(fd), 0);
    struct {
        struct tarn_tcp_frame f;
        char payload[10];
    } put[3];
    for (uint32_t i = 0; i < 3; i++) {
        put[i].f = request(n, TARN_TCP_PUT, i, i == 1 ? 0 : 10);
        memset(put[i].payload, 'a' + (int)i, 10);
    }
    /* The second has no payload: 58 + 48 + 58 bytes. */
    char stream[164];
    memcpy(stream, &put[0], 58);
    memcpy(stream + 58, &put[1], 48);
    memcpy(stream + 106, &put[2], 58);
    for (size_t i = 0; i < sizeof(stream); i += 7)
        say(fd, stream + i, i + 7 <= sizeof(stream) ? 7 : sizeof(stream) - i);
    for (int i = 0; i < 3; i++)
        assert_int_equal(answer(fd), 0);
    assert_memory_equal((char *)n->pool.base + 2 * EXTENT, "cccccccccc", 10);
    close(fd);
    fake_stop(n);
}

/* --- many, slow, gone --------------------------------------------------------------------------- */

static void empty_puts_in_a_row_all_answer(void **state)
{
    (void)state;
    enum { N = 1000 };
    struct fake_node *n = fake_start("tcp", false, 0);
    struct tarn_link *l = fake_link(n, false);
    static struct tarn_work w[N];
    for (uint32_t i = 0; i < N; i++) {
        w[i] = fake_work(n, i % SLOTS, NULL, 0);
        submit(n->ops, l, &w[i], true);
    }
    assert_int_equal(finish_works(n->ops, l, w, N), 0);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(w[i].status, 0);
    n->ops->close(l);
    fake_stop(n);
}

static void a_slow_reader_delays_no_other_client(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    struct client c = attach(n, SESSION);
    enum { SLOW = 6 };
    int fds[SLOW];
    for (uint32_t i = 0; i < 60; i++)
        commit(n, i);
    for (int s = 0; s < SLOW; s++) { /* enough for every I/O thread */
        fds[s] = greeted(&c);
        for (uint32_t i = 0; i < 60; i++) {
            struct tarn_tcp_frame f = request(n, TARN_TCP_GET, i, EXTENT);
            say(fds[s], &f, sizeof(f));
        }
    }
    node_works(n);
    node_works(n);
    /* Each connection pins what it is sending in this turn, not all that was requested. */
    assert_in_range(fake_pins(n), 1, SLOW * 6);
    for (int s = 0; s < SLOW; s++)
        close(fds[s]);
    wait_until(fake_pins(n) == 0);
    fake_stop(n);
}

static void many_connections(void **state)
{
    (void)state;
    enum { N = 400 };
    struct fake_node *n = fake_start("tcp", true, 2000);
    struct client c = attach(n, SESSION);
    int fds[N];
    for (int i = 0; i < N; i++)
        fds[i] = greeted(&c);
    commit(n, 0);
    struct tarn_tcp_frame f = request(n, TARN_TCP_GET, 0, 0);
    for (int i = 0; i < N; i++)
        say(fds[i], &f, sizeof(f));
    for (int i = 0; i < N; i++) {
        assert_int_equal(answer(fds[i]), 0);
        close(fds[i]);
    }
    node_works(n);
    fake_stop(n);
}

static unsigned io_threads(void)
{
    unsigned n = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *e; (e = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        FILE *f = fopen(path, "r");
        if (f && fgets(name, sizeof name, f))
            n += strncmp(name, "tarn-tcp-", 9) == 0;
        if (f)
            fclose(f);
    }
    closedir(tasks);
    return n;
}

/* At most two here. Each connection is served, whichever thread has it. */
static void threads_come_with_connections(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    const struct client c = attach(n, SESSION);
    int fds[4];
    assert_int_equal(io_threads(), 1);
    for (unsigned i = 0; i < 4; i++) {
        const struct tarn_tcp_frame f = request(n, TARN_TCP_GET, i, 0);
        fds[i] = greeted(&c);
        say(fds[i], &f, sizeof f);
        assert_int_equal(answer(fds[i]), TARN_E_STALE);
        assert_int_equal(io_threads(), i == 0 ? 1 : 2);
    }
    for (unsigned i = 0; i < 4; i++)
        close(fds[i]);
    fake_stop(n);
}

/* More connections than descriptors: they wait while others are served. When some connections close, they are
 * served, too. */
static void a_node_survives_a_shortage_of_descriptors(void **state)
{
    (void)state;
    enum { N = 60 };
    struct fake_node *n = fake_start("tcp", true, 40);
    struct client c = attach(n, SESSION);
    struct tarn_link *before = fake_link(n, false);
    int fds[N];
    for (int i = 0; i < N; i++) {
        fds[i] = dial(&c);
        struct tarn_tcp_hello h = hello(&c);
        say(fds[i], &h, sizeof(h));
    }
    char in[100] = "x";
    assert_int_equal(put_bytes(n, before, 0, in, sizeof(in)), 0);
    int served = 0;
    for (int i = 0; i < N; i++) {
        if (answer(fds[i]) == 0)
            served++;
        close(fds[i]);
    }
    assert_int_equal(served, N); /* each after an earlier one closed */
    n->ops->close(before);
    node_works(n);
    fake_stop(n);
}

static void silence_instead_of_hello_is_closed(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    struct client c = attach(n, SESSION);
    int fd = dial(&c), greeted_fd = greeted(&c);
    uint64_t begun = tarn_now_ns();
    assert_int_equal(answer(fd), 1);
    assert_in_range((tarn_now_ns() - begun) / TARN_NS_PER_MS, 4000, 15000);
    struct tarn_tcp_frame f = request(n, TARN_TCP_GET, 0, 0);
    say(greeted_fd, &f, sizeof(f)); /* after HELLO, idle is allowed */
    assert_int_equal(answer(greeted_fd), TARN_E_STALE);
    close(fd);
    close(greeted_fd);
    fake_stop(n);
}

/* A pin keeps an extent from reuse, so a client must not be able to prolong it. */
static void a_stalled_put_loses_its_pin(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    struct client c = attach(n, SESSION);
    int fd = greeted(&c), idle = greeted(&c);
    char some[100] = {1};
    struct tarn_tcp_frame f = request(n, TARN_TCP_PUT, 3, EXTENT);
    f.bytes = 1000;
    say(fd, &f, sizeof(f));
    say(fd, some, sizeof(some));
    f.bytes = 0; /* a finished put has no time limit */
    say(idle, &f, sizeof(f));
    assert_int_equal(answer(idle), 0);
    wait_until(fake_pins(n) == 1);
    atomic_fetch_add(&clock_ahead_s, 20);
    for (int i = 0; i < 9; i++)
        say(fd, some, sizeof(some));
    assert_int_equal(answer(fd), 0);
    f.bytes = 1000; /* the next put has its own time limit */
    say(fd, &f, sizeof(f));
    wait_until(fake_pins(n) == 1);
    atomic_fetch_add(&clock_ahead_s, 20);
    f.bytes = 0;
    say(idle, &f, sizeof(f));
    assert_int_equal(answer(idle), 0);
    assert_int_equal(fake_pins(n), 1);
    atomic_fetch_add(&clock_ahead_s, 40);
    assert_int_equal(answer(fd), 1);
    wait_until(fake_pins(n) == 0);
    say(idle, &f, sizeof(f));
    assert_int_equal(answer(idle), 0);
    close(fd);
    close(idle);
    fake_stop(n);
}

static void a_get_says_whether_it_counts_as_use(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    struct tarn_link *l = fake_link(n, false);
    char out[100];
    struct tarn_piece p = {out, sizeof(out), 0, 0};
    commit(n, 5);
    for (uint32_t uses = 0; uses < 4; uses++) {
        struct tarn_work w = fake_work(n, 5, &p, 1);
        w.touch = uses % 2;
        assert_int_equal(run_work(n->ops, l, &w, false), 0);
        assert_int_equal(atomic_load(&n->pool.touch[5]), (uses + 1) / 2);
    }
    struct tarn_work gone = fake_work(n, 6, &p, 1); /* gen is odd */
    gone.touch = true;
    assert_int_equal(run_work(n->ops, l, &gone, false), TARN_E_STALE);
    assert_int_equal(atomic_load(&n->pool.touch[6]), 0);
    n->ops->close(l);

    struct client c = attach(n, SESSION);
    int fd = greeted(&c);
    struct tarn_tcp_frame f = request(n, TARN_TCP_PUT, 7, 0);
    say(fd, &f, sizeof(f));
    assert_int_equal(answer(fd), 0);
    f.op |= TARN_TCP_NO_TOUCH; /* no such flag for puts */
    say(fd, &f, sizeof(f));
    assert_int_equal(answer(fd), 1);
    close(fd);
    fake_stop(n);
}

static void detach_ends_a_session(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", false, 0);
    struct client c = attach(n, SESSION), other = attach(n, SESSION + 1);
    struct tarn_link *l = fake_link(n, false);
    struct tarn_tcp_frame f = request(n, TARN_TCP_PUT, 0, EXTENT);
    int writing = greeted(&c), idle = greeted(&c);
    say(writing, &f, sizeof(f));
    wait_until(atomic_load(&n->shared->pins[0]) == 1);
    fake_detach(n, SESSION);
    wait_until(atomic_load(&n->shared->pins[0]) == 0); /* nothing more is received */
    assert_int_equal(answer(writing), 1);
    assert_int_equal(answer(idle), 1);
    int late = dial(&c);
    struct tarn_tcp_hello h = hello(&c);
    say(late, &h, sizeof(h));
    assert_int_equal(answer(late), TARN_E_AUTH);

    char out[10];
    struct tarn_piece p = {out, sizeof(out), 0, 0};
    struct tarn_work w = fake_work(n, 1, &p, 1);
    submit(n->ops, l, &w, false);
    assert_int_equal(finish_works(n->ops, l, &w, 1), TARN_E_NODE_DOWN);
    assert_int_equal(w.status, TARN_E_NODE_DOWN);
    n->ops->close(l);

    int fd = dial(&other); /* other sessions stay */
    h = hello(&other);
    h.frame.gen = SESSION + 1;
    say(fd, &h, sizeof(h));
    assert_int_equal(answer(fd), 0);
    close(fd);
    close(writing);
    close(idle);
    close(late);
    fake_detach(n, 12345);
    fake_stop(n);
}

/* --- a node that dies --------------------------------------------------------------------------- */

static void dying_node(bool put, uint32_t progresses)
{
    struct fake_node *n = fake_start("tcp", true, 0);
    struct tarn_link *l = fake_link(n, false);
    enum { N = 16 };
    struct tarn_work w[N];
    char *buffer = malloc(EXTENT);
    fill(buffer, EXTENT, 1);
    struct tarn_piece p = {buffer, EXTENT, 0, 0};
    for (uint32_t i = 0; i < N; i++) {
        if (!put)
            commit(n, i);
        w[i] = fake_work(n, i, &p, 1);
        submit(n->ops, l, &w[i], put);
    }
    for (uint32_t i = 0; i < progresses; i++)
        assert_int_equal(n->ops->progress(l), 0);
    fake_kill(n);
    assert_int_equal(finish_works(n->ops, l, w, N), TARN_E_NODE_DOWN);
    assert_non_null(strstr(tarn_last_error(), "n1"));
    int down = 0;
    for (uint32_t i = 0; i < N; i++) {
        assert_non_null(w[i].owner);
        assert_true(w[i].status == 0 || w[i].status == TARN_E_NODE_DOWN);
        down += w[i].status != 0;
    }
    assert_true(down > 0);
    assert_int_equal(n->ops->progress(l), TARN_E_NODE_DOWN); /* the link stays broken */
    struct tarn_work late = fake_work(n, 0, &p, 1);
    assert_int_equal(n->ops->get(l, &late), TARN_E_NODE_DOWN);
    n->ops->close(l);
    free(buffer);
    fake_stop(n);
}

static void a_node_that_dies_fails_gets(void **state)
{
    (void)state;
    dying_node(false, 0);
    dying_node(false, 1);
    dying_node(false, 3);
}

static void a_node_that_dies_fails_puts(void **state)
{
    (void)state;
    dying_node(true, 0);
    dying_node(true, 1);
    dying_node(true, 3);
}

/* Lost while idle: the next work finds out at once, long before its deadline. */
static void a_dead_node_is_noticed_at_the_next_work(void **state)
{
    (void)state;
    for (int put = 0; put < 2; put++) {
        struct fake_node *n = fake_start("tcp", true, 0);
        struct tarn_link *l = fake_link(n, false);
        char data[100];
        assert_int_equal(get_bytes(n, l, 0, data, sizeof(data)), TARN_E_STALE);
        fake_kill(n);
        struct tarn_piece p = {data, sizeof(data), 0, 0};
        struct tarn_work w = fake_work(n, 0, &p, 1);
        submit(n->ops, l, &w, put);
        if (!w.owner)
            assert_int_equal(finish_works(n->ops, l, &w, 1), TARN_E_NODE_DOWN);
        assert_int_equal(w.status, TARN_E_NODE_DOWN);
        n->ops->close(l);
        fake_stop(n);
    }
}

/* --- waiting ------------------------------------------------------------------------------------ */

static void wait_ends_with_the_answer_or_the_deadline(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", true, 0);
    struct tarn_link *l = fake_link(n, false);
    char data[5000];
    struct tarn_piece p = {data, sizeof(data), 0, 0};
    assert_int_equal(n->ops->wait(l, tarn_deadline(WAIT_MS)), 0); /* nothing in flight: returns at once */
    for (int put = 1; put >= 0; put--) {
        struct tarn_work w = fake_work(n, 0, &p, 1);
        assert_int_equal(put ? n->ops->put(l, &w) : n->ops->get(l, &w), TARN_INPROGRESS);
        for (uint64_t deadline = tarn_deadline(WAIT_MS); !w.owner;) {
            assert_true(tarn_now_ns() < deadline);
            assert_in_range(n->ops->wait(l, deadline), 0, 1);
        }
        assert_int_equal(n->ops->wait(l, tarn_deadline(WAIT_MS)), 0);
        assert_int_equal(w.status, 0);
        commit(n, 0);
    }
    atomic_store(&n->pool.gen[0], ((uint64_t)EPOCH << 32) + 4);
    kill(n->pid, SIGSTOP);
    assert_int_equal(waitpid(n->pid, NULL, WUNTRACED), n->pid);
    struct tarn_work w = fake_work(n, 0, &p, 1);
    assert_int_equal(n->ops->get(l, &w), TARN_INPROGRESS);
    uint64_t begun = tarn_now_ns();
    while (tarn_now_ns() < begun + 80 * TARN_NS_PER_MS)
        assert_int_equal(n->ops->wait(l, begun + 80 * TARN_NS_PER_MS), 0);
    assert_null(w.owner);
    assert_true(tarn_now_ns() - begun < 5 * TARN_NS_PER_S);
    kill(n->pid, SIGCONT);
    assert_int_equal(finish_works(n->ops, l, &w, 1), 0);
    assert_int_equal(w.status, 0);
    n->ops->close(l);
    fake_stop(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_token_is_refused),
        cmocka_unit_test(a_client_of_another_version_is_refused),
        cmocka_unit_test(a_node_of_another_version_is_named),
        cmocka_unit_test(connecting_does_not_wait_for_a_silent_node),
        cmocka_unit_test(passed_connections_end_with_their_session),
        cmocka_unit_test(passed_connections_need_the_token),
        cmocka_unit_test(passed_connections_come_together),
        cmocka_unit_test(misbehaving_clients_are_closed),
        cmocka_unit_test(random_bytes_do_no_harm),
        cmocka_unit_test(clients_that_leave_halfway_leave_no_pins),
        cmocka_unit_test(frames_may_arrive_in_pieces),
        cmocka_unit_test(empty_puts_in_a_row_all_answer),
        cmocka_unit_test(a_slow_reader_delays_no_other_client),
        cmocka_unit_test(a_stalled_put_loses_its_pin),
        cmocka_unit_test(a_get_says_whether_it_counts_as_use),
        cmocka_unit_test(threads_come_with_connections),
        cmocka_unit_test(many_connections),
        cmocka_unit_test(a_node_survives_a_shortage_of_descriptors),
        cmocka_unit_test(silence_instead_of_hello_is_closed),
        cmocka_unit_test(detach_ends_a_session),
        cmocka_unit_test(a_node_that_dies_fails_gets),
        cmocka_unit_test(a_node_that_dies_fails_puts),
        cmocka_unit_test(a_dead_node_is_noticed_at_the_next_work),
        cmocka_unit_test(wait_ends_with_the_answer_or_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
