/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Health. Two threads, both asleep while all is well:
 *
 *   watcher  polls one idle control connection of each node. When it ends, the node's process is gone
 *            (or has thrown us out): its descriptors are void from that moment on. It does nothing else,
 *            so that it sees the end within microseconds.
 *   keeper   asks nodes that were set aside whether they answer again (with back-off), and those that are
 *            doubted whether they still do; reads the node table while something is missing, closes retired
 *            links once nobody is inside, reads the replies that nobody waits for any more (late_reply.c),
 * runs owed commands (owed_command.c), ends queued operations that are out of time, and has links that are
 * not used any more send what they have put off. Suspects come first, since calls wait for its word on them;
 * then the doubted, since calls still run into them.
 */
#include "client/monitor.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/thread.h"
#include "client/control_conn.h"
#include "client/health.h"
#include "client/late_reply.h"
#include "client/link.h"
#include "client/op.h"
#include "client/owed_command.h"
#include "client/refresh.h"
#include "client/retire.h"

#define BACKOFF_MIN_NS (25 * TARN_NS_PER_MS)
#define BACKOFF_MAX_NS (2 * TARN_NS_PER_S)
#define TICK_NS (25 * TARN_NS_PER_MS) /* while something is amiss */
#define REFRESH_NS TARN_NS_PER_S
#define REFRESH_TRIPS 5                  /* connecting, login, and the node table's three */
#define AWAY_TICK_NS (2 * TARN_NS_PER_S) /* while only nodes that left the directory are */

/* --- watcher ------------------------------------------------------------------------------------ */

struct watched {
    struct pollfd *fds; /* [0] is the wake descriptor */
    struct tarn_peer_node **nodes;
    nfds_t n;
    uint64_t watches; /* of the monitor when this was built */
};

/* Builds the poll set anew; on lack of memory the old one stays. */
static void watched_build(struct tarn_client *c, struct watched *w)
{
    struct tarn_peer_node *node, *next;

    pthread_rwlock_rdlock(&c->nodes_lock);
    size_t room = HASH_COUNT(c->nodes) + 1;
    struct pollfd *fds = calloc(room, sizeof *fds);
    struct tarn_peer_node **nodes = calloc(room, sizeof *nodes);
    if (fds && nodes) {
        free(w->fds);
        free(w->nodes);
        *w = (struct watched){.fds = fds, .nodes = nodes, .n = 1};
        fds[0] = (struct pollfd){.fd = c->monitor.wake_fd, .events = POLLIN};
        pthread_mutex_lock(&c->monitor.lock);
        w->watches = c->monitor.watches;
        HASH_ITER (hh, c->nodes, node, next) {
            if (!node->watch)
                continue;
            nodes[w->n] = node;
            fds[w->n++] =
                (struct pollfd){.fd = tarn_resp_fd(node->watch->resp), .events = POLLIN | POLLRDHUP};
        }
        pthread_mutex_unlock(&c->monitor.lock);
    } else {
        free(fds);
        free(nodes);
    }
    pthread_rwlock_unlock(&c->nodes_lock);
}

static void watch_ended(struct tarn_client *c, struct tarn_peer_node *node)
{
    pthread_mutex_lock(&c->monitor.lock);
    struct tarn_control_conn *conn = node->watch;
    node->watch = NULL;
    c->monitor.watches++;
    pthread_mutex_unlock(&c->monitor.lock);
    tarn_peer_node_aside(node, TARN_GONE, "its control connection ended");
    if (conn)
        tarn_control_conn_drop(conn);
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
                watch_ended(c, w.nodes[i]);
    }
    free(w.fds);
    free(w.nodes);
    return NULL;
}

/* --- keeper: nodes ------------------------------------------------------------------------------ */

/*
 * A node that kept silent for so long that its record expired. It may come back as it was, so it is asked,
 * though seldom; of one whose connection broke, another incarnation or a new record will tell.
 */
static bool is_away(const struct tarn_peer_node *node)
{
    return atomic_load(&node->health) == TARN_SLOW && !atomic_load(&node->listed) &&
           !atomic_load(&node->superseded);
}

static bool is_due(const struct tarn_peer_node *node)
{
    if (atomic_load(&node->health) == TARN_UP || atomic_load(&node->superseded))
        return false;
    return atomic_load(&node->suspect) ||
           ((atomic_load(&node->listed) || is_away(node)) && tarn_now_ns() >= node->probe_ns);
}

/* Impatient callers doubt all the time: a node that answers is not asked again at once. */
static bool is_doubted(const struct tarn_peer_node *node)
{
    return atomic_load(&node->doubted) && atomic_load(&node->health) == TARN_UP &&
           tarn_now_ns() >= node->probe_ns;
}

/* was_suspect: when it was asked. A suspicion that has come up since is asked about anew. */
static void probe_failed(struct tarn_peer_node *node, int rc, bool was_suspect)
{
    bool again = atomic_load(&node->suspect) && !was_suspect;

    if (atomic_load(&node->health) == TARN_UP && rc == TARN_E_NODE_DOWN)
        tarn_peer_node_aside(node, TARN_GONE, tarn_last_error());
    else if (atomic_load(&node->health) == TARN_UP && rc == TARN_E_TIMEOUT)
        tarn_peer_node_aside(node, TARN_SLOW, tarn_last_error());
    node->backoff_ns = node->backoff_ns ? node->backoff_ns * 2 : BACKOFF_MIN_NS;
    if (node->backoff_ns > BACKOFF_MAX_NS)
        node->backoff_ns = BACKOFF_MAX_NS;
    node->probe_ns = tarn_now_ns() + node->backoff_ns;
    if (!again)
        tarn_peer_node_judged(node, false);
}

/* A node of another host that has not answered is given up to twice the time: it may be farther away than it
 * was. */
static struct tarn_steps probe_steps(const struct tarn_peer_node *node)
{
    uint64_t patience = tarn_peer_node_patience(node);
    uint64_t more = atomic_load(&node->near) ? 0 : node->backoff_ns < patience ? node->backoff_ns : patience;

    return (struct tarn_steps){.deadline_ns = UINT64_MAX, .patience_ns = patience + more};
}

/* BUSY, too, is an answer: what it is about is for the calls to say. */
static void probe(struct tarn_peer_node *node)
{
    int was = atomic_load(&node->health);
    bool was_suspect = atomic_load(&node->suspect);
    struct tarn_control_conn *conn = NULL;
    struct tarn_steps steps = probe_steps(node);
    int rc = tarn_control_conn_connect(node, &steps, NULL, &conn);

    atomic_store(&node->doubted, false);
    if (rc != 0 && rc != TARN_E_BUSY) {
        probe_failed(node, rc, was_suspect);
        return;
    }
    node->probe_ns = tarn_now_ns() + BACKOFF_MIN_NS;
    node->backoff_ns = 0;
    if (was != TARN_UP) {
        /* The session may have ended with its last connection, and what was attached with it. */
        if (atomic_load(&node->health) == TARN_GONE)
            tarn_peer_node_retire(node);
        tarn_peer_node_judged(node, true);
        tarn_log(&node->client->log, TARN_LOG_INFO, "client", "msg=\"node answers again\" node=%s",
                 node->key.id);
    }
    tarn_control_conn_give(conn);
}

/* Copies the table's pointers, so that probing holds no lock. */
static struct tarn_peer_node **snapshot(struct tarn_client *c, size_t *n)
{
    struct tarn_peer_node *node, *next;

    *n = 0;
    pthread_rwlock_rdlock(&c->nodes_lock);
    struct tarn_peer_node **all = malloc((HASH_COUNT(c->nodes) + 1) * sizeof *all);
    if (all)
        HASH_ITER (hh, c->nodes, node, next)
            all[(*n)++] = node;
    pthread_rwlock_unlock(&c->nodes_lock);
    return all;
}

/* True when something is still amiss with it. */
static bool node_tend(struct tarn_peer_node *node)
{
    if (is_due(node) || is_doubted(node))
        probe(node);
    if (atomic_load(&node->superseded))
        tarn_peer_node_aside(node, TARN_GONE, "another incarnation has its place");
    if (atomic_load(&node->superseded) && atomic_load(&node->suspect))
        tarn_peer_node_judged(node, false);
    bool up = atomic_load(&node->health) == TARN_UP;
    bool amiss =
        up ? atomic_load(&node->doubted) : atomic_load(&node->listed) && !atomic_load(&node->superseded);
    return !tarn_peer_node_reap(node) || amiss;
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

static bool is_suspect(const struct tarn_peer_node *node)
{
    return atomic_load(&node->suspect);
}

static bool is_any(const struct tarn_peer_node *node)
{
    (void)node;
    return true;
}

struct round {
    struct tarn_monitor *monitor;
    struct tarn_peer_node **nodes;
    size_t n;
    bool amiss;
};

/* Looks after those that `which` is true of. False: not all, the keeper is wanted elsewhere. A probe takes
 * its time, so after one of a node that nobody waits for (`yield`) new suspects have their turn. */
static bool round_of(struct round *o, bool (*which)(const struct tarn_peer_node *), bool yield)
{
    bool probed = false;

    for (size_t i = 0; i < o->n; i++) {
        if (!which(o->nodes[i]))
            continue;
        probed |= is_due(o->nodes[i]) || is_doubted(o->nodes[i]);
        o->amiss |= node_tend(o->nodes[i]);
        if (yield ? probed && keeper_called(o->monitor) : keeper_stopped(o->monitor))
            return false;
    }
    return true;
}

/* Looks after all nodes; true when something is still amiss. */
static bool nodes_tend(struct tarn_client *c)
{
    struct round o = {.monitor = &c->monitor};

    o.nodes = snapshot(c, &o.n);
    bool all =
        round_of(&o, is_suspect, false) && round_of(&o, is_doubted, true) && round_of(&o, is_any, true);
    free(o.nodes);
    return o.amiss || !all;
}

static bool any_away(struct tarn_client *c)
{
    struct tarn_peer_node *node, *next;
    bool any = false;

    pthread_rwlock_rdlock(&c->nodes_lock);
    HASH_ITER (hh, c->nodes, node, next)
        any |= is_away(node);
    pthread_rwlock_unlock(&c->nodes_lock);
    return any;
}

static uint64_t refresh_deadline(const struct tarn_client *c)
{
    return tarn_deadline(500) + REFRESH_TRIPS * tarn_directory_rtt_ns(c->directory);
}

/* One round; when the next is to follow. */
static uint64_t keeper_tend(struct tarn_client *c)
{
    bool amiss = nodes_tend(c); /* first: calls may be waiting for it */

    if (keeper_stopped(&c->monitor))
        return UINT64_MAX;
    if (tarn_now_ns() - atomic_load(&c->refreshed_ns) >= REFRESH_NS)
        tarn_peer_nodes_refresh(c, refresh_deadline(c), NULL);
    amiss |= tarn_late_replies_read(&c->monitor);
    amiss |= tarn_owed_commands_run(&c->monitor);
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
        uint64_t expire = tarn_ops_expire(c), tend = tarn_links_tend(c);
        uint64_t alarm = expire < tend ? expire : tend;
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
    eventfd_write(m->wake_fd, 1);
    if (m->watching)
        pthread_join(m->watcher, NULL);
    if (m->keeping)
        pthread_join(m->keeper, NULL);
    m->watching = m->keeping = false;
    tarn_owed_commands_end(m);
    tarn_late_replies_end(m);
    pthread_cond_destroy(&m->wake);
    close(m->wake_fd);
}
