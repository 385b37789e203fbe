/* SPDX-License-Identifier: Apache-2.0 */
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
#define TICK_NS (25 * TARN_NS_PER_MS) /* between rounds while something is amiss */
#define REFRESH_NS TARN_NS_PER_S
#define REFRESH_TRIPS 5                  /* connecting, login, and the node table's three */
#define AWAY_TICK_NS (2 * TARN_NS_PER_S) /* between rounds while nodes are only away */

/* --- watcher ------------------------------------------------------------------------------------ */

struct watched {
    struct pollfd *fds; /* [0] is the wake descriptor */
    struct tarn_peer_node **nodes;
    nfds_t n;
    uint64_t watches; /* of the monitor when this was built */
};

/* Builds the poll set anew. Without memory the old one stays. */
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

/* Silent for so long that its record expired. It may come back as it was, so it is asked, but seldom. A node
 * whose connection broke is not away: another incarnation or a new record tells what became of it. */
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

/* Impatient callers may doubt all the time, so a node that answered is not asked again at once. */
static bool is_doubted(const struct tarn_peer_node *node)
{
    return atomic_load(&node->doubted) && atomic_load(&node->health) == TARN_UP &&
           tarn_now_ns() >= node->probe_ns;
}

/* was_suspect: before it was asked. A newer suspicion is asked about again. */
static void probe_failed(struct tarn_peer_node *node, const struct tarn_reason *why, bool was_suspect)
{
    bool again = atomic_load(&node->suspect) && !was_suspect;

    if (atomic_load(&node->health) == TARN_UP)
        tarn_peer_node_failed(node, why->code, why->text, 0); /* 0: it had its patience */
    node->backoff_ns = node->backoff_ns ? node->backoff_ns * 2 : BACKOFF_MIN_NS;
    if (node->backoff_ns > BACKOFF_MAX_NS)
        node->backoff_ns = BACKOFF_MAX_NS;
    node->probe_ns = tarn_now_ns() + node->backoff_ns;
    if (!again)
        tarn_peer_node_judged(node, false);
}

/* A node of another host that did not answer gets up to twice the time: it may be farther away than before.
 */
static struct tarn_steps probe_steps(const struct tarn_peer_node *node)
{
    uint64_t patience = tarn_peer_node_patience(node);
    uint64_t more = atomic_load(&node->near) ? 0 : node->backoff_ns < patience ? node->backoff_ns : patience;

    return (struct tarn_steps){.deadline_ns = UINT64_MAX, .patience_ns = patience + more};
}

/* BUSY counts as an answer. */
static void probe(struct tarn_peer_node *node)
{
    int was = atomic_load(&node->health);
    bool was_suspect = atomic_load(&node->suspect);
    struct tarn_control_conn *conn = NULL;
    struct tarn_steps steps = probe_steps(node);
    struct tarn_reason why;
    int rc = tarn_reason_keep(&why, tarn_control_conn_connect(node, &steps, NULL, &conn));

    atomic_store(&node->doubted, false);
    if (rc != 0 && rc != TARN_E_BUSY) {
        probe_failed(node, &why, was_suspect);
        return;
    }
    node->probe_ns = tarn_now_ns() + BACKOFF_MIN_NS;
    node->backoff_ns = 0;
    if (was != TARN_UP) {
        /* The session may have ended with its last connection, and its links with it. */
        if (atomic_load(&node->health) == TARN_GONE)
            tarn_peer_node_retire(node);
        tarn_peer_node_judged(node, true);
        tarn_log(&node->client->log, TARN_LOG_INFO, "client", "msg=\"node answers again\" node=%s",
                 node->key.id);
    }
    tarn_control_conn_give(conn);
}

/* Copies the pointers to all nodes, so that probing holds no lock. */
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

/* True: something is still amiss with it. */
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

/* Must the keeper end its round? yield: also when another round is wanted. */
static bool keeper_wanted(struct tarn_monitor *m, bool yield)
{
    pthread_mutex_lock(&m->lock);
    bool wanted = m->stop || (yield && m->asked);
    pthread_mutex_unlock(&m->lock);
    return wanted;
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

/* Tends the nodes that `which` is true of. False: not all, since the keeper is wanted elsewhere. A probe
 * takes time, so with `yield` new suspects have their turn after one. */
static bool round_of(struct round *o, bool (*which)(const struct tarn_peer_node *), bool yield)
{
    bool probed = false;

    for (size_t i = 0; i < o->n; i++) {
        if (!which(o->nodes[i]))
            continue;
        probed |= is_due(o->nodes[i]) || is_doubted(o->nodes[i]);
        o->amiss |= node_tend(o->nodes[i]);
        if (keeper_wanted(o->monitor, yield && probed))
            return false;
    }
    return true;
}

/* True: something is still amiss. */
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

/* One round. Returns when the next is due. */
static uint64_t keeper_tend(struct tarn_client *c)
{
    bool amiss = nodes_tend(c); /* first: calls may be waiting for it */

    if (keeper_wanted(&c->monitor, false))
        return UINT64_MAX;
    if (tarn_now_ns() - atomic_load(&c->refreshed_ns) >= REFRESH_NS)
        tarn_peer_nodes_refresh(c, refresh_deadline(c), NULL);
    amiss |= tarn_late_replies_read(&c->monitor);
    amiss |= tarn_owed_commands_run(&c->monitor);
    if (amiss)
        return tarn_now_ns() + TICK_NS;
    return any_away(c) ? tarn_now_ns() + AWAY_TICK_NS : UINT64_MAX;
}

/* Until it is woken, or until_ns. The lock is held. */
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

static int start(struct tarn_client *c, pthread_t *thread, void *(*fn)(void *), bool *runs)
{
    int rc = tarn_client_thread(thread, fn, c);

    pthread_mutex_lock(&c->monitor.lock);
    *runs = rc == 0;
    pthread_mutex_unlock(&c->monitor.lock);
    return rc;
}

int tarn_monitor_start(struct tarn_client *c)
{
    struct tarn_monitor *m = &c->monitor;
    int rc = tarn_client_eventfd(&m->wake_fd);

    if (rc != 0)
        return rc;
    tarn_cond_init(&m->wake);
    rc = start(c, &m->watcher, watcher_main, &m->watching);
    return rc ? rc : start(c, &m->keeper, keeper_main, &m->keeping);
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
