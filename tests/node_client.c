/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/node_client.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

static long long number(const redisReply *r)
{
    return r->type == REDIS_REPLY_INTEGER ? r->integer : strtoll(r->str, NULL, 10);
}

struct node_client node_connect(const char *address)
{
    struct node_client c = {.resp = harness_connect(address)};
    snprintf(c.session, sizeof(c.session), "%016" PRIx64, tarn_random64());
    redisReply *reply = harness_command(c.resp, "HELLO", "1", c.session, NULL);
    if (reply->type != REDIS_REPLY_ARRAY)
        fail_msg("HELLO: %s", reply->str);
    for (size_t i = 0; i + 1 < reply->elements; i += 2)
        if (strcmp(reply->element[i]->str, "now_ns") == 0)
            c.tick_base_ns = tarn_now_ns() - (uint64_t)number(reply->element[i + 1]);
    freeReplyObject(reply);
    return c;
}

const char *node_deadline(const struct node_client *c, unsigned timeout_ms)
{
    static char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, tarn_deadline(timeout_ms) - c->tick_base_ns);
    return text;
}

void node_close(struct node_client *c)
{
    tarn_resp_free(c->resp);
    c->resp = NULL;
}

/* Keeps one text for the caller. */
static const char *keep(const char *text)
{
    static char kept[512];
    snprintf(kept, sizeof(kept), "%s", text);
    return kept;
}

const char *node_try_reserve(struct node_client *c, const char *mode, const char *key, unsigned bytes,
                             struct node_grant *g)
{
    char size[16], version[24];
    const char *error = NULL;
    snprintf(size, sizeof(size), "%u", bytes);
    snprintf(version, sizeof(version), "%" PRIu64, tarn_random64() >> 1);
    redisReply *reply =
        harness_command(c->resp, "RESERVE", "*", mode, version, "0", "0", key, size, "u8", size, NULL);
    redisReply *item = reply->type == REDIS_REPLY_ARRAY ? reply->element[0] : reply;
    if (item->type == REDIS_REPLY_ERROR) {
        error = keep(item->str);
    } else {
        assert_int_equal(item->elements, 4);
        snprintf(g->pool, sizeof(g->pool), "%lld", item->element[0]->integer);
        g->offset = (unsigned long long)item->element[1]->integer;
        snprintf(g->slot, sizeof(g->slot), "%lld", item->element[2]->integer);
        snprintf(g->gen, sizeof(g->gen), "%s", item->element[3]->str);
    }
    freeReplyObject(reply);
    return error;
}

struct node_grant node_reserve(struct node_client *c, const char *mode, const char *key, unsigned bytes)
{
    struct node_grant g;
    const char *error = node_try_reserve(c, mode, key, bytes, &g);
    if (error)
        fail_msg("RESERVE %s: %s", key, error);
    return g;
}

redisReply *node_commit(struct node_client *c, const struct node_grant *g, const char *timeout_ms)
{
    const char *deadline = node_deadline(c, (unsigned)strtoul(timeout_ms, NULL, 10));
    redisReply *reply = harness_command(c->resp, "COMMIT", deadline, "put", g->pool, g->slot, g->gen, NULL);
    if (reply->type != REDIS_REPLY_ARRAY)
        return reply;
    assert_int_equal(reply->elements, 1);
    redisReply *item = reply->element[0];
    reply->element[0] = NULL;
    reply->elements = 0;
    freeReplyObject(reply);
    return item;
}

const char *node_put(struct node_client *c, const char *mode, const char *key, unsigned bytes)
{
    struct node_grant g;
    const char *error = node_try_reserve(c, mode, key, bytes, &g);
    if (error)
        return error;
    redisReply *reply = node_commit(c, &g, "5000");
    error = reply->type == REDIS_REPLY_ERROR ? keep(reply->str) : "";
    freeReplyObject(reply);
    return error;
}

enum { BATCH = 256 };

static redisReply *call(struct node_client *c, const char **argv, int argc)
{
    redisReply *reply = NULL;
    if (tarn_resp_call(c->resp, tarn_deadline(HARNESS_TIMEOUT_MS), argc, argv, NULL, &reply))
        fail_msg("%s: %s", argv[0], tarn_last_error());
    if (reply->type != REDIS_REPLY_ARRAY)
        fail_msg("%s: %s", argv[0], reply->str);
    for (size_t i = 0; i < reply->elements; i++) {
        if (reply->element[i]->type == REDIS_REPLY_ERROR)
            fail_msg("%s: item %zu: %s", argv[0], i, reply->element[i]->str);
    }
    return reply;
}

static void put_batch(struct node_client *c, const char *prefix, int first, int n, const char *size)
{
    static char keys[BATCH][64], slots[BATCH][2][24];
    const char *reserve[6 + 4 * BATCH] = {"RESERVE", "*", "absent", "1234567", "0", "0"};
    const char *commit[3 + 3 * BATCH] = {"COMMIT", node_deadline(c, 10000), "put"};
    for (int i = 0; i < n; i++) {
        const char **item = reserve + 6 + 4 * i;
        snprintf(keys[i], sizeof(keys[i]), "%s%d", prefix, first + i);
        item[0] = keys[i], item[1] = item[3] = size, item[2] = "u8";
    }
    redisReply *grants = call(c, reserve, 6 + 4 * n);
    for (int i = 0; i < n; i++) {
        const char **item = commit + 3 + 3 * i;
        redisReply **g = grants->element[i]->element;
        snprintf(slots[i][0], sizeof(slots[i][0]), "%lld", g[0]->integer);
        snprintf(slots[i][1], sizeof(slots[i][1]), "%lld", g[2]->integer);
        item[0] = slots[i][0], item[1] = slots[i][1], item[2] = g[3]->str;
    }
    freeReplyObject(call(c, commit, 3 + 3 * n));
    freeReplyObject(grants);
}

void node_put_many(struct node_client *c, const char *prefix, int n, unsigned bytes)
{
    char size[16];
    snprintf(size, sizeof(size), "%u", bytes);
    for (int i = 0; i < n; i += BATCH)
        put_batch(c, prefix, i, n - i < BATCH ? n - i : BATCH, size);
}

const char *node_info(const char *address, const char *name)
{
    char want[64];
    redisReply *reply = harness_call(address, "INFO", NULL);
    assert_int_equal(reply->type, REDIS_REPLY_STRING);
    snprintf(want, sizeof(want), "\n%s:", name);
    char *at = strstr(reply->str, want);
    if (at) {
        at += strlen(want);
        at[strcspn(at, "\r\n")] = 0;
    }
    const char *value = keep(at ? at : "");
    freeReplyObject(reply);
    return value;
}

long long node_pool_figure(const char *address, const char *field)
{
    char want[64];
    snprintf(want, sizeof(want), ",%s=", field);
    const char *at = strstr(node_info(address, "pool0"), want);
    assert_non_null(at);
    return atoll(at + strlen(want));
}

void assert_prefix(const char *text, const char *prefix)
{
    if (strncmp(text, prefix, strlen(prefix)))
        fail_msg("wanted \"%s...\", got \"%s\"", prefix, text);
}

void assert_error(redisReply *reply, const char *prefix)
{
    if (reply->type != REDIS_REPLY_ERROR)
        fail_msg("wanted an error %s, got type %d", prefix, reply->type);
    assert_prefix(reply->str, prefix);
    freeReplyObject(reply);
}

int node_world(void **state)
{
    struct node_world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    *state = w;
    w->h = harness_new();
    w->redis = harness_redis_start(w->h, NULL);
    return 0;
}

int node_world_with_node(void **state)
{
    node_world(state);
    struct node_world *w = *state;
    w->node = harness_node_start(w->h, "node0", w->redis, "--pool", "cpu0:bytes=1M", "--heartbeat-ms", "100",
                                 "--http", "127.0.0.1:0", NULL);
    return 0;
}

int node_world_end(void **state)
{
    struct node_world *w = *state;
    harness_free(w->h);
    free(w);
    return 0;
}

bool node_world_has(const struct node_world *w, const char *key)
{
    char full[256];
    snprintf(full, sizeof(full), "tarn:default:o:%s", key);
    return harness_redis_integer(w->redis, "EXISTS", full, NULL) == 1;
}
