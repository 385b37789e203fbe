/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of nodes and their pools.
 *
 * A record belongs to an epoch, one run of a node: refresh and drop leave records of other epochs alone, and
 * readers skip a pool whose epoch is not its node's. A node's own record is written last, so whoever sees it
 * also finds the id in the set and the pools.
 *
 * Records expire when the beats stop, ids in the set do not. So each beat looks at some ids of the set and
 * removes those whose records are gone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "metadata/records.h"
#include "metadata/redis.h"

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

/* --- beat --------------------------------------------------------------------------------------- */

#define SAMPLE 16 /* of the set of ids, looked at in a beat */

struct other {
    char id[TARN_NODE_ID_MAX + 1];
    bool gone;
};

struct beat {
    struct tarn_directory *d;
    struct tarn_beat *asked; /* NULL when leaving */
    const struct tarn_node_record *node;
    char epoch[TARN_EPOCH_TEXT], fresh[TARN_DIRECTORY_ID_TEXT];
    uint64_t taken;     /* epoch of who has our id */
    bool gone, dropped; /* our record is not there; leaving took it away */
    struct other others[SAMPLE];
    size_t nothers, ngone;
};

/* make_until_ms does not concern pools: nobody reads the pools of a node that is not listed. */
static struct tarn_command *begin_refresh(const struct beat *b, const char *sha, const char *key,
                                          uint64_t make_until_ms, struct tarn_resp *r)
{
    struct tarn_command *c = tarn_resp_command(r, "EVALSHA", sha, "1", key, b->epoch, NULL);
    tarn_command_u64(c, b->asked->ttl_ms ? b->asked->ttl_ms : 1);
    tarn_command_u64(c, make_until_ms);
    return c;
}

static void add_number(struct tarn_command *c, const char *name, uint64_t value)
{
    tarn_command_str(c, name);
    tarn_command_u64(c, value);
}

static int append_node(const struct beat *b, const char *sha, struct tarn_resp *r)
{
    const struct tarn_node_record *n = b->node;
    char key[TARN_REDIS_KEY_TEXT], pools[TARN_POOL_LIST] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < n->npools; i++)
        used += (size_t)snprintf(pools + used, sizeof pools - used, "%s%s", i ? "," : "", n->pools[i].name);
    tarn_redis_key(b->d, key, "node:%s", n->id);
    struct tarn_command *c = begin_refresh(b, sha, key, b->asked->make_until_ms, r);
    tarn_command_strs(c, "host", n->host, "hostid", n->host_id, NULL);
    add_number(c, "pid", n->pid);
    tarn_command_strs(c, "control", n->control, "unix", n->unix_path, "version", n->version, NULL);
    add_number(c, "started", n->started_ms);
    tarn_command_strs(c, "state", n->state, NULL);
    add_number(c, "restoring", n->restoring);
    tarn_command_strs(c, "when_cut_off", n->refuses ? "refuse" : "serve", NULL);
    if (n->secret[0])
        tarn_command_strs(c, "secret", n->secret, NULL);
    tarn_command_strs(c, "pools", pools, NULL);
    return tarn_resp_append_command(r, c);
}

/* One descriptor field a transport, in the order of the list. */
static void add_transports(struct tarn_command *c, const struct tarn_pool_record *p,
                           char names[sizeof p->transports])
{
    char *save = NULL;
    size_t i = 0;
    snprintf(names, sizeof p->transports, "%s", p->transports);
    for (char *name = strtok_r(names, ",", &save); name && i < 4; name = strtok_r(NULL, ",", &save))
        tarn_command_strs(c, name, p->fields[i++], NULL);
}

static int append_pool(const struct beat *b, const struct tarn_pool_record *p, const char *sha,
                       struct tarn_resp *r)
{
    char key[TARN_REDIS_KEY_TEXT], names[sizeof p->transports];
    tarn_redis_key(b->d, key, "pool:%s/%s", b->node->id, p->name);
    struct tarn_command *c = begin_refresh(b, sha, key, UINT64_MAX, r);
    tarn_command_strs(c, "kind", p->kind, NULL);
    if (p->device[0])
        tarn_command_strs(c, "device", p->device, NULL);
    add_number(c, "index", p->index);
    add_number(c, "bytes", p->bytes);
    add_number(c, "free", p->free_bytes);
    add_number(c, "objects", p->objects);
    add_number(c, "slots", p->slots);
    tarn_command_strs(c, "transports", p->transports, NULL);
    add_transports(c, p, names);
    return tarn_resp_append_command(r, c);
}

/* First round trip: the directory's state, whose our record is, Redis's settings, some nodes of the set. */
enum { STATE, EPOCH, MEMORY, OTHERS, FIRST };

static int append_first(void *arg, size_t i, const char *sha, struct tarn_resp *r)
{
    const struct beat *b = arg;
    char key[TARN_REDIS_KEY_TEXT], count[8];
    if (i == STATE)
        return tarn_state_append(b->d, b->asked, b->fresh, sha, r);
    if (i == MEMORY)
        return tarn_resp_append_strs(r, "INFO", "memory", NULL);
    if (i == EPOCH) {
        tarn_redis_key(b->d, key, "node:%s", b->node->id);
        return tarn_resp_append_strs(r, "HGET", key, "epoch", NULL);
    }
    tarn_redis_key(b->d, key, "nodes");
    snprintf(count, sizeof count, "%d", SAMPLE);
    return tarn_resp_append_strs(r, "SRANDMEMBER", key, count, NULL);
}

static void take_epoch(struct beat *b, const redisReply *reply)
{
    bool text = reply->type == REDIS_REPLY_STRING && reply->len > 0;
    if (text && strcmp(reply->str, b->epoch) &&
        (tarn_u64_parse(reply->str, (size_t)reply->len, 16, UINT64_MAX, &b->taken) || !b->taken))
        b->taken = UINT64_MAX; /* somebody's, whatever it means */
}

static void take_others(struct beat *b, const redisReply *reply)
{
    b->nothers = 0;
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements && b->nothers < SAMPLE; i++) {
        const redisReply *id = reply->element[i];
        if (id->type == REDIS_REPLY_STRING && strcmp(id->str, b->node->id) &&
            tarn_name_valid(id->str, (size_t)id->len, TARN_NODE_ID_MAX))
            memcpy(b->others[b->nothers++].id, id->str, (size_t)id->len + 1);
    }
}

static int take_first(void *arg, size_t i, const redisReply *reply)
{
    struct beat *b = arg;
    int rc = tarn_redis_check(b->d, reply);
    if (rc)
        return rc;
    if (i == STATE)
        return tarn_state_read(b->d, reply, &b->asked->state);
    if (i == EPOCH)
        take_epoch(b, reply);
    else if (i == MEMORY)
        tarn_memory_read(reply, b->asked);
    else
        take_others(b, reply);
    return 0;
}

/* Second round trip: our place in the set, whether those nodes live, the pools, our record. */
static int append_second(void *arg, size_t i, const char *sha, struct tarn_resp *r)
{
    const struct beat *b = arg;
    char key[TARN_REDIS_KEY_TEXT];
    if (i == 0) {
        tarn_redis_key(b->d, key, "nodes");
        return tarn_resp_append_strs(r, "SADD", key, b->node->id, NULL);
    }
    if (i <= b->nothers) {
        tarn_redis_key(b->d, key, "node:%s", b->others[i - 1].id);
        return tarn_resp_append_strs(r, "PTTL", key, NULL);
    }
    i -= 1 + b->nothers;
    return i < b->node->npools ? append_pool(b, &b->node->pools[i], sha, r) : append_node(b, sha, r);
}

/* PTTL: -2 when there is none, -1 when it does not expire. */
static void take_life(struct beat *b, struct other *o, const redisReply *reply)
{
    struct tarn_beat *asked = b->asked;
    if (reply->type != REDIS_REPLY_INTEGER)
        return;
    o->gone = reply->integer == -2;
    b->ngone += o->gone;
    bool late = reply->integer >= 0 && (uint64_t)reply->integer < asked->heartbeat_ms;
    if (late && (!asked->expires_in_ms || (uint64_t)reply->integer < asked->expires_in_ms))
        asked->expires_in_ms = (uint32_t)reply->integer + 1;
}

static int take_second(void *arg, size_t i, const redisReply *reply)
{
    struct beat *b = arg;
    int rc = tarn_redis_check(b->d, reply);
    if (rc)
        return rc;
    if (i && i <= b->nothers)
        take_life(b, &b->others[i - 1], reply);
    if (i < 1 + b->nothers + b->node->npools)
        return 0;
    b->gone = reply->type == REDIS_REPLY_STRING && !strcmp(reply->str, "gone");
    if (!b->gone)
        take_epoch(b, reply);
    return 0;
}

/* --- nodes that have left ------------------------------------------------------------------------ */

static int append_forget(void *arg, size_t i, const char *sha, struct tarn_resp *r)
{
    const struct beat *b = arg;
    char set[TARN_REDIS_KEY_TEXT], record[TARN_REDIS_KEY_TEXT];
    size_t at = 0;
    while (!b->others[at].gone || i--)
        at++;
    tarn_redis_key(b->d, set, "nodes");
    tarn_redis_key(b->d, record, "node:%s", b->others[at].id);
    return tarn_resp_append_strs(r, "EVALSHA", sha, "2", set, record, b->others[at].id, NULL);
}

/* Several nodes may remove an id; only the one that finds it there sweeps. */
static int take_forgotten(void *arg, size_t i, const redisReply *reply)
{
    const struct beat *b = arg;
    (void)i;
    if (b->asked && reply->type == REDIS_REPLY_INTEGER && reply->integer)
        b->asked->left = true;
    return tarn_redis_check(b->d, reply);
}

static int forget(struct beat *b, uint64_t deadline_ns)
{
    struct tarn_script_pipeline p = {TARN_SCRIPT_FORGET, b->ngone, append_forget, take_forgotten, b};
    return tarn_script_run(b->d, deadline_ns, &p);
}

/* A record that is missing means something only in a calm directory, read after it. */
static int forget_the_dead(struct beat *b, uint64_t deadline_ns)
{
    struct tarn_directory_state s;
    if (!b->ngone)
        return 0;
    int rc = tarn_directory_look(b->d, deadline_ns, &s);
    if (rc || !tarn_directory_calm(&s, b->asked->heartbeat_ms, b->asked->ttl_ms))
        return rc;
    return forget(b, deadline_ns);
}

/* --- a whole beat ------------------------------------------------------------------------------- */

static int write_records(struct beat *b, uint64_t deadline_ns)
{
    struct tarn_script_pipeline second = {TARN_SCRIPT_REFRESH, 2 + b->nothers + b->node->npools,
                                          append_second, take_second, b};
    int rc = tarn_script_run(b->d, deadline_ns, &second);
    if (!rc && b->taken) /* just now: our pools must not be in the way of its own */
        rc = tarn_directory_leave(b->d, b->node, deadline_ns);
    return rc ? rc : forget_the_dead(b, deadline_ns);
}

static int refuse_heartbeat(const struct tarn_directory *d, const struct tarn_beat *asked)
{
    int ns = (int)strlen(d->prefix) - 6; /* of "tarn:<ns>:" */
    unsigned long long theirs = asked->state.heartbeat_ms;
    return tarn_fail(
        TARN_E_CONFIG,
        "--heartbeat-ms %u: the other nodes of namespace '%.*s' (redis at %s) beat every %llu ms: start with "
        "--heartbeat-ms %llu, or stop them first",
        asked->heartbeat_ms, ns, d->prefix + 5, d->uri.address, theirs, theirs);
}

int tarn_directory_beat(struct tarn_directory *d, struct tarn_beat *asked, uint64_t deadline_ns)
{
    struct beat b = {.d = d, .asked = asked, .node = asked->node};
    struct tarn_script_pipeline first = {TARN_SCRIPT_STATE, FIRST, append_first, take_first, &b};
    int rc = check_node(b.node);
    if (rc)
        return rc;
    asked->conflict = asked->other = asked->gone = asked->left = false;
    asked->expires_in_ms = 0;
    tarn_epoch_format(b.node->epoch, b.epoch);
    tarn_epoch_format(tarn_random64(), b.fresh);
    tarn_sentinel_confirm(d, TARN_CONFIRM_MS, deadline_ns);
    unsigned term = atomic_load(&d->term);
    rc = tarn_script_run(d, deadline_ns, &first);
    if (rc)
        return rc;
    asked->conflict = asked->state.heartbeat_ms != asked->heartbeat_ms;
    if (asked->conflict)
        return refuse_heartbeat(d, asked);
    asked->other = asked->known[0] && strcmp(asked->known, asked->state.id);
    if (!b.taken && !asked->other)
        rc = write_records(&b, deadline_ns);
    asked->gone = b.gone;
    asked->taken_epoch = b.taken;
    if (!rc)
        atomic_store(&d->beaten_term, term);
    return rc;
}

/* --- leave -------------------------------------------------------------------------------------- */

static int append_leave(void *arg, size_t i, const char *sha, struct tarn_resp *r)
{
    const struct beat *b = arg;
    char key[TARN_REDIS_KEY_TEXT];
    if (i < b->node->npools)
        tarn_redis_key(b->d, key, "pool:%s/%s", b->node->id, b->node->pools[i].name);
    else
        tarn_redis_key(b->d, key, "node:%s", b->node->id);
    return tarn_resp_append_strs(r, "EVALSHA", sha, "1", key, b->epoch, NULL);
}

static int take_left(void *arg, size_t i, const redisReply *reply)
{
    struct beat *b = arg;
    if (i == b->node->npools)
        b->dropped = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
    return tarn_redis_check(b->d, reply);
}

int tarn_directory_leave(struct tarn_directory *d, const struct tarn_node_record *n, uint64_t deadline_ns)
{
    struct beat b = {.d = d, .node = n};
    struct tarn_script_pipeline drop = {TARN_SCRIPT_DROP, n->npools + 1, append_leave, take_left, &b};
    int rc = check_node(n);
    if (rc)
        return rc;
    tarn_epoch_format(n->epoch, b.epoch);
    rc = tarn_script_run(d, deadline_ns, &drop);
    if (rc || !b.dropped)
        return rc;
    b.nothers = b.ngone = 1;
    b.others[0].gone = true;
    snprintf(b.others[0].id, sizeof b.others[0].id, "%s", n->id);
    return forget(&b, deadline_ns);
}
