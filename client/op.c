/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submitted operations: a queue, a few workers that run the blocking code, and a list of completions
 * behind one eventfd.
 *
 *   QUEUED --taken by a worker--> RUNNING --> DONE (in `completed`) --drained--> freed
 *      \--- canceled, or out of time ----------^
 *
 * A worker that takes a get takes other waiting gets along, up to GETS_MAX items: their transfers share
 * links, so many small gets in flight cost little more than one. Each still has its own deadline, its
 * own stop flag and its own completion, which comes as soon as its own items are final.
 *
 * A running operation minds its deadline itself. Queued ones are ended by the keeper (monitor.c), which
 * comes by when `alarm_ns` has passed; it is woken for an earlier deadline only, so that a stream of
 * operations with the same timeout wakes it once a timeout.
 *
 * Cancel: the flag first, then the worker's eventfd; whoever waits looks at the flags after reading it.
 * One lock guards everything here. An operation's struct is freed when its completion is taken, so
 * nothing may look at it after complete() let go of the lock.
 */
#include "client/client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#define GETS_MAX 64

enum state { QUEUED, RUNNING, DONE };

struct worker {
    struct tarn_client *client;
    pthread_t thread;
    int stop_fd;
};

struct op {
    UT_hash_handle hh;      /* by id */
    struct op *prev, *next; /* in `queued` or `completed` */
    tarn_op id;
    uint64_t cookie, deadline_ns;
    enum tarn_op_kind kind;
    enum state state;
    _Atomic bool stop;
    struct worker *worker;

    struct tarn_item *items;
    const struct tarn_key *keys;
    size_t n;
    int32_t *statuses;
    struct tarn_get_options get_options;
    struct tarn_put_options put_options;
    char *place; /* copy of put_options.place */
    struct tarn_get get;

    int status;
    struct tarn_hits *hits;
    char error[192];
};

struct tarn_ops_queue {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct op *all, *queued, *completed;
    uint64_t last_id;
    uint64_t alarm_ns; /* not later than the earliest deadline in `queued` */
    int event_fd;
    bool stop;
    struct worker *workers;
    uint32_t nworkers;
};

void tarn_stop_drain(int fd)
{
    uint64_t n;

    while (read(fd, &n, sizeof n) < 0 && errno == EINTR)
        ;
}

bool tarn_stop_seen(void *arg)
{
    const struct tarn_stop *s = arg;

    tarn_stop_drain(s->fd);
    return tarn_stopped(s);
}

static void signal_fd(int fd)
{
    uint64_t one = 1;

    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* --- completing --------------------------------------------------------------------------------- */

/* The lock is held. */
static void complete_locked(struct tarn_ops_queue *q, struct op *op, int status)
{
    op->status = status;
    op->state = DONE;
    if (status != 0)
        snprintf(op->error, sizeof op->error, "%s", tarn_last_error());
    if (!q->completed)
        signal_fd(q->event_fd);
    DL_APPEND(q->completed, op);
    pthread_cond_broadcast(&q->done);
}

static void complete(struct tarn_client *c, struct op *op, int status)
{
    pthread_mutex_lock(&c->ops->lock);
    complete_locked(c->ops, op, status);
    pthread_mutex_unlock(&c->ops->lock);
}

static void op_free(struct tarn_ops_queue *q, struct op *op)
{
    HASH_DEL(q->all, op);
    free(op->place);
    free(op);
}

/* Takes a completion out of the list. The lock is held. */
static void take(struct tarn_ops_queue *q, struct op *op, struct tarn_completion *out)
{
    *out = (struct tarn_completion){
        .op = op->id, .cookie = op->cookie, .status = op->status, .kind = op->kind, .hits = op->hits};
    memcpy(out->error, op->error, sizeof out->error);
    DL_DELETE(q->completed, op);
    op_free(q, op);
    if (!q->completed)
        tarn_stop_drain(q->event_fd);
}

static struct op *find(struct tarn_ops_queue *q, tarn_op id)
{
    struct op *op = NULL;

    HASH_FIND(hh, q->all, &id, sizeof id, op);
    return op;
}

/* --- workers ------------------------------------------------------------------------------------ */

static void get_done(struct tarn_get *g)
{
    struct op *op = g->owner;

    complete(g->client, op, tarn_verdict_end(&g->verdict));
}

static void run_gets(struct worker *w, struct op *const *ops, size_t n)
{
    struct tarn_client *c = w->client;
    struct tarn_get *slow[GETS_MAX];
    size_t nslow = 0;

    for (size_t i = 0; i < n; i++) {
        struct op *op = ops[i];
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

static void run_other(struct worker *w, struct op *op)
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
    complete(c, op, rc);
}

/* Takes the next operation, and with a get other gets. The lock is held. */
static size_t take_work(struct tarn_ops_queue *q, struct worker *w, struct op **ops)
{
    struct op *op = q->queued, *next;
    size_t n = 0, items = 0;

    for (; op && n < GETS_MAX; op = next) {
        next = op->next;
        if (n > 0 && (op->kind != TARN_OP_GET || items + op->n > GETS_MAX))
            continue;
        DL_DELETE(q->queued, op);
        op->state = RUNNING;
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
    struct worker *w = arg;
    struct tarn_ops_queue *q = w->client->ops;
    struct op *ops[GETS_MAX];

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

/* Starts the workers on first use. The lock is held. One is enough to go on. */
static int start_workers(struct tarn_client *c)
{
    struct tarn_ops_queue *q = c->ops;

    if (q->nworkers > 0)
        return 0;
    for (uint32_t i = 0; i < c->workers; i++) {
        struct worker *w = &q->workers[q->nworkers];
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

/* --- submitting --------------------------------------------------------------------------------- */

static int op_new(struct tarn_client *c, enum tarn_op_kind kind, uint32_t timeout_ms, uint64_t cookie,
                  struct op **op_p)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    struct op *op = calloc(1, sizeof *op);
    if (!op)
        return tarn_fail(TARN_E_NO_MEMORY, "submit: out of memory");
    op->kind = kind;
    op->cookie = cookie;
    op->deadline_ns = tarn_client_deadline(c, timeout_ms);
    *op_p = op;
    return 0;
}

static int submit(struct tarn_client *c, struct op *op, tarn_op *op_p)
{
    struct tarn_ops_queue *q = c->ops;

    pthread_mutex_lock(&q->lock);
    int rc = start_workers(c);
    op->id = ++q->last_id;
    if (rc == 0) {
        unsigned before = HASH_COUNT(q->all);
        HASH_ADD(hh, q->all, id, sizeof op->id, op);
        if (HASH_COUNT(q->all) == before)
            rc = tarn_fail(TARN_E_NO_MEMORY, "submit: out of memory");
    }
    bool earlier = rc == 0 && op->deadline_ns < q->alarm_ns;
    if (rc == 0) {
        if (op_p)
            *op_p = op->id;
        if (earlier)
            q->alarm_ns = op->deadline_ns;
        DL_APPEND(q->queued, op);
        pthread_cond_signal(&q->work);
    }
    pthread_mutex_unlock(&q->lock);
    if (earlier)
        tarn_monitor_alarm(c);
    if (rc != 0) {
        free(op->place);
        free(op);
    }
    return rc;
}

int tarn_submit_get(struct tarn_client *c, struct tarn_item *items, size_t n,
                    const struct tarn_get_options *o, uint64_t cookie, tarn_op *op_p)
{
    struct tarn_get_options copy;
    struct op *op;

    int rc = tarn_options_copy(&copy, sizeof copy, o);
    if (rc == 0 && n > 0 && !items)
        rc = tarn_fail(TARN_E_INVALID, "get: items are NULL");
    if (rc == 0)
        rc = op_new(c, TARN_OP_GET, copy.timeout_ms, cookie, &op);
    if (rc != 0)
        return rc;
    op->items = items;
    op->n = n;
    op->get_options = copy;
    return submit(c, op, op_p);
}

int tarn_submit_put(struct tarn_client *c, struct tarn_item *items, size_t n,
                    const struct tarn_put_options *o, uint64_t cookie, tarn_op *op_p)
{
    struct tarn_put_options copy;
    struct op *op;

    int rc = tarn_options_copy(&copy, sizeof copy, o);
    if (rc == 0)
        rc = op_new(c, TARN_OP_PUT, copy.timeout_ms, cookie, &op);
    if (rc != 0)
        return rc;
    op->items = items;
    op->n = n;
    op->put_options = copy;
    if (copy.place && !(op->put_options.place = op->place = strdup(copy.place))) {
        free(op);
        return tarn_fail(TARN_E_NO_MEMORY, "submit: out of memory");
    }
    return submit(c, op, op_p);
}

int tarn_submit_lookup(struct tarn_client *c, const struct tarn_key *keys, size_t n,
                       const struct tarn_lookup_options *o, uint64_t cookie, tarn_op *op_p)
{
    struct tarn_lookup_options copy;
    struct op *op;

    int rc = tarn_options_copy(&copy, sizeof copy, o);
    if (rc == 0)
        rc = op_new(c, TARN_OP_LOOKUP, copy.timeout_ms, cookie, &op);
    if (rc != 0)
        return rc;
    op->keys = keys;
    op->n = n;
    return submit(c, op, op_p);
}

int tarn_submit_remove(struct tarn_client *c, const struct tarn_key *keys, size_t n, int32_t *statuses,
                       uint32_t timeout_ms, uint64_t cookie, tarn_op *op_p)
{
    struct op *op = NULL;
    int rc = op_new(c, TARN_OP_REMOVE, timeout_ms, cookie, &op);

    if (rc != 0)
        return rc;
    op->keys = keys;
    op->n = n;
    op->statuses = statuses;
    return submit(c, op, op_p);
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

    if (rc != 0)
        return rc;
    uint64_t deadline = tarn_client_deadline(c, timeout_ms);
    struct tarn_ops_queue *q = c->ops;
    struct op *op;

    pthread_mutex_lock(&q->lock);
    while ((op = find(q, id)) != NULL && op->state != DONE && rc == 0)
        if (!tarn_cond_wait(&q->done, &q->lock, deadline))
            rc = TARN_E_TIMEOUT;
    if (!op)
        rc = tarn_fail(TARN_E_NOT_FOUND, "wait: no such operation, or its completion was taken already");
    else if (op->state == DONE)
        take(q, op, out), rc = 0;
    else
        tarn_fail(rc, "wait: the operation is still running: wait longer or cancel it");
    pthread_mutex_unlock(&q->lock);
    return rc;
}

/* A queued operation never ran: its items say so. The lock is held. */
static void end_queued(struct tarn_ops_queue *q, struct op *op, int status)
{
    DL_DELETE(q->queued, op);
    for (size_t i = 0; i < op->n; i++) {
        if (op->items)
            op->items[i].status = status;
        if (op->statuses)
            op->statuses[i] = status;
    }
    complete_locked(q, op, status);
}

uint64_t tarn_ops_expire(struct tarn_client *c)
{
    struct tarn_ops_queue *q = c->ops;
    struct op *op, *next;
    uint64_t now = tarn_now_ns();

    pthread_mutex_lock(&q->lock);
    if (now >= q->alarm_ns) {
        q->alarm_ns = UINT64_MAX;
        DL_FOREACH_SAFE(q->queued, op, next)
        {
            if (now >= op->deadline_ns)
                end_queued(q, op,
                           tarn_fail(TARN_E_TIMEOUT, "submit: the deadline passed before a worker was free: "
                                                     "raise timeout_ms or the client's workers"));
            else if (op->deadline_ns < q->alarm_ns)
                q->alarm_ns = op->deadline_ns;
        }
    }
    uint64_t alarm = q->alarm_ns;
    pthread_mutex_unlock(&q->lock);
    return alarm;
}

static void cancel_locked(struct tarn_ops_queue *q, struct op *op)
{
    if (op->state == QUEUED) {
        end_queued(q, op, tarn_fail(TARN_E_CANCELED, "canceled by the caller"));
    } else if (op->state == RUNNING) {
        atomic_store(&op->stop, true);
        signal_fd(op->worker->stop_fd);
    }
}

int tarn_cancel(struct tarn_client *c, tarn_op id)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    struct tarn_ops_queue *q = c->ops;
    pthread_mutex_lock(&q->lock);
    struct op *op = find(q, id);
    if (op)
        cancel_locked(q, op);
    else
        rc = tarn_fail(TARN_E_NOT_FOUND, "cancel: no such operation, or its completion was taken already");
    while (rc == 0 && (op = find(q, id)) != NULL && op->state != DONE)
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
    q->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->event_fd < 0) {
        free(q->workers);
        free(q);
        return tarn_fail(TARN_E_SYSTEM, "client: eventfd: %m: raise the limit of open files (ulimit -n)");
    }
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    tarn_cond_init(&q->done);
    q->alarm_ns = UINT64_MAX;
    c->ops = q;
    return 0;
}

void tarn_ops_stop(struct tarn_client *c)
{
    struct tarn_ops_queue *q = c->ops;
    struct op *op, *next;

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
        close(q->workers[i].stop_fd);
    }
}

void tarn_ops_free(struct tarn_client *c)
{
    struct tarn_ops_queue *q = c->ops;
    struct op *op, *next;

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

static bool overlaps(const struct tarn_piece *p, const void *addr, uint64_t bytes)
{
    uint64_t stride = p->stride ? p->stride : p->bytes, count = p->count ? p->count : 1;
    uintptr_t from = (uintptr_t)p->addr, to = from + (count - 1) * stride + p->bytes;

    return from < (uintptr_t)addr + bytes && (uintptr_t)addr < to;
}

static bool op_uses(const struct op *op, const void *addr, uint64_t bytes)
{
    for (size_t i = 0; op->items && i < op->n; i++)
        for (uint32_t k = 0; k < op->items[i].npieces; k++)
            if (overlaps(&op->items[i].pieces[k], addr, bytes))
                return true;
    return false;
}

bool tarn_ops_use(struct tarn_client *c, const void *addr, uint64_t bytes)
{
    struct op *op, *next;
    bool used = false;

    pthread_mutex_lock(&c->ops->lock);
    HASH_ITER (hh, c->ops->all, op, next)
        used |= op->state != DONE && op_uses(op, addr, bytes);
    pthread_mutex_unlock(&c->ops->lock);
    return used;
}
