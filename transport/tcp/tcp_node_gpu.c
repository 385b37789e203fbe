/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP, node half: GPU memory, of pools and windows.
 *
 * A connection that moves bytes of a GPU borrows a stage (tcp_stage.h) of its thread for as long as the
 * stage holds something. A thread makes at most STAGES stages, when they are wanted. A connection that finds
 * none waits and reads no further. While one waits, a connection that has had its stage for SLICE_NS adds
 * nothing to it and goes to the end of the line. A stage is taken back from a client that does not take its
 * answers; its bytes are fetched again when the client reads on. So the memory is bounded and no client can
 * hold up the others.
 *
 * No descriptor tells the end of a copy, and the thread does not wait for copies. A part takes some ten
 * microseconds. So, for SPIN_NS after the last part passed, the thread polls sockets and copies without
 * sleeping. After that it looks at the copies every millisecond. It blocks only to open a GPU's queue, once,
 * to pin a stage, and to close the queue of a GPU that failed.
 *
 * A slot stays pinned while the GPU may touch its extent. A closed connection is kept, without its
 * descriptor, until its last copy has passed.
 *
 * Windows: each part has a pin of its own, until it has passed. It is given to the GPU whatever the client
 * does; so a recall waits for copies only. A part of a get that has no bytes, because the lease has ended or
 * the GPU has failed, is sent as zeros, and the verdict says why. A put's notification waits until the put
 * has landed; meanwhile no other put of the connection begins.
 */
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/tcp/tcp_node.h"

#define SPIN_NS (200 * 1000ull)
#define SLICE_NS (20 * TARN_NS_PER_MS)
enum { STAGES = 16, NAP_MS = 1, WAIT_MS = 5 };

/* --- loans -------------------------------------------------------------------------------------- */

static bool has_stage(const struct tarn_tcp_thread *t)
{
    return t->stages || (!t->no_more && t->nstages < STAGES);
}

/* AGAIN: none is free. Another failure when there is none at all, since waiting would not help. */
static int borrow(struct tarn_tcp_conn *c)
{
    struct tarn_tcp_thread *t = c->thread;
    if (c->stage)
        return 0;
    if (!t->stages && has_stage(t)) {
        int rc = tarn_stage_new(&t->stages);
        if (rc && t->nstages == 0)
            return rc;
        t->no_more = rc != 0;
        t->nstages += rc == 0;
    }
    if (!t->stages)
        return TARN_E_AGAIN;
    c->stage = t->stages;
    LL_DELETE(t->stages, c->stage);
    c->stage->to_gpu = c->state == TARN_TCP_PUTS;
    c->lent_ns = tarn_now_ns();
    return 0;
}

/* It has had its turn, and others wait. */
static bool must_yield(const struct tarn_tcp_conn *c)
{
    return c->stage && c->thread->hungry && tarn_now_ns() - c->lent_ns > SLICE_NS;
}

static void give_back(struct tarn_tcp_conn *c)
{
    tarn_stage_clear(c->stage);
    LL_PREPEND(c->thread->stages, c->stage);
    c->stage = NULL;
}

/* What lies in the stage is put there again later. Nothing is under way. */
static void take_back(struct tarn_tcp_conn *c)
{
    give_back(c);
    c->staged = 0;
    c->staged_bytes = c->sent > sizeof(struct tarn_tcp_frame) ? c->sent - sizeof(struct tarn_tcp_frame) : 0;
}

static void list(struct tarn_tcp_conn *c, bool on)
{
    if (on && !c->listed)
        DL_APPEND2(c->thread->gpu_conns, c, gpu_prev, gpu_next);
    else if (!on && c->listed)
        DL_DELETE2(c->thread->gpu_conns, c, gpu_prev, gpu_next);
    c->listed = on;
}

void tarn_tcp_gpu_settle(struct tarn_tcp_conn *c)
{
    if (c->stage && c->stage->count == 0) {
        give_back(c);
        list(c, false);
    }
    if (c->stage)
        tarn_stage_give(c->stage, &c->thread->copiers);
    if (c->stage && tarn_stage_moving(c->stage))
        c->thread->moved_ns = tarn_now_ns();
    list(c, c->stage || c->starved);
}

static void unpin_part(struct tarn_tcp_conn *c, struct tarn_stage_part *p)
{
    const struct tarn_guard *g = &c->node->half.serve.guard;
    if (p->pin.gen)
        g->unpin(g->arg, p->pin.pool, p->pin.slot, p->pin.gen);
    p->pin.gen = 0;
}

void tarn_tcp_gpu_leave(struct tarn_tcp_conn *c)
{
    for (uint32_t i = 0; c->stage && i < c->stage->count; i++)
        unpin_part(c, tarn_stage_part_at(c->stage, i));
    if (c->stage)
        give_back(c);
    list(c, false);
}

int tarn_tcp_gpu_open(struct tarn_tcp_conn *c, int device)
{
    int rc = tarn_copiers_open(&c->thread->copiers, device);
    if (rc)
        tarn_tcp_complain(c, "a transfer of GPU memory failed", tarn_last_error());
    return rc;
}

/* --- parts -------------------------------------------------------------------------------------- */

static struct tarn_stage_part *add_part(struct tarn_tcp_conn *c, int device, uint64_t bytes)
{
    return tarn_stage_add(c->stage, &c->thread->copiers, device, bytes);
}

/* A part whose bytes are at one address. */
static struct tarn_stage_part *add_extent_part(struct tarn_tcp_conn *c, int device, void *addr,
                                               uint64_t bytes)
{
    struct tarn_stage_part *p = add_part(c, device, bytes);
    p->own = (struct tarn_piece){.addr = addr, .bytes = bytes};
    p->pieces = &p->own;
    p->npieces = 1;
    return p;
}

/* A part whose bytes are in a pinned range of a lease. The pin goes with it. */
static struct tarn_stage_part *add_lease_part(struct tarn_tcp_conn *c, const struct tarn_tcp_frame *f,
                                              const struct tarn_pinned *at, uint64_t bytes)
{
    struct tarn_stage_part *p = add_part(c, at->device, bytes);
    p->pin.pool = f->pool;
    p->pin.slot = f->slot;
    p->pin.gen = f->gen;
    p->pieces = at->runs->piece;
    p->npieces = at->runs->n;
    p->at = tarn_runs_at(at->runs, at->at);
    return p;
}

/* --- gets --------------------------------------------------------------------------------------- */

static void fail_get(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r, const struct tarn_reason *why)
{
    tarn_tcp_complain(c, "a get of GPU memory failed", why->text);
    tarn_tcp_unpin(c, r);
    r->frame.status = why->code;
    r->frame.bytes = 0;
}

/* Pins the object; what cannot be had is said in the answer. */
static void begin_get(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r)
{
    tarn_tcp_ready_get(c, r);
    struct tarn_reason why;
    int rc = r->frame.bytes ? tarn_copiers_open(&c->thread->copiers, r->device) : 0;
    if (rc) {
        tarn_reason_keep(&why, rc);
        fail_get(c, r, &why);
    }
}

/* Adds the answer's next part, zeros if its lease has ended. */
static struct tarn_stage_part *add_leased(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r, uint64_t bytes)
{
    struct tarn_pinned at;
    if (!r->verdict.status)
        r->verdict.status = tarn_tcp_window_pin(c, &r->frame, false, c->staged_bytes, bytes, &at);
    if (!r->verdict.status)
        return add_lease_part(c, &r->frame, &at, bytes);
    struct tarn_stage_part *p = add_part(c, r->device, bytes);
    tarn_stage_zero(p);
    return p;
}

/* Puts what is left of an answer into the stage. False: no room for all of it. */
static bool stage_reply(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r)
{
    struct tarn_reason why;
    int rc = must_yield(c) ? TARN_E_AGAIN : borrow(c);
    c->starved = rc == TARN_E_AGAIN;
    if (c->starved)
        return false;
    if (rc)
        tarn_reason_keep(&why, rc);
    if (!r->ready)
        begin_get(c, r);
    if (rc && r->frame.bytes)
        fail_get(c, r, &why);
    while (c->staged_bytes < r->frame.bytes) {
        uint8_t *memory;
        uint64_t room = tarn_stage_room(c->stage, &memory), left = r->frame.bytes - c->staged_bytes;
        uint64_t bytes = room < left ? room : left;
        if (bytes == 0)
            return false;
        struct tarn_stage_part *p =
            tarn_tcp_lends_windows(c)
                ? add_leased(c, r, bytes)
                : add_extent_part(c, r->device, (char *)r->payload + c->staged_bytes, bytes);
        p->owner = r;
        c->staged_bytes += bytes;
    }
    if (c->stage)
        tarn_stage_align(c->stage);
    return true;
}

static bool all_passed(struct tarn_tcp_conn *c, const void *owner)
{
    const struct tarn_stage_part *p;
    uint32_t i = 0;
    while ((p = tarn_stage_passed(c->stage, i)) && p->owner == owner)
        i++;
    return p || i == c->stage->count;
}

/* Answers with the failure that comes next in the stage. False: its header is gone already. */
static bool fail_next(struct tarn_tcp_conn *c)
{
    const struct tarn_stage_part *p;
    while ((p = c->stage ? tarn_stage_passed(c->stage, 0) : NULL) && p->failure) {
        struct tarn_tcp_reply *r = p->owner;
        const struct tarn_reason *why = p->failure;
        if (r == tarn_tcp_reply_at(c, 0) && c->sent > 0)
            return false;
        if (!all_passed(c, r))
            return true;
        fail_get(c, r, why);
        while ((p = tarn_stage_passed(c->stage, 0)) && p->owner == r)
            tarn_stage_drop(c->stage);
        if (r == tarn_tcp_reply_at(c, c->staged))
            c->staged_bytes = 0;
    }
    return true;
}

/* Of answers from windows: gives back the pins of parts that have passed. */
static void note_copied(struct tarn_tcp_conn *c)
{
    struct tarn_stage_part *p;
    for (uint32_t i = 0; (p = tarn_stage_passed(c->stage, i)); i++) {
        struct tarn_tcp_reply *r = p->owner;
        if (!p->pin.gen)
            continue;
        unpin_part(c, p);
        if (!p->failure)
            continue;
        tarn_tcp_complain(c, "a get of GPU memory failed", p->failure->text);
        tarn_stage_zero(p);
        if (!r->verdict.status)
            r->verdict.status = p->failure->code;
    }
}

bool tarn_tcp_gpu_stage(struct tarn_tcp_conn *c)
{
    bool windows = tarn_tcp_lends_windows(c);
    if (c->state != TARN_TCP_GETS)
        return true;
    for (; c->staged < c->count; c->staged++, c->staged_bytes = 0) {
        struct tarn_tcp_reply *r = tarn_tcp_reply_at(c, c->staged);
        if (windows && !r->ready)
            tarn_tcp_window_ready_get(c, r);
        if (r->device >= 0 && !(r->ready && r->frame.bytes == 0) && !stage_reply(c, r))
            break;
    }
    if (!c->stage)
        return true;
    tarn_stage_move(c->stage, &c->thread->copiers);
    if (windows)
        note_copied(c);
    return windows || fail_next(c);
}

/* --- puts --------------------------------------------------------------------------------------- */

int64_t tarn_tcp_gpu_room(struct tarn_tcp_conn *c, uint8_t **memory_p)
{
    int rc = must_yield(c) ? TARN_E_AGAIN : borrow(c);
    c->starved = rc == TARN_E_AGAIN;
    if (c->starved)
        return 0;
    if (rc) {
        tarn_tcp_complain(c, "a put to GPU memory failed", tarn_last_error());
        c->landed_status = 0;
        return rc;
    }
    uint64_t room = tarn_stage_room(c->stage, memory_p);
    c->starved = room == 0;
    return (int64_t)room;
}

/* Adds a part of a put to a lease. NULL: the lease has ended. */
static struct tarn_stage_part *add_put_part(struct tarn_tcp_conn *c, uint64_t bytes)
{
    const struct tarn_tcp_frame *f = &c->in.frame;
    struct tarn_pinned at;
    c->put_status = tarn_tcp_window_pin(c, f, true, f->bytes - c->left, tarn_tcp_put_left(c), &at);
    return c->put_status ? NULL : add_lease_part(c, f, &at, bytes);
}

void tarn_tcp_gpu_received(struct tarn_tcp_conn *c, uint64_t bytes)
{
    struct tarn_stage_part *p = tarn_stage_grow(c->stage, bytes);
    if (p)
        p->own.bytes += bytes;
    else if (tarn_tcp_lends_windows(c))
        p = add_put_part(c, bytes);
    else
        p = add_extent_part(c, c->put_device, c->to, bytes);
    if (p && p->bytes >= TARN_STAGE_PART / 2)
        tarn_stage_give(c->stage, &c->thread->copiers);
}

bool tarn_tcp_gpu_end_put(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r)
{
    uint32_t n = c->stage ? c->stage->count : 0;
    struct tarn_stage_part *p = n ? tarn_stage_part_at(c->stage, n - 1) : NULL;
    if (p && !p->last) {
        p->owner = r;
        p->last = true;
        tarn_stage_align(c->stage);
        return true;
    }
    if (!p && c->put_status == 0)
        c->put_status = c->landed_status;
    if (!p)
        c->landed_status = 0;
    return false;
}

/* The last part of a put has passed. */
static void landed(struct tarn_tcp_conn *c, struct tarn_tcp_reply *r)
{
    tarn_tcp_unpin(c, r);
    if (!r->frame.status)
        r->frame.status = c->landed_status;
    c->landed_status = 0;
    if (c->telling == r) {
        c->telling = NULL;
        if (!r->frame.status)
            r->frame.status = tarn_tcp_window_notify(c, &r->frame);
    }
    r->ready = true;
}

void tarn_tcp_gpu_land(struct tarn_tcp_conn *c)
{
    if (!c->stage)
        return;
    tarn_stage_move(c->stage, &c->thread->copiers);
    if (c->state != TARN_TCP_PUTS)
        return;
    for (struct tarn_stage_part *p; (p = tarn_stage_passed(c->stage, 0)); tarn_stage_drop(c->stage)) {
        struct tarn_tcp_reply *r = p->owner;
        unpin_part(c, p);
        if (p->failure && !c->landed_status) {
            tarn_tcp_complain(c, "a put to GPU memory failed", p->failure->text);
            c->landed_status = p->failure->code;
        }
        if (!p->last)
            continue;
        landed(c, r);
    }
}

/* --- the thread --------------------------------------------------------------------------------- */

int tarn_tcp_gpu_timeout(const struct tarn_tcp_thread *t, int otherwise)
{
    const struct tarn_tcp_conn *c;
    bool waits = false;
    for (c = t->gpu_conns; c; c = c->gpu_next) {
        if (c->stage && tarn_stage_moving(c->stage))
            return tarn_now_ns() - t->moved_ns < SPIN_NS ? 0 : NAP_MS;
        if (!c->stage && has_stage(t))
            return 0;
        waits |= !c->stage;
    }
    return waits ? WAIT_MS : otherwise;
}

bool tarn_tcp_gpu_due(struct tarn_tcp_conn *c)
{
    struct tarn_tcp_thread *t = c->thread;
    bool passed = c->stage && tarn_stage_moving(c->stage) && tarn_stage_move(c->stage, &t->copiers);
    if (c->closed)
        return !tarn_stage_moving(c->stage);
    return passed || (!c->stage && has_stage(t));
}

/* Of a client that takes nothing, for one that waits. */
static void take_one_back(struct tarn_tcp_thread *t)
{
    struct tarn_tcp_conn *c;
    uint64_t now = tarn_now_ns();
    for (c = t->gpu_conns; c; c = c->gpu_next) {
        if (!c->stage || c->closed || c->state != TARN_TCP_GETS || tarn_stage_moving(c->stage) ||
            now - c->lent_ns < SLICE_NS)
            continue;
        take_back(c);
        list(c, false);
        return;
    }
}

void tarn_tcp_gpu_waited(struct tarn_tcp_thread *t, bool waits)
{
    t->hungry = waits && !has_stage(t);
    if (t->hungry)
        take_one_back(t);
}

void tarn_tcp_gpu_stop(struct tarn_tcp_thread *t)
{
    while (t->stages) {
        struct tarn_stage *s = t->stages;
        LL_DELETE(t->stages, s);
        tarn_stage_free(s);
    }
}
