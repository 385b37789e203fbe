/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory. Every transport of the client is told (shared memory and TCP need no registration), and
 * a range in use cannot be deregistered.
 */
#include "client/client.h"

#include <stdlib.h>

struct tarn_mr {
    void *addr;
    uint64_t bytes;
};

int tarn_register(struct tarn_client *c, void *addr, uint64_t bytes, uint32_t kind, struct tarn_mr **mr_p)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    if (!addr || bytes == 0 || (uintptr_t)addr + bytes < (uintptr_t)addr)
        return tarn_fail(TARN_E_INVALID, "register: %llu bytes at %p are no range of memory",
                         (unsigned long long)bytes, addr);
    if (kind == TARN_MEMORY_CUDA)
        return tarn_fail(TARN_E_UNSUPPORTED, "register: CUDA memory: no transport of this build moves it");
    if (kind != TARN_MEMORY_HOST)
        return tarn_fail(TARN_E_INVALID, "register: memory kind %u: use enum tarn_memory_kind", kind);
    struct tarn_mr *mr = malloc(sizeof *mr);
    if (!mr)
        return tarn_fail(TARN_E_NO_MEMORY, "register: out of memory");
    *mr = (struct tarn_mr){addr, bytes};
    for (int t = 0; t < c->ntransports; t++) {
        rc = c->transports[t]->map(c->locals[t], addr, bytes);
        if (rc == 0)
            continue;
        while (t-- > 0)
            c->transports[t]->unmap(c->locals[t], addr, bytes);
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
        rc = c->transports[t]->unmap(c->locals[t], mr->addr, mr->bytes);
        if (rc != 0)
            return rc;
    }
    free(mr);
    return 0;
}
