/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory over TCP, at the node and at the client: all sizes and cuts, delayed copies, connections cut and
 * sessions ended while copies are under way, failing GPUs, and clients that would hold the node's pinned
 * memory. Runs on the machine's GPUs or on the stand-in. Tests that need the stand-in are skipped on GPUs.
 */
#include "tests/unit/fake_node.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>

#include "tests/device.h"
#include "tests/harness.h"
#include "tests/standin/cuda_standin.h"
#include "transport/tcp/tcp_frame.h"

enum { LATE_US = 300 * 1000 };

/* A node whose pool is GPU memory. */
struct gpu_node {
    struct fake_node *n;
    struct device *d;
    void *host; /* the pool's original memory */
};

static struct gpu_node start(void)
{
    struct gpu_node g;
    devices_need(1);
    g.n = fake_make("tcp");
    g.d = device_open(0);
    g.host = g.n->pool.base;
    g.n->pool.kind = TARN_POOL_GPU;
    g.n->pool.base = device_alloc(g.d, SLOTS * EXTENT);
    fake_serve(g.n);
    return g;
}

static void stop(struct gpu_node *g)
{
    if (tarn_standin_delay) {
        tarn_standin_delay(0);
        tarn_standin_fail(NULL);
    }
    g->n->node_ops->stop(g->n->half);
    assert_int_equal(fake_pins(g->n), 0);
    g->n->half = NULL;
    device_drop(g->d, g->n->pool.base);
    device_close(g->d);
    g->n->pool.base = g->host;
    fake_stop(g->n);
}

static void need_standin(void)
{
    devices_need(1);
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in fails and is late on demand");
}

static void late(uint64_t us)
{
    tarn_standin_delay(us);
}

/* Compares the bytes that are in the pool now, without waiting for delayed copies. */
static void expect_pool(struct gpu_node *g, uint32_t slot, const void *want, size_t bytes)
{
    uint8_t *got = malloc(bytes);
    assert_non_null(got);
    if (tarn_standin_delay)
        late(0);
    device_read(g->d, got, (uint8_t *)g->n->pool.base + slot * EXTENT, bytes);
    assert_memory_equal(got, want, bytes);
    free(got);
}

/* --- works of a link ---------------------------------------------------------------------------- */

static void wait_works(struct fake_node *n, struct tarn_link *l, struct tarn_work *w, size_t count)
{
    uint64_t deadline = tarn_deadline(WAIT_MS);
    for (size_t i = 0; i < count; i++)
        while (!w[i].owner) {
            assert_true(tarn_now_ns() < deadline);
            assert_in_range(n->ops->wait(l, deadline), 0, 1);
        }
}

static int move(struct fake_node *n, struct tarn_link *l, struct tarn_work *w, bool put)
{
    submit(n->ops, l, w, put);
    wait_works(n, l, w, 1);
    return w->status;
}

static int move_bytes(struct fake_node *n, struct tarn_link *l, uint32_t slot, void *at, size_t bytes,
                      bool gpu, bool put)
{
    struct tarn_piece p = {.addr = at, .bytes = bytes};
    struct tarn_work w = fake_work(n, slot, &p, 1);
    w.gpu = gpu;
    return move(n, l, &w, put);
}

/* A put and a get by a separate client. Afterwards the slot is free, as if its object had been removed. */
static void node_works(struct gpu_node *g, uint32_t slot)
{
    struct tarn_link *l = fake_link(g->n, false);
    size_t bytes = EXTENT - 5;
    uint8_t *in = malloc(bytes), *out = calloc(1, bytes);
    fill(in, bytes, tarn_now_ns());
    wait_until(atomic_load(&g->n->shared->pins[slot]) == 0);
    atomic_store(&g->n->pool.gen[slot], ((uint64_t)EPOCH << 32) + 1);
    assert_int_equal(move_bytes(g->n, l, slot, in, bytes, false, true), 0);
    commit(g->n, slot);
    assert_int_equal(move_bytes(g->n, l, slot, out, bytes, false, false), 0);
    assert_memory_equal(in, out, bytes);
    g->n->ops->close(l);
    free(in);
    free(out);
}

/* --- bytes -------------------------------------------------------------------------------------- */

static uint64_t seed;

static uint64_t rnd(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

/* Cuts `bytes` into random pieces with gaps, within 2 * EXTENT. */
static uint32_t cut(struct tarn_piece pieces[64], uint8_t *base, uint64_t bytes)
{
    uint32_t n = 0;
    for (uint64_t at = 0, done = 0; done < bytes; n++) {
        uint64_t take = n == 63 ? bytes - done : 1 + rnd(rnd(2) ? 200 : 60000);
        take = take < bytes - done ? take : bytes - done;
        at += at + take < 2 * EXTENT - (bytes - done) ? rnd(40) : 0;
        pieces[n] = (struct tarn_piece){.addr = base + at, .bytes = take};
        at += take;
        done += take;
    }
    return n;
}

struct trip {
    struct fake_node *n;
    struct tarn_link *l;
    struct device *d; /* device of the client's memory; NULL: host */
    uint8_t *memory;
};

/* Puts an object from one set of cuts and gets it into another. */
static void round_trip(struct trip *t, uint32_t slot, uint64_t bytes)
{
    struct tarn_piece pieces[64];
    uint8_t *want = calloc(2, EXTENT), *got = calloc(2, EXTENT), *flat = calloc(1, bytes + 1);
    uint64_t done = 0;
    fill(want, 2 * EXTENT, bytes + slot);
    device_write(t->d, t->memory, want, 2 * EXTENT);
    struct tarn_work w = fake_work(t->n, slot, pieces, cut(pieces, t->memory, bytes));
    for (uint32_t i = 0; i < w.npieces; done += pieces[i++].bytes)
        memcpy(flat + done, want + ((uint8_t *)pieces[i].addr - t->memory), pieces[i].bytes);
    w.gpu = t->d != NULL;
    assert_int_equal(move(t->n, t->l, &w, true), 0);
    commit(t->n, slot);
    fill(want, 2 * EXTENT, 99);
    device_write(t->d, t->memory, want, 2 * EXTENT);
    w = fake_work(t->n, slot, pieces, cut(pieces, t->memory, bytes));
    w.gpu = t->d != NULL;
    assert_int_equal(move(t->n, t->l, &w, false), 0);
    device_read(t->d, got, t->memory, 2 * EXTENT);
    done = 0;
    for (uint32_t i = 0; i < w.npieces; done += pieces[i++].bytes)
        memcpy(want + ((uint8_t *)pieces[i].addr - t->memory), flat + done, pieces[i].bytes);
    assert_memory_equal(got, want, 2 * EXTENT); /* bytes between the pieces are unchanged */
    free(want);
    free(got);
    free(flat);
}

/* Every kind of memory for pool and client. */
static void every_size_and_cut(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 15, 16, 17, 4095, 4096, 65537, (512 << 10) - 1, (512 << 10) + 1};
    struct gpu_node g = start();
    struct fake_node *cpu = fake_start("tcp", false, 0);
    seed = tarn_now_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int kind = 1; kind < 4; kind++) {
        struct trip t = {.n = kind & 1 ? g.n : cpu, .d = kind & 2 ? g.d : NULL};
        t.l = fake_link(t.n, false);
        t.memory = device_alloc(t.d, 2 * EXTENT);
        uint32_t slot = (uint32_t)kind * 32;
        for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
            round_trip(&t, slot++, sizes[i]);
        for (int i = 0; i < 20; i++)
            round_trip(&t, slot++, rnd(EXTENT));
        t.n->ops->close(t.l);
        device_drop(t.d, t.memory);
    }
    fake_stop(cpu);
    stop(&g);
}

/* Many items of one call, in both kinds of memory, all in flight at once. */
static void many_at_once(void **state)
{
    (void)state;
    enum { N = 120 };
    struct gpu_node g = start();
    struct tarn_link *l = fake_link(g.n, false);
    static struct tarn_work w[N];
    static struct tarn_piece p[N];
    size_t bytes = 40001;
    uint8_t *in = malloc(N * bytes), *out = calloc(N, bytes), *there = device_alloc(g.d, N * bytes);
    fill(in, N * bytes, 3);
    device_write(g.d, there, in, N * bytes);
    for (int put = 1; put >= 0; put--) {
        for (uint32_t i = 0; i < N; i++) {
            bool gpu = i % 3 != 0;
            p[i] = (struct tarn_piece){.addr = (gpu ? there : put ? in : out) + i * bytes, .bytes = bytes};
            w[i] = fake_work(g.n, i, &p[i], 1);
            w[i].gpu = gpu;
            submit(g.n->ops, l, &w[i], put);
        }
        wait_works(g.n, l, w, N);
        for (uint32_t i = 0; i < N; i++) {
            assert_int_equal(w[i].status, 0);
            if (put)
                expect_pool(&g, i, in + i * bytes, bytes);
            commit(g.n, i);
        }
        if (put)
            device_set(g.d, there, 0, N * bytes);
    }
    for (uint32_t i = 0; i < N; i++) {
        if (i % 3)
            device_read(g.d, out + i * bytes, there + i * bytes, bytes);
        assert_memory_equal(out + i * bytes, in + i * bytes, bytes);
    }
    g.n->ops->close(l);
    device_drop(g.d, there);
    free(in);
    free(out);
    stop(&g);
}

/* --- connections by hand ------------------------------------------------------------------------ */

static int greeted(struct fake_node *n)
{
    char text[TARN_ATTACH_TEXT], host[64];
    int fds[56], fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unsigned port;
    struct sockaddr_in a = {.sin_family = AF_INET};
    struct tarn_tcp_hello h = {.frame = {.magic = TARN_TCP_MAGIC,
                                         .version = TARN_TCP_VERSION,
                                         .op = TARN_TCP_HELLO,
                                         .gen = SESSION,
                                         .bytes = TARN_TOKEN}};
    char token[TARN_TOKEN + 1];
    struct timeval limit = {.tv_sec = WAIT_MS / 1000};
    assert_int_equal(fake_attach(n, SESSION, false, "", text, fds), 0);
    assert_int_equal(sscanf(text, "v1 %63[^:]:%u %32s", host, &port, token), 3);
    memcpy(h.token, token, TARN_TOKEN);
    inet_pton(AF_INET, host, &a.sin_addr);
    a.sin_port = htons((uint16_t)port);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(send(fd, &h, sizeof(h), MSG_NOSIGNAL), sizeof(h));
    assert_int_equal(recv(fd, &h.frame, sizeof(h.frame), MSG_WAITALL), sizeof(h.frame));
    assert_int_equal(h.frame.status, 0);
    return fd;
}

static void ask(struct fake_node *n, int fd, uint8_t op, uint32_t slot, uint64_t bytes)
{
    struct tarn_tcp_frame f = {.magic = TARN_TCP_MAGIC,
                               .version = TARN_TCP_VERSION,
                               .op = op,
                               .slot = slot,
                               .gen = atomic_load(&n->pool.gen[slot]),
                               .offset = slot * EXTENT,
                               .bytes = bytes};
    assert_int_equal(send(fd, &f, sizeof(f), MSG_NOSIGNAL), sizeof(f));
}

/* The status of the next answer; its payload is dropped. 1: the node closed the connection. */
static int answer(int fd)
{
    struct tarn_tcp_frame f;
    static char payload[EXTENT];
    ssize_t n = recv(fd, &f, sizeof(f), MSG_WAITALL);
    if (n <= 0)
        return 1;
    assert_int_equal(n, sizeof(f));
    if (f.op == (TARN_TCP_GET | TARN_TCP_ANSWER) && f.bytes &&
        recv(fd, payload, f.bytes, MSG_WAITALL) != (ssize_t)f.bytes)
        return 1;
    return f.status;
}

static bool is_silent(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

/* --- late copies -------------------------------------------------------------------------------- */

/* After the answer the client may COMMIT. */
static void a_put_is_answered_when_its_bytes_are_in_the_pool(void **state)
{
    (void)state;
    need_standin();
    struct gpu_node g = start();
    int fd = greeted(g.n);
    uint8_t *in = malloc(EXTENT);
    for (uint32_t slot = 0; slot < 4; slot++) {
        fill(in, EXTENT, slot);
        late(LATE_US / 10);
        ask(g.n, fd, TARN_TCP_PUT, slot, EXTENT);
        assert_int_equal(send(fd, in, EXTENT, MSG_NOSIGNAL), EXTENT);
        assert_int_equal(answer(fd), 0);
        assert_int_equal(atomic_load(&g.n->shared->pins[slot]), 0);
        expect_pool(&g, slot, in, EXTENT);
    }
    close(fd);
    free(in);
    stop(&g);
}

/* Copies of one client delay no other client, on any thread. */
static void copies_under_way_delay_no_other_client(void **state)
{
    (void)state;
    need_standin();
    enum { N = 4 };
    struct gpu_node g = start();
    int slow[N], fast[N];
    commit(g.n, 0);
    for (int i = 0; i < N; i++) {
        slow[i] = greeted(g.n);
        fast[i] = greeted(g.n);
    }
    late(4 * LATE_US);
    for (int i = 0; i < N; i++)
        ask(g.n, slow[i], TARN_TCP_GET, 0, EXTENT);
    wait_until(atomic_load(&g.n->shared->pins[0]) == N);
    for (int i = 0; i < N; i++) {
        ask(g.n, fast[i], TARN_TCP_GET, 1, EXTENT); /* gen is odd */
        assert_int_equal(answer(fast[i]), TARN_E_STALE);
    }
    for (int i = 0; i < N; i++)
        assert_true(is_silent(slow[i]));
    for (int i = 0; i < N; i++) {
        assert_int_equal(answer(slow[i]), 0);
        close(slow[i]);
        close(fast[i]);
    }
    stop(&g);
}

/* Begins a put. Its first bytes are on their way into the pool. */
static int half_put(struct gpu_node *g, uint32_t slot, const uint8_t *in)
{
    int fd = greeted(g->n);
    ask(g->n, fd, TARN_TCP_PUT, slot, EXTENT);
    assert_int_equal(send(fd, in, EXTENT / 2, MSG_NOSIGNAL), EXTENT / 2);
    wait_until(atomic_load(&g->n->shared->pins[slot]) == 1);
    return fd;
}

/* The extent may be reused once the pin is gone, so no copy may write to it then. */
static void a_pin_outlasts_the_copies(void **state)
{
    (void)state;
    need_standin();
    struct gpu_node g = start();
    uint8_t *in = malloc(EXTENT);
    fill(in, EXTENT, 1);
    for (uint32_t slot = 0; slot < 4; slot++) {
        device_set(g.d, (uint8_t *)g.n->pool.base + slot * EXTENT, 0, EXTENT);
        late(LATE_US);
        int fd = half_put(&g, slot, in);
        poll(NULL, 0,
             20); /* time to receive the bytes; otherwise the pin ends at once, which is right, too */
        if (slot % 2)
            fake_detach(g.n, SESSION);
        close(fd);
        wait_until(atomic_load(&g.n->shared->pins[slot]) == 0);
        uint8_t *now = malloc(EXTENT), *then = malloc(EXTENT);
        late(0);
        device_read(g.d, now, (uint8_t *)g.n->pool.base + slot * EXTENT, EXTENT);
        node_works(&g, SLOTS - 1); /* these copies run after the earlier ones */
        node_works(&g, SLOTS - 2);
        device_read(g.d, then, (uint8_t *)g.n->pool.base + slot * EXTENT, EXTENT);
        assert_memory_equal(now, then, EXTENT);
        free(now);
        free(then);
    }
    free(in);
    stop(&g);
}

/* Pinned memory of a cut connection is not reused while copies still write to it. */
static void memory_is_reused_when_its_copies_are_done(void **state)
{
    (void)state;
    need_standin();
    enum { N = 8 };
    struct gpu_node g = start();
    uint8_t *in = malloc(EXTENT);
    fill(in, EXTENT, 7);
    commit(g.n, 0);
    for (int round = 0; round < 3; round++) {
        int fds[N], puts[N];
        for (int i = 0; i < N; i++)
            fds[i] = greeted(g.n);
        late(LATE_US);
        for (int i = 0; i < N; i++)
            ask(g.n, fds[i], TARN_TCP_GET, 0, EXTENT);
        wait_until(atomic_load(&g.n->shared->pins[0]) == N);
        for (int i = 0; i < N; i++)
            close(fds[i]);
        for (int i = 0; i < N; i++) {
            puts[i] = greeted(g.n);
            ask(g.n, puts[i], TARN_TCP_PUT, 1 + (uint32_t)i, EXTENT / 2);
            assert_int_equal(send(puts[i], in, EXTENT / 2, MSG_NOSIGNAL), EXTENT / 2);
        }
        for (int i = 0; i < N; i++) {
            assert_int_equal(answer(puts[i]), 0);
            close(puts[i]);
        }
        for (uint32_t i = 0; i < N; i++)
            expect_pool(&g, 1 + i, in, EXTENT / 2);
        wait_until(fake_pins(g.n) == 0);
    }
    free(in);
    stop(&g);
}

static void stopping_with_copies_under_way(void **state)
{
    (void)state;
    need_standin();
    struct gpu_node g = start();
    uint8_t *in = calloc(1, EXTENT);
    commit(g.n, 1);
    late(LATE_US);
    int put = half_put(&g, 0, in), get = greeted(g.n);
    ask(g.n, get, TARN_TCP_GET, 1, EXTENT);
    wait_until(fake_pins(g.n) == 2);
    stop(&g);
    close(put);
    close(get);
    free(in);
}

/* --- more clients than pinned memory ------------------------------------------------------------ */

static void slow_readers_give_way(void **state)
{
    (void)state;
    enum { SLOW = 70, ASKED = 8 };
    struct gpu_node g = start();
    int fds[SLOW];
    for (uint32_t i = 0; i < ASKED; i++)
        commit(g.n, i);
    for (int s = 0; s < SLOW; s++) {
        fds[s] = greeted(g.n);
        for (uint32_t i = 0; i < ASKED; i++)
            ask(g.n, fds[s], TARN_TCP_GET, i, EXTENT);
    }
    for (uint32_t i = 0; i < 4; i++)
        node_works(&g, SLOTS - 1 - i);
    for (int s = 0; s < SLOW; s++) { /* the slow clients still get every answer */
        for (int i = 0; i < ASKED; i++)
            assert_int_equal(answer(fds[s]), 0);
        close(fds[s]);
    }
    stop(&g);
}

/* Answers have the pool's bytes, however often those were fetched again. */
static void bytes_fetched_again_are_right(void **state)
{
    (void)state;
    enum { SLOW = 40 };
    struct gpu_node g = start();
    uint8_t *want = malloc(EXTENT), *got = malloc(EXTENT + sizeof(struct tarn_tcp_frame));
    int fds[SLOW];
    fill(want, EXTENT, 5);
    device_write(g.d, g.n->pool.base, want, EXTENT);
    commit(g.n, 0);
    for (int s = 0; s < SLOW; s++) {
        fds[s] = greeted(g.n);
        for (int i = 0; i < 4; i++)
            ask(g.n, fds[s], TARN_TCP_GET, 0, EXTENT);
    }
    for (int round = 0; round < 4; round++)
        for (int s = 0; s < SLOW; s++) { /* a whole answer from each in turn */
            ssize_t bytes = EXTENT + sizeof(struct tarn_tcp_frame);
            assert_int_equal(recv(fds[s], got, (size_t)bytes, MSG_WAITALL), bytes);
            assert_memory_equal(got + sizeof(struct tarn_tcp_frame), want, EXTENT);
        }
    for (int s = 0; s < SLOW; s++)
        close(fds[s]);
    free(want);
    free(got);
    stop(&g);
}

/* Clients that always send another request. */
enum { STREAMS = 40, AHEAD = 6, READERS = 4 };
struct streams {
    struct fake_node *n;
    int fds[STREAMS];
    _Atomic int readers;
    atomic_bool enough;
};

/* Receives what is there and requests as much again. */
static void take_some(struct fake_node *n, int fd, uint64_t *taken)
{
    static _Thread_local char payload[256 << 10];
    const uint64_t whole = EXTENT + sizeof(struct tarn_tcp_frame);
    ssize_t bytes = recv(fd, payload, sizeof(payload), MSG_DONTWAIT);
    for (*taken += bytes > 0 ? (uint64_t)bytes : 0; *taken >= whole; *taken -= whole)
        ask(n, fd, TARN_TCP_GET, 0, EXTENT);
}

static void *stream_on(void *arg)
{
    struct streams *s = arg;
    uint64_t taken[STREAMS] = {0};
    int first = atomic_fetch_add(&s->readers, 1);
    while (!atomic_load(&s->enough))
        for (int i = first; i < STREAMS; i += READERS)
            take_some(s->n, s->fds[i], &taken[i]);
    return NULL;
}

static void busy_readers_give_way(void **state)
{
    (void)state;
    struct gpu_node g = start();
    struct streams s = {.n = g.n};
    pthread_t ids[READERS];
    commit(g.n, 0);
    for (int i = 0; i < STREAMS; i++) {
        s.fds[i] = greeted(g.n);
        for (int k = 0; k < AHEAD; k++)
            ask(g.n, s.fds[i], TARN_TCP_GET, 0, EXTENT);
    }
    if (tarn_standin_delay)
        late(30000); /* so that copies are under way most of the time */
    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&ids[i], NULL, stream_on, &s), 0);
    for (uint32_t i = 0; i < 3; i++)
        node_works(&g, SLOTS - 1 - i);
    atomic_store(&s.enough, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(ids[i], NULL);
    for (int i = 0; i < STREAMS; i++)
        close(s.fds[i]);
    wait_until(fake_pins(g.n) == 0);
    stop(&g);
}

static void stalled_writers_block_no_other_client(void **state)
{
    (void)state;
    enum { N = 70 };
    struct gpu_node g = start();
    uint8_t *in = calloc(1, EXTENT);
    int fds[N];
    for (uint32_t i = 0; i < N; i++)
        fds[i] = half_put(&g, i, in);
    node_works(&g, SLOTS - 1);
    for (int i = 0; i < N; i++) {
        assert_int_equal(send(fds[i], in, EXTENT / 2, MSG_NOSIGNAL), EXTENT / 2);
        assert_int_equal(answer(fds[i]), 0);
        close(fds[i]);
    }
    free(in);
    stop(&g);
}

/* --- GPUs that fail: the node's ----------------------------------------------------------------- */

static void the_answer_reports_a_failed_copy(void **state)
{
    (void)state;
    static const char *const calls[] = {"queue:1", "pin:1", "copy:1", "mark:1", "poll:1"};
    need_standin();
    uint8_t *in = malloc(EXTENT);
    fill(in, EXTENT, 2);
    for (size_t i = 0; i < 2 * sizeof(calls) / sizeof(*calls); i++) {
        struct gpu_node g = start();
        bool put = i % 2;
        int fd = greeted(g.n);
        if (!put)
            commit(g.n, 0);
        tarn_standin_fail(calls[i / 2]);
        for (int again = 0; again < 2; again++) {
            ask(g.n, fd, put ? TARN_TCP_PUT : TARN_TCP_GET, 0, EXTENT);
            if (put)
                assert_int_equal(send(fd, in, EXTENT, MSG_NOSIGNAL), EXTENT);
            assert_int_equal(answer(fd), again ? 0 : TARN_E_SYSTEM);
            assert_int_equal(put ? fake_pins(g.n) : 0, 0);
        }
        if (put)
            expect_pool(&g, 0, in, EXTENT);
        close(fd);
        stop(&g);
    }
    free(in);
}

static void every_answer_reports_a_lost_gpu(void **state)
{
    (void)state;
    need_standin();
    struct gpu_node g = start();
    int get = greeted(g.n), put = greeted(g.n);
    commit(g.n, 0);
    tarn_standin_fail("lost:1");
    for (int i = 0; i < 3; i++) {
        ask(g.n, get, TARN_TCP_GET, 0, EXTENT);
        assert_int_equal(answer(get), TARN_E_UNAVAILABLE);
        ask(g.n, put, TARN_TCP_PUT, 1, 100);
        assert_int_equal(send(put, g.host, 100, MSG_NOSIGNAL), 100);
        assert_int_equal(answer(put), TARN_E_UNAVAILABLE);
    }
    ask(g.n, get, TARN_TCP_GET, 2, EXTENT);
    assert_int_equal(answer(get), TARN_E_STALE);
    wait_until(fake_pins(g.n) == 0);
    close(get);
    close(put);
    stop(&g);
}

/* --- GPUs that fail: the client's --------------------------------------------------------------- */

/* The node runs in another process, so only the client's calls fail. */
static void a_failed_copy_ends_its_work_only(void **state)
{
    (void)state;
    static const char *const calls[] = {"copy:1", "mark:1", "poll:1", "lost:1"};
    need_standin();
    struct fake_node *n = fake_start("tcp", true, 0);
    uint8_t *here = calloc(1, EXTENT);
    for (size_t i = 0; i < 2 * sizeof(calls) / sizeof(*calls); i++) {
        bool put = i % 2, lost = i / 2 == 3;
        struct tarn_link *l = fake_link(n, true);
        struct device *d = device_open(0);
        uint8_t *there = device_alloc(d, EXTENT);
        struct tarn_piece p[3] = {{.addr = here, .bytes = EXTENT}, {.addr = there, .bytes = EXTENT}, p[0]};
        struct tarn_work w[3];
        p[2] = p[0];
        tarn_standin_fail(calls[i / 2]);
        for (uint32_t k = 0; k < 3; k++) {
            w[k] = fake_work(n, (uint32_t)i * 3 + k, &p[k], 1);
            if (!put) {
                commit(n, (uint32_t)i * 3 + k);
                w[k].gen++;
            }
            w[k].gpu = k == 1;
            submit(n->ops, l, &w[k], put);
        }
        wait_works(n, l, w, 3);
        assert_int_equal(w[0].status, 0);
        assert_int_equal(w[1].status, lost ? TARN_E_UNAVAILABLE : TARN_E_SYSTEM);
        assert_non_null(w[1].why);
        assert_int_equal(w[2].status, 0);
        uint32_t again = (uint32_t)i * 3 + 1;
        assert_int_equal(move_bytes(n, l, again, there, EXTENT, true, put), lost ? TARN_E_UNAVAILABLE : 0);
        tarn_standin_fail(NULL);
        n->ops->close(l);
        device_drop(d, there);
        device_close(d);
    }
    free(here);
    fake_stop(n);
}

/* The caller's memory is not touched after close(). */
static void closing_with_copies_under_way(void **state)
{
    (void)state;
    need_standin();
    struct fake_node *n = fake_start("tcp", false, 0);
    struct device *d = device_open(0);
    for (int put = 0; put < 2; put++) {
        uint8_t *there = device_alloc(d, 4 * EXTENT), *now = malloc(4 * EXTENT), *then = malloc(4 * EXTENT);
        struct tarn_link *l = fake_link(n, true);
        struct tarn_piece p[4];
        struct tarn_work w[4];
        late(LATE_US);
        for (uint32_t k = 0; k < 4; k++) {
            p[k] = (struct tarn_piece){.addr = there + k * EXTENT, .bytes = EXTENT};
            if (!put)
                commit(n, k);
            w[k] = fake_work(n, k + (put ? 8 : 0), &p[k], 1);
            w[k].gpu = 1;
            submit(n->ops, l, &w[k], put);
        }
        memset((char *)n->pool.base, 0x55, 4 * EXTENT);
        for (int i = 0; i < 50; i++) {
            assert_in_range(n->ops->progress(l), 0, 1);
            poll(NULL, 0, 1);
        }
        n->ops->close(l);
        for (uint32_t k = 0; k < 4; k++)
            assert_int_equal(w[k].status, TARN_E_CANCELED);
        late(0);
        device_read(d, now, there, 4 * EXTENT);
        device_read(d, then, there, 4 * EXTENT);
        assert_memory_equal(now, then, 4 * EXTENT);
        device_drop(d, there);
        free(now);
        free(then);
    }
    device_close(d);
    fake_stop(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_and_cut),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(a_put_is_answered_when_its_bytes_are_in_the_pool),
        cmocka_unit_test(copies_under_way_delay_no_other_client),
        cmocka_unit_test(a_pin_outlasts_the_copies),
        cmocka_unit_test(memory_is_reused_when_its_copies_are_done),
        cmocka_unit_test(stopping_with_copies_under_way),
        cmocka_unit_test(slow_readers_give_way),
        cmocka_unit_test(busy_readers_give_way),
        cmocka_unit_test(bytes_fetched_again_are_right),
        cmocka_unit_test(stalled_writers_block_no_other_client),
        cmocka_unit_test(the_answer_reports_a_failed_copy),
        cmocka_unit_test(every_answer_reports_a_lost_gpu),
        cmocka_unit_test(a_failed_copy_ends_its_work_only),
        cmocka_unit_test(closing_with_copies_under_way),
    };
    return cmocka_run_group_tests_name("gpu memory over tcp", tests, NULL, NULL);
}
