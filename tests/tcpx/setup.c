/* SPDX-License-Identifier: Apache-2.0 */
/* Opens connections to one port: one for control, some for data. Each begins with the listener's cookie. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/tcpx/fixture.h"

enum { BACKLOG = 64, HELLO_MS = 2000, BLOCKED_NAP_MS = 1 };

/* The handle that the caller brings to the other side. The connecting side uses `state` without a check. */
struct handle {
    uint64_t cookie;
    struct connecting *state;
    uint16_t port;
};
_Static_assert(sizeof(struct handle) <= TARN_TCPX_HANDLE, "fits");

struct hello {
    uint64_t cookie;
    uint32_t index, nsockets; /* 0: control */
    uint32_t waits;           /* the client waits for a byte that says that it was accepted */
};

struct connecting {
    uint64_t ready_ns;
};

struct listening {
    int fd;
    uint64_t cookie, ready_ns;
    bool begun, accepted;
    struct fixture_comm *comm; /* some of its connections have arrived */
    uint32_t there;
    bool waits; /* the peer waits to be accepted */
};

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void no_delay(int fd)
{
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int fixture_listen(int dev, void *handle, void **listen_comm)
{
    static _Atomic uint64_t cookies;
    static _Atomic bool listened;
    struct sockaddr_in a = loopback(0);
    socklen_t bytes = sizeof(a);
    if (dev < 0 || (uint64_t)dev >= fixture_options.devices)
        return TARN_TCPX_INVALID_ARGUMENT;
    if (!atomic_exchange(&listened, true))
        poll(NULL, 0, (int)fixture_options.listen_ms);
    struct listening *l = calloc(1, sizeof(*l));
    if (!l)
        fixture_crash("no memory to listen");
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&a, sizeof(a)) || listen(l->fd, BACKLOG) ||
        getsockname(l->fd, (struct sockaddr *)&a, &bytes)) {
        FIXTURE_WARN("listen: %s", strerror(errno));
        if (l->fd >= 0)
            close(l->fd);
        free(l);
        return TARN_TCPX_SYSTEM_ERROR;
    }
    l->cookie = ((uint64_t)getpid() << 32) + ++cookies;
    const struct handle h = {.cookie = l->cookie, .port = ntohs(a.sin_port)};
    memset(handle, 0, TARN_TCPX_HANDLE);
    memcpy(handle, &h, sizeof(h));
    fixture_count->listens++;
    *listen_comm = l;
    return TARN_TCPX_SUCCESS;
}

static int reach(const struct handle *h, uint32_t index, uint32_t nsockets)
{
    struct sockaddr_in a = loopback(h->port);
    const struct hello hello = {.cookie = h->cookie,
                                .index = index,
                                .nsockets = nsockets,
                                .waits = index == 0 && fixture_options.connect_blocks};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) ||
        send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
        FIXTURE_WARN("connect: %s", strerror(errno));
        close(fd);
        return -1;
    }
    no_delay(fd);
    return fd;
}

static bool is_accepted(const struct fixture_comm *c)
{
    char byte;
    return !fixture_options.connect_blocks || recv(c->control, &byte, 1, 0) == 1;
}

static int connect_once(int dev, void *handle, void **send_comm)
{
    struct handle h;
    *send_comm = NULL;
    if (dev < 0 || (uint64_t)dev >= fixture_options.devices)
        return TARN_TCPX_INVALID_ARGUMENT;
    memcpy(&h, handle, sizeof(h));
    if (!h.state) {
        h.state = malloc(sizeof(*h.state));
        if (!h.state)
            fixture_crash("no memory to connect");
        fixture_count->setups++;
        h.state->ready_ns = fixture_now_ns() + fixture_options.setup_ms * 1000000;
        memcpy(handle, &h, sizeof(h));
        return TARN_TCPX_SUCCESS;
    }
    if (fixture_now_ns() < h.state->ready_ns)
        return TARN_TCPX_SUCCESS;

    uint32_t n = (uint32_t)fixture_options.sockets;
    struct fixture_comm *c = fixture_comm_new(true, n);
    bool ok = (c->control = reach(&h, 0, n)) >= 0;
    for (uint32_t s = 0; s < n && ok; s++)
        ok = (c->socket[s] = reach(&h, s + 1, n)) >= 0;
    ok = ok && is_accepted(c);
    free(h.state);
    h.state = NULL;
    memcpy(handle, &h, sizeof(h));
    if (!ok) {
        fixture_comm_free(c);
        return TARN_TCPX_SYSTEM_ERROR;
    }
    c->context = fixture_options.gpu ? fixture_gpu_context() : NULL;
    *send_comm = c;
    return TARN_TCPX_SUCCESS;
}

int fixture_connect(int dev, void *handle, void **send_comm)
{
    int rc = connect_once(dev, handle, send_comm);
    while (fixture_options.connect_blocks && rc == TARN_TCPX_SUCCESS && !*send_comm) {
        poll(NULL, 0, BLOCKED_NAP_MS);
        rc = connect_once(dev, handle, send_comm);
    }
    return rc;
}

/* False for a wrong or late hello. */
static bool greet(const struct listening *l, int fd, struct hello *hello)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, HELLO_MS) == 1 && recv(fd, hello, sizeof(*hello), 0) == sizeof(*hello) &&
           hello->cookie == l->cookie && hello->nsockets >= 1 && hello->nsockets <= FIXTURE_SOCKETS &&
           hello->index <= hello->nsockets;
}

static void take_connections(struct listening *l)
{
    int fd;
    struct hello hello;
    while ((fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        bool ok = greet(l, fd, &hello);
        if (ok && hello.index == 0) { /* of two peers the later one is kept */
            if (l->comm)
                fixture_comm_free(l->comm);
            l->comm = fixture_comm_new(false, hello.nsockets);
            l->waits = hello.waits;
            l->there = 0;
        }
        ok = ok && l->comm;
        int *place = !ok ? NULL : hello.index ? &l->comm->socket[hello.index - 1] : &l->comm->control;
        if (!place || *place >= 0) {
            close(fd);
            continue;
        }
        no_delay(fd);
        *place = fd;
        l->there++;
    }
}

static int accept_once(struct listening *l, void **recv_comm)
{
    *recv_comm = NULL;
    if (fixture_options.accept_error) {
        FIXTURE_WARN("accept: no bounce memory of the GPU");
        FIXTURE_WARN("accept: the connection is given up"); /* a failure causes further lines */
        return (int)fixture_options.accept_error;
    }
    if (l->accepted)
        return FIXTURE_ACCEPT_TWICE;
    if (!l->begun) {
        l->begun = true;
        fixture_count->setups++;
        l->ready_ns = fixture_now_ns() + fixture_options.setup_ms * 1000000;
        return TARN_TCPX_SUCCESS;
    }
    take_connections(l);
    if (!l->comm || l->there <= l->comm->nsockets || fixture_now_ns() < l->ready_ns)
        return TARN_TCPX_SUCCESS;
    if (l->waits && send(l->comm->control, "", 1, MSG_NOSIGNAL) != 1)
        return TARN_TCPX_SYSTEM_ERROR;
    l->accepted = true;
    *recv_comm = l->comm;
    return TARN_TCPX_SUCCESS;
}

int fixture_accept(void *listen_comm, void **recv_comm)
{
    int rc = accept_once(listen_comm, recv_comm);
    while (fixture_options.accept_blocks && rc == TARN_TCPX_SUCCESS && !*recv_comm) {
        poll(NULL, 0, BLOCKED_NAP_MS);
        rc = accept_once(listen_comm, recv_comm);
    }
    return rc;
}

int fixture_close_listen(void *listen_comm)
{
    struct listening *l = listen_comm;
    if (l->begun && !l->accepted)
        fixture_crash("closeListen while accept waits: its thread goes on with freed memory");
    close(l->fd);
    free(l);
    fixture_count->listens--;
    return TARN_TCPX_SUCCESS;
}
