/* SPDX-License-Identifier: Apache-2.0 */
/* What an idle node costs, and what an object costs the directory. */
#include "client/bench/bench.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/resp/resp.h"

#define OBJECTS 20000
#define BATCH 500
#define CALL_MS 10000

/* --- the node ----------------------------------------------------------------------------------- */

/* Resident bytes of a process without its memfd mappings, which hold the pools and what belongs to them. */
static int resident_beyond_pools(pid_t pid, double *bytes)
{
    char path[64], line[512];
    bool pool = false;
    unsigned long kib;

    snprintf(path, sizeof path, "/proc/%d/smaps", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return tarn_fail(TARN_E_SYSTEM, "%s: %m", path);
    *bytes = 0;
    while (fgets(line, sizeof line, f)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            pool = strstr(line, "/memfd:") != NULL;
        else if (!pool && sscanf(line, "Rss: %lu kB", &kib) == 1)
            *bytes += 1024.0 * (double)kib;
    }
    fclose(f);
    return 0;
}

static double thread_count(pid_t pid)
{
    char path[64], line[256];
    int n = 0;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Threads: %d", &n) == 1)
            break;
    if (f)
        fclose(f);
    return n;
}

static void wait_s(double seconds)
{
    uint64_t end = tarn_now_ns() + (uint64_t)(seconds * 1e9);
    struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};

    while (!bench_interrupted() && tarn_now_ns() < end)
        nanosleep(&pause, NULL);
}

static int idle_row(struct bench_env *e, struct bench_report *rep)
{
    struct bench_row *r = bench_row_new("idle", "", 0);
    char program[PATH_MAX];
    struct stat st;
    double rss = 0, cpu = bench_cpu_s(e->node.pid);
    uint64_t start = tarn_now_ns();

    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "the idle group: out of memory");
    wait_s(e->quick ? 2 : 10);
    r->wall_s = (double)(tarn_now_ns() - start) / 1e9;
    r->node_cpu_s = bench_cpu_s(e->node.pid) - cpu;
    int rc = resident_beyond_pools(e->node.pid, &rss);
    if (rc == 0)
        rc = bench_program("tarnd", program, sizeof program);
    if (rc == 0 && stat(program, &st) != 0)
        rc = tarn_fail(TARN_E_SYSTEM, "%s: %m", program);
    if (rc == 0) {
        bench_row_figure(r, "resident_bytes", rss);
        bench_row_figure(r, "binary_bytes", (double)st.st_size);
        bench_row_figure(r, "node_threads", thread_count(e->node.pid));
        bench_row_figure(r, "node_cpu_percent", 100 * r->node_cpu_s / r->wall_s);
        bench_at_most(r, "resident, MB", rss / 1e6, 8);
        bench_at_most(r, "binary, MB", (double)st.st_size / 1e6, 2);
        bench_at_most(r, "node CPU, % of a core", 100 * r->node_cpu_s / r->wall_s, 0.5);
    }
    return bench_report_row(rep, r, rc);
}

/* --- the directory ------------------------------------------------------------------------------ */

/* The number after `field` in the text of INFO memory. */
static int used_memory(struct tarn_resp *redis, double *bytes)
{
    const struct tarn_command *info = tarn_resp_command(redis, "INFO", "memory", NULL);
    redisReply *reply;
    int rc = tarn_resp_call(redis, tarn_deadline(CALL_MS), info, &reply);

    if (rc != 0)
        return rc;
    const char *at = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, "used_memory:") : NULL;
    *bytes = at ? strtod(at + strlen("used_memory:"), NULL) : 0;
    freeReplyObject(reply);
    return at ? 0 : tarn_fail(TARN_E_FORMAT, "INFO memory of Redis has no used_memory");
}

static int memory_usage(struct tarn_resp *redis, const char *key, double *bytes)
{
    char name[64];
    redisReply *reply;

    snprintf(name, sizeof name, "tarn:default:o:%s", key);
    const struct tarn_command *usage = tarn_resp_command(redis, "MEMORY", "USAGE", name, NULL);
    int rc = tarn_resp_call(redis, tarn_deadline(CALL_MS), usage, &reply);
    if (rc != 0)
        return rc;
    *bytes = reply->type == REDIS_REPLY_INTEGER ? (double)reply->integer : 0;
    freeReplyObject(reply);
    return *bytes > 0 ? 0 : tarn_fail(TARN_E_NOT_FOUND, "Redis has no %s", name);
}

/* Keys of 40 bytes. */
static void object_key(size_t i, char key[48])
{
    snprintf(key, 48, "bench/directory-bytes/object-%011zu", i);
}

static int put_objects(struct tarn_client *c, size_t first, size_t n)
{
    char names[BATCH][48], content[64] = "";
    struct tarn_piece piece = {.addr = content, .bytes = sizeof content};
    struct tarn_item items[BATCH];

    for (size_t i = 0; i < n; i++) {
        object_key(first + i, names[i]);
        items[i] = (struct tarn_item){.key = {names[i], strlen(names[i])},
                                      .pieces = &piece,
                                      .npieces = 1,
                                      .tensor = tarn_bytes(sizeof content)};
    }
    return tarn_put(c, items, n, NULL);
}

static int measure_directory(struct bench_env *e, struct tarn_client *c, struct tarn_resp *redis,
                             struct bench_row *r)
{
    double before = 0, after = 0, one = 0, rss = 0;
    char key[48];
    int rc = used_memory(redis, &before);

    for (size_t i = 0; rc == 0 && i < OBJECTS; i += BATCH)
        rc = put_objects(c, i, BATCH);
    if (rc == 0)
        rc = used_memory(redis, &after);
    object_key(OBJECTS / 2, key);
    if (rc == 0)
        rc = memory_usage(redis, key, &one);
    if (rc == 0)
        rc = resident_beyond_pools(e->node.pid, &rss);
    if (rc != 0)
        return rc;
    bench_row_figure(r, "objects", OBJECTS);
    bench_row_figure(r, "bytes_per_object", (after - before) / OBJECTS);
    bench_row_figure(r, "memory_usage", one);
    bench_row_figure(r, "node_resident_bytes", rss);
    bench_at_most(r, "Redis bytes an object", (after - before) / OBJECTS, 256);
    return 0;
}

static int directory_row(struct bench_env *e, struct bench_report *rep)
{
    struct bench_row *r = bench_row_new("directory_bytes", "40-byte keys", 0);
    struct tarn_client *c = NULL;
    struct tarn_resp *redis = NULL;
    struct tarn_addr a;
    int rc = r ? bench_client(e, NULL, &c) : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = tarn_addr_parse(e->directory_address, "the directory", &a);
    if (rc == 0)
        rc = tarn_resp_connect(&a, tarn_deadline(CALL_MS), NULL, &redis);
    if (rc == 0)
        rc = measure_directory(e, c, redis, r);
    tarn_resp_free(redis);
    tarn_close(c);
    return r ? bench_report_row(rep, r, rc) : rc;
}

int bench_group_idle(struct bench_env *e, struct bench_report *rep)
{
    int rc = bench_start_node(e, "cpu0:bytes=1G");

    if (rc == 0)
        rc = idle_row(e, rep);
    return rc ? rc : directory_row(e, rep);
}
