/* SPDX-License-Identifier: Apache-2.0 */
/* A real tarnd on a real Redis: commands, refusals, sessions, the end of a node. */
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
#include "tests/node_client.h"

#define OBJECT "tarn:default:o:"

struct world {
    struct harness *h;
    struct harness_redis *redis;
    struct harness_node *node;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    *state = w;
    w->h = harness_new();
    w->redis = harness_redis_start(w->h, NULL);
    return 0;
}

static int setup_node(void **state)
{
    setup(state);
    struct world *w = *state;
    w->node = harness_node_start(w->h, "node0", w->redis, "--pool", "cpu0:bytes=1M", "--heartbeat-ms", "100",
                                 "--http", "127.0.0.1:0", NULL);
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    harness_free(w->h);
    free(w);
    return 0;
}

static bool in_directory(const struct world *w, const char *key)
{
    char full[256];
    snprintf(full, sizeof(full), OBJECT "%s", key);
    return harness_redis_integer(w->redis, "EXISTS", full, NULL) == 1;
}

static void assert_error(redisReply *reply, const char *prefix)
{
    if (reply->type != REDIS_REPLY_ERROR)
        fail_msg("wanted an error %s, got type %d", prefix, reply->type);
    if (strncmp(reply->str, prefix, strlen(prefix)))
        fail_msg("wanted an error %s, got %s", prefix, reply->str);
    freeReplyObject(reply);
}

static void assert_prefix(const char *text, const char *prefix)
{
    if (strncmp(text, prefix, strlen(prefix)))
        fail_msg("wanted \"%s...\", got \"%s\"", prefix, text);
}

/* --- putting and removing ----------------------------------------------------------------------- */

static void put_is_visible_and_delete_takes_it_away(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->node->control);
    char want[128];
    assert_string_equal(node_put(&c, "absent", "k1", 4096), "");
    redisReply *r = harness_redis_call(w->redis, "HGET", OBJECT "k1", "@node0/cpu0", NULL);
    assert_int_equal(r->type, REDIS_REPLY_STRING);
    freeReplyObject(r);
    r = harness_redis_call(w->redis, "HGET", OBJECT "k1", "tensor", NULL);
    snprintf(want, sizeof(want), "%s", r->str);
    freeReplyObject(r);
    assert_string_equal(want, "u8[4096]");

    r = harness_command(c.resp, "DELETE", "k1", "other", NULL);
    assert_int_equal(r->elements, 2);
    assert_int_equal(r->element[0]->integer, 1);
    assert_int_equal(r->element[1]->integer, 0);
    freeReplyObject(r);
    assert_false(in_directory(w, "k1"));
    assert_int_equal(node_pool_figure(w->node->control, "objects"), 0);
    node_close(&c);
    harness_passed(w->h);
}

static void second_put_says_exists_and_frees_its_room(void **state)
{
    struct world *w = *state;
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

/* One COMMIT with three reservations of one key: the first wins over absent, replace wins over both. */
static void one_commit_may_have_a_key_several_times(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant a = node_reserve(&c, "absent", "k", 100), b = node_reserve(&c, "absent", "k", 200),
                      d = node_reserve(&c, "replace", "k", 300);
    redisReply *r = harness_command(c.resp, "COMMIT", "5000", a.pool, a.slot, a.gen, b.pool, b.slot, b.gen,
                                    d.pool, d.slot, d.gen, a.pool, a.slot, a.gen, NULL);
    assert_int_equal(r->elements, 4);
    assert_int_equal(r->element[0]->type, REDIS_REPLY_ARRAY);
    assert_prefix(r->element[1]->str, "EXISTS");
    assert_int_equal(r->element[2]->type, REDIS_REPLY_ARRAY);
    assert_int_equal(r->element[2]->elements, 0);
    assert_prefix(r->element[3]->str, "STALE");
    freeReplyObject(r);
    r = harness_redis_call(w->redis, "HGET", OBJECT "k", "tensor", NULL);
    assert_string_equal(r->str, "u8[300]");
    freeReplyObject(r);
    assert_int_equal(node_pool_figure(w->node->control, "objects"), 1);
    node_close(&c);
    harness_passed(w->h);
}

static void replace_returns_copies_on_other_nodes(void **state)
{
    struct world *w = *state;
    struct harness_node *other = harness_node_start(w->h, "node1", w->redis, "--pool", "p:bytes=1M", NULL);
    struct node_client c0 = node_connect(w->node->control), c1 = node_connect(other->control);
    assert_string_equal(node_put(&c0, "absent", "k", 100), "");
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
    assert_int_equal(r->element[1]->integer, 0);
    freeReplyObject(r);
    assert_int_equal(node_pool_figure(w->node->control, "objects"), 0);
    assert_true(in_directory(w, "k"));
    node_close(&c0);
    node_close(&c1);
    harness_passed(w->h);
}

static void evicted_objects_leave_the_directory(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->node->control);
    char key[16];
    for (int i = 0; i < 64; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        assert_string_equal(node_put(&c, "absent", key, 64 << 10), "");
    }
    long long objects = node_pool_figure(w->node->control, "objects");
    assert_true(objects > 8 && objects <= 16);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "KEYS", OBJECT "*", NULL) ==
                      node_pool_figure(w->node->control, "objects"),
                  5000);
    assert_true(in_directory(w, "k63"));
    node_close(&c);
    harness_passed(w->h);
}

static void keys_are_binary_and_checked(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant g;
    char longest[TARN_KEY_MAX + 2];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = 0;
    assert_prefix(node_try_reserve(&c, "absent", longest, 1, &g), "INVALID");
    assert_prefix(node_try_reserve(&c, "absent", "", 1, &g), "INVALID");
    longest[TARN_KEY_MAX] = 0;
    assert_string_equal(node_put(&c, "absent", longest, 1), "");
    assert_string_equal(node_put(&c, "absent", "a b\x01%", 0), "");
    assert_true(in_directory(w, "a%20b%01%25"));
    assert_prefix(node_try_reserve(&c, "absent", "big", 2 << 20, &g), "TOO_LARGE");
    redisReply *r = harness_command(c.resp, "RESERVE", "*", "absent", "7", "0", "0", "k", "10", "f32", "2,3",
                                    "l", "10", "floaty", "10", NULL);
    assert_prefix(r->element[0]->str, "INVALID");
    assert_prefix(r->element[1]->str, "INVALID");
    freeReplyObject(r);
    node_close(&c);
    harness_passed(w->h);
}

static void pins_keep_and_touch_counts(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->node->control);
    assert_string_equal(node_put(&c, "absent", "kept", 1000), "");
    assert_string_equal(node_put(&c, "absent", "loose", 1000), "");
    redisReply *r = harness_command(c.resp, "PIN", "0", "kept", "nothing", NULL);
    assert_int_equal(r->element[0]->integer, 1);
    assert_int_equal(r->element[1]->integer, 0);
    freeReplyObject(r);
    r = harness_command(c.resp, "EVICT", "cpu0", "1048576", NULL);
    assert_true(r->integer >= 1000);
    freeReplyObject(r);
    HARNESS_UNTIL(!in_directory(w, "loose"), 5000);
    assert_true(in_directory(w, "kept"));
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

static void hello_is_wanted_and_checked(void **state)
{
    struct world *w = *state;
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
        harness_command(c.resp, "RESERVE", "nopool", "absent", "1", "0", "0", "k", "1", "u8", "1", NULL),
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

static void secret_is_wanted(void **state)
{
    struct world *w = *state;
    struct harness_node *n =
        harness_node_start(w->h, "locked", w->redis, "--pool", "p:bytes=1M", "--secret", "s3cret", NULL);
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
    r = harness_command(c, "CONFIG", "GET", "secret", NULL);
    assert_int_equal(r->elements, 2);
    assert_null(strstr(r->element[1]->str, "s3cret"));
    freeReplyObject(r);
    tarn_resp_free(c);
    harness_passed(w->h);
}

static int raw_connect(const char *address)
{
    struct tarn_addr a;
    int fd;
    assert_int_equal(tarn_addr_parse(address, "address", &a), 0);
    assert_int_equal(tarn_net_connect(&a, tarn_deadline(5000), &fd), 0);
    return fd;
}

/* Sends bytes and reads until the node closes; what it said first. */
static void raw_talk(const char *address, const char *bytes, size_t n, char *out, size_t out_bytes)
{
    size_t got = 0;
    ssize_t k = 1;
    int fd = raw_connect(address);
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
    while (k > 0 && got < out_bytes - 1) {
        assert_int_equal(tarn_net_wait(fd, 1 /* POLLIN */, tarn_deadline(5000)), 0);
        k = recv(fd, out + got, out_bytes - 1 - got, 0);
        got += k > 0 ? (size_t)k : 0;
    }
    out[got] = 0;
    close(fd);
}

static void malformed_requests_end_their_connection_only(void **state)
{
    static const char *const bad[] = {
        "GET / HTTP/1.1\r\n\r\n", "*1\r\n$-5\r\nPING\r\n", "*99999999\r\n", "*1\r\n$999999999\r\n",
        "*1\r\n:5\r\n",           "$4\r\nPING\r\n",        "*-7\r\n",       "*1\r\n*1\r\n$4\r\nPING\r\n",
    };
    struct world *w = *state;
    char out[512];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        raw_talk(w->node->control, bad[i], strlen(bad[i]), out, sizeof(out));
        if (out[0])
            assert_prefix(out, "-PROTOCOL");
    }
    /* Half a request, then gone. */
    int fd = raw_connect(w->node->control);
    assert_int_equal(send(fd, "*2\r\n$4\r\nPI", 10, MSG_NOSIGNAL), 10);
    close(fd);
    freeReplyObject(harness_call(w->node->control, "PING", NULL));
    harness_passed(w->h);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    enum { N = 2000 };
    struct world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant g = node_reserve(&c, "absent", "piped", 100);
    const char *commit[] = {"COMMIT", "5000", g.pool, g.slot, g.gen};
    char text[16];
    uint64_t deadline = tarn_deadline(HARNESS_TIMEOUT_MS);
    for (int i = 0; i < N; i++) {
        const char *ping[] = {"PING", text};
        snprintf(text, sizeof(text), "%d", i);
        if (i == N / 2)
            assert_int_equal(tarn_resp_append(c.resp, 5, commit, NULL), 0);
        assert_int_equal(tarn_resp_append(c.resp, 2, ping, NULL), 0);
    }
    for (int i = 0; i < N; i++) {
        redisReply *r;
        if (i == N / 2) {
            assert_int_equal(tarn_resp_read(c.resp, deadline, &r), 0);
            assert_int_equal(r->type, REDIS_REPLY_ARRAY);
            freeReplyObject(r);
        }
        assert_int_equal(tarn_resp_read(c.resp, deadline, &r), 0);
        assert_int_equal(atoi(r->str), i);
        freeReplyObject(r);
    }
    node_close(&c);
    harness_passed(w->h);
}

/* A client that never reads must not make the node grow without bound, nor stop it. */
static void deaf_client_is_not_read_from(void **state)
{
    struct world *w = *state;
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
    assert_true(atoll(node_info(w->node->control, "rss_private_bytes")) < 32 << 20);
    close(fd);
    harness_passed(w->h);
}

static void thousands_of_connections(void **state)
{
    enum { N = 3000 };
    static int fds[N];
    struct world *w = *state;
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

/* --- sessions ----------------------------------------------------------------------------------- */

/* In a child: reserves over the Unix socket with write access, then drops the connection and lives on. */
static void reserve_and_linger(const char *address, int ready_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct node_client c = node_connect(address);
    redisReply *r = harness_command(c.resp, "ATTACH", "shm", "w", NULL);
    int fds[TARN_RESP_FDS_MAX];
    bool ok = r->type == REDIS_REPLY_ARRAY &&
              tarn_resp_take_fds(c.resp, fds, TARN_RESP_FDS_MAX) == r->element[1]->integer;
    node_reserve(&c, "absent", "late", 1000);
    node_close(&c);
    ok = ok && write(ready_fd, "x", 1) == 1;
    while (ok)
        pause();
    _exit(1);
}

static void killed_writer_frees_its_reservations_once_it_is_gone(void **state)
{
    struct world *w = *state;
    char address[160], byte;
    int fds[2];
    snprintf(address, sizeof(address), "unix:%s", w->node->unix_path);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0)
        reserve_and_linger(address, fds[1]);
    close(fds[1]);
    assert_int_equal(read(fds[0], &byte, 1), 1);
    close(fds[0]);
    HARNESS_UNTIL(atoi(node_info(w->node->control, "sessions_lingering")) == 1, 5000);
    /* It has no connection, but it could still write. */
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    HARNESS_UNTIL(node_pool_figure(w->node->control, "reserved") == 0, 5000);
    assert_int_equal(atoi(node_info(w->node->control, "sessions_lingering")), 0);
    harness_passed(w->h);
}

static void gone_tcp_session_frees_its_reservations(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->node->control);
    node_reserve(&c, "absent", "a", 1000);
    node_reserve(&c, "absent", "b", 1000);
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 2);
    assert_int_equal(atoi(node_info(w->node->control, "sessions_reserving")), 1);
    node_close(&c);
    HARNESS_UNTIL(node_pool_figure(w->node->control, "reserved") == 0, 5000);
    harness_passed(w->h);
}

static void session_belongs_to_one_process(void **state)
{
    struct world *w = *state;
    char address[160];
    int status;
    snprintf(address, sizeof(address), "unix:%s", w->node->unix_path);
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

/* --- the end of a node -------------------------------------------------------------------------- */

static void drain_waits_for_puts_in_flight_and_withdraws(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant refused;
    assert_string_equal(node_put(&c, "absent", "stored", 100), "");
    struct node_grant g = node_reserve(&c, "absent", "in-flight", 100);
    harness_signal(w->node->process, SIGTERM);
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "state"), "draining"), 5000);
    assert_prefix(node_try_reserve(&c, "absent", "new", 100, &refused), "BUSY");
    redisReply *r = harness_redis_call(w->redis, "HGET", "tarn:default:node:node0", "state", NULL);
    assert_string_equal(r->str, "draining");
    freeReplyObject(r);
    r = node_commit(&c, &g, "5000");
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    freeReplyObject(r);
    assert_int_equal(harness_wait(w->node->process, 10000), 0);
    assert_int_equal(harness_redis_integer(w->redis, "KEYS", "tarn:*", NULL), 0);
    node_close(&c);
    harness_passed(w->h);
}

static void drain_gives_up_stuck_reservations(void **state)
{
    struct world *w = *state;
    struct harness_node *n = harness_node_start(w->h, "stuck", w->redis, "--pool", "p:bytes=1M",
                                                "--drain-timeout-ms", "200", NULL);
    struct node_client c = node_connect(n->control);
    node_reserve(&c, "absent", "never", 100);
    freeReplyObject(harness_command(c.resp, "DRAIN", NULL));
    assert_int_equal(harness_wait(n->process, 5000), 0);
    node_close(&c);
    harness_passed(w->h);
}

static void second_signal_ends_at_once(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->node->control);
    node_reserve(&c, "absent", "never", 100);
    harness_signal(w->node->process, SIGHUP);
    harness_signal(w->node->process, SIGINT);
    HARNESS_UNTIL(!strcmp(node_info(w->node->control, "state"), "draining"), 5000);
    harness_signal(w->node->process, SIGINT);
    assert_int_equal(harness_wait(w->node->process, 5000), 1);
    node_close(&c);
    harness_passed(w->h);
}

/* --- starting ----------------------------------------------------------------------------------- */

static void refuses(struct world *w, struct harness_process *p, int status, const char *sentence)
{
    (void)w;
    assert_int_equal(harness_wait(p, 10000), status);
    if (!strstr(harness_log(p), sentence))
        fail_msg("no \"%s\" in: %s", sentence, harness_log(p));
}

static void second_node_of_an_id_refuses(void **state)
{
    struct world *w = *state;
    struct harness_process *p = harness_node_spawn(
        w->h, "node0", w->redis, "--unix", harness_path(w->h, "second.sock"), "--pool", "p:bytes=1M", NULL);
    refuses(w, p, 1, "node id node0: the node at 127.0.0.1:");
    freeReplyObject(harness_call(w->node->control, "PING", NULL));
    harness_passed(w->h);
}

static void taken_port_is_named(void **state)
{
    struct world *w = *state;
    struct harness_process *p =
        harness_node_spawn(w->h, "n2", w->redis, "--listen", w->node->control, "--pool", "p:bytes=1M", NULL);
    refuses(w, p, 1, w->node->control);
    harness_passed(w->h);
}

static void absent_redis_is_named(void **state)
{
    struct world *w = *state;
    char url[64];
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", harness_free_port());
    struct harness_process *p =
        harness_node_spawn(w->h, "n3", NULL, "--redis", url, "--pool", "p:bytes=1M", NULL);
    refuses(w, p, 1, url + strlen("redis://"));
    harness_passed(w->h);
}

static void wrong_redis_password_is_named(void **state)
{
    struct world *w = *state;
    struct harness_redis *locked = harness_redis_start(w->h, "right");
    char url[64];
    snprintf(url, sizeof(url), "redis://:wrong@127.0.0.1:%u", locked->port);
    struct harness_process *p =
        harness_node_spawn(w->h, "n4", NULL, "--redis", url, "--pool", "p:bytes=1M", NULL);
    refuses(w, p, 1, "password");
    assert_null(strstr(harness_log(p), "wrong@"));
    struct harness_node *n = harness_node_start(w->h, "n5", locked, "--pool", "p:bytes=1M", NULL);
    assert_int_equal(harness_redis_integer(locked, "EXISTS", "tarn:default:node:n5", NULL), 1);
    assert_null(strstr(n->redis, "right"));
    harness_passed(w->h);
}

static void wrong_settings_are_refused(void **state)
{
    static const struct {
        const char *option, *value, *sentence;
    } bad[] = {
        {"--pool", "p", "no size"},
        {"--pool", "p:bytes=0", "bytes=0"},
        {"--pool", "p:byts=1M", "byts"},
        {"--pool", "gpu0:bytes=1M", "GPU"},
        {"--pool", "a/b:bytes=1M", "name"},
        {"--id", "a b", "--id"},
        {"--listen", "0.0.0.0:0", "0.0.0.0"},
        {"--listen", "nonsense", "--listen"},
        {"--heartbeat-ms", "5", "heartbeat-ms"},
        {"--log-level", "loud", "loud"},
        {"--evict-low", "99", "--evict-low"},
        {"--hartbeat-ms", "100", "heartbeat-ms"},
    };
    struct world *w = *state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char name[32];
        snprintf(name, sizeof(name), "bad%zu", i);
        const char *argv[] = {"tarnd", bad[i].option, bad[i].value, NULL};
        refuses(w, harness_spawn(w->h, name, argv), 2, bad[i].sentence);
    }
    harness_passed(w->h);
}

static void pool_larger_than_memory_is_refused(void **state)
{
    struct world *w = *state;
    struct harness_process *p = harness_node_spawn(w->h, "huge", w->redis, "--pool", "p:bytes=100T", NULL);
    refuses(w, p, 1, "pool");
    harness_passed(w->h);
}

static void private_redis_comes_and_goes_with_the_node(void **state)
{
    struct world *w = *state;
    struct harness_node *n = harness_node_start(w->h, "alone", NULL, "--pool", "p:bytes=1M", NULL);
    const char *address = n->redis + strlen("redis://");
    struct node_client c = node_connect(n->control);
    assert_string_equal(node_put(&c, "absent", "k", 100), "");
    redisReply *r = harness_call(address, "EXISTS", OBJECT "k", NULL);
    assert_int_equal(r->integer, 1);
    freeReplyObject(r);
    harness_signal(n->process, SIGTERM);
    assert_int_equal(harness_wait(n->process, 10000), 0);
    struct tarn_addr a;
    int fd;
    assert_int_equal(tarn_addr_parse(address, "redis", &a), 0);
    assert_int_not_equal(tarn_net_connect(&a, tarn_deadline(1000), &fd), 0);
    node_close(&c);

    /* Killed, the node takes its Redis along, too. */
    n = harness_node_start(w->h, "killed", NULL, "--pool", "p:bytes=1M", NULL);
    assert_int_equal(tarn_addr_parse(n->redis + strlen("redis://"), "redis", &a), 0);
    harness_kill(n->process);
    HARNESS_UNTIL(tarn_net_connect(&a, tarn_deadline(1000), &fd) || close(fd), 5000);
    harness_passed(w->h);
}

static void texts_are_printed(void **state)
{
    static const struct {
        const char *flag, *part;
    } texts[] = {{"--help", "--pool"},
                 {"--version", "tarnd "},
                 {"--man", ".Nm tarnd"},
                 {"--markdown", "tarnd"},
                 {"--print-conf", "heartbeat-ms = 1000"}};
    struct world *w = *state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct harness_process *p;
        assert_int_equal(harness_run(w->h, &p, "tarnd", texts[i].flag, NULL), 0);
        if (!strstr(harness_stdout(p, NULL), texts[i].part))
            fail_msg("%s: no \"%s\"", texts[i].flag, texts[i].part);
    }
    harness_passed(w->h);
}

/* --- looking in --------------------------------------------------------------------------------- */

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
    struct world *w = *state;
    struct node_client c = node_connect(w->node->control);
    assert_string_equal(node_put(&c, "absent", "k", 1000), "");
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
    redisReply *r = harness_command(c.resp, "CLIENT", "LIST", NULL);
    assert_non_null(strstr(r->str, c.session));
    freeReplyObject(r);
    r = harness_command(c.resp, "HELP", NULL);
    assert_true(r->elements > 15);
    freeReplyObject(r);
    node_close(&c);
    harness_passed(w->h);
}

#define WITH_NODE(test_) cmocka_unit_test_setup_teardown(test_, setup_node, teardown)
#define WITH_REDIS(test_) cmocka_unit_test_setup_teardown(test_, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_NODE(put_is_visible_and_delete_takes_it_away),
        WITH_NODE(second_put_says_exists_and_frees_its_room),
        WITH_NODE(one_commit_may_have_a_key_several_times),
        WITH_NODE(replace_returns_copies_on_other_nodes),
        WITH_NODE(evicted_objects_leave_the_directory),
        WITH_NODE(keys_are_binary_and_checked),
        WITH_NODE(pins_keep_and_touch_counts),
        WITH_NODE(hello_is_wanted_and_checked),
        WITH_REDIS(secret_is_wanted),
        WITH_NODE(malformed_requests_end_their_connection_only),
        WITH_NODE(pipelined_requests_are_answered_in_order),
        WITH_NODE(deaf_client_is_not_read_from),
        WITH_NODE(thousands_of_connections),
        WITH_NODE(killed_writer_frees_its_reservations_once_it_is_gone),
        WITH_NODE(gone_tcp_session_frees_its_reservations),
        WITH_NODE(session_belongs_to_one_process),
        WITH_NODE(drain_waits_for_puts_in_flight_and_withdraws),
        WITH_REDIS(drain_gives_up_stuck_reservations),
        WITH_NODE(second_signal_ends_at_once),
        WITH_NODE(second_node_of_an_id_refuses),
        WITH_NODE(taken_port_is_named),
        WITH_REDIS(absent_redis_is_named),
        WITH_REDIS(wrong_redis_password_is_named),
        WITH_REDIS(wrong_settings_are_refused),
        WITH_REDIS(pool_larger_than_memory_is_refused),
        WITH_REDIS(private_redis_comes_and_goes_with_the_node),
        WITH_REDIS(texts_are_printed),
        WITH_NODE(info_metrics_and_health),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
