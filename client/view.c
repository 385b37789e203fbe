/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views: read-only pointers into a pool on this host. The link publishes a hazard, which keeps the extent
 * from being reused until tarn_release() or tarn_close(). opaque: [0] the link, [1] the hazard.
 *
 * Views use the side's shared link. Where links are pooled (pools of GPUs), one is lent to all views, and
 * moves nothing any more.
 */
#include <string.h>

#include "client/cache.h"
#include "client/check.h"
#include "client/client.h"
#include "client/desc.h"
#include "client/link.h"
#include "client/read_lease_ask.h"
#include "client/resolve.h"
#include "client/side.h"
#include "client/way.h"

/* Only transports to GPUs give views of memory that may be a GPU's. */
static void tell_memory(const struct tarn_open_link *l, struct tarn_view *v)
{
    struct tarn_cuda_memory m = {.kind = TARN_CUDA_HOST};

    if (l->ops->caps & TARN_CAP_GPU)
        tarn_cuda_memory_of(v->addr, &m);
    v->kind = m.kind == TARN_CUDA_DEVICE ? TARN_MEMORY_CUDA : TARN_MEMORY_HOST;
    v->device = m.kind == TARN_CUDA_DEVICE ? m.device : -1;
}

/* A view through the side's shared link; TARN_INPROGRESS when it has none that offers views. BUSY: the
 * transport is still opening the memory: call again. */
static int view_at(struct tarn_client *c, const struct tarn_desc *d, const struct tarn_way *w,
                   struct tarn_view *v)
{
    const struct tarn_loc *l = &d->locs[w->loc];
    uint32_t stripe = l->slot % TARN_STRIPES, hazard;
    struct tarn_open_link *open_link = tarn_side_enter(w->side, stripe);
    int rc = TARN_INPROGRESS;

    if (!open_link)
        return rc;
    if (open_link->ops->caps & TARN_CAP_VIEW)
        rc = open_link->ops->view(open_link->link, l->pool, l->slot, l->gen, l->offset, d->tensor.bytes,
                                  &v->addr, &hazard);
    if (rc == 0) {
        atomic_fetch_add(&open_link->views, 1);
        open_link->ops->touch(open_link->link, l->pool, l->slot);
        v->tensor = d->tensor;
        tell_memory(open_link, v);
        memset(v->opaque, 0, sizeof v->opaque);
        v->opaque[0] = (uint64_t)(uintptr_t)open_link;
        v->opaque[1] = hazard;
        tarn_count(c, stripe, TARN_COUNT_GETS, 1);
    }
    tarn_side_leave(w->side, stripe);
    return rc;
}

/* Makes the side's shared link. BUSY: not in time, but perhaps later. */
static int connect_side(struct tarn_side *s, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_open_link *link = NULL;
    bool fresh;

    if (atomic_load(&s->shared))
        return 0;
    int rc = tarn_link_take(s, deadline_ns, UINT64_MAX, cancel, &link, &fresh);
    if (link)
        tarn_link_lend(link);
    return rc;
}

/* Why transports that serve the pool give no views of it, unless they are only elsewhere. */
static void note_why(const struct tarn_desc *d, struct tarn_reason *why)
{
    for (uint32_t k = 0; k < d->nlocs && why->code == 0; k++) {
        struct tarn_peer_node *node = d->locs[k].node;
        if (atomic_load(&node->health) != TARN_GONE && tarn_read_lease_runs(&node->lease, tarn_coarse_ns()) &&
            tarn_reason_keep(why, tarn_link_unreachable(node, false, 0)) == TARN_E_NOT_REACHABLE)
            why->code = 0;
    }
}

/* May the node be read from? now_ns: coarse. deadline_ns 0: without asking. why: when it refuses. */
static enum tarn_read_lease_word leased(struct tarn_peer_node *node, uint64_t now_ns, uint64_t deadline_ns,
                                        struct tarn_cancel *cancel, struct tarn_reason *why)
{
    enum tarn_read_lease_word word = TARN_READ_LEASE_RUNS;

    if (tarn_read_lease_read(&node->lease, now_ns))
        return word;
    while ((word = tarn_read_lease_word(node)) == TARN_READ_LEASE_ASK && tarn_now_ns() < deadline_ns &&
           !tarn_canceled(cancel))
        tarn_read_lease_wait(node->client, deadline_ns, cancel);
    if (word == TARN_READ_LEASE_REFUSED)
        tarn_reason_keep(why, tarn_read_lease_refusal(node));
    else if (word == TARN_READ_LEASE_ASK && deadline_ns != 0)
        tarn_reason_keep(why, tarn_fail(TARN_E_TIMEOUT, "the deadline has passed before Redis has answered: "
                                                        "raise timeout_ms"));
    return word;
}

/* deadline_ns 0: only through links that are there. why: of NOT_REACHABLE, TIMEOUT and DIRECTORY; code 0:
 * there is no more to say. */
static int view_any(struct tarn_client *c, const struct tarn_desc *d, uint64_t deadline_ns,
                    struct tarn_cancel *cancel, struct tarn_view *v, struct tarn_reason *why)
{
    struct tarn_choice q = {.locs = d->locs, .nlocs = d->nlocs, .view = true};
    int worst = TARN_E_NOT_REACHABLE;
    struct tarn_way w;

    why->code = 0;
    for (uint64_t now = tarn_coarse_ns(); tarn_way_choose(c, &q, now, &w); now = tarn_coarse_ns()) {
        enum tarn_read_lease_word word = leased(d->locs[w.loc].node, now, deadline_ns, cancel, why);
        if (word != TARN_READ_LEASE_RUNS) {
            worst = word == TARN_READ_LEASE_REFUSED ? TARN_E_DIRECTORY
                    : word == TARN_READ_LEASE_ASK   ? TARN_E_TIMEOUT
                                                    : worst;
            q.tried |= tarn_way_bits_to(w.loc);
            continue;
        }
        q.tried |= tarn_way_bit(&w);
        int rc = deadline_ns != 0 ? connect_side(w.side, deadline_ns, cancel) : 0;
        if (rc != TARN_E_BUSY)
            rc = view_at(c, d, &w, v);
        while (rc == TARN_E_BUSY && tarn_now_ns() < deadline_ns && !tarn_cancel_ask(cancel))
            rc = view_at(c, d, &w, v);
        if (rc == 0)
            return 0;
        if (rc == TARN_E_STALE || rc == TARN_E_AGAIN) {
            worst = rc;
            q.tried |= tarn_way_bits_to(w.loc); /* other transports would say the same */
        } else if (rc != TARN_INPROGRESS) {
            worst = rc == TARN_E_BUSY ? TARN_E_TIMEOUT : worst;
            tarn_reason_keep(why, rc);
        }
    }
    if (deadline_ns != 0)
        note_why(d, why);
    return worst;
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
    struct tarn_reason why;
    int rc;

    do {
        rc = tarn_resolve_keys(c, key, 1, deadline_ns, cancel, &r);
        if (rc != 0)
            return rc;
        if (r.status != 0)
            return missing(key);
        rc = view_any(c, &r.desc, deadline_ns, cancel, v, &why);
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
        rc = view_any(c, &d, 0, NULL, v, &why);
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
