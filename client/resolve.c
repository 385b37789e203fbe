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

static bool is_left(const struct tarn_resolved *r)
{
    return r->status != 0;
}

static bool is_lost(const struct tarn_resolved *r)
{
    return r->status == 0 && r->desc.nlost > 0;
}

/* Looks up those keys of `all` whose result is as wanted. */
static int resolve_some(struct round *all, size_t n, bool (*wanted)(const struct tarn_resolved *r),
                        uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_key *keys = malloc(n * sizeof *keys);
    size_t *map = malloc(n * sizeof *map), k = 0;
    struct round some = {all->client, keys, all->out, map, false};
    int rc = keys && map ? 0 : tarn_fail(TARN_E_NO_MEMORY, "look-up of %zu keys: out of memory", n);

    for (size_t i = 0; rc == 0 && i < n; i++)
        if (wanted(&all->out[i])) {
            keys[k] = all->keys[i];
            map[k++] = i;
        }
    if (rc == 0 && k > 0)
        rc = tarn_directory_lookup(all->client->directory, keys, k, deadline_ns, cancel, resolve_one, &some);
    all->ask = some.ask;
    free(keys);
    free(map);
    return rc;
}

/* Reads the node table, then looks up again the keys whose records named unknown nodes. */
static int resolve_lost(struct round *all, size_t n, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    int rc = tarn_peer_nodes_refresh(all->client, deadline_ns, cancel);
    return rc ? rc : resolve_some(all, n, is_lost, deadline_ns, cancel);
}

int tarn_resolve_keys(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                      struct tarn_cancel *cancel, struct tarn_resolved *out)
{
    struct round all = {c, keys, out, NULL, false};
    int rc = tarn_directory_lookup(c->directory, keys, n, deadline_ns, cancel, resolve_one, &all);
    return rc == 0 && all.ask ? resolve_lost(&all, n, deadline_ns, cancel) : rc;
}

int tarn_resolve_left(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                      struct tarn_cancel *cancel, struct tarn_resolved *out)
{
    struct round all = {c, keys, out, NULL, false};
    int rc = resolve_some(&all, n, is_left, deadline_ns, cancel);
    return rc == 0 && all.ask ? resolve_lost(&all, n, deadline_ns, cancel) : rc;
}
