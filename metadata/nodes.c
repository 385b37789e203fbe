/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of nodes and their pools.
 *
 * A record belongs to an epoch, one run of a node: refresh and drop leave records of other epochs
 * alone, readers skip a pool whose epoch is not its node's. A node's own record is written last: whoever
 * sees it finds the id in the set and the pools, too.
 *
 * Records expire when the beats stop; the set of node ids does not, so each beat looks at one id of the
 * set and takes it out when its record is gone. (A node whose id was taken out wrongly, because it came
 * back between the two, is back with its next beat.)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "metadata/records.h"
#include "metadata/redis.h"

#define NODE_KEY_TEXT (TARN_REDIS_PREFIX + 5 + TARN_NODE_ID_MAX + 1)
#define POOL_KEY_TEXT (NODE_KEY_TEXT + 1 + TARN_POOL_NAME_MAX)

static void node_key(const struct tarn_directory *d, const char *id, char out[NODE_KEY_TEXT])
{
    snprintf(out, NODE_KEY_TEXT, "%snode:%s", d->prefix, id);
}

static void pool_key(const struct tarn_directory *d, const char *id, const char *pool,
                     char out[POOL_KEY_TEXT])
{
    snprintf(out, POOL_KEY_TEXT, "%spool:%s/%s", d->prefix, id, pool);
}

static void nodes_key(const struct tarn_directory *d, char out[NODE_KEY_TEXT])
{
    snprintf(out, NODE_KEY_TEXT, "%snodes", d->prefix);
}

static int check_node(const struct tarn_node_record *n)
{
    int rc = tarn_name_check("node id", n->id, TARN_NODE_ID_MAX);
    if (!rc && n->epoch == 0)
        rc = tarn_fail(TARN_E_INVALID, "node %s: the epoch must not be 0", n->id);
    if (!rc && n->npools > TARN_POOLS_MAX)
        rc = tarn_fail(TARN_E_CONFIG, "node %s: %u pools: at most %d are allowed", n->id, n->npools,
                       TARN_POOLS_MAX);
    for (uint32_t i = 0; i < n->npools && !rc; i++)
        rc = tarn_name_check("pool name", n->pools[i].name, TARN_POOL_NAME_MAX);
    return rc;
}

static int append2(struct tarn_resp *r, const char *command, const char *key)
{
    const char *argv[] = {command, key};
    return tarn_resp_append(r, 2, argv, NULL);
}

static int append_member(struct tarn_resp *r, const char *command, const char *key, const char *member)
{
    const char *argv[] = {command, key, member};
    return tarn_resp_append(r, 3, argv, NULL);
}

/* --- beat --------------------------------------------------------------------------------------- */

struct beat {
    struct tarn_directory *d;
    const struct tarn_node_record *node;
    uint32_t ttl_ms;
    char epoch[TARN_EPOCH_TEXT];
    bool gone;                        /* our record was not there */
    uint64_t taken;                   /* epoch of who has our id */
    char run_id[64];                  /* of this Redis */
    char other[TARN_NODE_ID_MAX + 1]; /* the id of the set that is looked at, not ours; "" none */
    bool other_gone;
};

static void add_refresh(const struct beat *b, const char *sha, const char *key, struct tarn_args *a)
{
    a->n = 0;
    tarn_args_add(a, "EVALSHA");
    tarn_args_add(a, sha);
    tarn_args_add(a, "1");
    tarn_args_add(a, key);
    tarn_args_add(a, b->epoch);
    tarn_args_add_u64(a, b->ttl_ms);
}

static void add_field(struct tarn_args *a, const char *name, const char *value)
{
    tarn_args_add(a, name);
    tarn_args_add(a, value);
}

static void add_number(struct tarn_args *a, const char *name, uint64_t value)
{
    tarn_args_add(a, name);
    tarn_args_add_u64(a, value);
}

static int append_node(const struct beat *b, const char *sha, struct tarn_resp *r)
{
    const struct tarn_node_record *n = b->node;
    char key[NODE_KEY_TEXT], pools[TARN_POOL_LIST] = "";
    struct tarn_args a;
    size_t used = 0;
    for (uint32_t i = 0; i < n->npools; i++)
        used += (size_t)snprintf(pools + used, sizeof pools - used, "%s%s", i ? "," : "", n->pools[i].name);
    node_key(b->d, n->id, key);
    add_refresh(b, sha, key, &a);
    add_field(&a, "host", n->host);
    add_field(&a, "hostid", n->host_id);
    add_number(&a, "pid", n->pid);
    add_field(&a, "control", n->control);
    add_field(&a, "unix", n->unix_path);
    add_field(&a, "version", n->version);
    add_number(&a, "started", n->started_ms);
    add_field(&a, "state", n->state);
    add_number(&a, "restoring", n->restoring);
    add_field(&a, "when_cut_off", n->refuses ? "refuse" : "serve");
    add_field(&a, "pools", pools);
    return tarn_args_append(&a, r);
}

/* One descriptor field a transport, in the order of the list. */
static void add_transports(struct tarn_args *a, const struct tarn_pool_record *p,
                           char names[sizeof p->transports])
{
    char *save = NULL;
    size_t i = 0;
    snprintf(names, sizeof p->transports, "%s", p->transports);
    for (char *name = strtok_r(names, ",", &save); name && i < 4; name = strtok_r(NULL, ",", &save))
        add_field(a, name, p->fields[i++]);
}

static int append_pool(const struct beat *b, const struct tarn_pool_record *p, const char *sha,
                       struct tarn_resp *r)
{
    char key[POOL_KEY_TEXT], names[sizeof p->transports];
    struct tarn_args a;
    pool_key(b->d, b->node->id, p->name, key);
    add_refresh(b, sha, key, &a);
    add_field(&a, "kind", p->kind);
    if (p->device[0])
        add_field(&a, "device", p->device);
    add_number(&a, "index", p->index);
    add_number(&a, "bytes", p->bytes);
    add_number(&a, "free", p->free_bytes);
    add_number(&a, "objects", p->objects);
    add_number(&a, "slots", p->slots);
    add_field(&a, "transports", p->transports);
    add_transports(&a, p, names);
    return tarn_args_append(&a, r);
}

/* First round trip: whose our record is, whose Redis this is, some node of the set. */
static int append_first(void *arg, struct tarn_resp *r)
{
    const struct beat *b = arg;
    char node[NODE_KEY_TEXT], nodes[NODE_KEY_TEXT];
    node_key(b->d, b->node->id, node);
    nodes_key(b->d, nodes);
    int rc = append_member(r, "HGET", node, "epoch");
    if (!rc)
        rc = append2(r, "INFO", "server");
    return rc ? rc : append2(r, "SRANDMEMBER", nodes);
}

static void take_epoch(struct beat *b, const redisReply *reply)
{
    bool text = reply->type == REDIS_REPLY_STRING && reply->len > 0;
    b->gone |= !text;
    if (text && strcmp(reply->str, b->epoch) &&
        (tarn_u64_parse(reply->str, (size_t)reply->len, 16, UINT64_MAX, &b->taken) || !b->taken))
        b->taken = UINT64_MAX; /* somebody's, whatever it means */
}

static void take_run_id(struct beat *b, const redisReply *reply)
{
    const char *at = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, "run_id:") : NULL;
    if (at)
        snprintf(b->run_id, sizeof b->run_id, "%.*s", (int)strcspn(at + 7, "\r\n"), at + 7);
}

static int take_first(void *arg, size_t i, const redisReply *reply)
{
    struct beat *b = arg;
    int rc = tarn_redis_check(b->d, reply);
    if (rc)
        return rc;
    if (i == 0)
        take_epoch(b, reply);
    else if (i == 1)
        take_run_id(b, reply);
    else if (reply->type == REDIS_REPLY_STRING && strcmp(reply->str, b->node->id) &&
             tarn_name_valid(reply->str, (size_t)reply->len, TARN_NODE_ID_MAX))
        memcpy(b->other, reply->str, (size_t)reply->len + 1);
    return 0;
}

/* Second round trip: our place in the set, whether that node lives, the pools, our record. */
static int append_second(void *arg, size_t i, const char *sha, struct tarn_resp *r)
{
    const struct beat *b = arg;
    char key[NODE_KEY_TEXT];
    if (i == 0) {
        nodes_key(b->d, key);
        return append_member(r, "SADD", key, b->node->id);
    }
    if (i == 1) {
        node_key(b->d, b->other, key);
        return append2(r, "EXISTS", key);
    }
    if (i < 2 + (size_t)b->node->npools)
        return append_pool(b, &b->node->pools[i - 2], sha, r);
    return append_node(b, sha, r);
}

static int take_second(void *arg, size_t i, const redisReply *reply)
{
    struct beat *b = arg;
    int rc = tarn_redis_check(b->d, reply);
    if (i == 1)
        b->other_gone = b->other[0] && reply->type == REDIS_REPLY_INTEGER && reply->integer == 0;
    if (!rc && i == 2 + (size_t)b->node->npools)
        take_epoch(b, reply);
    return rc;
}

static int append_forget(void *arg, struct tarn_resp *r)
{
    const struct beat *b = arg;
    char key[NODE_KEY_TEXT];
    nodes_key(b->d, key);
    return append_member(r, "SREM", key, b->other);
}

static int take_forgotten(void *arg, size_t i, const redisReply *reply)
{
    const struct beat *b = arg;
    (void)i;
    return tarn_redis_check(b->d, reply);
}

/* What was lost stays so until a beat has come to its end and reported it. */
static void note_lost(struct beat *b)
{
    struct tarn_directory *d = b->d;
    pthread_mutex_lock(&d->lock);
    d->lost |= b->gone || b->taken || strcmp(d->run_id, b->run_id);
    pthread_mutex_unlock(&d->lock);
}

static bool report_lost(struct beat *b)
{
    struct tarn_directory *d = b->d;
    pthread_mutex_lock(&d->lock);
    bool lost = d->lost;
    if (!b->taken) {
        d->lost = false;
        memcpy(d->run_id, b->run_id, sizeof d->run_id);
    }
    pthread_mutex_unlock(&d->lock);
    return lost;
}

int tarn_directory_beat(struct tarn_directory *d, const struct tarn_node_record *n, uint32_t ttl_ms,
                        uint64_t deadline_ns, bool *lost, uint64_t *taken_epoch)
{
    struct beat b = {.d = d, .node = n, .ttl_ms = ttl_ms ? ttl_ms : 1};
    struct tarn_pipeline first = {.n = 3, .append = append_first, .reply = take_first, .arg = &b};
    struct tarn_script_pipeline second = {TARN_SCRIPT_REFRESH, 3 + n->npools, append_second, take_second, &b};
    struct tarn_pipeline forget = {.n = 1, .append = append_forget, .reply = take_forgotten, .arg = &b};
    int rc = check_node(n);
    if (rc)
        return rc;
    tarn_epoch_format(n->epoch, b.epoch);
    rc = tarn_redis_run(d, deadline_ns, &first);
    if (rc)
        return rc;
    note_lost(&b);
    if (!b.taken) {
        rc = tarn_script_run(d, deadline_ns, &second);
        note_lost(&b);
        if (!rc && b.taken) /* just now: our pools must not be in the way of its own */
            rc = tarn_directory_leave(d, n, deadline_ns);
    }
    if (!rc && b.other_gone)
        rc = tarn_redis_run(d, deadline_ns, &forget);
    if (rc)
        return rc;
    *lost = report_lost(&b);
    *taken_epoch = b.taken;
    return 0;
}

/* --- leave -------------------------------------------------------------------------------------- */

static int append_leave(void *arg, size_t i, const char *sha, struct tarn_resp *r)
{
    const struct beat *b = arg;
    char key[POOL_KEY_TEXT];
    if (i < b->node->npools)
        pool_key(b->d, b->node->id, b->node->pools[i].name, key);
    else
        node_key(b->d, b->node->id, key);
    const char *argv[] = {"EVALSHA", sha, "1", key, b->epoch};
    return tarn_resp_append(r, 5, argv, NULL);
}

static int take_left(void *arg, size_t i, const redisReply *reply)
{
    struct beat *b = arg;
    if (i == b->node->npools)
        b->other_gone = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
    return tarn_redis_check(b->d, reply);
}

int tarn_directory_leave(struct tarn_directory *d, const struct tarn_node_record *n, uint64_t deadline_ns)
{
    struct beat b = {.d = d, .node = n};
    struct tarn_script_pipeline drop = {TARN_SCRIPT_DROP, n->npools + 1, append_leave, take_left, &b};
    struct tarn_pipeline forget = {.n = 1, .append = append_forget, .reply = take_forgotten, .arg = &b};
    int rc = check_node(n);
    if (rc)
        return rc;
    tarn_epoch_format(n->epoch, b.epoch);
    snprintf(b.other, sizeof b.other, "%s", n->id);
    rc = tarn_script_run(d, deadline_ns, &drop);
    return rc || !b.other_gone ? rc : tarn_redis_run(d, deadline_ns, &forget);
}
