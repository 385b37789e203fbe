/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A record may name a node, or an incarnation, that the client does not know. Then the node table is read
 * again, and those keys are looked up once more. A node that is still unknown is down; the node table is not
 * read for it again for a while.
 */
#include "client/resolve.h"

#include <stdlib.h>
#include <string.h>

#include "client/cache.h"
#include "client/check.h"
#include "client/client.h"
#include "client/peer_nodes.h"
#include "client/read_lease_ask.h"
#include "client/refresh.h"

#define ABSENT_NS (250 * TARN_NS_PER_MS)

struct tarn_hits {
    size_t n;
    struct tarn_resolved hits[];
};

/* Adds one location. True: the node table should be read for its node. */
static bool add_location(struct tarn_client *c, const struct tarn_location *l, struct tarn_desc *d)
{
    struct tarn_peer_node *node = tarn_peer_node_of(c, l->node, (uint32_t)(l->gen >> 32));

    if (!node || atomic_load(&node->superseded)) /* its incarnation is over */
        return false;
    bool there = (atomic_load(&node->listed) || tarn_read_lease_runs(&node->lease, tarn_now_ns())) &&
                 !atomic_load(&node->lease.gone);
    int pool = there ? tarn_peer_node_pool(node, l->pool) : -1;
    if (pool < 0) {
        d->nlost++;
        uint64_t now = tarn_now_ns(), asked = atomic_load(&node->asked_ns);
        bool ask = asked == 0 || now - asked > ABSENT_NS;
        if (ask)
            atomic_store(&node->asked_ns, now);
        return ask;
    }
    tarn_read_lease_named(node);
    d->locs[d->nlocs++] = (struct tarn_loc){node, l->offset, l->gen, (uint32_t)pool, l->slot};
    return false;
}

/* True: the record names a node that the client does not know. */
static bool desc_make(struct tarn_client *c, const struct tarn_record *r, struct tarn_desc *d)
{
    bool ask = false;

    d->tensor = r->tensor;
    d->nlocs = d->nlost = 0;
    for (uint32_t i = 0; i < r->nlocations; i++)
        ask |= add_location(c, &r->locations[i], d);
    return ask;
}

bool tarn_desc_alive(const struct tarn_desc *d)
{
    for (uint32_t i = 0; i < d->nlocs; i++) {
        struct tarn_peer_node *node = d->locs[i].node;
        if (atomic_load(&node->health) != TARN_GONE && !tarn_peer_node_gone(node))
            return true;
    }
    return false;
}

bool tarn_desc_gone(const struct tarn_desc *d)
{
    for (uint32_t i = 0; i < d->nlocs; i++)
        if (!tarn_peer_node_gone(d->locs[i].node))
            return false;
    return true;
}

/* --- one round ---------------------------------------------------------------------------------- */

struct round {
    struct tarn_client *client;
    const struct tarn_key *keys;
    struct tarn_resolved *out;
    const size_t *map; /* second round: key i's place in out; NULL: i */
    bool ask;
};

static void resolve_one(void *arg, size_t i, int status, const struct tarn_record *rec)
{
    struct round *round = arg;
    struct tarn_client *c = round->client;
    const struct tarn_key *key = &round->keys[i];
    struct tarn_resolved *r = &round->out[round->map ? round->map[i] : i];

    r->status = status == 0 ? 0 : TARN_E_NOT_FOUND;
    r->desc.nlocs = r->desc.nlost = 0;
    if (status == 0)
        round->ask |= desc_make(c, rec, &r->desc);
    if (status == 0 && r->desc.nlocs > 0)
        tarn_cache_set(c->cache, key, tarn_key_hash(key), &r->desc);
    else
        tarn_cache_drop(c->cache, key, tarn_key_hash(key), NULL);
}

/* Reads the node table, then looks up again the keys whose records named unknown nodes. */
static int resolve_lost(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                        struct tarn_cancel *cancel, struct tarn_resolved *out)
{
    struct tarn_key *again = malloc(n * sizeof *again);
    size_t *map = malloc(n * sizeof *map), k = 0;
    int rc = tarn_peer_nodes_refresh(c, deadline_ns, cancel);

    if (!again || !map)
        rc = tarn_fail(TARN_E_NO_MEMORY, "look-up of %zu keys: out of memory", n);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (out[i].status == 0 && out[i].desc.nlost > 0) {
            again[k] = keys[i];
            map[k++] = i;
        }
    if (rc == 0 && k > 0) {
        struct round round = {c, again, out, map, false};
        rc = tarn_directory_lookup(c->directory, again, k, deadline_ns, cancel, resolve_one, &round);
    }
    free(again);
    free(map);
    return rc;
}

int tarn_resolve_keys(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                      struct tarn_cancel *cancel, struct tarn_resolved *out)
{
    struct round round = {c, keys, out, NULL, false};
    int rc = tarn_directory_lookup(c->directory, keys, n, deadline_ns, cancel, resolve_one, &round);

    if (rc == 0 && round.ask)
        rc = resolve_lost(c, keys, n, deadline_ns, cancel, out);
    return rc;
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
    rc = n ? tarn_resolve_keys(c, keys, n, deadline_ns, cancel, h->hits) : 0;
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
