/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/cli/cli.h"
#include "client/cli/cli_tcpx.h"
#include "transport/cuda/cuda.h"
#include "transport/tcpx/tcpx_comm.h"

#define LOOK_MS 20 /* how often the parent looks whether another step was begun */

/* --- the child ---------------------------------------------------------------------------------- */

static void keep_line(void *arg, enum tarn_log_level level, const char *line)
{
    struct cli_tcpx_try *t = arg;

    if (level <= TARN_LOG_WARN)
        snprintf(t->said, sizeof t->said, "%s", line);
}

struct pair {
    struct tarn_tcpx_plugin *plugin;
    struct tarn_tcpx_device_handle device;
    void *listening, *send, *recv;
};

/* Both ends make progress by being called. The parent watches the time. */
static int connect_pair(struct pair *p, int device)
{
    uint8_t handle[TARN_TCPX_HANDLE];
    int rc = tarn_tcpx_listen(p->plugin, device, handle, &p->listening);

    while (rc == 0 && (!p->send || !p->recv)) {
        if (!p->send)
            rc = tarn_tcpx_connect(p->plugin, device, handle, &p->send);
        if (rc == 0 && !p->recv)
            rc = tarn_tcpx_accept(p->plugin, p->listening, &p->device, &p->recv);
        sched_yield();
    }
    return rc;
}

static int register_with(struct pair *p, void *comm, const struct cli_tcpx_try *t)
{
    void *mr;
    int type = t->gpu ? TARN_TCPX_CUDA : TARN_TCPX_HOST;
    int rc = tarn_tcpx_reg(p->plugin, comm, t->page, TARN_TCPX_PAGE, type, &mr);

    return rc ? rc : tarn_tcpx_dereg(p->plugin, comm, mr);
}

static void close_pair(struct pair *p)
{
    tarn_tcpx_close_send(p->plugin, p->send);
    tarn_tcpx_close_recv(p->plugin, p->recv);
    tarn_tcpx_close_listen(p->plugin, p->listening);
}

/* Of GPU 0 where there is one and its device takes it: then it is current from now on, as the plugin wants.
 */
static int new_page(struct cli_tcpx_try *t)
{
    uint8_t handle[TARN_CUDA_HANDLE];
    int n = 0, before;

    t->device = tarn_tcpx_nic(&t->plugin, 0);
    t->gpu = t->plugin.devices[t->device].gpu && tarn_cuda_count(&n) == 0 && n > 0;
    if (t->gpu) {
        int rc = tarn_cuda_alloc(0, TARN_TCPX_PAGE, &t->page, handle);
        return rc ? rc : tarn_cuda_lend(0, &before);
    }
    t->page = aligned_alloc(TARN_TCPX_PAGE, TARN_TCPX_PAGE);
    return t->page ? 0 : tarn_fail(TARN_E_NO_MEMORY, "tcpx: no memory for a page");
}

static int steps(const char *path, struct cli_tcpx_try *t)
{
    struct tarn_logger log = {.level = TARN_LOG_WARN, .fn = keep_line, .arg = t};
    const struct tarn_tcpx_plugin *found;
    struct pair pair = {.plugin = NULL};
    uint32_t chunk_bytes;
    int rc = tarn_tcpx_plugin_find(path, &found);

    if (rc == 0) {
        t->plugin = *found;
        atomic_store(&t->step, CLI_TCPX_ENVIRONMENT);
        rc = tarn_tcpx_env(found->gpudirect, &chunk_bytes);
    }
    if (rc == 0) {
        atomic_store(&t->step, CLI_TCPX_START);
        rc = tarn_tcpx_plugin_open(path, &log, &pair.plugin);
    }
    if (rc == 0) {
        t->plugin = *pair.plugin;
        atomic_store(&t->step, CLI_TCPX_CONNECT);
        rc = new_page(t);
    }
    if (rc == 0)
        rc = connect_pair(&pair, t->device);
    if (rc == 0) {
        atomic_store(&t->step, CLI_TCPX_REGISTER);
        rc = register_with(&pair, pair.send, t);
    }
    if (rc == 0)
        rc = register_with(&pair, pair.recv, t);
    if (rc == 0) {
        close_pair(&pair);
        atomic_store(&t->step, CLI_TCPX_DONE);
    }
    return rc;
}

static _Noreturn void be_child(const char *path, int out, struct cli_tcpx_try *t)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

    /* Whoever else looks at these in this program: a crash is to be seen as one. */
    for (size_t i = 0; i < CLI_COUNT(fatal); i++)
        signal(fatal[i], SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    t->rc = steps(path, t);
    if (t->rc)
        snprintf(t->error, sizeof t->error, "%s", tarn_last_error());
    t->end = CLI_TCPX_RETURNED;
    fflush(NULL);
    _exit(0);
}

/* --- the parent --------------------------------------------------------------------------------- */

/* Until it ends, or a step takes too long: then it is killed. */
static void watch(pid_t pid, uint32_t step_ms, struct cli_tcpx_try *t)
{
    int step = atomic_load(&t->step), status = 0;
    uint64_t end = tarn_deadline(step_ms);
    bool late = false;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        int now = atomic_load(&t->step);
        if (now != step)
            end = tarn_deadline(step_ms);
        step = now;
        late = tarn_now_ns() > end;
        if (late) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            break;
        }
        poll(NULL, 0, LOOK_MS);
    }
    if (late)
        t->end = CLI_TCPX_LATE;
    else if (WIFSIGNALED(status))
        t->end = CLI_TCPX_KILLED;
    t->status = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

/* The last line that is not empty. */
static void read_back(int out, char *line, size_t line_bytes)
{
    char text[4096];
    off_t bytes = lseek(out, 0, SEEK_END);
    off_t from = bytes > (off_t)sizeof text - 1 ? bytes - ((off_t)sizeof text - 1) : 0;
    ssize_t n = bytes > 0 ? pread(out, text, sizeof text - 1, from) : 0;

    text[n > 0 ? n : 0] = '\0';
    for (size_t end = strlen(text); end && text[end - 1] == '\n';)
        text[--end] = '\0';
    const char *last = strrchr(text, '\n');
    snprintf(line, line_bytes, "%s", last ? last + 1 : text);
}

int cli_tcpx_try(const char *path, uint32_t step_ms, struct cli_tcpx_try *t)
{
    int rc = 0, out = memfd_create("tarn-doctor", MFD_CLOEXEC);
    struct cli_tcpx_try *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (out < 0 || shared == MAP_FAILED) {
        rc = tarn_fail(TARN_E_SYSTEM, "tcpx: memory to try the plugin with: %m");
        goto close_out;
    }
    shared->end = CLI_TCPX_EXITED; /* unless it says otherwise */
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        be_child(path, out, shared);
    if (pid < 0) {
        rc = tarn_fail(TARN_E_SYSTEM, "tcpx: fork, to try the plugin: %m");
        goto unmap;
    }
    watch(pid, step_ms, shared);
    memcpy(t, shared, sizeof *t);
    read_back(out, t->wrote, sizeof t->wrote);
unmap:
    munmap(shared, sizeof *shared);
close_out:
    if (out >= 0)
        close(out);
    return rc;
}
