/* SPDX-License-Identifier: Apache-2.0 */
/* A node started with nothing but a pool: it has its own Redis. Who may use both, and what happens when
 * that Redis dies. */
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/node_client.h"
#include "tests/world.h"

static void password_of(const struct harness_node *n, char out[64])
{
    const char *at = n->redis + strlen("redis://default:");
    snprintf(out, 64, "%.*s", (int)strcspn(at, "@"), at);
}

/* Sends a two-word command to the node's Redis with its password. NULL: Redis does not answer. */
static redisReply *ask_redis(const struct harness_node *n, const char *command, const char *argument)
{
    char password[64];
    struct tarn_addr a;
    struct tarn_resp *r = NULL;
    redisReply *hello = NULL, *reply = NULL;
    uint64_t deadline = tarn_deadline(5000);
    password_of(n, password);
    assert_int_equal(tarn_addr_parse(strchr(n->redis, '@') + 1, "redis", &a), 0);
    int rc = tarn_resp_connect(&a, deadline, NULL, &r);
    if (!rc)
        rc = tarn_resp_call(r, deadline, tarn_resp_command(r, "AUTH", password, NULL), &hello);
    if (!rc)
        rc = tarn_resp_call(r, deadline, tarn_resp_command(r, command, argument, NULL), &reply);
    if (hello)
        freeReplyObject(hello);
    tarn_resp_free(r);
    return rc ? NULL : reply;
}

static pid_t redis_pid(const struct harness_node *n)
{
    redisReply *info = ask_redis(n, "INFO", "server");
    assert_non_null(info);
    const char *at = strstr(info->str, "process_id:");
    assert_non_null(at);
    pid_t pid = (pid_t)strtol(at + strlen("process_id:"), NULL, 10);
    freeReplyObject(info);
    return pid;
}

/* --- another user of the host ------------------------------------------------------------------- */

#define NOBODY 65534

/* Runs in another user's process. Returns what went wrong, or NULL. */
static const char *refused(const char *address, const char *const *argv, const char *error)
{
    static char text[256];
    struct tarn_command command = {.n = 0};
    struct tarn_addr a;
    struct tarn_resp *r;
    redisReply *reply;
    for (int i = 0; argv[i]; i++)
        tarn_command_str(&command, argv[i]);
    if (tarn_addr_parse(address, "address", &a) || tarn_resp_connect(&a, tarn_deadline(5000), NULL, &r) ||
        tarn_resp_call(r, tarn_deadline(5000), &command, &reply))
        snprintf(text, sizeof(text), "%s: %s", argv[0], tarn_last_error());
    else if (reply->type == REDIS_REPLY_ERROR && !strncmp(reply->str, error, strlen(error)))
        return NULL;
    else
        snprintf(text, sizeof(text), "%s at %s: %s", argv[0], address, reply->str ? reply->str : "answered");
    return text;
}

static bool can_open(const char *socket_path)
{
    struct tarn_addr a = {.is_unix = true};
    int fd;
    snprintf(a.host, sizeof(a.host), "%s", socket_path);
    return tarn_net_connect(&a, tarn_deadline(5000), NULL, &fd) == 0;
}

static bool in_arguments(pid_t pid, const char *word)
{
    char path[64], text[4096];
    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text)) : -1;
    if (fd >= 0)
        close(fd);
    return n > 0 && memmem(text, (size_t)n, word, strlen(word));
}

static const char *tries_at_the_node(const struct harness_node *n)
{
    static const char *const commands[][12] = {
        {"HELLO", "1", "01"},
        {"HELLO", "1", "01", ""},
        {"AUTH", "default"},
        {"INFO"},
        {"ATTACH", "tcp", "r"},
        {"RESERVE", "*", "replace", "1", "0", "0", "", "k", "100", "u8", "100"},
        {"DELETE", "k"},
        {"CONFIG", "GET", "*"},
        {"CLIENT", "LIST"},
        {"EVICT", "p", "1048576"},
        {"DRAIN"},
    };
    const char *wrong = can_open(n->unix_path) ? "its Unix socket" : NULL;
    for (size_t i = 0; !wrong && i < sizeof(commands) / sizeof(commands[0]); i++)
        wrong = refused(n->control, commands[i], "AUTH");
    return wrong;
}

static const char *tries_at_redis(const char *address)
{
    static const char *const commands[][4] = {{"HGETALL", "tarn:default:node:n"},
                                              {"HGETALL", "tarn:default:o:k"},
                                              {"CONFIG", "GET", "requirepass"},
                                              {"ACL", "LIST"},
                                              {"SET", "x", "y"},
                                              {"FLUSHALL"},
                                              {"SHUTDOWN", "NOSAVE"}};
    const char *wrong = NULL;
    for (size_t i = 0; !wrong && i < sizeof(commands) / sizeof(commands[0]); i++)
        wrong = refused(address, commands[i], "NOAUTH");
    return wrong;
}

static const char *tries(const struct harness_node *n, pid_t redis, const char *redis_socket,
                         const char *password)
{
    const char *wrong = tries_at_the_node(n);
    if (!wrong)
        wrong = tries_at_redis(strchr(n->redis, '@') + 1);
    if (!wrong && can_open(redis_socket))
        wrong = "the Unix socket of Redis";
    if (!wrong && in_arguments(redis, password))
        wrong = "the arguments of Redis have its password";
    return wrong;
}

/* Fails the test with a list of what another user could do. */
static void as_nobody(struct harness_node *n, pid_t redis, const char *redis_socket, const char *password)
{
    int fds[2], status = 0;
    char text[300] = "";
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const char *wrong =
            setgid(NOBODY) || setuid(NOBODY) ? "setuid" : tries(n, redis, redis_socket, password);
        _exit(wrong && write(fds[1], wrong, strlen(wrong)) >= 0 ? 1 : wrong ? 2 : 0);
    }
    close(fds[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (read(fds[0], text, sizeof(text) - 1) < 0 || status)
        fail_msg("another user got through (status %x): %s", status, text);
    close(fds[0]);
}

/* The operator has set only --pool. The other user knows every address. */
static void other_users_are_refused_by_default(void **state)
{
    struct node_world *w = *state;
    char password[64], socket_path[160];
    if (getuid() != 0)
        harness_skip("root", "only root can be another user");
    struct harness_node *n = harness_node_start(w->h, "n", NULL, "--pool", "p:bytes=1M", NULL);
    struct tarn_client *c = client_open(n->redis, (struct tarn_options){0});
    assert_int_equal(client_put(c, "k", 'x', 100, NULL), 0);
    password_of(n, password);
    assert_int_equal(strlen(password), 32);
    snprintf(socket_path, sizeof(socket_path), "%s/redis-%d.sock", harness_dir(w->h),
             (int)harness_pid(n->process));
    assert_true(can_open(socket_path) && can_open(n->unix_path));
    /* The other user may reach the sockets' folder. Each socket's own mode keeps it out. */
    assert_int_equal(chmod(harness_dir(w->h), 0755), 0);
    as_nobody(n, redis_pid(n), socket_path, password);
    assert_true(harness_running(n->process));
    assert_int_equal(client_get(c, "k", 'x', 100), 0);
    assert_int_equal(client_put(c, "k", 'y', 100, &replacing), 0);
    tarn_close(c);
    harness_passed(w->h);
}

/* --- when Redis dies ----------------------------------------------------------------------------- */

/* The number of objects in the node's Redis. -1: Redis does not answer. */
static long objects(const struct harness_node *n)
{
    redisReply *keys = ask_redis(n, "KEYS", OBJECT "*");
    long count = keys && keys->type == REDIS_REPLY_ARRAY ? (long)keys->elements : -1;
    if (keys)
        freeReplyObject(keys);
    return count;
}

/* The node restarts Redis at the same address with the same password. All nodes publish their objects
 * again. */
static void a_dead_redis_is_restarted_and_gets_all_objects_again(void **state)
{
    enum { N = 50 };
    struct node_world *w = *state;
    struct harness_node *n =
        harness_node_start(w->h, "n", NULL, "--pool", "p:bytes=4M", "--heartbeat-ms", "300", NULL);
    harness_node_start(w->h, "other", NULL, "--redis", n->redis, "--pool", "p:bytes=4M", "--heartbeat-ms",
                       "300", NULL);
    struct tarn_client *c = client_open(n->redis, (struct tarn_options){.timeout_ms = 20000});
    client_put_each(c, "k", N, 'x', 100, NULL);
    for (int times = 0; times < 2; times++) {
        pid_t before = redis_pid(n);
        assert_int_equal(kill(before, SIGKILL), 0);
        HARNESS_UNTIL(objects(n) == N, 20000);
        assert_int_not_equal(redis_pid(n), before);
        client_get_each(c, "k", N, 'x', 100);
        assert_int_equal(client_put(c, times ? "k1" : "k0", 'x', 100, &replacing), 0);
    }
    struct tarn_client *late = client_open(n->redis, (struct tarn_options){.timeout_ms = 20000});
    client_get_each(late, "k", N, 'x', 100);
    tarn_close(c);
    tarn_close(late);
    harness_passed(w->h);
}

/* True if this process can listen on the port of the node's Redis, with or without SO_REUSEADDR
 * (`shared`). */
static bool can_take_port(const struct harness_node *n, int shared)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_port = htons((uint16_t)atoi(strrchr(n->redis, ':') + 1));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &shared, sizeof(shared));
    bool taken = bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 16) == 0;
    close(fd);
    return taken;
}

/* While Redis is down, clients would send the password to any process that listens on its port. So no
 * other process may get that port, however often Redis restarts. */
static void no_other_process_gets_the_port_of_a_dead_redis(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n =
        harness_node_start(w->h, "n", NULL, "--pool", "p:bytes=1M", "--heartbeat-ms", "100", NULL);
    struct tarn_client *c = client_open(n->redis, (struct tarn_options){.timeout_ms = 20000});
    for (int times = 0; times < 2; times++) {
        pid_t pid = redis_pid(n);
        harness_signal(n->process, SIGSTOP);
        assert_int_equal(kill(pid, SIGKILL), 0);
        HARNESS_UNTIL(objects(n) < 0, 5000);
        assert_false(can_take_port(n, 0));
        assert_false(can_take_port(n, 1));
        harness_signal(n->process, SIGCONT);
        HARNESS_UNTIL(client_put(c, "key", 'a', 100, &replacing) == 0, 20000);
        assert_int_not_equal(redis_pid(n), pid);
    }
    tarn_close(c);
    harness_passed(w->h);
}

/* Redis dies again and again. */
static void a_node_ends_when_its_redis_keeps_dying(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n =
        harness_node_start(w->h, "n", NULL, "--pool", "p:bytes=1M", "--heartbeat-ms", "100", NULL);
    uint64_t until = harness_now_ms() + 30000;
    while (harness_running(n->process) && harness_now_ms() < until) {
        redisReply *r = ask_redis(n, "SHUTDOWN", "NOSAVE");
        if (r)
            freeReplyObject(r);
        harness_pause();
    }
    assert_int_equal(harness_wait(n->process, 100), 1);
    assert_non_null(strstr(harness_log(n->process), "name a running Redis with --redis"));
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_REDIS(other_users_are_refused_by_default),
        WITH_REDIS(a_dead_redis_is_restarted_and_gets_all_objects_again),
        WITH_REDIS(no_other_process_gets_the_port_of_a_dead_redis),
        WITH_REDIS(a_node_ends_when_its_redis_keeps_dying),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
