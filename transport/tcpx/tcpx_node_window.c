/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX, node half: leases of windows.
 *
 * Whoever recalls a lease waits for its pins, so none is kept while a peer is waited for. A get's bytes are
 * copied to a stage, and sent from there: a message pins the lease from when it is gathered until it has been
 * copied. A put's messages come to memory of the comm: each pins the lease while it is unpacked.
 *
 * The peer counts on a message for each chunk of a work. When the lease has ended between two of them, the
 * rest of a get is sent as it stands in the stage, and the rest of a put is dropped. DONE then says STALE.
 */
#include "transport/tcpx/plugin/tcpx_nic.h"
#include "transport/tcpx/tcpx_node.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* --- windows ------------------------------------------------------------------------------------ */

static void set_gpu(struct tarn_tcpx_node *s, uint32_t window, int gpu)
{
    pthread_mutex_lock(&s->lock);
    s->window_gpu[window] = gpu;
    pthread_mutex_unlock(&s->lock);
}

int tarn_tcpx_gpu(struct tarn_tcpx_node *s, uint32_t pool)
{
    if (!s->half.serve.guard.pin_lease)
        return tarn_tcpx_gpu_of(&s->half.serve.pools[pool]);
    pthread_mutex_lock(&s->lock);
    int gpu = s->window_gpu[pool];
    pthread_mutex_unlock(&s->lock);
    return gpu;
}

void tarn_tcpx_window_lend(struct tarn_node_half *h, uint32_t window)
{
    set_gpu(tarn_tcpx_node(h), window, tarn_tcpx_gpu_of(&h->serve.pools[window]));
}

void tarn_tcpx_window_withdraw(struct tarn_node_half *h, uint32_t window)
{
    set_gpu(tarn_tcpx_node(h), window, TARN_TCPX_UNLENT);
}

/* --- pins ---------------------------------------------------------------------------------------- */

static void unpin(const struct tarn_tcpx_work *w)
{
    const struct tarn_guard *g = &w->lane->link->node->half.serve.guard;
    g->unpin(g->arg, w->lane->pool, w->frame.slot, w->frame.gen);
}

/* Pins `bytes` bytes of the work from byte `done` on. */
static int pin(struct tarn_tcpx_work *w, uint64_t done, uint64_t bytes, struct tarn_pinned *p)
{
    struct tarn_tcpx_node_lane *n = w->lane;
    const struct tarn_guard *g = &n->link->node->half.serve.guard;
    const struct tarn_tcpx_frame *f = &w->frame;
    int rc =
        g->pin_lease(g->arg, n->link->session, n->puts, n->pool, f->slot, f->gen, f->offset + done, bytes, p);
    if (rc || p->device == n->gpu)
        return rc;
    unpin(w); /* another window has come in the place of the one that the lane was opened for */
    return TARN_E_NOT_REACHABLE;
}

/* Called when a message of a put has come. */
static bool aim(void *owner, struct tarn_tcpx_into *into, uint32_t bytes)
{
    struct tarn_tcpx_work *w = owner;
    struct tarn_pinned p;
    if (!w->status)
        w->status = pin(w, w->handled, bytes, &p);
    w->handled += bytes;
    if (w->status)
        return false;
    w->pins++;
    into->pieces = p.runs->piece;
    into->npieces = p.runs->n;
    into->bytes = p.runs->bytes;
    into->offset = p.at;
    return true;
}

/* --- lanes -------------------------------------------------------------------------------------- */

int tarn_tcpx_window_open(struct tarn_tcpx_node_lane *n)
{
    const struct tarn_tcpx_gear *g = &n->link->node->gear;
    bool direct = g->plugin->devices[tarn_tcpx_nic(g->plugin, n->gpu)].gpu;
    if (n->puts)
        return 0;
    int rc = tarn_tcpx_stage_open(&n->stage, n->gpu, direct, n->link->chunk_bytes,
                                  g->plugin->window + TARN_TCPX_AHEAD);
    return rc ? rc : tarn_tcpx_stage_clear(&n->stage);
}

int tarn_tcpx_window_ready(struct tarn_tcpx_node_lane *n)
{
    const struct tarn_tcpx_stage *s = &n->stage;
    if (!n->puts)
        return tarn_tcpx_ranges_own(n->comm, s->ring, (uint64_t)s->depth * s->chunk_bytes, s->on_gpu);
    tarn_tcpx_comm_aim_late(n->comm, aim);
    return 0;
}

static void forget_notice(struct tarn_tcpx_work *w)
{
    free(w->notice);
    w->notice = NULL;
}

static void let_go(struct tarn_tcpx_slot *slot)
{
    if (slot->pinned)
        unpin(slot->owner);
    slot->pinned = false;
}

void tarn_tcpx_window_close(struct tarn_tcpx_node_lane *n)
{
    struct tarn_tcpx_stage *s = &n->stage;
    tarn_tcpx_stage_close(s);
    for (; s->done < s->begun; s->done++)
        let_go(&s->slots[s->done % s->depth]);
    for (uint64_t k = n->over; k < n->came; k++) {
        struct tarn_tcpx_work *w = &n->works[k % TARN_TCPX_OPS];
        for (; w->pins > 0; w->pins--)
            unpin(w);
        forget_notice(w);
    }
    free(n->notice);
    n->notice = NULL;
}

/* --- works -------------------------------------------------------------------------------------- */

int tarn_tcpx_window_tell(struct tarn_tcpx_node_lane *n, const struct tarn_notice *notice)
{
    if (!n->puts || n->notice || notice->bytes > TARN_NOTIFY_MAX)
        return tarn_fail(TARN_E_PROTOCOL, "a notification of no put");
    n->notice = malloc(sizeof(*n->notice));
    if (!n->notice)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory for a notification");
    *n->notice = *notice;
    return 0;
}

int tarn_tcpx_window_begin(struct tarn_tcpx_work *w)
{
    struct tarn_pinned p;
    w->status = pin(w, 0, w->frame.bytes, &p);
    if (!w->status)
        unpin(w);
    else
        forget_notice(w);
    return w->status;
}

/* --- gets --------------------------------------------------------------------------------------- */

/* Begins the work's next message, and pins the lease for it. */
static void begin_message(struct tarn_tcpx_node_lane *n, struct tarn_tcpx_work *w)
{
    struct tarn_tcpx_stage *s = &n->stage;
    uint64_t left = w->frame.bytes - w->posted;
    uint32_t bytes = left < s->chunk_bytes ? (uint32_t)left : s->chunk_bytes;
    struct tarn_pinned p;
    if (!w->status)
        w->status = pin(w, w->posted, bytes, &p);
    if (w->status) {
        tarn_tcpx_stage_repeat(s, w, bytes);
    } else {
        tarn_tcpx_stage_begin(s, w, p.runs->piece, p.runs->n, bytes);
        s->slots[(s->begun - 1) % s->depth].pinned = true;
        n->gathered_at = tarn_runs_at(p.runs, p.at);
    }
    w->posted += bytes;
}

/* 1: gathered a message, or all that is left of one. */
static int gather(struct tarn_tcpx_node_lane *n)
{
    struct tarn_tcpx_stage *s = &n->stage;
    struct tarn_tcpx_work *w = tarn_tcpx_stage_has_room(s) ? tarn_tcpx_lane_next(n) : NULL;
    if (w)
        begin_message(n, w);
    if (s->full == s->begun)
        return w != NULL;
    int rc = tarn_tcpx_stage_fill(s, &n->gathered_at);
    return rc == TARN_E_AGAIN ? 0 : rc ? rc : 1;
}

/* Lets go of what has been copied, whether it can be sent or not. The last message of a work says how it
 * went: all of them were copied under the lease, or not. */
static int end_copies(struct tarn_tcpx_node_lane *n)
{
    struct tarn_tcpx_stage *s = &n->stage;
    int rc = 0;
    for (; n->copied < s->full && !(rc = tarn_tcpx_stage_copied(s, n->copied)); n->copied++) {
        struct tarn_tcpx_slot *slot = &s->slots[n->copied % s->depth];
        struct tarn_tcpx_work *w = slot->owner;
        let_go(slot);
        w->handled += slot->bytes;
        if (w->handled == w->frame.bytes)
            tarn_tcpx_lane_say(w, TARN_TCPX_DONE, w->status);
    }
    return rc == TARN_E_AGAIN ? 0 : rc;
}

static int send_full(struct tarn_tcpx_node_lane *n)
{
    struct tarn_tcpx_stage *s = &n->stage;
    struct tarn_tcpx_slot *slot;
    uint8_t *memory;
    int moved = end_copies(n);
    while (moved >= 0 && s->sent < n->copied && tarn_tcpx_comm_room(n->comm)) {
        int rc = tarn_tcpx_stage_next(s, &slot, &memory);
        if (rc)
            return rc;
        rc = tarn_tcpx_comm_send(n->comm, memory, slot->bytes, NULL, slot->owner);
        if (rc)
            return rc == TARN_E_AGAIN ? moved : rc;
        s->sent++;
        moved = 1;
    }
    return moved;
}

int tarn_tcpx_window_send(struct tarn_tcpx_node_lane *n)
{
    int before = send_full(n), full = before < 0 ? before : gather(n), after = full < 0 ? full : send_full(n);
    return after < 0 ? after : before | full | after;
}

/* --- both --------------------------------------------------------------------------------------- */

void tarn_tcpx_window_moved(struct tarn_tcpx_work *w)
{
    if (!w->lane->puts) {
        w->lane->stage.done++;
    } else if (w->pins > 0) {
        w->pins--;
        unpin(w);
    }
}

int tarn_tcpx_window_end(struct tarn_tcpx_work *w)
{
    struct tarn_tcpx_node_lane *n = w->lane;
    const struct tarn_guard *g = &n->link->node->half.serve.guard;
    const struct tarn_notice *notice = w->notice;
    if (!w->status && notice) {
        const struct tarn_notify told = {.tag = notice->tag, .data = notice->data, .bytes = notice->bytes};
        w->status = g->notify(g->arg, n->link->session, n->pool, w->frame.slot, w->frame.gen, &told);
    }
    forget_notice(w);
    return w->status;
}
