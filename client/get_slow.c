/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets, the whole way: from items to jobs, the look-up of all that need one in one round trip, and the rounds
 * of sending and waiting until every job is final. get_job.h shows a job's life.
 *
 * Several gets may share one batch (op_run.c): their transfers are mixed on the same links, and none waits
 * for another's look-up, link or deadline.
 */
#include "client/get_slow.h"

#include <stdlib.h>
#include <string.h>

#include "client/cache.h"
#include "client/get_attempt.h"
#include "client/get_job.h"
#include "client/get_route.h"
#include "client/lease_ask.h"
#include "client/peer_nodes.h"
#include "client/resolve.h"

/* --- resolving ---------------------------------------------------------------------------------- */

static void resolved(struct tarn_get_batch *b, struct tarn_get_job *j, const struct tarn_resolved *r)
{
    if (r->status != 0) {
        tarn_get_job_fail(b, j, TARN_E_NOT_FOUND, "no such key");
        return;
    }
    memcpy(&j->desc, &r->desc, tarn_desc_bytes(&r->desc));
    j->tried = 0;
    j->known = j->asked = true;
    j->stage = TARN_GET_RESOLVED;
}

/* Picks the jobs that need it; the earliest of their deadlines. */
static size_t collect_wanted(struct tarn_get_batch *b, struct tarn_key *keys, struct tarn_get_job **jobs,
                             uint64_t *deadline_p)
{
    size_t n = 0;

    *deadline_p = UINT64_MAX;
    for (size_t i = 0; i < b->n; i++) {
        struct tarn_get_job *j = &b->jobs[i];
        if (j->stage != TARN_GET_WANTED)
            continue;
        if (tarn_get_stopped(j)) {
            tarn_get_job_fail(b, j, TARN_E_CANCELED, "canceled by the caller");
            continue;
        }
        keys[n] = tarn_get_item(j)->key;
        jobs[n++] = j;
        if (j->get->deadline_ns < *deadline_p)
            *deadline_p = j->get->deadline_ns;
    }
    return n;
}

static void resolve_failed(struct tarn_get_batch *b, struct tarn_get_job *j, int rc, const char *text)
{
    if (tarn_get_stopped(j)) {
        tarn_get_job_fail(b, j, TARN_E_CANCELED, "canceled by the caller");
        return;
    }
    if ((rc == TARN_E_TIMEOUT || b->stopped) && tarn_now_ns() < j->get->deadline_ns)
        return; /* that was another job's deadline or cancel: once more */
    if (j->why != 0)
        tarn_get_job_fail(b, j, j->why, j->text);
    else
        tarn_get_job_fail(b, j, rc, text);
}

/* All jobs that need it, in one round trip; those it fails for are final. */
static void resolve_wanted(struct tarn_get_batch *b)
{
    struct tarn_key *keys = malloc(b->open * sizeof *keys);
    struct tarn_get_job **jobs = malloc(b->open * sizeof *jobs);
    struct tarn_resolved *out = malloc(b->open * sizeof *out);
    char text[TARN_SENTENCE] = "out of memory";
    uint64_t deadline;
    int rc = TARN_E_NO_MEMORY;

    if (keys && jobs && out) {
        size_t n = collect_wanted(b, keys, jobs, &deadline);
        rc = n ? tarn_resolve_keys(b->client, keys, n, deadline, b->cancel, out) : 0;
        if (rc != 0)
            snprintf(text, sizeof text, "%s", tarn_last_error());
        b->stopped = rc == TARN_E_CANCELED;
        for (size_t i = 0; i < n; i++)
            if (rc == 0)
                resolved(b, jobs[i], &out[i]);
            else
                resolve_failed(b, jobs[i], rc, text);
    } else {
        for (size_t i = 0; i < b->n; i++)
            if (b->jobs[i].stage == TARN_GET_WANTED)
                tarn_get_job_fail(b, &b->jobs[i], rc, text);
    }
    free(keys);
    free(jobs);
    free(out);
}

/* --- leases ------------------------------------------------------------------------------------- */

/* One question for all jobs that wait for it; they look again what it has brought. */
static void lease_unleased(struct tarn_get_batch *b)
{
    uint64_t deadline = UINT64_MAX;

    for (size_t i = 0; i < b->n; i++)
        if (b->jobs[i].stage != TARN_GET_FINAL && b->jobs[i].get->deadline_ns < deadline)
            deadline = b->jobs[i].get->deadline_ns;
    tarn_lease_wait(b->client, deadline, b->cancel);
    for (size_t i = 0; i < b->n; i++)
        if (b->jobs[i].stage == TARN_GET_UNLEASED)
            b->jobs[i].stage = TARN_GET_RESOLVED;
}

/* --- rounds ------------------------------------------------------------------------------------- */

/* A job whose first descriptor is at hand does not wait for the others' look-up. */
static void start(struct tarn_get_batch *b, struct tarn_get_job *j, struct tarn_get *g, size_t index)
{
    const struct tarn_item *item = &g->items[index];
    const struct tarn_key *key = &item->key;

    memset(j, 0, offsetof(struct tarn_get_job, loc));
    j->get = g;
    j->index = index;
    j->x.quiet_on = NULL;
    if (g->found == index) { /* a moment ago */
        memcpy(&j->desc, &g->found_desc, tarn_desc_bytes(&g->found_desc));
        j->gpu = g->found_gpu;
        j->glanced = g->found_glanced;
        j->known = true;
        j->stage = TARN_GET_RESOLVED;
        return;
    }
    j->glanced = tarn_get_glance(g, index, &j->gpu);
    int rc = j->glanced ? 0 : tarn_pieces_gpu(item->pieces, item->npieces, &g->seen, &j->gpu);
    if (rc != 0) {
        tarn_get_job_fail(b, j, rc, tarn_last_error());
        return;
    }
    j->known = g->hits ? tarn_hits_desc(g->hits, g->hits_first + j->index, &j->desc)
                       : tarn_cache_find(b->client->cache, key, tarn_key_hash(key), &j->desc);
    j->stage = j->known ? TARN_GET_RESOLVED : TARN_GET_WANTED;
}

static void route_postponed(struct tarn_get_batch *b)
{
    b->postponed = false;
    for (size_t i = 0; i < b->n && !b->flight.ended; i++)
        if (b->jobs[i].stage == TARN_GET_RESOLVED)
            tarn_get_route(b, &b->jobs[i]);
    b->postponed |= b->flight.ended != NULL;
}

static struct tarn_get_job *job_of(struct tarn_transfer *x)
{
    return (struct tarn_get_job *)((char *)x - offsetof(struct tarn_get_job, x));
}

/* Those in flight that have been canceled are final; the look-up, which that cut short, can go on. */
static void land_stopped(struct tarn_get_batch *b)
{
    tarn_flight_cancel(&b->flight);
    while (b->flight.ended)
        tarn_get_landed(b, job_of(tarn_flight_next(&b->flight)));
}

/* Until nothing is in flight, or another job is canceled. All that has come back is settled before anything
 * is sent again, since sending may take a while (opening a link) and others wait for their completions. */
static void fly(struct tarn_get_batch *b)
{
    struct tarn_get_job *again = NULL;

    b->opening = true;
    for (struct tarn_transfer *x; (x = tarn_flight_next(&b->flight)) != NULL;) {
        struct tarn_get_job *j = job_of(x);
        tarn_get_landed(b, j);
        if (j->stage == TARN_GET_RESOLVED) {
            j->again = again;
            again = j;
        }
        for (; again && !b->flight.ended; again = again->again)
            tarn_get_route(b, again);
        if (b->postponed && !again)
            route_postponed(b);
    }
}

/* Which stages some job is in: bits. */
static unsigned stages_of(const struct tarn_get_batch *b)
{
    unsigned stages = 0;

    for (size_t i = 0; i < b->n; i++)
        stages |= 1u << b->jobs[i].stage;
    return stages;
}

/* Routes all that can be. Some need the directory then, or a lease, or wait for a link to be made. */
static unsigned route_all(struct tarn_get_batch *b, bool opening)
{
    b->opening = opening;
    for (size_t i = 0; i < b->n; i++)
        if (b->jobs[i].stage == TARN_GET_RESOLVED)
            tarn_get_route(b, &b->jobs[i]);
    return stages_of(b);
}

static void run(struct tarn_get_batch *b)
{
    while (b->open > 0) {
        if (b->flight.inflight == b->open) {
            fly(b);
            continue;
        }
        unsigned stages = route_all(b, b->open == 1);
        if (stages >> TARN_GET_RESOLVED &
            1) { /* making links may take a while: what can fly does so before */
            tarn_flight_push(&b->flight);
            stages = route_all(b, true);
        }
        if (stages >> TARN_GET_UNLEASED & 1)
            lease_unleased(b);
        else if (!(stages >> TARN_GET_WANTED & 1))
            fly(b);
        if (!(stages >> TARN_GET_WANTED & 1))
            continue;
        resolve_wanted(b);
        if (b->stopped)
            land_stopped(b);
    }
}

/* --- one item ----------------------------------------------------------------------------------- */

/* Which copy by which transport. */
static bool choose(struct tarn_client *c, struct tarn_get_job *j, bool *more_p)
{
    const struct tarn_get *g = j->get;
    const struct tarn_desc *d = &g->found_desc;
    struct tarn_peer_node *only = d->locs[0].node;

    if (g->found_way >= 0 && atomic_load(&only->health) == TARN_UP && !atomic_load(&only->superseded)) {
        j->loc = 0;
        j->transport = (uint8_t)g->found_way;
        *more_p = false;
        return true;
    }
    j->tried = 0;
    j->stales = 0;
    return tarn_get_choose(c, j, d, &j->loc, &j->transport, more_p);
}

/*
 * What most calls come to: one item, its descriptor found just now, and a link at hand. True: the item is
 * final. False: the whole way is to be gone, from where *a says that it stands.
 */
static bool get_alone(struct tarn_client *c, struct tarn_get *g, struct tarn_get_job *j, struct tarn_alone *a)
{
    const struct tarn_desc *d = &g->found_desc;
    uint64_t bytes = g->found_bytes, now = g->since_ns;
    bool more;

    a->open_link = NULL;
    j->get = g;
    j->index = g->found;
    j->x.quiet_on = NULL;
    j->gpu = g->found_gpu;
    j->glanced = g->found_glanced;
    j->asked = false;
    if (now >= g->deadline_ns || !g->found_fits || !choose(c, j, &more) || !tarn_get_may_take(c, j))
        return false;
    const struct tarn_loc *l = &d->locs[j->loc];
    if (!tarn_lease_read(&l->node->lease, now))
        return false;
    struct tarn_side *s = &l->node->sides[j->transport][0];
    struct tarn_open_link *open_link = tarn_link_at_hand(s);
    if (!open_link)
        return false;
    tarn_get_aim(j, l, more, bytes, now);
    tarn_tell_route(s, &g->items[g->found].key, l->pool, j->gpu);
    if (!tarn_flight_alone(open_link, &j->x, now, a))
        return false;
    g->items[g->found].tensor = d->tensor;
    tarn_count(c, 0, TARN_COUNT_GETS, 1);
    tarn_count(c, 0, TARN_COUNT_GET_BYTES, bytes);
    tarn_get_final(g, g->found, 0);
    return true;
}

static size_t count_left(struct tarn_get *const *gets, size_t n)
{
    size_t left = 0;

    for (size_t g = 0; g < n; g++)
        left += gets[g]->left;
    return left;
}

static bool is_left(const struct tarn_get *g, size_t i)
{
    return i >= g->looked || g->items[i].status == TARN_INPROGRESS;
}

static void no_memory(struct tarn_get *const *gets, size_t n)
{
    for (size_t g = 0; g < n; g++)
        for (size_t i = 0, left = gets[g]->left; left > 0 && i < gets[g]->n; i++)
            if (is_left(gets[g], i)) {
                left--;
                tarn_verdict_say(&gets[g]->verdict, i, TARN_E_NO_MEMORY, "get", &gets[g]->items[i].key,
                                 "out of memory");
                tarn_get_final(gets[g], i, TARN_E_NO_MEMORY);
            }
}

/* May the item be tried? It is final otherwise. */
static bool check(struct tarn_get_batch *b, struct tarn_get *g, size_t i)
{
    int rc = i < g->looked ? 0 : tarn_get_check(g, i);

    if (rc != 0) {
        b->open--;
        tarn_verdict_note(&g->verdict, i, rc);
        tarn_get_final(g, i, rc);
        return false;
    }
    g->items[i].status = TARN_INPROGRESS;
    return true;
}

/* The jobs of those items that are not final. Of one call's many items the first fly before the last are
 * looked at. Once all of a get's are, it may be gone. */
static void start_all(struct tarn_get_batch *b, struct tarn_get *const *gets, size_t n)
{
    bool at_once = n == 1 && b->open > 1;

    b->n = 0;
    for (size_t g = 0; g < n; g++)
        for (size_t i = 0, left = gets[g]->left; left > 0; i++) {
            if (!is_left(gets[g], i))
                continue;
            left--;
            if (!check(b, gets[g], i))
                continue;
            struct tarn_get_job *j = &b->jobs[b->n++];
            start(b, j, gets[g], i);
            if (at_once && j->stage == TARN_GET_RESOLVED)
                tarn_get_route(b, j);
        }
}

/* Only the one that was found last may be left. */
static bool is_alone(struct tarn_get *const *gets, size_t n)
{
    const struct tarn_get *g = gets[0];

    return n == 1 && !g->cancel && g->left == 1 && g->found != SIZE_MAX &&
           g->items[g->found].status == TARN_INPROGRESS;
}

/* The job goes on with the transfer that get_alone() has sent. */
static void go_on(struct tarn_get_batch *b, struct tarn_get_job *j, const struct tarn_alone *a)
{
    j->stage = TARN_GET_FLYING;
    tarn_flight_adopt(&b->flight, &j->x, a);
}

void tarn_get_slow(struct tarn_client *c, struct tarn_get *const *gets, size_t n, int cancel_fd)
{
    struct tarn_get_batch b;
    struct tarn_get_job one; /* most calls are about one item, which should wait for no allocator */
    struct tarn_alone alone = {0};

    if (is_alone(gets, n) && get_alone(c, gets[0], &one, &alone))
        return;
    b.client = c;
    b.any = (struct tarn_cancel){.fd = cancel_fd, .others = tarn_get_any_stopped, .others_arg = &b};
    b.cancel = cancel_fd < 0 ? gets[0]->cancel : &b.any;
    b.opening = b.later = b.postponed = b.stopped = false;
    b.way.node = NULL;
    b.answers = NULL;
    b.open = count_left(gets, n);
    b.jobs = b.open > 1 ? malloc(b.open * sizeof *b.jobs) : &one;
    if (!b.jobs) {
        no_memory(gets, n);
        return;
    }
    tarn_flight_init(&b.flight, c, b.cancel);
    start_all(&b, gets, n);
    if (alone.open_link)
        go_on(&b, &one, &alone);
    run(&b);
    tarn_flight_end(&b.flight);
    if (b.jobs != &one)
        free(b.jobs);
}
