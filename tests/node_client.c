/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/node_client.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

struct node_client node_connect(const char *address)
{
    struct node_client c = {.resp = harness_connect(address)};
    snprintf(c.session, sizeof(c.session), "%016" PRIx64, tarn_random64());
    redisReply *reply = harness_command(c.resp, "HELLO", "1", c.session, NULL);
    if (reply->type != REDIS_REPLY_ARRAY)
        fail_msg("HELLO: %s", reply->str);
    freeReplyObject(reply);
    return c;
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
    redisReply *reply = harness_command(c->resp, "COMMIT", timeout_ms, g->pool, g->slot, g->gen, NULL);
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
