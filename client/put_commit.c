/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts: COMMIT, and what follows from its answers.
 *
 * Redis decides which version of a key there is. With replicas, the first copy is committed alone; once it
 * has won the key, the others join its version ("join"), and fail when another put has taken the key since.
 * So of two puts of one key one gets all its copies in, and the other one was replaced. When a copy fails
 * for another reason, the others are taken back; what a replacing put displaced is gone by then.
 *
 * COMMIT carries the deadline on the node's clock, and what it leaves unanswered is ABORTed, so a node that
 * goes on later publishes nothing of a put that failed. Its answer waits for Redis; that it does not come
 * says nothing of the node's health.
 *
 * Copies that a replacing put displaced on other nodes are released there before success is reported, so
 * that no reader's old descriptor outlives the put. A node that does not answer is told as soon as it does
 * (errand.c). Until then, and only while it is paused and keeps its heartbeat's record, clients on its host
 * that have the old descriptor may read the old copy out of its shared memory.
 */
#include "client/put.h"

#include <stdlib.h>
#include <string.h>

#define RELEASE_NS (100 * TARN_NS_PER_MS)

/* --- COMMIT ------------------------------------------------------------------------------------- */

/* The first copy once all are written, the others once it is stored. */
static bool complete(const struct tarn_put *p, const struct tarn_put_job *job, bool join)
{
    enum tarn_target_state first = join ? TARN_TARGET_STORED : TARN_TARGET_WRITTEN;

    if (job->status != 0 || job->targets[0].state != first)
        return false;
    for (uint32_t k = 1; k < p->replicas; k++)
        if (job->targets[k].state != TARN_TARGET_WRITTEN && job->targets[k].state != TARN_TARGET_COMMITTING)
            return false;
    return true;
}

static bool to_commit(const struct tarn_put *p, const struct tarn_target *t, const struct tarn_remote *r,
                      bool join)
{
    return t->remote == r && t->state == TARN_TARGET_WRITTEN && (t != t->job->targets) == join &&
           complete(p, t->job, join);
}

static int send_commit(struct tarn_put *p, struct tarn_chunk *c, struct tarn_put_node *node, bool join)
{
    struct tarn_words a;
    uint32_t asked = 0;
    int rc = node->commit ? 0 : tarn_call_take(node->remote, false, p->deadline_ns, &p->stop, &node->commit);

    if (rc == 0)
        rc = tarn_words_init(&a, 3 + 3 * TARN_CHUNK_ITEMS, 24 + TARN_CHUNK_ITEMS * 48);
    if (rc != 0)
        return rc;
    tarn_words_str(&a, "COMMIT");
    tarn_words_u64(&a, tarn_remote_clock(node->remote, p->deadline_ns));
    tarn_words_str(&a, join ? "join" : "put");
    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        if (!to_commit(p, t, node->remote, join))
            continue;
        tarn_words_u64(&a, t->pool);
        tarn_words_u64(&a, t->slot);
        tarn_words_gen(&a, t->gen);
        asked++;
    }
    rc = asked ? tarn_words_send(&a, node->commit, p->deadline_ns) : 0;
    tarn_words_free(&a);
    node->committing = rc == 0 && asked;
    return rc;
}

static void commit_failed(struct tarn_put *p, struct tarn_chunk *c, struct tarn_put_node *node,
                          enum tarn_target_state state, int rc)
{
    char text[256];

    snprintf(text, sizeof text, "%s", tarn_last_error());
    if (rc == TARN_E_NODE_DOWN) {
        if (node->commit)
            tarn_call_drop(node->commit);
        tarn_remote_aside(node->remote, TARN_GONE, text);
    } else {
        tarn_call_give(node->commit);
    }
    node->commit = NULL;
    tarn_last_error_set(text);
    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        if (t->remote != node->remote || t->state != state)
            continue;
        t->state = TARN_TARGET_LOST;
        if (t->job->status == 0)
            t->job->again = rc == TARN_E_NODE_DOWN;
        tarn_job_fail(t->job, rc);
    }
}

static bool any_to_commit(const struct tarn_put *p, const struct tarn_chunk *c, const struct tarn_remote *r,
                          bool join)
{
    for (uint32_t i = 0; i < c->n * p->replicas; i++)
        if (to_commit(p, &c->targets[i], r, join))
            return true;
    return false;
}

static void ask_all(struct tarn_put *p, struct tarn_chunk *c, bool join)
{
    for (uint32_t k = 0; k < p->nnodes; k++) {
        struct tarn_put_node *node = &p->nodes[k];
        if (!any_to_commit(p, c, node->remote, join))
            continue;
        int rc = send_commit(p, c, node, join);
        if (rc != 0) {
            commit_failed(p, c, node, TARN_TARGET_WRITTEN, rc);
            continue;
        }
        for (uint32_t i = 0; i < c->n * p->replicas; i++)
            if (to_commit(p, &c->targets[i], node->remote, join))
                c->targets[i].state = TARN_TARGET_COMMITTING;
    }
}

void tarn_chunk_commit(struct tarn_put *p, struct tarn_chunk *c)
{
    ask_all(p, c, false);
    tarn_chunk_abort(p, c);
}

/* --- displaced copies --------------------------------------------------------------------------- */

struct displaced {
    struct tarn_remote *remote;
    char pool[TARN_POOL_NAME_MAX + 1];
    uint64_t slot, gen;
    bool sent;
};

struct releases {
    struct displaced *all;
    uint32_t n, room;
};

/* "@<node>/<pool>=<offset>:<slot>:<gen>" */
static bool parse_displaced(struct tarn_client *c, const redisReply *e, struct displaced *d)
{
    char node[TARN_NODE_ID_MAX + 1];
    const char *s = e->str, *end = s ? s + e->len : NULL;

    if (!s || *s++ != '@')
        return false;
    const char *slash = memchr(s, '/', (size_t)(end - s)),
               *equal = slash ? memchr(slash, '=', (size_t)(end - slash)) : NULL;
    const char *slot = equal ? memchr(equal, ':', (size_t)(end - equal)) : NULL;
    const char *gen = slot ? memchr(slot + 1, ':', (size_t)(end - slot - 1)) : NULL;
    if (!gen || slash - s > TARN_NODE_ID_MAX || equal - slash - 1 > TARN_POOL_NAME_MAX ||
        tarn_u64_parse(slot + 1, (size_t)(gen - slot - 1), 10, UINT32_MAX, &d->slot) != 0 ||
        tarn_u64_parse(gen + 1, (size_t)(end - gen - 1), 16, UINT64_MAX, &d->gen) != 0)
        return false;
    memcpy(node, s, (size_t)(slash - s));
    node[slash - s] = '\0';
    memcpy(d->pool, slash + 1, (size_t)(equal - slash - 1));
    d->pool[equal - slash - 1] = '\0';
    d->sent = false;
    d->remote = tarn_remote_of(c, node, (uint32_t)(d->gen >> 32));
    return d->remote != NULL;
}

static void note_displaced(struct tarn_put *p, struct releases *r, const redisReply *list)
{
    for (size_t i = 0; i < list->elements; i++) {
        if (r->n == r->room) {
            uint32_t room = r->room ? r->room * 2 : 16;
            struct displaced *all = realloc(r->all, room * sizeof *all);
            if (!all)
                return; /* the nodes' scrub finds them */
            r->all = all;
            r->room = room;
        }
        if (parse_displaced(p->client, list->element[i], &r->all[r->n]))
            r->n++;
    }
}

/* The put has taken place, so its own deadline must not leave old copies behind on a healthy node; a silent
 * one is not waited for any longer than it takes to know that. */
static uint64_t release_deadline(const struct tarn_put *p)
{
    uint64_t now = tarn_now_ns(), least = now + RELEASE_NS, most = now + TARN_PATIENCE_NS;

    return p->deadline_ns < least ? least : p->deadline_ns > most ? most : p->deadline_ns;
}

/* RELEASEs there, if need be later. Takes the words over. */
static void release_send(struct tarn_put *p, struct tarn_remote *remote, struct tarn_words *a)
{
    redisReply *reply;

    if (atomic_load(&remote->superseded)) { /* so is what it held */
        tarn_words_free(a);
        return;
    }
    if (tarn_words_call(a, remote, release_deadline(p), NULL, &reply) != 0) {
        tarn_log(&p->client->log, TARN_LOG_INFO, "client",
                 "msg=\"replaced copies are released when their node answers\" node=%s", remote->key.id);
        tarn_monitor_errand(remote, a);
        return;
    }
    freeReplyObject(reply);
    tarn_words_free(a);
}

static void release_on(struct tarn_put *p, struct releases *r, struct tarn_remote *remote)
{
    struct tarn_words a;

    if (tarn_words_init(&a, 1 + 3 * (int)r->n, r->n * (48 + TARN_POOL_NAME_MAX)) != 0)
        return;
    tarn_words_str(&a, "RELEASE");
    for (uint32_t i = 0; i < r->n; i++) {
        struct displaced *d = &r->all[i];
        if (d->remote != remote)
            continue;
        d->sent = true;
        tarn_words_text(&a, d->pool);
        tarn_words_u64(&a, d->slot);
        tarn_words_gen(&a, d->gen);
    }
    if (!atomic_load(&remote->listed) && !atomic_load(&remote->superseded))
        tarn_remotes_refresh(p->client, release_deadline(p));
    release_send(p, remote, &a);
}

static void release_all(struct tarn_put *p, struct releases *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (!r->all[i].sent)
            release_on(p, r, r->all[i].remote);
    free(r->all);
}

/* --- answers ------------------------------------------------------------------------------------ */

static void take_answer(struct tarn_put *p, struct tarn_target *t, const redisReply *e, struct releases *r)
{
    char who[352];
    int rc = tarn_resp_error(e, tarn_remote_text(t->remote, who), TARN_E_PROTOCOL);

    t->granted = false; /* published or freed */
    t->state = rc == 0 ? TARN_TARGET_STORED : TARN_TARGET_LOST;
    if (rc == 0)
        note_displaced(p, r, e);
    if (rc == TARN_E_STALE) { /* the session broke off; nothing was published */
        rc = tarn_fail(TARN_E_NODE_DOWN, "%s: has dropped the reservation", who);
        t->job->again = t->job->status == 0;
    }
    if (rc != 0)
        tarn_job_fail(t->job, rc);
}

static void take_answers(struct tarn_put *p, struct tarn_chunk *c, struct tarn_remote *remote,
                         const redisReply *reply, struct releases *r)
{
    static const redisReply short_answer = {.type = REDIS_REPLY_ERROR,
                                            .str = (char *)"PROTOCOL answer too short"};
    size_t at = 0;

    for (uint32_t i = 0; i < c->n * p->replicas; i++) {
        struct tarn_target *t = &c->targets[i];
        if (t->remote == remote && t->state == TARN_TARGET_COMMITTING)
            take_answer(p, t, at < reply->elements ? reply->element[at] : &short_answer, r), at++;
    }
}

/* Takes back the copies of a job that failed on another node. Exactly those: the key may be another put's
 * by now. */
static void undo(struct tarn_put *p, struct tarn_put_job *job)
{
    char pool[TARN_POOL_NAME_MAX + 1];

    for (uint32_t k = 0; k < p->replicas; k++) {
        struct tarn_target *t = &job->targets[k];
        struct tarn_words a;
        if (t->state != TARN_TARGET_STORED || tarn_words_init(&a, 4, 48 + TARN_POOL_NAME_MAX) != 0)
            continue;
        tarn_remote_pool_name(t->remote, t->pool, pool);
        tarn_words_str(&a, "RELEASE");
        tarn_words_text(&a, pool);
        tarn_words_u64(&a, t->slot);
        tarn_words_gen(&a, t->gen + 1);
        release_send(p, t->remote, &a);
        t->state = TARN_TARGET_LOST;
    }
}

static void stored(struct tarn_put *p, const struct tarn_put_job *job)
{
    const struct tarn_item *item = &p->items[job->index];
    struct tarn_desc d = {.tensor = item->tensor, .nlocs = 0};

    for (uint32_t k = 0; k < p->replicas; k++) {
        const struct tarn_target *t = &job->targets[k];
        if (t->state == TARN_TARGET_STORED)
            d.locs[d.nlocs++] = (struct tarn_loc){t->remote, t->offset, t->gen + 1, t->pool, t->slot};
    }
    tarn_cache_set(p->client->cache, &item->key, tarn_key_hash(&item->key), &d);
    tarn_count(p->client, 0, TARN_COUNT_PUTS, 1);
    tarn_count(p->client, 0, TARN_COUNT_PUT_BYTES, item->tensor.bytes);
}

static void settle(struct tarn_put *p, struct tarn_put_job *job)
{
    const struct tarn_key *key = &p->items[job->index].key;
    uint32_t copies = 0;

    for (uint32_t k = 0; k < p->replicas; k++)
        copies += job->targets[k].state == TARN_TARGET_STORED;
    if (job->status == TARN_E_EXISTS && copies > 0) /* stored, then replaced before the others had joined */
        job->status = 0;
    if (job->status == 0) {
        stored(p, job);
        return;
    }
    if (copies > 0) {
        char text[sizeof job->text];
        memcpy(text, job->text, sizeof text);
        undo(p, job);
        tarn_last_error_set(text);
    }
    if (copies > 0 || (p->flags & TARN_PUT_REPLACE))
        tarn_cache_drop(p->client->cache, key, tarn_key_hash(key), NULL);
}

static void answers(struct tarn_put *p, struct tarn_chunk *c, struct releases *r)
{
    for (uint32_t k = 0; k < p->nnodes; k++) {
        struct tarn_put_node *node = &p->nodes[k];
        redisReply *reply;
        if (!node->committing)
            continue;
        node->committing = false;
        int rc = tarn_call_reply(node->commit, p->deadline_ns, &p->stop, &reply);
        if (rc != 0) {
            commit_failed(p, c, node, TARN_TARGET_COMMITTING, rc);
            continue;
        }
        take_answers(p, c, node->remote, reply, r);
        freeReplyObject(reply);
    }
}

void tarn_chunk_stored(struct tarn_put *p, struct tarn_chunk *c)
{
    struct releases r = {0};

    answers(p, c, &r);
    if (p->replicas > 1) {
        ask_all(p, c, true);
        answers(p, c, &r);
    }
    tarn_chunk_abort(p, c);
    release_all(p, &r);
    for (uint32_t i = 0; i < c->n; i++)
        settle(p, &c->jobs[i]);
}
