/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts: COMMIT, and what follows from its answers.
 *
 * Redis decides which version of a key there is. With replicas, the first copy is committed alone once all
 * are written. When it has won the key, the others join its version ("join"); they fail if another put has
 * taken the key since. So of two puts of one key, one has all its copies stored, and the other was replaced.
 * When a copy fails for another reason, the stored ones are taken back. Those of a replacing put stay, since
 * what they have displaced is gone.
 *
 * COMMIT carries the deadline on the node's clock, and unanswered items are ABORTed. So a node that goes on
 * later publishes nothing of a failed put. The node answers after Redis; a late answer says nothing about its
 * health.
 *
 * Two answers mean that an item stays reserved and is committed again a little later. BUSY: the node is still
 * receiving what a broken link had sent (tcp). AGAIN: the directory was lost a moment ago, or the node has
 * just come back, so a missing record means nothing yet.
 */
#include "client/put_commit.h"

#include <string.h>

#include "client/cache.h"
#include "client/control_conn.h"
#include "client/displaced.h"
#include "client/health.h"
#include "client/peer_nodes.h"
#include "client/put_plan.h"
#include "client/put_reserve.h"
#include "client/read_lease_ask.h"
#include "client/retire.h"

#define WAIT_MAX_MS 16 /* between COMMITs of held items */
#define ANSWER_MS 10   /* with less time left, COMMIT is not sent again */

/* --- COMMIT ------------------------------------------------------------------------------------- */

/* The first copy is committed when all are written, the others when it is stored. */
static bool complete(const struct tarn_put *p, const struct tarn_put_job *job, bool join)
{
    enum tarn_target_state first = join ? TARN_TARGET_STORED : TARN_TARGET_WRITTEN;

    if (job->failure.code != 0 || job->targets[0].state != first)
        return false;
    for (uint32_t k = 1; k < p->replicas; k++)
        if (job->targets[k].state < TARN_TARGET_WRITTEN || job->targets[k].state > TARN_TARGET_STORED)
            return false;
    return true;
}

static bool to_commit(const struct tarn_put *p, const struct tarn_target *t,
                      const struct tarn_peer_node *node, bool join)
{
    return t->node == node && t->state == TARN_TARGET_WRITTEN && (t != t->job->targets) == join &&
           complete(p, t->job, join);
}

static int send_commit(struct tarn_put *p, struct tarn_chunk *c, struct tarn_put_node *node, bool join)
{
    struct tarn_control_conn **conn = &node->commit[c->turn];

    if (node->stores) { /* it was sent with RESERVE */
        node->stores = false;
        node->committing[c->turn] = true;
        return 0;
    }
    if (tarn_now_ns() >= p->deadline_ns)
        return tarn_fail(TARN_E_TIMEOUT, "the deadline has passed: raise timeout_ms");
    int rc = *conn ? 0 : tarn_control_conn_take(node->node, p->deadline_ns, p->cancel, conn);

    if (rc != 0)
        return rc;
    struct tarn_command *command = tarn_resp_command((*conn)->resp, "COMMIT", NULL);
    tarn_command_u64(command, tarn_peer_node_clock(node->node, p->deadline_ns));
    tarn_command_str(command, join ? "join" : "put");
    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        if (!to_commit(p, t, node->node, join))
            continue;
        tarn_command_u64(command, t->pool);
        tarn_command_u64(command, t->slot);
        tarn_command_gen(command, t->gen);
    }
    rc = tarn_control_conn_send(*conn, command, p->deadline_ns, p->cancel);
    node->committing[c->turn] = rc == 0;
    (*conn)->spins = p->spins;
    return rc;
}

/* Fails with what the node said. To the caller AGAIN is the directory's failure. */
static int fail_held(const struct tarn_put_job *job)
{
    return tarn_reason_fail(&job->held) == TARN_E_AGAIN ? TARN_E_DIRECTORY : TARN_E_BUSY;
}

static void commit_failed(struct tarn_put *p, struct tarn_chunk *c, struct tarn_put_node *node,
                          enum tarn_target_state state, int rc)
{
    struct tarn_reason why;

    if (tarn_reason_keep(&why, rc) == TARN_E_NODE_DOWN) {
        if (node->commit[c->turn])
            tarn_control_conn_drop(node->commit[c->turn]);
        tarn_peer_node_failed(node->node, rc, why.text, 0);
    } else {
        tarn_control_conn_give(node->commit[c->turn]);
        if (rc == TARN_E_TIMEOUT)
            tarn_peer_node_doubt(node->node);
    }
    node->commit[c->turn] = NULL;
    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        if (t->node != node->node || t->state != state)
            continue;
        t->state = TARN_TARGET_LOST;
        if (t->job->failure.code == 0)
            t->job->again = rc == TARN_E_NODE_DOWN;
        /* No answer this time: what the node said before explains more. */
        bool held = rc == TARN_E_TIMEOUT && t->held;
        tarn_job_fail(t->job, held ? fail_held(t->job) : tarn_reason_fail(&why));
    }
}

/* node: NULL for any. */
static bool any_to_commit(const struct tarn_put *p, const struct tarn_chunk *c,
                          const struct tarn_peer_node *node, bool join)
{
    for (uint32_t i = 0; i < c->n * p->replicas; i++)
        if (to_commit(p, &c->targets[i], node ? node : c->targets[i].node, join))
            return true;
    return false;
}

static void ask_all(struct tarn_put *p, struct tarn_chunk *c, bool join)
{
    for (uint32_t k = 0; k < p->nnodes; k++) {
        struct tarn_put_node *node = &p->nodes[k];
        if (!any_to_commit(p, c, node->node, join))
            continue;
        int rc = send_commit(p, c, node, join);
        if (rc != 0) {
            commit_failed(p, c, node, TARN_TARGET_WRITTEN, rc);
            continue;
        }
        for (uint32_t i = 0; i < c->n * p->replicas; i++)
            if (to_commit(p, &c->targets[i], node->node, join))
                c->targets[i].state = TARN_TARGET_COMMITTING;
    }
}

void tarn_chunk_commit(struct tarn_put *p, struct tarn_chunk *c)
{
    ask_all(p, c, false);
    tarn_chunk_abort(p, c);
}

/* --- answers ------------------------------------------------------------------------------------ */

static void take_answer(struct tarn_put *p, struct tarn_target *t, const redisReply *e,
                        struct tarn_displaced_list *old)
{
    int rc = tarn_peer_node_error(t->node, e);

    if (rc == TARN_E_BUSY || rc == TARN_E_AGAIN) {
        t->state = TARN_TARGET_WRITTEN;
        t->held = true;
        tarn_reason_keep(&t->job->held, rc);
        return;
    }
    if (rc == 0 && e->type != REDIS_REPLY_ARRAY)
        rc =
            tarn_peer_node_fail(t->node, TARN_E_PROTOCOL, "COMMIT: not an answer: is it of another version?");
    t->granted = false; /* published or freed */
    t->state = rc == 0 ? TARN_TARGET_STORED : TARN_TARGET_LOST;
    if (rc == 0 && tarn_displaced_note(p->client, old, &p->items[t->job->index].key, t->job->index, t->node,
                                       e->element, e->elements) != 0)
        tarn_job_fail(t->job, TARN_E_IN_DOUBT);
    if (rc == TARN_E_STALE) { /* the session has ended; nothing was published */
        rc = tarn_peer_node_fail(t->node, TARN_E_NODE_DOWN, "has dropped the reservation");
        t->job->again = t->job->failure.code == 0;
    }
    if (rc != 0)
        tarn_job_fail(t->job, rc);
}

static void take_answers(struct tarn_put *p, struct tarn_chunk *c, struct tarn_peer_node *node,
                         const redisReply *reply, struct tarn_displaced_list *old)
{
    static const redisReply short_answer = {.type = REDIS_REPLY_ERROR,
                                            .str = (char *)"PROTOCOL answer too short"};
    size_t at = 0;

    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        if (t->node == node && t->state == TARN_TARGET_COMMITTING)
            take_answer(p, t, at < reply->elements ? reply->element[at] : &short_answer, old), at++;
    }
}

static void stored(struct tarn_put *p, const struct tarn_put_job *job)
{
    const struct tarn_item *item = &p->items[job->index];
    struct tarn_desc d = {.tensor = item->tensor, .nlocs = 0};

    for (uint32_t k = 0; k < p->replicas; k++) {
        const struct tarn_target *t = &job->targets[k];
        if (t->state != TARN_TARGET_STORED)
            continue;
        tarn_read_lease_named(t->node);
        d.locs[d.nlocs++] = tarn_target_loc(t);
    }
    tarn_cache_set(p->client->cache, &item->key, job->hash, &d);
    tarn_count(p->client, 0, TARN_COUNT_PUTS, 1);
    tarn_count(p->client, 0, TARN_COUNT_PUT_BYTES, item->tensor.bytes);
}

/* A replacing put failed with some copies stored: they are all that is left of the key. */
static void stored_in_part(struct tarn_put *p, struct tarn_put_job *job, uint32_t copies)
{
    tarn_reason_keep(&job->failure, tarn_fail(job->failure.code, "stored with %u of %u copies: %s", copies,
                                              p->replicas, job->failure.text));
    stored(p, job);
}

/* Notes the stored copies of a failed job, to be taken back. Exactly those: the key may be another put's by
 * now.
 */
static void undo_note(struct tarn_put *p, struct tarn_displaced_list *undo, struct tarn_put_job *job)
{
    for (uint32_t k = 0; k < p->replicas; k++) {
        struct tarn_target *t = &job->targets[k];
        if (t->state != TARN_TARGET_STORED)
            continue;
        const struct tarn_loc at = tarn_target_loc(t);
        tarn_displaced_add(undo, &p->items[job->index].key, job->index, &at);
        t->state = TARN_TARGET_LOST;
    }
}

/* A node that does not answer keeps its copy, so the failed put may have taken effect there. */
static void undo_run(struct tarn_put *p, struct tarn_displaced_list *undo)
{
    if (undo->n > 0)
        tarn_displaced_release(p->client, undo, tarn_put_grace(p), NULL);
    tarn_displaced_end(undo);
}

static void settle(struct tarn_put *p, struct tarn_put_job *job, const struct tarn_displaced_list *old,
                   struct tarn_displaced_list *undo)
{
    uint32_t copies = 0;

    for (uint32_t k = 0; k < p->replicas; k++)
        copies += job->targets[k].state == TARN_TARGET_STORED;
    if (job->failure.code == TARN_E_EXISTS && copies > 0) /* stored, then replaced before the others joined */
        job->failure.code = 0;
    bool in_doubt = job->failure.code == TARN_E_IN_DOUBT && copies == p->replicas;
    if (job->failure.code == 0 || in_doubt) {
        stored(p, job);
        int rc = in_doubt ? 0 : tarn_displaced_status(old, job->index);
        if (rc != 0)
            tarn_job_fail(job, rc);
    } else if (copies > 0 && (p->flags & TARN_PUT_REPLACE)) {
        stored_in_part(p, job, copies);
    } else if (copies > 0 || (p->flags & TARN_PUT_REPLACE)) {
        undo_note(p, undo, job);
        tarn_cache_drop(p->client->cache, &p->items[job->index].key, job->hash, NULL);
    }
}

static void answers(struct tarn_put *p, struct tarn_chunk *c, struct tarn_displaced_list *old)
{
    for (uint32_t k = 0; k < p->nnodes; k++) {
        struct tarn_put_node *node = &p->nodes[k];
        redisReply *reply;
        if (!node->committing[c->turn])
            continue;
        node->committing[c->turn] = false;
        int rc = tarn_control_conn_reply(node->commit[c->turn], p->deadline_ns, p->cancel, &reply);
        if (rc != 0) {
            commit_failed(p, c, node, TARN_TARGET_COMMITTING, rc);
            continue;
        }
        take_answers(p, c, node->node, reply, old);
        freeReplyObject(reply);
    }
}

/* --- held items --------------------------------------------------------------------------------- */

/* Waits longer each time. False: no time is left for another COMMIT, or it was canceled. */
static bool wait_a_moment(const struct tarn_put *p, int *wait_ms)
{
    *wait_ms = *wait_ms * 2 + 1 < WAIT_MAX_MS ? *wait_ms * 2 + 1 : WAIT_MAX_MS;
    return tarn_left_ms(p->deadline_ns) >= *wait_ms + ANSWER_MS &&
           tarn_cancel_pause(p->cancel, p->deadline_ns, *wait_ms);
}

/* Fails the items that are still held; their reservations will be given back. */
static void give_up(struct tarn_put *p, struct tarn_chunk *c, bool join)
{
    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        if (!to_commit(p, t, t->node, join))
            continue;
        tarn_job_fail(t->job, tarn_canceled(p->cancel) ? tarn_cancel_fail() : fail_held(t->job));
    }
}

/* Takes the answers, and commits held items again. */
static void settled(struct tarn_put *p, struct tarn_chunk *c, struct tarn_displaced_list *old, bool join)
{
    int wait_ms = 0;

    answers(p, c, old);
    while (any_to_commit(p, c, NULL, join) && wait_a_moment(p, &wait_ms)) {
        ask_all(p, c, join);
        answers(p, c, old);
    }
    give_up(p, c, join);
}

void tarn_chunk_stored(struct tarn_put *p, struct tarn_chunk *c)
{
    struct tarn_displaced_list old = {0}, undo = {0};

    settled(p, c, &old, false);
    if (p->replicas > 1) {
        ask_all(p, c, true);
        settled(p, c, &old, true);
    }
    tarn_chunk_abort(p, c);
    tarn_displaced_settle(p->client, &old, p->deadline_ns, p->cancel);
    for (uint32_t i = 0; i < c->n; i++)
        settle(p, &c->jobs[i], &old, &undo);
    tarn_displaced_end(&old);
    undo_run(p, &undo);
}
