/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor comes from the hits or the cache, the link is shared (shared memory), the copy is made here.
 * No allocation, no system call, one shard lock. All other items are left.
 */
#include "client/get_now.h"

#include "client/peer_nodes.h"
#include "client/read_lease_ask.h"
#include "client/side.h"
#include "client/way.h"

static bool choose(const struct tarn_get *g, uint64_t now_ns, struct tarn_way *w)
{
    const struct tarn_desc *d = &g->memo.desc;
    const struct tarn_choice q = {.locs = d->locs, .nlocs = d->nlocs, .gpu = g->memo.gpu};

    return tarn_way_choose(g->client, &q, now_ns, w) &&
           tarn_read_lease_read(&d->locs[w->loc].node->lease, now_ns);
}

/* Through the side's shared link, if it has one. */
static int copy(struct tarn_get *g, size_t i, const struct tarn_way *way, uint64_t bytes, uint32_t stripe)
{
    const struct tarn_item *item = &g->items[i];
    const struct tarn_loc *l = &g->memo.desc.locs[way->loc];
    struct tarn_open_link *open_link = tarn_side_enter(way->side, stripe);

    if (!open_link)
        return TARN_INPROGRESS;
    struct tarn_work w;
    tarn_work_aim(&w, item, l, bytes, g->flags, g->memo.gpu);
    if (tarn_log_wants(&g->client->log, TARN_LOG_DEBUG))
        tarn_tell_route(way->side, &item->key, l->pool, w.gpu);
    int rc = open_link->ops->get(open_link->link, &w);
    tarn_side_leave(way->side, stripe);
    return rc == 0 && w.status == 0 ? 0 : TARN_INPROGRESS;
}

/* Returns the item's final status, or TARN_INPROGRESS. */
static int serve(struct tarn_get *g, size_t i, uint64_t now_ns)
{
    struct tarn_client *c = g->client;
    struct tarn_item *item = &g->items[i];
    struct tarn_way way;
    uint64_t bytes;
    int rc = tarn_get_check(g, i);

    g->memo.found = SIZE_MAX;
    if (rc == 0)
        rc = tarn_get_memory(g, i, &g->memo.gpu, &g->memo.glanced);
    if (rc != 0) {
        tarn_verdict_note(&g->verdict, i, rc);
        return rc;
    }
    uint64_t hash = tarn_key_hash(&item->key);
    uint32_t stripe = (uint32_t)hash % TARN_STRIPES;
    if (!tarn_get_find(g, i, hash, &g->memo.desc))
        return TARN_INPROGRESS;
    g->memo.found = i;
    if (g->memo.glanced || item->layout || /* shared links want pieces that were looked at */
        !tarn_get_fits(g, i, &g->memo.desc.tensor, &bytes) /* or the descriptor is out of date */ ||
        !choose(g, now_ns, &way) || atomic_load(&way.side->state) != TARN_SIDE_SHARED)
        return TARN_INPROGRESS;
    if (copy(g, i, &way, bytes, stripe) != 0)
        return TARN_INPROGRESS;
    item->tensor = g->memo.desc.tensor;
    tarn_count(c, stripe, TARN_COUNT_GETS, 1);
    tarn_count(c, stripe, TARN_COUNT_GET_BYTES, bytes);
    return 0;
}

/* When no shared link serves a known object, the following items are probably like it. They are left unseen,
 * so that the first does not wait for a look at them. */
void tarn_get_now(struct tarn_get *g)
{
    uint64_t now_ns = tarn_coarse_ns();
    bool later = false;
    size_t i;

    for (i = 0; i < g->n && !later; i++) {
        int rc = serve(g, i, now_ns);
        g->items[i].status = rc;
        later = rc == TARN_INPROGRESS && g->memo.found == i;
        if (rc == TARN_INPROGRESS)
            continue;
        if (rc != 0)
            tarn_count(g->client, 0, TARN_COUNT_ERRORS, 1);
        g->left--;
    }
    g->memo.looked = i;
}

/* Does the item of the memo wait for nothing but this host's GPUs? */
static bool is_near(const struct tarn_get *g)
{
    const struct tarn_desc *d = &g->memo.desc;
    struct tarn_way way;
    uint64_t bytes;

    for (uint32_t k = 0; k < d->nlocs; k++)
        if (tarn_read_lease_word(d->locs[k].node) == TARN_READ_LEASE_ASK)
            return false;
    return (g->memo.glanced || tarn_get_fits(g, g->memo.found, &d->tensor, &bytes)) && d->nlocs == 1 &&
           choose(g, tarn_coarse_ns(), &way) && atomic_load(&way.side->state) == TARN_SIDE_POOLED &&
           (way.side->ops->caps & TARN_CAP_SAME_HOST);
}

/* The same for an item that tarn_get_now() has not looked at. A wrong one does not wait. */
static bool is_near_too(struct tarn_get *probe, size_t i)
{
    if (tarn_get_check(probe, i) != 0 ||
        tarn_get_memory(probe, i, &probe->memo.gpu, &probe->memo.glanced) != 0)
        return true;
    probe->memo.found = i;
    return tarn_get_find(probe, i, tarn_key_hash(&probe->items[i].key), &probe->memo.desc) && is_near(probe);
}

size_t tarn_get_first_far(const struct tarn_get *g)
{
    struct tarn_get probe = *g;

    for (size_t i = 0; i < g->memo.looked; i++)
        if (g->items[i].status == TARN_INPROGRESS && (i != g->memo.found || !is_near(g)))
            return i;
    for (size_t i = g->memo.looked; i < g->n; i++)
        if (!is_near_too(&probe, i))
            return i;
    return g->n;
}
