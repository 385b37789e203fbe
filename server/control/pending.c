/* SPDX-License-Identifier: Apache-2.0 */
#include "server/control/pending.h"

#include <utlist.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"

#define EXPIRY_MS 20

static void leave_list(struct tarn_pending *p)
{
    DL_DELETE(p->node->pending, p);
}

static void answer(struct tarn_pending *p, int code, const char *sentence)
{
    struct tarn_conn *c = p->conn;
    p->answer(p, code, sentence);
    if (code)
        p->node->stats.errors++;
    p->conn = NULL;
    if (c)
        tarn_conn_resume(c);
}

static void settled(struct tarn_pending *p)
{
    struct tarn_node *n = p->node;
    n->unsettled--;
    p->free(p);
    tarn_node_drain_check(n);
}

static void request_done(struct tarn_request *r)
{
    struct tarn_pending *p = TARN_CONTAINER_OF(r, struct tarn_pending, request);
    if (p->abandoned) {
        p->late(p);
    } else {
        leave_list(p);
        answer(p, r->status, r->error);
    }
    settled(p);
}

static void expire_one(struct tarn_pending *p)
{
    bool untried = tarn_publisher_cancel(p->node->publisher, &p->request);
    leave_list(p);
    p->abandoned = true;
    tarn_fail(TARN_E_TIMEOUT, "directory: no answer of Redis in time (%s)",
              untried ? "not tried yet" : "asked");
    answer(p, TARN_E_TIMEOUT, tarn_last_error());
    if (untried)
        settled(p);
}

/* While anything is pending. A new one may be appended while connections go on, so the list is read afresh.
 */
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
            p = p->next;
        }
    }
    if (!n->pending) {
        tarn_timer_free(n->expiry);
        n->expiry = NULL;
    }
}

static void conn_gone(struct tarn_waiter *w)
{
    TARN_CONTAINER_OF(w, struct tarn_pending, waiter)->conn = NULL;
}

void tarn_pending_start(struct tarn_pending *p, struct tarn_conn *c, uint64_t timeout_ms)
{
    struct tarn_node *n = c->node;
    p->node = n;
    p->conn = c;
    p->begun_ns = tarn_now_ns();
    /* Answered somewhat before the client gives up. */
    p->deadline_ns = p->begun_ns + timeout_ms * TARN_NS_PER_MS / 10 * 9;
    p->request.done = request_done;
    DL_APPEND(n->pending, p);
    n->unsettled++;
    /* Without the timer the publisher's own time limit still answers. */
    if (!n->expiry && tarn_timer_new(n->loop, EXPIRY_MS, expire, n, &n->expiry))
        n->expiry = NULL;
    p->waiter.gone = conn_gone;
    tarn_conn_wait(c, &p->waiter);
    tarn_publisher_submit(n->publisher, &p->request);
}
