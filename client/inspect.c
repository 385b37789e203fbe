/* SPDX-License-Identifier: Apache-2.0 */
/* Looking: objects, nodes, transports and events, as the directory has them now. */
#include <string.h>

#include "client/check.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/link.h"
#include "client/peer_nodes.h"
#include "client/refresh.h"
#include "client/setting.h"
#include "client/side.h"

/* How long a node may take to show that it is on this host. */
#define REACH_NS (200 * TARN_NS_PER_MS)

/* The transport a get from here would use for the pool; NULL when none reaches it. */
static const char *route_name(struct tarn_client *c, struct tarn_peer_node *node, uint32_t pool)
{
    for (int t = 0; t < c->ntransports; t++) {
        struct tarn_side *s = &node->sides[t][0];
        if (!tarn_side_moves(s, pool, 0) || !tarn_side_usable(s, tarn_now_ns()))
            continue;
        if ((s->ops->caps & TARN_CAP_SAME_HOST) && !atomic_load(&node->local))
            continue;
        return s->ops->name;
    }
    return NULL;
}

/* Learns, once, whether the node is on this host. */
static void reach(struct tarn_peer_node *node, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_control_conn *conn;
    uint64_t until = tarn_now_ns() + REACH_NS;

    if (atomic_load(&node->local) || atomic_load(&node->health) != TARN_UP || !atomic_load(&node->listed))
        return;
    if (tarn_control_conn_take(node, false, until < deadline_ns ? until : deadline_ns, cancel, &conn) == 0)
        tarn_control_conn_give(conn);
}

/* --- objects ------------------------------------------------------------------------------------ */

struct showing {
    struct tarn_client *client;
    tarn_object_fn fn;
    void *arg;
    uint64_t deadline_ns;
    struct tarn_cancel *cancel;
    /* stat: the record, copied out of the look-up */
    struct tarn_record record;
    int status;
};

static int show(struct showing *s, const struct tarn_key *key, const struct tarn_record *r)
{
    struct tarn_copy copies[TARN_REPLICAS_MAX];

    for (uint32_t i = 0; i < r->nlocations; i++) {
        const struct tarn_location *l = &r->locations[i];
        struct tarn_peer_node *node = tarn_peer_node_of(s->client, l->node, (uint32_t)(l->gen >> 32));
        int pool = node ? tarn_peer_node_pool(node, l->pool) : -1;
        if (node)
            reach(node, s->deadline_ns, s->cancel);
        copies[i] =
            (struct tarn_copy){.node = l->node,
                               .pool = l->pool,
                               .offset = l->offset,
                               .gen = l->gen,
                               .slot = l->slot,
                               .transport = pool < 0 ? NULL : route_name(s->client, node, (uint32_t)pool)};
    }
    struct tarn_object o = {.key = *key,
                            .tensor = r->tensor,
                            .version = r->version,
                            .born_ms = r->born_ms,
                            .ttl_ms = r->ttl_ms,
                            .ncopies = r->nlocations,
                            .copies = copies};
    return s->fn(s->arg, &o);
}

static void keep_record(void *arg, size_t i, int status, const struct tarn_record *r)
{
    struct showing *s = arg;

    (void)i;
    s->status = status;
    if (status == 0)
        s->record = *r;
}

int tarn_stat(struct tarn_client *c, const struct tarn_key *key, uint32_t timeout_ms, tarn_object_fn fn,
              void *arg)
{
    struct showing s = {.client = c, .fn = fn, .arg = arg};
    struct tarn_cancel own;
    char name[96];
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_key_check(key);
    if (rc == 0)
        rc = tarn_out_check("stat", fn ? c : NULL);
    if (rc != 0)
        return rc;
    s.deadline_ns = tarn_client_deadline(c, timeout_ms);
    s.cancel = tarn_client_cancel(c, &own);
    rc = tarn_peer_nodes_refresh(c, s.deadline_ns, s.cancel);
    if (rc == 0)
        rc = tarn_directory_lookup(c->directory, key, 1, s.deadline_ns, s.cancel, keep_record, &s);
    if (rc != 0)
        return rc;
    if (s.status == TARN_E_NOT_FOUND)
        return tarn_fail(TARN_E_NOT_FOUND, "stat key '%s': no such key", tarn_key_text(key, name));
    return s.status ? s.status : show(&s, key, &s.record);
}

static int show_one(void *arg, const struct tarn_key *key, const struct tarn_record *r)
{
    return show(arg, key, r);
}

int tarn_list(struct tarn_client *c, const char *match, uint32_t timeout_ms, tarn_object_fn fn, void *arg)
{
    struct showing s = {.client = c, .fn = fn, .arg = arg};
    struct tarn_cancel own;
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_out_check("list", fn ? c : NULL);
    if (rc != 0)
        return rc;
    s.deadline_ns = tarn_client_deadline(c, timeout_ms);
    s.cancel = tarn_client_cancel(c, &own);
    rc = tarn_peer_nodes_refresh(c, s.deadline_ns, s.cancel);
    return rc ? rc : tarn_directory_scan(c->directory, match, s.deadline_ns, s.cancel, show_one, &s);
}

/* --- nodes -------------------------------------------------------------------------------------- */

struct naming {
    struct tarn_client *client;
    tarn_node_fn fn;
    void *arg;
    uint64_t deadline_ns;
    struct tarn_cancel *cancel;
};

static int show_node(void *arg, const struct tarn_node_record *n)
{
    struct naming *s = arg;
    struct tarn_pool_info pools[TARN_POOLS_MAX];
    struct tarn_peer_node *node = tarn_peer_node_of(s->client, n->id, (uint32_t)n->epoch);
    uint32_t npools = n->npools < TARN_POOLS_MAX ? n->npools : TARN_POOLS_MAX;

    if (!node)
        return tarn_fail(TARN_E_NO_MEMORY, "nodes: out of memory");
    reach(node, s->deadline_ns, s->cancel);
    for (uint32_t i = 0; i < npools; i++) {
        const struct tarn_pool_record *p = &n->pools[i];
        pools[i] = (struct tarn_pool_info){.name = p->name,
                                           .kind = p->kind,
                                           .bytes = p->bytes,
                                           .free_bytes = p->free_bytes,
                                           .objects = p->objects,
                                           .transport = route_name(s->client, node, p->index)};
    }
    struct tarn_node_info info = {.id = n->id,
                                  .host = n->host,
                                  .control = n->control,
                                  .unix_path = n->unix_path,
                                  .version = n->version,
                                  .state = n->state,
                                  .epoch = n->epoch,
                                  .started_ms = n->started_ms,
                                  .same_host = atomic_load(&node->local),
                                  .npools = npools,
                                  .pools = pools};
    return s->fn(s->arg, &info);
}

int tarn_nodes(struct tarn_client *c, uint32_t timeout_ms, tarn_node_fn fn, void *arg)
{
    struct naming s = {.client = c, .fn = fn, .arg = arg};
    struct tarn_cancel own;
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_out_check("nodes", fn ? c : NULL);
    if (rc != 0)
        return rc;
    s.deadline_ns = tarn_client_deadline(c, timeout_ms);
    s.cancel = tarn_client_cancel(c, &own);
    rc = tarn_peer_nodes_refresh(c, s.deadline_ns, s.cancel);
    return rc ? rc : tarn_directory_nodes(c->directory, s.deadline_ns, s.cancel, show_node, &s);
}

/* As a client of this process would find it: with the devices that the environment names. */
static int probe(const struct tarn_transport_ops *ops, char *why, size_t why_bytes)
{
    struct tarn_local *local;
    int rc = ops->probe(why, why_bytes);

    if (rc != 0)
        return rc;
    rc = ops->local_open(tarn_setting(NULL, "TARN_RDMA_DEVICES"), &local);
    if (rc == 0)
        ops->local_close(local);
    else
        snprintf(why, why_bytes, "%s", tarn_last_error());
    return rc;
}

int tarn_transports(tarn_transport_fn fn, void *arg)
{
    if (!fn)
        return tarn_out_check("transports", NULL);
    for (int t = 0; tarn_transport_list[t]; t++) {
        char why[TARN_SENTENCE] = "";
        int rc = probe(tarn_transport_list[t], why, sizeof why);
        rc = fn(arg, tarn_transport_list[t]->name, rc == 0 ? NULL : why);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int tarn_events(struct tarn_client *c, uint32_t timeout_ms, tarn_event_fn fn, void *arg)
{
    struct tarn_cancel own;
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_out_check("events", fn ? c : NULL);
    return rc ? rc
              : tarn_directory_events(c->directory, tarn_client_deadline(c, timeout_ms),
                                      tarn_client_cancel(c, &own), fn, arg);
}
