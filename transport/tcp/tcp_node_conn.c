/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP, node half: what happens on one connection.
 *
 *   EXPECT_HELLO --token valid--> EXPECT_FIRST --GET--> GETS
 *                                              --PUT--> PUTS
 *   Anything out of order, any malformed frame, end of stream: closed, with all pins given back.
 *
 * GETS: up to TARN_TCP_ANSWERS requests are read ahead, into frames that become their answers. As many
 * answers as fit go out in one sendmsg(), payload straight from the pool. An object is pinned when its answer
 * is first handed to the kernel, so a slow reader pins no more than one such batch.
 *
 * PUTS: header, payload straight into the pool, answer. One call asks for the payload and the header of the
 * next put. The slot is pinned from the header to the last byte. So it is written only while the reservation
 * holds, whatever happens to the session.
 *
 * Bytes of GPU memory pass through a stage (tcp_node_gpu.c). The answer to a GET begins when its first part
 * has come from the GPU, so that its header can still tell of a failure. A PUT is answered, and its slot
 * unpinned, when its last part is in the pool or window.
 *
 * Nothing waits; epoll tells when a call that would block can go on. (The exception are large payloads of one
 * host, for 4 ms at most: send_replies(), may_wait().) A client that does not take its answers
 * holds at most TARN_TCP_ANSWERS frames. Its connection is closed when it takes nothing of them, or sends
 * nothing of a payload, for STALLED_MS, because its pins would stay for as long.
 */
#include "transport/tcp/tcp_node.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/net.h"
#include "transport/tcp/tcp.h"

#define FRAME sizeof(struct tarn_tcp_frame)

enum {
    STALLED_MS = 30000,
    WAIT_BYTES = 64 << 10, /* from so many on, sending and receiving within one host may sleep */
    DROP_BYTES = 16384,
};

void tarn_tcp_conn_time(struct tarn_tcp_conn *c, uint64_t deadline_ns)
{
    c->thread->timed += (deadline_ns != 0) - (c->deadline_ns != 0);
    c->deadline_ns = deadline_ns;
}

void tarn_tcp_complain(struct tarn_tcp_conn *c, const char *what, const char *why)
{
    struct tarn_tcp_node *s = c->node;
    uint64_t now = tarn_now_ns(), last = atomic_load(&s->refused_log_ns);
    if (now - last < TARN_NS_PER_S || !atomic_compare_exchange_strong(&s->refused_log_ns, &last, now))
        return;
    tarn_log(s->half.serve.log, TARN_LOG_WARN, "tcp", "msg=\"%s\" cause=\"%s\" session=%016llx", what, why,
             (unsigned long long)c->session);
}

static bool refuse(struct tarn_tcp_conn *c, const char *why)
{
    tarn_tcp_complain(c, "closed a data connection", why);
    return false;
}

/* --- answers ------------------------------------------------------------------------------------ */

struct tarn_tcp_reply *tarn_tcp_reply_at(struct tarn_tcp_conn *c, uint32_t i)
{
    return &c->replies[(c->first + i) % TARN_TCP_ANSWERS];
}

/* Windows come and go, and are looked up under the lender's lock. */
static bool names_a_slot(const struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f)
{
    const struct tarn_serve *s = &c->node->half.serve;
    return f->pool < s->npools && f->slot < s->pools[f->pool].nslots;
}

void tarn_tcp_unpin_slot(struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f)
{
    const struct tarn_guard *g = &c->node->half.serve.guard;
    g->unpin(g->arg, f->pool, f->slot, f->gen);
}

void tarn_tcp_unpin(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r)
{
    if (r->pinned)
        tarn_tcp_unpin_slot(c, &r->frame);
    r->pinned = false;
}

void tarn_tcp_ready_get(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r)
{
    const struct tarn_guard *g = &c->node->half.serve.guard;
    struct tarn_tcp_frame *f = &r->frame;
    f->status = TARN_E_STALE;
    if (names_a_slot(c, f))
        f->status = g->pin_read(g->arg, f->pool, f->slot, f->gen, f->offset, f->bytes, &r->payload);
    r->pinned = f->status == 0;
    if (f->status)
        f->bytes = 0;
    else if (!(f->op & TARN_TCP_NO_TOUCH))
        g->touch(g->arg, f->pool, f->slot);
    f->op = TARN_TCP_GET | TARN_TCP_ANSWER;
    r->ready = true;
}

static uint32_t room(const struct tarn_tcp_conn *c)
{
    return TARN_TCP_ANSWERS - c->count;
}

/* The GPU that has the pool; -1: none. Windows: their leases are asked. */
static int pool_device(const struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f)
{
    const struct tarn_serve *s = &c->node->half.serve;
    bool gpu = !tarn_tcp_lends_windows(c) && f->pool < s->npools && s->pools[f->pool].kind == TARN_POOL_GPU;
    return gpu ? s->pools[f->pool].device : -1;
}

static struct tarn_tcp_reply *push(struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f)
{
    struct tarn_tcp_reply *r = tarn_tcp_reply_at(c, c->count++);
    *r = (struct tarn_tcp_reply){.frame = *f, .device = pool_device(c, f)};
    return r;
}

static void pop(struct tarn_tcp_conn *c)
{
    tarn_tcp_unpin(c, tarn_tcp_reply_at(c, 0));
    c->staged -= c->staged > 0;
    c->first = (c->first + 1) % TARN_TCP_ANSWERS;
    c->count--;
    c->sent = 0;
}

static uint64_t reply_bytes(const struct tarn_tcp_conn *c, const struct tarn_tcp_reply *r)
{
    if (c->state == TARN_TCP_GETS && tarn_tcp_lends_windows(c))
        return tarn_tcp_window_reply_bytes(r);
    return FRAME + (c->state == TARN_TCP_GETS ? r->frame.bytes : 0);
}

/* Can the first byte of an answer be sent? part: where in the stage its payload begins. */
static bool may_send(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r, uint32_t part)
{
    if (c->state == TARN_TCP_PUTS)
        return r->ready;
    if (tarn_tcp_lends_windows(c))
        return tarn_tcp_window_may_send(c, r, c->sent, part);
    if (r->device < 0)
        return true;
    const struct tarn_stage_part *p = c->stage ? tarn_stage_passed(c->stage, part) : NULL;
    return r->ready && (r->frame.bytes == 0 || (p && !p->failure));
}

/* Gathers a turn's worth of answers from the first unsent byte on. Returns how many iovecs. */
static size_t gather(struct tarn_tcp_conn *c, struct iovec *iov, uint64_t *bytes_p)
{
    uint64_t total = 0, sent = c->sent;
    uint32_t part = 0;
    size_t n = 0;
    for (uint32_t i = 0; i < c->count && total < TARN_TCP_TURN_BYTES; i++, sent = 0) {
        struct tarn_tcp_reply *r = tarn_tcp_reply_at(c, i);
        if (!may_send(c, r, part))
            break;
        if (!r->ready)
            tarn_tcp_ready_get(c, r);
        uint64_t head = sent < FRAME ? FRAME - sent : 0;
        uint64_t left = reply_bytes(c, r) - sent - head, payload = left;
        uint32_t before = part;
        if (head)
            iov[n++] = (struct iovec){(char *)&r->frame + sent, head};
        if (payload > TARN_TCP_TURN_BYTES - total)
            payload = TARN_TCP_TURN_BYTES - total;
        if (payload && r->device >= 0)
            payload = tarn_stage_gather(c->stage, false, &part, payload, iov + n, TARN_STAGE_PARTS);
        else if (payload)
            iov[n++] = (struct iovec){(char *)r->payload + (r->frame.bytes - left), payload};
        n += part - before;
        total += head + payload;
        if (payload < left)
            break;
    }
    *bytes_p = total;
    return n;
}

/* How many of an answer's first `sent` bytes are payload. */
static uint64_t payload_sent(const struct tarn_tcp_reply *r, uint64_t sent)
{
    uint64_t behind = sent > FRAME ? sent - FRAME : 0;
    return behind < r->frame.bytes ? behind : r->frame.bytes;
}

static void note_sent(struct tarn_tcp_conn *c, uint64_t bytes)
{
    while (bytes > 0) {
        struct tarn_tcp_reply *r = tarn_tcp_reply_at(c, 0);
        uint64_t left = reply_bytes(c, r) - c->sent, take = bytes < left ? bytes : left;
        uint64_t payload = payload_sent(r, c->sent + take) - payload_sent(r, c->sent);
        if (c->state == TARN_TCP_GETS && payload && r->device >= 0)
            tarn_stage_sent(c->stage, payload);
        c->sent += take;
        bytes -= take;
        if (take == left)
            pop(c);
    }
}

/* One sendmsg(). A reader that keeps up may let it sleep. */
static ssize_t send_some(struct tarn_tcp_conn *c, struct iovec *iov, size_t n, uint64_t bytes)
{
    struct msghdr h = {.msg_iov = iov, .msg_iovlen = n};
    bool wait = c->keeps_up && bytes >= WAIT_BYTES;
    tarn_tcp_sends();
    ssize_t sent = sendmsg(c->fd, &h, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
    if (wait && !(sent < 0 && !tarn_net_would_block(errno)))
        c->keeps_up = sent >= 0 && (uint64_t)sent >= bytes;
    return sent;
}

/* Sends of what is ready. Returns as sendmsg(); *bytes_p: how much that was, 0: nothing was ready. */
static ssize_t send_ready(struct tarn_tcp_conn *c, uint64_t *bytes_p)
{
    struct iovec iov[2 * TARN_TCP_ANSWERS + TARN_STAGE_PARTS];
    size_t n = gather(c, iov, bytes_p);
    return *bytes_p ? send_some(c, iov, n, *bytes_p) : 0;
}

/* The same of leases. Those in CPU memory are pinned for the one call. */
static ssize_t send_leased(struct tarn_tcp_conn *c, uint64_t *bytes_p)
{
    struct tarn_tcp_window_turn t;
    tarn_tcp_window_gather(c, &t, TARN_TCP_TURN_BYTES);
    ssize_t sent = t.bytes ? send_some(c, t.iov, t.niov, t.bytes) : 0;
    int error = errno;
    tarn_tcp_window_unpin(c, &t);
    errno = error;
    *bytes_p = t.bytes;
    return sent;
}

/*
 * One sendmsg(); what is left waits for the socket's turn. To a reader on this host that keeps up a large
 * answer is sent sleeping, as the kernel wakes the sender sooner than epoll would; the socket's time limit
 * bounds what a reader that stops can cost the thread, and it can do so only once.
 */
static bool send_replies(struct tarn_tcp_conn *c)
{
    uint64_t bytes;
    if (c->count == 0)
        return true;
    bool leased = c->state == TARN_TCP_GETS && tarn_tcp_lends_windows(c);
    ssize_t sent = leased ? send_leased(c, &bytes) : send_ready(c, &bytes);
    if (bytes == 0) { /* a GPU is waited for, and the client owes nothing */
        tarn_tcp_conn_time(c, tarn_deadline(STALLED_MS));
        return true;
    }
    if (sent < 0 && !tarn_net_would_block(errno))
        return false;
    if (sent > 0)
        note_sent(c, (uint64_t)sent);
    if (c->count == 0)
        c->keeps_up = c->same_host;
    if (c->count == 0 && !c->receiving)
        tarn_tcp_conn_time(c, 0);
    else if (sent > 0 || c->deadline_ns == 0)
        tarn_tcp_conn_time(c, tarn_deadline(STALLED_MS));
    return true;
}

/* --- requests ----------------------------------------------------------------------------------- */

static bool check_request(struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f, uint8_t op)
{
    if (f->magic != TARN_TCP_MAGIC || f->version != TARN_TCP_VERSION)
        return refuse(c, "malformed frame");
    if (f->op != op && !(op == TARN_TCP_GET && f->op == (TARN_TCP_GET | TARN_TCP_NO_TOUCH)))
        return refuse(c, "a request that this connection is not for");
    return true;
}

/*
 * Receives into the message buffer until it has `want` bytes. Returns 1 when it has, 0 when more must
 * come, -1 at the end of the stream.
 */
static int fill(struct tarn_tcp_conn *c, uint32_t want)
{
    ssize_t n = recv(c->fd, (char *)&c->in + c->in_bytes, want - c->in_bytes, MSG_DONTWAIT);
    tarn_tcp_received();
    if (n <= 0)
        return n < 0 && tarn_net_would_block(errno) ? 0 : -1;
    c->in_bytes += (uint32_t)n;
    return c->in_bytes == want;
}

/* Best effort: the connection is closed after it. */
static void answer_hello(struct tarn_tcp_conn *c, int32_t status)
{
    struct tarn_tcp_frame f = {
        .magic = TARN_TCP_MAGIC,
        .version = TARN_TCP_VERSION,
        .op = TARN_TCP_HELLO | TARN_TCP_ANSWER,
        .status = status,
        .gen = c->in.frame.gen,
        .tag = c->in.frame.tag,
    };
    ssize_t n = send(c->fd, &f, sizeof(f), MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n;
}

/* Makes the connection one of the session's if the token is that of the session. */
static bool admit(struct tarn_tcp_conn *c, uint64_t session, const char token[TARN_TOKEN])
{
    struct tarn_tcp_node *s = c->node;
    pthread_mutex_lock(&s->lock);
    c->admitted = tarn_token_is(s->tokens, session, token);
    c->session = session;
    pthread_mutex_unlock(&s->lock);
    return c->admitted;
}

static bool receive_hello(struct tarn_tcp_conn *c)
{
    int r = fill(c, c->in_bytes < FRAME ? FRAME : sizeof(c->in));
    if (r <= 0)
        return r == 0;
    const struct tarn_tcp_frame *f = &c->in.frame;
    if (f->magic != TARN_TCP_MAGIC)
        return refuse(c, "not a client of tarn");
    if (f->version != TARN_TCP_VERSION) {
        answer_hello(c, TARN_E_VERSION);
        return refuse(c, "a client of another version");
    }
    if (f->op != TARN_TCP_HELLO || f->bytes != TARN_TOKEN)
        return refuse(c, "no HELLO");
    if (c->in_bytes < sizeof(c->in))
        return receive_hello(c);
    if (!admit(c, f->gen, c->in.token)) {
        answer_hello(c, TARN_E_AUTH);
        return refuse(c, "the token is not that of a living session");
    }
    answer_hello(c, 0);
    c->in_bytes = 0;
    c->state = TARN_TCP_EXPECT_FIRST;
    tarn_tcp_conn_time(c, 0);
    return true;
}

static bool receive_gets(struct tarn_tcp_conn *c)
{
    struct tarn_tcp_frame frames[TARN_TCP_ANSWERS];
    if (room(c) == 0)
        return true;
    memcpy(frames, &c->in.frame, c->in_bytes);
    ssize_t n = recv(c->fd, (char *)frames + c->in_bytes, room(c) * FRAME - c->in_bytes, MSG_DONTWAIT);
    tarn_tcp_received();
    if (n <= 0)
        return n < 0 && tarn_net_would_block(errno);
    size_t bytes = c->in_bytes + (size_t)n;
    for (size_t i = 0; i < bytes / FRAME; i++) {
        if (!check_request(c, &frames[i], TARN_TCP_GET))
            return false;
        push(c, &frames[i]);
    }
    c->in_bytes = (uint32_t)(bytes % FRAME);
    memcpy(&c->in.frame, &frames[bytes / FRAME], c->in_bytes);
    return true;
}

/* --- puts --------------------------------------------------------------------------------------- */

/* A PUT's header is complete: where does its payload go? */
static bool begin_put(struct tarn_tcp_conn *c)
{
    const struct tarn_tcp_frame *f = &c->in.frame;
    const struct tarn_guard *g = &c->node->half.serve.guard;
    if (!check_request(c, f, TARN_TCP_PUT))
        return false;
    if (!tarn_tcp_window_notice_begins(c))
        return refuse(c, "malformed frame");
    void *addr = NULL;
    c->put_status = TARN_E_STALE;
    c->put_device = pool_device(c, f);
    if (tarn_tcp_lends_windows(c))
        c->put_status = tarn_tcp_window_begin_put(c);
    else if (names_a_slot(c, f))
        c->put_status =
            g->pin_write(g->arg, c->session, f->pool, f->slot, f->gen, f->offset, f->bytes, &addr);
    bool opens = c->put_status == 0 && c->put_device >= 0;
    if (opens && (c->put_status = tarn_tcp_gpu_open(c, c->put_device)) && !tarn_tcp_lends_windows(c))
        tarn_tcp_unpin_slot(c, f);
    c->to = c->put_status ? NULL : addr;
    c->left = f->bytes;
    c->receiving = true;
    tarn_tcp_conn_time(c, tarn_deadline(STALLED_MS));
    return true;
}

static void end_put(struct tarn_tcp_conn *c)
{
    struct tarn_tcp_reply *r = push(c, &c->in.frame);
    bool lands = c->put_device >= 0 && tarn_tcp_gpu_end_put(c, r);
    c->receiving = false;
    c->telling = lands && c->notice_bytes ? r : NULL;
    r->pinned = c->put_status == 0 && !tarn_tcp_lends_windows(c);
    if (!lands)
        tarn_tcp_unpin(c, r);
    if (!lands && c->put_status == 0 && c->notice_bytes)
        c->put_status = tarn_tcp_window_notify(c, &r->frame);
    r->frame.op |= TARN_TCP_ANSWER;
    r->frame.status = c->put_status;
    r->frame.bytes = 0;
    r->ready = !lands;
    c->in_bytes = 0;
}

/* Where the next payload bytes of a put to a pool go, or those that are dropped. False: nowhere yet. */
static bool pool_room(struct tarn_tcp_conn *c, char drop[DROP_BYTES], struct iovec *to)
{
    uint8_t *memory;
    int64_t room = (int64_t)(c->left < TARN_TCP_TURN_BYTES ? c->left : TARN_TCP_TURN_BYTES);
    if (c->to && c->put_device >= 0)
        room = tarn_tcp_gpu_room(c, &memory);
    else
        memory = c->to;
    if (room < 0) { /* and nothing of it is under way */
        tarn_tcp_unpin_slot(c, &c->in.frame);
        c->put_status = (int32_t)room;
        c->to = NULL;
    }
    if (!c->to) {
        memory = (uint8_t *)drop;
        room = DROP_BYTES;
    }
    *to = (struct iovec){memory, (uint64_t)room < c->left ? (uint64_t)room : c->left};
    return room > 0;
}

/* The same of all puts; what it takes from leases is pinned for the one call. */
static bool payload_room(struct tarn_tcp_conn *c, char drop[DROP_BYTES], struct tarn_tcp_window_turn *t)
{
    t->niov = t->npinned = 0;
    if (tarn_tcp_lends_windows(c) && c->put_status == 0 && !tarn_tcp_window_room(c, t))
        return false;
    return t->niov > 0 || pool_room(c, drop, &t->iov[t->niov++]);
}

static void note_payload(struct tarn_tcp_conn *c, uint64_t bytes)
{
    uint64_t left = tarn_tcp_put_left(c), staged = bytes < left ? bytes : left;
    if (c->put_status == 0 && c->put_device >= 0 && staged)
        tarn_tcp_gpu_received(c, staged);
    c->left -= bytes;
    if (c->to)
        c->to += bytes;
    tarn_tcp_conn_time(c, tarn_deadline(STALLED_MS));
}

/*
 * May receiving so many bytes sleep? The kernel then fills a large part in one call, as the bytes come. As
 * for sending, the socket's time limit bounds what a writer that stops can cost, and it can do so only once.
 * Not while a GPU or another client waits for this thread.
 */
static bool may_wait(const struct tarn_tcp_conn *c, uint64_t payload)
{
    return c->keeps_up && payload >= WAIT_BYTES && c->put_device < 0 && c->thread->ready == 1;
}

/*
 * Receives payload, and behind it, in the same call, the next put's header. Returns the bytes received,
 * 0 when none were there or there was no room, -1 at the end of the stream; *full_p when the socket may have
 * more.
 */
static ssize_t receive_payload(struct tarn_tcp_conn *c, bool *full_p)
{
    struct tarn_tcp_frame next;
    struct tarn_tcp_window_turn t;
    char drop[DROP_BYTES];
    if (!payload_room(c, drop, &t))
        return 0;
    uint64_t payload = 0;
    for (uint32_t i = 0; i < t.niov; i++)
        payload += t.iov[i].iov_len;
    bool wait = may_wait(c, payload);
    uint64_t head = payload == c->left && !wait ? FRAME : 0;
    if (head)
        t.iov[t.niov++] = (struct iovec){&next, head};
    struct msghdr h = {.msg_iov = t.iov, .msg_iovlen = t.niov};
    ssize_t n = recvmsg(c->fd, &h, wait ? MSG_WAITALL : MSG_DONTWAIT);
    int error = errno;
    tarn_tcp_received();
    if (wait && n < (ssize_t)payload)
        c->keeps_up = false;
    tarn_tcp_window_unpin(c, &t);
    errno = error;
    if (n <= 0)
        return n < 0 && tarn_net_would_block(errno) ? 0 : -1;
    uint64_t got = (uint64_t)n < payload ? (uint64_t)n : payload;
    *full_p = (uint64_t)n == payload + head;
    note_payload(c, got);
    if (c->left == 0) {
        end_put(c);
        c->in_bytes = (uint32_t)((uint64_t)n - got);
        memcpy(&c->in.frame, &next, c->in_bytes);
    }
    return n;
}

/* May the next request begin? */
static bool may_begin(const struct tarn_tcp_conn *c)
{
    return room(c) > 0 && !c->telling;
}

static bool receive_puts(struct tarn_tcp_conn *c)
{
    bool more = true;
    for (uint64_t turn = 0; more && turn < TARN_TCP_TURN_BYTES && (c->receiving || may_begin(c));) {
        if (!c->receiving) {
            int r = c->in_bytes == FRAME ? 1 : fill(c, FRAME);
            if (r <= 0)
                return r == 0;
            if (!begin_put(c))
                return false;
        }
        if (c->left == 0) {
            end_put(c);
            continue;
        }
        ssize_t n = receive_payload(c, &more);
        if (n <= 0)
            return n == 0;
        turn += (uint64_t)n;
    }
    return true;
}

/* Exactly one frame is read, as payload may follow it. */
static bool receive_first(struct tarn_tcp_conn *c)
{
    int r = fill(c, FRAME);
    if (r <= 0)
        return r == 0;
    c->replies = calloc(TARN_TCP_ANSWERS, sizeof(*c->replies));
    if (!c->replies)
        return refuse(c, "out of memory");
    if (c->in.frame.op == TARN_TCP_PUT) {
        c->state = TARN_TCP_PUTS;
        return receive_puts(c);
    }
    c->state = TARN_TCP_GETS;
    if (!check_request(c, &c->in.frame, TARN_TCP_GET))
        return false;
    push(c, &c->in.frame);
    c->in_bytes = 0;
    return true;
}

/* --- events ------------------------------------------------------------------------------------- */

static bool receive(struct tarn_tcp_conn *c)
{
    switch (c->state) {
    case TARN_TCP_EXPECT_HELLO:
        return receive_hello(c);
    case TARN_TCP_EXPECT_FIRST:
        return receive_first(c);
    case TARN_TCP_GETS:
        return receive_gets(c);
    case TARN_TCP_PUTS:
        return receive_puts(c);
    }
    return false;
}

/* A put's header that came with the payload before it; the socket does not tell of it again. */
static bool has_header(const struct tarn_tcp_conn *c)
{
    return c->state == TARN_TCP_PUTS && !c->receiving && c->in_bytes == FRAME;
}

/* Is there something that only the socket keeps from being sent? */
static bool can_send(struct tarn_tcp_conn *c)
{
    return c->count > 0 && may_send(c, tarn_tcp_reply_at(c, 0), 0);
}

static bool wait_for_events(struct tarn_tcp_conn *c)
{
    bool reading = !c->replies || (c->receiving ? !c->starved : may_begin(c));
    uint32_t events =
        (reading ? EPOLLIN : 0) | (can_send(c) || (has_header(c) && may_begin(c)) ? EPOLLOUT : 0);
    if (events == c->events)
        return true;
    struct epoll_event e = {.events = events, .data.ptr = c};
    c->events = events;
    return epoll_ctl(c->thread->epoll_fd, EPOLL_CTL_MOD, c->fd, &e) == 0;
}

bool tarn_tcp_conn_handle(struct tarn_tcp_conn *c, uint32_t events)
{
    if (atomic_load_explicit(&c->doomed, memory_order_relaxed) || events & (EPOLLERR | EPOLLHUP))
        return false;
    tarn_tcp_gpu_land(c);
    if ((events & EPOLLIN || has_header(c)) && !receive(c))
        return false;
    if (!tarn_tcp_gpu_stage(c) || !send_replies(c) || !tarn_tcp_gpu_stage(c))
        return false;
    tarn_tcp_gpu_settle(c);
    return wait_for_events(c);
}

void tarn_tcp_conn_free(struct tarn_tcp_conn *c)
{
    if (c->receiving && c->put_status == 0 && !tarn_tcp_lends_windows(c))
        tarn_tcp_unpin_slot(c, &c->in.frame);
    while (c->count)
        pop(c);
    tarn_tcp_gpu_leave(c);
    free(c->replies);
    free(c);
}
