/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of requests; how one gets to the directory thread, and back when that ends. */
#include <stdio.h>

#include "server/directory/publisher_impl.h"

void queue_init(struct request_queue *q)
{
    q->first = NULL;
    q->last = &q->first;
}

void queue_add(struct request_queue *q, struct tarn_request *r)
{
    r->next = NULL;
    *q->last = r;
    q->last = &r->next;
}

struct tarn_request *queue_take(struct request_queue *q)
{
    struct tarn_request *r = q->first;
    if (r && !(q->first = r->next))
        q->last = &q->first;
    return r;
}

bool queue_remove(struct request_queue *q, const struct tarn_request *r)
{
    for (struct tarn_request **at = &q->first; *at; at = &(*at)->next) {
        if (*at != r)
            continue;
        *at = r->next;
        if (!*at)
            q->last = at;
        return true;
    }
    return false;
}

void cancel_request(struct tarn_request *r)
{
    for (size_t i = 0; r->publishes && i < r->n; i++)
        r->publishes[i].status = TARN_E_CANCELED;
    r->status = TARN_E_CANCELED;
    snprintf(r->error, sizeof(r->error), "the node ends");
    r->done(r);
}

void thread_submit(struct tarn_publisher *p, struct tarn_request *r)
{
    pthread_mutex_lock(&p->lock);
    queue_add(&p->queues[r->kind], r);
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}
