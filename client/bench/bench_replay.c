/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays a trace of prefix-block requests through the real store.
 *
 * For each request: look up the chain, get the leading run of blocks that exist, verify every byte, put the
 * rest. Blocks that exist beyond the run count as used. A block's content is made from its id, so it can be
 * checked without keeping a copy. The time does not include reading the trace, making content and verifying.
 */
#include "client/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/option/option.h"
#include "base/text.h"

#define CALL_MS 30000
#define PROGRESS_NS (200 * TARN_NS_PER_MS)
#define POOL_ALIGN 64

struct config {
    bool help;
    char *trace, *json, *transports, *redis;
    uint64_t block_bytes;
    int64_t capacity_blocks, requests, minutes;
};

static const struct tarn_option options[] = {
    {"trace", 0, TARN_OPT_STRING, offsetof(struct config, trace), NULL, 0, 0, "FILE", TARN_OPT_FLAG_ONLY,
     "The trace: JSON lines with timestamp (milliseconds) and hash_ids."},
    {"block-bytes", 0, TARN_OPT_SIZE, offsetof(struct config, block_bytes), "64K", 1, 1ll << 32, "SIZE",
     TARN_OPT_FLAG_ONLY, "Size of a block."},
    {"capacity-blocks", 0, TARN_OPT_INT, offsetof(struct config, capacity_blocks), "10000", 1, 1 << 28, "N",
     TARN_OPT_FLAG_ONLY, "Blocks that the node has room for. Not with --redis."},
    {"json", 0, TARN_OPT_STRING, offsetof(struct config, json), NULL, 0, 0, "FILE", TARN_OPT_FLAG_ONLY,
     "Also write the results here."},
    {"requests", 0, TARN_OPT_INT, offsetof(struct config, requests), "0", 0, INT64_MAX, "N",
     TARN_OPT_FLAG_ONLY, "Only the first N requests. 0: all."},
    {"minutes", 0, TARN_OPT_INT, offsetof(struct config, minutes), "0", 0, 1 << 20, "M", TARN_OPT_FLAG_ONLY,
     "Only the first M minutes of the trace (they are replayed as fast as possible). 0: all."},
    {"transports", 0, TARN_OPT_STRING, offsetof(struct config, transports), NULL, 0, 0, "LIST",
     TARN_OPT_FLAG_ONLY, "Transports of the client, parted by commas. Without it all that work."},
    {"redis", 0, TARN_OPT_STRING, offsetof(struct config, redis), NULL, 0, 0, "URI", TARN_OPT_FLAG_ONLY,
     "Use the nodes of this directory instead of starting one. The blocks stay there until they are "
     "evicted."},
    {"help", 'h', TARN_OPT_BOOL, offsetof(struct config, help), "0", 0, 0, NULL, TARN_OPT_FLAG_ONLY,
     "Print this and exit."},
};

static const struct tarn_program program = {
    .name = "tarn-bench replay",
    .arguments = "",
    .brief = "replay a trace of prefix-block requests",
    .description =
        "For each request looks up the chain of blocks, gets the leading run that is there, verifies "
        "every byte, and puts the rest. Reports the prefix-hit ratio (blocks got from the leading run "
        "by all blocks asked for), latencies, throughput and errors.",
    .examples =
        "tarn-bench replay --trace conversation_trace.jsonl --block-bytes 64K --capacity-blocks 10000",
    .options = options,
    .noptions = sizeof options / sizeof options[0],
};

/* Figures of one kind of call. */
struct calls {
    struct bench_hist latency;
    uint64_t bytes, ns;
};

struct replay {
    const struct config *c;
    struct bench_env e;
    struct tarn_client *client;
    struct bench_trace trace;
    uint64_t tag; /* part of this run's keys */
    /* the current request */
    size_t blocks, room;
    char (*names)[48];
    struct tarn_key *keys, *used;
    struct tarn_piece *pieces;
    struct tarn_item *items;
    char *memory;
    /* sums */
    uint64_t requests, lookups, hits, lost, stored, present, errors, wrong;
    struct calls lookup, get, put;
    char first_error[TARN_SENTENCE];
    uint64_t started_ns, shown_ns;
};

/* --- the trace ---------------------------------------------------------------------------------- */

/* Makes room for n blocks. Discards the arrays' content. */
static int make_room(struct replay *r, size_t n)
{
    if (n <= r->room)
        return 0;
    free(r->names);
    free(r->keys);
    free(r->used);
    free(r->pieces);
    free(r->items);
    if (r->memory)
        munmap(r->memory, r->room * r->c->block_bytes);
    r->room = 2 * n;
    r->memory = NULL;
    r->names = calloc(r->room, sizeof *r->names);
    r->keys = calloc(r->room, sizeof *r->keys);
    r->used = calloc(r->room, sizeof *r->used);
    r->pieces = calloc(r->room, sizeof *r->pieces);
    r->items = calloc(r->room, sizeof *r->items);
    if (!r->names || !r->keys || !r->used || !r->pieces || !r->items)
        return tarn_fail(TARN_E_NO_MEMORY, "replay: out of memory for a request of %zu blocks", n);
    return bench_map(r->room * r->c->block_bytes, false, &r->memory);
}

static int take_request(struct replay *r)
{
    size_t n = r->trace.n;
    int rc = make_room(r, n);
    r->blocks = n;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        int bytes = snprintf(r->names[i], sizeof r->names[i], "replay-%08llx/%llu",
                             (unsigned long long)(r->tag & 0xffffffff), (unsigned long long)r->trace.ids[i]);
        r->keys[i] = (struct tarn_key){.data = r->names[i], .bytes = (size_t)bytes};
        r->pieces[i] =
            (struct tarn_piece){.addr = r->memory + i * r->c->block_bytes, .bytes = r->c->block_bytes};
        r->items[i] = (struct tarn_item){.key = r->keys[i],
                                         .pieces = &r->pieces[i],
                                         .npieces = 1,
                                         .tensor = tarn_bytes(r->c->block_bytes)};
    }
    return rc;
}

/* Sets *more to false after the last request to replay. */
static int next_request(struct replay *r, bool *more)
{
    *more = r->c->requests == 0 || r->requests < (uint64_t)r->c->requests;
    int rc = *more ? bench_trace_next(&r->trace, more) : 0;
    if (rc == 0 && *more && r->c->minutes && r->trace.ms >= (double)r->c->minutes * 60000)
        *more = false;
    return rc == 0 && *more ? take_request(r) : rc;
}

/* --- one request -------------------------------------------------------------------------------- */

static void count_error(struct replay *r, int code, const char *what)
{
    if (r->errors++ == 0)
        snprintf(r->first_error, sizeof r->first_error, "%s: %s: %s", what, tarn_error_name(code),
                 tarn_last_error());
}

static void add_call(struct calls *c, uint64_t start_ns, uint64_t bytes)
{
    uint64_t ns = tarn_now_ns() - start_ns;

    bench_hist_add(&c->latency, ns);
    c->ns += ns;
    c->bytes += bytes;
}

static bool verify_block(struct replay *r, size_t i)
{
    uint64_t seed = bench_pattern_seed(r->c->block_bytes, r->trace.ids[i]);

    if (bench_pattern_check(r->pieces[i].addr, r->c->block_bytes, seed, 0) == UINT64_MAX)
        return true;
    r->wrong++;
    tarn_fail(TARN_E_INVALID, "block %llu came back with other bytes", (unsigned long long)r->trace.ids[i]);
    count_error(r, TARN_E_INVALID, "get");
    return false;
}

/* Gets the first `pages` blocks. Returns the number of leading blocks that arrived. */
static size_t get_run(struct replay *r, const struct tarn_hits *hits, size_t pages)
{
    struct tarn_get_options o = {.size = sizeof o, .timeout_ms = CALL_MS, .hits = hits};
    size_t leading = 0, got = 0;

    memset(r->memory, 0, pages * r->c->block_bytes);
    uint64_t start = tarn_now_ns();
    tarn_get(r->client, r->items, pages, &o);
    for (size_t i = 0; i < pages; i++)
        got += r->items[i].status == 0;
    add_call(&r->get, start, got * r->c->block_bytes);
    for (size_t i = 0; i < pages; i++) {
        int status = r->items[i].status;
        if (status == 0 && verify_block(r, i) && leading == i)
            leading++;
        r->lost += status == TARN_E_NOT_FOUND; /* evicted since the look-up */
        if (status != 0 && status != TARN_E_NOT_FOUND)
            count_error(r, status, "get");
    }
    return leading;
}

static void put_rest(struct replay *r, size_t first)
{
    struct tarn_put_options o = {.size = sizeof o,
                                 .timeout_ms = CALL_MS,
                                 .flags = TARN_PUT_CHAIN,
                                 .continues = first ? &r->keys[first - 1] : NULL};
    size_t stored = 0, used = 0;

    for (size_t i = first; i < r->blocks; i++) {
        r->items[i].tensor = tarn_bytes(r->c->block_bytes);
        bench_pattern_fill(r->pieces[i].addr, r->c->block_bytes,
                           bench_pattern_seed(r->c->block_bytes, r->trace.ids[i]), 0);
    }
    uint64_t start = tarn_now_ns();
    tarn_put(r->client, r->items + first, r->blocks - first, &o);
    for (size_t i = first; i < r->blocks; i++)
        stored += r->items[i].status == 0;
    add_call(&r->put, start, stored * r->c->block_bytes);
    for (size_t i = first; i < r->blocks; i++) {
        if (r->items[i].status == TARN_E_EXISTS)
            r->used[used++] = r->keys[i];
        else if (r->items[i].status != 0)
            count_error(r, r->items[i].status, "put");
    }
    if (used)
        tarn_touch(r->client, r->used, used);
    r->stored += stored;
    r->present += used;
}

static void replay_request(struct replay *r)
{
    struct tarn_lookup_options o = {.size = sizeof o, .timeout_ms = CALL_MS};
    struct tarn_hits *hits;
    size_t pages = 0, got = 0;
    uint64_t start = tarn_now_ns();
    int rc = tarn_match_prefix(r->client, r->keys, r->blocks, &o, &hits, &pages);

    add_call(&r->lookup, start, 0);
    if (rc != 0) {
        count_error(r, rc, "look-up");
    } else {
        if (pages)
            got = get_run(r, hits, pages);
        tarn_hits_free(hits);
        if (got < r->blocks)
            put_rest(r, got);
    }
    r->requests++;
    r->lookups += r->blocks;
    r->hits += got;
}

/* --- results ------------------------------------------------------------------------------------ */

static double gbps(const struct calls *c)
{
    return c->ns ? (double)c->bytes / (double)c->ns : 0;
}

static double hit_ratio(const struct replay *r)
{
    return r->lookups ? (double)r->hits / (double)r->lookups : 0;
}

/* Updates the progress line. */
static void show_progress(struct replay *r, bool last)
{
    uint64_t now = tarn_now_ns();

    if (!isatty(STDERR_FILENO) || (!last && now - r->shown_ns < PROGRESS_NS))
        return;
    r->shown_ns = now;
    fprintf(stderr,
            "\r\033[K%llu requests  %.1f/s  prefix hits %.1f %%  get %.2f GB/s  put %.2f GB/s  errors %llu%s",
            (unsigned long long)r->requests, (double)r->requests * 1e9 / (double)(now - r->started_ns + 1),
            100 * hit_ratio(r), gbps(&r->get), gbps(&r->put), (unsigned long long)r->errors,
            last ? "\n" : "");
}

static json_t *calls_json(const struct calls *c)
{
    json_t *j = bench_latency_json(&c->latency);

    json_object_set_new(j, "calls", json_integer((json_int_t)c->latency.count));
    json_object_set_new(j, "bytes", json_integer((json_int_t)c->bytes));
    json_object_set_new(j, "GBps", json_real(gbps(c)));
    return j;
}

static json_t *result_json(const struct replay *r, double wall_s, double node_cpu_s)
{
    const struct config *c = r->c;
    json_t *j = json_pack("{s:s, s:s, s:I, s:o, s:s}", "bench", "replay", "trace", c->trace, "block_bytes",
                          (json_int_t)c->block_bytes, "capacity_blocks",
                          c->redis ? json_null() : json_integer(c->capacity_blocks), "transports",
                          c->transports ? c->transports : "all");

    json_object_set_new(j, "requests", json_integer((json_int_t)r->requests));
    json_object_set_new(j, "lookups", json_integer((json_int_t)r->lookups));
    json_object_set_new(j, "prefix_hits", json_integer((json_int_t)r->hits));
    json_object_set_new(j, "prefix_hit_ratio", json_real(hit_ratio(r)));
    json_object_set_new(j, "evicted_before_get", json_integer((json_int_t)r->lost));
    json_object_set_new(j, "stored", json_integer((json_int_t)r->stored));
    json_object_set_new(j, "already_there", json_integer((json_int_t)r->present));
    json_object_set_new(j, "errors", json_integer((json_int_t)r->errors));
    json_object_set_new(j, "wrong_blocks", json_integer((json_int_t)r->wrong));
    json_object_set_new(j, "lookup", calls_json(&r->lookup));
    json_object_set_new(j, "get", calls_json(&r->get));
    json_object_set_new(j, "put", calls_json(&r->put));
    json_object_set_new(j, "wall_s", json_real(wall_s));
    json_object_set_new(j, "node_cpu_s", c->redis ? json_null() : json_real(node_cpu_s));
    json_object_set_new(j, "machine", bench_machine());
    if (r->errors)
        json_object_set_new(j, "first_error", json_string(r->first_error));
    return j;
}

static void print_calls(const char *name, const struct calls *c)
{
    printf("  %-8s %8llu calls   p50 %9.1f us   p99 %9.1f us   p999 %9.1f us", name,
           (unsigned long long)c->latency.count, bench_hist_us(&c->latency, 0.5),
           bench_hist_us(&c->latency, 0.99), bench_hist_us(&c->latency, 0.999));
    if (c->bytes)
        printf("   %7.2f GB/s", gbps(c));
    printf("\n");
}

static void print_result(const struct replay *r, double wall_s)
{
    char size[16];

    tarn_size_format(r->c->block_bytes, size);
    printf("replayed %llu requests, %llu blocks of %s, in %.1f s\n", (unsigned long long)r->requests,
           (unsigned long long)r->lookups, size, wall_s);
    printf("  prefix-hit ratio %.4f: %llu blocks got and verified, %llu put, %llu were there already\n",
           hit_ratio(r), (unsigned long long)r->hits, (unsigned long long)r->stored,
           (unsigned long long)r->present);
    print_calls("look-up", &r->lookup);
    print_calls("get", &r->get);
    print_calls("put", &r->put);
    printf("  errors %llu, wrong blocks %llu\n", (unsigned long long)r->errors, (unsigned long long)r->wrong);
    if (r->errors)
        printf("  first error: %s\n", r->first_error);
}

/* --- running ------------------------------------------------------------------------------------ */

static int start(struct replay *r)
{
    const struct config *c = r->c;
    uint64_t block = (c->block_bytes + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN;
    char pool[96];
    int rc = 0;

    if (!c->redis) {
        snprintf(pool, sizeof pool, "cpu0:bytes=%llu,slots=%lld,align=%d",
                 (unsigned long long)(block * (uint64_t)c->capacity_blocks), (long long)c->capacity_blocks,
                 POOL_ALIGN);
        rc = bench_env_open(&r->e);
        if (rc == 0)
            rc = bench_start_node(&r->e, pool);
    } else if ((size_t)snprintf(r->e.directory_uri, sizeof r->e.directory_uri, "%s", c->redis) >=
               sizeof r->e.directory_uri) {
        rc = tarn_fail(TARN_E_CONFIG, "--redis: the address is longer than %zu bytes",
                       sizeof r->e.directory_uri);
    }
    return rc ? rc : bench_client(&r->e, c->transports, &r->client);
}

static int replay_all(struct replay *r)
{
    double cpu = bench_cpu_s(r->e.node.pid);
    bool more = true;
    int rc = 0;

    r->started_ns = tarn_now_ns();
    while (rc == 0 && !bench_interrupted()) {
        rc = next_request(r, &more);
        if (rc != 0 || !more)
            break;
        if (r->blocks)
            replay_request(r);
        show_progress(r, false);
    }
    show_progress(r, true);
    double wall_s = (double)(tarn_now_ns() - r->started_ns) / 1e9;
    if (rc == 0 || r->requests)
        print_result(r, wall_s);
    if (rc == 0 && r->c->json) {
        json_t *j = result_json(r, wall_s, bench_cpu_s(r->e.node.pid) - cpu);
        rc = bench_write_json(j, r->c->json);
        json_decref(j);
    }
    return rc;
}

static void replay_free(struct replay *r)
{
    tarn_close(r->client);
    bench_env_close(&r->e);
    bench_trace_close(&r->trace);
    if (r->memory)
        munmap(r->memory, r->room * r->c->block_bytes);
    free(r->names);
    free(r->keys);
    free(r->used);
    free(r->pieces);
    free(r->items);
    free(r);
}

static int replay(const void *config)
{
    const struct config *c = config;
    struct replay *r = calloc(1, sizeof *r);
    int rc, status = 1;

    if (!r) {
        fprintf(stderr, "tarn-bench replay: out of memory\n");
        return 1;
    }
    r->c = c;
    r->tag = tarn_random64();
    rc = bench_trace_open(&r->trace, c->trace);
    if (rc == 0)
        rc = start(r);
    if (rc == 0)
        rc = replay_all(r);
    if (rc != 0)
        fprintf(stderr, "tarn-bench replay: %s\n", tarn_last_error());
    else
        status = r->errors != 0;
    replay_free(r);
    return status;
}

int bench_replay_main(int argc, char **argv)
{
    struct config c = {0};

    return bench_program_main(&program, argc, argv, &c, &c.help, replay);
}
