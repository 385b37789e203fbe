/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers carry out commands that may wait for Redis, for nodes and for peers. A worker takes queued GETs
 * from one node into host memory together, and WRITEs to one reach: their transfers share links, and none
 * waits for another. Each ends by itself.
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
/* WRITEs go together up to so many bytes; those of more than one worker move at once. */
#define WRITES_BYTES (4u << 20)
/* They have one deadline. */
#define ALIKE_NS (100 * TARN_NS_PER_MS)

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

/* One that nobody was told of waits for tell_again(). */
static void wrote(void *arg, size_t i, int status)
{
    struct tarn_proxy_worker *w = arg;
    if (status == TARN_E_AGAIN) {
        tarn_reason_keep(&w->untold, status);
        return;
    }
    end(w->works[i], status);
    w->works[i] = NULL;
}

/* The bytes are in place. */
static void tell_again(struct tarn_proxy_worker *w, struct tarn_proxy_work *work)
{
    const struct tarn_notify notify = {.tag = work->command.notify};
    struct tarn_reach *r = w->proxy->reaches[work->command.index];
    int rc = TARN_E_AGAIN;
    while (rc == TARN_E_AGAIN && tarn_cancel_pause(&w->cancel, work->deadline_ns - TELL_NS, TELL_AGAIN_MS))
        rc = tarn_move_tell(r, NULL, 0, &notify, work->deadline_ns, &w->cancel);
    end(work, rc == TARN_E_AGAIN ? tarn_reason_fail(&w->untold) : rc);
}

static struct tarn_told_move move_of(const struct tarn_ring_command *c, struct tarn_proxy_write *w)
{
    w->piece = (struct tarn_piece){.addr = (void *)(uintptr_t)c->address, .bytes = c->bytes};
    w->notify = (struct tarn_notify){.tag = c->notify};
    return (struct tarn_told_move){.move = {.pieces = &w->piece, .npieces = 1, .offset = c->offset},
                                   .notify = c->notify ? &w->notify : NULL};
}

static void run_writes(struct tarn_proxy_worker *w, uint32_t taken)
{
    struct tarn_told_move moves[TARN_PROXY_TOGETHER];
    uint32_t n = 0;
    for (uint32_t i = 0; i < taken; i++) {
        struct tarn_proxy_work *work = w->works[i];
        if (!tarn_proxy_memory_of(w->proxy, &work->command)) {
            end(work, TARN_E_INVALID);
            continue;
        }
        moves[n] = move_of(&work->command, &w->writes[n]);
        w->works[n++] = work;
    }
    if (n == 0)
        return;
    const struct tarn_proxy_work *first = w->works[0];
    struct tarn_reach *r = w->proxy->reaches[first->command.index];
    tarn_move_each(r, moves, n, first->deadline_ns, &w->cancel, wrote, w);
    for (uint32_t i = 0; i < n; i++)
        if (w->works[i])
            tell_again(w, w->works[i]);
}

/* --- the worker --------------------------------------------------------------------------------- */

static bool is_into_host(const struct tarn_proxy *p, const struct tarn_proxy_work *w)
{
    const struct tarn_proxy_memory *m = tarn_proxy_memory_of(p, &w->command);
    return m && m->gpu == 0;
}

static bool are_alike(const struct tarn_proxy_work *a, const struct tarn_proxy_work *b)
{
    uint64_t apart =
        a->deadline_ns > b->deadline_ns ? a->deadline_ns - b->deadline_ns : b->deadline_ns - a->deadline_ns;
    return a->command.index == b->command.index && apart <= ALIKE_NS;
}

/* May they be carried out together? */
static bool go_together(const struct tarn_proxy *p, const struct tarn_proxy_work *a,
                        const struct tarn_proxy_work *b)
{
    if (a->command.op != b->command.op)
        return false;
    if (a->command.op == TARN_RING_WRITE)
        return are_alike(a, b);
    return a->command.op == TARN_RING_GET && a->node == b->node && is_into_host(p, a) && is_into_host(p, b);
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
    struct tarn_proxy_work *work, *next;
    uint64_t bytes = chosen->command.bytes;
    bool writes = chosen->command.op == TARN_RING_WRITE;
    uint32_t n = 0;
    next = chosen->next;
    DL_DELETE(p->queued, chosen);
    w->works[n++] = chosen;
    while ((work = next) && n < TARN_PROXY_TOGETHER) {
        next = work->next;
        if (!go_together(p, chosen, work))
            continue;
        bytes += work->command.bytes;
        if (writes && bytes > WRITES_BYTES)
            break;
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
        run_writes(w, n);
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
