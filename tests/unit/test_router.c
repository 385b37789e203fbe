/* SPDX-License-Identifier: Apache-2.0 */
/* The tests' own network (tests/router.h): what passes, what does not, and when. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/router.h"

enum { SOON_MS = 5000, NEVER_MS = 100 };

struct scene {
    struct router *router;
    struct relay *relay;
    int listener;         /* the server's */
    int client, accepted; /* the ends of a connection */
};

static void address(int fd, char *out, size_t bytes)
{
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    snprintf(out, bytes, "127.0.0.1:%u", ntohs(a.sin_port));
}

static int start(void **state)
{
    static struct scene s;
    char to[32];
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    s = (struct scene){.client = -1, .accepted = -1, .listener = socket(AF_INET, SOCK_STREAM, 0)};
    assert_int_equal(bind(s.listener, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(listen(s.listener, 8), 0);
    address(s.listener, to, sizeof to);
    s.router = router_start(1);
    s.relay = router_add(s.router, "127.0.0.1:0", to);
    *state = &s;
    return 0;
}

static int stop(void **state)
{
    struct scene *s = *state;
    router_stop(s->router);
    close(s->listener);
    if (s->client >= 0)
        close(s->client);
    if (s->accepted >= 0)
        close(s->accepted);
    return 0;
}

static bool ready(int fd, short events, int ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, ms) == 1;
}

/* Begins to connect to a numeric address. */
static int begin_connect(const char *text)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    a.sin_port = htons((uint16_t)strtoul(strchr(text, ':') + 1, NULL, 10));
    assert_true(__wrap_connect(fd, (struct sockaddr *)&a, sizeof a) == 0 || errno == EINPROGRESS);
    return fd;
}

static void join(struct scene *s)
{
    s->client = begin_connect(relay_address(s->relay));
    assert_true(ready(s->listener, POLLIN, SOON_MS));
    s->accepted = accept(s->listener, NULL, NULL);
    assert_true(s->accepted >= 0);
}

/* Receives one byte and compares it. */
static void expect(int fd, char byte)
{
    char got = 0;
    assert_true(ready(fd, POLLIN, SOON_MS));
    assert_int_equal(recv(fd, &got, 1, 0), 1);
    assert_int_equal(got, byte);
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static void passes_bytes_and_the_end(void **state)
{
    struct scene *s = *state;
    char byte;
    join(s);
    say(s->client, "a");
    expect(s->accepted, 'a');
    say(s->accepted, "b");
    expect(s->client, 'b');
    assert_int_equal(relay_connections(s->relay), 1);
    assert_int_equal(relay_bytes(s->relay), 2);
    shutdown(s->client, SHUT_WR);
    assert_true(ready(s->accepted, POLLIN, SOON_MS));
    assert_int_equal(recv(s->accepted, &byte, 1, 0), 0);
    say(s->accepted, "c");
    expect(s->client, 'c');
    close(s->accepted);
    s->accepted = -1;
    HARNESS_UNTIL(relay_connections(s->relay) == 0, SOON_MS);
}

static void passes_much(void **state)
{
    struct scene *s = *state;
    static char block[1 << 20], got[1 << 20];
    size_t sent = 0, received = 0, total = 64 << 20;
    join(s);
    while (received < total) {
        size_t left = total - sent;
        ssize_t n = send(s->client, block, left < sizeof block ? left : sizeof block, MSG_NOSIGNAL);
        sent += n > 0 ? (size_t)n : 0;
        assert_true(ready(s->accepted, POLLIN, SOON_MS));
        n = recv(s->accepted, got, sizeof got, 0);
        assert_true(n > 0);
        received += (size_t)n;
    }
    assert_int_equal(received, total);
    assert_int_equal(relay_bytes(s->relay), total);
}

/* 3 delays: the first bytes follow the handshake. */
static void delays_each_way(void **state)
{
    struct scene *s = *state;
    relay_set(s->relay, &(struct relay_state){.delay_ms = 60});
    uint64_t begun = harness_now_ms();
    join(s);
    say(s->client, "a");
    expect(s->accepted, 'a');
    assert_true(harness_now_ms() - begun >= 179);
    begun = harness_now_ms();
    say(s->client, "b");
    expect(s->accepted, 'b');
    say(s->accepted, "c");
    expect(s->client, 'c');
    assert_in_range(harness_now_ms() - begun, 119, SOON_MS);
}

static void a_cut_delays_later_bytes(void **state)
{
    struct scene *s = *state;
    join(s);
    relay_set(s->relay, &(struct relay_state){.cut = RELAY_BOTH});
    say(s->client, "a");
    say(s->accepted, "b");
    shutdown(s->client, SHUT_WR);
    assert_false(ready(s->accepted, POLLIN, NEVER_MS));
    assert_false(ready(s->client, POLLIN, NEVER_MS));
    relay_set(s->relay, NULL);
    expect(s->accepted, 'a');
    expect(s->client, 'b');
}

static void cut_of_one_direction(void **state)
{
    struct scene *s = *state;
    join(s);
    relay_set(s->relay, &(struct relay_state){.cut = RELAY_DOWN});
    say(s->client, "a");
    expect(s->accepted, 'a');
    say(s->accepted, "b");
    assert_false(ready(s->client, POLLIN, NEVER_MS));
}

static void a_cut_lets_no_client_connect(void **state)
{
    struct scene *s = *state;
    relay_set(s->relay, &(struct relay_state){.cut = RELAY_BOTH});
    s->client = begin_connect(relay_address(s->relay));
    assert_false(ready(s->client, POLLOUT, NEVER_MS));
    relay_set(s->relay, NULL);
    assert_true(ready(s->client, POLLOUT, SOON_MS));
    say(s->client, "a");
    assert_true(ready(s->listener, POLLIN, SOON_MS));
    s->accepted = accept(s->listener, NULL, NULL);
    expect(s->accepted, 'a');
}

static void reset_closes_all(void **state)
{
    struct scene *s = *state;
    char byte;
    join(s);
    relay_set(s->relay, &(struct relay_state){.reset = true});
    assert_true(ready(s->client, POLLIN, SOON_MS));
    assert_int_equal(recv(s->client, &byte, 1, 0), -1);
    assert_int_equal(errno, ECONNRESET);
    assert_true(ready(s->accepted, POLLIN, SOON_MS));
    assert_int_equal(recv(s->accepted, &byte, 1, 0), -1);
    assert_int_equal(relay_connections(s->relay), 0);
}

static void lost_segments_come_later_in_order(void **state)
{
    struct scene *s = *state;
    join(s);
    relay_set(s->relay, &(struct relay_state){.loss = 50});
    uint64_t begun = harness_now_ms();
    for (char c = 'a'; c <= 't'; c++)
        say(s->client, (char[]){c, 0});
    for (char c = 'a'; c <= 't'; c++)
        expect(s->accepted, c);
    assert_true(harness_now_ms() - begun >= 199); /* with this seed the first packet is lost */
}

static void a_connection_to_a_gone_server_ends(void **state)
{
    struct scene *s = *state;
    char byte;
    close(s->listener);
    s->listener = -1;
    s->client = begin_connect(relay_address(s->relay));
    assert_true(ready(s->client, POLLIN, SOON_MS));
    assert_true(recv(s->client, &byte, 1, 0) <= 0);
}

static void routes_of_this_process(void **state)
{
    struct scene *s = *state;
    char to[32];
    address(s->listener, to, sizeof to);
    router_route(to, relay_address(s->relay));
    s->client = begin_connect(to);
    HARNESS_UNTIL(relay_connections(s->relay) == 1, SOON_MS);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(passes_bytes_and_the_end),
        CASE(passes_much),
        CASE(delays_each_way),
        CASE(a_cut_delays_later_bytes),
        CASE(cut_of_one_direction),
        CASE(a_cut_lets_no_client_connect),
        CASE(reset_closes_all),
        CASE(lost_segments_come_later_in_order),
        CASE(a_connection_to_a_gone_server_ends),
        CASE(routes_of_this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
