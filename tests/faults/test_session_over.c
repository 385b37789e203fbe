/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session ends before the node reads the HELLO of its data connection, and the node refuses the HELLO with
 * AUTH. The put or get treats that as a broken connection and continues on another. The test plays the
 * refusal.
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/net.h"
#include "tests/router.h"
#include "tests/world.h"
#include "transport/tcp/tcp_frame.h"

enum { BYTES = 1000, LONG_MS = 15000 };

struct far {
    struct harness *h;
    struct harness_redis *redis;
    char data[32], played[32]; /* data: the node's data port; played: the port that refuses */
    int listener;
    bool refused;
    pthread_t thread;
};

/* Refuses one connection. Routes the next one to the node. */
static void *refuse_main(void *arg)
{
    struct far *f = arg;
    struct tarn_tcp_hello hello;
    struct tarn_tcp_frame no = {.magic = TARN_TCP_MAGIC,
                                .version = TARN_TCP_VERSION,
                                .op = TARN_TCP_HELLO | TARN_TCP_ANSWER,
                                .status = TARN_E_AUTH};
    int fd = tarn_net_wait(f->listener, POLLIN, tarn_deadline(LONG_MS), NULL)
                 ? -1
                 : accept(f->listener, NULL, NULL);
    if (fd < 0)
        return NULL;
    f->refused = recv(fd, &hello, sizeof hello, MSG_WAITALL) == sizeof hello;
    router_route(f->data, f->data);
    f->refused &= send(fd, &no, sizeof no, MSG_NOSIGNAL) == sizeof no;
    shutdown(fd, SHUT_WR);
    while (recv(fd, &hello, sizeof hello, 0) > 0)
        ;
    close(fd);
    return NULL;
}

static int start(void **state)
{
    struct far *f = calloc(1, sizeof *f);
    char port[16];
    assert_non_null(f);
    *state = f;
    f->h = harness_new();
    f->redis = harness_redis_start(f->h, NULL);
    snprintf(port, sizeof port, "%u", harness_free_port());
    snprintf(f->data, sizeof f->data, "127.0.0.1:%s", port);
    harness_node_start(f->h, "node0", f->redis, "--pool", "p0:bytes=64M", "--data-port", port, NULL);
    router_no_unix(true);
    struct tarn_addr at;
    snprintf(f->played, sizeof f->played, "127.0.0.1:%u", harness_free_port());
    assert_int_equal(tarn_addr_parse(f->played, "address", &at), 0);
    assert_int_equal(tarn_net_listen(&at, &f->listener), 0);
    return 0;
}

static int stop(void **state)
{
    struct far *f = *state;
    if (f->listener >= 0)
        close(f->listener);
    router_no_unix(false);
    harness_free(f->h);
    free(f);
    return 0;
}

static struct tarn_client *open_client(const struct far *f)
{
    return client_open(f->redis->url, (struct tarn_options){.transports = "tcp", .timeout_ms = LONG_MS});
}

static void refuse_next(struct far *f)
{
    router_route(f->data, f->played);
    assert_int_equal(pthread_create(&f->thread, NULL, refuse_main, f), 0);
}

static void was_refused(struct far *f)
{
    pthread_join(f->thread, NULL);
    assert_true(f->refused);
    harness_passed(f->h);
}

static void a_put_survives_the_end_of_its_session(void **state)
{
    struct far *f = *state;
    struct tarn_client *c = open_client(f);
    refuse_next(f);
    if (client_put(c, "k", 'n', BYTES, NULL))
        fail_msg("put: %s", tarn_last_error());
    assert_int_equal(client_get(c, "k", 'n', BYTES), 0);
    tarn_close(c);
    was_refused(f);
}

static void a_get_survives_the_end_of_its_session(void **state)
{
    struct far *f = *state;
    struct tarn_client *writer = open_client(f), *c = open_client(f);
    assert_int_equal(client_put(writer, "k", 'o', BYTES, NULL), 0);
    refuse_next(f);
    if (client_get(c, "k", 'o', BYTES))
        fail_msg("get: %s", tarn_last_error());
    tarn_close(c);
    tarn_close(writer);
    was_refused(f);
}

/* On the node's host its Unix socket is enough: nothing listens where its data port is taken to be. */
static void nearby_no_data_port_is_needed(void **state)
{
    struct far *f = *state;
    close(f->listener);
    f->listener = -1;
    router_route(f->data, f->played);
    router_no_unix(false);
    struct tarn_client *c = open_client(f);
    if (client_put(c, "k", 'n', BYTES, NULL))
        fail_msg("put: %s", tarn_last_error());
    assert_int_equal(client_get(c, "k", 'n', BYTES), 0);
    tarn_close(c);
    router_no_unix(true);
    c = client_open(f->redis->url, (struct tarn_options){.transports = "tcp", .timeout_ms = 500});
    assert_int_not_equal(client_get(c, "k", 'n', BYTES), 0);
    tarn_close(c);
    harness_passed(f->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_put_survives_the_end_of_its_session),
        CASE(a_get_survives_the_end_of_its_session),
        CASE(nearby_no_data_port_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
