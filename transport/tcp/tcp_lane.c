/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP, client half: the works of one direction.
 *
 * Posting a work only queues it. Sending takes everything queued in as few sendmsg() as possible. Each call
 * builds the message from its work again, so of a half-sent message the lane keeps only a count.
 *
 * Payload goes straight between the socket and the caller's pieces. One recvmsg() asks for several answers,
 * headers and payload, as they come if no get fails. A get that fails has no payload. What came behind it
 * lies where its payload was expected, and is copied to its place (struct expected). Payload of GPU memory
 * goes through the lane's stage (tcp_lane_gpu.c).
 */
#include "transport/tcp/tcp_lane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/error.h"
#include "base/net.h"
#include "transport/tcp/tcp.h"

/* A receiver that may wait sleeps for all of a payload that has at least so many bytes. */
enum { WAIT_ALL_BYTES = 64 << 10 };
enum { IOV_MAX_USED = 256, FRAMES_MAX = 64, AHEAD_MAX = 32 };

#define FRAME sizeof(struct tarn_tcp_frame)

static int down(const struct tarn_tcp_lane *n, const char *what)
{
    return tarn_fail(TARN_E_NODE_DOWN, "node %s: tcp: %s: %m: is the node running and reachable?", n->node,
                     what);
}

static int garbled(const char *node, const char *what)
{
    return tarn_fail(TARN_E_PROTOCOL, "node %s: tcp: %s: close the link", node, what);
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

void tarn_tcp_lane_queue(struct tarn_tcp_lane *n, struct tarn_work *w)
{
    w->next = NULL;
    *tarn_tcp_course(w) = (struct tarn_tcp_course){.tag = n->next_tag++};
    if (n->last)
        n->last->next = w;
    else
        n->first = w;
    n->last = w;
    if (!n->unsent)
        n->unsent = w;
    if (!n->unanswered)
        n->unanswered = w;
    if (!n->unstaged && n->stage && n->op == TARN_TCP_PUT)
        n->unstaged = w;
}

/* --- ending ------------------------------------------------------------------------------------- */

static void pop(struct tarn_tcp_lane *n, int status)
{
    struct tarn_work *w = n->first;
    n->first = w->next;
    if (!n->first)
        n->last = NULL;
    w->status = status;
    w->done(w);
}

/* Ends the works that have nothing to wait for any more, in their order. */
static void reap(struct tarn_tcp_lane *n)
{
    while (n->first && n->first != n->unanswered && tarn_tcp_course(n->first)->ended)
        pop(n, tarn_tcp_course(n->first)->status);
}

bool tarn_tcp_lane_copy(struct tarn_tcp_lane *n)
{
    bool moved = tarn_tcp_lane_stage(n);
    if (n->op == TARN_TCP_GET)
        reap(n);
    return moved;
}

/* --- sending ------------------------------------------------------------------------------------ */

/* Bytes of the notification behind a put's. */
static uint64_t notice_bytes(const struct tarn_work *w)
{
    return w->notify ? TARN_TCP_TAG + w->notify->bytes : 0;
}

/* Adds the notification from its byte `from` on. False: no room. */
static bool add_notice(struct message *m, const struct tarn_work *w, uint64_t from)
{
    const struct tarn_notify *n = w->notify;
    uint64_t tag = from < TARN_TCP_TAG ? from : TARN_TCP_TAG, data = from - tag;
    if (m->n + 2 > IOV_MAX_USED)
        return false;
    add(m, (char *)(uintptr_t)&n->tag + tag, TARN_TCP_TAG - tag);
    add(m, (char *)(uintptr_t)n->data + data, n->bytes - data);
    return true;
}

static struct tarn_tcp_frame request(const struct tarn_tcp_lane *n, const struct tarn_work *w)
{
    return (struct tarn_tcp_frame){
        .magic = TARN_TCP_MAGIC,
        .version = TARN_TCP_VERSION,
        .op = n->op | (n->op == TARN_TCP_GET && !w->touch ? TARN_TCP_NO_TOUCH : 0),
        .pool = (uint16_t)w->pool,
        .slot = w->slot,
        .gen = w->gen,
        .offset = w->offset,
        .status = (int32_t)notice_bytes(w),
        .bytes = w->bytes + notice_bytes(w),
        .tag = tarn_tcp_course(w)->tag,
    };
}

static uint64_t payload_of(const struct tarn_tcp_lane *n, const struct tarn_work *w)
{
    return n->op == TARN_TCP_PUT ? w->bytes + notice_bytes(w) : 0;
}

static bool is_staged(const struct tarn_work *w)
{
    return w->gpu && w->bytes > 0;
}

/* Can its next byte be sent? part: where in the stage its payload goes on. */
static bool may_send(const struct tarn_tcp_lane *n, const struct tarn_work *w, uint32_t part)
{
    return n->op == TARN_TCP_GET || !is_staged(w) || tarn_stage_passed(n->stage, part);
}

/* The same of the pieces' bytes alone. */
static bool add_bytes(const struct tarn_tcp_lane *n, struct message *m, const struct tarn_work *w,
                      struct tarn_cursor at, uint64_t left, uint32_t *part)
{
    if (!is_staged(w))
        return add_payload(m, w, at, left);
    uint32_t before = *part;
    uint64_t bytes = tarn_stage_gather(n->stage, true, part, left, m->iov + m->n, IOV_MAX_USED - m->n);
    m->n += *part - before;
    m->bytes += bytes;
    return bytes == left;
}

/* Adds what is left of a put's payload as far as it is there and there is room; true when all of it was
 * added. */
static bool add_put(const struct tarn_tcp_lane *n, struct message *m, const struct tarn_work *w,
                    struct tarn_cursor at, uint64_t left, uint32_t *part)
{
    uint64_t notice = notice_bytes(w);
    if (left > notice && !add_bytes(n, m, w, at, left - notice, part))
        return false;
    return !notice || add_notice(m, w, left < notice ? notice - left : 0);
}

/* Gathers what is queued, from the byte after the last one sent. */
static void gather(const struct tarn_tcp_lane *n, struct tarn_tcp_frame *frames, struct message *m)
{
    m->n = 0;
    m->bytes = 0;
    add(m, (char *)(uintptr_t)n->hello + sizeof(*n->hello) - n->hello_unsent, n->hello_unsent);
    uint64_t sent = n->sent;
    struct tarn_cursor at = n->sent_at;
    uint32_t part = 0;
    int nframes = 0;
    for (const struct tarn_work *w = n->unsent;
         w && nframes < FRAMES_MAX && m->n < IOV_MAX_USED && may_send(n, w, part); w = w->next) {
        uint64_t payload = payload_of(n, w);
        if (sent < FRAME) {
            frames[nframes] = request(n, w);
            add(m, (char *)&frames[nframes++] + sent, FRAME - sent);
        } else {
            payload -= sent - FRAME;
        }
        if (payload && !add_put(n, m, w, at, payload, &part))
            break;
        sent = 0;
        at = (struct tarn_cursor){0};
    }
}

/* Moves the send position on by what the kernel took. */
static void note_sent(struct tarn_tcp_lane *n, uint64_t bytes)
{
    uint32_t hello = bytes < n->hello_unsent ? (uint32_t)bytes : n->hello_unsent;
    n->hello_unsent -= hello;
    bytes -= hello;
    while (n->unsent && bytes > 0) {
        struct tarn_work *w = n->unsent;
        uint64_t head = n->sent < FRAME ? FRAME - n->sent : 0;
        uint64_t left = FRAME + payload_of(n, w) - n->sent;
        uint64_t take = bytes < left ? bytes : left, notice = notice_bytes(w);
        uint64_t room = left > head + notice ? left - head - notice : 0; /* of the pieces */
        uint64_t pieces = take > head ? take - head : 0;
        if (pieces > room)
            pieces = room;
        n->sent += take;
        bytes -= take;
        if (pieces && is_staged(w))
            tarn_tcp_lane_passed_on(n, w, pieces);
        if (take < left) {
            tarn_cursor_skip(&n->sent_at, w->pieces, w->npieces, pieces);
            return;
        }
        n->unsent = w->next;
        n->sent = 0;
        n->sent_at = (struct tarn_cursor){0};
    }
}

bool tarn_tcp_lane_wants_to_send(const struct tarn_tcp_lane *n)
{
    return n->hello_unsent || (n->unsent && may_send(n, n->unsent, 0));
}

int tarn_tcp_lane_send(struct tarn_tcp_lane *n, bool wait)
{
    int moved = 0, flags = MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT);
    while (tarn_tcp_lane_wants_to_send(n)) {
        struct tarn_tcp_frame frames[FRAMES_MAX];
        struct message m;
        gather(n, frames, &m);
        struct msghdr h = {.msg_iov = m.iov, .msg_iovlen = m.n};
        tarn_tcp_sends();
        ssize_t sent = sendmsg(n->fd, &h, flags);
        if (sent < 0)
            return tarn_net_would_block(errno) ? moved : down(n, "send");
        moved = 1;
        note_sent(n, (uint64_t)sent);
        tarn_tcp_lane_copy(n);
        if ((uint64_t)sent < m.bytes)
            return moved;
    }
    return moved;
}

/* --- receiving ---------------------------------------------------------------------------------- */

/* The answer has come in full. With payload for a GPU (`came`) the work ends with the copies of that. */
static void answered(struct tarn_tcp_lane *n, int status, bool came)
{
    struct tarn_work *w = n->unanswered;
    n->unanswered = w->next;
    if (!tarn_tcp_course(w)->status)
        tarn_tcp_course(w)->status = status;
    if (!came || !is_staged(w))
        tarn_tcp_course(w)->ended = true;
    reap(n);
}

void tarn_tcp_lane_fail(struct tarn_tcp_lane *n, const struct tarn_reason *why)
{
    n->unsent = n->unanswered = n->unstaged = NULL;
    if (n->stage)
        tarn_stage_clear(n->stage);
    while (n->first) {
        if (why->code == TARN_E_AUTH || why->code == TARN_E_VERSION)
            n->first->why = why->text;
        pop(n, why->code);
    }
}

/* AUTH, VERSION, PROTOCOL. */
static int check_hello(const char *node, const struct tarn_tcp_frame *f)
{
    if (f->magic != TARN_TCP_MAGIC || f->op != (TARN_TCP_HELLO | TARN_TCP_ANSWER))
        return garbled(node, "the answer to HELLO is no frame of tarn");
    if (f->status == TARN_E_AUTH)
        return tarn_fail(TARN_E_AUTH, "node %s: tcp: the token is not that of a living session: attach again",
                         node);
    if (f->status == TARN_E_VERSION || f->version != TARN_TCP_VERSION)
        return tarn_fail(TARN_E_VERSION,
                         "node %s: tcp: it speaks version %u, this library %u: update one of them", node,
                         f->version, TARN_TCP_VERSION);
    return f->status == 0 ? 0 : garbled(node, "HELLO was refused with an unknown status");
}

/* The answer's header is complete: what follows it? Ends works that have no payload to wait for. */
static int take_answer(struct tarn_tcp_lane *n)
{
    const struct tarn_tcp_frame *f = &n->answer;
    struct tarn_work *w = n->unanswered;
    n->answer_got = 0;
    if (n->hello_waits) {
        n->hello_waits = false;
        return check_hello(n->node, f);
    }
    if (f->magic != TARN_TCP_MAGIC || f->version != TARN_TCP_VERSION || f->op != (n->op | TARN_TCP_ANSWER))
        return garbled(n->node, "received something that is no answer");
    if (!w || w == n->unsent || f->tag != tarn_tcp_course(w)->tag)
        return garbled(n->node, "received the answer to something not asked");
    if (f->status > 0 || (n->op == TARN_TCP_GET && f->bytes != (f->status ? 0 : w->bytes)))
        return garbled(n->node, "received an answer of the wrong size");
    if (f->status == TARN_E_AGAIN && w->notify) {
        w->untold = true;
        answered(n, 0, false);
        return 0;
    }
    n->received_at = (struct tarn_cursor){0};
    n->payload_left = n->op == TARN_TCP_GET ? f->bytes : 0;
    if (f->status)
        tarn_fail(f->status, "node %s: tcp: pool %u slot %u: %s", n->node, w->pool, w->slot,
                  tarn_strerror(f->status));
    if (f->status || n->payload_left == 0)
        answered(n, f->status, false);
    return 0;
}

/* Adds where what is left of a get's payload goes, as far as there is room; true when all of it was added. */
static bool add_get(const struct tarn_tcp_lane *n, struct message *m, const struct tarn_work *w,
                    struct tarn_cursor at, uint64_t left)
{
    uint8_t *memory;
    if (!is_staged(w))
        return add_payload(m, w, at, left);
    uint64_t room = tarn_stage_room(n->stage, &memory);
    add(m, memory, room < left ? room : left);
    return room >= left;
}

/* The verdict on a get's payload is complete. The next answer's header may be there already. */
static int take_verdict(struct tarn_tcp_lane *n)
{
    const struct tarn_tcp_frame *f = &n->verdict;
    uint64_t tag = tarn_tcp_course(n->unanswered)->tag;
    n->verdict_due = false;
    n->verdict_got = 0;
    if (f->magic != TARN_TCP_MAGIC || f->op != (n->op | TARN_TCP_ANSWER) || f->tag != tag || f->status > 0)
        return garbled(n->node, "received something that is no verdict");
    answered(n, f->status, true);
    return 0;
}

/* Payload has come to where expect() wanted it. */
static void take_payload(struct tarn_tcp_lane *n, uint64_t bytes)
{
    struct tarn_work *w = n->unanswered;
    if (is_staged(w))
        tarn_tcp_lane_arrived(n, w, bytes);
    n->payload_left -= bytes;
    if (n->payload_left)
        tarn_cursor_skip(&n->received_at, w->pieces, w->npieces, bytes);
    else if (n->verdicts)
        n->verdict_due = true;
    else
        answered(n, 0, true);
}

/* Adds the verdict, and behind it the next answer's header if there is one. */
static void add_verdict(const struct tarn_tcp_lane *n, struct message *m, bool next)
{
    if (m->n == IOV_MAX_USED)
        return;
    add(m, (char *)(uintptr_t)&n->verdict + n->verdict_got, FRAME - n->verdict_got);
    if (next && m->n < IOV_MAX_USED)
        add(m, (char *)(uintptr_t)&n->answer, FRAME);
}

/*
 * What one recvmsg() asks for. The first header goes to the lane's `answer`, further ones to `frames`.
 * Payload is asked for ahead of its header, as if no get failed.
 */
struct expected {
    struct message m;
    struct tarn_tcp_frame frames[AHEAD_MAX];
    uint32_t nframes;
};

/* May payload of a later answer be asked for? Not for puts, nor with verdicts in between or a GPU's stage. */
static bool reads_ahead(const struct tarn_tcp_lane *n)
{
    return n->op == TARN_TCP_GET && !n->hello_waits && !n->verdicts && !n->stage;
}

/* The header of w's answer was added. Adds its payload, and further answers. */
static void add_ahead(const struct tarn_tcp_lane *n, struct expected *x, const struct tarn_work *w)
{
    while (w != n->unsent && add_payload(&x->m, w, (struct tarn_cursor){0}, w->bytes) &&
           w->next != n->unsent && x->m.n < IOV_MAX_USED && x->nframes < AHEAD_MAX) {
        add(&x->m, &x->frames[x->nframes++], FRAME);
        w = w->next;
    }
}

/* Adds the header of w's answer, and what follows it as far as that can be told. */
static void add_answer(const struct tarn_tcp_lane *n, struct expected *x, const struct tarn_work *w)
{
    struct message *m = &x->m;
    bool alone = n->op == TARN_TCP_GET && !n->hello_waits && m->n == 0 && w && !w->next;
    if (m->n == IOV_MAX_USED)
        return;
    add(m, (char *)(uintptr_t)&n->answer + n->answer_got, FRAME - n->answer_got);
    if (reads_ahead(n))
        add_ahead(n, x, w);
    else if (alone && add_get(n, m, w, (struct tarn_cursor){0}, w->bytes) && n->verdicts && w->bytes)
        add_verdict(n, m, false);
}

/* The iovecs for what comes next. payload_only: no header behind the payload. */
static void expect(struct tarn_tcp_lane *n, struct expected *x, bool payload_only)
{
    struct message *m = &x->m;
    const struct tarn_work *w = n->unanswered;
    m->n = 0;
    m->bytes = 0;
    x->nframes = 0;
    if (n->payload_left && !add_get(n, m, w, n->received_at, n->payload_left))
        return;
    if (n->verdict_due || (n->payload_left && n->verdicts))
        add_verdict(n, m, !payload_only && w->next);
    else if (!n->payload_left)
        add_answer(n, x, w);
    else if (!payload_only && w->next != n->unsent)
        add_answer(n, x, w->next);
}

/* Received bytes. They lie where expect() wanted them, or, behind an answer without its payload, in `copy`.
 */
struct received {
    const struct expected *x;
    uint32_t headers; /* of x that were taken */
    char *copy;
    const char *next; /* of the copy */
};

/* Copies the last `left` of `got` bytes from where expect() wanted them. */
static int copy_rest(const struct tarn_tcp_lane *n, struct received *c, uint64_t got, uint64_t left)
{
    c->next = c->copy = malloc(left);
    if (!c->copy)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: tcp: no memory for %llu bytes behind a failure", n->node,
                         (unsigned long long)left);
    uint64_t skip = got - left;
    char *to = c->copy;
    for (const struct iovec *v = c->x->m.iov; left > 0; v++) {
        uint64_t from = skip < v->iov_len ? skip : v->iov_len;
        uint64_t take = v->iov_len - from < left ? v->iov_len - from : left;
        memcpy(to, (const char *)v->iov_base + from, take);
        skip -= from;
        to += take;
        left -= take;
    }
    return 0;
}

/* Puts copied payload in its place. */
static void place_payload(const struct tarn_tcp_lane *n, struct received *c, uint64_t bytes)
{
    const struct tarn_work *w = n->unanswered;
    struct tarn_cursor at = n->received_at;
    while (bytes > 0) {
        void *addr;
        uint64_t run = tarn_cursor_next(&at, w->pieces, w->npieces, bytes, &addr);
        memcpy(addr, c->next, run);
        c->next += run;
        bytes -= run;
    }
}

/* Takes up to `left` bytes of the next answer's header. Returns how many. */
static uint64_t take_header(struct tarn_tcp_lane *n, struct received *c, uint64_t left)
{
    uint64_t take = left < FRAME - n->answer_got ? left : FRAME - n->answer_got;
    char *to = (char *)&n->answer + n->answer_got;
    if (c->copy)
        memcpy(to, c->next, take);
    else if (c->headers++ > 0)
        memcpy(to, &c->x->frames[c->headers - 2], take);
    c->next += c->copy ? take : 0;
    n->answer_got += (uint32_t)take;
    return take;
}

/* Takes received bytes, and ends the works that they complete. */
static int take_received(struct tarn_tcp_lane *n, struct received *c, uint64_t got)
{
    int r = 0;
    for (uint64_t left = got, take; r == 0 && left > 0; left -= take) {
        if (n->payload_left) {
            take = left < n->payload_left ? left : n->payload_left;
            if (c->copy)
                place_payload(n, c, take);
            take_payload(n, take);
        } else if (n->verdict_due) {
            take = left < FRAME - n->verdict_got ? left : FRAME - n->verdict_got;
            n->verdict_got += (uint32_t)take;
            r = n->verdict_got == FRAME ? take_verdict(n) : 0;
        } else if (!tarn_tcp_lane_awaits_answer(n)) {
            return garbled(n->node, "received more than was asked for");
        } else {
            take = take_header(n, c, left);
            bool payload = !n->hello_waits && n->unanswered && n->unanswered->bytes > 0;
            r = n->answer_got == FRAME ? take_answer(n) : 0;
            bool failed = payload && n->answer_got == 0 && n->payload_left == 0;
            if (r == 0 && failed && left > take && !c->copy)
                r = copy_rest(n, c, got, left - take);
        }
    }
    return r;
}

bool tarn_tcp_lane_awaits_answer(const struct tarn_tcp_lane *n)
{
    return n->unanswered != n->unsent || (n->hello_waits && !n->hello_unsent);
}

/* Leaves the first `most` bytes of a message. */
static void trim(struct message *m, uint64_t most)
{
    while (m->bytes > most) {
        struct iovec *v = &m->iov[m->n - 1];
        uint64_t over = m->bytes - most, cut = over < v->iov_len ? over : v->iov_len;
        v->iov_len -= cut;
        m->bytes -= cut;
        m->n -= v->iov_len == 0;
    }
}

int tarn_tcp_lane_receive(struct tarn_tcp_lane *n, bool wait, uint64_t most)
{
    int moved = 0;
    for (; tarn_tcp_lane_awaits_answer(n); wait = false) {
        struct expected x;
        bool rest = wait && n->payload_left >= WAIT_ALL_BYTES;
        expect(n, &x, rest);
        trim(&x.m, most);
        if (x.m.bytes == 0) /* the stage is full */
            return moved;
        struct msghdr h = {.msg_iov = x.m.iov, .msg_iovlen = x.m.n};
        ssize_t got = recvmsg(n->fd, &h, rest ? MSG_WAITALL : wait ? 0 : MSG_DONTWAIT);
        tarn_tcp_received();
        if (got < 0)
            return tarn_net_would_block(errno) ? moved : down(n, "receive");
        if (got == 0)
            return tarn_fail(TARN_E_NODE_DOWN, "node %s: tcp: it closed the connection", n->node);
        moved = 1;
        struct received c = {.x = &x};
        int r = take_received(n, &c, (uint64_t)got);
        free(c.copy);
        if (r || (uint64_t)got < x.m.bytes || most < UINT64_MAX)
            return r ? r : moved;
    }
    return moved;
}
