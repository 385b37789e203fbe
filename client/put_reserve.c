/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts: RESERVE, STORE and ABORT.
 *
 * Where the caller named no node, a node that cannot take an object (full, draining, gone, too many sessions
 * of this process) is replaced by the next one in the key's order. BUSY for an item means that this session
 * has reserved as much as it may. It must commit first, so the item comes again in a later chunk.
 */
#include "client/put_reserve.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "client/control_conn.h"
#include "client/health.h"
#include "client/owed_command.h"
#include "client/peer_nodes.h"
#include "client/put_plan.h"
#include "client/retire.h"
#include "transport/pieces.h"

#define ABORT_NS (100 * TARN_NS_PER_MS)

/* The target's node refused with code; the last error says why. */
static void refused(struct tarn_put *p, struct tarn_target *t, int code)
{
    struct tarn_put_job *job = t->job;
    bool asked = t->state == TARN_TARGET_ASKED; /* else HELLO was refused */

    t->state = TARN_TARGET_LOST;
    if (job->failure.code != 0)
        return;
    switch (code) {
    case TARN_E_BUSY:
        job->again = job->busy = asked;
        if (asked)
            break;
        /* fall through */
    case TARN_E_FULL:
    case TARN_E_TOO_LARGE:
    case TARN_E_NODE_DOWN:
    case TARN_E_TIMEOUT:
        if (tarn_now_ns() < p->deadline_ns && tarn_put_reassign(p, t))
            return;
        break;
    default:
        break;
    }
    tarn_job_fail(job, code);
}

static void refuse_all(struct tarn_put *p, struct tarn_chunk *c, struct tarn_peer_node *node,
                       enum tarn_target_state state, const struct tarn_reason *why)
{
    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        if (t->node == node && t->state == state)
            refused(p, t, tarn_reason_fail(why));
    }
}

/* --- RESERVE ------------------------------------------------------------------------------------ */

/* With other nodes to turn to, a silent one gets only part of the time. */
static struct tarn_steps steps_of(const struct tarn_put *p, const struct tarn_peer_node *node)
{
    uint64_t now = tarn_now_ns(), left = p->deadline_ns > now ? p->deadline_ns - now : 0;
    struct tarn_steps s = {.deadline_ns = p->deadline_ns, .patience_ns = UINT64_MAX};

    if (p->fixed || p->ncandidates <= p->replicas)
        return s;
    s.patience_ns = tarn_peer_node_patience(node);
    if (left / 2 < s.patience_ns)
        s.patience_ns = left / 2;
    return s;
}

static bool wanted_by(const struct tarn_target *t, const struct tarn_peer_node *node)
{
    return t->node == node && t->state == TARN_TARGET_WANTED && t->job->failure.code == 0;
}

/* Adds what the first wanted item continues at the node. An item that comes again comes late: it continues
 * nothing. */
static void add_chain(struct tarn_command *a, const struct tarn_put *p, const struct tarn_put_chain *chain,
                      size_t first)
{
    char text[TARN_KEY_MAX + 1] = "+";
    const struct tarn_key *key = chain->by == TARN_CHAIN_KEY ? &p->items[chain->index].key : p->continues;
    bool late = chain->by != TARN_CHAIN_NONE && chain->index >= first;

    if (!(p->flags & TARN_PUT_CHAIN)) {
        tarn_command_str(a, "");
    } else if (chain->by == TARN_CHAIN_GRANT && !late) {
        snprintf(text, sizeof text, "@%u/%u/%016llx", chain->pool, chain->slot,
                 (unsigned long long)chain->gen);
        tarn_command_str(a, text);
    } else {
        size_t bytes = key && !late ? key->bytes : 0;
        if (bytes)
            memcpy(text + 1, key->data, bytes);
        tarn_command_add(a, text, 1 + bytes);
    }
}

static size_t first_wanted(const struct tarn_put *p, const struct tarn_chunk *c,
                           const struct tarn_peer_node *node)
{
    uint32_t i = 0;

    while (i < c->n * p->replicas && !wanted_by(&c->targets[i], node))
        i++;
    return i < c->n * p->replicas ? c->targets[i].job->index : 0;
}

static const struct tarn_command *reserve_command(struct tarn_put *p, struct tarn_chunk *c,
                                                  const struct tarn_put_node *node)
{
    struct tarn_command *a = tarn_resp_command(node->reserve->resp, "RESERVE", p->pool,
                                               p->flags & TARN_PUT_REPLACE ? "replace" : "absent", NULL);
    char shape[TARN_SHAPE_TEXT];

    tarn_command_u64(a, c->version);
    tarn_command_u64(a, p->ttl_ms);
    tarn_command_str(a, p->flags & TARN_PUT_PIN ? "1" : "0");
    add_chain(a, p, &node->chain, first_wanted(p, c, node->node));
    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        if (!wanted_by(t, node->node))
            continue;
        const struct tarn_item *item = &p->items[t->job->index];
        tarn_command_add(a, item->key.data, item->key.bytes);
        tarn_command_u64(a, item->tensor.bytes);
        tarn_command_str(a, tarn_dtype_name(item->tensor.dtype));
        tarn_shape_format(&item->tensor, shape);
        tarn_command_str(a, shape);
    }
    return a;
}

/* --- STORE -------------------------------------------------------------------------------------- */

/* Does the node take bytes for the put's pool by a message? As over tcp: both ends must use it. */
static bool takes_bytes(const struct tarn_put *p, struct tarn_peer_node *node)
{
    const struct tarn_client *c = p->client;
    int tcp = 0;

    while (tcp < c->ntransports && strcmp(c->transports[tcp]->name, "tcp") != 0)
        tcp++;
    uint64_t most = atomic_load(&node->store_bytes);
    bool takes = tcp < c->ntransports && most > 0 && p->items[0].tensor.bytes <= most;
    pthread_mutex_lock(&node->lock);
    takes &= node->npools > 0 && node->tick_learned_ns != 0; /* STORE's deadline is on the node's clock */
    for (uint32_t i = 0; i < node->npools; i++) {
        const struct tarn_peer_node_pool *pool = &node->pools[i];
        if (strcmp(p->pool, "*") == 0 || strcmp(p->pool, pool->name) == 0)
            takes &= !pool->gpu && pool->index < TARN_POOLS_MAX &&
                     atomic_load(&node->pool_transports[pool->index]) >> tcp & 1;
    }
    pthread_mutex_unlock(&node->lock);
    return takes;
}

static const struct tarn_command *store_command(const struct tarn_put *p, const struct tarn_put_node *node)
{
    struct tarn_command *a = tarn_resp_command(node->reserve->resp, "STORE", NULL);
    const struct tarn_item *item = &p->items[0];
    char whole[TARN_SMALL_BYTES];
    struct tarn_cursor at = {0};
    size_t bytes = 0;
    uint64_t n;
    void *run;

    tarn_command_u64(a, tarn_peer_node_clock(node->node, p->deadline_ns));
    while ((n = tarn_cursor_next(&at, item->pieces, item->npieces, SIZE_MAX, &run)) > 0) {
        memcpy(whole + bytes, run, n);
        bytes += n;
    }
    tarn_command_add(a, whole, bytes);
    return a;
}

/* RESERVE, with STORE behind it where that may be. */
static int send_command(struct tarn_put *p, struct tarn_chunk *c, struct tarn_put_node *node)
{
    struct tarn_control_conn *conn = node->reserve;
    const struct tarn_command *reserve = reserve_command(p, c, node);

    node->stores = p->small && !conn->greets && takes_bytes(p, node->node);
    if (!node->stores)
        return tarn_control_conn_send(conn, reserve, p->deadline_ns, p->cancel);
    int rc = tarn_resp_append_command(conn->resp, reserve);
    return rc ? rc : tarn_control_conn_send_behind(conn, store_command(p, node), p->deadline_ns, p->cancel);
}

/* RESERVE has been answered. STORE's answer is COMMIT's; where nothing was granted, it says nothing. */
static void expect_store(struct tarn_put *p, struct tarn_chunk *c, struct tarn_put_node *node)
{
    struct tarn_target *t = &c->targets[0];
    redisReply *reply;

    if (t->state == TARN_TARGET_RESERVED) {
        t->state = TARN_TARGET_WRITTEN;
        tarn_tell_way(t->node, "put", "control", &p->items[t->job->index].key, t->pool, 0);
        tarn_control_conn_rest(node->commit[c->turn]); /* of an earlier try */
        node->commit[c->turn] = node->reserve;
        node->reserve = NULL;
        return;
    }
    node->stores = false;
    if (tarn_control_conn_reply(node->reserve, p->deadline_ns, p->cancel, &reply) == 0)
        freeReplyObject(reply);
}

static int send_reserve(struct tarn_put *p, struct tarn_chunk *c, struct tarn_put_node *node)
{
    struct tarn_steps steps = steps_of(p, node->node);
    int rc = node->reserve ? 0
                           : tarn_control_conn_take_in(node->node, TARN_CONTROL_CONN_EARLY, &steps, p->cancel,
                                                       &node->reserve);

    if (rc != 0)
        return rc;
    rc = send_command(p, c, node);
    node->reserving = node->reserve->grants = rc == 0;
    node->reserve->spins = p->spins;
    return rc;
}

static void ask_node(struct tarn_put *p, struct tarn_chunk *c, struct tarn_peer_node *r)
{
    struct tarn_put_node *node = tarn_put_node_of(p, r);
    struct tarn_reason why;

    if (tarn_reason_keep(&why, node ? send_reserve(p, c, node) : TARN_E_NO_MEMORY) != 0) {
        if (node && node->reserve) {
            if (why.code == TARN_E_NODE_DOWN)
                tarn_peer_node_failed(r, why.code, why.text, 0);
            tarn_control_conn_give(node->reserve);
            node->reserve = NULL;
        }
        refuse_all(p, c, r, TARN_TARGET_WANTED, &why);
        return;
    }
    for (uint32_t i = 0; i < c->n * p->replicas; i++)
        if (wanted_by(&c->targets[i], r))
            c->targets[i].state = TARN_TARGET_ASKED;
}

/* Is a reply of the node outstanding? NULL: of any node. */
static bool is_reserving(const struct tarn_put *p, const struct tarn_peer_node *node)
{
    for (uint32_t k = 0; k < p->nnodes; k++)
        if (p->nodes[k].reserving && (!node || p->nodes[k].node == node))
            return true;
    return false;
}

/* A target that moves to a node which was asked already waits for that answer, since grants come in the order
 * of the questions. */
void tarn_chunk_ask(struct tarn_put *p, struct tarn_chunk *c)
{
    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        while (wanted_by(t, t->node) && !is_reserving(p, t->node))
            ask_node(p, c, t->node);
    }
}

/* --- its answer --------------------------------------------------------------------------------- */

static void take_grant(struct tarn_put *p, struct tarn_target *t, uint64_t term, const redisReply *e)
{
    if (e->type == REDIS_REPLY_ERROR) {
        refused(p, t, tarn_peer_node_error(t->node, e));
        return;
    }
    if (e->type != REDIS_REPLY_ARRAY || e->elements != 4 || !e->element[3]->str ||
        tarn_u64_parse(e->element[3]->str, e->element[3]->len, 16, UINT64_MAX, &t->gen) != 0) {
        refused(p, t, tarn_peer_node_fail(t->node, TARN_E_PROTOCOL, "RESERVE: not an answer"));
        return;
    }
    t->pool = (uint32_t)e->element[0]->integer;
    t->offset = (uint64_t)e->element[1]->integer;
    t->slot = (uint32_t)e->element[2]->integer;
    t->term = term;
    t->granted = true;
    t->state = TARN_TARGET_RESERVED;
    t->held = false;
}

/* The node has answered for the target: later items continue it if it is there. */
static void go_along(struct tarn_put_chain *chain, const struct tarn_target *t)
{
    if (t->state == TARN_TARGET_RESERVED)
        *chain = (struct tarn_put_chain){TARN_CHAIN_GRANT, t->job->index, t->pool, t->slot, t->gen};
    else if (t->job->failure.code == TARN_E_EXISTS)
        *chain = (struct tarn_put_chain){.by = TARN_CHAIN_KEY, .index = t->job->index};
}

static void take_grants(struct tarn_put *p, struct tarn_chunk *c, struct tarn_put_node *node,
                        const redisReply *reply)
{
    size_t at = 0;

    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        if (t->node != node->node || t->state != TARN_TARGET_ASKED)
            continue;
        if (at < reply->elements)
            take_grant(p, t, node->reserve->term, reply->element[at++]);
        else
            refused(p, t, tarn_fail(TARN_E_PROTOCOL, "node %s: RESERVE: answer too short", t->node->key.id));
        go_along(&node->chain, t);
    }
}

/* HELLO was refused, so RESERVE was not carried out. */
static void unask(struct tarn_put *p, struct tarn_chunk *c, const struct tarn_peer_node *node)
{
    for (uint32_t i = 0; i < c->n * p->replicas; i++)
        if (c->targets[i].node == node && c->targets[i].state == TARN_TARGET_ASKED)
            c->targets[i].state = TARN_TARGET_WANTED;
}

static void reserve_failed(struct tarn_put *p, struct tarn_chunk *c, struct tarn_put_node *node, int rc)
{
    struct tarn_peer_node *r = node->node;
    bool refused_hello = node->reserve->refused;
    struct tarn_reason why;

    tarn_reason_keep(&why, rc);
    node->stores = false;
    if (refused_hello)
        unask(p, c, r);
    if (rc == TARN_E_BUSY && !refused_hello) { /* the whole command: the node is draining */
        atomic_store(&r->draining, true);
        why.code = TARN_E_NODE_DOWN;
    } else if (rc == TARN_E_NODE_DOWN) {
        tarn_peer_node_failed(r, rc, why.text, 0);
        if (refused_hello) /* the keeper gives back what another incarnation has granted */
            tarn_control_conn_give(node->reserve);
        else
            tarn_control_conn_drop(node->reserve);
        node->reserve = NULL;
    } else {
        if (rc == TARN_E_TIMEOUT && node->reserve->replies_due)
            tarn_peer_node_failed(r, rc, why.text, node->reserve->since_ns);
        tarn_control_conn_give(node->reserve); /* the keeper gives back what a late answer grants */
        node->reserve = NULL;
    }
    refuse_all(p, c, r, refused_hello ? TARN_TARGET_WANTED : TARN_TARGET_ASKED, &why);
}

/* Opening links and COMMIT can take them meanwhile. */
static void rest_connections(struct tarn_put *p)
{
    for (uint32_t k = 0; k < p->nnodes; k++)
        if (!p->nodes[k].reserving) {
            tarn_control_conn_rest(p->nodes[k].reserve);
            p->nodes[k].reserve = NULL;
        }
}

/* All answers are read before more is asked: an unread one would pass for the next command's. Once no answer
 * is outstanding, no target is WANTED. */
void tarn_chunk_granted(struct tarn_put *p, struct tarn_chunk *c)
{
    do {
        for (uint32_t k = 0; k < p->nnodes; k++) {
            struct tarn_put_node *node = &p->nodes[k];
            redisReply *reply;
            if (!node->reserving)
                continue;
            node->reserving = false;
            struct tarn_steps steps = steps_of(p, node->node);
            int rc = tarn_control_conn_reply(node->reserve, tarn_step(&steps), p->cancel, &reply);
            if (rc != 0) {
                reserve_failed(p, c, node, rc);
                continue;
            }
            take_grants(p, c, node, reply);
            freeReplyObject(reply);
            if (node->stores)
                expect_store(p, c, node);
        }
        tarn_chunk_ask(p, c);
    } while (is_reserving(p, NULL));
    rest_connections(p);
}

/* --- ABORT -------------------------------------------------------------------------------------- */

static bool to_abort(const struct tarn_target *t, const struct tarn_peer_node *node)
{
    return t->granted && t->job->failure.code != 0 && t->node == node && t->state != TARN_TARGET_COMMITTING;
}

/* The keeper repeats it for a node that is not up, does not answer, or has owed commands before it. */
static void abort_on(struct tarn_put *p, struct tarn_chunk *c, struct tarn_peer_node *node)
{
    struct tarn_command a = {.n = 0};
    redisReply *reply;
    uint64_t now = tarn_now_ns(), deadline = now + ABORT_NS;

    if (deadline > tarn_put_grace(p))
        deadline = tarn_put_grace(p);
    tarn_command_str(&a, "ABORT");
    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        if (!to_abort(t, node))
            continue;
        t->granted = false;
        tarn_command_u64(&a, t->pool);
        tarn_command_u64(&a, t->slot);
        tarn_command_gen(&a, t->gen);
    }
    if (now >= deadline || atomic_load(&node->owed_commands) > 0 || atomic_load(&node->health) != TARN_UP ||
        tarn_control_conn_call(node, &a, deadline, NULL, &reply) != 0) {
        tarn_owed_command_add(node, &a);
        return;
    }
    freeReplyObject(reply);
    tarn_command_free(&a);
}

void tarn_chunk_abort(struct tarn_put *p, struct tarn_chunk *c)
{
    for (uint32_t i = 0; i < c->n * p->replicas; i++)
        if (to_abort(&c->targets[i], c->targets[i].node))
            abort_on(p, c, c->targets[i].node);
}
