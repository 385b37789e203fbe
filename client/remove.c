/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any node can remove any key (DELETE). It takes the key out of the directory in one step, frees its own
 * copy, and names the displaced copies on other nodes. These are waited for like a put's (displaced.h). Nodes
 * that hold copies are asked first, since they free them at once.
 *
 * Only a node can say "no such key", since only a node knows whether the directory may have lost something.
 * Then it answers AGAIN, and is asked again until the deadline. Copies in this client's cache are released
 * where they were, whatever the directory says.
 *
 * Nodes are asked one after the other. A DELETE without an answer may have been carried out, so "no such key"
 * after it means that the key was removed.
 */
#include "client/remove.h"

#include <stdlib.h>
#include <string.h>

#include "client/cache.h"
#include "client/check.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/displaced.h"
#include "client/health.h"
#include "client/peer_nodes.h"
#include "client/refresh.h"
#include "client/resolve.h"
#include "client/verdict.h"

#define KEYS_MAX 1024 /* of one DELETE */
#define PAUSE_FIRST_MS 5
#define PAUSE_MOST_MS 100

struct target {
    struct tarn_peer_node *node; /* asked in this round; NULL: none yet */
    struct tarn_peer_node *holders[TARN_REPLICAS_MAX];
    uint32_t nholders;
    bool listed;  /* the directory has the key */
    bool cached;  /* this client knows a copy */
    bool in_vain; /* a node was asked and did not decide, or there was none */
    bool held;    /* the last answer was AGAIN */
};

struct removal {
    struct tarn_client *client;
    const struct tarn_key *keys;
    int32_t *statuses; /* TARN_INPROGRESS: not decided */
    struct target *targets;
    size_t n;
    uint64_t deadline_ns;
    uint32_t times; /* a node has that many patiences to answer: more each round */
    struct tarn_cancel *cancel;
    struct tarn_displaced_list old;
    struct tarn_verdict verdict;
    struct tarn_reason silent, again; /* why keys are undecided: no answer, AGAIN */
};

/* When it failed, the last error is its sentence. */
static void decide(struct removal *r, size_t i, int status)
{
    r->statuses[i] = status;
    if (status != 0)
        tarn_verdict_of(&r->verdict, i, status, "remove", &r->keys[i]);
}

/* --- where copies are --------------------------------------------------------------------------- */

static void note_holders(struct target *t, const struct tarn_desc *d)
{
    t->nholders = d->nlocs;
    for (uint32_t k = 0; k < d->nlocs; k++)
        t->holders[k] = d->locs[k].node;
}

/* Copies in the cache are released, whatever the directory says. */
static int note_cached(struct removal *r, size_t i, const struct tarn_desc *d)
{
    int rc = 0;

    r->targets[i].cached = true;
    note_holders(&r->targets[i], d);
    for (uint32_t k = 0; rc == 0 && k < d->nlocs; k++)
        rc = tarn_displaced_add(&r->old, &r->keys[i], i, &d->locs[k]);
    return rc;
}

/* Looks at the cache first: the look-up replaces what it has. */
static int find_copies(struct removal *r)
{
    struct tarn_resolved *found = malloc((r->n ? r->n : 1) * sizeof *found);
    struct tarn_key *keys = malloc((r->n ? r->n : 1) * sizeof *keys);
    size_t *which = malloc((r->n ? r->n : 1) * sizeof *which), n = 0;
    int rc = found && keys && which ? 0 : tarn_fail(TARN_E_NO_MEMORY, "remove: out of memory");

    for (size_t i = 0; rc == 0 && i < r->n; i++) {
        struct tarn_desc d;
        if (r->statuses[i] != TARN_INPROGRESS)
            continue;
        if (tarn_cache_find(r->client->cache, &r->keys[i], tarn_key_hash(&r->keys[i]), &d))
            rc = note_cached(r, i, &d);
        keys[n] = r->keys[i];
        which[n++] = i;
    }
    if (rc == 0 && n > 0)
        rc = tarn_resolve_keys(r->client, keys, n, r->deadline_ns, r->cancel, found);
    for (size_t k = 0; rc == 0 && k < n; k++) {
        struct target *t = &r->targets[which[k]];
        t->listed = found[k].status == 0;
        if (t->listed && found[k].desc.nlocs > 0)
            note_holders(t, &found[k].desc);
        tarn_cache_drop(r->client->cache, &keys[k], tarn_key_hash(&keys[k]), NULL);
    }
    free(found);
    free(keys);
    free(which);
    return rc;
}

/* A holder that answers, or any node that does. Waits for the keeper's word on suspect holders. */
static struct tarn_peer_node *node_for(struct removal *r, const struct target *t)
{
    struct tarn_peer_node *any;

    for (uint32_t k = 0; k < t->nholders; k++)
        if (tarn_peer_node_answers(t->holders[k]))
            return t->holders[k];
    if ((any = tarn_peer_nodes_any(r->client, NULL)) != NULL)
        return any;
    if (tarn_peer_nodes_refresh(r->client, r->deadline_ns, r->cancel) == 0 &&
        (any = tarn_peer_nodes_any(r->client, NULL)) != NULL)
        return any;
    for (uint32_t k = 0; k < t->nholders; k++)
        if (tarn_peer_node_settled(t->holders[k], r->deadline_ns, r->cancel))
            return t->holders[k];
    return NULL;
}

/* --- one round ---------------------------------------------------------------------------------- */

static void take_answer(struct removal *r, size_t i, struct tarn_peer_node *by, const redisReply *e)
{
    struct target *t = &r->targets[i];
    bool copies = e->type == REDIS_REPLY_ARRAY && e->elements > 0;
    const redisReply *removed = copies ? e->element[0] : e; /* was there an object? */
    int rc = tarn_peer_node_error(by, e);

    t->held = rc == TARN_E_AGAIN;
    if (t->held) {
        t->in_vain = true;
        tarn_reason_keep(&r->again, rc);
    } else if (rc != 0) {
        decide(r, i, rc);
    } else if (removed->type != REDIS_REPLY_INTEGER) {
        decide(r, i,
               tarn_peer_node_fail(by, TARN_E_PROTOCOL, "DELETE: not an answer: is it of another version?"));
    } else if (copies && (rc = tarn_displaced_note(r->client, &r->old, &r->keys[i], i, by, e->element + 1,
                                                   e->elements - 1)) != 0) {
        decide(r, i, rc);
    } else if (removed->integer || t->listed || (t->cached && t->in_vain)) {
        decide(r, i, 0);
    } else {
        r->statuses[i] = TARN_E_NOT_FOUND; /* final when its displaced copies are settled */
    }
}

/* When a node did not answer, another is asked. Other failures are final. */
static void no_answer(struct removal *r, const size_t *batch, size_t n, int rc)
{
    bool next = rc == TARN_E_NODE_DOWN || rc == TARN_E_TIMEOUT;

    if (next)
        tarn_reason_keep(&r->silent, rc);
    for (size_t k = 0; k < n; k++) {
        r->targets[batch[k]].held = false;
        r->targets[batch[k]].in_vain = true;
        if (!next)
            decide(r, batch[k], rc);
    }
}

static void send_batch(struct removal *r, struct tarn_peer_node *node, const size_t *batch, size_t n)
{
    static const redisReply none = {.type = REDIS_REPLY_ERROR, .str = (char *)"PROTOCOL answer too short"};
    uint64_t until = tarn_now_ns() + r->times * tarn_peer_node_patience(node);
    struct tarn_command c = {.n = 0};
    redisReply *reply;

    tarn_command_str(&c, "DELETE");
    for (size_t k = 0; k < n; k++)
        tarn_command_add(&c, r->keys[batch[k]].data, r->keys[batch[k]].bytes);
    int rc =
        tarn_control_conn_call(node, &c, until < r->deadline_ns ? until : r->deadline_ns, r->cancel, &reply);
    tarn_command_free(&c);
    if (rc != 0) {
        no_answer(r, batch, n, rc);
        return;
    }
    for (size_t k = 0; k < n; k++)
        take_answer(r, batch[k], node, k < reply->elements ? reply->element[k] : &none);
    freeReplyObject(reply);
}

/* Asks about each undecided key at one node. */
static void ask_round(struct removal *r)
{
    size_t batch[KEYS_MAX];

    for (size_t i = 0; i < r->n; i++)
        r->targets[i].node = NULL;
    for (size_t i = 0; i < r->n && !tarn_canceled(r->cancel); i++) {
        if (r->statuses[i] != TARN_INPROGRESS || r->targets[i].node)
            continue;
        struct tarn_peer_node *node = node_for(r, &r->targets[i]);
        size_t n = 0;
        if (!node) {
            tarn_fail(TARN_E_NODE_DOWN, "no node answers: look at them (tarn info), or start one");
            no_answer(r, &i, 1, TARN_E_NODE_DOWN);
            continue;
        }
        for (size_t k = i; k < r->n && n < KEYS_MAX; k++)
            if (r->statuses[k] == TARN_INPROGRESS && !r->targets[k].node &&
                (k == i || node_for(r, &r->targets[k]) == node)) {
                r->targets[k].node = node;
                batch[n++] = k;
            }
        send_batch(r, node, batch, n);
    }
}

static bool knows_nodes(struct tarn_client *c)
{
    pthread_rwlock_rdlock(&c->nodes_lock);
    bool any = HASH_COUNT(c->nodes) > 0;
    pthread_rwlock_unlock(&c->nodes_lock);
    return any;
}

/* Fails at once when the directory lists no node. */
static int need_node(struct removal *r)
{
    int rc = knows_nodes(r->client) ? 0 : tarn_peer_nodes_refresh(r->client, r->deadline_ns, r->cancel);
    return rc || knows_nodes(r->client) ? rc : tarn_peer_nodes_none(r->client);
}

static bool undecided(const struct removal *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->statuses[i] == TARN_INPROGRESS)
            return true;
    return false;
}

/* --- the end ------------------------------------------------------------------------------------ */

/* DIRECTORY: it was waited for until the deadline. */
static int out_of_time(const struct removal *r, size_t i)
{
    if (tarn_canceled(r->cancel))
        return tarn_cancel_fail();
    if (!r->targets[i].in_vain)
        return tarn_fail(TARN_E_TIMEOUT, "the deadline has passed: raise timeout_ms");
    tarn_reason_fail(r->targets[i].held ? &r->again : &r->silent);
    return r->targets[i].held ? TARN_E_DIRECTORY : TARN_E_NODE_DOWN;
}

static void finish(struct removal *r)
{
    for (size_t i = 0; i < r->n; i++) {
        if (r->statuses[i] == TARN_INPROGRESS)
            decide(r, i, out_of_time(r, i));
        if (r->statuses[i] != 0 && r->statuses[i] != TARN_E_NOT_FOUND)
            continue;
        int rc = tarn_displaced_status(&r->old, i);
        if (rc == 0 && r->statuses[i] == TARN_E_NOT_FOUND)
            rc = tarn_fail(TARN_E_NOT_FOUND, "no such key");
        decide(r, i, rc);
    }
}

static void run(struct removal *r)
{
    int pause_ms = PAUSE_FIRST_MS;
    int rc = find_copies(r);

    if (rc == 0)
        rc = need_node(r);
    for (size_t i = 0; rc != 0 && i < r->n; i++)
        if (r->statuses[i] == TARN_INPROGRESS)
            decide(r, i, rc);
    while (undecided(r)) {
        ask_round(r);
        if (!undecided(r) || !tarn_cancel_pause(r->cancel, r->deadline_ns, pause_ms))
            break;
        pause_ms = pause_ms * 2 < PAUSE_MOST_MS ? pause_ms * 2 : PAUSE_MOST_MS;
        r->times += r->times < 8 ? r->times : 0; /* the network or Redis may be slow */
    }
    tarn_displaced_settle(r->client, &r->old, r->deadline_ns, r->cancel);
}

int tarn_remove_run(struct tarn_client *c, const struct tarn_key *keys, size_t n, int32_t *statuses,
                    uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct removal r = {
        .client = c, .keys = keys, .n = n, .deadline_ns = deadline_ns, .times = 1, .cancel = cancel};

    if (n > 0 && !keys)
        return tarn_fail(TARN_E_INVALID, "remove: keys are NULL");
    r.statuses = statuses ? statuses : malloc((n ? n : 1) * sizeof *statuses);
    r.targets = calloc(n ? n : 1, sizeof *r.targets);
    int rc = r.statuses && r.targets ? 0 : tarn_fail(TARN_E_NO_MEMORY, "remove: out of memory");
    for (size_t i = 0; rc == 0 && i < n; i++) {
        int bad = tarn_key_check(&keys[i]);
        r.statuses[i] = TARN_INPROGRESS;
        if (bad)
            decide(&r, i, bad);
    }
    if (rc == 0) {
        run(&r);
        finish(&r);
    }
    tarn_displaced_end(&r.old);
    free(r.targets);
    if (!statuses)
        free(r.statuses);
    return rc ? rc : tarn_verdict_end(&r.verdict);
}

int tarn_remove(struct tarn_client *c, const struct tarn_key *keys, size_t n, int32_t *statuses,
                uint32_t timeout_ms)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    struct tarn_cancel own;
    return tarn_remove_run(c, keys, n, statuses, tarn_client_deadline(c, timeout_ms),
                           tarn_client_cancel(c, &own));
}
