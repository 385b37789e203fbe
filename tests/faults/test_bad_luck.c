/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that die at the worst moment: readers in the middle of gets, nodes while clients read. The
 * promises hold for the survivors, and nothing of the dead processes remains.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "tests/node_client.h"
#include "tests/world.h"

#define BYTES (8 * MIB)
#define TIMEOUT_MS 3000

static const char *self;

static const struct world_plan plan = {.nodes = 1,
                                       .args = {"--pool", "cpu0:bytes=64M", "--heartbeat-ms", "500"},
                                       .client = {.timeout_ms = TIMEOUT_MS}};

static int start(void **state)
{
    return world_start(state, &plan);
}

static int get(struct tarn_client *c, const char *key, size_t bytes, char *byte_p)
{
    uint64_t begun = harness_now_ms();
    int status = client_read(c, key, bytes, 0, byte_p);
    assert_true(harness_now_ms() - begun < 2 * TIMEOUT_MS * harness_slower());
    return status;
}

/* test_bad_luck --reader REDIS TRANSPORT: gets one object forever. */
static int reader_main(const char *redis, const char *transport)
{
    struct tarn_options o = plan.client;
    o.transports = transport;
    struct tarn_client *c = client_open(redis, o);
    char byte;
    for (int i = 0;; i++) {
        if (get(c, "read", BYTES, &byte))
            return 1;
        if (i == 3)
            dprintf(STDOUT_FILENO, "ready\n");
    }
}

/* Readers die at random moments of gets, with either transport. Every byte of the pool can still be
 * reused: objects that fill it exactly all fit at once. */
static void readers_killed_in_the_middle_of_gets(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = world_client(w, NULL);
    uint64_t seed = tarn_random64();
    print_message("           seed %llu\n", (unsigned long long)seed);
    assert_int_equal(client_put(c, "read", 'r', BYTES, &replacing), 0);
    for (int i = 0; i < 20; i++) {
        const char *argv[] = {self, "--reader", w->redis->url, i % 2 ? "tcp" : "shm", NULL};
        struct harness_process *p = harness_spawn(w->h, "reader", argv);
        assert_non_null(harness_wait_line(p, "ready", HARNESS_TIMEOUT_MS));
        poll(NULL, 0,
             /* Not synchronisation: it varies the moment of a get at which the reader dies. */
             (int)(seed >> (i * 3) & 7));
        harness_kill(p);
    }
    /* The node takes back what a reader held when it notices that the reader is gone. That may take a
     * moment. */
    const char *control = w->nodes[0]->control;
    HARNESS_UNTIL(node_figure(control, "sessions") + node_figure(control, "sessions_lingering") == 1, 10000);
    const struct tarn_key old = key_of("read");
    assert_int_equal(tarn_remove(c, &old, 1, NULL, 0), 0);
    HARNESS_UNTIL(node_pool_figure(control, "limbo") == 0, 3000);
    char key[16], byte;
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "all-%d", i);
        if (client_put(c, key, (char)('a' + i), 4 * MIB - 64, &replacing))
            fail_msg("put %s: %s", key, tarn_last_error());
    }
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "all-%d", i);
        assert_int_equal(get(c, key, 4 * MIB - 64, &byte), 0);
        assert_int_equal(byte, 'a' + i);
    }
    tarn_close(c);
    harness_passed(w->h);
}

/* The node is killed and restarted five times while readers keep reading. */
static void node_killed_and_restarted_under_readers(void **state)
{
    struct world *w = *state;
    static const char *const transports[] = {"shm", "tcp"};
    struct tarn_client *clients[2], *writer = world_client(w, NULL);
    char byte;
    for (int i = 0; i < 2; i++)
        clients[i] = world_client(w, transports[i]);
    for (int run = 1; run <= 5; run++) {
        HARNESS_UNTIL(client_put(writer, "survivor", (char)run, MIB, &replacing) == 0, 10000);
        for (int i = 0; i < 2; i++) {
            HARNESS_UNTIL(get(clients[i], "survivor", MIB, &byte) == 0, 10000);
            assert_int_equal(byte, run);
        }
        harness_kill(w->nodes[0]->process);
        for (int i = 0; i < 20; i++) {
            int status = get(clients[i % 2], "survivor", MIB, &byte);
            assert_true(status == TARN_E_NODE_DOWN || status == TARN_E_NOT_FOUND ||
                        (status == 0 && byte == run));
        }
        w->nodes[0] = world_node(w, "node0");
        for (int i = 0; i < 20; i++) {
            int status = get(clients[i % 2], "survivor", MIB, &byte);
            assert_true(status == TARN_E_NODE_DOWN || status == TARN_E_NOT_FOUND ||
                        (status == 0 && byte == run));
        }
    }
    for (int i = 0; i < 2; i++)
        tarn_close(clients[i]);
    tarn_close(writer);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, world_stop)

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
