/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the client knows of nodes. There is one struct for each incarnation (id, low half of the epoch):
 * generations carry the same 32 bits, so a descriptor can never name another incarnation than the one
 * that wrote it. They are never freed before the client is, so descriptors may point to them.
 */
#include "client/remote.h"

#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "client/check.h"
#include "client/client.h"
#include "client/retire.h"

static struct tarn_remote *remote_new(struct tarn_client *c, const char *id, uint32_t epoch)
{
    struct tarn_remote *r = aligned_alloc(64, sizeof *r);

    if (!r)
        return NULL;
    memset(r, 0, sizeof *r);
    r->client = c;
    snprintf(r->key.id, sizeof r->key.id, "%s", id);
    r->key.epoch = epoch;
    pthread_mutex_init(&r->lock, NULL);
    tarn_cond_init(&r->changed);
    return r;
}

static struct tarn_remote *remote_find(struct tarn_client *c, const char *id, uint32_t epoch)
{
    struct tarn_remote probe, *r = NULL;

    memset(&probe.key, 0, sizeof probe.key);
    snprintf(probe.key.id, sizeof probe.key.id, "%s", id);
    probe.key.epoch = epoch;
    HASH_FIND(hh, c->nodes, &probe.key, sizeof probe.key, r);
    return r;
}

struct tarn_remote *tarn_remote_of(struct tarn_client *c, const char *id, uint32_t epoch)
{
    pthread_rwlock_rdlock(&c->nodes_lock);
    struct tarn_remote *r = remote_find(c, id, epoch);
    pthread_rwlock_unlock(&c->nodes_lock);
    if (r)
        return r;

    pthread_rwlock_wrlock(&c->nodes_lock);
    r = remote_find(c, id, epoch);
    if (!r && (r = remote_new(c, id, epoch)) != NULL) {
        unsigned before = HASH_COUNT(c->nodes);
        HASH_ADD(hh, c->nodes, key, sizeof r->key, r);
        if (HASH_COUNT(c->nodes) == before) {
            tarn_remote_free(r);
            r = NULL;
        }
    }
    pthread_rwlock_unlock(&c->nodes_lock);
    return r;
}

const char *tarn_remote_text(struct tarn_remote *r, char out[352])
{
    pthread_mutex_lock(&r->lock);
    if (r->control[0])
        snprintf(out, 352, "node %s (%s)", r->key.id, r->control);
    else
        snprintf(out, 352, "node %s", r->key.id);
    pthread_mutex_unlock(&r->lock);
    return out;
}

/* --- pools -------------------------------------------------------------------------------------- */

int tarn_remote_pool(struct tarn_remote *r, const char *name)
{
    int index = -1;

    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < r->npools; i++)
        if (strcmp(r->pools[i].name, name) == 0)
            index = (int)r->pools[i].index;
    pthread_mutex_unlock(&r->lock);
    return index;
}

void tarn_remote_pool_name(struct tarn_remote *r, uint32_t index, char out[TARN_POOL_NAME_MAX + 1])
{
    out[0] = '\0';
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < r->npools; i++)
        if (r->pools[i].index == index)
            memcpy(out, r->pools[i].name, sizeof r->pools[i].name);
    pthread_mutex_unlock(&r->lock);
}

bool tarn_remote_moves(const struct tarn_remote *r, int t, uint32_t pool, uint32_t gpu)
{
    if (gpu && !(r->client->transports[t]->caps & TARN_CAP_GPU))
        return false;
    return pool < TARN_POOLS_MAX &&
           atomic_load_explicit(&r->pool_transports[pool], memory_order_relaxed) >> t & 1;
}

void tarn_tell_route(struct tarn_remote *r, const char *verb, const struct tarn_key *key, uint32_t pool,
                     int t, uint32_t gpu)
{
    char name[96], pool_name[TARN_POOL_NAME_MAX + 1], memory[16] = "host";

    if (!tarn_log_wants(&r->client->log, TARN_LOG_DEBUG))
        return;
    tarn_remote_pool_name(r, pool, pool_name);
    if (gpu)
        snprintf(memory, sizeof memory, "gpu%u", gpu - 1);
    tarn_log(&r->client->log, TARN_LOG_DEBUG, "client",
             "msg=\"route of a %s\" key=\"%s\" node=%s pool=%s transport=%s memory=%s", verb,
             tarn_key_text(key, name), r->key.id, pool_name, r->client->transports[t]->name, memory);
}
