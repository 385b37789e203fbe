/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of pools where it lies: views, and addresses for kernels that read by themselves. Unlike the rest of
 * a link, these may be used by any thread, so they do not use the link's own opening.
 */
#include "transport/cuda_ipc/cuda_ipc_link.h"

#include "base/clock.h"

/* Waits for a slice. BUSY: it is still being opened. */
static int open_now(const struct tarn_ipc_link *l, const struct tarn_ipc_want *want)
{
    struct tarn_ipc_opening *o = NULL;
    int rc = tarn_ipc_ask(l->local, want, &o);
    if (!rc)
        rc = tarn_ipc_opened(l->local, o, tarn_deadline(TARN_WAIT_SLICE_MS));
    tarn_ipc_leave(l->local, o);
    return rc != TARN_E_AGAIN
               ? rc
               : tarn_fail(TARN_E_BUSY, "node %s: cuda_ipc: pool %u is still being opened: raise timeout_ms",
                           l->link.node, want->pool->of.index);
}

/* The arena's address for the device. */
static int base_for(const struct tarn_ipc_link *l, struct tarn_ipc_pool *p, int device, uint8_t **base_p)
{
    const struct tarn_ipc_want arena = {TARN_IPC_ARENA, p, device};
    *base_p = device < 0 ? NULL : tarn_ipc_pool_base(l->local, p, device);
    if (*base_p)
        return 0;
    int rc = open_now(l, &arena);
    *base_p = rc ? NULL : tarn_ipc_pool_base(l->local, p, device);
    return rc;
}

/* --- views -------------------------------------------------------------------------------------- */

void tarn_ipc_unview(struct tarn_link *l, uint32_t hazard)
{
    tarn_share_hazard_drop(&tarn_ipc_link(l)->hazards, hazard);
}

/* A pool's memory for its own device, or for the CPU. */
int tarn_ipc_view(struct tarn_link *link, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset,
                  uint64_t bytes, const void **addr_p, uint32_t *hazard_p)
{
    struct tarn_ipc_link *l = tarn_ipc_link(link);
    struct tarn_ipc_pool *p = tarn_ipc_link_pool(l, pool, slot, offset, bytes);
    if (!p || !tarn_gen_readable(gen))
        return tarn_link_stale(link, pool, slot);
    uint8_t *base = p->share.arena.addr;
    int rc = base ? 0 : base_for(l, p, p->device, &base);
    if (!rc)
        rc = tarn_share_hazard_claim(link, &l->hazards, &p->share, pool, slot, gen, hazard_p);
    if (!rc)
        *addr_p = base + offset;
    return rc;
}

/* --- addresses for kernels ---------------------------------------------------------------------- */

/* NOT_REACHABLE: the pool is another GPU's, which this one does not reach. */
static int is_near(const struct tarn_ipc_link *l, struct tarn_ipc_pool *p, int device)
{
    const struct tarn_ipc_want peer = {TARN_IPC_PEER, p, device};
    bool far;
    int rc = tarn_ipc_pool_is_far(l->local, p, device, &far);
    if (rc == TARN_E_AGAIN)
        rc = open_now(l, &peer);
    if (!rc)
        rc = tarn_ipc_pool_is_far(l->local, p, device, &far);
    return rc || !far
               ? rc
               : tarn_fail(TARN_E_NOT_REACHABLE,
                           "node %s: cuda_ipc: pool %u is on GPU %d, which GPU %d does not reach: get the "
                           "object with tarn_get()",
                           l->link.node, p->of.index, p->device, device);
}

int tarn_ipc_address(struct tarn_link *link, int device, const struct tarn_range *r, struct tarn_address *a)
{
    struct tarn_ipc_link *l = tarn_ipc_link(link);
    struct tarn_ipc_pool *p = tarn_ipc_link_pool(l, r->pool, r->slot, r->offset, r->bytes);
    const struct tarn_ipc_want gen = {TARN_IPC_GEN, p, device};
    uint8_t *base = NULL;
    if (!p || !tarn_gen_readable(r->gen) || atomic_load(&p->share.gen[r->slot]) != r->gen)
        return tarn_link_stale(link, r->pool, r->slot);
    if (device >= TARN_IPC_DEVICES)
        return tarn_no_address(link, device, r, a);
    int rc = is_near(l, p, device);
    if (!rc)
        rc = base_for(l, p, device, &base);
    if (!rc && !tarn_ipc_pool_gen(l->local, p))
        rc = open_now(l, &gen);
    if (rc)
        return rc;
    a->at = base + r->offset;
    a->gen_at = tarn_ipc_pool_gen(l->local, p) + r->slot;
    return 0;
}
