/* SPDX-License-Identifier: Apache-2.0 */
/* Channels when peers are late, gone, stopped or strangers: nothing is lost, doubled or late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/client.h"
#include "client/window/channel_ask.h"
#include "client/window/lender.h"
#include "tests/channel_pair.h"
#include "tests/node_client.h"

enum { LARGE = 1 << 20, SHORT_MS = 100 };

static const size_t both_sizes[] = {100, LARGE};

static bool untouched(const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != 0xee)
            return false;
    return true;
}

/* --- late --------------------------------------------------------------------------------------- */

/* The sender must not find a receive that has ended. */
static void a_send_after_a_timeout(void **state)
{
    struct channel_pair *p = *state;
    for (int i = 0; i < 2; i++) {
        size_t bytes = both_sizes[i];
        const struct tarn_piece out = {.addr = p->a.memory, .bytes = bytes};
        memset(p->b.memory, 0xee, bytes);
        channel_fill(p->a.memory, bytes, 4);
        assert_int_equal(channel_recv(&p->b, 1, p->b.memory, bytes, SHORT_MS, NULL), TARN_E_TIMEOUT);
        assert_non_null(strstr(tarn_last_error(), "has not sent with tag 1"));
        assert_int_equal(channel_send(&p->a, 1, p->a.memory, bytes, SHORT_MS), TARN_E_TIMEOUT);
        assert_non_null(strstr(tarn_last_error(), "has not received with tag 1"));
        assert_true(untouched(p->b.memory, bytes));
        tarn_op op = channel_submit_send(&p->a, 1, &out, 0);
        assert_int_equal(channel_recv(&p->b, 1, p->b.memory, bytes, 0, NULL), 0);
        assert_int_equal(channel_done(&p->a, op), 0);
        assert_true(channel_filled(p->b.memory, bytes, 4));
    }
}

static void a_canceled_receive(void **state)
{
    struct channel_pair *p = *state;
    for (int i = 0; i < 2; i++) {
        size_t bytes = both_sizes[i];
        const struct tarn_piece in = {.addr = p->b.memory, .bytes = bytes};
        memset(p->b.memory, 0xee, bytes);
        tarn_op op = channel_submit_recv(&p->b, 1, &in, 0, NULL);
        assert_int_equal(tarn_cancel(p->b.client, op), 0);
        assert_int_equal(channel_done(&p->b, op), TARN_E_CANCELED);
        assert_int_equal(channel_send(&p->a, 1, p->a.memory, bytes, SHORT_MS), TARN_E_TIMEOUT);
        assert_true(untouched(p->b.memory, bytes));
    }
}

/* What is refused leaves the receive as it was. */
static void a_window_is_not_closed_under_a_receive(void **state)
{
    struct channel_pair *p = *state;
    const struct tarn_piece in = {.addr = p->b.memory, .bytes = 100000};
    tarn_op op = channel_submit_recv(&p->b, 1, &in, 0, NULL);
    assert_int_equal(tarn_window_close(p->b.window, 0), TARN_E_BUSY);
    assert_non_null(strstr(tarn_last_error(), "a receive into it is under way"));
    channel_fill(p->a.memory, 100000, 1);
    assert_int_equal(channel_send(&p->a, 1, p->a.memory, 100000, 0), 0);
    assert_int_equal(channel_done(&p->b, op), 0);
    assert_true(channel_filled(p->b.memory, 100000, 1));
    op = channel_submit_recv(&p->b, 1, &in, 0, NULL);
    assert_int_equal(tarn_cancel(p->b.client, op), 0);
    assert_int_equal(channel_done(&p->b, op), TARN_E_CANCELED);
    assert_int_equal(tarn_window_close(p->b.window, 0), 0);
}

static void a_canceled_send(void **state)
{
    struct channel_pair *p = *state;
    for (int i = 0; i < 2; i++) {
        size_t bytes = both_sizes[i];
        const struct tarn_piece first = {.addr = p->a.memory, .bytes = bytes},
                                second = {.addr = p->a.memory + 2 * LARGE, .bytes = bytes};
        channel_fill(p->a.memory, bytes, 1);
        channel_fill(p->a.memory + 2 * LARGE, bytes, 2);
        tarn_op canceled = channel_submit_send(&p->a, 1, &first, 0);
        tarn_op op = channel_submit_send(&p->a, 1, &second, 0);
        assert_int_equal(tarn_cancel(p->a.client, canceled), 0);
        assert_int_equal(channel_done(&p->a, canceled), TARN_E_CANCELED);
        assert_int_equal(channel_recv(&p->b, 1, p->b.memory, bytes, 0, NULL), 0);
        assert_int_equal(channel_done(&p->a, op), 0);
        assert_true(channel_filled(p->b.memory, bytes, 2));
    }
}

/* Operations end at their deadlines, though no worker waits for them. */
static void submitted_ones_time_out(void **state)
{
    enum { N = 20 };
    struct channel_pair *p = *state;
    const struct tarn_piece piece = {.addr = p->a.memory, .bytes = LARGE};
    tarn_op ops[2][N];
    for (int i = 0; i < N; i++) {
        ops[0][i] = channel_submit_recv(&p->a, 1, &piece, SHORT_MS, NULL);
        ops[1][i] = channel_submit_send(&p->a, 1, &piece, SHORT_MS);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(channel_done(&p->a, ops[0][i]), TARN_E_TIMEOUT);
        assert_int_equal(channel_done(&p->a, ops[1][i]), TARN_E_TIMEOUT);
    }
    HARNESS_UNTIL(channel_info(&p->b, "receives_announced") == 0, 5000);
}

/* --- never lost, never twice -------------------------------------------------------------------- */

struct counting {
    struct channel_end end;
    size_t bytes;
    unsigned n;
    atomic_int failed; /* a send's status */
};

/* Sends n messages, each with its number. */
static void *count_up(void *arg)
{
    struct counting *s = arg;
    for (unsigned i = 0; i < s->n && !s->failed; i++) {
        memcpy(s->end.memory, &i, sizeof(i));
        memcpy(s->end.memory + s->bytes - sizeof(i), &i, sizeof(i));
        s->failed = channel_send(&s->end, 1, s->end.memory, s->bytes, 60000);
    }
    return NULL;
}

/* Receives time out all the time, as messages arrive. Each message is received once, in order. */
static void timeouts_and_messages_at_once(void **state)
{
    struct channel_pair *p = *state;
    for (int i = 0; i < 2; i++) {
        struct counting s = {.end = p->a, .bytes = both_sizes[i], .n = i ? 150 : 400};
        pthread_t thread;
        unsigned late = 0;
        assert_int_equal(pthread_create(&thread, NULL, count_up, &s), 0);
        for (unsigned want = 0; want < s.n && !s.failed;) {
            unsigned first, last;
            memset(p->b.memory, 0xee, s.bytes);
            int rc = channel_recv(&p->b, 1, p->b.memory, s.bytes, 1 + want % 2, NULL);
            late += rc == TARN_E_TIMEOUT;
            if (rc == TARN_E_TIMEOUT && i == 0)
                assert_true(untouched(p->b.memory, s.bytes));
            if (rc == TARN_E_TIMEOUT)
                continue;
            assert_int_equal(rc, 0);
            memcpy(&first, p->b.memory, sizeof(first));
            memcpy(&last, p->b.memory + s.bytes - sizeof(last), sizeof(last));
            assert_true(first == want && last == want);
            want++;
        }
        pthread_join(thread, NULL);
        assert_int_equal(s.failed, 0);
        print_message("%u messages, %u receives timed out\n", s.n, late);
    }
}

/* --- peers in processes of their own ------------------------------------------------------------ */

struct peer {
    struct harness_process *process;
    struct channel_end end; /* this side */
};

/*
 * Roles: idle     waits
 *        posts    posts a receive, then waits
 *        receives, sends: do that, and end with the status
 *        receives_two: with tags 1 and 2; ends with the status of one that has no message
 */
static int play(const struct channel_end *e, const char *role, size_t bytes)
{
    const struct tarn_piece piece = {.addr = e->memory, .bytes = bytes};
    if (!strcmp(role, "posts"))
        channel_submit_recv(e, 1, &piece, 60000, NULL);
    tarn_op two[2] = {0};
    for (int i = 0; i < 2 && !strcmp(role, "receives_two"); i++)
        two[i] = channel_submit_recv(e, 1 + (uint64_t)i, &piece, 60000, NULL);
    printf("ready\n");
    fflush(stdout);
    if (!strcmp(role, "receives_two")) {
        int rc = channel_done(e, two[0]), second = channel_done(e, two[1]);
        return -(second ? second : rc);
    }
    if (!strcmp(role, "receives"))
        return -channel_recv(e, 1, e->memory, bytes, 60000, NULL);
    channel_fill(e->memory, bytes, 9);
    if (!strcmp(role, "sends"))
        return -channel_send(e, 1, e->memory, bytes, 60000);
    for (;;)
        pause();
}

static struct peer peer_start(const struct channel_pair *p, const char *role, size_t bytes)
{
    struct peer peer = {.process = channel_peer_start(p, role, bytes), .end = p->b};
    if (tarn_channel_accept(p->b.client, 0, &peer.end.channel))
        fail_msg("accept: %s", tarn_last_error());
    return peer;
}

/* --- gone --------------------------------------------------------------------------------------- */

/* A thread waits in a call while the peer is killed. */
struct waiting {
    const struct channel_end *end;
    bool sends;
    int rc;
    char why[512];
};

static void *wait_in_call(void *arg)
{
    struct waiting *w = arg;
    w->rc = w->sends ? channel_send(w->end, 1, w->end->memory, LARGE, 60000)
                     : channel_recv(w->end, 2, w->end->memory, LARGE, 60000, NULL);
    snprintf(w->why, sizeof(w->why), "%s", tarn_last_error());
    return NULL;
}

static void a_peer_that_is_killed(void **state)
{
    struct channel_pair *p = *state;
    struct peer peer = peer_start(p, "idle", 0);
    const struct tarn_piece piece = {.addr = p->b.memory, .bytes = 100};
    struct waiting waits[2] = {{.end = &peer.end}, {.end = &peer.end, .sends = true}};
    pthread_t threads[2];
    char name[40];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, wait_in_call, &waits[i]), 0);
    tarn_op sending = channel_submit_send(&peer.end, 1, &piece, 60000);
    tarn_op receiving = channel_submit_recv(&peer.end, 1, &piece, 60000, NULL);
    HARNESS_UNTIL(channel_info(&p->b, "channel_calls") == 4, 5000);
    uint64_t begun = harness_now_ms();
    harness_kill(peer.process);
    snprintf(name, sizeof(name), "lender-%d ", (int)harness_pid(peer.process));
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(waits[i].rc, TARN_E_NODE_DOWN);
        assert_non_null(strstr(waits[i].why, name));
    }
    assert_int_equal(channel_done(&peer.end, sending), TARN_E_NODE_DOWN);
    assert_non_null(strstr(channel_error(), name));
    assert_int_equal(channel_done(&peer.end, receiving), TARN_E_NODE_DOWN);
    assert_true(harness_now_ms() - begun < 5000u * harness_slower());
    assert_int_equal(channel_recv(&peer.end, 1, p->b.memory, 10, 0, NULL), TARN_E_NODE_DOWN);
    assert_int_equal(channel_send(&peer.end, 1, p->b.memory, 10, 0), TARN_E_NODE_DOWN);
    tarn_channel_close(peer.end.channel);
}

/* The same at the connector's end, whose peer has never spoken to it. */
static void a_listener_that_is_gone(void **state)
{
    struct channel_pair *p = *state;
    struct waiting w = {.end = &p->a};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_in_call, &w), 0);
    HARNESS_UNTIL(channel_info(&p->b, "receives_announced") == 1, 5000);
    channel_end_close(&p->b);
    pthread_join(thread, NULL);
    assert_int_equal(w.rc, TARN_E_NODE_DOWN);
    assert_int_equal(channel_send(&p->a, 1, p->a.memory, 10, 0), TARN_E_NODE_DOWN);
    channel_end_open(p->w->redis->url, p->transports, NULL, &p->b);
}

/* What was complete before is received. */
static void messages_of_a_peer_that_is_gone(void **state)
{
    struct channel_pair *p = *state;
    for (int i = 0; i < 2; i++) {
        struct peer peer = peer_start(p, "sends", both_sizes[i]);
        const struct tarn_piece in = {.addr = p->b.memory, .bytes = LARGE};
        uint64_t got = 0;
        tarn_op op = channel_submit_recv(&peer.end, 1, &in, 0, &got);
        tarn_op other = channel_submit_recv(&peer.end, 1, &in, 60000, NULL);
        assert_int_equal(harness_wait(peer.process, HARNESS_TIMEOUT_MS), 0);
        assert_int_equal(channel_done(&peer.end, other), TARN_E_NODE_DOWN);
        assert_int_equal(channel_done(&peer.end, op), 0);
        assert_int_equal(got, both_sizes[i]);
        assert_true(channel_filled(p->b.memory, got, 9));
        tarn_channel_close(peer.end.channel);
    }
}

/* A connector that is gone before it was accepted is nobody. */
static void a_connector_that_is_gone(void **state)
{
    struct channel_pair *p = *state;
    struct channel_end e;
    struct tarn_channel *ch;
    char address[TARN_CHANNEL_ADDRESS_MAX];
    struct pollfd fd = {.fd = tarn_channel_accept_fd(p->b.client), .events = POLLIN};
    assert_int_equal(tarn_channel_address(p->b.client, address, NULL), 0);
    channel_end_open(p->w->redis->url, p->transports, NULL, &e);
    assert_int_equal(tarn_channel_connect(e.client, address, NULL, 0, 0, &e.channel), 0);
    assert_int_equal(poll(&fd, 1, 0), 1);
    channel_end_close(&e);
    HARNESS_UNTIL(poll(&fd, 1, 0) == 0, 5000);
    assert_int_equal(tarn_channel_accept(p->b.client, 20, &ch), TARN_E_TIMEOUT);
}

/* --- cut off ------------------------------------------------------------------------------------ */

/* Ends the connection that the client watches. False: it watches none just now. */
static bool cut(struct tarn_client *c)
{
    struct tarn_peer_node *node, *next;
    bool done = false;
    pthread_rwlock_rdlock(&c->nodes_lock);
    pthread_mutex_lock(&c->monitor.lock);
    HASH_ITER (hh, c->nodes, node, next)
        if (atomic_load(&node->lends) && node->watch)
            done = shutdown(tarn_resp_fd(node->watch->resp), SHUT_RDWR) == 0;
    pthread_mutex_unlock(&c->monitor.lock);
    pthread_rwlock_unlock(&c->nodes_lock);
    return done;
}

/* Passes a message each way. */
static void exchange(struct channel_pair *p, size_t bytes)
{
    const struct tarn_piece a = {.addr = p->a.memory, .bytes = bytes},
                            b = {.addr = p->b.memory, .bytes = bytes};
    tarn_op to_a = channel_submit_recv(&p->a, 1, &a, 0, NULL),
            to_b = channel_submit_recv(&p->b, 2, &b, 0, NULL);
    if (channel_send(&p->a, 2, p->a.memory + 2 * LARGE, bytes, 0))
        fail_msg("a: %s", tarn_last_error());
    if (channel_send(&p->b, 1, p->b.memory + 2 * LARGE, bytes, 0))
        fail_msg("b: %s", tarn_last_error());
    assert_int_equal(channel_done(&p->a, to_a), 0);
    assert_int_equal(channel_done(&p->b, to_b), 0);
}

/* Other connections than the lifeline come and go, and with them the acceptor's session and what it had been
 * granted. */
static void connections_that_break(void **state)
{
    struct channel_pair *p = *state;
    exchange(p, LARGE);
    for (int i = 0; i < 6; i++) {
        HARNESS_UNTIL(cut(i % 2 ? p->a.client : p->b.client), 5000);
        exchange(p, both_sizes[i / 2 % 2]);
    }
}

static int cut_lifeline(struct tarn_lender *l, void *arg)
{
    const struct tarn_channel *ch = arg;
    (void)l;
    return shutdown(tarn_resp_fd(ch->lifeline->resp), SHUT_RDWR);
}

/* The lifeline is the channel: both ends find it broken. */
static void a_lifeline_that_breaks(void **state)
{
    struct channel_pair *p = *state;
    struct waiting waits[2] = {{.end = &p->a}, {.end = &p->b}};
    pthread_t threads[2];
    exchange(p, LARGE);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, wait_in_call, &waits[i]), 0);
    HARNESS_UNTIL(channel_info(&p->b, "receives_announced") == 1, 5000);
    assert_int_equal(tarn_lender_run(p->a.client->lender, cut_lifeline, p->a.channel), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(waits[i].rc, TARN_E_NODE_DOWN);
    }
    channel_connect(&p->a, &p->b);
    exchange(p, LARGE);
}

/* --- stopped ------------------------------------------------------------------------------------ */

/* Calls end in time, and the channel is whole again when the peer goes on. */
static void a_peer_that_is_stopped(void **state)
{
    struct channel_pair *p = *state;
    for (int i = 0; i < 2; i++) {
        struct peer peer = peer_start(p, "posts", both_sizes[i]);
        HARNESS_UNTIL(channel_info(&p->b, "receives_announced") == 1, 5000);
        harness_signal(peer.process, SIGSTOP);
        uint64_t begun = harness_now_ms();
        assert_int_equal(channel_recv(&peer.end, 1, p->b.memory, both_sizes[i], SHORT_MS, NULL),
                         TARN_E_TIMEOUT);
        assert_int_equal(channel_send(&peer.end, 2, p->b.memory, both_sizes[i], SHORT_MS), TARN_E_TIMEOUT);
        assert_int_equal(channel_send(&peer.end, 1, p->b.memory, both_sizes[i], SHORT_MS), TARN_E_TIMEOUT);
        assert_true(harness_now_ms() - begun < 3000u * harness_slower());
        harness_signal(peer.process, SIGCONT);
        assert_int_equal(channel_send(&peer.end, 3, p->b.memory, 10, SHORT_MS), TARN_E_TIMEOUT);
        harness_kill(peer.process);
        tarn_channel_close(peer.end.channel);
    }
}

/* A sender that gives up in the middle ends the receive, which would wait for ever else. */
static void a_sender_that_gives_up(void **state)
{
    struct channel_pair *p = *state;
    struct peer peer = peer_start(p, "receives", CHANNEL_ROOM);
    HARNESS_UNTIL(channel_info(&p->b, "receives_announced") == 1, 5000);
    harness_signal(peer.process, SIGSTOP);
    assert_int_equal(channel_send(&peer.end, 1, p->b.memory, CHANNEL_ROOM, SHORT_MS), TARN_E_TIMEOUT);
    harness_signal(peer.process, SIGCONT);
    assert_int_equal(harness_wait(peer.process, HARNESS_TIMEOUT_MS), -TARN_E_AGAIN);
    tarn_channel_close(peer.end.channel);
}

/* The only connection waits for an answer, so the second send never gets to say DELIVER. Its receive ends. */
static void a_sender_that_gives_up_unheard(void **state)
{
    struct channel_pair *p = *state;
    const struct tarn_piece piece = {.addr = p->b.memory, .bytes = 100};
    struct peer peer = peer_start(p, "receives_two", 100);
    HARNESS_UNTIL(channel_info(&p->b, "receives_announced") == 2, 5000);
    harness_signal(peer.process, SIGSTOP);
    tarn_op first = channel_submit_send(&peer.end, 1, &piece, SHORT_MS);
    assert_int_equal(channel_send(&peer.end, 2, p->b.memory, 100, SHORT_MS), TARN_E_TIMEOUT);
    assert_int_equal(channel_done(&peer.end, first), TARN_E_TIMEOUT);
    harness_signal(peer.process, SIGCONT);
    assert_int_equal(harness_wait(peer.process, HARNESS_TIMEOUT_MS), -TARN_E_AGAIN);
    tarn_channel_close(peer.end.channel);
}

/* --- closed ------------------------------------------------------------------------------------- */

static void closing_with_calls_under_way(void **state)
{
    struct channel_pair *p = *state;
    const struct tarn_piece piece = {.addr = p->a.memory, .bytes = LARGE};
    struct waiting there = {.end = &p->b};
    struct waiting here = {.end = &p->a};
    pthread_t threads[2];
    tarn_op receiving = channel_submit_recv(&p->a, 1, &piece, 60000, NULL);
    tarn_op sending = channel_submit_send(&p->a, 1, &piece, 60000);
    assert_int_equal(pthread_create(&threads[0], NULL, wait_in_call, &there), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, wait_in_call, &here), 0);
    HARNESS_UNTIL(channel_info(&p->b, "receives_announced") == 2, 5000);
    tarn_channel_close(p->a.channel);
    assert_int_equal(channel_done(&p->a, receiving), TARN_E_CLOSED);
    assert_int_equal(channel_done(&p->a, sending), TARN_E_CLOSED);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_int_equal(here.rc, TARN_E_CLOSED);
    assert_int_equal(there.rc, TARN_E_NODE_DOWN);
    assert_non_null(strstr(there.why, "the peer has closed it"));
    tarn_channel_close(NULL);
}

/* A client that is closed ends its operations, and the peer's calls. */
static void clients_close_with_calls_under_way(void **state)
{
    struct channel_pair *p = *state;
    const struct tarn_piece piece = {.addr = p->a.memory, .bytes = LARGE};
    struct waiting there = {.end = &p->b};
    pthread_t thread;
    for (int i = 0; i < 5; i++) {
        channel_submit_recv(&p->a, 1, &piece, 60000, NULL);
        channel_submit_send(&p->a, 1, &piece, 60000);
    }
    assert_int_equal(pthread_create(&thread, NULL, wait_in_call, &there), 0);
    HARNESS_UNTIL(channel_info(&p->b, "receives_announced") == 5, 5000);
    channel_end_close(&p->a);
    pthread_join(thread, NULL);
    assert_int_equal(there.rc, TARN_E_NODE_DOWN);
    channel_end_open(p->w->redis->url, p->transports, NULL, &p->a);
}

/* --- strangers ---------------------------------------------------------------------------------- */

static void garbage_before_a_connect(void **state)
{
    struct channel_pair *p = *state;
    static const char *const said[] = {"",
                                       "*2\r\n$6\r\nLENDER\r\n$1\r\n",
                                       "*1\r\n$7\r\nCONNECT\r\n",
                                       "*2\r\n$6\r\nLENDER\r\n$1\r\n2\r\n",
                                       "GET / HTTP/1.0\r\n\r\n",
                                       "*9999999\r\n",
                                       "\x16\x03\x01\x02"};
    enum { SAID = sizeof(said) / sizeof(said[0]) };
    char address[TARN_CHANNEL_ADDRESS_MAX];
    struct pollfd fd = {.fd = tarn_channel_accept_fd(p->b.client), .events = POLLIN};
    int fds[SAID];
    assert_int_equal(tarn_channel_address(p->b.client, address, NULL), 0);
    for (int i = 0; i < SAID; i++) {
        fds[i] = raw_connect(address);
        assert_true(raw_send(fds[i], said[i], strlen(said[i])));
    }
    assert_int_equal(tarn_channel_connect(p->a.client, address, "x", 1, 0, &p->a.channel), 0);
    assert_int_equal(tarn_channel_accept(p->b.client, 0, &p->b.channel), 0);
    assert_int_equal(poll(&fd, 1, 0), 0); /* the others count for nothing */
    const struct tarn_piece in = {.addr = p->b.memory, .bytes = 10};
    tarn_op op = channel_submit_recv(&p->b, 1, &in, 0, NULL);
    assert_int_equal(channel_send(&p->a, 1, p->a.memory, 10, 0), 0);
    assert_int_equal(channel_done(&p->b, op), 0);
    for (int i = 0; i < SAID; i++)
        close(fds[i]);
}

/* Clients with these secrets; NULL: none. Returns what connecting gives. */
static int connect_with(struct channel_pair *p, const char *listens, const char *secret, const char *connects)
{
    const struct tarn_options to = {.listen = listens, .secret = secret}, from = {.secret = connects};
    struct channel_end l, c;
    char address[TARN_CHANNEL_ADDRESS_MAX], at[TARN_CHANNEL_ADDRESS_MAX];
    channel_end_open(p->w->redis->url, p->transports, &to, &l);
    channel_end_open(p->w->redis->url, p->transports, &from, &c);
    int rc = tarn_channel_listen(l.client);
    if (!rc) {
        assert_int_equal(tarn_channel_address(l.client, address, NULL), 0);
        snprintf(at, sizeof(at), "127.0.0.1%s", strrchr(address, ':'));
        rc = tarn_channel_connect(c.client, at, NULL, 0, 0, &c.channel);
    }
    channel_end_close(&c);
    channel_end_close(&l);
    return rc;
}

static void secrets(void **state)
{
    struct channel_pair *p = *state;
    static const char here[] = "127.0.0.1:0", everywhere[] = "0.0.0.0:0";
    assert_int_equal(connect_with(p, here, NULL, NULL), 0);
    assert_int_equal(connect_with(p, here, "right", "right"), 0);
    assert_int_equal(connect_with(p, here, "right", "wrong"), TARN_E_AUTH);
    assert_non_null(strstr(tarn_last_error(), "wrong secret"));
    assert_int_equal(connect_with(p, here, "right", NULL), TARN_E_AUTH);
    assert_non_null(strstr(tarn_last_error(), "was shown none"));
    assert_int_equal(connect_with(p, everywhere, "right", "right"), 0);
    assert_int_equal(connect_with(p, everywhere, "right", "wrong"), TARN_E_AUTH);
    assert_int_equal(connect_with(p, everywhere, NULL, NULL), TARN_E_CONFIG);
    assert_non_null(strstr(tarn_last_error(), "give this client a secret"));
}

/* The first words of what is answered to CONNECT, with that secret; NULL: none. */
static void connect_raw(struct tarn_resp *resp, const char *secret, const char *answer)
{
    static const char id[] = "0123456789abcdef";
    uint64_t soon = tarn_deadline(10000);
    redisReply *reply;
    assert_int_equal(tarn_resp_append_strs(resp, "CONNECT", "1", id, id, id, "127.0.0.1:1", "/nowhere",
                                           "host", id, "hello", secret, NULL),
                     0);
    assert_int_equal(tarn_resp_read(resp, soon, NULL, &reply), 0);
    if (!answer)
        assert_int_equal(reply->type, REDIS_REPLY_INTEGER);
    else if (reply->type != REDIS_REPLY_ERROR || !strstr(reply->str, answer))
        fail_msg("%s: %s", secret ? secret : "no secret", reply->str);
    freeReplyObject(reply);
}

/* Who has a descriptor has the secret of control connections, and no channel by that. */
static void a_descriptor_connects_no_channel(void **state)
{
    struct channel_pair *p = *state;
    const struct tarn_options o = {.listen = "127.0.0.1:0", .secret = "right"};
    struct channel_end l;
    struct tarn_lease *lease;
    struct tarn_resp *resp;
    struct tarn_addr a;
    redisReply *reply;
    char text[TARN_DESCRIPTOR_MAX], address[TARN_CHANNEL_ADDRESS_MAX], secret[33];
    channel_end_open(p->w->redis->url, p->transports, &o, &l);
    assert_int_equal(tarn_channel_listen(l.client), 0);
    assert_int_equal(tarn_channel_address(l.client, address, NULL), 0);
    assert_int_equal(tarn_lease(l.window, NULL, 0, NULL, &lease), 0);
    assert_int_equal(tarn_lease_descriptor(lease, text), 0);
    snprintf(secret, sizeof(secret), "%.32s", strrchr(text, ' ') - 64);
    assert_int_equal(tarn_addr_parse(address, "address", &a), 0);
    assert_int_equal(tarn_resp_connect(&a, tarn_deadline(10000), NULL, &resp), 0);
    assert_int_equal(tarn_resp_append_strs(resp, "HELLO", "1", "77", secret, NULL), 0);
    assert_int_equal(tarn_resp_read(resp, tarn_deadline(10000), NULL, &reply), 0);
    assert_int_equal(reply->type, REDIS_REPLY_ARRAY);
    freeReplyObject(reply);
    connect_raw(resp, NULL, "was shown none");
    connect_raw(resp, secret, "wrong secret");
    connect_raw(resp, "right", NULL);
    tarn_resp_free(resp);
    channel_end_close(&l);
}

/* Nobody there, nobody who listens, somebody else. */
static void addresses_that_lead_nowhere(void **state)
{
    struct channel_pair *p = *state;
    char at[64], address[TARN_CHANNEL_ADDRESS_MAX];
    struct tarn_channel *ch;
    snprintf(at, sizeof(at), "127.0.0.1:%u", harness_free_port());
    assert_int_equal(tarn_channel_connect(p->a.client, at, NULL, 0, 0, &ch), TARN_E_NODE_DOWN);
    assert_int_equal(tarn_channel_connect(p->a.client, "/nowhere/socket", NULL, 0, 0, &ch), TARN_E_NODE_DOWN);
    int rc = tarn_channel_connect(p->a.client, p->w->redis->address, NULL, 0, 0, &ch);
    assert_int_equal(rc, TARN_E_PROTOCOL);
    assert_int_equal(tarn_channel_connect(p->a.client, "nonsense", NULL, 0, 0, &ch), TARN_E_INVALID);
    assert_int_equal(tarn_channel_connect(p->a.client, NULL, NULL, 0, 0, &ch), TARN_E_INVALID);
    struct tarn_channel_peer peer;
    assert_int_equal(tarn_channel_peer(p->b.channel, &peer), 0);
    rc = tarn_channel_connect(p->b.client, peer.address, NULL, 0, 0, &ch);
    assert_int_equal(rc, TARN_E_NOT_FOUND);
    assert_non_null(strstr(tarn_last_error(), "does not listen"));
    assert_int_equal(tarn_channel_address(p->a.client, address, NULL), TARN_E_INVALID);
    assert_int_equal(tarn_send(NULL, 1, NULL, 0, NULL), TARN_E_INVALID);
}

/* Commands for a channel of another session, and malformed ones. */
static void commands_of_others(void **state)
{
    struct channel_pair *p = *state;
    struct tarn_lease *lease;
    char text[TARN_DESCRIPTOR_MAX], address[TARN_CHANNEL_ADDRESS_MAX], secret[33];
    assert_int_equal(tarn_channel_address(p->b.client, address, NULL), 0);
    assert_int_equal(tarn_lease(p->b.window, NULL, 0, NULL, &lease), 0);
    assert_int_equal(tarn_lease_descriptor(lease, text), 0);
    snprintf(secret, sizeof(secret), "%.32s", strrchr(text, ' ') - 64);
    struct tarn_resp *resp;
    struct tarn_addr a;
    redisReply *reply;
    uint64_t soon = harness_now_ms() * 1000000u + 10000000000u;
    assert_int_equal(tarn_addr_parse(address, "address", &a), 0);
    assert_int_equal(tarn_resp_connect(&a, soon, NULL, &resp), 0);
    static const char *const said[][7] = {
        {"POST", "1", "1", "1", "10"},
        {"POST", "1", "x", "1", "10"},
        {"UNPOST", "1", "1"},
        {"DELIVER", "1", "1", "data", "3", "abc"},
        {"DELIVER", "1", "1", "maybe", "3", "abc"},
        {"DELIVER", "1", "1", "data", "3 x", "abc"},
        {"HANGUP", "1"},
        {"POST", "1"},
    };
    static const char *const answers[] = {"AUTH",    "NOT_FOUND", "NOT_FOUND", "NOT_FOUND", "NOT_FOUND",
                                          "INVALID", "INVALID",   "NOT_FOUND", "INVALID"};
    for (int i = -1; i < 8; i++) {
        const char *const *w = said[i < 0 ? 0 : i];
        if (i == 0) {
            assert_int_equal(tarn_resp_append_strs(resp, "HELLO", "1", "77", secret, NULL), 0);
            assert_int_equal(tarn_resp_read(resp, soon, NULL, &reply), 0);
            assert_int_equal(reply->type, REDIS_REPLY_ARRAY);
            freeReplyObject(reply);
        }
        assert_int_equal(tarn_resp_append_strs(resp, w[0], w[1], w[2], w[3], w[4], w[5], NULL), 0);
        assert_int_equal(tarn_resp_read(resp, soon, NULL, &reply), 0);
        if (strncmp(reply->str, answers[i + 1], strlen(answers[i + 1])))
            fail_msg("%s: %s, not %s", w[0], reply->str, answers[i + 1]);
        freeReplyObject(reply);
    }
    tarn_resp_free(resp);
    const struct tarn_piece in = {.addr = p->b.memory, .bytes = 10};
    tarn_op op = channel_submit_recv(&p->b, 1, &in, 0, NULL);
    assert_int_equal(channel_send(&p->a, 1, p->a.memory, 10, 0), 0);
    assert_int_equal(channel_done(&p->b, op), 0);
}

static int say_deliver(struct tarn_channel *ch, const char *id, const char *how, const char *sizes,
                       const char *data)
{
    struct tarn_command c = {.n = 0};
    tarn_channel_say(ch, &c, "DELIVER");
    tarn_command_strs(&c, id, how, sizes, data, NULL);
    return tarn_channel_ask(ch, &c, tarn_deadline(20000), NULL);
}

/* A sender that says other things than it should does not end the receive, and nothing is delivered twice. */
static void deliveries_that_lie(void **state)
{
    struct channel_pair *p = *state;
    struct tarn_channel *ch = p->a.channel;
    const struct tarn_piece in = {.addr = p->b.memory, .bytes = 10};
    uint64_t got = 0;
    tarn_op op = channel_submit_recv(&p->b, 1, &in, 0, &got);
    HARNESS_UNTIL(say_deliver(ch, "1", "data", "11", "hello world") == TARN_E_INVALID,
                  5000); /* it is posted */
    assert_int_equal(say_deliver(ch, "1", "data", "9", "hello"), TARN_E_INVALID);
    assert_int_equal(say_deliver(ch, "1", "data", "2 3", "hello"), TARN_E_INVALID);
    assert_int_equal(say_deliver(ch, "1", "written", "10", ""), TARN_E_INVALID);
    assert_int_equal(say_deliver(ch, "2", "data", "5", "hello"), TARN_E_STALE);
    assert_int_equal(say_deliver(ch, "1", "data", "5", "hello"), 0);
    assert_int_equal(say_deliver(ch, "1", "data", "5", "HELLO"), TARN_E_STALE);
    assert_int_equal(channel_done(&p->b, op), 0);
    assert_int_equal(got, 5);
    assert_memory_equal(p->b.memory, "hello", 5);
    assert_true(untouched(p->b.memory + 5, 100));
}

/* 1024 channels may wait; the next connector is told so, and finds room when one was accepted. */
static void too_many_unaccepted_channels(void **state)
{
    struct channel_pair *p = *state;
    char address[TARN_CHANNEL_ADDRESS_MAX];
    struct tarn_channel *all[1024], *ch, *accepted;
    assert_int_equal(tarn_channel_address(p->b.client, address, NULL), 0);
    for (int i = 0; i < 1024; i++)
        if (tarn_channel_connect(p->a.client, address, NULL, 0, 0, &all[i]))
            fail_msg("%d: %s", i, tarn_last_error());
    assert_int_equal(tarn_channel_connect(p->a.client, address, NULL, 0, 0, &ch), TARN_E_AGAIN);
    assert_int_equal(tarn_channel_accept(p->b.client, 0, &accepted), 0);
    assert_int_equal(tarn_channel_connect(p->a.client, address, NULL, 0, 0, &ch), 0);
    for (int i = 0; i < 1024; i++)
        tarn_channel_close(all[i]);
    tarn_channel_close(ch);
    HARNESS_UNTIL(channel_info(&p->b, "channels_unaccepted") == 0, 20000);
}

int main(int argc, char **argv)
{
    struct channel_end e;
    if (channel_peer_is(argc, argv, &e))
        return play(&e, argv[5], strtoull(argv[6], NULL, 10));
    const struct CMUnitTest tests[] = {
        CHANNEL_TESTS(a_send_after_a_timeout),
        CHANNEL_TESTS(a_canceled_receive),
        CHANNEL_TESTS(a_window_is_not_closed_under_a_receive),
        CHANNEL_TESTS(a_canceled_send),
        CHANNEL_TESTS(submitted_ones_time_out),
        CHANNEL_TESTS(timeouts_and_messages_at_once),
        CHANNEL_TESTS(a_peer_that_is_killed),
        CHANNEL_TESTS(a_listener_that_is_gone),
        CHANNEL_TESTS(messages_of_a_peer_that_is_gone),
        CHANNEL_TESTS(a_connector_that_is_gone),
        CHANNEL_TESTS(connections_that_break),
        CHANNEL_TESTS(a_lifeline_that_breaks),
        CHANNEL_TESTS(a_peer_that_is_stopped),
        {"tcp: a_sender_that_gives_up", a_sender_that_gives_up, channel_start_tcp, channel_stop, NULL},
        {"tcp: a_sender_that_gives_up_unheard", a_sender_that_gives_up_unheard, channel_start_tcp,
         channel_stop, NULL},
        CHANNEL_TESTS(closing_with_calls_under_way),
        CHANNEL_TESTS(clients_close_with_calls_under_way),
        CHANNEL_TESTS(garbage_before_a_connect),
        CHANNEL_TESTS(secrets),
        CHANNEL_TESTS(a_descriptor_connects_no_channel),
        CHANNEL_TESTS(addresses_that_lead_nowhere),
        CHANNEL_TESTS(commands_of_others),
        CHANNEL_TESTS(deliveries_that_lie),
        CHANNEL_TESTS(too_many_unaccepted_channels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
