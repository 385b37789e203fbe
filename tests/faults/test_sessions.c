/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions whose clients misbehave or cannot be observed: processes of other PID namespaces, clients that
 * come and go, children that inherit connections, strangers, and commits at the node's end. The node keeps
 * running, and keeps nothing longer than necessary.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/node_client.h"
#include "tests/world.h"

#define SESSIONS_MAX 256 /* of one process, as in docs/security.md */

/* --- processes in other PID namespaces ---------------------------------------------------------- */

/* Starts a node in a PID namespace of its own, where this program and its children have no PID. NULL: not
 * permitted. */
static struct harness_process *hidden_node(struct node_world *w, char control[64], char local[160])
{
    const char *build = getenv("TARN_BUILD");
    char program[256], redis[200];
    struct harness_process *probe;
    if (harness_run(w->h, &probe, "unshare", "--pid", "--fork", "--kill-child", "true", NULL))
        return NULL;
    snprintf(program, sizeof(program), "%s/tarnd", build ? build : "build");
    snprintf(redis, sizeof(redis), "%s", w->redis->url);
    const char *path = harness_path(w->h, "hidden.sock");
    snprintf(local, 160, "unix:%s", path);
    const char *argv[] = {"unshare", "--pid",   "--fork", "--kill-child", program,         "--id",
                          "hidden",  "--unix",  path,     "--listen",     "127.0.0.1:0",   "--data-port",
                          "0",       "--redis", redis,    "--pool",       "cpu0:bytes=1M", NULL};
    struct harness_process *p = harness_spawn(w->h, "hidden", argv);
    const char *line = harness_wait_line(p, "tarnd ready ", HARNESS_TIMEOUT_MS);
    assert_non_null(line);
    const char *at = strstr(line, " control=");
    assert_non_null(at);
    snprintf(control, 64, "%.*s", (int)strcspn(at + 9, " "), at + 9);
    return p;
}

static _Noreturn void hold_connections(const char *address, int ready_fd)
{
    char session[17];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(session, sizeof(session), "%x", (unsigned)getpid());
    for (int i = 0; i < 4; i++)
        node_join(address, session);
    node_attach(node_join(address, session), "r");
    if (write(ready_fd, "x", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

/* To the node the PID of each is 0, but they are different processes. */
static void clients_of_another_pid_namespace_come_and_go(void **state)
{
    struct node_world *w = *state;
    char control[64], address[160], byte;
    struct harness_process *node = hidden_node(w, control, address);
    if (!node)
        harness_skip("namespaces", "unshare --pid is not permitted here");
    for (int i = 0; i < 3; i++) {
        int fds[2];
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0)
            hold_connections(address, fds[1]);
        close(fds[1]);
        assert_int_equal(read(fds[0], &byte, 1), 1);
        close(fds[0]);
        assert_int_equal(node_figure(control, "sessions"), 1);
        char session[17];
        snprintf(session, sizeof(session), "%x", (unsigned)pid);
        assert_error(harness_call(address, "HELLO", "1", session, NULL), "AUTH");
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        HARNESS_UNTIL(node_figure(control, "sessions") + node_figure(control, "sessions_lingering") == 0,
                      5000);
    }
    harness_kill(node); /* unshare ignores other signals */
    harness_passed(w->h);
}

/* --- clients that come and go ------------------------------------------------------------------- */

static void replace_k(struct tarn_client *c)
{
    if (client_put(c, "k", 1, 4096, &replacing))
        fail_msg("put: %s", tarn_last_error());
}

static void closed_clients_leave_no_session_behind(void **state)
{
    struct node_world *w = *state;
    for (int i = 0; i < SESSIONS_MAX + 20; i++) {
        struct tarn_client *c = client_open(w->redis->url, (struct tarn_options){0});
        replace_k(c);
        tarn_close(c);
    }
    HARNESS_UNTIL(
        node_figure(w->node->control, "sessions") + node_figure(w->node->control, "sessions_lingering") == 0,
        5000);
    harness_passed(w->h);
}

static void a_process_has_a_limited_number_of_sessions(void **state)
{
    struct node_world *w = *state;
    const char *address = w->node->local;
    char session[17];
    for (int i = 1; i <= SESSIONS_MAX; i++) {
        snprintf(session, sizeof(session), "%x", i);
        struct tarn_resp *r = node_join(address, session);
        node_attach(r, "r");
        tarn_resp_free(r);
    }
    HARNESS_UNTIL(node_figure(w->node->control, "sessions_lingering") == SESSIONS_MAX, 5000);
    assert_error(harness_call(address, "HELLO", "1", "ffff", NULL), "BUSY");
    assert_int_equal(node_figure(w->node->control, "sessions_lingering"), SESSIONS_MAX);
    /* Returning with a session number already in use does not make a new session. QUIT ends it. */
    struct tarn_resp *r = node_join(address, "7");
    freeReplyObject(harness_command(r, "QUIT", NULL));
    tarn_resp_free(r);
    HARNESS_UNTIL(node_figure(w->node->control, "sessions_lingering") == SESSIONS_MAX - 1, 5000);
    tarn_resp_free(node_join(address, "ffff"));
    harness_passed(w->h);
}

static void attach_after_quit_keeps_the_session(void **state)
{
    struct node_world *w = *state;
    const char *address = w->node->local;
    struct tarn_resp *r = node_join(address, "5"), *other = node_join(address, "5");
    freeReplyObject(harness_command(other, "QUIT", NULL));
    tarn_resp_free(other);
    node_attach(r, "r");
    tarn_resp_free(r);
    HARNESS_UNTIL(node_figure(w->node->control, "sessions_lingering") == 1, 5000);
    harness_passed(w->h);
}

/* The same for a later connection: the process lives, and may still read what it has mapped. */
static void hello_after_quit_keeps_the_session(void **state)
{
    struct node_world *w = *state;
    const char *address = w->node->local;
    struct tarn_resp *r = node_join(address, "5"), *other = node_join(address, "5");
    node_attach(r, "r");
    freeReplyObject(harness_command(other, "QUIT", NULL));
    tarn_resp_free(other);
    tarn_resp_free(node_join(address, "5"));
    tarn_resp_free(r);
    HARNESS_UNTIL(node_figure(w->node->control, "sessions_lingering") == 1, 5000);
    harness_passed(w->h);
}

/* --- terms -------------------------------------------------------------------------------------- */

/* Of session 5, as HELLO says it. */
static long long term_of(struct tarn_resp *r)
{
    redisReply *reply = harness_command(r, "HELLO", "1", "5", NULL);
    long long term = -1;
    for (size_t i = 0; i + 1 < reply->elements; i += 2)
        if (strcmp(reply->element[i]->str, "term") == 0)
            term = strtoll(reply->element[i + 1]->str, NULL, 10);
    freeReplyObject(reply);
    assert_true(term > 0);
    return term;
}

/* Session 5 reserves, and loses its connection. Returns the term in which it reserved. */
static long long reserve_and_leave(const struct node_world *w, const char *access, const char *key)
{
    struct node_client c = {.resp = node_join(w->node->local, "5")};
    long long term = term_of(c.resp);
    if (access)
        node_attach(c.resp, access);
    node_reserve(&c, "absent", key, 1000);
    struct tarn_resp *other = node_join(w->node->local, "5");
    tarn_resp_free(c.resp);
    assert_int_equal(term_of(other), term); /* one connection is left */
    tarn_resp_free(other);
    return term;
}

/* So a client that comes again knows whether what it has reserved is still its own. */
static void term_lasts_as_long_as_the_reservations(void **state)
{
    static const struct {
        const char *access;
        bool keeps;
    } rows[] = {{NULL, false}, {"r", false}, {"w", true}};
    struct node_world *w = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool lingers = rows[i].access != NULL;
        long long term = reserve_and_leave(w, rows[i].access, rows[i].access ? rows[i].access : "-");
        HARNESS_UNTIL(node_figure(w->node->control, "sessions") == 0, 5000);
        assert_int_equal(node_figure(w->node->control, "sessions_lingering"), lingers);
        assert_int_equal(node_pool_figure(w->node->control, "reserved"), rows[i].keeps);
        struct tarn_resp *r = node_join(w->node->local, "5");
        long long later = term_of(r);
        if (rows[i].keeps)
            assert_int_equal(later, term);
        else
            assert_true(later > term);
        tarn_resp_free(r);
    }
    harness_passed(w->h);
}

/* --- children ----------------------------------------------------------------------------------- */

/* Runs in a child: attaches for writing, leaves the connection to its own child, and ends. */
static _Noreturn void leave_to_a_child(const char *address, int said_fd)
{
    char byte;
    struct node_client c = node_connect(address);
    node_attach(c.resp, "w");
    node_reserve(&c, "absent", "late", 1000);
    pid_t pid = fork();
    if (pid > 0)
        _exit(0);
    prctl(PR_SET_PDEATHSIG, 0);
    struct pollfd end = {.fd = tarn_resp_fd(c.resp), .events = POLLIN};
    bool ended = poll(&end, 1, HARNESS_TIMEOUT_MS) == 1 && recv(end.fd, &byte, 1, 0) == 0;
    _exit(write(said_fd, ended ? "e" : "?", 1) != 1);
}

static void connections_end_with_the_process_that_attached(void **state)
{
    struct node_world *w = *state;
    char byte = 0;
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0)
        leave_to_a_child(w->node->local, fds[1]);
    close(fds[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(read(fds[0], &byte, 1), 1);
    assert_int_equal(byte, 'e');
    close(fds[0]);
    assert_int_equal(node_figure(w->node->control, "sessions"), 0);
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 0);
    harness_passed(w->h);
}

static void children_do_not_inherit_mapped_pools(void **state)
{
    struct node_world *w = *state;
    struct tarn_client *c = client_open(w->redis->url, (struct tarn_options){0});
    struct tarn_view v;
    int status;
    unsigned char there;
    replace_k(c);
    if (tarn_view(c, &(struct tarn_key){"k", 1}, 0, &v))
        fail_msg("view: %s", tarn_last_error());
    uintptr_t page = (uintptr_t)v.addr & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    assert_int_equal(mincore((void *)page, 1, &there), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(mincore((void *)page, 1, &there) == 0 ? 1 : errno == ENOMEM ? 0 : 2);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    tarn_release(c, &v);
    tarn_close(c);
    harness_passed(w->h);
}

/* --- strangers ---------------------------------------------------------------------------------- */

static void expect_refused(const char *address, const char *request)
{
    char out[512];
    raw_talk(address, request, strlen(request), out, sizeof(out));
    assert_prefix(out, "-PROTOCOL");
}

static void unauthenticated_clients_get_little_memory_and_no_time(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n = harness_node_start(w->h, "locked", w->redis, "--pool", "p:bytes=1M",
                                                "--heartbeat-ms", "100", "--secret", "s3cret", NULL);
    expect_refused(n->control, "*2\r\n$4\r\nPING\r\n$16000000\r\n");
    expect_refused(n->control, "*17\r\n");
    /* A connection that has sent only PING counts as silent. It is not among the connections that may
     * stay. */
    struct tarn_resp *stranger = harness_connect(n->control), *c = harness_connect(n->local);
    freeReplyObject(harness_command(stranger, "PING", NULL));
    freeReplyObject(harness_command(c, "AUTH", "s3cret", NULL));
    redisReply *list = harness_command(c, "CLIENT", "LIST", NULL);
    assert_int_equal(list->type, REDIS_REPLY_STRING);
    assert_non_null(strstr(list->str, "cmd=CLIENT"));
    assert_null(strstr(list->str, "cmd=PING"));
    freeReplyObject(list);
    /* A session may send large requests, even directly after HELLO. */
    static char large[1 << 20];
    memset(large, 'x', sizeof(large) - 1);
    assert_int_equal(tarn_resp_append_strs(stranger, "HELLO", "1", "5", "s3cret", NULL), 0);
    assert_int_equal(tarn_resp_append_strs(stranger, "PING", large, NULL), 0);
    for (int i = 0; i < 2; i++) {
        redisReply *reply;
        assert_int_equal(tarn_resp_read(stranger, tarn_deadline(HARNESS_TIMEOUT_MS), NULL, &reply), 0);
        assert_int_equal(reply->type, i ? REDIS_REPLY_STRING : REDIS_REPLY_ARRAY);
        freeReplyObject(reply);
    }
    tarn_resp_free(stranger);
    tarn_resp_free(c);
    harness_passed(w->h);
}

/* Reads and discards the node's output. True: the node closed one of the connections. */
static bool one_ended(const int *fds, int n)
{
    char out[512];
    for (int i = 0; i < n; i++) {
        ssize_t got;
        while ((got = recv(fds[i], out, sizeof(out), MSG_DONTWAIT)) > 0)
            ;
        if (got == 0 || errno != EAGAIN)
            return true;
    }
    return false;
}

/* 20 requests of 15 MiB that are never completed: more than the node buffers. */
static void unfinished_requests_take_bounded_memory(void **state)
{
    enum { N = 20, BYTES = 15 << 20 };
    struct node_world *w = *state;
    static const char begin[] =
        "*3\r\n$5\r\nHELLO\r\n$1\r\n1\r\n$1\r\n1\r\n*2\r\n$4\r\nPING\r\n$16000000\r\n";
    char *data = malloc(BYTES);
    int fds[N], refused = 0;
    memset(data, 'x', BYTES);
    for (int i = 0; i < N; i++) {
        fds[i] = raw_connect(w->node->control);
        if (!raw_send(fds[i], begin, sizeof(begin) - 1) || !raw_send(fds[i], data, BYTES))
            refused++;
    }
    free(data);
    /* The kernel may have buffered everything. Then the node ends the connection that it read last. */
    if (!refused)
        HARNESS_UNTIL(one_ended(fds, N), 10000);
    freeReplyObject(harness_call(w->node->control, "PING", NULL));
    for (int i = 0; i < N; i++)
        close(fds[i]);
    /* The memory of the requests is free again. */
    HARNESS_UNTIL(node_figure(w->node->control, "sessions") == 0, 5000);
    struct node_client c = node_connect(w->node->control);
    node_must_put(&c, "absent", "after", 100);
    node_close(&c);
    harness_passed(w->h);
}

/* --- the node's end ----------------------------------------------------------------------------- */

static bool was_heard(const char *address, const char *command)
{
    char want[32];
    redisReply *list = harness_call(address, "CLIENT", "LIST", NULL);
    snprintf(want, sizeof(want), "cmd=%s", command);
    bool heard = strstr(list->str, want) != NULL;
    freeReplyObject(list);
    return heard;
}

static void a_commit_under_way_at_the_end_leaves_no_record(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n = harness_node_start(w->h, "ending", w->redis, "--pool", "cpu0:bytes=1M",
                                                "--heartbeat-ms", "100", "--drain-timeout-ms", "100", NULL);
    int status;
    struct node_client c = node_connect(n->control);
    node_must_put(&c, "absent", "warm", 100);
    struct node_grant g = node_reserve(&c, "absent", "k", 100);
    harness_signal(w->redis->process, SIGSTOP);
    pid_t pid = fork();
    if (pid == 0)
        _exit(node_commit(&c, &g, "5000")->type == REDIS_REPLY_ERROR ? 0 : 1);
    HARNESS_UNTIL(was_heard(n->local, "COMMIT"), 5000);
    harness_signal(n->process, SIGTERM);
    HARNESS_UNTIL(strstr(harness_log(n->process), "given up"), 5000);
    harness_signal(w->redis->process, SIGCONT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    node_close(&c);
    assert_int_equal(harness_wait(n->process, HARNESS_TIMEOUT_MS), 0);
    assert_false(directory_has(w->redis, "k"));
    assert_false(directory_has(w->redis, "warm"));
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_REDIS(clients_of_another_pid_namespace_come_and_go),
        WITH_NODE(closed_clients_leave_no_session_behind),
        WITH_NODE(a_process_has_a_limited_number_of_sessions),
        WITH_NODE(attach_after_quit_keeps_the_session),
        WITH_NODE(hello_after_quit_keeps_the_session),
        WITH_NODE(term_lasts_as_long_as_the_reservations),
        WITH_NODE(connections_end_with_the_process_that_attached),
        WITH_NODE(children_do_not_inherit_mapped_pools),
        WITH_REDIS(unauthenticated_clients_get_little_memory_and_no_time),
        WITH_NODE(unfinished_requests_take_bounded_memory),
        WITH_REDIS(a_commit_under_way_at_the_end_leaves_no_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
