/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submitted operations: the workers, which run the blocking code.
 *
 * A worker that takes a get takes other waiting gets along, up to GETS_MAX items: their transfers share
 * links, so many small gets in flight cost little more than one. Each still has its own deadline, its
 * own stop flag and its own completion, which comes as soon as its own items are final.
 */
#include "client/op.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#define GETS_MAX 64

static void get_done(struct tarn_get *g)
{
    struct tarn_operation *op = g->owner;

    tarn_op_complete(g->client, op, tarn_verdict_end(&g->verdict));
}

static void run_gets(struct tarn_worker *w, struct tarn_operation *const *ops, size_t n)
{
    struct tarn_client *c = w->client;
    struct tarn_get *slow[GETS_MAX];
    size_t nslow = 0;

    for (size_t i = 0; i < n; i++) {
        struct tarn_operation *op = ops[i];
        tarn_get_prepare(&op->get, c, op->items, op->n, &op->get_options);
        op->get.deadline_ns = op->deadline_ns;
        op->get.stop = &op->stop;
        op->get.done = get_done;
        op->get.owner = op;
        tarn_get_fast(&op->get);
        if (op->get.left == 0)
            get_done(&op->get);
        else
            slow[nslow++] = &op->get;
    }
    if (nslow > 0)
        tarn_get_slow(c, slow, nslow, w->stop_fd);
}

static void run_other(struct tarn_worker *w, struct tarn_operation *op)
{
    struct tarn_client *c = w->client;
    struct tarn_stop stop = {&op->stop, w->stop_fd};
    const struct tarn_net_stop net_stop = {w->stop_fd, tarn_stop_seen, &stop};
    int rc = 0;

    switch (op->kind) {
    case TARN_OP_PUT:
        rc = tarn_put_run(c, op->items, op->n, &op->put_options, op->deadline_ns, &stop);
        break;
    case TARN_OP_LOOKUP:
        tarn_net_stop_by(&net_stop);
        rc = tarn_lookup_run(c, op->keys, op->n, op->deadline_ns, &op->hits);
        tarn_net_stop_by(NULL);
        if (rc != 0 && tarn_stopped(&stop))
            rc = tarn_fail(TARN_E_CANCELED, "canceled by the caller");
        break;
    case TARN_OP_REMOVE:
        rc = tarn_remove_run(c, op->keys, op->n, op->statuses, op->deadline_ns, &stop);
        break;
    case TARN_OP_GET:
        break;
    }
    tarn_op_complete(c, op, rc);
}

/* Takes the next operation, and with a get other gets. The lock is held. */
static size_t take_work(struct tarn_ops_queue *q, struct tarn_worker *w, struct tarn_operation **ops)
{
    struct tarn_operation *op = q->queued, *next;
    size_t n = 0, items = 0;

    for (; op && n < GETS_MAX; op = next) {
        next = op->next;
        if (n > 0 && (op->kind != TARN_OP_GET || items + op->n > GETS_MAX))
            continue;
        DL_DELETE(q->queued, op);
        op->state = TARN_OP_RUNNING;
        op->worker = w;
        ops[n++] = op;
        items += op->n;
        if (op->kind != TARN_OP_GET)
            break;
    }
    return n;
}

static void *worker_main(void *arg)
{
    struct tarn_worker *w = arg;
    struct tarn_ops_queue *q = w->client->ops;
    struct tarn_operation *ops[GETS_MAX];

    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (!q->queued && !q->stop)
            pthread_cond_wait(&q->work, &q->lock);
        if (!q->queued)
            break;
        size_t n = take_work(q, w, ops);
        bool gets = ops[0]->kind == TARN_OP_GET;
        tarn_stop_drain(w->stop_fd); /* what earlier operations left; a flag set since is still seen */
        pthread_mutex_unlock(&q->lock);
        if (gets)
            run_gets(w, ops, n);
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
        w->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (w->stop_fd < 0)
            break;
        if (tarn_thread_start(&w->thread, worker_main, w) != 0) {
            close(w->stop_fd);
            break;
        }
        q->nworkers++;
    }
    return q->nworkers
               ? 0
               : tarn_fail(TARN_E_SYSTEM, "client: cannot start a worker: raise the limits of open files "
                                          "and processes (ulimit -n, -u)");
}
