/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Harness of the integration tests: real redis-server and tarnd processes in a temporary directory, on free
 * ports. All of them end with the test.
 *
 *   struct harness *h = harness_new();
 *   struct harness_redis *r = harness_redis_start(h, NULL);
 *   struct harness_node *n = harness_node_start(h, "node0", r, "--pool", "cpu0:bytes=16M", NULL);
 *   ... talk to r->url, n->control, n->unix_path ...
 *   harness_passed(h);
 *   harness_free(h);
 *
 * A function that cannot do its work fails the running cmocka test and shows the process's log. A test that
 * fails never reaches harness_passed(); harness_free(), called from the teardown, then prints the logs of all
 * processes. Processes die with the test program, however it ends (PDEATHSIG).
 *
 * Environment: TARN_BUILD (where the binaries are, default "build"), REQUIRE (comma list of things that must
 * not be skipped), KEEP (if set, the temporary directories are kept).
 */
#ifndef TARN_TESTS_HARNESS_H
#define TARN_TESTS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "base/resp/resp.h"

#define HARNESS_TIMEOUT_MS 20000

struct harness;
struct harness_process;

struct harness *harness_new(void);
/* Ends running processes (SIGTERM, then SIGKILL) and removes the directory. NULL is allowed. */
void harness_free(struct harness *h);
/* Call when the test has passed: harness_free() then prints no logs. */
void harness_passed(struct harness *h);
const char *harness_dir(const struct harness *h);
/* The path of a file in the directory, valid until harness_free(). */
const char *harness_path(struct harness *h, const char *name);

/* Skips the running test with a reason, or fails it if REQUIRE names `what`. */
void harness_skip(const char *what, const char *reason);

/* A TCP port of 127.0.0.1 that is free now. */
uint16_t harness_free_port(void);

/* Polls every few milliseconds until the expression holds. Fails the test after ms. Time in which the host
 * did not wake this thread does not count. */
#define HARNESS_UNTIL(expr_, ms_) \
    do { \
        uint64_t until_ = harness_now_ms() + (uint64_t)(ms_)*harness_slower(); \
        while (!(expr_)) { \
            if (harness_now_ms() > until_) \
                fail_msg("not within %d ms: %s", (int)(ms_) * (int)harness_slower(), #expr_); \
            until_ += harness_pause(); \
        } \
    } while (0)
uint64_t harness_now_ms(void);
/* How much slower a thread runs here than alone on the host: 1 at rest, at most 8. Measured once, in 40 ms
 * of processor time; child processes inherit the result. Heartbeats and waits are multiplied by it. */
unsigned harness_slower(void);
/* Sleeps for a few milliseconds. Returns by how many milliseconds it was woken too late. */
uint64_t harness_pause(void);

/* --- processes ---------------------------------------------------------------------------------- */

/*
 * Starts a program. If argv[0] has no slash, it is looked up in TARN_BUILD, then in PATH. Its stderr goes to
 * <dir>/<name>.log; the functions below read its stdout.
 */
struct harness_process *harness_spawn(struct harness *h, const char *name, const char *const *argv);
pid_t harness_pid(const struct harness_process *p);
bool harness_running(struct harness_process *p);
/* Sends the signal. After SIGSTOP, returns only when the process has stopped. */
void harness_signal(struct harness_process *p, int signum);
/* Waits until the process ends. Returns the exit status, or 128 + signal. Fails the test on timeout. */
int harness_wait(struct harness_process *p, int timeout_ms);
/* Sends SIGKILL and waits. */
void harness_kill(struct harness_process *p);
/* Waits for a line of stdout with this prefix. Returns the line, owned by p. NULL: the process ended
 * first. */
const char *harness_wait_line(struct harness_process *p, const char *prefix, int timeout_ms);
/* The process's stdout so far, NUL-terminated, owned by p, valid until the next call. bytes_p may be NULL. */
const char *harness_stdout(struct harness_process *p, size_t *bytes_p);
const char *harness_log(struct harness_process *p);

/* Runs a program to its end. Returns the status as harness_wait() does. Its output is available through
 * *p_p, which may be NULL. */
int harness_run(struct harness *h, struct harness_process **p_p, const char *program, ...)
    __attribute__((sentinel));

/* --- redis -------------------------------------------------------------------------------------- */

struct harness_redis {
    char url[160];      /* redis://127.0.0.1:<port>, with the password if there is one */
    char unix_url[160]; /* unix://<path> */
    char unix_path[128];
    char address[32]; /* for harness_call() */
    uint16_t port;
    const char *password;
    struct harness_process *process;
    struct harness *harness;
};

/* Starts redis-server without persistence. `password` may be NULL. Skips ("redis") if it is not installed. */
struct harness_redis *harness_redis_start(struct harness *h, const char *password);
/* Like harness_redis_start(), but without the marker that makes the directory count as settled: replaces
 * must wait for nodes. */
struct harness_redis *harness_redis_start_new(struct harness *h, const char *password);
/* After harness_kill(r->process): restarts Redis, empty, at the same addresses. */
void harness_redis_restart(struct harness_redis *r);

/* --- nodes -------------------------------------------------------------------------------------- */

struct harness_node {
    char id[64], control[64], unix_path[128], redis[160], http[64];
    char local[136]; /* "unix:" and the path, for harness_connect() */
    struct harness_process *process;
};

/*
 * Starts tarnd --id ID --listen 127.0.0.1:0 --unix <dir>/<id>.sock --data-port 0 with further arguments
 * (NULL-ended), and waits until it is ready. With r NULL, the node starts its own Redis. The
 * --redis-timeout-ms is 20000 unless given. A --heartbeat-ms of 100 to 1000 and a --redis-timeout-ms of 100
 * to 5000 are multiplied by harness_slower().
 */
struct harness_node *harness_node_start(struct harness *h, const char *id, const struct harness_redis *r, ...)
    __attribute__((sentinel));
/* Like harness_node_start(), with an array of arguments. */
struct harness_node *harness_node_startv(struct harness *h, const char *id, const struct harness_redis *r,
                                         const char *const *args);
/* Like harness_node_start(), without waiting: for nodes that should refuse to start. */
struct harness_process *harness_node_spawn(struct harness *h, const char *id, const struct harness_redis *r,
                                           ...) __attribute__((sentinel));

/* --- RESP --------------------------------------------------------------------------------------- */

/*
 * Sends one command (NULL-ended C strings) on a new connection to "host:port" or "unix:/path". Never
 * returns NULL; free the reply with freeReplyObject(). harness_redis_call() authenticates first.
 */
redisReply *harness_call(const char *address, ...) __attribute__((sentinel));
redisReply *harness_redis_call(const struct harness_redis *r, ...) __attribute__((sentinel));
/* Skips the running test ("redis-7") if that Redis, which needs no password, is older than 7. */
void harness_needs_redis_7(const char *address, const char *reason);
/* harness_connect() opens a lasting connection; free it with tarn_resp_free(). harness_command() sends one
 * command on it, like harness_call(). */
struct tarn_resp *harness_connect(const char *address);
redisReply *harness_command(struct tarn_resp *r, ...) __attribute__((sentinel));
/* The integer (or number of elements) in the call's reply. -1: another kind of reply. */
long long harness_redis_integer(const struct harness_redis *r, ...) __attribute__((sentinel));

#endif
