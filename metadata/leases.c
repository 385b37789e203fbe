/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What readers' leases are made of (docs/consistency.md): nodes' records, their remaining life, and whether
 * nodes have beaten at all. The life is asked for first, so it is that record's, or an earlier record's and
 * shorter.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "metadata/records.h"
#include "metadata/redis.h"

#define EACH 2 /* questions about a node */

struct asking {
    struct tarn_directory *d;
    struct tarn_read_lease_answer *answers;
    size_t n;
    struct tarn_directory_state state;
};

static int append(void *arg, size_t i, struct tarn_resp *r)
{
    const struct asking *a = arg;
    char key[TARN_REDIS_KEY_TEXT];
    if (i > EACH * a->n)
        return tarn_resp_append_strs(r, "TIME", NULL);
    if (i == EACH * a->n)
        tarn_redis_key(a->d, key, "directory");
    else
        tarn_redis_key(a->d, key, "node:%s", a->answers[i / EACH].id);
    return tarn_resp_append_strs(r, i < EACH * a->n && i % EACH == 0 ? "PTTL" : "HGETALL", key, NULL);
}

static void take_record(struct tarn_read_lease_answer *a, const redisReply *reply)
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

static int take(void *arg, size_t i, const redisReply *reply)
{
    struct asking *a = arg;
    int rc = tarn_reply_refuses(reply, "WRONGTYPE") ? 0 : tarn_redis_check(a->d, reply);
    if (rc)
        return rc;
    if (i == EACH * a->n)
        tarn_state_fields(reply, 0, &a->state);
    else if (i > EACH * a->n)
        a->state.now_ms = tarn_time_ms(reply);
    else if (i % EACH == 0)
        a->answers[i / EACH].left_ms = tarn_left_of(reply);
    else
        take_record(&a->answers[i / EACH], reply);
    return 0;
}

int tarn_directory_leases(struct tarn_directory *d, struct tarn_read_lease_answer *answers, size_t n,
                          struct tarn_directory_state *state, uint64_t deadline_ns,
                          struct tarn_cancel *cancel)
{
    struct asking a = {.d = d, .answers = answers, .n = n};
    struct tarn_pipeline p = {
        .n = EACH * n + 2, .append = append, .reply = take, .arg = &a, .cancel = cancel, .aside = true};
    tarn_sentinel_confirm(d, TARN_CONFIRM_MS, deadline_ns);
    int rc = tarn_redis_run(d, deadline_ns, &p);
    if (rc == 0)
        *state = a.state;
    return rc;
}
