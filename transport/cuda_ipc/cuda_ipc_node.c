/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA IPC, node half: hands out the files of pools, and handles of pools in GPU memory. It does not use
 * CUDA. ATTACH answers "v1 <epoch> <npools>", then for each pool "<index> <bytes> <nslots>" and "cpu", or
 * "gpu <uuid> <handle>". Arena and gen are read-only, except the arena for a client that asked to write. A
 * handle always permits writes: CUDA has no other kind. When a process ends, the driver stops its GPU work
 * before its exit becomes visible.
 *
 * Windows: only those in GPU memory; shm has the others. ENTER answers "v1 1", then "<window> <bytes>
 * <nslots> gpu <uuid> <handle> <allocation> <process> <begin> <offset>". The handle is that of the window's
 * whole allocation. `begin` is the allocation's address in the lender's process, which cannot open its own
 * handles, and `process` that process's number.
 */
#include "transport/cuda_ipc/cuda_ipc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/process.h"
#include "transport/cuda/cuda_text.h"
#include "transport/node_share.h"

static bool is_served(const struct tarn_pool_memory *p)
{
    return p->kind == TARN_POOL_GPU || p->memfd >= 0;
}

static bool is_window_served(const struct tarn_pool_memory *p)
{
    return p->kind == TARN_POOL_GPU;
}

static int ipc_serve(const struct tarn_serve *serve, struct tarn_node_half **h_p)
{
    bool windows = serve->guard.pin_lease != NULL;
    return tarn_share_serve("cuda_ipc", serve, windows ? is_window_served : is_served, h_p);
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

static void window_of(const struct tarn_pool_memory *p, char text[TARN_SHARE_MORE])
{
    kind_of(p, text);
    size_t length = strlen(text);
    snprintf(text + length, TARN_SHARE_MORE - length, " %" PRIx64 " %" PRIx64 " %" PRIxPTR, p->allocation,
             tarn_process_number(), (uintptr_t)p->base - (uintptr_t)p->file_offset);
}

static int ipc_enter(struct tarn_node_half *h, uint32_t window, struct tarn_attach *a)
{
    return tarn_share_enter(h, window, "v1", window_of, a);
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
    .lend = tarn_share_lend,
    .withdraw = tarn_share_withdraw,
    .cut = tarn_no_lend,
    .enter = ipc_enter,
    .serves = tarn_share_serves,
    .describe = ipc_describe,
    .attach = ipc_attach,
    .detach_link = tarn_no_detach_link,
    .detach = tarn_share_detach,
    .stop = tarn_share_stop,
};
