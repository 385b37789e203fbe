/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/node_client.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "client/client.h"
#include "client/peer_node.h"

static long long number(const redisReply *r)
{
    return r->type == REDIS_REPLY_INTEGER ? r->integer : strtoll(r->str, NULL, 10);
}

static redisReply *hello(struct tarn_resp *r, const char *session)
{
    redisReply *reply = harness_command(r, "HELLO", "1", session, NULL);
    if (reply->type != REDIS_REPLY_ARRAY)
        fail_msg("HELLO: %s", reply->str);
    return reply;
}

struct node_client node_connect(const char *address)
{
    struct node_client c = {.resp = harness_connect(address)};
    snprintf(c.session, sizeof(c.session), "%016" PRIx64, tarn_random64());
    redisReply *reply = hello(c.resp, c.session);
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

struct tarn_resp *node_join(const char *address, const char *session)
{
    struct tarn_resp *r = harness_connect(address);
    freeReplyObject(hello(r, session));
    return r;
}

void node_attach(struct tarn_resp *r, const char *access)
{
    int fds[TARN_RESP_FDS_MAX];
    redisReply *reply = harness_command(r, "ATTACH", "shm", access, NULL);
    if (reply->type != REDIS_REPLY_ARRAY)
        fail_msg("ATTACH: %s", reply->str);
    int n = tarn_resp_take_fds(r, fds, TARN_RESP_FDS_MAX);
    assert_int_equal(n, reply->element[1]->integer);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    freeReplyObject(reply);
}

/* Keeps the text until the next call. */
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
        harness_command(c->resp, "RESERVE", "*", mode, version, "0", "0", "", key, size, "u8", size, NULL);
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

void node_must_put(struct node_client *c, const char *mode, const char *key, unsigned bytes)
{
    const char *error;
    HARNESS_UNTIL(strncmp(error = node_put(c, mode, key, bytes), "AGAIN", 5) != 0, HARNESS_TIMEOUT_MS);
    assert_string_equal(error, "");
}

enum { BATCH = 256 };

static redisReply *call(struct node_client *c, const char **argv, int argc)
{
    redisReply *reply = NULL;
    struct tarn_command *command = tarn_resp_command(c->resp, NULL);
    for (int i = 0; i < argc; i++)
        tarn_command_str(command, argv[i]);
    if (tarn_resp_call(c->resp, tarn_deadline(HARNESS_TIMEOUT_MS), command, &reply))
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
    const char *reserve[7 + 4 * BATCH] = {"RESERVE", "*", "absent", "1234567", "0", "0", ""};
    const char *commit[3 + 3 * BATCH] = {"COMMIT", node_deadline(c, 10000), "put"};
    for (int i = 0; i < n; i++) {
        const char **item = reserve + 7 + 4 * i;
        snprintf(keys[i], sizeof(keys[i]), "%s%d", prefix, first + i);
        item[0] = keys[i], item[1] = item[3] = size, item[2] = "u8";
    }
    redisReply *grants = call(c, reserve, 7 + 4 * n);
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

long long node_figure(const char *address, const char *name)
{
    return atoll(node_info(address, name));
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

/* --- raw bytes ---------------------------------------------------------------------------------- */

int raw_connect(const char *address)
{
    struct tarn_addr a;
    int fd;
    assert_int_equal(tarn_addr_parse(address, "address", &a), 0);
    assert_int_equal(tarn_net_connect(&a, tarn_deadline(5000), NULL, &fd), 0);
    return fd;
}

bool raw_send(int fd, const char *data, size_t bytes)
{
    uint64_t deadline = tarn_deadline(HARNESS_TIMEOUT_MS);
    while (bytes) {
        ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
        if (n < 0 && (errno != EAGAIN || tarn_net_wait(fd, POLLOUT, deadline, NULL)))
            return false;
        data += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

void raw_talk(const char *address, const char *bytes, size_t n, char *out, size_t out_bytes)
{
    size_t got = 0;
    ssize_t k = 1;
    int fd = raw_connect(address);
    assert_true(raw_send(fd, bytes, n));
    while (k > 0 && got < out_bytes - 1) {
        assert_int_equal(tarn_net_wait(fd, POLLIN, tarn_deadline(5000), NULL), 0);
        k = recv(fd, out + got, out_bytes - 1 - got, 0);
        got += k > 0 ? (size_t)k : 0;
    }
    out[got] = 0;
    close(fd);
}

/* --- contents of the directory ------------------------------------------------------------------ */

bool directory_has(const struct harness_redis *r, const char *key)
{
    char full[256];
    snprintf(full, sizeof(full), OBJECT "%s", key);
    return harness_redis_integer(r, "EXISTS", full, NULL) == 1;
}

const char *directory_field(const struct harness_redis *r, const char *key, const char *field)
{
    char full[256];
    snprintf(full, sizeof(full), OBJECT "%s", key);
    redisReply *reply = harness_redis_call(r, "HGET", full, field, NULL);
    const char *value = keep(reply->type == REDIS_REPLY_STRING ? reply->str : "");
    freeReplyObject(reply);
    return value;
}

long long directory_count(const struct harness_redis *r)
{
    return harness_redis_integer(r, "KEYS", OBJECT "*", NULL);
}

/* --- worlds ------------------------------------------------------------------------------------- */

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
    if (w->c.resp)
        node_close(&w->c);
    if (w->other_c.resp)
        node_close(&w->other_c);
    harness_free(w->h);
    free(w);
    return 0;
}

struct tarn_peer_node *client_remote(struct tarn_client *c, const char *id)
{
    struct tarn_peer_node *r, *next, *found = NULL;

    pthread_rwlock_rdlock(&c->nodes_lock);
    HASH_ITER (hh, c->nodes, r, next)
        if (strcmp(r->key.id, id) == 0)
            found = r;
    pthread_rwlock_unlock(&c->nodes_lock);
    assert_non_null(found);
    return found;
}
