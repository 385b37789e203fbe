/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/tcpx/child.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tarn/error.h>

static _Noreturn void be_child(int (*body)(void *arg), void *arg, unsigned seconds, int out)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS};
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    close(out);
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* cmocka's handlers would fail the test and continue with the next one; the child must die. */
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
        signal(fatal[i], SIG_DFL);
    alarm(seconds);
    int rc = body(arg);
    fflush(NULL);
    _exit(rc);
}

int child_run(int (*body)(void *arg), void *arg, unsigned seconds, char *out, size_t out_bytes)
{
    int ends[2], status = 0;
    size_t have = 0;
    char drain[4096];
    fflush(NULL);
    if (pipe(ends))
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        be_child(body, arg, seconds, ends[1]);
    }
    close(ends[1]);
    for (;;) {
        size_t room = out_bytes - 1 - have;
        ssize_t n = read(ends[0], room ? out + have : drain, room ? room : sizeof(drain));
        if (n <= 0)
            break;
        have += room ? (size_t)n : 0;
    }
    out[have] = '\0';
    close(ends[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

_Noreturn void child_fail(const char *what, const char *file, int line)
{
    printf("%s:%d: does not hold: %s (last error: %s)\n", file, line, what, tarn_last_error());
    fflush(NULL);
    _exit(CHILD_FAILED);
}

static const char *built(const char *prefix, const char *name, const char *suffix)
{
    static char path[512];
    const char *build = getenv("TARN_BUILD");
    snprintf(path, sizeof(path), "%s%s/tests/tcpx/%s%s%s", build && *build == '/' ? "" : "./",
             build ? build : "build", prefix, name, suffix);
    return path;
}

const char *child_plugin(const char *name)
{
    if (strchr(name, '/'))
        return name;
    return built("libtcpx-", name, ".so");
}

void child_configure(const char *name)
{
    char *path = realpath(child_plugin(name), NULL);
    if (path)
        setenv("TARN_TCPX_PLUGIN", path, 0);
    free(path);
}

const char *child_driver(void)
{
    return built("driver/", "libcuda", ".so.1");
}
