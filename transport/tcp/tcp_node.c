/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP, node half: threads, accepting, sessions. tcp_node.h has the rules of threads and lock.
 *
 * It uses plain epoll, because a connection moves from thread to thread. Threads of an idle node sleep
 * without a timeout. They wake on their own only while a connection has a deadline, or while accepting is
 * paused because descriptors have run out.
 */
#include "transport/tcp/tcp_node.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "base/net.h"
#include "base/thread.h"
#include "transport/tcp/tcp.h"

enum { HELLO_MS = 5000, SLEEP_MS = 4, SCAN_MS = 250, ACCEPTS = 64, EVENTS = 64 };

static struct tarn_tcp_node *node_of(const struct tarn_node_half *h)
{
    return TARN_CONTAINER_OF(h, struct tarn_tcp_node, half);
}

/* --- sessions ----------------------------------------------------------------------------------- */

/* Makes the connection's own thread close it. With the lock held. */
static void doom(struct tarn_tcp_conn *c)
{
    atomic_store_explicit(&c->doomed, true, memory_order_relaxed);
    shutdown(c->fd, SHUT_RDWR);
}

/*
 * A thread may be receiving into a pool for this session right now; its pin holds the slot until that
 * stops. Whatever the connections still hold is refused once the store has taken the reservations back.
 */
static void tcp_detach(struct tarn_node_half *h, uint64_t session)
{
    struct tarn_tcp_node *s = node_of(h);
    pthread_mutex_lock(&s->lock);
    struct tarn_tcp_conn *c;
    tarn_token_drop(&s->tokens, session);
    DL_FOREACH (s->conns, c)
        if (c->admitted && c->session == session)
            doom(c);
    pthread_mutex_unlock(&s->lock);
}

/* --- connections -------------------------------------------------------------------------------- */

/* Closes its descriptor; frees it, now or when its last copies have passed. */
static void close_conn(struct tarn_tcp_conn *c)
{
    struct tarn_tcp_node *s = c->node;
    tarn_tcp_conn_time(c, 0);
    pthread_mutex_lock(&s->lock);
    DL_DELETE(s->conns, c);
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_sub(&c->thread->conns, 1);
    close(c->fd);
    c->closed = c->stage && tarn_stage_moving(c->stage);
    if (!c->closed)
        tarn_tcp_conn_free(c);
}

static bool watch(struct tarn_tcp_thread *t, struct tarn_tcp_conn *c)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    c->events = EPOLLIN;
    return epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, c->fd, &e) == 0;
}

/* Owns fd. NULL: out of memory. */
static struct tarn_tcp_conn *new_conn(struct tarn_tcp_thread *t, int fd)
{
    struct tarn_tcp_conn *c = calloc(1, sizeof(*c));
    if (!c) {
        close(fd);
        return NULL;
    }
    c->same_host = tarn_tcp_same_host(fd);
    c->keeps_up = c->same_host;
    tarn_tcp_tune(fd, c->same_host);
    tarn_tcp_sleep(fd, SLEEP_MS);
    c->node = t->node;
    c->thread = t;
    c->fd = fd;
    atomic_fetch_add(&t->conns, 1);
    return c;
}

static void add_conn(struct tarn_tcp_thread *t, int fd)
{
    struct tarn_tcp_conn *c = new_conn(t, fd);
    if (!c)
        return;
    tarn_tcp_conn_time(c, tarn_deadline(HELLO_MS));
    pthread_mutex_lock(&t->node->lock);
    DL_APPEND(t->node->conns, c);
    pthread_mutex_unlock(&t->node->lock);
    if (!watch(t, c))
        close_conn(c);
}

/* --- passing connections over the Unix socket ---------------------------------------------------- */

/* Makes a connection of the session's, which has yet to say HELLO, and adds the client's end to the answer.
 * On the control thread: thread 0 has the connection from watch() on. */
static bool pass_conn(struct tarn_tcp_node *s, struct tarn_attach *a)
{
    int ends[2];
    struct tarn_tcp_thread *t = &s->threads[0];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0)
        return false;
    a->fds[a->nfds] = ends[1];
    a->close_fds[a->nfds++] = true;
    struct tarn_tcp_conn *c = new_conn(t, ends[0]);
    if (!c)
        return false;
    c->admitted = true;
    c->session = a->session;
    pthread_mutex_lock(&s->lock);
    DL_APPEND(s->conns, c);
    pthread_mutex_unlock(&s->lock);
    if (watch(t, c))
        return true;
    pthread_mutex_lock(&s->lock);
    DL_DELETE(s->conns, c);
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_sub(&t->conns, 1);
    close(c->fd);
    free(c);
    return false;
}

/* All that the session needs, or none: then the client connects by TCP. */
static void pass_conns(struct tarn_tcp_node *s, struct tarn_attach *a)
{
    uint32_t most = a->write ? 2 : 1; /* for gets; for puts */
    while (a->nfds < most && pass_conn(s, a))
        ;
    if (a->nfds == most)
        return;
    while (a->nfds > 0) /* a connection whose other end is closed ends by itself */
        close(a->fds[--a->nfds]);
}

static int tcp_attach(struct tarn_node_half *h, struct tarn_attach *a)
{
    struct tarn_tcp_node *s = node_of(h);
    pthread_mutex_lock(&s->lock);
    const char *token = tarn_token_of(&s->tokens, a->session);
    if (token)
        snprintf(a->text, sizeof(a->text), "v1 %s %s", s->address, token);
    pthread_mutex_unlock(&s->lock);
    if (!token)
        return tarn_fail(TARN_E_NO_MEMORY, "tcp: out of memory for a session");
    a->nfds = 0;
    if (a->local)
        pass_conns(s, a);
    return 0;
}

static int start_thread(struct tarn_tcp_node *s);

/* A new thread as long as there may be more and all have connections, else the one with the fewest. */
static struct tarn_tcp_thread *thread_for_one(struct tarn_tcp_node *s)
{
    struct tarn_tcp_thread *best = &s->threads[0];
    for (uint32_t i = 1; i < s->nthreads; i++)
        if (atomic_load(&s->threads[i].conns) < atomic_load(&best->conns))
            best = &s->threads[i];
    if (!atomic_load(&best->conns) || s->nthreads == s->most_threads)
        return best;
    if (!start_thread(s))
        return &s->threads[s->nthreads - 1];
    tarn_log(s->half.serve.log, TARN_LOG_WARN, "tcp",
             "msg=\"goes on with the threads that there are\" cause=\"%s\" threads=%u", tarn_last_error(),
             s->nthreads);
    s->most_threads = s->nthreads;
    return best;
}

/* Passes a connection that has said HELLO to the thread that serves it from now on. */
static void hand_over(struct tarn_tcp_conn *c)
{
    struct tarn_tcp_node *s = c->node;
    struct tarn_tcp_thread *from = c->thread;
    atomic_fetch_sub(&from->conns, 1);
    struct tarn_tcp_thread *to = thread_for_one(s);
    atomic_fetch_add(&to->conns, 1);
    if (to == from)
        return;
    epoll_ctl(from->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    pthread_mutex_lock(&s->lock);
    c->thread = to;
    pthread_mutex_unlock(&s->lock);
    if (!watch(to, c))
        close_conn(c);
}

/* --- accepting ---------------------------------------------------------------------------------- */

static void set_listening(struct tarn_tcp_node *s, bool on)
{
    struct epoll_event e = {.events = on ? EPOLLIN : 0, .data.ptr = &s->listen_fd};
    s->listening = on;
    epoll_ctl(s->threads[0].epoll_fd, EPOLL_CTL_MOD, s->listen_fd, &e);
}

static void accept_some(struct tarn_tcp_thread *t)
{
    struct tarn_tcp_node *s = t->node;
    for (int i = 0; i < ACCEPTS; i++) {
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            add_conn(t, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            /* They wait in the backlog until connections close; a ready listener would spin meanwhile. */
            tarn_log(s->half.serve.log, TARN_LOG_WARN, "tcp",
                     "msg=\"not accepting for %d ms\" cause=\"%s\" connections=%u remedy=\"raise ulimit -n\"",
                     SCAN_MS, strerror(errno), atomic_load(&t->conns));
            set_listening(s, false);
        }
        return;
    }
}

/* --- threads ------------------------------------------------------------------------------------ */

/* Dooms this thread's connections whose deadline has passed. */
static void scan(struct tarn_tcp_thread *t)
{
    struct tarn_tcp_conn *c;
    uint64_t now = tarn_now_ns();
    pthread_mutex_lock(&t->node->lock);
    DL_FOREACH (t->node->conns, c)
        if (c->thread == t && c->deadline_ns && c->deadline_ns <= now)
            doom(c);
    pthread_mutex_unlock(&t->node->lock);
}

static void handle(struct tarn_tcp_conn *c, uint32_t events)
{
    bool new = c->state == TARN_TCP_EXPECT_HELLO;
    if (!tarn_tcp_conn_handle(c, events))
        close_conn(c);
    else if (new && c->state != TARN_TCP_EXPECT_HELLO)
        hand_over(c);
}

/* Serves the connections whose copies have passed, or that waited for a stage that is there. */
static void sweep(struct tarn_tcp_thread *t)
{
    struct tarn_tcp_conn *c, *next;
    bool waits = false;
    for (c = t->gpu_conns; c; c = next) {
        next = c->gpu_next;
        if (!tarn_tcp_gpu_due(c)) {
            waits |= !c->stage;
        } else if (c->closed) {
            tarn_tcp_conn_free(c);
        } else {
            uint32_t events = c->starved ? EPOLLIN : 0;
            c->starved = false;
            handle(c, events);
        }
    }
    tarn_tcp_gpu_waited(t, waits);
}

static bool dispatch(struct tarn_tcp_thread *t, const struct epoll_event *e)
{
    struct tarn_tcp_node *s = t->node;
    if (e->data.ptr == &s->wake_fd)
        return false;
    if (e->data.ptr == &s->listen_fd)
        accept_some(t);
    else
        handle(e->data.ptr, e->events);
    return true;
}

static void *run(void *arg)
{
    struct tarn_tcp_thread *t = arg;
    bool accepts = t == &t->node->threads[0];
    uint64_t next_scan_ns = 0;
    for (;;) {
        struct epoll_event events[EVENTS];
        bool paused = accepts && !t->node->listening;
        int limit_ms = tarn_tcp_gpu_timeout(t, t->timed || paused ? SCAN_MS : -1);
        int n = epoll_wait(t->epoll_fd, events, EVENTS, limit_ms);
        t->ready = n;
        for (int i = 0; i < n; i++)
            if (!dispatch(t, &events[i]))
                return NULL;
        sweep(t);
        if ((t->timed || paused) && tarn_now_ns() >= next_scan_ns) {
            next_scan_ns = tarn_deadline(SCAN_MS);
            scan(t);
            if (paused)
                set_listening(t->node, true);
        }
    }
}

/* Thread 0 starts the others. */
static int start_thread(struct tarn_tcp_node *s)
{
    uint32_t i = s->nthreads;
    struct tarn_tcp_thread *t = &s->threads[i];
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = &s->wake_fd};
    struct epoll_event listen = {.events = EPOLLIN, .data.ptr = &s->listen_fd};
    t->node = s;
    t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (t->epoll_fd < 0 || epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &wake) < 0 ||
        (i == 0 && epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, s->listen_fd, &listen) < 0)) {
        int r =
            tarn_fail(TARN_E_SYSTEM, "tcp: epoll for I/O thread %u: %m: raise the limit of open files", i);
        if (t->epoll_fd >= 0)
            close(t->epoll_fd);
        return r;
    }
    s->nthreads++; /* thread 0 must count itself */
    int error = tarn_thread_start(&t->id, run, t);
    if (error) {
        s->nthreads--;
        close(t->epoll_fd);
        errno = error;
        return tarn_fail(TARN_E_SYSTEM, "tcp: I/O thread %u of %u: %m: lower io-threads", i, s->most_threads);
    }
    char name[16];
    snprintf(name, sizeof(name), "tarn-tcp-%u", i % 1000);
    pthread_setname_np(t->id, name);
    return 0;
}

/* --- start and stop ----------------------------------------------------------------------------- */

static bool tcp_serves(const struct tarn_node_half *h, uint32_t pool)
{
    (void)h, (void)pool;
    return true;
}

static void tcp_describe(const struct tarn_node_half *h, uint32_t pool, char *text, size_t text_bytes)
{
    (void)pool;
    snprintf(text, text_bytes, "%s", node_of(h)->address);
}

static void tcp_stop(struct tarn_node_half *h)
{
    struct tarn_tcp_node *s = node_of(h);
    eventfd_write(s->wake_fd, 1);
    for (uint32_t i = 0; i < s->nthreads; i++) { /* when thread 0 has ended, none is started any more */
        pthread_join(s->threads[i].id, NULL);
        close(s->threads[i].epoll_fd);
    }
    while (s->conns)
        close_conn(s->conns);
    for (uint32_t i = 0; i < s->nthreads; i++) {
        struct tarn_tcp_thread *t = &s->threads[i];
        tarn_copiers_close(&t->copiers);
        while (t->gpu_conns)
            tarn_tcp_conn_free(t->gpu_conns);
        tarn_tcp_gpu_stop(t);
    }
    tarn_tokens_free(&s->tokens);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int listen_on(struct tarn_tcp_node *s)
{
    struct tarn_addr a = {.port = s->half.serve.port};
    snprintf(a.host, sizeof(a.host), "%s", s->half.serve.host);
    int r = tarn_net_listen(&a, &s->listen_fd);
    if (!r)
        tarn_addr_format(&a, s->address, sizeof(s->address));
    return r;
}

static int tcp_serve(const struct tarn_serve *serve, struct tarn_node_half **s_p)
{
    uint32_t most = serve->io_threads ? serve->io_threads : 1;
    struct tarn_tcp_node *s = calloc(1, sizeof(*s) + most * sizeof(s->threads[0]));
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "tcp: out of memory for %u I/O threads", most);
    s->half.serve = *serve;
    s->most_threads = most;
    s->listening = true;
    s->listen_fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    s->wake_fd = eventfd(0, EFD_CLOEXEC);
    int r = s->wake_fd < 0 ? tarn_fail(TARN_E_SYSTEM, "tcp: eventfd: %m: raise the limit of open files")
                           : listen_on(s);
    if (!r)
        r = start_thread(s);
    if (r)
        tcp_stop(&s->half);
    else
        *s_p = &s->half;
    return r;
}

const struct tarn_node_half_ops tarn_tcp_node_ops = {
    .name = "tcp",
    .caps = TARN_TCP_CAPS,
    .probe = tarn_tcp_probe,
    .serve = tcp_serve,
    .lend = tarn_no_lend,
    .withdraw = tarn_no_lend,
    .cut = tarn_no_lend,
    .enter = tarn_no_enter,
    .serves = tcp_serves,
    .describe = tcp_describe,
    .attach = tcp_attach,
    .detach_link = tarn_no_detach_link,
    .detach = tcp_detach,
    .stop = tcp_stop,
};
