/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP, node half: leases of windows.
 *
 * Whoever recalls a lease waits for its pins, so none is kept while a client is waited for. In CPU memory a
 * lease is pinned for one system call at a time. In GPU memory it is pinned for each part of the stage
 * (tcp_node_gpu.c), from when the part gets its bytes of the lease until they are copied. When the lease has
 * ended between two pins, what is left of a get's payload is sent as zeros, and the verdict behind it says
 * STALE; what is left of a put's payload is dropped.
 */
#include "transport/pieces.h"
#include "transport/tcp/tcp_node.h"

#define FRAME sizeof(struct tarn_tcp_frame)

static const char zeros[65536];

int tarn_tcp_window_pin(const struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f, bool write,
                        uint64_t done, uint64_t bytes, struct tarn_pinned *p)
{
    const struct tarn_guard *g = &c->node->half.serve.guard;
    return g->pin_lease(g->arg, c->session, write, f->pool, f->slot, f->gen, f->offset + done, bytes, p);
}

/* May the session do that to the lease just now? 0, or why not. Sets *device_p to the memory's GPU, or -1. */
static int check(struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f, bool write, uint64_t bytes,
                 int *device_p)
{
    struct tarn_pinned p = {.device = -1};
    int rc = tarn_tcp_window_pin(c, f, write, 0, bytes, &p);
    if (!rc)
        tarn_tcp_unpin_slot(c, f);
    *device_p = p.device;
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

void tarn_tcp_window_ready_get(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r)
{
    r->frame.status = check(c, &r->frame, false, r->frame.bytes, &r->device);
    if (!r->frame.status && r->device >= 0 && r->frame.bytes)
        r->frame.status = tarn_tcp_gpu_open(c, r->device);
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
        r->verdict.status = tarn_tcp_window_pin(c, &r->frame, false, done, bytes, &p);
    if (!r->verdict.status) {
        t->pinned[t->npinned++] = &r->frame;
        return add_runs(t, &p, bytes);
    }
    if (bytes > sizeof(zeros))
        bytes = sizeof(zeros);
    add(t, zeros, bytes);
    return bytes;
}

/* The same of payload in GPU memory, as far as it lies in the stage. */
static uint64_t add_staged(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t, uint32_t *part,
                           uint64_t most)
{
    uint32_t before = *part;
    uint64_t bytes = tarn_stage_gather(c->stage, true, part, most, t->iov + t->niov, room(t) - 1);
    t->niov += *part - before;
    t->bytes += bytes;
    return bytes;
}

bool tarn_tcp_window_may_send(struct tarn_tcp_conn *c, const struct tarn_tcp_reply *r, uint64_t sent,
                              uint32_t part)
{
    bool staged = r->device >= 0 && sent < FRAME + r->frame.bytes && r->frame.bytes;
    return r->ready && (!staged || (c->stage && tarn_stage_passed(c->stage, part)));
}

void tarn_tcp_window_gather(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t, uint64_t most)
{
    uint64_t sent = c->sent;
    uint32_t part = 0;
    t->niov = t->npinned = 0;
    t->bytes = 0;
    for (uint32_t i = 0; i < c->count && t->bytes < most && room(t) > 3; i++, sent = 0) {
        struct tarn_tcp_reply *r = tarn_tcp_reply_at(c, i);
        if (!tarn_tcp_window_may_send(c, r, sent, part))
            return;
        if (sent < FRAME) {
            add(t, (char *)&r->frame + sent, FRAME - sent);
            sent = FRAME;
        }
        if (!r->frame.bytes)
            continue;
        uint64_t payload_end = FRAME + r->frame.bytes, left = most > t->bytes ? most - t->bytes : 0;
        if (sent < payload_end && r->device >= 0)
            sent += add_staged(c, t, &part, left < payload_end - sent ? left : payload_end - sent);
        else if (sent < payload_end)
            sent += add_payload(c, t, r, sent - FRAME, left);
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

int tarn_tcp_window_begin_put(struct tarn_tcp_conn *c)
{
    return check(c, &c->in.frame, true, c->in.frame.bytes - c->notice_bytes, &c->put_device);
}

/* Behind the runs. */
static void add_notice_room(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t)
{
    uint64_t left = c->left < c->notice_bytes ? c->left : c->notice_bytes;
    add(t, (char *)&c->notice + (c->notice_bytes - left), left);
}

/* Adds where a put's next bytes go in the lease. Returns how many have found room; 0: it has ended. */
static uint64_t add_lease_room(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t, uint64_t left)
{
    const struct tarn_tcp_frame *f = &c->in.frame;
    struct tarn_pinned p;
    c->put_status = tarn_tcp_window_pin(c, f, true, f->bytes - c->left, left, &p);
    if (c->put_status)
        return 0;
    t->pinned[t->npinned++] = f;
    return add_runs(t, &p, left < TARN_TCP_TURN_BYTES ? left : TARN_TCP_TURN_BYTES);
}

static uint64_t add_stage_room(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t, uint64_t left)
{
    uint8_t *memory;
    int64_t room = tarn_tcp_gpu_room(c, &memory);
    if (room < 0)
        c->put_status = (int32_t)room;
    if (room <= 0)
        return 0;
    uint64_t bytes = (uint64_t)room < left ? (uint64_t)room : left;
    add(t, memory, bytes);
    return bytes;
}

bool tarn_tcp_window_room(struct tarn_tcp_conn *c, struct tarn_tcp_window_turn *t)
{
    uint64_t left = tarn_tcp_put_left(c), found = 0;
    t->niov = t->npinned = 0;
    t->bytes = 0;
    if (left)
        found = c->put_device < 0 ? add_lease_room(c, t, left) : add_stage_room(c, t, left);
    if (found == left)
        add_notice_room(c, t);
    return found > 0 || found == left || c->put_status;
}

int tarn_tcp_window_notify(struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f)
{
    const struct tarn_guard *g = &c->node->half.serve.guard;
    const struct tarn_notify n = {
        .tag = c->notice.tag, .data = c->notice.data, .bytes = c->notice_bytes - (uint32_t)TARN_TCP_TAG};
    return g->notify(g->arg, c->session, f->pool, f->slot, f->gen, &n);
}
