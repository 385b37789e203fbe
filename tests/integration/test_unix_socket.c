/* SPDX-License-Identifier: Apache-2.0 */
/* Clients of users other than the node's. They use TCP if they may not open its Unix socket, otherwise
 * shared memory. */
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/node_client.h"
#include "tests/world.h"

#define NOBODY 65534
#define GROUP 54321 /* a group without name and members */

static struct harness_node *start(struct node_world *w, const char *mode, const char *group)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/made-for-it/n.sock", harness_dir(w->h));
    if (getuid() != 0)
        harness_skip("root", "only root can be another user");
    assert_int_equal(chmod(harness_dir(w->h), 0755), 0);
    const char *args[] = {
        "--unix", path, "--pool", "p:bytes=1M", "--unix-mode", mode, group ? "--unix-group" : NULL,
        group,    NULL};
    return harness_node_startv(w->h, "n", w->redis, args);
}

/* Puts and gets with these transports. Returns the first status that is not 0. */
static int use(const char *redis, const char *transports)
{
    struct tarn_options o = {.size = sizeof(o), .redis = redis, .transports = transports};
    struct tarn_client *c;
    int rc = tarn_open(&o, &c);
    if (rc)
        return rc;
    rc = client_put(c, "k", 'x', 100, &replacing);
    if (!rc)
        rc = client_get(c, "k", 'x', 100);
    tarn_close(c);
    return rc;
}

/* The same in a process of user nobody in this group. *why gets its error text. */
static int use_as(gid_t group, const struct node_world *w, const char *transports, char why[512])
{
    int fds[2], status = 0;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int rc = setgroups(0, NULL) || setgid(group) || setuid(NOBODY) ? TARN_E_SYSTEM
                                                                       : use(w->redis->url, transports);
        dprintf(fds[1], "%s", rc ? tarn_last_error() : "");
        _exit(-rc);
    }
    close(fds[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    ssize_t n = read(fds[0], why, 511);
    why[n > 0 ? n : 0] = 0;
    close(fds[0]);
    assert_true(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static void expect_use(gid_t group, const struct node_world *w, const char *transports, int status)
{
    char why[512];
    int rc = use_as(group, w, transports, why);
    if (rc != status)
        fail_msg("%s as group %u: %s, not %s: %s", transports ? transports : "all", group,
                 tarn_error_name(rc), tarn_error_name(status), why);
}

static void a_user_who_may_not_open_the_socket_uses_tcp(void **state)
{
    struct node_world *w = *state;
    struct stat st;
    struct harness_node *n = start(w, "0600", NULL);
    assert_int_equal(stat(n->unix_path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stat(harness_path(w->h, "made-for-it"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(use(w->redis->url, "shm"), 0);
    expect_use(NOBODY, w, NULL, 0);
    expect_use(NOBODY, w, "tcp", 0);
    expect_use(NOBODY, w, "shm", TARN_E_NOT_REACHABLE);
    harness_passed(w->h);
}

static void every_user_may_open_a_socket_of_mode_0666(void **state)
{
    struct node_world *w = *state;
    start(w, "0666", NULL);
    expect_use(NOBODY, w, "shm", 0);
    harness_passed(w->h);
}

static void a_group_may_open_the_socket(void **state)
{
    struct node_world *w = *state;
    start(w, "0660", "54321");
    expect_use(GROUP, w, "shm", 0);
    expect_use(NOBODY, w, "shm", TARN_E_NOT_REACHABLE);
    expect_use(NOBODY, w, NULL, 0);
    harness_passed(w->h);
}

/* A user who may connect still may not administer. */
static void only_the_nodes_user_may_administer(void **state)
{
    struct node_world *w = *state;
    struct harness_node *n = start(w, "0666", NULL);
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        struct tarn_addr a;
        struct tarn_resp *r;
        redisReply *reply;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        bool asked = setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0 &&
                     tarn_addr_parse(n->local, "node", &a) == 0 &&
                     tarn_resp_connect(&a, UINT64_MAX, NULL, &r) == 0 &&
                     tarn_resp_call(r, UINT64_MAX, tarn_resp_command(r, "DRAIN", NULL), &reply) == 0;
        _exit(!asked ? 2 : reply->type == REDIS_REPLY_ERROR && !strncmp(reply->str, "AUTH", 4) ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_true(harness_running(n->process));
    freeReplyObject(harness_call(n->local, "DRAIN", NULL));
    assert_int_equal(harness_wait(n->process, 10000), 0);
    harness_passed(w->h);
}

static void wrong_settings_are_named(void **state)
{
    static const char *const wrong[][2] = {
        {"--unix-mode", "0066"}, {"--unix-mode", "rw"},   {"--unix-mode", "01777"},
        {"--unix-mode", ""},     {"--unix-mode", "0680"}, {"--unix-group", "no-such-group-here"},
    };
    struct node_world *w = *state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct harness_process *p = harness_node_spawn(w->h, "wrong", w->redis, "--pool", "p:bytes=1M",
                                                       wrong[i][0], wrong[i][1], NULL);
        assert_int_not_equal(harness_wait(p, 10000), 0);
        assert_non_null(strstr(harness_log(p), wrong[i][0]));
    }
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_REDIS(a_user_who_may_not_open_the_socket_uses_tcp),
        WITH_REDIS(every_user_may_open_a_socket_of_mode_0666),
        WITH_REDIS(a_group_may_open_the_socket),
        WITH_REDIS(only_the_nodes_user_may_administer),
        WITH_REDIS(wrong_settings_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
