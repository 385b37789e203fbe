/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications of what a client lends. They come from transports, in calls, and from sessions of this host
 * and links of rdma through rings; then they wait in their window's queue. The lease is looked up when a
 * notification goes from its ring to the queue, under the lock that ends leases: none of a lease that has
 * ended gets there.
 *
 * Whoever waits for one looks at the rings by itself for a while, since the writer is often about to end.
 * Then it sleeps, and the lender's thread looks when the bell rings. A submitted operation that waits is
 * parked (client/op.h) and woken in the same cases as sleepers.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "client/op.h"
#include "client/window/lent_impl.h"

#define SPIN_NS (50 * 1000ull)        /* longer than a sleeper takes to wake */
#define SPIN_MOST_NS (4500 * 1000ull) /* then a sleeper's waking is 1 % of the wait */

/* --- queues ------------------------------------------------------------------------------------- */

static void unqueue(struct tarn_window *w, struct tarn_lent_notice *n)
{
    eventfd_t count;
    DL_DELETE(w->notices, n);
    if (--w->nnotices == 0)
        eventfd_read(w->notice_fd, &count);
}

/* Takes a notice; *out may be NULL. */
static void take(struct tarn_window *w, struct tarn_lent_notice *n, struct tarn_notification *out)
{
    if (out)
        *out = n->n;
    unqueue(w, n);
    free(n);
}

/* Takes the oldest notice of a forwarded lease. */
static uint64_t take_oldest(struct tarn_lease *lease)
{
    struct tarn_lent_notice *n = lease->notices;
    uint64_t tag = n->n.tag;
    DL_DELETE(lease->notices, n);
    free(n);
    lease->nnotices--;
    return tag;
}

void tarn_lent_tell(struct tarn_lent *l, const struct tarn_lease *lease)
{
    const struct tarn_lent_expecting *e;
    pthread_cond_broadcast(&l->told);
    DL_FOREACH (l->expecting, e)
        if (!lease || e->lease == lease)
            tarn_op_wake(e->client, atomic_load(&e->op));
}

void tarn_lent_drop_notices(struct tarn_window *w, const struct tarn_lease *lease)
{
    struct tarn_lent_notice *n, *next;
    DL_FOREACH_SAFE(w->notices, n, next)
    if (!lease || n->n.lease == lease)
        take(w, n, NULL);
}

static void put(struct tarn_lease *lease, struct tarn_lent_notice *n)
{
    struct tarn_window *w = lease->window;
    if (lease->forwarded) {
        DL_APPEND(lease->notices, n);
        lease->nnotices++;
        return;
    }
    DL_APPEND(w->notices, n);
    if (w->nnotices++ == 0)
        eventfd_write(w->notice_fd, 1);
}

/* 0, AGAIN if `most` wait already, STALE, AUTH, NO_MEMORY, without a sentence. */
static int add(struct tarn_lent *l, uint64_t session, uint32_t window, uint32_t slot, uint64_t gen,
               const struct tarn_notify *n, uint32_t most)
{
    struct tarn_lease *lease = tarn_lent_find(l, window, slot, gen);
    const struct tarn_window_grant *g = lease ? tarn_lent_grant_of(lease->window, session) : NULL;
    const struct tarn_lent_writer *writer = lease ? tarn_lent_writer_of(lease, session) : NULL;
    if (!lease)
        return TARN_E_STALE;
    if (!g || !g->write || !writer || n->bytes > TARN_NOTIFY_MAX)
        return TARN_E_AUTH;
    if ((lease->forwarded ? lease->nnotices : lease->window->nnotices) >= most)
        return TARN_E_AGAIN;
    struct tarn_lent_notice *notice = calloc(1, sizeof(*notice));
    if (!notice)
        return TARN_E_NO_MEMORY;
    notice->n = (struct tarn_notification){.tag = n->tag, .lease = lease, .bytes = n->bytes};
    if (n->bytes)
        memcpy(notice->n.data, n->data, n->bytes);
    memcpy(notice->n.peer, writer->peer, sizeof(notice->n.peer));
    put(lease, notice);
    tarn_lent_tell(l, lease);
    return 0;
}

/* --- rings -------------------------------------------------------------------------------------- */

/* Moves what the ring has to its windows' queues. One that finds its queue full stays, with those behind it;
 * `last`: none stays, for the ring is about to go. */
static void drain(struct tarn_lent *l, struct tarn_lent_ring *r, bool last)
{
    struct tarn_notice got;
    while (tarn_notices_peek(r->ring, r->places, r->at, &got)) {
        const struct tarn_notify n = {.tag = got.tag, .data = got.data, .bytes = got.bytes};
        int rc = add(l, r->session, got.window, got.slot, got.gen, &n, last ? UINT32_MAX : TARN_LENT_NOTICES);
        if (!last && (rc == TARN_E_AGAIN || rc == TARN_E_NO_MEMORY))
            return;
        tarn_notices_pop(r->ring, r->places, r->at++);
    }
}

void tarn_lent_drain(struct tarn_lent *l)
{
    struct tarn_lent_ring *r;
    LL_FOREACH (l->rings, r)
        drain(l, r, false);
}

/* rung: pushes need not ring, for somebody looks. */
static void mark_all(struct tarn_lent *l, bool rung)
{
    struct tarn_lent_ring *r;
    LL_FOREACH (l->rings, r)
        atomic_store(&r->ring->rung, rung);
}

void tarn_lent_rung(struct tarn_lent *l)
{
    eventfd_t count;
    eventfd_read(l->bell, &count);
    pthread_mutex_lock(&l->lock);
    if (!l->spinning)
        mark_all(l, false);
    tarn_lent_drain(l);
    pthread_mutex_unlock(&l->lock);
}

/* The lock is held. */
static int ring_new(struct tarn_lent *l, uint64_t session, uint32_t places, struct tarn_lent_ring **r_p)
{
    struct tarn_lent_ring *r = calloc(1, sizeof(*r));
    int rc = r ? tarn_notices_new(places, &r->ring, &r->fd)
               : tarn_fail(TARN_E_NO_MEMORY, "window: out of memory for a session");
    if (rc) {
        free(r);
        return rc;
    }
    r->session = session;
    r->places = places;
    atomic_store(&r->ring->rung, l->spinning > 0);
    LL_PREPEND(l->rings, r);
    *r_p = r;
    return 0;
}

/* Takes what is left in it. The lock is held. */
static void ring_end(struct tarn_lent *l, struct tarn_lent_ring *r)
{
    drain(l, r, true);
    LL_DELETE(l->rings, r);
    munmap(r->ring, tarn_notices_bytes(r->places));
    if (r->fd >= 0)
        close(r->fd);
    free(r);
}

/* The lock is held. NULL: it has none. */
static struct tarn_lent_ring *ring_of(const struct tarn_lent *l, uint64_t session)
{
    struct tarn_lent_ring *r;
    LL_FOREACH (l->rings, r)
        if (r->session == session && r->fd >= 0)
            return r;
    return NULL;
}

int tarn_lent_ring_of(struct tarn_lent *l, uint64_t session, int *fd_p)
{
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    struct tarn_lent_ring *r = ring_of(l, session);
    if (!r)
        rc = ring_new(l, session, TARN_NOTICES, &r);
    if (!rc)
        *fd_p = r->fd;
    pthread_mutex_unlock(&l->lock);
    return rc;
}

void tarn_lent_ring_end(struct tarn_lent *l, uint64_t session)
{
    struct tarn_lent_ring *r = ring_of(l, session);
    if (r)
        ring_end(l, r);
}

/* --- rings of links ----------------------------------------------------------------------------- */

int tarn_lent_guard_ring_new(void *arg, uint64_t session, struct tarn_notice_ring **ring_p)
{
    struct tarn_lent *l = arg;
    struct tarn_lent_ring *r;
    pthread_mutex_lock(&l->lock);
    int rc = ring_new(l, session, TARN_LINK_NOTICES, &r);
    if (!rc) {
        close(r->fd); /* no process maps it */
        r->fd = -1;
        *ring_p = r->ring;
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

void tarn_lent_guard_ring_got(void *arg, struct tarn_notice_ring *ring, uint32_t number)
{
    struct tarn_lent *l = arg;
    struct tarn_lent_ring *r;
    pthread_mutex_lock(&l->lock);
    LL_SEARCH_SCALAR(l->rings, r, ring, ring);
    uint32_t ahead = number - (uint32_t)r->at;
    if (ahead < r->places) /* else the peer counts wrongly, and the place is not its own */
        tarn_notices_fill(ring, r->places, r->at + ahead);
    drain(l, r, false);
    pthread_mutex_unlock(&l->lock);
}

void tarn_lent_guard_ring_end(void *arg, struct tarn_notice_ring *ring)
{
    struct tarn_lent *l = arg;
    struct tarn_lent_ring *r;
    pthread_mutex_lock(&l->lock);
    LL_SEARCH_SCALAR(l->rings, r, ring, ring);
    ring_end(l, r);
    pthread_mutex_unlock(&l->lock);
}

/* --- telling ------------------------------------------------------------------------------------ */

int tarn_lent_guard_notify(void *arg, uint64_t session, uint32_t window, uint32_t slot, uint64_t gen,
                           const struct tarn_notify *n)
{
    struct tarn_lent *l = arg;
    pthread_mutex_lock(&l->lock);
    tarn_lent_drain(l); /* the same writer's earlier ones */
    int rc = add(l, session, window, slot, gen, n, TARN_LENT_NOTICES);
    pthread_mutex_unlock(&l->lock);
    return rc == TARN_E_STALE ? tarn_lent_stale(window, slot)
           : rc ? tarn_fail(rc, "window %u lease %u: notification: %s", window, slot, tarn_strerror(rc))
                : 0;
}

/* --- waiting ------------------------------------------------------------------------------------ */

/* Who waits, and for what. */
struct waiter {
    struct tarn_lent *lent;
    struct tarn_window *window;
    struct tarn_lease *lease; /* of tarn_expect() and a forwarding; else NULL */
    uint64_t tag;
    uint32_t n;
    struct tarn_notification *out;
    uint64_t *tags;  /* of a forwarding: takes at most n, of whatever tag; else NULL */
    uint32_t *taken; /* how many */
};

/* Takes the lease's notices with that tag, if there are n of them. */
static bool take_tagged(const struct waiter *w)
{
    struct tarn_lent_notice *at, *next;
    uint32_t found = 0, n = w->n;
    DL_FOREACH (w->window->notices, at)
        found += at->n.lease == w->lease && at->n.tag == w->tag;
    if (found < n)
        return false;
    DL_FOREACH_SAFE(w->window->notices, at, next)
    if (n > 0 && at->n.lease == w->lease && at->n.tag == w->tag) {
        take(w->window, at, NULL);
        n--;
    }
    return true;
}

/* Takes what a forwarding waits for, if there is any. */
static bool take_first(const struct waiter *w)
{
    uint32_t n = 0;
    while (n < w->n && w->lease->notices)
        w->tags[n++] = take_oldest(w->lease);
    *w->taken = n;
    return n > 0;
}

static int writer_lost(const struct tarn_lease *lease)
{
    const struct tarn_lent_writer *w;
    LL_SEARCH_SCALAR(lease->writers, w, gone, true);
    if (!w)
        return 0;
    return tarn_fail(TARN_E_NODE_DOWN, "window %u lease %u: its writer %s is gone: has that process ended?",
                     lease->window->index, lease->slot, w->peer);
}

/* AGAIN: nothing has come so far. */
static int look(const struct waiter *w)
{
    tarn_lent_drain(w->lent);
    if (!w->lease) {
        if (!w->window->notices)
            return TARN_E_AGAIN;
        take(w->window, w->window->notices, w->out);
        return 0;
    }
    if (w->tags ? take_first(w) : take_tagged(w))
        return 0;
    int rc = w->lease->ended ? tarn_lent_stale(w->window->index, w->lease->slot)
             : w->tags       ? 0
                             : writer_lost(w->lease);
    return rc ? rc : TARN_E_AGAIN;
}

/* Looks for a while. The lock is not held all the time. */
static int spin(const struct waiter *w, uint64_t until_ns)
{
    struct tarn_lent *l = w->lent;
    int rc;
    if (l->spinning++ == 0)
        mark_all(l, true);
    while ((rc = look(w)) == TARN_E_AGAIN && tarn_now_ns() < until_ns) {
        pthread_mutex_unlock(&l->lock);
        sched_yield();
        pthread_mutex_lock(&l->lock);
    }
    if (--l->spinning == 0)
        mark_all(l, false);
    return rc;
}

/* Half as long again as the last wait, because waits resemble each other: transfers of a size follow one
 * another. */
static uint64_t spin_ns(const struct tarn_lent *l)
{
    uint64_t ns = l->waited_ns + l->waited_ns / 2;
    return ns < SPIN_NS || ns > SPIN_MOST_NS ? SPIN_NS : ns;
}

/* The deadline has passed; a bell that somebody else has silenced must not matter. */
static int last_look(const struct waiter *w)
{
    int rc = look(w);
    return rc == TARN_E_AGAIN ? TARN_E_TIMEOUT : rc;
}

/* Who recalls the lease frees it. The lock is held. */
static void leave(struct tarn_lent *l, struct tarn_lease *lease)
{
    if (--lease->waiters == 0)
        pthread_cond_broadcast(&l->unpinned);
}

static int await(const struct waiter *w, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_lent *l = w->lent;
    uint64_t since = tarn_now_ns();
    pthread_mutex_lock(&l->lock);
    uint64_t until = since + spin_ns(l);
    if (w->lease)
        w->lease->waiters++;
    int rc = l->rings ? spin(w, until < deadline_ns ? until : deadline_ns) : TARN_E_AGAIN;
    while (rc == TARN_E_AGAIN && (rc = look(w)) == TARN_E_AGAIN)
        if (!tarn_cancel_cond(cancel, &l->told, &l->lock, deadline_ns))
            rc = tarn_canceled(cancel) ? tarn_cancel_fail() : last_look(w);
    if (rc == 0)
        l->waited_ns = tarn_now_ns() - since;
    if (w->lease)
        leave(l, w->lease);
    pthread_mutex_unlock(&l->lock);
    return rc;
}

int tarn_lent_next(struct tarn_lent *l, struct tarn_window *w, uint64_t deadline_ns,
                   struct tarn_cancel *cancel, struct tarn_notification *out)
{
    int rc = await(&(struct waiter){.lent = l, .window = w, .out = out}, deadline_ns, cancel);
    return rc == TARN_E_TIMEOUT ? tarn_fail(rc, "window %u: no notification in time: wait longer", w->index)
                                : rc;
}

/* Fails. The lease may have been freed. */
static int not_in_time(uint32_t window, uint32_t slot, uint32_t n, uint64_t tag)
{
    return tarn_fail(TARN_E_TIMEOUT,
                     "window %u lease %u: %u notifications with tag %llu have not come in time: wait longer",
                     window, slot, n, (unsigned long long)tag);
}

int tarn_lent_expect(struct tarn_lent *l, struct tarn_lease *lease, uint64_t tag, uint32_t n,
                     uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    const struct waiter w = {.lent = l, .window = lease->window, .lease = lease, .tag = tag, .n = n};
    const uint32_t window = w.window->index, slot = lease->slot;
    int rc = await(&w, deadline_ns, cancel);
    return rc == TARN_E_TIMEOUT ? not_in_time(window, slot, n, tag) : rc;
}

/* --- forwarding --------------------------------------------------------------------------------- */

/* Moves the lease's notices from the window's queue to its own. */
static void take_over(struct tarn_lease *lease)
{
    struct tarn_lent_notice *n, *next;
    DL_FOREACH_SAFE(lease->window->notices, n, next)
    if (n->n.lease == lease) {
        unqueue(lease->window, n);
        put(lease, n);
    }
}

int tarn_lent_forward_begin(struct tarn_lent *l, struct tarn_lease *lease)
{
    pthread_mutex_lock(&l->lock);
    bool taken = lease->forwarded;
    lease->forwarded = true;
    if (!taken)
        take_over(lease);
    pthread_mutex_unlock(&l->lock);
    return taken ? tarn_fail(TARN_E_BUSY,
                             "window %u lease %u: is forwarded already: free that forwarding first",
                             lease->window->index, lease->slot)
                 : 0;
}

void tarn_lent_forward_end(struct tarn_lent *l, struct tarn_lease *lease)
{
    pthread_mutex_lock(&l->lock);
    while (lease->notices)
        take_oldest(lease);
    lease->forwarded = false;
    pthread_mutex_unlock(&l->lock);
}

int tarn_lent_forward_check(struct tarn_lent *l, const struct tarn_window *w, const struct tarn_lease *lease)
{
    const struct tarn_lease *at;
    pthread_mutex_lock(&l->lock);
    DL_FOREACH (w->leases, at)
        if (at->forwarded && (!lease || at == lease))
            break;
    pthread_mutex_unlock(&l->lock);
    return at ? tarn_fail(TARN_E_BUSY, "window %u lease %u: is forwarded: free the forwarding first",
                          w->index, at->slot)
              : 0;
}

int tarn_lent_take(struct tarn_lent *l, struct tarn_lease *lease, struct tarn_cancel *cancel, uint64_t *tags,
                   uint32_t room, uint32_t *n_p)
{
    const struct waiter w = {
        .lent = l, .window = lease->window, .lease = lease, .n = room, .tags = tags, .taken = n_p};
    return await(&w, UINT64_MAX, cancel);
}

/* --- waiting without a thread ------------------------------------------------------------------- */

void tarn_lent_expect_begin(struct tarn_lent *l, struct tarn_lent_expecting *e)
{
    pthread_mutex_lock(&l->lock);
    e->lease->waiters++;
    DL_APPEND(l->expecting, e);
    pthread_mutex_unlock(&l->lock);
}

/* The lock is held. */
static void end(struct tarn_lent *l, struct tarn_lent_expecting *e)
{
    DL_DELETE(l->expecting, e);
    leave(l, e->lease);
}

void tarn_lent_expect_end(struct tarn_lent *l, struct tarn_lent_expecting *e)
{
    pthread_mutex_lock(&l->lock);
    end(l, e);
    pthread_mutex_unlock(&l->lock);
}

int tarn_lent_expect_look(struct tarn_lent *l, struct tarn_lent_expecting *e, uint64_t deadline_ns,
                          const struct tarn_cancel *cancel)
{
    const struct waiter w = {
        .lent = l, .window = e->lease->window, .lease = e->lease, .tag = e->tag, .n = e->n};
    pthread_mutex_lock(&l->lock);
    int rc = look(&w);
    if (rc == TARN_E_AGAIN)
        rc = tarn_canceled(cancel)          ? tarn_cancel_fail()
             : tarn_now_ns() >= deadline_ns ? not_in_time(w.window->index, e->lease->slot, e->n, e->tag)
                                            : TARN_INPROGRESS;
    if (rc != TARN_INPROGRESS)
        end(l, e);
    pthread_mutex_unlock(&l->lock);
    return rc;
}
