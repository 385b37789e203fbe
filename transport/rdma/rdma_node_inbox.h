/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA, node half: notifications arrive. Only halves that serve windows have this; a node's devices get no
 * receives.
 *
 * Each link for writing has a ring (transport/notices.h), which its client may write and read, and on each of
 * its queue pairs as many receives as the ring has places. A notification is one WRITE_WITH_IMM
 * (rdma_tell.c). It takes a receive, which has no memory of its own, and completes it once all of the notice
 * is in place, and all that the queue pair was given before. The immediate is the notification's number.
 *
 *   completion --> the receive is posted again --> the host takes the notice --> its place counts as `popped`
 *
 * A client that has seen a place popped uses it again. The receive was posted before that. So no notification
 * finds the queue without one, unless the client writes into places that are not free.
 *
 * All of it runs on the control thread, but for what the comments say.
 */
#ifndef TARN_TRANSPORT_RDMA_NODE_INBOX_H
#define TARN_TRANSPORT_RDMA_NODE_INBOX_H

#include "transport/node_half.h"
#include "transport/rdma/rdma_memory.h"

/* Of all links. */
struct tarn_inboxes {
    const struct tarn_guard *guard;
    struct tarn_rails *rails;
    struct ibv_comp_channel *channel[TARN_RAILS_MAX];
    int fd; /* readable when something has arrived; -1 */
};

/* Of one link. */
struct tarn_inbox {
    const struct tarn_guard *guard;
    struct tarn_notice_ring *ring;
    struct tarn_region *region; /* the ring */
    struct tarn_inbox_lane {
        struct ibv_qp *qp;
        struct ibv_cq *cq;
    } lanes[TARN_RAILS_MAX];
};

int tarn_inboxes_open(struct tarn_inboxes *all, const struct tarn_guard *guard, struct tarn_rails *rails);
/* All of them have been freed, and their completion queues retired. */
void tarn_inboxes_close(struct tarn_inboxes *all);
/* Something has arrived: the completion queue that says so. NULL: there is no more. */
struct ibv_cq *tarn_inboxes_next(const struct tarn_inboxes *all);

/* Any thread. */
int tarn_inbox_new(const struct tarn_inboxes *all, uint64_t session, struct tarn_inbox **i_p);
/* A completion queue for the lane's queue pair, which will be on that rail. Any thread. */
int tarn_inbox_cq(const struct tarn_inboxes *all, struct tarn_inbox *i, uint32_t lane, uint32_t rail);
/* Posts the receives. Any thread. */
int tarn_inbox_open_lane(struct tarn_inbox *i, uint32_t lane, struct ibv_qp *qp);
/* The lane of that completion queue; -1: none. */
int tarn_inbox_lane(const struct tarn_inbox *i, const struct ibv_cq *cq);
/* Takes what has arrived on a lane. */
void tarn_inbox_take(struct tarn_inbox *i, uint32_t lane);
/* tarn_qp_cut_off(), and takes what has arrived until then. */
bool tarn_inbox_cut_off(struct tarn_inbox *i, uint32_t lane);
/* The queue pairs have been cut off. The caller has taken over the completion queues. NULL is allowed. */
void tarn_inbox_free(struct tarn_inbox *i);

#endif
