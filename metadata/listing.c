/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the living nodes in three round trips: the set of ids, the nodes' records, their pools'
 * records. Ids without a record are nodes that have died. Damaged records are left out, with a line in
 * the log: one broken node must not hide the others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "metadata/records.h"
#include "metadata/redis.h"

/*
 * Records are read in the order they are asked for, and moved up over those left out: entry i of
 * `nodes` is the i-th id at first and the i-th living node in the end.
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

static int append_key(struct tarn_resp *r, const char *command, const struct tarn_directory *d,
                      const char *rest)
{
    char key[TARN_REDIS_PREFIX + 8 + TARN_NODE_ID_MAX + TARN_POOL_NAME_MAX + 2];
    snprintf(key, sizeof key, "%s%s", d->prefix, rest);
    return tarn_resp_append_strs(r, command, key, NULL);
}

static void left_out(const struct listing *l, const char *what, const char *id)
{
    tarn_log(l->d->log, TARN_LOG_WARN, "directory",
             "msg=\"left out a damaged record\" %s=\"%s\" cause=\"%s\"", what, id, tarn_last_error());
}

/* --- ids ---------------------------------------------------------------------------------------- */

static int append_ids(void *arg, struct tarn_resp *r)
{
    const struct listing *l = arg;
    return append_key(r, "SMEMBERS", l->d, "nodes");
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

static int append_nodes(void *arg, struct tarn_resp *r)
{
    const struct listing *l = arg;
    for (size_t i = 0; i < l->nnodes; i++) {
        char rest[8 + TARN_NODE_ID_MAX];
        snprintf(rest, sizeof rest, "node:%s", l->nodes[i].id);
        int rc = append_key(r, "PTTL", l->d, rest); /* first: it is of that record or of an earlier one */
        if (!rc)
            rc = append_key(r, "HGETALL", l->d, rest);
        if (rc)
            return rc;
    }
    return 0;
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
    if (reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "WRONGTYPE", 9))
        return tarn_redis_check(l->d, reply);
    if (reply->type == REDIS_REPLY_ARRAY && !reply->elements)
        return 0;
    int rc = tarn_reply_texts(reply, texts, &n);
    if (!rc)
        rc = tarn_node_parse(texts, n, &node, l->pool_names[l->nliving]);
    if (rc)
        left_out(l, "node", node.id);
    else
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

static int append_pools(void *arg, struct tarn_resp *r)
{
    const struct listing *l = arg;
    for (size_t i = 0; i < l->npools; i++) {
        char rest[8 + TARN_NODE_ID_MAX + TARN_POOL_NAME_MAX];
        snprintf(rest, sizeof rest, "pool:%s/%s", l->nodes[l->owners[i]].id, l->pools[i].name);
        int rc = append_key(r, "HGETALL", l->d, rest);
        if (rc)
            return rc;
    }
    return 0;
}

/* A pool of another epoch is what an earlier run of the node has left. */
static int take_pool(void *arg, size_t i, const redisReply *reply)
{
    struct listing *l = arg;
    struct tarn_text texts[TARN_TEXTS_MAX];
    struct tarn_node_record *node = &l->nodes[l->owners[i]];
    struct tarn_pool_record pool = l->pools[i];
    uint64_t epoch;
    size_t n;
    if (reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "WRONGTYPE", 9))
        return tarn_redis_check(l->d, reply);
    if (reply->type == REDIS_REPLY_ARRAY && !reply->elements)
        return 0;
    int rc = tarn_reply_texts(reply, texts, &n);
    if (!rc)
        rc = tarn_pool_parse(texts, n, &pool, &epoch);
    if (rc)
        left_out(l, "pool", pool.name);
    else if (epoch == node->epoch)
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
        .n = 2 * l->nnodes, .append = append_nodes, .reply = take_node, .arg = l, .cancel = cancel};
    rc = tarn_redis_run(l->d, deadline_ns, &nodes);
    l->nnodes = l->nliving;
    if (rc || !l->nnodes)
        return rc;
    rc = name_all_pools(l);
    if (rc || !l->npools)
        return rc;
    struct tarn_pipeline pools = {
        .n = l->npools, .append = append_pools, .reply = take_pool, .arg = l, .cancel = cancel};
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
