/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection carries one command at a time. So a readable socket means that the reply has begun to arrive,
 * and the wait for it can be canceled. HELLO names the session, which all of a client's connections share.
 * Its answer shows which incarnation is there; over the Unix socket also that the node is on this host.
 *
 * A wait that ends early leaves its reply outstanding. The keeper then takes the connection over
 * (late_reply.h).
 */
#include "client/control_conn.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "client/alert.h"
#include "client/client.h"
#include "client/health.h"
#include "client/peer_nodes.h"
#include "client/retire.h"

#define TARN_PROTOCOL "1"
#define IDLE_MAX 16
#define SPIN_NS 60000 /* most replies to a small put have come by then */
#define CLOCK_FRESH_NS (10 * TARN_NS_PER_S)
#define ELSEWHERE_NS (50 * TARN_NS_PER_MS)
/* A wait that begins this soon after HELLO measures the round trip. */
#define PROMPT_NS (5 * TARN_NS_PER_MS)

/* --- HELLO -------------------------------------------------------------------------------------- */

struct greeting {
    uint64_t epoch, now_ns, term, store_bytes;
};

static uint64_t number_of(const redisReply *value)
{
    uint64_t n = 0;

    if (value->type == REDIS_REPLY_INTEGER)
        return (uint64_t)value->integer;
    if (value->str)
        tarn_u64_parse(value->str, value->len, 10, UINT64_MAX, &n);
    return n;
}

static struct greeting greeting_parse(const redisReply *reply)
{
    struct greeting g = {0};

    for (size_t i = 0; i + 1 < reply->elements; i += 2) {
        const redisReply *name = reply->element[i], *value = reply->element[i + 1];
        if (!name->str)
            continue;
        if (strcmp(name->str, "epoch") == 0 && value->str)
            tarn_u64_parse(value->str, value->len, 16, UINT64_MAX, &g.epoch);
        if (strcmp(name->str, "now_ns") == 0)
            g.now_ns = number_of(value);
        if (strcmp(name->str, "term") == 0)
            g.term = number_of(value);
        if (strcmp(name->str, "store_bytes") == 0)
            g.store_bytes = number_of(value);
    }
    return g;
}

/*
 * Learns the node's clock, as if it was read when the answer came. So deadlines told to the node are early by
 * the answer's way, never late. A quicker answer is a better measure, until the clocks may have drifted
 * apart.
 */
static void clock_learn(struct tarn_peer_node *node, uint64_t asked_ns, uint64_t node_ns)
{
    uint64_t now = tarn_now_ns();

    pthread_mutex_lock(&node->lock);
    if (node->tick_learned_ns == 0 || now - asked_ns <= node->tick_error_ns ||
        now - node->tick_learned_ns > CLOCK_FRESH_NS) {
        node->tick_base_ns = now - node_ns;
        node->tick_error_ns = now - asked_ns;
        node->tick_learned_ns = now;
    }
    pthread_mutex_unlock(&node->lock);
}

uint64_t tarn_peer_node_clock(struct tarn_peer_node *node, uint64_t when_ns)
{
    pthread_mutex_lock(&node->lock);
    uint64_t base = node->tick_base_ns;
    pthread_mutex_unlock(&node->lock);
    return when_ns - base;
}

/* Waking up takes as long as a node's part in a small put. So it looks for a moment before it sleeps. */
static void spin(const struct tarn_control_conn *conn)
{
    struct pollfd fd = {tarn_resp_fd(conn->resp), POLLIN, 0};
    uint64_t until_ns = tarn_now_ns() + SPIN_NS;

    while (poll(&fd, 1, 0) == 0 && tarn_now_ns() < until_ns)
        ;
}

static int wait_reply(struct tarn_control_conn *conn, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct pollfd fds[2] = {{tarn_resp_fd(conn->resp), POLLIN, 0}, {tarn_cancel_fd(cancel), POLLIN, 0}};

    if (conn->spins)
        spin(conn);
    for (;;) {
        if (tarn_canceled(cancel))
            return tarn_cancel_fail();
        uint64_t now = tarn_now_ns(), ns = now < deadline_ns ? deadline_ns - now : 0, slice = ns;
        if (cancel && cancel->fd < 0 && slice > TARN_WAIT_SLICE_MS * TARN_NS_PER_MS)
            slice = TARN_WAIT_SLICE_MS * TARN_NS_PER_MS;
        struct timespec left = {(time_t)(slice / TARN_NS_PER_S), (long)(slice % TARN_NS_PER_S)};
        int n = ppoll(fds, 2, &left, NULL);
        if (n < 0 && errno != EINTR)
            return tarn_peer_node_fail(conn->node, TARN_E_SYSTEM, "poll: %m");
        if (n > 0 && fds[0].revents) /* also after the deadline: an answer is not silence */
            return 0;
        if (ns == 0)
            return tarn_peer_node_fail(conn->node, TARN_E_TIMEOUT,
                                       "no answer in time: raise the call's timeout or look at the node");
        if (n > 0 && fds[1].revents)
            tarn_cancel_drain(cancel);
        tarn_cancel_ask(cancel);
    }
}

/* Appends HELLO. The next flush sends it, and its answer comes before any other. */
static int say_hello(struct tarn_control_conn *conn)
{
    struct tarn_peer_node *node = conn->node;
    const char *given = atomic_load(&node->lends) ? NULL : node->client->secret;
    char session[17], published[sizeof node->secret];

    pthread_mutex_lock(&node->lock);
    memcpy(published, node->secret, sizeof published);
    pthread_mutex_unlock(&node->lock);
    conn->published = !given && published[0];
    snprintf(session, sizeof session, "%016" PRIx64, node->client->session);
    conn->hello_ns = tarn_now_ns();
    conn->greets = true;
    const char *secret = given ? given : published[0] ? published : NULL;
    return tarn_resp_append_strs(conn->resp, "HELLO", TARN_PROTOCOL, session, secret, NULL);
}

/* Another incarnation answers. Over the Unix socket that may be another host's node with the same path. */
static int restarted(struct tarn_control_conn *conn)
{
    if (!conn->local)
        atomic_store(&conn->node->superseded, true);
    return tarn_peer_node_fail(conn->node, TARN_E_NODE_DOWN, "was restarted; what it held is gone");
}

static int take_greeting(struct tarn_control_conn *conn, const redisReply *reply)
{
    struct tarn_peer_node *node = conn->node;
    struct tarn_reason why;
    int rc = tarn_reason_keep(&why, tarn_peer_node_error(node, reply));

    if (rc == TARN_E_AUTH && conn->published) /* the node makes a new secret at each start */
        return restarted(conn);
    if (rc == TARN_E_AUTH && node->client->secret_of_env)
        return tarn_fail(rc, "%s; TARN_SECRET is set in the environment", why.text);
    if (rc != 0)
        return rc;
    struct greeting g = greeting_parse(reply);
    if (g.epoch == 0)
        return tarn_peer_node_fail(node, TARN_E_PROTOCOL,
                                   "the answer to HELLO has no epoch: is that address a tarnd?");
    if ((uint32_t)g.epoch != node->key.epoch)
        return restarted(conn);
    if (conn->local)
        atomic_store(&node->local, true);
    conn->term = g.term;
    clock_learn(node, conn->hello_ns, g.now_ns);
    atomic_store(&node->store_bytes, g.store_bytes);
    return 0;
}

/*
 * Waits for a reply and reads it. `here`: it may have been received already. CANCELED, TIMEOUT: it is still
 * outstanding, perhaps received in part. After other errors the connection is useless.
 */
static int take_reply(struct tarn_control_conn *conn, bool here, uint64_t deadline_ns,
                      struct tarn_cancel *cancel, redisReply **reply_p)
{
    int rc = here ? tarn_resp_try(conn->resp, reply_p) : TARN_E_AGAIN;

    for (bool late = false; rc == TARN_E_AGAIN;) {
        if (late) /* a peer that never ends is given up, too */
            return tarn_peer_node_fail(conn->node, TARN_E_TIMEOUT,
                                       "its answer does not end: look at the node");
        late = !tarn_left_ms(deadline_ns);
        if ((rc = wait_reply(conn, deadline_ns, cancel)) != 0)
            return rc;
        rc = tarn_resp_try(conn->resp, reply_p);
    }
    if (rc != 0)
        conn->replies_due = 0;
    return rc;
}

/* Waits for the answer to HELLO. */
static int greeted(struct tarn_control_conn *conn, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    uint64_t began = tarn_now_ns();
    redisReply *reply;
    int rc = wait_reply(conn, deadline_ns, cancel);

    if (rc != 0)
        return rc;
    uint64_t now = tarn_now_ns();
    rc = take_reply(conn, true, deadline_ns, cancel, &reply);
    if (rc != 0)
        return rc;
    conn->greets = false;
    if (began - conn->hello_ns < PROMPT_NS) /* else the answer may have been there long before */
        tarn_peer_node_answered(conn->node, now - conn->hello_ns);
    rc = take_greeting(conn, reply);
    conn->refused = rc != 0;
    freeReplyObject(reply);
    return rc;
}

/* --- connecting --------------------------------------------------------------------------------- */

static int connect_to(struct tarn_peer_node *node, const struct tarn_addr *a, struct tarn_steps *steps,
                      struct tarn_cancel *cancel, bool eager, struct tarn_control_conn **conn_p)
{
    struct tarn_control_conn *conn = calloc(1, sizeof *conn);

    if (!conn)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: out of memory", node->key.id);
    conn->node = node;
    conn->local = a->is_unix;
    int rc = tarn_resp_connect(a, tarn_step(steps), cancel, &conn->resp);
    if (rc == 0)
        rc = say_hello(conn);
    if (rc == 0 && !(eager && !a->is_unix)) {
        uint64_t until = tarn_step(steps);
        rc = tarn_resp_flush(conn->resp, until, cancel);
        rc = rc ? rc : greeted(conn, until, cancel);
    }
    if (rc != 0) {
        tarn_control_conn_drop(conn);
        return rc;
    }
    *conn_p = conn;
    return 0;
}

/* *elsewhere: the node's record names another host. */
static int addresses(struct tarn_peer_node *node, struct tarn_addr *local, struct tarn_addr *tcp,
                     bool *elsewhere)
{
    char control[sizeof node->control], path[sizeof node->unix_path];

    pthread_mutex_lock(&node->lock);
    memcpy(control, node->control, sizeof control);
    memcpy(path, node->unix_path, sizeof path);
    *elsewhere = strcmp(node->host_id, node->client->host_id) != 0;
    pthread_mutex_unlock(&node->lock);
    memset(local, 0, sizeof *local);
    snprintf(local->host, sizeof local->host, "%s", path);
    local->is_unix = true;
    if (control[0] == '\0') {
        tcp->host[0] = '\0';
        return 0;
    }
    return tarn_addr_parse(control, "the node's record", tcp);
}

static int connect_any(struct tarn_peer_node *node, struct tarn_steps *steps, struct tarn_cancel *cancel,
                       bool eager, struct tarn_control_conn **conn_p)
{
    struct tarn_addr local, tcp;
    bool elsewhere;
    int rc = addresses(node, &local, &tcp, &elsewhere);

    if (rc == 0 && local.host[0]) {
        /* Containers of one host may share the path although their host ids differ, so it is always tried.
         * But anything may listen at that path on another host; it must not use up the time for TCP. */
        struct tarn_steps quick = *steps;
        uint64_t soon = tarn_now_ns() + ELSEWHERE_NS;
        if (elsewhere && soon < quick.deadline_ns)
            quick.deadline_ns = soon;
        rc = connect_to(node, &local, &quick, cancel, false, conn_p);
        steps->since_ns = quick.since_ns;
        /* A node on this host that is silent or refuses says the same over TCP. Where this user may not open
         * the socket (SYSTEM), TCP is tried. */
        bool told = rc != TARN_E_NODE_DOWN && rc != TARN_E_SYSTEM && !elsewhere;
        if (rc == 0 || rc == TARN_E_CANCELED || told)
            return rc;
        atomic_store(&node->near, false);
    }
    if (rc == 0 || tcp.host[0])
        rc = tcp.host[0] ? connect_to(node, &tcp, steps, cancel, eager, conn_p)
                         : tarn_fail(TARN_E_NODE_DOWN, "node %s: not in the directory", node->key.id);
    return rc;
}

int tarn_control_conn_connect(struct tarn_peer_node *node, struct tarn_steps *steps,
                              struct tarn_cancel *cancel, struct tarn_control_conn **conn_p)
{
    return connect_any(node, steps, cancel, false, conn_p);
}

static struct tarn_control_conn *idle_take(struct tarn_peer_node *node, bool local_only)
{
    struct tarn_control_conn *conn = NULL;

    pthread_mutex_lock(&node->lock);
    for (struct tarn_control_conn **at = &node->idle_conns; *at; at = &(*at)->next)
        if (!local_only || (*at)->local) {
            conn = *at;
            *at = conn->next;
            node->nidle_conns--;
            break;
        }
    pthread_mutex_unlock(&node->lock);
    return conn;
}

int tarn_control_conn_take_in(struct tarn_peer_node *node, enum tarn_control_conn_kind kind,
                              struct tarn_steps *steps, struct tarn_cancel *cancel,
                              struct tarn_control_conn **conn_p)
{
    bool local_only = kind == TARN_CONTROL_CONN_LOCAL;
    struct tarn_control_conn *conn;

    while ((conn = idle_take(node, local_only)) != NULL) {
        if (!tarn_resp_dead(conn->resp)) {
            *conn_p = conn;
            return 0;
        }
        tarn_control_conn_drop(conn);
    }
    int rc = connect_any(node, steps, cancel, kind == TARN_CONTROL_CONN_EARLY, &conn);
    if (rc != 0) {
        tarn_peer_node_failed(node, rc, tarn_last_error(), steps->since_ns);
        return rc;
    }
    if (local_only && !conn->local) {
        tarn_control_conn_give(conn);
        return tarn_peer_node_fail(node, TARN_E_NOT_REACHABLE,
                                   "its Unix socket does not answer here: it is on another host, or this "
                                   "user may not open it (tarnd --unix-mode, --unix-group)");
    }
    *conn_p = conn;
    return 0;
}

int tarn_control_conn_take(struct tarn_peer_node *node, uint64_t deadline_ns, struct tarn_cancel *cancel,
                           struct tarn_control_conn **conn_p)
{
    struct tarn_steps steps = {.deadline_ns = deadline_ns, .patience_ns = UINT64_MAX};

    return tarn_control_conn_take_in(node, TARN_CONTROL_CONN_ANY, &steps, cancel, conn_p);
}

static void to_pool(struct tarn_control_conn *conn)
{
    struct tarn_peer_node *node = conn->node;

    pthread_mutex_lock(&node->lock);
    bool keep = node->nidle_conns < IDLE_MAX;
    if (keep) {
        conn->next = node->idle_conns;
        node->idle_conns = conn;
        node->nidle_conns++;
    }
    pthread_mutex_unlock(&node->lock);
    if (!keep)
        tarn_control_conn_drop(conn);
}

/* A connection that cannot become idle goes to the keeper or is dropped: true. */
static bool is_disposed(struct tarn_control_conn *conn)
{
    struct tarn_peer_node *node = conn->node;

    if (conn->replies_due > 0) {
        tarn_monitor_owe(node->client, conn);
        return true;
    }
    bool useless = conn->greets || conn->refused || *tarn_resp_cause(conn->resp) ||
                   atomic_load(&node->health) == TARN_GONE;
    if (useless)
        tarn_control_conn_drop(conn);
    return useless;
}

void tarn_control_conn_give(struct tarn_control_conn *conn)
{
    if (conn && !is_disposed(conn) && !tarn_monitor_watch(conn->node, conn))
        to_pool(conn);
}

void tarn_control_conn_rest(struct tarn_control_conn *conn)
{
    if (conn && !is_disposed(conn))
        to_pool(conn);
}

/* --- one command -------------------------------------------------------------------------------- */

int tarn_control_conn_send(struct tarn_control_conn *conn, const struct tarn_command *c, uint64_t deadline_ns,
                           struct tarn_cancel *cancel)
{
    int rc = tarn_resp_append_command(conn->resp, c);

    if (rc == 0)
        rc = tarn_resp_flush(conn->resp, deadline_ns, cancel);
    conn->replies_due = rc == 0;
    conn->grants = conn->behind = conn->spins = false;
    conn->since_ns = tarn_now_ns();
    return rc;
}

int tarn_control_conn_send_behind(struct tarn_control_conn *conn, const struct tarn_command *c,
                                  uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    int rc = tarn_control_conn_send(conn, c, deadline_ns, cancel);

    conn->replies_due += rc == 0;
    return rc;
}

/* Reads the reply to the command, and HELLO's before it where that is outstanding. */
static int read_reply(struct tarn_control_conn *conn, uint64_t deadline_ns, struct tarn_cancel *cancel,
                      redisReply **reply_p)
{
    bool together = conn->greets || conn->refused || conn->behind; /* both may have come at once */
    int rc = conn->greets ? greeted(conn, deadline_ns, cancel) : 0;

    if (rc == 0)
        rc = take_reply(conn, together, deadline_ns, cancel, reply_p);
    if (rc == 0) {
        conn->replies_due--;
        conn->behind = conn->replies_due > 0;
        conn->grants = false;
    }
    return rc;
}

int tarn_control_conn_reply(struct tarn_control_conn *conn, uint64_t deadline_ns, struct tarn_cancel *cancel,
                            redisReply **reply_p)
{
    redisReply *reply;
    int rc = read_reply(conn, deadline_ns, cancel, &reply);

    if (rc != 0)
        return rc;
    rc = tarn_peer_node_error(conn->node, reply);
    if (rc != 0) {
        freeReplyObject(reply);
        return rc;
    }
    *reply_p = reply;
    return 0;
}

int tarn_control_conn_finish(struct tarn_control_conn *conn, uint64_t deadline_ns, struct tarn_cancel *cancel,
                             redisReply **reply_p)
{
    int rc = tarn_control_conn_reply(conn, deadline_ns, cancel, reply_p);

    if (rc != TARN_E_TIMEOUT || conn->replies_due) /* a node that answers TIMEOUT is not silent: Redis is */
        tarn_peer_node_failed(conn->node, rc, tarn_last_error(), conn->since_ns);
    if (rc == TARN_E_NODE_DOWN || rc == TARN_E_PROTOCOL)
        tarn_control_conn_drop(conn);
    else
        tarn_control_conn_give(conn);
    return rc;
}

int tarn_control_conn_call(struct tarn_peer_node *node, const struct tarn_command *c, uint64_t deadline_ns,
                           struct tarn_cancel *cancel, redisReply **reply_p)
{
    struct tarn_control_conn *conn;

    bool up = atomic_load(&node->health) == TARN_UP || tarn_peer_node_settled(node, deadline_ns, cancel);
    if (!up && tarn_canceled(cancel))
        return tarn_cancel_fail();
    if (!up)
        return tarn_peer_node_fail(node, TARN_E_NODE_DOWN, "set aside, it does not answer: look at the node");
    int rc = tarn_control_conn_take(node, deadline_ns, cancel, &conn);
    if (rc != 0)
        return rc;
    rc = tarn_control_conn_send(conn, c, deadline_ns, cancel);
    if (rc == 0)
        return tarn_control_conn_finish(conn, deadline_ns, cancel, reply_p);
    if (rc == TARN_E_NODE_DOWN)
        tarn_peer_node_failed(node, rc, tarn_last_error(), conn->since_ns);
    tarn_control_conn_give(conn);
    return rc;
}
