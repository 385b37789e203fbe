/* SPDX-License-Identifier: Apache-2.0 */
/* The client halves of all transports, best first. */
#include <string.h>

#include "transport/choose.h"
#include "transport/cuda_ipc/cuda_ipc.h"
#include "transport/rdma/rdma.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"
#include "transport/tcpx/tcpx.h"

const struct tarn_transport_ops *const tarn_transport_list[] = {
    &tarn_shm_ops, &tarn_cuda_ipc_ops, &tarn_rdma_ops, &tarn_tcpx_ops, &tarn_tcp_ops, NULL};

static int entries(struct tarn_transport_entry all[TARN_TRANSPORTS_MAX])
{
    int n = 0;
    for (const struct tarn_transport_ops *t; (t = tarn_transport_list[n]); n++)
        all[n] = (struct tarn_transport_entry){t->name, t->caps, t->probe};
    return n;
}

int tarn_transport_named(const char *name, size_t bytes, const struct tarn_transport_ops **ops_p)
{
    struct tarn_transport_entry all[TARN_TRANSPORTS_MAX];
    int i = tarn_choose_named(all, entries(all), name, bytes);
    if (i < 0)
        return i;
    *ops_p = tarn_transport_list[i];
    return 0;
}

int tarn_transport_select(const char *names, const struct tarn_logger *log,
                          const struct tarn_transport_ops **out, int max)
{
    struct tarn_transport_entry all[TARN_TRANSPORTS_MAX];
    int chosen[TARN_TRANSPORTS_MAX], n = tarn_choose(all, entries(all), names, log, chosen, max);
    for (int i = 0; i < n; i++)
        out[i] = tarn_transport_list[chosen[i]];
    return n;
}
