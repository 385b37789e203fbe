/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers carry out commands that may wait for Redis, for nodes and for peers. A worker takes queued GETs
 * from one node into host memory together: their transfers share links, and none waits for another.
 *
 * A silent node holds up workers until the client's patience with it ends. So only a few of them work for one
 * node at a time, and commands for it wait while the others go on. Commands whose node is not known yet count
 * as of one node.
 */
#include <utlist.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "client/client.h"
#include "client/get.h"
#include "client/get_now.h"
#include "client/gpu/proxy_impl.h"
#include "client/window/move.h"
#include "transport/cuda/cuda.h"

#define TELL_AGAIN_MS 1
/* With less time left, a telling might be cut short and be in doubt. */
#define TELL_NS (50 * TARN_NS_PER_MS)

void tarn_proxy_queue(struct tarn_proxy *p, struct tarn_proxy_work *w)
{
    pthread_mutex_lock(&p->lock);
    DL_APPEND(p->queued, w);
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

/* Gives it back to the ring's thread, which may use the slot again at once. */
static void end(struct tarn_proxy_work *w, int status)
{
    struct tarn_proxy_thread *t = w->ring->thread;
    tarn_proxy_tell(w->ring, w->number, status);
    w->status = status;
    pthread_mutex_lock(&t->proxy->lock);
    w->next = atomic_load(&t->ended);
    atomic_store(&t->ended, w);
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->proxy->lock);
}

/* --- GET ---------------------------------------------------------------------------------------- */

static struct tarn_proxy_work *work_of(const struct tarn_get *g)
{
    return g->owner;
}

static void get_done(struct tarn_get *g)
{
    end(work_of(g), tarn_verdict_end(&g->verdict));
}

static void ignore_work(struct tarn_get *g, struct tarn_work *w)
{
    (void)g;
    (void)w;
}

static void ignore(struct tarn_get *g)
{
    (void)g;
}

/* No stream waits for it. */
static bool not_noted(struct tarn_get *g, struct tarn_work *w)
{
    (void)g;
    (void)w;
    return false;
}

static bool always(struct tarn_get *g)
{
    (void)g;
    return true;
}

static const struct tarn_get_calls calls = {
    .done = get_done, .shrunk = ignore, .given = not_noted, .landed = ignore_work, .again = always};

static void run_gets(struct tarn_proxy_worker *w, uint32_t n)
{
    struct tarn_proxy *p = w->proxy;
    struct tarn_get *slow[TARN_PROXY_TOGETHER];
    uint32_t nslow = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct tarn_proxy_work *work = w->works[i];
        struct tarn_get *g = &w->gets[i].get;
        int rc = tarn_proxy_get_make(p, &work->command, &w->gets[i], work->deadline_ns, &w->cancel);
        if (rc) {
            end(work, rc);
            continue;
        }
        g->calls = &calls;
        g->owner = work;
        tarn_get_now(g);
        if (g->left == 0)
            get_done(g);
        else
            slow[nslow++] = g;
    }
    if (nslow > 0)
        tarn_get_finish(p->client, slow, nslow, w->cancel.fd);
}

/* --- WRITE -------------------------------------------------------------------------------------- */

static int write_and_tell(struct tarn_proxy_worker *w, const struct tarn_proxy_work *work)
{
    const struct tarn_ring_command *c = &work->command;
    const struct tarn_piece piece = {.addr = (void *)(uintptr_t)c->address, .bytes = c->bytes};
    const struct tarn_notify notify = {.tag = c->notify}, *tell = c->notify ? &notify : NULL;
    struct tarn_move m = {.pieces = &piece, .npieces = 1, .offset = c->offset};
    struct tarn_reach *r = w->proxy->reaches[c->index];
    if (!tarn_proxy_memory_of(w->proxy, c))
        return TARN_E_INVALID;
    int rc = tarn_move_tell(r, &m, 1, tell, work->deadline_ns, &w->cancel);
    while (rc == TARN_E_AGAIN && tarn_cancel_pause(&w->cancel, work->deadline_ns - TELL_NS, TELL_AGAIN_MS))
        rc = tarn_move_tell(r, NULL, 0, tell, work->deadline_ns, &w->cancel);
    return rc;
}

/* --- the worker --------------------------------------------------------------------------------- */

/* May it be carried out together with others of its node? */
static bool has_company(const struct tarn_proxy *p, const struct tarn_proxy_work *w)
{
    if (w->command.op != TARN_RING_GET)
        return false;
    const struct tarn_proxy_memory *m = tarn_proxy_memory_of(p, &w->command);
    return m && m->gpu == 0;
}

/* The first command for whose node another worker may work, or NULL. The lock is held. */
static struct tarn_proxy_work *choose(const struct tarn_proxy *p)
{
    struct tarn_proxy_work *work;
    DL_FOREACH (p->queued, work) {
        int busy = 0;
        for (uint32_t i = 0; i < TARN_PROXY_WORKERS; i++)
            busy += p->workers[i].busy && p->workers[i].node == work->node;
        if (busy < TARN_PROXY_PER_NODE)
            return work;
    }
    return NULL;
}

/* Takes the chosen command, and others that may be carried out together with it. The lock is held. */
static uint32_t take(struct tarn_proxy_worker *w, struct tarn_proxy_work *chosen)
{
    struct tarn_proxy *p = w->proxy;
    struct tarn_proxy_work *work = chosen, *next;
    bool together = has_company(p, chosen);
    uint32_t n = 0;
    for (; work && n < TARN_PROXY_TOGETHER; work = together ? next : NULL) {
        next = work->next;
        if (work != chosen && (work->node != chosen->node || !has_company(p, work)))
            continue;
        DL_DELETE(p->queued, work);
        w->works[n++] = work;
    }
    w->node = chosen->node;
    w->busy = true;
    return n;
}

static void run(struct tarn_proxy_worker *w, uint32_t n)
{
    struct tarn_proxy_work *first = w->works[0];
    switch (first->command.op) {
    case TARN_RING_GET:
        run_gets(w, n);
        break;
    case TARN_RING_WRITE:
        end(first, write_and_tell(w, first));
        break;
    default: /* REFRESH */
        end(first, tarn_proxy_refresh(w->proxy, first->command.index, first->deadline_ns, &w->cancel));
        break;
    }
}

static void *worker_main(void *arg)
{
    struct tarn_proxy_worker *w = arg;
    struct tarn_proxy *p = w->proxy;
    tarn_cuda_relax();
    pthread_mutex_lock(&p->lock);
    while (!atomic_load(&p->stop)) {
        struct tarn_proxy_work *chosen = choose(p);
        if (!chosen) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        uint32_t n = take(w, chosen);
        pthread_mutex_unlock(&p->lock);
        run(w, n);
        pthread_mutex_lock(&p->lock);
        w->busy = false;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int tarn_proxy_worker_start(struct tarn_proxy_worker *w)
{
    int rc = tarn_client_thread(&w->thread, worker_main, w);
    w->started = rc == 0;
    return rc;
}
