/* SPDX-License-Identifier: Apache-2.0 */
#include "server/directory/private_redis.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/net.h"

#define POLL_MS 5
#define STOP_MS 3000

struct tarn_private_redis {
    pid_t pid;
    char uri[64], port[8], socket_path[108];
};

static int free_port(char out[8])
{
    struct tarn_addr a = {.host = "127.0.0.1"};
    int fd, rc = tarn_net_listen(&a, &fd);
    if (rc)
        return rc;
    close(fd);
    snprintf(out, 8, "%u", a.port);
    return 0;
}

/* In the child. Its errno goes through err_fd when redis-server cannot be run. */
static void run_redis(const struct tarn_private_redis *r, const char *dir, pid_t parent, int err_fd)
{
    const char *argv[] = {"redis-server",
                          "--port",
                          r->port,
                          "--bind",
                          "127.0.0.1",
                          "--unixsocket",
                          r->socket_path,
                          "--unixsocketperm",
                          "700",
                          "--save",
                          "",
                          "--appendonly",
                          "no",
                          "--dir",
                          dir,
                          "--logfile",
                          "/dev/null",
                          NULL};
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* A session of its own: ^C in the terminal ends the node, which still needs Redis to say goodbye. */
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int null_fd = open("/dev/null", O_RDWR);
    if (getppid() == parent && null_fd >= 0 && dup2(null_fd, 0) >= 0 && dup2(null_fd, 1) >= 0 &&
        dup2(null_fd, 2) >= 0)
        execvp(argv[0], (char *const *)argv);
    int err = errno;
    if (write(err_fd, &err, sizeof(err)) < 0)
        _exit(126);
    _exit(127);
}

static int spawn(struct tarn_private_redis *r, const char *dir)
{
    int fds[2], err = 0;
    pid_t self = getpid();
    if (pipe2(fds, O_CLOEXEC))
        return tarn_fail(TARN_E_SYSTEM, "redis-server: pipe: %m");
    r->pid = fork();
    if (r->pid == 0)
        run_redis(r, dir, self, fds[1]);
    close(fds[1]);
    ssize_t n = r->pid > 0 ? read(fds[0], &err, sizeof(err)) : 0;
    close(fds[0]);
    if (r->pid < 0)
        return tarn_fail(TARN_E_SYSTEM, "redis-server: fork: %m");
    if (n != sizeof(err))
        return 0;
    waitpid(r->pid, NULL, 0);
    r->pid = 0;
    errno = err;
    if (err == ENOENT)
        return tarn_fail(TARN_E_UNAVAILABLE,
                         "redis-server is not installed: install the package redis-server, or "
                         "name a running Redis with --redis redis://HOST:PORT");
    return tarn_fail(TARN_E_SYSTEM, "redis-server cannot be started: %m");
}

static bool ended(struct tarn_private_redis *r)
{
    if (r->pid && waitpid(r->pid, NULL, WNOHANG) == r->pid)
        r->pid = 0;
    return !r->pid;
}

/* AGAIN: it ended at once, most likely because somebody took the port meanwhile. */
static int wait_ready(struct tarn_private_redis *r, uint64_t deadline_ns)
{
    struct tarn_addr a = {.is_unix = true};
    int fd;
    snprintf(a.host, sizeof(a.host), "%s", r->socket_path);
    while (tarn_net_connect(&a, deadline_ns, &fd)) {
        if (ended(r))
            return TARN_E_AGAIN;
        if (!tarn_left_ms(deadline_ns))
            return tarn_fail(TARN_E_TIMEOUT, "redis-server was started but does not answer on %s",
                             r->socket_path);
        poll(NULL, 0, POLL_MS);
    }
    close(fd);
    return 0;
}

static void end(struct tarn_private_redis *r)
{
    uint64_t deadline = tarn_deadline(STOP_MS);
    if (!ended(r))
        kill(r->pid, SIGTERM);
    while (!ended(r) && tarn_left_ms(deadline))
        poll(NULL, 0, POLL_MS);
    if (r->pid) {
        kill(r->pid, SIGKILL);
        waitpid(r->pid, NULL, 0);
    }
    unlink(r->socket_path);
}

int tarn_private_redis_start(const char *dir, uint64_t deadline_ns, struct tarn_private_redis **r_p)
{
    int rc = TARN_E_AGAIN;
    struct tarn_private_redis *r = calloc(1, sizeof(*r));
    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "redis-server: out of memory");
    int n = snprintf(r->socket_path, sizeof(r->socket_path), "%s/redis-%d.sock", dir, (int)getpid());
    if (n >= (int)sizeof(r->socket_path))
        rc = tarn_fail(TARN_E_CONFIG,
                       "redis-server: the directory %s is too long for a Unix socket: give a "
                       "shorter --unix",
                       dir);
    unlink(r->socket_path);
    for (int attempt = 0; rc == TARN_E_AGAIN && attempt < 5; attempt++) {
        rc = free_port(r->port);
        if (!rc)
            rc = spawn(r, dir);
        if (!rc)
            rc = wait_ready(r, deadline_ns);
    }
    if (rc) {
        end(r);
        free(r);
        if (rc == TARN_E_AGAIN)
            return tarn_fail(TARN_E_SYSTEM,
                             "redis-server ends as soon as it is started: try it by hand, or name a "
                             "running Redis with --redis");
        return rc;
    }
    snprintf(r->uri, sizeof(r->uri), "redis://127.0.0.1:%s", r->port);
    *r_p = r;
    return 0;
}

const char *tarn_private_redis_uri(const struct tarn_private_redis *r)
{
    return r->uri;
}

void tarn_private_redis_stop(struct tarn_private_redis *r)
{
    if (!r)
        return;
    end(r);
    free(r);
}
