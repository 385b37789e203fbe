/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that takes a get takes other queued gets with it, up to GETS_MAX items. Their transfers share
 * links, so many small gets cost little more than one. Each keeps its own deadline and cancel, and completes
 * as soon as its own items are final. The same holds for reads of one lease, up to TOGETHER_BYTES.
 */
#include "client/op_run.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#include "base/thread.h"
#include "client/event.h"
#include "client/get.h"
#include "client/get_now.h"
#include "client/lookup.h"
#include "client/memory.h"
#include "client/op.h"
#include "client/put.h"
#include "client/remove.h"
#include "client/stream.h"

#define GETS_MAX 64
#define LOOK_MAX 32
#define TOGETHER_BYTES (256u << 10) /* more are better off with a link of their own for each worker */

/* Memory that was a GPU's at submit and was freed since must not pass for host memory. True: the operation
 * ends. */
static bool ended_by_freed_memory(struct tarn_client *c, struct tarn_operation *op)
{
    if (op->on_gpus == 0 || tarn_items_on_gpus(op->items, op->n) == op->on_gpus)
        return false;
    for (size_t i = 0; i < op->n; i++)
        op->items[i].status = TARN_E_INVALID;
    tarn_op_complete(c, op,
                     tarn_fail(TARN_E_INVALID,
                               "memory of the operation was a GPU's at submit and is not now: "
                               "keep it until the completion"));
    return true;
}

static void get_done(struct tarn_get *g)
{
    struct tarn_operation *op = g->owner;

    tarn_op_complete(g->client, op, tarn_verdict_end(&g->verdict));
}

static const struct tarn_get_calls calls = {
    .done = get_done,
    .shrunk = tarn_op_shrunk,
    .given = tarn_op_given,
    .landed = tarn_op_landed,
    .again = tarn_op_again,
};

static void run_gets(struct tarn_worker *w, struct tarn_operation *const *ops, size_t n)
{
    struct tarn_client *c = w->client;
    struct tarn_get *slow[GETS_MAX];
    size_t nslow = 0;

    for (size_t i = 0; i < n; i++) {
        struct tarn_operation *op = ops[i];
        if (ended_by_freed_memory(c, op))
            continue;
        tarn_get_prepare(&op->get, c, op->items, op->n, &op->get_options);
        op->get.deadline_ns = op->deadline_ns;
        op->get.cancel = &op->cancel;
        op->get.calls = &calls;
        op->get.owner = op;
        tarn_get_now(&op->get);
        if (op->get.left == 0)
            get_done(&op->get);
        else
            slow[nslow++] = &op->get;
    }
    if (nslow > 0)
        tarn_get_finish(c, slow, nslow, w->cancel_fd);
}

static void run_other(struct tarn_worker *w, struct tarn_operation *op)
{
    struct tarn_client *c = w->client;
    int rc = 0;

    if (ended_by_freed_memory(c, op))
        return;
    switch (op->kind) {
    case TARN_OP_PUT:
        rc = tarn_put_run(c, op->items, op->n, &op->put_options, op->deadline_ns, &op->cancel);
        break;
    case TARN_OP_LOOKUP:
        rc = tarn_lookup_run(c, op->keys, op->n, op->deadline_ns, &op->cancel, &op->hits);
        break;
    case TARN_OP_REMOVE:
        rc = tarn_remove_run(c, op->keys, op->n, op->statuses, op->deadline_ns, &op->cancel);
        break;
    case TARN_OP_READ:
    case TARN_OP_WRITE:
    case TARN_OP_SEND:
    case TARN_OP_RECV:
    case TARN_OP_EXPECT:
    case TARN_OP_REACH:
    case TARN_OP_CONNECT:
        rc = op->run(op->arg, op->deadline_ns, &op->cancel);
        break;
    case TARN_OP_GET:
        break;
    }
    if (rc == TARN_INPROGRESS)
        tarn_op_park(c, op);
    else
        tarn_op_complete(c, op, rc);
}

static bool has_company(const struct tarn_operation *op)
{
    return op->kind == TARN_OP_GET || op->run_together;
}

/* May it run together with another that a worker has taken? */
static bool goes_with(const struct tarn_operation *op, const struct tarn_operation *first)
{
    return has_company(op) && op->kind == first->kind && op->group == first->group;
}

static uint64_t weight(const struct tarn_operation *op)
{
    return op->kind == TARN_OP_GET ? op->n : op->bytes;
}

/* Takes the next operation, and others that may run together with it. The lock is held. */
static size_t take_work(struct tarn_ops_queue *q, struct tarn_worker *w, struct tarn_operation **ops)
{
    struct tarn_operation *op = q->queued, *next;
    uint64_t taken = 0, most = op->kind == TARN_OP_GET ? GETS_MAX : TOGETHER_BYTES;
    size_t n = 0;

    for (; op && n < GETS_MAX; op = next) {
        next = op->next;
        if (n > 0 && (!goes_with(op, ops[0]) || weight(op) > most || taken > most - weight(op)))
            continue;
        DL_DELETE(q->queued, op);
        op->state = TARN_OP_RUNNING;
        op->woken = false;
        op->cancel.fd = w->cancel_fd;
        ops[n++] = op;
        taken += weight(op);
        if (!has_company(op) || taken >= most)
            break;
    }
    return n;
}

/* Looks at the next few events. The lock is held, except while CUDA is asked. */
static void look_at_events(struct tarn_ops_queue *q, struct tarn_worker *w)
{
    for (size_t n = q->nwaiting < LOOK_MAX ? q->nwaiting : LOOK_MAX; n > 0 && q->waiting; n--) {
        struct tarn_operation *op = q->waiting;
        DL_DELETE(q->waiting, op);
        q->nwaiting--;
        op->state = TARN_OP_RUNNING;
        op->cancel.fd = w->cancel_fd;
        pthread_mutex_unlock(&q->lock);
        int rc = tarn_cuda_passed(op->after);
        pthread_mutex_lock(&q->lock);
        tarn_op_looked_at(q, op, rc);
    }
}

/* Waits for work; looks at events if no other worker does. False: the end. The lock is held. */
static bool wait_for_work(struct tarn_ops_queue *q, struct tarn_worker *w)
{
    uint64_t begun = q->waiting ? tarn_now_ns() : 0, now;

    while (q->waiting && !q->looking) {
        q->looking = true;
        look_at_events(q, w);
        now = tarn_now_ns();
        if (!q->queued && q->waiting && tarn_event_nap_ns(now - begun) > 0)
            tarn_cond_wait(&q->work, &q->lock, now + tarn_event_nap_ns(now - begun));
        q->looking = false;
        if (q->queued)
            break;
    }
    if (q->queued && (q->queued->next || q->waiting))
        pthread_cond_signal(&q->work); /* wakes another worker for the rest */
    while (!q->queued && !q->stop && (!q->waiting || q->looking))
        pthread_cond_wait(&q->work, &q->lock);
    return q->queued || q->waiting || !q->stop;
}

static void *worker_main(void *arg)
{
    struct tarn_worker *w = arg;
    eventfd_t left;
    struct tarn_ops_queue *q = w->client->ops;
    struct tarn_operation *ops[GETS_MAX];

    pthread_mutex_lock(&q->lock);
    while (wait_for_work(q, w)) {
        if (!q->queued)
            continue;
        size_t n = take_work(q, w, ops);
        bool gets = ops[0]->kind == TARN_OP_GET;
        eventfd_read(w->cancel_fd, &left); /* clears earlier cancels; these operations' flags still count */
        pthread_mutex_unlock(&q->lock);
        if (gets)
            run_gets(w, ops, n);
        else if (n > 1)
            ops[0]->run_together(w->client, ops, n, w->cancel_fd);
        else
            run_other(w, ops[0]);
        pthread_mutex_lock(&q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

int tarn_ops_start_workers(struct tarn_client *c)
{
    struct tarn_ops_queue *q = c->ops;

    if (q->nworkers > 0)
        return 0;
    for (uint32_t i = 0; i < c->workers; i++) {
        struct tarn_worker *w = &q->workers[q->nworkers];
        w->client = c;
        w->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (w->cancel_fd < 0)
            break;
        if (tarn_thread_start(&w->thread, worker_main, w) != 0) {
            close(w->cancel_fd);
            break;
        }
        q->nworkers++;
    }
    return q->nworkers
               ? 0
               : tarn_fail(TARN_E_SYSTEM, "client: cannot start a worker: raise the limits of open files "
                                          "and processes (ulimit -n, -u)");
}
