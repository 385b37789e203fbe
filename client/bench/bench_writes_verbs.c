/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire beside rdma: one queue pair, on which rank 0 posts RDMA WRITEs with an immediate, the count. Rank
 * 1 has a receive posted for each slot, and writes the credit back, inline.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/bench/bench_writes.h"
#include "transport/rdma/rdma_rail.h"

#define DEPTH 64 /* requests of rank 0 that are not known to have ended */
#define POLLS 1024

struct bench_wire {
    struct bench_writes_shape shape;
    bool first; /* rank 0 */
    char *memory;
    struct bench_credit *credit; /* rank 0: which rank 1 writes; rank 1: from which it writes */
    struct tarn_rails rails;
    bool opened;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr, *credit_mr;
    struct tarn_endpoint own;
    uint64_t peer_at; /* where this rank writes: the landing place, or the credit */
    uint32_t peer_key;
    uint32_t under_way;
};

static const struct tarn_rail *rail_of(const struct bench_wire *w)
{
    return &w->rails.rail[0];
}

/* --- requests ----------------------------------------------------------------------------------- */

static int post_receive(struct bench_wire *w)
{
    struct ibv_recv_wr wr = {.num_sge = 0}, *bad;

    return ibv_post_recv(w->qp, &wr, &bad) ? tarn_fail(TARN_E_SYSTEM, "bare verbs: ibv_post_recv: %m") : 0;
}

static int post_write(struct bench_wire *w, struct ibv_send_wr *wr, uint64_t offset)
{
    struct ibv_send_wr *bad;

    wr->num_sge = 1;
    wr->send_flags |= IBV_SEND_SIGNALED;
    wr->wr.rdma.remote_addr = w->peer_at + offset;
    wr->wr.rdma.rkey = w->peer_key;
    if (ibv_post_send(w->qp, wr, &bad) != 0)
        return tarn_fail(TARN_E_SYSTEM, "bare verbs: ibv_post_send: %m");
    w->under_way++;
    return 0;
}

static int post_part(struct bench_wire *w, uint64_t count)
{
    uint64_t offset = (count - 1) % w->shape.slots * w->shape.bytes;
    struct ibv_sge sge = {(uintptr_t)w->memory + offset, w->shape.bytes, w->mr->lkey};
    struct ibv_send_wr wr = {
        .sg_list = &sge, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = (uint32_t)count};

    return post_write(w, &wr, offset);
}

static int post_credit(struct bench_wire *w, uint64_t count)
{
    struct bench_credit credit = {count, ~count};
    struct ibv_sge sge = {(uintptr_t)w->credit, sizeof *w->credit, w->credit_mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .opcode = IBV_WR_RDMA_WRITE};

    *w->credit = credit; /* one that is under way may bring this already */
    return post_write(w, &wr, 0);
}

/* Takes one completion: 1, 0: there is none, or a negative TARN_E_*. *count_p: of a receive. */
static int poll_once(struct bench_wire *w, bool *received, uint64_t *count_p)
{
    struct ibv_wc wc;
    int n = ibv_poll_cq(w->cq, 1, &wc);

    if (n == 0)
        return 0;
    if (n < 0 || wc.status != IBV_WC_SUCCESS)
        return tarn_fail(TARN_E_NODE_DOWN, "bare verbs: a request ended with %s",
                         n < 0 ? "an error of the queue" : ibv_wc_status_str(wc.status));
    *received = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    *count_p = wc.imm_data;
    w->under_way -= !*received;
    return 1;
}

/* How long a wait without progress has lasted. */
struct wait {
    uint64_t polls, since;
};

static int wait_on(struct wait *k)
{
    if (++k->polls % POLLS != 0)
        return 0;
    uint64_t now = tarn_now_ns();
    sched_yield();
    k->since = k->since ? k->since : now;
    if (bench_interrupted())
        return tarn_fail(TARN_E_CANCELED, "interrupted");
    if (now - k->since > BENCH_WRITES_PATIENCE_MS * TARN_NS_PER_MS)
        return tarn_fail(TARN_E_TIMEOUT, "bare verbs: no part has come for %d s",
                         BENCH_WRITES_PATIENCE_MS / 1000);
    return 0;
}

/* --- the wire ----------------------------------------------------------------------------------- */

static void close_wire(struct bench_wire *w)
{
    if (!w)
        return;
    if (w->qp)
        ibv_destroy_qp(w->qp);
    if (w->cq)
        ibv_destroy_cq(w->cq);
    if (w->mr)
        ibv_dereg_mr(w->mr);
    if (w->credit_mr)
        ibv_dereg_mr(w->credit_mr);
    if (w->opened)
        tarn_rails_close(&w->rails);
    free(w->credit);
    free(w);
}

static int register_memory(struct bench_wire *w)
{
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_pd *pd = rail_of(w)->pd;

    w->mr = ibv_reg_mr(pd, w->memory, (size_t)w->shape.bytes * w->shape.slots, access);
    w->credit_mr = ibv_reg_mr(pd, w->credit, sizeof *w->credit, access);
    w->cq = ibv_create_cq(rail_of(w)->context, (int)w->shape.slots + 2 * DEPTH, NULL, NULL, 0);
    if (!w->mr || !w->credit_mr || !w->cq)
        return tarn_fail(TARN_E_SYSTEM,
                         "bare verbs: memory or a queue: %m: raise the limit of locked memory");
    return 0;
}

static int make(const struct bench_env *e, struct bench_wire *w)
{
    int rc = tarn_rails_open(e->devices, &w->rails);

    if (rc != 0)
        return rc;
    w->opened = true;
    rc = register_memory(w);
    if (rc != 0)
        return rc;
    const struct tarn_qp_options o = {
        .cq = w->cq, .max_wr = 2 * DEPTH, .max_sge = 1, .receives = w->first ? 0 : w->shape.slots};
    rc = tarn_qp_new(rail_of(w), &o, &w->qp, &w->own);
    for (uint32_t i = 0; rc == 0 && i < o.receives; i++)
        rc = post_receive(w);
    return rc;
}

static void describe(const struct bench_wire *w, char *text)
{
    char end[TARN_ENDPOINT_TEXT];
    const void *at = w->first ? (void *)w->credit : w->memory;

    tarn_endpoint_format(&w->own, end);
    snprintf(text, BENCH_WIRE_TEXT, "%" PRIx64 " %" PRIx32 " %s", (uint64_t)(uintptr_t)at,
             w->first ? w->credit_mr->rkey : w->mr->rkey, end);
}

static int offer(const struct bench_env *e, const struct bench_writes_shape *shape, char *memory, char *text,
                 struct bench_wire **w_p)
{
    struct bench_wire *w = calloc(1, sizeof *w);

    if (!w || !(w->credit = calloc(1, sizeof *w->credit))) {
        free(w);
        return tarn_fail(TARN_E_NO_MEMORY, "bare verbs: out of memory");
    }
    w->shape = *shape;
    w->first = e->peer != NULL;
    w->memory = memory;
    int rc = make(e, w);
    if (rc != 0) {
        struct tarn_reason why;
        tarn_reason_keep(&why, rc);
        close_wire(w);
        return tarn_reason_fail(&why);
    }
    describe(w, text);
    *w_p = w;
    return 0;
}

static int join(struct bench_wire *w, const char *text)
{
    struct tarn_endpoint peer;
    char end[TARN_ENDPOINT_TEXT];

    if (sscanf(text, "%" SCNx64 " %" SCNx32 " %159s", &w->peer_at, &w->peer_key, end) != 3)
        return tarn_fail(TARN_E_PROTOCOL, "bare verbs: the other rank has an end that cannot be read");
    int rc = tarn_endpoint_parse(end, strlen(end), &peer);
    return rc ? rc : tarn_qp_join(rail_of(w), w->qp, &w->own, &peer);
}

/* Waits until at most so many requests are under way, and so many parts are verified. */
static int await(struct bench_wire *w, uint32_t under_way, uint64_t verified)
{
    struct wait k = {0, 0};
    bool received;
    int rc = 0;

    while (rc == 0) {
        uint64_t inverse = __atomic_load_n(&w->credit->inverse, __ATOMIC_ACQUIRE), unused,
                 count = __atomic_load_n(&w->credit->count, __ATOMIC_ACQUIRE);
        int n = poll_once(w, &received, &unused);
        if (n < 0 || (w->under_way <= under_way && count == ~inverse && count >= verified))
            return n < 0 ? n : 0;
        if (n > 0)
            k.since = 0;
        rc = wait_on(&k);
    }
    return rc;
}

static int send_parts(struct bench_wire *w, uint64_t counted, uint64_t last)
{
    int rc = 0;

    *w->credit = (struct bench_credit){counted, ~counted};
    for (uint64_t count = counted + 1; rc == 0 && count <= last; count++) {
        rc = await(w, DEPTH - 1, count > w->shape.slots ? count - w->shape.slots : 0);
        if (rc == 0)
            rc = post_part(w, count);
    }
    return rc ? rc : await(w, 0, last);
}

static int take_one(struct bench_wire *w, struct bench_landing *l, uint64_t *told, uint64_t count)
{
    int rc = bench_landing_take(l, count, bench_wire_as(&w->shape, count));

    if (rc == 0)
        rc = post_receive(w);
    if (rc != 0 || !bench_landing_owes(l, *told))
        return rc;
    *told = l->verified;
    return post_credit(w, *told);
}

static int take_parts(struct bench_wire *w, struct bench_landing *l)
{
    struct wait k = {0, 0};
    uint64_t told = l->verified, count;
    bool received;
    int rc = 0;

    while (rc == 0 && (l->verified < l->last || w->under_way > 0)) {
        int n = poll_once(w, &received, &count);
        if (n > 0 && received) {
            rc = take_one(w, l, &told, count);
            k.since = 0;
        } else if (n <= 0) {
            rc = n < 0 ? n : wait_on(&k);
        }
    }
    return rc;
}

const struct bench_wire_ops bench_wire_verbs = {.name = "bare verbs",
                                                .offer = offer,
                                                .join = join,
                                                .send = send_parts,
                                                .take = take_parts,
                                                .close = close_wire};
