/* SPDX-License-Identifier: Apache-2.0 */
/* A real tarnd on a real Redis: commands, refusals, sessions. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include <tarn/tarn.h>

#include "base/error.h"
#include "base/text.h"
#include "tests/node_client.h"

/* --- putting and removing ----------------------------------------------------------------------- */

static void a_put_is_visible_until_delete(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    node_must_put(&c, "absent", "k1", 4096);
    assert_true(directory_field(w->redis, "k1", "@node0/cpu0")[0]);
    assert_string_equal(directory_field(w->redis, "k1", "tensor"), "u8[4096]");

    redisReply *r = harness_command(c.resp, "DELETE", "k1", "other", NULL);
    assert_int_equal(r->elements, 2);
    assert_int_equal(r->element[0]->integer, 1);
    assert_int_equal(r->element[1]->integer, 0);
    freeReplyObject(r);
    assert_false(directory_has(w->redis, "k1"));
    assert_int_equal(node_pool_figure(w->node->control, "objects"), 0);
    node_close(&c);
    harness_passed(w->h);
}

static void second_put_says_exists_and_frees_its_room(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant a = node_reserve(&c, "absent", "k", 1000), b = node_reserve(&c, "absent", "k", 2000);
    redisReply *r = node_commit(&c, &a, "5000");
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    freeReplyObject(r);
    assert_error(node_commit(&c, &b, "5000"), "EXISTS");
    assert_error(node_commit(&c, &b, "5000"), "STALE");
    assert_int_equal(node_pool_figure(w->node->control, "objects"), 1);
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 0);
    assert_prefix(node_put(&c, "absent", "k", 10), "EXISTS");
    node_close(&c);
    harness_passed(w->h);
}

/* One COMMIT with three reservations of one key: of two absent ones the first wins, replace wins over it. */
static void one_commit_may_name_a_key_several_times(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant a = node_reserve(&c, "absent", "k", 100), b = node_reserve(&c, "absent", "k", 200),
                      d = node_reserve(&c, "replace", "k", 300);
    redisReply *r =
        harness_command(c.resp, "COMMIT", node_deadline(&c, 5000), "put", a.pool, a.slot, a.gen, b.pool,
                        b.slot, b.gen, d.pool, d.slot, d.gen, a.pool, a.slot, a.gen, NULL);
    assert_int_equal(r->elements, 4);
    assert_int_equal(r->element[0]->type, REDIS_REPLY_ARRAY);
    assert_prefix(r->element[1]->str, "EXISTS");
    assert_int_equal(r->element[2]->type, REDIS_REPLY_ARRAY);
    assert_int_equal(r->element[2]->elements, 0);
    assert_prefix(r->element[3]->str, "STALE");
    freeReplyObject(r);
    assert_string_equal(directory_field(w->redis, "k", "tensor"), "u8[300]");
    assert_int_equal(node_pool_figure(w->node->control, "objects"), 1);
    node_close(&c);
    harness_passed(w->h);
}

static void replace_returns_copies_on_other_nodes(void **state)
{
    struct node_world *w = *state;
    struct harness_node *other =
        harness_node_start(w->h, "node1", w->redis, "--pool", "p:bytes=1M", "--heartbeat-ms", "100", NULL);
    struct node_client c0 = node_connect(w->node->control), c1 = node_connect(other->control);
    node_must_put(&c0, "absent", "k", 100);
    struct node_grant g = node_reserve(&c1, "replace", "k", 200);
    redisReply *r = node_commit(&c1, &g, "5000");
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    assert_int_equal(r->elements, 1);
    char slot[16], gen[20];
    unsigned long long offset;
    assert_int_equal(sscanf(r->element[0]->str, "@node0/cpu0=%llu:%15[0-9]:%19s", &offset, slot, gen), 3);
    freeReplyObject(r);
    r = harness_command(c0.resp, "RELEASE", "cpu0", slot, gen, "cpu0", slot, gen, NULL);
    assert_int_equal(r->element[0]->integer, 1);
    assert_int_equal(r->element[1]->integer, 1); /* no client reads that copy any more */
    freeReplyObject(r);
    assert_int_equal(node_pool_figure(w->node->control, "objects"), 0);
    assert_true(directory_has(w->redis, "k"));
    node_close(&c0);
    node_close(&c1);
    harness_passed(w->h);
}

static void evicted_objects_leave_the_directory(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    char key[16];
    for (int i = 0; i < 64; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        node_must_put(&c, "absent", key, 64 << 10);
    }
    long long objects = node_pool_figure(w->node->control, "objects");
    assert_true(objects > 8 && objects <= 16);
    HARNESS_UNTIL(directory_count(w->redis) == node_pool_figure(w->node->control, "objects"), 5000);
    assert_true(directory_has(w->redis, "k63"));
    node_close(&c);
    harness_passed(w->h);
}

static void keys_are_binary_and_checked(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant g;
    char longest[TARN_KEY_MAX + 2];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = 0;
    assert_prefix(node_try_reserve(&c, "absent", longest, 1, &g), "INVALID");
    assert_prefix(node_try_reserve(&c, "absent", "", 1, &g), "INVALID");
    longest[TARN_KEY_MAX] = 0;
    node_must_put(&c, "absent", longest, 1);
    node_must_put(&c, "absent", "a b\x01%", 0);
    assert_true(directory_has(w->redis, "a%20b%01%25"));
    assert_prefix(node_try_reserve(&c, "absent", "big", 2 << 20, &g), "TOO_LARGE");
    redisReply *r = harness_command(c.resp, "RESERVE", "*", "absent", "7", "0", "0", "", "k", "10", "f32",
                                    "2,3", "l", "10", "floaty", "10", NULL);
    assert_prefix(r->element[0]->str, "INVALID");
    assert_prefix(r->element[1]->str, "INVALID");
    freeReplyObject(r);
    node_close(&c);
    harness_passed(w->h);
}

static void pins_keep_and_touch_counts(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    node_must_put(&c, "absent", "kept", 1000);
    node_must_put(&c, "absent", "loose", 1000);
    redisReply *r = harness_command(c.resp, "PIN", "0", "kept", "nothing", NULL);
    assert_int_equal(r->element[0]->integer, 1);
    assert_int_equal(r->element[1]->integer, 0);
    freeReplyObject(r);
    r = harness_call(w->node->local, "EVICT", "cpu0", "1048576", NULL);
    assert_true(r->integer >= 1000);
    freeReplyObject(r);
    HARNESS_UNTIL(!directory_has(w->redis, "loose"), 5000);
    assert_true(directory_has(w->redis, "kept"));
    r = harness_command(c.resp, "TOUCH", "kept", "loose", NULL);
    assert_int_equal(r->element[0]->integer, 1);
    assert_int_equal(r->element[1]->integer, 0);
    freeReplyObject(r);
    r = harness_command(c.resp, "UNPIN", "kept", NULL);
    assert_int_equal(r->element[0]->integer, 1);
    freeReplyObject(r);
    node_close(&c);
    harness_passed(w->h);
}

/* --- refusals ----------------------------------------------------------------------------------- */

static void hello_is_required_and_checked(void **state)
{
    struct node_world *w = *state;
    const char *a = w->node->control;
    assert_error(harness_call(a, "HELLO", "2", "0000000000000001", NULL), "VERSION");
    assert_error(harness_call(a, "HELLO", "3", NULL), "VERSION");
    assert_error(harness_call(a, "HELLO", "1", NULL), "INVALID");
    assert_error(harness_call(a, "HELLO", "1", "not-hex", NULL), "INVALID");
    assert_error(harness_call(a, "DELETE", "k", NULL), "AUTH");
    assert_error(harness_call(a, "DELTE", "k", NULL),
                 "UNSUPPORTED unknown command \"DELTE\": did you mean DELETE");
    assert_error(harness_call(a, "COMMIT", "1", "2", NULL), "AUTH");
    struct node_client c = node_connect(a);
    assert_error(harness_command(c.resp, "COMMIT", "1", "2", NULL), "INVALID");
    assert_error(
        harness_command(c.resp, "RESERVE", "nopool", "absent", "1", "0", "0", "", "k", "1", "u8", "1", NULL),
        "INVALID");
    assert_error(harness_command(c.resp, "ATTACH", "shm", "r", NULL), "NOT_REACHABLE");
    assert_error(harness_command(c.resp, "ATTACH", "pigeon", "r", NULL), "NOT_REACHABLE");
    redisReply *r = harness_command(c.resp, "ATTACH", "tcp", "r", NULL);
    assert_int_equal(r->elements, 2);
    assert_prefix(r->element[0]->str, "v1 127.0.0.1:");
    freeReplyObject(r);
    node_close(&c);
    harness_passed(w->h);
}

static void the_secret_is_required(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n = harness_node_start(w->h, "locked", w->redis, "--pool", "p:bytes=1M",
                                                "--heartbeat-ms", "100", "--secret", "s3cret", NULL);
    assert_error(harness_call(n->control, "INFO", NULL), "AUTH");
    assert_error(harness_call(n->control, "HELLO", "1", "01", NULL), "AUTH");
    assert_error(harness_call(n->control, "HELLO", "1", "01", "s3cres", NULL), "AUTH");
    assert_error(harness_call(n->control, "HELLO", "1", "01", "s3cret!", NULL), "AUTH");
    assert_error(harness_call(n->control, "AUTH", "", NULL), "AUTH");
    freeReplyObject(harness_call(n->control, "PING", NULL));
    redisReply *r = harness_call(n->control, "HELLO", "1", "01", "s3cret", NULL);
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    freeReplyObject(r);
    struct tarn_resp *c = harness_connect(n->control);
    freeReplyObject(harness_command(c, "AUTH", "default", "s3cret", NULL));
    r = harness_command(c, "INFO", "node", NULL);
    assert_int_equal(r->type, REDIS_REPLY_STRING);
    freeReplyObject(r);
    tarn_resp_free(c);
    harness_passed(w->h);
}

static void malformed_requests_end_their_connection_only(void **state)
{
    static const char *const bad[] = {
        "GET / HTTP/1.1\r\n\r\n", "*1\r\n$-5\r\nPING\r\n", "*99999999\r\n", "*1\r\n$999999999\r\n",
        "*1\r\n:5\r\n",           "$4\r\nPING\r\n",        "*-7\r\n",       "*1\r\n*1\r\n$4\r\nPING\r\n",
    };
    struct node_world *w = *state;
    char out[512];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        raw_talk(w->node->control, bad[i], strlen(bad[i]), out, sizeof(out));
        if (out[0])
            assert_prefix(out, "-PROTOCOL");
    }
    /* The client sends half a request, then disconnects. */
    int fd = raw_connect(w->node->control);
    assert_int_equal(send(fd, "*2\r\n$4\r\nPI", 10, MSG_NOSIGNAL), 10);
    close(fd);
    freeReplyObject(harness_call(w->node->control, "PING", NULL));
    harness_passed(w->h);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    enum { N = 2000 };
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant g = node_reserve(&c, "absent", "piped", 100);
    const char *until = node_deadline(&c, 5000);
    char text[16];
    uint64_t deadline = tarn_deadline(HARNESS_TIMEOUT_MS);
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof(text), "%d", i);
        if (i == N / 2)
            assert_int_equal(
                tarn_resp_append_strs(c.resp, "COMMIT", until, "put", g.pool, g.slot, g.gen, NULL), 0);
        assert_int_equal(tarn_resp_append_strs(c.resp, "PING", text, NULL), 0);
    }
    for (int i = 0; i < N; i++) {
        redisReply *r;
        if (i == N / 2) {
            assert_int_equal(tarn_resp_read(c.resp, deadline, NULL, &r), 0);
            assert_int_equal(r->type, REDIS_REPLY_ARRAY);
            freeReplyObject(r);
        }
        assert_int_equal(tarn_resp_read(c.resp, deadline, NULL, &r), 0);
        assert_int_equal(atoi(r->str), i);
        freeReplyObject(r);
    }
    node_close(&c);
    harness_passed(w->h);
}

/* The address sanitizer keeps freed memory, 256 MiB of it. */
#ifdef __SANITIZE_ADDRESS__
#define NODE_RSS_MAX ((32 + 256) << 20)
#else
#define NODE_RSS_MAX (32 << 20)
#endif

/* A client that never reads must neither make the node's memory grow without bound nor block the node. */
static void a_client_that_reads_no_replies_does_not_block_the_node(void **state)
{
    struct node_world *w = *state;
    char request[512];
    int fd = raw_connect(w->node->control);
    size_t n = (size_t)snprintf(request, sizeof(request), "*1\r\n$4\r\nHELP\r\n"), sent = 0;
    for (int refused = 0; refused < 20;) {
        ssize_t k = send(fd, request, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0) {
            assert_int_equal(errno, EAGAIN);
            refused++;
            freeReplyObject(harness_call(w->node->control, "PING", NULL));
        } else {
            sent += (size_t)k;
            assert_true(sent < 64 << 20);
        }
    }
    assert_true(node_figure(w->node->control, "rss_private_bytes") < NODE_RSS_MAX);
    close(fd);
    harness_passed(w->h);
}

static void thousands_of_connections(void **state)
{
    enum { N = 3000 };
    static int fds[N];
    struct node_world *w = *state;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < N + 100)
        harness_skip("files", "the limit of open files is too low");
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int i = 0; i < N; i++)
        fds[i] = raw_connect(w->node->control);
    freeReplyObject(harness_call(w->node->control, "PING", NULL));
    for (int i = 0; i < N; i++)
        close(fds[i]);
    freeReplyObject(harness_call(w->node->control, "PING", NULL));
    harness_passed(w->h);
}

/* Without free descriptors the node stops accepting for a moment, logs that, and continues. */
static void a_node_survives_a_shortage_of_descriptors(void **state)
{
    enum { N = 200 };
    struct node_world *w = *state;
    struct rlimit few = {.rlim_cur = 64, .rlim_max = 64};
    int fds[N];
    assert_int_equal(prlimit(harness_pid(w->node->process), RLIMIT_NOFILE, &few, NULL), 0);
    for (int i = 0; i < N; i++)
        fds[i] = raw_connect(w->node->control);
    HARNESS_UNTIL(strstr(harness_log(w->node->process), "not accepting"), 5000);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    freeReplyObject(harness_call(w->node->control, "PING", NULL));
    harness_passed(w->h);
}

static const char *const words[] = {"RESERVE",
                                    "COMMIT",
                                    "ABORT",
                                    "DELETE",
                                    "RELEASE",
                                    "PIN",
                                    "UNPIN",
                                    "TOUCH",
                                    "EVICT",
                                    "ATTACH",
                                    "HELLO",
                                    "INFO",
                                    "CLIENT",
                                    "LIST",
                                    "CONFIG",
                                    "GET",
                                    "*",
                                    "cpu0",
                                    "absent",
                                    "replace",
                                    "0",
                                    "1",
                                    "2",
                                    "-1",
                                    "4096",
                                    "u8",
                                    "f32",
                                    "2,2",
                                    "",
                                    "k",
                                    "key2",
                                    "18446744073709551615",
                                    "9223372036854775807",
                                    "99999999999999999999",
                                    "shm",
                                    "tcp",
                                    "r",
                                    "w",
                                    "0000000000000001",
                                    "ffffffffffffffff",
                                    "1000",
                                    "%",
                                    "\x01\xff"};

/* Commands of plausible words in random order: each gets an answer, and the node keeps running. */
static void random_commands_are_answered(void **state)
{
    enum { COMMANDS = 13, N = sizeof(words) / sizeof(words[0]) };
    struct node_world *w = *state;
    unsigned seed = (unsigned)tarn_random64();
    print_message("seed %u\n", seed);
    srandom(seed);
    struct harness_node *n = harness_node_start(w->h, "fuzzed", w->redis, "--pool", "cpu0:bytes=1M",
                                                "--heartbeat-ms", "100", "--admin-secret", "adm1n", NULL);
    struct node_client c = node_connect(n->control);
    freeReplyObject(harness_command(c.resp, "AUTH", "adm1n", NULL));
    for (int i = 0; i < 20000; i++) {
        redisReply *reply;
        int argc = 1 + (int)(random() % 14);
        const char *name = words[random() % COMMANDS];
        struct tarn_command *command = tarn_resp_command(c.resp, name, NULL);
        for (int k = 1; k < argc; k++)
            tarn_command_str(command, words[random() % N]);
        if (tarn_resp_call(c.resp, tarn_deadline(HARNESS_TIMEOUT_MS), command, &reply))
            fail_msg("seed %u, command %d (%s): %s", seed, i, name, tarn_last_error());
        freeReplyObject(reply);
    }
    node_close(&c);
    c = node_connect(n->control);
    node_must_put(&c, "replace", "after", 100);
    node_close(&c);
    harness_passed(w->h);
}

/* --- sessions ----------------------------------------------------------------------------------- */

/* Runs in a child: reserves over the Unix socket with write access, drops the connection and stays alive. */
static void reserve_and_linger(const char *address, int ready_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct node_client c = node_connect(address);
    node_attach(c.resp, "w");
    node_reserve(&c, "absent", "late", 1000);
    node_close(&c);
    bool ok = write(ready_fd, "x", 1) == 1;
    while (ok)
        pause();
    _exit(1);
}

static void killed_writer_frees_its_reservations_once_it_is_gone(void **state)
{
    struct node_world *w = *state;
    char byte;
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0)
        reserve_and_linger(w->node->local, fds[1]);
    close(fds[1]);
    assert_int_equal(read(fds[0], &byte, 1), 1);
    close(fds[0]);
    HARNESS_UNTIL(node_figure(w->node->control, "sessions_lingering") == 1, 5000);
    /* The child has no connection, but could still write. */
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    HARNESS_UNTIL(node_pool_figure(w->node->control, "reserved") == 0, 5000);
    assert_int_equal(node_figure(w->node->control, "sessions_lingering"), 0);
    harness_passed(w->h);
}

static void gone_tcp_session_frees_its_reservations(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    node_reserve(&c, "absent", "a", 1000);
    node_reserve(&c, "absent", "b", 1000);
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 2);
    assert_int_equal(node_figure(w->node->control, "sessions_reserving"), 1);
    node_close(&c);
    HARNESS_UNTIL(node_pool_figure(w->node->control, "reserved") == 0, 5000);
    harness_passed(w->h);
}

static void session_belongs_to_one_process(void **state)
{
    struct node_world *w = *state;
    const char *address = w->node->local;
    int status;
    struct node_client c = node_connect(address);
    pid_t pid = fork();
    if (pid == 0) {
        struct tarn_resp *r = harness_connect(address);
        redisReply *reply = harness_command(r, "HELLO", "1", c.session, NULL);
        _exit(reply->type == REDIS_REPLY_ERROR && !strncmp(reply->str, "AUTH", 4) ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    node_close(&c);
    harness_passed(w->h);
}

/* --- looking into a node ------------------------------------------------------------------------ */

static void http_get(const char *address, const char *path, char *out, size_t bytes)
{
    char request[128];
    int n = snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n",
                     path);
    raw_talk(address, request, (size_t)n, out, bytes);
}

static void info_metrics_and_health(void **state)
{
    static char text[65536];
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    node_must_put(&c, "absent", "k", 1000);
    assert_string_equal(node_info(w->node->control, "state"), "ready");
    assert_string_equal(node_info(w->node->control, "committed"), "1");
    assert_string_equal(node_info(w->node->control, "redis_state"), "ok");
    http_get(w->node->http, "/health", text, sizeof(text));
    assert_prefix(text, "HTTP/1.1 200");
    http_get(w->node->http, "/metrics", text, sizeof(text));
    assert_non_null(strstr(text, "\ntarn_pool_objects{pool=\"cpu0\"} 1\n"));
    assert_non_null(strstr(text, "\ntarn_committed_total 1\n"));
    http_get(w->node->http, "/nothing", text, sizeof(text));
    assert_prefix(text, "HTTP/1.1 404");
    redisReply *r = harness_call(w->node->local, "CLIENT", "LIST", NULL);
    assert_non_null(strstr(r->str, c.session));
    freeReplyObject(r);
    r = harness_command(c.resp, "HELP", NULL);
    assert_true(r->elements > 15);
    freeReplyObject(r);
    node_close(&c);
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_NODE(a_put_is_visible_until_delete),
        WITH_NODE(second_put_says_exists_and_frees_its_room),
        WITH_NODE(one_commit_may_name_a_key_several_times),
        WITH_NODE(replace_returns_copies_on_other_nodes),
        WITH_NODE(evicted_objects_leave_the_directory),
        WITH_NODE(keys_are_binary_and_checked),
        WITH_NODE(pins_keep_and_touch_counts),
        WITH_NODE(hello_is_required_and_checked),
        WITH_REDIS(the_secret_is_required),
        WITH_NODE(malformed_requests_end_their_connection_only),
        WITH_NODE(pipelined_requests_are_answered_in_order),
        WITH_NODE(a_client_that_reads_no_replies_does_not_block_the_node),
        WITH_NODE(thousands_of_connections),
        WITH_NODE(a_node_survives_a_shortage_of_descriptors),
        WITH_NODE(random_commands_are_answered),
        WITH_NODE(killed_writer_frees_its_reservations_once_it_is_gone),
        WITH_NODE(gone_tcp_session_frees_its_reservations),
        WITH_NODE(session_belongs_to_one_process),
        WITH_NODE(info_metrics_and_health),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
