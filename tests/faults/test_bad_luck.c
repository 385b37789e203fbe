/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that die at the worst moment: readers in the middle of gets, nodes under readers. What was
 * promised holds for those that live, and nothing of the dead stays behind.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "tests/harness.h"
#include <tarn/tarn.h>

#define MIB (1024u * 1024u)
#define BYTES (8 * MIB)
#define TIMEOUT_MS 3000

static const char *self;

struct world {
    struct harness *h;
    struct harness_redis *redis;
    struct harness_node *node;
};

static int start(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    w->h = harness_new();
    w->redis = harness_redis_start(w->h, NULL);
    w->node = harness_node_start(w->h, "node0", w->redis, "--pool", "cpu0:bytes=64M", "--heartbeat-ms", "200", NULL);
    *state = w;
    return 0;
}

static int stop(void **state)
{
    struct world *w = *state;
    harness_free(w->h);
    free(w);
    return 0;
}

static struct tarn_client *client_of(const char *redis, const char *transports)
{
    struct tarn_options o = {.size = sizeof o, .redis = redis, .timeout_ms = TIMEOUT_MS, .transports = transports};
    struct tarn_client *c;
    if (tarn_open(&o, &c))
        fail_msg("open: %s", tarn_last_error());
    return c;
}

static int put(struct tarn_client *c, const char *key, int byte, size_t bytes)
{
    char *data = malloc(bytes);
    memset(data, byte, bytes);
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = {
        .key = {key, strlen(key)}, .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(bytes)};
    struct tarn_put_options o = {.size = sizeof o, .flags = TARN_PUT_REPLACE};
    int status = tarn_put(c, &item, 1, &o);
    free(data);
    return status;
}

/* The status; with 0 all bytes are equal, and *byte is which. */
static int get(struct tarn_client *c, const char *key, char *data, size_t bytes, int *byte)
{
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = {.key = {key, strlen(key)}, .pieces = &piece, .npieces = 1};
    uint64_t begun = harness_now_ms();
    int status = tarn_get(c, &item, 1, NULL);
    assert_true(harness_now_ms() - begun < 2 * TIMEOUT_MS);
    for (size_t i = 1; status == 0 && i < bytes; i++)
        if (data[i] != data[0])
            fail_msg("%s is torn: byte %zu is %d, the first one %d", key, i, data[i], data[0]);
    *byte = data[0];
    return status;
}

/* test_bad_luck --reader REDIS TRANSPORT: gets one object for ever. */
static int reader_main(const char *redis, const char *transport)
{
    struct tarn_client *c = client_of(redis, transport);
    char *data = malloc(BYTES);
    int byte;
    for (int i = 0;; i++) {
        if (get(c, "read", data, BYTES, &byte))
            return 1;
        if (i == 3)
            dprintf(STDOUT_FILENO, "ready\n");
    }
}

/* Readers die at random moments of gets by either transport; every byte of the pool can still be reused. */
static void readers_killed_in_the_middle_of_gets(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = client_of(w->redis->url, NULL);
    uint64_t seed = tarn_random64();
    print_message("           seed %llu\n", (unsigned long long)seed);
    assert_int_equal(put(c, "read", 'r', BYTES), 0);
    for (int i = 0; i < 20; i++) {
        const char *argv[] = {self, "--reader", w->redis->url, i % 2 ? "tcp" : "shm", NULL};
        struct harness_process *p = harness_spawn(w->h, "reader", argv);
        assert_non_null(harness_wait_line(p, "ready", HARNESS_TIMEOUT_MS));
        poll(NULL, 0, (int)(seed >> (i * 3) & 7)); /* not synchronisation: another moment of a get each time */
        harness_kill(p);
    }
    char key[16];
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "all-%d", i);
        if (put(c, key, 'a' + i, 4 * MIB - 64))
            fail_msg("put %s: %s", key, tarn_last_error());
    }
    char *data = malloc(4 * MIB);
    int byte;
    for (int i = 8; i < 16; i++) {
        snprintf(key, sizeof key, "all-%d", i);
        assert_int_equal(get(c, key, data, 4 * MIB - 64, &byte), 0);
        assert_int_equal(byte, 'a' + i);
    }
    free(data);
    tarn_close(c);
    harness_passed(w->h);
}

/* The node is killed and started again, five times, under readers that never stop. */
static void node_killed_and_restarted_under_readers(void **state)
{
    struct world *w = *state;
    static const char *const transports[] = {"shm", "tcp"};
    struct tarn_client *clients[2], *writer = client_of(w->redis->url, NULL);
    char *data = malloc(MIB);
    int byte;
    for (int i = 0; i < 2; i++)
        clients[i] = client_of(w->redis->url, transports[i]);
    for (int run = 1; run <= 5; run++) {
        HARNESS_UNTIL(put(writer, "survivor", run, MIB) == 0, 10000);
        for (int i = 0; i < 2; i++) {
            HARNESS_UNTIL(get(clients[i], "survivor", data, MIB, &byte) == 0, 10000);
            assert_int_equal(byte, run);
        }
        harness_kill(w->node->process);
        for (int i = 0; i < 20; i++) {
            int status = get(clients[i % 2], "survivor", data, MIB, &byte);
            assert_true(status == TARN_E_NODE_DOWN || status == TARN_E_NOT_FOUND || (status == 0 && byte == run));
        }
        w->node = harness_node_start(w->h, "node0", w->redis, "--pool", "cpu0:bytes=64M", "--heartbeat-ms",
                                     "200", NULL);
        for (int i = 0; i < 20; i++) {
            int status = get(clients[i % 2], "survivor", data, MIB, &byte);
            assert_true(status == TARN_E_NODE_DOWN || status == TARN_E_NOT_FOUND || (status == 0 && byte == run));
        }
    }
    for (int i = 0; i < 2; i++)
        tarn_close(clients[i]);
    tarn_close(writer);
    free(data);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 4 && strcmp(argv[1], "--reader") == 0)
        return reader_main(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        CASE(readers_killed_in_the_middle_of_gets),
        CASE(node_killed_and_restarted_under_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
