/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Health. Two threads, both asleep while all is well:
 *
 *   watcher  polls one idle control connection of each node. When it ends, the node's process is gone
 *            (or has thrown us out): its descriptors are void from that moment on. It does nothing else,
 *            so that it sees the end within microseconds.
 *   keeper   asks nodes that were set aside whether they answer again (with back-off), reads the node
 *            table while something is missing, closes retired links once nobody is inside, reads the
 *            replies that nobody waits for any more, runs errands (errand.c), and ends queued operations
 *            that are out of time.
 *            Suspects come first, since calls wait for its word on them.
 */
#include "client/client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PROBE_NS TARN_PATIENCE_NS
#define BACKOFF_MIN_NS (25 * TARN_NS_PER_MS)
#define BACKOFF_MAX_NS (2 * TARN_NS_PER_S)
#define TICK_NS (25 * TARN_NS_PER_MS) /* while something is amiss */
#define REFRESH_NS TARN_NS_PER_S
#define AWAY_TICK_NS (2 * TARN_NS_PER_S) /* while only nodes that left the directory are */
#define OWED_MAX_NS (60 * TARN_NS_PER_S)

static void poke(struct tarn_monitor *m)
{
    uint64_t one = 1;
    while (write(m->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* --- watcher ------------------------------------------------------------------------------------ */

struct watched {
    struct pollfd *fds; /* [0] is the wake descriptor */
    struct tarn_remote **remotes;
    nfds_t n;
    uint64_t watches; /* of the monitor when this was built */
};

/* Builds the poll set anew; on lack of memory the old one stays. */
static void watched_build(struct tarn_client *c, struct watched *w)
{
    struct tarn_remote *r, *next;

    pthread_rwlock_rdlock(&c->nodes_lock);
    size_t room = HASH_COUNT(c->nodes) + 1;
    struct pollfd *fds = calloc(room, sizeof *fds);
    struct tarn_remote **remotes = calloc(room, sizeof *remotes);
    if (fds && remotes) {
        free(w->fds);
        free(w->remotes);
        *w = (struct watched){.fds = fds, .remotes = remotes, .n = 1};
        fds[0] = (struct pollfd){.fd = c->monitor.wake_fd, .events = POLLIN};
        pthread_mutex_lock(&c->monitor.lock);
        w->watches = c->monitor.watches;
        HASH_ITER (hh, c->nodes, r, next) {
            if (!r->watch)
                continue;
            remotes[w->n] = r;
            fds[w->n++] = (struct pollfd){.fd = tarn_resp_fd(r->watch->resp), .events = POLLIN | POLLRDHUP};
        }
        pthread_mutex_unlock(&c->monitor.lock);
    } else {
        free(fds);
        free(remotes);
    }
    pthread_rwlock_unlock(&c->nodes_lock);
}

static void watch_ended(struct tarn_client *c, struct tarn_remote *r)
{
    pthread_mutex_lock(&c->monitor.lock);
    struct tarn_call *call = r->watch;
    r->watch = NULL;
    c->monitor.watches++;
    pthread_mutex_unlock(&c->monitor.lock);
    tarn_remote_aside(r, TARN_GONE, "its control connection ended");
    if (call)
        tarn_call_drop(call);
}

static void *watcher_main(void *arg)
{
    struct tarn_client *c = arg;
    struct tarn_monitor *m = &c->monitor;
    struct watched w = {.watches = UINT64_MAX};
    uint64_t n;

    for (;;) {
        pthread_mutex_lock(&m->lock);
        bool stop = m->stop, changed = m->watches != w.watches;
        pthread_mutex_unlock(&m->lock);
        if (stop)
            break;
        if (changed)
            watched_build(c, &w);
        if (!w.fds)
            break;
        if (poll(w.fds, w.n, -1) < 0)
            continue;
        if (w.fds[0].revents && read(m->wake_fd, &n, sizeof n) < 0 && errno != EAGAIN)
            break;
        for (nfds_t i = 1; i < w.n; i++)
            if (w.fds[i].revents)
                watch_ended(c, w.remotes[i]);
    }
    free(w.fds);
    free(w.remotes);
    return NULL;
}

bool tarn_monitor_watch(struct tarn_remote *r, struct tarn_call *call)
{
    struct tarn_monitor *m = &r->client->monitor;

    pthread_mutex_lock(&m->lock);
    bool take = m->watching && !m->stop && !r->watch;
    if (take) {
        r->watch = call;
        m->watches++;
    }
    pthread_mutex_unlock(&m->lock);
    if (take)
        poke(m);
    return take;
}

/* --- keeper: owed replies ----------------------------------------------------------------------- */

static void give_grants_back(struct tarn_call *call, const redisReply *reply)
{
    struct tarn_words a;

    if (tarn_words_init(&a, 1 + 3 * (int)reply->elements, reply->elements * 48) != 0)
        return;
    tarn_words_str(&a, "ABORT");
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *e = reply->element[i];
        if (e->type != REDIS_REPLY_ARRAY || e->elements != 4 || !e->element[3]->str)
            continue;
        tarn_words_u64(&a, (uint64_t)e->element[0]->integer);
        tarn_words_u64(&a, (uint64_t)e->element[2]->integer);
        tarn_words_str(&a, e->element[3]->str);
    }
    if (a.n > 1)
        tarn_words_send(&a, call, tarn_deadline(100));
    tarn_words_free(&a);
}

/* True when the connection is to be looked at again. */
static bool owed_look(struct tarn_call *call)
{
    struct pollfd fd = {tarn_resp_fd(call->resp), POLLIN, 0};
    bool grants = call->grants;
    redisReply *reply = NULL;
    int fds[TARN_RESP_FDS_MAX];

    if (poll(&fd, 1, 0) == 0) {
        if (tarn_now_ns() - call->since_ns < OWED_MAX_NS)
            return true;
        tarn_call_drop(call);
        return false;
    }
    int rc = tarn_call_reply(call, tarn_deadline(100), NULL, &reply);
    /* A late ATTACH's: left there they would pass for the next one's. */
    for (int n = tarn_resp_take_fds(call->resp, fds, TARN_RESP_FDS_MAX); n > 0; n--)
        close(fds[n - 1]);
    if (rc == 0 && grants)
        give_grants_back(call, reply);
    if (reply)
        freeReplyObject(reply);
    if (call->owed)
        return true;
    if (rc == TARN_E_NODE_DOWN || rc == TARN_E_PROTOCOL || rc == TARN_E_TIMEOUT)
        tarn_call_drop(call);
    else
        tarn_call_give(call);
    return false;
}

static bool owed_tend(struct tarn_monitor *m)
{
    pthread_mutex_lock(&m->lock);
    struct tarn_call *calls = m->owing;
    m->owing = NULL;
    pthread_mutex_unlock(&m->lock);

    bool more = false;
    while (calls) {
        struct tarn_call *call = calls;
        calls = call->next;
        if (!owed_look(call))
            continue;
        pthread_mutex_lock(&m->lock);
        call->next = m->owing;
        m->owing = call;
        pthread_mutex_unlock(&m->lock);
        more = true;
    }
    return more;
}

void tarn_monitor_owe(struct tarn_client *c, struct tarn_call *call)
{
    struct tarn_monitor *m = &c->monitor;

    pthread_mutex_lock(&m->lock);
    bool take = m->keeping && !m->stop;
    if (take) {
        call->next = m->owing;
        m->owing = call;
        m->asked = true;
        pthread_cond_signal(&m->wake);
    }
    pthread_mutex_unlock(&m->lock);
    if (!take)
        tarn_call_drop(call);
}

/* --- keeper: nodes ------------------------------------------------------------------------------ */

/*
 * A node that kept silent for so long that its record expired. It may come back as it was, so it is asked,
 * though seldom; of one whose connection broke, another incarnation or a new record will tell.
 */
static bool is_away(const struct tarn_remote *r)
{
    return atomic_load(&r->health) == TARN_SLOW && !atomic_load(&r->listed) && !atomic_load(&r->superseded);
}

static bool is_due(const struct tarn_remote *r)
{
    if (atomic_load(&r->health) == TARN_UP || atomic_load(&r->superseded))
        return false;
    return atomic_load(&r->suspect) ||
           ((atomic_load(&r->listed) || is_away(r)) && tarn_now_ns() >= r->probe_ns);
}

static void probe(struct tarn_remote *r)
{
    struct tarn_call *call;
    uint64_t now = tarn_now_ns();

    if (tarn_call_connect(r, now + PROBE_NS, NULL, &call) != 0) {
        r->backoff_ns = r->backoff_ns ? r->backoff_ns * 2 : BACKOFF_MIN_NS;
        if (r->backoff_ns > BACKOFF_MAX_NS)
            r->backoff_ns = BACKOFF_MAX_NS;
        r->probe_ns = tarn_now_ns() + r->backoff_ns;
        tarn_remote_judged(r, false);
        return;
    }
    /* The session may have ended with its last connection, and what was attached with it. */
    if (atomic_load(&r->health) == TARN_GONE)
        tarn_remote_retire(r);
    r->probe_ns = r->backoff_ns = 0;
    tarn_remote_judged(r, true);
    tarn_log(&r->client->log, TARN_LOG_INFO, "client", "msg=\"node answers again\" node=%s", r->key.id);
    tarn_call_give(call);
}

/* Copies the table's pointers, so that probing holds no lock. */
static struct tarn_remote **snapshot(struct tarn_client *c, size_t *n)
{
    struct tarn_remote *r, *next;

    *n = 0;
    pthread_rwlock_rdlock(&c->nodes_lock);
    struct tarn_remote **all = malloc((HASH_COUNT(c->nodes) + 1) * sizeof *all);
    if (all)
        HASH_ITER (hh, c->nodes, r, next)
            all[(*n)++] = r;
    pthread_rwlock_unlock(&c->nodes_lock);
    return all;
}

/* True when something is still amiss with it. */
static bool node_tend(struct tarn_remote *r)
{
    if (is_due(r))
        probe(r);
    if (atomic_load(&r->superseded))
        tarn_remote_aside(r, TARN_GONE, "another incarnation has its place");
    if (atomic_load(&r->superseded) && atomic_load(&r->suspect))
        tarn_remote_judged(r, false);
    bool amiss =
        atomic_load(&r->health) != TARN_UP && atomic_load(&r->listed) && !atomic_load(&r->superseded);
    return !tarn_remote_reap(r) || amiss;
}

static bool keeper_called(struct tarn_monitor *m)
{
    pthread_mutex_lock(&m->lock);
    bool called = m->stop || m->asked;
    pthread_mutex_unlock(&m->lock);
    return called;
}

static bool keeper_stopped(struct tarn_monitor *m)
{
    pthread_mutex_lock(&m->lock);
    bool stop = m->stop;
    pthread_mutex_unlock(&m->lock);
    return stop;
}

/* Looks after all nodes, suspects first; true when something is still amiss. A probe may take PROBE_NS, so
 * after one of a node that nobody waits for new suspects have their turn. */
static bool nodes_tend(struct tarn_client *c)
{
    size_t n;
    struct tarn_remote **all = snapshot(c, &n);
    bool amiss = false, probed = false;

    for (size_t i = 0; i < n && !keeper_stopped(&c->monitor); i++)
        if (atomic_load(&all[i]->suspect))
            amiss |= node_tend(all[i]);
    for (size_t i = 0; i < n; i++) {
        if (probed && keeper_called(&c->monitor)) {
            amiss = true;
            break;
        }
        probed |= is_due(all[i]);
        amiss |= node_tend(all[i]);
    }
    free(all);
    return amiss;
}

static bool any_away(struct tarn_client *c)
{
    struct tarn_remote *r, *next;
    bool any = false;

    pthread_rwlock_rdlock(&c->nodes_lock);
    HASH_ITER (hh, c->nodes, r, next)
        any |= is_away(r);
    pthread_rwlock_unlock(&c->nodes_lock);
    return any;
}

/* One round; when the next is to follow. */
static uint64_t keeper_tend(struct tarn_client *c)
{
    bool amiss = nodes_tend(c); /* first: calls may be waiting for it */

    if (keeper_stopped(&c->monitor))
        return UINT64_MAX;
    if (tarn_now_ns() - atomic_load(&c->refreshed_ns) >= REFRESH_NS)
        tarn_remotes_refresh(c, tarn_deadline(500));
    amiss |= owed_tend(&c->monitor);
    amiss |= tarn_monitor_errands(&c->monitor);
    if (amiss)
        return tarn_now_ns() + TICK_NS;
    return any_away(c) ? tarn_now_ns() + AWAY_TICK_NS : UINT64_MAX;
}

/* Until somebody calls or the time has come. The lock is held. */
static void keeper_sleep(struct tarn_monitor *m, uint64_t until_ns)
{
    if (m->asked || m->alarmed)
        return;
    if (until_ns == UINT64_MAX)
        pthread_cond_wait(&m->wake, &m->lock);
    else
        tarn_cond_wait(&m->wake, &m->lock, until_ns);
}

static void *keeper_main(void *arg)
{
    struct tarn_client *c = arg;
    struct tarn_monitor *m = &c->monitor;
    uint64_t tick = UINT64_MAX; /* when to look again at what is amiss */

    pthread_mutex_lock(&m->lock);
    while (!m->stop) {
        m->alarmed = false;
        pthread_mutex_unlock(&m->lock);
        uint64_t alarm = tarn_ops_expire(c);
        pthread_mutex_lock(&m->lock);
        if (m->stop)
            break;
        if (!m->asked && tarn_now_ns() < tick) {
            keeper_sleep(m, alarm < tick ? alarm : tick);
            continue;
        }
        m->asked = false;
        pthread_mutex_unlock(&m->lock);
        tick = keeper_tend(c);
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

void tarn_monitor_ask(struct tarn_client *c)
{
    struct tarn_monitor *m = &c->monitor;

    pthread_mutex_lock(&m->lock);
    m->asked = true;
    if (m->keeping)
        pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

void tarn_monitor_alarm(struct tarn_client *c)
{
    struct tarn_monitor *m = &c->monitor;

    pthread_mutex_lock(&m->lock);
    m->alarmed = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

/* --- start, stop -------------------------------------------------------------------------------- */

int tarn_monitor_start(struct tarn_client *c)
{
    struct tarn_monitor *m = &c->monitor;

    m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->wake_fd < 0)
        return tarn_fail(TARN_E_SYSTEM, "client: eventfd: %m: raise the limit of open files (ulimit -n)");
    tarn_cond_init(&m->wake);
    if (tarn_thread_start(&m->watcher, watcher_main, c) != 0)
        return tarn_fail(TARN_E_SYSTEM,
                         "client: cannot start a thread: raise the limit of processes (ulimit -u)");
    pthread_mutex_lock(&m->lock);
    m->watching = true;
    pthread_mutex_unlock(&m->lock);
    if (tarn_thread_start(&m->keeper, keeper_main, c) != 0)
        return tarn_fail(TARN_E_SYSTEM,
                         "client: cannot start a thread: raise the limit of processes (ulimit -u)");
    pthread_mutex_lock(&m->lock);
    m->keeping = true;
    pthread_mutex_unlock(&m->lock);
    return 0;
}

void tarn_monitor_stop(struct tarn_client *c)
{
    struct tarn_monitor *m = &c->monitor;

    if (m->wake_fd < 0)
        return;
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    poke(m);
    if (m->watching)
        pthread_join(m->watcher, NULL);
    if (m->keeping)
        pthread_join(m->keeper, NULL);
    m->watching = m->keeping = false;
    tarn_monitor_errands_end(m);
    while (m->owing) {
        struct tarn_call *call = m->owing;
        m->owing = call->next;
        tarn_call_drop(call);
    }
    pthread_cond_destroy(&m->wake);
    close(m->wake_fd);
}
