/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What readers' leases are made of (docs/consistency.md): nodes' records, how long they would still live, and
 * whether nodes have beaten at all. The life is asked for before the record: so it is that record's, or an
 * earlier and shorter one.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "metadata/records.h"
#include "metadata/redis.h"

#define EACH 2 /* questions about a node */

struct asking {
    struct tarn_directory *d;
    struct tarn_lease_answer *answers;
    size_t n;
    struct tarn_pulse pulse;
};

static int append_key(struct tarn_resp *r, const char *command, const struct tarn_directory *d,
                      const char *what, const char *id)
{
    char key[TARN_REDIS_PREFIX + 16 + TARN_NODE_ID_MAX];
    snprintf(key, sizeof key, "%s%s%s", d->prefix, what, id);
    return tarn_resp_append_strs(r, command, key, NULL);
}

static int append(void *arg, struct tarn_resp *r)
{
    const struct asking *a = arg;
    int rc = 0;
    for (size_t i = 0; i < a->n && !rc; i++) {
        rc = append_key(r, "PTTL", a->d, "node:", a->answers[i].id);
        if (!rc)
            rc = append_key(r, "HGETALL", a->d, "node:", a->answers[i].id);
    }
    if (!rc)
        rc = append_key(r, "HGETALL", a->d, "directory", "");
    return rc ? rc : tarn_resp_append_strs(r, "TIME", NULL);
}

static void take_record(struct tarn_lease_answer *a, const redisReply *reply)
{
    struct tarn_text texts[TARN_TEXTS_MAX];
    struct tarn_node_record node = {.epoch = 0};
    char pools[TARN_POOL_LIST];
    size_t n;
    a->epoch = 0;
    if (tarn_reply_texts(reply, texts, &n) || n == 0 || tarn_node_parse(texts, n, &node, pools))
        return;
    a->epoch = node.epoch;
    a->returning = strcmp(node.state, "returning") == 0;
    a->refuses = node.refuses;
}

static void take_pulse(struct tarn_pulse *p, const redisReply *reply)
{
    struct tarn_directory_state s = {.beat_ms = 0};
    tarn_state_fields(reply, 0, &s);
    p->beat_ms = s.beat_ms;
    p->silent_ms = s.silent_ms;
    p->resumed_ms = s.resumed_ms;
    p->heartbeat_ms = s.heartbeat_ms;
}

static int take(void *arg, size_t i, const redisReply *reply)
{
    struct asking *a = arg;
    bool damaged = reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "WRONGTYPE", 9) == 0;
    int rc = damaged ? 0 : tarn_redis_check(a->d, reply);
    if (rc)
        return rc;
    if (i == EACH * a->n)
        take_pulse(&a->pulse, reply);
    else if (i > EACH * a->n)
        a->pulse.now_ms = tarn_time_ms(reply);
    else if (i % EACH == 0)
        a->answers[i / EACH].left_ms = tarn_left_of(reply);
    else
        take_record(&a->answers[i / EACH], reply);
    return 0;
}

int tarn_directory_leases(struct tarn_directory *d, struct tarn_lease_answer *answers, size_t n,
                          struct tarn_pulse *pulse, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct asking a = {.d = d, .answers = answers, .n = n};
    struct tarn_pipeline p = {
        .n = EACH * n + 2, .append = append, .reply = take, .arg = &a, .cancel = cancel, .aside = true};
    int rc = tarn_redis_run(d, deadline_ns, &p);
    if (rc == 0)
        *pulse = a.pulse;
    return rc;
}
