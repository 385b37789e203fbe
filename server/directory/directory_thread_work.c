/* SPDX-License-Identifier: Apache-2.0 */
/* The directory thread's work with Redis: its calls, their figures, and each kind of request. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "server/directory/directory_thread_impl.h"

#define AT "directory"

/* --- calls ------------------------------------------------------------------------------------- */

uint64_t call_deadline(const struct tarn_directory_thread *dt)
{
    return tarn_deadline(dt->o.timeout_ms);
}

int account(struct tarn_directory_thread *dt, int rc)
{
    pthread_mutex_lock(&dt->lock);
    bool was_away = dt->stats.away;
    dt->stats.calls++;
    dt->stats.away = rc != 0;
    dt->stats.silent = rc && !tarn_directory_answers(dt->o.directory);
    if (rc) {
        dt->stats.failed_calls++;
        tarn_reason_keep(&dt->stats.failure, rc);
    }
    pthread_mutex_unlock(&dt->lock);
    if (rc && !was_away)
        tarn_log(dt->o.log, TARN_LOG_WARN, AT, "msg=\"redis does not do its part\" cause=\"%s\"",
                 tarn_last_error());
    if (!rc && was_away)
        tarn_log(dt->o.log, TARN_LOG_INFO, AT, "msg=\"redis is back\"");
    return rc;
}

int withdraw_items(struct tarn_directory_thread *dt, struct tarn_withdraw *w, size_t n)
{
    return account(dt, tarn_directory_withdraw(dt->o.directory, w, n, call_deadline(dt)));
}

/* --- publishing --------------------------------------------------------------------------------- */

/* *why: why items are AGAIN or DIRECTORY when the others are not; else it stays. */
static int call_publish(struct tarn_directory_thread *dt, struct tarn_publish *items, size_t n,
                        struct tarn_reason *why)
{
    uint64_t unanswered = tarn_directory_unanswered(dt->o.directory);
    int rc = account(dt, tarn_directory_publish(dt->o.directory, items, n, call_deadline(dt)));
    bool in_doubt = tarn_directory_unanswered(dt->o.directory) != unanswered;
    for (size_t i = 0; i < n; i++)
        items[i].in_doubt |= in_doubt;
    if (rc) {
        pthread_mutex_lock(&dt->lock);
        dt->doubts |= dt->stats.silent;
        pthread_mutex_unlock(&dt->lock);
    }
    for (size_t i = 0; !rc && i < n; i++) {
        if (items[i].status == TARN_E_AGAIN || items[i].status == TARN_E_DIRECTORY)
            tarn_reason_keep(why, items[i].status);
    }
    return rc;
}

/* Items that lost to a dead record are published again in its place. Items go in and out by index. */
static int replace_dead(struct tarn_directory_thread *dt, struct tarn_publish *items, const size_t *dead,
                        size_t n, struct tarn_reason *why)
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
    int rc = call_publish(dt, again, n, why);
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

static bool is_own_leftover(const struct tarn_directory_thread *dt, const struct tarn_record *r)
{
    for (uint32_t i = 0; i < r->nlocations; i++) {
        if (strcmp(r->locations[i].node, dt->o.node))
            return false;
    }
    return r->nlocations > 0;
}

static int judge_losers(struct tarn_directory_thread *dt, struct tarn_publish *items, size_t n,
                        uint64_t since, struct tarn_reason *why)
{
    int rc = 0;
    size_t ndead = 0, *dead = calloc(n, sizeof(*dead));
    for (size_t i = 0; i < n; i++) {
        if (items[i].status != TARN_E_EXISTS || items[i].mode == TARN_PUBLISH_JOIN)
            continue;
        if (items[i].mode == TARN_PUBLISH_RESTORE && !is_own_leftover(dt, &items[i].found))
            continue;
        enum tarn_liveness l = tarn_living_record(&dt->living, &items[i].found, since, call_deadline(dt));
        if (l == TARN_DEAD && dead)
            dead[ndead++] = i;
    }
    if (ndead)
        rc = replace_dead(dt, items, dead, ndead, why);
    free(dead);
    return rc;
}

void count_published(struct tarn_directory_thread *dt, const struct tarn_publish *items, size_t n)
{
    uint64_t published = 0;
    for (size_t i = 0; i < n; i++)
        published += items[i].status == 0;
    pthread_mutex_lock(&dt->lock);
    dt->stats.published += published;
    pthread_mutex_unlock(&dt->lock);
}

/* What follows when Redis has run the publishes. */
static int finish(struct tarn_directory_thread *dt, struct tarn_publish *items, size_t n, uint64_t since,
                  struct tarn_reason *why)
{
    struct tarn_reason failure;
    tarn_reason_keep(&failure, judge_losers(dt, items, n, since, why));
    count_published(dt, items, n);
    publish_behind(dt, items, n, why);
    return tarn_reason_fail(&failure);
}

/* Publishes; on failure of the whole call every item has its code. */
static int publish_all(struct tarn_directory_thread *dt, struct tarn_publish *items, size_t n,
                       struct tarn_reason *why)
{
    int rc = call_publish(dt, items, n, why);
    uint64_t since = tarn_now_ns();
    if (rc) {
        for (size_t i = 0; i < n; i++)
            items[i].status = rc;
        return rc;
    }
    return finish(dt, items, n, since, why);
}

bool any_replace(const struct tarn_publish *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (items[i].mode == TARN_PUBLISH_REPLACE)
            return true;
    }
    return false;
}

/* All but the replaces: they are AGAIN for what *why says. */
static int publish_rest(struct tarn_directory_thread *dt, struct tarn_publish *items, size_t n,
                        struct tarn_reason *why)
{
    struct tarn_publish *rest = calloc(n, sizeof(*rest));
    struct tarn_reason other;
    size_t nrest = 0, at = 0;
    for (size_t i = 0; rest && i < n; i++) {
        if (items[i].mode != TARN_PUBLISH_REPLACE)
            rest[nrest++] = items[i];
    }
    int rc = nrest ? publish_all(dt, rest, nrest, &other) : 0;
    for (size_t i = 0; i < n; i++) {
        if (rest && items[i].mode != TARN_PUBLISH_REPLACE)
            items[i] = rest[at++];
        else
            items[i].status = why->code;
    }
    free(rest);
    return rc;
}

static int publish(struct tarn_directory_thread *dt, struct tarn_publish *items, size_t n,
                   struct tarn_reason *why)
{
    int unsettled = any_replace(items, n) ? settled_before(dt) : 0;
    return tarn_reason_keep(why, unsettled) ? publish_rest(dt, items, n, why)
                                            : publish_all(dt, items, n, why);
}

/* --- a round ------------------------------------------------------------------------------------ */

int work_beat(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    struct tarn_reason why;
    int rc = tarn_reason_keep(&why, tarn_directory_beat(dt->o.directory, &r->beat, call_deadline(dt)));
    account(dt, r->beat.conflict ? 0 : rc);
    if (!rc || r->beat.conflict)
        settled_note(dt, &r->beat);
    bool listed = !r->beat.other && !r->beat.gone && !r->beat.taken_epoch;
    if (!rc)
        dt->listed_until_ms = listed ? r->beat.state.now_ms + dt->o.ttl_ms : 0;
    return tarn_reason_fail(&why);
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
static int publish_together(struct tarn_directory_thread *dt, struct tarn_request *first,
                            const struct tarn_request *end, size_t n)
{
    struct tarn_publish *all = malloc(n * sizeof(*all));
    size_t at = 0;
    if (!all)
        return fail_items(first, end);
    for (struct tarn_request *r = first; r != end; at += r->n, r = r->next)
        memcpy(all + at, r->publishes, r->n * sizeof(*all));
    int rc = publish(dt, all, n, &first->partly);
    at = 0;
    for (struct tarn_request *r = first; r != end; at += r->n, r = r->next) {
        memcpy(r->publishes, all + at, r->n * sizeof(*all));
        r->partly = first->partly;
    }
    free(all);
    return rc;
}

/* The request, or all that follow it and can be done in one call with it. *next: the one after those. */
static int publish_some(struct tarn_directory_thread *dt, struct tarn_request *first,
                        struct tarn_request **next)
{
    size_t n = first->n;
    *next = first->next;
    if (first->asked)
        return finish(dt, first->publishes, n, tarn_now_ns(), &first->partly); /* of a direct publish */
    for (; *next && !(*next)->asked; *next = (*next)->next)
        n += (*next)->n;
    return *next == first->next ? publish(dt, first->publishes, n, &first->partly)
                                : publish_together(dt, first, *next, n);
}

void work_publish(struct tarn_directory_thread *dt, struct request_queue *q)
{
    struct tarn_request *next;
    for (struct tarn_request *first = q->first; first; first = next) {
        int rc = publish_some(dt, first, &next);
        for (struct tarn_request *r = first; r != next; r = r->next)
            tarn_reason_keep(&r->failure, rc);
    }
}

/* 0 for what the directory has. */
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

static int look_up_own(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    struct tarn_key *keys = calloc(r->n, sizeof(*keys));
    if (!keys)
        return tarn_fail(TARN_E_NO_MEMORY, "scrub: out of memory");
    for (size_t i = 0; i < r->n; i++)
        keys[i] = r->publishes[i].key;
    int rc = account(dt, tarn_directory_lookup(dt->o.directory, keys, r->n, call_deadline(dt), NULL,
                                               mark_present, r->publishes));
    free(keys);
    if (!rc)
        r->unsure = settled_same(dt, r->directory) != 0;
    return rc;
}

/* Publishes all, also what is there: where most are lost, looking first would cost more. */
static int publish_own(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    bool late = false;
    for (size_t i = 0; i < r->n; i++)
        r->publishes[i].until_ms = dt->listed_until_ms;
    int rc = publish(dt, r->publishes, r->n, &r->partly);
    for (size_t i = 0; i < r->n; i++) {
        r->restored += r->publishes[i].status == 0;
        late |= r->publishes[i].status == TARN_E_AGAIN;
    }
    if (rc || !late)
        return rc;
    tarn_reason_fail(&r->partly);
    return TARN_E_AGAIN;
}

int work_restore(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    return r->again ? publish_own(dt, r) : look_up_own(dt, r);
}

int work_withdraw(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    return withdraw_items(dt, r->withdraws, r->n);
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
    const struct tarn_directory_thread *dt;
    struct tarn_buf list; /* of struct page_copy, as the next two have it once all is read */
    const struct page_copy *copies;
    size_t n;
    struct tarn_buf keys;
    uint64_t seen;
};

/* The buffer of keys moves as it grows. */
static int take_copies(void *arg, const struct tarn_key *key, const struct tarn_location *copies,
                       uint32_t nlocations, uint32_t n)
{
    struct page *page = arg;
    size_t at = page->keys.bytes;
    page->seen++;
    tarn_buf_add(&page->keys, key->data, key->bytes);
    for (uint32_t i = 0; i < n; i++) {
        bool elsewhere = strcmp(copies[i].node, page->dt->o.node) != 0;
        struct page_copy c = {at, key->bytes, copies[i], i >= nlocations && elsewhere};
        tarn_buf_add(&page->list, &c, sizeof(c));
    }
    return page->keys.failed || page->list.failed ? tarn_fail(TARN_E_NO_MEMORY, "sweep: out of memory") : 0;
}

static struct tarn_key page_key(const struct page *page, const struct page_copy *c)
{
    return (struct tarn_key){page->keys.data + c->key, c->key_bytes};
}

/* Void locations; returns how many there are. */
static size_t judge_locations(struct tarn_directory_thread *dt, const struct page *page,
                              struct tarn_withdraw *out)
{
    size_t n = 0;
    uint64_t since = tarn_now_ns(), deadline = call_deadline(dt);
    for (size_t i = 0; i < page->n; i++) {
        const struct page_copy *c = &page->copies[i];
        if (c->displaced || tarn_living_check(&dt->living, &c->location, since, deadline) != TARN_DEAD)
            continue;
        /* A node that is back compares no sooner than a heartbeat after it has listed itself. */
        bool own = !strcmp(c->location.node, dt->o.node);
        out[n++] =
            (struct tarn_withdraw){.key = page_key(page, c),
                                   .location = c->location,
                                   .until_ms = own ? UINT64_MAX : dt->living.listed_ms + dt->o.heartbeat_ms};
    }
    return n;
}

/* Displaced copies of other nodes that no reader can get. */
static size_t judge_others(struct tarn_directory_thread *dt, const struct page *page,
                           struct tarn_withdraw *out)
{
    struct tarn_copy_seen *copies = calloc(page->n, sizeof(*copies));
    bool *settled = calloc(page->n, sizeof(*settled));
    size_t asked = 0, n = 0;
    for (size_t i = 0; copies && i < page->n; i++) {
        const struct page_copy *c = &page->copies[i];
        if (c->displaced)
            copies[asked++] = (struct tarn_copy_seen){.key = page_key(page, c), .copy = c->location};
    }
    if (asked && settled && !settled_before(dt) && !judge_displaced(dt, copies, asked, settled)) {
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

static int sweep_page(struct tarn_directory_thread *dt, const struct page *page, uint64_t *withdrawn)
{
    struct tarn_withdraw *dead = calloc(page->n, sizeof(*dead));
    if (!dead)
        return tarn_fail(TARN_E_NO_MEMORY, "sweep: out of memory");
    size_t ndead = judge_locations(dt, page, dead);
    ndead += judge_others(dt, page, dead + ndead);
    int rc = ndead ? account(dt, tarn_directory_sweep(dt->o.directory, dead, ndead, call_deadline(dt))) : 0;
    *withdrawn = rc ? 0 : ndead;
    free(dead);
    return rc;
}

int work_scan(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    struct page page = {.dt = dt};
    int rc = account(dt, tarn_directory_scan_page(dt->o.directory, SCAN_COUNT, &r->cursor, call_deadline(dt),
                                                  take_copies, &page));
    page.copies = (const void *)page.list.data;
    page.n = page.list.bytes / sizeof(*page.copies);
    if (!rc && page.n)
        rc = sweep_page(dt, &page, &r->withdrawn);
    r->seen = page.seen;
    tarn_buf_free(&page.list);
    tarn_buf_free(&page.keys);
    return rc;
}

int work_leave(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    return account(dt, tarn_directory_leave(dt->o.directory, r->record, call_deadline(dt)));
}

int work_names(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    return account(dt, tarn_directory_name(dt->o.directory, r->names, r->n, call_deadline(dt)));
}
