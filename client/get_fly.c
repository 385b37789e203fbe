/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets: a batch's transfers, sent and landed. All that has come back is settled before anything is sent
 * again, since sending may take a while (opening a link) and others wait for their completions.
 */
#include "client/get_fly.h"

#include "base/container.h"
#include "client/get_attempt.h"
#include "client/get_route.h"

static struct tarn_get_job *job_of(struct tarn_transfer *x)
{
    return TARN_CONTAINER_OF(x, struct tarn_get_job, x);
}

unsigned tarn_get_send(struct tarn_get_batch *b, bool opening)
{
    unsigned stages = 0;

    b->opening = opening;
    for (size_t i = 0; i < b->n; i++)
        if (b->jobs[i].stage == TARN_GET_RESOLVED)
            tarn_get_route(b, &b->jobs[i]);
    for (size_t i = 0; i < b->n; i++)
        stages |= 1u << b->jobs[i].stage;
    return stages;
}

static void route_postponed(struct tarn_get_batch *b)
{
    b->postponed = false;
    for (size_t i = 0; i < b->n && !b->flight.ended; i++)
        if (b->jobs[i].stage == TARN_GET_RESOLVED)
            tarn_get_route(b, &b->jobs[i]);
    b->postponed |= b->flight.ended != NULL;
}

void tarn_get_fly(struct tarn_get_batch *b)
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

void tarn_get_land_stopped(struct tarn_get_batch *b)
{
    tarn_flight_cancel(&b->flight);
    while (b->flight.ended)
        tarn_get_landed(b, job_of(tarn_flight_next(&b->flight)));
}
