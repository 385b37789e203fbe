/* SPDX-License-Identifier: Apache-2.0 */

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/cli/cli.h"
#include "client/cli/cli_tcpx_try.h"
#include "transport/cuda/cuda.h"
#include "transport/tcpx/plugin/tcpx_nic.h"
#include "transport/tcpx/tcpx_comm.h"

#define LOOK_MS 5 /* how often the parent checks their progress */
#define NAP_NS (200 * 1000)

enum { ACCEPTS, CONNECTS, SIDES };

struct shared {
    struct cli_tcpx_try of[SIDES];
    uint8_t handle[TARN_TCPX_HANDLE];
    _Atomic uint64_t connecting_ns; /* when connecting began; 0: not yet */
};

/* --- a process that tries ----------------------------------------------------------------------- */

struct side {
    struct shared *shared;
    struct cli_tcpx_try *t, *other;
    bool accepts;
    struct tarn_logger log; /* the plugin logs to it until the process ends */
    struct tarn_tcpx_plugin *plugin;
    struct tarn_tcpx_device_handle device;
    void *listening, *comm;
};

static void begin(struct cli_tcpx_try *t, enum cli_tcpx_step step)
{
    struct stat s;

    fflush(NULL);
    t->said[0] = '\0';
    t->wrote_before = fstat(STDOUT_FILENO, &s) == 0 ? s.st_size : 0;
    atomic_store(&t->step, step);
}

/* Keeps only the first line: it is the cause of later ones. */
static void keep_line(void *arg, enum tarn_log_level level, const char *line)
{
    struct cli_tcpx_try *t = arg;

    if (level <= TARN_LOG_WARN && !t->said[0])
        snprintf(t->said, sizeof t->said, "%s", line);
}

static double ms_since(uint64_t ns)
{
    return ns ? (double)(tarn_now_ns() - ns) / 1e6 : 0;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* Allocates a page of GPU 0 if there is one and its device takes GPU memory. The GPU then stays current,
 * as the plugin requires. */
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

static int open_plugin(struct side *s, const char *path)
{
    struct cli_tcpx_try *t = s->t;
    const struct tarn_tcpx_plugin *found;
    uint32_t chunk_bytes;
    int rc = tarn_tcpx_plugin_find(path, &found);

    if (rc != 0)
        return rc;
    t->plugin = *found;
    begin(t, CLI_TCPX_ENVIRONMENT);
    rc = tarn_tcpx_env(found->gpudirect, &chunk_bytes);
    if (rc != 0)
        return rc;
    begin(t, CLI_TCPX_START);
    rc = tarn_tcpx_plugin_open(path, &s->log, &s->plugin);
    t->plugin.start = found->start;
    if (rc != 0)
        return rc;
    t->plugin = *s->plugin;
    return new_page(t);
}

/* The parent starts the other process when this one listens. */
static int listen_first(struct side *s)
{
    uint64_t since = tarn_now_ns();

    begin(s->t, CLI_TCPX_LISTEN);
    int rc = tarn_tcpx_listen(s->plugin, s->t->device, s->shared->handle, &s->listening);
    s->t->listen_ms = ms_since(since);
    return rc;
}

/* connect keeps its state in the handle. */
static int join(struct side *s)
{
    struct cli_tcpx_calls *calls = s->accepts ? &s->t->accept : &s->t->connect;
    int rc = 0;

    begin(s->t, CLI_TCPX_CONNECT);
    if (!s->accepts) {
        s->t->accept_waits = atomic_load(&s->other->accept.returned) == 0;
        atomic_store(&s->shared->connecting_ns, tarn_now_ns());
    }
    while (rc == 0 && !s->comm) {
        atomic_fetch_add(&calls->begun, 1);
        rc = s->accepts ? tarn_tcpx_accept(s->plugin, s->listening, &s->device, &s->comm)
                        : tarn_tcpx_connect(s->plugin, s->t->device, s->shared->handle, &s->comm);
        atomic_fetch_add(&calls->returned, 1);
        if (rc == 0 && !s->comm)
            nap();
    }
    calls->ms = ms_since(atomic_load(&s->shared->connecting_ns));
    return rc;
}

static int register_page(struct side *s)
{
    void *mr;

    begin(s->t, CLI_TCPX_REGISTER);
    int rc = tarn_tcpx_reg(s->plugin, s->comm, s->t->page, TARN_TCPX_PAGE,
                           s->t->gpu ? TARN_TCPX_CUDA : TARN_TCPX_HOST, &mr);
    return rc ? rc : tarn_tcpx_dereg(s->plugin, s->comm, mr);
}

static void close_both(struct side *s)
{
    begin(s->t, CLI_TCPX_CLOSE);
    while (atomic_load(&s->other->step) < CLI_TCPX_CLOSE)
        nap();
    if (s->accepts)
        tarn_tcpx_close_recv(s->plugin, s->comm);
    else
        tarn_tcpx_close_send(s->plugin, s->comm);
    if (s->listening)
        tarn_tcpx_close_listen(s->plugin, s->listening);
    begin(s->t, CLI_TCPX_DONE);
}

static int steps(struct side *s, const char *path)
{
    int rc = open_plugin(s, path);

    if (rc == 0 && s->accepts)
        rc = listen_first(s);
    if (rc == 0)
        rc = join(s);
    if (rc == 0)
        rc = register_page(s);
    if (rc == 0)
        close_both(s);
    return rc;
}

static _Noreturn void be_child(struct shared *shared, int which, const char *path, int out)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    struct cli_tcpx_try *t = &shared->of[which];
    struct side s = {.shared = shared,
                     .t = t,
                     .other = &shared->of[!which],
                     .accepts = which == ACCEPTS,
                     .log = {.level = TARN_LOG_WARN, .fn = keep_line, .arg = t}};

    /* Remove signal handlers inherited from this program: the parent must see a crash as one. */
    for (size_t i = 0; i < CLI_COUNT(fatal); i++)
        signal(fatal[i], SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    t->rc = steps(&s, path);
    if (t->rc)
        snprintf(t->error, sizeof t->error, "%s", tarn_last_error());
    t->end = CLI_TCPX_RETURNED;
    fflush(NULL);
    _exit(0);
}

/* --- the parent --------------------------------------------------------------------------------- */

struct trial {
    const char *path;
    struct shared *shared;
    pid_t pid[SIDES]; /* 0: not started, or ended */
    int out[SIDES];
};

static int start(struct trial *r, int which)
{
    r->shared->of[which].end = CLI_TCPX_EXITED; /* the default, until the process sets another */
    fflush(NULL);
    r->pid[which] = fork();
    if (r->pid[which] == 0)
        be_child(r->shared, which, r->path, r->out[which]);
    if (r->pid[which] > 0)
        return 0;
    r->pid[which] = 0;
    return tarn_fail(TARN_E_SYSTEM, "tcpx: fork, to try the plugin: %m");
}

static void note_end(struct trial *r, int which, int status)
{
    struct cli_tcpx_try *t = &r->shared->of[which];

    r->pid[which] = 0;
    if (WIFSIGNALED(status))
        t->end = CLI_TCPX_KILLED;
    t->status = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

/* The failed process. If both failed, prefer the one that did not end by returning. -1: none. */
static int look_for_ends(struct trial *r)
{
    int failed = -1, status;

    for (int i = 0; i < SIDES; i++) {
        struct cli_tcpx_try *t = &r->shared->of[i];
        if (r->pid[i] == 0 || waitpid(r->pid[i], &status, WNOHANG) != r->pid[i])
            continue;
        note_end(r, i, status);
        if (t->end != CLI_TCPX_RETURNED || (t->rc != 0 && failed < 0))
            failed = i;
    }
    return failed;
}

static void end_all(struct trial *r)
{
    for (int i = 0; i < SIDES; i++) {
        if (r->pid[i] == 0)
            continue;
        kill(r->pid[i], SIGKILL);
        waitpid(r->pid[i], NULL, 0);
        r->pid[i] = 0;
    }
}

/* Waits until both have ended, one has failed, or neither makes progress for too long. *failed: which one;
 * -1 if none. */
static int watch(struct trial *r, uint32_t step_ms, int *failed)
{
    struct cli_tcpx_try *of = r->shared->of;
    uint64_t end = tarn_deadline(step_ms);
    bool started = false;
    int before = 0, rc = start(r, ACCEPTS);

    while (rc == 0 && *failed < 0 && (r->pid[ACCEPTS] || r->pid[CONNECTS])) {
        int steps = atomic_load(&of[ACCEPTS].step) + atomic_load(&of[CONNECTS].step);
        if (steps != before)
            end = tarn_deadline(step_ms);
        before = steps;
        if (!started && atomic_load(&of[ACCEPTS].step) == CLI_TCPX_CONNECT) {
            started = true;
            rc = start(r, CONNECTS);
        }
        *failed = look_for_ends(r);
        if (*failed < 0 && tarn_now_ns() > end) {
            *failed = started && atomic_load(&of[CONNECTS].step) < atomic_load(&of[ACCEPTS].step) ? CONNECTS
                                                                                                  : ACCEPTS;
            of[*failed].end = CLI_TCPX_LATE;
            break;
        }
        poll(NULL, 0, LOOK_MS);
    }
    end_all(r);
    return rc;
}

static bool tells_of_failure(const char *line)
{
    static const char *const words[] = {"error",  "fail",   "warn",    "fatal",
                                        "cannot", "unable", "no such", "not found"};

    for (size_t i = 0; i < CLI_COUNT(words); i++)
        if (strcasestr(line, words[i]))
            return true;
    return false;
}

static void read_back(int out, off_t from, char *found, size_t found_bytes)
{
    char text[16384];
    ssize_t n = pread(out, text, sizeof text - 1, from);
    char *rest = text, *line;

    text[n > 0 ? n : 0] = '\0';
    found[0] = '\0';
    while ((line = strsep(&rest, "\n"))) {
        if (*line)
            snprintf(found, found_bytes, "%s", line);
        if (tells_of_failure(line))
            return;
    }
}

/* What the failed process reports, and what both saw. */
static void sum_up(const struct trial *r, int failed, struct cli_tcpx_try *t)
{
    const struct cli_tcpx_try *of = r->shared->of;
    bool connects = failed == CONNECTS;

    memcpy(t, &of[connects], sizeof *t);
    t->connects = connects;
    t->at = atomic_load(&t->step);
    read_back(r->out[connects], t->wrote_before, t->wrote, sizeof t->wrote);
    if (connects) { /* the other process had started */
        t->plugin = of[ACCEPTS].plugin;
        if (t->at < CLI_TCPX_CONNECT)
            atomic_store(&t->step, CLI_TCPX_CONNECT);
    }
    t->listen_ms = of[ACCEPTS].listen_ms;
    t->accept_waits = of[CONNECTS].accept_waits;
    memcpy(&t->accept, &of[ACCEPTS].accept, sizeof t->accept);
    memcpy(&t->connect, &of[CONNECTS].connect, sizeof t->connect);
}

int cli_tcpx_try(const char *path, uint32_t step_ms, struct cli_tcpx_try *t)
{
    struct trial r = {.path = path};
    int rc = 0, failed = -1;

    r.shared = mmap(NULL, sizeof *r.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < SIDES; i++)
        r.out[i] = memfd_create("tarn-doctor", MFD_CLOEXEC);
    if (r.out[ACCEPTS] < 0 || r.out[CONNECTS] < 0 || r.shared == MAP_FAILED)
        rc = tarn_fail(TARN_E_SYSTEM, "tcpx: memory to try the plugin with: %m");
    else
        rc = watch(&r, step_ms, &failed);
    if (rc == 0)
        sum_up(&r, failed, t);
    if (r.shared != MAP_FAILED)
        munmap(r.shared, sizeof *r.shared);
    for (int i = 0; i < SIDES; i++)
        if (r.out[i] >= 0)
            close(r.out[i]);
    return rc;
}
