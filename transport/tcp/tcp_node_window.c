/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP, node half: leases of windows.
 *
 * Whoever recalls a lease waits for its pins. So a lease is pinned for one system call at a time, never while
 * a client is waited for. When it has ended between two calls, what is left of a get's payload is sent as
 * zeros, and the verdict behind it says STALE; what is left of a put's payload is dropped.
 */
#include "transport/pieces.h"
#include "transport/tcp/tcp_node.h"

#define FRAME sizeof(struct tarn_tcp_frame)

static const char zeros[65536];

static int pin(const struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f, bool write, uint64_t done,
               uint64_t bytes, struct tarn_pinned *p)
{
    const struct tarn_guard *g = &c->node->half.serve.guard;
    return g->pin_lease(g->arg, c->session, write, f->pool, f->slot, f->gen, f->offset + done, bytes, p);
}

int tarn_tcp_window_check(struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f, bool write)
{
    struct tarn_pinned p;
    int rc = pin(c, f, write, 0, f->bytes - (write ? c->notice_bytes : 0), &p);
    if (!rc)
        tarn_tcp_unpin_slot(c, f);
    return rc;
}

void tarn_tcp_window_unpin(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t)
{
    while (t->npinned)
        tarn_tcp_unpin_slot(c, t->pinned[--t->npinned]);
}

static uint32_t room(const struct tarn_tcp_window_turn *t)
{
    return TARN_TCP_WINDOW_IOVS - t->niov;
}

static void add(struct tarn_tcp_window_turn *t, const void *data, uint64_t bytes)
{
    if (!bytes)
        return;
    t->iov[t->niov++] = (struct iovec){(void *)(uintptr_t)data, bytes};
    t->bytes += bytes;
}

/* Adds runs of the pinned range. Returns the bytes that have found room. */
static uint64_t add_runs(struct tarn_tcp_window_turn *t, const struct tarn_pinned *p, uint64_t bytes)
{
    struct tarn_cursor at = tarn_runs_at(p->runs, p->at);
    uint64_t done = 0;
    while (done < bytes && room(t) > 2) {
        void *addr;
        uint64_t run = tarn_cursor_next(&at, p->runs->piece, p->runs->n, bytes - done, &addr);
        add(t, addr, run);
        done += run;
    }
    return done;
}

/* --- gets --------------------------------------------------------------------------------------- */

uint64_t tarn_tcp_window_reply_bytes(const struct tarn_tcp_reply *r)
{
    return FRAME + (r->frame.bytes ? r->frame.bytes + FRAME : 0);
}

static void begin(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r)
{
    r->frame.status = tarn_tcp_window_check(c, &r->frame, false);
    if (r->frame.status)
        r->frame.bytes = 0;
    r->frame.op = TARN_TCP_GET | TARN_TCP_ANSWER;
    r->verdict = r->frame;
    r->ready = true;
}

/* Adds up to `most` payload bytes from byte `done` on. Returns how many. */
static uint64_t add_payload(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t, struct tarn_tcp_reply *r,
                            uint64_t done, uint64_t most)
{
    struct tarn_pinned p;
    uint64_t bytes = r->frame.bytes - done;
    if (bytes > most)
        bytes = most;
    if (!bytes)
        return 0;
    if (!r->verdict.status)
        r->verdict.status = pin(c, &r->frame, false, done, bytes, &p);
    if (!r->verdict.status) {
        t->pinned[t->npinned++] = &r->frame;
        return add_runs(t, &p, bytes);
    }
    if (bytes > sizeof(zeros))
        bytes = sizeof(zeros);
    add(t, zeros, bytes);
    return bytes;
}

void tarn_tcp_window_gather(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t, uint64_t most)
{
    uint64_t sent = c->sent;
    t->niov = t->npinned = 0;
    t->bytes = 0;
    for (uint32_t i = 0; i < c->count && t->bytes < most && room(t) > 3; i++, sent = 0) {
        struct tarn_tcp_reply *r = tarn_tcp_reply_at(c, i);
        if (!r->ready)
            begin(c, r);
        if (sent < FRAME) {
            add(t, (char *)&r->frame + sent, FRAME - sent);
            sent = FRAME;
        }
        if (!r->frame.bytes)
            continue;
        uint64_t payload_end = FRAME + r->frame.bytes;
        if (sent < payload_end)
            sent += add_payload(c, t, r, sent - FRAME, most > t->bytes ? most - t->bytes : 0);
        if (sent < payload_end)
            return;
        add(t, (char *)&r->verdict + (sent - payload_end), FRAME - (sent - payload_end));
    }
}

/* --- puts --------------------------------------------------------------------------------------- */

bool tarn_tcp_window_notice_begins(struct tarn_tcp_conn *c)
{
    const struct tarn_tcp_frame *f = &c->in.frame;
    bool told = f->status != 0;
    c->notice_bytes = (uint32_t)f->status;
    return !told || (tarn_tcp_lends_windows(c) && f->status >= (int32_t)TARN_TCP_TAG &&
                     f->status <= (int32_t)TARN_TCP_NOTICE_MAX && f->bytes >= (uint64_t)f->status);
}

/* Behind the runs. */
static void add_notice_room(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t)
{
    uint64_t left = c->left < c->notice_bytes ? c->left : c->notice_bytes;
    add(t, (char *)&c->notice + (c->notice_bytes - left), left);
}

void tarn_tcp_window_room(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t)
{
    const struct tarn_tcp_frame *f = &c->in.frame;
    uint64_t left = c->left > c->notice_bytes ? c->left - c->notice_bytes : 0; /* of the runs' bytes */
    struct tarn_pinned p;
    t->niov = t->npinned = 0;
    t->bytes = 0;
    if (left > 0) {
        c->put_status = pin(c, f, true, f->bytes - c->left, left, &p);
        if (c->put_status)
            return;
        t->pinned[t->npinned++] = f;
        if (add_runs(t, &p, left) < left)
            return;
    }
    add_notice_room(c, t);
}

void tarn_tcp_window_notify(struct tarn_tcp_conn *c)
{
    const struct tarn_tcp_frame *f = &c->in.frame;
    const struct tarn_guard *g = &c->node->half.serve.guard;
    const struct tarn_notify n = {
        .tag = c->notice.tag, .data = c->notice.data, .bytes = c->notice_bytes - (uint32_t)TARN_TCP_TAG};
    c->put_status = g->notify(g->arg, c->session, f->pool, f->slot, f->gen, &n);
}
