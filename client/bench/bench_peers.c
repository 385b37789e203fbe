/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The alternatives to tarn: values in Redis and in memcached. Depth means pipelined commands (Redis) or a
 * multi-get (memcached, which has no multi-set). Replies are verified in the client library's buffers, so
 * peers save the copy to the destination.
 */
#include "client/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TARN_HAVE_MEMCACHED
#include <libmemcached/memcached.h>
#endif

#include "base/clock.h"
#include "base/error.h"
#include "base/resp/resp.h"

#define CALL_MS 60000

static int key_of(size_t object, char key[32])
{
    return snprintf(key, 32, "bench/%zu", object);
}

/* --- Redis -------------------------------------------------------------------------------------- */

struct redis_peer {
    struct bench_load *load;
    struct tarn_resp **connections; /* one a thread */
    redisReply **replies;           /* one an object */
};

static void redis_close(void *arg)
{
    struct redis_peer *p = arg;

    for (uint32_t i = 0; p->connections && i < p->load->threads; i++)
        tarn_resp_free(p->connections[i]);
    free(p->connections);
    free(p->replies);
    free(p);
}

static int redis_open(const char *address, struct bench_load *l, struct redis_peer **p_p)
{
    struct redis_peer *p = calloc(1, sizeof *p);
    struct tarn_addr a;
    int rc = tarn_addr_parse(address, "Redis", &a);

    if (rc != 0 || !p) {
        free(p);
        return rc ? rc : tarn_fail(TARN_E_NO_MEMORY, "Redis: out of memory");
    }
    p->load = l;
    p->connections = calloc(l->threads, sizeof *p->connections);
    p->replies = calloc(l->objects, sizeof *p->replies);
    if (!p->connections || !p->replies)
        rc = tarn_fail(TARN_E_NO_MEMORY, "Redis: out of memory");
    for (uint32_t i = 0; rc == 0 && i < l->threads; i++)
        rc = tarn_resp_connect(&a, tarn_deadline(CALL_MS), NULL, &p->connections[i]);
    if (rc != 0) {
        redis_close(p);
        return rc;
    }
    *p_p = p;
    return 0;
}

/* Sends one command for each object of operation i, and reads the answers into p->replies. */
static int redis_call(struct redis_peer *p, uint32_t thread, size_t i, bool set)
{
    struct tarn_resp *r = p->connections[thread];
    uint64_t deadline = tarn_deadline(CALL_MS);
    size_t first = i * p->load->depth;
    int rc = 0;

    for (size_t k = first; rc == 0 && k < first + p->load->depth; k++) {
        char key[32];
        key_of(k, key);
        struct tarn_command *c = tarn_resp_command(r, set ? "SET" : "GET", key, NULL);
        if (set)
            tarn_command_add(c, bench_load_pieces(p->load, k)->addr, p->load->bytes);
        rc = tarn_resp_append_command(r, c);
    }
    for (size_t k = first; rc == 0 && k < first + p->load->depth; k++)
        rc = tarn_resp_read(r, deadline, NULL, &p->replies[k]);
    return rc;
}

static int redis_get(void *arg, uint32_t thread, size_t i)
{
    return redis_call(arg, thread, i, false);
}

static int redis_set(void *arg, uint32_t thread, size_t i)
{
    return redis_call(arg, thread, i, true);
}

static int redis_check_get(void *arg, uint32_t thread, size_t i)
{
    struct redis_peer *p = arg;
    int rc = 0;

    (void)thread;
    for (size_t k = i * p->load->depth; k < (i + 1) * p->load->depth; k++) {
        redisReply *reply = p->replies[k];
        if (rc == 0 && (reply->type != REDIS_REPLY_STRING || reply->len != p->load->bytes))
            rc = tarn_fail(TARN_E_INVALID, "object %zu is not there", k);
        if (rc == 0)
            rc = bench_check(reply->str, p->load->bytes, p->load->seed, k);
        freeReplyObject(reply);
    }
    return rc;
}

static int redis_check_set(void *arg, uint32_t thread, size_t i)
{
    struct redis_peer *p = arg;
    int rc = 0;

    (void)thread;
    for (size_t k = i * p->load->depth; k < (i + 1) * p->load->depth; k++) {
        if (p->replies[k]->type != REDIS_REPLY_STATUS)
            rc = tarn_fail(TARN_E_INVALID, "object %zu was refused", k);
        freeReplyObject(p->replies[k]);
    }
    return rc;
}

static int redis_begin_set(void *arg, uint64_t round)
{
    struct redis_peer *p = arg;

    bench_load_fill(p->load, round + 1);
    return 0;
}

static int redis_empty(struct redis_peer *p)
{
    struct tarn_resp *r = p->connections[0];
    const struct tarn_command *flush = tarn_resp_command(r, "FLUSHALL", "SYNC", NULL);
    redisReply *reply = NULL;
    int rc = tarn_resp_call(r, tarn_deadline(CALL_MS), flush, &reply);

    freeReplyObject(reply);
    return rc;
}

/* Reads all objects back. */
static int redis_end_set(void *arg)
{
    struct redis_peer *p = arg;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < p->load->ops + p->load->threads; i++) {
        rc = redis_get(p, 0, i);
        if (rc == 0)
            rc = redis_check_get(p, 0, i);
    }
    return rc ? rc : redis_empty(p);
}

static int redis_fill(struct redis_peer *p)
{
    int rc = redis_empty(p);

    for (size_t i = 0; rc == 0 && i < p->load->ops + p->load->threads; i++) {
        rc = redis_set(p, 0, i);
        if (rc == 0)
            rc = redis_check_set(p, 0, i);
    }
    return rc;
}

static const struct bench_ops redis_get_ops = {
    .op = redis_get, .after = redis_check_get, .close = redis_close};
static const struct bench_ops redis_set_ops = {.begin = redis_begin_set,
                                               .op = redis_set,
                                               .after = redis_check_set,
                                               .end = redis_end_set,
                                               .close = redis_close};

static int add_redis(const struct bench_env *e, struct bench_row *r, bool put, bool tcp, struct bench_load *l)
{
    struct redis_peer *p;
    int rc = redis_open(tcp ? e->redis_tcp : e->redis_unix, l, &p);

    if (rc == 0 && !put && (rc = redis_fill(p)) != 0)
        redis_close(p);
    if (rc != 0)
        return rc;
    return bench_row_add(r, BENCH_PEER, tcp ? "Redis (TCP)" : "Redis (Unix socket)",
                         put ? &redis_set_ops : &redis_get_ops, p, l);
}

/* --- memcached ---------------------------------------------------------------------------------- */

#ifdef TARN_HAVE_MEMCACHED

struct memcached_peer {
    struct bench_load *load;
    memcached_st **connections; /* one a thread */
    char **values;              /* one an object, of get */
    size_t *value_bytes;
};

static void memcached_close(void *arg)
{
    struct memcached_peer *p = arg;

    for (uint32_t i = 0; p->connections && i < p->load->threads; i++)
        if (p->connections[i])
            memcached_free(p->connections[i]);
    free(p->connections);
    free(p->values);
    free(p->value_bytes);
    free(p);
}

static int memcached_result(memcached_st *m, memcached_return_t rc, const char *what)
{
    if (memcached_success(rc))
        return 0;
    return tarn_fail(TARN_E_UNAVAILABLE, "memcached %s: %s", what, memcached_strerror(m, rc));
}

static int memcached_open(const struct bench_env *e, struct bench_load *l, struct memcached_peer **p_p)
{
    char server[64];
    struct memcached_peer *p = calloc(1, sizeof *p);

    if (!p)
        return tarn_fail(TARN_E_NO_MEMORY, "memcached: out of memory");
    snprintf(server, sizeof server, "--SERVER=127.0.0.1:%u --TCP-NODELAY", e->memcached_port);
    p->load = l;
    p->connections = calloc(l->threads, sizeof *p->connections);
    p->values = calloc(l->objects, sizeof *p->values);
    p->value_bytes = calloc(l->objects, sizeof *p->value_bytes);
    bool ok = p->connections && p->values && p->value_bytes;
    for (uint32_t i = 0; ok && i < l->threads; i++) {
        p->connections[i] = memcached(server, strlen(server));
        ok = p->connections[i] != NULL;
    }
    if (!ok) {
        memcached_close(p);
        return tarn_fail(TARN_E_UNAVAILABLE, "memcached: no connection could be made");
    }
    *p_p = p;
    return 0;
}

static int memcached_put(void *arg, uint32_t thread, size_t i)
{
    struct memcached_peer *p = arg;
    memcached_st *m = p->connections[thread];
    int rc = 0;

    for (size_t k = i * p->load->depth; rc == 0 && k < (i + 1) * p->load->depth; k++) {
        char key[32];
        size_t key_bytes = (size_t)key_of(k, key);
        rc = memcached_result(
            m, memcached_set(m, key, key_bytes, bench_load_pieces(p->load, k)->addr, p->load->bytes, 0, 0),
            "set");
    }
    return rc;
}

static int memcached_get_one(struct memcached_peer *p, memcached_st *m, size_t object)
{
    char key[32];
    uint32_t flags;
    memcached_return_t rc;

    p->values[object] =
        memcached_get(m, key, (size_t)key_of(object, key), &p->value_bytes[object], &flags, &rc);
    return memcached_result(m, rc, "get");
}

/* The replies come in the order of the keys, because there is only one server. */
static int memcached_get_many(struct memcached_peer *p, memcached_st *m, size_t first)
{
    enum { MOST = 256 };
    char names[MOST][32], key[MEMCACHED_MAX_KEY];
    const char *keys[MOST] = {0};
    size_t lens[MOST] = {0}, key_bytes, n = p->load->depth < MOST ? p->load->depth : MOST;
    uint32_t flags;
    memcached_return_t mrc;

    for (size_t k = 0; k < n; k++) {
        keys[k] = names[k];
        lens[k] = (size_t)key_of(first + k, names[k]);
    }
    int rc = memcached_result(m, memcached_mget(m, keys, lens, n), "multi-get");
    for (size_t k = 0; rc == 0 && k < n; k++) {
        p->values[first + k] = memcached_fetch(m, key, &key_bytes, &p->value_bytes[first + k], &flags, &mrc);
        rc = memcached_result(m, mrc, "fetch");
    }
    /* One more fetch reads the end mark. */
    if (rc == 0)
        free(memcached_fetch(m, key, &key_bytes, &lens[0], &flags, &mrc));
    return rc;
}

static int memcached_get_op(void *arg, uint32_t thread, size_t i)
{
    struct memcached_peer *p = arg;
    memcached_st *m = p->connections[thread];

    return p->load->depth == 1 ? memcached_get_one(p, m, i) : memcached_get_many(p, m, i * p->load->depth);
}

static int memcached_check_get(void *arg, uint32_t thread, size_t i)
{
    struct memcached_peer *p = arg;
    int rc = 0;

    (void)thread;
    for (size_t k = i * p->load->depth; k < (i + 1) * p->load->depth; k++) {
        if (rc == 0 && p->value_bytes[k] != p->load->bytes)
            rc = tarn_fail(TARN_E_INVALID, "object %zu is not there", k);
        if (rc == 0)
            rc = bench_check(p->values[k], p->load->bytes, p->load->seed, k);
        free(p->values[k]);
        p->values[k] = NULL;
    }
    return rc;
}

static int memcached_begin_put(void *arg, uint64_t round)
{
    struct memcached_peer *p = arg;

    bench_load_fill(p->load, round + 1);
    return 0;
}

static int memcached_end_put(void *arg)
{
    struct memcached_peer *p = arg;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < p->load->ops + p->load->threads; i++) {
        rc = memcached_get_op(p, 0, i);
        if (rc == 0)
            rc = memcached_check_get(p, 0, i);
    }
    memcached_st *m = p->connections[0];
    return rc ? rc : memcached_result(m, memcached_flush(m, 0), "flush");
}

static const struct bench_ops memcached_get_ops = {
    .op = memcached_get_op, .after = memcached_check_get, .close = memcached_close};
static const struct bench_ops memcached_put_ops = {
    .begin = memcached_begin_put, .op = memcached_put, .end = memcached_end_put, .close = memcached_close};

static int add_memcached(const struct bench_env *e, struct bench_row *r, bool put, struct bench_load *l)
{
    struct memcached_peer *p = NULL;
    int rc = memcached_open(e, l, &p);

    for (size_t i = 0; rc == 0 && !put && i < l->ops + l->threads; i++)
        if ((rc = memcached_put(p, 0, i)) != 0)
            memcached_close(p);
    if (rc != 0)
        return rc;
    return bench_row_add(r, BENCH_PEER, "memcached", put ? &memcached_put_ops : &memcached_get_ops, p, l);
}

#endif

int bench_add_peers(const struct bench_env *e, struct bench_row *r, bool put, bool tcp, struct bench_load *l)
{
    int rc = add_redis(e, r, put, tcp, l);

#ifdef TARN_HAVE_MEMCACHED
    if (rc == 0 && e->memcached_port && add_memcached(e, r, put, l) != 0)
        snprintf(r->error, sizeof r->error, "%s", tarn_last_error());
#endif
    return rc;
}
