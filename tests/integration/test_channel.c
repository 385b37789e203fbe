/* SPDX-License-Identifier: Apache-2.0 */
/* Channels: what is sent is received, in order, whole, once. Failures are in
 * tests/faults/test_channel_faults.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/text.h"
#include "tests/channel_pair.h"

/* --- one message -------------------------------------------------------------------------------- */

/* `from` sends to a receive that is posted already, or that comes later. What lies behind the message stays
 * as it was. */
static void pass(const struct channel_end *from, const struct channel_end *to, size_t sent, size_t room,
                 bool receive_first)
{
    const struct tarn_piece out = {.addr = from->memory, .bytes = sent},
                            in = {.addr = to->memory, .bytes = room};
    uint64_t got = 12345;
    tarn_op sending = 0, receiving = 0;
    channel_fill(from->memory, sent, (unsigned)sent);
    memset(to->memory, 0xee, room + 64);
    if (receive_first)
        receiving = channel_submit_recv(to, 7, &in, 0, &got);
    else
        sending = channel_submit_send(from, 7, &out, 0);
    if (receive_first) {
        if (channel_send(from, 7, from->memory, sent, 0))
            fail_msg("send: %s", tarn_last_error());
        assert_int_equal(channel_done(to, receiving), 0);
    } else {
        if (channel_recv(to, 7, to->memory, room, 0, &got))
            fail_msg("recv: %s", tarn_last_error());
        assert_int_equal(channel_done(from, sending), 0);
    }
    assert_int_equal(got, sent);
    assert_true(channel_filled(to->memory, sent, (unsigned)sent));
    for (size_t i = sent; i < room + 64; i++)
        assert_int_equal(to->memory[i], 0xee);
}

static const size_t sizes[] = {0, 1, 8, 4095, 4096, 4097, 65536, 1u << 20, (1u << 20) + 13};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void messages_of_all_sizes(void **state)
{
    struct channel_pair *p = *state;
    for (int i = 0; i < SIZES; i++) {
        pass(&p->a, &p->b, sizes[i], sizes[i], true);
        pass(&p->b, &p->a, sizes[i], sizes[i], true);
        pass(&p->a, &p->b, sizes[i], sizes[i], false);
        pass(&p->b, &p->a, sizes[i], sizes[i], false);
    }
}

/* Small messages into large receives, and large ones into larger ones. */
static void shorter_messages_have_their_true_size(void **state)
{
    struct channel_pair *p = *state;
    for (int i = 0; i + 1 < SIZES; i++) {
        pass(&p->a, &p->b, sizes[i], sizes[i + 1], true);
        pass(&p->b, &p->a, sizes[i], sizes[SIZES - 1], false);
    }
}

static void assert_untouched(const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(at[i], 0xee);
}

/* Both sides are told, and no byte is written: neither beyond the receive nor within. */
static void longer_messages_are_refused_at_both_ends(void **state)
{
    static const struct {
        size_t sent, room;
    } cases[] = {{1, 0}, {4097, 4096}, {8, 7}, {1u << 20, 4096}, {65537, 65536}, {1u << 20, 8}};
    struct channel_pair *p = *state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct tarn_piece in = {.addr = p->b.memory + 64, .bytes = cases[i].room};
        uint64_t got = 0;
        tarn_op op = channel_submit_recv(&p->b, 1, &in, 0, &got);
        assert_int_equal(channel_send(&p->a, 1, p->a.memory, cases[i].sent, 0), TARN_E_SIZE);
        assert_non_null(strstr(tarn_last_error(), "receives at most"));
        assert_int_equal(channel_done(&p->b, op), TARN_E_SIZE);
        assert_int_equal(got, cases[i].sent);
        assert_untouched(p->b.memory, 2u << 20);
    }
    pass(&p->a, &p->b, 100000, 100000, true);
}

/* Any memory will do for up to 4 KiB, and for sending. */
static void memory_outside_of_windows(void **state)
{
    struct channel_pair *p = *state;
    unsigned char small[TARN_SMALL_MAX], *large = malloc(100000);
    const struct tarn_piece in = {.addr = small, .bytes = sizeof(small)};
    tarn_op op = channel_submit_recv(&p->b, 1, &in, 0, NULL);
    channel_fill(large, 100000, 5);
    assert_int_equal(channel_send(&p->a, 1, large, sizeof(small), 0), 0);
    assert_int_equal(channel_done(&p->b, op), 0);
    assert_true(channel_filled(small, sizeof(small), 5));
    const struct tarn_piece in_window = {.addr = p->b.memory, .bytes = 100000};
    op = channel_submit_recv(&p->b, 1, &in_window, 0, NULL);
    assert_int_equal(channel_send(&p->a, 1, large, 100000, 0), 0);
    assert_int_equal(channel_done(&p->b, op), 0);
    assert_true(channel_filled(p->b.memory, 100000, 5));
    assert_int_equal(channel_recv(&p->b, 1, large, 100000, 0, NULL), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "tarn_window_new"));
    assert_int_equal(channel_recv(&p->b, 1, p->b.memory + CHANNEL_ROOM - 5000, 5001, 0, NULL),
                     TARN_E_INVALID);
    free(large);
}

/* A strided piece, received into pieces of other sizes. */
static void pieces_of_any_form(void **state)
{
    struct channel_pair *p = *state;
    const struct tarn_piece out[] = {{.addr = p->a.memory, .bytes = 100, .stride = 300, .count = 200},
                                     {.addr = p->a.memory + 100000, .bytes = 7}};
    const struct tarn_piece in[] = {{.addr = p->b.memory + 1000, .bytes = 0},
                                    {.addr = p->b.memory + 5000, .bytes = 33, .stride = 50, .count = 303},
                                    {.addr = p->b.memory, .bytes = 3000},
                                    {.addr = p->b.memory + 40000, .bytes = 8000}};
    unsigned char flat[20007], got[20999];
    tarn_op op;
    channel_fill(p->a.memory, 200000, 3);
    for (int i = 0; i < 200; i++)
        memcpy(flat + 100 * i, p->a.memory + 300 * i, 100);
    memcpy(flat + 20000, p->a.memory + 100000, 7);
    uint64_t bytes = 0;
    assert_int_equal(tarn_submit_recv(p->b.channel, 9, in, 4, NULL, &bytes, 0, &op), 0);
    assert_int_equal(tarn_send(p->a.channel, 9, out, 2, NULL), 0);
    assert_int_equal(channel_done(&p->b, op), 0);
    assert_int_equal(bytes, sizeof(flat));
    for (int i = 0; i < 303; i++)
        memcpy(got + 33 * i, p->b.memory + 5000 + 50 * i, 33);
    memcpy(got + 9999, p->b.memory, 3000);
    memcpy(got + 12999, p->b.memory + 40000, 8000);
    assert_memory_equal(got, flat, sizeof(flat));
    assert_untouched(p->b.memory + 5033, 17);
    assert_untouched(p->b.memory + 40000 + 7008, 992);
}

/* --- order -------------------------------------------------------------------------------------- */

enum { MANY = 64 };

/* Each message has the bytes of its number. */
static void check_each(const unsigned char *at, size_t bytes, int n)
{
    for (int i = 0; i < n; i++)
        assert_true(channel_filled(at + (size_t)i * bytes, bytes, (unsigned)i));
}

/* All receives first, or all sends first; of one tag they match in order. */
static void one_tag_keeps_its_order(void **state)
{
    struct channel_pair *p = *state;
    static const size_t of[] = {8, 5000};
    for (int round = 0; round < 4; round++) {
        size_t bytes = of[round % 2];
        struct tarn_piece out[MANY], in[MANY];
        tarn_op sends[MANY], receives[MANY];
        for (int i = 0; i < MANY; i++) {
            out[i] = (struct tarn_piece){.addr = p->a.memory + (size_t)i * bytes, .bytes = bytes};
            in[i] = (struct tarn_piece){.addr = p->b.memory + (size_t)i * bytes, .bytes = bytes};
            channel_fill(out[i].addr, bytes, (unsigned)i);
        }
        memset(p->b.memory, 0, CHANNEL_ROOM);
        for (int i = 0; round < 2 && i < MANY; i++)
            receives[i] = channel_submit_recv(&p->b, 5, &in[i], 0, NULL);
        for (int i = 0; i < MANY; i++)
            sends[i] = channel_submit_send(&p->a, 5, &out[i], 0);
        for (int i = 0; round >= 2 && i < MANY; i++)
            receives[i] = channel_submit_recv(&p->b, 5, &in[i], 0, NULL);
        for (int i = 0; i < MANY; i++) {
            assert_int_equal(channel_done(&p->a, sends[i]), 0);
            assert_int_equal(channel_done(&p->b, receives[i]), 0);
        }
        check_each(p->b.memory, bytes, MANY);
    }
}

/* Receives of other tags than those that are sent hold up nothing, however many they are. */
static void tags_are_independent(void **state)
{
    struct channel_pair *p = *state;
    const size_t bytes = 5000;
    struct tarn_piece out[MANY], in[MANY];
    tarn_op receives[MANY];
    for (int i = 0; i < MANY; i++) {
        out[i] = (struct tarn_piece){.addr = p->a.memory + (size_t)i * bytes, .bytes = bytes};
        in[i] = (struct tarn_piece){.addr = p->b.memory + (size_t)i * bytes, .bytes = bytes};
        channel_fill(out[i].addr, bytes, (unsigned)i);
        receives[i] = channel_submit_recv(&p->b, (uint64_t)i, &in[i], 0, NULL);
    }
    for (int i = MANY - 1; i >= 0; i--)
        assert_int_equal(tarn_send(p->a.channel, (uint64_t)i, &out[i], 1, NULL), 0);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(channel_done(&p->b, receives[i]), 0);
    check_each(p->b.memory, bytes, MANY);
}

/* As many receives as there are workers, and more, wait at both sides; the sends behind them go through. */
static void receives_hold_up_no_sends(void **state)
{
    struct channel_pair *p = *state;
    struct channel_end *ends[] = {&p->a, &p->b};
    struct tarn_piece in[2][MANY], out[2];
    tarn_op receives[2][MANY], sends[2][MANY];
    for (int e = 0; e < 2; e++) {
        channel_fill(ends[e]->memory, 6000, (unsigned)e);
        out[e] = (struct tarn_piece){.addr = ends[e]->memory, .bytes = 6000};
        for (int i = 0; i < MANY; i++) {
            in[e][i] = (struct tarn_piece){.addr = ends[e]->memory + 10000 * (i + 1), .bytes = 6000};
            receives[e][i] = channel_submit_recv(ends[e], 1, &in[e][i], 0, NULL);
        }
    }
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < MANY; i++)
            sends[e][i] = channel_submit_send(ends[e], 1, &out[e], 0);
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < MANY; i++) {
            assert_int_equal(channel_done(ends[e], sends[e][i]), 0);
            assert_int_equal(channel_done(ends[e], receives[e][i]), 0);
            assert_true(channel_filled(in[e][i].addr, 6000, (unsigned)!e));
        }
}

/* --- vectors ------------------------------------------------------------------------------------ */

/* n items of mixed sizes, each to its own place; the places are larger than the items. */
static void pass_vector(struct channel_pair *p, size_t n)
{
    struct tarn_piece *out = calloc(n + 1, sizeof(*out)), *in = calloc(n + 1, sizeof(*in));
    struct tarn_channel_item *from = calloc(n + 1, sizeof(*from)), *to = calloc(n + 1, sizeof(*to));
    size_t at = 0;
    tarn_op op;
    memset(p->b.memory, 0xee, CHANNEL_ROOM);
    for (size_t i = 0; i < n; i++) {
        size_t bytes = i % 17 == 3 ? 0 : (i * 37) % 400;
        out[i] = (struct tarn_piece){.addr = p->a.memory + at, .bytes = bytes};
        in[i] = (struct tarn_piece){.addr = p->b.memory + at, .bytes = bytes + i % 3};
        from[i] = (struct tarn_channel_item){.pieces = &out[i], .npieces = 1};
        to[i] = (struct tarn_channel_item){.pieces = &in[i], .npieces = 1};
        channel_fill(out[i].addr, bytes, (unsigned)i);
        at += 410;
    }
    if (tarn_submit_recvv(p->b.channel, 2, to, n, NULL, 0, &op))
        fail_msg("recvv: %s", tarn_last_error());
    if (tarn_sendv(p->a.channel, 2, from, n, NULL))
        fail_msg("sendv: %s", tarn_last_error());
    if (channel_done(&p->b, op))
        fail_msg("recvv: %s", channel_error());
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(to[i].bytes, out[i].bytes);
        assert_true(channel_filled(in[i].addr, out[i].bytes, (unsigned)i));
        assert_untouched((unsigned char *)in[i].addr + out[i].bytes, 410 - out[i].bytes);
    }
    free(out);
    free(in);
    free(from);
    free(to);
}

static void vectors(void **state)
{
    struct channel_pair *p = *state;
    pass_vector(p, 0);
    pass_vector(p, 1);
    pass_vector(p, 20);
    pass_vector(p, TARN_CHANNEL_ITEMS_MAX);
}

/* Other numbers of items: refused at both ends, nothing is written. One item too large: the same. */
static void vectors_that_do_not_match(void **state)
{
    struct channel_pair *p = *state;
    static const size_t counts[][2] = {{0, 1}, {1, 0}, {2, 3}, {3, 2}};
    const struct tarn_piece out = {.addr = p->a.memory, .bytes = 3000};
    const struct tarn_piece in = {.addr = p->b.memory, .bytes = 3000};
    const struct tarn_piece in2 = {.addr = p->b.memory + 3000, .bytes = 2999};
    struct tarn_channel_item from[3], to[3];
    tarn_op op;
    for (int i = 0; i < 3; i++) {
        from[i] = (struct tarn_channel_item){.pieces = &out, .npieces = 1};
        to[i] = (struct tarn_channel_item){.pieces = i == 1 ? &in2 : &in, .npieces = 1};
    }
    for (int i = 0; i < 4; i++) {
        if (counts[i][1] > 2)
            to[2].npieces = 0;
        assert_int_equal(tarn_submit_recvv(p->b.channel, 2, to, counts[i][1], NULL, 0, &op), 0);
        assert_int_equal(tarn_sendv(p->a.channel, 2, from, counts[i][0], NULL), TARN_E_SIZE);
        assert_int_equal(channel_done(&p->b, op), TARN_E_SIZE);
        assert_non_null(strstr(channel_error(), "as many on both sides"));
    }
    assert_int_equal(tarn_submit_recvv(p->b.channel, 2, to, 2, NULL, 0, &op), 0);
    assert_int_equal(tarn_sendv(p->a.channel, 2, from, 2, NULL), TARN_E_SIZE);
    assert_int_equal(channel_done(&p->b, op), TARN_E_SIZE);
    assert_int_equal(to[1].bytes, 3000);
    assert_untouched(p->b.memory, 10000);
    assert_int_equal(tarn_sendv(p->a.channel, 2, from, TARN_CHANNEL_ITEMS_MAX + 1, NULL), TARN_E_INVALID);
    assert_int_equal(tarn_recvv(p->b.channel, 2, NULL, 1, NULL), TARN_E_INVALID);
}

/* --- many channels ------------------------------------------------------------------------------ */

struct stream {
    struct channel_end end;
    bool sends;
    unsigned number, wrong;
};

enum { STREAMS = 8, ROUNDS = 100 };

/* Sends or receives messages of growing size, in a part of the end's memory of its own. */
static void *stream(void *arg)
{
    struct stream *s = arg;
    unsigned char *at = s->end.memory + (size_t)s->number * (CHANNEL_ROOM / STREAMS / 2);
    for (unsigned i = 0; i < ROUNDS; i++) {
        size_t bytes = (size_t)i * i * 20;
        uint64_t got = bytes;
        if (s->sends)
            channel_fill(at, bytes, s->number * ROUNDS + i);
        int rc = s->sends ? channel_send(&s->end, i % 3, at, bytes, 0)
                          : channel_recv(&s->end, i % 3, at, 210000, 0, &got);
        s->wrong +=
            rc != 0 || got != bytes || (!s->sends && !channel_filled(at, bytes, s->number * ROUNDS + i));
    }
    return NULL;
}

/* Each channel has a thread that sends and one that receives, at both ends. */
static void channels_at_once_in_both_directions(void **state)
{
    struct channel_pair *p = *state;
    struct channel_end ends[STREAMS][2];
    struct stream all[STREAMS][2][2];
    pthread_t threads[STREAMS][2][2];
    unsigned wrong = 0;
    for (unsigned i = 0; i < STREAMS; i++) {
        if (i > 0)
            channel_connect(&p->a, &p->b);
        ends[i][0] = p->a;
        ends[i][1] = p->b;
        for (int e = 0; e < 2; e++)
            for (int sends = 0; sends < 2; sends++) {
                struct stream *s = &all[i][e][sends];
                *s = (struct stream){.end = ends[i][e], .sends = sends, .number = i};
                if (!sends)
                    s->end.memory += CHANNEL_ROOM / 2;
            }
    }
    for (int i = 0; i < STREAMS * 4; i++)
        assert_int_equal(pthread_create(&threads[0][0][0] + i, NULL, stream, &all[0][0][0] + i), 0);
    for (int i = 0; i < STREAMS * 4; i++) {
        pthread_join(*(&threads[0][0][0] + i), NULL);
        wrong += (&all[0][0][0] + i)->wrong;
    }
    assert_int_equal(wrong, 0);
}

/* --- random ------------------------------------------------------------------------------------- */

enum { MESSAGES = 5000, TAGS = 5, WINDOW = 16, LARGEST = 20000 };

/* What both processes know of message i in one direction. */
static void describe(uint64_t seed, unsigned i, uint64_t *tag_p, size_t *bytes_p)
{
    uint64_t x = (seed ^ (i + 1)) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    *tag_p = x % TAGS;
    *bytes_p = (x >> 8) % 3 == 0 ? (x >> 16) % LARGEST : (x >> 16) % 300;
}

struct ring {
    struct tarn_piece pieces[WINDOW];
    tarn_op ops[WINDOW];
    uint64_t got[WINDOW];
};

/* Submits message i, once the one that had its place before has ended, and been checked. */
static unsigned turn(const struct channel_end *e, struct ring *r, bool sends, uint64_t seed, unsigned i)
{
    unsigned at = i % WINDOW, wrong = 0;
    unsigned char *memory = e->memory + (size_t)(at + (sends ? WINDOW : 0)) * LARGEST;
    uint64_t tag;
    size_t bytes;
    if (r->ops[at]) {
        describe(seed, i - WINDOW, &tag, &bytes);
        wrong += channel_done(e, r->ops[at]) != 0;
        wrong += !sends && (r->got[at] != bytes || !channel_filled(memory, bytes, i - WINDOW));
        r->ops[at] = 0;
    }
    if (i >= MESSAGES)
        return wrong;
    describe(seed, i, &tag, &bytes);
    if (sends)
        channel_fill(memory, bytes, i);
    r->pieces[at] = (struct tarn_piece){.addr = memory, .bytes = sends ? bytes : LARGEST};
    r->ops[at] = sends ? channel_submit_send(e, tag, &r->pieces[at], 60000)
                       : channel_submit_recv(e, tag, &r->pieces[at], 60000, &r->got[at]);
    return wrong;
}

static unsigned both_ways(const struct channel_end *e, uint64_t out_seed, uint64_t in_seed)
{
    struct ring out = {.ops = {0}}, in = {.ops = {0}};
    unsigned wrong = 0;
    for (unsigned i = 0; i < MESSAGES + WINDOW; i++) {
        wrong += turn(e, &in, false, in_seed, i);
        wrong += turn(e, &out, true, out_seed, i);
    }
    return wrong;
}

/* Of random sizes and tags, in both directions, between two processes. */
static void random_messages(void **state)
{
    struct channel_pair *p = *state;
    const char *given = getenv("SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : tarn_random64() >> 1;
    print_message("SEED=%llu\n", (unsigned long long)seed);
    struct harness_process *peer = channel_peer_start(p, "random", (size_t)seed);
    struct channel_end e = p->b;
    assert_int_equal(tarn_channel_accept(p->b.client, 0, &e.channel), 0);
    assert_int_equal(both_ways(&e, seed, seed + 1), 0);
    assert_int_equal(harness_wait(peer, HARNESS_TIMEOUT_MS), 0);
    tarn_channel_close(e.channel);
}

static int play(struct channel_end *e, uint64_t seed)
{
    printf("ready\n");
    fflush(stdout);
    unsigned wrong = both_ways(e, seed + 1, seed);
    channel_end_close(e);
    return wrong ? 1 : 0;
}

/* --- connecting --------------------------------------------------------------------------------- */

static void a_peer_tells_who_it_is(void **state)
{
    struct channel_pair *p = *state;
    struct tarn_channel_peer peer, other;
    char address[TARN_CHANNEL_ADDRESS_MAX], path[TARN_CHANNEL_ADDRESS_MAX], hello[TARN_HELLO_MAX + 1];
    assert_int_equal(tarn_channel_address(p->b.client, address, path), 0);
    assert_int_equal(tarn_channel_peer(p->b.channel, &peer), 0);
    assert_true(peer.hello_bytes == 5 && !memcmp(peer.hello, "hello", 5));
    assert_int_equal(tarn_channel_peer(p->a.channel, &other), 0);
    assert_string_equal(other.address, address);
    assert_true(peer.id != other.id && peer.id != 0 && other.hello_bytes == 0);
    memset(hello, 1, sizeof(hello));
    struct tarn_channel *ch, *accepted;
    struct pollfd fd = {.fd = tarn_channel_accept_fd(p->b.client), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 0), 0);
    assert_int_equal(tarn_channel_connect(p->a.client, path, hello, sizeof(hello), 0, &ch), TARN_E_INVALID);
    assert_int_equal(tarn_channel_connect(p->a.client, path, hello, TARN_HELLO_MAX, 0, &ch), 0);
    assert_int_equal(poll(&fd, 1, 0), 1);
    assert_int_equal(tarn_channel_accept(p->b.client, 0, &accepted), 0);
    assert_int_equal(poll(&fd, 1, 0), 0);
    assert_int_equal(tarn_channel_peer(accepted, &other), 0);
    assert_true(other.hello_bytes == TARN_HELLO_MAX && other.id == peer.id);
    assert_int_equal(tarn_channel_accept(p->b.client, 20, &accepted), TARN_E_TIMEOUT);
    assert_int_equal(tarn_channel_accept(p->a.client, 20, &accepted), TARN_E_INVALID);
    assert_int_equal(tarn_channel_accept_fd(p->a.client), TARN_E_INVALID);
}

static int connected(const struct channel_end *e, const char *address, const void *hello, size_t bytes,
                     struct tarn_channel **ch_p)
{
    tarn_op op;
    int rc = tarn_submit_connect(e->client, address, hello, bytes, 0, 0, ch_p, &op);
    return rc ? rc : channel_done(e, op);
}

/* A port where nobody answers: connections to it wait. */
static void silent_address(char address[TARN_CHANNEL_ADDRESS_MAX], int *fd_p)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(a);
    *fd_p = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(*fd_p, (struct sockaddr *)&a, bytes), 0);
    assert_int_equal(listen(*fd_p, 8), 0);
    assert_int_equal(getsockname(*fd_p, (struct sockaddr *)&a, &bytes), 0);
    snprintf(address, TARN_CHANNEL_ADDRESS_MAX, "127.0.0.1:%d", ntohs(a.sin_port));
}

static void submitted_connects(void **state)
{
    struct channel_pair *p = *state;
    char address[TARN_CHANNEL_ADDRESS_MAX], hello[TARN_HELLO_MAX + 1] = "from a";
    struct tarn_channel *ch = NULL, *accepted;
    struct tarn_channel_peer peer;
    tarn_op op;
    int fd;
    assert_int_equal(tarn_channel_address(p->b.client, address, NULL), 0);
    assert_int_equal(tarn_submit_connect(p->a.client, address, hello, 6, 0, 0, &ch, &op), 0);
    memset(hello, 0, sizeof(hello)); /* it was copied */
    assert_int_equal(channel_done(&p->a, op), 0);
    assert_int_equal(tarn_channel_accept(p->b.client, 0, &accepted), 0);
    assert_int_equal(tarn_channel_peer(accepted, &peer), 0);
    assert_true(peer.hello_bytes == 6 && !memcmp(peer.hello, "from a", 6));
    tarn_channel_close(ch);
    assert_int_equal(connected(&p->a, "127.0.0.1:1", NULL, 0, &ch), TARN_E_NODE_DOWN);
    assert_int_equal(connected(&p->a, "", NULL, 0, &ch), TARN_E_INVALID);
    assert_int_equal(connected(&p->a, address, hello, sizeof(hello), &ch), TARN_E_INVALID);
    assert_int_equal(connected(&p->a, address, NULL, 0, NULL), TARN_E_INVALID);
    silent_address(address, &fd);
    assert_int_equal(tarn_submit_connect(p->a.client, address, NULL, 0, 50, 0, &ch, &op), 0);
    assert_int_equal(channel_done(&p->a, op), TARN_E_TIMEOUT);
    assert_int_equal(tarn_submit_connect(p->a.client, address, NULL, 0, 0, 0, &ch, &op), 0);
    assert_int_equal(tarn_cancel(p->a.client, op), 0);
    assert_int_equal(channel_done(&p->a, op), TARN_E_CANCELED);
    close(fd);
}

/* Messages may come before the channel is accepted. */
static void messages_before_accept(void **state)
{
    struct channel_pair *p = *state;
    char address[TARN_CHANNEL_ADDRESS_MAX];
    assert_int_equal(tarn_channel_address(p->b.client, address, NULL), 0);
    assert_int_equal(tarn_channel_connect(p->a.client, address, NULL, 0, 0, &p->a.channel), 0);
    const struct tarn_piece in = {.addr = p->a.memory, .bytes = 100000},
                            out = {.addr = p->a.memory + 200000, .bytes = 100000};
    tarn_op receiving = channel_submit_recv(&p->a, 1, &in, 0, NULL);
    tarn_op sending = channel_submit_send(&p->a, 1, &out, 0);
    channel_fill(p->a.memory + 200000, 100000, 1);
    channel_fill(p->b.memory, 100000, 2);
    HARNESS_UNTIL(channel_info(&p->b, "receives_announced") == 1, 5000);
    assert_int_equal(tarn_channel_accept(p->b.client, 0, &p->b.channel), 0);
    assert_int_equal(channel_send(&p->b, 1, p->b.memory, 100000, 0), 0);
    assert_int_equal(channel_recv(&p->b, 1, p->b.memory + 200000, 100000, 0, NULL), 0);
    assert_int_equal(channel_done(&p->a, receiving), 0);
    assert_int_equal(channel_done(&p->a, sending), 0);
    assert_true(channel_filled(p->a.memory, 100000, 2));
    assert_true(channel_filled(p->b.memory + 200000, 100000, 1));
}

/* A client may connect to itself. */
static void a_channel_to_oneself(void **state)
{
    struct channel_pair *p = *state;
    struct channel_end from = p->b, to = p->b;
    channel_connect(&from, &to);
    to.memory += CHANNEL_ROOM / 2;
    pass(&from, &to, 100, 100, true);
    pass(&to, &from, 100000, 100000, true);
}

int main(int argc, char **argv)
{
    struct channel_end e;
    if (channel_peer_is(argc, argv, &e))
        return play(&e, strtoull(argv[6], NULL, 10));
    const struct CMUnitTest tests[] = {
        CHANNEL_TESTS(messages_of_all_sizes),
        CHANNEL_TESTS(shorter_messages_have_their_true_size),
        CHANNEL_TESTS(longer_messages_are_refused_at_both_ends),
        CHANNEL_TESTS(memory_outside_of_windows),
        CHANNEL_TESTS(pieces_of_any_form),
        CHANNEL_TESTS(one_tag_keeps_its_order),
        CHANNEL_TESTS(tags_are_independent),
        CHANNEL_TESTS(receives_hold_up_no_sends),
        CHANNEL_TESTS(vectors),
        CHANNEL_TESTS(vectors_that_do_not_match),
        CHANNEL_TESTS(channels_at_once_in_both_directions),
        CHANNEL_TESTS(random_messages),
        CHANNEL_TESTS(a_peer_tells_who_it_is),
        CHANNEL_TESTS(submitted_connects),
        CHANNEL_TESTS(messages_before_accept),
        CHANNEL_TESTS(a_channel_to_oneself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
