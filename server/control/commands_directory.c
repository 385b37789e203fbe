/* SPDX-License-Identifier: Apache-2.0 */
/* COMMIT and STORE. The control thread or the directory thread does its work with Redis: direct_publish.c,
 * pending.h.
 */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "server/control/commands.h"
#include "server/control/info.h"
#include "server/control/pending.h"
#include "server/directory/presence.h"

#define COMMIT_ITEMS_MAX 4096

/* --- COMMIT ------------------------------------------------------------------------------------- */

struct commit_item {
    uint64_t gen;
    uint32_t pool, slot;
    int code; /* why it was not begun */
    bool replaces;
    uint32_t publish; /* index, when code is 0 */
    struct tarn_key key;
};

struct commit {
    struct tarn_pending pending;
    size_t nitems;
    struct commit_item items[];
};

static void withdraw_later(struct tarn_node *n, const struct tarn_publish *p)
{
    tarn_directory_thread_withdraw(n->directory_thread, &p->key, &p->record.locations[0],
                                   p->record.tensor.bytes, NULL);
}

/* Copies of other versions: those here are freed, the others are the client's to release. */
static void reply_displaced(struct tarn_node *n, const struct tarn_publish *p, struct tarn_buf *out)
{
    const struct tarn_location *left[TARN_DISPLACED_MAX];
    size_t nleft = 0;
    for (uint32_t i = 0; i < p->ndisplaced; i++) {
        if (!tarn_free_displaced(n, &p->key, &p->displaced[i], i < p->nnamed))
            left[nleft++] = &p->displaced[i];
    }
    if (out)
        tarn_reply_copies(out, left, nleft);
}

static void reply_refused(const struct tarn_publish *p, const struct tarn_reason *why, struct tarn_buf *out)
{
    if (p->status != TARN_E_EXISTS)
        tarn_fail(p->status, "%s", why->code ? why->text : tarn_strerror(p->status));
    else if (p->mode == TARN_PUBLISH_JOIN)
        tarn_fail(TARN_E_EXISTS, "version %" PRIu64 " is gone: removed or replaced since its first copy came",
                  p->record.version);
    else
        tarn_fail(TARN_E_EXISTS,
                  "the key exists already%s%s, version %" PRIu64 ": put with replace to take its place",
                  p->found.nlocations ? " on node " : "",
                  p->found.nlocations ? p->found.locations[0].node : "", p->found.version);
    tarn_resp_add_error(out, p->status, tarn_last_error());
}

/* Why an item was not even tried. */
static const char *untried(int code)
{
    return code == TARN_E_BUSY ? "a put of its bytes has not ended: commit again when it has, or abort"
                               : "no such reservation of this session: reserve again";
}

/* A record has one location a pool, so a put has overwritten the old one of its pool. A join has not. */
static void end_commit(struct tarn_node *n, const struct commit_item *item, const struct tarn_publish *p,
                       bool published)
{
    struct tarn_committed c =
        tarn_store_commit_end(n->store, item->pool, item->slot, item->gen, published ? p->record.born_ms : 0);
    if (c.replaced && (p->mode == TARN_PUBLISH_JOIN || strcmp(p->record.locations[0].pool, c.old.pool)))
        tarn_directory_thread_withdraw(n->directory_thread, &p->key, &c.old, 0, NULL);
    if (published && !c.live) /* released while it was published */
        withdraw_later(n, p);
}

/*
 * A replace may have run without an answer. Then the directory does not name what the key had here before,
 * and whoever displaces the new copy does not learn of it: it must not be read from the moment on at which
 * this commit has ended. It goes first: a process that is killed between the two must leave a commit under
 * way.
 */
static void free_older(struct tarn_node *n, const struct tarn_key *key)
{
    struct tarn_record record;
    struct tarn_location old;
    if (!tarn_store_find(n->store, key, &record, &old))
        return;
    tarn_store_remove(n->store, key, TARN_LEFT_UNTOLD);
    tarn_directory_thread_withdraw(n->directory_thread, key, &old, record.tensor.bytes, NULL);
}

/* The client was told that nothing was stored. The directory thread still has the request, which is not read.
 */
static void end_abandoned(struct tarn_node *n, const struct commit_item *item, bool untried)
{
    if (item->replaces && !untried)
        free_older(n, &item->key);
    struct tarn_committed c = tarn_store_commit_end(n->store, item->pool, item->slot, item->gen, 0);
    if (c.replaced)
        tarn_directory_thread_withdraw(n->directory_thread, &item->key, &c.old, 0, NULL);
}

/* To be committed again, if the session is still there. What was published stays so, at an earlier COMMIT,
 * too. */
static void answer_again(struct commit *k, const struct commit_item *item, const struct tarn_publish *p,
                         const struct tarn_reason *why, struct tarn_buf *out)
{
    struct tarn_node *n = k->pending.node;
    const struct tarn_session *session = k->pending.conn ? k->pending.conn->session : NULL;
    if (p->stored) {
        end_commit(n, item, p, true);
        reply_displaced(n, p, NULL);
    } else if (item->replaces && p->in_doubt) {
        free_older(n, &p->key);
    }
    tarn_store_commit_again(n->store, session ? session->id : 0, item->pool, item->slot, item->gen);
    if (out)
        tarn_resp_add_error(out, TARN_E_AGAIN,
                            why->code ? why->text : "the directory is not settled: commit again");
}

/* why: why it was not published, if it was not. */
static void answer_item(struct commit *k, const struct commit_item *item, const struct tarn_reason *why,
                        struct tarn_buf *out)
{
    struct tarn_node *n = k->pending.node;
    if (item->code) {
        if (out)
            tarn_resp_add_error(out, item->code, untried(item->code));
        return;
    }
    const struct tarn_publish *p = &k->pending.request.publishes[item->publish];
    if (p->status == TARN_E_AGAIN) {
        answer_again(k, item, p, why, out);
        return;
    }
    if (p->status && item->replaces && p->in_doubt)
        free_older(n, &p->key);
    end_commit(n, item, p, p->status == 0);
    if (p->status == 0) {
        n->stats.committed++;
        reply_displaced(n, p, out);
        return;
    }
    n->stats.commit_failed++;
    /* It may have got through all the same. An abandoned one is looked at when its result is there. */
    if (p->status != TARN_E_EXISTS && !k->pending.abandoned)
        withdraw_later(n, p);
    if (out)
        reply_refused(p, why, out);
}

/* The node has begun to take its objects out of the directory: what was just published there must go, too. */
static void commit_too_late(struct commit *k)
{
    struct tarn_request *r = &k->pending.request;
    for (size_t i = 0; i < r->n; i++) {
        if (!r->publishes[i].status || r->publishes[i].stored)
            r->publishes[i].status = TARN_E_BUSY;
    }
}

/* The directory thread may still have the request of an abandoned commit: its statuses are not to be read,
 * `why` is for all. */
static void commit_answer(struct tarn_pending *pending, const struct tarn_reason *why)
{
    static const struct tarn_reason ending = {TARN_E_BUSY, "the node is ending: put elsewhere"};
    struct commit *k = TARN_CONTAINER_OF(pending, struct commit, pending);
    struct tarn_buf *out = pending->conn ? &pending->conn->out : NULL;
    const struct tarn_reason *of_items = why->code ? why : &pending->request.partly;
    if (!why->code && pending->node->state == TARN_NODE_WITHDRAWING) {
        commit_too_late(k);
        of_items = &ending;
    }
    if (out)
        tarn_resp_add_array(out, k->nitems);
    for (size_t i = 0; i < k->nitems; i++) {
        const struct commit_item *item = &k->items[i];
        if (!pending->abandoned) {
            answer_item(k, item, of_items, out);
            continue;
        }
        if (!item->code)
            end_abandoned(pending->node, item, pending->untried);
        if (out)
            tarn_resp_add_error(out, item->code ? item->code : why->code,
                                item->code ? untried(item->code) : why->text);
    }
    if (pending->conn && pending->conn->session)
        tarn_reservations_changed(pending->conn->session);
    tarn_commit_latency_add(&pending->node->stats, tarn_now_ns() - pending->begun_ns);
    pending->node->drain_check(pending->node);
}

/*
 * The client was told that nothing was stored: takes out what was. What that displaced is not put back,
 * since another put may have come and gone meanwhile: it is freed here now, elsewhere when its node finds it
 * in its recheck set.
 */
static void commit_late(struct tarn_pending *pending)
{
    const struct tarn_request *r = &pending->request;
    for (size_t i = 0; i < r->n; i++) {
        if (r->publishes[i].status != TARN_E_EXISTS)
            withdraw_later(pending->node, &r->publishes[i]);
        if (!r->publishes[i].status || r->publishes[i].stored)
            reply_displaced(pending->node, &r->publishes[i], NULL);
    }
}

/* join: the copy belongs to a version that the key already has; it replaces and creates nothing. */
static void commit_begin(struct commit *k, struct tarn_conn *c, bool join, struct commit_item *item)
{
    struct tarn_request *r = &k->pending.request;
    if (!item->code)
        item->code = tarn_store_commit_begin(tarn_conn_node(c)->store, c->session->id, item->pool, item->slot,
                                             item->gen, &r->publishes[r->n]);
    if (item->code)
        return;
    if (join)
        r->publishes[r->n].mode = TARN_PUBLISH_JOIN;
    tarn_pending_copy_key(&k->pending, &r->publishes[r->n].key);
    item->key = r->publishes[r->n].key;
    item->replaces = r->publishes[r->n].mode == TARN_PUBLISH_REPLACE;
    item->publish = (uint32_t)r->n++;
}

/* An absolute deadline, so that one who was told that the put had failed does not see it take place after
 * all, because the node was held up before it read this. */
static int time_left(const struct tarn_node *n, const redisReply *arg, uint64_t *timeout_ms)
{
    uint64_t deadline_ns, now_ns = tarn_now_ns() - tarn_store_tick_base_ns(n->store);
    int rc = tarn_arg_u64(arg, "deadline_ns", 10, UINT64_MAX, &deadline_ns);
    if (rc)
        return rc;
    if (deadline_ns <= now_ns)
        return tarn_fail(TARN_E_TIMEOUT, "COMMIT: came %llu ms after its deadline",
                         (now_ns - deadline_ns) / TARN_NS_PER_MS);
    *timeout_ms = (deadline_ns - now_ns) / TARN_NS_PER_MS;
    if (*timeout_ms > UINT32_MAX)
        *timeout_ms = UINT32_MAX;
    return 0;
}

/* The reservations stay: the client asks again. */
static void refuse_commit(struct tarn_conn *c, size_t items)
{
    tarn_fail(
        TARN_E_AGAIN,
        "node %s was cut off, and finds out first what became of its copies: commit again, or put elsewhere",
        tarn_conn_node(c)->id);
    tarn_resp_add_array(&c->out, items);
    for (size_t i = 0; i < items; i++)
        tarn_resp_add_error(&c->out, TARN_E_AGAIN, tarn_last_error());
}

/* *k_p NULL with 0: the node commits nothing now, and has answered so. */
static int commit_new(struct tarn_conn *c, size_t items, struct commit **k_p)
{
    *k_p = NULL;
    if (tarn_conn_node(c)->state == TARN_NODE_WITHDRAWING)
        return tarn_fail(TARN_E_BUSY, "node %s is ending: put elsewhere", tarn_conn_node(c)->id);
    if (!tarn_presence_here(tarn_conn_node(c))) {
        refuse_commit(c, items);
        return 0;
    }
    struct commit *k = tarn_pending_new(sizeof(*k) + items * sizeof(k->items[0]), TARN_REQUEST_PUBLISH, items,
                                        items * TARN_KEY_MAX);
    if (!k)
        return tarn_fail(TARN_E_NO_MEMORY, "COMMIT: out of memory");
    k->pending.answer = commit_answer;
    k->pending.late = commit_late;
    k->nitems = items;
    *k_p = k;
    return 0;
}

static void commit_start(struct commit *k, struct tarn_conn *c, uint64_t timeout_ms)
{
    if (k->pending.request.n) {
        tarn_pending_start(&k->pending, c, timeout_ms);
        return;
    }
    k->pending.node = tarn_conn_node(c);
    tarn_resp_add_array(&c->out, k->nitems);
    for (size_t i = 0; i < k->nitems; i++)
        answer_item(k, &k->items[i], &k->pending.request.failure, &c->out);
    tarn_pending_free(&k->pending);
}

int tarn_command_commit(struct tarn_conn *c, size_t n, redisReply **args)
{
    uint64_t timeout_ms = 0;
    size_t items = (n - 3) / 3;
    struct commit *k;
    bool join = strcmp(args[2]->str, "join") == 0;
    int rc = time_left(tarn_conn_node(c), args[1], &timeout_ms);
    if (!rc && !join && strcmp(args[2]->str, "put"))
        rc = tarn_fail(TARN_E_INVALID, "COMMIT: '%s': put or join", args[2]->str);
    if (!rc && items > COMMIT_ITEMS_MAX)
        rc = tarn_fail(TARN_E_INVALID, "COMMIT: %zu items: at most %d in one call", items, COMMIT_ITEMS_MAX);
    if (!rc)
        rc = commit_new(c, items, &k);
    if (rc || !k)
        return rc;
    for (size_t i = 0; i < items; i++) {
        struct commit_item *item = &k->items[i];
        item->code = tarn_arg_slot(args + 3 + 3 * i, &item->pool, &item->slot, &item->gen);
        commit_begin(k, c, join, item);
    }
    commit_start(k, c, timeout_ms);
    return 0;
}

/* --- STORE -------------------------------------------------------------------------------------- */

/* The bytes come as those over tcp do: where the node does not offer it, or the CPU cannot write, they do
 * not. */
static bool takes_bytes(const struct tarn_node *n, uint32_t pool)
{
    uint32_t npools;
    if (tarn_store_pools(n->store, &npools)[pool].kind != TARN_POOL_CPU)
        return false;
    for (uint32_t t = 0; t < n->host.ntransports; t++) {
        const struct tarn_host_transport *tr = &n->host.transports[t];
        if (!strcmp(tr->ops->name, "tcp"))
            return tr->ops->serves(tr->half, pool);
    }
    return false;
}

/* Writes an object's bytes into the extent that the connection was granted. */
static int write_granted(const struct tarn_conn *c, const struct tarn_conn_grant *g, const redisReply *bytes)
{
    const struct tarn_node *n = tarn_conn_node(c);
    const struct tarn_guard guard = tarn_store_guard(n->store);
    void *to;
    if (!g->gen)
        return tarn_fail(TARN_E_STALE,
                         "STORE: this connection's last RESERVE, of one item, was granted nothing");
    if (!takes_bytes(n, g->pool))
        return tarn_fail(TARN_E_NOT_REACHABLE,
                         "STORE: node %s takes bytes only over tcp and into CPU pools: write to the extent",
                         n->id);
    if (bytes->len != g->bytes || bytes->len > TARN_STORE_BYTES_MAX)
        return tarn_fail(TARN_E_INVALID, "STORE: %zu bytes for an object of %" PRIu64 ": all, and at most %d",
                         bytes->len, g->bytes, TARN_STORE_BYTES_MAX);
    int rc = guard.pin_write(guard.arg, c->session->id, g->pool, g->slot, g->gen, g->offset, g->bytes, &to);
    if (rc)
        return rc;
    memcpy(to, bytes->str, bytes->len);
    guard.unpin(guard.arg, g->pool, g->slot, g->gen);
    tarn_conn_node(c)->stats.stores++;
    return 0;
}

int tarn_command_store(struct tarn_conn *c, size_t n, redisReply **args)
{
    const struct tarn_conn_grant g = c->grant;
    uint64_t timeout_ms;
    struct commit *k;
    (void)n;
    c->grant.gen = 0;
    int rc = write_granted(c, &g, args[2]);
    if (!rc)
        rc = time_left(tarn_conn_node(c), args[1], &timeout_ms);
    if (!rc)
        rc = commit_new(c, 1, &k);
    if (rc || !k)
        return rc;
    k->items[0] = (struct commit_item){.pool = g.pool, .slot = g.slot, .gen = g.gen};
    commit_begin(k, c, false, &k->items[0]);
    if (!k->items[0].code)
        tarn_conn_hold(c);
    commit_start(k, c, timeout_ms);
    return 0;
}
