/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts: taking back the copies of a put that failed on another node. Exactly those copies: the key may be
 * another put's by now. A node that does not answer keeps its copy, so a failed put may have taken effect
 * there.
 */
#include "client/put_undo.h"

void tarn_undo_note(struct tarn_put *p, struct tarn_displaced_list *undo, struct tarn_put_job *job)
{
    for (uint32_t k = 0; k < p->replicas; k++) {
        struct tarn_target *t = &job->targets[k];
        if (t->state != TARN_TARGET_STORED)
            continue;
        const struct tarn_loc at = tarn_target_loc(t);
        tarn_displaced_add(undo, &p->items[job->index].key, job->index, &at);
        t->state = TARN_TARGET_LOST;
    }
}

void tarn_undo_run(struct tarn_put *p, struct tarn_displaced_list *undo)
{
    if (undo->n > 0)
        tarn_displaced_release(p->client, undo, tarn_put_grace(p), NULL);
    tarn_displaced_end(undo);
}
