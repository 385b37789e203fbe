/* SPDX-License-Identifier: Apache-2.0 */
/* TCPX, node half: the thread, accepting, sessions. tcpx_node.h has the rules for threads and the lock. */
#include "transport/tcpx/tcpx_node.h"
#include "transport/tcpx/plugin/tcpx_nic.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/net.h"
#include "base/thread.h"
#include "transport/tcpx/plugin/tcpx_settings.h"
#include "transport/tcpx/tcpx_dial.h"

enum {
    HELLO_MS = 5000,
    STALL_MS = 5000,
    SETUP_MS = 20000,
    WARM_MS = 5000,
    STOP_MS = 500,
    OPENING_MS = 1, /* poll interval for connections being set up */
    SCAN_MS = 250,
    ACCEPTS = 64,
    EVENTS = 64,
    ROUNDS = 2
};
/* Longer than a message takes, because its bytes move only while the plugin is polled. */
#define SPIN_NS (5 * TARN_NS_PER_MS)
#define NAP_NS (30 * 1000)

/* --- sessions ----------------------------------------------------------------------------------- */

static int tcpx_attach(struct tarn_node_half *h, struct tarn_attach *a)
{
    struct tarn_tcpx_node *s = tarn_tcpx_node(h);
    pthread_mutex_lock(&s->lock);
    const char *token = tarn_token_of(&s->tokens, a->session);
    if (token)
        snprintf(a->text, sizeof(a->text), "v1 %s %s %s %u", s->address, token, s->gear.plugin->word,
                 s->half.serve.npools);
    pthread_mutex_unlock(&s->lock);
    if (!token)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory for a session");
    a->nfds = 0;
    return 0;
}

/* From then on the store refuses what is received under pins of the session. */
static void tcpx_detach(struct tarn_node_half *h, uint64_t session)
{
    struct tarn_tcpx_node *s = tarn_tcpx_node(h);
    struct tarn_tcpx_node_link *l;
    pthread_mutex_lock(&s->lock);
    tarn_token_drop(&s->tokens, session);
    DL_FOREACH (s->links, l)
        if (l->admitted && l->session == session && !l->closing) {
            atomic_store(&l->doomed, true);
            shutdown(l->wire.fd, SHUT_RDWR);
        }
    pthread_mutex_unlock(&s->lock);
}

/* --- links -------------------------------------------------------------------------------------- */

static void free_link(struct tarn_tcpx_node_link *l)
{
    struct tarn_tcpx_node *s = l->node;
    pthread_mutex_lock(&s->lock);
    DL_DELETE(s->links, l);
    pthread_mutex_unlock(&s->lock);
    free(l);
}

/* Releases its pins as soon as nothing is written under them. */
static void close_link(struct tarn_tcpx_node_link *l)
{
    pthread_mutex_lock(&l->node->lock);
    l->closing = true;
    tarn_tcpx_wire_close(&l->wire);
    pthread_mutex_unlock(&l->node->lock);
    l->busy = true;
    if (tarn_tcpx_node_let_go(l) == 0)
        free_link(l);
}

static bool watch(struct tarn_tcpx_node_link *l, int op)
{
    struct epoll_event e = {.events = EPOLLIN | (l->wants_out ? EPOLLOUT : 0), .data.ptr = l};
    return epoll_ctl(l->node->epoll_fd, op, l->wire.fd, &e) == 0;
}

static void add_link(struct tarn_tcpx_node *s, int fd)
{
    struct tarn_tcpx_node_link *l = calloc(1, sizeof(*l));
    const int on = 1;
    if (!l) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    l->node = s;
    l->wire.fd = fd;
    l->hello_until_ns = tarn_deadline(HELLO_MS);
    pthread_mutex_lock(&s->lock);
    DL_APPEND(s->links, l);
    pthread_mutex_unlock(&s->lock);
    if (!watch(l, EPOLL_CTL_ADD))
        close_link(l);
}

/* When descriptors run out, connections wait in the backlog. epoll is level-triggered, so each turn tries
 * again. */
static void accept_some(struct tarn_tcpx_node *s)
{
    for (int i = 0; i < ACCEPTS; i++) {
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            nanosleep(&(struct timespec){.tv_nsec = TARN_NS_PER_MS}, NULL);
            return;
        }
        if (fd < 0)
            return;
        add_link(s, fd);
    }
}

static void hear(struct tarn_tcpx_node_link *l, uint32_t events)
{
    if (l->closing)
        return;
    l->busy = true;
    if (atomic_load(&l->doomed) || events & (EPOLLERR | EPOLLHUP) || !tarn_tcpx_node_hear(l))
        close_link(l);
}

/* --- the thread --------------------------------------------------------------------------------- */

/* Moves a busy link. True: it stays busy. */
static bool move(struct tarn_tcpx_node_link *l, uint64_t now)
{
    struct tarn_tcpx_node *s = l->node;
    if (l->closing) {
        s->waits = true;
        if (tarn_tcpx_node_let_go(l) == 0)
            free_link(l);
        return true;
    }
    enum tarn_tcpx_moved moved = tarn_tcpx_node_move(l);
    if (moved == TARN_TCPX_BROKEN) {
        close_link(l);
        return true;
    }
    if (moved == TARN_TCPX_MOVED) {
        s->moved = true;
        s->moved_ns = now;
    }
    l->busy = moved != TARN_TCPX_IDLE;
    s->waits |= moved >= TARN_TCPX_WAITS;
    if (l->wants_out != (l->wire.out.bytes > 0)) {
        l->wants_out = l->wire.out.bytes > 0;
        watch(l, EPOLL_CTL_MOD);
    }
    return l->busy;
}

/* Only this thread changes the list. True: poll again soon. */
static bool move_all(struct tarn_tcpx_node *s, bool *timed)
{
    struct tarn_tcpx_node_link *l, *next;
    uint64_t now = tarn_now_ns();
    bool busy = false;
    *timed = s->moved = s->waits = false;
    DL_FOREACH_SAFE(s->links, l, next)
    {
        if (l->hello_until_ns && !l->closing) {
            *timed = true;
            if (now > l->hello_until_ns) {
                tarn_tcpx_complain(l, "no HELLO");
                close_link(l);
                continue;
            }
        }
        if (l->busy)
            busy |= move(l, now);
    }
    return busy;
}

/* How long to wait for the sockets. Naps first after a while without progress. */
static int limit_ms(struct tarn_tcpx_node *s, bool busy, bool timed)
{
    if (!busy)
        return timed ? SCAN_MS : -1;
    if (s->moved)
        return 0;
    if (!s->waits)
        return OPENING_MS;
    if (tarn_now_ns() - s->moved_ns < SPIN_NS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    return 0;
}

static void *run(void *arg)
{
    struct tarn_tcpx_node *s = arg;
    bool busy = false, timed = false;
    for (uint32_t round = 0;; round++) {
        struct epoll_event events[EVENTS];
        bool look = !busy || !s->moved || round % ROUNDS == 0; /* else wait only for bytes */
        int n = look ? epoll_wait(s->epoll_fd, events, EVENTS, limit_ms(s, busy, timed)) : 0;
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &s->wake_fd)
                return NULL;
            s->moved_ns = tarn_now_ns();
            if (events[i].data.ptr == &s->listen_fd)
                accept_some(s);
            else
                hear(events[i].data.ptr, events[i].events);
        }
        busy = move_all(s, &timed);
    }
}

/* --- start and stop ----------------------------------------------------------------------------- */

static void tcpx_describe(const struct tarn_node_half *h, uint32_t pool, char *text, size_t text_bytes)
{
    (void)pool;
    snprintf(text, text_bytes, "%s", tarn_tcpx_node(h)->address);
}

/* False: the thread is in a call of the plugin that does not return. */
static bool join_thread(struct tarn_tcpx_node *s)
{
    struct timespec until;
    eventfd_write(s->wake_fd, 1);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (until.tv_nsec + STOP_MS * (long)TARN_NS_PER_MS) / (long)TARN_NS_PER_S;
    until.tv_nsec = (until.tv_nsec + STOP_MS * (long)TARN_NS_PER_MS) % (long)TARN_NS_PER_S;
    return pthread_timedjoin_np(s->thread, NULL, &until) == 0;
}

static void tcpx_stop(struct tarn_node_half *h)
{
    struct tarn_tcpx_node *s = tarn_tcpx_node(h);
    if (s->started && !join_thread(s)) { /* its resources stay allocated */
        tarn_log(s->half.serve.log, TARN_LOG_WARN, "tcpx",
                 "msg=\"ends without its thread\" cause=\"a call of the plugin has not returned for %d ms\"",
                 STOP_MS);
        return;
    }
    while (s->links) {
        struct tarn_tcpx_node_link *l = s->links;
        if (!l->closing)
            close_link(l);
        else if (tarn_tcpx_node_let_go(l) == 0)
            free_link(l);
    }
    tarn_tcpx_gear_close(&s->gear);
    tarn_tokens_free(&s->tokens);
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    if (s->gear.plugin)
        tarn_tcpx_plugin_close(s->half.serve.log);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int listen_on(struct tarn_tcpx_node *s)
{
    /* tcp itself uses the configured port. */
    struct tarn_addr a = {.port = s->half.serve.port ? (uint16_t)(s->half.serve.port + 1) : 0};
    snprintf(a.host, sizeof(a.host), "%s", s->half.serve.host);
    int r = tarn_net_listen(&a, &s->listen_fd);
    if (!r)
        tarn_addr_format(&a, s->address, sizeof(s->address));
    return r;
}

static int open_gear(struct tarn_tcpx_node *s)
{
    struct tarn_tcpx_settings settings;
    int rc = tarn_tcpx_settings(&settings);
    if (!rc)
        rc = tarn_tcpx_plugin_open(settings.plugin, s->half.serve.log, &s->gear.plugin);
    if (rc)
        return rc;
    s->gear.way = settings.way;
    s->gear.chunk_bytes = s->gear.plugin->chunk_bytes;
    s->gear.stall_ms = settings.stall_ms ? settings.stall_ms : STALL_MS;
    s->gear.setup_ms = SETUP_MS;
    return 0;
}

/* Does the plugin's one-time work at start instead of with the first client. A failure is harmless. */
static void warm_up(struct tarn_tcpx_node *s, int gpu, uint64_t until)
{
    struct tarn_tcpx_plugin *p = s->gear.plugin;
    struct tarn_tcpx_pair self;
    uint64_t begun = tarn_now_ns();
    uint32_t most_ms = until > begun ? (uint32_t)((until - begun) / TARN_NS_PER_MS) : 0;
    int rc = tarn_tcpx_pair_open(p, tarn_tcpx_nic(p, gpu), gpu, most_ms, &self);
    unsigned ms = (unsigned)((tarn_now_ns() - begun) / TARN_NS_PER_MS);
    if (rc) {
        tarn_log(s->half.serve.log, TARN_LOG_WARN, "tcpx",
                 "msg=\"the plugin does not connect with itself\" gpu=%d ms=%u cause=\"%s\"", gpu, ms,
                 tarn_last_error());
        return;
    }
    tarn_log(s->half.serve.log, TARN_LOG_INFO, "tcpx", "msg=\"the plugin connects\" gpu=%d ms=%u", gpu, ms);
    tarn_tcpx_pair_close(&self);
}

static void warm_up_all(struct tarn_tcpx_node *s)
{
    uint64_t until = tarn_deadline(WARM_MS), done = 0; /* one bit for each GPU, one for the host */
    for (uint32_t i = 0; i < s->half.serve.npools; i++) {
        int gpu = tarn_tcpx_gpu(s, i);
        if (!tarn_tcpx_serves(&s->half, i) || done >> (1 + gpu) & 1)
            continue;
        done |= 1ull << (1 + gpu);
        warm_up(s, gpu, until);
    }
}

static int open_events(struct tarn_tcpx_node *s)
{
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = &s->wake_fd};
    struct epoll_event listen = {.events = EPOLLIN, .data.ptr = &s->listen_fd};
    s->wake_fd = eventfd(0, EFD_CLOEXEC);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->wake_fd < 0 || s->epoll_fd < 0 || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &wake) < 0 ||
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->listen_fd, &listen) < 0)
        return tarn_fail(TARN_E_SYSTEM, "tcpx: epoll: %m: raise the limit of open files");
    return 0;
}

static int start_thread(struct tarn_tcpx_node *s)
{
    int error = tarn_thread_start(&s->thread, run, s);
    if (error)
        return tarn_fail(TARN_E_SYSTEM, "tcpx: a thread: %s", strerror(error));
    s->started = true;
    pthread_setname_np(s->thread, "tarn-tcpx");
    return 0;
}

static int tcpx_serve(const struct tarn_serve *serve, struct tarn_node_half **s_p)
{
    struct tarn_tcpx_node *s = calloc(1, sizeof(*s));
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory");
    s->half.serve = *serve;
    s->listen_fd = s->wake_fd = s->epoll_fd = -1;
    for (uint32_t i = 0; i < TARN_WINDOWS_MAX; i++)
        s->window_gpu[i] = TARN_TCPX_UNLENT;
    pthread_mutex_init(&s->lock, NULL);
    int rc = open_gear(s);
    if (!rc) {
        warm_up_all(s);
        rc = listen_on(s);
    }
    if (!rc)
        rc = open_events(s);
    if (!rc)
        rc = start_thread(s);
    if (rc) {
        tcpx_stop(&s->half);
        return rc;
    }
    *s_p = &s->half;
    return 0;
}

const struct tarn_node_half_ops tarn_tcpx_node_ops = {
    .name = "tcpx",
    .caps = TARN_TCPX_CAPS,
    .probe = tarn_tcpx_probe,
    .serve = tcpx_serve,
    .lend = tarn_tcpx_window_lend,
    .withdraw = tarn_tcpx_window_withdraw,
    .cut = tarn_no_lend,
    .enter = tarn_no_enter,
    .serves = tarn_tcpx_serves,
    .describe = tcpx_describe,
    .attach = tcpx_attach,
    .detach_link = tarn_no_detach_link,
    .detach = tcpx_detach,
    .stop = tcpx_stop,
};
