/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that serve rings. Each goes round its rings; a ring may give some commands a round, so that none
 * waits for another's many.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/client.h"
#include "client/get.h"
#include "client/get_now.h"
#include "client/gpu/proxy_impl.h"
#include "client/window/reach.h"
#include "transport/cuda/cuda.h"

#define BURST 32                         /* commands of a ring and round */
#define AT_ONCE_NS (20 * TARN_NS_PER_MS) /* then a worker goes on with what should have come at once */
#define POLL_NS (100 * 1000)             /* before a thread rests */
#define REST_MAX_NS TARN_NS_PER_MS
#define POLLS 32 /* between looks at the clock */

void tarn_proxy_tell(const struct tarn_proxy_ring *r, uint64_t number, int status)
{
    const struct tarn_proxy *p = r->thread->proxy;
    if (!status || !tarn_log_wants(&p->client->log, TARN_LOG_DEBUG))
        return;
    tarn_log(&p->client->log, TARN_LOG_DEBUG, "proxy",
             "msg=\"a command has failed\" ring=%u command=%llu status=%s cause=\"%s\"",
             (unsigned)(r - p->rings), (unsigned long long)number, tarn_error_name(status),
             tarn_last_error());
}

/* --- commands ----------------------------------------------------------------------------------- */

/* Completes the QUIETs that have become first. */
static void settle(struct tarn_proxy_ring *r)
{
    uint64_t first;
    while (r->quiets[(first = tarn_ring_done(r->consumer)) & (r->size - 1)]) {
        r->quiets[first & (r->size - 1)] = false;
        tarn_ring_complete(r->consumer, first, 0);
    }
}

static void complete(struct tarn_proxy_ring *r, uint64_t number, int status)
{
    tarn_ring_complete(r->consumer, number, status);
    settle(r);
}

/* A GET was tried by get_at_once(). */
static const struct tarn_peer_node *node_of(const struct tarn_proxy_thread *t,
                                            const struct tarn_ring_command *c)
{
    if (c->op == TARN_RING_WRITE)
        return t->proxy->reaches[c->index]->lender;
    return c->op == TARN_RING_GET ? tarn_proxy_get_node(&t->get) : NULL;
}

static void hand_over(struct tarn_proxy_ring *r, uint64_t number, const struct tarn_ring_command *c)
{
    struct tarn_proxy *p = r->thread->proxy;
    struct tarn_proxy_work *w = &r->works[number & (r->size - 1)];
    *w = (struct tarn_proxy_work){.ring = r,
                                  .command = *c,
                                  .node = node_of(r->thread, c),
                                  .number = number,
                                  .deadline_ns = tarn_client_deadline(p->client, p->timeout_ms)};
    tarn_proxy_queue(p, w);
}

/* TARN_INPROGRESS: this may wait for others. */
static int get_at_once(struct tarn_proxy_thread *t, const struct tarn_ring_command *c)
{
    struct tarn_proxy_get *g = &t->get;
    struct tarn_get *get = &g->get;
    int rc = tarn_proxy_get_make(t->proxy, c, g, 0, &t->cancel);
    if (rc)
        return rc;
    tarn_get_now(get);
    if (get->left > 0 && tarn_get_first_far(get) == get->n) {
        get->deadline_ns = tarn_now_ns() + AT_ONCE_NS;
        tarn_get_finish(t->proxy->client, &get, 1, -1);
    }
    if (get->left > 0 || g->item.status == TARN_E_TIMEOUT)
        return TARN_INPROGRESS;
    tarn_verdict_end(&get->verdict);
    return g->item.status;
}

static void carry_out(struct tarn_proxy_ring *r, uint64_t number, const struct tarn_ring_command *c)
{
    int status = TARN_INPROGRESS;
    if (c->op == TARN_RING_QUIET) {
        r->quiets[number & (r->size - 1)] = true;
        settle(r);
        return;
    }
    if (c->op == TARN_RING_GET)
        status = get_at_once(r->thread, c);
    if (status == TARN_INPROGRESS) {
        hand_over(r, number, c);
        return;
    }
    tarn_proxy_tell(r, number, status);
    complete(r, number, status);
}

/* --- rings -------------------------------------------------------------------------------------- */

/* A ring that is broken or was aborted gives nothing any more. */
static void end_ring(struct tarn_proxy_ring *r, int status)
{
    r->ended = true;
    if (status == TARN_E_PROTOCOL)
        tarn_log(&r->thread->proxy->client->log, TARN_LOG_WARN, "proxy",
                 "msg=\"a ring is broken\" ring=%u cause=\"%s\"", (unsigned)(r - r->thread->proxy->rings),
                 tarn_last_error());
}

/* Were there commands? */
static bool serve_ring(struct tarn_proxy_ring *r)
{
    int n;
    for (n = 0; n < BURST && !r->ended; n++) {
        struct tarn_ring_command c;
        uint64_t number;
        int rc = tarn_ring_take(r->consumer, &c, &number);
        if (rc == TARN_E_AGAIN)
            break;
        if (rc == 0) {
            carry_out(r, number, &c);
        } else if (rc == TARN_E_INVALID) { /* that is its status already */
            tarn_proxy_tell(r, number, rc);
            settle(r);
        } else {
            end_ring(r, rc);
        }
    }
    return n > 0;
}

/* Completes what workers have ended. */
static bool take_back(struct tarn_proxy_thread *t)
{
    if (!atomic_load(&t->ended))
        return false;
    pthread_mutex_lock(&t->proxy->lock);
    struct tarn_proxy_work *w = atomic_exchange(&t->ended, NULL), *next;
    pthread_mutex_unlock(&t->proxy->lock);
    for (; w; w = next) {
        next = w->next;
        complete(w->ring, w->number, w->status);
    }
    return true;
}

static bool serve(struct tarn_proxy_thread *t)
{
    bool busy = take_back(t);
    for (uint32_t i = 0; i < t->nrings; i++)
        busy |= serve_ring(&t->rings[i]);
    return busy;
}

/* --- the thread --------------------------------------------------------------------------------- */

/* Sleeps until a worker has ended something; for a while that grows with the time since the last command. */
static void rest(struct tarn_proxy_thread *t, uint64_t idle_ns)
{
    uint64_t nap = idle_ns / 16 < REST_MAX_NS ? idle_ns / 16 : REST_MAX_NS;
    struct tarn_proxy *p = t->proxy;
    pthread_mutex_lock(&p->lock);
    if (!atomic_load(&t->ended) && !atomic_load(&p->stop))
        tarn_cond_wait(&t->wake, &p->lock, tarn_now_ns() + nap);
    pthread_mutex_unlock(&p->lock);
}

static void *thread_main(void *arg)
{
    struct tarn_proxy_thread *t = arg;
    uint64_t idle_since = 0;
    tarn_cuda_relax();
    for (uint32_t polls = 0; !atomic_load(&t->proxy->stop); polls++) {
        if (serve(t)) {
            idle_since = polls = 0;
        } else if (polls % POLLS == POLLS - 1) {
            uint64_t now = tarn_now_ns();
            idle_since = idle_since ? idle_since : now;
            if (now - idle_since >= POLL_NS)
                rest(t, now - idle_since);
        }
    }
    return NULL;
}

int tarn_proxy_thread_start(struct tarn_proxy_thread *t)
{
    int rc = tarn_client_thread(&t->thread, thread_main, t);
    t->started = rc == 0;
    return rc;
}
