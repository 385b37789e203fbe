/* SPDX-License-Identifier: Apache-2.0 */
#include "client/displaced.h"

#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/control_conn.h"
#include "client/health.h"
#include "client/peer_nodes.h"
#include "client/refresh.h"
#include "metadata/records.h"

#define PAUSE_FIRST_MS 5
#define PAUSE_MOST_MS 100
#define PAIRS_MAX 1024 /* of one SETTLED, and copies of one RELEASE */

/* --- the list ----------------------------------------------------------------------------------- */

static int add(struct tarn_displaced_list *l, const struct tarn_displaced *d)
{
    if (l->n == l->room) {
        size_t room = l->room ? l->room * 2 : 16;
        struct tarn_displaced *all = realloc(l->all, room * sizeof *all);
        if (!all)
            return tarn_fail(TARN_E_NO_MEMORY, "displaced copies: out of memory");
        l->all = all;
        l->room = room;
    }
    l->all[l->n++] = *d;
    return 0;
}

int tarn_displaced_add(struct tarn_displaced_list *l, const struct tarn_key *key, size_t item,
                       const struct tarn_loc *at)
{
    struct tarn_displaced d = {.key = key,
                               .item = item,
                               .node = at->node,
                               .copy = {.offset = at->offset, .gen = at->gen, .slot = at->slot}};

    memcpy(d.copy.node, at->node->key.id, sizeof d.copy.node);
    tarn_peer_node_pool_name(at->node, at->pool, d.copy.pool);
    return add(l, &d);
}

static int note_one(struct tarn_client *c, struct tarn_displaced_list *l, struct tarn_displaced *d,
                    const redisReply *e)
{
    struct tarn_text text = {e->str, e->str ? e->len : 0};
    int rc = tarn_copy_parse(text, &d->copy);

    if (rc != 0)
        return rc;
    d->node = tarn_peer_node_of(c, d->copy.node, (uint32_t)(d->copy.gen >> 32));
    return d->node ? add(l, d) : tarn_fail(TARN_E_NO_MEMORY, "displaced copies: out of memory");
}

int tarn_displaced_note(struct tarn_client *c, struct tarn_displaced_list *l, const struct tarn_key *key,
                        size_t item, struct tarn_peer_node *by, redisReply *const *texts, size_t n)
{
    struct tarn_displaced d = {.key = key, .item = item, .by = by};
    char who[TARN_NODE_TEXT];
    struct tarn_reason why;

    for (size_t i = 0; i < n; i++)
        if (tarn_reason_keep(&why, note_one(c, l, &d, texts[i])) != 0)
            return tarn_fail(TARN_E_IN_DOUBT,
                             "done, but not all old copies that %s has named are known here (%s): they "
                             "may still be read: do it again",
                             tarn_peer_node_text(by, who), why.text);
    return 0;
}

void tarn_displaced_end(struct tarn_displaced_list *l)
{
    free(l->all);
    memset(l, 0, sizeof *l);
}

int tarn_displaced_status(const struct tarn_displaced_list *l, size_t item)
{
    char who[TARN_NODE_TEXT];

    for (size_t i = 0; i < l->n; i++) {
        const struct tarn_displaced *d = &l->all[i];
        if (d->item == item)
            return tarn_fail(
                TARN_E_IN_DOUBT,
                "done, but %s has not given up its old copy: a client that looked the key up before may "
                "read the old value until the node answers, or until its record expires (3 heartbeats "
                "after its last): do it again to be sure",
                tarn_peer_node_text(d->node, who));
    }
    return 0;
}

/* Takes settled copies out of the list. True: none is left. */
static bool drop_settled(struct tarn_displaced_list *l)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++)
        if (!l->all[i].settled)
            l->all[n++] = l->all[i];
    l->n = n;
    return n == 0;
}

/* --- one command about some of them ------------------------------------------------------------- */

/* The copies that go into one command to one node. */
struct batch {
    struct tarn_displaced *copies[PAIRS_MAX];
    size_t n;
    struct tarn_peer_node *node;
    struct tarn_control_conn *conn;
    uint64_t until_ns; /* how long to wait for the answer */
};

/* That many patiences from now. */
static uint64_t within(const struct tarn_peer_node *node, uint64_t times, uint64_t deadline_ns)
{
    uint64_t until = tarn_now_ns() + times * tarn_peer_node_patience(node);

    return until < deadline_ns ? until : deadline_ns;
}

static void take_answers(struct batch *b, const redisReply *reply)
{
    for (size_t i = 0; i < b->n && i < reply->elements; i++)
        if (reply->element[i]->type == REDIS_REPLY_INTEGER && reply->element[i]->integer == 1)
            b->copies[i]->settled = true;
}

/* --- RELEASE ------------------------------------------------------------------------------------ */

static const struct tarn_command *release_command(const struct batch *b)
{
    struct tarn_command *c = tarn_resp_command(b->conn->resp, "RELEASE", NULL);

    for (size_t i = 0; i < b->n; i++) {
        const struct tarn_location *l = &b->copies[i]->copy;
        tarn_command_str(c, l->pool);
        tarn_command_u64(c, l->slot);
        tarn_command_gen(c, l->gen);
    }
    return c;
}

/* Nodes that are set aside learn of it from the directory with their next heartbeat. */
static void release_send(struct tarn_client *c, struct batch *b, uint64_t deadline_ns,
                         struct tarn_cancel *cancel)
{
    struct tarn_peer_node *node = b->node;

    b->until_ns = within(node, 1, deadline_ns);
    if (!atomic_load(&node->listed) && !atomic_load(&node->superseded))
        tarn_peer_nodes_refresh(c, b->until_ns, cancel);
    if (!atomic_load(&node->listed) || atomic_load(&node->health) != TARN_UP)
        return;
    int rc = tarn_control_conn_take(node, b->until_ns, cancel, &b->conn);
    if (rc == 0 && tarn_control_conn_send(b->conn, release_command(b), b->until_ns, cancel) != 0) {
        tarn_control_conn_give(b->conn);
        b->conn = NULL;
    }
}

static void release_answer(struct batch *b, struct tarn_cancel *cancel)
{
    redisReply *reply;

    if (b->conn && tarn_control_conn_finish(b->conn, b->until_ns, cancel, &reply) == 0) {
        take_answers(b, reply);
        freeReplyObject(reply);
    }
}

/* The first copy that is not told yet, with the others on its node. NULL: none is left, or no memory. */
static struct batch *next_batch(struct tarn_displaced_list *l)
{
    struct batch *b = calloc(1, sizeof *b);

    for (size_t i = 0; b && i < l->n && b->n < PAIRS_MAX; i++) {
        struct tarn_displaced *d = &l->all[i];
        if (d->told || (b->node && d->node != b->node))
            continue;
        b->node = d->node;
        b->copies[b->n++] = d;
        d->told = true;
    }
    if (b && b->n > 0)
        return b;
    free(b);
    return NULL;
}

#define BATCHES_MAX 64 /* sent before answers are taken */

void tarn_displaced_release(struct tarn_client *c, struct tarn_displaced_list *l, uint64_t deadline_ns,
                            struct tarn_cancel *cancel)
{
    struct batch *batches[BATCHES_MAX];
    size_t n;

    do {
        for (n = 0; n < BATCHES_MAX && (batches[n] = next_batch(l)) != NULL; n++)
            release_send(c, batches[n], deadline_ns, cancel);
        for (size_t i = 0; i < n; i++) {
            release_answer(batches[i], cancel);
            free(batches[i]);
        }
    } while (n == BATCHES_MAX);
}

/* --- SETTLED ------------------------------------------------------------------------------------ */

struct tarn_peer_node *tarn_peer_nodes_any(struct tarn_client *c, const struct tarn_peer_node *but)
{
    struct tarn_peer_node *node, *next, *found = NULL;

    pthread_rwlock_rdlock(&c->nodes_lock);
    HASH_ITER (hh, c->nodes, node, next)
        if (!found && node != but && !atomic_load(&node->lends) && tarn_peer_node_answers(node))
            found = node;
    pthread_rwlock_unlock(&c->nodes_lock);
    return found;
}

/* Whom to ask about the copy: who named it, any other node, or its own. */
static struct tarn_peer_node *asked_of(struct tarn_client *c, const struct tarn_displaced *d)
{
    struct tarn_peer_node *any;

    if (d->by && tarn_peer_node_answers(d->by))
        return d->by;
    any = tarn_peer_nodes_any(c, d->node);
    return any || !tarn_peer_node_answers(d->node) ? any : d->node;
}

static void ask(struct batch *b, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    char text[TARN_COPY_TEXT];
    struct tarn_command c = {.n = 0};
    redisReply *reply;

    tarn_command_str(&c, "SETTLED");
    for (size_t i = 0; i < b->n; i++) {
        tarn_command_add(&c, b->copies[i]->key->data, b->copies[i]->key->bytes);
        tarn_copy_format(&b->copies[i]->copy, text);
        tarn_command_str(&c, text);
    }
    if (tarn_control_conn_call(b->node, &c, within(b->node, 4, deadline_ns), cancel, &reply) == 0) {
        take_answers(b, reply);
        freeReplyObject(reply);
    }
    tarn_command_free(&c);
}

/* Asks once about each copy that is not settled. True: all are settled. */
static bool ask_all(struct tarn_client *c, struct tarn_displaced_list *l, struct batch *b,
                    uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    bool refreshed = false;
    size_t at = 0;

    while (at < l->n && !tarn_canceled(cancel)) {
        b->n = 0;
        b->node = NULL;
        for (; at < l->n && b->n < PAIRS_MAX; at++) {
            struct tarn_peer_node *node = l->all[at].settled ? NULL : asked_of(c, &l->all[at]);
            if (!l->all[at].settled && !node && !refreshed) {
                refreshed = true;
                tarn_peer_nodes_refresh(c, deadline_ns, cancel);
                node = asked_of(c, &l->all[at]);
            }
            if (node && b->node && node != b->node)
                break;
            if (!node)
                continue;
            b->node = node;
            b->copies[b->n++] = &l->all[at];
        }
        if (b->n > 0)
            ask(b, deadline_ns, cancel);
    }
    return drop_settled(l);
}

void tarn_displaced_settle(struct tarn_client *c, struct tarn_displaced_list *l, uint64_t deadline_ns,
                           struct tarn_cancel *cancel)
{
    int pause_ms = PAUSE_FIRST_MS;

    if (l->n == 0)
        return;
    tarn_displaced_release(c, l, deadline_ns, cancel);
    struct batch *b = drop_settled(l) ? NULL : calloc(1, sizeof *b);
    while (b && !ask_all(c, l, b, deadline_ns, cancel) && tarn_cancel_pause(cancel, deadline_ns, pause_ms))
        pause_ms = pause_ms * 2 < PAUSE_MOST_MS ? pause_ms * 2 : PAUSE_MOST_MS;
    free(b);
}
