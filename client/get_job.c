/* SPDX-License-Identifier: Apache-2.0 */
#include "client/get_job.h"

#include <stdlib.h>

struct tarn_get_past *tarn_get_past(const struct tarn_get_batch *b, struct tarn_get_job *j)
{
    if (!j->past) {
        j->past = &b->pasts[j - b->jobs];
        j->past->why.code = 0;
    }
    return j->past;
}

const struct tarn_reason *tarn_get_why(const struct tarn_get_job *j)
{
    static const struct tarn_reason none;

    return j->past ? &j->past->why : &none;
}

bool tarn_get_known_stale(const struct tarn_get_job *j, const struct tarn_loc *l)
{
    for (uint32_t i = 0; i < j->nstale && i < TARN_GET_STALE_MAX; i++)
        if (tarn_loc_same(&j->past->stale[i], l))
            return true;
    return false;
}

void tarn_get_try_all(struct tarn_get_job *j)
{
    j->tried = 0;
    for (uint32_t i = 0; i < j->desc.nlocs; i++)
        if (tarn_get_known_stale(j, &j->desc.locs[i]))
            j->tried |= tarn_way_bits_to(i);
}

/* A get whose jobs are all final may be gone, so those are skipped. */
bool tarn_get_any_canceled(void *batch)
{
    const struct tarn_get_batch *b = batch;

    for (size_t i = 0; i < b->n; i++)
        if (b->jobs[i].stage != TARN_GET_FINAL && tarn_get_canceled(&b->jobs[i]))
            return true;
    return false;
}

void tarn_get_job_end(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    j->stage = TARN_GET_FINAL;
    b->open--;
    free(j->made);
}

void tarn_get_job_finish(struct tarn_get_batch *b, struct tarn_get_job *j, int status)
{
    tarn_get_job_end(b, j);
    if (status == 0) {
        tarn_get_item(j)->tensor = j->desc.tensor;
        j->get->got++;
        j->get->got_bytes += j->x.work.bytes;
    }
    tarn_get_final(j->get, j->index, status);
}

void tarn_get_job_fail(struct tarn_get_batch *b, struct tarn_get_job *j, int status)
{
    tarn_verdict_of(&j->get->verdict, j->index, status, "get", &tarn_get_item(j)->key);
    tarn_get_job_finish(b, j, status);
}

void tarn_get_job_miss(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    tarn_verdict_say(&j->get->verdict, j->index, TARN_E_NOT_FOUND, "get", &tarn_get_item(j)->key,
                     "no such key");
    tarn_get_job_finish(b, j, TARN_E_NOT_FOUND);
}

uint64_t tarn_get_others_deadline(const struct tarn_get_batch *b, const struct tarn_get_job *j)
{
    uint64_t until = UINT64_MAX;

    for (size_t i = 0; i < b->n; i++)
        if (&b->jobs[i] != j && b->jobs[i].stage != TARN_GET_FINAL && b->jobs[i].get->deadline_ns < until)
            until = b->jobs[i].get->deadline_ns;
    return until;
}

void tarn_get_look(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    const struct tarn_item *item = tarn_get_item(j);
    int rc = tarn_pieces_gpu(item->pieces, item->npieces, &j->get->seen, &j->gpu);

    j->glanced = false;
    j->stage = TARN_GET_RESOLVED;
    if (rc != 0)
        tarn_get_job_fail(b, j, rc);
}

void tarn_get_make_pieces(struct tarn_get_batch *b, struct tarn_get_job *j)
{
    const struct tarn_item *item = tarn_get_item(j);
    int rc = tarn_layout_pieces(item->layout, item->pages, item->npieces, &j->made, &j->nmade);

    j->stage = TARN_GET_RESOLVED;
    if (rc != 0)
        tarn_get_job_fail(b, j, rc);
}
