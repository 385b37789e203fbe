/* SPDX-License-Identifier: Apache-2.0 */
#include "server/drain.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "server/directory/scrub.h"
#include "transport/host/session.h"

#define AT "drain"
#define PAGE 512
/* A reservation counts as a put in flight for so long after its session's last command. */
#define IDLE_MS 2000
#define SLOWEST_BYTES_MS 100000 /* and longer, by what may be on its way at 100 MB/s */

/* Objects of one page; lives from submit to done. */
struct page {
    struct tarn_request request;
    struct tarn_node *node;
    struct tarn_stored objects[PAGE];
    struct tarn_withdraw items[PAGE];
};

static void left(struct tarn_request *r)
{
    struct tarn_node *n = TARN_CONTAINER_OF(r, struct tarn_node, leave);
    if (r->failure.code)
        tarn_log(&n->log, TARN_LOG_WARN, AT, "msg=\"the node's record stays until it expires\" cause=\"%s\"",
                 r->failure.text);
    tarn_log(&n->log, TARN_LOG_INFO, AT, "msg=\"the node ends\" status=%d", n->exit_status);
    tarn_loop_stop(n->host.loop);
}

/* Not while the directory may still take a commit: what it took must be withdrawn first. */
static void leave_when_settled(struct tarn_node *n)
{
    if (!n->withdrawn || n->leaving || (n->unsettled && tarn_now_ns() < n->drain_deadline_ns))
        return;
    n->leaving = true;
    n->leave = (struct tarn_request){.kind = TARN_REQUEST_LEAVE, .done = left, .record = &n->record};
    tarn_directory_thread_submit(n->directory_thread, &n->leave);
}

/* Without its record the node's copies count as gone, withdrawn or not: so nobody may read them. */
static void leave(struct tarn_node *n)
{
    tarn_store_retire_all(n->store);
    n->withdrawn = true;
    n->drain_deadline_ns = tarn_deadline(2 * (uint32_t)n->config->redis_timeout_ms);
    leave_when_settled(n);
}

/* Nobody gets at the copy any more: that comes before the directory says that it is gone. */
static void retire(struct tarn_node *n, const struct tarn_stored *o)
{
    tarn_store_remove(n->store, &(struct tarn_key){o->key, o->key_bytes},
                      TARN_LEFT_UNTOLD); /* the page withdraws it */
}

static void next_page(struct page *page)
{
    struct tarn_node *n = page->node;
    size_t found = tarn_store_list(n->store, &n->drain_cursor, page->objects, PAGE);
    for (size_t i = 0; i < found; i++) {
        const struct tarn_stored *o = &page->objects[i];
        retire(n, o);
        page->items[i] = (struct tarn_withdraw){.key = {o->key, o->key_bytes},
                                                .location = o->record.locations[0],
                                                .bytes = o->record.tensor.bytes,
                                                .why = "removed"};
    }
    page->request.n = found;
    if (found) {
        tarn_directory_thread_submit(n->directory_thread, &page->request);
        return;
    }
    free(page);
    leave(n);
}

static void page_done(struct tarn_request *r)
{
    struct page *page = TARN_CONTAINER_OF(r, struct page, request);
    struct tarn_node *n = page->node;
    if (r->failure.code == 0) {
        next_page(page);
        return;
    }
    if (r->failure.code != TARN_E_CANCELED) {
        tarn_log(&n->log, TARN_LOG_WARN, AT,
                 "msg=\"objects stay in the directory until other nodes sweep them out\" cause=\"%s\"",
                 r->failure.text);
        leave(n);
    }
    free(page);
}

static void withdraw_all(struct tarn_node *n)
{
    struct page *page = calloc(1, sizeof(*page));
    n->state = TARN_NODE_WITHDRAWING;
    tarn_scrub_end(n->scrub);
    n->drain_cursor = 0;
    if (!page) {
        leave(n);
        return;
    }
    page->node = n;
    page->request =
        (struct tarn_request){.kind = TARN_REQUEST_WITHDRAW, .done = page_done, .withdraws = page->items};
    next_page(page);
}

/* The objects stay, and so does the record until it expires: the next start goes on with both. Commits under
 * way are waited for: what they leave unanswered is dropped then. */
static void stop_keeping(struct tarn_node *n)
{
    if (!n->keep_until_ns)
        n->keep_until_ns = tarn_deadline(2 * (uint32_t)n->config->redis_timeout_ms);
    if (n->unsettled && tarn_now_ns() < n->keep_until_ns)
        return;
    tarn_log(&n->log, TARN_LOG_INFO, AT, "msg=\"the node ends and keeps its objects\" status=%d",
             n->exit_status);
    tarn_loop_stop(n->host.loop);
}

bool tarn_drain_begin(struct tarn_node *n)
{
    if (n->state != TARN_NODE_READY)
        return false;
    n->state = TARN_NODE_DRAINING;
    n->drain_deadline_ns = tarn_deadline((uint32_t)n->config->drain_timeout_ms);
    tarn_log(&n->log, TARN_LOG_INFO, AT, "msg=\"draining\" timeout_ms=%d", (int)n->config->drain_timeout_ms);
    return true;
}

/* Does a session hold reservations that it may still be writing to? */
static bool any_in_use(const struct tarn_node *n)
{
    uint64_t now = tarn_now_ns();
    for (const struct tarn_session *s = n->host.sessions->table; s; s = s->hh.next) {
        uint64_t bytes = tarn_store_session_reserved(n->store, s->id);
        if (s->reserving_since_ns && (now - s->last_ns) / TARN_NS_PER_MS < IDLE_MS + bytes / SLOWEST_BYTES_MS)
            return true;
    }
    return false;
}

void tarn_drain_check(struct tarn_node *n)
{
    uint64_t reserved = 0;
    leave_when_settled(n);
    if (n->state != TARN_NODE_DRAINING)
        return;
    if (n->keep_until_ns) {
        stop_keeping(n);
        return;
    }
    if (!any_in_use(n))
        n->drain_deadline_ns = 0;
    for (uint32_t i = 0; i < n->record.npools; i++) {
        struct tarn_pool_stats stats;
        tarn_store_stats(n->store, i, &stats);
        reserved += stats.reserved;
    }
    bool time_is_up = tarn_now_ns() >= n->drain_deadline_ns;
    if (reserved && !time_is_up)
        return;
    if (reserved)
        tarn_log(&n->log, TARN_LOG_WARN, AT, "msg=\"puts in flight are given up\" reservations=%" PRIu64,
                 reserved);
    if (n->keeps)
        stop_keeping(n);
    else
        withdraw_all(n);
}

void tarn_drain_taken(struct tarn_node *n, uint64_t other_epoch)
{
    tarn_log(&n->log, TARN_LOG_ERROR, AT,
             "msg=\"another node has the id %s, this one ends\" other_epoch=%016" PRIx64
             " remedy=\"give each node its own --id\"",
             n->id, other_epoch);
    n->exit_status = 1;
    if (n->state != TARN_NODE_WITHDRAWING)
        withdraw_all(n);
}
