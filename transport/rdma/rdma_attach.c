/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA, client half: parses the node's answer to ATTACH and brings up the lanes that it names. */
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include <tarn/window.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/answer.h"
#include "transport/rdma/rdma_link.h"

#define POOLS_MAX 64 /* of a node */
#define SLICES_MAX 65536
#define GRACE_NS (20 * TARN_NS_PER_MS) /* how long to wait for further lanes once one is up */

/* --- pools -------------------------------------------------------------------------------------- */

static int read_keys(const struct tarn_rdma_link *l, struct tarn_answer *a, uint32_t nslices,
                     struct tarn_pool_keys *k)
{
    k->gen = (uint32_t)tarn_answer_number(a, 16, UINT32_MAX);
    k->touch = (uint32_t)tarn_answer_number(a, 16, UINT32_MAX);
    k->slices = calloc(nslices, sizeof *k->slices);
    if (!k->slices)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: rdma: out of memory", l->link.node);
    for (uint32_t i = 0; i < nslices; i++)
        k->slices[i] = (uint32_t)tarn_answer_number(a, 16, UINT32_MAX);
    return 0;
}

static int read_pool(struct tarn_rdma_link *l, struct tarn_answer *a)
{
    uint64_t index = tarn_answer_number(a, 10, l->npools - 1);
    struct tarn_rdma_peer_memory *m = &l->pools[index];
    if (a->failed || m->slice_bytes) /* the pool was already named */
        return tarn_answer_malformed(a);
    m->bytes = tarn_answer_number(a, 10, UINT64_MAX / 2);
    m->nslots = (uint32_t)tarn_answer_number(a, 10, UINT32_MAX);
    m->slice_bytes = tarn_answer_number(a, 10, UINT64_MAX / 2);
    m->arena = tarn_answer_number(a, 16, UINT64_MAX);
    m->gen = tarn_answer_number(a, 16, UINT64_MAX);
    m->touch = tarn_answer_number(a, 16, UINT64_MAX);
    if (a->failed || m->slice_bytes == 0 || m->bytes / m->slice_bytes >= SLICES_MAX)
        return tarn_answer_malformed(a);
    uint32_t nslices = (uint32_t)((m->bytes + m->slice_bytes - 1) / m->slice_bytes);
    int rc = 0;
    for (uint32_t k = 0; !rc && k < l->nlanes; k++)
        if (l->lanes[k].named)
            rc = read_keys(l, a, nslices, &l->lanes[k].pools[index]);
    return rc ? rc : a->failed ? tarn_answer_malformed(a) : 0;
}

/* Where notifications go; 0: the link tells none. */
static int read_ring(struct tarn_rdma_link *l, struct tarn_answer *a)
{
    l->tell.ring = tarn_answer_number(a, 16, UINT64_MAX);
    for (uint32_t k = 0; l->tell.ring && k < l->nlanes; k++)
        if (l->lanes[k].named)
            l->lanes[k].ring_key = (uint32_t)tarn_answer_number(a, 16, UINT32_MAX);
    return a->failed || (l->link.writable && !l->tell.ring) ? tarn_answer_malformed(a) : 0;
}

static int read_pools(struct tarn_rdma_link *l, struct tarn_answer *a)
{
    uint32_t n = (uint32_t)tarn_answer_number(a, 10, POOLS_MAX);
    int rc = 0;
    if (a->failed || (n == 0 && !l->windows))
        return tarn_answer_malformed(a);
    l->npools = l->windows ? TARN_WINDOWS_MAX : POOLS_MAX;
    l->pools = calloc(l->npools, sizeof *l->pools); /* by index; a pool may be missing */
    if (!l->pools)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: rdma: out of memory", l->link.node);
    for (uint32_t k = 0; k < l->nlanes; k++) {
        l->lanes[k].pools = calloc(l->npools, sizeof *l->lanes[k].pools);
        if (!l->lanes[k].pools)
            return tarn_fail(TARN_E_NO_MEMORY, "node %s: rdma: out of memory", l->link.node);
    }
    for (uint32_t i = 0; !rc && i < n; i++)
        rc = read_pool(l, a);
    return rc || !l->windows ? rc : read_ring(l, a);
}

/* --- lanes -------------------------------------------------------------------------------------- */

static int read_end(struct tarn_rdma_lane *n, const char *text, size_t bytes)
{
    if (bytes == 1 && *text == '-')
        return 0;
    n->named = true;
    return tarn_endpoint_parse(text, bytes, &n->peer);
}

/* "v1 1 POOL": a window, known already or not. */
int tarn_rdma_learn(struct tarn_link *link, const struct tarn_peer *p)
{
    struct tarn_rdma_link *l = tarn_rdma_link(link);
    struct tarn_answer a;
    int rc = tarn_answer_begin(&a, link, p->text);
    if (rc)
        return rc;
    uint64_t n = tarn_answer_number(&a, 10, 1);
    struct tarn_answer ahead = a;
    uint64_t index = tarn_answer_number(&ahead, 10, l->npools - 1);
    if (ahead.failed || n != 1)
        return tarn_answer_malformed(&a);
    l->pools[index] = (struct tarn_rdma_peer_memory){0};
    for (uint32_t k = 0; k < l->nlanes; k++) {
        free(l->lanes[k].pools[index].slices);
        l->lanes[k].pools[index].slices = NULL;
    }
    return read_pool(l, &a);
}

int tarn_rdma_read_answer(struct tarn_rdma_link *l, const char *text)
{
    struct tarn_answer a;
    size_t bytes;
    uint32_t named = 0;
    int rc = tarn_answer_begin(&a, &l->link, text);
    if (rc)
        return rc;
    l->link.id = tarn_answer_number(&a, 16, UINT64_MAX);
    if (tarn_answer_number(&a, 10, TARN_RAILS_MAX) != l->nlanes || a.failed)
        return tarn_answer_malformed(&a);
    for (uint32_t k = 0; !rc && k < l->nlanes; k++) {
        const char *end = tarn_answer_word(&a, &bytes);
        rc = read_end(&l->lanes[k], end, bytes);
        named += l->lanes[k].named;
    }
    if (!rc && named == 0)
        return tarn_answer_malformed(&a);
    return rc ? rc : read_pools(l, &a);
}

/* --- lanes come up ------------------------------------------------------------------------------ */

int tarn_rdma_lanes_begin(struct tarn_rdma_link *l)
{
    for (uint32_t k = 0; k < l->nlanes; k++) {
        struct tarn_rdma_lane *n = &l->lanes[k];
        if (!n->named)
            continue;
        n->join = tarn_join_begin(&l->local->rails, n->rail, n->qp, &n->own, &n->peer);
        if (!n->join)
            return tarn_fail(TARN_E_NO_MEMORY, "node %s: rdma: out of memory", l->link.node);
        l->joining++;
    }
    return 0;
}

static void look_at_lane(struct tarn_rdma_link *l, struct tarn_rdma_lane *n)
{
    struct epoll_event e = {.events = EPOLLIN};
    int rc;
    if (!tarn_join_over(n->join, &rc))
        return;
    n->join = NULL;
    l->joining--;
    if (!rc && epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, n->channel->fd, &e))
        rc = tarn_fail(TARN_E_SYSTEM, "node %s: rdma: epoll: %m", l->link.node);
    n->joined = rc == 0;
    n->lost = rc != 0;
    if (rc)
        tarn_reason_keep(&l->why, rc);
}

static uint32_t count_joined(const struct tarn_rdma_link *l)
{
    uint32_t joined = 0;
    for (uint32_t k = 0; k < l->nlanes; k++)
        joined += l->lanes[k].joined;
    return joined;
}

/* If another rail reaches the node, this one is at fault. Otherwise the node may be. */
static void set_lost_aside(struct tarn_rdma_link *l)
{
    uint64_t until = tarn_now_ns() + TARN_RAIL_ASIDE_NS;
    for (uint32_t k = 0; k < l->nlanes; k++)
        if (l->lanes[k].lost) {
            l->lanes[k].lost = false;
            atomic_store(&l->local->aside_ns[l->lanes[k].index], until);
            l->whole_ns = until;
        }
}

void tarn_rdma_lanes_look(struct tarn_rdma_link *l)
{
    for (uint32_t k = 0; k < l->nlanes; k++)
        if (l->lanes[k].join)
            look_at_lane(l, &l->lanes[k]);
    if (count_joined(l))
        set_lost_aside(l);
    if (l->joining && !l->whole_ns)
        l->whole_ns = UINT64_MAX; /* the time is not known yet */
    else if (!l->joining && l->whole_ns == UINT64_MAX)
        l->whole_ns = 0;
}

int tarn_rdma_lanes_await(struct tarn_rdma_link *l, uint64_t deadline_ns)
{
    uint64_t until = tarn_slice_end(deadline_ns), seen = 0, grace = 0;
    tarn_joins_wait(&l->local->rails, &seen, 0); /* only reads the current count */
    for (;;) {
        tarn_rdma_lanes_look(l);
        uint64_t now = tarn_now_ns();
        if (!l->joining || now >= until)
            break;
        if (!grace && count_joined(l)) {
            grace = now + GRACE_NS;
            until = grace < until ? grace : until;
        }
        tarn_joins_wait(&l->local->rails, &seen, until);
    }
    if (count_joined(l))
        return 0;
    return l->joining ? TARN_INPROGRESS
                      : tarn_fail(TARN_E_NOT_REACHABLE, "node %s: rdma: no rail reaches it just now: %s",
                                  l->link.node, l->why.text);
}
