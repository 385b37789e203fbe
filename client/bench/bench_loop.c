/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit of TCP: a bare socket loop. Another process sends and receives the same sizes on request, over
 * warm connections with TCP_NODELAY. Socket buffers have one of three sizes: the kernel's default, which
 * grows to megabytes; 256 KiB, so that over loopback the bytes in flight stay in the cache; or 4 MiB. The
 * same over a Unix socket, which within one host costs less.
 *
 *   get   48-byte request -> payload          put   48-byte header, payload -> 48-byte answer
 */
#include "client/bench/bench.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

#define REGION_BYTES (512ull << 20) /* memory of the other process; its pages are touched on first use */

enum { ASK_GET = 1, ASK_PUT, ASK_BUFFERS };

#define BURST 64 /* at most this many requests are sent together */

struct frame {
    uint64_t op, offset, bytes;
    uint64_t more; /* this many requests follow immediately; all are answered together */
    uint64_t unused[2];
};
_Static_assert(sizeof(struct frame) == 48, "as large as a frame of the tcp transport");

/* --- sockets ------------------------------------------------------------------------------------ */

int bench_transfer(int fd, struct iovec *v, size_t n, bool out)
{
    while (n > 0) {
        struct msghdr m = {.msg_iov = v, .msg_iovlen = n};
        ssize_t moved = out ? sendmsg(fd, &m, MSG_NOSIGNAL) : recvmsg(fd, &m, MSG_WAITALL);
        if (moved < 0 && errno == EINTR && !bench_interrupted())
            continue;
        if (moved == 0)
            return tarn_fail(TARN_E_NODE_DOWN, "the bare socket: the other side has closed it");
        if (moved < 0)
            return tarn_fail(TARN_E_SYSTEM, "the bare socket: %s: %m", out ? "send" : "receive");
        size_t rest = (size_t)moved;
        for (; n > 0 && rest >= v->iov_len; v++, n--)
            rest -= v->iov_len;
        if (n > 0) {
            v->iov_base = (char *)v->iov_base + rest;
            v->iov_len -= rest;
        }
    }
    return 0;
}

static int send_all(int fd, void *data, size_t bytes)
{
    return bench_transfer(fd, &(struct iovec){data, bytes}, 1, true);
}

static int receive_all(int fd, void *data, size_t bytes)
{
    return bench_transfer(fd, &(struct iovec){data, bytes}, 1, false);
}

/* The FORCE options exceed net.core.*mem_max if we have the right to. */
static void set_buffers(int fd, int bytes)
{
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) != 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

static void no_delay(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* --- the other process -------------------------------------------------------------------------- */

struct loop_connection {
    int fd;
    char *region;
};

static bool in_region(const struct frame *f)
{
    return f->offset <= REGION_BYTES && f->bytes <= REGION_BYTES - f->offset;
}

/* Answers a burst of gets. *first was received already. */
static int serve_gets(const struct loop_connection *c, const struct frame *first)
{
    struct frame f[BURST] = {*first};
    struct iovec v[BURST];

    if (first->more >= BURST ||
        (first->more > 0 && receive_all(c->fd, f + 1, first->more * sizeof f[0]) != 0))
        return TARN_E_INVALID;
    for (size_t i = 0; i <= first->more; i++) {
        if (!in_region(&f[i]))
            return TARN_E_INVALID;
        v[i] = (struct iovec){c->region + f[i].offset, f[i].bytes};
    }
    return bench_transfer(c->fd, v, first->more + 1, true);
}

static int serve_frame(const struct loop_connection *c, struct frame *f)
{
    if (!in_region(f))
        return TARN_E_INVALID;
    if (f->op == ASK_GET)
        return serve_gets(c, f);
    if (f->op == ASK_BUFFERS)
        set_buffers(c->fd, (int)f->bytes);
    else if (receive_all(c->fd, c->region + f->offset, f->bytes) != 0)
        return TARN_E_SYSTEM;
    return send_all(c->fd, f, sizeof *f);
}

static void *serve_connection(void *arg)
{
    struct loop_connection *c = arg;
    struct frame f;

    while (receive_all(c->fd, &f, sizeof f) == 0 && serve_frame(c, &f) == 0)
        ;
    close(c->fd);
    free(c);
    return NULL;
}

static void *accept_all(void *arg)
{
    const struct loop_connection *listener = arg;

    for (;;) {
        pthread_t thread;
        struct loop_connection *c = malloc(sizeof *c);
        int fd = accept(listener->fd, NULL, NULL);
        if (!c || fd < 0)
            _exit(1);
        no_delay(fd);
        *c = (struct loop_connection){.fd = fd, .region = listener->region};
        if (pthread_create(&thread, NULL, serve_connection, c) != 0)
            _exit(1);
        pthread_detach(thread);
    }
}

/* Serves until the parent ends it. */
__attribute__((noreturn)) static void loop_process(const int listeners[2])
{
    pthread_t thread;
    char *region =
        mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct loop_connection tcp = {listeners[0], region}, local = {listeners[1], region};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    if (region != MAP_FAILED && pthread_create(&thread, NULL, accept_all, &tcp) == 0)
        accept_all(&local);
    _exit(1);
}

/* The loop's Unix socket, an abstract name with the number of its port. */
static socklen_t local_name(struct sockaddr_un *a, uint16_t port)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "tarn-bench-loop-%u", port);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* *fd_p stays the caller's on failure, too. */
static int listen_on(int *fd_p, const void *at, socklen_t bytes)
{
    *fd_p = socket(((const struct sockaddr *)at)->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd_p < 0 || bind(*fd_p, at, bytes) != 0 || listen(*fd_p, 64) != 0)
        return tarn_fail(TARN_E_SYSTEM, "the bare socket loop: %m");
    return 0;
}

static int listen_both(int listeners[2], uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un local;
    socklen_t bytes = sizeof a;
    int rc = listen_on(&listeners[0], &a, sizeof a);

    if (rc == 0 && getsockname(listeners[0], (struct sockaddr *)&a, &bytes) != 0)
        rc = tarn_fail(TARN_E_SYSTEM, "the bare socket loop: %m");
    *port = ntohs(a.sin_port);
    return rc ? rc : listen_on(&listeners[1], &local, local_name(&local, *port));
}

int bench_start_loop(uint16_t *port, pid_t *pid_p)
{
    int listeners[2] = {-1, -1};
    int rc = listen_both(listeners, port);

    *pid_p = rc ? -1 : fork();
    if (*pid_p == 0)
        loop_process(listeners);
    for (int i = 0; i < 2; i++)
        if (listeners[i] >= 0)
            close(listeners[i]);
    return rc || *pid_p > 0 ? rc : tarn_fail(TARN_E_SYSTEM, "the bare socket loop: fork: %m");
}

void bench_stop_loop(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* --- limits: the bare loop ---------------------------------------------------------------------- */

struct loop_peer {
    struct bench_load *load;
    bool put;
    uint64_t seed; /* gets: of what the other process has */
    int *fds;      /* one a thread */
};

static void loop_close(void *arg)
{
    struct loop_peer *p = arg;

    for (uint32_t i = 0; p->fds && i < p->load->threads; i++)
        if (p->fds[i] >= 0)
            close(p->fds[i]);
    free(p->fds);
    free(p);
}

/* Sends all payloads, then reads all answers, which are too small to fill a buffer. */
static int loop_put_op(void *arg, uint32_t thread, size_t i)
{
    struct loop_peer *p = arg;
    size_t first = i * p->load->depth, end = first + p->load->depth;
    int rc = 0;

    for (size_t k = first; rc == 0 && k < end; k++) {
        struct frame f = {.op = ASK_PUT, .offset = k * p->load->bytes, .bytes = p->load->bytes};
        struct iovec v[2] = {{&f, sizeof f}, {bench_load_pieces(p->load, k)->addr, f.bytes}};
        rc = bench_transfer(p->fds[thread], v, 2, true);
    }
    for (size_t k = first; rc == 0 && k < end; k++) {
        struct frame answer;
        rc = receive_all(p->fds[thread], &answer, sizeof answer);
    }
    return rc;
}

static int loop_get_op(void *arg, uint32_t thread, size_t i)
{
    struct loop_peer *p = arg;
    struct frame f[BURST];
    struct iovec v[BURST];
    size_t n = p->load->depth < BURST ? p->load->depth : BURST, first = i * p->load->depth;

    for (size_t k = 0; k < n; k++) {
        f[k] = (struct frame){.op = ASK_GET,
                              .offset = (first + k) * p->load->bytes,
                              .bytes = p->load->bytes,
                              .more = n - 1 - k};
        v[k] = (struct iovec){bench_load_pieces(p->load, first + k)->addr, p->load->bytes};
    }
    int rc = send_all(p->fds[thread], f, n * sizeof f[0]);
    return rc ? rc : bench_transfer(p->fds[thread], v, n, false);
}

static int loop_begin(void *arg, uint64_t round)
{
    struct loop_peer *p = arg;

    if (p->put) {
        bench_load_fill(p->load, round + 1);
    } else {
        bench_load_poison(p->load);
        p->load->seed = p->seed;
    }
    return 0;
}

/* Verifies. After puts it fetches the bytes back first. */
static int loop_end(void *arg)
{
    struct loop_peer *p = arg;
    int rc = 0;

    if (p->put)
        bench_load_poison(p->load);
    for (size_t i = 0; rc == 0 && p->put && i < p->load->ops + p->load->threads; i++)
        rc = loop_get_op(p, 0, i);
    return rc ? rc : bench_load_check(p->load);
}

static const struct bench_ops loop_get_ops = {
    .begin = loop_begin, .op = loop_get_op, .end = loop_end, .close = loop_close};
static const struct bench_ops loop_put_ops = {
    .begin = loop_begin, .op = loop_put_op, .end = loop_end, .close = loop_close};

/* buffers 0: the kernel's default. */
static int loop_connect(uint16_t port, bool local, int buffers, int *fd_p)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un at;
    socklen_t bytes = local_name(&at, port);
    struct frame f = {.op = ASK_BUFFERS, .bytes = (uint64_t)buffers};
    int fd = socket(local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *fd_p = fd;
    if (fd < 0 ||
        connect(fd, local ? (struct sockaddr *)&at : (struct sockaddr *)&a, local ? bytes : sizeof a) != 0)
        return tarn_fail(TARN_E_SYSTEM, "the bare socket loop: connect: %m");
    no_delay(fd);
    if (!buffers)
        return 0;
    set_buffers(fd, buffers);
    int rc = send_all(fd, &f, sizeof f);
    return rc ? rc : receive_all(fd, &f, sizeof f);
}

/* How a loop's connections are made. */
struct loop_kind {
    const char *name;
    bool local;
    int buffers;
};

static int add_loop(struct bench_row *r, uint16_t port, const struct loop_kind *kind, bool put,
                    struct bench_load *l)
{
    struct loop_peer *p = calloc(1, sizeof *p);
    int rc = 0;

    if (!p || !(p->fds = calloc(l->threads, sizeof *p->fds))) {
        free(p);
        return tarn_fail(TARN_E_NO_MEMORY, "the bare socket loop: out of memory");
    }
    p->load = l;
    p->put = put;
    p->seed = l->seed;
    for (uint32_t i = 0; i < l->threads; i++)
        p->fds[i] = -1;
    for (uint32_t i = 0; rc == 0 && i < l->threads; i++)
        rc = loop_connect(port, kind->local, kind->buffers, &p->fds[i]);
    for (size_t i = 0; rc == 0 && !put && i < l->ops + l->threads; i++)
        rc = loop_put_op(p, 0, i); /* the bytes for the gets */
    if (rc != 0) {
        loop_close(p);
        return rc;
    }
    return bench_row_add(r, BENCH_LIMIT, kind->name, put ? &loop_put_ops : &loop_get_ops, p, l);
}

int bench_add_loops(struct bench_row *r, uint16_t port, bool put, struct bench_load *l)
{
    static const struct loop_kind kinds[] = {{.name = "socket loop"},
                                             {.name = "socket loop, 256K buffers", .buffers = 256 << 10},
                                             {.name = "socket loop, 4M buffers", .buffers = 4 << 20},
                                             {.name = "Unix socket loop", .local = true}};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof kinds / sizeof kinds[0]; i++)
        rc = add_loop(r, port, &kinds[i], put, l);
    return rc;
}
