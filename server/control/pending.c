/* SPDX-License-Identifier: Apache-2.0 */
#include "server/control/pending.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"

#define EXPIRY_MS 20

void *tarn_pending_new(size_t bytes, enum tarn_request_kind kind, size_t n, size_t key_bytes)
{
    struct tarn_pending *p = calloc(1, bytes);
    if (!p)
        return NULL;
    struct tarn_request *r = &p->request;
    r->kind = kind;
    if (kind == TARN_REQUEST_PUBLISH)
        r->publishes = calloc(n, sizeof(*r->publishes));
    else if (kind == TARN_REQUEST_REMOVE)
        r->removals = calloc(n, sizeof(*r->removals));
    else if (kind == TARN_REQUEST_NAMES)
        r->names = calloc(n, sizeof(*r->names));
    else if ((r->settled = calloc(n, sizeof(*r->settled))))
        r->copies = calloc(n, sizeof(*r->copies));
    p->keys = malloc(key_bytes);
    if (p->keys && (r->publishes || r->removals || r->names || r->copies))
        return p;
    tarn_pending_free(p);
    return NULL;
}

void tarn_pending_free(struct tarn_pending *p)
{
    free(p->request.publishes);
    free(p->request.removals);
    free(p->request.names);
    free(p->request.copies);
    free(p->request.settled);
    free(p->keys);
    free(p);
}

void tarn_pending_copy_key(struct tarn_pending *p, struct tarn_key *key)
{
    memcpy(p->keys + p->key_bytes, key->data, key->bytes);
    key->data = p->keys + p->key_bytes;
    p->key_bytes += key->bytes;
}

static void answer(struct tarn_pending *p, const struct tarn_reason *why)
{
    struct tarn_conn *c = p->conn;
    p->answer(p, why);
    if (why->code)
        p->node->host.errors++;
    p->conn = NULL;
    if (c)
        tarn_conn_resume(c);
}

static void settled(struct tarn_pending *p)
{
    struct tarn_node *n = p->node;
    n->unsettled--;
    tarn_pending_free(p);
    n->drain_check(n);
}

static void request_done(struct tarn_request *r)
{
    struct tarn_pending *p = TARN_CONTAINER_OF(r, struct tarn_pending, request);
    if (p->abandoned && p->late) {
        p->late(p);
    } else if (!p->abandoned) {
        DL_DELETE(p->node->pending, p);
        answer(p, &r->failure);
    }
    settled(p);
}

static void expire_one(struct tarn_pending *p)
{
    bool untried = tarn_directory_thread_cancel(p->node->directory_thread, &p->request);
    DL_DELETE(p->node->pending, p);
    p->abandoned = true;
    p->untried = untried;
    const struct tarn_reason not_tried = {TARN_E_TIMEOUT,
                                          "directory: no answer of Redis in time (not tried yet)"},
                             asked = {TARN_E_TIMEOUT, "directory: no answer of Redis in time (asked)"};
    answer(p, untried ? &not_tried : &asked);
    if (untried)
        settled(p);
}

/* While anything is pending. The directory is slow, so answers that are held go now. A new one may be
 * appended while connections go on, so the list is read afresh. */
static void expire(void *arg)
{
    struct tarn_node *n = arg;
    uint64_t now = tarn_now_ns();
    struct tarn_pending *p = n->pending;
    while (p) {
        if (p->deadline_ns <= now) {
            expire_one(p);
            p = n->pending;
        } else {
            if (p->conn)
                tarn_conn_tell(p->conn);
            p = p->next;
        }
    }
    if (!n->pending) {
        tarn_watch_free(n->expiry);
        n->expiry = NULL;
    }
}

static void conn_gone(struct tarn_waiter *w)
{
    TARN_CONTAINER_OF(w, struct tarn_pending, waiter)->conn = NULL;
}

void tarn_pending_start(struct tarn_pending *p, struct tarn_conn *c, uint64_t timeout_ms)
{
    struct tarn_node *n = TARN_CONTAINER_OF(c->host, struct tarn_node, host);
    p->node = n;
    p->conn = c;
    p->begun_ns = tarn_now_ns();
    /* Answered somewhat before the client gives up. */
    p->deadline_ns = p->begun_ns + timeout_ms * TARN_NS_PER_MS / 10 * 9;
    p->request.done = request_done;
    DL_APPEND(n->pending, p);
    n->unsettled++;
    /* Without the timer the directory thread's own time limit still answers. */
    if (!n->expiry && tarn_timer_new(n->host.loop, EXPIRY_MS, expire, n, &n->expiry))
        n->expiry = NULL;
    p->waiter.gone = conn_gone;
    tarn_conn_wait(c, &p->waiter);
    tarn_directory_thread_submit(n->directory_thread, &p->request);
}
