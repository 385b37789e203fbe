/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How queue pairs end. Destroying one can take long: soft-RoCE (Linux 6.1) sleeps in ibv_destroy_qp for 20 s
 * and more while packets of it are queued in an interface that is down. Operations do not wait for it:
 *
 *   in use --tarn_qp_stop--> nothing moves --tarn_rails_retire--> retired --the rails' thread--> destroyed
 *
 * The thread starts with the first retired queue pair or the first hold. It destroys queue pairs one by one,
 * each before its completion queue, and finally closes the rails, which must outlive them. Whoever closes the
 * rails waits CLOSE_NS for that; then the thread goes on alone and frees the rest.
 *
 * Other threads that use the rails (rdma_join.c) *hold* them. The rails close when all holds have ended, so
 * nobody has to wait for such a thread. The rails' thread joins it.
 *
 * Lock: reaper.lock guards all of the reaper. It is a leaf, and is not held while anything is destroyed.
 */
#include <pthread.h>
#include <stdlib.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/thread.h"
#include "transport/rdma/rdma_rail.h"

#define STOP_NS (2 * TARN_NS_PER_S) /* a working device flushes a queue pair within milliseconds */
#define LOOK_NS 50000               /* interval between polls for flushed requests */
#define CLOSE_NS (3 * TARN_NS_PER_S)
#define MARK UINT64_MAX /* wr_id of the last request posted */

/* Something the thread will destroy, or a hold, which becomes one when its thread ends. */
struct tarn_hold {
    struct tarn_qp_parts parts;
    struct tarn_reaper *reaper;
    pthread_t thread;
    bool ended; /* a hold whose thread can be joined */
    struct tarn_hold *next;
};

struct tarn_reaper {
    pthread_mutex_t lock;
    pthread_cond_t wake, closed;
    pthread_t thread;
    bool started;
    bool closing; /* the rails' owner has given them up */
    bool over;    /* the rails are closed */
    bool alone;   /* nobody waits: the thread frees the reaper */
    uint32_t holds;
    struct tarn_hold *retired;             /* oldest first */
    struct tarn_rail rail[TARN_RAILS_MAX]; /* set when closing */
    uint32_t nrails;
};

/* --- stopping ----------------------------------------------------------------------------------- */

/* Who takes completed receives; `fn` may be NULL. */
struct receiver {
    tarn_received_fn *fn;
    void *arg;
};

/* Polls completions, counted in *taken_p. True when MARK's is among them. */
static bool marked(const struct ibv_qp *qp, struct ibv_cq *cq, const struct receiver *to, int *taken_p)
{
    struct ibv_wc wc[16];
    bool found = false;
    int got;
    while (!found && (got = ibv_poll_cq(cq, 16, wc)) > 0) {
        *taken_p += got;
        for (int i = 0; i < got; i++) {
            found |= wc[i].wr_id == MARK && wc[i].qp_num == qp->qp_num && wc[i].status != IBV_WC_SUCCESS;
            if (to->fn && wc[i].status == IBV_WC_SUCCESS)
                to->fn(to->arg, &wc[i]);
        }
    }
    return found;
}

static bool to_error(struct ibv_qp *qp)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
    return ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0;
}

static bool wait_a_moment(uint64_t until)
{
    static const struct timespec pause = {.tv_nsec = LOOK_NS};
    nanosleep(&pause, NULL);
    return tarn_now_ns() < until;
}

/* The send queue is flushed in order, so its last request comes last. */
bool tarn_qp_stop(struct ibv_qp *qp, struct ibv_cq *cq, bool full)
{
    struct ibv_send_wr mark = {.wr_id = MARK, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;
    const struct receiver nobody = {.fn = NULL};
    uint64_t until = tarn_now_ns() + STOP_NS;
    bool posted = false;
    int taken = 0;
    if (!to_error(qp))
        return false;
    while (!marked(qp, cq, &nobody, &taken)) {
        if (!posted && (!full || taken > 0))
            posted = ibv_post_send(qp, &mark, &bad) == 0;
        if (!wait_a_moment(until))
            return false;
    }
    return true;
}

/* The responder flushes the receive queue after everything it has written. */
bool tarn_qp_cut_off(struct ibv_qp *qp, struct ibv_cq *cq, tarn_received_fn *fn, void *arg)
{
    struct ibv_recv_wr *bad, mark = {.wr_id = MARK};
    const struct receiver to = {fn, arg};
    uint64_t until = tarn_now_ns() + STOP_NS;
    int taken = 0;
    marked(qp, cq, &to, &taken); /* of a shared cq: late completions of another queue pair */
    if (ibv_post_recv(qp, &mark, &bad) || !to_error(qp))
        return false;
    while (!marked(qp, cq, &to, &taken))
        if (!wait_a_moment(until))
            return false;
    return true;
}

/* --- destroying --------------------------------------------------------------------------------- */

static void destroy(const struct tarn_qp_parts *p)
{
    if (p->qp)
        ibv_destroy_qp(p->qp);
    if (p->cq)
        ibv_destroy_cq(p->cq);
    if (p->channel)
        ibv_destroy_comp_channel(p->channel);
}

static void close_rails(const struct tarn_rail *rail, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ibv_dealloc_pd(rail[i].pd);
        ibv_close_device(rail[i].context);
    }
}

static void reaper_free(struct tarn_reaper *k)
{
    pthread_cond_destroy(&k->closed);
    pthread_cond_destroy(&k->wake);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

/* The next one to destroy; NULL at the end. */
static struct tarn_hold *next_retired(struct tarn_reaper *k)
{
    pthread_mutex_lock(&k->lock);
    while (!k->retired && (!k->closing || k->holds > 0))
        pthread_cond_wait(&k->wake, &k->lock);
    struct tarn_hold *r = k->retired;
    if (r)
        LL_DELETE(k->retired, r);
    pthread_mutex_unlock(&k->lock);
    return r;
}

static void *reap(void *arg)
{
    struct tarn_reaper *k = arg;
    for (struct tarn_hold *r; (r = next_retired(k)) != NULL;) {
        if (r->ended)
            pthread_join(r->thread, NULL);
        destroy(&r->parts);
        free(r);
    }
    close_rails(k->rail, k->nrails);
    pthread_mutex_lock(&k->lock);
    k->over = true;
    bool alone = k->alone;
    pthread_cond_signal(&k->closed);
    pthread_mutex_unlock(&k->lock);
    if (alone)
        reaper_free(k);
    return NULL;
}

/* The lock is held. */
static bool start(struct tarn_reaper *k)
{
    k->started = k->started || tarn_thread_start(&k->thread, reap, k) == 0;
    return k->started;
}

/* The lock is held. */
static void append(struct tarn_reaper *k, struct tarn_hold *r)
{
    LL_APPEND(k->retired, r);
    pthread_cond_signal(&k->wake);
}

static void retire(struct tarn_reaper *k, const struct tarn_qp_parts *parts)
{
    struct tarn_hold *r = k ? malloc(sizeof *r) : NULL;
    bool taken = false;
    if (r) {
        *r = (struct tarn_hold){.parts = *parts};
        pthread_mutex_lock(&k->lock);
        taken = start(k);
        if (taken)
            append(k, r);
        pthread_mutex_unlock(&k->lock);
    }
    if (!taken) { /* no memory, or no thread: destroy it here */
        destroy(parts);
        free(r);
    }
}

void tarn_rails_retire(struct tarn_rails *rails, const struct tarn_qp_parts *parts)
{
    retire(rails->reaper, parts);
}

/* --- holds -------------------------------------------------------------------------------------- */

struct tarn_hold *tarn_rails_hold(struct tarn_rails *rails)
{
    struct tarn_reaper *k = rails->reaper;
    struct tarn_hold *h = k ? malloc(sizeof *h) : NULL;
    if (!h)
        return NULL;
    *h = (struct tarn_hold){.reaper = k};
    pthread_mutex_lock(&k->lock);
    bool started = start(k);
    k->holds += started;
    pthread_mutex_unlock(&k->lock);
    if (started)
        return h;
    free(h);
    return NULL;
}

void tarn_hold_retire(struct tarn_hold *h, const struct tarn_qp_parts *parts)
{
    retire(h->reaper, parts);
}

void tarn_hold_end(struct tarn_hold *h)
{
    struct tarn_reaper *k = h->reaper;
    h->thread = pthread_self();
    h->ended = true;
    pthread_mutex_lock(&k->lock);
    k->holds--;
    append(k, h);
    pthread_mutex_unlock(&k->lock);
}

void tarn_hold_drop(struct tarn_hold *h)
{
    struct tarn_reaper *k = h->reaper;
    pthread_mutex_lock(&k->lock);
    k->holds--;
    pthread_mutex_unlock(&k->lock);
    free(h);
}

/* --- with the rails ----------------------------------------------------------------------------- */

struct tarn_reaper *tarn_reaper_new(void)
{
    struct tarn_reaper *k = calloc(1, sizeof *k);
    if (!k)
        return NULL;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->wake, NULL);
    tarn_cond_init(&k->closed);
    return k;
}

/* Waits until the thread is done. False: it takes too long and goes on alone. */
static bool wait_closed(struct tarn_reaper *k)
{
    uint64_t until = tarn_now_ns() + CLOSE_NS;
    while (!k->over && tarn_cond_wait(&k->closed, &k->lock, until))
        ;
    k->alone = !k->over;
    return k->over;
}

void tarn_reaper_close(struct tarn_rails *r)
{
    struct tarn_reaper *k = r->reaper;
    bool over = true;
    if (k && k->started) {
        pthread_t thread = k->thread;
        pthread_mutex_lock(&k->lock);
        for (k->nrails = 0; k->nrails < r->n; k->nrails++)
            k->rail[k->nrails] = r->rail[k->nrails];
        k->closing = true;
        pthread_cond_signal(&k->wake);
        over = wait_closed(k);
        pthread_mutex_unlock(&k->lock);
        if (over)
            pthread_join(thread, NULL);
        else
            pthread_detach(thread);
    } else {
        close_rails(r->rail, r->n);
    }
    if (k && over)
        reaper_free(k);
}
