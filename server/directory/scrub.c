/* SPDX-License-Identifier: Apache-2.0 */
#include "server/directory/scrub.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"

#define AT "scrub"
#define PAGE 1024

/* One direction. */
struct pass {
    struct tarn_request request;
    struct tarn_scrub *scrub;
    void (*next_page)(struct pass *p); /* submits the request, or ends the pass */
    uint64_t cursor;
    uint64_t next_ns; /* when the next pass begins */
    uint64_t pages, last_pages, changed;
    uint64_t budget; /* pages that may still follow in this tick */
    bool running, urgent, busy;
    bool restart; /* begin again from the start once the page under way is back */
};

struct tarn_scrub {
    struct tarn_scrub_options o;
    struct tarn_scrub_stats stats;
    struct pass own, sweep;
    bool restoring; /* the own pass publishes what is missing */
    bool comparing; /* check_all has not come to its end */
    bool ended;
    struct tarn_stored objects[PAGE];
    struct tarn_publish items[PAGE];
};

/* --- what both have in common ------------------------------------------------------------------- */

static void pass_end(struct pass *p, const char *what)
{
    if (p->changed)
        tarn_log(p->scrub->o.log, TARN_LOG_INFO, AT, "msg=\"%s\" objects=%" PRIu64 " pages=%" PRIu64, what,
                 p->changed, p->pages);
    p->last_pages = p->pages;
    p->running = p->urgent = false;
}

static void pass_begin(struct pass *p)
{
    p->running = true;
    p->cursor = p->pages = p->changed = 0;
    p->next_ns = tarn_now_ns() + p->scrub->o.scrub_s * TARN_NS_PER_S;
}

static void pass_page(struct pass *p)
{
    p->busy = true;
    p->pages++;
    tarn_directory_thread_submit(p->scrub->o.directory_thread, &p->request);
}

/* After a page: goes on at once when there is reason to. */
static void pass_continue(struct pass *p)
{
    if (p->scrub->ended)
        return;
    if (p->restart) {
        p->restart = false;
        pass_begin(p);
    }
    if (!p->running || (!p->urgent && !p->budget))
        return;
    if (!p->urgent)
        p->budget--;
    p->next_page(p);
}

static void pass_tick(struct pass *p, uint64_t expected_pages)
{
    const struct tarn_scrub_options *o = &p->scrub->o;
    if (p->busy)
        return;
    if (!p->running && tarn_now_ns() >= p->next_ns)
        pass_begin(p);
    p->budget = 1 + expected_pages * o->heartbeat_ms / (o->scrub_s * 1000ull);
    pass_continue(p);
}

/* Begins at once; when Redis fails meanwhile the next tick goes on. */
static void pass_urgent(struct pass *p)
{
    if (p->scrub->ended)
        return;
    p->urgent = true;
    if (p->busy) {
        p->restart = true;
        return;
    }
    pass_begin(p);
    p->next_page(p);
}

/* --- own objects into the directory ------------------------------------------------------------- */

static void own_page(struct pass *p)
{
    struct tarn_scrub *s = p->scrub;
    p->request.again = s->restoring;
    memcpy(p->request.directory, s->o.directory, sizeof(p->request.directory));
    p->request.cursor = p->cursor;
    p->request.n = tarn_store_list(s->o.store, &p->cursor, s->objects, PAGE);
    for (size_t i = 0; i < p->request.n; i++) {
        const struct tarn_stored *o = &s->objects[i];
        s->items[i] = (struct tarn_publish){
            .key = {o->key, o->key_bytes}, .mode = TARN_PUBLISH_RESTORE, .record = o->record};
    }
    if (p->request.n) {
        pass_page(p);
        return;
    }
    pass_end(p, s->restoring ? "objects published again" : "objects freed that the directory does not name");
    /* A Redis that came back with old data has locations again that were withdrawn since. Only now, for a
     * void record that is newer than a copy here told that this copy was replaced. */
    if (s->restoring)
        pass_urgent(&s->sweep);
    s->restoring = s->comparing = false;
}

/* Nobody finds this copy any more. */
static void free_losers(struct pass *p, int status)
{
    struct tarn_scrub *s = p->scrub;
    for (size_t i = 0; i < p->request.n; i++) {
        const struct tarn_location *l = &p->request.publishes[i].record.locations[0];
        if (p->request.publishes[i].status != status)
            continue;
        int pool = tarn_store_pool_find(s->o.store, l->pool, strlen(l->pool));
        bool freed = pool >= 0 && tarn_store_release(s->o.store, (uint32_t)pool, l->slot, l->gen);
        s->stats.freed += freed;
        p->changed += freed && !p->request.again;
    }
}

static bool misses_any(const struct tarn_request *r)
{
    for (size_t i = 0; i < r->n; i++) {
        if (r->publishes[i].status)
            return true;
    }
    return false;
}

/* A page that failed, or whose losses may be Redis's, is looked up again after the next beat. */
static void own_done(struct tarn_request *r)
{
    struct pass *p = TARN_CONTAINER_OF(r, struct pass, request);
    p->busy = false;
    if (r->failure.code || (r->unsure && misses_any(r))) {
        p->cursor = r->cursor;
        return;
    }
    free_losers(p, TARN_E_EXISTS);
    if (!r->again)
        free_losers(p, TARN_E_NOT_FOUND);
    p->scrub->stats.restored += r->restored;
    p->changed += r->restored;
    pass_continue(p);
}

/* --- the directory's locations against the stores ----------------------------------------------- */

static void sweep_page(struct pass *p)
{
    p->request.cursor = p->cursor;
    pass_page(p);
}

static void sweep_done(struct tarn_request *r)
{
    struct pass *p = TARN_CONTAINER_OF(r, struct pass, request);
    p->busy = false;
    if (r->failure.code)
        return;
    p->cursor = r->cursor;
    p->changed += r->withdrawn;
    p->scrub->stats.withdrawn += r->withdrawn;
    if (!p->cursor && !p->restart)
        pass_end(p, "void locations withdrawn");
    pass_continue(p);
}

/* --- outside ------------------------------------------------------------------------------------ */

int tarn_scrub_new(const struct tarn_scrub_options *o, struct tarn_scrub **s_p)
{
    uint64_t first = tarn_now_ns() + o->scrub_s * TARN_NS_PER_S;
    struct tarn_scrub *s = calloc(1, sizeof(*s));
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "scrub: out of memory");
    s->o = *o;
    s->own = (struct pass){.scrub = s, .next_page = own_page, .next_ns = first};
    s->own.request =
        (struct tarn_request){.kind = TARN_REQUEST_RESTORE, .done = own_done, .publishes = s->items};
    s->sweep = (struct pass){.scrub = s, .next_page = sweep_page, .next_ns = first};
    s->sweep.request = (struct tarn_request){.kind = TARN_REQUEST_SCAN, .done = sweep_done};
    *s_p = s;
    return 0;
}

void tarn_scrub_free(struct tarn_scrub *s)
{
    free(s);
}

void tarn_scrub_tick(struct tarn_scrub *s)
{
    uint32_t npools;
    uint64_t objects = 0;
    tarn_store_pools(s->o.store, &npools);
    for (uint32_t i = 0; i < npools; i++) {
        struct tarn_pool_stats stats;
        tarn_store_stats(s->o.store, i, &stats);
        objects += stats.objects;
    }
    pass_tick(&s->own, objects / PAGE);
    pass_tick(&s->sweep, s->sweep.last_pages);
}

void tarn_scrub_restore_all(struct tarn_scrub *s)
{
    s->restoring = true;
    pass_urgent(&s->own);
}

void tarn_scrub_check_all(struct tarn_scrub *s)
{
    s->comparing = true;
    pass_urgent(&s->own);
}

void tarn_scrub_sweep_all(struct tarn_scrub *s)
{
    pass_urgent(&s->sweep);
}

void tarn_scrub_stop(struct tarn_scrub *s)
{
    s->own.running = s->own.urgent = s->own.restart = false;
    s->restoring = s->comparing = false;
}

bool tarn_scrub_restores(const struct tarn_scrub *s)
{
    return s->restoring;
}

bool tarn_scrub_compares(const struct tarn_scrub *s)
{
    return s->comparing;
}

void tarn_scrub_end(struct tarn_scrub *s)
{
    s->ended = true;
}

struct tarn_scrub_stats tarn_scrub_stats(const struct tarn_scrub *s)
{
    return s->stats;
}
