/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views: read-only pointers into a pool on this host. The link publishes a hazard, which keeps the extent
 * from being reused until tarn_release() or tarn_close(). opaque: [0] the link, [1] the hazard.
 *
 * Views use the side's shared link. Where links are pooled (pools of GPUs), one is lent to all views, and
 * moves nothing any more.
 */
#include <string.h>

#include "base/container.h"
#include "client/cache.h"
#include "client/check.h"
#include "client/client.h"
#include "client/desc.h"
#include "client/direct.h"
#include "client/resolve.h"

/* Only transports to GPUs give views of memory that may be a GPU's. */
static void tell_memory(const struct tarn_open_link *l, struct tarn_view *v)
{
    struct tarn_cuda_memory m = {.kind = TARN_CUDA_HOST};

    if (l->ops->caps & TARN_CAP_GPU)
        tarn_cuda_memory_of(v->addr, &m);
    v->kind = m.kind == TARN_CUDA_DEVICE ? TARN_MEMORY_CUDA : TARN_MEMORY_HOST;
    v->device = m.kind == TARN_CUDA_DEVICE ? m.device : -1;
}

struct view_use {
    struct tarn_direct direct;
    struct tarn_client *client;
    struct tarn_view *view;
};

static int view_at(struct tarn_direct *d, struct tarn_open_link *l, const struct tarn_desc *desc,
                   const struct tarn_loc *loc)
{
    const struct view_use *u = TARN_CONTAINER_OF(d, struct view_use, direct);
    struct tarn_view *v = u->view;
    uint32_t hazard;

    int rc = l->ops->view(l->link, loc->pool, loc->slot, loc->gen, loc->offset, desc->tensor.bytes, &v->addr,
                          &hazard);
    if (rc != 0)
        return rc;
    atomic_fetch_add(&l->views, 1);
    l->ops->touch(l->link, loc->pool, loc->slot);
    v->tensor = desc->tensor;
    tell_memory(l, v);
    memset(v->opaque, 0, sizeof v->opaque);
    v->opaque[0] = (uint64_t)(uintptr_t)l;
    v->opaque[1] = hazard;
    tarn_count(u->client, loc->slot % TARN_STRIPES, TARN_COUNT_GETS, 1);
    return 0;
}

static int missing(const struct tarn_key *key)
{
    char name[96];

    return tarn_fail(TARN_E_NOT_FOUND, "view key '%s': no such key", tarn_key_text(key, name));
}

static int explain(const struct tarn_key *key, const struct tarn_desc *d, int rc,
                   const struct tarn_reason *why)
{
    char name[96];

    tarn_key_text(key, name);
    if (rc == TARN_E_AGAIN)
        return tarn_fail(rc, "view key '%s': this client holds too many views of the node: release some",
                         name);
    if (rc == TARN_E_DIRECTORY || rc == TARN_E_TIMEOUT)
        return tarn_fail(rc, "view key '%s': %s", name, why->text);
    if (tarn_desc_gone(d))
        return missing(key);
    if (!tarn_desc_alive(d))
        return tarn_fail(TARN_E_NODE_DOWN, "view key '%s': no node that holds it answers", name);
    if (why->code)
        return tarn_fail(rc, "view key '%s': %s: get it", name, why->text);
    return tarn_fail(rc, "view key '%s': no copy is in shared memory on this host: get it", name);
}

/* Resolves and connects, again while a writer keeps replacing the object. */
static int view_slow(struct tarn_client *c, const struct tarn_key *key, uint64_t deadline_ns,
                     struct tarn_view *v)
{
    struct tarn_cancel own, *cancel = tarn_client_cancel(c, &own);
    struct tarn_resolved r;
    struct tarn_desc last = {.nlocs = 0};
    struct view_use use = {{view_at}, c, v};
    struct tarn_reason why;
    int rc;

    do {
        rc = tarn_resolve_keys(c, key, 1, deadline_ns, cancel, &r);
        if (rc != 0)
            return rc;
        if (r.status != 0)
            return missing(key);
        rc = tarn_direct_use(c, &r.desc, deadline_ns, cancel, &use.direct, &why);
        if (rc == 0)
            return 0;
        if (tarn_canceled(cancel))
            return tarn_cancel_fail();
        if (rc != TARN_E_STALE)
            return explain(key, &r.desc, rc, &why);
        /* The directory still shows a stale copy: its node is just taking it out. */
        if (tarn_desc_bytes(&last) == tarn_desc_bytes(&r.desc) &&
            memcmp(last.locs, r.desc.locs, r.desc.nlocs * sizeof last.locs[0]) == 0)
            return missing(key);
        memcpy(&last, &r.desc, tarn_desc_bytes(&r.desc));
    } while (tarn_now_ns() < deadline_ns);
    return tarn_fail(TARN_E_TIMEOUT, "view: the object is replaced faster than it can be looked up");
}

int tarn_view(struct tarn_client *c, const struct tarn_key *key, uint32_t timeout_ms, struct tarn_view *v)
{
    struct view_use use = {{view_at}, c, v};
    struct tarn_desc d;
    struct tarn_reason why;
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_out_check("view", v);
    if (rc == 0)
        rc = tarn_key_check(key);
    if (rc != 0)
        return rc;
    if (tarn_cache_find(c->cache, key, tarn_key_hash(key), &d)) {
        rc = tarn_direct_use(c, &d, 0, NULL, &use.direct, &why);
        if (rc == 0 || rc == TARN_E_DIRECTORY) /* Redis is away and cannot be asked */
            return rc == 0 ? 0 : explain(key, &d, rc, &why);
    }
    return view_slow(c, key, tarn_client_deadline(c, timeout_ms), v);
}

void tarn_release(struct tarn_client *c, struct tarn_view *v)
{
    if (!v || !v->opaque[0] || tarn_client_enter(c) != 0)
        return;
    struct tarn_open_link *open_link = (struct tarn_open_link *)(uintptr_t)v->opaque[0];
    open_link->ops->unview(open_link->link, (uint32_t)v->opaque[1]);
    atomic_fetch_sub(&open_link->views, 1); /* from here on a retired link may be closed */
    memset(v, 0, sizeof *v);
}
