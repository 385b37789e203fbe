/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets. run() tells the life of those that get_now.c could not serve; get_job.h has the picture. Several gets
 * may share one batch (op_run.c): their transfers share links, and none waits for another's look-up, link or
 * deadline.
 */
#include "client/get.h"

#include <stdlib.h>

#include "base/container.h"
#include "client/event.h"
#include "client/get_attempt.h"
#include "client/get_lookup.h"
#include "client/get_now.h"
#include "client/get_route.h"
#include "client/get_start.h"

static struct tarn_get_job *job_of(struct tarn_transfer *x)
{
    return TARN_CONTAINER_OF(x, struct tarn_get_job, x);
}

/* Routes all jobs that are resolved; `opening`: also those that need a link made first. Returns the stages
 * that jobs are in then, as bits. */
static unsigned send_resolved(struct tarn_get_batch *b, bool opening)
{
    unsigned stages = 0;

    for (size_t i = 0; i < b->n; i++) {
        if (b->jobs[i].stage == TARN_GET_RESOLVED)
            tarn_get_route(b, &b->jobs[i], opening, tarn_now_ns());
        stages |= 1u << b->jobs[i].stage;
    }
    return stages;
}

static void route_postponed(struct tarn_get_batch *b)
{
    b->postponed = false;
    for (size_t i = 0; i < b->n && !b->flight.ended; i++)
        if (b->jobs[i].stage == TARN_GET_RESOLVED)
            tarn_get_route(b, &b->jobs[i], true, tarn_now_ns());
    b->postponed |= b->flight.ended != NULL;
}

/* Until nothing is in flight, or another job is canceled. All that has come back is settled before anything
 * is sent again: sending may take a while (opening a link), and others wait for their completions. */
static void fly(struct tarn_get_batch *b)
{
    struct tarn_get_job *again = NULL;

    for (struct tarn_transfer *x; (x = tarn_flight_next(&b->flight)) != NULL;) {
        struct tarn_get_job *j = job_of(x);
        tarn_get_landed(b, j);
        if (j->stage == TARN_GET_RESOLVED) {
            j->again = again;
            again = j;
        }
        for (; again && !b->flight.ended; again = again->again)
            tarn_get_route(b, again, true, tarn_now_ns());
        if (b->postponed && !again)
            route_postponed(b);
    }
}

/* Canceled jobs in flight become final, so that the look-up that they cut short can go on. */
static void land_canceled(struct tarn_get_batch *b)
{
    tarn_flight_cancel(&b->flight);
    while (b->flight.ended)
        tarn_get_landed(b, job_of(tarn_flight_next(&b->flight)));
}

/* --- their life --------------------------------------------------------------------------------- */

static bool any_in(unsigned stages, enum tarn_get_stage stage)
{
    return stages >> stage & 1;
}

static void run(struct tarn_get_batch *b, struct tarn_get *const *gets, size_t n)
{
    /* Each item that is left becomes a job. One with a cached descriptor is RESOLVED and does not wait for
     * the others' look-up. The first of a call's many jobs fly before the last are started. */
    tarn_get_start(b, gets, n);

    while (b->open > 0) {
        /* RESOLVED: a copy and a transport are chosen, and the transfer is posted on a link. Opening a link
         * may take a while, so jobs that need none go first. */
        unsigned stages = send_resolved(b, b->open == 1);
        if (any_in(stages, TARN_GET_RESOLVED)) {
            tarn_flight_push(&b->flight);
            stages = send_resolved(b, true);
        }

        /* UNLEASED: the directory must be asked about the node; one question for all. */
        if (any_in(stages, TARN_GET_UNLEASED))
            tarn_get_ask_leases(b);

        /* WANTED: no descriptor, or an old one; one look-up for all. */
        if (any_in(stages, TARN_GET_WANTED))
            tarn_get_look_up(b);

        /* A canceled job cuts both short. */
        if ((any_in(stages, TARN_GET_UNLEASED) || any_in(stages, TARN_GET_WANTED)) &&
            tarn_canceled(b->cancel))
            land_canceled(b);

        /* FLYING: what comes back is FINAL, or sent again by another way, or WANTED. */
        if (!any_in(stages, TARN_GET_UNLEASED) && !any_in(stages, TARN_GET_WANTED))
            fly(b);
    }
}

void tarn_get_finish(struct tarn_client *c, struct tarn_get *const *gets, size_t n, int cancel_fd)
{
    struct tarn_get_batch b = {.client = c,
                               .any = {.fd = cancel_fd, .others = tarn_get_any_canceled, .others_arg = &b}};
    struct tarn_get_job one; /* most calls are about one item and need no allocation */
    struct tarn_get_past past;

    for (size_t i = 0; i < n; i++)
        b.open += gets[i]->left;
    b.jobs = b.open > 1 ? malloc(b.open * (sizeof *b.jobs + sizeof *b.pasts)) : &one;
    if (!b.jobs) {
        tarn_get_no_memory(gets, n);
        return;
    }
    b.pasts = b.jobs == &one ? &past : (struct tarn_get_past *)(b.jobs + b.open);
    b.cancel = cancel_fd < 0 ? gets[0]->cancel : &b.any;
    tarn_flight_init(&b.flight, c, b.cancel);
    run(&b, gets, n);
    tarn_flight_end(&b.flight);
    if (b.jobs != &one)
        free(b.jobs);
}

/* TARN_GET_NOW: ends the items that were not served, from `far` on. */
static void leave_rest(struct tarn_get *g, size_t far)
{
    for (size_t i = far; i < g->n; i++) {
        if (i < g->memo.looked && g->items[i].status != TARN_INPROGRESS)
            continue;
        g->left--;
        g->items[i].status = TARN_E_AGAIN;
        tarn_verdict_say(&g->verdict, i, TARN_E_AGAIN, "get", &g->items[i].key,
                         "this takes waiting: get it without TARN_GET_NOW");
    }
}

/* The buffers are not touched before the event has passed. */
static int wait_before(struct tarn_get *g, const struct tarn_get_options *o)
{
    g->deadline_ns = tarn_client_deadline(g->client, o->timeout_ms);
    int rc = tarn_event_wait(o->after, g->deadline_ns, g->cancel);

    for (size_t i = 0; rc != 0 && i < g->n; i++)
        g->items[i].status = rc;
    return rc;
}

int tarn_get(struct tarn_client *c, struct tarn_item *items, size_t n, const struct tarn_get_options *given)
{
    struct tarn_get_options o;
    struct tarn_get g, *gets = &g;
    struct tarn_cancel own;
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    if (n > 0 && !items)
        return tarn_fail(TARN_E_INVALID, "get: items are NULL");
    if ((rc = tarn_options_copy(&o, sizeof o, given)) != 0 ||
        (rc = tarn_flags_check("get", o.flags, TARN_GET_FLAGS)) != 0)
        return rc;
    tarn_get_prepare(&g, c, items, n, &o);
    g.cancel = tarn_client_cancel(c, &own);
    if (o.after && (rc = wait_before(&g, &o)) != 0)
        return rc;
    tarn_get_now(&g);
    if (g.left > 0 && (o.flags & TARN_GET_NOW))
        leave_rest(&g, tarn_get_first_far(&g));
    if (g.left > 0) {
        if (!o.after) /* reads the clock only when something may wait */
            g.deadline_ns = tarn_client_deadline(c, o.timeout_ms);
        tarn_get_finish(c, &gets, 1, -1);
    }
    return tarn_verdict_end(&g.verdict);
}
