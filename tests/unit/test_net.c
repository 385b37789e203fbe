/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses, connecting and listening: what is refused, what is replaced, and that every wait ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/net.h"

#define COUNT(a_) (sizeof(a_) / sizeof *(a_))
#define LATE_MS 20000 /* generous: only a hang fails */
#define SLACK_MS 1500 /* allowed after a deadline, on a busy machine */

/* A temporary folder, and a socket path in it. */
struct place {
    char folder[64];
    struct tarn_addr addr;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    char text[128];

    if (!p)
        return -1;
    snprintf(p->folder, sizeof p->folder, "/tmp/tarn-net-XXXXXX");
    if (!mkdtemp(p->folder))
        return -1;
    snprintf(text, sizeof text, "unix:%s/socket", p->folder);
    *state = p;
    return tarn_addr_parse(text, "test", &p->addr);
}

static int teardown(void **state)
{
    struct place *p = *state;

    unlink(p->addr.host);
    int rc = rmdir(p->folder);
    free(p);
    return rc;
}

/* --- addresses ---------------------------------------------------------------------------------- */

static void addresses(void **state)
{
    static const char *const good[] = {"127.0.0.1:7700",      "[::1]:7700",      "node-3.example:0",
                                       "unix:/run/tarn.sock", "localhost:65535", "unix:relative"};
    static const char *const bad[] = {"",           ":",       "host",    "host:",      ":7700",
                                      "host:65536", "host:-1", "host:7x", "::1:7700",   "[::1]",
                                      "[::1:7700",  "[]:7700", "unix:",   "[::1]x:7700"};
    struct tarn_addr a = {.port = 9};
    char text[300], path[200] = "unix:/";

    (void)state;
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(tarn_addr_parse(good[i], "--listen", &a), 0);
        tarn_addr_format(&a, text, sizeof text);
        assert_string_equal(text, good[i]);
    }
    a.port = 9;
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(tarn_addr_parse(bad[i], "--listen", &a), TARN_E_INVALID);
        assert_non_null(strstr(tarn_last_error(), "--listen"));
        assert_int_equal(a.port, 9);
    }
    memset(path + 6, 'x', 107);
    assert_int_equal(tarn_addr_parse(path, "--unix", &a), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "107"));
    path[6 + 106] = '\0';
    assert_int_equal(tarn_addr_parse(path, "--unix", &a), 0);
    assert_true(a.is_unix);
}

/* --- listening and connecting ------------------------------------------------------------------- */

static void check_flags(int fd)
{
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

static void connects_to(struct tarn_addr *a)
{
    int listener, fd, accepted;

    assert_int_equal(tarn_net_listen(a, &listener), 0);
    check_flags(listener);
    assert_int_equal(tarn_net_connect(a, tarn_deadline(LATE_MS), NULL, &fd), 0);
    check_flags(fd);
    assert_int_equal(tarn_net_wait(listener, POLLIN, tarn_deadline(LATE_MS), NULL), 0);
    accepted = accept(listener, NULL, NULL);
    assert_true(accepted >= 0);
    assert_int_equal(tarn_net_wait(fd, POLLIN, tarn_deadline(20), NULL), TARN_E_TIMEOUT);
    assert_int_equal(send(accepted, "x", 1, MSG_NOSIGNAL), 1);
    assert_int_equal(tarn_net_wait(fd, POLLIN, tarn_deadline(LATE_MS), NULL), 0);
    if (!a->is_unix) {
        int on = 0;
        socklen_t bytes = sizeof on;
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &bytes), 0);
        assert_true(on);
    }
    close(accepted);
    close(fd);
    close(listener);
}

static void free_port_is_reported(void **state)
{
    struct tarn_addr a;

    (void)state;
    assert_int_equal(tarn_addr_parse("127.0.0.1:0", "test", &a), 0);
    connects_to(&a);
    assert_int_not_equal(a.port, 0);
    assert_string_equal(a.host, "127.0.0.1");
}

static void by_name(void **state)
{
    struct addrinfo *found;
    if (getaddrinfo("localhost", NULL, NULL, &found)) {
        print_message("skip: resolver: this machine does not know \"localhost\" (/etc/hosts)\n");
        skip();
    }
    freeaddrinfo(found);
    struct tarn_addr a;

    (void)state;
    assert_int_equal(tarn_addr_parse("localhost:0", "test", &a), 0);
    connects_to(&a);
}

static void over_unix(void **state)
{
    struct place *p = *state;
    connects_to(&p->addr);
}

static void connecting_without_a_listener_fails(void **state)
{
    struct place *p = *state;
    struct tarn_addr a;
    char text[300];
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof sin;
    int fd = -7;

    assert_int_equal(tarn_net_connect(&p->addr, tarn_deadline(LATE_MS), NULL, &fd), TARN_E_NODE_DOWN);
    assert_non_null(strstr(tarn_last_error(), p->addr.host));

    /* Bound but not listening, so that no other process takes the port. */
    int bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(bound, (struct sockaddr *)&sin, sizeof sin), 0);
    assert_int_equal(getsockname(bound, (struct sockaddr *)&sin, &bytes), 0);
    assert_int_equal(tarn_addr_parse("127.0.0.1:0", "test", &a), 0);
    a.port = ntohs(sin.sin_port);
    assert_int_equal(tarn_net_connect(&a, tarn_deadline(LATE_MS), NULL, &fd), TARN_E_NODE_DOWN);
    tarn_addr_format(&a, text, sizeof text);
    assert_non_null(strstr(tarn_last_error(), text));
    assert_int_equal(fd, -7);
    close(bound);
}

/* Returns a port that the kernel gives to connecting sockets, with no listener. */
static uint16_t connecting_port(void)
{
    struct tarn_addr a;
    struct sockaddr_in here;
    socklen_t bytes = sizeof here;
    int listener, fd;

    assert_int_equal(tarn_addr_parse("127.0.0.1:0", "test", &a), 0);
    assert_int_equal(tarn_net_listen(&a, &listener), 0);
    assert_int_equal(tarn_net_connect(&a, tarn_deadline(LATE_MS), NULL, &fd), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&here, &bytes), 0);
    close(listener); /* close it first, so that no connection lingers on the port */
    close(fd);
    return ntohs(here.sin_port);
}

/* Tries often enough for the kernel to pick the same port for the connecting side, too. */
static void never_connects_to_itself(void **state)
{
    struct tarn_addr a;
    int fd;

    (void)state;
    assert_int_equal(tarn_addr_parse("127.0.0.1:0", "test", &a), 0);
    a.port = connecting_port();
    for (int i = 0; i < 20000; i++)
        if (tarn_net_connect(&a, tarn_deadline(LATE_MS), NULL, &fd) == 0) {
            struct sockaddr_in here, there;
            socklen_t bytes = sizeof here;
            assert_int_equal(getsockname(fd, (struct sockaddr *)&here, &bytes), 0);
            assert_int_equal(getpeername(fd, (struct sockaddr *)&there, &bytes), 0);
            assert_int_not_equal(here.sin_port, there.sin_port); /* another process took the port */
            close(fd);
        }
}

static void names_that_do_not_exist(void **state)
{
    struct tarn_addr a;
    uint64_t begin = tarn_now_ns();
    int fd;

    (void)state;
    assert_int_equal(tarn_addr_parse("nosuchhost.invalid:1", "test", &a), 0);
    int rc = tarn_net_connect(&a, tarn_deadline(300), NULL, &fd);
    assert_true(rc == TARN_E_NODE_DOWN || rc == TARN_E_TIMEOUT);
    assert_non_null(strstr(tarn_last_error(), "nosuchhost.invalid"));
    assert_true(tarn_now_ns() - begin < (300 + SLACK_MS) * TARN_NS_PER_MS);
}

/* Connects until the listener's queue is full. The last attempt ends at its deadline, 300 ms. */
static void fill_backlog(const struct tarn_addr *a)
{
    int fds[16], n = 0, rc = 0;
    uint64_t begin = 0;

    while (n < 16 &&
           (begin = tarn_now_ns(), rc = tarn_net_connect(a, tarn_deadline(300), NULL, &fds[n])) == 0)
        n++;
    uint64_t took = tarn_now_ns() - begin;
    assert_int_equal(rc, TARN_E_TIMEOUT);
    assert_in_range(took, 290 * TARN_NS_PER_MS, (300 + SLACK_MS) * TARN_NS_PER_MS);
    while (n > 0)
        close(fds[--n]);
}

/* Nothing accepts and the queue is full: the kernel returns EAGAIN each time, until the deadline. */
static void full_backlog_ends_at_the_deadline(void **state)
{
    struct place *p = *state;
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(sun.sun_path, p->addr.host, strlen(p->addr.host) + 1);
    assert_int_equal(bind(listener, (struct sockaddr *)&sun, sizeof sun), 0);
    assert_int_equal(listen(listener, 0), 0);
    fill_backlog(&p->addr);
    close(listener);
}

/* Over TCP the kernel reports nothing: it drops the connection's first packet, which is sent again. */
static void full_tcp_backlog_ends_at_the_deadline(void **state)
{
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof sin;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct tarn_addr a;

    (void)state;
    assert_int_equal(bind(listener, (struct sockaddr *)&sin, sizeof sin), 0);
    assert_int_equal(listen(listener, 0), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&sin, &bytes), 0);
    assert_int_equal(tarn_addr_parse("127.0.0.1:0", "test", &a), 0);
    a.port = ntohs(sin.sin_port);
    fill_backlog(&a);
    close(listener);
}

/* --- another listener is there ------------------------------------------------------------------ */

static void taken_port(void **state)
{
    struct tarn_addr a;
    int listener, second = -7;
    char text[300];

    (void)state;
    assert_int_equal(tarn_addr_parse("127.0.0.1:0", "test", &a), 0);
    assert_int_equal(tarn_net_listen(&a, &listener), 0);
    assert_int_equal(tarn_net_listen(&a, &second), TARN_E_BUSY);
    tarn_addr_format(&a, text, sizeof text);
    assert_non_null(strstr(tarn_last_error(), text));
    assert_int_equal(second, -7);
    close(listener);
}

static void stale_socket_is_replaced_and_a_live_one_is_not(void **state)
{
    struct place *p = *state;
    int first, second, fd;

    assert_int_equal(tarn_net_listen(&p->addr, &first), 0);
    assert_int_equal(tarn_net_listen(&p->addr, &second), TARN_E_BUSY);
    assert_non_null(strstr(tarn_last_error(), p->addr.host));
    assert_int_equal(tarn_net_connect(&p->addr, tarn_deadline(LATE_MS), NULL, &fd), 0); /* still reachable */
    close(fd);
    close(first); /* leaves the socket file */
    assert_int_equal(access(p->addr.host, F_OK), 0);
    assert_int_equal(tarn_net_listen(&p->addr, &second), 0);
    assert_int_equal(tarn_net_connect(&p->addr, tarn_deadline(LATE_MS), NULL, &fd), 0);
    close(fd);
    close(second);
}

static void other_files_are_left_alone(void **state)
{
    struct place *p = *state;
    struct tarn_addr missing;
    struct stat st;
    int listener;

    int file = open(p->addr.host, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(write(file, "data", 4), 4);
    close(file);
    assert_int_equal(tarn_net_listen(&p->addr, &listener), TARN_E_CONFIG);
    assert_non_null(strstr(tarn_last_error(), "remove it or give another path"));
    assert_int_equal(stat(p->addr.host, &st), 0);
    assert_int_equal(st.st_size, 4);
    assert_int_equal(tarn_addr_parse("unix:/nonexistent/tarn.sock", "test", &missing), 0);
    assert_int_equal(tarn_net_listen(&missing, &listener), TARN_E_SYSTEM);
}

struct rival {
    const struct tarn_addr *addr;
    int rc, fd;
};

static void *rival_main(void *arg)
{
    struct rival *r = arg;
    struct tarn_addr a = *r->addr;
    r->rc = tarn_net_listen(&a, &r->fd);
    return NULL;
}

/* Several listeners start at once on one stale file. One of them gets it, and is reachable. */
static void rivals_for_a_stale_socket(void **state)
{
    struct place *p = *state;
    struct rival rivals[6];
    pthread_t threads[COUNT(rivals)];

    for (int round = 0; round < 20; round++) {
        int winners = 0, fd;
        for (size_t i = 0; i < COUNT(rivals); i++) {
            rivals[i] = (struct rival){.addr = &p->addr, .fd = -1};
            assert_int_equal(pthread_create(&threads[i], NULL, rival_main, &rivals[i]), 0);
        }
        for (size_t i = 0; i < COUNT(rivals); i++) {
            pthread_join(threads[i], NULL);
            assert_true(rivals[i].rc == 0 || rivals[i].rc == TARN_E_BUSY);
            winners += rivals[i].rc == 0;
        }
        assert_int_equal(winners, 1);
        assert_int_equal(tarn_net_connect(&p->addr, tarn_deadline(LATE_MS), NULL, &fd), 0);
        close(fd);
        for (size_t i = 0; i < COUNT(rivals); i++)
            if (rivals[i].fd >= 0)
                close(rivals[i].fd);
    }
}

static void host_id_is_stable(void **state)
{
    char a[40], b[40];

    (void)state;
    assert_int_equal(tarn_host_id(a), 0);
    assert_int_equal(tarn_host_id(b), 0);
    assert_string_equal(a, b);
    assert_int_equal(strlen(a), 32);
    assert_int_equal(strspn(a, "0123456789abcdef"), 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses),
        cmocka_unit_test(free_port_is_reported),
        cmocka_unit_test(by_name),
        cmocka_unit_test_setup_teardown(over_unix, setup, teardown),
        cmocka_unit_test_setup_teardown(connecting_without_a_listener_fails, setup, teardown),
        cmocka_unit_test(never_connects_to_itself),
        cmocka_unit_test(names_that_do_not_exist),
        cmocka_unit_test_setup_teardown(full_backlog_ends_at_the_deadline, setup, teardown),
        cmocka_unit_test(full_tcp_backlog_ends_at_the_deadline),
        cmocka_unit_test(taken_port),
        cmocka_unit_test_setup_teardown(stale_socket_is_replaced_and_a_live_one_is_not, setup, teardown),
        cmocka_unit_test_setup_teardown(other_files_are_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(rivals_for_a_stale_socket, setup, teardown),
        cmocka_unit_test(host_id_is_stable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
