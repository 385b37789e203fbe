/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts: taking back the copies of a put that failed on another node. Exactly those copies: the key may be another
 * put's by now. A node that does not answer keeps its copy, so a failed put may have taken effect there.
 */
#include "client/put.h"

#include <inttypes.h>

void tarn_undo_note(struct tarn_put *p, struct tarn_displaced_list *undo, struct tarn_put_job *job)
{
    char pool[TARN_POOL_NAME_MAX + 1], text[TARN_DISPLACED_TEXT];

    for (uint32_t k = 0; k < p->replicas; k++) {
        struct tarn_target *t = &job->targets[k];
        if (t->state != TARN_TARGET_STORED)
            continue;
        tarn_remote_pool_name(t->remote, t->pool, pool);
        int n = snprintf(text, sizeof text, "@%s/%s=%" PRIu64 ":%u:%016" PRIx64, t->remote->key.id, pool, t->offset,
                         t->slot, t->gen + 1);
        tarn_displaced_add(p->client, undo, &p->items[job->index].key, job->index, t->remote, text, (size_t)n);
        t->state = TARN_TARGET_LOST;
    }
}

void tarn_undo_run(struct tarn_put *p, struct tarn_displaced_list *undo)
{
    if (undo->n > 0)
        tarn_displaced_release(p->client, undo, tarn_put_grace(p), NULL);
    tarn_displaced_end(undo);
}
