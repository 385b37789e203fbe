/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rail of a link: turns strips into chains of work requests, and completions into ends of strips.
 *
 * A chain is posted with one doorbell:
 *
 *   checks of strips whose bytes have arrived | bytes of the next strips | FENCE, checks of those
 *
 * The last request of each part asks for a completion. It stands for all before it, because a queue pair
 * completes in order. So no chain can fill the queue permanently.
 */
#include "transport/rdma/rdma_link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/error.h"

enum {
    CHAIN = 32,          /* work requests for one doorbell */
    SGES = 32,           /* local pieces in one work request */
    QUEUE = 512,         /* work requests in flight on a rail */
    COMPLETIONS = 32,    /* polled at a time */
    READ_BYTES = 1 << 20 /* of one work request: some devices answer larger ones more slowly */
};

#define MEASURED_BYTES (128u << 10)
#define CHAIN_BYTES (4ull << 20) /* strips up to this size arrive and are checked together */

/* Bits of wr_id, lowest first: how many work requests the completion stands for, their kind, and the
 * strip. */
enum { WHAT_BIT = 16, STRIP_BIT = 19, WHATS = 7 };
/* Bytes of a strip, or its notification; the READ of its generation. What belongs to no strip: times of last
 * use; the READ of how many notifications have been taken. */
enum what { PART, LAST_PART, CHECK, TOUCH, ASK };

/* A chain under construction. */
struct chain {
    uint32_t n;
    uint64_t bytes;
    struct ibv_send_wr wr[CHAIN];
    struct ibv_sge sge[CHAIN * SGES];
};

/* --- open, close -------------------------------------------------------------------------------- */

static int no_events(const struct tarn_rdma_lane *n, const char *what)
{
    return tarn_fail(TARN_E_SYSTEM, "rdma %s: no %s: %m: allow more memory to be locked (ulimit -l)",
                     n->rail->name, what);
}

static int open_landing(struct tarn_rdma_lane *n)
{
    size_t bytes = 2 * n->ring_size * sizeof *n->landing;
    n->landing = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!n->landing)
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    n->landing_mr = ibv_reg_mr(n->rail->pd, (void *)n->landing, bytes, IBV_ACCESS_LOCAL_WRITE);
    return n->landing_mr ? 0 : no_events(n, "registered memory");
}

int tarn_rdma_lane_open(struct tarn_rdma_link *l, uint32_t index, struct tarn_rdma_lane *n)
{
    const struct tarn_rail *rail = &l->local->rails.rail[index];
    uint32_t wrs = tarn_least(QUEUE, tarn_least(rail->max_wr, rail->max_cqe)); /* each of them may ask for a
                                                                                * completion */
    *n = (struct tarn_rdma_lane){.link = l, .index = index, .rail = rail, .depth = wrs, .room = wrs};
    for (n->ring_size = TARN_JOBS; n->ring_size < TARN_JOBS * l->local->rails.n;)
        n->ring_size *= 2;
    n->ring = calloc(n->ring_size, sizeof *n->ring);
    if (!n->ring)
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    int rc = open_landing(n);
    if (rc)
        return rc;
    n->channel = ibv_create_comp_channel(rail->context);
    if (!n->channel || fcntl(n->channel->fd, F_SETFL, fcntl(n->channel->fd, F_GETFL) | O_NONBLOCK) < 0)
        return no_events(n, "completion events");
    n->cq = ibv_create_cq(rail->context, (int)wrs, NULL, n->channel, 0);
    if (!n->cq)
        return no_events(n, "completion queue");
    struct tarn_qp_options o = {.cq = n->cq, .max_wr = wrs, .max_sge = tarn_least(SGES, rail->max_sge)};
    return tarn_qp_new(rail, &o, &n->qp, &n->own);
}

void tarn_rdma_lane_stop(struct tarn_rdma_lane *n)
{
    struct tarn_qp_parts parts = {n->qp, n->cq, n->channel};
    n->joined = false;
    if (!n->qp)
        return;
    if (n->room < n->depth && !tarn_qp_stop(n->qp, n->cq, n->room == 0)) {
        ibv_destroy_qp(n->qp);
        parts.qp = NULL;
    }
    tarn_rdma_lane_disarm(n);
    n->armed = false;
    epoll_ctl(n->link->epoll_fd, EPOLL_CTL_DEL, n->channel->fd, NULL);
    n->qp = NULL;
    n->cq = NULL;
    n->channel = NULL;
    if (n->join) { /* nothing has been posted */
        tarn_join_abandon(&n->link->local->rails, n->join, &parts);
        n->join = NULL;
        n->link->joining--;
        return;
    }
    tarn_rails_retire(&n->link->local->rails, &parts);
}

void tarn_rdma_lane_close(struct tarn_rdma_lane *n)
{
    tarn_rdma_lane_stop(n);
    if (n->cq) /* it may have been opened in part */
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
    *n = (struct tarn_rdma_lane){.link = n->link};
}

/* --- building ----------------------------------------------------------------------------------- */

static struct tarn_strip *strip_at(struct tarn_rdma_lane *n, uint64_t counter)
{
    return &n->ring[counter & (n->ring_size - 1)];
}

void tarn_rdma_lane_queue(struct tarn_rdma_lane *n, struct tarn_job *job, uint64_t offset, uint64_t bytes,
                          bool tells)
{
    struct tarn_strip *s = strip_at(n, n->tail++);
    *s = (struct tarn_strip){.job = job, .offset = offset, .bytes = bytes, .tells = tells};
    if (bytes >= MEASURED_BYTES)
        s->queued_ns = tarn_now_ns();
    tarn_cursor_skip(&s->cursor, job->pieces, job->npieces, offset);
    if (job->work->lease)
        s->far = tarn_runs_at(&job->work->lease->runs, job->work->offset + offset);
    n->queued += bytes;
}

static struct ibv_send_wr *add_wr(struct tarn_rdma_lane *n, struct chain *c, uint64_t strip, enum what what)
{
    struct ibv_send_wr *wr = &c->wr[c->n];
    *wr = (struct ibv_send_wr){.wr_id = strip << STRIP_BIT | (uint64_t)what << WHAT_BIT,
                               .sg_list = &c->sge[(size_t)c->n * SGES]};
    if (c->n)
        c->wr[c->n - 1].next = wr;
    c->n++;
    n->room--;
    n->silent++;
    return wr;
}

/* Makes the chain's last request ask for a completion. */
static void ask_completion(struct tarn_rdma_lane *n, struct chain *c)
{
    struct ibv_send_wr *wr = &c->wr[c->n - 1];
    wr->send_flags |= IBV_SEND_SIGNALED;
    wr->wr_id |= n->silent;
    n->silent = 0;
}

/* Where in the pool the strip's position is, and for how many bytes on. */
static uint64_t far_at(const struct tarn_strip *s, uint64_t *bytes)
{
    const struct tarn_work *w = s->job->work;
    struct tarn_cursor far = s->far;
    void *at;
    *bytes = s->bytes - s->posted;
    if (!w->lease)
        return w->offset + s->offset + s->posted;
    *bytes = tarn_cursor_next(&far, w->lease->runs.piece, w->lease->runs.n, *bytes, &at);
    return (uintptr_t)at;
}

/* Bytes that one work request may move from there: at most to the end of the remote slice. */
static uint64_t reach(const struct tarn_rdma_lane *n, const struct tarn_strip *s, uint64_t at, uint64_t left)
{
    const struct tarn_work *w = s->job->work;
    uint64_t slice = n->link->pools[w->pool].slice_bytes, to_end = slice - at % slice;
    uint64_t most = left < to_end ? left : to_end;
    uint64_t longest = s->job->put ? n->rail->max_write : n->rail->max_message;
    if (!s->job->put && longest > READ_BYTES)
        longest = READ_BYTES;
    return most < longest ? most : longest;
}

/* Gathers local runs into the request and returns their bytes. 0: a piece is not registered, which is a
 * bug. */
static uint64_t fill_sges(const struct tarn_rdma_lane *n, struct tarn_strip *s, struct ibv_send_wr *wr,
                          uint64_t most)
{
    const struct tarn_job *job = s->job;
    uint32_t sges = tarn_least(SGES, n->rail->max_sge);
    uint64_t got = 0;
    while (got < most && wr->num_sge < (int)sges) {
        struct tarn_cursor before = s->cursor;
        void *addr;
        uint32_t lkey;
        uint64_t bytes = tarn_cursor_next(&s->cursor, job->pieces, job->npieces, most - got, &addr);
        uint64_t covered = bytes ? tarn_cover_key(&job->cover, addr, n->index, &lkey) : 0;
        if (!covered)
            break;
        if (covered < bytes) { /* the run continues in another region */
            s->cursor = before;
            bytes = tarn_cursor_next(&s->cursor, job->pieces, job->npieces, covered, &addr);
        }
        wr->sg_list[wr->num_sge++] =
            (struct ibv_sge){.addr = (uintptr_t)addr, .length = (uint32_t)bytes, .lkey = lkey};
        got += bytes;
    }
    return got;
}

static int add_part(struct tarn_rdma_lane *n, struct tarn_strip *s, struct chain *c)
{
    const struct tarn_work *w = s->job->work;
    const struct tarn_rdma_peer_memory *m = &n->link->pools[w->pool];
    uint64_t run, at = far_at(s, &run);
    struct ibv_send_wr *wr = add_wr(n, c, n->next, PART);
    wr->opcode = s->job->put ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    wr->wr.rdma.remote_addr = m->arena + at;
    wr->wr.rdma.rkey = n->pools[w->pool].slices[at / m->slice_bytes];
    uint64_t bytes = fill_sges(n, s, wr, reach(n, s, at, run));
    if (bytes == 0)
        return tarn_fail(TARN_E_INVALID, "node %s: rdma: a piece of the work is not registered",
                         n->link->link.node);
    s->posted += bytes;
    if (w->lease)
        tarn_cursor_skip(&s->far, w->lease->runs.piece, w->lease->runs.n, bytes);
    c->bytes += bytes;
    if (s->posted < s->bytes || s->tells)
        return 0;
    wr->wr_id |= (uint64_t)LAST_PART << WHAT_BIT;
    if (s->job->put)
        ask_completion(n, c);
    return 0;
}

/* The notification, behind the strip's bytes. */
static void add_notification(struct tarn_rdma_lane *n, struct tarn_strip *s, struct chain *c)
{
    tarn_tell_fill(n, s->job, add_wr(n, c, n->next, LAST_PART));
    ask_completion(n, c);
    s->told = true;
}

/* Strips without requests of their own arrive with those before them. */
static void skip_empty(struct tarn_rdma_lane *n)
{
    while (n->arrived < n->next && strip_at(n, n->arrived)->bytes == 0 && !strip_at(n, n->arrived)->tells)
        n->arrived++;
}

/* Adds bytes of the next strips, as many as fit. */
static int add_strips(struct tarn_rdma_lane *n, struct chain *c)
{
    int rc = 0;
    while (!rc && n->next < n->tail && c->bytes < CHAIN_BYTES) {
        struct tarn_strip *s = strip_at(n, n->next);
        while (!rc && s->posted < s->bytes && c->n < CHAIN && n->room > 0)
            rc = add_part(n, s, c);
        if (!rc && s->tells && s->posted == s->bytes && c->n < CHAIN && n->room > 0)
            add_notification(n, s, c);
        if (s->posted < s->bytes || s->told != s->tells)
            break;
        n->next++;
    }
    skip_empty(n);
    return rc;
}

/* Where the strip's generation is read to. Neighbouring strips have rising addresses in one half of the
 * memory and falling addresses in the other. */
static _Atomic uint64_t *landing_of(struct tarn_rdma_lane *n, uint64_t strip)
{
    uint64_t i = strip & (n->ring_size - 1);
    return &n->landing[strip_at(n, strip)->falling ? 2 * n->ring_size - 1 - i : i];
}

/* Extends the chain's last request, the check of the strip before, to read this strip's generation, too.
 * Possible if the slots are neighbours and so are the places they are read to. */
static bool extend_check(struct tarn_rdma_lane *n, uint64_t strip, struct chain *c)
{
    struct ibv_send_wr *wr = c->n ? &c->wr[c->n - 1] : NULL;
    if (!wr || wr->wr_id >> WHAT_BIT != ((strip - 1) << (STRIP_BIT - WHAT_BIT) | CHECK) ||
        (strip & (n->ring_size - 1)) == 0)
        return false;
    struct tarn_strip *s = strip_at(n, strip), *before = strip_at(n, strip - 1);
    const struct tarn_work *w = s->job->work, *v = before->job->work;
    bool single = wr->sg_list[0].length == sizeof *n->landing;
    bool rises = w->slot == v->slot + 1 && !before->falling;
    bool falls = w->slot + 1 == v->slot && (before->falling || single);
    if (w->pool != v->pool || (!rises && !falls))
        return false;
    if (falls) {
        s->falling = before->falling = true;
        wr->sg_list[0].addr = (uintptr_t)landing_of(n, strip);
        wr->wr.rdma.remote_addr -= sizeof *n->landing;
    }
    wr->sg_list[0].length += sizeof *n->landing;
    wr->wr_id += 1ull << STRIP_BIT;
    return true;
}

/* The READ of gen[slot] that checks a strip. */
static void add_check(struct tarn_rdma_lane *n, uint64_t strip, struct chain *c, unsigned flags)
{
    const struct tarn_work *w = strip_at(n, strip)->job->work;
    struct ibv_send_wr *wr = add_wr(n, c, strip, CHECK);
    wr->opcode = IBV_WR_RDMA_READ;
    wr->send_flags = flags;
    wr->wr.rdma.remote_addr = n->link->pools[w->pool].gen + (uint64_t)w->slot * sizeof(uint64_t);
    wr->wr.rdma.rkey = n->pools[w->pool].gen;
    wr->num_sge = 1;
    wr->sg_list[0] = (struct ibv_sge){
        .addr = (uintptr_t)landing_of(n, strip), .length = sizeof *n->landing, .lkey = n->landing_mr->lkey};
}

static void add_checks_before(struct tarn_rdma_lane *n, uint64_t end, struct chain *c, unsigned flags)
{
    uint32_t before = c->n;
    for (; n->checked < end; n->checked++) {
        if (!strip_at(n, n->checked)->job->checked || extend_check(n, n->checked, c))
            continue;
        if (c->n == CHAIN || n->room == 0)
            break;
        add_check(n, n->checked, c, c->n == before ? flags : 0);
    }
    if (c->n > before)
        ask_completion(n, c);
}

/* Checks of the strips before `end`. `flags` go on the first; a fence there holds all that follow back. */
static inline void add_checks(struct tarn_rdma_lane *n, uint64_t end, struct chain *c, unsigned flags)
{
    if (n->checked < end)
        add_checks_before(n, end, c, flags);
}

/* --- posting ------------------------------------------------------------------------------------ */

/*
 * May the chain's own strips be checked in it, behind a fence? Only if nothing else is in flight.
 * Otherwise all later requests would wait behind the fence, while later checks need none.
 */
static bool may_fence(struct tarn_rdma_lane *n, const struct chain *c)
{
    uint32_t checks = 0;
    for (uint64_t i = n->head; i < n->next; i++)
        checks += strip_at(n, i)->job->checked;
    return n->rail->fences && n->next == n->tail && checks <= CHAIN - c->n && checks <= n->room;
}

static int build(struct tarn_rdma_lane *n, struct chain *c)
{
    bool alone = n->head == n->next;
    c->n = 0;
    c->bytes = 0;
    add_checks(n, n->arrived, c, 0);
    uint32_t checks = c->n;
    int rc = add_strips(n, c);
    if (alone && may_fence(n, c))
        add_checks(n, n->next, c, IBV_SEND_FENCE);
    else if (c->n > checks)
        ask_completion(n, c);
    else
        add_checks(n, n->arrived, c, 0); /* strips without bytes */
    return rc;
}

/* Is anything left to post? */
static bool has_more(const struct tarn_rdma_lane *n)
{
    return n->next < n->tail || n->checked < n->arrived;
}

static int post_more(struct tarn_rdma_lane *n)
{
    struct chain c;
    int rc = 0;
    while (has_more(n) && (rc = build(n, &c)) == 0 && c.n > 0) {
        struct ibv_send_wr *bad;
        int error = ibv_post_send(n->qp, c.wr, &bad);
        if (error)
            return tarn_fail(TARN_E_NODE_DOWN, "node %s: rdma %s: the queue pair takes no requests: %s",
                             n->link->link.node, n->rail->name, strerror(error));
    }
    return rc;
}

int tarn_rdma_lane_post(struct tarn_rdma_lane *n)
{
    return has_more(n) ? post_more(n) : 0;
}

bool tarn_rdma_lane_touch(struct tarn_rdma_lane *n, const struct tarn_slots *slots, uint32_t count)
{
    struct tarn_rdma_link *l = n->link;
    struct ibv_send_wr wr[TARN_TOUCHES], *bad;
    struct ibv_sge sge[TARN_TOUCHES];
    /* works come first */
    if (n->room < n->depth / 4 + count || n->next < n->tail)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const struct tarn_slots *s = &slots[i];
        sge[i] = (struct ibv_sge){.addr = (uintptr_t)l->touches.ticks,
                                  .length = s->n * (uint32_t)sizeof *l->touches.ticks,
                                  .lkey = l->bounce->mr[n->index]->lkey};
        wr[i] = (struct ibv_send_wr){.wr_id = (uint64_t)TOUCH << WHAT_BIT | count,
                                     .next = i + 1 < count ? &wr[i + 1] : NULL,
                                     .sg_list = &sge[i],
                                     .num_sge = 1,
                                     .opcode = IBV_WR_RDMA_WRITE};
        wr[i].wr.rdma.remote_addr = l->pools[s->pool].touch + (uint64_t)s->slot * sizeof *l->touches.ticks;
        wr[i].wr.rdma.rkey = n->pools[s->pool].touch;
    }
    wr[count - 1].send_flags = IBV_SEND_SIGNALED;
    if (ibv_post_send(n->qp, wr, &bad))
        return false;
    n->room -= count;
    return true;
}

bool tarn_rdma_lane_ask(struct tarn_rdma_lane *n)
{
    const struct tarn_rdma_link *l = n->link;
    struct ibv_sge to = {.addr = (uintptr_t)l->tell.landing,
                         .length = sizeof *l->tell.landing,
                         .lkey = l->bounce->mr[n->index]->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = (uint64_t)ASK << WHAT_BIT | 1,
                                   .sg_list = &to,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_READ,
                                   .send_flags = IBV_SEND_SIGNALED};
    wr.wr.rdma.remote_addr = l->tell.ring + offsetof(struct tarn_notice_ring, popped);
    wr.wr.rdma.rkey = n->ring_key;
    if (n->room == 0 || ibv_post_send(n->qp, &wr, &bad))
        return false;
    n->room--;
    return true;
}

/* --- completions -------------------------------------------------------------------------------- */

/* Only long strips show the rail's speed. */
static void measure(struct tarn_rdma_lane *n, const struct tarn_strip *s)
{
    if (s->bytes < MEASURED_BYTES)
        return;
    uint64_t now = tarn_now_ns();
    if (now <= s->queued_ns)
        return;
    double one = (double)n->queued / (double)(now - s->queued_ns);
    n->bytes_ns = n->bytes_ns > 0 ? n->bytes_ns + (one - n->bytes_ns) / 8 : one;
}

static void end_strip(struct tarn_rdma_lane *n)
{
    struct tarn_strip *s = strip_at(n, n->head);
    struct tarn_job *job = s->job;
    uint64_t gen = atomic_load_explicit(landing_of(n, n->head), memory_order_acquire);
    int status = 0;
    if (job->checked && gen != job->work->gen)
        status = tarn_link_stale(&n->link->link, job->work->pool, job->work->slot);
    measure(n, s);
    n->head++;
    if (n->checked < n->head) /* it has none */
        n->checked = n->head;
    n->queued -= s->bytes;
    n->link->strip_ended(n->link, job, status);
}

/* What an error completion means for the rail. */
static int failed(const struct tarn_rdma_lane *n, const struct ibv_wc *wc)
{
    const char *node = n->link->link.node, *rail = n->rail->name, *what = ibv_wc_status_str(wc->status);
    switch (wc->status) {
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
        return tarn_fail(TARN_E_INVALID, "node %s: rdma %s: %s: is the memory of the pieces still there?",
                         node, rail, what);
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
        if (n->link->windows) /* a lease of that window was recalled */
            return TARN_E_AGAIN;
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

/* All requests up to this one are complete. Strips without checks end in their turn, after all before them.
 */
static void completed(struct tarn_rdma_lane *n, uint64_t wr_id)
{
    uint64_t strip = wr_id >> STRIP_BIT;
    enum what what = wr_id >> WHAT_BIT & WHATS;
    n->room += (uint32_t)(wr_id & ((1u << WHAT_BIT) - 1));
    if (what == ASK)
        tarn_tell_answered(n->link);
    if (what >= TOUCH)
        return;
    if (n->arrived < strip + (what != PART))
        n->arrived = strip + (what != PART);
    skip_empty(n);
    while (what == CHECK && n->head <= strip)
        end_strip(n);
    while (n->head < n->arrived && !strip_at(n, n->head)->job->checked)
        end_strip(n);
}

/* Only the bytes of a work can cause this error. */
static void blame(struct tarn_rdma_lane *n, uint64_t wr_id)
{
    if ((wr_id >> WHAT_BIT & WHATS) <= LAST_PART)
        strip_at(n, wr_id >> STRIP_BIT)->job->status = TARN_E_INVALID;
}

int tarn_rdma_lane_poll(struct tarn_rdma_lane *n)
{
    struct ibv_wc wc[COMPLETIONS];
    int total = 0, got;
    if (n->room == n->depth) /* nothing is posted */
        return 0;
    do {
        got = ibv_poll_cq(n->cq, COMPLETIONS, wc);
        if (got < 0)
            return tarn_fail(TARN_E_NODE_DOWN, "node %s: rdma %s: the completion queue is broken",
                             n->link->link.node, n->rail->name);
        for (int i = 0; i < got; i++) {
            if (wc[i].status != IBV_WC_SUCCESS) {
                int rc = failed(n, &wc[i]);
                if (rc == TARN_E_INVALID)
                    blame(n, wc[i].wr_id);
                return rc;
            }
            completed(n, wc[i].wr_id);
        }
        total += got;
    } while (got == COMPLETIONS);
    return total;
}

int tarn_rdma_lane_arm(struct tarn_rdma_lane *n)
{
    if (n->armed)
        return 0;
    int error = ibv_req_notify_cq(n->cq, 0);
    if (error)
        return tarn_fail(TARN_E_NODE_DOWN, "node %s: rdma %s: no events: %s", n->link->link.node,
                         n->rail->name, strerror(error));
    n->armed = true;
    return 0;
}

void tarn_rdma_lane_disarm(struct tarn_rdma_lane *n)
{
    struct ibv_cq *cq;
    void *context;
    while (n->armed && ibv_get_cq_event(n->channel, &cq, &context) == 0) {
        ibv_ack_cq_events(cq, 1);
        n->armed = false;
    }
}
