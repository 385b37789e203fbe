/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX, node half: the works of a lane.
 *
 *   came --its turn: pinned, ANSWER--> begun --its messages posted, sent or unpacked--> over (unpinned, DONE)
 *
 * A work is pinned when there is room to post its first message, or slightly earlier; a client holds at
 * most AHEAD pins for each lane. Gets are sent straight from the pool. A put's bytes go from bounce memory
 * to the slot, which stays pinned until all of them are there. So what is committed after DONE is
 * complete.
 */
#include "transport/tcpx/plugin/tcpx_nic.h"
#include "transport/tcpx/tcpx_node.h"

#include <stdlib.h>
#include <utlist.h>

#include "base/error.h"

enum { AHEAD = 32 };

bool tarn_tcpx_serves(const struct tarn_node_half *h, uint32_t pool)
{
    struct tarn_tcpx_node *s = tarn_tcpx_node(h);
    int gpu = pool < s->half.serve.npools ? tarn_tcpx_gpu(s, pool) : TARN_TCPX_UNLENT;
    return gpu != TARN_TCPX_UNLENT &&
           (gpu < 0 || s->gear.plugin->devices[tarn_tcpx_nic(s->gear.plugin, gpu)].gpu);
}

static const struct tarn_pool_memory *pool_of(const struct tarn_tcpx_node_lane *n)
{
    return &n->link->node->half.serve.pools[n->pool];
}

static struct tarn_tcpx_work *work_at(struct tarn_tcpx_node_lane *n, uint64_t k)
{
    return &n->works[k % TARN_TCPX_OPS];
}

void tarn_tcpx_lane_say(struct tarn_tcpx_work *w, enum tarn_tcpx_op op, int status)
{
    const struct tarn_tcpx_frame f = {
        .op = (uint8_t)op, .lane = w->lane->id, .tag = w->frame.tag, .status = status};
    tarn_tcpx_wire_say(&w->lane->link->wire, f, NULL);
}

/* --- one work ----------------------------------------------------------------------------------- */

static int pin(struct tarn_tcpx_work *w)
{
    struct tarn_tcpx_node_lane *n = w->lane;
    const struct tarn_guard *g = &n->link->node->half.serve.guard;
    const struct tarn_tcpx_frame *f = &w->frame;
    void *addr = NULL;
    int rc = TARN_E_STALE;
    if (tarn_tcpx_lends(n))
        return tarn_tcpx_window_begin(w);
    if (f->slot < pool_of(n)->nslots)
        rc = n->puts ? g->pin_write(g->arg, n->link->session, n->pool, f->slot, f->gen, f->offset, f->bytes,
                                    &addr)
                     : g->pin_read(g->arg, n->pool, f->slot, f->gen, f->offset, f->bytes, &addr);
    w->pinned = rc == 0;
    w->piece = (struct tarn_piece){.addr = addr, .bytes = f->bytes};
    if (w->pinned && !n->puts && !(f->flags & TARN_TCPX_NO_TOUCH))
        g->touch(g->arg, n->pool, f->slot);
    return rc;
}

static void unpin(struct tarn_tcpx_work *w)
{
    const struct tarn_guard *g = &w->lane->link->node->half.serve.guard;
    if (w->pinned)
        g->unpin(g->arg, w->lane->pool, w->frame.slot, w->frame.gen);
    w->pinned = false;
}

static void end(struct tarn_tcpx_work *w)
{
    unpin(w);
    w->over = true;
    if (w->lane->puts)
        tarn_tcpx_lane_say(w, TARN_TCPX_DONE, tarn_tcpx_lends(w->lane) ? tarn_tcpx_window_end(w) : 0);
}

static void begin(struct tarn_tcpx_work *w)
{
    int status = pin(w);
    w->lane->begun++;
    tarn_tcpx_lane_say(w, TARN_TCPX_ANSWER, status);
    if (status)
        w->over = true;
    else if (w->frame.bytes == 0)
        end(w);
}

/* Callback of the comm: a message of the work was sent or unpacked. */
static void moved(void *owner, uint32_t bytes)
{
    struct tarn_tcpx_work *w = owner;
    if (tarn_tcpx_lends(w->lane))
        tarn_tcpx_window_moved(w);
    w->done += bytes;
    if (w->done == w->frame.bytes)
        end(w);
}

static int post(struct tarn_tcpx_work *w)
{
    struct tarn_tcpx_node_lane *n = w->lane;
    uint32_t chunk = n->link->chunk_bytes;
    uint64_t left = w->frame.bytes - w->posted;
    uint32_t bytes = left < chunk ? (uint32_t)left : chunk;
    int rc;
    if (n->puts) {
        struct tarn_tcpx_into into = n->into;
        into.pieces = &w->piece;
        into.npieces = 1;
        into.bytes = w->frame.bytes;
        into.offset = w->posted;
        rc = tarn_tcpx_comm_recv(n->comm, bytes, &into, w);
    } else {
        rc = tarn_tcpx_comm_send(n->comm, (uint8_t *)w->piece.addr + w->posted, bytes, NULL, w);
    }
    w->posted += rc ? 0 : bytes;
    return rc;
}

/* --- the lane ----------------------------------------------------------------------------------- */

/* The first begun one with bytes left, else the one after them. */
struct tarn_tcpx_work *tarn_tcpx_lane_next(struct tarn_tcpx_node_lane *n)
{
    while (true) {
        for (; n->posting < n->begun; n->posting++) {
            struct tarn_tcpx_work *w = work_at(n, n->posting);
            if (!w->over && w->posted < w->frame.bytes)
                return w;
        }
        if (n->begun == n->came)
            return NULL;
        begin(work_at(n, n->begun));
    }
}

/* Begins works before there is room for them, so that the client is ready in time. Begins several at once,
 * so that their answers are sent together. */
static void begin_ahead(struct tarn_tcpx_node_lane *n)
{
    if (n->begun - n->over > AHEAD / 2)
        return;
    while (n->begun < n->came && n->begun - n->over < AHEAD)
        begin(work_at(n, n->begun));
}

static int post_some(struct tarn_tcpx_node_lane *n)
{
    struct tarn_tcpx_work *w;
    int moved = 0;
    if (tarn_tcpx_lends(n) && !n->puts)
        return tarn_tcpx_window_send(n);
    while (tarn_tcpx_comm_room(n->comm) && (w = tarn_tcpx_lane_next(n))) {
        int rc = post(w);
        if (rc)
            return rc == TARN_E_AGAIN ? moved : rc;
        moved = 1;
    }
    return moved;
}

static void reap(struct tarn_tcpx_node_lane *n)
{
    while (n->over < n->begun && work_at(n, n->over)->over)
        n->over++;
    if (n->posting < n->over)
        n->posting = n->over;
}

bool tarn_tcpx_lane_busy(const struct tarn_tcpx_node_lane *n)
{
    return !n->ready || n->over < n->came;
}

/* AGAIN: listen has not returned. */
static int tell_handle(struct tarn_tcpx_node_lane *n)
{
    uint8_t handle[TARN_TCPX_HANDLE];
    int rc = tarn_tcpx_comm_handle(n->comm, handle);
    if (rc)
        return rc;
    tarn_tcpx_wire_say(&n->link->wire, (struct tarn_tcpx_frame){.op = TARN_TCPX_HANDLE_IS, .lane = n->id},
                       handle);
    n->told = true;
    return 0;
}

/* AGAIN: not ready yet. */
static int get_ready(struct tarn_tcpx_node_lane *n)
{
    int rc = tarn_tcpx_comm_poll(n->comm);
    if (n->puts && !n->told && (!rc || rc == TARN_E_AGAIN)) {
        int told = tell_handle(n);
        rc = told ? told : rc;
    }
    if (!rc)
        rc = tarn_tcpx_lends(n) ? tarn_tcpx_window_ready(n)
                                : tarn_tcpx_ranges_own(n->comm, pool_of(n)->base, pool_of(n)->bytes,
                                                       pool_of(n)->kind == TARN_POOL_GPU);
    n->ready = rc == 0;
    if (n->ready)
        tarn_tcpx_wire_say(&n->link->wire, (struct tarn_tcpx_frame){.op = TARN_TCPX_UP, .lane = n->id}, NULL);
    return rc;
}

int tarn_tcpx_lane_move(struct tarn_tcpx_node_lane *n)
{
    int rc = n->ready ? 0 : get_ready(n);
    if (rc)
        return rc == TARN_E_AGAIN ? 0 : rc;
    begin_ahead(n);
    /* Tell the client before posting, which may copy at once. A failure will show again. */
    tarn_tcpx_wire_flush(&n->link->wire);
    int posted = post_some(n);
    int moved = posted < 0 ? posted : tarn_tcpx_comm_progress(n->comm);
    reap(n);
    return moved < 0 ? moved : posted | moved;
}

int tarn_tcpx_lane_ask(struct tarn_tcpx_node_lane *n, const struct tarn_tcpx_frame *f)
{
    if (n->puts != (f->op == TARN_TCPX_PUT))
        return tarn_fail(TARN_E_PROTOCOL, "a request that this lane is not for");
    if (n->came - n->over == TARN_TCPX_OPS)
        return tarn_fail(TARN_E_PROTOCOL, "more than %d requests of a lane at once", TARN_TCPX_OPS);
    *work_at(n, n->came++) = (struct tarn_tcpx_work){.lane = n, .frame = *f, .notice = n->notice};
    n->notice = NULL;
    return 0;
}

/* Asks once whether a GPU can write to the pool's memory. */
static struct tarn_tcpx_into into_of(const struct tarn_tcpx_node_lane *n)
{
    struct tarn_cuda_memory m = {.kind = n->gpu < 0 ? TARN_CUDA_HOST : TARN_CUDA_DEVICE};
    if (n->gpu < 0 && !tarn_tcpx_lends(n))
        tarn_cuda_memory_of(pool_of(n)->base, &m);
    return (struct tarn_tcpx_into){.kind = m.kind, .device = n->gpu};
}

/* Its comm, and what it sends from. */
static int open_lane(struct tarn_tcpx_node_lane *n, const uint8_t *handle)
{
    int rc = tarn_tcpx_lends(n) ? tarn_tcpx_window_open(n) : 0;
    if (!rc)
        rc = tarn_tcpx_comm_new(&n->link->node->gear, n->gpu, moved, n->puts ? NULL : handle, &n->comm);
    if (rc)
        tarn_tcpx_window_close(n);
    return rc;
}

int tarn_tcpx_lane_open(struct tarn_tcpx_node_link *l, const struct tarn_tcpx_message *m)
{
    struct tarn_tcpx_node_lane *n;
    DL_SEARCH_SCALAR(l->lanes, n, id, m->frame.lane);
    struct tarn_tcpx_node *s = l->node;
    bool there = s->half.serve.guard.pin_lease ? m->frame.pool < s->half.serve.npools
                                               : tarn_tcpx_serves(&s->half, m->frame.pool);
    if (n || !there)
        return tarn_fail(TARN_E_PROTOCOL, "a lane that is open already, or to no pool");
    if (l->nlanes == TARN_TCPX_LANES)
        return tarn_fail(TARN_E_PROTOCOL, "more than %d lanes of a link", TARN_TCPX_LANES);
    n = calloc(1, sizeof(*n));
    if (!n)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory for a lane");
    n->link = l;
    n->id = m->frame.lane;
    n->pool = m->frame.pool;
    n->puts = m->frame.flags & TARN_TCPX_PUTS;
    n->gpu = tarn_tcpx_gpu(s, n->pool);
    if (n->gpu == TARN_TCPX_UNLENT) /* each work on it will be STALE */
        n->gpu = -1;
    n->into = into_of(n);
    int rc = open_lane(n, m->body);
    if (rc) {
        free(n);
        return rc;
    }
    DL_APPEND(l->lanes, n);
    l->nlanes++;
    return 0;
}

int tarn_tcpx_lane_close(struct tarn_tcpx_node_lane *n)
{
    int rc = tarn_tcpx_comm_close(n->comm);
    if (rc)
        return rc;
    tarn_tcpx_window_close(n);
    for (; n->over < n->begun; n->over++)
        unpin(work_at(n, n->over));
    DL_DELETE(n->link->lanes, n);
    n->link->nlanes--;
    free(n);
    return 0;
}
