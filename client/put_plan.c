/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: checking items, choosing nodes, and the bookkeeping of chunks. */
#include "client/put_plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"
#include "client/alert.h"
#include "client/check.h"
#include "client/control_conn.h"
#include "client/health.h"
#include "client/refresh.h"
#include "transport/layout.h"

/* --- items -------------------------------------------------------------------------------------- */

int tarn_put_check(const struct tarn_item *item, size_t i, bool pieces)
{
    int rc = tarn_key_check(&item->key);
    if (rc == 0)
        rc = tarn_tensor_check(&item->tensor);
    if (rc == 0 && pieces)
        rc = item->layout ? tarn_layout_check("put", i, item->layout, item->pages, item->npieces)
                          : tarn_pieces_check("put", i, item->pieces, item->npieces);
    if (rc != 0 || !pieces)
        return rc;
    if (item->offset != 0)
        return tarn_fail(TARN_E_INVALID,
                         "put: item %zu: offset is %llu: a put begins at 0, or use tarn_put_begin()", i,
                         (unsigned long long)item->offset);
    uint64_t bytes = tarn_item_bytes(item);
    if (bytes == item->tensor.bytes)
        return 0;
    return tarn_fail(TARN_E_INVALID,
                     "put: item %zu: the tensor has %llu bytes, its pieces %llu: make them agree", i,
                     (unsigned long long)item->tensor.bytes, (unsigned long long)bytes);
}

/* --- candidates --------------------------------------------------------------------------------- */

static uint64_t capacity(const struct tarn_peer_node *node, const char *pool)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < node->npools; i++)
        if (strcmp(pool, "*") == 0 || strcmp(node->pools[i].name, pool) == 0)
            bytes += node->pools[i].bytes;
    return bytes;
}

static bool eligible(const struct tarn_put *p, const struct tarn_peer_node *r, const char *node, bool local)
{
    if (!atomic_load(&r->listed) || atomic_load(&r->superseded) || atomic_load(&r->lends))
        return false;
    if (node[0] && strcmp(r->key.id, node) != 0)
        return false;
    return !local || atomic_load(&r->local) || strcmp(r->host_id, p->client->host_id) == 0;
}

static int collect(struct tarn_put *p, const char *node, bool local)
{
    struct tarn_client *c = p->client;
    struct tarn_peer_node *r, *next;

    tarn_put_unplan(p);
    pthread_rwlock_rdlock(&c->nodes_lock);
    size_t room = HASH_COUNT(c->nodes) + 1;
    p->candidates = calloc(room, sizeof *p->candidates);
    p->scratch = calloc(room, sizeof *p->scratch);
    if (p->candidates && p->scratch)
        HASH_ITER (hh, c->nodes, r, next) {
            pthread_mutex_lock(&r->lock);
            uint64_t bytes = eligible(p, r, node, local) ? capacity(r, p->pool) : 0;
            if (bytes > 0)
                p->candidates[p->ncandidates++] =
                    (struct tarn_candidate){r, (double)bytes, tarn_hash(r->key.id, strlen(r->key.id), 0),
                                            tarn_hash(r->host_id, strlen(r->host_id), 0)};
            pthread_mutex_unlock(&r->lock);
        }
    pthread_rwlock_unlock(&c->nodes_lock);
    return p->candidates && p->scratch ? 0 : tarn_fail(TARN_E_NO_MEMORY, "put: out of memory");
}

static bool takes_puts(const struct tarn_peer_node *node)
{
    return atomic_load(&node->health) == TARN_UP && !atomic_load(&node->draining) &&
           !atomic_load(&node->superseded);
}

/* Waits for the keeper's word on suspects. */
static int settle_suspects(const struct tarn_put *p)
{
    for (uint32_t i = 0; i < p->ncandidates; i++)
        if (atomic_load(&p->candidates[i].node->suspect))
            tarn_peer_node_settled(p->candidates[i].node, p->deadline_ns, p->cancel);
    return tarn_canceled(p->cancel) ? tarn_cancel_fail() : 0;
}

static uint32_t count_takers(const struct tarn_put *p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->ncandidates; i++)
        n += takes_puts(p->candidates[i].node);
    return n;
}

static int too_few(const struct tarn_put *p, const struct tarn_put_options *o)
{
    const char *place = o->place;

    if (p->ncandidates == 0 && place)
        return tarn_fail(
            TARN_E_NODE_DOWN,
            "put: place '%.80s': no such node or pool in the directory: give local, or a NODE or NODE/POOL "
            "that `tarn info` lists",
            place);
    if (p->ncandidates == 0)
        return tarn_peer_nodes_none(p->client);
    if (p->ncandidates < p->replicas)
        return tarn_fail(TARN_E_NODE_DOWN,
                         "put: %u replicas asked for, nodes%s%s: %u: start more nodes or ask for fewer",
                         p->replicas, place ? " for place " : "", place ? place : "", p->ncandidates);
    return tarn_fail(TARN_E_NODE_DOWN, "put: %u of %u nodes take puts, %u needed: see `tarn info`",
                     count_takers(p), p->ncandidates, p->replicas);
}

static int parse_place(struct tarn_put *p, const char *place, char node[TARN_NODE_ID_MAX + 1], bool *local)
{
    node[0] = '\0';
    snprintf(p->pool, sizeof p->pool, "*");
    *local = place && strcmp(place, "local") == 0;
    if (!place || *local)
        return 0;
    size_t n = strcspn(place, "/");
    if (n == 0 || n > TARN_NODE_ID_MAX || strlen(place + n) > TARN_POOL_NAME_MAX + 1 ||
        (place[n] && !place[n + 1]))
        return tarn_fail(TARN_E_INVALID, "put: place '%.80s' names no node: give local, NODE or NODE/POOL",
                         place);
    memcpy(node, place, n);
    node[n] = '\0';
    if (place[n])
        snprintf(p->pool, sizeof p->pool, "%s", place + n + 1);
    p->fixed = true;
    return 0;
}

int tarn_put_plan(struct tarn_put *p, const struct tarn_put_options *o)
{
    char node[TARN_NODE_ID_MAX + 1];
    bool local;

    p->flags = o->flags;
    p->ttl_ms = o->ttl_ms;
    p->replicas = o->replicas ? o->replicas : 1;
    p->continues = o->continues;
    if (p->replicas > TARN_REPLICAS_MAX)
        return tarn_fail(TARN_E_INVALID, "put: %u replicas: give at most %d", p->replicas, TARN_REPLICAS_MAX);
    if (p->continues && !(p->flags & TARN_PUT_CHAIN))
        return tarn_fail(TARN_E_INVALID, "put: `continues` is about a chain: set TARN_PUT_CHAIN, too");
    int rc = p->continues ? tarn_key_check(p->continues) : 0;
    if (rc == 0)
        rc = parse_place(p, o->place, node, &local);
    if (rc == 0)
        rc = collect(p, node, local);
    if (rc == 0 && count_takers(p) < p->replicas)
        rc = settle_suspects(p);
    if (rc == 0 && count_takers(p) < p->replicas) { /* there may be new nodes */
        rc = tarn_peer_nodes_refresh(p->client, p->deadline_ns, p->cancel);
        if (rc == 0)
            rc = collect(p, node, local);
        if (rc == 0 && count_takers(p) < p->replicas)
            rc = settle_suspects(p); /* nodes that are listed again are suspects, too */
        if (rc == 0 && count_takers(p) < p->replicas)
            rc = too_few(p, o);
    }
    if (rc == 0 && tarn_now_ns() - atomic_load(&p->client->refreshed_ns) > TARN_NS_PER_S)
        tarn_monitor_ask(p->client);
    return rc;
}

void tarn_put_unplan(struct tarn_put *p)
{
    free(p->candidates);
    free(p->scratch);
    p->candidates = p->scratch = NULL;
    p->ncandidates = 0;
}

/* --- choosing ----------------------------------------------------------------------------------- */

/* All candidates; those that cannot take this job have weight 0. */
static const struct tarn_candidate *candidates_for(struct tarn_put *p, const struct tarn_put_job *job)
{
    memcpy(p->scratch, p->candidates, p->ncandidates * sizeof *p->scratch);
    for (uint32_t i = 0; i < p->ncandidates; i++) {
        struct tarn_candidate *c = &p->scratch[i];
        if (!takes_puts(c->node))
            c->weight = 0;
        for (uint32_t k = 0; k < job->nrefused; k++)
            if (job->refused[k] == c->node)
                c->weight = 0;
    }
    return p->scratch;
}

static int assign(struct tarn_put *p, struct tarn_put_job *job)
{
    uint32_t order[TARN_REPLICAS_MAX];
    int rc;

    if (count_takers(p) < p->replicas && (rc = settle_suspects(p)) != 0)
        return rc;
    const struct tarn_candidate *cand = candidates_for(p, job);
    uint32_t n = tarn_place_pick(&p->items[job->index].key, cand, p->ncandidates, p->replicas, order);

    if (n < p->replicas)
        return tarn_fail(TARN_E_NODE_DOWN, "%u of %u nodes take puts, %u needed: see `tarn info`", n,
                         p->ncandidates, p->replicas);
    for (uint32_t k = 0; k < n; k++) {
        job->targets[k].node = cand[order[k]].node;
        job->targets[k].state = TARN_TARGET_WANTED;
    }
    return 0;
}

bool tarn_put_reassign(struct tarn_put *p, struct tarn_target *t)
{
    struct tarn_put_job *job = t->job;

    if (p->fixed || job->nrefused == TARN_REFUSALS_MAX)
        return false;
    job->refused[job->nrefused++] = t->node;
    candidates_for(p, job);
    for (uint32_t i = 0; i < p->ncandidates; i++)
        for (uint32_t k = 0; k < p->replicas; k++)
            if (job->targets[k].node == p->scratch[i].node)
                p->scratch[i].weight = 0;
    uint32_t next;
    if (tarn_place_pick(&p->items[job->index].key, p->scratch, p->ncandidates, 1, &next) == 0)
        return false;
    t->node = p->scratch[next].node;
    t->state = TARN_TARGET_WANTED;
    return true;
}

struct tarn_put_node *tarn_put_node_of(struct tarn_put *p, struct tarn_peer_node *node)
{
    for (uint32_t i = 0; i < p->nnodes; i++)
        if (p->nodes[i].node == node)
            return &p->nodes[i];
    struct tarn_put_node *nodes = realloc(p->nodes, (p->nnodes + 1) * sizeof *nodes);
    if (!nodes) {
        tarn_fail(TARN_E_NO_MEMORY, "put: out of memory");
        return NULL;
    }
    p->nodes = nodes;
    nodes[p->nnodes] = (struct tarn_put_node){.node = node};
    return &nodes[p->nnodes++];
}

void tarn_put_give_conns(struct tarn_put *p)
{
    for (uint32_t k = 0; k < p->nnodes; k++) {
        struct tarn_put_node *node = &p->nodes[k];
        tarn_control_conn_give(node->reserve);
        node->reserve = NULL;
        for (uint32_t turn = 0; turn < TARN_PUT_TURNS; turn++) {
            tarn_control_conn_give(node->commit[turn]);
            node->commit[turn] = NULL;
        }
    }
}

/* --- chunks ------------------------------------------------------------------------------------- */

int tarn_chunk_init(struct tarn_chunk *c, uint32_t replicas)
{
    *c = (struct tarn_chunk){.replicas = replicas};
    c->jobs = malloc(TARN_CHUNK_ITEMS * sizeof *c->jobs);
    c->targets = malloc((size_t)TARN_CHUNK_ITEMS * replicas * sizeof *c->targets);
    if (c->jobs && c->targets)
        return 0;
    tarn_chunk_free(c);
    return tarn_fail(TARN_E_NO_MEMORY, "put: out of memory");
}

void tarn_chunk_empty(struct tarn_chunk *c)
{
    for (size_t k = 0; k < (size_t)c->n * c->replicas; k++)
        free(c->targets[k].made);
    c->n = 0;
}

void tarn_chunk_free(struct tarn_chunk *c)
{
    tarn_chunk_empty(c);
    free(c->jobs);
    free(c->targets);
    c->jobs = NULL;
    c->targets = NULL;
}

void tarn_chunk_add(struct tarn_put *p, struct tarn_chunk *c, size_t i, uint64_t hash)
{
    struct tarn_put_job *job = &c->jobs[c->n];

    if (c->n == 0)
        c->version = tarn_random64() >> 1 | 1;
    memset(job, 0, sizeof *job);
    job->index = i;
    job->hash = hash;
    job->targets = &c->targets[(size_t)c->n * p->replicas];
    memset(job->targets, 0, p->replicas * sizeof *job->targets);
    for (uint32_t k = 0; k < p->replicas; k++)
        job->targets[k].job = job;
    c->n++;
    int rc = assign(p, job);
    if (rc != 0)
        tarn_job_fail(job, rc);
}

bool tarn_chunk_has(const struct tarn_chunk *c, uint64_t hash)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->jobs[i].hash == hash)
            return true;
    return false;
}

void tarn_job_fail(struct tarn_put_job *job, int status)
{
    if (job->failure.code == 0)
        tarn_reason_keep(&job->failure, status);
}
