/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets. tarn_get_finish() tells the life of those that get_now.c could not serve at once; get_job.h has the
 * picture. Several gets may share one batch (op_run.c): their transfers are mixed on the same links, and none
 * waits for another's look-up, link or deadline.
 */
#include "client/get.h"

#include <stdlib.h>

#include "client/event.h"
#include "client/get_fly.h"
#include "client/get_lookup.h"
#include "client/get_now.h"
#include "client/get_start.h"

static bool any_in(unsigned stages, enum tarn_get_stage stage)
{
    return stages >> stage & 1;
}

static void run(struct tarn_get_batch *b, struct tarn_get *const *gets, size_t n)
{
    /* Each item that is left becomes a job. One whose descriptor is at hand is RESOLVED and does not wait for
     * the others' look-up. Of one call's many the first fly before the last are looked at. */
    tarn_get_start(b, gets, n);

    while (b->open > 0) {
        /* All that are RESOLVED are sent: a copy and a transport are chosen, the transfer is posted on a
         * link. Making a link may take a while, so what needs none goes first. */
        unsigned stages = tarn_get_send(b, b->open == 1);
        if (any_in(stages, TARN_GET_RESOLVED)) {
            tarn_flight_push(&b->flight);
            stages = tarn_get_send(b, true);
        }

        /* Some may not read from their node before the directory was asked about it: one question for all. */
        if (any_in(stages, TARN_GET_UNLEASED))
            tarn_get_ask_leases(b);

        /* Some have no descriptor, or one that is out of date: one look-up for all. A job that is canceled
         * meanwhile cuts it short. */
        if (any_in(stages, TARN_GET_WANTED)) {
            tarn_get_look_up(b);
            if (b->stopped)
                tarn_get_land_stopped(b);
        }

        /* All others are in flight. Whatever comes back is FINAL, or sent again by another way, or WANTED. */
        if (!any_in(stages, TARN_GET_UNLEASED) && !any_in(stages, TARN_GET_WANTED))
            tarn_get_fly(b);
    }
}

void tarn_get_finish(struct tarn_client *c, struct tarn_get *const *gets, size_t n, int cancel_fd)
{
    struct tarn_get_batch b = {.client = c,
                               .any = {.fd = cancel_fd, .others = tarn_get_any_stopped, .others_arg = &b}};
    struct tarn_get_job one; /* most calls are about one item, which should wait for no allocator */

    for (size_t i = 0; i < n; i++)
        b.open += gets[i]->left;
    b.jobs = b.open > 1 ? malloc(b.open * sizeof *b.jobs) : &one;
    if (!b.jobs) {
        tarn_get_no_memory(gets, n);
        return;
    }
    b.cancel = cancel_fd < 0 ? gets[0]->cancel : &b.any;
    tarn_flight_init(&b.flight, c, b.cancel);
    run(&b, gets, n);
    tarn_flight_end(&b.flight);
    if (b.jobs != &one)
        free(b.jobs);
}

/* TARN_GET_NOW: nothing has been begun for these. */
static void leave_rest(struct tarn_get *g)
{
    for (size_t i = 0; i < g->n; i++) {
        if (i < g->looked && g->items[i].status != TARN_INPROGRESS)
            continue;
        g->items[i].status = TARN_E_AGAIN;
        tarn_verdict_say(&g->verdict, i, TARN_E_AGAIN, "get", &g->items[i].key,
                         "this takes waiting: get it without TARN_GET_NOW");
    }
}

/* Until the event has passed the buffers are not touched. */
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
    if (g.left > 0 && (o.flags & TARN_GET_NOW) && !tarn_get_is_near(&g)) {
        leave_rest(&g);
    } else if (g.left > 0) {
        if (!o.after) /* the clock is only read when something may wait */
            g.deadline_ns = tarn_client_deadline(c, o.timeout_ms);
        tarn_get_finish(c, &gets, 1, -1);
    }
    return tarn_verdict_end(&g.verdict);
}
