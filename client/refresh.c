/* SPDX-License-Identifier: Apache-2.0 */
#include "client/refresh.h"

#include <stdio.h>
#include <string.h>

#include "client/alert.h"
#include "client/client.h"
#include "client/peer_nodes.h"
#include "client/read_lease_ask.h"

static uint32_t transport_bits(const struct tarn_client *c, const char *list)
{
    uint32_t bits = 0;

    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        for (int t = 0; t < c->ntransports; t++)
            if (strlen(c->transports[t]->name) == n && memcmp(c->transports[t]->name, p, n) == 0)
                bits |= 1u << t;
        p += n + (p[n] == ',');
    }
    return bits;
}

int tarn_peer_node_update(struct tarn_client *c, const struct tarn_node_record *n, uint64_t pass,
                          uint64_t sent_ns)
{
    struct tarn_peer_node *node = tarn_peer_node_of(c, n->id, (uint32_t)n->epoch);

    if (!node)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: out of memory", n->id);
    pthread_mutex_lock(&node->lock);
    snprintf(node->control, sizeof node->control, "%s", n->control);
    snprintf(node->unix_path, sizeof node->unix_path, "%s", n->unix_path);
    if (strcmp(node->host_id, n->host_id) != 0)
        atomic_store(&node->near, strcmp(n->host_id, c->host_id) == 0);
    snprintf(node->host_id, sizeof node->host_id, "%s", n->host_id);
    snprintf(node->secret, sizeof node->secret, "%s", n->secret);
    node->npools = n->npools < TARN_POOLS_MAX ? n->npools : TARN_POOLS_MAX;
    for (uint32_t i = 0; i < node->npools; i++) {
        const struct tarn_pool_record *p = &n->pools[i];
        snprintf(node->pools[i].name, sizeof node->pools[i].name, "%s", p->name);
        node->pools[i].index = p->index;
        node->pools[i].bytes = p->bytes;
        node->pools[i].gpu = strcmp(p->kind, "cpu") != 0;
        if (p->index < TARN_POOLS_MAX)
            atomic_store(&node->pool_transports[p->index], (uint8_t)transport_bits(c, p->transports));
    }
    node->pass = pass;
    pthread_mutex_unlock(&node->lock);
    atomic_store(&node->draining, strcmp(n->state, "draining") == 0);
    atomic_store(&node->superseded, false);
    tarn_read_lease_listed(node, n, sent_ns);
    bool back = !atomic_exchange(&node->listed, true);
    if (atomic_load(&node->health) != TARN_UP) {
        if (back) /* it beats again, so callers wait for the keeper's word */
            atomic_store(&node->suspect, true);
        tarn_monitor_ask(c);
    }
    return 0;
}

struct refresh {
    struct tarn_client *client;
    uint64_t pass, began_ns;
};

static int update_one(void *arg, const struct tarn_node_record *n)
{
    struct refresh *f = arg;
    return tarn_peer_node_update(f->client, n, f->pass, f->began_ns);
}

/* Nodes that this pass did not see are not listed. Incarnations whose id it saw under another epoch are over.
 */
static void settle(struct tarn_client *c, uint64_t pass)
{
    struct tarn_peer_node *node, *next, *other, *after;

    pthread_rwlock_rdlock(&c->nodes_lock);
    HASH_ITER (hh, c->nodes, node, next) {
        if (node->pass == pass || atomic_load(&node->lends))
            continue;
        atomic_store(&node->listed, false);
        HASH_ITER (hh, c->nodes, other, after)
            if (other->pass == pass && strcmp(other->key.id, node->key.id) == 0) {
                atomic_store(&node->superseded, true);
                tarn_read_lease_end(&node->lease);
            }
    }
    pthread_rwlock_unlock(&c->nodes_lock);
}

/* TARN_INPROGRESS: this thread refreshes. 0: another thread's refresh that began after this call has ended.
 */
static int refresh_begin(struct tarn_client *c, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    uint64_t asked = tarn_now_ns();
    int rc = 0;

    pthread_mutex_lock(&c->refresh_lock);
    while (rc == 0 && c->refreshing)
        if (!tarn_cancel_cond(cancel, &c->refresh_done, &c->refresh_lock, deadline_ns))
            rc = tarn_canceled(cancel)
                     ? tarn_cancel_fail()
                     : tarn_fail(TARN_E_TIMEOUT, "directory %s: does not answer in time: look at Redis",
                                 tarn_directory_address(c->directory));
    if (rc == 0 && atomic_load(&c->refreshed_ns) <= asked) {
        c->refreshing = true;
        rc = TARN_INPROGRESS;
    }
    pthread_mutex_unlock(&c->refresh_lock);
    return rc;
}

int tarn_peer_nodes_refresh(struct tarn_client *c, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    int rc = refresh_begin(c, deadline_ns, cancel);

    if (rc != TARN_INPROGRESS)
        return rc;
    uint64_t began = tarn_now_ns();
    struct refresh f = {c, ++c->pass, began};
    rc = tarn_directory_nodes(c->directory, deadline_ns, cancel, update_one, &f);
    if (rc == 0) {
        settle(c, f.pass);
        atomic_store(&c->refreshed_ns, began);
    }
    pthread_mutex_lock(&c->refresh_lock);
    c->refreshing = false;
    pthread_cond_broadcast(&c->refresh_done);
    pthread_mutex_unlock(&c->refresh_lock);
    return rc;
}

int tarn_peer_nodes_none(struct tarn_client *c)
{
    return tarn_fail(
        TARN_E_NODE_DOWN,
        "no node in the client's namespace of directory %s: start tarnd with this --redis and --ns",
        tarn_directory_address(c->directory));
}
