/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each table has a thread. About every 10 ms it renews the lease, and looks for the objects of pages whose
 * rows kernels were told were not readable; less often it tells nodes what kernels have used.
 *
 * The table's lease ends with the first of the leases of the nodes of its live pages, or in a second. A node
 * that may not be read any more loses its pages first. While a node's lease is asked for, the table lapses as
 * a whole; if no answer comes soon, the node's pages die, so that the others can be read again.
 *
 * While the thread waits for Redis or for a node, it renews the lease between slices of the wait.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/gpu/table_impl.h"
#include "client/read_lease_ask.h"

#define ROUND_MS 10
#define AHEAD_NS (5 * ROUND_MS * TARN_NS_PER_MS) /* leases are renewed so long before their end */
#define USED_NS (100 * TARN_NS_PER_MS)           /* between tellings of use */
#define LEASE_NS TARN_NS_PER_S
#define ASK_NS (100 * TARN_NS_PER_MS)  /* how long one node's lease may hold up all pages */
#define REFRESH_NS (2 * TARN_NS_PER_S) /* for a look-up and for reaching what it found */

/* --- the lease ---------------------------------------------------------------------------------- */

/* Until when the hold's pages may be read; 0: not now. *status: why not for longer. */
static uint64_t hold_until(struct tarn_table_hold *h, uint64_t now_ns, int *status)
{
    struct tarn_peer_node *node = h->node;
    enum tarn_read_lease_word word = TARN_READ_LEASE_RUNS;
    *status = 0;
    if (atomic_load(&node->health) == TARN_GONE || tarn_peer_node_gone(node)) {
        *status = TARN_E_NODE_DOWN;
        return 0;
    }
    if (!tarn_read_lease_read(&node->lease, now_ns + AHEAD_NS))
        word = tarn_read_lease_word_in(node, AHEAD_NS);
    if (word != TARN_READ_LEASE_GONE && tarn_read_lease_runs(&node->lease, now_ns)) {
        h->since_ns = 0;
        return atomic_load(&node->lease.until_ns);
    }
    h->since_ns = h->since_ns ? h->since_ns : now_ns;
    if (word == TARN_READ_LEASE_GONE)
        *status = TARN_E_NODE_DOWN;
    else if (word == TARN_READ_LEASE_REFUSED)
        *status = TARN_E_DIRECTORY;
    else if (now_ns - h->since_ns > ASK_NS)
        *status = TARN_E_STALE;
    return 0;
}

int tarn_table_renew(struct tarn_table *t)
{
    uint64_t now = tarn_now_ns(), until = now + LEASE_NS;
    int rc = tarn_table_memory_time(t);
    for (uint32_t i = 0; !rc && i < t->nholds; i++) {
        int status;
        if (t->holds[i].pages == 0)
            continue;
        uint64_t of_node = hold_until(&t->holds[i], now, &status);
        if (status)
            rc = tarn_table_kill(t, i, status);
        else if (of_node < until)
            until = of_node;
    }
    return rc ? rc : tarn_table_memory_lease(t, until);
}

/* Called between slices of the thread's waits. */
static int between(void *arg)
{
    struct tarn_table *t = arg;
    pthread_mutex_lock(&t->lock);
    int rc = tarn_table_renew(t);
    if (rc)
        tarn_reason_keep(&t->failure, rc);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

/* --- the thread --------------------------------------------------------------------------------- */

/* Looks for the objects of pages that kernels were told were not readable. */
static int refresh(struct tarn_table *t)
{
    uint32_t page = 0;
    if (!tarn_dev_load32(t->dev.news))
        return 0;
    tarn_dev_store32(t->dev.news, 0);
    pthread_mutex_lock(&t->lock);
    int rc = tarn_table_memory_take(t, t->dev.told);
    pthread_mutex_unlock(&t->lock);
    while (!rc && page < t->npages && !atomic_load(&t->cancel.on)) {
        tarn_table_batch_told(t, t->batch, &page);
        rc = tarn_table_batch_look(t, t->batch, NULL, 0, tarn_now_ns() + REFRESH_NS, &t->cancel);
    }
    return rc;
}

static int tell_used(struct tarn_table *t)
{
    uint64_t now = tarn_now_ns();
    if (now - t->used_ns < USED_NS)
        return 0;
    t->used_ns = now;
    pthread_mutex_lock(&t->lock);
    int rc = tarn_table_memory_take(t, t->dev.used);
    for (uint32_t page = rc ? t->npages : tarn_table_marked(t, 0); page < t->npages;
         page = tarn_table_marked(t, page + 1)) {
        const struct tarn_table_page *p = &t->pages[page];
        const struct tarn_open_link *l = p->status ? NULL : t->holds[p->hold].link;
        if (l)
            l->ops->touch(l->link, p->pool, p->slot);
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

static void *thread_main(void *arg)
{
    struct tarn_table *t = arg;
    int rc = 0;
    tarn_cuda_relax();
    while (!rc && tarn_cancel_pause(&t->cancel, UINT64_MAX, ROUND_MS)) {
        rc = between(t);
        if (!rc)
            rc = refresh(t);
        if (!rc)
            rc = tell_used(t);
    }
    pthread_mutex_lock(&t->lock);
    if (rc)
        tarn_reason_keep(&t->failure, rc);
    if (t->failure.code)
        tarn_log(&t->client->log, TARN_LOG_WARN, "table",
                 "msg=\"a table has failed: all its rows become stale\" device=%d cause=\"%s\"", t->device,
                 t->failure.text);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

int tarn_table_thread_start(struct tarn_table *t)
{
    t->cancel = (struct tarn_cancel){.fd = -1, .interrupt = between, .interrupt_arg = t};
    int rc = tarn_client_thread(&t->thread, thread_main, t);
    t->started = rc == 0;
    return rc;
}

/* It sees this within a slice. */
void tarn_table_thread_stop(struct tarn_table *t)
{
    if (!t->started)
        return;
    atomic_store(&t->cancel.on, true);
    pthread_join(t->thread, NULL);
    t->started = false;
}
