/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/lender.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "base/net.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/unix_dir.h"
#include "client/client.h"
#include "client/setting.h"
#include "client/window/channel_commands.h"
#include "client/window/lease_text.h"
#include "transport/host/commands.h"
#include "transport/host/start.h"

#define TICK_MS 100

static struct tarn_lender *lender_of(const struct tarn_host *h)
{
    return TARN_CONTAINER_OF(h, struct tarn_lender, host);
}

/* --- the host ----------------------------------------------------------------------------------- */

static bool wants_secret(const struct tarn_host *h)
{
    (void)h;
    return true;
}

static int authenticate(struct tarn_conn *c, const redisReply *given)
{
    if (tarn_secret_is(lender_of(c->host)->secret, given)) {
        c->authenticated = true;
        return 0;
    }
    return tarn_fail(TARN_E_AUTH, "%s: wrong secret: each descriptor has the right one", c->host->id);
}

static void greet(struct tarn_conn *c)
{
    const struct tarn_lender *l = lender_of(c->host);
    char epoch[20];
    snprintf(epoch, sizeof(epoch), "%016" PRIx64, l->epoch);
    tarn_resp_add_array(&c->out, 2 * 5);
    tarn_reply_pair(&c->out, "lender", l->id);
    tarn_reply_pair(&c->out, "epoch", epoch);
    tarn_reply_pair(&c->out, "version", tarn_version());
    tarn_reply_pair_u64(&c->out, "protocol", TARN_PROTOCOL);
    tarn_reply_pair_u64(&c->out, "now_ns", tarn_now_ns());
}

static const char *unix_path(const struct tarn_host *h)
{
    return lender_of(h)->unix_path;
}

static int hazard_add(struct tarn_session *s, struct tarn_hazard_page *page)
{
    return tarn_lent_page_add(&lender_of(s->all->host)->lent, page, s->pid);
}

static void hazard_remove(struct tarn_session *s, struct tarn_hazard_page *page)
{
    tarn_lent_page_remove(&lender_of(s->all->host)->lent, page);
}

static bool release(struct tarn_session *s, bool over)
{
    struct tarn_lender *l = lender_of(s->all->host);
    if (over) {
        tarn_lent_forget(&l->lent, s->id, s->quit);
        tarn_channels_forget(&l->channels, s->id);
    }
    return false;
}

static void released(struct tarn_host *h)
{
    (void)h;
}

/* --- commands ----------------------------------------------------------------------------------- */

static int command_info(struct tarn_conn *c, size_t n, redisReply **args)
{
    const struct tarn_lender *l = lender_of(c->host);
    struct tarn_buf text = {0};
    (void)n, (void)args;
    tarn_buf_printf(&text,
                    "# Lender\r\nid:%s\r\nversion:%s\r\nepoch:%016" PRIx64 "\r\nlisten:%s\r\nunix:%s\r\n"
                    "connections:%" PRIu64 "\r\ncommands:%" PRIu64 "\r\nerrors:%" PRIu64 "\r\n",
                    l->id, tarn_version(), l->epoch, l->address, l->unix_path, c->host->connections,
                    c->host->commands, c->host->errors);
    tarn_lent_info(&lender_of(c->host)->lent, &text);
    tarn_channels_info(&lender_of(c->host)->channels, &text);
    if (text.failed)
        tarn_resp_add_error(&c->out, TARN_E_NO_MEMORY, "INFO: out of memory");
    else
        tarn_resp_add_string(&c->out, text.data, text.bytes);
    tarn_buf_free(&text);
    return 0;
}

static const char *transport_serving(const struct tarn_host *h, uint32_t i, uint32_t window)
{
    const struct tarn_host_transport *t = &h->transports[i];
    return t->ops->serves(t->half, window) ? t->ops->name : "";
}

static void reply_reach(struct tarn_conn *c, const struct tarn_lease_text *t, uint32_t window)
{
    const struct tarn_host *h = c->host;
    tarn_resp_add_array(&c->out, 4 + h->ntransports);
    tarn_resp_add_string(&c->out, t->rights, strlen(t->rights));
    tarn_resp_add_integer(&c->out, (int64_t)t->bytes);
    tarn_resp_add_string(&c->out, t->id, strlen(t->id));
    tarn_resp_add_string(&c->out, t->runs.data ? t->runs.data : "", t->runs.bytes);
    for (uint32_t i = 0; i < h->ntransports; i++) {
        const char *name = transport_serving(h, i, window);
        tarn_resp_add_string(&c->out, name, strlen(name));
    }
}

static int command_reach(struct tarn_conn *c, size_t n, redisReply **args)
{
    struct tarn_lent *lent = &lender_of(c->host)->lent;
    struct tarn_lease_text t = {0};
    uint32_t window, slot;
    uint64_t gen;
    bool write;
    (void)n;
    int rc = tarn_arg_slot(args + 1, &window, &slot, &gen);
    if (!rc)
        rc = tarn_lent_admit(lent, window, args[4]->str, c->session->id, &write);
    if (rc)
        return rc;
    t.base = lent->pools[window].base;
    rc = tarn_lent_visit(lent, c->session->id, c->peer, window, slot, gen, tarn_lease_tell, &t);
    if (!rc && t.runs.failed)
        rc = tarn_fail(TARN_E_NO_MEMORY, "REACH: out of memory");
    if (!rc)
        reply_reach(c, &t, window);
    tarn_buf_free(&t.runs);
    return rc;
}

static int visitor(struct tarn_lent_visitor *v, uint64_t session, redisReply **lease)
{
    *v = (struct tarn_lent_visitor){.session = session};
    return tarn_arg_slot(lease, &v->window, &v->slot, &v->gen);
}

/* For transports that share or register memory. */
static int command_enter(struct tarn_conn *c, size_t n, redisReply **args)
{
    struct tarn_lender *l = lender_of(c->host);
    const struct tarn_host_transport *t;
    struct tarn_attach *a = &l->entry;
    struct tarn_lent_visitor v;
    (void)n;
    a->link = 0;
    a->write = !strcasecmp(args[2]->str, "w");
    a->local = c->local;
    a->session = c->session->id;
    int rc = tarn_session_attached(c->session, args[1]->str, a->write, &t);
    if (!rc)
        rc = visitor(&v, a->session, args + 3);
    if (!rc)
        rc = tarn_arg_u64(args[6], "link", 16, UINT64_MAX, &a->link);
    if (rc)
        return rc;
    a->ring_fd = -1;
    a->bell_fd = l->lent.bell;
    v.write = a->write;
    v.keys = t->ops->caps & TARN_CAP_KEYS;
    rc = tarn_lent_enter(&l->lent, &v);
    if (!rc && a->write && (t->ops->caps & TARN_CAP_SAME_HOST))
        rc = tarn_lent_ring_of(&l->lent, a->session, &a->ring_fd);
    if (!rc && !t->ops->serves(t->half, v.window))
        rc = tarn_fail(TARN_E_NOT_REACHABLE, "ENTER %s: does not reach window %u", args[1]->str, v.window);
    if (!rc)
        rc = t->ops->enter(t->half, v.window, a);
    if (rc)
        return rc;
    tarn_conn_send_fds(c, a);
    tarn_resp_add_array(&c->out, 3);
    tarn_resp_add_string(&c->out, a->text, strlen(a->text));
    tarn_resp_add_integer(&c->out, a->nfds);
    tarn_resp_add_integer(&c->out, (int64_t)v.pass);
    return 0;
}

static int command_leave(struct tarn_conn *c, size_t n, redisReply **args)
{
    struct tarn_lent_visitor v;
    uint64_t times;
    (void)n;
    int rc = visitor(&v, c->session->id, args + 1);
    if (!rc)
        rc = tarn_arg_u64(args[4], "pass", 10, UINT64_MAX, &v.pass);
    if (!rc)
        rc = tarn_arg_u64(args[5], "times", 10, UINT32_MAX, &times);
    if (rc)
        return rc;
    tarn_lent_leave(&lender_of(c->host)->lent, &v, (uint32_t)times);
    tarn_resp_add_simple(&c->out, "OK");
    return 0;
}

/* Those of channels are in channel_commands.c. */
static int command_lender(struct tarn_conn *c, size_t n, redisReply **args)
{
    return tarn_channel_command_lender(&lender_of(c->host)->channels, c, n, args);
}

static int command_connect(struct tarn_conn *c, size_t n, redisReply **args)
{
    return tarn_channel_command_connect(&lender_of(c->host)->channels, c, n, args);
}

static int command_post(struct tarn_conn *c, size_t n, redisReply **args)
{
    return tarn_channel_command_post(&lender_of(c->host)->channels, c, n, args);
}

static int command_unpost(struct tarn_conn *c, size_t n, redisReply **args)
{
    (void)n;
    return tarn_channel_command_unpost(&lender_of(c->host)->channels, c, args);
}

static int command_deliver(struct tarn_conn *c, size_t n, redisReply **args)
{
    (void)n;
    return tarn_channel_command_deliver(&lender_of(c->host)->channels, c, args);
}

static int command_hangup(struct tarn_conn *c, size_t n, redisReply **args)
{
    (void)n;
    return tarn_channel_command_hangup(&lender_of(c->host)->channels, c, args);
}

static const struct tarn_control_command commands[] = {
    {"DELIVER", command_deliver, 6, 0, 0, TARN_SESSION,
     "<channel> <announcement> <data|written|size|abandoned> <sizes> <data>: ends a receive"},
    {"POST", command_post, 5, 0, 0, TARN_SESSION,
     "<channel> <announcement> <tag> <capacities> [<lease>]: announces a receive"},
    {"UNPOST", command_unpost, 3, 0, 0, TARN_SESSION, "<channel> <announcement>: withdraws it"},
    {"HANGUP", command_hangup, 2, 0, 0, TARN_SESSION, "<channel>: the peer has ended it"},
    {"CONNECT", command_connect, 3 + TARN_PARTY_FIELDS, 0, 0, TARN_SESSION,
     "<channel> <7 fields of the connector> <hello> [<secret>]: makes a channel"},
    {"LENDER", command_lender, 2, 0, 0, TARN_ANYBODY,
     "<protocol> [<secret>]: who answers here, for channels"},
    {"ENTER", command_enter, 7, 0, 0, TARN_SESSION,
     "<transport> <r|w> <window> <slot> <gen> <link>: how the transport reaches the window"},
    {"INFO", command_info, 1, 0, 0, TARN_TRUSTED, ": figures of this lender"},
    {"LEAVE", command_leave, 6, 0, 0, TARN_SESSION,
     "<window> <slot> <gen> <pass> <times>: the lease is written no more"},
    {"REACH", command_reach, 5, 0, 0, TARN_SESSION, "<window> <slot> <gen> <token>: what reaches a lease"},
};

static const struct tarn_command_table table = {
    .commands = commands,
    .n = sizeof(commands) / sizeof(commands[0]),
    .note =
        "All but LENDER, INFO, CLIENT and those of redis-cli need HELLO 1 <16 hex digits> <secret> on the "
        "same connection; CLIENT the Unix socket as the lender's user or root.",
};

static const struct tarn_host_ops host_ops = {
    .run = tarn_command_run,
    .commands = &table,
    .wants_secret = wants_secret,
    .authenticate = authenticate,
    .greet = greet,
    .unix_path = unix_path,
    .hazard_add = hazard_add,
    .hazard_remove = hazard_remove,
    .release = release,
    .released = released,
};

/* --- start and stop ----------------------------------------------------------------------------- */

/* tarn_lent_cut() */
static void cut(void *arg, uint32_t window)
{
    const struct tarn_host *h = arg;
    for (uint32_t i = 0; i < h->ntransports; i++)
        h->transports[i].ops->cut(h->transports[i].half, window);
}

static void rung(void *arg, int events)
{
    struct tarn_lender *l = arg;
    (void)events;
    tarn_lent_rung(&l->lent);
}

static void tick(void *arg)
{
    struct tarn_lender *l = arg;
    tarn_lent_expire(&l->lent, tarn_now_ns(), cut, &l->host);
    tarn_control_tick(l->host.control);
}

static void *run(void *arg)
{
    struct tarn_lender *l = arg;
    tarn_loop_run(l->host.loop);
    return NULL;
}

static void watched(void *arg, int events)
{
    const struct tarn_lender_watch *w = arg;
    (void)events;
    w->fn(w->arg);
}

/* tarn_guard.watch */
static int guard_watch(void *arg, int fd, void (*fn)(void *fn_arg), void *fn_arg)
{
    struct tarn_lender *l = TARN_CONTAINER_OF(arg, struct tarn_lender, lent);
    struct tarn_lender_watch *w = &l->watches[l->nwatches++];
    *w = (struct tarn_lender_watch){.fn = fn, .arg = fn_arg};
    return tarn_watch_new(l->host.loop, fd, TARN_READABLE, watched, w, &w->watch);
}

static int serve(struct tarn_lender *l, const char *host)
{
    const struct tarn_client *c = l->client;
    struct tarn_serve s = {
        .log = &c->log,
        .host = host,
        .io_threads = 1,
        .rdma_devices = tarn_setting(NULL, "TARN_RDMA_DEVICES"),
        .epoch = l->epoch,
        .pools = l->lent.pools,
        .npools = TARN_WINDOWS_MAX,
        .guard = tarn_lent_guard(&l->lent),
    };
    char names[64] = "";
    s.guard.watch = guard_watch;
    for (int t = 0; t < c->ntransports; t++)
        if (c->transports[t]->caps & TARN_CAP_WINDOWS)
            snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", names[0] ? "," : "",
                     c->transports[t]->name);
    if (!names[0])
        return tarn_fail(
            TARN_E_CONFIG,
            "window: none of the client's transports lends windows: shm, cuda_ipc, rdma, tcpx and tcp do");
    return tarn_host_serve(&l->host, &s, names, false);
}

struct errand {
    struct tarn_lender *lender;
    int (*fn)(struct tarn_lender *l, void *arg);
    void *arg;
    struct tarn_reason why;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool done;
};

static void run_errand(void *arg)
{
    struct errand *e = arg;
    tarn_reason_keep(&e->why, e->fn(e->lender, e->arg));
    pthread_mutex_lock(&e->lock);
    e->done = true;
    pthread_cond_signal(&e->over);
    pthread_mutex_unlock(&e->lock);
}

int tarn_lender_run(struct tarn_lender *l, int (*fn)(struct tarn_lender *l, void *arg), void *arg)
{
    struct errand e = {.lender = l, .fn = fn, .arg = arg};
    pthread_mutex_init(&e.lock, NULL);
    tarn_cond_init(&e.over);
    int rc = tarn_loop_post(l->host.loop, run_errand, &e);
    pthread_mutex_lock(&e.lock);
    while (!rc && !e.done)
        pthread_cond_wait(&e.over, &e.lock);
    pthread_mutex_unlock(&e.lock);
    pthread_cond_destroy(&e.over);
    pthread_mutex_destroy(&e.lock);
    return rc ? rc : tarn_reason_fail(&e.why);
}

static int cut_window(struct tarn_lender *l, void *arg)
{
    tarn_lent_cut(&l->lent, arg, cut, &l->host);
    return 0;
}

int tarn_lender_recall_now(struct tarn_lease *lease)
{
    struct tarn_window *w = lease->window;
    struct tarn_lender *l = w->lender;
    if (tarn_lent_end(&l->lent, lease))
        cut_window(l, w);
    return tarn_lent_recall(&l->lent, lease, 0, NULL);
}

int tarn_lender_recall(struct tarn_lease *lease, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_window *w = lease->window;
    struct tarn_lent *lent = &w->lender->lent;
    int rc = tarn_lent_end(lent, lease) ? tarn_lender_run(w->lender, cut_window, w) : 0;
    return rc ? rc : tarn_lent_recall(lent, lease, deadline_ns, cancel);
}

static int listen_on(struct tarn_lender *l, struct tarn_addr *a)
{
    struct tarn_addr local = {.is_unix = true};
    char name[40], dir[108];
    snprintf(name, sizeof(name), "lender-%016" PRIx64, l->epoch);
    if (tarn_unix_path(name, local.host, sizeof(local.host)) > TARN_UNIX_PATH_MAX)
        return tarn_fail(TARN_E_CONFIG, "window: $XDG_RUNTIME_DIR is too long for a Unix socket: shorten it");
    snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(local.host, '/') - local.host), local.host);
    mkdir(dir, 0700);
    int rc = tarn_unix_dir_check(dir, "set XDG_RUNTIME_DIR to a directory of this user");
    if (!rc)
        rc = tarn_host_listen(&l->host, a, &local);
    if (rc)
        return rc;
    snprintf(l->unix_path, sizeof(l->unix_path), "%.*s", TARN_UNIX_PATH_MAX, local.host);
    tarn_addr_format(a, l->address, sizeof(l->address));
    return 0;
}

/* What the other ends of channels get to know. */
static void introduce(struct tarn_lender *l)
{
    struct tarn_party *p = &l->channels.self;
    p->epoch = l->epoch;
    p->session = l->client->session;
    snprintf(p->id, sizeof(p->id), "%s", l->id);
    snprintf(p->address, sizeof(p->address), "%s", l->address);
    snprintf(p->unix_path, sizeof(p->unix_path), "%s", l->unix_path);
    snprintf(p->host_id, sizeof(p->host_id), "%s", l->client->host_id);
    snprintf(p->secret, sizeof(p->secret), "%s", l->secret);
}

static int start(struct tarn_lender *l)
{
    struct tarn_addr a;
    l->host.ops = &host_ops;
    l->host.log = &l->client->log;
    l->host.id = l->id;
    l->epoch = tarn_random64();
    snprintf(l->id, sizeof(l->id), "lender-%d", (int)getpid());
    tarn_channels_init(&l->channels, l->client, &l->lent, &l->host);
    int rc = tarn_lent_init(&l->lent, l->epoch);
    if (!rc)
        rc = tarn_addr_parse(l->client->listen ? l->client->listen : "127.0.0.1:0", "listen", &a);
    if (!rc)
        rc = tarn_secret_make(l->secret);
    if (!rc)
        rc = tarn_loop_new(&l->host.loop);
    if (!rc)
        rc = serve(l, a.host);
    if (!rc)
        rc = listen_on(l, &a);
    if (!rc)
        rc = tarn_timer_new(l->host.loop, TICK_MS, tick, l, &l->tick);
    if (!rc)
        rc = tarn_watch_new(l->host.loop, l->lent.bell, TARN_READABLE, rung, l, &l->bell);
    introduce(l);
    if (!rc)
        rc = tarn_client_thread(&l->thread, run, l);
    l->started = !rc;
    return rc;
}

int tarn_lender_of(struct tarn_client *c, struct tarn_lender **l_p)
{
    struct tarn_reason why = {0};
    pthread_mutex_lock(&c->lender_lock);
    if (!c->lender && !(c->lender = calloc(1, sizeof(*c->lender)))) {
        tarn_reason_keep(&why, tarn_fail(TARN_E_NO_MEMORY, "window: out of memory"));
    } else if (!c->lender->client) {
        c->lender->client = c;
        if (tarn_reason_keep(&why, start(c->lender))) {
            tarn_lender_stop(c->lender);
            c->lender = NULL;
        }
    }
    *l_p = c->lender;
    pthread_mutex_unlock(&c->lender_lock);
    return tarn_reason_fail(&why);
}

void tarn_lender_stop(struct tarn_lender *l)
{
    if (!l)
        return;
    if (l->started) {
        tarn_lent_end_all(&l->lent, tarn_client_deadline(l->client, 0));
        tarn_loop_stop(l->host.loop);
        pthread_join(l->thread, NULL);
    }
    tarn_watch_free(l->tick);
    tarn_watch_free(l->bell);
    while (l->nwatches)
        tarn_watch_free(l->watches[--l->nwatches].watch);
    tarn_host_end(&l->host);
    tarn_channels_end(&l->channels);
    tarn_lent_free(&l->lent);
    tarn_loop_free(l->host.loop);
    free(l);
}
