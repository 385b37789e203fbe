/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets: one attempt at one copy by one transport, and what its outcome means for the job.
 *
 * While other copies are left, a node has its patience (patience.h), and at most half of the time left, to
 * show a sign of life. The same holds for the last copy in a descriptor that is not fresh from the directory,
 * since there may be another copy by now. The last copy that the directory knows has the whole deadline.
 *
 * A writer that replaces an object faster than it can be read would starve readers of one-sided transports.
 * So after two stale reads a hazard (view) holds the extent while it is copied.
 */
#include "client/get_attempt.h"

#include <string.h>

#include "base/container.h"
#include "client/cache.h"
#include "client/health.h"
#include "client/link.h"
#include "client/peer_nodes.h"
#include "client/side.h"

#define PINNED_AFTER 2

/* --- one attempt -------------------------------------------------------------------------------- */

/* Copies under a hazard: once the generation is checked, no writer can make the read stale. */
static int get_pinned(struct tarn_open_link *l, struct tarn_work *w)
{
    struct tarn_cursor at = {0};
    const void *from;
    uint32_t hazard;
    void *to;
    int rc = l->ops->view(l->link, w->pool, w->slot, w->gen, w->offset, w->bytes, &from, &hazard);

    if (rc != 0)
        return rc;
    for (uint64_t done = 0, n; (n = tarn_cursor_next(&at, w->pieces, w->npieces, UINT64_MAX, &to)) > 0;
         done += n)
        memcpy(to, (const char *)from + done, n);
    l->ops->unview(l->link, hazard);
    if (w->touch)
        l->ops->touch(l->link, w->pool, w->slot);
    return 0;
}

/* False: the job must take the ordinary way. */
static bool try_pinned(struct tarn_get_job *j)
{
    struct tarn_side *s = j->way.side;
    uint32_t stripe = j->x.work.slot % TARN_STRIPES;
    struct tarn_open_link *open_link = tarn_side_enter(s, stripe);
    int rc = TARN_E_UNSUPPORTED;

    if (!open_link)
        return false;
    if ((open_link->ops->caps & TARN_CAP_VIEW) && (open_link->ops->caps & TARN_CAP_SHARED))
        rc = get_pinned(open_link, &j->x.work);
    tarn_side_leave(s, stripe);
    if (rc != 0 && rc != TARN_E_STALE)
        return false;
    j->x.work.status = rc;
    j->x.end = TARN_END_DONE;
    return true;
}

/* tarn_last_copy.given */
static void given(struct tarn_work *w)
{
    struct tarn_transfer *x = w->owner;
    struct tarn_get_job *j = TARN_CONTAINER_OF(x, struct tarn_get_job, x);

    j->given |= j->get->calls->given(j->get, w);
}

/* May the directory still be asked when the node is silent? On the same host a get waits for the GPU, not for
 * the node. */
static bool may_ask(const struct tarn_get_job *j)
{
    return !j->asked && !(j->way.side->ops->caps & TARN_CAP_SAME_HOST);
}

/* How long the chosen copy's node may be silent. */
static uint64_t patience(const struct tarn_get_job *j)
{
    uint64_t now, most = tarn_peer_node_patience(tarn_get_copy(j)->node);

    if (!j->way.more && !may_ask(j))
        return UINT64_MAX;
    now = tarn_now_ns();
    uint64_t left = j->get->deadline_ns > now ? j->get->deadline_ns - now : 0;
    return left / 2 < most ? left / 2 : most;
}

static void aim(const struct tarn_get_batch *b, struct tarn_get_job *j, uint64_t bytes)
{
    const struct tarn_loc *l = tarn_get_copy(j);
    struct tarn_transfer *x = &j->x;

    tarn_work_aim(&x->work, tarn_get_item(j), l, bytes, j->get->flags, j->gpu);
    if (j->made) {
        x->work.layout = NULL;
        x->work.pieces = j->made;
        x->work.npieces = j->nmade;
    }
    if (j->get->calls) {
        j->last_copy = (struct tarn_last_copy){.given = given};
        x->work.last_copy = &j->last_copy;
    }
    if (j->glanced)
        x->work.seen = &j->get->seen;
    j->given = false;
    x->deadline_ns = j->get->deadline_ns;
    x->patience_ns = patience(j);
    x->cancel = j->get->cancel;
    x->why = &b->pasts[j - b->jobs].refusal;
}

enum tarn_get_move tarn_get_launch(struct tarn_get_batch *b, struct tarn_get_job *j, uint64_t bytes)
{
    struct tarn_transfer *x = &j->x;
    struct tarn_side *s = j->way.side;

    aim(b, j, bytes);
    j->stage = TARN_GET_FLYING;
    if (j->nstale >= PINNED_AFTER && try_pinned(j)) {
        tarn_get_landed(b, j);
        return TARN_GET_MOVED;
    }
    bool opens = b->open > 1 && tarn_flight_opens(&b->flight, s);
    uint64_t until = opens ? tarn_get_others_deadline(b, j) : UINT64_MAX;
    if (opens && tarn_now_ns() >= until) { /* the other job goes first */
        j->stage = TARN_GET_RESOLVED;
        return TARN_GET_LATER;
    }
    tarn_tell_route(s, &tarn_get_item(j)->key, x->work.pool, j->gpu);
    int rc = tarn_flight_post(&b->flight, s, x, until);
    if (rc == 0)
        return TARN_GET_MOVED;
    j->stage = TARN_GET_RESOLVED;
    bool canceled = rc == TARN_E_CANCELED && tarn_get_any_canceled(b);
    if (canceled || (rc == TARN_E_TIMEOUT && tarn_now_ns() >= until && tarn_now_ns() < x->deadline_ns))
        return TARN_GET_LATER; /* cut short for another job */
    struct tarn_reason *why = &tarn_get_past(b, j)->why;
    tarn_reason_keep(why, rc);
    /* A step of opening a link took too long: the node's failure, while there is time left. */
    if (rc == TARN_E_TIMEOUT && tarn_now_ns() < x->deadline_ns)
        why->code = TARN_E_NODE_DOWN;
    j->silent |= rc == TARN_E_NODE_DOWN || rc == TARN_E_TIMEOUT;
    j->tried |=
        rc == TARN_E_NODE_DOWN || rc == TARN_E_TIMEOUT ? tarn_way_bits_to(j->way.loc) : tarn_way_bit(&j->way);
    if (j->way.more)
        tarn_count(b->client, 0, TARN_COUNT_FAILOVERS, 1);
    return TARN_GET_MOVED;
}

/* --- outcomes ----------------------------------------------------------------------------------- */

static void stale(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    const struct tarn_item *item = tarn_get_item(j);
    const struct tarn_loc *l = tarn_get_copy(j);

    tarn_count(b->client, 0, TARN_COUNT_STALE, 1);
    tarn_cache_drop(b->client->cache, &item->key, tarn_key_hash(&item->key), l);
    tarn_get_past(b, j)->stale[j->nstale++ % TARN_GET_STALE_MAX] = *l;
    tarn_get_want_again(j);
}

/* The copy's node or link failed. */
static void failed(struct tarn_get_batch *b, struct tarn_get_job *j, int code, const char *cause)
{
    const struct tarn_loc *l = tarn_get_copy(j);
    struct tarn_reason *why = &tarn_get_past(b, j)->why;

    tarn_reason_keep(why, tarn_peer_node_fail(l->node, code, "%s", cause));
    j->stage = TARN_GET_RESOLVED;
    if (j->x.end != TARN_END_SILENT && !j->x.fresh) {
        /* A pooled link may have died of old age, which says nothing about the node. */
        tarn_link_flush(j->way.side);
        return;
    }
    tarn_count(b->client, 0, TARN_COUNT_FAILOVERS, 1);
    j->silent |= j->x.end == TARN_END_SILENT;
    if (j->x.end != TARN_END_SILENT) {
        if (tarn_link_lost(j->way.side, l->pool, j->gpu, why->text)) {
            j->tried |= tarn_way_bit(&j->way);
            return;
        }
        tarn_peer_node_aside(l->node, TARN_GONE, why->text);
    }
    j->tried |= tarn_way_bits_to(j->way.loc);
}

static void done(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    int status = j->x.work.status;

    if (status == 0) {
        tarn_get_job_finish(b, j, 0);
    } else if (status == TARN_E_STALE) {
        stale(b, j);
    } else if (status == TARN_E_NODE_DOWN ||
               status == TARN_E_AUTH) { /* AUTH: the session was over before HELLO */
        failed(b, j, status, "the data connection broke");
    } else if (j->x.work.seen && (status == TARN_E_INVALID || status == TARN_E_SIZE)) {
        tarn_get_look(b, j);
    } else if (j->x.work.layout && status == TARN_E_UNSUPPORTED) {
        tarn_get_make_pieces(b, j);
    } else {
        if (!j->x.refused)
            tarn_reason_keep(j->x.why, tarn_fail(status, "%s", tarn_strerror(status)));
        tarn_get_past(b, j)->why = *j->x.why;
        j->tried |= tarn_way_bit(&j->way);
        j->stage = TARN_GET_RESOLVED;
    }
}

static void landed(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    switch (j->x.end) {
    case TARN_END_DONE:
        done(b, j);
        break;
    case TARN_END_BROKEN:
        failed(b, j, TARN_E_NODE_DOWN, "the data connection broke");
        break;
    case TARN_END_SILENT:
        failed(b, j, TARN_E_NODE_DOWN, "does not answer: it is paused or cut off");
        break;
    case TARN_END_CANCELED:
        tarn_get_job_fail(b, j, tarn_cancel_fail());
        break;
    case TARN_END_SHIFTED:
        j->stage = TARN_GET_RESOLVED;
        break;
    case TARN_END_EXPIRED:
        tarn_peer_node_doubt(tarn_get_copy(j)->node);
        tarn_get_job_fail(
            b, j,
            tarn_peer_node_fail(tarn_get_copy(j)->node, TARN_E_TIMEOUT,
                                "the deadline passed during the transfer: raise timeout_ms or look at it"));
        break;
    }
}

/* A stream may have read this attempt's bytes, so another attempt must not bring others. */
static void not_again(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    int rc;

    if (j->x.end == TARN_END_SHIFTED)
        rc = tarn_fail(TARN_E_BUSY,
                       "a stream waits for its copy, and that was given up for another operation: get it "
                       "again");
    else if (j->x.end == TARN_END_DONE && j->x.work.status == TARN_E_STALE)
        rc = tarn_fail(TARN_E_STALE, "was replaced while it was read for a stream that waits: get it again");
    else
        rc = tarn_reason_fail(tarn_get_why(j));
    tarn_get_job_fail(b, j, rc);
}

void tarn_get_landed(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    if (j->given)
        j->get->calls->landed(j->get, &j->x.work);
    landed(b, j);
    if (j->given && j->stage != TARN_GET_FINAL && !j->get->calls->again(j->get))
        not_again(b, j);
}
