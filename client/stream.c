/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the application's GPUs that wait for an operation.
 *
 * Streams share a few channels of their device, and a waiting stream blocks the others on its channel. tarn's
 * own stream might be one of them. So no stream waits before the copies have been given to the GPU:
 * tarn_stream_wait() waits on the host until all copies of a get are given, then makes the stream wait for
 * the events behind them, which depend only on these copies. Where bytes take another way, it waits for the
 * completion.
 *
 * The host checks the generation behind the copy. Once a stream was let go behind a copy, that copy is the
 * last: when it is stale or fails, the item fails. Another copy could succeed while the stream has read the
 * first one's bytes.
 *
 * Only the worker that runs the operation counts and notes events, without the lock: others look only when
 * `issued` is set. `issued` changes under q->lock, and so do the events while it is set. An event is noted
 * only while its queue still has copies of the operation to end, so it exists.
 */
#include "client/stream.h"

#include "base/thread.h"
#include "client/op.h"

/* --- copies of a get -------------------------------------------------------------------------------- */

/* Sets `issued` when every item is final or flying. */
static void look_if_issued(struct tarn_ops_queue *q, struct tarn_operation *op)
{
    if (op->issued || op->get.left == 0 || op->flying < op->get.left)
        return;
    pthread_mutex_lock(&q->lock);
    op->issued = true;
    if (op->waiters > 0)
        pthread_cond_broadcast(&q->done);
    pthread_mutex_unlock(&q->lock);
}

/* Removes the event, or the queue's event. */
static void forget_given(struct tarn_ops_queue *q, struct tarn_operation *op, const void *event,
                         const void *queue)
{
    for (uint32_t i = 0; i < op->ngiven; i++)
        if (op->given[i].event == event || op->given[i].queue == queue) {
            pthread_mutex_lock(&q->lock);
            op->given[i] = op->given[--op->ngiven];
            pthread_mutex_unlock(&q->lock);
            return;
        }
}

/* A queue's last event comes after its earlier ones, so only that is kept. False: too many queues. */
static bool note_given(struct tarn_operation *op, const struct tarn_last_copy *copy)
{
    uint32_t i = 0;

    while (i < op->ngiven && op->given[i].queue != copy->queue)
        i++;
    if (i == TARN_GIVEN_MAX)
        return false;
    op->given[i].queue = copy->queue;
    op->given[i].event = copy->event;
    op->ngiven += i == op->ngiven;
    return true;
}

bool tarn_op_given(struct tarn_get *g, struct tarn_work *w)
{
    struct tarn_ops_queue *q = g->client->ops;
    struct tarn_operation *op = g->owner;

    if (w->last_copy->event) {
        if (!note_given(op, w->last_copy)) {
            w->last_copy->event = NULL;
            return false;
        }
        op->flying++;
        look_if_issued(q, op);
        return true;
    }
    pthread_mutex_lock(&q->lock);
    op->issued = false;
    pthread_mutex_unlock(&q->lock);
    forget_given(q, op, NULL, w->last_copy->queue);
    op->flying--;
    return true;
}

void tarn_op_landed(struct tarn_get *g, struct tarn_work *w)
{
    struct tarn_operation *op = g->owner;

    if (!w->last_copy->event)
        return;
    forget_given(g->client->ops, op, w->last_copy->event, NULL);
    op->flying--;
}

void tarn_op_shrunk(struct tarn_get *g)
{
    look_if_issued(g->client->ops, g->owner);
}

bool tarn_op_again(struct tarn_get *g)
{
    struct tarn_operation *op = g->owner;

    pthread_mutex_lock(&g->client->ops->lock);
    bool may = !op->let_go;
    if (may)
        op->issued = false;
    pthread_mutex_unlock(&g->client->ops->lock);
    return may;
}

/* --- streams that wait -------------------------------------------------------------------------------- */

/* The lock is held, so the events exist. */
static int let_go(struct tarn_operation *op, void *stream)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < op->ngiven; i++)
        rc = tarn_cuda_stream_wait(stream, op->given[i].event);
    op->let_go |= rc == 0;
    return rc;
}

static int stream_wait(struct tarn_ops_queue *q, tarn_op id, void *stream)
{
    struct tarn_operation *op = tarn_op_find(q, id);
    bool time = true;

    if (!op)
        return tarn_fail(TARN_E_NOT_FOUND,
                         "stream wait: no such operation, or its completion was taken already");
    while (op && op->state != TARN_OP_DONE && !op->issued && time) {
        op->waiters++;
        time = tarn_cond_wait(&q->done, &q->lock, op->deadline_ns);
        op = tarn_op_find(q, id);
        if (op)
            op->waiters--;
    }
    if (!op || op->state == TARN_OP_DONE)
        return 0;
    if (op->issued)
        return let_go(op, stream);
    return tarn_fail(TARN_E_TIMEOUT,
                     "stream wait: the operation's deadline has passed: nothing waits for it");
}

int tarn_stream_wait(struct tarn_client *c, tarn_op id, void *stream)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    pthread_mutex_lock(&c->ops->lock);
    rc = stream_wait(c->ops, id, stream);
    pthread_mutex_unlock(&c->ops->lock);
    return rc;
}
