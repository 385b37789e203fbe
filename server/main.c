/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarnd: settings, signals, and the node's start and end.
 *
 * Exit status: 0 drained; 1 could not start, lost its id, or was ended by a second signal; 2 wrong
 * settings.
 */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/option/option.h"
#include "base/option/option_pages.h"
#include "base/option/option_print.h"
#include "base/option/option_value.h"
#include "base/process.h"
#include "base/text.h"
#include "server/control/admin.h"
#include "server/directory/private_redis.h"
#include "server/node.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"
#include "transport/tcpx/plugin/tcpx_settings.h"

#define FILES_MIN 64 /* descriptors of a node with few clients */

static void log_line(void *arg, enum tarn_log_level level, const char *line)
{
    struct timespec now;
    struct tm tm;
    char when[40];
    (void)arg, (void)level;
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &tm));
    fprintf(stderr, "time=%s.%03ldZ %s\n", when, now.tv_nsec / 1000000, line);
}

/* --- what only prints --------------------------------------------------------------------------- */

/* 1 when the flags ask for a text and no node, 0 when for a node; INVALID, SYSTEM. */
static int print_only(const struct tarn_node_config *c, const struct tarn_options_parsed *parsed)
{
    const struct tarn_program *p = &tarn_node_program;
    struct tarn_buf text = {0};
    int rc = c->completion ? tarn_options_completion(p, NULL, 0, c->completion, &text) : 0;
    if (rc)
        return rc;
    if (c->help)
        tarn_options_help(p, &text);
    else if (c->version)
        tarn_buf_printf(&text, "tarnd %s\n", tarn_version());
    else if (c->man)
        tarn_options_man(p, NULL, 0, &text);
    else if (c->markdown)
        tarn_options_markdown(p, &text);
    else if (c->print_conf)
        tarn_options_print_conf(p, c, parsed, &text);
    else if (!c->completion)
        return 0;
    bool written = fputs(text.data ? text.data : "", stdout) >= 0 && fflush(stdout) == 0;
    tarn_buf_free(&text);
    return written ? 1 : tarn_fail(TARN_E_SYSTEM, "standard output: %m");
}

/* --- running ------------------------------------------------------------------------------------ */

struct process {
    struct tarn_node *node;
    bool ending;
};

static int signal_fd; /* an eventfd that counts the signals */

static void count_signal(int signum)
{
    int saved = errno;
    (void)signum;
    eventfd_write(signal_fd, 1);
    errno = saved;
}

/* The first signal ends the node in order, the second at once. */
static void end_signal(void *arg, int events)
{
    struct process *p = arg;
    eventfd_t signals = 0;
    (void)events;
    eventfd_read(signal_fd, &signals);
    if (!p->ending) {
        p->node->keeps = p->node->keep && p->node->state == TARN_NODE_READY;
        p->node->drain(p->node);
    }
    if (p->ending || signals > 1) {
        p->node->exit_status = 1;
        tarn_loop_stop(p->node->host.loop);
    }
    p->ending = true;
}

static int watch_signals(struct process *p, struct tarn_watch **w_p)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
    signal_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (signal_fd < 0)
        return tarn_fail(TARN_E_SYSTEM, "eventfd: %m: raise the limit of open files");
    int rc = tarn_watch_new(p->node->host.loop, signal_fd, TARN_READABLE, end_signal, p, w_p);
    if (!rc) {
        sigaction(SIGTERM, &action, NULL);
        sigaction(SIGINT, &action, NULL);
    }
    return rc;
}

static void print_ready(const struct tarn_node *n)
{
    const struct tarn_node_record *r = &n->record;
    const char *redis = n->redis ? tarn_private_redis_uri(n->redis) : tarn_directory_address(n->directory);
    printf("tarnd ready id=%s control=%s unix=%s redis=%s", n->id, r->control, r->unix_path, redis);
    if (n->admin)
        printf(" http=%s", tarn_admin_address(n->admin));
    printf("\n");
    if (fflush(stdout))
        tarn_log(&n->log, TARN_LOG_WARN, "main",
                 "msg=\"the line with the addresses cannot be written\" cause=\"standard output: %m\"");
}

/* Else it would end with whatever sentence belongs to the descriptor that it does not get. */
static int check_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur >= FILES_MIN)
        return 0;
    return tarn_fail(TARN_E_CONFIG,
                     "the limit of open files is %llu: raise it to %d or more (ulimit -n, LimitNOFILE=)",
                     (unsigned long long)files.rlim_cur, FILES_MIN);
}

static void log_start(const struct tarn_node *n)
{
    const struct tarn_node_record *r = &n->record;
    struct tarn_buf pools = {0};
    uint32_t npools;
    const struct tarn_pool_memory *p = tarn_store_pools(n->store, &npools);
    char size[16];
    for (uint32_t i = 0; i < npools; i++) {
        tarn_size_format(p[i].bytes, size);
        tarn_buf_printf(&pools, "%s%s %s", i ? ", " : "", p[i].name, size);
    }
    tarn_log(&n->log, TARN_LOG_INFO, "main",
             "msg=\"node is ready\" version=%s id=%s ns=%s pid=%d control=%s unix=%s redis=%s pools=\"%s\"",
             tarn_version(), n->id, n->config->ns, (int)getpid(), r->control, r->unix_path,
             tarn_directory_address(n->directory), pools.data ? pools.data : "");
    tarn_buf_free(&pools);
}

/* Nobody who looks into the file would think of these. */
static void log_overridden(const struct tarn_logger *log, const struct tarn_options_parsed *parsed)
{
    char variable[TARN_OPTION_NAME_MAX];
    for (size_t i = 0; i < tarn_node_program.noptions; i++) {
        const struct tarn_option *o = &tarn_node_program.options[i];
        if (!parsed->over_file[i])
            continue;
        tarn_option_env_name(o, variable);
        tarn_log(
            log, TARN_LOG_WARN, "main",
            "msg=\"the environment has taken the place of a setting of the file\" setting=%s variable=%s",
            o->name, variable);
    }
}

static void ready(struct tarn_node *n)
{
    log_start(n);
    print_ready(n);
}

/* --- exit() by others --------------------------------------------------------------------------- */

/*
 * Network plugins call exit() in threads of ours or their own when they meet what they cannot bear. Then the
 * control thread, which still runs, takes what the node holds out of the directory before the process is
 * gone.
 */
#define FAREWELL_S 3

static struct {
    pthread_mutex_t lock;
    pthread_cond_t over_changed;
    struct tarn_node *node; /* while it runs */
    bool wanted, over;
} farewell = {.lock = PTHREAD_MUTEX_INITIALIZER, .over_changed = PTHREAD_COND_INITIALIZER};

static void leave_at_once(void *arg)
{
    struct tarn_node *n = arg;
    tarn_log(&n->log, TARN_LOG_ERROR, "main",
             "msg=\"exit() was called\" cause=\"a network plugin has ended the process: see its lines\"");
    n->exit_status = 1;
    n->drain(n);
    n->drain_deadline_ns = 0; /* without waiting for puts in flight */
    n->drain_check(n);
}

static void at_exit(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FAREWELL_S;
    pthread_mutex_lock(&farewell.lock);
    farewell.wanted =
        farewell.node && tarn_loop_post(farewell.node->host.loop, leave_at_once, farewell.node) == 0;
    while (farewell.wanted && !farewell.over)
        if (pthread_cond_timedwait(&farewell.over_changed, &farewell.lock, &until))
            break;
    pthread_mutex_unlock(&farewell.lock);
}

static int run_node(struct tarn_node *n)
{
    pthread_mutex_lock(&farewell.lock);
    farewell.node = n;
    pthread_mutex_unlock(&farewell.lock);
    int status = tarn_node_run(n);
    pthread_mutex_lock(&farewell.lock);
    farewell.node = NULL;
    farewell.over = true;
    bool wanted = farewell.wanted;
    pthread_cond_broadcast(&farewell.over_changed);
    pthread_mutex_unlock(&farewell.lock);
    while (wanted) /* the other thread ends the process; what it is in cannot be taken apart under it */
        pause();
    return status;
}

static int run(const struct tarn_node_config *c, const struct tarn_logger *log)
{
    struct process process = {0};
    struct tarn_watch *signals = NULL;
    int status = 1;
    if (tarn_node_start(c, log, &process.node)) {
        fprintf(stderr, "tarnd: %s\n", tarn_last_error());
        return 1;
    }
    if (watch_signals(&process, &signals)) {
        fprintf(stderr, "tarnd: %s\n", tarn_last_error());
    } else {
        process.node->ready = ready;
        status = run_node(process.node);
    }
    tarn_watch_free(signals);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    tarn_node_free(process.node);
    return status;
}

/* Each batch of puts takes some hundred KiB and frees them. If they went back to the kernel, it would clear
 * the same pages for each. */
static void keep_freed_memory(void)
{
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    mallopt(M_TRIM_THRESHOLD, 16 << 20);
}

int main(int argc, char **argv)
{
    struct tarn_node_config config = {0};
    struct tarn_options_parsed parsed = {0};
    struct tarn_logger log = {.fn = log_line};
    int status = 0;
    keep_freed_memory();
    tarn_process_begin();
    atexit(at_exit);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    int rc = tarn_options_parse(&tarn_node_program, argc, argv, &config, &parsed);
    if (!rc && parsed.nargs)
        rc = tarn_fail(TARN_E_CONFIG, "\"%s\": tarnd takes options only: see --help", parsed.args[0]);
    int printed = rc ? 0 : print_only(&config, &parsed);
    rc = printed < 0 ? printed : rc;
    if (!rc && !printed) {
        rc = check_files();
        if (!rc)
            rc = tarn_node_config_check(&config);
        if (!rc)
            rc = tarn_tcpx_settings_export(config.tcpx_plugin, config.tcpx_unpack_impl);
        if (!rc)
            tarn_tcpx_plugin_prepare(config.tcpx_plugin);
        enum tarn_log_level level = TARN_LOG_INFO;
        if (!rc)
            rc = tarn_log_level_parse("--log-level", config.log_level, &level);
        log.level = level;
        if (!rc) {
            log_overridden(&log, &parsed);
            status = run(&config, &log);
        }
    }
    if (rc) {
        fprintf(stderr, "tarnd: %s\n", tarn_last_error());
        status = 2;
    }
    tarn_options_free(&tarn_node_program, &config, &parsed);
    return status;
}
