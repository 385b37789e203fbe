/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory is unreachable, refuses requests, or has lost its data. Gets with a cached descriptor
 * continue. Everything else ends with DIRECTORY (or TIMEOUT) within its deadline. No object becomes half
 * visible. Within seconds of the directory's return it has the nodes' objects again.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/node_client.h"
#include "tests/world.h"

#define TIMEOUT_MS 1500
#define SLACK_MS (3000 * harness_slower())
#define BACK_MS 10000
#define BYTES 5

static const struct world_plan plan = {
    .nodes = 1,
    .args = {"--pool", "cpu0:bytes=32M", "--redis-timeout-ms", "1000", "--heartbeat-ms", "200"},
    .client = {.timeout_ms = TIMEOUT_MS}};

static int start(void **state)
{
    return world_start_client(state, &plan);
}

/* Returns the status. The call must end within the deadline. */
static int put(struct tarn_client *c, const char *key)
{
    uint64_t begun = harness_now_ms();
    int status = client_put(c, key, 'v', BYTES, NULL);
    assert_true(harness_now_ms() - begun < TIMEOUT_MS * harness_slower() + SLACK_MS);
    return status;
}

static int get(struct tarn_client *c, const char *key)
{
    uint64_t begun = harness_now_ms();
    int status = client_get(c, key, 'v', BYTES);
    assert_true(harness_now_ms() - begun < TIMEOUT_MS * harness_slower() + SLACK_MS);
    return status;
}

static bool is_away(int status)
{
    return status == TARN_E_DIRECTORY || status == TARN_E_TIMEOUT;
}

static void killed_and_restarted_empty(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 500; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(put(w->client, key), 0);
    }
    harness_kill(w->redis->process);
    assert_int_equal(get(w->client, "k7"), 0); /* cached descriptor */
    assert_true(is_away(put(w->client, "while-away")));
    assert_true(is_away(get(w->client, "never-seen")));
    harness_redis_restart(w->redis);
    struct tarn_client *fresh = NULL;
    struct tarn_options o = {.size = sizeof o, .redis = w->redis->url, .timeout_ms = TIMEOUT_MS};
    HARNESS_UNTIL(fresh || tarn_open(&o, &fresh) == 0, BACK_MS);
    HARNESS_UNTIL(get(fresh, "k0") == 0 && get(fresh, "k499") == 0, BACK_MS);
    for (int i = 0; i < 500; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        HARNESS_UNTIL(get(fresh, key) == 0, BACK_MS);
    }
    assert_int_equal(get(fresh, "while-away"), TARN_E_NOT_FOUND);
    HARNESS_UNTIL(put(w->client, "after") == 0, BACK_MS);
    assert_int_equal(get(fresh, "after"), 0);
    tarn_close(fresh);
    harness_passed(w->h);
}

static void flushed_while_running(void **state)
{
    struct world *w = *state;
    assert_int_equal(put(w->client, "flushed"), 0);
    freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
    struct tarn_client *fresh = world_client(w, NULL);
    HARNESS_UNTIL(get(fresh, "flushed") == 0, BACK_MS);
    tarn_close(fresh);
    harness_passed(w->h);
}

static void paused(void **state)
{
    struct world *w = *state;
    assert_int_equal(put(w->client, "cached"), 0);
    harness_signal(w->redis->process, SIGSTOP);
    assert_int_equal(get(w->client, "cached"), 0);
    assert_true(is_away(put(w->client, "while-paused")));
    assert_true(is_away(get(w->client, "uncached")));
    /* The node itself still answers. */
    redisReply *r = harness_call(w->nodes[0]->control, "PING", NULL);
    assert_int_equal(r->type, REDIS_REPLY_STATUS);
    freeReplyObject(r);
    harness_signal(w->redis->process, SIGCONT);
    /* The paused server may now execute buffered requests. Their effects must not stay visible. */
    HARNESS_UNTIL(put(w->client, "after-pause") == 0, BACK_MS);
    struct tarn_client *fresh = world_client(w, NULL);
    HARNESS_UNTIL(get(fresh, "while-paused") == TARN_E_NOT_FOUND, BACK_MS);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "EXISTS", "tarn:default:o:while-paused", NULL) == 0,
                  BACK_MS);
    tarn_close(fresh);
    harness_passed(w->h);
}

static void out_of_memory(void **state)
{
    struct world *w = *state;
    assert_int_equal(put(w->client, "before"), 0);
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "maxmemory", "1", NULL));
    assert_int_equal(put(w->client, "no-room"), TARN_E_DIRECTORY);
    assert_non_null(strstr(tarn_last_error(), "memory"));
    assert_int_equal(get(w->client, "before"), 0);
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "maxmemory", "0", NULL));
    HARNESS_UNTIL(put(w->client, "no-room") == 0, BACK_MS);
    harness_passed(w->h);
}

static void read_only(void **state)
{
    struct world *w = *state;
    freeReplyObject(harness_redis_call(w->redis, "REPLICAOF", "127.0.0.1", "1", NULL));
    assert_int_equal(put(w->client, "refused"), TARN_E_DIRECTORY);
    freeReplyObject(harness_redis_call(w->redis, "REPLICAOF", "NO", "ONE", NULL));
    HARNESS_UNTIL(put(w->client, "refused") == 0, BACK_MS);
    harness_passed(w->h);
}

static void absent_at_start(void **state)
{
    struct world *w = *state;
    char url[64];
    snprintf(url, sizeof url, "redis://127.0.0.1:%u", harness_free_port());
    struct tarn_options o = {.size = sizeof o, .redis = url, .timeout_ms = TIMEOUT_MS};
    struct tarn_client *c;
    uint64_t begun = harness_now_ms();
    assert_int_equal(tarn_open(&o, &c), TARN_E_DIRECTORY);
    assert_true(harness_now_ms() - begun < TIMEOUT_MS + SLACK_MS);
    assert_non_null(strstr(tarn_last_error(), url + 8));
    harness_passed(w->h);
}

static void wrong_password(void **state)
{
    struct world *w = *state;
    struct harness_redis *guarded = harness_redis_start(w->h, "right");
    char url[96];
    snprintf(url, sizeof url, "redis://:wrong@127.0.0.1:%u", guarded->port);
    struct tarn_options o = {.size = sizeof o, .redis = url};
    struct tarn_client *c;
    assert_int_equal(tarn_open(&o, &c), TARN_E_AUTH);
    assert_null(strstr(tarn_last_error(), "wrong@"));
    snprintf(url, sizeof url, "redis://127.0.0.1:%u", guarded->port);
    assert_int_equal(tarn_open(&o, &c), TARN_E_AUTH);
    o.redis = guarded->url;
    assert_int_equal(tarn_open(&o, &c), 0);
    tarn_close(c);
    harness_passed(w->h);
}

/* How many script calls Redis has executed. */
static long long script_calls(const struct world *w)
{
    redisReply *r = harness_redis_call(w->redis, "INFO", "commandstats", NULL);
    const char *at = strstr(r->str, "cmdstat_evalsha:calls=");
    long long calls = at ? atoll(at + strlen("cmdstat_evalsha:calls=")) : 0;
    freeReplyObject(r);
    return calls;
}

/* Redis allows the node everything except removing records. The node retries now and then, and can still
 * end. */
static void refused_withdrawals_are_retried_slowly(void **state)
{
    struct world *w = *state;
    assert_int_equal(put(w->client, "stays"), 0);
    assert_int_equal(put(w->client, "evicted"), 0);
    freeReplyObject(harness_redis_call(w->redis, "ACL", "SETUSER", "default", "-del", NULL));
    struct tarn_key key = key_of("stays");
    int status = tarn_remove(w->client, &key, 1, NULL, 0);
    if (status != TARN_E_AUTH)
        fail_msg("remove: %s", tarn_last_error());
    assert_non_null(strstr(tarn_last_error(), "grant the user"));
    redisReply *r = harness_call(w->nodes[0]->local, "EVICT", "cpu0", "100", NULL);
    assert_true(r->integer > 0);
    freeReplyObject(r);
    /* A heartbeat of 200 ms takes two calls. Without pauses between retries there would be thousands. */
    long long before = script_calls(w);
    uint64_t begun = harness_now_ms();
    HARNESS_UNTIL(harness_now_ms() - begun >= 1000, BACK_MS);
    assert_true(script_calls(w) - before < (long long)(harness_now_ms() - begun) / 20);
    harness_signal(w->nodes[0]->process, SIGTERM);
    assert_int_equal(harness_wait(w->nodes[0]->process, BACK_MS), 0);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(killed_and_restarted_empty),
        CASE(flushed_while_running),
        CASE(paused),
        CASE(out_of_memory),
        CASE(read_only),
        CASE(refused_withdrawals_are_retried_slowly),
        CASE(absent_at_start),
        CASE(wrong_password),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
