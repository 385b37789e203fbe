/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the client knows of nodes. There is one struct for each incarnation (id, low half of the epoch):
 * generations carry the same 32 bits, so a descriptor can never name another incarnation than the one
 * that wrote it. They are never freed before the client is, so descriptors may point to them.
 */
#include "client/peer_nodes.h"

#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "client/check.h"
#include "client/client.h"
#include "client/retire.h"

static struct tarn_peer_node *remote_new(struct tarn_client *c, const char *id, uint32_t epoch)
{
    struct tarn_peer_node *r = aligned_alloc(64, sizeof *r);

    if (!r)
        return NULL;
    memset(r, 0, sizeof *r);
    r->client = c;
    snprintf(r->key.id, sizeof r->key.id, "%s", id);
    r->key.epoch = epoch;
    for (int t = 0; t < c->ntransports; t++)
        for (int w = 0; w < 2; w++) {
            struct tarn_side *s = &r->sides[t][w];
            s->node = r;
            s->ops = c->transports[t];
            s->transport = t;
            s->last = t + 1 == c->ntransports;
            s->write = w;
        }
    pthread_mutex_init(&r->lock, NULL);
    tarn_cond_init(&r->changed);
    return r;
}

static struct tarn_peer_node *remote_find(struct tarn_client *c, const char *id, uint32_t epoch)
{
    struct tarn_peer_node probe, *r = NULL;

    memset(&probe.key, 0, sizeof probe.key);
    snprintf(probe.key.id, sizeof probe.key.id, "%s", id);
    probe.key.epoch = epoch;
    HASH_FIND(hh, c->nodes, &probe.key, sizeof probe.key, r);
    return r;
}

struct tarn_peer_node *tarn_peer_node_of(struct tarn_client *c, const char *id, uint32_t epoch)
{
    pthread_rwlock_rdlock(&c->nodes_lock);
    struct tarn_peer_node *node = remote_find(c, id, epoch);
    pthread_rwlock_unlock(&c->nodes_lock);
    if (node)
        return node;

    pthread_rwlock_wrlock(&c->nodes_lock);
    node = remote_find(c, id, epoch);
    if (!node && (node = remote_new(c, id, epoch)) != NULL) {
        unsigned before = HASH_COUNT(c->nodes);
        HASH_ADD(hh, c->nodes, key, sizeof node->key, node);
        if (HASH_COUNT(c->nodes) == before) {
            tarn_peer_node_free(node);
            node = NULL;
        }
    }
    pthread_rwlock_unlock(&c->nodes_lock);
    return node;
}

const char *tarn_peer_node_text(struct tarn_peer_node *node, char out[352])
{
    pthread_mutex_lock(&node->lock);
    if (node->control[0])
        snprintf(out, 352, "node %s (%s)", node->key.id, node->control);
    else
        snprintf(out, 352, "node %s", node->key.id);
    pthread_mutex_unlock(&node->lock);
    return out;
}

/* --- pools -------------------------------------------------------------------------------------- */

int tarn_peer_node_pool(struct tarn_peer_node *node, const char *name)
{
    int index = -1;

    pthread_mutex_lock(&node->lock);
    for (uint32_t i = 0; i < node->npools; i++)
        if (strcmp(node->pools[i].name, name) == 0)
            index = (int)node->pools[i].index;
    pthread_mutex_unlock(&node->lock);
    return index;
}

void tarn_peer_node_pool_name(struct tarn_peer_node *node, uint32_t index, char out[TARN_POOL_NAME_MAX + 1])
{
    out[0] = '\0';
    pthread_mutex_lock(&node->lock);
    for (uint32_t i = 0; i < node->npools; i++)
        if (node->pools[i].index == index)
            memcpy(out, node->pools[i].name, sizeof node->pools[i].name);
    pthread_mutex_unlock(&node->lock);
}

void tarn_tell_route(const struct tarn_side *s, const struct tarn_key *key, uint32_t pool, uint32_t gpu)
{
    struct tarn_peer_node *node = s->node;
    char name[96], pool_name[TARN_POOL_NAME_MAX + 1], memory[16] = "host";

    if (!tarn_log_wants(&node->client->log, TARN_LOG_DEBUG))
        return;
    tarn_peer_node_pool_name(node, pool, pool_name);
    if (gpu)
        snprintf(memory, sizeof memory, "gpu%u", gpu - 1);
    tarn_log(&node->client->log, TARN_LOG_DEBUG, "client",
             "msg=\"route of a %s\" key=\"%s\" node=%s pool=%s transport=%s memory=%s",
             s->write ? "put" : "get", tarn_key_text(key, name), node->key.id, pool_name, s->ops->name,
             memory);
}
