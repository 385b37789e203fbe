/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Look-ups of 1000 keys in one call, compared with redis-benchmark, which pipelines the same command
 * (HGETALL), or EXISTS, over the same Unix socket, and with a bare pipelined loop of our own. One client has
 * never got the keys, so it asks the directory each time. The other has, so it looks at the slots. A third
 * keeps no descriptors: each of its gets asks the directory first, beside one HGETALL.
 */
#include "client/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/resp/resp.h"

#define KEYS 1000
#define OBJECT_BYTES 4096
#define CALL_MS 10000
#define RECORD_PREFIX "tarn:default:o:" /* metadata/KEYS.md */

/* redis-benchmark writes its random numbers with 12 digits. */
#define KEY_PREFIX "bench/lookup/"
#define KEY_BYTES 32

struct lookup_bench {
    struct bench_env *e;
    struct tarn_client *c, *reader; /* the reader has got all keys */
    struct tarn_client *forgetful;  /* keeps one descriptor at most */
    char content[OBJECT_BYTES];
    char names[KEYS][KEY_BYTES];
    struct tarn_key keys[KEYS];
    struct tarn_resp *redis; /* of the bare loop */
};

static int put_and_get_objects(struct lookup_bench *b)
{
    struct tarn_piece piece = {.addr = b->content, .bytes = OBJECT_BYTES};
    struct tarn_item items[KEYS];

    for (size_t i = 0; i < KEYS; i++) {
        int n = snprintf(b->names[i], KEY_BYTES, KEY_PREFIX "%012zu", i);
        b->keys[i] = (struct tarn_key){.data = b->names[i], .bytes = (size_t)n};
        items[i] = (struct tarn_item){
            .key = b->keys[i], .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(OBJECT_BYTES)};
    }
    memset(b->content, 'x', OBJECT_BYTES);
    int rc = tarn_put(b->c, items, KEYS, NULL);
    return rc ? rc : tarn_get(b->reader, items, KEYS, NULL);
}

/* --- contestants -------------------------------------------------------------------------------- */

static int check_hits(const struct tarn_hits *h)
{
    struct tarn_tensor t;

    for (size_t i = 0; i < KEYS; i++)
        if (tarn_hits_state(h, i) != TARN_STATE_HIT || tarn_hits_tensor(h, i, &t) != 0 ||
            t.bytes != OBJECT_BYTES)
            return tarn_fail(TARN_E_INVALID, "key %zu was not found", i);
    return 0;
}

static int look_up_by(struct lookup_bench *b, struct tarn_client *c)
{
    struct tarn_hits *h;
    int rc = tarn_lookup(c, b->keys, KEYS, NULL, &h);

    if (rc != 0)
        return rc;
    rc = check_hits(h);
    tarn_hits_free(h);
    return rc;
}

static int lookup(void *arg, uint32_t thread, size_t i)
{
    struct lookup_bench *b = arg;

    (void)thread;
    (void)i;
    return look_up_by(b, b->c);
}

static int lookup_known(void *arg, uint32_t thread, size_t i)
{
    struct lookup_bench *b = arg;

    (void)thread;
    (void)i;
    return look_up_by(b, b->reader);
}

static int match_prefix(void *arg, uint32_t thread, size_t i)
{
    struct lookup_bench *b = arg;
    struct tarn_hits *h;
    size_t pages;
    int rc = tarn_match_prefix(b->c, b->keys, KEYS, NULL, &h, &pages);

    (void)thread;
    (void)i;
    if (rc != 0)
        return rc;
    tarn_hits_free(h);
    return pages == KEYS ? 0 : tarn_fail(TARN_E_INVALID, "only %zu of %d pages match", pages, KEYS);
}

static int bare_loop(void *arg, uint32_t thread, size_t i)
{
    struct lookup_bench *b = arg;
    uint64_t deadline = tarn_deadline(CALL_MS);
    int rc = 0;

    (void)thread;
    (void)i;
    for (size_t k = 0; rc == 0 && k < KEYS; k++) {
        char name[64];
        snprintf(name, sizeof name, RECORD_PREFIX "%s", b->names[k]);
        rc = tarn_resp_append_strs(b->redis, "HGETALL", name, NULL);
    }
    for (size_t k = 0; rc == 0 && k < KEYS; k++) {
        redisReply *reply;
        rc = tarn_resp_read(b->redis, deadline, NULL, &reply);
        if (rc == 0 && (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0))
            rc = tarn_fail(TARN_E_INVALID, "key %zu has no record", k);
        if (reply)
            freeReplyObject(reply);
    }
    return rc;
}

static int get_unknown(void *arg, uint32_t thread, size_t i)
{
    struct lookup_bench *b = arg;
    struct tarn_piece piece = {.addr = b->content, .bytes = OBJECT_BYTES};
    struct tarn_item item = {.key = b->keys[i % KEYS], .pieces = &piece, .npieces = 1};

    (void)thread;
    b->content[i % OBJECT_BYTES] = 0;
    int rc = tarn_get(b->forgetful, &item, 1, NULL);
    if (rc == 0 && b->content[i % OBJECT_BYTES] != 'x')
        rc = tarn_fail(TARN_E_INVALID, "key %zu has other bytes", i % KEYS);
    return rc;
}

static int one_hgetall(void *arg, uint32_t thread, size_t i)
{
    struct lookup_bench *b = arg;
    char name[64];
    redisReply *reply;

    (void)thread;
    snprintf(name, sizeof name, RECORD_PREFIX "%s", b->names[i % KEYS]);
    const struct tarn_command *command = tarn_resp_command(b->redis, "HGETALL", name, NULL);
    int rc = tarn_resp_call(b->redis, tarn_deadline(CALL_MS), command, &reply);
    if (rc == 0)
        freeReplyObject(reply);
    return rc;
}

/* The last line of its CSV output is "command","requests per second",... */
static int redis_benchmark(const struct lookup_bench *b, const char *command, double *items_s)
{
    const char *socket_path = b->e->directory_address + strlen("unix:"),
               *requests = b->e->quick ? "50000" : "200000";
    const char *argv[] = {"redis-benchmark",
                          "-s",
                          socket_path,
                          "-P",
                          "1000",
                          "-c",
                          "1",
                          "-n",
                          requests,
                          "-r",
                          "1000",
                          "--csv",
                          command,
                          RECORD_PREFIX KEY_PREFIX "__rand_int__",
                          NULL};
    char text[4096];
    int rc = bench_output_of(argv, text, sizeof text);
    char *line = rc == 0 ? strstr(text, "\n\"") : NULL, *value = line ? strstr(line, "\",\"") : NULL;

    if (rc != 0)
        return rc;
    *items_s = value ? strtod(value + 3, NULL) : 0;
    return *items_s > 0 ? 0 : tarn_fail(TARN_E_FORMAT, "redis-benchmark printed no rate: %.100s", text);
}

static int redis_hgetall(void *arg, double *items_s, struct bench_hist *h)
{
    (void)h;
    return redis_benchmark(arg, "HGETALL", items_s);
}

static int redis_exists(void *arg, double *items_s, struct bench_hist *h)
{
    (void)h;
    return redis_benchmark(arg, "EXISTS", items_s);
}

static const struct bench_ops lookup_ops = {.op = lookup};
static const struct bench_ops known_ops = {.op = lookup_known};
static const struct bench_ops match_prefix_ops = {.op = match_prefix};
static const struct bench_ops bare_loop_ops = {.op = bare_loop};
static const struct bench_ops unknown_ops = {.op = get_unknown};
static const struct bench_ops one_hgetall_ops = {.op = one_hgetall};
static const struct bench_ops hgetall_ops = {.slice = redis_hgetall};
static const struct bench_ops exists_ops = {.slice = redis_exists};

/* --- rows --------------------------------------------------------------------------------------- */

static const struct bench_load shape = {.depth = KEYS, .threads = 1, .ops = 50, .npieces = 1};

static int lookup_row(struct lookup_bench *b, struct bench_report *rep)
{
    struct bench_row *r = bench_row_new("lookup", "keys a call", 0);
    int rc = r ? 0 : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = bench_row_add(r, BENCH_OURS, "tarn", &lookup_ops, b, &shape);
    if (rc == 0)
        rc = bench_row_add(r, BENCH_LIMIT, "redis-benchmark -P 1000", &hgetall_ops, b, &shape);
    if (rc == 0)
        rc = bench_row_add(r, BENCH_REFERENCE, "bare pipelined loop", &bare_loop_ops, b, &shape);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0)
        bench_at_least(r, "of redis-benchmark", bench_rate_ratio(r, bench_row_limit(r)), 0.9);
    return r ? bench_report_row(rep, r, rc) : rc;
}

/* EXISTS says less than a look-up: a dead node's record exists, too. */
static int exists_row(struct lookup_bench *b, struct bench_report *rep, const char *name,
                      const struct bench_ops *ours)
{
    struct bench_row *r = bench_row_new(name, "keys a call", 0);
    int rc = r ? 0 : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = bench_row_add(r, BENCH_OURS, "tarn", ours, b, &shape);
    if (rc == 0)
        rc = bench_row_add(r, BENCH_LIMIT, "redis-benchmark -P 1000 EXISTS", &exists_ops, b, &shape);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0)
        bench_at_least(r, "of EXISTS", bench_rate_ratio(r, bench_row_limit(r)), 1 / 1.2);
    return r ? bench_report_row(rep, r, rc) : rc;
}

static int unknown_row(struct lookup_bench *b, struct bench_report *rep)
{
    static const struct bench_load one = {.depth = 1, .threads = 1, .ops = KEYS, .npieces = 1};
    struct bench_row *r = bench_row_new("get, not known", "", OBJECT_BYTES);
    int rc = r ? 0 : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = bench_row_add(r, BENCH_OURS, "tarn", &unknown_ops, b, &one);
    if (rc == 0)
        rc = bench_row_add(r, BENCH_LIMIT, "HGETALL", &one_hgetall_ops, b, &one);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0) {
        double extra = bench_p50_extra_us(r, bench_row_limit(r));
        bench_row_figure(r, "p50_extra_us", extra);
        bench_at_most(r, "p50 - HGETALL, us", extra, 10);
    }
    return r ? bench_report_row(rep, r, rc) : rc;
}

static double round_trips(struct tarn_client *c)
{
    struct tarn_stats s = {.size = sizeof s};

    tarn_client_stats(c, &s);
    return (double)s.directory_round_trips;
}

static int prefix_row(struct lookup_bench *b, struct bench_report *rep)
{
    struct bench_row *r = bench_row_new("match_prefix", "keys a call", 0);
    int rc = r ? 0 : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = bench_row_add(r, BENCH_OURS, "tarn", &match_prefix_ops, b, &shape);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0) {
        double before = round_trips(b->c);
        rc = match_prefix(b, 0, 0);
        bench_row_figure(r, "round_trips", round_trips(b->c) - before);
        bench_at_most(r, "round trips", round_trips(b->c) - before, 1);
    }
    return r ? bench_report_row(rep, r, rc) : rc;
}

static int rows(struct lookup_bench *b, struct bench_report *rep)
{
    int rc = lookup_row(b, rep);

    if (rc == 0)
        rc = exists_row(b, rep, "exists, first asked", &lookup_ops);
    if (rc == 0)
        rc = exists_row(b, rep, "exists, known", &known_ops);
    if (rc == 0)
        rc = prefix_row(b, rep);
    return rc ? rc : unknown_row(b, rep);
}

static int open_clients(struct lookup_bench *b)
{
    const struct tarn_options forgetful = {
        .size = sizeof forgetful, .redis = b->e->directory_uri, .cache_entries = 1};
    struct tarn_addr a;
    int rc = bench_client(b->e, NULL, &b->c);

    if (rc == 0)
        rc = bench_client(b->e, NULL, &b->reader);
    if (rc == 0)
        rc = tarn_open(&forgetful, &b->forgetful);
    if (rc == 0)
        rc = tarn_addr_parse(b->e->directory_address, "the directory", &a);
    return rc ? rc : tarn_resp_connect(&a, tarn_deadline(CALL_MS), NULL, &b->redis);
}

int bench_group_lookup(struct bench_env *e, struct bench_report *rep)
{
    struct lookup_bench *b = calloc(1, sizeof *b);
    int rc = b ? bench_start_node(e, "cpu0:bytes=64M") : TARN_E_NO_MEMORY;

    if (!b)
        return tarn_fail(rc, "the lookup group: out of memory");
    b->e = e;
    if (rc == 0)
        rc = open_clients(b);
    if (rc == 0)
        rc = put_and_get_objects(b);
    if (rc == 0)
        rc = rows(b, rep);
    tarn_resp_free(b->redis);
    tarn_close(b->forgetful);
    tarn_close(b->reader);
    tarn_close(b->c);
    free(b);
    return rc;
}
