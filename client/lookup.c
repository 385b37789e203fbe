/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Look-ups: the Hits type. A look-up asks the directory only for keys that it cannot answer itself. A key is
 * answered here if its descriptor is cached, the client's lease of the node runs, and the node's memory is
 * mapped: then the slot's generation tells whether the object is still there. This is what a get does before
 * and after its copy, so a hit means that a get made now would find the object.
 */
#include "client/lookup.h"

#include <stdlib.h>
#include <string.h>

#include "client/cache.h"
#include "client/check.h"
#include "client/client.h"
#include "client/peer_nodes.h"
#include "client/read_lease_ask.h"
#include "client/resolve.h"
#include "client/side.h"
#include "client/way.h"

struct tarn_hits {
    size_t n;
    struct tarn_resolved hits[];
};

/* --- what the client can answer itself ---------------------------------------------------------- */

/* How many keys ahead the cache's memory is loaded. */
enum { PLACE_AHEAD = 8, ENTRY_AHEAD = 4 };

/* Has the slot the generation of the location that `way` leads to? */
static bool is_there(const struct tarn_desc *d, const struct tarn_way *way, uint32_t stripe)
{
    static const struct tarn_item nothing; /* a get of 0 bytes checks the generation */
    struct tarn_open_link *open_link = tarn_side_enter(way->side, stripe);
    struct tarn_work w;

    if (!open_link)
        return false;
    tarn_work_aim(&w, &nothing, &d->locs[way->loc], 0, TARN_GET_NO_TOUCH, 0);
    int rc = open_link->ops->get(open_link->link, &w);
    tarn_side_leave(way->side, stripe);
    return rc == 0 && w.status == 0;
}

struct look {
    struct tarn_client *client;
    const struct tarn_key *keys;
    size_t n;
    struct tarn_resolved *out;
    uint64_t now_ns;
    bool asks; /* a lease had ended, and Redis is being asked about it */
};

static bool may_read(struct look *l, struct tarn_peer_node *node)
{
    if (tarn_read_lease_read(&node->lease, l->now_ns))
        return true;
    enum tarn_read_lease_word word = tarn_read_lease_word(node);
    l->asks |= word == TARN_READ_LEASE_ASK;
    return word == TARN_READ_LEASE_RUNS;
}

static bool is_known(struct look *l, size_t i)
{
    struct tarn_desc *d = &l->out[i].desc;
    uint64_t hash = tarn_key_hash(&l->keys[i]);
    struct tarn_way way;

    if (!tarn_cache_find(l->client->cache, &l->keys[i], hash, d))
        return false;
    const struct tarn_choice q = {.locs = d->locs, .nlocs = d->nlocs};
    return tarn_way_choose(l->client, &q, l->now_ns, &way) &&
           atomic_load(&way.side->state) == TARN_SIDE_SHARED && may_read(l, d->locs[way.loc].node) &&
           is_there(d, &way, (uint32_t)hash % TARN_STRIPES);
}

/* Answers the keys that it can; returns how many are left. Those have status NOT_FOUND. */
static size_t find_known(struct look *l)
{
    struct tarn_cache *cache = l->client->cache;
    size_t left = 0;

    l->now_ns = tarn_coarse_ns();
    l->asks = false;
    for (size_t i = 0; i < l->n; i++) {
        if (i + PLACE_AHEAD < l->n)
            tarn_cache_prefetch_place(cache, tarn_key_hash(&l->keys[i + PLACE_AHEAD]));
        if (i + ENTRY_AHEAD < l->n)
            tarn_cache_prefetch_entry(cache, tarn_key_hash(&l->keys[i + ENTRY_AHEAD]));
        bool known = is_known(l, i);
        l->out[i].status = known ? 0 : TARN_E_NOT_FOUND;
        left += !known;
    }
    return left;
}

static int find_all(struct look *l, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    size_t left = find_known(l);

    if (l->asks) {
        tarn_read_lease_wait(l->client, deadline_ns, cancel);
        left = find_known(l);
    }
    if (left == l->n)
        return tarn_resolve_keys(l->client, l->keys, l->n, deadline_ns, cancel, l->out);
    return left ? tarn_resolve_left(l->client, l->keys, l->n, deadline_ns, cancel, l->out) : 0;
}

/* --- look-up ------------------------------------------------------------------------------------ */

int tarn_lookup_run(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                    struct tarn_cancel *cancel, struct tarn_hits **hits_p)
{
    int rc;

    if (n > 0 && !keys)
        return tarn_fail(TARN_E_INVALID, "look-up: keys are NULL");
    for (size_t i = 0; i < n; i++)
        if ((rc = tarn_key_check(&keys[i])) != 0)
            return rc;
    struct tarn_hits *h = malloc(sizeof *h + n * sizeof h->hits[0]);
    if (!h)
        return tarn_fail(TARN_E_NO_MEMORY, "look-up of %zu keys: out of memory", n);
    h->n = n;
    struct look look = {.client = c, .keys = keys, .n = n, .out = h->hits};
    rc = n ? find_all(&look, deadline_ns, cancel) : 0;
    if (rc != 0) {
        free(h);
        return rc;
    }
    *hits_p = h;
    return 0;
}

int tarn_lookup(struct tarn_client *c, const struct tarn_key *keys, size_t n,
                const struct tarn_lookup_options *given, struct tarn_hits **hits_p)
{
    struct tarn_lookup_options o;
    struct tarn_cancel own;
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_out_check("look-up", hits_p);
    if (rc == 0)
        rc = tarn_options_copy(&o, sizeof o, given);
    if (rc != 0)
        return rc;
    return tarn_lookup_run(c, keys, n, tarn_client_deadline(c, o.timeout_ms), tarn_client_cancel(c, &own),
                           hits_p);
}

int tarn_match_prefix(struct tarn_client *c, const struct tarn_key *keys, size_t n,
                      const struct tarn_lookup_options *given, struct tarn_hits **hits_p, size_t *pages_p)
{
    struct tarn_lookup_options o;
    struct tarn_hits *h;
    size_t run = 0;

    int rc = tarn_options_copy(&o, sizeof o, given);
    if (rc == 0)
        rc = tarn_out_check("match prefix", hits_p && pages_p ? hits_p : NULL);
    if (rc == 0)
        rc = tarn_lookup(c, keys, n, given, &h);
    if (rc != 0)
        return rc;
    while (run < n && tarn_hits_state(h, run) == TARN_STATE_HIT)
        run++;
    *pages_p = run / (o.stride ? o.stride : 1);
    *hits_p = h;
    return 0;
}

size_t tarn_hits_count(const struct tarn_hits *h)
{
    return h ? h->n : 0;
}

enum tarn_state tarn_hits_state(const struct tarn_hits *h, size_t i)
{
    if (!h || i >= h->n || h->hits[i].status != 0)
        return TARN_STATE_MISS;
    const struct tarn_desc *d = &h->hits[i].desc;
    if (tarn_desc_alive(d))
        return TARN_STATE_HIT;
    return tarn_desc_gone(d) ? TARN_STATE_MISS : TARN_STATE_NODE_DOWN;
}

int tarn_hits_tensor(const struct tarn_hits *h, size_t i, struct tarn_tensor *t)
{
    if (tarn_hits_state(h, i) != TARN_STATE_HIT)
        return tarn_fail(TARN_E_NOT_FOUND, "hit %zu: is no hit", i);
    if (!t)
        return tarn_out_check("hit", t);
    *t = h->hits[i].desc.tensor;
    return 0;
}

void tarn_hits_free(struct tarn_hits *h)
{
    free(h);
}

bool tarn_hits_desc(const struct tarn_hits *h, size_t i, struct tarn_desc *d)
{
    if (i >= h->n || h->hits[i].status != 0)
        return false;
    memcpy(d, &h->hits[i].desc, tarn_desc_bytes(&h->hits[i].desc));
    return true;
}
