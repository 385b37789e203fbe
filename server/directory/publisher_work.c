/* SPDX-License-Identifier: Apache-2.0 */
/* What the directory thread does with Redis, one function for each kind of request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "server/directory/publisher_impl.h"

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
        if (again[i].mode != TARN_PUBLISH_RESTORE)
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
static int publish_all(struct tarn_publisher *p, struct tarn_publish *items, size_t n)
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
    publish_behind(p, items, n);
    return rc;
}

/* Finishes what a direct publish has left undone. */
static int finish_asked(struct tarn_publisher *p, struct tarn_request *r)
{
    int rc = judge_losers(p, r->publishes, r->n, tarn_now_ns());
    count_published(p, r->publishes, r->n);
    publish_behind(p, r->publishes, r->n);
    return rc;
}

bool any_replace(const struct tarn_publish *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (items[i].mode == TARN_PUBLISH_REPLACE)
            return true;
    }
    return false;
}

/* All but the replaces, which get the code. */
static int publish_rest(struct tarn_publisher *p, struct tarn_publish *items, size_t n, int code)
{
    struct tarn_publish *rest = calloc(n, sizeof(*rest));
    size_t nrest = 0, at = 0;
    char why[TARN_SENTENCE];
    snprintf(why, sizeof(why), "%s", tarn_last_error());
    for (size_t i = 0; rest && i < n; i++) {
        if (items[i].mode != TARN_PUBLISH_REPLACE)
            rest[nrest++] = items[i];
    }
    int rc = nrest ? publish_all(p, rest, nrest) : 0;
    for (size_t i = 0; i < n; i++) {
        if (rest && items[i].mode != TARN_PUBLISH_REPLACE)
            items[i] = rest[at++];
        else
            items[i].status = code;
    }
    free(rest);
    if (!rc)
        tarn_last_error_set(why);
    return rc;
}

static int publish(struct tarn_publisher *p, struct tarn_publish *items, size_t n)
{
    int unsettled = any_replace(items, n) ? settled_before(p) : 0;
    return unsettled ? publish_rest(p, items, n, unsettled) : publish_all(p, items, n);
}

/* --- a round ------------------------------------------------------------------------------------ */

void work_beat(struct tarn_publisher *p, struct tarn_request *r)
{
    int rc = tarn_directory_beat(p->o.directory, &r->beat, call_deadline(p));
    account(p, r->beat.conflict ? 0 : rc);
    if (rc)
        request_failed(r, rc);
    if (!rc || r->beat.conflict)
        settled_note(p, &r->beat);
    bool listed = !r->beat.other && !r->beat.gone && !r->beat.taken_epoch;
    if (!rc)
        p->listed_until_ms = listed ? r->beat.state.now_ms + p->o.ttl_ms : 0;
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
        tarn_last_error_set("");
        int rc = publish_some(p, first, &next);
        for (struct tarn_request *r = first; rc && r != next; r = r->next)
            request_failed(r, rc);
        for (struct tarn_request *r = first; !rc && r != next; r = r->next)
            snprintf(r->error, sizeof(r->error), "%s", tarn_last_error()); /* why items are AGAIN */
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
    int rc = account(p, tarn_directory_lookup(p->o.directory, keys, r->n, call_deadline(p), NULL,
                                              mark_present, r->publishes));
    free(keys);
    if (!rc && !r->publish_missing)
        r->unsure = settled_same(p, r->directory) != 0;
    if (rc || !r->publish_missing)
        return rc;
    /* The missing ones come first; the order among a page's objects means nothing. */
    for (size_t i = 0; i < r->n; i++) {
        if (r->publishes[i].status == 0)
            continue;
        r->publishes[i].until_ms = p->listed_until_ms;
        struct tarn_publish swap = r->publishes[missing];
        r->publishes[missing++] = r->publishes[i];
        r->publishes[i] = swap;
    }
    rc = missing ? publish(p, r->publishes, missing) : 0;
    for (size_t i = 0; i < missing; i++) {
        r->restored += r->publishes[i].status == 0;
        if (!rc && r->publishes[i].status == TARN_E_AGAIN)
            rc = TARN_E_AGAIN;
    }
    return rc;
}

void work_restore(struct tarn_publisher *p, struct tarn_request *r)
{
    int rc = restore(p, r);
    if (rc)
        request_failed(r, rc);
}

void work_withdraw(struct tarn_publisher *p, struct tarn_request *r)
{
    int rc = work_withdraw_items(p, r->withdraws, r->n);
    if (rc)
        request_failed(r, rc);
}

/* --- scanning ----------------------------------------------------------------------------------- */

#define SCAN_COUNT 256

/* The copies of one page, to be judged once the page was read. */
struct page_copy {
    size_t key; /* where in `keys` */
    size_t key_bytes;
    struct tarn_location location;
    bool displaced; /* another node's; of this node the slot tells */
};

struct page {
    const struct tarn_publisher *publisher;
    struct page_copy *copies;
    size_t n, room;
    struct tarn_buf keys;
    uint64_t seen;
};

static int page_grow(struct page *page)
{
    size_t room = page->room ? 2 * page->room : SCAN_COUNT;
    struct page_copy *copies = realloc(page->copies, room * sizeof(*copies));
    if (!copies)
        return tarn_fail(TARN_E_NO_MEMORY, "sweep: out of memory");
    page->copies = copies;
    page->room = room;
    return 0;
}

/* The buffer of keys moves as it grows. */
static int take_copies(void *arg, const struct tarn_key *key, const struct tarn_location *copies,
                       uint32_t nlocations, uint32_t n)
{
    struct page *page = arg;
    size_t at = page->keys.bytes;
    page->seen++;
    tarn_buf_add(&page->keys, key->data, key->bytes);
    if (page->keys.failed)
        return tarn_fail(TARN_E_NO_MEMORY, "sweep: out of memory");
    for (uint32_t i = 0; i < n; i++) {
        int rc = page->n == page->room ? page_grow(page) : 0;
        if (rc)
            return rc;
        bool elsewhere = strcmp(copies[i].node, page->publisher->o.node) != 0;
        page->copies[page->n++] = (struct page_copy){at, key->bytes, copies[i], i >= nlocations && elsewhere};
    }
    return 0;
}

static struct tarn_key page_key(const struct page *page, const struct page_copy *c)
{
    return (struct tarn_key){page->keys.data + c->key, c->key_bytes};
}

/* Void locations; returns how many there are. */
static size_t judge_locations(struct tarn_publisher *p, const struct page *page, struct tarn_withdraw *out)
{
    size_t n = 0;
    uint64_t since = tarn_now_ns(), deadline = call_deadline(p);
    for (size_t i = 0; i < page->n; i++) {
        const struct page_copy *c = &page->copies[i];
        if (c->displaced || tarn_living_check(&p->living, &c->location, since, deadline) != TARN_DEAD)
            continue;
        /* A node that is back compares no sooner than a heartbeat after it has listed itself. */
        bool own = !strcmp(c->location.node, p->o.node);
        out[n++] =
            (struct tarn_withdraw){.key = page_key(page, c),
                                   .location = c->location,
                                   .until_ms = own ? UINT64_MAX : p->living.listed_ms + p->o.heartbeat_ms};
    }
    return n;
}

/* Displaced copies of other nodes that nobody can read. */
static size_t judge_others(struct tarn_publisher *p, const struct page *page, struct tarn_withdraw *out)
{
    struct tarn_copy_seen *copies = calloc(page->n, sizeof(*copies));
    bool *settled = calloc(page->n, sizeof(*settled));
    size_t asked = 0, n = 0;
    for (size_t i = 0; copies && i < page->n; i++) {
        const struct page_copy *c = &page->copies[i];
        if (c->displaced)
            copies[asked++] = (struct tarn_copy_seen){.key = page_key(page, c), .copy = c->location};
    }
    if (asked && settled && !settled_before(p) && !judge_displaced(p, copies, asked, settled)) {
        for (size_t i = 0; i < asked; i++) {
            if (settled[i] && (copies[i].located || copies[i].displaced))
                out[n++] = (struct tarn_withdraw){
                    .key = copies[i].key, .location = copies[i].copy, .until_ms = UINT64_MAX};
        }
    }
    free(copies);
    free(settled);
    return n;
}

static int sweep_page(struct tarn_publisher *p, const struct page *page, uint64_t *withdrawn)
{
    struct tarn_withdraw *dead = calloc(page->n, sizeof(*dead));
    if (!dead)
        return tarn_fail(TARN_E_NO_MEMORY, "sweep: out of memory");
    size_t ndead = judge_locations(p, page, dead);
    ndead += judge_others(p, page, dead + ndead);
    int rc = ndead ? account(p, tarn_directory_sweep(p->o.directory, dead, ndead, call_deadline(p))) : 0;
    *withdrawn = rc ? 0 : ndead;
    free(dead);
    return rc;
}

void work_scan(struct tarn_publisher *p, struct tarn_request *r)
{
    struct page page = {.publisher = p};
    int rc = account(p, tarn_directory_scan_page(p->o.directory, SCAN_COUNT, &r->cursor, call_deadline(p),
                                                 take_copies, &page));
    if (!rc && page.n)
        rc = sweep_page(p, &page, &r->withdrawn);
    r->seen = page.seen;
    if (rc)
        request_failed(r, rc);
    free(page.copies);
    tarn_buf_free(&page.keys);
}

void work_leave(struct tarn_publisher *p, struct tarn_request *r)
{
    int rc = account(p, tarn_directory_leave(p->o.directory, r->record, call_deadline(p)));
    if (rc)
        request_failed(r, rc);
}
