/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the client knows of nodes. There is one struct for each incarnation (id, low half of the epoch):
 * generations carry the same 32 bits, so a descriptor can never name another incarnation than the one
 * that wrote it. They are never freed before the client is, so descriptors may point to them.
 *
 * Health: UP -> SLOW (silent for longer than its patience) or GONE (connection broke) at the first failure, wherever
 * it is seen; the node is then *suspect* until the keeper (monitor.c) has asked it, which it does at once.
 * Only the keeper makes it UP again. Calls that have no other copy or node to turn to wait for that word;
 * all others go elsewhere. So a hiccup costs a round trip, a failure costs one bounded delay once, and no
 * get or put ever tries a node that is known to be in trouble.
 *
 * That a caller's deadline was shorter than the patience says nothing of the node, but nor is it nothing: the
 * node is *doubted*, and stays UP while the keeper asks it. Its silence then counts, not the caller's.
 */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

static struct tarn_remote *remote_new(struct tarn_client *c, const char *id, uint32_t epoch)
{
    struct tarn_remote *r = aligned_alloc(64, sizeof *r);

    if (!r)
        return NULL;
    memset(r, 0, sizeof *r);
    r->client = c;
    snprintf(r->key.id, sizeof r->key.id, "%s", id);
    r->key.epoch = epoch;
    pthread_mutex_init(&r->lock, NULL);
    tarn_cond_init(&r->changed);
    return r;
}

static struct tarn_remote *remote_find(struct tarn_client *c, const char *id, uint32_t epoch)
{
    struct tarn_remote probe, *r = NULL;

    memset(&probe.key, 0, sizeof probe.key);
    snprintf(probe.key.id, sizeof probe.key.id, "%s", id);
    probe.key.epoch = epoch;
    HASH_FIND(hh, c->nodes, &probe.key, sizeof probe.key, r);
    return r;
}

struct tarn_remote *tarn_remote_of(struct tarn_client *c, const char *id, uint32_t epoch)
{
    pthread_rwlock_rdlock(&c->nodes_lock);
    struct tarn_remote *r = remote_find(c, id, epoch);
    pthread_rwlock_unlock(&c->nodes_lock);
    if (r)
        return r;

    pthread_rwlock_wrlock(&c->nodes_lock);
    r = remote_find(c, id, epoch);
    if (!r && (r = remote_new(c, id, epoch)) != NULL) {
        unsigned before = HASH_COUNT(c->nodes);
        HASH_ADD(hh, c->nodes, key, sizeof r->key, r);
        if (HASH_COUNT(c->nodes) == before) {
            tarn_remote_free(r);
            r = NULL;
        }
    }
    pthread_rwlock_unlock(&c->nodes_lock);
    return r;
}

const char *tarn_remote_text(struct tarn_remote *r, char out[352])
{
    pthread_mutex_lock(&r->lock);
    if (r->control[0])
        snprintf(out, 352, "node %s (%s)", r->key.id, r->control);
    else
        snprintf(out, 352, "node %s", r->key.id);
    pthread_mutex_unlock(&r->lock);
    return out;
}

/* --- records ------------------------------------------------------------------------------------ */

static uint32_t transport_bits(const struct tarn_client *c, const char *list)
{
    uint32_t bits = 0;

    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        for (int t = 0; t < c->ntransports; t++)
            if (strlen(c->transports[t]->name) == n && memcmp(c->transports[t]->name, p, n) == 0)
                bits |= 1u << t;
        p += n + (p[n] == ',');
    }
    return bits;
}

int tarn_remote_update(struct tarn_client *c, const struct tarn_node_record *n, uint64_t pass, uint64_t sent_ns)
{
    struct tarn_remote *r = tarn_remote_of(c, n->id, (uint32_t)n->epoch);

    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: out of memory", n->id);
    pthread_mutex_lock(&r->lock);
    snprintf(r->control, sizeof r->control, "%s", n->control);
    snprintf(r->unix_path, sizeof r->unix_path, "%s", n->unix_path);
    if (strcmp(r->host_id, n->host_id) != 0)
        atomic_store(&r->near, strcmp(n->host_id, c->host_id) == 0);
    snprintf(r->host_id, sizeof r->host_id, "%s", n->host_id);
    r->npools = n->npools < TARN_POOLS_MAX ? n->npools : TARN_POOLS_MAX;
    for (uint32_t i = 0; i < r->npools; i++) {
        const struct tarn_pool_record *p = &n->pools[i];
        snprintf(r->pools[i].name, sizeof r->pools[i].name, "%s", p->name);
        r->pools[i].index = p->index;
        r->pools[i].bytes = p->bytes;
        if (p->index < TARN_POOLS_MAX)
            atomic_store(&r->pool_transports[p->index], (uint8_t)transport_bits(c, p->transports));
    }
    r->pass = pass;
    pthread_mutex_unlock(&r->lock);
    atomic_store(&r->draining, strcmp(n->state, "draining") == 0);
    atomic_store(&r->superseded, false);
    tarn_lease_listed(r, n, sent_ns);
    bool back = !atomic_exchange(&r->listed, true);
    if (atomic_load(&r->health) != TARN_UP) {
        if (back) /* it beats again, so it may answer: callers wait for the keeper's word */
            atomic_store(&r->suspect, true);
        tarn_monitor_ask(c);
    }
    return 0;
}

struct refresh {
    struct tarn_client *client;
    uint64_t pass, began_ns;
};

static int update_one(void *arg, const struct tarn_node_record *n)
{
    struct refresh *f = arg;
    return tarn_remote_update(f->client, n, f->pass, f->began_ns);
}

/* Nodes that this pass did not see are unlisted; incarnations whose id it saw under another epoch are over.
 */
static void settle(struct tarn_client *c, uint64_t pass)
{
    struct tarn_remote *r, *next, *other, *after;

    pthread_rwlock_rdlock(&c->nodes_lock);
    HASH_ITER (hh, c->nodes, r, next) {
        if (r->pass == pass)
            continue;
        atomic_store(&r->listed, false);
        HASH_ITER (hh, c->nodes, other, after)
            if (other->pass == pass && strcmp(other->key.id, r->key.id) == 0) {
                atomic_store(&r->superseded, true);
                tarn_lease_end(&r->lease);
            }
    }
    pthread_rwlock_unlock(&c->nodes_lock);
}

/*
 * Becomes the one who refreshes: TARN_INPROGRESS; or waits for who does. 0: a refresh that began after we
 * came is as good as ours.
 */
static int refresh_begin(struct tarn_client *c, uint64_t deadline_ns)
{
    uint64_t asked = tarn_now_ns();
    int rc = 0;

    pthread_mutex_lock(&c->refresh_lock);
    while (rc == 0 && c->refreshing)
        if (!tarn_cond_wait(&c->refresh_done, &c->refresh_lock, deadline_ns))
            rc = tarn_fail(TARN_E_TIMEOUT, "directory %s: does not answer in time: look at Redis",
                           tarn_directory_address(c->directory));
    if (rc == 0 && atomic_load(&c->refreshed_ns) <= asked) {
        c->refreshing = true;
        rc = TARN_INPROGRESS;
    }
    pthread_mutex_unlock(&c->refresh_lock);
    return rc;
}

int tarn_remotes_refresh(struct tarn_client *c, uint64_t deadline_ns)
{
    int rc = refresh_begin(c, deadline_ns);

    if (rc != TARN_INPROGRESS)
        return rc;
    uint64_t began = tarn_now_ns();
    struct refresh f = {c, ++c->pass, began};
    rc = tarn_directory_nodes(c->directory, deadline_ns, update_one, &f);
    if (rc == 0) {
        settle(c, f.pass);
        atomic_store(&c->refreshed_ns, began);
    }
    pthread_mutex_lock(&c->refresh_lock);
    c->refreshing = false;
    pthread_cond_broadcast(&c->refresh_done);
    pthread_mutex_unlock(&c->refresh_lock);
    return rc;
}

/* --- pools -------------------------------------------------------------------------------------- */

int tarn_remote_pool(struct tarn_remote *r, const char *name)
{
    int index = -1;

    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < r->npools; i++)
        if (strcmp(r->pools[i].name, name) == 0)
            index = (int)r->pools[i].index;
    pthread_mutex_unlock(&r->lock);
    return index;
}

void tarn_remote_pool_name(struct tarn_remote *r, uint32_t index, char out[TARN_POOL_NAME_MAX + 1])
{
    out[0] = '\0';
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < r->npools; i++)
        if (r->pools[i].index == index)
            memcpy(out, r->pools[i].name, sizeof r->pools[i].name);
    pthread_mutex_unlock(&r->lock);
}

bool tarn_remote_moves(const struct tarn_remote *r, int t, uint32_t pool, uint32_t gpu)
{
    if (gpu && !(r->client->transports[t]->caps & TARN_CAP_GPU))
        return false;
    return pool < TARN_POOLS_MAX &&
           atomic_load_explicit(&r->pool_transports[pool], memory_order_relaxed) >> t & 1;
}

/* --- health ------------------------------------------------------------------------------------- */

void tarn_remote_aside(struct tarn_remote *r, enum tarn_health h, const char *why)
{
    int was = atomic_load(&r->health);

    if (was == TARN_UP)
        atomic_store(&r->suspect, true);
    while (was < (int)h && !atomic_compare_exchange_weak(&r->health, &was, (int)h))
        ;
    if (was >= (int)h)
        return;
    tarn_log(&r->client->log, TARN_LOG_WARN, "client",
             "msg=\"node set aside\" node=%s health=%s cause=\"%s\"", r->key.id,
             h == TARN_GONE ? "gone" : "slow", why);
    if (h == TARN_GONE)
        tarn_remote_retire(r);
    tarn_monitor_ask(r->client);
}

/* Redis is one of those that may be far. */
uint64_t tarn_remote_patience(const struct tarn_remote *r)
{
    uint64_t ns = tarn_patience_ns(&r->patience), redis_ns = tarn_directory_rtt_ns(r->client->directory);
    uint64_t farthest = atomic_load(&r->client->farthest_ns);

    if (ns || atomic_load(&r->near))
        return ns ? ns : TARN_PATIENCE_NS;
    return tarn_patience_first(farthest > redis_ns ? farthest : redis_ns);
}

void tarn_remote_answered(struct tarn_remote *r, uint64_t rtt_ns)
{
    uint64_t farthest = atomic_load(&r->client->farthest_ns);

    tarn_patience_learn(&r->patience, rtt_ns);
    while (farthest < rtt_ns && !atomic_compare_exchange_weak(&r->client->farthest_ns, &farthest, rtt_ns))
        ;
}

void tarn_remote_silent(struct tarn_remote *r, uint64_t since_ns)
{
    if (tarn_now_ns() - since_ns >= tarn_remote_patience(r))
        tarn_remote_aside(r, TARN_SLOW, tarn_last_error());
    else
        tarn_remote_doubt(r);
}

void tarn_remote_doubt(struct tarn_remote *r)
{
    if (atomic_load(&r->health) == TARN_UP && !atomic_exchange(&r->doubted, true))
        tarn_monitor_ask(r->client);
}

void tarn_remote_judged(struct tarn_remote *r, bool up)
{
    pthread_mutex_lock(&r->lock);
    if (up)
        atomic_store(&r->health, TARN_UP);
    atomic_store(&r->suspect, false);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

bool tarn_remote_settled(struct tarn_remote *r, uint64_t deadline_ns, const struct tarn_stop *stop)
{
    uint64_t now = tarn_now_ns(), longest = now + 8 * tarn_remote_patience(r); /* other suspects may be before it */
    if (longest > deadline_ns)
        longest = deadline_ns;

    pthread_mutex_lock(&r->lock);
    while (atomic_load(&r->suspect) && now < longest && !(stop && tarn_stopped(stop))) {
        uint64_t slice = now + TARN_WAIT_SLICE_MS * TARN_NS_PER_MS;
        tarn_cond_wait(&r->changed, &r->lock, slice < longest ? slice : longest);
        now = tarn_now_ns();
    }
    bool up = atomic_load(&r->health) == TARN_UP && !atomic_load(&r->superseded);
    pthread_mutex_unlock(&r->lock);
    return up;
}

/* Takes one side's shared link and idle links out of use. remote.lock is held. */
static void retire_side(struct tarn_side *s)
{
    struct tarn_linked *shared = atomic_exchange(&s->shared, NULL);

    if (atomic_load(&s->state) == TARN_SIDE_SHARED)
        atomic_store(&s->state, TARN_SIDE_UNKNOWN);
    if (shared) {
        shared->next = s->retired;
        s->retired = shared;
    }
    while (s->idle) {
        struct tarn_linked *l = s->idle;
        s->idle = l->next;
        tarn_link_free(l);
    }
    s->nidle = 0;
}

void tarn_remote_retire(struct tarn_remote *r)
{
    pthread_mutex_lock(&r->lock);
    for (int t = 0; t < r->client->ntransports; t++)
        for (int w = 0; w < 2; w++)
            retire_side(&r->sides[t][w]);
    struct tarn_call *calls = r->idle_calls;
    r->idle_calls = NULL;
    r->nidle_calls = 0;
    pthread_mutex_unlock(&r->lock);
    while (calls) {
        struct tarn_call *call = calls;
        calls = call->next;
        tarn_call_drop(call);
    }
}

static bool side_busy(struct tarn_side *s)
{
    for (int i = 0; i < TARN_STRIPES; i++)
        if (atomic_load(&s->busy[i].n) != 0)
            return true;
    return false;
}

/* remote.lock is held. */
static bool reap_side(struct tarn_side *s)
{
    struct tarn_linked **at = &s->retired;

    if (s->retired && side_busy(s))
        return false;
    while (*at) {
        struct tarn_linked *l = *at;
        if (atomic_load(&l->views) != 0) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        tarn_link_free(l);
    }
    return s->retired == NULL;
}

bool tarn_remote_reap(struct tarn_remote *r)
{
    bool clean = true;

    pthread_mutex_lock(&r->lock);
    for (int t = 0; t < r->client->ntransports; t++)
        for (int w = 0; w < 2; w++)
            clean &= reap_side(&r->sides[t][w]);
    pthread_mutex_unlock(&r->lock);
    return clean;
}

/* The node would otherwise keep the session, for views, until this process exits. */
static void say_goodbye(struct tarn_call *call)
{
    const char *argv[] = {"QUIT"};

    if (tarn_resp_append(call->resp, 1, argv, NULL) == 0)
        tarn_resp_flush(call->resp, tarn_now_ns());
}

void tarn_remote_free(struct tarn_remote *r)
{
    tarn_remote_retire(r);
    for (int t = 0; t < r->client->ntransports; t++)
        for (int w = 0; w < 2; w++)
            for (struct tarn_linked *l = r->sides[t][w].retired, *next; l; l = next) {
                next = l->next;
                tarn_link_free(l); /* views that were not released go with it */
            }
    if (r->watch) {
        say_goodbye(r->watch); /* nothing is mapped any more */
        tarn_call_drop(r->watch);
    }
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
