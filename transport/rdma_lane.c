/* SPDX-License-Identifier: Apache-2.0 */
/* One rail of a link: strips become chains of work requests, completions end strips. */
#include "transport/rdma_link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

enum {
    CHAIN = 32,          /* work requests a doorbell */
    SGES = 16,           /* local pieces a work request */
    QUEUE = 512,         /* work requests in flight a rail */
    COMPLETIONS = 32,    /* taken at a time */
    READ_BYTES = 1 << 20 /* of one work request: longer ones are answered more slowly by some devices */
};

#define MEASURED_BYTES (128u << 10)
/* wr_id: how many work requests it stands for, times 4, plus what it ends. */
enum { WHOLE_STRIP = 1, PAYLOAD = 2 /* where the check waits for it */ };

/* A chain being built. */
struct chain {
    struct ibv_send_wr wr[CHAIN];
    struct ibv_sge sge[CHAIN * SGES];
    uint32_t n;
};

/* --- open, close -------------------------------------------------------------------------------- */

static int no_events(const struct tarn_lane *n, const char *what)
{
    return tarn_fail(TARN_E_SYSTEM, "rdma %s: no %s: %m: allow more memory to be locked (ulimit -l)",
                     n->rail->name, what);
}

static int open_landing(struct tarn_lane *n)
{
    size_t bytes = n->ring_size * sizeof *n->landing;
    n->landing = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!n->landing)
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    n->landing_mr = ibv_reg_mr(n->rail->pd, (void *)n->landing, bytes, IBV_ACCESS_LOCAL_WRITE);
    return n->landing_mr ? 0 : no_events(n, "registered memory");
}

int tarn_lane_open(struct tarn_link *l, uint32_t index, struct tarn_lane *n)
{
    const struct tarn_rail *rail = &l->local->rails.rail[index];
    uint32_t wrs = rail->max_wr < QUEUE ? rail->max_wr : QUEUE;
    *n = (struct tarn_lane){.link = l, .index = index, .rail = rail, .depth = wrs, .room = wrs};
    n->ring_size = TARN_JOBS * l->local->rails.n;
    n->ring = calloc(n->ring_size, sizeof *n->ring);
    if (!n->ring)
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    int rc = open_landing(n);
    if (rc)
        return rc;
    n->channel = ibv_create_comp_channel(rail->context);
    if (!n->channel || fcntl(n->channel->fd, F_SETFL, fcntl(n->channel->fd, F_GETFL) | O_NONBLOCK) < 0)
        return no_events(n, "completion events");
    n->cq =
        ibv_create_cq(rail->context, (int)(wrs < rail->max_cqe ? wrs : rail->max_cqe), NULL, n->channel, 0);
    if (!n->cq)
        return no_events(n, "completion queue");
    struct tarn_qp_options o = {
        .cq = n->cq, .max_wr = wrs, .max_sge = rail->max_sge < SGES ? rail->max_sge : SGES};
    return tarn_qp_new(rail, &o, &n->qp, &n->own);
}

void tarn_lane_stop(struct tarn_lane *n)
{
    if (n->qp)
        ibv_destroy_qp(n->qp);
    n->qp = NULL;
    n->joined = false;
}

void tarn_lane_close(struct tarn_lane *n)
{
    tarn_lane_stop(n);
    tarn_lane_disarm(n);
    if (n->cq)
        ibv_destroy_cq(n->cq);
    if (n->channel)
        ibv_destroy_comp_channel(n->channel);
    if (n->landing_mr)
        ibv_dereg_mr(n->landing_mr);
    free((void *)n->landing);
    for (uint32_t i = 0; n->pools && i < n->link->npools; i++)
        free(n->pools[i].slices);
    free(n->pools);
    free(n->ring);
    *n = (struct tarn_lane){.link = n->link};
}

/* --- building ----------------------------------------------------------------------------------- */

static struct tarn_strip *strip_at(struct tarn_lane *n, uint64_t counter)
{
    return &n->ring[counter % n->ring_size];
}

void tarn_lane_queue(struct tarn_lane *n, struct tarn_job *job, uint64_t offset, uint64_t bytes)
{
    struct tarn_strip *s = strip_at(n, n->tail++);
    void *addr;
    *s = (struct tarn_strip){.job = job, .offset = offset, .bytes = bytes, .queued_ns = tarn_now_ns()};
    for (uint64_t skip = offset; skip > 0;)
        skip -= tarn_cursor_next(&s->cursor, job->pieces, job->npieces, skip, &addr);
    n->queued += bytes;
}

static struct ibv_send_wr *add_wr(struct tarn_lane *n, struct chain *c)
{
    struct ibv_send_wr *wr = &c->wr[c->n];
    *wr = (struct ibv_send_wr){.sg_list = &c->sge[(size_t)c->n * SGES]};
    if (c->n)
        c->wr[c->n - 1].next = wr;
    c->n++;
    n->room--;
    n->silent++;
    return wr;
}

static void ask_completion(struct tarn_lane *n, struct ibv_send_wr *wr, unsigned ends)
{
    wr->send_flags |= IBV_SEND_SIGNALED;
    wr->wr_id = (uint64_t)n->silent << 2 | ends;
    n->silent = 0;
}

/* How many bytes one work request may move from where the strip is: up to the end of the remote slice. */
static uint64_t reach(const struct tarn_lane *n, const struct tarn_strip *s, uint64_t at)
{
    const struct tarn_work *w = s->job->work;
    uint64_t left = s->bytes - s->posted, slice = n->link->pools[w->pool].slice_bytes,
             to_end = slice - at % slice;
    uint64_t most = left < to_end ? left : to_end;
    if (!s->job->put && most > READ_BYTES)
        most = READ_BYTES;
    return most < n->rail->max_message ? most : n->rail->max_message;
}

/* Gathers local runs into the request; how many bytes they are. 0: a piece is not registered, which is a bug.
 */
static uint64_t fill_sges(const struct tarn_lane *n, struct tarn_strip *s, struct ibv_send_wr *wr,
                          uint64_t most)
{
    const struct tarn_job *job = s->job;
    uint32_t sges = n->rail->max_sge < SGES ? n->rail->max_sge : SGES;
    uint64_t got = 0;
    while (got < most && wr->num_sge < (int)sges) {
        struct tarn_cursor before = s->cursor;
        void *addr;
        uint32_t lkey;
        uint64_t bytes = tarn_cursor_next(&s->cursor, job->pieces, job->npieces, most - got, &addr);
        uint64_t covered = bytes ? tarn_cover_key(&job->cover, addr, n->index, &lkey) : 0;
        if (!covered)
            break;
        if (covered < bytes) { /* the run goes on in another registration */
            s->cursor = before;
            bytes = tarn_cursor_next(&s->cursor, job->pieces, job->npieces, covered, &addr);
        }
        wr->sg_list[wr->num_sge++] =
            (struct ibv_sge){.addr = (uintptr_t)addr, .length = (uint32_t)bytes, .lkey = lkey};
        got += bytes;
    }
    return got;
}

static int add_payload(struct tarn_lane *n, struct tarn_strip *s, struct chain *c)
{
    const struct tarn_work *w = s->job->work;
    const struct tarn_remote_memory *m = &n->link->pools[w->pool];
    uint64_t at = w->offset + s->offset + s->posted;
    struct ibv_send_wr *wr = add_wr(n, c);
    wr->opcode = s->job->put ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    wr->wr.rdma.remote_addr = m->arena + at;
    wr->wr.rdma.rkey = n->pools[w->pool].slices[at / m->slice_bytes];
    uint64_t bytes = fill_sges(n, s, wr, reach(n, s, at));
    if (bytes == 0)
        return tarn_fail(TARN_E_INVALID, "node %s: rdma: a piece of the work is not registered",
                         n->link->node);
    s->posted += bytes;
    if (!n->rail->fences && s->posted == s->bytes)
        ask_completion(n, wr, PAYLOAD);
    else if (s->job->put && s->posted == s->bytes)
        ask_completion(n, wr, WHOLE_STRIP);
    else if (n->silent >= n->depth / 4)
        ask_completion(n, wr, 0);
    return 0;
}

/* The READ of gen[slot] that ends a get's strip, the one of that counter. */
static void add_check(struct tarn_lane *n, uint64_t counter, struct chain *c)
{
    const struct tarn_work *w = strip_at(n, counter)->job->work;
    struct ibv_send_wr *wr = add_wr(n, c);
    wr->opcode = IBV_WR_RDMA_READ;
    wr->send_flags = n->rail->fences ? IBV_SEND_FENCE : 0;
    wr->wr.rdma.remote_addr = n->link->pools[w->pool].gen + (uint64_t)w->slot * sizeof(uint64_t);
    wr->wr.rdma.rkey = n->pools[w->pool].gen;
    wr->num_sge = 1;
    wr->sg_list[0] = (struct ibv_sge){
        .addr = (uintptr_t)&n->landing[counter % n->ring_size], .length = 8, .lkey = n->landing_mr->lkey};
    ask_completion(n, wr, WHOLE_STRIP);
}

/* Without fences: checks of what has arrived. */
static void add_checks(struct tarn_lane *n, struct chain *c)
{
    for (; n->checked < n->arrived && c->n < CHAIN && n->room > 0; n->checked++)
        if (!strip_at(n, n->checked)->job->put)
            add_check(n, n->checked, c);
}

/* Strips of no bytes arrive with those before them. */
static void skip_empty(struct tarn_lane *n)
{
    while (n->arrived < n->next && strip_at(n, n->arrived)->bytes == 0)
        n->arrived++;
}

/* The next strip, or as much of it as fits. */
static int add_strip(struct tarn_lane *n, struct chain *c)
{
    struct tarn_strip *s = strip_at(n, n->next);
    int rc = 0;
    while (!rc && s->posted < s->bytes && c->n < CHAIN && n->room > 0)
        rc = add_payload(n, s, c);
    if (rc || s->posted < s->bytes)
        return rc;
    if (!s->job->put && n->rail->fences) {
        if (c->n == CHAIN || n->room == 0)
            return 0;
        add_check(n, n->next, c);
    }
    n->next++;
    if (!n->rail->fences)
        skip_empty(n);
    return 0;
}

/* --- posting ------------------------------------------------------------------------------------ */

/* As many work requests as fit a chain. */
static int build(struct tarn_lane *n, struct chain *c)
{
    int rc = 0;
    c->n = 0;
    add_checks(n, c);
    for (uint64_t before = UINT64_MAX; !rc && n->next < n->tail && n->next != before;) {
        before = n->next; /* stays when the chain or the queue is full */
        rc = add_strip(n, c);
    }
    return rc;
}

int tarn_lane_post(struct tarn_lane *n)
{
    struct chain c;
    int rc = 0;
    while (!rc && (n->next < n->tail || n->checked < n->arrived)) {
        struct ibv_send_wr *bad;
        rc = build(n, &c);
        if (rc || c.n == 0)
            break;
        int error = ibv_post_send(n->qp, c.wr, &bad);
        if (error)
            rc = tarn_fail(TARN_E_NODE_DOWN, "node %s: rdma %s: the queue pair takes no requests: %s",
                           n->link->node, n->rail->name, strerror(error));
    }
    return rc;
}

void tarn_lane_touch(struct tarn_lane *n, uint32_t pool, uint32_t slot)
{
    struct tarn_link *l = n->link;
    struct ibv_send_wr *bad;
    struct ibv_sge sge = {
        .addr = (uintptr_t)l->tick, .length = sizeof *l->tick, .lkey = l->bounce->mr[n->index]->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
    /* Its place in the queue comes back with the next request that completes, which must still fit. */
    if (n->room < n->depth / 4 || n->next < n->tail)
        return;
    wr.wr.rdma.remote_addr = l->pools[pool].touch + (uint64_t)slot * sizeof(uint32_t);
    wr.wr.rdma.rkey = n->pools[pool].touch;
    if (ibv_post_send(n->qp, &wr, &bad) == 0) {
        n->room--;
        n->silent++;
    }
}

/* --- completions -------------------------------------------------------------------------------- */

/* Only long strips tell how fast the rail is. */
static void measure(struct tarn_lane *n, const struct tarn_strip *s)
{
    uint64_t now = tarn_now_ns();
    if (s->bytes < MEASURED_BYTES || now <= s->queued_ns)
        return;
    double one = (double)n->queued / (double)(now - s->queued_ns);
    n->bytes_ns = n->bytes_ns > 0 ? n->bytes_ns + (one - n->bytes_ns) / 8 : one;
}

static void end_strip(struct tarn_lane *n)
{
    struct tarn_strip *s = strip_at(n, n->head);
    struct tarn_job *job = s->job;
    uint64_t gen = atomic_load_explicit(&n->landing[n->head % n->ring_size], memory_order_acquire);
    int status = 0;
    if (!job->put && gen != job->work->gen)
        status = tarn_fail(TARN_E_STALE, "node %s: pool %u slot %u: the object has moved or was replaced",
                           n->link->node, job->work->pool, job->work->slot);
    measure(n, s);
    n->head++;
    n->queued -= s->bytes;
    tarn_job_part(n->link, job, status);
}

/* What an error completion means. */
static int failed(const struct tarn_lane *n, const struct ibv_wc *wc)
{
    const char *node = n->link->node, *rail = n->rail->name, *what = ibv_wc_status_str(wc->status);
    switch (wc->status) {
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
        return tarn_fail(TARN_E_INVALID, "node %s: rdma %s: %s: is the memory of the pieces still there?",
                         node, rail, what);
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
        return tarn_fail(TARN_E_NODE_DOWN,
                         "node %s: rdma %s: %s: its keys are void, as after a restart: connect again", node,
                         rail, what);
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return tarn_fail(TARN_E_NODE_DOWN, "node %s: rdma %s: %s: the node or the link is down", node, rail,
                         what);
    default:
        return tarn_fail(TARN_E_NODE_DOWN, "node %s: rdma %s: %s (vendor code 0x%x): connect again", node,
                         rail, what, wc->vendor_err);
    }
}

/* Without fences puts end here, in their turn: when all gets before them have. */
static void end_puts(struct tarn_lane *n)
{
    while (n->head < n->arrived && strip_at(n, n->head)->job->put)
        end_strip(n);
}

static void completed(struct tarn_lane *n, uint64_t wr_id)
{
    n->room += (uint32_t)(wr_id >> 2);
    if (wr_id & PAYLOAD) {
        n->arrived++;
        skip_empty(n);
        end_puts(n);
    } else if (wr_id & WHOLE_STRIP) {
        end_strip(n);
        end_puts(n);
    }
}

/* Only the bytes of a work can be at fault here, and a queue pair completes in order. */
static void blame(struct tarn_lane *n)
{
    uint64_t counter = n->rail->fences ? n->head : n->arrived;
    if (counter < n->tail)
        strip_at(n, counter)->job->status = TARN_E_INVALID;
}

int tarn_lane_poll(struct tarn_lane *n)
{
    struct ibv_wc wc[COMPLETIONS];
    int total = 0, got;
    do {
        got = ibv_poll_cq(n->cq, COMPLETIONS, wc);
        if (got < 0)
            return tarn_fail(TARN_E_NODE_DOWN, "node %s: rdma %s: the completion queue is broken",
                             n->link->node, n->rail->name);
        for (int i = 0; i < got; i++) {
            if (wc[i].status != IBV_WC_SUCCESS) {
                int rc = failed(n, &wc[i]);
                if (rc == TARN_E_INVALID)
                    blame(n);
                return rc;
            }
            completed(n, wc[i].wr_id);
        }
        total += got;
    } while (got == COMPLETIONS);
    return total;
}

int tarn_lane_arm(struct tarn_lane *n)
{
    if (n->armed)
        return 0;
    int error = ibv_req_notify_cq(n->cq, 0);
    if (error)
        return tarn_fail(TARN_E_NODE_DOWN, "node %s: rdma %s: no events: %s", n->link->node, n->rail->name,
                         strerror(error));
    n->armed = true;
    return 0;
}

void tarn_lane_disarm(struct tarn_lane *n)
{
    struct ibv_cq *cq;
    void *context;
    while (n->armed && ibv_get_cq_event(n->channel, &cq, &context) == 0) {
        ibv_ack_cq_events(cq, 1);
        n->armed = false;
    }
}
