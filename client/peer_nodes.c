/* SPDX-License-Identifier: Apache-2.0 */
#include "client/peer_nodes.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "client/check.h"
#include "client/client.h"
#include "client/retire.h"

static struct tarn_peer_node *node_new(struct tarn_client *c, const char *id, uint32_t epoch)
{
    struct tarn_peer_node *node = aligned_alloc(64, sizeof *node);

    if (!node)
        return NULL;
    memset(node, 0, sizeof *node);
    node->client = c;
    snprintf(node->key.id, sizeof node->key.id, "%s", id);
    node->key.epoch = epoch;
    for (int t = 0; t < c->ntransports; t++)
        for (int w = 0; w < 2; w++) {
            struct tarn_side *s = &node->sides[t][w];
            s->node = node;
            s->ops = c->transports[t];
            s->transport = t;
            s->last = t + 1 == c->ntransports;
            s->write = w;
        }
    pthread_mutex_init(&node->lock, NULL);
    tarn_cond_init(&node->changed);
    return node;
}

static struct tarn_peer_node *node_find(struct tarn_client *c, const char *id, uint32_t epoch)
{
    struct tarn_peer_node probe, *node = NULL;

    memset(&probe.key, 0, sizeof probe.key);
    snprintf(probe.key.id, sizeof probe.key.id, "%s", id);
    probe.key.epoch = epoch;
    HASH_FIND(hh, c->nodes, &probe.key, sizeof probe.key, node);
    return node;
}

struct tarn_peer_node *tarn_peer_node_of(struct tarn_client *c, const char *id, uint32_t epoch)
{
    pthread_rwlock_rdlock(&c->nodes_lock);
    struct tarn_peer_node *node = node_find(c, id, epoch);
    pthread_rwlock_unlock(&c->nodes_lock);
    if (node)
        return node;

    pthread_rwlock_wrlock(&c->nodes_lock);
    node = node_find(c, id, epoch);
    if (!node && (node = node_new(c, id, epoch)) != NULL) {
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

const char *tarn_peer_node_text(struct tarn_peer_node *node, char out[TARN_NODE_TEXT])
{
    pthread_mutex_lock(&node->lock);
    if (node->control[0])
        snprintf(out, TARN_NODE_TEXT, "node %s (%s)", node->key.id, node->control);
    else
        snprintf(out, TARN_NODE_TEXT, "node %s", node->key.id);
    pthread_mutex_unlock(&node->lock);
    return out;
}

int tarn_peer_node_error(struct tarn_peer_node *node, const redisReply *reply)
{
    char who[TARN_NODE_TEXT];

    if (reply->type != REDIS_REPLY_ERROR)
        return 0;
    return tarn_resp_error(reply, tarn_peer_node_text(node, who), TARN_E_PROTOCOL);
}

int tarn_peer_node_fail(struct tarn_peer_node *node, int code, const char *fmt, ...)
{
    char who[TARN_NODE_TEXT], text[TARN_SENTENCE];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return tarn_fail(code, "%s: %s", tarn_peer_node_text(node, who), text);
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
    tarn_tell_way(s->node, s->write ? "put" : "get", s->ops->name, key, pool, gpu);
}

void tarn_tell_way(struct tarn_peer_node *node, const char *what, const char *transport,
                   const struct tarn_key *key, uint32_t pool, uint32_t gpu)
{
    char name[96], pool_name[TARN_POOL_NAME_MAX + 1], memory[16] = "host";

    if (!tarn_log_wants(&node->client->log, TARN_LOG_DEBUG))
        return;
    tarn_peer_node_pool_name(node, pool, pool_name);
    if (gpu)
        snprintf(memory, sizeof memory, "gpu%u", gpu - 1);
    tarn_log(&node->client->log, TARN_LOG_DEBUG, "client",
             "msg=\"route of a %s\" key=\"%s\" node=%s pool=%s transport=%s memory=%s", what,
             tarn_key_text(key, name), node->key.id, pool_name, transport, memory);
}
