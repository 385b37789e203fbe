/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA, node half: pools registered with every rail, and the queue pairs of clients' links.
 *
 * Joining a queue pair asks the network for the peer's address, which can take a second. A dedicated thread
 * does this, one ATTACH after the other. If nobody waits for the answer any more, whoever receives it
 * detaches the link; the client got no answer, so it cannot have written. The thread then joins no more queue
 * pairs for that ATTACH, so that the next ones do not wait.
 *
 * Lock: tarn_rdma_node.lock guards the lists of links. It is not held while queue pairs are made and joined.
 */
#include "transport/rdma/rdma.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/buf.h"
#include "base/container.h"
#include "base/error.h"
#include "base/thread.h"
#include "transport/node_half.h"
#include "transport/notices.h"
#include "transport/rdma/rdma_memory.h"
#include "transport/rdma/rdma_node_inbox.h"

#define WRITE_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)
#define REGION_BYTES (3584ull << 20) /* below 4 GiB, the limit of some devices */

struct served_pool {
    uint32_t nslices;
    struct tarn_region **read, **write; /* regions of the arena, by slice */
    struct tarn_region *gen, *touch;
};

struct offer {
    uint32_t n;
    struct tarn_endpoint ends[TARN_RAILS_MAX];
};

/* One client's link. */
struct joined {
    struct joined *prev, *next;
    uint64_t session, id;
    struct ibv_qp *qp[TARN_RAILS_MAX];
    uint32_t rail[TARN_RAILS_MAX]; /* the node's rail for each */
    struct tarn_inbox *inbox;      /* for notifications; NULL: the link tells none */
    struct tarn_attach *attach;    /* not answered yet; used by the thread */
    struct offer offer;
};

struct tarn_rdma_node {
    struct tarn_node_half half;
    struct tarn_rails rails;
    struct ibv_cq *cq[TARN_RAILS_MAX]; /* has only the completions that cut_off() waits for */
    struct served_pool *served;
    _Atomic bool *offered;       /* for each pool: clients can reach it. Any thread asks */
    bool windows;                /* it serves windows, not pools */
    struct tarn_inboxes inboxes; /* windows */
    uint64_t slice_bytes;        /* slice size of the arenas: whole pages */
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t wake;
    bool started, stopping;
    struct joined *links, *waiting; /* answered; to be joined */
    uint64_t next_id;
};

static struct tarn_rdma_node *node_of(const struct tarn_node_half *h)
{
    return TARN_CONTAINER_OF(h, struct tarn_rdma_node, half);
}

/* --- registration ------------------------------------------------------------------------------- */

static int register_slices(struct tarn_rdma_node *s, uint32_t pool, int access, struct tarn_region **slices)
{
    const struct tarn_pool_memory *p = &s->half.serve.pools[pool];
    int rc = 0;
    for (uint32_t i = 0; !rc && i < s->served[pool].nslices; i++) {
        uint64_t from = i * s->slice_bytes, left = p->bytes - from;
        uint64_t bytes = left < s->slice_bytes ? left : s->slice_bytes;
        char *at = (char *)p->base + from;
        rc = tarn_region_new(&s->rails, p->kind == TARN_POOL_GPU, at, bytes, access, &slices[i]);
    }
    return rc;
}

static int register_pool(struct tarn_rdma_node *s, uint32_t i)
{
    const struct tarn_pool_memory *p = &s->half.serve.pools[i];
    struct served_pool *served = &s->served[i];
    served->nslices = (uint32_t)((p->bytes + s->slice_bytes - 1) / s->slice_bytes);
    served->read = calloc(served->nslices, sizeof(struct tarn_region *));
    served->write = calloc(served->nslices, sizeof(struct tarn_region *));
    if (!served->read || !served->write)
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    int rc = register_slices(s, i, IBV_ACCESS_REMOTE_READ, served->read);
    if (!rc)
        rc = register_slices(s, i, WRITE_ACCESS, served->write);
    if (!rc)
        rc = tarn_region_new(&s->rails, false, (void *)(uintptr_t)p->gen, p->nslots * sizeof *p->gen,
                             IBV_ACCESS_REMOTE_READ, &served->gen);
    if (rc || !p->touch) /* windows have no times of last use */
        return rc;
    return tarn_region_new(&s->rails, false, (void *)(uintptr_t)p->touch, p->nslots * sizeof *p->touch,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &served->touch);
}

static void unregister_pool(struct served_pool *served)
{
    for (uint32_t i = 0; i < served->nslices; i++) {
        tarn_region_free(served->read ? served->read[i] : NULL);
        tarn_region_free(served->write ? served->write[i] : NULL);
    }
    tarn_region_free(served->gen);
    tarn_region_free(served->touch);
    free(served->read);
    free(served->write);
    *served = (struct served_pool){0};
}

static void say_refused(const struct tarn_rdma_node *s, uint32_t pool)
{
    tarn_log(s->half.serve.log, TARN_LOG_WARN, "rdma",
             "msg=\"a pool is not offered by rdma\" pool=%s cause=\"%s\"", s->half.serve.pools[pool].name,
             tarn_last_error());
}

/* A GPU pool that the devices refuse is left to other transports. */
static int serve_pool(struct tarn_rdma_node *s, uint32_t i)
{
    int rc = register_pool(s, i);
    atomic_store(&s->offered[i], rc == 0);
    if (rc != TARN_E_UNSUPPORTED)
        return rc;
    say_refused(s, i);
    unregister_pool(&s->served[i]);
    return 0;
}

/* --- ATTACH ------------------------------------------------------------------------------------- */

static int malformed(const char *text)
{
    return tarn_fail(TARN_E_PROTOCOL, "ATTACH rdma: malformed offer \"%.60s\"", text);
}

static int parse_offer(const char *text, struct offer *o)
{
    const char *at = text;
    *o = (struct offer){0};
    if (strncmp(at, "v1", 2) || (at[2] && at[2] != ' '))
        return tarn_fail(TARN_E_VERSION,
                         "ATTACH rdma: offer \"%.20s\" where v1 was expected: run the same "
                         "version of tarn on both sides",
                         at);
    for (at += 2; *at;) {
        at += strspn(at, " ");
        size_t bytes = strcspn(at, " ");
        if (bytes == 0 || o->n == TARN_RAILS_MAX)
            return malformed(text);
        int rc = tarn_endpoint_parse(at, bytes, &o->ends[o->n++]);
        if (rc)
            return rc;
        at += bytes;
    }
    return o->n ? 0 : malformed(text);
}

/* Makes the k-th queue pair of a link. */
static int make_qp(struct tarn_rdma_node *s, struct joined *j, uint32_t k, struct tarn_endpoint *own)
{
    struct tarn_qp_options o = {.cq = s->cq[j->rail[k]], .max_wr = 1, .max_sge = 1};
    int rc = j->inbox ? tarn_inbox_cq(&s->inboxes, j->inbox, k, j->rail[k]) : 0;
    if (j->inbox) {
        o.cq = j->inbox->lanes[k].cq;
        o.receives = TARN_LINK_NOTICES;
    }
    if (!rc)
        rc = tarn_qp_new(&s->rails.rail[j->rail[k]], &o, &j->qp[k], own);
    return rc || !j->inbox ? rc : tarn_inbox_open_lane(j->inbox, k, j->qp[k]);
}

/* Gives its k-th queue pair to a thread that destroys it. */
static void retire_qp(struct tarn_rdma_node *s, struct joined *j, uint32_t k)
{
    struct tarn_qp_parts parts = {.qp = j->qp[k]};
    if (j->inbox)
        parts.cq = j->inbox->lanes[k].cq;
    if (parts.qp || parts.cq)
        tarn_rails_retire(&s->rails, &parts);
    j->qp[k] = NULL;
    if (j->inbox)
        j->inbox->lanes[k] = (struct tarn_inbox_lane){.qp = NULL};
}

/* Joins a queue pair with the k-th of the client's ends. */
static int join(struct tarn_rdma_node *s, struct joined *j, uint32_t k, struct tarn_endpoint *own)
{
    const struct tarn_endpoint *end = &j->offer.ends[k];
    const struct tarn_rail *rail = tarn_rail_reaching(&s->rails, end, k);
    if (!rail)
        return tarn_fail(TARN_E_NOT_REACHABLE,
                         "ATTACH rdma: none of the node's %u rails reaches the client's", s->rails.n);
    j->rail[k] = (uint32_t)(rail - s->rails.rail);
    if (!tarn_rail_active(rail)) /* asking the network would be in vain */
        return tarn_fail(TARN_E_NOT_REACHABLE,
                         "ATTACH rdma: the node's rail %s is down: see ibv_devinfo there", rail->name);
    int rc = make_qp(s, j, k, own);
    if (!rc)
        rc = tarn_qp_join(rail, j->qp[k], own, end);
    if (!rc)
        return 0;
    struct tarn_reason why;
    tarn_reason_keep(&why, rc);
    retire_qp(s, j, k);
    return tarn_reason_fail(&why);
}

static bool rdma_serves(const struct tarn_node_half *h, uint32_t pool)
{
    return atomic_load(&node_of(h)->offered[pool]);
}

static uint32_t count_served(const struct tarn_rdma_node *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->half.serve.npools; i++)
        n += rdma_serves(&s->half, i);
    return n;
}

static void add_pool(const struct tarn_rdma_node *s, uint32_t i, bool write, const int *rails, uint32_t n,
                     struct tarn_buf *out)
{
    const struct tarn_pool_memory *p = &s->half.serve.pools[i];
    const struct served_pool *served = &s->served[i];
    struct tarn_region **slices = write ? served->write : served->read;
    tarn_buf_printf(out, " %u %" PRIu64 " %u %" PRIu64 " %" PRIxPTR " %" PRIxPTR " %" PRIxPTR, i, p->bytes,
                    p->nslots, s->slice_bytes, (uintptr_t)p->base, (uintptr_t)p->gen, (uintptr_t)p->touch);
    for (uint32_t k = 0; k < n; k++) {
        if (rails[k] < 0)
            continue;
        tarn_buf_printf(out, " %x %x", served->gen->mr[rails[k]]->rkey,
                        served->touch ? served->touch->mr[rails[k]]->rkey : 0);
        for (uint32_t j = 0; j < served->nslices; j++)
            tarn_buf_printf(out, " %x", slices[j]->mr[rails[k]]->rkey);
    }
}

static void add_pools(const struct tarn_rdma_node *s, bool write, const int *rails, uint32_t n,
                      struct tarn_buf *out)
{
    tarn_buf_printf(out, " %u", count_served(s));
    for (uint32_t i = 0; i < s->half.serve.npools; i++)
        if (rdma_serves(&s->half, i))
            add_pool(s, i, write, rails, n, out);
}

/* No pools; then where notifications go, or 0. */
static void add_ring(const struct joined *j, const int *rails, uint32_t n, struct tarn_buf *out)
{
    tarn_buf_printf(out, " 0 %" PRIxPTR, j->inbox ? (uintptr_t)j->inbox->ring : 0);
    for (uint32_t k = 0; j->inbox && k < n; k++)
        if (rails[k] >= 0)
            tarn_buf_printf(out, " %x", j->inbox->region->mr[rails[k]]->rkey);
}

/* rails[k]: the node's rail for the client's k-th end; -1: none. */
static int answer(const struct tarn_rdma_node *s, const struct joined *j, const struct tarn_endpoint *own,
                  const int *rails, uint32_t n, struct tarn_attach *a)
{
    struct tarn_buf out = {0};
    tarn_buf_printf(&out, "v1 %" PRIx64 " %u", j->id, n);
    for (uint32_t k = 0; k < n; k++) {
        char end[TARN_ENDPOINT_TEXT] = "-";
        if (rails[k] >= 0)
            tarn_endpoint_format(&own[k], end);
        tarn_buf_printf(&out, " %s", end);
    }
    if (s->windows) /* they are entered one by one */
        add_ring(j, rails, n, &out);
    else
        add_pools(s, a->write, rails, n, &out);
    bool fits = !out.failed && out.bytes < sizeof a->text;
    if (fits)
        memcpy(a->text, out.data, out.bytes + 1);
    tarn_buf_free(&out);
    return fits ? 0
                : tarn_fail(TARN_E_UNSUPPORTED,
                            "ATTACH rdma: the keys of %u pools on %u rails do not fit an answer of %zu "
                            "bytes: use fewer rails, smaller pools, or a larger --rdma-region-bytes",
                            s->half.serve.npools, n, sizeof a->text);
}

/* Queue pairs are destroyed later, by a thread. */
static void unjoin(struct tarn_rdma_node *s, struct joined *j)
{
    for (uint32_t k = 0; k < TARN_RAILS_MAX; k++)
        retire_qp(s, j, k);
    tarn_inbox_free(j->inbox);
    free(j);
}

/* From here on the link's client can write nothing, and what it has told counts. Runs in the control thread,
 * which alone takes completions. */
static void cut_off(struct tarn_rdma_node *s, struct joined *j)
{
    for (uint32_t k = 0; k < TARN_RAILS_MAX; k++) {
        if (!j->qp[k] || (j->inbox ? tarn_inbox_cut_off(j->inbox, k)
                                   : tarn_qp_cut_off(j->qp[k], s->cq[j->rail[k]], NULL, NULL)))
            continue;
        ibv_destroy_qp(j->qp[k]); /* this stops it for certain, however long it takes */
        j->qp[k] = NULL;
    }
}

static void cut_off_all(struct tarn_rdma_node *s, struct joined *list)
{
    while (list) {
        struct joined *j = list;
        DL_DELETE(list, j);
        cut_off(s, j);
        unjoin(s, j);
    }
}

/* Joins queue pairs for all ends of the offer, and writes the answer. */
static int join_link(struct tarn_rdma_node *s, struct joined *j)
{
    struct tarn_endpoint own[TARN_RAILS_MAX];
    int rails[TARN_RAILS_MAX], rc = 0;
    uint32_t joined = 0;
    if (s->windows && j->attach->write && (rc = tarn_inbox_new(&s->inboxes, j->session, &j->inbox)))
        return rc;
    for (uint32_t k = 0; k < j->offer.n; k++) {
        if (atomic_load(&j->attach->gone))
            return tarn_fail(TARN_E_CANCELED, "ATTACH rdma: the connection has ended");
        rails[k] = -1;
        rc = join(s, j, k, &own[k]);
        if (rc)
            continue;
        rails[k] = (int)j->rail[k];
        joined++;
    }
    return joined ? answer(s, j, own, rails, j->offer.n, j->attach) : rc;
}

/* The next link to join; NULL at the end. */
static struct joined *next_link(struct tarn_rdma_node *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->stopping && !s->waiting)
        pthread_cond_wait(&s->wake, &s->lock);
    struct joined *j = s->stopping ? NULL : s->waiting;
    if (j)
        DL_DELETE(s->waiting, j);
    pthread_mutex_unlock(&s->lock);
    return j;
}

static void *join_links(void *arg)
{
    struct tarn_rdma_node *s = arg;
    for (struct joined *j; (j = next_link(s)) != NULL;) {
        struct tarn_attach *a = j->attach;
        int rc = join_link(s, j);
        pthread_mutex_lock(&s->lock);
        j->attach = NULL;
        a->link = j->id;
        if (!rc)
            DL_APPEND(s->links, j);
        pthread_mutex_unlock(&s->lock);
        tarn_reason_keep(&a->result, rc);
        if (rc)
            unjoin(s, j);
        a->done(a);
    }
    return NULL;
}

static int rdma_attach(struct tarn_node_half *h, struct tarn_attach *a)
{
    struct tarn_rdma_node *s = node_of(h);
    struct joined *j = calloc(1, sizeof *j);
    int rc = j ? parse_offer(a->offer, &j->offer) : tarn_fail(TARN_E_NO_MEMORY, "ATTACH rdma: out of memory");
    if (rc) {
        free(j);
        return rc;
    }
    j->session = a->session;
    j->attach = a;
    pthread_mutex_lock(&s->lock);
    j->id = s->next_id++;
    DL_APPEND(s->waiting, j);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return TARN_INPROGRESS;
}

/* Removes the session's links from the list; link 0: all that are joined. */
static struct joined *take_links(struct tarn_rdma_node *s, uint64_t session, uint64_t link)
{
    struct joined *taken = NULL, *j, *next;
    pthread_mutex_lock(&s->lock);
    DL_FOREACH_SAFE(s->links, j, next)
    if (j->session == session && (link == 0 || j->id == link)) {
        DL_DELETE(s->links, j);
        DL_APPEND(taken, j);
    }
    pthread_mutex_unlock(&s->lock);
    return taken;
}

static struct joined *take_all(struct tarn_rdma_node *s)
{
    pthread_mutex_lock(&s->lock);
    struct joined *all = s->links;
    s->links = NULL;
    pthread_mutex_unlock(&s->lock);
    return all;
}

static void rdma_detach_link(struct tarn_node_half *h, uint64_t session, uint64_t link)
{
    if (link)
        cut_off_all(node_of(h), take_links(node_of(h), session, link));
}

static void rdma_detach(struct tarn_node_half *h, uint64_t session)
{
    cut_off_all(node_of(h), take_links(node_of(h), session, 0));
}

/* --- windows ------------------------------------------------------------------------------------ */

/* Windows in GPU memory are not served: a notification must not be seen before the GPU sees the bytes. */
static void rdma_lend(struct tarn_node_half *h, uint32_t window)
{
    struct tarn_rdma_node *s = node_of(h);
    if (h->serve.pools[window].kind == TARN_POOL_GPU)
        return;
    if (serve_pool(s, window)) {
        say_refused(s, window);
        unregister_pool(&s->served[window]);
    }
}

static void rdma_withdraw(struct tarn_node_half *h, uint32_t window)
{
    struct tarn_rdma_node *s = node_of(h);
    atomic_store(&s->offered[window], false);
    unregister_pool(&s->served[window]);
}

/* False: a device has not ended the registration. */
static bool end_write_keys(struct served_pool *served)
{
    bool ended = true;
    for (uint32_t i = 0; i < served->nslices; i++) {
        ended &= tarn_region_free(served->write[i]) == 0;
        served->write[i] = NULL;
    }
    return ended;
}

/* Makes the keys for writing void, and others in their place. Readers compare generations: they keep theirs.
 */
static void rdma_cut(struct tarn_node_half *h, uint32_t window)
{
    struct tarn_rdma_node *s = node_of(h);
    struct served_pool *served = &s->served[window];
    if (served->nslices == 0)
        return;
    if (!end_write_keys(served)) {
        say_refused(s, window);
        cut_off_all(s, take_all(s));
        rdma_withdraw(h, window);
    } else if (register_slices(s, window, WRITE_ACCESS, served->write)) {
        say_refused(s, window);
        rdma_withdraw(h, window); /* peers go by other transports */
    }
}

/* The node's rails of a link; -1: none. Returns for how many of the client's ends; 0: there is no such link.
 */
static uint32_t rails_of(struct tarn_rdma_node *s, uint64_t session, uint64_t link, int rails[TARN_RAILS_MAX])
{
    struct joined *j;
    uint32_t n = 0;
    pthread_mutex_lock(&s->lock);
    DL_FOREACH (s->links, j)
        if (j->session == session && j->id == link) {
            n = j->offer.n;
            for (uint32_t k = 0; k < n; k++)
                rails[k] = j->qp[k] ? (int)j->rail[k] : -1;
        }
    pthread_mutex_unlock(&s->lock);
    return n;
}

static int rdma_enter(struct tarn_node_half *h, uint32_t window, struct tarn_attach *a)
{
    struct tarn_rdma_node *s = node_of(h);
    struct tarn_buf out = {0};
    int rails[TARN_RAILS_MAX];
    uint32_t n = rails_of(s, a->session, a->link, rails);
    if (n == 0)
        return tarn_fail(TARN_E_NODE_DOWN, "ENTER rdma: the session has no such link: attach again");
    tarn_buf_printf(&out, "v1 1");
    add_pool(s, window, a->write, rails, n, &out);
    bool fits = !out.failed && out.bytes < sizeof a->text;
    if (fits)
        memcpy(a->text, out.data, out.bytes + 1);
    tarn_buf_free(&out);
    a->nfds = 0;
    return fits ? 0
                : tarn_fail(
                      TARN_E_UNSUPPORTED,
                      "ENTER rdma: the keys of window %u on %u rails do not fit an answer of %zu bytes: use "
                      "fewer rails or smaller windows",
                      window, n, sizeof a->text);
}

/* --- notifications ------------------------------------------------------------------------------ */

/* Only this thread takes links away. */
static struct joined *link_of(struct tarn_rdma_node *s, const struct ibv_cq *cq, int *lane_p)
{
    struct joined *j;
    pthread_mutex_lock(&s->lock);
    DL_FOREACH (s->links, j)
        if (j->inbox && (*lane_p = tarn_inbox_lane(j->inbox, cq)) >= 0)
            break;
    pthread_mutex_unlock(&s->lock);
    return j;
}

/* Something has arrived. One event at a time, so that no peer keeps the thread busy with this alone. */
static void take_notifications(void *arg)
{
    struct tarn_rdma_node *s = arg;
    const struct ibv_cq *cq = tarn_inboxes_next(&s->inboxes);
    int lane;
    const struct joined *j = cq ? link_of(s, cq, &lane) : NULL;
    if (j)
        tarn_inbox_take(j->inbox, (uint32_t)lane);
}

/* --- serve, stop -------------------------------------------------------------------------------- */

/* As configured, but at most what the devices accept. */
static uint64_t slice_bytes(const struct tarn_rails *rails, uint64_t wanted)
{
    uint64_t most = wanted ? wanted : REGION_BYTES;
    for (uint32_t i = 0; i < rails->n; i++)
        if (rails->rail[i].max_region && rails->rail[i].max_region < most)
            most = rails->rail[i].max_region;
    return most > 4096 ? most & ~4095ull : 4096;
}

static int serve_all(struct tarn_rdma_node *s)
{
    const struct tarn_guard *g = &s->half.serve.guard;
    int rc = 0;
    for (uint32_t i = 0; i < s->rails.n; i++) {
        s->cq[i] = ibv_create_cq(s->rails.rail[i].context, 1, NULL, NULL, 0);
        if (!s->cq[i])
            return tarn_fail(TARN_E_UNAVAILABLE, "rdma %s: no completion queue: %m", s->rails.rail[i].name);
    }
    for (uint32_t i = 0; !rc && i < s->half.serve.npools; i++)
        if (s->half.serve.pools[i].bytes)
            rc = serve_pool(s, i);
    if (!rc && s->windows)
        rc = tarn_inboxes_open(&s->inboxes, g, &s->rails);
    if (rc)
        return rc;
    int error = tarn_thread_start(&s->thread, join_links, s);
    s->started = error == 0;
    if (error)
        return tarn_fail(TARN_E_SYSTEM, "rdma: no thread: %s: allow more threads", strerror(error));
    return s->windows ? g->watch(g->arg, s->inboxes.fd, take_notifications, s) : 0;
}

static void end_thread(struct tarn_rdma_node *s)
{
    if (!s->started)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
}

static void rdma_stop(struct tarn_node_half *h)
{
    struct tarn_rdma_node *s = node_of(h);
    struct joined *j;
    end_thread(s);
    DL_FOREACH (s->waiting, j) {
        tarn_reason_keep(&j->attach->result, tarn_fail(TARN_E_CANCELED, "ATTACH rdma: the node ends"));
        j->attach->done(j->attach);
    }
    cut_off_all(s, s->waiting);
    cut_off_all(s, s->links);
    for (uint32_t i = 0; i < s->half.serve.npools; i++)
        unregister_pool(&s->served[i]);
    for (uint32_t i = 0; i < s->rails.n; i++)
        if (s->cq[i])
            tarn_rails_retire(&s->rails, &(struct tarn_qp_parts){.cq = s->cq[i]});
    tarn_inboxes_close(&s->inboxes);
    tarn_rails_close(&s->rails);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s->served);
    free((void *)(uintptr_t)s->offered);
    free(s);
}

static int rdma_serve(const struct tarn_serve *serve, struct tarn_node_half **s_p)
{
    struct tarn_rdma_node *s = calloc(1, sizeof *s);
    if (!s || !(s->served = calloc(serve->npools, sizeof *s->served)) ||
        !(s->offered = calloc(serve->npools, sizeof *s->offered))) {
        free(s ? s->served : NULL);
        free(s);
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    }
    s->half.serve = *serve;
    s->windows = serve->guard.pin_lease;
    s->inboxes.fd = -1;
    s->next_id = 1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    int rc = tarn_rails_open(serve->rdma_devices, &s->rails);
    if (!rc) {
        s->slice_bytes = slice_bytes(&s->rails, serve->rdma_region_bytes);
        rc = serve_all(s);
    }
    if (rc) {
        rdma_stop(&s->half);
        return rc;
    }
    *s_p = &s->half;
    return 0;
}

/* The rails for readers to choose by: "v1 mlx5_0:1 mlx5_1:1". */
static void rdma_describe(const struct tarn_node_half *h, uint32_t pool, char *text, size_t text_bytes)
{
    const struct tarn_rdma_node *s = node_of(h);
    size_t n = (size_t)snprintf(text, text_bytes, "v1");
    (void)pool;
    for (uint32_t i = 0; i < s->rails.n && n < text_bytes; i++)
        n += (size_t)snprintf(text + n, text_bytes - n, " %s", s->rails.rail[i].name);
}

const struct tarn_node_half_ops tarn_rdma_node_ops = {
    .name = "rdma",
    .caps = TARN_RDMA_CAPS,
    .probe = tarn_rdma_probe,
    .serve = rdma_serve,
    .lend = rdma_lend,
    .withdraw = rdma_withdraw,
    .cut = rdma_cut,
    .enter = rdma_enter,
    .serves = rdma_serves,
    .describe = rdma_describe,
    .attach = rdma_attach,
    .detach_link = rdma_detach_link,
    .detach = rdma_detach,
    .stop = rdma_stop,
};
