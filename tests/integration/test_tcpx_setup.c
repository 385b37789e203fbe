/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the network plugin's connections are set up, over the fixture plugin in all its variants: calls that
 * return only when the peer has come, peers that never come, first connections that take seconds, bounce
 * memory that is mapped without a lock, tables that init() fills. Only operations that wait for such a
 * connection are delayed.
 *
 * A process starts a plugin only once, with the environment of that moment, so each case has its own node and
 * clients.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/router.h"
#include "tests/stall.h"
#include "tests/tcpx/child.h"
#include "tests/tcpx/counters.h"
#include "tests/world.h"

enum {
    DRAIN_MS = 1000,
    DEADLINE_MS = 5000, /* a client's default */
    BYTES = 3 * MIB + 77,
    THREADS = 32,
    PAUSE_MS = 50,
};
#define CUT "TEST_CUT" /* names an address; a client's connections to it pass nothing */
#define BLOCKS "accept_blocks=1,connect_blocks=1"

static const struct world_plan plan = {.nodes = 0,
                                       .args = {"--pool", "cpu0:bytes=128M", "--transports", "tcpx,tcp",
                                                "--heartbeat-ms", "200", "--drain-timeout-ms", "1000"}};
static const char *self;

static int start(void **state)
{
    child_configure("fixture-v7");
    setenv("NCCL_SOCKET_NTHREADS", "1", 1);
    setenv("NCCL_NSOCKS_PERTHREAD", "4", 1);
    return world_start(state, &plan);
}

static void node_with(struct world *w, const char *options)
{
    setenv("TCPX_FIXTURE", options, 1);
    w->nodes[0] = world_node(w, "node0");
    unsetenv("TCPX_FIXTURE");
    struct tarn_client *c = world_client(w, "tcp");
    assert_int_equal(client_put(c, "key", 'a', BYTES, NULL), 0);
    tarn_close(c);
}

/* --- clients ------------------------------------------------------------------------------------ */

/* Runs in many threads, each with its own connection. */
static void *get_first(void *arg)
{
    struct tarn_client *c = arg;
    int status = client_get(c, "key", 'a', BYTES);
    printf("%s %s\n", tarn_error_name(status), status ? tarn_last_error() : "");
    return NULL;
}

static void get_by_threads(struct tarn_client *c)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, get_first, c);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* Milliseconds since begun_ns, without the time in which the host stalled. */
static unsigned taken_ms(struct stalls *s, uint64_t begun_ns)
{
    uint64_t ended_ns = tarn_now_ns();
    return (unsigned)((ended_ns - begun_ns - stalls_within(s, begun_ns, ended_ns)) / TARN_NS_PER_MS);
}

/* One operation: "<status> <ms> <sentence>". */
static void operate(struct tarn_client *c, bool put, struct stalls *stalls)
{
    char byte;
    uint64_t begun = tarn_now_ns();
    int status = put ? client_put(c, "key", 'a', BYTES, &replacing) : client_read(c, "key", BYTES, 0, &byte);
    unsigned ms = taken_ms(stalls, begun);
    printf("%s %u %s\n", status || put || byte == 'a' ? tarn_error_name(status) : "WRONG", ms,
           status ? tarn_last_error() : "");
}

/* Runs operations one after the other. A few in a second are enough. */
static void operate_until(struct tarn_client *c, bool put, uint64_t until_ms)
{
    struct stalls *stalls = stalls_start(NULL, NULL);
    for (;;) {
        operate(c, put, stalls);
        if (harness_now_ms() >= until_ms)
            break;
        poll(NULL, 0, PAUSE_MS); /* a pause between operations */
    }
    stalls_stop(stalls);
}

static struct router *cut_off(const char *address)
{
    struct router *r = router_start(1);
    struct relay *x = router_add(r, "127.0.0.1:0", address);
    relay_set(x, &(struct relay_state){.cut = RELAY_BOTH});
    router_route(address, relay_address(x));
    return r;
}

/* --client REDIS TRANSPORTS put|get|threads MS: runs operations for MS, at least one; or one in each
 * thread. */
static int client_main(const char *redis, const char *transports, const char *what, const char *ms)
{
    bool threads = strcmp(what, "threads") == 0; /* this case does not measure times */
    struct router *r = getenv(CUT) ? cut_off(getenv(CUT)) : NULL;
    struct tarn_client *c = client_open(
        redis, (struct tarn_options){.transports = transports, .timeout_ms = threads ? 10 * DEADLINE_MS : 0});
    uint64_t until = harness_now_ms() + strtoull(ms, NULL, 10);
    if (threads)
        get_by_threads(c);
    else
        operate_until(c, strcmp(what, "put") == 0, until);
    tarn_close(c);
    router_stop(r);
    return 0;
}

static struct harness_process *client(struct world *w, const char *options, const char *transports,
                                      const char *what, const char *ms)
{
    const char *argv[] = {self, "--client", w->redis->url, transports, what, ms, NULL};
    setenv("TCPX_FIXTURE", options, 1);
    struct harness_process *p = harness_spawn(w->h, "client", argv);
    unsetenv("TCPX_FIXTURE");
    return p;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWER = 4 };
#else
enum { SLOWER = 1 };
#endif

/* Checks that all succeeded: the first within first_ms, the others within later_ms. */
static void check_lines(struct harness_process *p, unsigned first_ms, unsigned later_ms)
{
    assert_int_equal(harness_wait(p, 60000), 0);
    unsigned most = SLOWER * first_ms;
    for (const char *line = harness_stdout(p, NULL); *line;
         line = strchr(line, '\n') + 1, most = SLOWER * later_ms)
        if (strncmp(line, "OK ", 3) != 0 || strtoul(line + 3, NULL, 10) > most)
            fail_msg("more than %u ms, or no success: %.*s", most, (int)strcspn(line, "\n"), line);
}

/* Counts the calls of the plugins in clients that start from now on, until count_no_more(). */
static struct fixture_counters *count(struct world *w)
{
    const char *path = harness_path(w->h, "counters");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, sizeof(struct fixture_counters)), 0);
    struct fixture_counters *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(c, MAP_FAILED);
    close(fd);
    setenv("TCPX_FIXTURE_COUNTERS", path, 1);
    return c;
}

static void count_no_more(struct fixture_counters *c)
{
    unsetenv("TCPX_FIXTURE_COUNTERS");
    munmap(c, sizeof(*c));
}

/* A client whose connection is being set up, which takes a minute. */
static struct harness_process *client_that_sticks(struct world *w, const char *what)
{
    struct fixture_counters *c = count(w);
    uint64_t before = c->setups;
    struct harness_process *p = client(w, BLOCKS ",setup_ms=60000", "tcpx", what, "0");
    HARNESS_UNTIL(c->setups > before, HARNESS_TIMEOUT_MS);
    count_no_more(c);
    return p;
}

static void end_node(struct world *w)
{
    struct harness_process *p = w->nodes[0]->process;
    struct stalls *stalls = stalls_start(NULL, NULL);
    uint64_t begun = tarn_now_ns();
    harness_signal(p, SIGTERM);
    int status = harness_wait(p, DRAIN_MS + 10000);
    unsigned ms = taken_ms(stalls, begun);
    stalls_stop(stalls);
    if (status || ms > DRAIN_MS + 1000 * harness_slower())
        fail_msg("SIGTERM: status %d after %u ms: %s", status, ms, harness_log(p));
}

/* --- peers that never come ---------------------------------------------------------------------- */

static void others_go_on_behind(struct world *w, const char *what, bool dies)
{
    node_with(w, BLOCKS);
    struct harness_process *stuck = client_that_sticks(w, what);
    if (dies)
        harness_kill(stuck);
    check_lines(client(w, BLOCKS, "tcpx", "put", "500"), 2500, 1000);
    check_lines(client(w, BLOCKS, "tcpx", "get", "500"), 2500, 1000);
    end_node(w);
    harness_passed(w->h);
}

static void a_client_stuck_in_a_put_delays_no_other(void **state)
{
    others_go_on_behind(*state, "put", false);
}

static void a_client_stuck_in_a_get_delays_no_other(void **state)
{
    others_go_on_behind(*state, "get", false);
}

static void a_client_killed_in_a_put_delays_no_other(void **state)
{
    others_go_on_behind(*state, "put", true);
}

static void a_client_killed_in_a_get_delays_no_other(void **state)
{
    others_go_on_behind(*state, "get", true);
}

/* An accept that waited for the dead client would never end. */
static void an_accept_for_a_dead_client_ends(void **state)
{
    struct world *w = *state;
    struct fixture_counters *c = count(w);
    node_with(w, BLOCKS);
    struct harness_process *stuck = client(w, BLOCKS ",setup_ms=60000", "tcpx", "put", "0");
    HARNESS_UNTIL(c->listens == 1, HARNESS_TIMEOUT_MS);
    harness_kill(stuck);
    HARNESS_UNTIL(c->listens == 0, HARNESS_TIMEOUT_MS);
    count_no_more(c);
    harness_passed(w->h);
}

/* The node's thread spends a minute in that call. */
static void a_stuck_plugin_call_does_not_keep_the_node_running(void **state)
{
    struct world *w = *state;
    node_with(w, "close_ms=60000");
    check_lines(client(w, "", "tcpx", "put", "0"), 2500, 0);
    end_node(w);
    harness_passed(w->h);
}

static void go_by_tcp(struct world *w, const char *node, const char *of_client, const char *what)
{
    node_with(w, node);
    check_lines(client(w, of_client, "tcpx,tcp", what, "12000"), DEADLINE_MS, 1000);
    end_node(w);
    harness_passed(w->h);
}

static void puts_that_cannot_connect_go_by_tcp(void **state)
{
    go_by_tcp(*state, BLOCKS, BLOCKS ",setup_ms=60000", "put");
}

static void gets_that_cannot_connect_go_by_tcp(void **state)
{
    go_by_tcp(*state, BLOCKS ",setup_ms=60000", BLOCKS, "get");
}

/* As with a firewall that drops packets to the plugin's port. The node itself answers, so it is not set
 * aside. */
static void operations_whose_hello_is_not_answered_go_by_tcp(void **state)
{
    struct world *w = *state;
    node_with(w, "");
    redisReply *r = harness_redis_call(w->redis, "HGET", "tarn:default:pool:node0/cpu0", "tcpx", NULL);
    assert_int_equal(r->type, REDIS_REPLY_STRING);
    setenv(CUT, r->str, 1);
    freeReplyObject(r);
    check_lines(client(w, "", "tcpx,tcp", "put", "0"), 2500, 0);
    check_lines(client(w, "", "tcpx,tcp", "get", "3000"), 2500, 1000);
    unsetenv(CUT);
    harness_passed(w->h);
}

/* --- first connections -------------------------------------------------------------------------- */

/* PROCESSES=1000 runs that many processes instead of five. Wrong bytes make a process fail. */
static void threads_that_accept_at_once_get_their_bytes(void **state)
{
    struct world *w = *state;
    const char *given = getenv("PROCESSES");
    int processes = given ? atoi(given) : 5, good = 0;
    node_with(w, "");
    for (int i = 0; i < processes; i++) {
        struct harness_process *p = client(w, "map_unguarded=1", "tcpx", "threads", "0");
        assert_int_equal(harness_wait(p, 60000), 0);
        for (const char *line = harness_stdout(p, NULL); *line; line = strchr(line, '\n') + 1)
            if (strncmp(line, "OK ", 3) == 0)
                good++;
            else
                print_message("process %d: %.*s\n", i, (int)strcspn(line, "\n"), line);
    }
    assert_int_equal(good, processes * THREADS);
    harness_passed(w->h);
}

/* A set-up of a second or two does not count as silence, and no operation uses another transport. */
static void operations_wait_for_slow_connections(void **state)
{
    static const char slow[] = "setup_ms=2000,listen_ms=600";
    struct world *w = *state;
    node_with(w, slow);
    check_lines(client(w, slow, "tcpx", "put", "500"), DEADLINE_MS, 1000);
    check_lines(client(w, slow, "tcpx", "get", "500"), DEADLINE_MS, 1000);
    harness_passed(w->h);
}

/* Without another transport, an operation waits for the connection until its own deadline. */
static void without_tcp_a_connection_has_the_whole_deadline(void **state)
{
    static const char slow[] = "setup_ms=3700";
    struct world *w = *state;
    node_with(w, slow);
    check_lines(client(w, slow, "tcpx", "get", "500"), DEADLINE_MS, 1000);
    check_lines(client(w, slow, "tcpx", "put", "500"), DEADLINE_MS, 1000);
    harness_passed(w->h);
}

/* The client connects, but the node's accept does not end. */
static void puts_that_are_not_accepted_go_by_tcp(void **state)
{
    go_by_tcp(*state, "setup_ms=60000", "", "put");
}

/* The first operations use tcp, and the later ones do not wait. */
static void slow_connections_are_set_up_while_tcp_serves(void **state)
{
    struct world *w = *state;
    node_with(w, "setup_ms=4500");
    struct fixture_counters *c = count(w);
    check_lines(client(w, "setup_ms=4500", "tcpx,tcp", "get", "14000"), DEADLINE_MS, 2500);
    assert_true(c->bytes_received >= BYTES);
    count_no_more(c);
    harness_passed(w->h);
}

#define TEST(f_) cmocka_unit_test_setup_teardown(f_, start, world_stop)

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 6 && strcmp(argv[1], "--client") == 0)
        return client_main(argv[2], argv[3], argv[4], argv[5]);
    const struct CMUnitTest tests[] = {
        TEST(a_client_stuck_in_a_put_delays_no_other),
        TEST(a_client_stuck_in_a_get_delays_no_other),
        TEST(a_client_killed_in_a_put_delays_no_other),
        TEST(a_client_killed_in_a_get_delays_no_other),
        TEST(an_accept_for_a_dead_client_ends),
        TEST(a_stuck_plugin_call_does_not_keep_the_node_running),
        TEST(puts_that_cannot_connect_go_by_tcp),
        TEST(gets_that_cannot_connect_go_by_tcp),
        TEST(puts_that_are_not_accepted_go_by_tcp),
        TEST(operations_whose_hello_is_not_answered_go_by_tcp),
        TEST(without_tcp_a_connection_has_the_whole_deadline),
        TEST(threads_that_accept_at_once_get_their_bytes),
        TEST(operations_wait_for_slow_connections),
        TEST(slow_connections_are_set_up_while_tcp_serves),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
