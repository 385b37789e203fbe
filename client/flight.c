/* SPDX-License-Identifier: Apache-2.0 */
#include "client/flight.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

#include "client/client.h"
#include "client/health.h"
#include "client/known.h"
#include "client/link.h"
#include "client/side.h"

/* Links without a descriptor (copies by a GPU) are polled: without a pause for SPIN_NS, then with naps of a
 * quarter of the time waited so far, up to BLIND_NS. */
#define BLIND_NS (TARN_NS_PER_MS / 2)
#define SPIN_NS 50000
/* Other links are polled at least this often: some notice only in progress() that nothing will come. */
#define SLICE_NS (TARN_WAIT_SLICE_MS * TARN_NS_PER_MS)

void tarn_flight_init(struct tarn_flight *f, struct tarn_client *c, struct tarn_cancel *cancel)
{
    f->client = c;
    f->links = NULL;
    f->fds = NULL;
    f->nlinks = f->room = f->inflight = 0;
    f->ended = NULL;
    f->cancel = cancel;
}

static void transfer_end(struct tarn_transfer *x, enum tarn_end end)
{
    struct tarn_flight_link *fl = x->fl;

    DL_DELETE(fl->transfers, x);
    x->fresh = fl->fresh;
    fl->flight->inflight--;
    x->end = end;
    LL_PREPEND(fl->flight->ended, x);
}

/* What the closing of its flight link means for a transfer. */
static enum tarn_end own_end(const struct tarn_transfer *x, const struct tarn_flight_link *fl)
{
    if (tarn_canceled(x->cancel))
        return TARN_END_CANCELED;
    if (x->deadline_ns <= fl->closing_ns)
        return TARN_END_EXPIRED;
    return fl->closing;
}

static void work_done(struct tarn_work *w)
{
    struct tarn_transfer *x = w->owner;

    if (w->why) {
        x->refused = true;
        x->why->code = w->status;
        snprintf(x->why->text, sizeof x->why->text, "%s", w->why);
    }
    enum tarn_end own = x->fl->closing ? own_end(x, x->fl) : TARN_END_DONE;
    bool cut = w->status == TARN_E_CANCELED || own == TARN_END_CANCELED || own == TARN_END_EXPIRED;
    transfer_end(x, cut ? own : TARN_END_DONE);
}

/* How long to wait for the answer to DETACH: not at all for gets, nor for a silent node. */
static uint64_t detach_until(const struct tarn_flight_link *fl)
{
    uint64_t until = fl->closing_ns + fl->patience_ns;

    if (!fl->side->write || fl->closing == TARN_END_SILENT)
        return 0;
    return until < fl->closing_ns || until > fl->deadline_ns ? fl->deadline_ns : until;
}

static void flight_link_close(struct tarn_flight_link *fl, enum tarn_end why)
{
    fl->closing = why;
    fl->closing_ns = tarn_now_ns();
    if (fl->open_link && !tarn_link_close(fl->open_link, detach_until(fl), fl->flight->cancel))
        fl->loose |= fl->side->write;
    fl->open_link = NULL;
    while (fl->transfers)
        transfer_end(fl->transfers, own_end(fl->transfers, fl));
    fl->unposted = NULL;
    fl->closing = TARN_END_DONE;
}

static void refused(struct tarn_transfer *x, int status)
{
    x->refused = true;
    x->work.status = tarn_reason_keep(x->why, status);
}

/*
 * May the link write to the extent? The node takes reservations back when the session has lost all its
 * connections, and stops the links it had, but the session can begin another term with new links. rdma would
 * then write into another client's object: nothing compares generations there.
 */
static int check_term(const struct tarn_open_link *l, const struct tarn_transfer *x)
{
    if (!l->side->write || x->term >= l->term)
        return 0;
    return tarn_fail(TARN_E_STALE, "node %s: has dropped the reservation", l->side->node->key.id);
}

/* Gives the work to the link, which must know its window. As get() and put() return. */
static int give(struct tarn_open_link *l, struct tarn_transfer *x, struct tarn_cancel *cancel)
{
    int rc = x->work.lease ? tarn_link_know(l, &x->work, x->deadline_ns, cancel) : check_term(l, x);

    if (rc != 0)
        return rc;
    return l->side->write ? l->ops->put(l->link, &x->work) : l->ops->get(l->link, &x->work);
}

/* Posts what the link has room for. */
static void flight_link_post(struct tarn_flight_link *fl)
{
    while (fl->unposted) {
        struct tarn_transfer *x = fl->unposted;
        int rc = give(fl->open_link, x, fl->flight->cancel);
        if (rc == TARN_E_AGAIN)
            return;
        fl->unposted = x->next;
        if (rc == TARN_INPROGRESS) {
            fl->kick = true;
            continue;
        }
        if (rc < 0)
            refused(x, rc);
        transfer_end(x, TARN_END_DONE);
    }
}

static struct tarn_flight_link *flight_link_find(const struct tarn_flight *f, const struct tarn_side *s)
{
    struct tarn_flight_link *fl = f->links;

    while (fl && fl->side != s)
        fl = fl->next;
    return fl;
}

/* Makes room to poll one more flight link. A single one without a cancel's descriptor needs no poll. */
static bool grow(struct tarn_flight *f)
{
    if (f->nlinks < f->room || (f->nlinks == 0 && tarn_cancel_fd(f->cancel) < 0))
        return true;
    uint32_t room = f->room ? f->room * 2 : 8;
    void *fds = realloc(f->fds, (room + 1) * sizeof(struct pollfd));
    if (!fds)
        return false;
    f->fds = fds;
    f->room = room;
    return true;
}

static struct tarn_flight_link *flight_link_new(struct tarn_flight *f, struct tarn_side *s)
{
    struct tarn_flight_link *fl = &f->first;

    if (!grow(f) || (f->nlinks > 0 && !(fl = malloc(sizeof *fl))))
        return NULL;
    *fl = (struct tarn_flight_link){.side = s, .flight = f};
    LL_PREPEND(f->links, fl);
    f->nlinks++;
    return fl;
}

/* Transfers inline on the side's shared link. NODE_DOWN: the link was just retired. */
static int post_shared(struct tarn_flight *f, struct tarn_side *s, struct tarn_transfer *x)
{
    uint32_t stripe = (uint32_t)x->work.slot % TARN_STRIPES;
    struct tarn_open_link *l = tarn_side_enter(s, stripe);

    if (!l)
        return tarn_fail(TARN_E_NODE_DOWN, "node %s: its connection broke", s->node->key.id);
    int rc = give(l, x, f->cancel);
    tarn_side_leave(s, stripe);
    if (rc < 0)
        refused(x, rc);
    x->end = TARN_END_DONE;
    LL_PREPEND(f->ended, x);
    return 0;
}

/* Takes an idle link, or makes one, which may take a while. */
static int flight_link_open(struct tarn_flight_link *fl, struct tarn_transfer *x, uint64_t until_ns)
{
    uint64_t until = until_ns < x->deadline_ns ? until_ns : x->deadline_ns;
    struct tarn_open_link *l;

    fl->fresh = false;
    fl->open_link = tarn_link_take_idle(fl->side);
    if (fl->open_link)
        return 0;
    int rc = tarn_link_take(fl->side, until, x->patience_ns, fl->flight->cancel, &l, &fl->fresh);
    if (rc == 0)
        fl->open_link = l;
    return rc;
}

bool tarn_flight_opens(const struct tarn_flight *f, struct tarn_side *s)
{
    if (atomic_load(&s->state) == TARN_SIDE_SHARED)
        return false;
    const struct tarn_flight_link *fl = flight_link_find(f, s);
    return !(fl && fl->open_link) && atomic_load(&s->nidle) == 0;
}

int tarn_flight_post(struct tarn_flight *f, struct tarn_side *s, struct tarn_transfer *x, uint64_t until_ns)
{
    struct tarn_flight_link *fl = NULL;

    x->work.done = work_done;
    x->work.owner = x;
    x->fl = NULL;
    x->fresh = true;
    x->refused = false;
    x->work.why = NULL; /* it may point into an earlier link */
    if (atomic_load(&s->state) != TARN_SIDE_SHARED) {
        fl = flight_link_find(f, s);
        if (!fl && !(fl = flight_link_new(f, s)))
            return tarn_fail(TARN_E_NO_MEMORY, "transfer: out of memory");
        int rc = fl->open_link ? 0 : flight_link_open(fl, x, until_ns);
        if (rc != 0)
            return rc;
    }
    if (!fl || !fl->open_link)
        return post_shared(f, s, x);

    if (!fl->transfers) {
        fl->since_ns = tarn_now_ns();
        fl->active_ns = fl->ended_ns = fl->since_ns;
        fl->deadline_ns = UINT64_MAX;
        fl->patience_ns = UINT64_MAX;
    }
    if (x->deadline_ns < fl->deadline_ns)
        fl->deadline_ns = x->deadline_ns;
    if (x->patience_ns < fl->patience_ns)
        fl->patience_ns = x->patience_ns;
    x->fl = fl;
    f->inflight++;
    DL_APPEND(fl->transfers, x);
    if (!fl->unposted)
        fl->unposted = x;
    flight_link_post(fl);
    return 0;
}

/* --- waiting ------------------------------------------------------------------------------------ */

static uint64_t flight_link_alarm(const struct tarn_flight_link *fl)
{
    uint64_t quiet = fl->active_ns + fl->patience_ns;
    if (quiet < fl->active_ns)
        quiet = UINT64_MAX;
    return quiet < fl->deadline_ns ? quiet : fl->deadline_ns;
}

/* Computes the earliest deadline and the shortest patience again: their transfer may have ended. */
static void flight_link_limits(struct tarn_flight_link *fl)
{
    struct tarn_transfer *x;

    fl->deadline_ns = fl->patience_ns = UINT64_MAX;
    DL_FOREACH (fl->transfers, x) {
        if (x->deadline_ns < fl->deadline_ns)
            fl->deadline_ns = x->deadline_ns;
        if (x->patience_ns < fl->patience_ns)
            fl->patience_ns = x->patience_ns;
    }
}

/* Since when nothing came over the side. A transfer's patience may be cut short to leave time for other
 * copies; so silence is also counted from one link to the next. */
static uint64_t quiet_since(struct tarn_flight_link *fl)
{
    const struct tarn_side *side = fl->side;
    uint64_t since = fl->active_ns;
    struct tarn_transfer *x;

    DL_FOREACH (fl->transfers, x) {
        if (x->quiet_on != side || fl->active_ns != fl->since_ns)
            x->quiet_ns = fl->active_ns;
        x->quiet_on = side;
        if (x->quiet_ns < since)
            since = x->quiet_ns;
    }
    return since;
}

/* Its alarm has passed: closes it if a transfer's patience or deadline is really over. */
static void flight_link_check(struct tarn_flight_link *fl, uint64_t now)
{
    struct tarn_side *s = fl->side;
    char cause[160];

    flight_link_limits(fl);
    if (now > fl->active_ns && now - fl->active_ns >= fl->patience_ns) {
        snprintf(cause, sizeof cause, "node %s: no byte for %u ms: it is paused or cut off", s->node->key.id,
                 (unsigned)((now - fl->active_ns) / TARN_NS_PER_MS));
        tarn_link_silent(s, &fl->transfers->work, fl->active_ns, quiet_since(fl), cause);
        flight_link_close(fl, TARN_END_SILENT);
    } else if (now >= fl->deadline_ns) {
        /* A slow node is healthy. Only one that was silent for its patience is set aside. */
        uint64_t quiet = quiet_since(fl);
        if (now - quiet >= tarn_peer_node_patience(s->node)) {
            snprintf(cause, sizeof cause, "node %s: silent until the deadline", s->node->key.id);
            tarn_link_silent(s, &fl->transfers->work, fl->active_ns, quiet, cause);
        }
        flight_link_close(fl, TARN_END_SHIFTED);
    }
}

static void flight_link_progress(struct tarn_flight_link *fl)
{
    fl->kick = false;
    int moved = fl->open_link->ops->progress(fl->open_link->link);
    if (moved < 0) {
        flight_link_close(fl, TARN_END_BROKEN);
        return;
    }
    if (moved > 0)
        fl->active_ns = tarn_now_ns();
    flight_link_post(fl);
}

void tarn_flight_cancel(struct tarn_flight *f)
{
    for (struct tarn_flight_link *fl = f->links; fl; fl = fl->next) {
        struct tarn_transfer *x;
        DL_FOREACH (fl->transfers, x)
            if (tarn_canceled(x->cancel)) {
                flight_link_close(fl, TARN_END_SHIFTED);
                break;
            }
    }
}

static uint64_t blind_nap(const struct tarn_flight_link *fl, uint64_t now)
{
    uint64_t waited = now - fl->ended_ns, nap = waited < SPIN_NS ? 0 : waited / 4;
    return nap < BLIND_NS ? nap : BLIND_NS;
}

/* Fills the poll set. Returns when to wake up at the latest. */
static uint64_t fill_poll(struct tarn_flight *f, struct pollfd *fds)
{
    uint64_t now = tarn_now_ns(), until = now + SLICE_NS;
    struct pollfd *p = fds;

    for (struct tarn_flight_link *fl = f->links; fl; fl = fl->next, p++) {
        *p = (struct pollfd){.fd = -1};
        if (!fl->transfers)
            continue;
        p->fd = fl->open_link->ops->wait_fd(fl->open_link->link, &p->events);
        uint64_t alarm = p->fd < 0 ? now + blind_nap(fl, now) : flight_link_alarm(fl);
        if (alarm < until)
            until = alarm;
    }
    *p = (struct pollfd){.fd = tarn_cancel_fd(f->cancel), .events = POLLIN};
    return until;
}

void tarn_flight_push(struct tarn_flight *f)
{
    for (struct tarn_flight_link *fl = f->links; fl; fl = fl->next)
        if (fl->transfers && fl->kick)
            flight_link_progress(fl);
}

/* Ends canceled transfers. False: something canceled is not in flight, so the caller must end it. */
static bool end_canceled(struct tarn_flight *f)
{
    if (!f->cancel || (f->cancel->interrupt ? !tarn_cancel_ask(f->cancel) : !f->cancel->drained))
        return true;
    tarn_flight_cancel(f);
    f->cancel->drained = tarn_canceled(f->cancel); /* until the caller has ended it */
    return f->ended || !f->cancel->drained;
}

static void flight_wait(struct tarn_flight *f)
{
    struct pollfd *fds = f->fds;
    uint64_t until = fill_poll(f, fds), now = tarn_now_ns();
    uint64_t left = until > now ? until - now : 0;
    struct timespec timeout = {(time_t)(left / TARN_NS_PER_S), (long)(left % TARN_NS_PER_S)};
    int ready = ppoll(fds, f->nlinks + 1, &timeout, NULL);

    now = tarn_now_ns();
    if (ready > 0 && fds[f->nlinks].revents)
        tarn_cancel_drain(f->cancel);
    for (struct tarn_flight_link *fl = f->links; fl; fl = fl->next, fds++) {
        if (!fl->transfers)
            continue;
        uint32_t before = f->inflight;
        bool sign = ready > 0 && fds->revents;
        if (sign)
            fl->active_ns = now;
        if (sign || fds->fd < 0 || ready == 0)
            flight_link_progress(fl);
        if (f->inflight < before)
            fl->active_ns = fl->ended_ns = now;
        if (fl->transfers && flight_link_alarm(fl) <= now)
            flight_link_check(fl, now);
    }
}

/* The only flight link with transfers, if no descriptor cancels them: then the link itself can wait. */
static struct tarn_flight_link *lone_link(const struct tarn_flight *f)
{
    struct tarn_flight_link *lone = NULL;

    if (tarn_cancel_fd(f->cancel) >= 0)
        return NULL;
    for (struct tarn_flight_link *fl = f->links; fl; fl = fl->next) {
        if (!fl->transfers)
            continue;
        if (lone)
            return NULL;
        lone = fl;
    }
    return lone;
}

/* Sends, waits and receives by the link's own wait(), which takes fewer system calls than a poll. */
static void flight_link_wait(struct tarn_flight_link *fl)
{
    uint64_t until = flight_link_alarm(fl),
             slice = fl->flight->cancel ? tarn_now_ns() + SLICE_NS : UINT64_MAX;

    fl->kick = false;
    int moved = fl->open_link->ops->wait(fl->open_link->link, until < slice ? until : slice);
    if (moved < 0) {
        flight_link_close(fl, TARN_END_BROKEN);
        return;
    }
    flight_link_post(fl);
    if (!fl->transfers)
        return;
    uint64_t now = tarn_now_ns();
    if (moved > 0)
        fl->active_ns = now;
    if (flight_link_alarm(fl) <= now)
        flight_link_check(fl, now);
}

struct tarn_transfer *tarn_flight_next(struct tarn_flight *f)
{
    while (!f->ended && f->inflight > 0) {
        if (!end_canceled(f))
            return NULL;
        if (f->ended)
            break;
        struct tarn_flight_link *lone = lone_link(f);
        if (lone) {
            flight_link_wait(lone);
            continue;
        }
        tarn_flight_push(f);
        if (!f->ended && f->inflight > 0)
            flight_wait(f);
    }
    struct tarn_transfer *x = f->ended;
    if (x)
        LL_DELETE(f->ended, x);
    return x;
}

void tarn_flight_drop(const struct tarn_flight *f, const struct tarn_side *s)
{
    struct tarn_flight_link *fl = flight_link_find(f, s);
    if (fl && fl->open_link && !fl->transfers)
        flight_link_close(fl, TARN_END_SHIFTED);
}

void tarn_flight_end(struct tarn_flight *f)
{
    for (struct tarn_flight_link *fl = f->links, *next; fl; fl = next) {
        next = fl->next;
        if (fl->transfers)
            flight_link_close(fl, TARN_END_SHIFTED);
        if (fl->open_link)
            tarn_link_give(fl->open_link);
        if (fl != &f->first)
            free(fl);
    }
    free(f->fds);
    tarn_flight_init(f, f->client, NULL);
}
