/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA, client half: notifications.
 *
 * A link for writing to windows has a ring in the lender's memory (transport/notices.h). The link's n-th
 * notification is one WRITE_WITH_IMM of its notice into the place n % TARN_LINK_NOTICES; the immediate is n.
 * The lender sees it by the completion of a receive, which comes when the notice is in place.
 *
 * It is posted when the bytes it tells of cannot arrive behind it: directly behind them if they go over the
 * same queue pair, which carries out WRITEs in order, else when all rails have acknowledged theirs. If a
 * WRITE ahead of it fails, the queue pair ends, and it is not carried out.
 *
 * When the lease has ended, the lender drops it. The writer learns of that by the keys of the bytes, which
 * are void then. A write without bytes uses no such key: it reads the generation behind its notification, and
 * ends with STALE.
 *
 * Places. The lender counts in `popped` what it has taken out of the ring. The link reads that with a READ
 * when it knows of no free place, and only then. If there still is none, the write goes on without its
 * notification, and says so (tarn_work.untold). Receives are posted again before places count as popped
 * (rdma_node_inbox.h), so a free place always comes with a receive.
 *
 * A work with a notification that is alone on its link until it is done can be repeated if the link ends with
 * AGAIN: its notification has not been carried out. Where there are others on the link, that is not known
 * (client/window/move.c).
 */
#include <arpa/inet.h>
#include <stdatomic.h>

#include "transport/rdma/rdma_link.h"

void tarn_tell_init(struct tarn_tell *t, char *memory)
{
    t->landing = (const _Atomic uint64_t *)(void *)memory;
    t->notices = (struct tarn_notice *)(void *)(memory + sizeof *t->landing);
}

/* On the first lane that is up. False: there is no room now. */
static bool ask(struct tarn_rdma_link *l)
{
    for (uint32_t k = 0; k < l->nlanes; k++)
        if (l->lanes[k].joined) {
            l->tell.lane = &l->lanes[k];
            return tarn_rdma_lane_ask(&l->lanes[k]);
        }
    return false;
}

int tarn_tell_room(struct tarn_rdma_link *l)
{
    struct tarn_tell *t = &l->tell;
    bool room = t->next - t->popped < TARN_LINK_NOTICES;
    if (room || t->asked == TARN_TELL_ANSWERED) {
        t->asked = TARN_TELL_UNASKED;
        return room ? 0 : TARN_E_BUSY;
    }
    if (t->asked == TARN_TELL_UNASKED && ask(l)) {
        t->asked = TARN_TELL_ASKED;
        l->busy++;
    }
    return TARN_E_AGAIN;
}

void tarn_tell_answered(struct tarn_rdma_link *l)
{
    struct tarn_tell *t = &l->tell;
    uint64_t popped = atomic_load_explicit(t->landing, memory_order_acquire);
    if (popped - t->popped <= t->next - t->popped) /* else the lender counts wrongly */
        t->popped = popped;
    t->asked = TARN_TELL_ANSWERED;
    l->busy--;
}

void tarn_tell_fill(struct tarn_rdma_lane *n, const struct tarn_job *job, struct ibv_send_wr *wr)
{
    struct tarn_rdma_link *l = n->link;
    struct tarn_notice *notice = &l->tell.notices[job - l->jobs];
    size_t bytes = tarn_notice_of(job->work, notice);
    wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr->imm_data = htonl((uint32_t)job->number);
    wr->wr.rdma.remote_addr = l->tell.ring + offsetof(struct tarn_notice_ring, place) +
                              job->number % TARN_LINK_NOTICES * sizeof(struct tarn_notice_place) +
                              offsetof(struct tarn_notice_place, notice);
    wr->wr.rdma.rkey = n->ring_key;
    wr->num_sge = 1;
    wr->sg_list[0] = (struct ibv_sge){
        .addr = (uintptr_t)notice, .length = (uint32_t)bytes, .lkey = l->bounce->mr[n->index]->lkey};
}
