/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the directory tests: a private Redis, records to publish, and shorthand calls. */
#ifndef TARN_TESTS_UNIT_DIRECTORY_FIXTURE_H
#define TARN_TESTS_UNIT_DIRECTORY_FIXTURE_H

#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "metadata/directory.h"

#define PATIENCE_MS 10000 /* much longer than any call in these tests takes */
#define NS "test"
#define COUNT(a_) (sizeof(a_) / sizeof *(a_))

/* A private Redis on a Unix socket in a temporary directory, so tests cannot collide. */
struct fixture {
    struct harness *h;
    struct harness_process *redis;
    char path[128], uri[160], address[160]; /* as a file; for the directory; for harness_call() */
    struct tarn_directory *d;
};

static inline uint64_t soon(void)
{
    return tarn_deadline(PATIENCE_MS);
}

static inline bool opens(const char *uri, struct tarn_directory **d_p)
{
    return tarn_directory_open(uri, NS, NULL, soon(), NULL, d_p) == 0;
}

static inline struct tarn_directory *open_directory(const char *uri)
{
    struct tarn_directory *d = NULL;
    if (!opens(uri, &d))
        fail_msg("open: %s", tarn_last_error());
    return d;
}

static inline void start_redis(struct fixture *f)
{
    const char *argv[] = {"redis-server", "--port", "0",     "--unixsocket",    f->path,
                          "--save",       "",       "--dir", harness_dir(f->h), NULL};
    struct tarn_directory *d = NULL;
    f->redis = harness_spawn(f->h, "redis", argv);
    HARNESS_UNTIL(opens(f->uri, &d) || !harness_running(f->redis), PATIENCE_MS);
    if (!d)
        harness_skip("redis", "redis-server does not start");
    tarn_directory_close(d);
}

/* Runs one Redis command. Returns its integer, its number of elements, or -1. */
#define command(f_, ...) count_of(harness_call((f_)->address, __VA_ARGS__, NULL))
static inline long long count_of(redisReply *r)
{
    long long n = r->type == REDIS_REPLY_INTEGER ? r->integer : -1;
    if (r->type == REDIS_REPLY_ARRAY)
        n = (long long)r->elements;
    freeReplyObject(r);
    return n;
}

static inline int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->h = harness_new();
    snprintf(f->path, sizeof f->path, "%s", harness_path(f->h, "redis.sock"));
    snprintf(f->uri, sizeof f->uri, "unix://%s", f->path);
    snprintf(f->address, sizeof f->address, "unix:%s", f->path);
    start_redis(f);
    f->d = open_directory(f->uri);
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;
    tarn_directory_close(f->d);
    harness_passed(f->h);
    harness_free(f->h);
    free(f);
    return 0;
}

static inline int empty(void **state)
{
    const struct fixture *f = *state;
    command(f, "FLUSHALL");
    return 0;
}

static inline bool holds(const char *text, const char *part)
{
    if (strstr(text, part))
        return true;
    print_error("'%s' is not in '%s'\n", part, text);
    return false;
}

#define assert_said(part_) assert_true(holds(tarn_last_error(), part_))

/* --- objects ------------------------------------------------------------------------------------ */

static inline struct tarn_key key_of(const char *text)
{
    return (struct tarn_key){text, strlen(text)};
}

static inline struct tarn_location location(const char *node, uint64_t offset, uint64_t gen)
{
    struct tarn_location l = {.offset = offset, .slot = (uint32_t)(offset / 4096), .gen = gen};
    snprintf(l.node, sizeof l.node, "%s", node);
    snprintf(l.pool, sizeof l.pool, "cpu0");
    return l;
}

static inline struct tarn_publish copy_of(const char *key, enum tarn_publish_mode mode, uint64_t version,
                                          const char *node, uint64_t gen)
{
    struct tarn_publish p = {.key = key_of(key), .mode = mode, .until_ms = UINT64_MAX};
    p.record = (struct tarn_record){
        .tensor = {.bytes = 2 * 2 * 16, .dtype = TARN_BF16, .ndim = 2, .shape = {2, 16}},
        .version = version,
        .born_ms = 1764000000000 + version,
        .nlocations = 1,
        .locations = {location(node, 4096 * version, gen)},
    };
    return p;
}

/* Publishes one copy. Returns the call's code, or else the publish's status. */
static inline int publish(struct tarn_directory *d, struct tarn_publish *p)
{
    int rc = tarn_directory_publish(d, p, 1, soon());
    return rc ? rc : p->status;
}

static inline int put(struct tarn_directory *d, const char *key, enum tarn_publish_mode mode,
                      uint64_t version, const char *node, uint64_t gen)
{
    struct tarn_publish p = copy_of(key, mode, version, node, gen);
    return publish(d, &p);
}

struct found {
    int status;
    size_t calls;
    struct tarn_record record;
};

static inline void take_one(void *arg, size_t i, int status, const struct tarn_record *r)
{
    struct found *f = arg;
    assert_int_equal(i, f->calls++);
    f->status = status;
    if (r)
        f->record = *r;
}

static inline struct found look(struct tarn_directory *d, const char *text)
{
    struct tarn_key key = key_of(text);
    struct found f = {.status = 1};
    int rc = tarn_directory_lookup(d, &key, 1, soon(), NULL, take_one, &f);
    if (rc)
        fail_msg("lookup: %s", tarn_last_error());
    assert_int_equal(f.calls, 1);
    return f;
}

static inline bool withdraw(struct tarn_directory *d, const char *key, struct tarn_location l)
{
    struct tarn_withdraw w = {.key = key_of(key), .location = l, .why = "removed", .removed = true};
    assert_int_equal(tarn_directory_withdraw(d, &w, 1, soon()), 0);
    return w.removed;
}

/* --- nodes */

static struct tarn_pool_record two_pools[2] = {
    {.name = "cpu0",
     .kind = "cpu",
     .bytes = 1 << 20,
     .free_bytes = 4096,
     .objects = 3,
     .slots = 64,
     .transports = "shm,tcp",
     .fields = {"v1 here", "v1 127.0.0.1:7701"}},
    {.name = "cpu1", .kind = "cpu", .index = 1, .bytes = 1 << 21},
};

static inline struct tarn_node_record node(const char *id, uint64_t epoch)
{
    struct tarn_node_record n = {.epoch = epoch,
                                 .host = "somewhere",
                                 .host_id = "0123",
                                 .control = "127.0.0.1:7700",
                                 .unix_path = "/run/tarn.sock",
                                 .version = "0.1.0",
                                 .state = "up",
                                 .secret = "0123456789abcdef0123456789abcdef",
                                 .pid = 77,
                                 .started_ms = 1764000000000,
                                 .npools = 2,
                                 .pools = two_pools};
    snprintf(n.id, sizeof n.id, "%s", id);
    return n;
}

struct beaten {
    int rc;
    struct tarn_beat b;
};

/* Sends a heartbeat from a node that saw the directory at heartbeat `before` (NULL: never). Creates the
 * node's record if it is missing. */
static inline struct beaten beat_again(struct tarn_directory *d, const struct tarn_node_record *n,
                                       const struct tarn_beat *before)
{
    struct beaten b = {.b = {.node = n, .heartbeat_ms = 20000, .ttl_ms = 60000, .make_until_ms = UINT64_MAX}};
    if (before) {
        memcpy(b.b.known, before->state.id, sizeof b.b.known);
        b.b.last_ms = before->state.now_ms;
    }
    b.rc = tarn_directory_beat(d, &b.b, soon());
    return b;
}

static inline struct beaten beat(struct tarn_directory *d, const struct tarn_node_record *n)
{
    return beat_again(d, n, NULL);
}

#endif
