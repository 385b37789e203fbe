/* SPDX-License-Identifier: Apache-2.0 */
/* Objects, nodes, transports and events, as the directory has them now. */
#include <string.h>

#include "client/check.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/link.h"
#include "client/peer_nodes.h"
#include "client/refresh.h"
#include "client/setting.h"
#include "client/way.h"

/* How long a node may take to show that it is on this host. */
#define REACH_NS (200 * TARN_NS_PER_MS)

/* One call: what each object or node is shown to. */
struct showing {
    struct tarn_client *client;
    union {
        tarn_object_fn object;
        tarn_node_fn node;
    } fn;
    void *arg;
    uint64_t deadline_ns;
    struct tarn_cancel own, *cancel;
};

/* Begins a call: the node table is read. */
static int begin(struct showing *s, uint32_t timeout_ms)
{
    s->deadline_ns = tarn_client_deadline(s->client, timeout_ms);
    s->cancel = tarn_client_cancel(s->client, &s->own);
    return tarn_peer_nodes_refresh(s->client, s->deadline_ns, s->cancel);
}

/* The transport a get from here would use for the pool; NULL when none reaches it. */
static const char *route_name(struct tarn_client *c, struct tarn_peer_node *node, uint32_t pool)
{
    const struct tarn_loc l = {.node = node, .pool = pool};
    struct tarn_choice q = {.locs = &l, .nlocs = 1};
    struct tarn_way w;

    while (tarn_way_choose(c, &q, tarn_now_ns(), &w)) {
        if (atomic_load(&node->local) || !(w.side->ops->caps & TARN_CAP_SAME_HOST))
            return w.side->ops->name;
        q.tried |= tarn_way_bit(&w); /* a get finds that the node is not on this host */
    }
    return NULL;
}

/* Finds out once whether the node is on this host. */
static void reach(const struct showing *s, struct tarn_peer_node *node)
{
    struct tarn_control_conn *conn;
    uint64_t until = tarn_now_ns() + REACH_NS;

    if (until > s->deadline_ns)
        until = s->deadline_ns;
    if (atomic_load(&node->local) || atomic_load(&node->health) != TARN_UP || !atomic_load(&node->listed))
        return;
    if (tarn_control_conn_take(node, until, s->cancel, &conn) == 0)
        tarn_control_conn_give(conn);
}

/* --- objects ------------------------------------------------------------------------------------ */

static int show_object(void *arg, const struct tarn_key *key, const struct tarn_record *r)
{
    const struct showing *s = arg;
    struct tarn_copy copies[TARN_REPLICAS_MAX];

    for (uint32_t i = 0; i < r->nlocations; i++) {
        const struct tarn_location *l = &r->locations[i];
        struct tarn_peer_node *node = tarn_peer_node_of(s->client, l->node, (uint32_t)(l->gen >> 32));
        int pool = node ? tarn_peer_node_pool(node, l->pool) : -1;
        if (node)
            reach(s, node);
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
    return s->fn.object(s->arg, &o);
}

struct stat {
    struct tarn_record record; /* copied out of the look-up */
    int status;
};

static void keep_record(void *arg, size_t i, int status, const struct tarn_record *r)
{
    struct stat *s = arg;

    (void)i;
    s->status = status;
    if (status == 0)
        s->record = *r;
}

int tarn_stat(struct tarn_client *c, const struct tarn_key *key, uint32_t timeout_ms, tarn_object_fn fn,
              void *arg)
{
    struct showing s = {.client = c, .fn.object = fn, .arg = arg};
    struct stat stat;
    char name[96];
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_key_check(key);
    if (rc == 0)
        rc = tarn_out_check("stat", fn ? c : NULL);
    if (rc == 0)
        rc = begin(&s, timeout_ms);
    if (rc == 0)
        rc = tarn_directory_lookup(c->directory, key, 1, s.deadline_ns, s.cancel, keep_record, &stat);
    if (rc != 0)
        return rc;
    if (stat.status == TARN_E_NOT_FOUND)
        return tarn_fail(TARN_E_NOT_FOUND, "stat key '%s': no such key", tarn_key_text(key, name));
    return stat.status ? stat.status : show_object(&s, key, &stat.record);
}

int tarn_list(struct tarn_client *c, const char *match, uint32_t timeout_ms, tarn_object_fn fn, void *arg)
{
    struct showing s = {.client = c, .fn.object = fn, .arg = arg};
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_out_check("list", fn ? c : NULL);
    if (rc == 0)
        rc = begin(&s, timeout_ms);
    return rc ? rc : tarn_directory_scan(c->directory, match, s.deadline_ns, s.cancel, show_object, &s);
}

/* --- nodes -------------------------------------------------------------------------------------- */

static int show_node(void *arg, const struct tarn_node_record *n)
{
    const struct showing *s = arg;
    struct tarn_pool_info pools[TARN_POOLS_MAX];
    struct tarn_peer_node *node = tarn_peer_node_of(s->client, n->id, (uint32_t)n->epoch);
    uint32_t npools = n->npools < TARN_POOLS_MAX ? n->npools : TARN_POOLS_MAX;

    if (!node)
        return tarn_fail(TARN_E_NO_MEMORY, "nodes: out of memory");
    reach(s, node);
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
    return s->fn.node(s->arg, &info);
}

int tarn_nodes(struct tarn_client *c, uint32_t timeout_ms, tarn_node_fn fn, void *arg)
{
    struct showing s = {.client = c, .fn.node = fn, .arg = arg};
    int rc = tarn_client_enter(c);

    if (rc == 0)
        rc = tarn_out_check("nodes", fn ? c : NULL);
    if (rc == 0)
        rc = begin(&s, timeout_ms);
    return rc ? rc : tarn_directory_nodes(c->directory, s.deadline_ns, s.cancel, show_node, &s);
}

/* As a client of this process would open it: with the devices named in the environment. */
static int probe(const struct tarn_transport_ops *ops)
{
    struct tarn_local *local;
    int rc = ops->probe();

    if (rc == 0)
        rc = ops->local_open(tarn_setting(NULL, "TARN_RDMA_DEVICES"), &local);
    if (rc == 0)
        ops->local_close(local);
    return rc;
}

int tarn_transports(tarn_transport_fn fn, void *arg)
{
    if (!fn)
        return tarn_out_check("transports", NULL);
    for (int t = 0; tarn_transport_list[t]; t++) {
        struct tarn_reason why;
        int rc = tarn_reason_keep(&why, probe(tarn_transport_list[t]));
        rc = fn(arg, tarn_transport_list[t]->name, rc == 0 ? NULL : why.text);
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
