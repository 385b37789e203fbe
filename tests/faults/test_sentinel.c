/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redis Sentinel fails over while clients put, replace, remove and get. No get returns a wrong or an old
 * value, gets with a cached descriptor succeed, puts fail for 5 s at most, and what was put is there
 * afterwards.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "tests/history/check.h"
#include "tests/history/value.h"
#include "tests/node_client.h"
#include "tests/sentinels.h"
#include "tests/stall.h"
#include "tests/world.h"

enum { NODES = 3, SHARED_KEYS = 6, STABLE_KEYS = 8, BYTES = 4096, ROOM = 400000 };
enum { CALL_MS = 1000, PUTS_FAIL_MS = 5000, FAILOVER_MS = 30000, BACK_MS = 15000, AFTER_MS = 3000 };
enum { WRITERS = 3, READERS = 2, LOADS = 2 + WRITERS + READERS };
enum { FIRST_OWN_KEY = 1000 };

struct scene;

struct load {
    struct scene *scene;
    struct tarn_client *client;
    struct history_log *log;
    pthread_t thread;
    void (*step)(struct load *l);
    unsigned seed;
    uint32_t own;                  /* how many keys it has put */
    uint64_t good_ns, worst_ns;    /* the end of the last good put; the longest time between two */
    uint64_t gets, missed, failed; /* with a cached descriptor */
};

struct scene {
    struct harness *h;
    struct sentinels *sentinels;
    struct harness_node *nodes[NODES];
    struct stalls *stalls;
    struct history_log *notes;
    char folder[256];
    struct load loads[LOADS];
    atomic_bool stop;
};

/* --- operations --------------------------------------------------------------------------------- */

struct name {
    char text[24];
    struct tarn_key key;
};

static struct name name_of(uint32_t key)
{
    struct name n;
    snprintf(n.text, sizeof n.text, "s-%u", key);
    return n;
}

static int put(struct load *l, uint32_t key, enum history_kind kind)
{
    uint8_t value[BYTES];
    struct name n = name_of(key);
    const struct tarn_put_options o = {
        .size = sizeof o, .timeout_ms = CALL_MS, .flags = kind == HISTORY_REPLACE ? TARN_PUT_REPLACE : 0};
    struct history_op *op = history_begin(l->log, kind, key, CALL_MS);
    assert_non_null(op);
    value_fill(value, sizeof value, key, op->version);
    struct tarn_piece piece = {.addr = value, .bytes = sizeof value};
    struct tarn_item item = {
        .key = key_of(n.text), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(sizeof value)};
    op->start_ns = tarn_now_ns();
    int status = tarn_put(l->client, &item, 1, &o);
    history_end(op, status);
    return status;
}

static int get(struct load *l, uint32_t key)
{
    uint8_t value[BYTES];
    struct name n = name_of(key);
    size_t at;
    struct history_op *op = history_begin(l->log, HISTORY_GET, key, CALL_MS);
    assert_non_null(op);
    struct tarn_piece piece = {.addr = value, .bytes = sizeof value};
    struct tarn_item item = {.key = key_of(n.text), .pieces = &piece, .npieces = 1};
    const struct tarn_get_options o = {.size = sizeof o, .timeout_ms = CALL_MS};
    int status = tarn_get(l->client, &item, 1, &o);
    if (status == 0)
        op->wrong = value_inspect(value, sizeof value, key, &op->version, &at);
    history_end(op, status);
    return status;
}

/* Notes how long no put succeeded. */
static void note_put(struct load *l, int status)
{
    uint64_t now = tarn_now_ns();
    if (status && status != TARN_E_EXISTS)
        return;
    if (l->good_ns && now - l->good_ns > l->worst_ns)
        l->worst_ns = now - l->good_ns;
    l->good_ns = now;
}

static void put_new(struct load *l)
{
    note_put(l, put(l, FIRST_OWN_KEY + l->own++, HISTORY_PUT));
    harness_pause();
}

static void replace_one(struct load *l)
{
    uint32_t key = (uint32_t)rand_r(&l->seed) % SHARED_KEYS;
    if (rand_r(&l->seed) % 8) {
        note_put(l, put(l, key, HISTORY_REPLACE));
        return;
    }
    struct name n = name_of(key);
    struct tarn_key k = key_of(n.text);
    struct history_op *op = history_begin(l->log, HISTORY_REMOVE, key, CALL_MS);
    assert_non_null(op);
    history_end(op, tarn_remove(l->client, &k, 1, NULL, CALL_MS));
}

static void get_one(struct load *l)
{
    get(l, (uint32_t)rand_r(&l->seed) % SHARED_KEYS);
    harness_pause();
}

/* Keys that nobody replaces, and whose descriptors are cached. */
static void get_stable(struct load *l)
{
    int status = get(l, SHARED_KEYS + (uint32_t)l->gets++ % STABLE_KEYS);
    l->missed += status == TARN_E_NOT_FOUND;
    l->failed += status && status != TARN_E_NOT_FOUND;
    harness_pause();
}

/* --- the scene ---------------------------------------------------------------------------------- */

static void note_stall(void *arg, uint64_t from_ns, uint64_t to_ns)
{
    history_note(arg, HISTORY_STALL, HISTORY_ALL_CLIENTS, from_ns, to_ns);
}

static struct history_log *open_log(struct scene *s, uint16_t number)
{
    char path[300];
    snprintf(path, sizeof path, "%s/log-%u", s->folder, number);
    struct history_log *log = history_open(path, number, ROOM);
    assert_non_null(log);
    return log;
}

static int start_nodes(void **state, const char *heartbeat_ms)
{
    struct scene *s = calloc(1, sizeof *s);
    char id[16];
    assert_non_null(s);
    *state = s;
    s->h = harness_new();
    s->sentinels = sentinels_start(s->h, NULL, NULL);
    snprintf(s->folder, sizeof s->folder, "%s", harness_path(s->h, "history"));
    assert_int_equal(mkdir(s->folder, 0700), 0);
    for (int i = 0; i < NODES; i++) {
        snprintf(id, sizeof id, "node%d", i);
        s->nodes[i] = harness_node_start(s->h, id, &s->sentinels->redis, "--pool", "cpu0:bytes=64M",
                                         "--heartbeat-ms", heartbeat_ms, "--redis-timeout-ms", "500", NULL);
    }
    s->notes = open_log(s, 60);
    s->stalls = stalls_start(note_stall, s->notes);
    return 0;
}

/* A node's record lives for less time than a failover takes. */
static int start(void **state)
{
    return start_nodes(state, "600");
}

/* It lives for more than a failover and two heartbeats. */
static int start_slow(void **state)
{
    return start_nodes(state, "3000");
}

static int stop(void **state)
{
    struct scene *s = *state;
    stalls_stop(s->stalls);
    if (s->notes)
        history_close(s->notes);
    harness_free(s->h);
    free(s);
    return 0;
}

static struct tarn_client *open_client(const struct scene *s)
{
    return client_open(s->sentinels->redis.url, (struct tarn_options){.timeout_ms = CALL_MS});
}

static void *run_load(void *arg)
{
    struct load *l = arg;
    while (!l->scene->stop)
        l->step(l);
    return NULL;
}

static void start_loads(struct scene *s)
{
    static void (*const steps[LOADS])(struct load * l) = {put_new,     get_stable, replace_one, replace_one,
                                                          replace_one, get_one,    get_one};
    for (uint16_t i = 0; i < LOADS; i++) {
        struct load *l = &s->loads[i];
        *l = (struct load){.scene = s, .step = steps[i], .seed = i + 1u};
        l->client = open_client(s);
        l->log = open_log(s, i);
    }
    struct load *stable = &s->loads[1];
    for (uint32_t k = 0; k < STABLE_KEYS; k++) {
        HARNESS_UNTIL(put(stable, SHARED_KEYS + k, HISTORY_REPLACE) == 0, BACK_MS);
        assert_int_equal(get(stable, SHARED_KEYS + k), 0);
    }
    for (int i = 0; i < LOADS; i++)
        assert_int_equal(pthread_create(&s->loads[i].thread, NULL, run_load, &s->loads[i]), 0);
}

static void run_for(uint64_t ms)
{
    uint64_t end = harness_now_ms() + ms;
    HARNESS_UNTIL(harness_now_ms() >= end, ms + BACK_MS);
}

/* What was put by put_new() with status 0, and is not found. */
static uint32_t count_lost(struct scene *s, struct load *by)
{
    struct history h;
    uint32_t lost = 0;
    assert_true(history_load(s->folder, &h));
    for (size_t i = 0; i < h.n; i++)
        if (h.ops[i].kind == HISTORY_PUT && h.ops[i].gone_ns != UINT64_MAX && h.ops[i].status == 0)
            lost += get(by, h.ops[i].key) != 0;
    history_free(&h);
    return lost;
}

static void check_history(struct scene *s)
{
    struct history h;
    struct history_report *r = calloc(1, sizeof *r);
    assert_non_null(r);
    assert_true(history_load(s->folder, &h));
    assert_true(history_check(&h, r));
    history_print(r, stdout);
    assert_true(history_is_legal(r));
    free(r);
    history_free(&h);
}

static uint64_t longest_ms(const struct scene *s, int first, int n)
{
    uint64_t worst = 0;
    for (int i = first; i < first + n; i++)
        if (s->loads[i].worst_ns > worst)
            worst = s->loads[i].worst_ns;
    return worst / TARN_NS_PER_MS;
}

static void end_loads(struct scene *s)
{
    s->stop = true;
    for (int i = 0; i < LOADS; i++)
        pthread_join(s->loads[i].thread, NULL);
}

/* Reads all keys by a client that has nothing cached, then judges all that was done and seen. */
static void judge(struct scene *s)
{
    struct load fresh = {.scene = s, .client = open_client(s), .log = open_log(s, 50)};
    for (uint32_t k = 0; k < SHARED_KEYS + STABLE_KEYS; k++) {
        int status = get(&fresh, k);
        assert_true(status == 0 || status == TARN_E_NOT_FOUND);
    }
    assert_int_equal(count_lost(s, &fresh), 0);
    for (int i = 0; i < LOADS; i++) {
        tarn_close(s->loads[i].client);
        history_close(s->loads[i].log);
    }
    tarn_close(fresh.client);
    history_close(fresh.log);
    check_history(s);
    const struct load *stable = &s->loads[1];
    printf("longest time without a put: %u ms only if absent, %u ms with replace; of %u gets with a cached "
           "descriptor %u missed and %u failed\n",
           (unsigned)longest_ms(s, 0, 1), (unsigned)longest_ms(s, 2, WRITERS), (unsigned)stable->gets,
           (unsigned)stable->missed, (unsigned)stable->failed);
    assert_int_equal(stable->failed, 0);
    assert_true(stable->gets > 100);
    assert_true(longest_ms(s, 0, 1) < PUTS_FAIL_MS * harness_slower());
}

static const char *info(const struct scene *s, int node, const char *name)
{
    return node_info(s->nodes[node]->control, name);
}

/* Do all nodes use this server, with all they hold in a settled directory that is not `before`? */
static bool is_at(const struct scene *s, int server, const char *before)
{
    const struct harness_redis *r = s->sentinels->servers[server];
    for (int i = 0; i < NODES; i++)
        if (strcmp(info(s, i, "redis_primary"), r->address) || strcmp(info(s, i, "presence"), "here") ||
            strcmp(info(s, i, "directory_state"), "settled") || !strcmp(info(s, i, "directory"), before))
            return false;
    return true;
}

/* --- failovers under load ----------------------------------------------------------------------- */

static void fail_over(struct scene *s, int signum)
{
    char before[32];
    HARNESS_UNTIL(is_at(s, 0, ""), BACK_MS);
    snprintf(before, sizeof before, "%s", info(s, 0, "directory"));
    start_loads(s);
    run_for(1000);
    harness_signal(s->sentinels->servers[0]->process, signum);
    HARNESS_UNTIL(sentinels_name(s->sentinels) == 1, FAILOVER_MS);
    HARNESS_UNTIL(is_at(s, 1, before), BACK_MS);
}

/* Nodes that were cut off for longer than their records live are read by nobody until they have learnt that
 * all of them were: gets miss. */
static void the_primary_is_killed(void **state)
{
    struct scene *s = *state;
    fail_over(s, SIGKILL);
    run_for(AFTER_MS);
    end_loads(s);
    judge(s);
    harness_passed(s->h);
}

static void the_primary_is_killed_and_records_live_on(void **state)
{
    struct scene *s = *state;
    fail_over(s, SIGKILL);
    run_for(AFTER_MS);
    end_loads(s);
    judge(s);
    assert_int_equal(s->loads[1].missed, 0);
    harness_passed(s->h);
}

/* It goes on as a primary, until the sentinels make it a replica. */
static void the_primary_is_stopped_and_goes_on(void **state)
{
    struct scene *s = *state;
    fail_over(s, SIGSTOP);
    run_for(1000);
    harness_signal(s->sentinels->servers[0]->process, SIGCONT);
    HARNESS_UNTIL(sentinels_role_is(s->sentinels, 0, "slave"), FAILOVER_MS);
    run_for(AFTER_MS);
    end_loads(s);
    assert_true(is_at(s, 1, ""));
    judge(s);
    harness_passed(s->h);
}

#define CASE(fn_, start_) cmocka_unit_test_setup_teardown(fn_, start_, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_primary_is_killed, start),
        CASE(the_primary_is_killed_and_records_live_on, start_slow),
        CASE(the_primary_is_stopped_and_goes_on, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
