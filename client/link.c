/* SPDX-License-Identifier: Apache-2.0 */
#include "client/link.h"

#include <stdlib.h>
#include <unistd.h>
#include <utlist.h>

#include "base/thread.h"
#include "client/alert.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/health.h"
#include "client/owed_command.h"
#include "client/peer_nodes.h"
#include "client/retire.h"
#include "client/side.h"
#include "transport/faulty/faulty.h"

#define IDLE_MAX 16
#define RETRY_NS (2 * TARN_NS_PER_S)
#define RETRY_ALONE_NS TARN_PATIENCE_NS   /* of the last transport: callers wait for it */
#define OPEN_NS TARN_NS_PER_S             /* a healthy, near node answers each step of opening by then */
#define OPEN_STEPS 4                      /* connect, HELLO, ATTACH, the transport's own */
#define ELSEWHERE_NS (30 * TARN_NS_PER_S) /* before a node of another host is tried as a local one again */
#define TEND_NS (200 * TARN_NS_PER_MS)
/* With another transport to turn to, the network may take this long besides round trips. It usually answers
 * within a few milliseconds. */
#define NETWORK_PATIENCE_NS (50 * TARN_NS_PER_MS)
#define NETWORK_TRIPS 2 /* connecting, and a first answer */

/* True: the node has answered. Else the keeper repeats the command. */
static bool detach(struct tarn_peer_node *node, const char *transport, uint64_t id, uint64_t deadline_ns,
                   struct tarn_cancel *cancel)
{
    struct tarn_command c = {.n = 0};
    redisReply *reply;

    tarn_command_strs(&c, "DETACH", transport, NULL);
    tarn_command_gen(&c, id);
    if (tarn_now_ns() < deadline_ns && tarn_control_conn_call(node, &c, deadline_ns, cancel, &reply) == 0) {
        freeReplyObject(reply);
        tarn_command_free(&c);
        return true;
    }
    tarn_owed_command_add(node, &c);
    return false;
}

bool tarn_link_close(struct tarn_open_link *l, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_peer_node *node = l->side->node;
    uint64_t id = l->link->id;
    const char *transport = l->ops->name;

    tarn_link_free(l);
    return id == 0 || detach(node, transport, id, deadline_ns, cancel);
}

/* What a node or CUDA said (BUSY, AUTH) explains more than that a transport does not reach. */
int tarn_link_unreachable(struct tarn_peer_node *node, bool write, uint32_t gpu)
{
    int rc =
        tarn_peer_node_fail(node, TARN_E_NOT_REACHABLE, "no transport of this client %s: see `tarn info`",
                            gpu     ? "moves GPU memory to and from the pool"
                            : write ? "writes to the pool"
                                    : "reaches the pool");

    pthread_mutex_lock(&node->lock);
    for (int t = 0; t < node->client->ntransports && rc == TARN_E_NOT_REACHABLE; t++) {
        const struct tarn_side *s = &node->sides[t][write];
        bool elsewhere = s->code == TARN_E_NOT_REACHABLE && (s->ops->caps & TARN_CAP_SAME_HOST);
        if (s->code != 0 && !elsewhere)
            rc = tarn_reason_fail(&s->why);
    }
    pthread_mutex_unlock(&node->lock);
    return rc;
}

/* --- attaching ---------------------------------------------------------------------------------- */

int tarn_link_ask_node(struct tarn_peer_node *node, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_steps steps = {.deadline_ns = deadline_ns, .patience_ns = tarn_peer_node_patience(node)};
    struct tarn_control_conn *other = NULL;
    int rc = tarn_control_conn_connect(node, &steps, cancel, &other);

    tarn_control_conn_give(other);
    return rc == TARN_E_BUSY ? 0 : rc; /* BUSY is an answer, too */
}

/* The node answers, but not to ATTACH; or the network does not answer. BUSY: not for long yet. */
static int silent(struct tarn_side *s, uint64_t since_ns, uint64_t patience_ns, const char *what)
{
    struct tarn_peer_node *node = s->node;
    uint64_t now = tarn_now_ns();

    pthread_mutex_lock(&node->lock);
    if (s->silent_ns == 0)
        s->silent_ns = since_ns;
    bool long_since = now - s->silent_ns >= patience_ns;
    pthread_mutex_unlock(&node->lock);
    return tarn_peer_node_fail(node, long_since || s->last ? TARN_E_NOT_REACHABLE : TARN_E_BUSY, "%s: %s",
                               s->ops->name, what);
}

/* Leaves time for another transport, if there is one. */
static uint64_t wait_until(const struct tarn_side *s, uint64_t since_ns, uint64_t patience_ns,
                           uint64_t deadline_ns)
{
    uint64_t left = deadline_ns > since_ns ? deadline_ns - since_ns : 0;

    if (s->last)
        return deadline_ns;
    return since_ns + (left / 2 < patience_ns ? left / 2 : patience_ns);
}

static int wait_attached(struct tarn_control_conn *conn, struct tarn_side *s, uint64_t deadline_ns,
                         struct tarn_cancel *cancel, redisReply **reply_p)
{
    struct tarn_peer_node *node = s->node;
    uint64_t since = conn->since_ns, patience = tarn_peer_node_patience(node);
    uint64_t until = wait_until(s, since, patience, deadline_ns);
    int rc = tarn_control_conn_reply(conn, until, cancel, reply_p);

    if (rc != TARN_E_TIMEOUT || !conn->replies_due || s->last)
        return rc;
    rc = tarn_link_ask_node(node, deadline_ns, cancel);
    if (rc != 0)
        return rc;
    /* If the node was only paused, both answers have come. */
    rc = tarn_control_conn_reply(conn, tarn_now_ns(), cancel, reply_p);
    if (rc != TARN_E_TIMEOUT || !conn->replies_due)
        return rc;
    return silent(s, since, patience, "ATTACH is not answered, though the node answers: are its ports up?");
}

/* The answer is the text in *reply_p and descriptors in fds. */
static int attach(struct tarn_control_conn *conn, struct tarn_side *s, const char *offer,
                  uint64_t deadline_ns, struct tarn_cancel *cancel, redisReply **reply_p, int *fds,
                  uint32_t *nfds)
{
    const char *transport = s->ops->name;
    const struct tarn_command *c =
        tarn_resp_command(conn->resp, "ATTACH", transport, s->write ? "w" : "r", *offer ? offer : NULL, NULL);
    redisReply *reply;
    int rc = tarn_control_conn_send(conn, c, deadline_ns, cancel);

    if (rc == 0)
        rc = wait_attached(conn, s, deadline_ns, cancel, &reply);
    if (rc != 0)
        return rc;
    *nfds = (uint32_t)tarn_resp_take_fds(conn->resp, fds, TARN_RESP_FDS_MAX);
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements >= 1 && reply->element[0]->str) {
        *reply_p = reply;
        return 0;
    }
    freeReplyObject(reply);
    return tarn_peer_node_fail(conn->node, TARN_E_PROTOCOL,
                               "ATTACH %s: not an answer: is it of another version?", transport);
}

static int connect_once(struct tarn_open_link *l, struct tarn_peer *peer)
{
    struct tarn_client *c = l->side->node->client;

    l->ops = l->side->ops;
    if (c->faulty)
        return tarn_faulty_connect(c->faulty, l->side->ops, peer, &l->link, &l->ops);
    return l->ops->connect(peer, &l->link);
}

/* Ends a connect that is still in progress. */
static void give_up(struct tarn_open_link *l)
{
    uint64_t id = l->link->id;

    l->ops->close(l->link);
    if (id != 0)
        detach(l->side->node, l->ops->name, id, 0, NULL); /* nothing was written */
}

/* The transport's own connection is silent. When the node answers, another transport has its turn. */
static int not_connected(struct tarn_side *s, uint64_t since, uint64_t deadline_ns,
                         struct tarn_cancel *cancel)
{
    int rc = tarn_link_ask_node(s->node, deadline_ns, cancel);

    return rc ? rc
              : silent(s, since, tarn_peer_node_patience(s->node),
                       "its connection is not answered, though the node answers: are its ports up?");
}

static int connect_link(struct tarn_open_link *l, struct tarn_peer *peer)
{
    struct tarn_peer_node *node = l->side->node;
    bool same_host = l->side->ops->caps & TARN_CAP_SAME_HOST;
    uint64_t since = tarn_now_ns(), deadline = peer->deadline_ns;
    uint64_t patience = NETWORK_PATIENCE_NS + NETWORK_TRIPS * tarn_patience_rtt(&node->patience);
    int rc;

    if (same_host) /* no network; but the GPU driver may take seconds to start */
        patience = UINT64_MAX;

    peer->deadline_ns = wait_until(l->side, since, patience, peer->deadline_ns);
    do
        rc = connect_once(l, peer);
    while (rc == TARN_INPROGRESS && tarn_now_ns() < peer->deadline_ns && !tarn_cancel_ask(peer->cancel));
    if (rc == TARN_E_TIMEOUT && !l->side->last)
        return not_connected(l->side, since, deadline, peer->cancel);
    if (rc != TARN_INPROGRESS)
        return rc;
    give_up(l);
    if (tarn_canceled(peer->cancel))
        return tarn_cancel_fail();
    if (same_host)
        return tarn_fail(TARN_E_BUSY,
                         "node %s: %s: the GPU driver is still starting: raise timeout_ms of the first "
                         "operation",
                         node->key.id, l->side->ops->name);
    return silent(l->side, since, patience,
                  "the network does not say where the node is: is its address up, and reached from here?");
}

/* asked: the steps that the node answers; steps: those of the network. */
static int open_on(struct tarn_control_conn *conn, struct tarn_steps *asked, struct tarn_steps *steps,
                   struct tarn_cancel *cancel, struct tarn_open_link *l)
{
    struct tarn_side *s = l->side;
    struct tarn_peer_node *node = s->node;
    const struct tarn_transport_ops *ops = s->ops;
    int fds[TARN_RESP_FDS_MAX];
    char offer[TARN_OFFER_TEXT];
    redisReply *answer = NULL;
    struct tarn_peer peer = {.log = &node->client->log,
                             .node = node->key.id,
                             .session = node->client->session,
                             .local = node->client->locals[s->transport],
                             .write = s->write,
                             .fds = fds,
                             .alone = s->last,
                             .windows = atomic_load(&node->lends),
                             .deadline_ns = steps->deadline_ns,
                             .cancel = cancel,
                             .patience_ns = steps->patience_ns};

    pthread_mutex_lock(&node->lock);
    peer.tick_base_ns = node->tick_base_ns;
    pthread_mutex_unlock(&node->lock);
    l->link = NULL;
    int rc = ops->offer(&peer, offer, &l->link);
    if (rc == 0)
        rc = attach(conn, s, offer, tarn_step(asked), cancel, &answer, fds, &peer.nfds);
    if (rc == 0) {
        tarn_step(asked);
        peer.text = answer->element[0]->str;
        rc = connect_link(l, &peer);
        freeReplyObject(answer);
    } else if (l->link) {
        ops->close(l->link);
    }
    for (uint32_t i = 0; i < peer.nfds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (rc == 0 && s->write && !l->link->writable) {
        l->ops->close(l->link);
        rc = tarn_peer_node_fail(node, TARN_E_NOT_REACHABLE, "%s: gives no write access", ops->name);
    }
    return rc;
}

static int open_link(struct tarn_side *s, uint64_t deadline_ns, uint64_t patience_ns,
                     struct tarn_cancel *cancel, struct tarn_open_link **l_p)
{
    struct tarn_peer_node *node = s->node;
    enum tarn_control_conn_kind kind =
        s->ops->caps & TARN_CAP_SAME_HOST ? TARN_CONTROL_CONN_LOCAL : TARN_CONTROL_CONN_ANY;
    struct tarn_open_link *l = calloc(1, sizeof *l);
    struct tarn_control_conn *conn;
    uint64_t most = tarn_peer_node_patience(node) > OPEN_NS ? tarn_peer_node_patience(node) : OPEN_NS;
    struct tarn_steps steps = {.deadline_ns = deadline_ns, .patience_ns = patience_ns}, asked = steps;
    struct tarn_reason why;

    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: out of memory", node->key.id);
    if (asked.patience_ns > most)
        asked.patience_ns = most;
    int rc = tarn_control_conn_take_in(node, kind, &asked, cancel, &conn);
    if (rc != 0) {
        free(l);
        return rc;
    }
    l->side = s;
    l->term = conn->term;
    tarn_reason_keep(&why, rc = open_on(conn, &asked, &steps, cancel, l));
    /* Closing it also tells the node that nobody waits for the answer. */
    if (rc == TARN_E_NODE_DOWN || rc == TARN_E_TIMEOUT || conn->replies_due)
        tarn_control_conn_drop(conn);
    else if (s->write) /* this thread soon takes it again for COMMIT */
        tarn_control_conn_rest(conn);
    else
        tarn_control_conn_give(conn);
    tarn_peer_node_failed(node, rc, why.text, asked.since_ns);
    if (rc != 0) {
        free(l);
        return tarn_reason_fail(&why);
    }
    *l_p = l;
    return 0;
}

/* --- sides -------------------------------------------------------------------------------------- */

/* Sets the side aside for so long; the last error says why. The node's lock is held. */
static void side_aside(struct tarn_side *s, int rc, uint64_t rest_ns)
{
    s->code = tarn_reason_keep(&s->why, rc);
    s->retry_ns = tarn_now_ns() + rest_ns;
    atomic_store(&s->state, TARN_SIDE_UNREACHABLE);
}

/* The node's lock is held. */
static void not_opened(struct tarn_side *s, int rc)
{
    bool local_only = (s->ops->caps & TARN_CAP_SAME_HOST) != 0;

    side_aside(s, rc, RETRY_NS);
    if (local_only && rc == TARN_E_NOT_REACHABLE && s->silent_ns == 0)
        s->retry_ns += ELSEWHERE_NS - RETRY_NS;
    else if (tarn_side_awaited(s))
        s->retry_ns -= RETRY_NS - RETRY_ALONE_NS;
}

/* first: this thread's link takes the side out of OPENING. Else it is one more link of a pooled side. */
static void opened(struct tarn_side *s, int rc, struct tarn_open_link *l, bool first)
{
    struct tarn_peer_node *node = s->node;
    bool nothing =
        rc == TARN_E_NODE_DOWN || rc == TARN_E_TIMEOUT || rc == TARN_E_CANCELED || rc == TARN_E_BUSY;

    pthread_mutex_lock(&node->lock);
    if (rc != 0 && !nothing) {
        not_opened(s, rc);
    } else if (first) {
        bool shared = rc == 0 && (l->ops->caps & TARN_CAP_SHARED);
        if (shared)
            atomic_store(&s->shared, l);
        s->code = 0;
        atomic_store(&s->state, shared ? TARN_SIDE_SHARED : rc == 0 ? TARN_SIDE_POOLED : TARN_SIDE_UNKNOWN);
    }
    if (rc == 0)
        s->silent_ns = 0;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
}

/* The node's lock is held. */
static struct tarn_open_link *pop_idle(struct tarn_side *s)
{
    struct tarn_open_link *l = s->idle;

    if (l) {
        s->idle = l->next;
        s->nidle--;
    }
    return l;
}

struct tarn_open_link *tarn_link_take_idle(struct tarn_side *s)
{
    if (atomic_load(&s->node->health) != TARN_UP)
        return NULL;
    pthread_mutex_lock(&s->node->lock);
    struct tarn_open_link *l = pop_idle(s);
    pthread_mutex_unlock(&s->node->lock);
    return l;
}

/* Fails when the wait for a side must end. */
static int still_waiting(const struct tarn_side *s, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    const struct tarn_peer_node *node = s->node;

    if (tarn_canceled(cancel))
        return tarn_cancel_fail();
    if (atomic_load(&node->health) != TARN_UP)
        return tarn_fail(TARN_E_NODE_DOWN, "node %s: set aside, it does not answer: look at the node",
                         node->key.id);
    if (tarn_now_ns() < deadline_ns)
        return 0;
    if (s->code)
        return tarn_fail(TARN_E_TIMEOUT, "%s", s->why.text);
    return tarn_fail(TARN_E_TIMEOUT, "node %s: still being connected to by another thread", node->key.id);
}

/* Waits while another thread opens the side, or until the last transport's side may be tried again. The
 * node's lock is held. */
static int wait_opened(struct tarn_side *s, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    int rc = 0;

    for (;;) {
        bool resting = tarn_side_rests(s, tarn_now_ns()), awaited = resting && tarn_side_awaited(s);
        if (!awaited && (resting || atomic_load(&s->state) != TARN_SIDE_OPENING))
            return 0;
        if ((rc = still_waiting(s, deadline_ns, cancel)) != 0)
            return rc;
        uint64_t until = tarn_now_ns() + TARN_WAIT_SLICE_MS * TARN_NS_PER_MS;
        if (awaited && s->retry_ns < until)
            until = s->retry_ns;
        tarn_cancel_cond(cancel, &s->node->changed, &s->node->lock,
                         until < deadline_ns ? until : deadline_ns);
    }
}

/* 0 with *l_p (NULL when shared). TARN_INPROGRESS: the caller must open a link; *first: it also takes the
 * side out of OPENING. The node's lock is held. */
static int look(struct tarn_side *s, uint64_t deadline_ns, struct tarn_cancel *cancel,
                struct tarn_open_link **l_p, bool *first)
{
    *first = false;
    if ((*l_p = pop_idle(s)) != NULL)
        return 0;
    int rc = wait_opened(s, deadline_ns, cancel);
    if (rc != 0 || (*l_p = pop_idle(s)) != NULL)
        return rc;
    if (tarn_side_rests(s, tarn_now_ns()))
        return tarn_reason_fail(&s->why);
    switch (atomic_load(&s->state)) {
    case TARN_SIDE_SHARED:
        return 0;
    case TARN_SIDE_POOLED:
        return TARN_INPROGRESS;
    default:
        *first = true;
        atomic_store(&s->state, TARN_SIDE_OPENING);
        return TARN_INPROGRESS;
    }
}

/* Another thread that opens the side has all steps before it. */
static uint64_t others_until(uint64_t deadline_ns, uint64_t patience_ns)
{
    uint64_t now = tarn_now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;

    return patience_ns < left / OPEN_STEPS ? now + OPEN_STEPS * patience_ns : deadline_ns;
}

/* One try. */
static int take(struct tarn_side *s, uint64_t deadline_ns, uint64_t patience_ns, struct tarn_cancel *cancel,
                struct tarn_open_link **l_p, bool *fresh_p)
{
    struct tarn_open_link *l;
    bool first;

    pthread_mutex_lock(&s->node->lock);
    int rc = look(s, others_until(deadline_ns, patience_ns), cancel, &l, &first);
    pthread_mutex_unlock(&s->node->lock);
    *fresh_p = rc == TARN_INPROGRESS;
    if (rc == TARN_INPROGRESS) {
        rc = open_link(s, deadline_ns, patience_ns, cancel, &l);
        /* opened() publishes a shared link; from then on it may be reaped at any time. */
        bool shared = rc == 0 && first && (l->ops->caps & TARN_CAP_SHARED);
        opened(s, rc, l, first);
        if (shared)
            l = NULL;
    }
    if (rc == 0)
        *l_p = l;
    return rc;
}

int tarn_link_take(struct tarn_side *s, uint64_t deadline_ns, uint64_t patience_ns,
                   struct tarn_cancel *cancel, struct tarn_open_link **l_p, bool *fresh_p)
{
    int rc;

    if (atomic_load(&s->node->health) != TARN_UP && atomic_load(&s->state) != TARN_SIDE_SHARED)
        return tarn_peer_node_fail(s->node, TARN_E_NODE_DOWN,
                                   "set aside, it does not answer: look at the node");
    for (bool again = true; again;) {
        rc = take(s, deadline_ns, patience_ns, cancel, l_p, fresh_p);
        again = rc == TARN_E_NOT_REACHABLE && tarn_side_awaited(s);
    }
    return rc;
}

bool tarn_link_lost(struct tarn_side *s, uint32_t pool, uint32_t gpu, const char *cause)
{
    struct tarn_peer_node *node = s->node;
    uint64_t now = tarn_now_ns();
    bool other = false;

    for (int t = 0; t < node->client->ntransports && !other; t++) {
        struct tarn_side *o = &node->sides[t][s->write];
        other = o != s && tarn_side_moves(o, pool, gpu) && tarn_side_usable(o, now) && !tarn_side_awaited(o);
    }
    if (!other || atomic_load(&s->state) == TARN_SIDE_SHARED)
        return false;
    tarn_log(&node->client->log, TARN_LOG_WARN, "client",
             "msg=\"transport set aside\" node=%s transport=%s cause=\"%s\"", node->key.id, s->ops->name,
             cause);
    pthread_mutex_lock(&node->lock);
    side_aside(s, TARN_E_NOT_REACHABLE, RETRY_NS);
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
    tarn_link_flush(s);
    tarn_peer_node_doubt(node);
    return true;
}

void tarn_link_silent(struct tarn_side *s, const struct tarn_work *w, uint64_t since_ns, uint64_t quiet_ns,
                      const char *cause)
{
    bool long_since = tarn_now_ns() - quiet_ns >= tarn_peer_node_patience(s->node);

    if (!long_since || !tarn_link_lost(s, w->pool, w->gpu, cause))
        tarn_peer_node_failed(s->node, TARN_E_TIMEOUT, cause, since_ns);
}

/* Notes that a link was used; wakes the keeper only when no note is pending. */
static void used(struct tarn_client *c)
{
    _Atomic int *links = &c->monitor.links;

    if (atomic_load_explicit(links, memory_order_relaxed) != TARN_LINKS_USED &&
        atomic_exchange(links, TARN_LINKS_USED) == TARN_LINKS_TENDED)
        tarn_monitor_alarm(c);
}

void tarn_link_give(struct tarn_open_link *l)
{
    struct tarn_side *s = l->side;
    struct tarn_peer_node *node = s->node;

    pthread_mutex_lock(&node->lock);
    bool keep = s->nidle < IDLE_MAX && atomic_load(&node->health) == TARN_UP;
    if (keep) {
        l->next = s->idle;
        s->idle = l;
        s->nidle++;
    }
    pthread_mutex_unlock(&node->lock);
    if (!keep)
        tarn_link_close(l, 0, NULL); /* nothing is being written */
    else if (!s->write && (s->ops->caps & TARN_CAP_ONE_SIDED))
        used(node->client);
}

static void tend_idle(struct tarn_peer_node *node)
{
    pthread_mutex_lock(&node->lock);
    for (int t = 0; t < node->client->ntransports; t++)
        for (struct tarn_open_link *l = node->sides[t][0].idle; l; l = l->next)
            l->ops->progress(l->link); /* the next user finds out that a link is broken */
    pthread_mutex_unlock(&node->lock);
}

uint64_t tarn_links_tend(struct tarn_client *c)
{
    struct tarn_monitor *m = &c->monitor;
    struct tarn_peer_node *node, *next;
    uint64_t now = tarn_now_ns();

    if (atomic_load(&m->links) == TARN_LINKS_TENDED)
        return UINT64_MAX;
    if (m->links_ns == 0)
        m->links_ns = now + TEND_NS;
    if (now < m->links_ns)
        return m->links_ns;
    /* One more round after the last use: work put off just before this one is not due yet. */
    bool again = atomic_exchange(&m->links, TARN_LINKS_RESTING) == TARN_LINKS_USED;
    pthread_rwlock_rdlock(&c->nodes_lock);
    HASH_ITER (hh, c->nodes, node, next)
        tend_idle(node);
    pthread_rwlock_unlock(&c->nodes_lock);
    int resting = TARN_LINKS_RESTING;
    bool over = !again && atomic_compare_exchange_strong(&m->links, &resting, TARN_LINKS_TENDED);
    m->links_ns = over ? 0 : now + TEND_NS;
    return over ? UINT64_MAX : m->links_ns;
}

void tarn_link_flush(struct tarn_side *s)
{
    struct tarn_open_link *l, *next;

    pthread_mutex_lock(&s->node->lock);
    struct tarn_open_link *idle = s->idle;
    s->idle = NULL;
    s->nidle = 0;
    pthread_mutex_unlock(&s->node->lock);
    LL_FOREACH_SAFE(idle, l, next)
    tarn_link_close(l, 0, NULL);
}

void tarn_link_lend(struct tarn_open_link *l)
{
    struct tarn_peer_node *node = l->side->node;
    struct tarn_open_link *none = NULL;

    pthread_mutex_lock(&node->lock);
    bool lent =
        atomic_load(&node->health) == TARN_UP && atomic_compare_exchange_strong(&l->side->shared, &none, l);
    pthread_mutex_unlock(&node->lock);
    if (!lent)
        tarn_link_give(l);
}
