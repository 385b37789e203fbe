/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes and connections of the soak. Each node has its own address (127.x.y.z) and keeps its ports over a
 * restart. There is a relay between each client and each node, and between each of them and Redis.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/harness.h"
#include "tests/history/soak/soak.h"
#include "tests/node_client.h"
#include "tests/router.h"

enum { CONTROL_PORT = 7700, DATA_PORT = 7701, ARGS_MAX = 40, START_AGAIN_MS = 300, PORTS = 2 };

/* A process that is restarted when it has ended, unless a fault keeps it away (is_gone). */
struct resident {
    struct harness_process *process; /* NULL: not started yet */
    bool is_gone, was_killed;
    uint64_t start_at_ms, stopped_at_ns;
};

struct soak_node {
    struct resident r;
    char id[16], ip[32], control[48];
    struct relay *redis;
};

struct soak_client {
    struct resident r;
    struct relay *redis, *nodes[SOAK_NODES][PORTS];
};

struct soak_world {
    struct soak_options o;
    const char *program, *log_dir;
    struct history_log *log;
    struct harness *h;
    struct harness_redis *redis;
    struct router *router;
    bool clients_run;
    uint32_t crashes;
    struct soak_node nodes[SOAK_NODES];
    struct soak_client clients[SOAK_CLIENTS];
};

/* --- processes ---------------------------------------------------------------------------------- */

/* Nodes with odd numbers keep their CPU pools in files, and find them again when they are restarted. */
static const char *state_of_node(struct soak_world *w, const struct soak_node *n)
{
    char name[32];
    snprintf(name, sizeof name, "%s.state", n->id);
    return (n - w->nodes) % 2 && !soak_is_gpu(w->o.transport) ? harness_path(w->h, name) : NULL;
}

static void start_node(struct soak_world *w, struct soak_node *n)
{
    const char *state = state_of_node(w, n);
    char url[64], data_port[8], heartbeat[16], pool[48] = "cpu0:bytes=4M";
    const char *argv[] = {"tarnd",
                          "--id",
                          n->id,
                          "--listen",
                          n->control,
                          "--unix",
                          NULL,
                          "--data-port",
                          data_port,
                          "--redis",
                          url,
                          "--pool",
                          pool,
                          "--heartbeat-ms",
                          heartbeat,
                          "--when-cut-off",
                          w->o.refuses ? "refuse" : "serve",
                          state ? "--state-dir" : NULL,
                          state,
                          NULL};
    char name[32];
    snprintf(name, sizeof name, "%s.sock", n->id);
    argv[6] = harness_path(w->h, name);
    snprintf(url, sizeof url, "redis://%s", relay_address(n->redis));
    snprintf(data_port, sizeof data_port, "%d", DATA_PORT);
    snprintf(heartbeat, sizeof heartbeat, "%u", w->o.heartbeat_ms);
    if (soak_is_gpu(w->o.transport))
        snprintf(pool, sizeof pool, "gpu0:device=%d,bytes=4M", (int)(n - w->nodes) % soak_gpus());
    n->r.process = harness_spawn(w->h, n->id, argv);
}

static void start_client(struct soak_world *w, uint32_t i)
{
    static const int ports[PORTS] = {CONTROL_PORT, DATA_PORT};
    struct soak_client *c = &w->clients[i];
    char number[8], copies[8], seconds[16], url[64], routes[SOAK_NODES * PORTS][96], name[32];
    const char *argv[ARGS_MAX] = {w->program, "client",       w->log_dir, number,
                                  url,        w->o.transport, copies,     seconds};
    snprintf(number, sizeof number, "%u", i);
    snprintf(copies, sizeof copies, "%u", w->o.copies);
    snprintf(seconds, sizeof seconds, "%u", w->o.seconds);
    snprintf(url, sizeof url, "redis://%s", relay_address(c->redis));
    snprintf(name, sizeof name, "client%u", i);
    for (int n = 0; n < SOAK_NODES; n++)
        for (int p = 0; p < PORTS; p++) {
            char *route = routes[n * PORTS + p];
            snprintf(route, sizeof routes[0], "%s:%d=%s", w->nodes[n].ip, ports[p],
                     relay_address(c->nodes[n][p]));
            argv[8 + n * PORTS + p] = route;
        }
    c->r.process = harness_spawn(w->h, name, argv);
}

static void report_end(struct soak_world *w, struct resident *r, const char *what)
{
    int status = harness_wait(r->process, 0);
    bool reported = strstr(harness_log(r->process), "Sanitizer") != NULL;
    if (!reported && (r->was_killed || status < 128))
        return;
    w->crashes++;
    fprintf(stderr, "%s ended by itself: status %d\n%s\n", what, status, harness_log(r->process));
}

/* True: start it now. */
static bool is_missing(struct soak_world *w, struct resident *r, const char *what)
{
    if (r->process) {
        harness_stdout(r->process, NULL);
        if (harness_running(r->process))
            return false;
        report_end(w, r, what);
        r->process = NULL;
        r->was_killed = false;
        r->start_at_ms = harness_now_ms() + START_AGAIN_MS;
    }
    return !r->is_gone && harness_now_ms() >= r->start_at_ms;
}

/* Records a stall that ends now: while the process was stopped or dead, its operations could not end. */
static void note_gap(struct soak_world *w, struct resident *r, uint32_t client)
{
    if (r->stopped_at_ns)
        history_note(w->log, HISTORY_STALL, (uint16_t)client, r->stopped_at_ns, tarn_now_ns());
    r->stopped_at_ns = 0;
}

void soak_world_tend(struct soak_world *w)
{
    char name[32];
    for (int i = 0; i < SOAK_NODES; i++)
        if (is_missing(w, &w->nodes[i].r, w->nodes[i].id))
            start_node(w, &w->nodes[i]);
    for (uint32_t i = 0; i < SOAK_CLIENTS && w->clients_run; i++) {
        snprintf(name, sizeof name, "client%u", i);
        if (!is_missing(w, &w->clients[i].r, name))
            continue;
        note_gap(w, &w->clients[i].r, i);
        start_client(w, i);
    }
}

static void make_relays(struct soak_world *w, const char *net)
{
    static const int ports[PORTS] = {CONTROL_PORT, DATA_PORT};
    char at[48], to[48];
    for (int n = 0; n < SOAK_NODES; n++)
        w->nodes[n].redis = router_add(w->router, "127.0.0.1:0", w->redis->address);
    for (int c = 0; c < SOAK_CLIENTS; c++) {
        w->clients[c].redis = router_add(w->router, "127.0.0.1:0", w->redis->address);
        for (int n = 0; n < SOAK_NODES; n++)
            for (int p = 0; p < PORTS; p++) {
                snprintf(at, sizeof at, "%s.%d:%d", net, 100 + c * SOAK_NODES + n, ports[p]);
                snprintf(to, sizeof to, "%s:%d", w->nodes[n].ip, ports[p]);
                w->clients[c].nodes[n][p] = router_add(w->router, at, to);
            }
    }
}

struct soak_world *soak_world_start(const struct soak_options *o, const char *program,
                                    struct history_log *log, const char *log_dir)
{
    struct soak_world *w = calloc(1, sizeof *w);
    char net[24];
    assert_non_null(w);
    *w = (struct soak_world){.o = *o, .program = program, .log = log, .log_dir = log_dir};
    w->h = harness_new();
    w->redis = harness_redis_start(w->h, NULL);
    w->router = router_start(o->seed);
    snprintf(net, sizeof net, "127.%d.%d", 1 + getpid() / 250 % 250, getpid() % 250);
    for (int i = 0; i < SOAK_NODES; i++) {
        struct soak_node *n = &w->nodes[i];
        snprintf(n->id, sizeof n->id, "node%d", i);
        snprintf(n->ip, sizeof n->ip, "%s.%d", net, 10 + i);
        snprintf(n->control, sizeof n->control, "%s:%d", n->ip, CONTROL_PORT);
    }
    make_relays(w, net);
    for (int i = 0; i < SOAK_NODES; i++)
        start_node(w, &w->nodes[i]);
    for (int i = 0; i < SOAK_NODES; i++)
        assert_non_null(harness_wait_line(w->nodes[i].r.process, "tarnd ready ", HARNESS_TIMEOUT_MS));
    return w;
}

void soak_world_start_clients(struct soak_world *w)
{
    w->clients_run = true;
    soak_world_tend(w);
}

/* --- faults of processes ------------------------------------------------------------------------ */

/* Keeps the first time if the process has not been restarted since an earlier stop or kill. */
static void note_stop(struct resident *r)
{
    if (!r->stopped_at_ns)
        r->stopped_at_ns = tarn_now_ns();
}

static void stop(struct resident *r)
{
    note_stop(r);
    if (r->process)
        harness_signal(r->process, SIGSTOP);
}

static void go_on(struct soak_world *w, struct resident *r, uint16_t client)
{
    if (r->process)
        harness_signal(r->process, SIGCONT);
    if (client != SOAK_DRIVER)
        note_gap(w, r, client);
}

static void end(struct resident *r, int signum)
{
    r->is_gone = true;
    r->was_killed = true;
    note_stop(r);
    if (r->process)
        harness_signal(r->process, signum);
}

/* --- Redis -------------------------------------------------------------------------------------- */

static void redis(struct soak_world *w, const char *a, const char *b, const char *c, const char *d)
{
    freeReplyObject(harness_redis_call(w->redis, a, b, c, d, NULL));
}

static void move(struct soak_world *w, const char *from, const char *to)
{
    if (rename(harness_path(w->h, from), harness_path(w->h, to)))
        fprintf(stderr, "%s: %s\n", from, strerror(errno));
}

/* Saves the current state for a later fault. */
static void redis_save(struct soak_world *w)
{
    redis(w, "SAVE", NULL, NULL, NULL);
    move(w, "dump.rdb", "old.rdb");
}

static void redis_begin(struct soak_world *w, const struct soak_fault *f)
{
    char ms[16];
    snprintf(ms, sizeof ms, "%u", f->to_ms - f->from_ms);
    switch (f->kind) {
    case SOAK_REDIS_KILL:
        harness_kill(w->redis->process);
        break;
    case SOAK_REDIS_FLUSH:
        redis(w, "FLUSHALL", NULL, NULL, NULL);
        break;
    case SOAK_REDIS_OLD:
        redis_save(w);
        break;
    case SOAK_REDIS_STOP:
        harness_signal(w->redis->process, SIGSTOP);
        break;
    case SOAK_REDIS_PAUSE:
        redis(w, "CLIENT", "PAUSE", ms, NULL);
        break;
    default:
        redis(w, "CONFIG", "SET", "maxmemory", "1");
    }
}

static void redis_end(struct soak_world *w, const struct soak_fault *f)
{
    switch (f->kind) {
    case SOAK_REDIS_KILL:
        harness_redis_restart(w->redis);
        break;
    case SOAK_REDIS_OLD:
        harness_kill(w->redis->process);
        move(w, "old.rdb", "dump.rdb");
        harness_redis_restart(w->redis);
        unlink(harness_path(w->h, "dump.rdb"));
        break;
    case SOAK_REDIS_STOP:
        harness_signal(w->redis->process, SIGCONT);
        break;
    case SOAK_REDIS_FULL:
        redis(w, "CONFIG", "SET", "maxmemory", "0");
        break;
    default:
        break;
    }
}

/* --- links -------------------------------------------------------------------------------------- */

static struct relay_state state_of(const struct soak_fault *f)
{
    switch (f->kind) {
    case SOAK_NODE_REDIS_CUT:
    case SOAK_CLIENT_REDIS_CUT:
    case SOAK_CLIENT_NODE_CUT:
        return (struct relay_state){.cut = RELAY_BOTH};
    case SOAK_NODE_REDIS_RESET:
    case SOAK_CLIENT_REDIS_RESET:
    case SOAK_CLIENT_NODE_RESET:
        return (struct relay_state){.reset = true};
    case SOAK_NODE_REDIS_DELAY:
    case SOAK_CLIENT_REDIS_DELAY:
    case SOAK_CLIENT_NODE_DELAY:
        return (struct relay_state){.delay_ms = f->amount};
    default:
        return (struct relay_state){.loss = f->amount};
    }
}

static void set_link(struct soak_world *w, const struct soak_fault *f, const struct relay_state *s)
{
    if (f->kind >= SOAK_CLIENT_NODE_CUT)
        for (int p = 0; p < PORTS; p++)
            relay_set(w->clients[f->client].nodes[f->node][p], s);
    else if (f->kind >= SOAK_CLIENT_REDIS_CUT)
        relay_set(w->clients[f->client].redis, s);
    else
        relay_set(w->nodes[f->node].redis, s);
}

void soak_fault_begin(struct soak_world *w, const struct soak_fault *f)
{
    struct resident *node = &w->nodes[f->node].r, *client = &w->clients[f->client].r;
    struct relay_state s = state_of(f);
    if (f->kind == SOAK_NODE_STOP)
        stop(node);
    else if (f->kind == SOAK_NODE_KILL || f->kind == SOAK_NODE_RESTART)
        end(node, f->kind == SOAK_NODE_KILL ? SIGKILL : SIGTERM);
    else if (f->kind == SOAK_CLIENT_STOP)
        stop(client);
    else if (f->kind == SOAK_CLIENT_KILL)
        end(client, SIGKILL);
    else if (f->kind <= SOAK_REDIS_FULL)
        redis_begin(w, f);
    else
        set_link(w, f, &s);
}

void soak_fault_end(struct soak_world *w, const struct soak_fault *f)
{
    struct resident *node = &w->nodes[f->node].r, *client = &w->clients[f->client].r;
    if (f->kind == SOAK_NODE_STOP)
        go_on(w, node, SOAK_DRIVER);
    else if (f->kind == SOAK_CLIENT_STOP)
        go_on(w, client, (uint16_t)f->client);
    else if (f->kind <= SOAK_NODE_RESTART)
        node->is_gone = false;
    else if (f->kind == SOAK_CLIENT_KILL)
        client->is_gone = false;
    else if (f->kind <= SOAK_REDIS_FULL)
        redis_end(w, f);
    else
        set_link(w, f, NULL);
}

/* --- questions ---------------------------------------------------------------------------------- */

bool soak_world_is_whole(struct soak_world *w)
{
    char key[64];
    for (int i = 0; i < SOAK_NODES; i++) {
        struct soak_node *n = &w->nodes[i];
        if (!n->r.process || !strstr(harness_stdout(n->r.process, NULL), "tarnd ready "))
            return false;
        snprintf(key, sizeof key, "tarn:default:node:%s", n->id);
        redisReply *reply = harness_redis_call(w->redis, "HGET", key, "state", NULL);
        bool is_there = reply->type == REDIS_REPLY_STRING && strcmp(reply->str, "returning") != 0;
        freeReplyObject(reply);
        if (!is_there)
            return false;
    }
    return true;
}

static bool clients_ended(struct soak_world *w)
{
    for (int i = 0; i < SOAK_CLIENTS; i++)
        if (w->clients[i].r.process && harness_running(w->clients[i].r.process))
            return false;
    return true;
}

/* Begins another run in each client's log, which marks that the client has ended. */
static void close_logs(struct soak_world *w)
{
    char path[512];
    for (uint32_t i = 0; i < SOAK_CLIENTS; i++) {
        soak_log_path(path, sizeof path, w->log_dir, i);
        history_close(history_open(path, (uint16_t)i, soak_log_room(w->o.seconds)));
    }
}

bool soak_world_end_clients(struct soak_world *w, uint32_t timeout_ms)
{
    uint64_t deadline = tarn_deadline(timeout_ms);
    char name[32];
    w->clients_run = false;
    while (!clients_ended(w) && tarn_left_ms(deadline))
        harness_pause();
    bool ended = clients_ended(w);
    for (int i = 0; i < SOAK_CLIENTS; i++) {
        struct resident *r = &w->clients[i].r;
        if (!r->process)
            continue;
        r->was_killed |= harness_running(r->process);
        harness_kill(r->process);
        snprintf(name, sizeof name, "client%d", i);
        report_end(w, r, name);
        r->process = NULL;
    }
    close_logs(w);
    return ended;
}

uint32_t soak_world_crashes(const struct soak_world *w)
{
    return w->crashes;
}

const char *soak_world_redis(const struct soak_world *w)
{
    return w->redis->url;
}

long long soak_world_held(struct soak_world *w, const char *figure)
{
    long long total = 0;
    for (int i = 0; i < SOAK_NODES; i++) {
        long long n = node_pool_figure(w->nodes[i].control, figure);
        if (n < 0)
            return -1;
        total += n;
    }
    return total;
}

long long soak_world_records(struct soak_world *w)
{
    return harness_redis_integer(w->redis, "KEYS", "tarn:default:o:*", NULL);
}

void soak_world_stop(struct soak_world *w, bool passed)
{
    if (!passed) {
        setenv("KEEP", "1", 1);
        fprintf(stderr, "logs of processes: %s, histories: %s\n", harness_dir(w->h), w->log_dir);
    }
    harness_passed(w->h);
    harness_free(w->h);
    router_stop(w->router);
    free(w);
}
