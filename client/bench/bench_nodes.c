/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a benchmark: a Redis for the directory, a storage node, and the peers (a second Redis
 * and memcached). All listen on 127.0.0.1 and on Unix sockets in a temporary folder. The benchmark ends them
 * by process id. They also end if the benchmark dies (PR_SET_PDEATHSIG).
 */
#include "client/bench/bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/resp/resp.h"

#define START_MS 15000
#define POPULATE_MS 120000
#define POLL_NS (5 * 1000 * 1000)

static volatile sig_atomic_t interrupted;

static void on_signal(int signum)
{
    (void)signum;
    interrupted = 1;
}

bool bench_interrupted(void)
{
    return interrupted != 0;
}

void bench_catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal};

    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

/* --- programs ----------------------------------------------------------------------------------- */

int bench_program(const char *name, char *path, size_t path_bytes)
{
    const char *build = tarn_env_raw("TARN_BUILD");
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    if ((size_t)snprintf(path, path_bytes, "%s/%s", build ? build : self, name) >= path_bytes ||
        access(path, X_OK) != 0)
        return tarn_fail(TARN_E_UNAVAILABLE, "%s is not in %s: build it, or set TARN_BUILD to its folder",
                         name, build ? build : self);
    return 0;
}

/* In the child: runs the program. Output goes to out_fd, errors to the log; standard input is empty. */
__attribute__((noreturn)) static void become(const char *const *argv, int out_fd, int log_fd)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0); /* Ctrl-C of the terminal reaches only the benchmark, which then ends its children */
    dup2(null, STDIN_FILENO);
    dup2(out_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    execvp(argv[0], (char *const *)argv);
    dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* out_p: read end of a pipe with the child's standard output; NULL: output goes to the log. */
static int spawn(const char *const *argv, const char *log_path, pid_t *pid_p, int *out_p)
{
    int log_fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), ends[2] = {-1, -1};

    if (log_fd < 0 || (out_p && pipe2(ends, O_CLOEXEC) != 0)) {
        tarn_fail(TARN_E_SYSTEM, "%s: output: %m", argv[0]);
        goto close_log;
    }
    pid_t pid = fork();
    if (pid == 0)
        become(argv, out_p ? ends[1] : log_fd, log_fd);
    if (out_p)
        close(ends[1]);
    if (pid < 0) {
        tarn_fail(TARN_E_SYSTEM, "%s: fork: %m", argv[0]);
        goto close_pipe;
    }
    close(log_fd);
    if (out_p)
        *out_p = ends[0];
    *pid_p = pid;
    return 0;

close_pipe:
    if (out_p)
        close(ends[0]);
close_log:
    if (log_fd >= 0)
        close(log_fd);
    return TARN_E_SYSTEM;
}

/* Reads until the text `stop` (NULL: the end of the output), the deadline, or a full buffer. */
static void read_output(int fd, const char *stop, uint64_t deadline, char *out, size_t out_bytes)
{
    size_t n = 0;

    out[0] = '\0';
    while (n + 1 < out_bytes && !(stop && strstr(out, stop))) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, tarn_left_ms(deadline)) <= 0)
            break;
        ssize_t got = read(fd, out + n, out_bytes - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
        out[n] = '\0';
    }
}

int bench_output_of(const char *const *argv, char *out, size_t out_bytes)
{
    pid_t pid;
    int fd, status = 0, rc = spawn(argv, "/dev/null", &pid, &fd);

    if (rc != 0)
        return rc;
    read_output(fd, NULL, tarn_deadline(60000), out, out_bytes);
    close(fd);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return tarn_fail(TARN_E_UNAVAILABLE, "%s could not be run: install it", argv[0]);
}

/* --- children ----------------------------------------------------------------------------------- */

static void log_path(const struct bench_env *e, const char *name, char path[256])
{
    snprintf(path, 256, "%s/%s.log", e->dir, name);
}

/* Fails with the last lines from the log of a child that did not start. */
static int start_failed(const struct bench_env *e, struct bench_child *c)
{
    char path[256], text[2048] = "";
    FILE *f;

    bench_stop_child(c);
    log_path(e, c->name, path);
    f = fopen(path, "re");
    if (f) {
        if (fseek(f, -300, SEEK_END) != 0)
            rewind(f);
        text[fread(text, 1, 300, f)] = '\0';
        fclose(f);
    }
    return tarn_fail(TARN_E_UNAVAILABLE, "%s did not start; its log ends with: %s", c->name, text);
}

int bench_start_child(const struct bench_env *e, struct bench_child *c, const char *name,
                      const char *const *argv, int *out_p)
{
    char path[256];

    snprintf(c->name, sizeof c->name, "%s", name);
    log_path(e, name, path);
    return spawn(argv, path, &c->pid, out_p);
}

static bool child_ended(struct bench_child *c)
{
    if (c->pid > 0 && waitpid(c->pid, NULL, WNOHANG) == c->pid)
        c->pid = 0;
    return c->pid == 0;
}

void bench_stop_child(struct bench_child *c)
{
    uint64_t deadline = tarn_deadline(5000);
    struct timespec pause = {.tv_nsec = POLL_NS};

    if (c->pid > 0)
        kill(c->pid, SIGTERM);
    while (!child_ended(c)) {
        if (tarn_now_ns() > deadline)
            kill(c->pid, SIGKILL);
        nanosleep(&pause, NULL);
    }
}

/* Waits until the address accepts connections. */
static int await_socket(const struct bench_env *e, struct bench_child *c, const char *address)
{
    uint64_t deadline = tarn_deadline(START_MS);
    struct timespec pause = {.tv_nsec = POLL_NS};
    struct tarn_addr a;
    int fd, rc = tarn_addr_parse(address, c->name, &a);

    while (rc == 0 && tarn_now_ns() < deadline && !child_ended(c)) {
        if (tarn_net_connect(&a, deadline, NULL, &fd) == 0) {
            close(fd);
            return 0;
        }
        nanosleep(&pause, NULL);
    }
    return rc ? rc : start_failed(e, c);
}

int bench_free_port(uint16_t *port)
{
    struct tarn_addr a = {.host = "127.0.0.1"};
    int fd, rc = tarn_net_listen(&a, &fd);

    if (rc != 0)
        return rc;
    close(fd);
    *port = a.port;
    return 0;
}

/* port 0: Unix socket only. */
static int start_redis(const struct bench_env *e, struct bench_child *c, const char *name, uint16_t port)
{
    char socket_path[160], port_text[8], address[192];

    snprintf(socket_path, sizeof socket_path, "%s/%s.sock", e->dir, name);
    snprintf(port_text, sizeof port_text, "%u", port);
    const char *argv[] = {
        "redis-server", "--port", port_text,      "--bind", "127.0.0.1", "--unixsocket", socket_path,
        "--save",       "",       "--appendonly", "no",     "--dir",     e->dir,         "--daemonize",
        "no",           NULL};
    int rc = bench_start_child(e, c, name, argv, NULL);
    if (rc != 0)
        return rc;
    snprintf(address, sizeof address, "unix:%s", socket_path);
    return await_socket(e, c, address);
}

int bench_start_directory(struct bench_env *e)
{
    if (e->directory.pid)
        return 0;
    snprintf(e->directory_uri, sizeof e->directory_uri, "unix://%s/directory.sock", e->dir);
    snprintf(e->directory_address, sizeof e->directory_address, "unix:%s/directory.sock", e->dir);
    return start_redis(e, &e->directory, "directory", 0);
}

/* Asks INFO pools whether the memory of all pools is populated. */
static int is_populated(struct tarn_resp *node, uint64_t deadline, bool *done)
{
    unsigned long long bytes = 0, populated = 0;
    redisReply *reply;
    int rc = tarn_resp_call(node, deadline, tarn_resp_command(node, "INFO", "pools", NULL), &reply);

    if (rc != 0)
        return rc;
    const char *at = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, ",bytes=") : NULL;
    *done = at != NULL;
    for (; rc == 0 && at; at = strstr(at + 1, ",bytes=")) {
        if (sscanf(at, ",bytes=%llu,populated=%llu", &bytes, &populated) != 2)
            rc = tarn_fail(TARN_E_FORMAT, "INFO pools of the node says nothing of populated memory");
        *done &= bytes == populated;
    }
    freeReplyObject(reply);
    return rc;
}

/* Waits until the pool's memory is populated, which takes time and memory bandwidth. */
static int await_memory(const char *socket_path)
{
    uint64_t deadline = tarn_deadline(POPULATE_MS);
    struct timespec pause = {.tv_nsec = POLL_NS};
    struct tarn_resp *node;
    struct tarn_addr a;
    char address[192];
    bool done = false;

    snprintf(address, sizeof address, "unix:%s", socket_path);
    int rc = tarn_addr_parse(address, "node", &a);
    if (rc == 0)
        rc = tarn_resp_connect(&a, deadline, NULL, &node);
    if (rc != 0)
        return rc;
    while ((rc = is_populated(node, deadline, &done)) == 0 && !done && tarn_now_ns() < deadline)
        nanosleep(&pause, NULL);
    tarn_resp_free(node);
    return rc;
}

int bench_start_node(struct bench_env *e, const char *pool)
{
    return bench_start_node_with(e, pool, NULL);
}

int bench_start_node_with(struct bench_env *e, const char *pool, const char *second)
{
    char program[PATH_MAX], socket_path[160], ready[1024];
    int rc = bench_start_directory(e), out;

    if (rc == 0)
        rc = bench_program("tarnd", program, sizeof program);
    if (rc != 0)
        return rc;
    bench_stop_child(&e->node);
    snprintf(socket_path, sizeof socket_path, "%s/node.sock", e->dir);
    const char *argv[20] = {program,          "--id",        "bench",  "--pool",    pool,
                            "--listen",       "127.0.0.1:0", "--unix", socket_path, "--redis",
                            e->directory_uri, "--log-level", "warn"};
    size_t n = 13;
    if (e->node_devices) {
        argv[n++] = "--rdma-devices";
        argv[n++] = e->node_devices;
    }
    if (second) {
        argv[n++] = "--pool";
        argv[n] = second;
    }
    rc = bench_start_child(e, &e->node, "tarnd", argv, &out);
    if (rc != 0)
        return rc;
    read_output(out, "\n", tarn_deadline(START_MS), ready, sizeof ready);
    close(out);
    if (strncmp(ready, "tarnd ready", 11) != 0)
        return start_failed(e, &e->node);
    return await_memory(socket_path);
}

static int start_memcached(struct bench_env *e)
{
    char port[8];
    int rc = bench_free_port(&e->memcached_port);

    if (rc != 0)
        return rc;
    snprintf(port, sizeof port, "%u", e->memcached_port);
    const char *argv[] = {"memcached", "-p",        port, "-U",   "0",
                          "-l",        "127.0.0.1", "-m", "2048", "-I",
                          "128m",      "-t",        "2",  "-u",   geteuid() == 0 ? "root" : "",
                          NULL};
    if (geteuid() != 0)
        argv[13] = NULL;
    rc = bench_start_child(e, &e->memcached, "memcached", argv, NULL);
    if (rc != 0)
        return rc;
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%u", e->memcached_port);
    return await_socket(e, &e->memcached, address);
}

int bench_start_peers(struct bench_env *e)
{
    uint16_t port = 0;
    int rc = e->redis.pid ? 0 : bench_free_port(&port);

    if (rc == 0 && !e->redis.pid) {
        snprintf(e->redis_unix, sizeof e->redis_unix, "unix:%s/redis.sock", e->dir);
        snprintf(e->redis_tcp, sizeof e->redis_tcp, "127.0.0.1:%u", port);
        rc = start_redis(e, &e->redis, "redis", port);
    }
#ifdef TARN_HAVE_MEMCACHED
    /* Without memcached on the machine the peer is missing; the rows say so. */
    if (rc == 0 && !e->memcached.pid && start_memcached(e) != 0)
        e->memcached_port = 0;
#else
    (void)start_memcached;
#endif
    return rc;
}

/* --- the environment ---------------------------------------------------------------------------- */

int bench_env_open(struct bench_env *e)
{
    const char *tmp = tarn_env_raw("TMPDIR");

    snprintf(e->dir, sizeof e->dir, "%.80s/tarn-bench-XXXXXX", tmp ? tmp : "/tmp");
    if (mkdtemp(e->dir))
        return 0;
    tarn_fail(TARN_E_SYSTEM, "temporary folder %s: %m: set TMPDIR", e->dir);
    e->dir[0] = '\0';
    return TARN_E_SYSTEM;
}

static void remove_folder(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *entry;

    while (d && (entry = readdir(d)))
        unlinkat(dirfd(d), entry->d_name, 0);
    if (d)
        closedir(d);
    rmdir(path);
}

void bench_env_close(struct bench_env *e)
{
    bench_stop_child(&e->node);
    bench_stop_child(&e->directory);
    bench_stop_child(&e->redis);
    bench_stop_child(&e->memcached);
    if (e->dir[0])
        remove_folder(e->dir);
    e->dir[0] = '\0';
}

double bench_cpu_s(pid_t pid)
{
    struct timespec t;
    clockid_t clock;

    if (pid <= 0 || clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0)
        return 0;
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int bench_client(const struct bench_env *e, const char *transports, struct tarn_client **c_p)
{
    struct tarn_options o = {.size = sizeof o, .redis = e->directory_uri, .transports = transports};

    return tarn_open(&o, c_p);
}
