/* SPDX-License-Identifier: Apache-2.0 */
/* The node halves of all transports, best first. */
#include "transport/choose.h"
#include "transport/cuda_ipc/cuda_ipc.h"
#include "transport/node_half.h"
#include "transport/rdma/rdma.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"
#include "transport/tcpx/tcpx.h"

const struct tarn_node_half_ops *const tarn_node_half_list[] = {&tarn_shm_node_ops,  &tarn_cuda_ipc_node_ops,
                                                                &tarn_rdma_node_ops, &tarn_tcpx_node_ops,
                                                                &tarn_tcp_node_ops,  NULL};

int tarn_node_half_select(const char *names, const struct tarn_logger *log,
                          const struct tarn_node_half_ops **out, int max)
{
    struct tarn_transport_entry all[TARN_TRANSPORTS_MAX];
    int chosen[TARN_TRANSPORTS_MAX], n = 0;
    for (const struct tarn_node_half_ops *t; (t = tarn_node_half_list[n]); n++)
        all[n] = (struct tarn_transport_entry){t->name, t->caps, t->probe};
    n = tarn_choose(all, n, names, log, chosen, max);
    for (int i = 0; i < n; i++)
        out[i] = tarn_node_half_list[chosen[i]];
    return n;
}

void tarn_no_lend(struct tarn_node_half *h, uint32_t window)
{
    (void)h, (void)window;
}

int tarn_no_enter(struct tarn_node_half *h, uint32_t window, struct tarn_attach *a)
{
    (void)h, (void)window;
    a->text[0] = '\0';
    a->nfds = 0;
    return 0;
}

void tarn_no_detach_link(struct tarn_node_half *h, uint64_t session, uint64_t link)
{
    (void)h, (void)session, (void)link;
}
