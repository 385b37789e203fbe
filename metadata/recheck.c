/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Displaced copies: recheck sets, which tell a node what to free, and whether anybody can still read a copy
 * (docs/consistency.md, "Displacing copies").
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "metadata/records.h"
#include "metadata/redis.h"

#define MEMBER_TEXT TARN_DISPLACED_FIELD

/* "pool:slot:gen": what follows the node in the name of a displaced copy. */
static const char *member(const struct tarn_location *l, char text[MEMBER_TEXT])
{
    tarn_displaced_field(l, text);
    return strchr(text, '/') + 1;
}

/* --- adding ------------------------------------------------------------------------------------- */

struct additions {
    struct tarn_directory *d;
    const struct tarn_location *l;
};

static int append_addition(void *arg, size_t i, struct tarn_resp *r)
{
    const struct additions *s = arg;
    const struct tarn_location *l = &s->l[i / 2];
    char key[TARN_REDIS_KEY_TEXT], text[MEMBER_TEXT];
    tarn_redis_key(s->d, key, "recheck:%s", l->node);
    if (i % 2 == 0)
        return tarn_resp_append_strs(r, "SADD", key, member(l, text), NULL);
    struct tarn_command *expire = tarn_resp_command(r, "PEXPIRE", key, NULL);
    tarn_command_u64(expire, TARN_DISPLACED_EXPIRY_MS);
    return tarn_resp_append_command(r, expire);
}

static int take_added(void *arg, size_t i, const redisReply *reply)
{
    const struct additions *s = arg;
    (void)i;
    return tarn_redis_check(s->d, reply);
}

int tarn_directory_recheck_add(struct tarn_directory *d, const struct tarn_location *l, size_t n,
                               uint64_t deadline_ns)
{
    struct additions s = {d, l};
    struct tarn_pipeline p = {
        .n = 2 * n, .append = append_addition, .reply = take_added, .arg = &s, .writes = true};
    return n ? tarn_redis_run(d, deadline_ns, &p) : 0;
}

/* --- reading ------------------------------------------------------------------------------------ */

struct recheck {
    struct tarn_directory *d;
    const char *node;
    const struct tarn_location *done;
    size_t ndone;
    struct tarn_location *found;
    size_t nfound, room;
};

/* One SREM a member, so that any number fits. */
static int append_recheck(void *arg, size_t i, struct tarn_resp *r)
{
    struct recheck *s = arg;
    char key[TARN_REDIS_KEY_TEXT], text[MEMBER_TEXT];
    tarn_redis_key(s->d, key, "recheck:%s", s->node);
    if (i < s->ndone)
        return tarn_resp_append_strs(r, "SREM", key, member(&s->done[i], text), NULL);
    struct tarn_command *c = tarn_resp_command(r, "SRANDMEMBER", key, NULL);
    tarn_command_u64(c, s->room);
    return tarn_resp_append_command(r, c);
}

/* Skips damaged members. */
static int take_recheck(void *arg, size_t i, const redisReply *reply)
{
    struct recheck *s = arg;
    int rc = i < s->ndone ? tarn_redis_check(s->d, reply) : tarn_redis_check_array(s->d, reply);
    if (rc || i < s->ndone)
        return rc;
    s->nfound = 0;
    for (size_t k = 0; k < reply->elements && s->nfound < s->room; k++) {
        const redisReply *e = reply->element[k];
        struct tarn_location *l = &s->found[s->nfound];
        *l = (struct tarn_location){.offset = 0};
        snprintf(l->node, sizeof l->node, "%s", s->node);
        if (e->type == REDIS_REPLY_STRING && !tarn_member_parse((struct tarn_text){e->str, e->len}, l))
            s->nfound++;
    }
    return 0;
}

int tarn_directory_recheck(struct tarn_directory *d, const char *node, const struct tarn_location *done,
                           size_t ndone, struct tarn_location *found, size_t *n_p, uint64_t deadline_ns)
{
    struct recheck s = {.d = d, .node = node, .done = done, .ndone = ndone, .found = found, .room = *n_p};
    struct tarn_pipeline p = {
        .n = ndone + 1, .append = append_recheck, .reply = take_recheck, .arg = &s, .writes = ndone > 0};
    int rc = tarn_redis_run(d, deadline_ns, &p);
    *n_p = rc ? 0 : s.nfound;
    return rc;
}

/* --- whether anybody can still read a copy ------------------------------------------------------- */

struct look {
    struct tarn_directory *d;
    struct tarn_copy_seen *copies;
};

static int append_listed(const struct tarn_directory *d, const char *id, struct tarn_resp *r)
{
    char key[TARN_REDIS_KEY_TEXT];
    tarn_redis_key(d, key, "node:%s", id);
    return tarn_resp_append_strs(r, "HGET", key, "epoch", NULL);
}

static int append_look(void *arg, size_t i, struct tarn_resp *r)
{
    const struct look *s = arg;
    const struct tarn_copy_seen *c = &s->copies[i / 2];
    char key[TARN_OBJECT_KEY_TEXT], place[TARN_LOCATION_FIELD], name[TARN_DISPLACED_FIELD];
    if (i % 2)
        return append_listed(s->d, c->copy.node, r);
    tarn_location_field(&c->copy, place);
    tarn_displaced_field(&c->copy, name);
    tarn_object_key(s->d, &c->key, key);
    return tarn_resp_append_strs(r, "HMGET", key, place, name, NULL);
}

static int take_names(const struct look *s, struct tarn_copy_seen *c, const redisReply *reply)
{
    char value[TARN_LOCATION_VALUE];
    c->located = c->displaced = false;
    if (tarn_reply_refuses(reply, "WRONGTYPE")) /* no hash: it names nothing */
        return 0;
    int rc = tarn_redis_check_array(s->d, reply);
    if (rc)
        return rc;
    if (reply->elements != 2)
        return tarn_fail(TARN_E_DIRECTORY,
                         "redis at %s: HMGET of two fields has answered with %zu: is this a proxy?",
                         s->d->uri.address, reply->elements);
    const redisReply *place = reply->element[0], *name = reply->element[1];
    tarn_location_value(&c->copy, value);
    c->located = place->type == REDIS_REPLY_STRING && !strcmp(place->str, value);
    c->displaced = name->type == REDIS_REPLY_STRING;
    return 0;
}

/* A record with a damaged epoch counts as listed. */
static int take_listed(const struct look *s, struct tarn_copy_seen *c, const redisReply *reply)
{
    uint64_t epoch;
    int rc = tarn_redis_check(s->d, reply);
    if (rc)
        return rc;
    c->node = reply->type == REDIS_REPLY_NIL ? TARN_NOT_LISTED : TARN_LISTED;
    if (reply->type == REDIS_REPLY_STRING &&
        !tarn_u64_parse(reply->str, reply->len, 16, UINT64_MAX, &epoch) &&
        (uint32_t)epoch != (uint32_t)(c->copy.gen >> 32))
        c->node = TARN_LISTED_ANEW;
    return 0;
}

static int take_look(void *arg, size_t i, const redisReply *reply)
{
    const struct look *s = arg;
    return i % 2 ? take_listed(s, &s->copies[i / 2], reply) : take_names(s, &s->copies[i / 2], reply);
}

int tarn_directory_look_again(struct tarn_directory *d, struct tarn_copy_seen *copies, size_t n,
                              uint64_t deadline_ns)
{
    struct look s = {d, copies};
    struct tarn_pipeline p = {.n = 2 * n, .append = append_look, .reply = take_look, .arg = &s};
    return n ? tarn_redis_run(d, deadline_ns, &p) : 0;
}

/* --- whether nodes are listed --------------------------------------------------------------------- */

struct listed {
    struct tarn_directory *d;
    const char *const *ids;
    bool *listed;
};

static int append_id(void *arg, size_t i, struct tarn_resp *r)
{
    const struct listed *s = arg;
    return append_listed(s->d, s->ids[i], r);
}

static int take_node(void *arg, size_t i, const redisReply *reply)
{
    const struct listed *s = arg;
    s->listed[i] = reply->type != REDIS_REPLY_NIL;
    return tarn_redis_check(s->d, reply);
}

int tarn_directory_listed(struct tarn_directory *d, const char *const *ids, size_t n, bool *listed,
                          uint64_t deadline_ns)
{
    struct listed s = {d, ids, listed};
    struct tarn_pipeline p = {.n = n, .append = append_id, .reply = take_node, .arg = &s};
    return n ? tarn_redis_run(d, deadline_ns, &p) : 0;
}
