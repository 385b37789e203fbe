/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running operations end at their deadlines by themselves; the keeper (monitor.c) ends queued ones. It comes
 * when `alarm_ns` has passed and is woken only for an earlier deadline, so many operations with the same
 * timeout wake it once a timeout.
 *
 * To cancel, a thread sets the flag, then writes the worker's eventfd. The worker reads the eventfd, then
 * looks at the flags.
 */
#include "client/op.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#include "base/thread.h"
#include "client/alert.h"
#include "client/check.h"
#include "client/event.h"
#include "transport/layout.h"

static void signal_fd(int fd)
{
    while (eventfd_write(fd, 1) < 0 && errno == EINTR)
        ;
}

/* --- completing --------------------------------------------------------------------------------- */

/* The lock is held. */
static void complete_locked(struct tarn_ops_queue *q, struct tarn_operation *op, int status)
{
    tarn_reason_keep(&op->why, status);
    op->state = TARN_OP_DONE;
    if (!q->completed)
        signal_fd(q->event_fd);
    DL_APPEND(q->completed, op);
    pthread_cond_broadcast(&q->done);
}

void tarn_op_complete(struct tarn_client *c, struct tarn_operation *op, int status)
{
    pthread_mutex_lock(&c->ops->lock);
    complete_locked(c->ops, op, status);
    pthread_mutex_unlock(&c->ops->lock);
}

static void op_free(struct tarn_ops_queue *q, struct tarn_operation *op)
{
    HASH_DEL(q->all, op);
    free(op->place);
    free(op->arg);
    free(op);
}

/* Moves a completion to *out and frees the operation. The lock is held. */
static void take(struct tarn_ops_queue *q, struct tarn_operation *op, struct tarn_completion *out)
{
    *out = (struct tarn_completion){
        .op = op->id, .cookie = op->cookie, .status = op->why.code, .kind = op->kind, .hits = op->hits};
    memcpy(out->error, op->why.text, sizeof out->error);
    DL_DELETE(q->completed, op);
    op_free(q, op);
    eventfd_t n;
    if (!q->completed)
        eventfd_read(q->event_fd, &n);
}

struct tarn_operation *tarn_op_find(struct tarn_ops_queue *q, tarn_op id)
{
    struct tarn_operation *op = NULL;

    HASH_FIND(hh, q->all, &id, sizeof id, op);
    return op;
}

/* --- completions -------------------------------------------------------------------------------- */

int tarn_event_fd(struct tarn_client *c)
{
    int rc = tarn_client_enter(c);

    return rc ? rc : c->ops->event_fd;
}

int tarn_drain(struct tarn_client *c, struct tarn_completion *out, int max)
{
    int rc = tarn_client_enter(c), n = 0;

    if (rc == 0 && max > 0)
        rc = tarn_out_check("drain", out);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&c->ops->lock);
    while (n < max && c->ops->completed)
        take(c->ops, c->ops->completed, &out[n++]);
    pthread_mutex_unlock(&c->ops->lock);
    return n;
}

int tarn_wait(struct tarn_client *c, tarn_op id, uint32_t timeout_ms, struct tarn_completion *out)
{
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_out_check("wait", out);
    if (rc != 0)
        return rc;
    uint64_t deadline = tarn_client_deadline(c, timeout_ms);
    struct tarn_ops_queue *q = c->ops;
    struct tarn_operation *op;

    pthread_mutex_lock(&q->lock);
    while ((op = tarn_op_find(q, id)) != NULL && op->state != TARN_OP_DONE && rc == 0)
        if (!tarn_cond_wait(&q->done, &q->lock, deadline))
            rc = TARN_E_TIMEOUT;
    if (!op)
        rc = tarn_fail(TARN_E_NOT_FOUND,
                       "wait: no such operation, or its completion was taken already: wait for each once");
    else if (op->state == TARN_OP_DONE)
        take(q, op, out), rc = 0;
    else
        tarn_fail(rc, "wait: the operation is still running: wait longer or cancel it");
    pthread_mutex_unlock(&q->lock);
    return rc;
}

/* Ends an operation that never ran, and its items. The lock is held. */
static void end_unrun(struct tarn_ops_queue *q, struct tarn_operation *op, int status)
{
    for (size_t i = 0; i < op->n; i++) {
        if (op->items)
            op->items[i].status = status;
        if (op->statuses)
            op->statuses[i] = status;
    }
    if (op->unrun)
        op->unrun(op->arg, status);
    complete_locked(q, op, status);
}

/* Takes it out of its list first. The lock is held. */
static void end_queued(struct tarn_ops_queue *q, struct tarn_operation *op, int status)
{
    if (op->after) {
        DL_DELETE(q->waiting, op);
        q->nwaiting--;
    } else {
        DL_DELETE(q->queued, op);
    }
    end_unrun(q, op, status);
}

void tarn_op_queue(struct tarn_ops_queue *q, struct tarn_operation *op)
{
    if (op->after) {
        DL_APPEND(q->waiting, op);
        q->nwaiting++;
    } else {
        DL_APPEND(q->queued, op);
    }
}

void tarn_op_looked_at(struct tarn_ops_queue *q, struct tarn_operation *op, int rc)
{
    op->state = TARN_OP_QUEUED;
    if (rc == TARN_E_AGAIN && tarn_now_ns() >= op->deadline_ns)
        rc = tarn_event_late();
    if (tarn_canceled(&op->cancel))
        rc = tarn_cancel_fail();
    if (rc == 0)
        op->after = NULL;
    if (rc == 0 || rc == TARN_E_AGAIN)
        tarn_op_queue(q, op);
    else
        end_unrun(q, op, rc);
}

void tarn_op_requeue(struct tarn_client *c, struct tarn_operation *op)
{
    struct tarn_ops_queue *q = c->ops;

    pthread_mutex_lock(&q->lock);
    bool canceled = tarn_canceled(&op->cancel), earlier = !canceled && op->deadline_ns < q->alarm_ns;
    op->state = TARN_OP_QUEUED;
    op->run_together = NULL;
    if (canceled) {
        end_unrun(q, op, tarn_cancel_fail());
    } else {
        DL_PREPEND(q->queued, op);
        pthread_cond_signal(&q->work);
    }
    if (earlier)
        q->alarm_ns = op->deadline_ns;
    pthread_mutex_unlock(&q->lock);
    if (earlier)
        tarn_monitor_alarm(c);
}

/* --- parked ------------------------------------------------------------------------------------- */

/* The lock is held. */
static void unpark(struct tarn_ops_queue *q, struct tarn_operation *op)
{
    op->state = TARN_OP_QUEUED;
    tarn_op_queue(q, op);
    pthread_cond_signal(&q->work);
}

void tarn_op_park(struct tarn_client *c, struct tarn_operation *op)
{
    struct tarn_ops_queue *q = c->ops;

    pthread_mutex_lock(&q->lock);
    bool again = op->woken || tarn_canceled(&op->cancel), earlier = !again && op->deadline_ns < q->alarm_ns;
    op->state = TARN_OP_PARKED;
    if (again)
        unpark(q, op);
    if (earlier)
        q->alarm_ns = op->deadline_ns;
    pthread_mutex_unlock(&q->lock);
    if (earlier)
        tarn_monitor_alarm(c);
}

void tarn_op_wake(struct tarn_client *c, tarn_op id)
{
    pthread_mutex_lock(&c->ops->lock);
    struct tarn_operation *op = tarn_op_find(c->ops, id);
    if (op && op->state == TARN_OP_PARKED)
        unpark(c->ops, op);
    else if (op)
        op->woken = true;
    pthread_mutex_unlock(&c->ops->lock);
}

struct tarn_operation *tarn_op_claim(struct tarn_client *c, tarn_op id)
{
    pthread_mutex_lock(&c->ops->lock);
    struct tarn_operation *op = tarn_op_find(c->ops, id);
    bool parked = op && op->state == TARN_OP_PARKED;
    if (parked)
        op->state = TARN_OP_RUNNING;
    if (op)
        op->woken = true;
    pthread_mutex_unlock(&c->ops->lock);
    return parked ? op : NULL;
}

/* --- the end ------------------------------------------------------------------------------------ */

static void expire(struct tarn_ops_queue *q, struct tarn_operation *op)
{
    if (op->state == TARN_OP_PARKED) {
        unpark(q, op);
    } else if (op->parks) {
        return; /* its run() ends it */
    } else if (op->state == TARN_OP_QUEUED && op->after) {
        end_queued(q, op, tarn_event_late());
    } else if (op->state == TARN_OP_QUEUED) {
        end_queued(q, op,
                   tarn_fail(TARN_E_TIMEOUT, "submit: the deadline passed before a worker was free: "
                                             "raise timeout_ms or the client's workers"));
    }
}

uint64_t tarn_ops_expire(struct tarn_client *c)
{
    struct tarn_ops_queue *q = c->ops;
    struct tarn_operation *op, *next;
    uint64_t now = tarn_now_ns();

    pthread_mutex_lock(&q->lock);
    if (now >= q->alarm_ns) {
        q->alarm_ns = UINT64_MAX;
        HASH_ITER (hh, q->all, op, next) {
            if (op->state == TARN_OP_DONE || (op->state == TARN_OP_RUNNING && !op->after))
                continue;
            if (now >= op->deadline_ns)
                expire(q, op);
            else if (op->deadline_ns < q->alarm_ns)
                q->alarm_ns = op->deadline_ns;
        }
    }
    uint64_t alarm = q->alarm_ns;
    pthread_mutex_unlock(&q->lock);
    return alarm;
}

static void cancel_locked(struct tarn_ops_queue *q, struct tarn_operation *op)
{
    if (op->state == TARN_OP_QUEUED && !op->parks) {
        end_queued(q, op, tarn_cancel_fail());
        return;
    }
    atomic_store(&op->cancel.on, true);
    if (op->state == TARN_OP_PARKED)
        unpark(q, op);
    else if (op->state == TARN_OP_RUNNING)
        signal_fd(op->cancel.fd);
}

int tarn_cancel(struct tarn_client *c, tarn_op id)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    struct tarn_ops_queue *q = c->ops;
    pthread_mutex_lock(&q->lock);
    struct tarn_operation *op = tarn_op_find(q, id);
    if (op)
        cancel_locked(q, op);
    else
        rc = tarn_fail(TARN_E_NOT_FOUND, "cancel: no such operation, or its completion was taken already");
    while (rc == 0 && (op = tarn_op_find(q, id)) != NULL && op->state != TARN_OP_DONE)
        pthread_cond_wait(&q->done, &q->lock);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

/* --- life --------------------------------------------------------------------------------------- */

int tarn_ops_new(struct tarn_client *c)
{
    struct tarn_ops_queue *q = calloc(1, sizeof *q);

    if (!q || !(q->workers = calloc(c->workers, sizeof *q->workers))) {
        free(q);
        return tarn_fail(TARN_E_NO_MEMORY, "client: out of memory");
    }
    int rc = tarn_client_eventfd(&q->event_fd);
    if (rc != 0) {
        free(q->workers);
        free(q);
        return rc;
    }
    pthread_mutex_init(&q->lock, NULL);
    tarn_cond_init(&q->work);
    tarn_cond_init(&q->done);
    q->alarm_ns = UINT64_MAX;
    c->ops = q;
    return 0;
}

void tarn_ops_stop(struct tarn_client *c)
{
    struct tarn_ops_queue *q = c->ops;
    struct tarn_operation *op, *next;

    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    HASH_ITER (hh, q->all, op, next)
        cancel_locked(q, op);
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->lock);
    for (uint32_t i = 0; i < q->nworkers; i++) {
        pthread_join(q->workers[i].thread, NULL);
        close(q->workers[i].cancel_fd);
    }
}

void tarn_ops_free(struct tarn_client *c)
{
    struct tarn_ops_queue *q = c->ops;
    struct tarn_operation *op, *next;

    if (!q)
        return;
    HASH_ITER (hh, q->all, op, next) {
        tarn_hits_free(op->hits);
        op_free(q, op);
    }
    close(q->event_fd);
    pthread_cond_destroy(&q->work);
    pthread_cond_destroy(&q->done);
    pthread_mutex_destroy(&q->lock);
    free(q->workers);
    free(q);
    c->ops = NULL;
}

static bool op_uses(const struct tarn_operation *op, const void *addr, uint64_t bytes)
{
    for (size_t i = 0; op->items && i < op->n; i++) {
        const struct tarn_item *item = &op->items[i];
        if (item->layout && tarn_layout_overlaps(item->layout, addr, bytes))
            return true;
        for (uint32_t k = 0; !item->layout && k < item->npieces; k++)
            if (tarn_piece_overlaps(&item->pieces[k], addr, bytes))
                return true;
    }
    return op->uses && op->uses(op->arg, addr, bytes);
}

bool tarn_ops_use(struct tarn_client *c, const void *addr, uint64_t bytes)
{
    struct tarn_operation *op, *next;
    bool used = false;

    pthread_mutex_lock(&c->ops->lock);
    HASH_ITER (hh, c->ops->all, op, next)
        used |= op->state != TARN_OP_DONE && op_uses(op, addr, bytes);
    pthread_mutex_unlock(&c->ops->lock);
    return used;
}
