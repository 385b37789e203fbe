/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets, the fast way: descriptor from the hits or the cache, link shared (shared memory), bytes moved
 * here and now. No allocation, no system call, one shard lock. What cannot be served so is left, with
 * status TARN_INPROGRESS, to get_slow.c.
 */
#include "client/get.h"

#include "client/cache.h"
#include "client/check.h"
#include "client/client.h"
#include "client/event.h"
#include "client/get_slow.h"
#include "client/lease_ask.h"
#include "client/link.h"
#include "client/peer_nodes.h"
#include "client/resolve.h"

/* Set aside, but to be tried again by now? */
static bool is_due(struct tarn_side *s)
{
    uint32_t caps = s->node->client->transports[s->transport]->caps;
    bool elsewhere = (caps & TARN_CAP_SAME_HOST) && !atomic_load(&s->node->local);
    return !elsewhere && tarn_side_usable(s);
}

/* The shared link that serves this descriptor best, entered; NULL when that takes the slow way: *way_p as in
 * struct tarn_get. begun_ns: when the get began. */
static struct tarn_open_link *enter_best(struct tarn_client *c, const struct tarn_desc *d, uint32_t gpu,
                                         uint32_t stripe, uint64_t begun_ns, const struct tarn_loc **loc_p,
                                         int *way_p)
{
    bool due = false;

    *way_p = -1;
    for (int t = 0; t < c->ntransports; t++)
        for (uint32_t k = 0; k < d->nlocs; k++) {
            struct tarn_peer_node *node = d->locs[k].node;
            struct tarn_side *s = &node->sides[t][0];
            int state = atomic_load_explicit(&s->state, memory_order_acquire);
            if (!tarn_side_moves(s, d->locs[k].pool, gpu) ||
                atomic_load_explicit(&node->health, memory_order_acquire) == TARN_GONE)
                continue;
            if (state == TARN_SIDE_UNREACHABLE) {
                due |= is_due(s);
                continue;
            }
            if (!tarn_lease_read(&node->lease, begun_ns)) {
                if (tarn_peer_node_gone(node))
                    continue;
                return NULL;
            }
            if (state == TARN_SIDE_POOLED && d->nlocs == 1 && !due)
                *way_p = t;
            if (state != TARN_SIDE_SHARED)
                return NULL;
            *loc_p = &d->locs[k];
            return tarn_shared_enter(s, stripe);
        }
    return NULL;
}

/* Serves item i now: its final status, or TARN_INPROGRESS. */
static int get_now(struct tarn_get *g, size_t i, uint64_t begun_ns)
{
    struct tarn_client *c = g->client;
    struct tarn_item *item = &g->items[i];
    struct tarn_desc *d = &g->found_desc;
    const struct tarn_loc *l;
    uint32_t gpu;
    int rc = tarn_get_check(g, i);

    g->found = SIZE_MAX;
    g->found_glanced = rc == 0 && tarn_get_glance(g, i, &gpu);
    if (rc == 0 && !g->found_glanced)
        rc = tarn_pieces_gpu(item->pieces, item->npieces, &g->seen, &gpu);
    if (rc != 0) {
        tarn_verdict_note(&g->verdict, i, rc);
        return rc;
    }
    uint64_t hash = tarn_key_hash(&item->key);
    uint32_t stripe = (uint32_t)hash % TARN_STRIPES;
    if (!(g->hits ? tarn_hits_desc(g->hits, g->hits_first + i, d)
                  : tarn_cache_find(c->cache, &item->key, hash, d)))
        return TARN_INPROGRESS;
    g->found = i;
    g->found_gpu = gpu;
    g->found_way = -1;
    g->found_bytes = d->tensor.bytes;
    g->found_fits = g->found_glanced || tarn_get_fits(g, i, &d->tensor, &g->found_bytes);
    if (!g->found_fits) /* or the descriptor is out of date */
        return TARN_INPROGRESS;
    struct tarn_open_link *open_link = enter_best(c, d, gpu, stripe, begun_ns, &l, &g->found_way);
    if (open_link && g->found_glanced) { /* such links do not look at pieces */
        tarn_shared_leave(open_link->side, stripe);
        return TARN_INPROGRESS;
    }
    if (!open_link)
        return TARN_INPROGRESS;
    uint64_t bytes = g->found_bytes;
    struct tarn_work w = tarn_work_of(item, l, bytes, g->flags, gpu);
    if (tarn_log_wants(&c->log, TARN_LOG_DEBUG))
        tarn_tell_route(open_link->side, &item->key, l->pool, gpu);
    rc = open_link->ops->get(open_link->link, &w);
    tarn_shared_leave(open_link->side, stripe);
    if (rc != 0 || w.status != 0)
        return TARN_INPROGRESS;
    item->tensor = d->tensor;
    tarn_count(c, stripe, TARN_COUNT_GETS, 1);
    tarn_count(c, stripe, TARN_COUNT_GET_BYTES, bytes);
    return 0;
}

/* One whose object is known, and that no shared link serves, is rarely the only one: the others are left,
 * too, and not even looked at, since the first need not wait for that. */
void tarn_get_fast(struct tarn_get *g)
{
    uint64_t begun_ns = tarn_coarse_ns();
    bool later = false;
    size_t i;

    for (i = 0; i < g->n && !later; i++) {
        int rc = get_now(g, i, begun_ns);
        g->items[i].status = rc;
        later = rc == TARN_INPROGRESS && g->found == i;
        if (rc == TARN_INPROGRESS)
            continue;
        if (rc != 0)
            tarn_count(g->client, 0, TARN_COUNT_ERRORS, 1);
        g->left--;
    }
    g->looked = i;
}

/* May TARN_GET_NOW go on? Then only this host's GPUs are waited for. Where no lease runs one is asked for. */
static bool is_near(const struct tarn_get *g)
{
    if (g->found != g->looked - 1)
        return false;
    for (uint32_t k = 0; k < g->found_desc.nlocs; k++)
        if (tarn_lease_word(g->found_desc.locs[k].node) == TARN_LEASE_ASK)
            return false;
    return g->found_way >= 0 && (g->client->transports[g->found_way]->caps & TARN_CAP_SAME_HOST);
}

/* TARN_GET_NOW: nothing has been begun for these. */
static void leave_rest(struct tarn_get *g)
{
    for (size_t i = 0; i < g->n; i++) {
        if (i < g->looked && g->items[i].status != TARN_INPROGRESS)
            continue;
        g->items[i].status = TARN_E_AGAIN;
        tarn_verdict_say(&g->verdict, i, TARN_E_AGAIN, "get", &g->items[i].key,
                         "this takes waiting: get it without TARN_GET_NOW");
    }
}

/* Until the event has passed the buffers are not touched. */
static int wait_before(struct tarn_get *g, const struct tarn_get_options *o)
{
    g->deadline_ns = tarn_client_deadline(g->client, o->timeout_ms);
    int rc = tarn_event_wait(o->after, g->deadline_ns);

    for (size_t i = 0; rc != 0 && i < g->n; i++)
        g->items[i].status = rc;
    return rc;
}

int tarn_get(struct tarn_client *c, struct tarn_item *items, size_t n, const struct tarn_get_options *given)
{
    struct tarn_get_options o;
    struct tarn_get g, *gets = &g;
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    if (n > 0 && !items)
        return tarn_fail(TARN_E_INVALID, "get: items are NULL");
    if ((rc = tarn_options_copy(&o, sizeof o, given)) != 0 ||
        (rc = tarn_flags_check("get", o.flags, TARN_GET_FLAGS)) != 0)
        return rc;
    tarn_get_prepare(&g, c, items, n, &o);
    if (o.after && (rc = wait_before(&g, &o)) != 0)
        return rc;
    tarn_get_fast(&g);
    if (g.left > 0 && (o.flags & TARN_GET_NOW) && !is_near(&g)) {
        leave_rest(&g);
    } else if (g.left > 0) {
        /* The clock is only read when something may wait. */
        g.since_ns = tarn_now_ns();
        if (!o.after)
            g.deadline_ns = g.since_ns + tarn_client_timeout_ns(c, o.timeout_ms);
        tarn_get_slow(c, &gets, 1, -1);
    }
    return tarn_verdict_end(&g.verdict);
}
