/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of leases: "tarn:<ns>:w:<name>" holds a descriptor. Nodes write them for their clients and let them
 * expire; anybody reads them.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "metadata/records.h"
#include "metadata/redis.h"

struct names {
    struct tarn_directory *d;
    struct tarn_window_name *names;
};

static int append(void *arg, size_t i, const char *sha, struct tarn_resp *r)
{
    const struct names *s = arg;
    char key[TARN_REDIS_KEY_TEXT];
    tarn_redis_key(s->d, key, "w:%s", s->names[i].name);
    struct tarn_command *c = tarn_resp_command(r, "EVALSHA", sha, "1", key, s->names[i].descriptor, NULL);
    tarn_command_u64(c, s->names[i].life_ms);
    return tarn_resp_append_command(r, c);
}

static int take(void *arg, size_t i, const redisReply *reply)
{
    const struct names *s = arg;
    int rc = tarn_redis_check(s->d, reply);
    if (!rc)
        s->names[i].status = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1 ? 0 : TARN_E_EXISTS;
    return rc;
}

int tarn_directory_name(struct tarn_directory *d, struct tarn_window_name *names, size_t n,
                        uint64_t deadline_ns)
{
    struct names s = {d, names};
    struct tarn_script_pipeline p = {TARN_SCRIPT_NAME, n, append, take, &s};
    return n ? tarn_script_run(d, deadline_ns, &p) : 0;
}

/* --- reading ------------------------------------------------------------------------------------ */

struct named {
    struct tarn_directory *d;
    const char *name;
    char *text;
};

static int append_get(void *arg, size_t i, struct tarn_resp *r)
{
    const struct named *s = arg;
    char key[TARN_REDIS_KEY_TEXT];
    (void)i;
    tarn_redis_key(s->d, key, "w:%s", s->name);
    return tarn_resp_append_strs(r, "GET", key, NULL);
}

static int take_get(void *arg, size_t i, const redisReply *reply)
{
    const struct named *s = arg;
    int rc = tarn_redis_check(s->d, reply);
    (void)i;
    if (rc)
        return rc;
    if (reply->type == REDIS_REPLY_NIL)
        return tarn_fail(
            TARN_E_NOT_FOUND,
            "window \"%s\": nobody lends one of this name just now: ask its lender to publish it", s->name);
    if (reply->type != REDIS_REPLY_STRING || reply->len >= TARN_DESCRIPTOR_TEXT)
        return tarn_fail(TARN_E_FORMAT, "window \"%s\": its entry in Redis is no descriptor", s->name);
    memcpy(s->text, reply->str, reply->len + 1);
    return 0;
}

int tarn_directory_named(struct tarn_directory *d, const char *name, uint64_t deadline_ns,
                         struct tarn_cancel *cancel, char text[TARN_DESCRIPTOR_TEXT])
{
    struct named s = {d, name, text};
    struct tarn_pipeline p = {.n = 1, .append = append_get, .reply = take_get, .arg = &s, .cancel = cancel};
    return tarn_redis_run(d, deadline_ns, &p);
}

/* --- listing ------------------------------------------------------------------------------------ */

#define PAGE "1000"

/* First the names, in pages of SCAN; then what each has. */
struct list {
    struct tarn_directory *d;
    struct tarn_buf pattern, names; /* names: each ended by a NUL */
    size_t n;
    uint64_t cursor;
    const char *at; /* in names: the one that comes next */
    uint64_t left_ms;
    tarn_window_name_fn fn;
    void *arg;
};

static int append_scan(void *arg, size_t i, struct tarn_resp *r)
{
    const struct list *l = arg;
    struct tarn_command *c = tarn_resp_command(r, "SCAN", NULL);
    (void)i;
    tarn_command_u64(c, l->cursor);
    tarn_command_strs(c, "MATCH", l->pattern.data, "COUNT", PAGE, NULL);
    return tarn_resp_append_command(r, c);
}

static void take_name(struct list *l, const redisReply *key)
{
    size_t prefix = strlen(l->d->prefix) + 2;
    if (key->type != REDIS_REPLY_STRING || key->len <= prefix ||
        !tarn_name_valid(key->str + prefix, key->len - prefix, TARN_NODE_ID_MAX))
        return;
    tarn_buf_add(&l->names, key->str + prefix, key->len - prefix + 1);
    l->n++;
}

static int take_scan(void *arg, size_t i, const redisReply *reply)
{
    struct list *l = arg;
    int rc = tarn_redis_check_array(l->d, reply);
    (void)i;
    if (rc)
        return rc;
    if (reply->elements != 2 || reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_ARRAY ||
        tarn_u64_parse(reply->element[0]->str, reply->element[0]->len, 10, UINT64_MAX, &l->cursor))
        return tarn_fail(TARN_E_DIRECTORY, "redis at %s: not an answer to SCAN: is this a proxy?",
                         l->d->uri.address);
    for (size_t k = 0; k < reply->element[1]->elements; k++)
        take_name(l, reply->element[1]->element[k]);
    return l->names.failed ? tarn_fail(TARN_E_NO_MEMORY, "windows: no memory for %zu names", l->n) : 0;
}

/* The name of command i; two commands ask about each. */
static const char *name_at(struct list *l, size_t i)
{
    const char *name = i ? l->at : l->names.data;
    l->at = i % 2 ? name + strlen(name) + 1 : name;
    return name;
}

static int append_entry(void *arg, size_t i, struct tarn_resp *r)
{
    struct list *l = arg;
    char key[TARN_REDIS_KEY_TEXT];
    tarn_redis_key(l->d, key, "w:%s", name_at(l, i));
    return tarn_resp_append_strs(r, i % 2 ? "GET" : "PTTL", key, NULL);
}

/* What has gone meanwhile is left out. */
static int take_entry(void *arg, size_t i, const redisReply *reply)
{
    struct list *l = arg;
    const char *name = name_at(l, i);
    if (tarn_reply_refuses(reply, "WRONGTYPE"))
        return l->fn(l->arg, name, "", l->left_ms);
    int rc = tarn_redis_check(l->d, reply);
    if (rc)
        return rc;
    if (i % 2 == 0)
        l->left_ms = tarn_left_of(reply);
    return i % 2 && reply->type == REDIS_REPLY_STRING ? l->fn(l->arg, name, reply->str, l->left_ms) : 0;
}

static int list(struct list *l, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_pipeline scan = {
        .n = 1, .append = append_scan, .reply = take_scan, .arg = l, .cancel = cancel};
    int rc;
    do
        rc = tarn_redis_run(l->d, deadline_ns, &scan);
    while (!rc && l->cursor);
    if (rc || !l->n)
        return rc;
    struct tarn_pipeline entries = {
        .n = 2 * l->n, .append = append_entry, .reply = take_entry, .arg = l, .cancel = cancel};
    return tarn_redis_run(l->d, deadline_ns, &entries);
}

int tarn_directory_names(struct tarn_directory *d, const char *match, uint64_t deadline_ns,
                         struct tarn_cancel *cancel, tarn_window_name_fn fn, void *arg)
{
    struct list l = {.d = d, .fn = fn, .arg = arg};
    tarn_buf_printf(&l.pattern, "%sw:%s", d->prefix, match ? match : "*");
    int rc = l.pattern.failed ? tarn_fail(TARN_E_NO_MEMORY, "windows: no memory for a pattern")
                              : list(&l, deadline_ns, cancel);
    tarn_buf_free(&l.pattern);
    tarn_buf_free(&l.names);
    return rc;
}
