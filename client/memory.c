/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's memory: which kind it is, and registering it. Every transport of the client is told of
 * registered memory that it can move (shared memory, CUDA IPC and TCP need no registration), and a range in
 * use cannot be deregistered.
 */
#include "client/client.h"

#include <stdlib.h>

/* --- kinds -------------------------------------------------------------------------------------- */

static uint32_t gpu_of(const struct tarn_cuda_memory *m)
{
    return m->kind == TARN_CUDA_DEVICE ? (uint32_t)m->device + 1 : 0;
}

/* Of the memory at an address, asked for only when the last answer was not about it. */
static uint32_t gpu_at(uintptr_t at, struct tarn_cuda_memory *seen)
{
    if (at < seen->begin || at >= seen->end)
        tarn_cuda_memory_of((const void *)at, seen);
    return gpu_of(seen);
}

static int mixed(const struct tarn_piece *p, uint32_t i, uint32_t gpu)
{
    return tarn_fail(
        TARN_E_INVALID,
        "piece %u at %p is not in memory of GPU %u, where the first one is: make it an item for each memory",
        i, p->addr, gpu - 1);
}

int tarn_pieces_gpu(const struct tarn_piece *pieces, uint32_t n, struct tarn_cuda_memory *seen,
                    uint32_t *gpu_p)
{
    uint32_t gpu = 0;
    bool first = true;

    for (uint32_t i = 0; i < n; i++) {
        const struct tarn_piece *p = &pieces[i];
        if (p->bytes == 0)
            continue;
        uintptr_t at = (uintptr_t)p->addr,
                  end = at + (p->count ? p->count - 1 : 0) * p->stride + p->bytes - 1;
        uint32_t one = gpu_at(at, seen);
        if (first)
            gpu = one;
        first = false;
        if (gpu == 0)
            break;
        if (one != gpu || gpu_at(end, seen) != gpu)
            return mixed(p, i, gpu);
    }
    *gpu_p = gpu;
    return 0;
}

/* --- registering -------------------------------------------------------------------------------- */

struct tarn_mr {
    void *addr;
    uint64_t bytes;
    uint32_t kind;
};

/* Transports that do not move GPU memory are not told of it. */
static bool is_told(const struct tarn_transport_ops *ops, uint32_t kind)
{
    return kind == TARN_MEMORY_HOST || (ops->caps & TARN_CAP_GPU);
}

static int check_kind(const void *addr, uint32_t kind)
{
    struct tarn_cuda_memory seen;

    if (kind != TARN_MEMORY_HOST && kind != TARN_MEMORY_CUDA)
        return tarn_fail(TARN_E_INVALID, "register: memory kind %u: use enum tarn_memory_kind", kind);
    tarn_cuda_memory_of(addr, &seen);
    if ((seen.kind == TARN_CUDA_DEVICE) == (kind == TARN_MEMORY_CUDA))
        return 0;
    return tarn_fail(TARN_E_INVALID, "register: the memory at %p is %s: use TARN_MEMORY_%s", addr,
                     gpu_of(&seen) ? "a GPU's" : "not a GPU's", gpu_of(&seen) ? "CUDA" : "HOST");
}

static void unmap_first(struct tarn_client *c, int n, const struct tarn_mr *mr)
{
    while (n-- > 0)
        if (is_told(c->transports[n], mr->kind))
            c->transports[n]->unmap(c->locals[n], mr->addr, mr->bytes);
}

int tarn_register(struct tarn_client *c, void *addr, uint64_t bytes, uint32_t kind, struct tarn_mr **mr_p)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    if (!addr || bytes == 0 || (uintptr_t)addr + bytes < (uintptr_t)addr)
        return tarn_fail(TARN_E_INVALID, "register: %llu bytes at %p are no range of memory",
                         (unsigned long long)bytes, addr);
    rc = check_kind(addr, kind);
    if (rc != 0)
        return rc;
    struct tarn_mr *mr = malloc(sizeof *mr);
    if (!mr)
        return tarn_fail(TARN_E_NO_MEMORY, "register: out of memory");
    *mr = (struct tarn_mr){addr, bytes, kind};
    for (int t = 0; t < c->ntransports; t++) {
        rc = is_told(c->transports[t], kind) ? c->transports[t]->map(c->locals[t], addr, bytes) : 0;
        if (rc == 0)
            continue;
        unmap_first(c, t, mr);
        free(mr);
        return rc;
    }
    *mr_p = mr;
    return 0;
}

int tarn_deregister(struct tarn_client *c, struct tarn_mr *mr)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    if (!mr)
        return tarn_fail(TARN_E_INVALID, "deregister: NULL");
    if (tarn_ops_use(c, mr->addr, mr->bytes))
        return tarn_fail(TARN_E_BUSY,
                         "deregister: an operation in flight uses the range: drain or cancel it first");
    for (int t = 0; t < c->ntransports; t++) {
        rc = is_told(c->transports[t], mr->kind) ? c->transports[t]->unmap(c->locals[t], mr->addr, mr->bytes)
                                                 : 0;
        if (rc != 0)
            return rc;
    }
    free(mr);
    return 0;
}
