/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory is mapped by every transport that can move it (shared memory, CUDA IPC and TCP map
 * nothing). A range in use cannot be deregistered.
 */
#include "client/memory.h"

#include <stdlib.h>
#include <utlist.h>

#include "client/check.h"
#include "client/op.h"
#include "transport/layout.h"

size_t tarn_items_on_gpus(const struct tarn_item *items, size_t n)
{
    struct tarn_seen seen;
    size_t count = 0;
    uint32_t gpu;

    tarn_seen_clear(&seen);
    for (size_t i = 0; i < n && (i == 0 || count > 0); i++) {
        const struct tarn_piece *pieces = items[i].pieces;
        if (items[i].layout) {
            count += items[i].layout->gpu > 0;
            continue;
        }
        count += pieces && (tarn_pieces_glance(pieces, items[i].npieces, &seen, &gpu) ||
                            (tarn_pieces_gpu(pieces, items[i].npieces, &seen, &gpu) == 0 && gpu));
    }
    return count;
}

/* --- registering -------------------------------------------------------------------------------- */

struct tarn_mr {
    void *addr;
    uint64_t bytes;
    uint32_t kind;
    uint32_t told;               /* bit t: transport t has mapped it */
    struct tarn_mr *prev, *next; /* of the client; its memory_lock */
};

/* Maps it by a transport that moves such memory. A transport that refuses this GPU's leaves it to the others.
 */
static int tell(struct tarn_client *c, int t, struct tarn_mr *mr)
{
    bool gpu = mr->kind == TARN_MEMORY_CUDA;

    if (gpu && !(c->transports[t]->caps & TARN_CAP_GPU))
        return 0;
    int rc = c->transports[t]->map(c->locals[t], mr->addr, mr->bytes);
    if (rc == 0)
        mr->told |= 1u << t;
    if (rc != TARN_E_UNSUPPORTED || !gpu)
        return rc;
    tarn_log(&c->log, TARN_LOG_WARN, "client",
             "msg=\"GPU memory is not registered with a transport\" transport=%s cause=\"%s\"",
             c->transports[t]->name, tarn_last_error());
    return 0;
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
                     tarn_memory_gpu(&seen) ? "a GPU's" : "not a GPU's",
                     tarn_memory_gpu(&seen) ? "CUDA" : "HOST");
}

static int untell(struct tarn_client *c, struct tarn_mr *mr)
{
    for (int t = 0; t < c->ntransports; t++) {
        int rc = mr->told >> t & 1 ? c->transports[t]->unmap(c->locals[t], mr->addr, mr->bytes) : 0;
        if (rc != 0)
            return rc;
        mr->told &= ~(1u << t);
    }
    return 0;
}

static void keep(struct tarn_client *c, struct tarn_mr *mr)
{
    pthread_mutex_lock(&c->memory_lock);
    DL_APPEND(c->memory, mr);
    pthread_mutex_unlock(&c->memory_lock);
}

int tarn_register(struct tarn_client *c, void *addr, uint64_t bytes, uint32_t kind, struct tarn_mr **mr_p)
{
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_out_check("register", mr_p);
    if (rc != 0)
        return rc;
    if (!addr || bytes == 0 || (uintptr_t)addr + bytes < (uintptr_t)addr)
        return tarn_fail(
            TARN_E_INVALID,
            "register: %llu bytes at %p are no range of memory: give an address and at least one byte",
            (unsigned long long)bytes, addr);
    rc = check_kind(addr, kind);
    if (rc != 0)
        return rc;
    struct tarn_mr *mr = malloc(sizeof *mr);
    if (!mr)
        return tarn_fail(TARN_E_NO_MEMORY, "register: out of memory");
    *mr = (struct tarn_mr){.addr = addr, .bytes = bytes, .kind = kind};
    for (int t = 0; t < c->ntransports && rc == 0; t++)
        rc = tell(c, t, mr);
    if (rc == 0) {
        keep(c, mr);
        *mr_p = mr;
        return 0;
    }
    untell(c, mr);
    free(mr);
    return rc;
}

/* Takes it out of the client's list. False: it is not in it. */
static bool take(struct tarn_client *c, struct tarn_mr *mr)
{
    struct tarn_mr *found = NULL;

    pthread_mutex_lock(&c->memory_lock);
    DL_FOREACH (c->memory, found) {
        if (found == mr)
            break;
    }
    if (found)
        DL_DELETE(c->memory, mr);
    pthread_mutex_unlock(&c->memory_lock);
    return found;
}

int tarn_deregister(struct tarn_client *c, struct tarn_mr *mr)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    if (!mr)
        return tarn_fail(TARN_E_INVALID, "deregister: NULL: pass what tarn_register() made");
    if (!take(c, mr))
        return tarn_fail(TARN_E_INVALID,
                         "deregister: %p: this client has not registered it, or not any more: pass what "
                         "tarn_register() made, once",
                         (void *)mr);
    if (tarn_ops_use(c, mr->addr, mr->bytes))
        rc = tarn_fail(TARN_E_BUSY,
                       "deregister: an operation in flight uses the range: drain or cancel it first");
    else
        rc = untell(c, mr);
    if (rc == 0)
        free(mr);
    else
        keep(c, mr);
    return rc;
}

void tarn_memory_free(struct tarn_client *c)
{
    struct tarn_mr *mr, *next;

    DL_FOREACH_SAFE(c->memory, mr, next)
    {
        free(mr);
    }
}
