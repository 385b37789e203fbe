/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Put sessions: layer-wise puts, which reserve, write and commit as tarn_put() does, each in its own call.
 * Between calls a put session holds reservations, but no connection and no link.
 */
#include "client/put_session.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "client/cache.h"
#include "client/check.h"
#include "client/put_commit.h"
#include "client/put_job.h"
#include "client/put_plan.h"
#include "client/put_reserve.h"
#include "client/put_write.h"
#include "transport/layout.h"

struct tarn_put_session {
    struct tarn_put put;
    struct tarn_cancel cancel; /* of the present call */
    struct tarn_item *items;   /* copies, with their keys */
    void *keys;
    struct tarn_chunk *chunks;
    size_t nchunks;
    struct tarn_put_job **jobs;           /* by item; NULL: not reserved */
    struct tarn_put_session *prev, *next; /* in client.sessions */
};

static void begin_call(struct tarn_put_session *s, uint32_t timeout_ms)
{
    s->put.deadline_ns = tarn_client_deadline(s->put.client, timeout_ms);
    s->put.cancel = tarn_client_cancel(s->put.client, &s->cancel);
}

static void enlist(struct tarn_put_session *s)
{
    struct tarn_client *c = s->put.client;

    pthread_mutex_lock(&c->sessions_lock);
    DL_APPEND(c->sessions, s);
    pthread_mutex_unlock(&c->sessions_lock);
}

/* tarn_close() aborts the sessions in the list, so one that ends leaves it first. */
static void delist(struct tarn_put_session *s)
{
    struct tarn_client *c = s->put.client;

    pthread_mutex_lock(&c->sessions_lock);
    DL_DELETE(c->sessions, s);
    pthread_mutex_unlock(&c->sessions_lock);
}

static void session_free(struct tarn_put_session *s)
{
    tarn_put_give_conns(&s->put);
    free(s->put.nodes);
    tarn_put_unplan(&s->put);
    for (size_t k = 0; k < s->nchunks; k++)
        tarn_chunk_free(&s->chunks[k]);
    free(s->chunks);
    free(s->jobs);
    free(s->items);
    free(s->keys);
    free(s);
}

static int copy_items(struct tarn_put_session *s, const struct tarn_item *items, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        bytes += items[i].status == 0 ? items[i].key.bytes : 0;
    s->items = malloc((n ? n : 1) * sizeof *s->items);
    s->keys = malloc(bytes ? bytes : 1);
    s->jobs = calloc(n ? n : 1, sizeof(struct tarn_put_job *));
    if (!s->items || !s->keys || !s->jobs)
        return tarn_fail(TARN_E_NO_MEMORY, "put session: out of memory");
    char *at = s->keys;
    for (size_t i = 0; i < n; i++) {
        s->items[i] = items[i];
        if (items[i].status != 0)
            continue;
        memcpy(at, items[i].key.data, items[i].key.bytes);
        s->items[i].key.data = at;
        at += items[i].key.bytes;
    }
    s->put.items = s->items;
    s->put.n = n;
    return 0;
}

static struct tarn_chunk *chunk_for(struct tarn_put_session *s, uint64_t hash)
{
    struct tarn_chunk *last = s->nchunks ? &s->chunks[s->nchunks - 1] : NULL;

    if (last && last->n < TARN_CHUNK_ITEMS && !tarn_chunk_has(last, hash))
        return last;
    struct tarn_chunk *chunks = realloc(s->chunks, (s->nchunks + 1) * sizeof *chunks);
    if (!chunks)
        return NULL;
    s->chunks = chunks;
    if (tarn_chunk_init(&chunks[s->nchunks], s->put.replicas) != 0)
        return NULL;
    return &chunks[s->nchunks++];
}

/* Reserves all valid items, chunk by chunk. Returns how many have room. */
static size_t reserve_all(struct tarn_put_session *s, struct tarn_item *items)
{
    struct tarn_put *p = &s->put;
    size_t reserved = 0;

    for (size_t i = 0; i < p->n; i++) {
        if (items[i].status != 0)
            continue;
        uint64_t hash = tarn_key_hash(&s->items[i].key);
        struct tarn_chunk *c = chunk_for(s, hash);
        if (c)
            tarn_chunk_add(p, c, i, hash);
        else
            items[i].status = TARN_E_NO_MEMORY;
    }
    for (size_t k = 0; k < s->nchunks; k++) {
        struct tarn_chunk *c = &s->chunks[k];
        tarn_chunk_ask(p, c);
        tarn_chunk_granted(p, c);
        tarn_chunk_abort(p, c);
        for (uint32_t i = 0; i < c->n; i++) {
            struct tarn_put_job *job = &c->jobs[i];
            int rc = tarn_reason_fail(&job->failure);
            items[job->index].status = rc;
            if (rc == 0) {
                s->jobs[job->index] = job;
                reserved++;
            } else {
                tarn_verdict_of(&p->verdict, job->index, rc, "put", &s->items[job->index].key);
            }
        }
    }
    tarn_put_give_conns(p);
    return reserved;
}

int tarn_put_begin(struct tarn_client *c, struct tarn_item *items, size_t n,
                   const struct tarn_put_options *given, struct tarn_put_session **s_p)
{
    struct tarn_put_options o;
    int rc = tarn_client_enter(c);

    if (rc == 0 && n > 0 && !items)
        rc = tarn_fail(TARN_E_INVALID, "put: items are NULL");
    if (rc == 0)
        rc = tarn_out_check("put session", s_p);
    if (rc == 0)
        rc = tarn_options_copy(&o, sizeof o, given);
    if (rc == 0)
        rc = tarn_flags_check("put session", o.flags, TARN_PUT_FLAGS);
    if (rc != 0)
        return rc;
    if (o.after)
        return tarn_fail(TARN_E_INVALID,
                         "put session: reserving waits for no event: wait for each before the "
                         "tarn_put_write() of what it is about");
    struct tarn_put_session *s = calloc(1, sizeof *s);
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "put session: out of memory");
    s->put.client = c;
    begin_call(s, o.timeout_ms);
    for (size_t i = 0; i < n; i++) {
        items[i].status = tarn_put_check(&items[i], i, false);
        if (items[i].status != 0)
            tarn_verdict_note(&s->put.verdict, i, items[i].status);
    }
    rc = tarn_put_plan(&s->put, &o);
    if (rc == 0)
        rc = copy_items(s, items, n);
    for (size_t i = 0; rc != 0 && i < n; i++)
        if (items[i].status == 0)
            items[i].status = rc;
    size_t reserved = rc == 0 ? reserve_all(s, items) : 0;
    if (rc == 0)
        rc = tarn_verdict_end(&s->put.verdict);
    if (reserved == 0) {
        session_free(s);
        return rc ? rc : tarn_fail(TARN_E_INVALID, "put session: no items: give at least one");
    }
    enlist(s);
    *s_p = s;
    return rc;
}

static int too_long(uint64_t bytes, uint64_t offset, uint64_t size)
{
    return tarn_fail(TARN_E_SIZE, "put session: %llu bytes at %llu reach past the tensor's %llu: write less",
                     (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)size);
}

/* Writes to all copies. False: the pieces had more bytes. */
static bool write_all(struct tarn_put *p, struct tarn_put_job *job, uint64_t offset, uint64_t bytes,
                      const struct tarn_item *from)
{
    bool misfit = false;

    tarn_flight_init(&p->flight, p->client, p->cancel);
    for (uint32_t k = 0; k < p->replicas && job->failure.code == 0; k++)
        tarn_target_post(p, &job->targets[k], offset, bytes, from);
    tarn_put_written(p);
    tarn_flight_end(&p->flight);
    for (uint32_t k = 0; k < p->replicas; k++)
        misfit |= job->targets[k].misfit;
    return !misfit;
}

static int no_session(void)
{
    return tarn_fail(TARN_E_INVALID, "put session: NULL: pass what tarn_put_begin() made");
}

/* How many bytes are written at most, from `room`. Of a long list of pieces only the first is looked at. */
static uint64_t most_bytes(struct tarn_put *p, const struct tarn_item *from, uint64_t room)
{
    uint32_t gpu;

    tarn_seen_clear(&p->seen);
    p->seen.at_most =
        !from->layout && room > 0 && tarn_pieces_glance(from->pieces, from->npieces, &p->seen, &gpu);
    return p->seen.at_most ? room : tarn_item_bytes(from);
}

/* `from`: pieces or pages, checked. */
static int write_part(struct tarn_put_session *s, size_t i, uint64_t offset, const struct tarn_item *from,
                      uint32_t timeout_ms)
{
    if (i >= s->put.n || !s->jobs[i])
        return tarn_fail(TARN_E_INVALID,
                         "put session: item %zu was not reserved: write those whose status is 0", i);
    struct tarn_put *p = &s->put;
    struct tarn_put_job *job = s->jobs[i];
    uint64_t size = s->items[i].tensor.bytes, room = offset < size ? size - offset : 0;
    char name[96];
    int rc = tarn_client_enter(p->client);

    if (rc != 0)
        return rc;
    uint64_t bytes = most_bytes(p, from, room);
    if (offset > size || bytes > room)
        return too_long(bytes, offset, size);
    if (job->failure.code == 0) {
        begin_call(s, timeout_ms);
        if (!write_all(p, job, offset, bytes, from))
            return too_long(tarn_pieces_bytes(from->pieces, from->npieces), offset, size);
    }
    if (job->failure.code == 0)
        return 0;
    return tarn_fail(job->failure.code, "put key '%s': %s", tarn_key_text(&s->items[i].key, name),
                     job->failure.text);
}

int tarn_put_write(struct tarn_put_session *s, size_t i, uint64_t offset, const struct tarn_piece *pieces,
                   uint32_t npieces, uint32_t timeout_ms)
{
    if (!s)
        return no_session();
    int rc = tarn_pieces_check("put session", i, pieces, tarn_first_pieces(npieces));
    if (rc != 0)
        return rc;
    const struct tarn_item from = {.pieces = pieces, .npieces = npieces};
    return write_part(s, i, offset, &from, timeout_ms);
}

int tarn_put_write_pages(struct tarn_put_session *s, size_t i, uint64_t offset,
                         const struct tarn_layout *layout, const uint32_t *pages, uint32_t npages,
                         uint32_t timeout_ms)
{
    if (!s)
        return no_session();
    if (!layout)
        return tarn_fail(TARN_E_INVALID, "put session: no layout: pass what tarn_layout_new() made");
    int rc = tarn_layout_check("put session", i, layout, pages, npages);
    if (rc != 0)
        return rc;
    const struct tarn_item from = {.layout = layout, .pages = pages, .npieces = npages};
    return write_part(s, i, offset, &from, timeout_ms);
}

/* Objects without a write count as complete: empty ones, and those that the caller left alone. */
static void mark_written(struct tarn_put_session *s)
{
    for (size_t i = 0; i < s->put.n; i++)
        for (uint32_t k = 0; s->jobs[i] && k < s->put.replicas; k++)
            if (s->jobs[i]->targets[k].state == TARN_TARGET_RESERVED)
                s->jobs[i]->targets[k].state = TARN_TARGET_WRITTEN;
}

int tarn_put_commit(struct tarn_put_session *s, int32_t *statuses, uint32_t timeout_ms)
{
    if (!s)
        return no_session();
    struct tarn_put *p = &s->put;
    int rc = tarn_client_enter(p->client);

    if (rc != 0)
        return rc;
    begin_call(s, timeout_ms);
    delist(s);
    mark_written(s);
    for (size_t k = 0; k < s->nchunks; k++) {
        tarn_chunk_commit(p, &s->chunks[k]);
        tarn_chunk_stored(p, &s->chunks[k]);
    }
    struct tarn_verdict v = {.why.code = 0};
    for (size_t i = 0; i < p->n; i++) {
        int status = s->jobs[i] ? tarn_reason_fail(&s->jobs[i]->failure) : s->items[i].status;
        if (statuses)
            statuses[i] = status;
        if (s->jobs[i] && status != 0)
            tarn_verdict_of(&v, i, status, "put", &s->items[i].key);
    }
    session_free(s);
    return tarn_verdict_end(&v);
}

void tarn_put_abort(struct tarn_put_session *s)
{
    if (!s || tarn_client_enter(s->put.client) != 0)
        return;
    begin_call(s, 0);
    s->put.cancel = NULL; /* giving back takes only a moment */
    delist(s);
    for (size_t k = 0; k < s->nchunks; k++) {
        for (uint32_t i = 0; i < s->chunks[k].n; i++) {
            tarn_fail(TARN_E_CANCELED, "aborted by the caller");
            tarn_job_fail(&s->chunks[k].jobs[i], TARN_E_CANCELED);
        }
        tarn_chunk_abort(&s->put, &s->chunks[k]);
    }
    session_free(s);
}

void tarn_put_sessions_close(struct tarn_client *c)
{
    while (c->sessions)
        tarn_put_abort(c->sessions);
}
