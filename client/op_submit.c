/* SPDX-License-Identifier: Apache-2.0 */
/* Submitting operations. Options are copied; keys, items and buffers stay the caller's until the completion.
 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "client/alert.h"
#include "client/check.h"
#include "client/client.h"
#include "client/memory.h"
#include "client/op.h"
#include "client/op_run.h"

static int op_new(struct tarn_client *c, enum tarn_op_kind kind, uint32_t timeout_ms, uint64_t cookie,
                  struct tarn_operation **op_p)
{
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    struct tarn_operation *op = calloc(1, sizeof *op);
    if (!op)
        return tarn_fail(TARN_E_NO_MEMORY, "submit: out of memory");
    op->kind = kind;
    op->cookie = cookie;
    op->deadline_ns = tarn_client_deadline(c, timeout_ms);
    *op_p = op;
    return 0;
}

/* Either place for its number may be NULL. */
static int submit(struct tarn_client *c, struct tarn_operation *op, _Atomic tarn_op *id_p, tarn_op *op_p)
{
    struct tarn_ops_queue *q = c->ops;

    pthread_mutex_lock(&q->lock);
    int rc = tarn_ops_start_workers(c);
    op->id = ++q->last_id;
    if (rc == 0) {
        unsigned before = HASH_COUNT(q->all);
        HASH_ADD(hh, q->all, id, sizeof op->id, op);
        if (HASH_COUNT(q->all) == before)
            rc = tarn_fail(TARN_E_NO_MEMORY, "submit: out of memory");
    }
    bool earlier = rc == 0 && op->deadline_ns < q->alarm_ns;
    if (rc == 0) {
        if (op_p)
            *op_p = op->id;
        if (id_p)
            atomic_store(id_p, op->id);
        if (earlier)
            q->alarm_ns = op->deadline_ns;
        tarn_op_queue(q, op);
        pthread_cond_signal(&q->work);
    }
    pthread_mutex_unlock(&q->lock);
    if (earlier)
        tarn_monitor_alarm(c);
    if (rc != 0) {
        free(op->place);
        free(op);
    }
    return rc;
}

/* A get or a put. */
static int submit_items(struct tarn_client *c, struct tarn_operation *op, struct tarn_item *items, size_t n,
                        void *after, tarn_op *op_p)
{
    op->items = items;
    op->n = n;
    op->after = after;
    op->on_gpus = tarn_items_on_gpus(items, n);
    return submit(c, op, NULL, op_p);
}

static int check_items(const char *call, const struct tarn_item *items, size_t n, uint32_t flags,
                       uint32_t known)
{
    int rc = tarn_flags_check(call, flags, known);

    return rc || n == 0 || items ? rc : tarn_fail(TARN_E_INVALID, "%s: items are NULL", call);
}

int tarn_submit_get(struct tarn_client *c, struct tarn_item *items, size_t n,
                    const struct tarn_get_options *o, uint64_t cookie, tarn_op *op_p)
{
    struct tarn_get_options copy;
    struct tarn_operation *op;

    int rc = tarn_options_copy(&copy, sizeof copy, o);
    if (rc == 0)
        rc = check_items("get", items, n, copy.flags, TARN_GET_FLAGS);
    if (rc == 0)
        rc = op_new(c, TARN_OP_GET, copy.timeout_ms, cookie, &op);
    if (rc != 0)
        return rc;
    op->get_options = copy;
    return submit_items(c, op, items, n, copy.after, op_p);
}

int tarn_submit_put(struct tarn_client *c, struct tarn_item *items, size_t n,
                    const struct tarn_put_options *o, uint64_t cookie, tarn_op *op_p)
{
    struct tarn_put_options copy;
    struct tarn_operation *op;

    int rc = tarn_options_copy(&copy, sizeof copy, o);
    if (rc == 0)
        rc = check_items("put", items, n, copy.flags, TARN_PUT_FLAGS);
    if (rc == 0)
        rc = op_new(c, TARN_OP_PUT, copy.timeout_ms, cookie, &op);
    if (rc != 0)
        return rc;
    op->put_options = copy;
    if (copy.place && !(op->put_options.place = op->place = strdup(copy.place))) {
        free(op);
        return tarn_fail(TARN_E_NO_MEMORY, "submit: out of memory");
    }
    return submit_items(c, op, items, n, copy.after, op_p);
}

int tarn_submit_lookup(struct tarn_client *c, const struct tarn_key *keys, size_t n,
                       const struct tarn_lookup_options *o, uint64_t cookie, tarn_op *op_p)
{
    struct tarn_lookup_options copy;
    struct tarn_operation *op;

    int rc = tarn_options_copy(&copy, sizeof copy, o);
    if (rc == 0)
        rc = op_new(c, TARN_OP_LOOKUP, copy.timeout_ms, cookie, &op);
    if (rc != 0)
        return rc;
    op->keys = keys;
    op->n = n;
    return submit(c, op, NULL, op_p);
}

int tarn_submit_remove(struct tarn_client *c, const struct tarn_key *keys, size_t n, int32_t *statuses,
                       uint32_t timeout_ms, uint64_t cookie, tarn_op *op_p)
{
    struct tarn_operation *op = NULL;
    int rc = op_new(c, TARN_OP_REMOVE, timeout_ms, cookie, &op);

    if (rc != 0)
        return rc;
    op->keys = keys;
    op->n = n;
    op->statuses = statuses;
    return submit(c, op, NULL, op_p);
}

int tarn_op_submit(struct tarn_client *c, const struct tarn_op_task *t, tarn_op *op_p)
{
    struct tarn_operation *op = NULL;
    int rc = op_new(c, t->kind, t->timeout_ms, t->cookie, &op);

    if (rc != 0)
        return rc;
    op->after = t->after;
    op->run = t->run;
    op->unrun = t->unrun;
    op->run_together = t->run_together;
    op->group = t->group;
    op->bytes = t->bytes;
    op->uses = t->uses;
    op->arg = t->arg;
    op->parks = t->parks;
    return submit(c, op, t->id_p, op_p);
}
