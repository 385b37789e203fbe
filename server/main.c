/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarnd: settings, signals, and the node's start and end.
 *
 * Exit status: 0 drained; 1 could not start, lost its id, or was ended by a second signal; 2 wrong
 * settings.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/error.h"
#include "server/control/admin.h"
#include "server/node.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"
#include "transport/tcpx/plugin/tcpx_settings.h"

static void log_line(void *arg, enum tarn_log_level level, const char *line)
{
    (void)arg, (void)level;
    fprintf(stderr, "%s\n", line);
}

/* --- what only prints --------------------------------------------------------------------------- */

/* True when the flags ask for a text and no node. */
static bool print_only(const struct tarn_node_config *c, const struct tarn_options_parsed *parsed)
{
    const struct tarn_program *p = &tarn_node_program;
    struct tarn_buf text = {0};
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
    else
        return false;
    fputs(text.data ? text.data : "", stdout);
    tarn_buf_free(&text);
    return true;
}

/* --- running ------------------------------------------------------------------------------------ */

struct process {
    struct tarn_node *node;
    bool ending;
};

/* The first signal ends the node in order, the second at once. */
static void end_signal(void *arg)
{
    struct process *p = arg;
    if (p->ending) {
        p->node->exit_status = 1;
        tarn_loop_stop(p->node->loop);
        return;
    }
    p->ending = true;
    tarn_node_drain(p->node);
}

static void print_ready(const struct tarn_node *n)
{
    const struct tarn_node_record *r = &n->record;
    const char *redis = n->redis ? tarn_private_redis_uri(n->redis) : tarn_directory_address(n->directory);
    printf("tarnd ready id=%s control=%s unix=%s redis=%s", n->id, r->control, r->unix_path, redis);
    if (n->admin)
        printf(" http=%s", tarn_admin_address(n->admin));
    printf("\n");
    fflush(stdout);
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
    tarn_node_drain(n);
    n->drain_deadline_ns = 0; /* without waiting for puts in flight */
    tarn_node_drain_check(n);
}

static void at_exit(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FAREWELL_S;
    pthread_mutex_lock(&farewell.lock);
    farewell.wanted = farewell.node && tarn_loop_post(farewell.node->loop, leave_at_once, farewell.node) == 0;
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
    struct tarn_watch *term = NULL, *interrupt = NULL;
    int status = 1;
    if (tarn_node_start(c, log, &process.node)) {
        fprintf(stderr, "tarnd: %s\n", tarn_last_error());
        return 1;
    }
    if (tarn_signal_new(process.node->loop, SIGTERM, end_signal, &process, &term) ||
        tarn_signal_new(process.node->loop, SIGINT, end_signal, &process, &interrupt)) {
        fprintf(stderr, "tarnd: %s\n", tarn_last_error());
    } else {
        print_ready(process.node);
        status = run_node(process.node);
    }
    if (term)
        tarn_watch_free(term);
    if (interrupt)
        tarn_watch_free(interrupt);
    tarn_node_free(process.node);
    return status;
}

int main(int argc, char **argv)
{
    struct tarn_node_config config = {0};
    struct tarn_options_parsed parsed = {0};
    struct tarn_logger log = {.fn = log_line};
    int status = 0;
    atexit(at_exit);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    int rc = tarn_options_parse(&tarn_node_program, argc, argv, &config, &parsed);
    if (!rc && parsed.nargs)
        rc = tarn_fail(TARN_E_CONFIG, "\"%s\": tarnd takes options only: see --help", parsed.args[0]);
    if (!rc && !print_only(&config, &parsed)) {
        rc = tarn_node_config_check(&config);
        if (!rc)
            rc = tarn_tcpx_settings_export(config.tcpx_plugin, config.tcpx_unpack_impl);
        if (!rc)
            tarn_tcpx_plugin_prepare(config.tcpx_plugin);
        if (!rc && !(rc = tarn_log_level_parse(config.log_level, &log.level)))
            status = run(&config, &log);
    }
    if (rc) {
        fprintf(stderr, "tarnd: %s\n", tarn_last_error());
        status = 2;
    }
    tarn_options_free(&tarn_node_program, &config, &parsed);
    return status;
}
