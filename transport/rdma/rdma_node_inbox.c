/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/rdma/rdma_node_inbox.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/notices.h"

enum { COMPLETIONS = 32 }; /* polled at a time */

/* --- all links ---------------------------------------------------------------------------------- */

static int no_events(const struct tarn_rail *rail)
{
    return tarn_fail(TARN_E_SYSTEM, "rdma %s: no events for notifications: %m: allow more open files",
                     rail->name);
}

static int open_channel(struct tarn_inboxes *all, uint32_t rail)
{
    const struct tarn_rail *r = &all->rails->rail[rail];
    struct ibv_comp_channel *c = all->channel[rail] = ibv_create_comp_channel(r->context);
    struct epoll_event e = {.events = EPOLLIN};
    if (!c || fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK) < 0 ||
        epoll_ctl(all->fd, EPOLL_CTL_ADD, c->fd, &e))
        return no_events(r);
    return 0;
}

int tarn_inboxes_open(struct tarn_inboxes *all, const struct tarn_guard *guard, struct tarn_rails *rails)
{
    int rc = 0;
    *all = (struct tarn_inboxes){.guard = guard, .rails = rails, .fd = epoll_create1(EPOLL_CLOEXEC)};
    if (all->fd < 0)
        return no_events(&rails->rail[0]);
    for (uint32_t i = 0; !rc && i < rails->n; i++)
        rc = open_channel(all, i);
    return rc;
}

void tarn_inboxes_close(struct tarn_inboxes *all)
{
    for (uint32_t i = 0; i < TARN_RAILS_MAX; i++)
        if (all->channel[i])
            tarn_rails_retire(all->rails, &(struct tarn_qp_parts){.channel = all->channel[i]});
    if (all->fd >= 0)
        close(all->fd);
}

struct ibv_cq *tarn_inboxes_next(const struct tarn_inboxes *all)
{
    struct ibv_cq *cq;
    void *context;
    for (uint32_t i = 0; i < all->rails->n; i++)
        if (ibv_get_cq_event(all->channel[i], &cq, &context) == 0) {
            ibv_ack_cq_events(cq, 1);
            return cq;
        }
    return NULL;
}

/* --- one link ----------------------------------------------------------------------------------- */

int tarn_inbox_new(const struct tarn_inboxes *all, uint64_t session, struct tarn_inbox **i_p)
{
    struct tarn_inbox *i = calloc(1, sizeof *i);
    if (!i)
        return tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    i->guard = all->guard;
    int rc = i->guard->ring_new(i->guard->arg, session, &i->ring);
    if (!rc)
        rc = tarn_region_new(all->rails, false, i->ring, tarn_notices_bytes(TARN_LINK_NOTICES),
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
                             &i->region);
    if (rc)
        tarn_inbox_free(i);
    else
        *i_p = i;
    return rc;
}

int tarn_inbox_cq(const struct tarn_inboxes *all, struct tarn_inbox *i, uint32_t lane, uint32_t rail)
{
    struct ibv_cq **cq = &i->lanes[lane].cq;
    /* and one more, which tarn_qp_cut_off() receives */
    *cq = ibv_create_cq(all->rails->rail[rail].context, TARN_LINK_NOTICES + 1, NULL, all->channel[rail], 0);
    return *cq ? 0 : no_events(&all->rails->rail[rail]);
}

static int post_receive(const struct tarn_inbox_lane *n)
{
    struct ibv_recv_wr *bad, wr = {.num_sge = 0};
    return ibv_post_recv(n->qp, &wr, &bad);
}

int tarn_inbox_open_lane(struct tarn_inbox *i, uint32_t lane, struct ibv_qp *qp)
{
    struct tarn_inbox_lane *n = &i->lanes[lane];
    int error = ibv_req_notify_cq(n->cq, 0);
    n->qp = qp;
    for (int k = 0; !error && k < TARN_LINK_NOTICES; k++)
        error = post_receive(n);
    return error ? tarn_fail(TARN_E_SYSTEM,
                             "rdma: a queue pair takes no receives: %s: raise the memlock limit "
                             "(ulimit -l)",
                             strerror(error))
                 : 0;
}

int tarn_inbox_lane(const struct tarn_inbox *i, const struct ibv_cq *cq)
{
    for (int k = 0; k < TARN_RAILS_MAX; k++)
        if (i->lanes[k].cq == cq)
            return k;
    return -1;
}

static void arrived(void *arg, const struct ibv_wc *wc)
{
    const struct tarn_inbox *i = arg;
    if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
        i->guard->ring_got(i->guard->arg, i->ring, ntohl(wc->imm_data));
}

void tarn_inbox_take(struct tarn_inbox *i, uint32_t lane)
{
    const struct tarn_inbox_lane *n = &i->lanes[lane];
    struct ibv_wc wc[COMPLETIONS];
    int got, left = TARN_LINK_NOTICES; /* no more can have come before this */
    ibv_req_notify_cq(n->cq, 0);       /* what comes behind it causes an event */
    for (; left > 0 && (got = ibv_poll_cq(n->cq, COMPLETIONS, wc)) > 0; left -= got)
        for (int k = 0; k < got; k++) {
            if (wc[k].status != IBV_WC_SUCCESS)
                continue;
            post_receive(n); /* the queue has room: it was made for all of them */
            arrived(i, &wc[k]);
        }
}

bool tarn_inbox_cut_off(struct tarn_inbox *i, uint32_t lane)
{
    return tarn_qp_cut_off(i->lanes[lane].qp, i->lanes[lane].cq, arrived, i);
}

void tarn_inbox_free(struct tarn_inbox *i)
{
    if (!i)
        return;
    tarn_region_free(i->region);
    if (i->ring)
        i->guard->ring_end(i->guard->arg, i->ring);
    free(i);
}
