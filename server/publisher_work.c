/* SPDX-License-Identifier: Apache-2.0 */
/* What the directory thread does with Redis, one function for each kind of request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "server/publisher_impl.h"

#define AT "directory"

/* --- calls to Redis ----------------------------------------------------------------------------- */

static uint64_t call_deadline(const struct tarn_publisher *p)
{
    return tarn_deadline(p->o.timeout_ms);
}

/* Keeps account of a call that ended with rc, and says once that Redis went or came back. */
static int account(struct tarn_publisher *p, int rc)
{
    pthread_mutex_lock(&p->lock);
    bool was_away = p->stats.away;
    p->stats.calls++;
    p->stats.away = rc != 0;
    p->stats.silent = rc && !tarn_directory_answers(p->o.directory);
    if (rc) {
        p->stats.failed_calls++;
        snprintf(p->stats.error, sizeof(p->stats.error), "%s", tarn_last_error());
    }
    pthread_mutex_unlock(&p->lock);
    if (rc && !was_away)
        tarn_log(p->o.log, TARN_LOG_WARN, AT, "msg=\"redis does not do its part\" cause=\"%s\"",
                 tarn_last_error());
    if (!rc && was_away)
        tarn_log(p->o.log, TARN_LOG_INFO, AT, "msg=\"redis is back\"");
    return rc;
}

static void request_failed(struct tarn_request *r, int rc)
{
    r->status = rc;
    snprintf(r->error, sizeof(r->error), "%s", tarn_last_error());
}

static int call_publish(struct tarn_publisher *p, struct tarn_publish *items, size_t n)
{
    int rc = account(p, tarn_directory_publish(p->o.directory, items, n, call_deadline(p)));
    if (rc) {
        pthread_mutex_lock(&p->lock);
        p->doubts |= p->stats.silent;
        pthread_mutex_unlock(&p->lock);
    }
    return rc;
}

/* Items that lost to a dead record are published again in its place. Items go in and out by index. */
static int replace_dead(struct tarn_publisher *p, struct tarn_publish *items, const size_t *dead, size_t n)
{
    struct tarn_publish *again = calloc(n, sizeof(*again));
    if (!again)
        return tarn_fail(TARN_E_NO_MEMORY, "commit: out of memory");
    for (size_t i = 0; i < n; i++) {
        again[i] = items[dead[i]];
        again[i].mode = TARN_PUBLISH_REPLACE;
        again[i].replaces = items[dead[i]].found.version;
    }
    int rc = call_publish(p, again, n);
    for (size_t i = 0; i < n; i++) {
        enum tarn_publish_mode mode = items[dead[i]].mode;
        items[dead[i]] = again[i];
        items[dead[i]].mode = mode;
        if (rc)
            items[dead[i]].status = rc;
    }
    free(again);
    return rc;
}

static bool is_own_leftover(const struct tarn_publisher *p, const struct tarn_record *r)
{
    for (uint32_t i = 0; i < r->nlocations; i++) {
        if (strcmp(r->locations[i].node, p->o.node))
            return false;
    }
    return r->nlocations > 0;
}

static int judge_losers(struct tarn_publisher *p, struct tarn_publish *items, size_t n, uint64_t since)
{
    int rc = 0;
    size_t ndead = 0, *dead = calloc(n, sizeof(*dead));
    for (size_t i = 0; i < n; i++) {
        if (items[i].status != TARN_E_EXISTS || items[i].mode == TARN_PUBLISH_JOIN)
            continue;
        if (items[i].mode == TARN_PUBLISH_RESTORE && !is_own_leftover(p, &items[i].found))
            continue;
        enum tarn_liveness l = tarn_living_record(&p->living, &items[i].found, since, call_deadline(p));
        if (l == TARN_DEAD && dead)
            dead[ndead++] = i;
    }
    if (ndead)
        rc = replace_dead(p, items, dead, ndead);
    free(dead);
    return rc;
}

void count_published(struct tarn_publisher *p, const struct tarn_publish *items, size_t n)
{
    uint64_t published = 0;
    for (size_t i = 0; i < n; i++)
        published += items[i].status == 0;
    pthread_mutex_lock(&p->lock);
    p->stats.published += published;
    pthread_mutex_unlock(&p->lock);
}

/* Publishes; on failure of the whole call every item has its code. */
static int publish(struct tarn_publisher *p, struct tarn_publish *items, size_t n)
{
    int rc = call_publish(p, items, n);
    uint64_t since = tarn_now_ns();
    if (rc) {
        for (size_t i = 0; i < n; i++)
            items[i].status = rc;
        return rc;
    }
    rc = judge_losers(p, items, n, since);
    count_published(p, items, n);
    return rc;
}

/* What is left to do when the lane has published. */
static int finish_asked(struct tarn_publisher *p, struct tarn_request *r)
{
    int rc = judge_losers(p, r->publishes, r->n, tarn_now_ns());
    count_published(p, r->publishes, r->n);
    return rc;
}

/* --- a round ------------------------------------------------------------------------------------ */

void work_beat(struct tarn_publisher *p, struct tarn_request *r)
{
    int rc = account(p, tarn_directory_beat(p->o.directory, &r->beat, call_deadline(p)));
    if (rc)
        request_failed(r, rc);
    else
        settled_note(p, &r->beat);
}

static int fail_items(struct tarn_request *first, const struct tarn_request *end)
{
    for (struct tarn_request *r = first; r != end; r = r->next) {
        for (size_t i = 0; i < r->n; i++)
            r->publishes[i].status = TARN_E_NO_MEMORY;
    }
    return tarn_fail(TARN_E_NO_MEMORY, "commit: out of memory");
}

/* Several commits as one call: their n items are copied to one array and back. */
static int publish_together(struct tarn_publisher *p, struct tarn_request *first,
                            const struct tarn_request *end, size_t n)
{
    struct tarn_publish *all = malloc(n * sizeof(*all));
    size_t at = 0;
    if (!all)
        return fail_items(first, end);
    for (struct tarn_request *r = first; r != end; at += r->n, r = r->next)
        memcpy(all + at, r->publishes, r->n * sizeof(*all));
    int rc = publish(p, all, n);
    at = 0;
    for (struct tarn_request *r = first; r != end; at += r->n, r = r->next)
        memcpy(r->publishes, all + at, r->n * sizeof(*all));
    free(all);
    return rc;
}

/* The request, or all that follow it and can be done in one call with it. *next: the one after those. */
static int publish_some(struct tarn_publisher *p, struct tarn_request *first, struct tarn_request **next)
{
    size_t n = first->n;
    *next = first->next;
    if (first->asked)
        return finish_asked(p, first);
    for (; *next && !(*next)->asked; *next = (*next)->next)
        n += (*next)->n;
    return *next == first->next ? publish(p, first->publishes, n) : publish_together(p, first, *next, n);
}

void work_publish(struct tarn_publisher *p, struct request_queue *q)
{
    struct tarn_request *next;
    for (struct tarn_request *first = q->first; first; first = next) {
        int rc = publish_some(p, first, &next);
        for (struct tarn_request *r = first; rc && r != next; r = r->next)
            request_failed(r, rc);
    }
}

/* 0 for what the directory has, so that only what is missing is published. */
static void mark_present(void *arg, size_t i, int status, const struct tarn_record *found)
{
    struct tarn_publish *item = (struct tarn_publish *)arg + i;
    const struct tarn_location *own = &item->record.locations[0];
    item->status = TARN_E_NOT_FOUND;
    for (uint32_t k = 0; !status && k < found->nlocations; k++) {
        const struct tarn_location *l = &found->locations[k];
        if (l->gen == own->gen && l->slot == own->slot && l->offset == own->offset &&
            !strcmp(l->node, own->node) && !strcmp(l->pool, own->pool))
            item->status = 0;
    }
}

static int restore(struct tarn_publisher *p, struct tarn_request *r)
{
    size_t missing = 0;
    struct tarn_key *keys = calloc(r->n, sizeof(*keys));
    if (!keys)
        return tarn_fail(TARN_E_NO_MEMORY, "restore: out of memory");
    for (size_t i = 0; i < r->n; i++)
        keys[i] = r->publishes[i].key;
    int rc = account(
        p, tarn_directory_lookup(p->o.directory, keys, r->n, call_deadline(p), mark_present, r->publishes));
    free(keys);
    if (!rc && !r->publish_missing)
        r->unsure = settled_same(p, r->directory) != 0;
    if (rc || !r->publish_missing)
        return rc;
    /* The missing ones come first; the order among a page's objects means nothing. */
    for (size_t i = 0; i < r->n; i++) {
        if (r->publishes[i].status == 0)
            continue;
        struct tarn_publish swap = r->publishes[missing];
        r->publishes[missing++] = r->publishes[i];
        r->publishes[i] = swap;
    }
    rc = missing ? publish(p, r->publishes, missing) : 0;
    for (size_t i = 0; i < missing; i++)
        r->restored += r->publishes[i].status == 0;
    return rc;
}

void work_restore(struct tarn_publisher *p, struct tarn_request *r)
{
    int rc = restore(p, r);
    if (rc)
        request_failed(r, rc);
}

int work_withdraw_items(struct tarn_publisher *p, struct tarn_withdraw *w, size_t n)
{
    return account(p, tarn_directory_withdraw(p->o.directory, w, n, call_deadline(p)));
}

void work_withdraw(struct tarn_publisher *p, struct tarn_request *r)
{
    int rc = work_withdraw_items(p, r->withdraws, r->n);
    if (rc)
        request_failed(r, rc);
}

/* --- scanning ----------------------------------------------------------------------------------- */

#define SCAN_COUNT 256

/* The locations of one page, to be judged once the page was read. */
struct page {
    struct tarn_withdraw *locations;
    size_t n, room;
    struct tarn_buf keys;
    uint64_t seen;
};

static int page_grow(struct page *page)
{
    size_t room = page->room ? 2 * page->room : SCAN_COUNT;
    struct tarn_withdraw *locations = realloc(page->locations, room * sizeof(*locations));
    if (!locations)
        return tarn_fail(TARN_E_NO_MEMORY, "sweep: out of memory");
    page->locations = locations;
    page->room = room;
    return 0;
}

/* key.data holds the key's offset until the page is complete: the buffer moves as it grows. */
static int take_record(void *arg, const struct tarn_key *key, const struct tarn_record *r)
{
    struct page *page = arg;
    size_t at = page->keys.bytes;
    page->seen++;
    tarn_buf_add(&page->keys, key->data, key->bytes);
    if (page->keys.failed)
        return tarn_fail(TARN_E_NO_MEMORY, "sweep: out of memory");
    for (uint32_t i = 0; i < r->nlocations; i++) {
        int rc = page->n == page->room ? page_grow(page) : 0;
        if (rc)
            return rc;
        page->locations[page->n++] = (struct tarn_withdraw){.key = {(const void *)(uintptr_t)at, key->bytes},
                                                            .location = r->locations[i]};
    }
    return 0;
}

/* Moves the void locations to the front; returns how many there are. */
static size_t page_judge(struct tarn_publisher *p, struct page *page)
{
    size_t ndead = 0;
    uint64_t since = tarn_now_ns(), deadline = call_deadline(p);
    for (size_t i = 0; i < page->n; i++) {
        struct tarn_withdraw *w = &page->locations[i];
        if (tarn_living_check(&p->living, &w->location, since, deadline) != TARN_DEAD)
            continue;
        /* A node that is back compares no sooner than a heartbeat after it has listed itself. */
        w->until_ms = strcmp(w->location.node, p->o.node) ? p->living.listed_ms + p->o.heartbeat_ms : UINT64_MAX;
        w->key.data = page->keys.data + (uintptr_t)w->key.data;
        page->locations[ndead++] = *w;
    }
    return ndead;
}

void work_scan(struct tarn_publisher *p, struct tarn_request *r)
{
    struct page page = {0};
    int rc = account(p, tarn_directory_scan_page(p->o.directory, NULL, SCAN_COUNT, &r->cursor,
                                                 call_deadline(p), take_record, &page));
    size_t ndead = rc ? 0 : page_judge(p, &page);
    if (ndead)
        rc = account(p, tarn_directory_sweep(p->o.directory, page.locations, ndead, call_deadline(p)));
    r->seen = page.seen;
    r->withdrawn = rc ? 0 : ndead;
    if (rc)
        request_failed(r, rc);
    free(page.locations);
    tarn_buf_free(&page.keys);
}

void work_leave(struct tarn_publisher *p, struct tarn_request *r)
{
    int rc = account(p, tarn_directory_leave(p->o.directory, r->record, call_deadline(p)));
    if (rc)
        request_failed(r, rc);
}
