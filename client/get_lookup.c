/* SPDX-License-Identifier: Apache-2.0 */
#include "client/get_lookup.h"

#include <stdlib.h>
#include <string.h>

#include "client/read_lease_ask.h"
#include "client/resolve.h"

static void resolved(struct tarn_get_batch *b, struct tarn_get_job *j, const struct tarn_resolved *r)
{
    if (r->status != 0) {
        tarn_get_job_miss(b, j);
        return;
    }
    memcpy(&j->desc, &r->desc, tarn_desc_bytes(&r->desc));
    j->asked = true;
    tarn_get_try_all(j);
    j->stage = TARN_GET_RESOLVED;
}

/* When a copy's node is silent, Redis has half of the time left. Then the node is looked at again. */
static uint64_t until_of(const struct tarn_get_job *j)
{
    uint64_t deadline = j->get->deadline_ns, now = tarn_now_ns(),
             half = deadline > now ? (deadline - now) / 2 : 0;

    return j->silent && half > TARN_PATIENCE_NS ? now + half : deadline;
}

/* Does the node of one of its copies answer again? */
static bool answers_again(const struct tarn_get_job *j)
{
    for (uint32_t i = 0; i < j->desc.nlocs; i++)
        if (atomic_load(&j->desc.locs[i].node->health) == TARN_UP)
            return true;
    return false;
}

/* Collects the WANTED jobs and the earliest time at which one of them must go on. */
static size_t collect_wanted(struct tarn_get_batch *b, struct tarn_key *keys, struct tarn_get_job **jobs,
                             uint64_t *deadline_p)
{
    size_t n = 0;

    *deadline_p = UINT64_MAX;
    for (size_t i = 0; i < b->n; i++) {
        struct tarn_get_job *j = &b->jobs[i];
        if (j->stage != TARN_GET_WANTED)
            continue;
        if (tarn_get_canceled(j)) {
            tarn_get_job_fail(b, j, tarn_cancel_fail());
            continue;
        }
        keys[n] = tarn_get_item(j)->key;
        jobs[n++] = j;
        uint64_t until = until_of(j);
        if (until < *deadline_p)
            *deadline_p = until;
    }
    return n;
}

static void resolve_failed(struct tarn_get_batch *b, struct tarn_get_job *j, const struct tarn_reason *why)
{
    if (tarn_get_canceled(j)) {
        tarn_get_job_fail(b, j, tarn_cancel_fail());
    } else if ((why->code != TARN_E_TIMEOUT && why->code != TARN_E_CANCELED) ||
               tarn_now_ns() >= j->get->deadline_ns) {
        tarn_get_job_fail(b, j, tarn_reason_fail(tarn_get_why(j)->code ? tarn_get_why(j) : why));
    } else if (j->silent && answers_again(j)) { /* Redis does not answer, but the node does */
        tarn_get_try_all(j);
        j->stage = TARN_GET_RESOLVED;
    } /* else another job's deadline or cancel, or the node is still silent: look up once more */
}

void tarn_get_look_up(struct tarn_get_batch *b)
{
    struct tarn_key *keys = malloc(b->open * sizeof *keys);
    struct tarn_get_job **jobs = malloc(b->open * sizeof *jobs);
    struct tarn_resolved *out = malloc(b->open * sizeof *out);
    struct tarn_reason why;
    uint64_t deadline;

    if (keys && jobs && out) {
        size_t n = collect_wanted(b, keys, jobs, &deadline);
        tarn_reason_keep(&why, n ? tarn_resolve_keys(b->client, keys, n, deadline, b->cancel, out) : 0);
        for (size_t i = 0; i < n; i++)
            if (why.code == 0)
                resolved(b, jobs[i], &out[i]);
            else
                resolve_failed(b, jobs[i], &why);
    } else {
        for (size_t i = 0; i < b->n; i++)
            if (b->jobs[i].stage == TARN_GET_WANTED)
                tarn_get_job_fail(b, &b->jobs[i], tarn_fail(TARN_E_NO_MEMORY, "out of memory"));
    }
    free(keys);
    free(jobs);
    free(out);
}

void tarn_get_ask_leases(struct tarn_get_batch *b)
{
    uint64_t deadline = UINT64_MAX;

    for (size_t i = 0; i < b->n; i++)
        if (b->jobs[i].stage != TARN_GET_FINAL && b->jobs[i].get->deadline_ns < deadline)
            deadline = b->jobs[i].get->deadline_ns;
    tarn_read_lease_wait(b->client, deadline, b->cancel);
    for (size_t i = 0; i < b->n; i++)
        if (b->jobs[i].stage == TARN_GET_UNLEASED)
            b->jobs[i].stage = TARN_GET_RESOLVED;
}
