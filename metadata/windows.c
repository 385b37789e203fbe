/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of leases: "tarn:<ns>:w:<name>" holds a descriptor. Nodes write them for their clients and let them
 * expire; anybody reads them.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
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
