/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread asks, with one question about all nodes that are read from. It waits for nothing but Redis: a
 * lease in use must be renewed in time, whatever the keeper is waiting for.
 *
 * Gets without a lease wait together for the next answer. When Redis leaves a question unanswered, gets stop
 * waiting until Redis answers again. Only the thread decides that Redis is away, after a last look for the
 * answer: a process that was stopped would find the time over although the answer has arrived.
 */
#include "client/read_lease_ask.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/thread.h"
#include "client/alert.h"
#include "client/client.h"
#include "client/peer_nodes.h"

/* An answer may take this long and the patience. Then Redis counts as away. */
#define ANSWER_NS TARN_NS_PER_S
#define CONNECT_TRIPS 4                 /* round trips of connecting and login */
#define SPACING_NS (2 * TARN_NS_PER_MS) /* between questions */
/* While Redis is away, the thread goes on asking for this long after the last get that needed an answer. */
#define INTEREST_NS (10 * TARN_NS_PER_S)

/* --- what is known ------------------------------------------------------------------------------ */

static uint64_t patience_ns(const struct tarn_client *c)
{
    uint64_t ns = tarn_patience_ns(&c->leases.patience);

    return ns ? ns : tarn_patience_first(tarn_directory_rtt_ns(c->directory));
}

/* Is Redis away? The lock is held. */
static bool is_away(const struct tarn_read_leases *s, uint64_t now_ns)
{
    uint64_t last = s->asking_ns ? s->asking_ns : now_ns; /* a question since the failure may be under way */

    return s->failed_ns && last - s->failed_ns < 2 * TARN_READ_LEASE_UNSURE_NS;
}

/* Has the thread ask at once. The lock is held. */
static void want(struct tarn_read_leases *s, uint64_t now_ns)
{
    s->wanted = true;
    s->wanted_ns = now_ns;
    pthread_cond_signal(&s->wake);
}

/* Has the thread work out again when a lease is due. The lock is held. */
static void reckon(struct tarn_read_leases *s)
{
    s->changed = true;
    pthread_cond_signal(&s->wake);
}

enum tarn_read_lease_word tarn_read_lease_word_in(struct tarn_peer_node *node, uint64_t ahead_ns)
{
    struct tarn_read_leases *s = &node->client->leases;
    enum tarn_read_lease_word word = TARN_READ_LEASE_ASK;

    if (atomic_load(&node->superseded) || atomic_load(&node->lease.gone))
        return TARN_READ_LEASE_GONE;
    pthread_mutex_lock(&s->lock);
    uint64_t now = tarn_now_ns();
    atomic_store(&node->lease.used, true);
    if (tarn_read_lease_runs(&node->lease, now + ahead_ns)) {
        word = TARN_READ_LEASE_RUNS;
    } else {
        if (is_away(s, now))
            word = tarn_read_lease_unanswered(&node->lease, s->answered_ns, now);
        want(s, now);
    }
    pthread_mutex_unlock(&s->lock);
    return word;
}

void tarn_read_lease_wait(struct tarn_client *c, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_read_leases *s = &c->leases;

    pthread_mutex_lock(&s->lock);
    uint64_t before = s->questions;
    while ((s->wanted || s->asking_ns) && s->questions == before && !is_away(s, tarn_now_ns()) &&
           !tarn_canceled(&s->cancel) && tarn_cancel_cond(cancel, &s->answered, &s->lock, deadline_ns))
        ;
    pthread_mutex_unlock(&s->lock);
}

int tarn_read_lease_refusal(struct tarn_peer_node *node)
{
    return tarn_peer_node_fail(
        node, TARN_E_DIRECTORY,
        "Redis at %s does not answer, and the node's option when-cut-off says to refuse then: look at "
        "Redis, or start the node with --when-cut-off serve",
        tarn_directory_address(node->client->directory));
}

void tarn_read_lease_listed(struct tarn_peer_node *node, const struct tarn_node_record *n, uint64_t sent_ns)
{
    struct tarn_read_leases *s = &node->client->leases;
    struct tarn_read_lease_answer a = {.epoch = n->epoch, .refuses = n->refuses, .left_ms = n->left_ms};
    const struct tarn_directory_state none = {.now_ms = 0};

    if (strcmp(n->state, "returning") == 0) /* its first reader asks */
        return;

    pthread_mutex_lock(&s->lock);
    tarn_read_lease_answered(&node->lease, node->key.epoch, &a, &none, sent_ns, tarn_now_ns());
    reckon(s);
    pthread_mutex_unlock(&s->lock);
}

void tarn_read_lease_named(struct tarn_peer_node *node)
{
    struct tarn_read_leases *s = &node->client->leases;

    if (atomic_load(&node->lease.named))
        return;
    pthread_mutex_lock(&s->lock);
    uint64_t now = tarn_now_ns();
    atomic_store(&node->lease.named, true);
    if (!tarn_read_lease_runs(&node->lease, now)) /* earlier questions did not include it */
        want(s, now);
    reckon(s);
    pthread_mutex_unlock(&s->lock);
}

/* --- one question ------------------------------------------------------------------------------- */

struct question {
    struct tarn_peer_node **nodes;
    struct tarn_read_lease_answer *answers;
    size_t n;
};

/* Is the node part of the next question? A node known to be gone is not, unless a get needed it. */
static bool is_asked_about(const struct tarn_peer_node *node)
{
    const struct tarn_read_lease *l = &node->lease;

    return !atomic_load(&node->superseded) &&
           (atomic_load(&l->used) || (atomic_load(&l->named) && !atomic_load(&l->gone)));
}

/* False: there is no node to ask about, or no memory. */
static bool question_make(struct tarn_client *c, struct question *q)
{
    struct tarn_peer_node *node, *next;

    pthread_rwlock_rdlock(&c->nodes_lock);
    size_t room = HASH_COUNT(c->nodes) + 1;
    *q =
        (struct question){calloc(room, sizeof(struct tarn_peer_node *)), calloc(room, sizeof *q->answers), 0};
    if (q->nodes && q->answers)
        HASH_ITER (hh, c->nodes, node, next) {
            if (!is_asked_about(node))
                continue;
            atomic_store(&node->lease.used, false);
            memcpy(q->answers[q->n].id, node->key.id, sizeof node->key.id);
            q->nodes[q->n++] = node;
        }
    pthread_rwlock_unlock(&c->nodes_lock);
    return q->n > 0;
}

/* The lock is held. True: some incarnation is over. */
static bool question_answered(struct tarn_read_leases *s, struct question *q,
                              const struct tarn_directory_state *p, uint64_t sent_ns)
{
    uint64_t now = tarn_now_ns();
    bool over = false;

    tarn_patience_learn(&s->patience, now - sent_ns);
    s->failed_ns = 0;
    s->answered_ns = sent_ns;
    for (size_t i = 0; i < q->n; i++) {
        struct tarn_peer_node *node = q->nodes[i];
        if (tarn_read_lease_answered(&node->lease, node->key.epoch, &q->answers[i], p, sent_ns, now)) {
            atomic_store(&node->superseded, true);
            over = true;
        }
    }
    return over;
}

/* The lock is held. The next question is about the same nodes. */
static void question_failed(struct tarn_read_leases *s, struct question *q)
{
    uint64_t now = tarn_now_ns();

    if (!s->failed_ns) /* the leases to be renewed are needed soon */
        s->wanted_ns = now;
    s->failed_ns = now;
    for (size_t i = 0; i < q->n; i++)
        atomic_store(&q->nodes[i]->lease.used, true);
}

/* How long to wait for the answer. Leases in use are renewed when a third of their time is left. Where that
 * is long enough, Redis counts as away before they end, so that no get has to wait. */
static uint64_t answer_ns(struct tarn_client *c, const struct question *q)
{
    uint64_t trips = CONNECT_TRIPS * tarn_directory_rtt_ns(c->directory), most = ANSWER_NS;

    pthread_mutex_lock(&c->leases.lock);
    for (size_t i = 0; i < q->n; i++) {
        uint64_t ttl_ns = q->nodes[i]->lease.ttl_ns;
        if (ttl_ns && ttl_ns / 6 + trips < most)
            most = ttl_ns / 6 + trips;
    }
    uint64_t ns = most + patience_ns(c);
    pthread_mutex_unlock(&c->leases.lock);
    return ns;
}

/* The lock is held, but not while Redis is waited for. */
static void ask(struct tarn_client *c)
{
    struct tarn_read_leases *s = &c->leases;
    struct tarn_directory_state pulse = {.now_ms = 0};
    struct question q;
    bool over = false;

    uint64_t sent = tarn_now_ns();
    s->wanted = false;
    s->asking_ns = s->sent_ns = sent;
    pthread_mutex_unlock(&s->lock);
    bool any = question_make(c, &q);
    int rc =
        any ? tarn_directory_leases(c->directory, q.answers, q.n, &pulse, sent + answer_ns(c, &q), &s->cancel)
            : 0;
    pthread_mutex_lock(&s->lock);
    s->asking_ns = 0;
    if (any && rc == 0)
        over = question_answered(s, &q, &pulse, sent);
    else if (any)
        question_failed(s, &q);
    s->questions++;
    pthread_cond_broadcast(&s->answered);
    if (over) { /* the keeper retires its links */
        pthread_mutex_unlock(&s->lock);
        tarn_monitor_ask(c);
        pthread_mutex_lock(&s->lock);
    }
    free(q.nodes);
    free(q.answers);
}

/* --- the thread --------------------------------------------------------------------------------- */

/*
 * When the first lease in use is due for renewal. Gets do not wake the thread: while a lease runs, the thread
 * looks every sixth of a ttl whether it is in use.
 */
static uint64_t next_due(struct tarn_client *c, uint64_t now_ns)
{
    struct tarn_peer_node *node, *next;
    uint64_t due = UINT64_MAX, look = UINT64_MAX;
    bool in_use = false;

    pthread_rwlock_rdlock(&c->nodes_lock);
    pthread_mutex_lock(&c->leases.lock);
    HASH_ITER (hh, c->nodes, node, next) {
        const struct tarn_read_lease *l = &node->lease;
        if (!is_asked_about(node))
            continue;
        in_use |= atomic_load(&l->used);
        due = l->due_ns < due ? l->due_ns : due;
        if (tarn_read_lease_runs(l, now_ns) && now_ns + l->ttl_ns / 6 < look)
            look = now_ns + l->ttl_ns / 6;
    }
    pthread_mutex_unlock(&c->leases.lock);
    pthread_rwlock_unlock(&c->nodes_lock);
    return in_use || due > now_ns ? due : look;
}

/* When to ask next. UINT64_MAX: only when asked to. The lock is held. */
static uint64_t next_question(const struct tarn_read_leases *s, uint64_t due_ns, uint64_t ended_ns)
{
    if (s->failed_ns) {
        uint64_t again = s->sent_ns + TARN_READ_LEASE_UNSURE_NS; /* has passed where Redis was silent */
        bool interested = s->failed_ns < s->wanted_ns + INTEREST_NS;
        return interested || s->wanted ? (again > ended_ns ? again : ended_ns) : UINT64_MAX;
    }
    uint64_t next = s->wanted ? 0 : due_ns;
    return next < ended_ns + SPACING_NS ? ended_ns + SPACING_NS : next;
}

static void *leases_main(void *arg)
{
    struct tarn_client *c = arg;
    struct tarn_read_leases *s = &c->leases;
    uint64_t ended = 0;

    pthread_mutex_lock(&s->lock);
    while (!tarn_canceled(&s->cancel)) {
        s->changed = false;
        pthread_mutex_unlock(&s->lock);
        uint64_t due = next_due(c, tarn_now_ns());
        pthread_mutex_lock(&s->lock);
        if (s->changed)
            continue;
        uint64_t next = next_question(s, due, ended);
        if (tarn_canceled(&s->cancel))
            break;
        if (tarn_now_ns() >= next) {
            ask(c);
            ended = tarn_now_ns();
        } else if (next == UINT64_MAX) {
            pthread_cond_wait(&s->wake, &s->lock);
        } else {
            tarn_cond_wait(&s->wake, &s->lock, next);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void tarn_read_leases_init(struct tarn_client *c)
{
    c->leases.cancel.fd = -1;
    pthread_mutex_init(&c->leases.lock, NULL);
    tarn_cond_init(&c->leases.wake);
    tarn_cond_init(&c->leases.answered);
}

int tarn_read_leases_start(struct tarn_client *c)
{
    int rc = tarn_client_eventfd(&c->leases.cancel.fd);

    if (rc == 0)
        rc = tarn_client_thread(&c->leases.thread, leases_main, c);
    c->leases.running = rc == 0;
    return rc;
}

void tarn_read_leases_stop(struct tarn_client *c)
{
    struct tarn_read_leases *s = &c->leases;

    pthread_mutex_lock(&s->lock);
    atomic_store(&s->cancel.on, true);
    pthread_cond_signal(&s->wake);
    pthread_cond_broadcast(&s->answered);
    pthread_mutex_unlock(&s->lock);
    if (s->running) {
        eventfd_write(s->cancel.fd, 1);
        pthread_join(s->thread, NULL);
    }
    if (s->cancel.fd >= 0)
        close(s->cancel.fd);
}

void tarn_read_leases_free(struct tarn_client *c)
{
    pthread_cond_destroy(&c->leases.answered);
    pthread_cond_destroy(&c->leases.wake);
    pthread_mutex_destroy(&c->leases.lock);
}
