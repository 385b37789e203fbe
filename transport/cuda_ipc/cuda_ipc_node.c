/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA IPC, node half: hands out the files of pools, and handles of pools in GPU memory. It does not use
 * CUDA. ATTACH answers "v1 <epoch> <npools>", then for each pool "<index> <bytes> <nslots>" and "cpu", or
 * "gpu <uuid> <handle>". Arena and gen are read-only, except the arena for a client that asked to write. A
 * handle always permits writes: CUDA has no other kind. When a process ends, the driver stops its GPU work
 * before its exit becomes visible.
 */
#include "transport/cuda_ipc/cuda_ipc.h"

#include <inttypes.h>
#include <stdio.h>

#include "transport/cuda/cuda_text.h"
#include "transport/node_share.h"

static bool is_served(const struct tarn_pool_memory *p)
{
    return p->kind == TARN_POOL_GPU || p->memfd >= 0;
}

static int ipc_serve(const struct tarn_serve *serve, struct tarn_node_half **h_p)
{
    return tarn_share_serve("cuda_ipc", serve, is_served, h_p);
}

static void ipc_describe(const struct tarn_node_half *h, uint32_t pool, char *text, size_t text_bytes)
{
    const struct tarn_pool_memory *p = &h->serve.pools[pool];
    char uuid[TARN_CUDA_UUID_TEXT], handle[TARN_CUDA_HANDLE_TEXT];
    text[0] = '\0';
    if (p->kind != TARN_POOL_GPU)
        return;
    tarn_cuda_uuid_format(p->uuid, uuid);
    tarn_cuda_handle_format(p->handle, handle);
    snprintf(text, text_bytes, "%s %" PRIu64 " %s", uuid, p->bytes, handle);
}

static void kind_of(const struct tarn_pool_memory *p, char text[TARN_SHARE_MORE])
{
    char uuid[TARN_CUDA_UUID_TEXT], handle[TARN_CUDA_HANDLE_TEXT];
    tarn_cuda_uuid_format(p->uuid, uuid);
    tarn_cuda_handle_format(p->handle, handle);
    if (p->kind == TARN_POOL_GPU)
        snprintf(text, TARN_SHARE_MORE, " gpu %s %s", uuid, handle);
    else
        snprintf(text, TARN_SHARE_MORE, " cpu");
}

static int ipc_attach(struct tarn_node_half *h, struct tarn_attach *a)
{
    char begin[32];
    snprintf(begin, sizeof(begin), "v1 %016" PRIx64, h->serve.epoch);
    return tarn_share_attach(h, begin, kind_of, a);
}

const struct tarn_node_half_ops tarn_cuda_ipc_node_ops = {
    .name = "cuda_ipc",
    .caps = TARN_CUDA_IPC_CAPS,
    .probe = tarn_cuda_ipc_probe,
    .serve = ipc_serve,
    .lend = tarn_no_lend,
    .withdraw = tarn_no_lend,
    .cut = tarn_no_lend,
    .enter = tarn_no_enter,
    .serves = tarn_share_serves,
    .describe = ipc_describe,
    .attach = ipc_attach,
    .detach_link = tarn_no_detach_link,
    .detach = tarn_share_detach,
    .stop = tarn_share_stop,
};
