/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: moving the bytes into reserved extents, through the best transport that gives write access. */
#include "client/put_write.h"

#include <stdlib.h>
#include <string.h>

#include "base/container.h"
#include "client/health.h"
#include "client/link.h"
#include "client/peer_nodes.h"
#include "client/put_plan.h"
#include "client/side.h"
#include "transport/layout.h"

static bool choose(const struct tarn_put *p, const struct tarn_target *t, uint64_t now_ns, struct tarn_way *w)
{
    const struct tarn_loc l = {.node = t->node, .pool = t->pool};
    const struct tarn_choice q = {
        .locs = &l, .nlocs = 1, .gpu = t->x.work.gpu, .write = true, .tried = t->tried};

    return tarn_way_choose(p->client, &q, now_ns, w);
}

/* The job fails. again: it is worth another try. */
static void lose(struct tarn_target *t, int code, bool again)
{
    t->state = TARN_TARGET_LOST;
    if (t->job->failure.code == 0)
        t->job->again = again;
    tarn_job_fail(t->job, code);
}

/* Checks pieces that were only glanced at. False: something is wrong. */
static bool look(struct tarn_target *t)
{
    int rc = tarn_work_look(&t->x.work);

    if (rc == TARN_E_SIZE && t->x.work.seen->at_most)
        t->misfit = true;
    else if (rc != 0)
        lose(t, rc, false);
    return rc == 0;
}

/* Makes pieces of a work's pages. False: out of memory. */
static bool make_pieces(struct tarn_target *t)
{
    struct tarn_work *w = &t->x.work;
    int rc = tarn_layout_pieces(w->layout, w->pages, w->npieces, &t->made, &w->npieces);

    if (rc != 0) {
        lose(t, rc, false);
        return false;
    }
    w->layout = NULL;
    w->pieces = t->made;
    return true;
}

static bool post(struct tarn_put *p, struct tarn_target *t)
{
    struct tarn_reason busy;
    int rc;

    busy.code = 0;
    for (uint64_t now = tarn_now_ns(); choose(p, t, now, &t->way); now = tarn_now_ns()) {
        if (t->x.work.seen && !(t->way.side->ops->caps & TARN_CAP_CHECKS) && !look(t))
            return false;
        if (tarn_layout_wants_pieces(t->x.work.layout, t->way.side->ops->caps) && !make_pieces(t))
            return false;
        tarn_tell_route(t->way.side, &p->items[t->job->index].key, t->pool, t->x.work.gpu);
        rc = tarn_flight_post(&p->flight, t->way.side, &t->x, UINT64_MAX);
        if (rc == 0)
            return true;
        if (rc == TARN_E_NODE_DOWN || rc == TARN_E_TIMEOUT || rc == TARN_E_CANCELED) {
            lose(t, rc, rc != TARN_E_CANCELED);
            t->job->busy |= rc == TARN_E_TIMEOUT && tarn_side_awaited(t->way.side);
            return false;
        }
        if (rc == TARN_E_BUSY)
            tarn_reason_keep(&busy, rc);
        t->tried |= tarn_way_bit(&t->way);
    }
    if (busy.code && tarn_now_ns() >= p->deadline_ns)
        lose(t, tarn_fail(TARN_E_TIMEOUT, "%s", busy.text), false);
    else if (atomic_load(&t->node->health) == TARN_UP)
        lose(t, tarn_link_unreachable(t->node, true, t->x.work.gpu), false);
    else
        lose(t, tarn_peer_node_fail(t->node, TARN_E_NODE_DOWN, "does not answer"), true);
    return false;
}

/* Aims at `bytes` bytes from `offset` of the object on. The caller sets where they come from. */
static void aim(const struct tarn_put *p, struct tarn_target *t, uint64_t offset, uint64_t bytes)
{
    bool others = !p->fixed && p->ncandidates > p->replicas;

    t->x.work = (struct tarn_work){
        .pool = t->pool, .slot = t->slot, .gen = t->gen, .offset = t->offset + offset, .bytes = bytes};
    t->x.term = t->term;
    t->x.deadline_ns = p->deadline_ns;
    t->x.patience_ns = others ? tarn_peer_node_patience(t->node) : UINT64_MAX;
    t->x.cancel = p->cancel;
    t->x.quiet_on = NULL;
    t->x.why = &t->refusal;
    t->tried = 0;
    t->misfit = false;
    free(t->made);
    t->made = NULL;
}

/* Unless the time is over. */
static bool post_in_time(struct tarn_put *p, struct tarn_target *t)
{
    bool canceled = tarn_canceled(p->cancel);

    if (!canceled && tarn_now_ns() < p->deadline_ns)
        return post(p, t);
    lose(t,
         canceled ? tarn_cancel_fail()
                  : tarn_fail(TARN_E_TIMEOUT, "the deadline has passed: raise timeout_ms"),
         false);
    return false;
}

bool tarn_target_post(struct tarn_put *p, struct tarn_target *t, uint64_t offset, uint64_t bytes,
                      const struct tarn_item *from)
{
    struct tarn_work *w = &t->x.work;
    int rc = 0;

    aim(p, t, offset, bytes);
    w->pieces = from->pieces;
    w->npieces = from->npieces;
    w->layout = from->layout;
    w->pages = from->pages;
    if (w->layout)
        w->gpu = w->layout->gpu;
    else if (tarn_pieces_glance(w->pieces, w->npieces, &p->seen, &w->gpu))
        w->seen = &p->seen;
    else
        rc = tarn_pieces_gpu(w->pieces, w->npieces, &p->seen, &w->gpu);
    if (rc != 0) {
        lose(t, rc, false);
        return false;
    }
    return post_in_time(p, t);
}

/* --- outcomes ----------------------------------------------------------------------------------- */

/* Writes again to the same extent, unless an earlier write may still arrive there; then to another one. */
static void write_again(struct tarn_put *p, struct tarn_target *t)
{
    if (!t->x.fl || !t->x.fl->loose)
        post(p, t);
    else if (tarn_canceled(p->cancel))
        lose(t, tarn_cancel_fail(), false);
    else
        lose(t,
             tarn_peer_node_fail(t->node, TARN_E_NODE_DOWN,
                                 "has not said that what a broken connection wrote has ended: look at the "
                                 "node"),
             true);
}

static void broken(struct tarn_put *p, struct tarn_target *t)
{
    struct tarn_way again;

    if (!t->x.fresh && choose(p, t, tarn_now_ns(), &again) &&
        tarn_now_ns() < p->deadline_ns) { /* a pooled link has died: once more on a new one */
        tarn_link_flush(t->way.side);
        write_again(p, t);
        return;
    }
    struct tarn_reason why;
    tarn_reason_keep(
        &why, tarn_peer_node_fail(t->node, TARN_E_NODE_DOWN, "the data connection broke during a put"));
    if (tarn_link_lost(t->way.side, t->pool, t->x.work.gpu, why.text)) {
        t->tried |= tarn_way_bit(&t->way);
        write_again(p, t);
        return;
    }
    tarn_peer_node_failed(t->node, why.code, why.text, 0);
    lose(t, tarn_reason_fail(&why), true);
}

static void refused(struct tarn_target *t, int status)
{
    const char *why = t->x.refused ? t->x.why->text : tarn_strerror(status);

    lose(t, tarn_peer_node_fail(t->node, status, "%s", why), false);
}

static void done(struct tarn_put *p, struct tarn_target *t)
{
    struct tarn_way again;
    int status = t->x.work.status;

    switch (status) {
    case 0:
        t->state = TARN_TARGET_WRITTEN;
        break;
    case TARN_E_NOT_REACHABLE: /* by this transport */
    case TARN_E_UNAVAILABLE:
        t->tried |= tarn_way_bit(&t->way);
        if (choose(p, t, tarn_now_ns(), &again))
            post(p, t);
        else
            refused(t, status);
        break;
    case TARN_E_AUTH: /* the session had ended before the link's HELLO */
    case TARN_E_NODE_DOWN:
        broken(p, t);
        break;
    case TARN_E_STALE: /* the session has ended, and the reservation with it */
        t->granted = false;
        lose(t, tarn_peer_node_fail(t->node, TARN_E_NODE_DOWN, "has dropped the reservation"), true);
        break;
    case TARN_E_UNSUPPORTED: /* pages, over this way */
        if (!t->x.work.layout)
            refused(t, status);
        else if (make_pieces(t))
            post(p, t);
        break;
    default:
        if (!t->x.work.seen || look(t))
            refused(t, status);
        break;
    }
}

static void landed(struct tarn_put *p, struct tarn_target *t)
{
    switch (t->x.end) {
    case TARN_END_DONE:
        done(p, t);
        break;
    case TARN_END_BROKEN:
        broken(p, t);
        break;
    case TARN_END_SILENT:
        lose(t, tarn_peer_node_fail(t->node, TARN_E_NODE_DOWN, "does not answer: it is paused or cut off"),
             true);
        break;
    case TARN_END_EXPIRED:
        lose(t,
             tarn_peer_node_fail(t->node, TARN_E_TIMEOUT,
                                 "the deadline passed during the transfer: raise timeout_ms"),
             false);
        break;
    case TARN_END_CANCELED:
        lose(t, tarn_cancel_fail(), false);
        break;
    case TARN_END_SHIFTED:
        write_again(p, t);
        break;
    }
}

void tarn_put_written(struct tarn_put *p)
{
    for (struct tarn_transfer *x; (x = tarn_flight_next(&p->flight)) != NULL;)
        landed(p, TARN_CONTAINER_OF(x, struct tarn_target, x));
}

void tarn_chunk_write(struct tarn_put *p, struct tarn_chunk *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        struct tarn_put_job *job = &c->jobs[i];
        const struct tarn_item *item = &p->items[job->index];
        for (uint32_t k = 0; k < p->replicas && job->failure.code == 0; k++)
            if (job->targets[k].state == TARN_TARGET_RESERVED) /* else STORE writes it */
                tarn_target_post(p, &job->targets[k], 0, item->tensor.bytes, item);
    }
    tarn_put_written(p);
}
