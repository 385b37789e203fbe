/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONG_MS = 1500 };

const struct tarn_put_options replacing = {.size = sizeof(replacing), .flags = TARN_PUT_REPLACE};
const struct tarn_put_options twice = {.size = sizeof(twice), .replicas = 2};

int world_start(void **state, const struct world_plan *plan)
{
    struct world *w = calloc(1, sizeof(*w));
    char id[16];
    assert_non_null(w);
    *state = w;
    w->plan = plan;
    w->h = harness_new();
    w->redis = harness_redis_start(w->h, NULL);
    for (int i = 0; i < plan->nodes; i++) {
        snprintf(id, sizeof(id), "node%d", i);
        w->nodes[i] = world_node(w, id);
    }
    return 0;
}

int world_start_client(void **state, const struct world_plan *plan)
{
    world_start(state, plan);
    struct world *w = *state;
    w->client = world_client(w, NULL);
    return 0;
}

int world_stop(void **state)
{
    struct world *w = *state;
    tarn_close(w->client);
    harness_free(w->h);
    free(w);
    return 0;
}

struct harness_node *world_node(struct world *w, const char *id)
{
    return harness_node_startv(w->h, id, w->redis, w->plan->args);
}

bool world_lists(const struct world *w, const char *node)
{
    char key[128];
    snprintf(key, sizeof(key), "tarn:default:node:%s", node);
    return harness_redis_integer(w->redis, "EXISTS", key, NULL) == 1;
}

struct tarn_client *client_open(const char *redis, struct tarn_options o)
{
    if (!o.timeout_ms)
        o.timeout_ms = 5000;
    if (o.timeout_ms >= LONG_MS) /* shorter ones are what a test measures */
        o.timeout_ms *= harness_slower();
    struct tarn_client *c;
    o.size = sizeof(o);
    o.redis = redis;
    if (tarn_open(&o, &c))
        fail_msg("open: %s", tarn_last_error());
    return c;
}

struct tarn_client *client_open_faulty(const char *redis, struct tarn_options o, const char *faults)
{
    setenv("TARN_FAULTS", faults ? faults : "", 1);
    struct tarn_client *c = client_open(redis, o);
    unsetenv("TARN_FAULTS");
    return c;
}

struct tarn_client *world_client(const struct world *w, const char *transports)
{
    struct tarn_options o = w->plan->client;
    if (transports)
        o.transports = transports;
    return client_open(w->redis->url, o);
}

struct tarn_key key_of(const char *text)
{
    return (struct tarn_key){.data = text, .bytes = strlen(text)};
}

int client_put(struct tarn_client *c, const char *key, char byte, size_t bytes,
               const struct tarn_put_options *o)
{
    char *data = malloc(bytes + 1);
    assert_non_null(data);
    memset(data, byte, bytes + 1);
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = {.key = key_of(key), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(bytes)};
    int status = tarn_put(c, &item, 1, o);
    assert_int_equal(status, item.status);
    free(data);
    return status;
}

int client_read(struct tarn_client *c, const char *key, size_t bytes, uint32_t timeout_ms, char *byte_p)
{
    char *data = calloc(1, bytes + 1);
    assert_non_null(data);
    struct tarn_get_options o = {.size = sizeof(o), .timeout_ms = timeout_ms};
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = {.key = key_of(key), .pieces = &piece, .npieces = 1};
    int status = tarn_get(c, &item, 1, &o);
    assert_int_equal(status, item.status);
    for (size_t i = 1; status == 0 && i < bytes; i++)
        if (data[i] != data[0])
            fail_msg("%s is torn: byte %zu is %d, the first one %d", key, i, data[i], data[0]);
    *byte_p = data[0];
    free(data);
    return status;
}

int client_get(struct tarn_client *c, const char *key, char byte, size_t bytes)
{
    char got;
    int status = client_read(c, key, bytes, 0, &got);
    if (status == 0 && bytes > 0 && got != byte)
        fail_msg("%s: the bytes are %d, not %d", key, got, byte);
    return status;
}

unsigned client_gets_for(struct tarn_client *c, const char *key, char byte, size_t bytes, uint64_t ms)
{
    unsigned slow = 0;
    for (uint64_t until = harness_now_ms() + ms, begun; (begun = harness_now_ms()) < until; harness_pause()) {
        assert_int_equal(client_get(c, key, byte, bytes), 0);
        slow += harness_now_ms() - begun > 100;
    }
    return slow;
}

void client_gets_quickly_for(struct tarn_client *c, const char *key, char byte, size_t bytes, uint64_t ms)
{
    assert_true(client_gets_for(c, key, byte, bytes, ms) <= 2);
}

void client_put_each(struct tarn_client *c, const char *prefix, int n, char byte, size_t bytes,
                     const struct tarn_put_options *o)
{
    char key[64];
    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "%s%d", prefix, i);
        if (client_put(c, key, byte, bytes, o))
            fail_msg("put %s: %s", key, tarn_last_error());
    }
}

uint64_t client_get_each(struct tarn_client *c, const char *prefix, int n, char byte, size_t bytes)
{
    uint64_t longest = 0;
    char key[64];
    for (int i = 0; i < n; i++) {
        uint64_t begun = harness_now_ms();
        snprintf(key, sizeof(key), "%s%d", prefix, i);
        if (client_get(c, key, byte, bytes))
            fail_msg("get %s: %s", key, tarn_last_error());
        uint64_t took = harness_now_ms() - begun;
        longest = took > longest ? took : longest;
    }
    return longest;
}
