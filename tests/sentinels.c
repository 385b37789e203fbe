/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sentinels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START_MS 30000
#define TRIES 8 /* to start the sentinels */

static void write_conf(struct harness *h, const struct sentinels *s, const char *path, uint16_t port)
{
    const struct harness_redis *primary = s->servers[0];
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "port %u\nbind 127.0.0.1\ndir %s\nsentinel monitor m 127.0.0.1 %u 2\n", port, harness_dir(h),
            primary->port);
    fprintf(f, "sentinel down-after-milliseconds m 1000\nsentinel failover-timeout m 5000\n");
    if (primary->password)
        fprintf(f, "sentinel auth-pass m %s\n", primary->password);
    if (s->password)
        fprintf(f, "requirepass %s\n", s->password);
    assert_int_equal(fclose(f), 0);
}

/* NULL: it does not answer yet. */
static redisReply *call(const struct sentinels *s, int i, const char *what)
{
    struct tarn_addr a;
    struct tarn_resp *r;
    redisReply *reply = NULL;
    assert_int_equal(tarn_addr_parse(s->addresses[i], "sentinel", &a), 0);
    if (tarn_resp_connect(&a, UINT64_MAX, NULL, &r))
        return NULL;
    if (s->password)
        freeReplyObject(harness_command(r, "AUTH", s->password, NULL));
    reply = harness_command(r, "SENTINEL", what, "m", NULL);
    tarn_resp_free(r);
    return reply;
}

/* False: its port was taken meanwhile. */
static bool start_sentinel(struct harness *h, struct sentinels *s, int i)
{
    char name[16], file[24];
    uint16_t port = harness_free_port();
    redisReply *pong = NULL;
    snprintf(name, sizeof name, "sentinel%d", i);
    snprintf(file, sizeof file, "%s.conf", name);
    const char *path = harness_path(h, file);
    write_conf(h, s, path, port);
    const char *argv[] = {"redis-server", path, "--sentinel", NULL};
    s->processes[i] = harness_spawn(h, name, argv);
    snprintf(s->addresses[i], sizeof s->addresses[i], "127.0.0.1:%u", port);
    HARNESS_UNTIL(!harness_running(s->processes[i]) || (pong = call(s, i, "MASTER")), START_MS);
    if (pong)
        freeReplyObject(pong);
    return harness_running(s->processes[i]);
}

static bool has(const redisReply *fields, const char *name, const char *value)
{
    for (size_t i = 0; i + 1 < fields->elements; i += 2)
        if (!strcmp(fields->element[i]->str, name))
            return !strcmp(fields->element[i + 1]->str, value);
    return false;
}

static bool knows_all(const struct sentinels *s, int i)
{
    redisReply *r = call(s, i, "MASTER");
    bool all = r && r->type == REDIS_REPLY_ARRAY && has(r, "num-other-sentinels", "2") &&
               has(r, "num-slaves", "1") && has(r, "flags", "master");
    if (r)
        freeReplyObject(r);
    return all;
}

static bool is_linked(const struct harness_redis *replica)
{
    redisReply *r = harness_redis_call(replica, "INFO", "replication", NULL);
    bool linked = strstr(r->str, "master_link_status:up");
    freeReplyObject(r);
    return linked;
}

static void start_servers(struct harness *h, struct sentinels *s, const char *password)
{
    char port[8];
    for (int i = 0; i < 2; i++) {
        s->servers[i] = harness_redis_start_new(h, password);
        if (password)
            freeReplyObject(harness_redis_call(s->servers[i], "CONFIG", "SET", "masterauth", password, NULL));
    }
    snprintf(port, sizeof port, "%u", s->servers[0]->port);
    freeReplyObject(harness_redis_call(s->servers[1], "REPLICAOF", "127.0.0.1", port, NULL));
    HARNESS_UNTIL(is_linked(s->servers[1]), START_MS);
}

struct sentinels *sentinels_start(struct harness *h, const char *redis_password, const char *password)
{
    static struct sentinels all; /* a test program has one at a time */
    struct sentinels *s = &all;
    *s = (struct sentinels){.password = password};
    start_servers(h, s, redis_password);
    for (int i = 0, tries = 0; i < SENTINELS; tries++) {
        assert_true(tries < TRIES);
        if (!start_sentinel(h, s, i))
            continue;
        snprintf(s->hosts + strlen(s->hosts), sizeof s->hosts - strlen(s->hosts), "%s%s", i ? "," : "",
                 s->addresses[i]);
        i++;
    }
    snprintf(s->redis.url, sizeof s->redis.url, "redis+sentinel://%s%s%s%s/m%s%s", redis_password ? ":" : "",
             redis_password ? redis_password : "", redis_password ? "@" : "", s->hosts,
             password ? "?sentinel_password=" : "", password ? password : "");
    for (int i = 0; i < SENTINELS; i++)
        HARNESS_UNTIL(knows_all(s, i), START_MS);
    return s;
}

int sentinels_name(const struct sentinels *s)
{
    redisReply *r = NULL;
    for (int i = 0; i < SENTINELS && !r; i++)
        r = harness_running(s->processes[i]) ? call(s, i, "GET-MASTER-ADDR-BY-NAME") : NULL;
    assert_true(r && r->type == REDIS_REPLY_ARRAY && r->elements == 2);
    int at = atoi(r->element[1]->str) == s->servers[1]->port;
    freeReplyObject(r);
    return at;
}

bool sentinels_role_is(const struct sentinels *s, int server, const char *role)
{
    redisReply *r = harness_redis_call(s->servers[server], "ROLE", NULL);
    bool is = r->type == REDIS_REPLY_ARRAY && r->elements && !strcmp(r->element[0]->str, role);
    freeReplyObject(r);
    return is;
}
