/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP, client half: a link is up to three connections, two that get and one that puts.
 *
 * connect() opens one connection and says HELLO. It does not wait for the answer, which would cost a round
 * trip. The answer comes ahead of the first work's, and a wrong token or version ends the works with AUTH or
 * VERSION. The first work claims that connection for its direction. The first work of the other direction
 * opens the second connection, without waiting, and sends HELLO ahead of itself. The first large get by TCP
 * opens another one for gets: its two halves come over a connection each, sent by two threads of the node.
 *
 * If ATTACH came over the node's Unix socket, the node has passed both connections with its answer, or for a
 * session that only reads the first. They are used in place of TCP.
 *
 * get() and put() only queue; progress() and wait() send and receive (tcp_lane.c). The first work in memory
 * of a GPU is slow, because it makes a queue of copies and pinned memory. No descriptor tells the end of a
 * copy. So while copies are under way there is none to wait for, and wait() polls them.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "base/net.h"
#include "transport/answer.h"
#include "transport/tcp/tcp_lane.h"

#define SPIN_NS (200 * 1000)
#define NAP_NS (20 * 1000)
#define SPLIT_BYTES (1u << 20)  /* gets of so many bytes are large */
#define TURN_BYTES (256u << 10) /* of each half in turn */

enum { GETS, PUTS, MORE_GETS, LANES };

struct tarn_tcp_link {
    struct tarn_link link;
    struct tarn_tcp_hello hello;
    struct sockaddr_storage peer;
    socklen_t peer_bytes;
    bool same_host;
    int spare_fd;              /* connect()'s connection until the first work claims it */
    int passed_fd;             /* the second one if the node passed it; -1: connect to `peer` */
    int epoll_fd;              /* -1 until a second lane is opened */
    struct tarn_reason broken; /* code 0: it is not */
    struct tarn_tcp_lane lanes[LANES];
    struct tarn_copiers copiers;
};

static struct tarn_tcp_link *own(const struct tarn_link *l)
{
    return TARN_CONTAINER_OF(l, struct tarn_tcp_link, link);
}

static int down(const struct tarn_tcp_link *l, const char *what)
{
    return tarn_fail(TARN_E_NODE_DOWN, "node %s: tcp: %s: %m: is the node running and reachable?",
                     l->link.node, what);
}

/* --- lanes -------------------------------------------------------------------------------------- */

/* The number of lanes with works in flight; *last_p (NULL: not asked for): the last of them. */
static int busy_lanes(struct tarn_tcp_link *l, struct tarn_tcp_lane **last_p)
{
    int n = 0;
    for (int i = 0; i < LANES; i++) {
        if (!l->lanes[i].first)
            continue;
        n++;
        if (last_p)
            *last_p = &l->lanes[i];
    }
    return n;
}

/*
 * The epoll set holds the lanes only while several have works in flight: a socket with a second waiter
 * costs each wakeup about a microsecond.
 */
static void update_watches(struct tarn_tcp_link *l)
{
    bool several = busy_lanes(l, NULL) > 1;
    for (int i = 0; l->epoll_fd >= 0 && i < LANES; i++) {
        struct tarn_tcp_lane *n = &l->lanes[i];
        uint32_t events = several ? EPOLLIN | (tarn_tcp_lane_wants_to_send(n) ? EPOLLOUT : 0) : 0;
        if (events == n->watched)
            continue;
        struct epoll_event e = {.events = events};
        epoll_ctl(l->epoll_fd,
                  !events      ? EPOLL_CTL_DEL
                  : n->watched ? EPOLL_CTL_MOD
                               : EPOLL_CTL_ADD,
                  n->fd, &e);
        n->watched = events;
    }
}

/* Begins to connect. The connection completes while its HELLO waits to be sent. */
static int connect_second(struct tarn_tcp_link *l, int *fd_p)
{
    int fd = socket(l->peer.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return tarn_fail(TARN_E_SYSTEM, "node %s: tcp: socket: %m: raise the limit of open files",
                         l->link.node);
    tarn_tcp_tune(fd, l->same_host);
    if (connect(fd, (struct sockaddr *)&l->peer, l->peer_bytes) < 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        int r = down(l, "connect");
        close(fd);
        return r;
    }
    *fd_p = fd;
    return 0;
}

static int open_second(struct tarn_tcp_link *l, int i)
{
    struct tarn_tcp_lane *n = &l->lanes[i];
    if (l->epoll_fd < 0)
        l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll_fd < 0)
        return tarn_fail(TARN_E_SYSTEM, "node %s: tcp: epoll: %m: raise the limit of open files",
                         l->link.node);
    int fd = l->passed_fd, r = fd < 0 ? connect_second(l, &fd) : 0;
    if (r)
        return r;
    l->passed_fd = -1;
    tarn_tcp_sleep(fd, TARN_WAIT_SLICE_MS);
    n->fd = fd;
    n->hello_unsent = sizeof(l->hello);
    n->hello_waits = true;
    return 0;
}

static int open_lane(struct tarn_tcp_link *l, int i)
{
    if (l->spare_fd < 0)
        return open_second(l, i);
    l->lanes[i].fd = l->spare_fd;
    l->lanes[i].hello_waits = true;
    l->spare_fd = -1;
    return 0;
}

static int prepare_gpu(struct tarn_tcp_link *l, struct tarn_tcp_lane *n, int device)
{
    bool first = !n->stage;
    int r = tarn_tcp_lane_prepare(n, device);
    if (first || r)
        tarn_log(l->link.log, TARN_LOG_DEBUG, "tcp",
                 "msg=\"GPU memory by way of pinned memory\" node=%s device=%d status=%d", l->link.node,
                 device, r);
    return r;
}

static int queue(struct tarn_tcp_link *l, int i, struct tarn_work *w)
{
    struct tarn_tcp_lane *n = &l->lanes[i];
    if (i == PUTS && !l->link.writable)
        return tarn_fail(TARN_E_NOT_REACHABLE, "node %s: tcp: the link was opened to read", l->link.node);
    if (l->broken.code)
        return tarn_fail(TARN_E_NODE_DOWN, "node %s: tcp: the link is broken: connect again", l->link.node);
    if (w->pool > UINT16_MAX)
        return tarn_fail(TARN_E_STALE, "node %s: tcp: there is no pool %u", l->link.node, w->pool);
    if (n->fd < 0) {
        int r = open_lane(l, i);
        if (r)
            return r;
    }
    int rc = w->gpu && w->bytes ? prepare_gpu(l, n, (int)w->gpu - 1) : 0;
    if (rc)
        return rc;
    tarn_tcp_lane_queue(n, w);
    update_watches(l);
    return TARN_INPROGRESS;
}

/* --- large gets --------------------------------------------------------------------------------- */

struct halves {
    struct tarn_work *whole, half[2];
    struct tarn_piece piece[2];
    int left;
};

/* The whole ends with the last half. Both had the same generation if both ended well. */
static void half_done(struct tarn_work *w)
{
    struct halves *h = w->owner;
    struct tarn_work *whole = h->whole;
    if (--h->left > 0)
        return;
    const struct tarn_work *said = h->half[0].status ? &h->half[0] : &h->half[1];
    whole->status = said->status;
    whole->why = said->why;
    free(h);
    whole->done(whole);
}

/* Contiguous memory of the host, by TCP, from a pool. */
static bool is_large(const struct tarn_tcp_link *l, const struct tarn_work *w)
{
    return w->bytes >= SPLIT_BYTES && w->npieces == 1 && tarn_piece_count(w->pieces) == 1 && !w->gpu &&
           !w->lease && l->peer.ss_family != AF_UNIX;
}

/* NULL: out of memory. */
static struct halves *halve(struct tarn_work *w)
{
    struct halves *h = malloc(sizeof *h);
    if (!h)
        return NULL;
    *h = (struct halves){.whole = w, .left = 2};
    for (uint64_t i = 0, first = w->bytes / 2; i < 2; i++) {
        struct tarn_work *half = &h->half[i];
        h->piece[i] = (struct tarn_piece){.addr = (char *)w->pieces->addr + i * first,
                                          .bytes = i ? w->bytes - first : first};
        *half = *w;
        half->offset += i * first;
        half->bytes = h->piece[i].bytes;
        half->pieces = &h->piece[i];
        half->touch = w->touch && i == 0;
        half->done = half_done;
        half->owner = h;
    }
    return h;
}

static int tcp_get(struct tarn_link *link, struct tarn_work *w)
{
    struct tarn_tcp_link *l = own(link);
    struct tarn_tcp_lane *more = &l->lanes[MORE_GETS];
    struct halves *h = NULL;
    if (is_large(l, w) && !l->broken.code && l->lanes[GETS].fd >= 0 && w->pool <= UINT16_MAX &&
        (more->fd >= 0 || open_second(l, MORE_GETS) == 0))
        h = halve(w);
    if (!h)
        return queue(l, GETS, w);
    tarn_tcp_lane_queue(&l->lanes[GETS], &h->half[0]);
    tarn_tcp_lane_queue(more, &h->half[1]);
    update_watches(l);
    return TARN_INPROGRESS;
}

static int tcp_put(struct tarn_link *l, struct tarn_work *w)
{
    return queue(own(l), PUTS, w);
}

/* Sends, and receives unless all that is in flight was sent just now: then nothing can have come yet. 1:
 * something moved. */
static int progress_lane(struct tarn_tcp_lane *n)
{
    bool asked_before = tarn_tcp_lane_awaits_answer(n), passed = tarn_tcp_lane_copy(n);
    int r = tarn_tcp_lane_send(n, false), sent = r;
    if (r >= 0 && asked_before)
        r = tarn_tcp_lane_receive(n, false, UINT64_MAX);
    return r < 0 ? r : r | sent | passed;
}

static bool is_copying(const struct tarn_tcp_link *l)
{
    return tarn_tcp_lane_copying(&l->lanes[GETS]) || tarn_tcp_lane_copying(&l->lanes[PUTS]);
}

/* Are both halves of gets under way, and nothing else? */
static bool is_halved(const struct tarn_tcp_link *l)
{
    return l->lanes[GETS].first && l->lanes[MORE_GETS].first && !l->lanes[PUTS].first;
}

static void break_link(struct tarn_tcp_link *l, int code)
{
    tarn_reason_keep(&l->broken, code);
    tarn_copiers_close(&l->copiers);
    for (int i = 0; i < LANES; i++) {
        if (l->lanes[i].fd >= 0)
            close(l->lanes[i].fd);
        l->lanes[i].fd = -1;
        tarn_tcp_lane_fail(&l->lanes[i], &l->broken);
    }
}

/* What HELLO was refused for is no fault of the node's. */
static int fail_link(struct tarn_tcp_link *l, int r)
{
    break_link(l, r == TARN_E_AUTH || r == TARN_E_VERSION ? r : TARN_E_NODE_DOWN);
    return r;
}

/* 1: something moved. */
static int advance(struct tarn_tcp_link *l)
{
    int moved = 0;
    for (int i = 0; i < LANES; i++) {
        int r = l->lanes[i].first ? progress_lane(&l->lanes[i]) : 0;
        if (r < 0)
            return fail_link(l, r);
        moved |= r;
    }
    update_watches(l);
    return moved;
}

static int tcp_progress(struct tarn_link *link)
{
    struct tarn_tcp_link *l = own(link);
    int r = l->broken.code ? TARN_E_NODE_DOWN : advance(l);
    return r < 0 ? r : is_copying(l);
}

static int tcp_wait_fd(const struct tarn_link *link, short *events)
{
    struct tarn_tcp_link *l = own(link);
    struct tarn_tcp_lane *busy = NULL;
    int n = busy_lanes(l, &busy);
    *events = POLLIN;
    if (is_copying(l) || n == 0) {
        *events = 0;
        return -1;
    }
    if (n > 1)
        return l->epoll_fd;
    if (tarn_tcp_lane_wants_to_send(busy))
        *events |= POLLOUT;
    return busy->fd;
}

/* First by looking, for what is short, then by looking now and then. */
static int wait_for_copies(struct tarn_tcp_link *l, uint64_t deadline_ns)
{
    uint64_t begun = tarn_now_ns(), now = begun, until = tarn_slice_end(deadline_ns);
    const struct timespec nap = {0, NAP_NS};
    for (;;) {
        int r = advance(l);
        now = tarn_now_ns();
        if (r || now >= until)
            return r ? r : 1;
        if (now - begun > SPIN_NS)
            nanosleep(&nap, NULL);
    }
}

/* Receives of each half in turn. Sleeps for both, since both senders fill their sockets meanwhile. */
static int take_turns(struct tarn_tcp_link *l)
{
    int moved = 0;
    for (int i = GETS; i < LANES; i += MORE_GETS - GETS) {
        struct tarn_tcp_lane *n = &l->lanes[i];
        int r = tarn_tcp_lane_send(n, false);
        if (r >= 0 && n->first && tarn_tcp_lane_awaits_answer(n)) {
            moved |= r;
            r = tarn_tcp_lane_receive(n, true, TURN_BYTES);
        }
        if (r < 0)
            return fail_link(l, r);
        moved |= r;
    }
    update_watches(l);
    return moved;
}

/* One lane that only waits for answers waits in recvmsg() itself: a system call and a wakeup less. */
static int tcp_wait(struct tarn_link *link, uint64_t deadline_ns)
{
    struct tarn_tcp_link *l = own(link);
    struct tarn_tcp_lane *n = NULL;
    if (busy_lanes(l, &n) != 1)
        n = NULL;
    int passed = 0;
    for (int i = 0; i < LANES; i++)
        passed += tarn_tcp_lane_copy(&l->lanes[i]);
    if (passed)
        return 1;
    if (is_copying(l))
        return wait_for_copies(l, deadline_ns);
    if (!l->broken.code && is_halved(l) && tarn_left_ms(deadline_ns) > 2 * TARN_WAIT_SLICE_MS)
        return take_turns(l);
    if (l->broken.code || !n || tarn_left_ms(deadline_ns) <= TARN_WAIT_SLICE_MS)
        return tarn_wait_by_poll(&tarn_tcp_ops, link, deadline_ns);
    /* Payload is sent waiting: the kernel wakes a sleeping sender sooner than poll() would. */
    int r = tarn_tcp_lane_send(n, n == &l->lanes[PUTS]);
    if (r >= 0 && !tarn_tcp_lane_wants_to_send(n))
        r = tarn_tcp_lane_receive(n, true, UINT64_MAX);
    else if (r == 0)
        return tarn_wait_by_poll(&tarn_tcp_ops, link, deadline_ns);
    return r < 0 ? fail_link(l, r) : r;
}

/* --- connecting --------------------------------------------------------------------------------- */

/* "v1 <host>:<port> <token>" */
static int parse_peer(struct tarn_tcp_link *l, const struct tarn_peer *p, struct tarn_addr *address)
{
    struct tarn_answer a;
    char host[300], token[TARN_TOKEN + 2];
    int r = tarn_answer_begin(&a, &l->link, p->text);
    if (r)
        return r;
    if (sscanf(a.at, "%299s %33s", host, token) != 2 || strlen(token) != TARN_TOKEN ||
        tarn_addr_parse(host, "address", address) || address->is_unix)
        return tarn_answer_malformed(&a);
    l->hello.frame = (struct tarn_tcp_frame){
        .magic = TARN_TCP_MAGIC,
        .version = TARN_TCP_VERSION,
        .op = TARN_TCP_HELLO,
        .gen = p->session,
        .bytes = TARN_TOKEN,
    };
    memcpy(l->hello.token, token, TARN_TOKEN);
    return 0;
}

static int say_hello(const struct tarn_tcp_link *l)
{
    ssize_t n = send(l->spare_fd, &l->hello, sizeof(l->hello), MSG_NOSIGNAL);
    return n == (ssize_t)sizeof(l->hello) ? 0 : down(l, "HELLO");
}

/* Completes what is in flight, closes and frees; never fails. */
static void tcp_close(struct tarn_link *link)
{
    struct tarn_tcp_link *l = own(link);
    break_link(l, TARN_E_CANCELED);
    for (int i = 0; i < LANES; i++)
        tarn_stage_free(l->lanes[i].stage);
    if (l->spare_fd >= 0)
        close(l->spare_fd);
    if (l->passed_fd >= 0)
        close(l->passed_fd);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    free(l);
}

/* The descriptor that ATTACH passed, from now on the link's own; -1: none. */
static int take_fd(const struct tarn_peer *p, uint32_t i)
{
    int fd = i < p->nfds ? p->fds[i] : -1;
    if (fd >= 0)
        p->fds[i] = -1;
    return fd;
}

static int tcp_connect(const struct tarn_peer *p, struct tarn_link **l_p)
{
    struct tarn_tcp_link *l = tarn_link_new("tcp", p, sizeof(*l));
    if (!l)
        return TARN_E_NO_MEMORY;
    l->spare_fd = l->passed_fd = l->epoll_fd = -1;
    for (int i = 0; i < LANES; i++)
        l->lanes[i] = (struct tarn_tcp_lane){.node = l->link.node,
                                             .hello = &l->hello,
                                             .copiers = &l->copiers,
                                             .fd = -1,
                                             .op = i == PUTS ? TARN_TCP_PUT : TARN_TCP_GET,
                                             .verdicts = p->windows && i != PUTS};

    struct tarn_addr a;
    int r = parse_peer(l, p, &a);
    if (!r) {
        l->spare_fd = take_fd(p, 0);
        l->passed_fd = take_fd(p, 1);
        l->link.writable = l->spare_fd < 0 || l->passed_fd >= 0;
    }
    if (!r && l->spare_fd < 0)
        r = tarn_net_connect(&a, tarn_peer_until(p), p->cancel, &l->spare_fd);
    if (!r)
        r = say_hello(l);
    l->peer_bytes = sizeof(l->peer);
    if (!r && getpeername(l->spare_fd, (struct sockaddr *)&l->peer, &l->peer_bytes) < 0)
        r = down(l, "getpeername");
    if (r) {
        tcp_close(&l->link);
        return r;
    }
    tarn_tcp_sleep(l->spare_fd, TARN_WAIT_SLICE_MS);
    l->same_host = tarn_tcp_same_host(l->spare_fd);
    tarn_tcp_tune(l->spare_fd, l->same_host);
    if (l->passed_fd >= 0)
        tarn_tcp_tune(l->passed_fd, l->same_host);
    *l_p = &l->link;
    return 0;
}

const struct tarn_transport_ops tarn_tcp_ops = {
    .name = "tcp",
    .caps = TARN_TCP_CAPS,
    .probe = tarn_tcp_probe,
    .local_open = tarn_no_local_open,
    .local_close = tarn_no_local_close,
    .map = tarn_no_map,
    .unmap = tarn_no_map,
    .ready = tarn_no_ready,
    .offer = tarn_no_offer,
    .connect = tcp_connect,
    .learn = tarn_no_learn,
    .get = tcp_get,
    .put = tcp_put,
    .progress = tcp_progress,
    .wait_fd = tcp_wait_fd,
    .wait = tcp_wait,
    .touch = tarn_no_touch,
    .view = tarn_no_view,
    .unview = tarn_no_unview,
    .address = tarn_no_address,
    .close = tcp_close,
};
