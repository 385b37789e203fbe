/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network between processes of one host; see router.h.
 *
 * A connection is two flows. A flow reads chunks from one socket, gives each a due time, and writes it to the
 * other socket at that time. The end of a connection is a chunk, too: the other side sees it only after all
 * earlier bytes. A flow whose receiver has closed keeps reading and discards the bytes.
 *
 * Lock: router->lock. The thread holds it except while it polls; all calls take it.
 */
#include "tests/router.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/harness.h"

enum {
    CHUNK_BYTES = 64 * 1024,
    QUEUED_MAX = 4 * 1024 * 1024, /* of a flow: as much as a long fat link has in flight */
    CUT_QUEUED_MAX = 256 * 1024,  /* as much as a sender's kernel would buffer */
    RETRANSMIT_MS = 200,
    TRIES_MAX = 4,
};

struct chunk {
    struct chunk *next;
    uint64_t due_ns;
    size_t bytes, sent;
    bool is_end;
    char data[];
};

struct flow {
    int from, to;
    struct chunk *first, **last_p;
    size_t queued;
    uint64_t last_due_ns;
    bool ended;  /* the sender has closed */
    bool passed; /* the receiver was told that the sender has closed */
    bool broken; /* the receiver has closed */
};

struct connection {
    struct connection *next;
    int client, server; /* server: not connected until is_connected */
    bool is_connected, is_over;
    uint64_t accepted_ns;
    struct flow up, down;
    int polled[2]; /* indices in the array for poll() */
};

struct relay {
    struct relay *next;
    struct router *router;
    int listener, polled;
    int plug; /* fills the listener's queue, so that the kernel drops further connections; -1: none */
    struct sockaddr_in at, to;
    char address[32];
    struct relay_state state;
    struct connection *connections;
    uint64_t bytes;
};

struct router {
    pthread_t thread;
    pthread_mutex_t lock;
    int wake;
    bool stops;
    uint64_t dice;
    struct relay *relays;
    struct pollfd *fds;
    size_t nfds, fds_room;
    uint64_t next_due_ns; /* the earliest due time, of the current round */
};

static void parse(const char *text, struct sockaddr_in *a)
{
    char host[32];
    const char *colon = strrchr(text, ':');
    assert_non_null(colon);
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    *a = (struct sockaddr_in){.sin_family = AF_INET,
                              .sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10))};
    if (inet_pton(AF_INET, host, &a->sin_addr) != 1)
        fail_msg("%s: an address of IPv4 in numbers is needed", text);
}

/* Bypasses connect(), which is wrapped: this program's own routes must not apply to the router. */
static int connect_raw(int fd, const struct sockaddr_in *to)
{
    return (int)syscall(SYS_connect, fd, to, sizeof *to);
}

static int open_socket(void)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void close_reset(int fd)
{
    struct linger l = {.l_onoff = 1};
    if (fd < 0)
        return;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(fd);
}

/* --- flows -------------------------------------------------------------------------------------- */

static uint64_t dice(struct router *r)
{
    uint64_t z = (r->dice += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t lateness_ms(struct relay *x)
{
    uint64_t ms = x->state.delay_ms;
    for (int i = 0; i < TRIES_MAX && dice(x->router) % 100 < x->state.loss; i++)
        ms += (uint64_t)RETRANSMIT_MS << i;
    return ms;
}

static void flow_add(struct relay *x, const struct connection *c, struct flow *f, const void *data, size_t n)
{
    uint64_t now = tarn_now_ns(), due = now + lateness_ms(x) * TARN_NS_PER_MS;
    uint64_t shaken = c->accepted_ns + 3 * x->state.delay_ms * TARN_NS_PER_MS;
    struct chunk *k = malloc(sizeof *k + n);
    if (!k) {
        f->broken = true;
        return;
    }
    due = due < shaken ? shaken : due;
    f->last_due_ns = due < f->last_due_ns ? f->last_due_ns : due;
    *k = (struct chunk){.due_ns = f->last_due_ns, .bytes = n, .is_end = n == 0};
    memcpy(k->data, data, n);
    *f->last_p = k;
    f->last_p = &k->next;
    f->queued += n;
}

static void flow_drop_first(struct flow *f)
{
    struct chunk *k = f->first;
    f->first = k->next;
    f->queued -= k->bytes;
    if (!f->first)
        f->last_p = &f->first;
    free(k);
}

static void flow_break(struct flow *f)
{
    f->broken = true;
    while (f->first)
        flow_drop_first(f);
}

static bool flow_has_room(const struct relay *x, const struct flow *f, unsigned direction)
{
    return f->queued < (x->state.cut & direction ? CUT_QUEUED_MAX : QUEUED_MAX);
}

static void flow_read(struct relay *x, const struct connection *c, struct flow *f, unsigned direction)
{
    static char data[CHUNK_BYTES]; /* static, because only one thread runs this */
    while (!f->ended && flow_has_room(x, f, direction)) {
        ssize_t n = recv(f->from, data, sizeof data, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        f->ended = n <= 0;
        if (!f->broken)
            flow_add(x, c, f, data, n > 0 ? (size_t)n : 0);
    }
}

/* Writes the chunks that are due. True: the receiver takes no more now. */
static bool flow_write(struct relay *x, struct flow *f, unsigned direction)
{
    while (f->first && !(x->state.cut & direction) && f->first->due_ns <= tarn_now_ns()) {
        struct chunk *k = f->first;
        if (k->is_end) {
            shutdown(f->to, SHUT_WR);
            f->passed = true;
            flow_drop_first(f);
            continue;
        }
        ssize_t n = send(f->to, k->data + k->sent, k->bytes - k->sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n < 0) {
            flow_break(f);
            return false;
        }
        k->sent += (size_t)n;
        x->bytes += (size_t)n;
        if (k->sent == k->bytes)
            flow_drop_first(f);
    }
    return false;
}

/* --- connections -------------------------------------------------------------------------------- */

static void connection_open(struct relay *x, int client)
{
    int one = 1;
    struct connection *c = calloc(1, sizeof *c);
    int server = c ? open_socket() : -1;
    if (server < 0) {
        close_reset(client);
        free(c);
        return;
    }
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *c = (struct connection){.next = x->connections,
                             .client = client,
                             .server = server,
                             .accepted_ns = tarn_now_ns(),
                             .up = {.from = client, .to = server},
                             .down = {.from = server, .to = client},
                             .polled = {-1, -1}};
    c->up.last_p = &c->up.first;
    c->down.last_p = &c->down.first;
    c->is_over = connect_raw(server, &x->to) != 0 && errno != EINPROGRESS;
    x->connections = c;
}

static void connection_free(struct connection *c)
{
    bool in_order = c->up.passed && c->down.passed;
    flow_break(&c->up);
    flow_break(&c->down);
    if (in_order) {
        close(c->client);
        close(c->server);
    } else {
        close_reset(c->client);
        close_reset(c->server);
    }
    free(c);
}

static bool flow_is_over(const struct flow *f)
{
    return f->passed || f->broken;
}

/* Reads the result of the router's own connect() to the server. */
static bool connected(struct connection *c)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    getsockopt(c->server, SOL_SOCKET, SO_ERROR, &error, &bytes);
    c->is_over = error != 0;
    c->is_connected = error == 0;
    return c->is_connected;
}

static void connection_step(struct relay *x, struct connection *c, const struct pollfd *fds)
{
    short client, server;
    if (c->polled[0] < 0)
        return;
    client = fds[c->polled[0]].revents;
    server = fds[c->polled[1]].revents;
    if (!c->is_connected && (!(server & (POLLOUT | POLLERR | POLLHUP)) || !connected(c)))
        return;
    if (client & (POLLIN | POLLHUP | POLLERR))
        flow_read(x, c, &c->up, RELAY_UP);
    if (server & (POLLIN | POLLHUP | POLLERR))
        flow_read(x, c, &c->down, RELAY_DOWN);
    flow_write(x, &c->up, RELAY_UP);
    flow_write(x, &c->down, RELAY_DOWN);
    c->is_over = flow_is_over(&c->up) && flow_is_over(&c->down);
}

/* Removes connections that are over. `all`: removes every connection, for a reset link. */
static void relay_sweep(struct relay *x, bool all)
{
    for (struct connection **at = &x->connections; *at;) {
        struct connection *c = *at;
        if (!all && !c->is_over) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        connection_free(c);
    }
}

/* --- relays ------------------------------------------------------------------------------------- */

static void relay_accept(struct relay *x)
{
    int fd;
    while ((fd = accept4(x->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (x->state.reset)
            close_reset(fd);
        else
            connection_open(x, fd);
    }
}

/* Fills the listener's queue with one connection that no process accepts. The kernel drops further
 * connections, and their senders try again. */
static void plug(struct relay *x)
{
    if (x->plug >= 0)
        return;
    relay_accept(x);
    listen(x->listener, 0);
    x->plug = open_socket();
    connect_raw(x->plug, &x->at);
}

static void unplug(struct relay *x)
{
    if (x->plug < 0)
        return;
    int fd = accept4(x->listener, NULL, NULL, SOCK_CLOEXEC);
    close_reset(x->plug);
    close_reset(fd);
    x->plug = -1;
    listen(x->listener, SOMAXCONN);
}

static void relay_free(struct relay *x)
{
    unplug(x);
    relay_sweep(x, true);
    close(x->listener);
    free(x);
}

/* --- the thread --------------------------------------------------------------------------------- */

static int poll_for(struct router *r, int fd, short events)
{
    if (r->nfds == r->fds_room) {
        r->fds_room = 2 * r->fds_room + 64;
        r->fds = realloc(r->fds, r->fds_room * sizeof *r->fds);
    }
    r->fds[r->nfds] = (struct pollfd){.fd = events ? fd : -1, .events = events};
    return (int)r->nfds++;
}

static short wants_in(const struct relay *x, const struct flow *f, unsigned direction)
{
    return !f->ended && flow_has_room(x, f, direction) ? POLLIN : 0;
}

/* POLLOUT if the first chunk is due. Otherwise notes its due time for this round. */
static short wants_out(struct relay *x, const struct flow *f, unsigned direction, uint64_t now)
{
    struct router *r = x->router;
    if (!f->first || x->state.cut & direction)
        return 0;
    if (f->first->due_ns <= now)
        return POLLOUT;
    if (f->first->due_ns < r->next_due_ns)
        r->next_due_ns = f->first->due_ns;
    return 0;
}

static void poll_connection(struct relay *x, struct connection *c, uint64_t now)
{
    short client = wants_in(x, &c->up, RELAY_UP) | wants_out(x, &c->down, RELAY_DOWN, now);
    short server = wants_in(x, &c->down, RELAY_DOWN) | wants_out(x, &c->up, RELAY_UP, now);
    c->polled[0] = poll_for(x->router, c->client, c->is_connected ? client : 0);
    c->polled[1] = poll_for(x->router, c->server, c->is_connected ? server : POLLOUT);
}

static void poll_all(struct router *r)
{
    uint64_t now = tarn_now_ns();
    r->nfds = 0;
    r->next_due_ns = UINT64_MAX;
    poll_for(r, r->wake, POLLIN);
    for (struct relay *x = r->relays; x; x = x->next) {
        x->polled = poll_for(r, x->listener, x->plug < 0 ? POLLIN : 0);
        for (struct connection *c = x->connections; c; c = c->next)
            poll_connection(x, c, now);
    }
}

static void wait_for_work(struct router *r)
{
    uint64_t now = tarn_now_ns(), wait = r->next_due_ns > now ? r->next_due_ns - now : 0;
    struct timespec t = {.tv_sec = (time_t)(wait / TARN_NS_PER_S), .tv_nsec = (long)(wait % TARN_NS_PER_S)};
    pthread_mutex_unlock(&r->lock);
    ppoll(r->fds, r->nfds, r->next_due_ns == UINT64_MAX ? NULL : &t, NULL);
    pthread_mutex_lock(&r->lock);
}

/* Skips relays and connections added after poll_all(): they have no index in the array yet. */
static void step_all(struct router *r)
{
    eventfd_t woken;
    if (r->fds[0].revents)
        eventfd_read(r->wake, &woken);
    for (struct relay *x = r->relays; x; x = x->next) {
        if (x->polled < 0)
            continue;
        for (struct connection *c = x->connections; c; c = c->next)
            connection_step(x, c, r->fds);
        if (x->plug < 0 && r->fds[x->polled].revents)
            relay_accept(x);
        relay_sweep(x, x->state.reset);
    }
}

static void *run(void *arg)
{
    struct router *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stops) {
        poll_all(r);
        wait_for_work(r);
        step_all(r);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* --- routes of this process --------------------------------------------------------------------- */

enum { ROUTES_MAX = 64 };

static struct {
    pthread_mutex_t lock;
    size_t n;
    bool no_unix;
    struct {
        struct sockaddr_in from, to;
    } at[ROUTES_MAX];
} routes = {.lock = PTHREAD_MUTEX_INITIALIZER};

void router_no_unix(bool on)
{
    pthread_mutex_lock(&routes.lock);
    routes.no_unix = on;
    pthread_mutex_unlock(&routes.lock);
}

static bool same(const struct sockaddr_in *a, const struct sockaddr_in *b)
{
    return a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
}

void router_route(const char *from, const char *to)
{
    struct sockaddr_in there;
    size_t i = 0;
    parse(from, &there);
    pthread_mutex_lock(&routes.lock);
    while (i < routes.n && !same(&routes.at[i].from, &there))
        i++;
    assert_true(i < ROUTES_MAX);
    routes.at[i].from = there;
    parse(to, &routes.at[i].to);
    routes.n += i == routes.n;
    pthread_mutex_unlock(&routes.lock);
}

/* Their ports may be given to others now. */
static void forget_routes(const struct sockaddr_in *to)
{
    pthread_mutex_lock(&routes.lock);
    for (size_t i = routes.n; i-- > 0;)
        if (same(&routes.at[i].to, to))
            routes.at[i] = routes.at[--routes.n];
    pthread_mutex_unlock(&routes.lock);
}

int __wrap_connect(int fd, const struct sockaddr *to, socklen_t bytes)
{
    bool refused;
    const void *target = to;
    struct sockaddr_in there;
    pthread_mutex_lock(&routes.lock);
    refused = routes.no_unix && to->sa_family == AF_UNIX;
    for (size_t i = 0; i < routes.n && to->sa_family == AF_INET; i++)
        if (same(&routes.at[i].from, (const struct sockaddr_in *)target)) {
            there = routes.at[i].to;
            target = &there;
            break;
        }
    pthread_mutex_unlock(&routes.lock);
    if (refused) {
        errno = ECONNREFUSED;
        return -1;
    }
    return (int)syscall(SYS_connect, fd, target, bytes);
}

/* --- calls -------------------------------------------------------------------------------------- */

static bool has_polled(struct router *r)
{
    pthread_mutex_lock(&r->lock);
    bool yes = r->nfds > 0;
    pthread_mutex_unlock(&r->lock);
    return yes;
}

struct router *router_start(uint64_t seed)
{
    struct router *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->dice = seed;
    pthread_mutex_init(&r->lock, NULL);
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(r->wake >= 0);
    assert_int_equal(pthread_create(&r->thread, NULL, run, r), 0);
    while (!has_polled(r)) /* a thread that is still starting holds locks, too: see router_fork() */
        harness_pause();
    return r;
}

pid_t router_fork(struct router *r)
{
    pthread_mutex_lock(&r->lock); /* the thread polls, or waits for this lock */
    pid_t pid = fork();
    pthread_mutex_unlock(&r->lock);
    return pid;
}

void router_stop(struct router *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stops = true;
    pthread_mutex_unlock(&r->lock);
    eventfd_write(r->wake, 1);
    pthread_join(r->thread, NULL);
    while (r->relays) {
        struct relay *x = r->relays;
        r->relays = x->next;
        forget_routes(&x->at);
        relay_free(x);
    }
    close(r->wake);
    pthread_mutex_destroy(&r->lock);
    free(r->fds);
    free(r);
}

struct relay *router_add(struct router *r, const char *listen_at, const char *to)
{
    char host[INET_ADDRSTRLEN];
    int one = 1;
    struct relay *x = calloc(1, sizeof *x);
    assert_non_null(x);
    *x = (struct relay){.router = r, .listener = open_socket(), .plug = -1, .polled = -1};
    socklen_t bytes = sizeof x->at;
    parse(listen_at, &x->at);
    parse(to, &x->to);
    setsockopt(x->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(x->listener, (struct sockaddr *)&x->at, sizeof x->at) || listen(x->listener, SOMAXCONN) ||
        getsockname(x->listener, (struct sockaddr *)&x->at, &bytes))
        fail_msg("relay %s: %s", listen_at, strerror(errno));
    inet_ntop(AF_INET, &x->at.sin_addr, host, sizeof host);
    snprintf(x->address, sizeof x->address, "%s:%u", host, ntohs(x->at.sin_port));
    pthread_mutex_lock(&r->lock);
    x->next = r->relays;
    r->relays = x;
    pthread_mutex_unlock(&r->lock);
    eventfd_write(r->wake, 1);
    return x;
}

const char *relay_address(const struct relay *x)
{
    return x->address;
}

void relay_set(struct relay *x, const struct relay_state *state)
{
    static const struct relay_state fair;
    struct router *r = x->router;
    pthread_mutex_lock(&r->lock);
    x->state = state ? *state : fair;
    if (x->state.cut)
        plug(x);
    else
        unplug(x);
    pthread_mutex_unlock(&r->lock);
    eventfd_write(r->wake, 1);
}

uint32_t relay_connections(struct relay *x)
{
    uint32_t n = 0;
    pthread_mutex_lock(&x->router->lock);
    for (struct connection *c = x->connections; c; c = c->next)
        n++;
    pthread_mutex_unlock(&x->router->lock);
    return n;
}

uint64_t relay_bytes(struct relay *x)
{
    pthread_mutex_lock(&x->router->lock);
    uint64_t n = x->bytes;
    pthread_mutex_unlock(&x->router->lock);
    return n;
}
