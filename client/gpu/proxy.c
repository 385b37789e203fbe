/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#include "base/error.h"
#include "base/thread.h"
#include "client/check.h"
#include "client/client.h"
#include "client/gpu/near.h"
#include "client/gpu/proxies.h"
#include "client/gpu/proxy_impl.h"
#include "client/gpu/table_impl.h"
#include "client/window/reach.h"
#include "transport/cuda/cuda.h"
#include "transport/seen.h"

#define RING_SIZE 1024
#define MEMORY_MAX (1ull << 60)

/* --- what was given ----------------------------------------------------------------------------- */

static int check_memory(uint32_t i, const struct tarn_proxy_range *r, struct tarn_proxy_memory *m)
{
    struct tarn_cuda_memory first, last;
    uintptr_t at = (uintptr_t)r->addr;
    if (!r->addr || r->bytes == 0 || r->bytes > MEMORY_MAX || at + r->bytes < at)
        return tarn_fail(TARN_E_INVALID, "proxy: range %u: %llu bytes at %p: no memory is there", i,
                         (unsigned long long)r->bytes, r->addr);
    tarn_cuda_memory_of(r->addr, &first);
    tarn_cuda_memory_of((const char *)r->addr + r->bytes - 1, &last);
    *m = (struct tarn_proxy_memory){at, at + r->bytes, tarn_memory_gpu(&first)};
    if (m->gpu != tarn_memory_gpu(&last) || (m->gpu > 0 && first.end < m->end))
        return tarn_fail(TARN_E_INVALID,
                         "proxy: range %u: %llu bytes at %p: are not of one memory: give a range for each", i,
                         (unsigned long long)r->bytes, r->addr);
    return 0;
}

static int check_device(const struct tarn_proxy_options *o)
{
    int devices, rc = o->device == -1 ? 0 : tarn_cuda_count(&devices);
    if (rc || o->device == -1 || (o->device >= 0 && o->device < devices))
        return rc;
    return tarn_fail(TARN_E_INVALID, "proxy: device %d: there are devices 0 to %d; -1 is none", o->device,
                     devices - 1);
}

static int check_sizes(const struct tarn_proxy_options *o)
{
    if (o->nrings == 0 || o->nrings > TARN_PROXY_RINGS_MAX)
        return tarn_fail(TARN_E_INVALID, "proxy: nrings %u: 1 to %d", o->nrings, TARN_PROXY_RINGS_MAX);
    if (o->threads > o->nrings)
        return tarn_fail(TARN_E_INVALID, "proxy: threads %u: at most one for each of %u rings", o->threads,
                         o->nrings);
    if (o->nranges > TARN_PROXY_RANGES_MAX || (o->nranges && !o->ranges))
        return tarn_fail(TARN_E_INVALID, "proxy: nranges %u at %p: at most %d", o->nranges,
                         (const void *)o->ranges, TARN_PROXY_RANGES_MAX);
    if (o->nreaches && !o->reaches)
        return tarn_fail(TARN_E_INVALID, "proxy: %u reaches, and reaches is NULL", o->nreaches);
    return 0;
}

static int check_options(const struct tarn_client *c, const struct tarn_proxy_options *o)
{
    int rc = tarn_flags_check("proxy", o->flags, TARN_PROXY_ANYWHERE);
    if (!rc)
        rc = check_sizes(o);
    if (!rc && o->table && o->table->client != c)
        rc = tarn_fail(TARN_E_INVALID, "proxy: its table is of another client");
    for (uint32_t i = 0; !rc && i < o->nreaches; i++)
        if (!o->reaches[i] || o->reaches[i]->client != c)
            rc = tarn_fail(TARN_E_INVALID, "proxy: reach %u is NULL, or of another client", i);
    return rc ? rc : check_device(o);
}

/* --- making ------------------------------------------------------------------------------------- */

static int no_memory(void)
{
    return tarn_fail(TARN_E_NO_MEMORY, "proxy: out of memory: free some, or make fewer or smaller rings");
}

static int make_ring(struct tarn_proxy_ring *r, const struct tarn_proxy_options *o)
{
    const struct tarn_ring_options ro = {.size = o->ring_size ? o->ring_size : RING_SIZE,
                                         .rows = o->table ? o->table->npages : 0,
                                         .ranges = o->nreaches,
                                         .pinned = o->device >= 0};
    int rc = tarn_ring_new(&ro, &r->consumer);
    if (rc)
        return rc;
    r->size = ro.size;
    r->works = calloc(r->size, sizeof(*r->works));
    r->quiets = calloc(r->size, sizeof(*r->quiets));
    return r->works && r->quiets ? 0 : no_memory();
}

/* Divides the rings among the threads. */
static int make_threads(struct tarn_proxy *p)
{
    int rc = 0;
    for (uint32_t i = 0, first = 0, n; !rc && i < p->nthreads; i++, first += n) {
        struct tarn_proxy_thread *t = &p->threads[i];
        n = (p->nrings - first) / (p->nthreads - i);
        t->rings = &p->rings[first];
        t->nrings = n;
        for (uint32_t k = 0; k < n; k++)
            t->rings[k].thread = t;
        rc = tarn_client_eventfd(&t->cancel.fd);
    }
    for (uint32_t i = 0; !rc && i < TARN_PROXY_WORKERS; i++)
        rc = tarn_client_eventfd(&p->workers[i].cancel.fd);
    return rc;
}

/* Later, while kernels wait for commands, CUDA would not make what a first copy needs. */
static int make_ready(const struct tarn_proxy *p, uint64_t deadline_ns)
{
    const struct tarn_client *c = p->client;
    int rc = 0;
    for (uint32_t i = 0; i < p->nranges; i++)
        for (int t = 0; !rc && p->ranges[i].gpu > 0 && t < c->ntransports; t++)
            rc = c->transports[t]->ready(c->locals[t], (int)p->ranges[i].gpu - 1,
                                         p->nthreads + TARN_PROXY_WORKERS, deadline_ns);
    return rc;
}

static int start_threads(struct tarn_proxy *p)
{
    int rc = 0;
    for (uint32_t i = 0; !rc && i < TARN_PROXY_WORKERS; i++)
        rc = tarn_proxy_worker_start(&p->workers[i]);
    for (uint32_t i = 0; !rc && i < p->nthreads; i++)
        rc = tarn_proxy_thread_start(&p->threads[i]);
    return rc;
}

static int make_near(struct tarn_proxy *p, const struct tarn_proxy_options *o)
{
    uint8_t handle[TARN_CUDA_HANDLE];
    cpu_set_t before;
    bool moved = o->device >= 0 && !(o->flags & TARN_PROXY_ANYWHERE) && tarn_near_go(o->device, &before);
    int rc = o->device < 0 ? 0 : tarn_cuda_alloc(o->device, 1, &p->waited, handle);
    for (uint32_t i = 0; !rc && i < p->nrings; i++)
        rc = make_ring(&p->rings[i], o);
    if (!rc)
        rc = make_threads(p);
    if (!rc)
        rc = start_threads(p);
    if (moved)
        sched_setaffinity(0, sizeof(before), &before);
    return rc;
}

static void init_waits(struct tarn_proxy *p)
{
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->pages_lock, NULL);
    tarn_cond_init(&p->work);
    tarn_cond_init(&p->unused);
    for (uint32_t i = 0; i < p->nthreads; i++) {
        p->threads[i].proxy = p;
        p->threads[i].cancel.fd = -1;
        tarn_cond_init(&p->threads[i].wake);
    }
    for (uint32_t i = 0; i < TARN_PROXY_WORKERS; i++) {
        p->workers[i].proxy = p;
        p->workers[i].cancel.fd = -1;
    }
}

static void free_arrays(struct tarn_proxy *p)
{
    free(p->rings);
    free(p->threads);
    free(p->workers);
    free(p->ranges);
    free(p->reaches);
    free(p);
}

static struct tarn_proxy *alloc(struct tarn_client *c, const struct tarn_proxy_options *o)
{
    struct tarn_proxy *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->client = c;
    p->device = o->device;
    p->timeout_ms = o->timeout_ms;
    p->table = o->table;
    p->nrings = o->nrings;
    p->nthreads = o->threads ? o->threads : 1;
    p->nranges = o->nranges;
    p->rings = calloc(p->nrings, sizeof(p->rings[0]));
    p->threads = calloc(p->nthreads, sizeof(p->threads[0]));
    p->workers = calloc(TARN_PROXY_WORKERS, sizeof(p->workers[0]));
    p->ranges = calloc(p->nranges + 1, sizeof(p->ranges[0]));
    p->reaches = calloc(o->nreaches + 1, sizeof(p->reaches[0]));
    if (!p->rings || !p->threads || !p->workers || !p->ranges || !p->reaches) {
        free_arrays(p);
        return NULL;
    }
    if (o->nreaches)
        memcpy(p->reaches, o->reaches, o->nreaches * sizeof(p->reaches[0]));
    init_waits(p);
    return p;
}

/* --- ending ------------------------------------------------------------------------------------- */

static void cancel(struct tarn_cancel *c)
{
    atomic_store(&c->on, true);
    if (c->fd >= 0)
        eventfd_write(c->fd, 1);
}

/* Ends all waits, of kernels and of the proxy's threads. */
static void stop(struct tarn_proxy *p)
{
    for (uint32_t i = 0; i < p->nrings; i++)
        if (p->rings[i].consumer)
            tarn_ring_abort(p->rings[i].consumer);
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    for (uint32_t i = 0; i < p->nthreads; i++)
        pthread_cond_signal(&p->threads[i].wake);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->nthreads; i++)
        cancel(&p->threads[i].cancel);
    for (uint32_t i = 0; i < TARN_PROXY_WORKERS; i++)
        cancel(&p->workers[i].cancel);
}

static void join(pthread_t thread, bool *started)
{
    if (*started)
        pthread_join(thread, NULL);
    *started = false;
}

static void abort_proxy(struct tarn_proxy *p)
{
    stop(p);
    for (uint32_t i = 0; i < p->nthreads; i++)
        join(p->threads[i].thread, &p->threads[i].started);
    for (uint32_t i = 0; i < TARN_PROXY_WORKERS; i++)
        join(p->workers[i].thread, &p->workers[i].started);
}

static void close_waits(struct tarn_proxy *p)
{
    for (uint32_t i = 0; i < p->nthreads; i++) {
        pthread_cond_destroy(&p->threads[i].wake);
        if (p->threads[i].cancel.fd >= 0)
            close(p->threads[i].cancel.fd);
    }
    for (uint32_t i = 0; i < TARN_PROXY_WORKERS; i++)
        if (p->workers[i].cancel.fd >= 0)
            close(p->workers[i].cancel.fd);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->unused);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->pages_lock);
}

static void proxy_free(struct tarn_proxy *p)
{
    abort_proxy(p);
    if (p->waited)
        tarn_cuda_free(p->device, p->waited); /* kernels leave the rings first */
    for (uint32_t i = 0; i < p->nrings; i++) {
        tarn_ring_free(p->rings[i].consumer);
        free(p->rings[i].works);
        free(p->rings[i].quiets);
    }
    close_waits(p);
    free_arrays(p);
}

/* --- calls -------------------------------------------------------------------------------------- */

static void enlist(struct tarn_proxy *p)
{
    pthread_mutex_lock(&p->client->proxies_lock);
    DL_APPEND(p->client->proxies, p);
    pthread_mutex_unlock(&p->client->proxies_lock);
}

static void delist(struct tarn_proxy *p)
{
    pthread_mutex_lock(&p->client->proxies_lock);
    DL_DELETE(p->client->proxies, p);
    pthread_mutex_unlock(&p->client->proxies_lock);
}

int tarn_proxy_new(struct tarn_client *c, const struct tarn_proxy_options *given, struct tarn_proxy **p_p)
{
    struct tarn_proxy_options o;
    struct tarn_reason why;
    int rc = tarn_client_enter(c);
    if (!rc)
        rc = tarn_out_check("proxy", p_p);
    if (!rc)
        rc = tarn_options_copy(&o, sizeof(o), given);
    if (!rc)
        rc = check_options(c, &o);
    if (rc)
        return rc;
    struct tarn_proxy *p = alloc(c, &o);
    if (!p)
        return no_memory();
    for (uint32_t i = 0; !rc && i < o.nranges; i++)
        rc = check_memory(i, &o.ranges[i], &p->ranges[i]);
    if (!rc)
        rc = make_ready(p, tarn_client_deadline(c, 0));
    if (!rc)
        rc = make_near(p, &o);
    if (rc) {
        tarn_reason_keep(&why, rc);
        proxy_free(p);
        return tarn_reason_fail(&why);
    }
    enlist(p);
    *p_p = p;
    return 0;
}

int tarn_proxy_ring(const struct tarn_proxy *p, uint32_t i, struct tarn_ring *ring)
{
    if (!p || !ring || i >= p->nrings)
        return tarn_fail(TARN_E_INVALID, "proxy: ring %u: it has %u", i, p ? p->nrings : 0);
    *ring = *tarn_ring_shared(p->rings[i].consumer);
    return 0;
}

void tarn_proxy_abort(struct tarn_proxy *p)
{
    if (p && tarn_client_enter(p->client) == 0)
        abort_proxy(p);
}

void tarn_proxy_free(struct tarn_proxy *p)
{
    if (!p || tarn_client_enter(p->client) != 0)
        return;
    abort_proxy(p); /* before nobody can take its table from it any more */
    delist(p);
    proxy_free(p);
}

void tarn_proxies_close(struct tarn_client *c)
{
    while (c->proxies)
        tarn_proxy_free(c->proxies);
}
