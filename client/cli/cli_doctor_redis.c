/* SPDX-License-Identifier: Apache-2.0 */
/* tarn doctor's checks of Redis: whether it can be the directory, and its clock. */
#include "client/cli/cli_checks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "client/setting.h"
#include "metadata/redis.h" /* commands about the server itself */

/* --- the server --------------------------------------------------------------------------------- */

static bool find_program(const char *name, char out[300])
{
    const char *path = tarn_env_raw("PATH");
    char *copy = strdup(path ? path : "/usr/bin:/bin"), *rest = copy;
    bool found = false;

    for (char *dir; copy && !found && (dir = strsep(&rest, ":"));) {
        int n = snprintf(out, 300, "%s/%s", *dir ? dir : ".", name);
        found = n < 300 && access(out, X_OK) == 0;
    }
    free(copy);
    return found;
}

static void check_role(struct doctor *d, const redisReply *info)
{
    char role[64] = "?", host[128] = "?", port[16] = "?", remedy[320];

    tarn_info_value(info, "\nrole:", role, sizeof role);
    tarn_info_value(info, "\nmaster_host:", host, sizeof host);
    tarn_info_value(info, "\nmaster_port:", port, sizeof port);
    snprintf(
        remedy, sizeof remedy,
        "it is a replica: what nodes write does not arrive there, or late. Give the address of the primary: "
        "redis://%s:%s",
        host, port);
    bool replica = strcmp(role, "slave") == 0;
    doctor_check(d, "Redis role", replica ? MISSING : GOOD, "primary", remedy,
                 replica ? "replica of %s:%s" : "primary", host, port);
}

static void check_mode(struct doctor *d, const redisReply *info)
{
    char mode[64] = "standalone";

    tarn_info_value(info, "\nredis_mode:", mode, sizeof mode);
    bool cluster = strcmp(mode, "cluster") == 0, sentinel = strcmp(mode, "sentinel") == 0;
    doctor_check(
        d, "Redis mode", cluster || sentinel ? MISSING : GOOD, "standalone",
        sentinel ? "it is a Sentinel, which has no data: give the address that `redis-cli -p PORT SENTINEL "
                   "get-master-addr-by-name NAME` prints there"
                 : "tarn's scripts touch keys of several hash slots: give a Redis with cluster-enabled no",
        "%s", mode);
    if (!sentinel)
        check_role(d, info);
}

static void check_info(struct doctor *d, const redisReply *info)
{
    char version[64] = "?", policy[64] = "?";

    tarn_info_value(info, "redis_version:", version, sizeof version);
    tarn_info_value(info, "maxmemory_policy:", policy, sizeof policy);
    doctor_check(d, "Redis version", strtol(version, NULL, 10) >= 5 ? GOOD : MISSING, "5.0",
                 "scripts and pipelines are tested with Redis 5 and later: use a newer one", "%s", version);
    check_mode(d, info);
    bool keeps = strcmp(policy, "noeviction") == 0;
    doctor_check(
        d, "Redis eviction", keeps ? GOOD : OPTIONAL, "noeviction",
        "Redis may drop records of tensors that are still stored; nodes put them back, gets miss until then: "
        "CONFIG SET maxmemory-policy noeviction",
        "%s", policy);
}

struct asking {
    struct doctor *d;
    uint64_t asked_ms;
};

static int append_question(void *arg, size_t i, struct tarn_resp *r)
{
    struct asking *a = arg;

    if (i == 0)
        a->asked_ms = tarn_unix_ms();
    return tarn_resp_append_strs(r, i == 0 ? "TIME" : "INFO", NULL);
}

static int take_answer(void *arg, size_t i, const redisReply *reply)
{
    struct asking *a = arg;
    uint64_t told_ms = tarn_time_ms(reply);

    if (told_ms) /* a Sentinel has no TIME */
        doctor_clock(a->d, "Redis", told_ms, a->asked_ms);
    if (i == 1 && reply->type == REDIS_REPLY_STRING)
        check_info(a->d, reply);
    else if (i == 1)
        doctor_check(a->d, "Redis version", OPTIONAL, "5.0", "allow this user the command INFO",
                     "INFO is refused");
    return 0;
}

static bool is_closed(const char *uri, uint64_t deadline_ns)
{
    struct tarn_redis_uri u;
    struct tarn_resp *r;

    if (tarn_redis_uri_parse(uri, &u) != 0)
        return false;
    int rc = tarn_resp_connect(u.sentinels.n ? &u.sentinels.addrs[0] : &u.addr, deadline_ns, NULL, &r);
    if (rc == 0)
        tarn_resp_free(r);
    tarn_redis_uri_free(&u);
    return rc == TARN_E_NODE_DOWN;
}

bool doctor_redis(struct doctor *d)
{
    const char *uri = tarn_setting(d->c->common->redis, "TARN_REDIS");
    struct tarn_reason why;
    struct tarn_directory *dir = NULL;
    struct asking asking = {.d = d};
    struct tarn_pipeline p = {.n = 2, .append = append_question, .reply = take_answer, .arg = &asking};
    uint64_t deadline_ns = tarn_deadline(cli_timeout(d->c, 0));
    char program[300], primary[TARN_PRIMARY_TEXT];
    bool found = find_program("redis-server", program);
    size_t missing = d->missing;

    doctor_check(d, "redis-server", found ? GOOD : OPTIONAL, "to run without a Redis",
                 "install it (apt-get install redis-server), or give tarnd --redis", "%s",
                 found ? program : "not in PATH");
    tarn_reason_keep(&why, tarn_directory_open(uri, d->c->common->ns, NULL, deadline_ns, NULL, &dir));
    if (why.code != 0) {
        doctor_check(
            d, "Redis", MISSING, "the directory",
            is_closed(uri, deadline_ns)
                ? "start redis-server, or tarnd without --redis, which starts one and prints its address; "
                  "then give --redis, or set TARN_REDIS"
                : "do what the sentence says",
            "%s", why.text);
        return false;
    }
    tarn_directory_primary(dir, primary);
    doctor_check(d, "Redis", GOOD, "the directory", "", "%s%s%s", tarn_directory_address(dir),
                 primary[0] ? ": now at " : "", primary);
    if (tarn_redis_run(dir, deadline_ns, &p) != 0)
        doctor_check(d, "Redis version", MISSING, "5.0", "see the sentence", "%s", tarn_last_error());
    tarn_directory_close(dir);
    return d->missing == missing;
}
