/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the living nodes in three round trips: the set of ids, the nodes' records, their pools' records. An
 * id without a record is a node that has died. Damaged records are left out, so that one broken node does not
 * hide the others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "metadata/records.h"
#include "metadata/redis.h"

/*
 * Entry i of `nodes` is the i-th id at first, and the i-th living node in the end: records move up over those
 * left out.
 */
struct listing {
    struct tarn_directory *d;
    struct tarn_node_record *nodes;
    char (*pool_names)[TARN_POOL_LIST]; /* a node */
    size_t nnodes, nliving;
    struct tarn_pool_record *pools; /* of all nodes, one node's after the other's */
    size_t *owners;                 /* a pool: index of its node */
    size_t npools;
};

/* Logs a damaged record. 0: the listing goes on without the record. */
static int left_out(const struct listing *l, const char *what, const char *id, int rc)
{
    if (rc == TARN_E_FORMAT)
        tarn_log(l->d->log, TARN_LOG_WARN, "directory",
                 "msg=\"left out a damaged record\" %s=\"%s\" cause=\"%s\"", what, id, tarn_last_error());
    return rc == TARN_E_FORMAT || rc == TARN_E_NOT_FOUND ? 0 : rc;
}

/* --- ids ---------------------------------------------------------------------------------------- */

static int append_ids(void *arg, size_t i, struct tarn_resp *r)
{
    const struct listing *l = arg;
    char key[TARN_REDIS_KEY_TEXT];
    (void)i;
    tarn_redis_key(l->d, key, "nodes");
    return tarn_resp_append_strs(r, "SMEMBERS", key, NULL);
}

static int take_ids(void *arg, size_t i, const redisReply *reply)
{
    struct listing *l = arg;
    (void)i;
    int rc = tarn_redis_check_array(l->d, reply);
    if (rc || !reply->elements)
        return rc;
    l->nodes = calloc(reply->elements, sizeof *l->nodes);
    l->pool_names = calloc(reply->elements, sizeof *l->pool_names);
    if (!l->nodes || !l->pool_names)
        return tarn_fail(TARN_E_NO_MEMORY, "directory: the records of %zu nodes", reply->elements);
    for (size_t j = 0; j < reply->elements; j++) {
        const redisReply *id = reply->element[j];
        if (id->type == REDIS_REPLY_STRING && tarn_name_valid(id->str, (size_t)id->len, TARN_NODE_ID_MAX))
            memcpy(l->nodes[l->nnodes++].id, id->str, (size_t)id->len + 1);
    }
    return 0;
}

/* --- nodes -------------------------------------------------------------------------------------- */

/* The life first: it is of that record or of an earlier one. */
static int append_node(void *arg, size_t i, struct tarn_resp *r)
{
    const struct listing *l = arg;
    char key[TARN_REDIS_KEY_TEXT];
    tarn_redis_key(l->d, key, "node:%s", l->nodes[i / 2].id);
    return tarn_resp_append_strs(r, i % 2 ? "HGETALL" : "PTTL", key, NULL);
}

static int take_left(struct listing *l, size_t i, const redisReply *reply)
{
    int rc = tarn_redis_check(l->d, reply);
    l->nodes[i].left_ms = tarn_left_of(reply);
    return rc;
}

static int take_node(void *arg, size_t at, const redisReply *reply)
{
    struct listing *l = arg;
    struct tarn_text texts[TARN_TEXTS_MAX];
    size_t n, i = at / 2;
    if (at % 2 == 0)
        return take_left(l, i, reply);
    struct tarn_node_record node = l->nodes[i];
    int rc = tarn_hash_read(l->d, reply, texts, &n);
    if (!rc)
        rc = tarn_node_parse(texts, n, &node, l->pool_names[l->nliving]);
    if (rc)
        return left_out(l, "node", node.id, rc);
    l->nodes[l->nliving++] = node;
    return 0;
}

/* --- pools -------------------------------------------------------------------------------------- */

/* Visits the names in a node's list: at most TARN_POOLS_MAX, valid ones only. Returns how many. */
static size_t name_pools(const char *list, struct tarn_pool_record *pools)
{
    size_t n = 0;
    while (*list && n < TARN_POOLS_MAX) {
        size_t bytes = strcspn(list, ",");
        if (tarn_name_valid(list, bytes, TARN_POOL_NAME_MAX)) {
            memcpy(pools[n].name, list, bytes);
            pools[n++].name[bytes] = '\0';
        }
        list += bytes + (list[bytes] == ',');
    }
    return n;
}

static int name_all_pools(struct listing *l)
{
    size_t most = l->nnodes * TARN_POOLS_MAX;
    l->pools = calloc(most, sizeof *l->pools);
    l->owners = calloc(most, sizeof *l->owners);
    if (!l->pools || !l->owners)
        return tarn_fail(TARN_E_NO_MEMORY, "directory: the records of %zu pools", most);
    for (size_t i = 0; i < l->nnodes; i++) {
        l->nodes[i].pools = l->pools + l->npools;
        size_t n = name_pools(l->pool_names[i], l->nodes[i].pools);
        for (size_t j = 0; j < n; j++)
            l->owners[l->npools++] = i;
    }
    return 0;
}

static int append_pool(void *arg, size_t i, struct tarn_resp *r)
{
    const struct listing *l = arg;
    char key[TARN_REDIS_KEY_TEXT];
    tarn_redis_key(l->d, key, "pool:%s/%s", l->nodes[l->owners[i]].id, l->pools[i].name);
    return tarn_resp_append_strs(r, "HGETALL", key, NULL);
}

/* A pool of another epoch is left over from an earlier run of the node. */
static int take_pool(void *arg, size_t i, const redisReply *reply)
{
    struct listing *l = arg;
    struct tarn_text texts[TARN_TEXTS_MAX];
    struct tarn_node_record *node = &l->nodes[l->owners[i]];
    struct tarn_pool_record pool = l->pools[i];
    uint64_t epoch;
    size_t n;
    int rc = tarn_hash_read(l->d, reply, texts, &n);
    if (!rc)
        rc = tarn_pool_parse(texts, n, &pool, &epoch);
    if (rc)
        return left_out(l, "pool", pool.name, rc);
    if (epoch == node->epoch)
        node->pools[node->npools++] = pool;
    return 0;
}

/* --- all ---------------------------------------------------------------------------------------- */

static int gather(struct listing *l, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_pipeline ids = {.n = 1, .append = append_ids, .reply = take_ids, .arg = l, .cancel = cancel};
    int rc = tarn_redis_run(l->d, deadline_ns, &ids);
    if (rc || !l->nnodes)
        return rc;
    struct tarn_pipeline nodes = {
        .n = 2 * l->nnodes, .append = append_node, .reply = take_node, .arg = l, .cancel = cancel};
    rc = tarn_redis_run(l->d, deadline_ns, &nodes);
    l->nnodes = l->nliving;
    if (rc || !l->nnodes)
        return rc;
    rc = name_all_pools(l);
    if (rc || !l->npools)
        return rc;
    struct tarn_pipeline pools = {
        .n = l->npools, .append = append_pool, .reply = take_pool, .arg = l, .cancel = cancel};
    return tarn_redis_run(l->d, deadline_ns, &pools);
}

int tarn_directory_nodes(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                         tarn_node_record_fn fn, void *arg)
{
    struct listing l = {.d = d};
    int rc = gather(&l, deadline_ns, cancel);
    for (size_t i = 0; i < l.nnodes && !rc; i++)
        rc = fn(arg, &l.nodes[i]);
    free(l.owners);
    free(l.pools);
    free(l.pool_names);
    free(l.nodes);
    return rc;
}
