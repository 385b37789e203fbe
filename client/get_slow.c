/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets, the whole way. Each item left over by the fast way is a job:
 *
 *   WANTED --look-up, one round trip for all--> RESOLVED --route--> FLYING --0--> final
 *      ^                                           ^                  |
 *      +---- descriptor stale, or misfit ----------|------------------+
 *                                                  +-- copy failed: next copy, inside the same deadline
 *
 * Order of trying: transports in order of preference, for each all copies (beginning at one that depends
 * on the client, so that clients spread over replicas). A copy whose node fails is not tried again in
 * this call; neither is one that was found stale although the directory still shows it, since its node
 * is just taking it out: when no other copy is left, that is a miss.
 *
 * While other copies are left, a node gets TARN_PATIENCE_NS, and at most half of what is left of the
 * deadline, to show a sign of life; the last copy may take the whole deadline.
 *
 * A writer that replaces an object faster than it can be read would starve readers of one-sided
 * transports. After two stale reads the extent is held by a hazard (view) while it is copied.
 */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

#define STALE_MAX 4
#define PINNED_AFTER 2
#define REVIVALS_MAX 3

enum stage { WANTED, RESOLVED, FLYING, FINAL };

struct job {
    struct tarn_get *get;
    size_t index; /* of the item */
    enum stage stage;
    bool known; /* desc is filled */
    bool asked; /* desc comes from the directory, in this call */
    uint8_t loc, transport;
    uint32_t nstale, stales, revivals;
    uint64_t tried; /* bit location * TARN_TRANSPORTS_MAX + transport */
    int why;        /* the last copy's failure, and its sentence */
    char text[256];
    struct tarn_desc desc;
    struct tarn_loc stale[STALE_MAX]; /* the last ones found stale */
    struct tarn_transfer x;
    struct job *again; /* the next to be routed again */
};

struct batch {
    struct tarn_client *client;
    struct job *jobs;
    size_t n, open; /* open: not FINAL */
    struct tarn_flight flight;
    int stop_fd;
    bool opening;   /* jobs that need a link made first have their turn, too */
    bool later;     /* the job being routed waits for another round */
    bool postponed; /* some job does */
    bool stopped;   /* a look-up was cut short for a job that was canceled */
};

static struct tarn_item *item_of(const struct job *j)
{
    return &j->get->items[j->index];
}

static bool is_stopped(const struct job *j)
{
    return j->get->stop && atomic_load(j->get->stop);
}

static void finish(struct batch *b, struct job *j, int status)
{
    j->stage = FINAL;
    b->open--;
    if (status == 0) {
        item_of(j)->tensor = j->desc.tensor;
        tarn_count(b->client, 0, TARN_COUNT_GETS, 1);
        tarn_count(b->client, 0, TARN_COUNT_GET_BYTES, j->x.work.bytes);
    }
    tarn_get_final(j->get, j->index, status);
}

static void fail(struct batch *b, struct job *j, int status, const char *text)
{
    tarn_verdict_say(&j->get->verdict, j->index, status, "get", &item_of(j)->key, "%s", text);
    finish(b, j, status);
}

static void remember(struct job *j, int why, const char *text)
{
    j->why = why;
    snprintf(j->text, sizeof j->text, "%.*s", (int)sizeof j->text - 1, text);
}

/* --- routing ------------------------------------------------------------------------------------ */

static bool known_stale(const struct job *j, const struct tarn_loc *l)
{
    for (uint32_t i = 0; i < j->stales && i < STALE_MAX; i++)
        if (tarn_loc_same(&j->stale[i], l))
            return true;
    return false;
}

/* The best way not tried yet; false when none is left. *more_p: another copy is left besides. */
static bool choose(const struct batch *b, const struct job *j, uint8_t *loc_p, uint8_t *t_p, bool *more_p)
{
    const struct tarn_desc *d = &j->desc;
    bool found = false;

    *more_p = false;
    for (int t = 0; t < b->client->ntransports; t++)
        for (uint32_t i = 0; i < d->nlocs; i++) {
            uint32_t k = (uint32_t)((i + b->client->session) % d->nlocs);
            const struct tarn_loc *l = &d->locs[k];
            if ((j->tried >> (k * TARN_TRANSPORTS_MAX + (uint32_t)t) & 1) || known_stale(j, l) ||
                !tarn_side_usable(l->remote, t, false) ||
                !(tarn_remote_pool_transports(l->remote, l->pool) >> t & 1))
                continue;
            if (found && k != *loc_p) {
                *more_p = true;
                return true;
            }
            if (!found) {
                *loc_p = (uint8_t)k;
                *t_p = (uint8_t)t;
                found = true;
            }
        }
    return found;
}

static void want_again(struct job *j)
{
    j->stage = WANTED;
    j->known = false;
}

/* The earliest deadline of the other open jobs: how long this one may hold them up. */
static uint64_t others_deadline(const struct batch *b, const struct job *j)
{
    uint64_t until = UINT64_MAX;

    for (size_t i = 0; i < b->n; i++)
        if (&b->jobs[i] != j && b->jobs[i].stage != FINAL && b->jobs[i].get->deadline_ns < until)
            until = b->jobs[i].get->deadline_ns;
    return until;
}

/* A copy's node was only set aside a moment ago, and answers: everything is tried again. So it is later,
 * when that is not known before another job's time is up. */
static bool revived(struct batch *b, struct job *j)
{
    const struct tarn_desc *d = &j->desc;
    uint64_t others = UINT64_MAX;

    if (j->revivals == REVIVALS_MAX)
        return false;
    if (b->open > 1)
        others = others_deadline(b, j);
    for (uint32_t i = 0; i < d->nlocs; i++) {
        struct tarn_remote *r = d->locs[i].remote;
        bool failed_here = (j->tried >> (i * TARN_TRANSPORTS_MAX) & 0xff) == 0xff || atomic_load(&r->suspect);
        if (known_stale(j, &d->locs[i]) || !failed_here)
            continue;
        if (!tarn_remote_settled(r, others < j->get->deadline_ns ? others : j->get->deadline_ns)) {
            if (atomic_load(&r->suspect) && tarn_now_ns() >= others)
                return b->later = b->postponed = true;
            continue;
        }
        j->revivals++;
        j->tried = 0;
        return true;
    }
    return false;
}

/* No way is left: what does that mean? */
static void give_up(struct batch *b, struct job *j)
{
    const struct tarn_desc *d = &j->desc;
    char who[352], text[sizeof j->text + sizeof who];
    struct tarn_remote *down = NULL;

    if (revived(b, j)) /* first: it needs no directory, which may be away */
        return;
    if (!j->asked) { /* the descriptor was an old one; there may be new copies */
        want_again(j);
        return;
    }
    for (uint32_t i = 0; i < d->nlocs; i++)
        if (!known_stale(j, &d->locs[i]) && !atomic_load(&d->locs[i].remote->superseded))
            down = d->locs[i].remote;
    if (!down && d->nlost == 0) {
        fail(b, j, TARN_E_NOT_FOUND, "no such key");
        return;
    }
    if (j->why != 0) {
        fail(b, j, j->why, j->text);
        return;
    }
    if (down && atomic_load(&down->health) == TARN_UP) {
        snprintf(text, sizeof text, "%s: no transport of this client reaches the pool: see `tarn info`",
                 tarn_remote_text(down, who));
        fail(b, j, TARN_E_NOT_REACHABLE, text);
        return;
    }
    snprintf(text, sizeof text,
             "%s holds the only copy and does not answer: restart it, or put with replicas",
             down ? tarn_remote_text(down, who) : "a node that is no longer in the directory");
    fail(b, j, TARN_E_NODE_DOWN, text);
}

/* --- one attempt -------------------------------------------------------------------------------- */

/* Copies under a hazard, so that no writer can make the read void once the check has passed. */
static int get_pinned(struct tarn_linked *l, struct tarn_work *w)
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

/* True when it was done; else the ordinary way is to be gone. */
static bool try_pinned(struct job *j, const struct tarn_loc *l)
{
    uint32_t stripe = (uint32_t)l->slot % TARN_STRIPES;
    struct tarn_linked *linked = tarn_shared_enter(l->remote, j->transport, false, stripe);
    int rc = TARN_E_UNSUPPORTED;

    if (!linked)
        return false;
    if (linked->ops->caps & TARN_CAP_VIEW)
        rc = get_pinned(linked, &j->x.work);
    tarn_shared_leave(l->remote, j->transport, false, stripe);
    if (rc != 0 && rc != TARN_E_STALE)
        return false;
    j->x.work.status = rc;
    j->x.end = TARN_END_DONE;
    return true;
}

static void landed(struct batch *b, struct job *j);

static void launch(struct batch *b, struct job *j, bool more, uint64_t bytes)
{
    const struct tarn_item *item = item_of(j);
    const struct tarn_loc *l = &j->desc.locs[j->loc];
    uint64_t now = tarn_now_ns(), left = j->get->deadline_ns > now ? j->get->deadline_ns - now : 0;
    struct tarn_transfer *x = &j->x;

    x->work = tarn_work_of(item, l, bytes, j->get->flags);
    x->deadline_ns = j->get->deadline_ns;
    x->patience_ns = !more ? UINT64_MAX : left / 2 < TARN_PATIENCE_NS ? left / 2 : TARN_PATIENCE_NS;
    x->stop = j->get->stop;
    j->stage = FLYING;
    if (j->nstale >= PINNED_AFTER && try_pinned(j, l)) {
        landed(b, j);
        return;
    }
    bool opens = b->open > 1 && tarn_flight_opens(&b->flight, l->remote, j->transport, false);
    b->flight.until_ns = opens ? others_deadline(b, j) : UINT64_MAX;
    if (now >= b->flight.until_ns) { /* that job first */
        j->stage = RESOLVED;
        b->later = b->postponed = true;
        return;
    }
    int rc = tarn_flight_post(&b->flight, l->remote, j->transport, false, x);
    if (rc == 0)
        return;
    if (rc == TARN_E_TIMEOUT && tarn_now_ns() >= b->flight.until_ns && tarn_now_ns() < x->deadline_ns) {
        j->stage = RESOLVED; /* cut short for another job's sake */
        b->later = b->postponed = true;
        return;
    }
    /* Opening a link may take only so long; that is the node's failure while there is time left. */
    bool early = rc == TARN_E_TIMEOUT && tarn_now_ns() < x->deadline_ns;
    remember(j, early ? TARN_E_NODE_DOWN : rc, tarn_last_error());
    j->stage = RESOLVED;
    j->tried |= rc == TARN_E_NODE_DOWN || rc == TARN_E_TIMEOUT
                    ? (uint64_t)0xff << (j->loc * TARN_TRANSPORTS_MAX)
                    : (uint64_t)1 << (j->loc * TARN_TRANSPORTS_MAX + j->transport);
    if (more)
        tarn_count(b->client, 0, TARN_COUNT_FAILOVERS, 1);
}

/* Sends a resolved job on its way, or ends it. */
static void route(struct batch *b, struct job *j)
{
    b->later = false;
    while (j->stage == RESOLVED && !b->later) {
        uint64_t bytes;
        bool more;

        if (is_stopped(j)) {
            fail(b, j, TARN_E_CANCELED, "canceled by the caller");
        } else if (tarn_now_ns() >= j->get->deadline_ns) {
            fail(b, j, TARN_E_TIMEOUT, j->why ? j->text : "the deadline has passed: raise timeout_ms");
        } else if (!tarn_get_fits(j->get, j->index, &j->desc.tensor, &bytes)) {
            if (!j->asked) {
                want_again(j);
                return;
            }
            j->stage = FINAL;
            b->open--;
            tarn_get_misfit(j->get, j->index, &j->desc.tensor);
        } else if (choose(b, j, &j->loc, &j->transport, &more)) {
            if (!b->opening &&
                tarn_flight_opens(&b->flight, j->desc.locs[j->loc].remote, j->transport, false))
                return;
            launch(b, j, more, bytes);
        } else {
            give_up(b, j);
        }
    }
}

/* --- outcomes ----------------------------------------------------------------------------------- */

static void stale(struct batch *b, struct job *j)
{
    const struct tarn_item *item = item_of(j);
    const struct tarn_loc *l = &j->desc.locs[j->loc];

    tarn_count(b->client, 0, TARN_COUNT_STALE, 1);
    tarn_cache_drop(b->client->cache, &item->key, tarn_key_hash(&item->key), l);
    j->stale[j->stales++ % STALE_MAX] = *l;
    j->nstale++;
    want_again(j);
}

/* The copy's node or link failed. */
static void failed(struct batch *b, struct job *j, int why, const char *cause)
{
    const struct tarn_loc *l = &j->desc.locs[j->loc];
    char who[352], text[sizeof who + 64];

    snprintf(text, sizeof text, "%s: %s", tarn_remote_text(l->remote, who), cause);
    remember(j, why, text);
    j->stage = RESOLVED;
    if (j->x.end != TARN_END_SILENT && !j->x.fresh) {
        /* A pooled link may have died of old age; that says nothing of the node yet. */
        tarn_link_flush(l->remote, j->transport, false);
        return;
    }
    if (why == TARN_E_NODE_DOWN && j->x.end != TARN_END_SILENT)
        tarn_remote_aside(l->remote, TARN_GONE, text);
    j->tried |= (uint64_t)0xff << (j->loc * TARN_TRANSPORTS_MAX);
    tarn_count(b->client, 0, TARN_COUNT_FAILOVERS, 1);
}

static void done(struct batch *b, struct job *j)
{
    int status = j->x.work.status;

    if (status == 0) {
        finish(b, j, 0);
    } else if (status == TARN_E_STALE) {
        stale(b, j);
    } else if (status == TARN_E_NODE_DOWN) {
        failed(b, j, status, "the data connection broke");
    } else {
        remember(j, status, tarn_strerror(status));
        j->tried |= (uint64_t)1 << (j->loc * TARN_TRANSPORTS_MAX + j->transport);
        j->stage = RESOLVED;
    }
}

/* A transfer came back. */
static void landed(struct batch *b, struct job *j)
{
    char who[352], text[sizeof who + 80];

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
    case TARN_END_STOPPED:
        fail(b, j, TARN_E_CANCELED, "canceled by the caller");
        break;
    case TARN_END_SHIFTED:
        j->stage = RESOLVED;
        break;
    case TARN_END_EXPIRED:
        snprintf(text, sizeof text,
                 "%s: the deadline passed during the transfer: raise timeout_ms or look at it",
                 tarn_remote_text(j->desc.locs[j->loc].remote, who));
        fail(b, j, TARN_E_TIMEOUT, text);
        break;
    }
}

/* --- resolving ---------------------------------------------------------------------------------- */

static void resolved(struct batch *b, struct job *j, const struct tarn_resolved *r)
{
    if (r->status != 0) {
        fail(b, j, TARN_E_NOT_FOUND, "no such key");
        return;
    }
    memcpy(&j->desc, &r->desc, tarn_desc_bytes(&r->desc));
    j->tried = 0;
    j->known = j->asked = true;
    j->stage = RESOLVED;
}

/* Picks the jobs that need it; the earliest of their deadlines. */
static size_t collect_wanted(struct batch *b, struct tarn_key *keys, struct job **jobs, uint64_t *deadline_p)
{
    size_t n = 0;

    *deadline_p = UINT64_MAX;
    for (size_t i = 0; i < b->n; i++) {
        struct job *j = &b->jobs[i];
        if (j->stage != WANTED)
            continue;
        if (is_stopped(j)) {
            fail(b, j, TARN_E_CANCELED, "canceled by the caller");
            continue;
        }
        keys[n] = item_of(j)->key;
        jobs[n++] = j;
        if (j->get->deadline_ns < *deadline_p)
            *deadline_p = j->get->deadline_ns;
    }
    return n;
}

/* For tarn_net_stop_by(): has one of those who wait for the directory been canceled? */
static bool any_stopped(void *arg)
{
    struct batch *b = arg;

    tarn_stop_drain(b->stop_fd);
    b->flight.look = true; /* it may have been about one in flight */
    for (size_t i = 0; i < b->n; i++)
        if (b->jobs[i].stage == WANTED && is_stopped(&b->jobs[i]))
            return true;
    return false;
}

static void resolve_failed(struct batch *b, struct job *j, int rc, const char *text)
{
    if (is_stopped(j)) {
        fail(b, j, TARN_E_CANCELED, "canceled by the caller");
        return;
    }
    if ((rc == TARN_E_TIMEOUT || b->stopped) && tarn_now_ns() < j->get->deadline_ns)
        return; /* that was another job's deadline or cancel: once more */
    if (j->why != 0)
        fail(b, j, j->why, j->text);
    else
        fail(b, j, rc, text);
}

/* All jobs that need it, in one round trip; those it fails for are final. */
static void resolve_wanted(struct batch *b)
{
    struct tarn_key *keys = malloc(b->open * sizeof *keys);
    struct job **jobs = malloc(b->open * sizeof *jobs);
    struct tarn_resolved *out = malloc(b->open * sizeof *out);
    char text[256] = "out of memory";
    uint64_t deadline;
    int rc = TARN_E_NO_MEMORY;

    if (keys && jobs && out) {
        size_t n = collect_wanted(b, keys, jobs, &deadline);
        const struct tarn_net_stop stop = {b->stop_fd, any_stopped, b};
        tarn_net_stop_by(b->stop_fd < 0 ? NULL : &stop);
        rc = n ? tarn_resolve_keys(b->client, keys, n, deadline, out) : 0;
        tarn_net_stop_by(NULL);
        if (rc != 0)
            snprintf(text, sizeof text, "%s", tarn_last_error());
        b->stopped = rc != 0 && any_stopped(b);
        for (size_t i = 0; i < n; i++)
            if (rc == 0)
                resolved(b, jobs[i], &out[i]);
            else
                resolve_failed(b, jobs[i], rc, text);
    } else {
        for (size_t i = 0; i < b->n; i++)
            if (b->jobs[i].stage == WANTED)
                fail(b, &b->jobs[i], rc, text);
    }
    free(keys);
    free(jobs);
    free(out);
}

/* A job whose first descriptor is at hand does not wait for the others' look-up. */
static void start(struct batch *b, struct job *j)
{
    struct tarn_get *g = j->get;
    const struct tarn_key *key = &item_of(j)->key;

    j->known = g->hits ? tarn_hits_desc(g->hits, g->hits_first + j->index, &j->desc)
                       : tarn_cache_find(b->client->cache, key, tarn_key_hash(key), &j->desc);
    j->stage = j->known ? RESOLVED : WANTED;
}

static void route_postponed(struct batch *b)
{
    b->postponed = false;
    for (size_t i = 0; i < b->n && !b->flight.ended; i++)
        if (b->jobs[i].stage == RESOLVED)
            route(b, &b->jobs[i]);
    b->postponed |= b->flight.ended != NULL;
}

/* Until nothing is in flight. All that has come back is settled before anything is sent again, since
 * sending may take a while (opening a link) and others wait for their completions. */
static void fly(struct batch *b)
{
    struct job *again = NULL;

    b->opening = true;
    for (struct tarn_transfer *x; (x = tarn_flight_next(&b->flight)) != NULL;) {
        struct job *j = (struct job *)((char *)x - offsetof(struct job, x));
        landed(b, j);
        if (j->stage == RESOLVED) {
            j->again = again;
            again = j;
        }
        for (; again && !b->flight.ended; again = again->again)
            route(b, again);
        if (b->postponed && !again)
            route_postponed(b);
    }
}

/* Routes all that can be; true when some job needs the directory, or waits for a link to be made. */
static void route_all(struct batch *b, bool opening, bool *wanted_p, bool *waiting_p)
{
    b->opening = opening;
    *wanted_p = *waiting_p = false;
    for (size_t i = 0; i < b->n; i++) {
        if (b->jobs[i].stage == RESOLVED)
            route(b, &b->jobs[i]);
        *wanted_p |= b->jobs[i].stage == WANTED;
        *waiting_p |= b->jobs[i].stage == RESOLVED;
    }
}

static void run(struct batch *b)
{
    while (b->open > 0) {
        bool wanted, waiting;
        route_all(b, b->open == 1, &wanted, &waiting);
        if (waiting) { /* making links may take a while: what can fly does so before */
            tarn_flight_push(&b->flight);
            route_all(b, true, &wanted, &waiting);
        }
        if (wanted)
            resolve_wanted(b);
        else
            fly(b);
    }
}

static size_t count_left(struct tarn_get *const *gets, size_t n)
{
    size_t left = 0;

    for (size_t g = 0; g < n; g++)
        left += gets[g]->left;
    return left;
}

static void no_memory(struct tarn_get *const *gets, size_t n)
{
    for (size_t g = 0; g < n; g++)
        for (size_t i = 0, left = gets[g]->left; left > 0 && i < gets[g]->n; i++)
            if (gets[g]->items[i].status == TARN_INPROGRESS) {
                left--;
                tarn_verdict_say(&gets[g]->verdict, i, TARN_E_NO_MEMORY, "get", &gets[g]->items[i].key,
                                 "out of memory");
                tarn_get_final(gets[g], i, TARN_E_NO_MEMORY);
            }
}

void tarn_get_slow(struct tarn_client *c, struct tarn_get *const *gets, size_t n, int stop_fd)
{
    struct batch b = {.client = c, .stop_fd = stop_fd};

    b.n = b.open = count_left(gets, n);
    b.jobs = calloc(b.n ? b.n : 1, sizeof *b.jobs);
    if (!b.jobs) {
        no_memory(gets, n);
        return;
    }
    size_t k = 0;
    for (size_t g = 0; g < n; g++)
        for (size_t i = 0; i < gets[g]->n; i++)
            if (gets[g]->items[i].status == TARN_INPROGRESS) {
                b.jobs[k].get = gets[g];
                b.jobs[k].index = i;
                start(&b, &b.jobs[k++]);
            }
    tarn_flight_init(&b.flight, c, stop_fd);
    run(&b);
    tarn_flight_end(&b.flight);
    free(b.jobs);
}
