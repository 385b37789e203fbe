/* SPDX-License-Identifier: Apache-2.0 */
/* Harness of the integration tests; see harness.h. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
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

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"

#define ARGS_MAX 64
#define PAUSE_MS 5

struct harness_process {
    struct harness_process *next;
    char name[64];
    char log_path[192];
    pid_t pid;
    int out_fd; /* -1 after the end of stdout */
    int status; /* exit status, once the process has ended */
    bool ended;
    struct tarn_buf out, log;
    char line[1024];
};

/* Memory that lives as long as the harness. */
struct allocation {
    struct allocation *next;
    max_align_t data[];
};

struct harness {
    char dir[96];
    bool passed;
    struct harness_process *processes;
    struct allocation *allocations;
};

uint64_t harness_now_ms(void)
{
    return tarn_now_ns() / TARN_NS_PER_MS;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

unsigned harness_slower(void)
{
    static _Atomic unsigned known;
    enum { COMPUTED_NS = 40000000, MOST = 8 };
    const char *told = getenv("HARNESS_SLOWER");
    if (!known && told)
        known = (unsigned)strtoul(told, NULL, 10);
    if (known)
        return known;
    uint64_t begun = clock_ns(CLOCK_MONOTONIC), computed = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) - computed < COMPUTED_NS) {
    }
    uint64_t times = (clock_ns(CLOCK_MONOTONIC) - begun + COMPUTED_NS / 2) / COMPUTED_NS;
    known = times < 1 ? 1 : times > MOST ? MOST : (unsigned)times;
    char text[16];
    snprintf(text, sizeof(text), "%u", known);
    setenv("HARNESS_SLOWER", text, 1);
    return known;
}

uint64_t harness_pause(void)
{
    uint64_t begun = harness_now_ms();
    poll(NULL, 0, PAUSE_MS);
    uint64_t took = harness_now_ms() - begun;
    return took > PAUSE_MS ? took - PAUSE_MS : 0;
}

static void *allocate(struct harness *h, size_t bytes)
{
    struct allocation *a = calloc(1, sizeof(*a) + bytes);
    assert_non_null(a);
    a->next = h->allocations;
    h->allocations = a;
    return a->data;
}

struct harness *harness_new(void)
{
    const char *tmp = getenv("TMPDIR");
    struct harness *h = calloc(1, sizeof(*h));
    assert_non_null(h);
    /* Unix socket paths have 107 bytes at most. */
    if (!tmp || strlen(tmp) > 40)
        tmp = "/tmp";
    snprintf(h->dir, sizeof(h->dir), "%s/tarn-test-XXXXXX", tmp);
    assert_non_null(mkdtemp(h->dir));
    return h;
}

void harness_passed(struct harness *h)
{
    h->passed = true;
}

const char *harness_dir(const struct harness *h)
{
    return h->dir;
}

const char *harness_path(struct harness *h, const char *name)
{
    size_t bytes = strlen(h->dir) + strlen(name) + 2;
    char *path = allocate(h, bytes);
    snprintf(path, bytes, "%s/%s", h->dir, name);
    return path;
}

static bool names_contain(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; at && *at;) {
        const char *comma = strchrnul(at, ',');
        if ((size_t)(comma - at) == n && !memcmp(at, name, n))
            return true;
        at = *comma ? comma + 1 : comma;
    }
    return false;
}

void harness_skip(const char *what, const char *reason)
{
    if (names_contain(getenv("REQUIRE"), what) || names_contain(getenv("REQUIRE"), "all"))
        fail_msg("%s is required but %s", what, reason);
    print_message("skip: %s: %s\n", what, reason);
    skip();
}

uint16_t harness_free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &bytes), 0);
    close(fd);
    return ntohs(a.sin_port);
}

/* --- processes ---------------------------------------------------------------------------------- */

/* The program's path in the build directory, or the bare name, which is looked up in PATH. */
static void program_path(const char *program, char *out, size_t bytes)
{
    const char *build = getenv("TARN_BUILD");
    snprintf(out, bytes, "%s/%s", build ? build : "build", program);
    if (strchr(program, '/') || access(out, X_OK))
        snprintf(out, bytes, "%s", program);
}

static void child_exec(const char *path, const char *const *argv, int out_fd, const char *log_path)
{
    int log_fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    int null_fd = open("/dev/null", O_RDONLY);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (log_fd < 0 || null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(out_fd, 1) < 0 || dup2(log_fd, 2) < 0)
        _exit(126);
    execvp(path, (char *const *)argv);
    dprintf(2, "cannot start %s: %s\n", path, strerror(errno));
    _exit(127);
}

struct harness_process *harness_spawn(struct harness *h, const char *name, const char *const *argv)
{
    char path[512];
    int fds[2];
    struct harness_process *p = calloc(1, sizeof(*p));
    assert_non_null(p);
    snprintf(p->name, sizeof(p->name), "%s", name);
    snprintf(p->log_path, sizeof(p->log_path), "%s/%s.log", h->dir, p->name);
    p->next = h->processes;
    h->processes = p;
    program_path(argv[0], path, sizeof(path));
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    p->pid = fork();
    if (p->pid == 0)
        child_exec(path, argv, fds[1], p->log_path);
    close(fds[1]);
    p->out_fd = fds[0];
    assert_true(p->pid > 0);
    fcntl(p->out_fd, F_SETFL, O_NONBLOCK);
    return p;
}

pid_t harness_pid(const struct harness_process *p)
{
    return p->pid;
}

static void reap(struct harness_process *p)
{
    int status;
    if (p->ended || waitpid(p->pid, &status, WNOHANG) != p->pid)
        return;
    p->ended = true;
    p->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool harness_running(struct harness_process *p)
{
    reap(p);
    return !p->ended;
}

/* kill() returns before all threads have stopped. Until then a running thread may still answer. */
static void wait_stopped(const struct harness_process *p)
{
    siginfo_t info;
    while (waitid(P_PID, (id_t)p->pid, &info, WSTOPPED | WEXITED | WNOWAIT) && errno == EINTR)
        ;
}

void harness_signal(struct harness_process *p, int signum)
{
    if (!harness_running(p))
        return;
    kill(p->pid, signum);
    if (signum == SIGSTOP)
        wait_stopped(p);
}

/* Reads what the process has written. Waits up to wait_ms for output. */
static void read_out(struct harness_process *p, int wait_ms)
{
    char chunk[4096];
    struct pollfd pfd = {.fd = p->out_fd, .events = POLLIN};
    poll(&pfd, 1, wait_ms);
    while (p->out_fd >= 0) {
        ssize_t n = read(p->out_fd, chunk, sizeof(chunk));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            close(p->out_fd);
            p->out_fd = -1;
            return;
        }
        tarn_buf_add(&p->out, chunk, (size_t)n);
    }
}

const char *harness_stdout(struct harness_process *p, size_t *bytes_p)
{
    read_out(p, 0);
    if (bytes_p)
        *bytes_p = p->out.bytes;
    return p->out.data ? p->out.data : "";
}

const char *harness_log(struct harness_process *p)
{
    char chunk[4096];
    size_t n;
    FILE *f = fopen(p->log_path, "re");
    tarn_buf_free(&p->log);
    p->log = (struct tarn_buf){0};
    while (f && (n = fread(chunk, 1, sizeof(chunk), f)) > 0)
        tarn_buf_add(&p->log, chunk, n);
    if (f)
        fclose(f);
    return p->log.data ? p->log.data : "";
}

/* Uses fprintf(): print_error() cuts long texts. */
static void print_logs(struct harness_process *p)
{
    fprintf(stderr, "--- %s (pid %d): stdout\n%s\n", p->name, (int)p->pid, harness_stdout(p, NULL));
    fprintf(stderr, "--- %s: stderr\n%s\n", p->name, harness_log(p));
}

int harness_wait(struct harness_process *p, int timeout_ms)
{
    timeout_ms *= (int)harness_slower();
    uint64_t deadline = tarn_deadline((uint32_t)timeout_ms);
    while (harness_running(p)) {
        if (!tarn_left_ms(deadline))
            fail_msg("%s (pid %d) did not end within %d ms", p->name, (int)p->pid, timeout_ms);
        if (p->out_fd >= 0)
            read_out(p, PAUSE_MS);
        else
            harness_pause();
    }
    read_out(p, 0);
    return p->status;
}

void harness_kill(struct harness_process *p)
{
    harness_signal(p, SIGKILL);
    harness_wait(p, HARNESS_TIMEOUT_MS);
}

/* Copies the first complete line of stdout that begins with prefix into p->line. */
static bool find_line(struct harness_process *p, const char *prefix)
{
    for (const char *at = p->out.data; at && *at;) {
        const char *end = strchr(at, '\n');
        if (!end)
            return false;
        if (!strncmp(at, prefix, strlen(prefix))) {
            snprintf(p->line, sizeof(p->line), "%.*s", (int)(end - at), at);
            return true;
        }
        at = end + 1;
    }
    return false;
}

const char *harness_wait_line(struct harness_process *p, const char *prefix, int timeout_ms)
{
    timeout_ms *= (int)harness_slower();
    uint64_t deadline = tarn_deadline((uint32_t)timeout_ms);
    while (!find_line(p, prefix)) {
        bool ended = p->out_fd < 0;
        if (ended)
            return NULL;
        if (!tarn_left_ms(deadline)) {
            print_logs(p);
            fail_msg("%s printed no line \"%s...\" within %d ms", p->name, prefix, timeout_ms);
        }
        read_out(p, PAUSE_MS);
    }
    return p->line;
}

/* Appends NULL-ended arguments after the n that are already in argv. */
static void collect(const char **argv, size_t n, va_list ap)
{
    const char *arg;
    while ((arg = va_arg(ap, const char *))) {
        assert_true(n + 1 < ARGS_MAX);
        argv[n++] = arg;
    }
    argv[n] = NULL;
}

/* Collects the arguments of a variadic function after its last named parameter. */
#define COLLECT(argv_, n_, last_) \
    do { \
        va_list ap_; \
        va_start(ap_, last_); \
        collect(argv_, n_, ap_); \
        va_end(ap_); \
    } while (0)

int harness_run(struct harness *h, struct harness_process **p_p, const char *program, ...)
{
    const char *argv[ARGS_MAX] = {program};
    const char *slash = strrchr(program, '/');
    COLLECT(argv, 1, program);
    struct harness_process *p = harness_spawn(h, slash ? slash + 1 : program, argv);
    if (p_p)
        *p_p = p;
    return harness_wait(p, HARNESS_TIMEOUT_MS);
}

static void end_process(struct harness_process *p)
{
    uint64_t deadline = tarn_deadline(5000);
    if (harness_running(p)) {
        kill(p->pid, SIGCONT);
        kill(p->pid, SIGTERM);
    }
    while (harness_running(p) && tarn_left_ms(deadline))
        read_out(p, PAUSE_MS);
    if (!p->ended) {
        print_error("%s (pid %d) did not end on SIGTERM\n", p->name, (int)p->pid);
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
    }
}

/* True if the log has a sanitizer's report. The test then fails, even if its own checks passed. */
static bool has_report(struct harness_process *p)
{
    const char *log = harness_log(p);
    return strstr(log, "Sanitizer") || strstr(log, "runtime error:");
}

static void free_process(struct harness_process *p)
{
    if (p->out_fd >= 0)
        close(p->out_fd);
    tarn_buf_free(&p->out);
    tarn_buf_free(&p->log);
    free(p);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

/* Ends the newest process first, so that nodes end before the Redis they use. */
void harness_free(struct harness *h)
{
    bool reports = false;
    if (!h)
        return;
    for (struct harness_process *p = h->processes; p; p = p->next)
        end_process(p);
    while (h->processes) {
        struct harness_process *p = h->processes;
        bool report = has_report(p);
        h->processes = p->next;
        if (!h->passed || report)
            print_logs(p);
        reports |= report;
        free_process(p);
    }
    while (h->allocations) {
        struct allocation *a = h->allocations;
        h->allocations = a->next;
        free(a);
    }
    if (!getenv("KEEP"))
        nftw(h->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(h);
    if (reports)
        fail_msg("a sanitizer reported something, see the log above");
}

/* --- RESP --------------------------------------------------------------------------------------- */

struct tarn_resp *harness_connect(const char *address)
{
    struct tarn_addr a;
    struct tarn_resp *r = NULL;
    if (tarn_addr_parse(address, "address", &a) ||
        tarn_resp_connect(&a, tarn_deadline(HARNESS_TIMEOUT_MS), NULL, &r))
        fail_msg("%s: %s", address, tarn_last_error());
    return r;
}

static redisReply *command(struct tarn_resp *r, const char **argv)
{
    redisReply *reply = NULL;
    struct tarn_command *c = tarn_resp_command(r, NULL);
    for (int i = 0; argv[i]; i++)
        tarn_command_str(c, argv[i]);
    if (tarn_resp_call(r, tarn_deadline(HARNESS_TIMEOUT_MS * harness_slower()), c, &reply))
        fail_msg("%s: %s", argv[0], tarn_last_error());
    return reply;
}

redisReply *harness_command(struct tarn_resp *r, ...)
{
    const char *argv[ARGS_MAX];
    COLLECT(argv, 0, r);
    return command(r, argv);
}

static redisReply *call(const char *address, const char *password, const char **argv)
{
    const char *auth[] = {"AUTH", password, NULL};
    struct tarn_resp *r = harness_connect(address);
    if (password)
        freeReplyObject(command(r, auth));
    redisReply *reply = command(r, argv);
    tarn_resp_free(r);
    return reply;
}

redisReply *harness_call(const char *address, ...)
{
    const char *argv[ARGS_MAX];
    COLLECT(argv, 0, address);
    return call(address, NULL, argv);
}

redisReply *harness_redis_call(const struct harness_redis *r, ...)
{
    const char *argv[ARGS_MAX];
    COLLECT(argv, 0, r);
    return call(r->address, r->password, argv);
}

long long harness_redis_integer(const struct harness_redis *r, ...)
{
    const char *argv[ARGS_MAX];
    long long v = -1;
    COLLECT(argv, 0, r);
    redisReply *reply = call(r->address, r->password, argv);
    if (reply->type == REDIS_REPLY_INTEGER)
        v = reply->integer;
    else if (reply->type == REDIS_REPLY_ARRAY)
        v = (long long)reply->elements;
    freeReplyObject(reply);
    return v;
}

/* --- redis -------------------------------------------------------------------------------------- */

static bool answers(const char *address)
{
    struct tarn_addr a;
    int fd;
    if (tarn_addr_parse(address, "address", &a) || tarn_net_connect(&a, tarn_deadline(1000), NULL, &fd))
        return false;
    close(fd);
    return true;
}

void harness_needs_redis_7(const char *address, const char *reason)
{
    redisReply *info = harness_call(address, "INFO", "server", NULL);
    const char *at = strstr(info->str, "redis_version:");
    assert_non_null(at);
    int major = atoi(at + strlen("redis_version:"));
    freeReplyObject(info);
    if (major < 7)
        harness_skip("redis-7", reason);
}

/* Starts the process and waits until it answers on its Unix socket. (On its TCP port another process might
 * answer.) False: it ended at once, because the port was taken. */
static bool redis_spawn(struct harness_redis *r)
{
    char port[8];
    const char *argv[ARGS_MAX] = {"redis-server",
                                  "--port",
                                  port,
                                  "--bind",
                                  "127.0.0.1",
                                  "--unixsocket",
                                  r->unix_path,
                                  "--unixsocketperm",
                                  "700",
                                  "--save",
                                  "",
                                  "--appendonly",
                                  "no",
                                  "--dir",
                                  r->harness->dir,
                                  r->password ? "--requirepass" : NULL,
                                  r->password,
                                  NULL};
    uint64_t deadline = tarn_deadline(HARNESS_TIMEOUT_MS);
    char unix_address[sizeof(r->unix_path) + 8];
    snprintf(port, sizeof(port), "%u", r->port);
    snprintf(unix_address, sizeof(unix_address), "unix:%s", r->unix_path);
    r->process = harness_spawn(r->harness, "redis", argv);
    while (!answers(unix_address)) {
        if (!harness_running(r->process))
            return false;
        if (!tarn_left_ms(deadline))
            fail_msg("redis-server does not answer on %s", r->address);
        read_out(r->process, PAUSE_MS);
    }
    return true;
}

/* Makes the directory count as old. Otherwise a new directory is unsettled for 3 heartbeats. */
static void settle(const struct harness_redis *r)
{
    redisReply *info = harness_redis_call(r, "INFO", "server", NULL);
    const char *at = strstr(info->str, "run_id:");
    assert_non_null(at);
    char run[64];
    snprintf(run, sizeof(run), "%.*s", (int)strcspn(at + 7, "\r\n"), at + 7);
    freeReplyObject(info);
    freeReplyObject(harness_redis_call(r, "HSET", "tarn:default:directory", "id", "0123456789abcdef", "run",
                                       run, "since", "1", "lost", "0", NULL));
}

struct harness_redis *harness_redis_start(struct harness *h, const char *password)
{
    struct harness_redis *r = harness_redis_start_new(h, password);
    settle(r);
    return r;
}

struct harness_redis *harness_redis_start_new(struct harness *h, const char *password)
{
    struct harness_redis *r = allocate(h, sizeof(*r));
    const char *version[] = {"redis-server", "--version", NULL};
    if (harness_wait(harness_spawn(h, "redis-version", version), HARNESS_TIMEOUT_MS) != 0)
        harness_skip("redis", "redis-server is not installed");
    r->harness = h;
    r->password = password;
    for (int attempt = 0; attempt < 5; attempt++) {
        r->port = harness_free_port();
        snprintf(r->unix_path, sizeof(r->unix_path), "%s/redis-%u.sock", h->dir, r->port);
        snprintf(r->unix_url, sizeof(r->unix_url), "unix://%s", r->unix_path);
        snprintf(r->address, sizeof(r->address), "127.0.0.1:%u", r->port);
        snprintf(r->url, sizeof(r->url), "redis://%s%s%s%s", password ? ":" : "", password ? password : "",
                 password ? "@" : "", r->address);
        if (redis_spawn(r))
            return r;
    }
    fail_msg("redis-server does not start: %s", harness_log(r->process));
    return NULL;
}

void harness_redis_restart(struct harness_redis *r)
{
    if (!redis_spawn(r))
        fail_msg("redis-server does not start again: %s", harness_stdout(r->process, NULL));
}

/* --- nodes -------------------------------------------------------------------------------------- */

/* On a slow host, a node needs longer for heartbeats and for Redis's answers. */
static const char *slower_value(struct harness *h, const char *option, const char *value)
{
    bool beat = !strcmp(option, "--heartbeat-ms");
    if (!beat && strcmp(option, "--redis-timeout-ms"))
        return value;
    unsigned ms = (unsigned)strtoul(value, NULL, 10);
    if (ms < 100 || ms > (beat ? 1000 : 5000)) /* a deliberately bad value, or long enough */
        return value;
    char *text = allocate(h, 16);
    snprintf(text, 16, "%u", ms * harness_slower());
    return text;
}

static struct harness_process *node_spawn(struct harness *h, const char *id, const struct harness_redis *r,
                                          const char *const *args)
{
    char socket_path[128];
    /* The node waits longer than by default for Redis's answers, unless the test sets a timeout. */
    const char *argv[ARGS_MAX] = {"tarnd",          "--id",        id,          "--listen",
                                  "127.0.0.1:0",    "--data-port", "0",         "--redis-timeout-ms",
                                  "20000",          "--unix",      socket_path, r ? "--redis" : NULL,
                                  r ? r->url : NULL};
    snprintf(socket_path, sizeof(socket_path), "%s/%s.sock", h->dir, id);
    for (size_t n = r ? 13 : 11; *args; n++, args++) {
        assert_true(n + 1 < ARGS_MAX);
        argv[n] = slower_value(h, argv[n - 1] ? argv[n - 1] : "", *args);
    }
    return harness_spawn(h, id, argv);
}

struct harness_process *harness_node_spawn(struct harness *h, const char *id, const struct harness_redis *r,
                                           ...)
{
    const char *args[ARGS_MAX];
    COLLECT(args, 0, r);
    return node_spawn(h, id, r, args);
}

/* The value of name= in a ready line, or "" if it is missing. */
static void ready_value(const char *line, const char *name, char *out, size_t bytes)
{
    char want[32];
    snprintf(want, sizeof(want), " %s=", name);
    const char *at = strstr(line, want);
    at = at ? at + strlen(want) : "";
    snprintf(out, bytes, "%.*s", (int)strcspn(at, " "), at);
}

struct harness_node *harness_node_startv(struct harness *h, const char *id, const struct harness_redis *r,
                                         const char *const *args)
{
    struct harness_node *n = allocate(h, sizeof(*n));
    n->process = node_spawn(h, id, r, args);
    const char *line = harness_wait_line(n->process, "tarnd ready ", HARNESS_TIMEOUT_MS);
    if (!line) {
        print_logs(n->process);
        fail_msg("node %s ended before it was ready", id);
    }
    ready_value(line, "id", n->id, sizeof(n->id));
    ready_value(line, "control", n->control, sizeof(n->control));
    ready_value(line, "unix", n->unix_path, sizeof(n->unix_path));
    ready_value(line, "redis", n->redis, sizeof(n->redis));
    ready_value(line, "http", n->http, sizeof(n->http));
    snprintf(n->local, sizeof(n->local), "unix:%s", n->unix_path);
    return n;
}

struct harness_node *harness_node_start(struct harness *h, const char *id, const struct harness_redis *r, ...)
{
    const char *args[ARGS_MAX];
    COLLECT(args, 0, r);
    return harness_node_startv(h, id, r, args);
}
