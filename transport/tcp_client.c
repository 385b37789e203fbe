/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP, client half: a link is up to two connections, one that gets and one that puts.
 *
 * connect() opens one connection, says HELLO and waits for the answer, so that a wrong token or version
 * is found there. The first work claims that connection for its direction; the other direction's is
 * opened, without waiting, when its first work comes, and its HELLO goes ahead of that work.
 *
 * Each direction is a lane: a FIFO of works in flight. get() and put() only queue; progress() sends
 * everything queued in as few sendmsg() as possible and then receives. A message is rebuilt from its
 * work whenever it is to be sent, so a half-sent one costs nothing but a count. Payload goes straight
 * between the socket and the caller's pieces: a get's next payload and the header after it are asked
 * for in one recvmsg(), and when one answer is outstanding, its header and payload are.
 */
#include "transport/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/net.h"
#include "transport/tcp_frame.h"

enum { GETS, PUTS, LANES };
enum { IOV_MAX_USED = 256, FRAMES_MAX = 64 };

#define FRAME sizeof(struct tarn_tcp_frame)

struct lane {
    int fd; /* -1: not open yet */
    uint8_t op;
    uint32_t hello_unsent; /* bytes of the HELLO message still to send */
    bool hello_waits;      /* its answer has not come */
    uint32_t watched;      /* what the epoll set waits for; 0: the lane is not in it */
    uint64_t next_tag;
    /* Works in flight, oldest first; those from `unsent` on have not been sent in full. */
    struct tarn_work *first, *last, *unsent;
    uint64_t sent;              /* bytes of unsent's message that were sent */
    struct tarn_cursor sent_at; /* where in its pieces that is */
    /* The answer being received. */
    struct tarn_tcp_frame answer;
    uint32_t answer_got;
    uint64_t payload_left;
    struct tarn_cursor received_at;
};

struct tarn_link {
    char node[64];
    struct tarn_tcp_hello hello;
    struct sockaddr_storage peer;
    socklen_t peer_bytes;
    int spare_fd; /* connect()'s connection until the first work claims it */
    int epoll_fd; /* -1 until both lanes are open */
    bool broken;
    struct lane lanes[LANES];
};

static int down(const struct tarn_link *l, const char *what)
{
    return tarn_fail(TARN_E_NODE_DOWN, "node %s: tcp: %s: %m: is the node running and reachable?", l->node,
                     what);
}

static int garbled(const struct tarn_link *l, const char *what)
{
    return tarn_fail(TARN_E_PROTOCOL, "node %s: tcp: %s: close the link", l->node, what);
}

/* --- messages, iovecs --------------------------------------------------------------------------- */

struct message {
    struct iovec iov[IOV_MAX_USED];
    uint32_t n;
    uint64_t bytes;
};

static void add(struct message *m, void *data, uint64_t bytes)
{
    if (bytes == 0)
        return;
    m->iov[m->n++] = (struct iovec){data, bytes};
    m->bytes += bytes;
}

/* Adds what is left of a work's pieces as far as there is room; true when all of it was added. */
static bool add_payload(struct message *m, const struct tarn_work *w, struct tarn_cursor at, uint64_t left)
{
    while (left > 0 && m->n < IOV_MAX_USED) {
        void *addr;
        uint64_t bytes = tarn_cursor_next(&at, w->pieces, w->npieces, left, &addr);
        add(m, addr, bytes);
        left -= bytes;
    }
    return left == 0;
}

static void skip(struct tarn_cursor *at, const struct tarn_work *w, uint64_t bytes)
{
    while (bytes > 0) {
        void *addr;
        bytes -= tarn_cursor_next(at, w->pieces, w->npieces, bytes, &addr);
    }
}

/* --- sending ------------------------------------------------------------------------------------ */

static struct tarn_tcp_frame request(const struct lane *n, const struct tarn_work *w)
{
    return (struct tarn_tcp_frame){
        .magic = TARN_TCP_MAGIC,
        .version = TARN_TCP_VERSION,
        .op = n->op,
        .pool = (uint16_t)w->pool,
        .slot = w->slot,
        .gen = w->gen,
        .offset = w->offset,
        .bytes = w->bytes,
        .tag = w->scratch[0],
    };
}

static uint64_t payload_of(const struct lane *n, const struct tarn_work *w)
{
    return n->op == TARN_TCP_PUT ? w->bytes : 0;
}

/* Gathers what is queued, from the byte after the last one sent. */
static void gather(struct tarn_link *l, const struct lane *n, struct tarn_tcp_frame *frames,
                   struct message *m)
{
    m->n = 0;
    m->bytes = 0;
    add(m, (char *)&l->hello + sizeof(l->hello) - n->hello_unsent, n->hello_unsent);
    uint64_t sent = n->sent;
    struct tarn_cursor at = n->sent_at;
    int nframes = 0;
    for (const struct tarn_work *w = n->unsent; w && nframes < FRAMES_MAX && m->n < IOV_MAX_USED;
         w = w->next) {
        uint64_t payload = payload_of(n, w);
        if (sent < FRAME) {
            frames[nframes] = request(n, w);
            add(m, (char *)&frames[nframes++] + sent, FRAME - sent);
        } else {
            payload -= sent - FRAME;
        }
        if (!add_payload(m, w, at, payload))
            break;
        sent = 0;
        at = (struct tarn_cursor){0};
    }
}

/* Moves the send position on by what the kernel took. */
static void note_sent(struct lane *n, uint64_t bytes)
{
    uint32_t hello = bytes < n->hello_unsent ? (uint32_t)bytes : n->hello_unsent;
    n->hello_unsent -= hello;
    bytes -= hello;
    while (n->unsent && bytes > 0) {
        struct tarn_work *w = n->unsent;
        uint64_t head = n->sent < FRAME ? FRAME - n->sent : 0;
        uint64_t left = FRAME + payload_of(n, w) - n->sent;
        uint64_t take = bytes < left ? bytes : left;
        n->sent += take;
        bytes -= take;
        if (take < left) {
            skip(&n->sent_at, w, take > head ? take - head : 0);
            return;
        }
        n->unsent = w->next;
        n->sent = 0;
        n->sent_at = (struct tarn_cursor){0};
    }
}

static bool wants_to_send(const struct lane *n)
{
    return n->unsent || n->hello_unsent;
}

static bool would_block(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static int send_queued(struct tarn_link *l, struct lane *n)
{
    while (wants_to_send(n)) {
        struct tarn_tcp_frame frames[FRAMES_MAX];
        struct message m;
        gather(l, n, frames, &m);
        struct msghdr h = {.msg_iov = m.iov, .msg_iovlen = m.n};
        ssize_t sent = sendmsg(n->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0)
            return would_block(errno) ? 0 : down(l, "send");
        note_sent(n, (uint64_t)sent);
        if ((uint64_t)sent < m.bytes)
            return 0;
    }
    return 0;
}

/* --- receiving ---------------------------------------------------------------------------------- */

static void finish(struct lane *n, int status)
{
    struct tarn_work *w = n->first;
    n->first = w->next;
    if (!n->first)
        n->last = NULL;
    w->status = status;
    w->done(w);
}

/* Fails every work of a lane, those not sent included. */
static void finish_all(struct lane *n, int status)
{
    n->unsent = NULL;
    while (n->first)
        finish(n, status);
}

static int check_hello(const struct tarn_link *l, const struct tarn_tcp_frame *f)
{
    if (f->magic != TARN_TCP_MAGIC || f->op != (TARN_TCP_HELLO | TARN_TCP_ANSWER))
        return garbled(l, "the answer to HELLO is no frame of tarn");
    if (f->status == TARN_E_AUTH)
        return tarn_fail(TARN_E_AUTH, "node %s: tcp: the token is not that of a living session: attach again",
                         l->node);
    if (f->status == TARN_E_VERSION || f->version != TARN_TCP_VERSION)
        return tarn_fail(TARN_E_VERSION,
                         "node %s: tcp: it speaks version %u, this library %u: update one of them", l->node,
                         f->version, TARN_TCP_VERSION);
    return f->status == 0 ? 0 : garbled(l, "HELLO was refused with an unknown status");
}

/* The answer's header is complete: what follows it? Ends works that have no payload to wait for. */
static int take_answer(struct tarn_link *l, struct lane *n)
{
    const struct tarn_tcp_frame *f = &n->answer;
    const struct tarn_work *w = n->first;
    n->answer_got = 0;
    if (n->hello_waits) {
        n->hello_waits = false;
        return check_hello(l, f);
    }
    if (f->magic != TARN_TCP_MAGIC || f->version != TARN_TCP_VERSION || f->op != (n->op | TARN_TCP_ANSWER))
        return garbled(l, "received something that is no answer");
    if (!w || w == n->unsent || f->tag != w->scratch[0])
        return garbled(l, "received the answer to something not asked");
    if (f->status > 0 || (n->op == TARN_TCP_GET && f->bytes != (f->status ? 0 : w->bytes)))
        return garbled(l, "received an answer of the wrong size");
    n->received_at = (struct tarn_cursor){0};
    n->payload_left = n->op == TARN_TCP_GET ? f->bytes : 0;
    if (f->status)
        tarn_fail(f->status, "node %s: tcp: pool %u slot %u: %s", l->node, w->pool, w->slot,
                  tarn_strerror(f->status));
    if (f->status || n->payload_left == 0)
        finish(n, f->status);
    return 0;
}

/*
 * The iovecs for what comes next. Payload is only asked for ahead of its header when nothing else can
 * come: if that answer turns out to be a failure, no byte follows it.
 */
static void expect(struct lane *n, struct message *m)
{
    m->n = 0;
    m->bytes = 0;
    const struct tarn_work *w = n->first;
    if (n->payload_left) {
        if (add_payload(m, w, n->received_at, n->payload_left) && w->next && m->n < IOV_MAX_USED)
            add(m, &n->answer, FRAME);
        return;
    }
    add(m, (char *)&n->answer + n->answer_got, FRAME - n->answer_got);
    if (n->op == TARN_TCP_GET && !n->hello_waits && w && !w->next)
        add_payload(m, w, (struct tarn_cursor){0}, w->bytes);
}

/* Accounts for received bytes that lie where expect() wanted them. */
static int take_received(struct tarn_link *l, struct lane *n, uint64_t bytes)
{
    while (bytes > 0) {
        if (n->payload_left) {
            uint64_t take = bytes < n->payload_left ? bytes : n->payload_left;
            bytes -= take;
            n->payload_left -= take;
            if (n->payload_left)
                skip(&n->received_at, n->first, take);
            else
                finish(n, 0);
            continue;
        }
        uint64_t take = bytes < FRAME - n->answer_got ? bytes : FRAME - n->answer_got;
        bytes -= take;
        n->answer_got += (uint32_t)take;
        if (n->answer_got < FRAME)
            return 0;
        int r = take_answer(l, n);
        if (r)
            return r;
        if (bytes > 0 && !n->payload_left)
            return garbled(l, "received more than was asked for");
    }
    return 0;
}

static bool awaits_answer(const struct lane *n)
{
    return n->first != n->unsent || (n->hello_waits && !n->hello_unsent);
}

/*
 * Receives what is there: 1, or 0 when nothing was. With flags 0 the first system call waits for the
 * socket's time limit.
 */
static int receive(struct tarn_link *l, struct lane *n, int flags)
{
    int moved = 0;
    for (; awaits_answer(n); flags = MSG_DONTWAIT) {
        struct message m;
        expect(n, &m);
        struct msghdr h = {.msg_iov = m.iov, .msg_iovlen = m.n};
        ssize_t got = recvmsg(n->fd, &h, flags);
        if (got < 0)
            return would_block(errno) ? moved : down(l, "receive");
        if (got == 0)
            return tarn_fail(TARN_E_NODE_DOWN, "node %s: tcp: it closed the connection", l->node);
        moved = 1;
        int r = take_received(l, n, (uint64_t)got);
        if (r || (uint64_t)got < m.bytes)
            return r ? r : moved;
    }
    return moved;
}

/* --- lanes -------------------------------------------------------------------------------------- */

/*
 * The epoll set holds the lanes only while both have works in flight: a socket with a second waiter
 * costs each wakeup about a microsecond.
 */
static void update_watches(struct tarn_link *l)
{
    bool both = l->lanes[GETS].first && l->lanes[PUTS].first;
    for (int i = 0; l->epoll_fd >= 0 && i < LANES; i++) {
        struct lane *n = &l->lanes[i];
        uint32_t events = both ? EPOLLIN | (wants_to_send(n) ? EPOLLOUT : 0) : 0;
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

/* From now on only calls with MSG_DONTWAIT do not wait; the others wait for a slice. */
static void set_waiting(int fd)
{
    struct timeval slice = {.tv_usec = TARN_WAIT_SLICE_MS * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice));
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

/* Begins to open the second lane; the connection completes while its HELLO waits to be sent. */
static int open_second(struct tarn_link *l, int i)
{
    struct lane *n = &l->lanes[i];
    int fd = socket(l->peer.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return tarn_fail(TARN_E_SYSTEM, "node %s: tcp: socket: %m: raise the limit of open files", l->node);
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(fd, (struct sockaddr *)&l->peer, l->peer_bytes) < 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        int r = down(l, "connect");
        close(fd);
        return r;
    }
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll_fd < 0) {
        close(fd);
        return tarn_fail(TARN_E_SYSTEM, "node %s: tcp: epoll: %m: raise the limit of open files", l->node);
    }
    set_waiting(fd);
    n->fd = fd;
    n->hello_unsent = sizeof(l->hello);
    n->hello_waits = true;
    return 0;
}

static int open_lane(struct tarn_link *l, int i)
{
    if (l->spare_fd < 0)
        return open_second(l, i);
    l->lanes[i].fd = l->spare_fd;
    l->spare_fd = -1;
    return 0;
}

static int queue(struct tarn_link *l, int i, struct tarn_work *w)
{
    struct lane *n = &l->lanes[i];
    if (l->broken)
        return tarn_fail(TARN_E_NODE_DOWN, "node %s: tcp: the link is broken: connect again", l->node);
    if (w->pool > UINT16_MAX)
        return tarn_fail(TARN_E_STALE, "node %s: tcp: there is no pool %u", l->node, w->pool);
    if (n->fd < 0) {
        int r = open_lane(l, i);
        if (r)
            return r;
    }
    w->next = NULL;
    w->scratch[0] = n->next_tag++;
    if (n->last)
        n->last->next = w;
    else
        n->first = w;
    n->last = w;
    if (!n->unsent)
        n->unsent = w;
    update_watches(l);
    return TARN_INPROGRESS;
}

static int tcp_get(struct tarn_link *l, struct tarn_work *w)
{
    return queue(l, GETS, w);
}

static int tcp_put(struct tarn_link *l, struct tarn_work *w)
{
    return queue(l, PUTS, w);
}

/* Sends, and receives unless all that is in flight was sent just now: then nothing can have come yet. */
static int progress_lane(struct tarn_link *l, struct lane *n)
{
    bool asked_before = awaits_answer(n);
    int r = send_queued(l, n);
    if (!r && asked_before)
        r = receive(l, n, MSG_DONTWAIT);
    return r < 0 ? r : 0;
}

static void break_link(struct tarn_link *l, int status)
{
    l->broken = true;
    for (int i = 0; i < LANES; i++) {
        if (l->lanes[i].fd >= 0)
            close(l->lanes[i].fd);
        l->lanes[i].fd = -1;
        finish_all(&l->lanes[i], status);
    }
}

static int tcp_progress(struct tarn_link *l)
{
    if (l->broken)
        return TARN_E_NODE_DOWN;
    int r = 0;
    for (int i = 0; i < LANES && !r; i++)
        if (l->lanes[i].first)
            r = progress_lane(l, &l->lanes[i]);
    if (r)
        break_link(l, TARN_E_NODE_DOWN);
    else
        update_watches(l);
    return r;
}

static int tcp_wait_fd(const struct tarn_link *l, short *events)
{
    const struct lane *busy = NULL;
    *events = POLLIN;
    for (int i = 0; i < LANES; i++) {
        if (l->lanes[i].first && busy)
            return l->epoll_fd;
        if (l->lanes[i].first)
            busy = &l->lanes[i];
    }
    if (!busy) {
        *events = 0;
        return -1;
    }
    if (wants_to_send(busy))
        *events |= POLLOUT;
    return busy->fd;
}

/* The lane that alone has works in flight, or NULL. */
static struct lane *only_busy(struct tarn_link *l)
{
    struct lane *gets = &l->lanes[GETS], *puts = &l->lanes[PUTS];
    if (!gets->first == !puts->first)
        return NULL;
    return gets->first ? gets : puts;
}

/* One lane that only waits for answers waits in recvmsg() itself: a system call and a wakeup less. */
static int tcp_wait(struct tarn_link *l, uint64_t deadline_ns)
{
    struct lane *n = only_busy(l);
    if (l->broken || !n || tarn_left_ms(deadline_ns) <= TARN_WAIT_SLICE_MS)
        return tarn_wait_by_poll(&tarn_tcp_ops, l, deadline_ns);
    int r = send_queued(l, n);
    if (!r && wants_to_send(n))
        return tarn_wait_by_poll(&tarn_tcp_ops, l, deadline_ns);
    if (!r)
        r = receive(l, n, 0);
    if (r < 0)
        break_link(l, TARN_E_NODE_DOWN);
    return r;
}

/* --- connecting --------------------------------------------------------------------------------- */

/* "v1 <host>:<port> <token>" */
static int parse_peer(struct tarn_link *l, const struct tarn_peer *p, struct tarn_addr *a)
{
    char version[8], address[300], token[TARN_TCP_TOKEN + 2];
    int n = sscanf(p->text, "%7s %299s %33s", version, address, token);
    if (n >= 1 && strcmp(version, "v1") != 0)
        return tarn_fail(TARN_E_VERSION,
                         "node %s: tcp: ATTACH answer \"%.20s\" where v1 was expected: update one "
                         "of the two sides",
                         l->node, p->text);
    if (n != 3 || strlen(token) != TARN_TCP_TOKEN || tarn_addr_parse(address, "address", a) || a->is_unix)
        return tarn_fail(TARN_E_PROTOCOL, "node %s: tcp: malformed ATTACH answer \"%.100s\"", l->node,
                         p->text);
    l->hello.frame = (struct tarn_tcp_frame){
        .magic = TARN_TCP_MAGIC,
        .version = TARN_TCP_VERSION,
        .op = TARN_TCP_HELLO,
        .gen = p->session,
        .bytes = TARN_TCP_TOKEN,
    };
    memcpy(l->hello.token, token, TARN_TCP_TOKEN);
    return 0;
}

static int say_hello(struct tarn_link *l, uint64_t deadline_ns)
{
    struct tarn_tcp_frame f;
    if (send(l->spare_fd, &l->hello, sizeof(l->hello), MSG_NOSIGNAL) != (ssize_t)sizeof(l->hello))
        return down(l, "HELLO");
    for (size_t got = 0; got < sizeof(f);) {
        int r = tarn_net_wait(l->spare_fd, POLLIN, deadline_ns);
        if (r == TARN_E_TIMEOUT)
            return tarn_fail(r, "node %s: tcp: no answer to HELLO before the deadline", l->node);
        if (r)
            return r;
        ssize_t n = recv(l->spare_fd, (char *)&f + got, sizeof(f) - got, 0);
        if (n == 0)
            return tarn_fail(TARN_E_NODE_DOWN, "node %s: tcp: it closed the connection at HELLO", l->node);
        if (n < 0 && !would_block(errno))
            return down(l, "HELLO");
        got += n > 0 ? (size_t)n : 0;
    }
    return check_hello(l, &f);
}

/* Completes what is in flight, closes and frees; never fails. */
static void tcp_close(struct tarn_link *l)
{
    break_link(l, TARN_E_CANCELED);
    if (l->spare_fd >= 0)
        close(l->spare_fd);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    free(l);
}

static int tcp_connect(const struct tarn_peer *p, struct tarn_link **l_p)
{
    struct tarn_link *l = calloc(1, sizeof(*l));
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: tcp: out of memory", p->node);
    snprintf(l->node, sizeof(l->node), "%s", p->node);
    l->spare_fd = l->epoll_fd = -1;
    l->lanes[GETS] = (struct lane){.fd = -1, .op = TARN_TCP_GET};
    l->lanes[PUTS] = (struct lane){.fd = -1, .op = TARN_TCP_PUT};

    struct tarn_addr a;
    int r = parse_peer(l, p, &a);
    if (!r)
        r = tarn_net_connect(&a, p->deadline_ns, &l->spare_fd);
    if (!r)
        r = say_hello(l, p->deadline_ns);
    l->peer_bytes = sizeof(l->peer);
    if (!r && getpeername(l->spare_fd, (struct sockaddr *)&l->peer, &l->peer_bytes) < 0)
        r = down(l, "getpeername");
    if (r) {
        tcp_close(l);
        return r;
    }
    set_waiting(l->spare_fd);
    *l_p = l;
    return 0;
}

static bool tcp_writable(const struct tarn_link *l)
{
    (void)l;
    return true;
}

static int tcp_probe(char *why, size_t why_bytes)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        snprintf(why, why_bytes, "no TCP sockets: %s", strerror(errno));
        return TARN_E_UNAVAILABLE;
    }
    close(fd);
    return 0;
}

const struct tarn_transport_ops tarn_tcp_ops = {
    .name = "tcp",
    .caps = TARN_CAP_CPU_POOL,
    .probe = tcp_probe,
    .serve = tarn_tcp_serve,
    .describe = tarn_tcp_describe,
    .attach = tarn_tcp_attach,
    .detach = tarn_tcp_detach,
    .stop = tarn_tcp_stop,
    .connect = tcp_connect,
    .writable = tcp_writable,
    .get = tcp_get,
    .put = tcp_put,
    .progress = tcp_progress,
    .wait_fd = tcp_wait_fd,
    .wait = tcp_wait,
    .touch = tarn_no_touch,
    .view = tarn_no_view,
    .unview = tarn_no_unview,
    .close = tcp_close,
};
