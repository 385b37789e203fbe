/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's private Redis: started with the node, restarted when it dies.
 *
 * Clients send the password to any process that listens on the port. Therefore the node keeps the port also
 * while Redis is down: a socket is bound to it and never listens. While Redis starts, this socket has
 * SO_REUSEADDR, so Linux lets Redis bind the port, too. At other times no other process can bind it.
 */
#include "server/directory/private_redis.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/net.h"
#include "base/text.h"

#define POLL_MS 5
#define ANSWER_MS 100
#define START_MS 5000
#define STOP_MS 3000
#define AGAIN_NS TARN_NS_PER_S         /* between two starts of a Redis that has died */
#define STEADY_NS (10 * TARN_NS_PER_S) /* after so long a life, earlier restarts do not count */
#define STARTS_MAX 5                   /* in a row */

struct tarn_private_redis {
    pid_t pid;   /* 0: it has ended */
    int port_fd; /* keeps the port; -1: none yet */
    uint64_t started_ns;
    uint32_t starts; /* restarts in a row; a life of STEADY_NS ends the row */
    char dir[108], socket_path[108], port[8], password[TARN_SECRET_TEXT], uri[80];
    char socket_uri[4 * 108]; /* a byte of the path may take three */
};

/* shared: other processes may bind the port, too. */
static void share_port(struct tarn_private_redis *r, bool shared)
{
    int on = shared;
    setsockopt(r->port_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

/* Takes another port than before. */
static int take_port(struct tarn_private_redis *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(a);
    int before = r->port_fd;
    r->port_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    share_port(r, true);
    int rc = r->port_fd >= 0 && bind(r->port_fd, (struct sockaddr *)&a, bytes) == 0 &&
                     getsockname(r->port_fd, (struct sockaddr *)&a, &bytes) == 0
                 ? 0
                 : tarn_fail(TARN_E_SYSTEM, "redis-server: a port of 127.0.0.1: %m");
    snprintf(r->port, sizeof(r->port), "%u", ntohs(a.sin_port));
    if (before >= 0)
        close(before);
    return rc;
}

/* Writes a path as redis-server reads it: between quotes, any byte may be written \xHH. */
static void add_path(struct tarn_buf *out, const char *name, const char *path)
{
    tarn_buf_printf(out, "%s \"", name);
    for (; *path; path++)
        tarn_buf_printf(out, isalnum((unsigned char)*path) || strchr("/._-", *path) ? "%c" : "\\x%02x",
                        (unsigned char)*path);
    tarn_buf_printf(out, "\"\n");
}

static void make_uris(struct tarn_private_redis *r)
{
    size_t n = (size_t)snprintf(r->socket_uri, sizeof(r->socket_uri), "unix://default:%s@", r->password);
    for (const char *path = r->socket_path; *path; path++)
        n += (size_t)snprintf(r->socket_uri + n, sizeof(r->socket_uri) - n,
                              isalnum((unsigned char)*path) || strchr("/._-", *path) ? "%c" : "%%%02x",
                              (unsigned char)*path);
    snprintf(r->uri, sizeof(r->uri), "redis://default:%s@127.0.0.1:%s", r->password, r->port);
}

/*
 * Writes the settings into a pipe. They are not arguments, because every user of the machine can read
 * arguments, and one setting is the password.
 */
static int settings(const struct tarn_private_redis *r, int *fd_p)
{
    struct tarn_buf text = {0};
    int fds[2], rc = 0;
    tarn_buf_printf(&text,
                    "port %s\nbind 127.0.0.1\nrequirepass %s\nunixsocketperm 600\nsave \"\"\nappendonly no\n"
                    "logfile /dev/null\n",
                    r->port, r->password);
    add_path(&text, "dir", r->dir);
    add_path(&text, "unixsocket", r->socket_path);
    if (text.failed || pipe2(fds, O_CLOEXEC)) {
        rc = tarn_fail(TARN_E_SYSTEM, "redis-server: its settings: %m");
    } else {
        if (write(fds[1], text.data, text.bytes) != (ssize_t)text.bytes) /* a pipe has room for 4096 bytes */
            rc = tarn_fail(TARN_E_SYSTEM, "redis-server: its settings: %m");
        close(fds[1]);
        *fd_p = fds[0];
    }
    tarn_buf_free(&text);
    return rc;
}

/* In the child. If redis-server cannot be run, sends errno through err_fd. */
static void run_redis(int settings_fd, pid_t parent, int err_fd)
{
    const char *argv[] = {"redis-server", "-", NULL};
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* A separate process group: ^C in the terminal ends the node, which still needs Redis to leave the
     * directory. Not a separate session: Linux gives each session its own share of the processors
     * (CONFIG_SCHED_AUTOGROUP). */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int null_fd = open("/dev/null", O_RDWR);
    if (getppid() == parent && null_fd >= 0 && dup2(settings_fd, 0) >= 0 && dup2(null_fd, 1) >= 0 &&
        dup2(null_fd, 2) >= 0)
        execvp(argv[0], (char *const *)argv);
    int err = errno;
    if (write(err_fd, &err, sizeof(err)) < 0)
        _exit(126);
    _exit(127);
}

static int spawn(struct tarn_private_redis *r)
{
    int fds[2], settings_fd = -1, err = 0;
    pid_t self = getpid();
    int rc = settings(r, &settings_fd);
    if (rc || pipe2(fds, O_CLOEXEC)) {
        if (!rc)
            rc = tarn_fail(TARN_E_SYSTEM, "redis-server: pipe: %m");
        goto close_settings;
    }
    r->started_ns = tarn_now_ns();
    r->pid = fork();
    if (r->pid == 0)
        run_redis(settings_fd, self, fds[1]);
    close(fds[1]);
    ssize_t n = r->pid > 0 ? read(fds[0], &err, sizeof(err)) : 0;
    close(fds[0]);
    if (r->pid < 0) {
        rc = tarn_fail(TARN_E_SYSTEM, "redis-server: fork: %m");
        r->pid = 0;
    } else if (n == sizeof(err)) {
        waitpid(r->pid, NULL, 0);
        r->pid = 0;
        errno = err;
        rc = err == ENOENT ? tarn_fail(TARN_E_UNAVAILABLE,
                                       "redis-server is not installed: install the package redis-server, or "
                                       "name a running Redis with --redis redis://HOST:PORT")
                           : tarn_fail(TARN_E_SYSTEM, "redis-server cannot be started: %m");
    }
close_settings:
    if (settings_fd >= 0)
        close(settings_fd);
    return rc;
}

static bool ended(struct tarn_private_redis *r)
{
    if (r->pid && waitpid(r->pid, NULL, WNOHANG) == r->pid)
        r->pid = 0;
    return !r->pid;
}

/* Redis opens its socket after it listens on the port. From then on no other process may bind the port. */
static bool answers(struct tarn_private_redis *r)
{
    struct tarn_addr a = {.is_unix = true};
    int fd;
    snprintf(a.host, sizeof(a.host), "%s", r->socket_path);
    if (tarn_net_connect(&a, tarn_deadline(ANSWER_MS), NULL, &fd))
        return false;
    close(fd);
    share_port(r, false);
    return true;
}

/* AGAIN: Redis ended at once, most likely because another process took the port. */
static int wait_ready(struct tarn_private_redis *r, uint64_t deadline_ns)
{
    while (!answers(r)) {
        if (ended(r))
            return TARN_E_AGAIN;
        if (!tarn_left_ms(deadline_ns))
            return tarn_fail(TARN_E_TIMEOUT, "redis-server was started but does not answer on %s",
                             r->socket_path);
        poll(NULL, 0, POLL_MS);
    }
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
    if (r->port_fd >= 0)
        close(r->port_fd);
}

int tarn_private_redis_start(const char *dir, uint64_t deadline_ns, struct tarn_private_redis **r_p)
{
    int rc = TARN_E_AGAIN;
    struct tarn_private_redis *r = calloc(1, sizeof(*r));
    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "redis-server: out of memory");
    r->port_fd = -1;
    snprintf(r->dir, sizeof(r->dir), "%s", dir);
    int n = snprintf(r->socket_path, sizeof(r->socket_path), "%s/redis-%d.sock", dir, (int)getpid());
    if (n >= (int)sizeof(r->socket_path))
        rc = tarn_fail(TARN_E_CONFIG,
                       "redis-server: the directory %s is too long for a Unix socket: give a shorter --unix",
                       dir);
    else if (tarn_secret_make(r->password))
        rc = TARN_E_SYSTEM;
    unlink(r->socket_path);
    for (int attempt = 0; rc == TARN_E_AGAIN && attempt < 5; attempt++) {
        rc = take_port(r);
        if (!rc)
            rc = spawn(r);
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
    make_uris(r);
    *r_p = r;
    return 0;
}

const char *tarn_private_redis_uri(const struct tarn_private_redis *r)
{
    return r->uri;
}

const char *tarn_private_redis_socket_uri(const struct tarn_private_redis *r)
{
    return r->socket_uri;
}

int tarn_private_redis_tend(struct tarn_private_redis *r, const struct tarn_logger *log)
{
    uint64_t now = tarn_now_ns();
    if (!ended(r)) {
        if (now - r->started_ns >= STEADY_NS)
            r->starts = 0;
        return 0;
    }
    if (r->starts && now - r->started_ns < AGAIN_NS)
        return 0;
    if (r->starts == STARTS_MAX)
        return tarn_fail(
            TARN_E_SYSTEM,
            "redis-server has ended, and %d more times soon after it was started again: see why, or name a "
            "running Redis with --redis",
            STARTS_MAX);
    r->starts++;
    tarn_log(log, TARN_LOG_WARN, "redis",
             "msg=\"redis-server has ended\" remedy=\"starting it again\" port=%s", r->port);
    share_port(r, true);
    int rc = spawn(r);
    if (!rc)
        rc = wait_ready(r, now + START_MS * TARN_NS_PER_MS);
    /* Another process may have taken the port and received the password. This port is not used again. */
    return rc != TARN_E_AGAIN
               ? rc
               : tarn_fail(TARN_E_SYSTEM,
                           "redis-server has ended, and cannot be started again on port %s: see who uses "
                           "that port, or name a running Redis with --redis",
                           r->port);
}

void tarn_private_redis_stop(struct tarn_private_redis *r)
{
    if (!r)
        return;
    end(r);
    free(r);
}
