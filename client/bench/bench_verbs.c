/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The RDMA devices of a benchmark, and counts of a client's calls of the verbs library. To count, functions
 * in the tables of the client's open devices are replaced.
 */
#include "client/bench/bench.h"

#include <arpa/inet.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/client.h"
#include "transport/rdma/rdma_memory.h"
#include "transport/rdma/rdma_rail.h"

/* --- rails -------------------------------------------------------------------------------------- */

static void describe(const struct tarn_rail *from, struct bench_rail *to)
{
    static const uint8_t v4[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    bool is_v4 = memcmp(from->gid.raw, v4, sizeof v4) == 0;
    struct ibv_device_attr a;

    *to = (struct bench_rail){.port = from->port,
                              .gid_index = from->gid_index,
                              .roce = from->roce,
                              .mtu = 128u << from->mtu,
                              .speed = from->speed,
                              .max_sge = from->max_sge};
    snprintf(to->device, sizeof to->device, "%.63s", ibv_get_device_name(from->context->device));
    snprintf(to->firmware, sizeof to->firmware, "%.63s",
             ibv_query_device(from->context, &a) == 0 && a.fw_ver[0] ? a.fw_ver : "unknown");
    snprintf(to->link, sizeof to->link, "%s", from->roce ? "Ethernet" : "InfiniBand");
    inet_ntop(is_v4 ? AF_INET : AF_INET6, from->gid.raw + (is_v4 ? 12 : 0), to->gid, sizeof to->gid);
}

/* The node's end of a rail, chosen as the node does. */
static int describe_node(const struct tarn_rail *client, const struct tarn_rails *node, uint32_t prefer,
                         struct bench_rail *to)
{
    const struct tarn_endpoint end = {
        .lid = client->lid, .roce = client->roce, .gid = client->gid, .mtu = client->mtu};
    const struct tarn_rail *r = tarn_rail_reaching(node, &end, prefer);

    if (!r)
        return tarn_fail(TARN_E_UNAVAILABLE, "rdma %s: no device of the node reaches it: see --node-devices",
                         client->name);
    snprintf(to->node_device, sizeof to->node_device, "%.63s", ibv_get_device_name(r->context->device));
    to->node_port = r->port;
    to->node_gid_index = r->gid_index;
    if (r->mtu < client->mtu)
        to->mtu = 128u << r->mtu;
    return 0;
}

int bench_rails_find(const struct bench_env *e, struct bench_rails *out)
{
    struct tarn_rails client, node;
    int rc = tarn_rails_open(e->devices, &client);

    if (rc != 0)
        return rc;
    rc = tarn_rails_open(e->node_devices, &node);
    if (rc != 0) {
        tarn_rails_close(&client);
        return rc;
    }
    out->n = client.n < BENCH_RAILS_MAX ? client.n : BENCH_RAILS_MAX;
    for (uint32_t i = 0; rc == 0 && i < out->n; i++) {
        describe(&client.rail[i], &out->rail[i]);
        rc = describe_node(&client.rail[i], &node, i, &out->rail[i]);
    }
    tarn_rails_close(&node);
    tarn_rails_close(&client);
    return rc;
}

int bench_rdma_client(const struct bench_env *e, const struct bench_rails *r, uint32_t rails,
                      struct tarn_client **c_p)
{
    char list[BENCH_RAILS_MAX * 80] = "";
    size_t n = 0;

    for (uint32_t i = 0; i < rails; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s:%u@%u", i ? "," : "", r->rail[i].device,
                              r->rail[i].port, r->rail[i].gid_index);
    setenv("TARN_RDMA_DEVICES", list, 1);
    return bench_client(e, "rdma", c_p);
}

/* --- counting ----------------------------------------------------------------------------------- */

static struct ibv_context_ops real;
static _Atomic uint64_t posts, requests, writes, post_ns, polls, empty, completions, arms;

static int counting_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    posts++;
    for (const struct ibv_send_wr *w = wr; w; w = w->next) {
        requests++;
        writes += w->opcode == IBV_WR_RDMA_WRITE;
    }
    uint64_t start = tarn_now_ns();
    int rc = real.post_send(qp, wr, bad);
    post_ns += tarn_now_ns() - start;
    return rc;
}

static int counting_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
    int got = real.poll_cq(cq, n, wc);

    polls++;
    if (got > 0)
        completions += (uint64_t)got;
    else
        empty++;
    return got;
}

static int counting_arm(struct ibv_cq *cq, int solicited_only)
{
    arms++;
    return real.req_notify_cq(cq, solicited_only);
}

static void count_device(struct ibv_context *context)
{
    struct ibv_context_ops *ops = &context->ops;

    if (ops->post_send == counting_post || (real.post_send && real.post_send != ops->post_send))
        return; /* counted already, or a device of another library than the first */
    real = *ops;
    ops->post_send = counting_post;
    ops->poll_cq = counting_poll;
    ops->req_notify_cq = counting_arm;
}

void bench_calls_count(struct tarn_client *c)
{
    for (int t = 0; t < c->ntransports; t++) {
        bool is_rdma = strcmp(c->transports[t]->name, "rdma") == 0;
        const struct tarn_rdma_local *local = is_rdma ? tarn_rdma_local(c->locals[t]) : NULL;
        for (uint32_t i = 0; local && i < local->rails.n; i++)
            count_device(local->rails.rail[i].context);
    }
}

void bench_calls_read(struct bench_calls *calls)
{
    *calls = (struct bench_calls){.posts = posts,
                                  .requests = requests,
                                  .writes = writes,
                                  .post_ns = post_ns,
                                  .polls = polls,
                                  .empty = empty,
                                  .completions = completions,
                                  .arms = arms};
}
