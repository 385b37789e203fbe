/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory is away, refuses, or has forgotten everything. Gets with a cached descriptor go on;
 * everything else ends with DIRECTORY (or TIMEOUT) inside its deadline; nothing is half visible; what
 * the nodes hold is in the directory again within seconds of its return.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include <tarn/tarn.h>

#define TIMEOUT_MS 1500
#define SLACK_MS 3000
#define BACK_MS 10000

struct world {
    struct harness *h;
    struct harness_redis *redis;
    struct harness_node *node;
    struct tarn_client *client;
};

static struct tarn_client *client_of(struct harness_redis *r)
{
    struct tarn_options o = {.size = sizeof o, .redis = r->url, .timeout_ms = TIMEOUT_MS};
    struct tarn_client *c;
    if (tarn_open(&o, &c))
        fail_msg("open: %s", tarn_last_error());
    return c;
}

static int start(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    w->h = harness_new();
    w->redis = harness_redis_start(w->h, NULL);
    w->node = harness_node_start(w->h, "node0", w->redis, "--pool", "cpu0:bytes=32M", "--redis-timeout-ms",
                                 "1000", "--heartbeat-ms", "200", NULL);
    w->client = client_of(w->redis);
    *state = w;
    return 0;
}

static int stop(void **state)
{
    struct world *w = *state;
    tarn_close(w->client);
    harness_free(w->h);
    free(w);
    return 0;
}

static int put_to(struct tarn_client *c, const char *key, const char *value)
{
    struct tarn_piece piece = {.addr = (void *)value, .bytes = strlen(value)};
    struct tarn_item item = {.key = {key, strlen(key)}, .pieces = &piece, .npieces = 1,
                             .tensor = tarn_bytes(strlen(value))};
    uint64_t begun = harness_now_ms();
    int status = tarn_put(c, &item, 1, NULL);
    assert_true(harness_now_ms() - begun < TIMEOUT_MS + SLACK_MS);
    return status;
}

static int get_from(struct tarn_client *c, const char *key, const char *want)
{
    char got[64] = {0};
    struct tarn_piece piece = {.addr = got, .bytes = strlen(want)};
    struct tarn_item item = {.key = {key, strlen(key)}, .pieces = &piece, .npieces = 1};
    uint64_t begun = harness_now_ms();
    int status = tarn_get(c, &item, 1, NULL);
    assert_true(harness_now_ms() - begun < TIMEOUT_MS + SLACK_MS);
    if (status == 0)
        assert_memory_equal(got, want, strlen(want));
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
        assert_int_equal(put_to(w->client, key, "value"), 0);
    }
    harness_kill(w->redis->process);
    assert_int_equal(get_from(w->client, "k7", "value"), 0); /* cached descriptor */
    assert_true(is_away(put_to(w->client, "while-away", "lost")));
    assert_true(is_away(get_from(w->client, "never-seen", "x")));
    harness_redis_restart(w->redis);
    struct tarn_client *fresh = NULL;
    struct tarn_options o = {.size = sizeof o, .redis = w->redis->url, .timeout_ms = TIMEOUT_MS};
    HARNESS_UNTIL(fresh || tarn_open(&o, &fresh) == 0, BACK_MS);
    HARNESS_UNTIL(get_from(fresh, "k0", "value") == 0 && get_from(fresh, "k499", "value") == 0, BACK_MS);
    for (int i = 0; i < 500; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        HARNESS_UNTIL(get_from(fresh, key, "value") == 0, BACK_MS);
    }
    assert_int_equal(get_from(fresh, "while-away", "lost"), TARN_E_NOT_FOUND);
    HARNESS_UNTIL(put_to(w->client, "after", "back") == 0, BACK_MS);
    assert_int_equal(get_from(fresh, "after", "back"), 0);
    tarn_close(fresh);
    harness_passed(w->h);
}

static void flushed_while_running(void **state)
{
    struct world *w = *state;
    assert_int_equal(put_to(w->client, "flushed", "value"), 0);
    freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
    struct tarn_client *fresh = client_of(w->redis);
    HARNESS_UNTIL(get_from(fresh, "flushed", "value") == 0, BACK_MS);
    tarn_close(fresh);
    harness_passed(w->h);
}

static void paused(void **state)
{
    struct world *w = *state;
    assert_int_equal(put_to(w->client, "cached", "value"), 0);
    harness_signal(w->redis->process, SIGSTOP);
    assert_int_equal(get_from(w->client, "cached", "value"), 0);
    assert_true(is_away(put_to(w->client, "while-paused", "half")));
    assert_true(is_away(get_from(w->client, "uncached", "x")));
    /* The node itself answers as ever. */
    redisReply *r = harness_call(w->node->control, "PING", NULL);
    assert_int_equal(r->type, REDIS_REPLY_STATUS);
    freeReplyObject(r);
    harness_signal(w->redis->process, SIGCONT);
    /* What the paused server had buffered may be executed now: it must not stay visible. */
    HARNESS_UNTIL(put_to(w->client, "after-pause", "value") == 0, BACK_MS);
    struct tarn_client *fresh = client_of(w->redis);
    HARNESS_UNTIL(get_from(fresh, "while-paused", "half") == TARN_E_NOT_FOUND, BACK_MS);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "EXISTS", "tarn:default:o:while-paused", NULL) == 0, BACK_MS);
    tarn_close(fresh);
    harness_passed(w->h);
}

static void out_of_memory(void **state)
{
    struct world *w = *state;
    assert_int_equal(put_to(w->client, "before", "value"), 0);
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "maxmemory", "1", NULL));
    assert_int_equal(put_to(w->client, "no-room", "value"), TARN_E_DIRECTORY);
    assert_non_null(strstr(tarn_last_error(), "memory"));
    assert_int_equal(get_from(w->client, "before", "value"), 0);
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "maxmemory", "0", NULL));
    HARNESS_UNTIL(put_to(w->client, "no-room", "value") == 0, BACK_MS);
    harness_passed(w->h);
}

static void read_only(void **state)
{
    struct world *w = *state;
    freeReplyObject(harness_redis_call(w->redis, "REPLICAOF", "127.0.0.1", "1", NULL));
    assert_int_equal(put_to(w->client, "refused", "value"), TARN_E_DIRECTORY);
    freeReplyObject(harness_redis_call(w->redis, "REPLICAOF", "NO", "ONE", NULL));
    HARNESS_UNTIL(put_to(w->client, "refused", "value") == 0, BACK_MS);
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

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(killed_and_restarted_empty), CASE(flushed_while_running), CASE(paused),         CASE(out_of_memory),
        CASE(read_only),                  CASE(absent_at_start),       CASE(wrong_password),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
