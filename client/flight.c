/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Works in flight: one thread's transfers over the links it has taken, each link a *lane*.
 *
 * A transfer is pending (its lane had no room yet) or posted (the transport has it) until it ends; then
 * it waits in `ended` for tarn_flight_next. A transport can only be made to let go of a work by closing
 * its link, so a transfer that must end early (deadline, stop, silence) closes its lane; the others on
 * it end as SHIFTED and may be sent again. Closed links never go back to the pool.
 *
 * Silence: a lane that has had works for as long as the shortest patience among them without its
 * descriptor becoming ready belongs to a node that does not answer.
 */
#include "client/flight.h"

#include <poll.h>
#include <stdlib.h>
#include <utlist.h>

#include "client/client.h"
#include "client/health.h"
#include "client/link.h"
#include "client/stop.h"

/* Links without a descriptor, where copies by a GPU are all there is to wait for, are looked at all the time
 * at first; then there are naps, of a quarter of what has been waited for, up to this. */
#define BLIND_NS (TARN_NS_PER_MS / 2)
#define SPIN_NS 50000
/* And for others: some notice only when they are asked that nothing will come. */
#define SLICE_NS (TARN_WAIT_SLICE_MS * TARN_NS_PER_MS)

void tarn_flight_init(struct tarn_flight *f, struct tarn_client *c, int stop_fd)
{
    f->client = c;
    f->lanes = NULL;
    f->fds = NULL;
    f->nlanes = f->room = f->inflight = 0;
    f->ended = NULL;
    f->stop_fd = stop_fd;
    f->others = NULL;
    f->of = NULL;
    f->look = false;
    f->until_ns = 0;
}

static void transfer_end(struct tarn_transfer *x, enum tarn_end end)
{
    struct tarn_lane *lane = x->lane;

    DL_DELETE(lane->transfers, x);
    x->fresh = lane->fresh;
    lane->flight->inflight--;
    x->end = end;
    LL_PREPEND(lane->flight->ended, x);
}

/* What the lane's closing means for one of its transfers. */
static enum tarn_end own_end(const struct tarn_transfer *x, const struct tarn_lane *lane)
{
    if (x->stop && atomic_load(x->stop))
        return TARN_END_STOPPED;
    if (x->deadline_ns <= lane->closing_ns)
        return TARN_END_EXPIRED;
    return lane->closing;
}

static void note_why(struct tarn_transfer *x, const struct tarn_work *w)
{
    if (w->why)
        snprintf(x->why, sizeof x->why, "%s", w->why);
}

static void work_done(struct tarn_work *w)
{
    struct tarn_transfer *x = w->owner;

    note_why(x, w);
    enum tarn_end own = x->lane->closing ? own_end(x, x->lane) : TARN_END_DONE;
    bool cut = w->status == TARN_E_CANCELED || own == TARN_END_STOPPED || own == TARN_END_EXPIRED;
    transfer_end(x, cut ? own : TARN_END_DONE);
}

/* Nobody waits for the node on account of gets, nor of one that is silent. */
static uint64_t detach_until(const struct tarn_lane *lane)
{
    uint64_t until = lane->closing_ns + lane->patience_ns;

    if (!lane->write || lane->closing == TARN_END_SILENT)
        return 0;
    return until < lane->closing_ns || until > lane->deadline_ns ? lane->deadline_ns : until;
}

static void lane_close(struct tarn_lane *lane, enum tarn_end why)
{
    struct tarn_flight *f = lane->flight;
    struct tarn_stop stop = {lane->stop, f->stop_fd, f->others, f->of};

    lane->closing = why;
    lane->closing_ns = tarn_now_ns();
    f->look |= lane->write; /* a stop may have been noticed in there */
    if (lane->linked && !tarn_link_close(lane->remote, lane->linked, detach_until(lane), &stop))
        lane->loose |= lane->write;
    lane->linked = NULL;
    while (lane->transfers)
        transfer_end(lane->transfers, own_end(lane->transfers, lane));
    lane->unposted = NULL;
    lane->closing = TARN_END_DONE;
}

static void refused(struct tarn_transfer *x, int status)
{
    x->work.status = status;
    snprintf(x->why, sizeof x->why, "%s", tarn_last_error());
}

/* Posts what the lane has room for. */
static void lane_post(struct tarn_lane *lane)
{
    while (lane->unposted) {
        struct tarn_transfer *x = lane->unposted;
        const struct tarn_transport_ops *ops = lane->linked->ops;
        int rc =
            lane->write ? ops->put(lane->linked->link, &x->work) : ops->get(lane->linked->link, &x->work);
        if (rc == TARN_E_AGAIN)
            return;
        lane->unposted = x->next;
        if (rc == TARN_INPROGRESS) {
            lane->kick = true;
            continue;
        }
        if (rc < 0)
            refused(x, rc);
        transfer_end(x, TARN_END_DONE);
    }
}

static struct tarn_lane *lane_find(const struct tarn_flight *f, struct tarn_remote *r, int t, bool write)
{
    struct tarn_lane *lane = f->lanes;

    while (lane && (lane->remote != r || lane->transport != t || lane->write != write))
        lane = lane->next;
    return lane;
}

/* Room to poll one more lane. A single one that nobody can stop waits in its own way, without a poll. */
static bool grow(struct tarn_flight *f)
{
    if (f->nlanes < f->room || (f->nlanes == 0 && f->stop_fd < 0))
        return true;
    uint32_t room = f->room ? f->room * 2 : 8;
    void *fds = realloc(f->fds, (room + 1) * sizeof(struct pollfd));
    if (!fds)
        return false;
    f->fds = fds;
    f->room = room;
    return true;
}

static struct tarn_lane *lane_new(struct tarn_flight *f, struct tarn_remote *r, int t, bool write)
{
    struct tarn_lane *lane = &f->first;

    if (!grow(f) || (f->nlanes > 0 && !(lane = malloc(sizeof *lane))))
        return NULL;
    *lane = (struct tarn_lane){.remote = r, .transport = t, .write = write, .flight = f};
    LL_PREPEND(f->lanes, lane);
    f->nlanes++;
    return lane;
}

/* One transfer on a shared link: done when this returns. NOT_REACHABLE: the link was just retired. */
static int post_shared(struct tarn_flight *f, struct tarn_remote *r, int t, bool write,
                       struct tarn_transfer *x)
{
    uint32_t stripe = (uint32_t)x->work.slot % TARN_STRIPES;
    struct tarn_linked *l = tarn_shared_enter(r, t, write, stripe);

    if (!l)
        return tarn_fail(TARN_E_NODE_DOWN, "node %s: its connection broke", r->key.id);
    int rc = write ? l->ops->put(l->link, &x->work) : l->ops->get(l->link, &x->work);
    tarn_shared_leave(r, t, write, stripe);
    if (rc < 0)
        refused(x, rc);
    x->end = TARN_END_DONE;
    LL_PREPEND(f->ended, x);
    return 0;
}

/* Makes a link, which may take a while. */
static int lane_make(struct tarn_lane *lane, struct tarn_transfer *x)
{
    struct tarn_stop stop = {x->stop, lane->flight->stop_fd, lane->flight->others, lane->flight->of};
    const struct tarn_net_stop connecting = {stop.fd, tarn_stop_seen, &stop};
    uint64_t until = x->deadline_ns;
    struct tarn_linked *l;

    if (lane->flight->until_ns && until > lane->flight->until_ns)
        until = lane->flight->until_ns;
    lane->flight->look = true;
    tarn_net_stop_by(stop.fd < 0 ? NULL : &connecting);
    int rc = tarn_link_take(lane->remote, lane->transport, lane->write, until, x->patience_ns, &stop, &l, &lane->fresh);
    tarn_net_stop_by(NULL);
    if (rc == 0)
        lane->linked = l;
    return rc;
}

static int lane_open(struct tarn_lane *lane, struct tarn_transfer *x)
{
    lane->fresh = false;
    lane->linked = tarn_link_take_idle(lane->remote, lane->transport, lane->write);
    return lane->linked ? 0 : lane_make(lane, x);
}

bool tarn_flight_opens(const struct tarn_flight *f, struct tarn_remote *r, int t, bool write)
{
    if (atomic_load(&r->sides[t][write].state) == TARN_SIDE_SHARED)
        return false;
    const struct tarn_lane *lane = lane_find(f, r, t, write);
    if (lane && lane->linked)
        return false;
    pthread_mutex_lock(&r->lock);
    bool idle = r->sides[t][write].idle != NULL;
    pthread_mutex_unlock(&r->lock);
    return !idle;
}

int tarn_flight_post(struct tarn_flight *f, struct tarn_remote *r, int t, bool write, struct tarn_transfer *x)
{
    struct tarn_lane *lane = NULL;

    x->work.done = work_done;
    x->work.owner = x;
    x->lane = NULL;
    x->fresh = true;
    x->why[0] = '\0';
    x->work.why = NULL; /* another transport's, whose link may be gone */
    if (atomic_load(&r->sides[t][write].state) != TARN_SIDE_SHARED) {
        lane = lane_find(f, r, t, write);
        if (!lane && !(lane = lane_new(f, r, t, write)))
            return tarn_fail(TARN_E_NO_MEMORY, "transfer: out of memory");
        int rc = lane->linked ? 0 : lane_open(lane, x);
        if (rc != 0)
            return rc;
    }
    if (!lane || !lane->linked)
        return post_shared(f, r, t, write, x);

    if (!lane->transfers) {
        lane->since_ns = lane->active_ns = lane->ended_ns = tarn_now_ns();
        lane->deadline_ns = UINT64_MAX;
        lane->patience_ns = UINT64_MAX;
    }
    if (x->deadline_ns < lane->deadline_ns)
        lane->deadline_ns = x->deadline_ns;
    if (x->patience_ns < lane->patience_ns)
        lane->patience_ns = x->patience_ns;
    x->lane = lane;
    lane->stop = x->stop;
    f->inflight++;
    DL_APPEND(lane->transfers, x);
    if (!lane->unposted)
        lane->unposted = x;
    lane_post(lane);
    return 0;
}

/* --- alone -------------------------------------------------------------------------------------- */

static void alone_done(struct tarn_work *w)
{
    struct tarn_transfer *x = w->owner;

    note_why(x, w);
    x->ended = true;
}

struct tarn_linked *tarn_link_at_hand(struct tarn_remote *r, int t, bool write)
{
    int state = atomic_load_explicit(&r->sides[t][write].state, memory_order_acquire);
    return state == TARN_SIDE_POOLED ? tarn_link_take_idle(r, t, write) : NULL;
}

bool tarn_flight_alone(struct tarn_linked *l, struct tarn_remote *r, int t, bool write,
                       struct tarn_transfer *x, uint64_t now, struct tarn_alone *a)
{
    a->linked = NULL;
    x->work.done = alone_done;
    x->work.owner = x;
    x->lane = NULL;
    x->ended = x->fresh = false;
    x->why[0] = '\0';
    x->work.why = NULL; /* another transport's, whose link may be gone */
    a->since_ns = now;
    int rc = write ? l->ops->put(l->link, &x->work) : l->ops->get(l->link, &x->work);
    if (rc == TARN_INPROGRESS) {
        uint64_t quiet = now + x->patience_ns;
        bool earlier = quiet >= now && quiet < x->deadline_ns;
        a->broken = l->ops->wait(l->link, earlier ? quiet : x->deadline_ns) < 0;
        if (!x->ended || x->work.status != 0 || a->broken) {
            a->linked = l;
            return false;
        }
        rc = 0;
    }
    tarn_link_give(r, t, write, l);
    return rc == 0 && x->work.status == 0;
}

void tarn_flight_adopt(struct tarn_flight *f, struct tarn_remote *r, int t, bool write,
                       struct tarn_transfer *x, const struct tarn_alone *a)
{
    struct tarn_lane *lane = lane_new(f, r, t, write); /* the first needs no memory */

    lane->linked = a->linked;
    lane->since_ns = lane->active_ns = lane->ended_ns = a->since_ns;
    lane->deadline_ns = x->deadline_ns;
    lane->patience_ns = x->patience_ns;
    lane->stop = x->stop;
    x->work.done = work_done;
    x->lane = lane;
    f->inflight++;
    DL_APPEND(lane->transfers, x);
    if (x->ended)
        transfer_end(x, TARN_END_DONE);
    if (a->broken)
        lane_close(lane, TARN_END_BROKEN);
}

/* --- waiting ------------------------------------------------------------------------------------ */

static uint64_t lane_alarm(const struct tarn_lane *lane)
{
    uint64_t quiet = lane->active_ns + lane->patience_ns;
    if (quiet < lane->active_ns)
        quiet = UINT64_MAX;
    return quiet < lane->deadline_ns ? quiet : lane->deadline_ns;
}

/* The shortest patience again, now that the one noted is over: its transfer may have ended. */
static bool lane_silent(struct tarn_lane *lane, uint64_t now)
{
    struct tarn_transfer *x;
    uint64_t silent = now - lane->active_ns;

    if (now <= lane->active_ns || silent < lane->patience_ns)
        return false;
    lane->patience_ns = UINT64_MAX;
    DL_FOREACH (lane->transfers, x)
        if (x->patience_ns < lane->patience_ns)
            lane->patience_ns = x->patience_ns;
    return silent >= lane->patience_ns;
}

/* The earliest deadline again, now that the one noted is over. True when a transfer's own has passed. */
static bool lane_expired(struct tarn_lane *lane, uint64_t now)
{
    struct tarn_transfer *x;

    if (now < lane->deadline_ns)
        return false;
    lane->deadline_ns = UINT64_MAX;
    DL_FOREACH (lane->transfers, x)
        if (x->deadline_ns < lane->deadline_ns)
            lane->deadline_ns = x->deadline_ns;
    return now >= lane->deadline_ns;
}

/* A node's patience may be cut short so that there is time to ask for other copies. So it is also counted from one
 * link to the next, as long as nothing comes over any. */
static uint64_t quiet_since(struct tarn_lane *lane)
{
    const struct tarn_side *side = &lane->remote->sides[lane->transport][lane->write];
    uint64_t since = lane->active_ns;
    struct tarn_transfer *x;

    DL_FOREACH (lane->transfers, x) {
        if (x->quiet_on != side || lane->active_ns != lane->since_ns)
            x->quiet_ns = lane->active_ns;
        x->quiet_on = side;
        if (x->quiet_ns < since)
            since = x->quiet_ns;
    }
    return since;
}

static void lane_silence(struct tarn_lane *lane, uint64_t quiet_ns)
{
    tarn_link_silent(lane->remote, lane->transport, lane->write, &lane->transfers->work, lane->active_ns, quiet_ns);
}

static void lane_check(struct tarn_lane *lane, uint64_t now)
{
    if (lane_silent(lane, now)) {
        tarn_fail(TARN_E_NODE_DOWN, "node %s: no byte for %u ms: it is paused or cut off",
                  lane->remote->key.id, (unsigned)((now - lane->active_ns) / TARN_NS_PER_MS));
        lane_silence(lane, quiet_since(lane)); /* patience may have been shorter than that */
        lane_close(lane, TARN_END_SILENT);
    } else if (lane_expired(lane, now)) {
        /* Slow is not sick: only a node that has been silent for a while is set aside. */
        uint64_t quiet = quiet_since(lane);
        if (now - quiet >= tarn_remote_patience(lane->remote)) {
            tarn_fail(TARN_E_TIMEOUT, "node %s: silent until the deadline", lane->remote->key.id);
            lane_silence(lane, quiet);
        }
        lane_close(lane, TARN_END_SHIFTED);
    }
}

static void lane_progress(struct tarn_lane *lane)
{
    lane->kick = false;
    int moved = lane->linked->ops->progress(lane->linked->link);
    if (moved < 0) {
        lane_close(lane, TARN_END_BROKEN);
        return;
    }
    if (moved > 0)
        lane->active_ns = tarn_now_ns();
    lane_post(lane);
}

void tarn_flight_stop(struct tarn_flight *f)
{
    for (struct tarn_lane *lane = f->lanes; lane; lane = lane->next) {
        struct tarn_transfer *x;
        DL_FOREACH (lane->transfers, x)
            if (x->stop && atomic_load(x->stop)) {
                lane_close(lane, TARN_END_SHIFTED);
                break;
            }
    }
}

static uint64_t blind_nap(const struct tarn_lane *lane, uint64_t now)
{
    uint64_t waited = now - lane->ended_ns, nap = waited < SPIN_NS ? 0 : waited / 4;
    return nap < BLIND_NS ? nap : BLIND_NS;
}

/* Fills the poll set; when to wake up at the latest. */
static uint64_t watch_lanes(struct tarn_flight *f, struct pollfd *fds)
{
    uint64_t now = tarn_now_ns(), until = now + SLICE_NS;
    struct pollfd *p = fds;

    for (struct tarn_lane *lane = f->lanes; lane; lane = lane->next, p++) {
        *p = (struct pollfd){.fd = -1};
        if (!lane->transfers)
            continue;
        p->fd = lane->linked->ops->wait_fd(lane->linked->link, &p->events);
        uint64_t alarm = p->fd < 0 ? now + blind_nap(lane, now) : lane_alarm(lane);
        if (alarm < until)
            until = alarm;
    }
    *p = (struct pollfd){.fd = f->stop_fd, .events = POLLIN};
    return until;
}

void tarn_flight_push(struct tarn_flight *f)
{
    for (struct tarn_lane *lane = f->lanes; lane; lane = lane->next)
        if (lane->transfers && lane->kick)
            lane_progress(lane);
}

/* What need not wait for the poll: sending what was posted, and stop flags that may have been missed. False:
 * one is to be minded by the caller, since nothing is in flight for it. */
static bool before_wait(struct tarn_flight *f)
{
    tarn_flight_push(f);
    if (!f->look)
        return true;
    f->look = false;
    tarn_flight_stop(f);
    if (f->others && f->others(f->of))
        f->look = true; /* until the caller has minded it */
    return f->ended || !f->look;
}

static void flight_wait(struct tarn_flight *f)
{
    struct pollfd *fds = f->fds;
    uint64_t until = watch_lanes(f, fds), now = tarn_now_ns();
    uint64_t left = until > now ? until - now : 0;
    struct timespec timeout = {(time_t)(left / TARN_NS_PER_S), (long)(left % TARN_NS_PER_S)};
    int ready = ppoll(fds, f->nlanes + 1, &timeout, NULL);

    now = tarn_now_ns();
    if (ready > 0 && fds[f->nlanes].revents) {
        tarn_stop_drain(f->stop_fd);
        f->look = true;
    }
    for (struct tarn_lane *lane = f->lanes; lane; lane = lane->next, fds++) {
        if (!lane->transfers)
            continue;
        uint32_t before = f->inflight;
        bool sign = ready > 0 && fds->revents;
        if (sign)
            lane->active_ns = now;
        if (sign || fds->fd < 0 || ready == 0)
            lane_progress(lane);
        if (f->inflight < before)
            lane->active_ns = lane->ended_ns = now;
        if (lane->transfers && lane_alarm(lane) <= now)
            lane_check(lane, now);
    }
}

/* The one lane with transfers, when nobody can stop them: then the link itself may wait. */
static struct tarn_lane *lone_lane(const struct tarn_flight *f)
{
    struct tarn_lane *lone = NULL;

    if (f->stop_fd >= 0)
        return NULL;
    for (struct tarn_lane *lane = f->lanes; lane; lane = lane->next) {
        if (!lane->transfers)
            continue;
        if (lone)
            return NULL;
        lone = lane;
    }
    return lone;
}

/* Sends, waits and receives in the link's own way, which takes fewer system calls than a poll. */
static void lane_wait(struct tarn_lane *lane)
{
    lane->kick = false;
    int moved = lane->linked->ops->wait(lane->linked->link, lane_alarm(lane));
    if (moved < 0) {
        lane_close(lane, TARN_END_BROKEN);
        return;
    }
    lane_post(lane);
    if (!lane->transfers)
        return;
    uint64_t now = tarn_now_ns();
    if (moved > 0)
        lane->active_ns = now;
    if (lane_alarm(lane) <= now)
        lane_check(lane, now);
}

struct tarn_transfer *tarn_flight_next(struct tarn_flight *f)
{
    while (!f->ended && f->inflight > 0) {
        struct tarn_lane *lone = lone_lane(f);
        if (lone) {
            lane_wait(lone);
            continue;
        }
        if (!before_wait(f))
            return NULL;
        if (!f->ended && f->inflight > 0)
            flight_wait(f);
    }
    struct tarn_transfer *x = f->ended;
    if (x)
        LL_DELETE(f->ended, x);
    return x;
}

void tarn_flight_end(struct tarn_flight *f)
{
    for (struct tarn_lane *lane = f->lanes, *next; lane; lane = next) {
        next = lane->next;
        if (lane->transfers)
            lane_close(lane, TARN_END_SHIFTED);
        if (lane->linked)
            tarn_link_give(lane->remote, lane->transport, lane->write, lane->linked);
        if (lane != &f->first)
            free(lane);
    }
    free(f->fds);
    tarn_flight_init(f, f->client, -1);
}
