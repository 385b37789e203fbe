/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DELETE, RELEASE, SETTLED: freeing copies, on this node and on others. docs/consistency.md has the rules.
 * The directory thread does what needs Redis; see pending.h.
 */
#include <stdio.h>
#include <string.h>

#include "base/container.h"
#include "base/error.h"
#include "metadata/records.h"
#include "server/control/commands.h"
#include "server/control/pending.h"
#include "server/directory/recheck.h"

bool tarn_free_displaced(struct tarn_node *n, const struct tarn_key *key, const struct tarn_location *l,
                         bool named)
{
    if (strcmp(l->node, n->id) || !tarn_recheck_free_copy(n->store, l))
        return false;
    if (named) /* it may have been freed, and withdrawn, before it was named */
        tarn_directory_thread_withdraw(n->directory_thread, key, l, 0, NULL);
    return true;
}

static void add_copies(struct tarn_buf *out, const struct tarn_location *const *copies, size_t n)
{
    char text[TARN_COPY_TEXT];
    for (size_t i = 0; i < n; i++) {
        tarn_copy_format(copies[i], text);
        tarn_resp_add_string(out, text, strlen(text));
    }
}

void tarn_reply_copies(struct tarn_buf *out, const struct tarn_location *const *copies, size_t n)
{
    tarn_resp_add_array(out, n);
    add_copies(out, copies, n);
}

static size_t total_bytes(size_t n, redisReply **args, size_t step)
{
    size_t bytes = 1;
    for (size_t i = 0; i < n; i += step)
        bytes += args[i]->len;
    return bytes;
}

/* --- DELETE ------------------------------------------------------------------------------------- */

struct delete_item {
    bool invalid;    /* no key */
    bool was_here;   /* and was freed */
    uint64_t bytes;  /* of it */
    uint32_t remove; /* index of the removal */
};

struct deletes {
    struct tarn_pending pending;
    size_t nitems;
    struct delete_item items[];
};

/* The node's own copy goes first: from here on it cannot be read. */
static void delete_begin(struct deletes *d, struct tarn_node *n, const redisReply *arg)
{
    struct tarn_request *r = &d->pending.request;
    struct delete_item *item = &d->items[d->nitems++];
    struct tarn_removal *removal = &r->removals[r->n];
    struct tarn_record record;
    item->invalid = tarn_arg_key(arg, &removal->key) != 0;
    if (item->invalid)
        return;
    item->was_here = tarn_store_find(n->store, &removal->key, &record, &removal->freed);
    if (item->was_here) {
        tarn_store_remove(n->store, &removal->key, TARN_LEFT_UNTOLD); /* the DELETE withdraws it */
        n->stats.deleted++;
        item->bytes = record.tensor.bytes;
    }
    tarn_pending_copy_key(&d->pending, &removal->key);
    item->remove = (uint32_t)r->n++;
}

/* Copies here that a commit has brought meanwhile go, too. Returns what is left for the client. */
static size_t free_here(struct tarn_node *n, const struct tarn_removal *removal,
                        const struct tarn_location **left)
{
    size_t nleft = 0;
    for (uint32_t i = 0; i < removal->ndisplaced; i++) {
        if (!tarn_free_displaced(n, &removal->key, &removal->displaced[i], true))
            left[nleft++] = &removal->displaced[i];
    }
    return nleft;
}

/* The directory has perhaps not been told: in the background then; twice does no harm. */
static void withdraw_freed(struct tarn_node *n, const struct delete_item *item,
                           const struct tarn_removal *removal)
{
    if (item->was_here)
        tarn_directory_thread_withdraw(n->directory_thread, &removal->key, &removal->freed, item->bytes,
                                       "removed");
}

static void answer_removal(struct tarn_node *n, const struct delete_item *item,
                           const struct tarn_removal *removal, struct tarn_buf *out)
{
    const struct tarn_location *left[TARN_DISPLACED_MAX];
    size_t nleft = free_here(n, removal, left);
    if (removal->status == TARN_E_DIRECTORY)
        withdraw_freed(n, item, removal);
    if (!out)
        return;
    if (removal->status == TARN_E_DIRECTORY) {
        tarn_resp_add_error(out, TARN_E_DIRECTORY, "redis refused: other copies may be left: remove again");
        return;
    }
    if (nleft)
        tarn_resp_add_array(out, 1 + nleft);
    tarn_resp_add_integer(out, removal->status == 0 || item->was_here);
    add_copies(out, left, nleft);
}

/* why: why none was removed, or is known to be. */
static void delete_reply(struct deletes *d, const struct tarn_reason *why, struct tarn_buf *out)
{
    char text[400];
    snprintf(text, sizeof(text), "gone from this node, other copies may be left: remove again: %.330s",
             why->text);
    if (out)
        tarn_resp_add_array(out, d->nitems);
    for (size_t i = 0; i < d->nitems; i++) {
        const struct delete_item *item = &d->items[i];
        if (item->invalid && out)
            tarn_resp_add_error(out, TARN_E_INVALID, "a key has 1 to 1024 bytes");
        else if (!item->invalid && why->code && out)
            tarn_resp_add_error(out, why->code, text);
        else if (!item->invalid && !why->code)
            answer_removal(d->pending.node, item, &d->pending.request.removals[item->remove], out);
    }
}

/* It was carried out, but its answer came too late, or is not to be believed. */
static void delete_late(struct tarn_pending *pending)
{
    const struct tarn_location *left[TARN_DISPLACED_MAX];
    const struct tarn_request *r = &pending->request;
    for (size_t i = 0; i < r->n; i++)
        free_here(pending->node, &r->removals[i], left);
}

static void delete_answer(struct tarn_pending *pending, const struct tarn_reason *why)
{
    struct deletes *d = TARN_CONTAINER_OF(pending, struct deletes, pending);
    for (size_t i = 0; why->code && i < d->nitems; i++)
        withdraw_freed(pending->node, &d->items[i], &pending->request.removals[d->items[i].remove]);
    if (why->code && !pending->abandoned)
        delete_late(pending);
    delete_reply(d, why, pending->conn ? &pending->conn->out : NULL);
}

int tarn_command_delete(struct tarn_conn *c, size_t n, redisReply **args)
{
    struct deletes *d = tarn_pending_new(sizeof(*d) + (n - 1) * sizeof(d->items[0]), TARN_REQUEST_REMOVE,
                                         n - 1, total_bytes(n - 1, args + 1, 1));
    if (!d)
        return tarn_fail(TARN_E_NO_MEMORY, "DELETE: out of memory");
    d->pending.answer = delete_answer;
    d->pending.late = delete_late;
    for (size_t i = 1; i < n; i++)
        delete_begin(d, tarn_conn_node(c), args[i]);
    for (size_t i = 0; i < d->pending.request.n; i++)
        d->pending.request.removals[i].status = TARN_E_DIRECTORY; /* until it has been asked */
    if (d->pending.request.n) {
        tarn_pending_start(&d->pending, c, (uint64_t)tarn_conn_node(c)->config->redis_timeout_ms);
        return 0;
    }
    d->pending.node = tarn_conn_node(c);
    delete_reply(d, &d->pending.request.failure, &c->out);
    tarn_pending_free(&d->pending);
    return 0;
}

/* --- RELEASE ------------------------------------------------------------------------------------ */

static int release_args(redisReply **args, struct tarn_location *l)
{
    uint64_t slot;
    if (args[0]->len == 1 && args[0]->str[0] == '*')
        return tarn_fail(TARN_E_INVALID, "RELEASE: names one pool, not *");
    snprintf(l->pool, sizeof(l->pool), "%.*s", (int)args[0]->len, args[0]->str);
    int rc = tarn_arg_u64(args[1], "slot", 10, UINT32_MAX, &slot);
    if (!rc)
        rc = tarn_arg_u64(args[2], "generation", 16, UINT64_MAX, &l->gen);
    l->slot = (uint32_t)slot;
    return rc;
}

static void release_item(struct tarn_conn *c, redisReply **args)
{
    struct tarn_location l = {.offset = 0};
    int rc = release_args(args, &l);
    if (!rc && !tarn_recheck_free_copy(tarn_conn_node(c)->store, &l))
        rc = tarn_fail(TARN_E_BUSY, "its own commit has not ended, which will free it: release again");
    if (rc)
        tarn_reply_failure(c, rc);
    else
        tarn_resp_add_integer(&c->out, 1);
}

int tarn_command_release(struct tarn_conn *c, size_t n, redisReply **args)
{
    tarn_resp_add_array(&c->out, (n - 1) / 3);
    for (size_t i = 1; i < n; i += 3)
        release_item(c, args + i);
    return 0;
}

/* --- SETTLED ------------------------------------------------------------------------------------ */

static int settled_item(struct tarn_pending *p, redisReply **args)
{
    struct tarn_request *r = &p->request;
    struct tarn_copy_seen *c = &r->copies[r->n];
    int rc = tarn_arg_key(args[0], &c->key);
    if (!rc)
        rc = tarn_copy_parse((struct tarn_text){args[1]->str, args[1]->len}, &c->copy);
    if (rc)
        return tarn_fail(TARN_E_INVALID,
                         "SETTLED: not a key and @<node>/<pool>=<offset>:<slot>:<gen>: %.200s", args[1]->str);
    tarn_pending_copy_key(p, &c->key);
    r->n++;
    return 0;
}

static void settled_answer(struct tarn_pending *pending, const struct tarn_reason *why)
{
    const struct tarn_request *r = &pending->request;
    struct tarn_buf *out = pending->conn ? &pending->conn->out : NULL;
    if (!out)
        return;
    if (why->code) {
        tarn_resp_add_error(out, why->code, why->text);
        return;
    }
    tarn_resp_add_array(out, r->n);
    for (size_t i = 0; i < r->n; i++)
        tarn_resp_add_integer(out, r->settled[i]);
}

int tarn_command_settled(struct tarn_conn *c, size_t n, redisReply **args)
{
    struct tarn_pending *p =
        tarn_pending_new(sizeof(*p), TARN_REQUEST_SETTLED, (n - 1) / 2, total_bytes(n - 1, args + 1, 2));
    int rc = p ? 0 : tarn_fail(TARN_E_NO_MEMORY, "SETTLED: out of memory");
    for (size_t i = 1; !rc && i < n; i += 2)
        rc = settled_item(p, args + i);
    if (!rc) {
        p->answer = settled_answer;
        tarn_pending_start(p, c, (uint64_t)tarn_conn_node(c)->config->redis_timeout_ms);
    } else if (p) {
        tarn_pending_free(p);
    }
    return rc;
}
