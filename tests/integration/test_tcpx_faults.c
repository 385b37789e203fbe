/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults of a network plugin, at the node and at the client, in gets and in puts, over the fixture plugin.
 * Each operation ends within its deadline, with the right bytes or with a sentence that names the cause.
 * Wrong bytes never pass as right ones. If there is another transport, the operation succeeds on it.
 * Afterwards everything works again, unless the plugin keeps failing.
 *
 * A process starts a plugin only once, with the environment of that moment, so each case has its own node and
 * clients.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/tcpx/child.h"
#include "tests/tcpx/counters.h"
#include "tests/world.h"

#define TIMEOUT_MS 5000

enum { BYTES = 10 * MIB + 77 /* more messages than a comm has at once */ };
/* Shorter than the defaults, because the tests wait for each of them. */
#define CLIENT_STALL_MS "600"
#define NODE_STALL_MS "1000"

static const struct world_plan plan = {
    .nodes = 0, .args = {"--pool", "cpu0:bytes=128M", "--transports", "tcpx,tcp", "--heartbeat-ms", "200"}};
static const char *self;

static int start(void **state)
{
    unsetenv("TCPX_FIXTURE");
    child_configure("fixture-v7");
    setenv("NCCL_SOCKET_NTHREADS", "1", 1);
    setenv("NCCL_NSOCKS_PERTHREAD", "4", 1);
    return world_start(state, &plan);
}

/* Counts the calls of the plugins in clients and nodes that start from now on. */
static struct fixture_counters *count_all(struct world *w)
{
    const char *path = harness_path(w->h, "counters");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, sizeof(struct fixture_counters)), 0);
    void *at = mmap(NULL, sizeof(struct fixture_counters), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    close(fd);
    setenv("TCPX_FIXTURE_COUNTERS", path, 1);
    return at;
}

static void count_no_more(struct fixture_counters *c)
{
    unsetenv("TCPX_FIXTURE_COUNTERS");
    munmap(c, sizeof(*c));
}

/* --- a client ----------------------------------------------------------------------------------- */

static void show_line(void *arg, enum tarn_log_level level, const char *line)
{
    (void)arg, (void)level;
    fprintf(stderr, "%s\n", line);
}

/* One operation: "<status> <ms> <sentence>". */
static void operate(struct tarn_client *c, bool put)
{
    uint64_t begun = harness_now_ms();
    int status = put ? client_put(c, "key", 'b', BYTES, &replacing) : client_get(c, "key", 'a', BYTES);
    printf("%s %u %s\n", tarn_error_name(status), (unsigned)(harness_now_ms() - begun),
           status ? tarn_last_error() : "");
}

/* --client REDIS TRANSPORTS put|get TIMES */
static int client_main(const char *redis, const char *transports, const char *what, const char *times)
{
    struct tarn_client *c = client_open(redis, (struct tarn_options){.transports = transports,
                                                                     .timeout_ms = TIMEOUT_MS,
                                                                     .log = show_line,
                                                                     .log_level = TARN_LOG_DEBUG});
    dprintf(STDOUT_FILENO, "open\n");
    for (int i = 0; i < atoi(times); i++)
        operate(c, strcmp(what, "put") == 0);
    tarn_close(c);
    return 0;
}

static struct harness_process *client_of(struct world *w, const char *options, const char *transports,
                                         bool put, const char *times, const char *stall_ms)
{
    const char *argv[] = {self, "--client", w->redis->url, transports, put ? "put" : "get", times, NULL};
    setenv("TCPX_FIXTURE", options, 1);
    setenv("TARN_TCPX_STALL_MS", stall_ms, 1);
    struct harness_process *p = harness_spawn(w->h, "client", argv);
    unsetenv("TARN_TCPX_STALL_MS");
    unsetenv("TCPX_FIXTURE");
    return p;
}

static struct harness_process *client(struct world *w, const char *options, const char *transports, bool put)
{
    return client_of(w, options, transports, put, "2", CLIENT_STALL_MS);
}

/* Starts the node and puts the object over tcp, without the plugin. */
static void prepare(struct world *w, const char *options)
{
    setenv("TCPX_FIXTURE", options, 1);
    setenv("TARN_TCPX_STALL_MS", NODE_STALL_MS, 1);
    w->nodes[0] = world_node(w, "node0");
    unsetenv("TARN_TCPX_STALL_MS");
    unsetenv("TCPX_FIXTURE");
    struct tarn_client *c = world_client(w, "tcp");
    assert_int_equal(client_put(c, "key", 'a', BYTES, NULL), 0);
    tarn_close(c);
}

/* All bytes must be of one version, whatever the put returned. */
static void check_object(struct world *w, bool replaced)
{
    char byte;
    struct tarn_client *c = world_client(w, "tcp");
    int status = client_read(c, "key", BYTES, TIMEOUT_MS, &byte);
    if (status || byte != (replaced ? 'b' : 'a'))
        fail_msg("afterwards: %s, %c: %s", tarn_error_name(status), byte, tarn_last_error());
    tarn_close(c);
}

/* --- the plugin's faults ------------------------------------------------------------------------ */

struct fault {
    const char *options;
    bool at_node, put;
    const char *says; /* what the first operation says; NULL: the first operation succeeds */
    bool lasts;       /* the second operation says it, too */
};

static bool is_ok(const char *line)
{
    return line && strncmp(line, "OK ", 3) == 0;
}

static unsigned took_ms(const char *line)
{
    const char *space = strchr(line, ' ');
    return space ? (unsigned)strtoul(space, NULL, 10) : UINT32_MAX;
}

static void check_line(const struct fault *f, const char *line, const char *says, const char *log)
{
    if (!line || (says ? !strstr(line, says) || is_ok(line) : !is_ok(line)) ||
        took_ms(line) > (TIMEOUT_MS + 2000) * harness_slower())
        fail_msg("%s at the %s, %s: \"%.500s\", awaited \"%s\": %s", f->options,
                 f->at_node ? "node" : "client", f->put ? "put" : "get", line ? line : "the end",
                 says ? says : "OK", log);
}

static void play(struct world *w, const struct fault *f)
{
    prepare(w, f->at_node ? f->options : "");
    struct harness_process *p = client(w, f->at_node ? "" : f->options, "tcpx", f->put);
    assert_int_equal(harness_wait(p, 4 * TIMEOUT_MS), 0);
    const char *first = strchr(harness_stdout(p, NULL), '\n') + 1, *second = strchr(first, '\n') + 1;
    check_line(f, first, f->says, harness_log(p));
    check_line(f, second, f->lasts ? f->says : NULL, harness_log(p));
    check_object(w, f->put && !f->lasts);
    assert_true(harness_running(w->nodes[0]->process));
}

/* The same with another transport: every operation succeeds. */
static void play_with_tcp(struct world *w, const struct fault *f)
{
    prepare(w, f->at_node ? f->options : "");
    struct harness_process *p = client(w, f->at_node ? "" : f->options, "tcpx,tcp", f->put);
    assert_int_equal(harness_wait(p, 4 * TIMEOUT_MS), 0);
    const char *first = strchr(harness_stdout(p, NULL), '\n') + 1, *second = strchr(first, '\n') + 1;
    check_line(f, first, NULL, harness_log(p));
    check_line(f, second, NULL, harness_log(p));
    check_object(w, f->put);
}

static const struct fault faults[] = {
    /* faults of the sender */
    {"send_error=4", true, false, "test gave 3", false},
    {"send_error=4", false, true, "test gave 3", false},
    {"send_hang=4", true, false, "has ended for", false},
    {"send_hang=4", false, true, "has ended for", false},
    {"send_close=4", true, false, "test gave 2", false},
    {"send_close=4", false, true, "test gave 2", false},
    {"drop_after=4", true, false, "no receive has ended for", true},
    {"drop_after=4", false, true, "has ended for", true},
    {"helper_error=4", true, false, "has ended for", false},
    {"helper_error=4", false, true, "has ended for", false},
    /* faults of the receiver */
    {"recv_error=4", false, false, "test gave 3", false},
    {"recv_error=4", true, true, "test gave 3", false},
    {"recv_hang=4", false, false, "no receive has ended for", false},
    {"recv_hang=4", true, true, "has ended for", false},
    {"recv_close=4", false, false, "test gave 2", false},
    {"recv_close=4", true, true, "test gave 2", false},
    {"bad_dst=4", false, false, "for offset 18446744073709551607 of a message of", false},
    {"bad_dst=4", true, true, "for offset 18446744073709551607 of a message of", false},
    {"bad_src=4", false, false, "of the bounce memory", false},
    {"bad_src=4", true, true, "of the bounce memory", false},
    {"bad_sum=4", false, false, "and the sender announced", false},
    {"bad_sum=4", true, true, "and the sender announced", false},
    {"bad_count=4", false, false, "has 2049 fragments", false},
    {"bad_count=4", true, true, "has 2049 fragments", false},
    {"delay_ms=20", false, false, NULL, false},
    {"delay_ms=20", true, true, NULL, false},
};
enum { FAULTS = sizeof faults / sizeof *faults };

static void run_fault(void **state)
{
    struct world *w;
    const struct fault *f = *state;
    void *world = NULL;
    start(&world);
    w = world;
    play(w, f);
    harness_passed(w->h);
    world_stop(&world);
}

static void run_fault_with_tcp(void **state)
{
    const struct fault *f = *state;
    void *world = NULL;
    start(&world);
    struct world *w = world;
    play_with_tcp(w, f);
    harness_passed(w->h);
    world_stop(&world);
}

/* --- peers that go ------------------------------------------------------------------------------ */

/* Starts a client whose receives are delayed. Returns while the client is in its first operation. */
static struct harness_process *client_in_the_middle(struct world *w, bool put)
{
    struct fixture_counters *c = count_all(w);
    uint64_t before = c->receives;
    if (!w->nodes[0])
        prepare(w, "delay_ms=300");
    struct harness_process *p = client(w, "delay_ms=300", "tcpx", put);
    HARNESS_UNTIL(c->receives > before, HARNESS_TIMEOUT_MS);
    count_no_more(c);
    return p;
}

static void a_killed_node_ends_its_gets(void **state)
{
    struct world *w = *state;
    struct harness_process *p = client_in_the_middle(w, false);
    harness_kill(w->nodes[0]->process);
    assert_int_equal(harness_wait(p, 4 * TIMEOUT_MS), 0);
    const char *first = strchr(harness_stdout(p, NULL), '\n') + 1;
    if (strncmp(first, "NODE_DOWN", 9) != 0 || took_ms(first) > TIMEOUT_MS)
        fail_msg("%s", first);
    harness_passed(w->h);
}

/* The node stops during the first get, or between the two. Then the second get has no answer. */
static void a_stopped_node_ends_its_gets(void **state)
{
    struct world *w = *state;
    struct harness_process *p = client_in_the_middle(w, false);
    harness_signal(w->nodes[0]->process, SIGSTOP);
    assert_int_equal(harness_wait(p, 4 * TIMEOUT_MS), 0);
    harness_signal(w->nodes[0]->process, SIGCONT);
    const char *first = strchr(harness_stdout(p, NULL), '\n') + 1, *second = strchr(first, '\n') + 1;
    assert_false(is_ok(second));
    assert_true(took_ms(first) < (TIMEOUT_MS + 2000) * harness_slower() &&
                took_ms(second) < (TIMEOUT_MS + 2000) * harness_slower());
    harness_passed(w->h);
}

/* What the client held is free again: its reservation, its pins, and the space. */
static void a_killed_client_holds_no_resources(void **state)
{
    struct world *w = *state;
    for (int put = 0; put < 2; put++)
        harness_kill(client_in_the_middle(w, put));
    struct tarn_client *c = world_client(w, "tcp");
    HARNESS_UNTIL(client_put(c, "key", 'c', BYTES, &replacing) == 0, 10000);
    assert_int_equal(client_get(c, "key", 'c', BYTES), 0);
    client_put_each(c, "more-", 11, 'm', BYTES, NULL); /* nearly all of the pool */
    client_get_each(c, "more-", 11, 'm', BYTES);
    tarn_close(c);
    harness_passed(w->h);
}

static const char *line_of(struct harness_process *p, int i)
{
    const char *line = strchr(harness_stdout(p, NULL), '\n') + 1;
    for (; i > 0; i--)
        line = strchr(line, '\n') + 1;
    return line;
}

#define WHAT_TO_LOOK_AT \
    ": does the peer reach this host over the interfaces of NCCL_GPUDIRECTTCPX_SOCKET_IFNAME? the plugin's " \
    "lines in " \
    "the log may say more\n"

/* The operation gave up in time, with the whole sentence. */
static void check_gave_up(struct harness_process *p, const char *end)
{
    const char *line = line_of(p, 0);
    if (strncmp(strchr(line, '\n') + 1 - strlen(end), end, strlen(end)) != 0 || took_ms(line) > TIMEOUT_MS)
        fail_msg("\"%s\" does not end with \"%s\"", line, end);
}

/* The plugin's set-up never ends. The operation ends, and uses another transport if there is one. */
static void a_set_up_that_takes_too_long_is_abandoned(void **state)
{
    struct world *w = *state;
    prepare(w, "setup_ms=60000");
    struct harness_process *p = client(w, "", "tcpx", false), *q = client(w, "", "tcpx,tcp", false),
                           *r = client(w, "setup_ms=60000", "tcpx", true);
    assert_int_equal(harness_wait(p, 4 * TIMEOUT_MS), 0);
    assert_int_equal(harness_wait(q, 4 * TIMEOUT_MS), 0);
    assert_int_equal(harness_wait(r, 4 * TIMEOUT_MS), 0);
    check_gave_up(p, "accept has not ended within 650 ms" WHAT_TO_LOOK_AT);
    check_gave_up(r, "connect has not ended within 650 ms" WHAT_TO_LOOK_AT);
    assert_true(is_ok(line_of(q, 0)));
    assert_true(is_ok(line_of(q, 1)));
    harness_passed(w->h);
}

/* Otherwise every operation would first wait for the plugin to fail. */
static void repeated_failures_set_tcpx_aside(void **state)
{
    struct world *w = *state;
    prepare(w, "drop_after=1");
    struct harness_process *p = client_of(w, "", "tcpx,tcp", false, "4", "1500");
    assert_int_equal(harness_wait(p, 4 * TIMEOUT_MS), 0);
    for (int i = 0; i < 4; i++)
        assert_true(is_ok(line_of(p, i)));
    assert_true(took_ms(line_of(p, 0)) >= 1500);
    assert_true(took_ms(line_of(p, 2)) < 1500 * harness_slower());
    assert_non_null(strstr(harness_log(p), "transport=tcp "));
    harness_passed(w->h);
}

#define TEST(f_) cmocka_unit_test_setup_teardown(f_, start, world_stop)
enum { OTHERS = 5 };

/* test_tcpx_faults [WORD]: runs only cases whose name contains the word. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[FAULTS + FAULTS + OTHERS];
    static char names[FAULTS + FAULTS][96];
    self = argv[0];
    if (argc == 6 && strcmp(argv[1], "--client") == 0)
        return client_main(argv[2], argv[3], argv[4], argv[5]);
    const struct CMUnitTest others[OTHERS] = {
        TEST(a_killed_node_ends_its_gets),        TEST(a_stopped_node_ends_its_gets),
        TEST(a_killed_client_holds_no_resources), TEST(a_set_up_that_takes_too_long_is_abandoned),
        TEST(repeated_failures_set_tcpx_aside),
    };
    size_t n = 0;
    for (size_t i = 0; i < 2 * FAULTS; i++) {
        const struct fault *f = &faults[i % FAULTS];
        bool alone = i < FAULTS;
        if (!alone && i % 4) /* with tcp, a quarter of the cases suffices */
            continue;
        snprintf(names[i], sizeof names[i], "%s at the %s, %s%s", f->options, f->at_node ? "node" : "client",
                 f->put ? "put" : "get", alone ? "" : ", with tcp");
        if (argc == 1 || strstr(names[i], argv[1]))
            tests[n++] = (struct CMUnitTest){.name = names[i],
                                             .test_func = alone ? run_fault : run_fault_with_tcp,
                                             .initial_state = (void *)(uintptr_t)f};
    }
    for (size_t i = 0; i < OTHERS; i++)
        if (argc == 1 || strstr(others[i].name, argv[1]))
            tests[n++] = others[i];
    return _cmocka_run_group_tests("tcpx faults", tests, n, NULL, NULL);
}
