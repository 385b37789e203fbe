/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA IPC, node half: hands out the files of pools, and handles of pools in GPU memory. It has no thread,
 * touches no data, and does not use CUDA. ATTACH answers "v1 <epoch> <npools>", then for each pool
 * "<index> <bytes> <nslots>" and "cpu", or "gpu <uuid> <handle>". Its descriptors: for a CPU pool arena,
 * gen, touch; for a GPU pool gen, touch; finally that of the session's hazard page. Arena and gen are
 * read-only, except the arena for a client that asked to write. A handle always permits writes: CUDA has
 * no other kind.
 */
#include "transport/cuda_ipc/cuda_ipc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "transport/cuda/cuda_text.h"
#include "transport/node_half.h"
#include "transport/node_share.h"

struct tarn_node_half {
    const struct tarn_pool_memory *pools;
    uint32_t npools;
    uint64_t epoch;
    struct tarn_share_files files[];
};

static void ipc_stop(struct tarn_node_half *s)
{
    tarn_share_close(s->files, s->npools);
    free(s);
}

static bool is_served(const struct tarn_pool_memory *p)
{
    return p->kind == TARN_POOL_GPU || p->memfd >= 0;
}

static bool ipc_serves(const struct tarn_node_half *s, uint32_t pool)
{
    return is_served(&s->pools[pool]);
}

static int ipc_serve(const struct tarn_serve *serve, struct tarn_node_half **s_p)
{
    struct tarn_node_half *s = malloc(sizeof(*s) + serve->npools * sizeof(s->files[0]));
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "cuda_ipc: out of memory for %u pools", serve->npools);
    s->pools = serve->pools;
    s->npools = serve->npools;
    s->epoch = serve->epoch;
    int rc = tarn_share_open("cuda_ipc", s->pools, s->npools, is_served, s->files);
    if (rc) {
        free(s);
        return rc;
    }
    *s_p = s;
    return 0;
}

static void ipc_describe(const struct tarn_node_half *s, uint32_t pool, char *text, size_t text_bytes)
{
    const struct tarn_pool_memory *p = &s->pools[pool];
    char uuid[TARN_CUDA_UUID_TEXT], handle[TARN_CUDA_HANDLE_TEXT];
    text[0] = '\0';
    if (p->kind != TARN_POOL_GPU)
        return;
    tarn_cuda_uuid_format(p->uuid, uuid);
    tarn_cuda_handle_format(p->handle, handle);
    snprintf(text, text_bytes, "%s %" PRIu64 " %s", uuid, p->bytes, handle);
}

static void add_pool(const struct tarn_node_half *s, uint32_t i, struct tarn_attach *a, size_t *length)
{
    const struct tarn_pool_memory *p = &s->pools[i];
    char uuid[TARN_CUDA_UUID_TEXT], handle[TARN_CUDA_HANDLE_TEXT], *to = a->text + *length;
    size_t room = sizeof(a->text) - *length;
    if (p->kind == TARN_POOL_GPU) {
        tarn_cuda_uuid_format(p->uuid, uuid);
        tarn_cuda_handle_format(p->handle, handle);
        *length +=
            (size_t)snprintf(to, room, " %u %" PRIu64 " %u gpu %s %s", i, p->bytes, p->nslots, uuid, handle);
    } else {
        *length += (size_t)snprintf(to, room, " %u %" PRIu64 " %u cpu", i, p->bytes, p->nslots);
        a->fds[a->nfds++] = a->write ? p->memfd : s->files[i].arena;
    }
    a->fds[a->nfds++] = s->files[i].gen;
    a->fds[a->nfds++] = p->touch_fd;
}

static int ipc_attach(struct tarn_node_half *s, struct tarn_attach *a)
{
    enum { POOLS_MAX = (sizeof(a->fds) / sizeof(a->fds[0]) - 1) / TARN_CUDA_IPC_FDS };
    _Static_assert(POOLS_MAX * 256 + 64 < TARN_ATTACH_TEXT, "so many pools fit the answer");
    if (!a->local)
        return tarn_fail(TARN_E_NOT_REACHABLE,
                         "cuda_ipc: descriptors cannot pass over TCP: attach over the node's Unix socket");
    uint32_t npools = 0;
    for (uint32_t i = 0; i < s->npools; i++)
        npools += ipc_serves(s, i);
    if (npools > POOLS_MAX)
        return tarn_fail(TARN_E_UNSUPPORTED, "cuda_ipc: %u pools do not fit one ATTACH: use at most %u",
                         npools, POOLS_MAX);
    size_t length = (size_t)snprintf(a->text, sizeof(a->text), "v1 %016" PRIx64 " %u", s->epoch, npools);
    a->nfds = 0;
    memset(a->close_fds, 0, sizeof(a->close_fds));
    for (uint32_t i = 0; i < s->npools; i++)
        if (ipc_serves(s, i))
            add_pool(s, i, a, &length);
    if (a->hazard_fd >= 0)
        a->fds[a->nfds++] = a->hazard_fd;
    return 0;
}

/* Nothing to revoke: mappings and open handles last as long as their process, whose end the server awaits.
 * The driver stops a process's GPU work before its exit becomes visible. */
static void ipc_detach(struct tarn_node_half *s, uint64_t session)
{
    (void)s, (void)session;
}

const struct tarn_node_half_ops tarn_cuda_ipc_node_ops = {
    .name = "cuda_ipc",
    .caps = TARN_CUDA_IPC_CAPS,
    .probe = tarn_cuda_ipc_probe,
    .serve = ipc_serve,
    .serves = ipc_serves,
    .describe = ipc_describe,
    .attach = ipc_attach,
    .detach_link = tarn_no_detach_link,
    .detach = ipc_detach,
    .stop = ipc_stop,
};
