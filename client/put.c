/* SPDX-License-Identifier: Apache-2.0 */
/* Puts from beginning to end; put_job.h has the picture. */
#include "client/put.h"

#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "client/cache.h"
#include "client/check.h"
#include "client/event.h"
#include "client/memory.h"
#include "client/put_commit.h"
#include "client/put_job.h"
#include "client/put_plan.h"
#include "client/put_reserve.h"
#include "client/put_write.h"

#define CHUNKS 4 /* being committed, written, and asked for */

/* Items still to be put, in order. Those to be tried again go to the end. */
struct queue {
    size_t *items;
    uint8_t *tries; /* by item */
    size_t head, tail, room;
    uint64_t bytes; /* of the items in it */
};

static int queue_init(struct queue *q, size_t n)
{
    q->head = q->tail = 0;
    q->bytes = 0;
    q->room = n;
    q->items = malloc((n ? n : 1) * sizeof *q->items);
    q->tries = calloc(n ? n : 1, 1);
    if (q->items && q->tries)
        return 0;
    free(q->items);
    free(q->tries);
    return tarn_fail(TARN_E_NO_MEMORY, "put of %zu items: out of memory", n);
}

static void queue_add(const struct tarn_put *p, struct queue *q, size_t i)
{
    q->items[q->tail++ % q->room] = i; /* an item is in it at most once */
    q->bytes += p->items[i].tensor.bytes;
}

/* --- chunks of items ---------------------------------------------------------------------------- */

/* Out of time or canceled: the items in the queue fail. */
static void queue_end(struct tarn_put *p, struct queue *q)
{
    bool canceled = tarn_canceled(p->cancel);

    if (q->head == q->tail || (!canceled && tarn_now_ns() < p->deadline_ns))
        return;
    int rc = canceled ? tarn_cancel_fail()
                      : tarn_fail(TARN_E_TIMEOUT, "put: the deadline has passed: raise timeout_ms");
    for (; q->head < q->tail; q->head++) {
        size_t i = q->items[q->head % q->room];
        p->items[i].status = rc;
        tarn_verdict_note(&p->verdict, i, rc);
        tarn_count(p->client, 0, TARN_COUNT_ERRORS, 1);
    }
}

/* The last chunks are smaller, since no writing overlaps with their COMMITs. */
static uint64_t chunk_bytes(const struct tarn_put *p, const struct queue *q)
{
    uint64_t half = q->bytes / 2;

    return half > p->chunk_bytes ? p->chunk_bytes : half < TARN_CHUNK_LAST ? TARN_CHUNK_LAST : half;
}

static uint32_t chunk_items(const struct tarn_put *p, const struct queue *q)
{
    size_t quarter = (q->tail - q->head) / 4;

    return quarter > TARN_CHUNK_ITEMS ? TARN_CHUNK_ITEMS : quarter < p->few ? p->few : (uint32_t)quarter;
}

/* before: the chunk before it. */
static void chunk_fill(struct tarn_put *p, struct tarn_chunk *c, const struct tarn_chunk *before,
                       struct queue *q)
{
    uint64_t bytes = 0, most = chunk_bytes(p, q);
    uint32_t room = chunk_items(p, q);

    queue_end(p, q);
    c->n = 0;
    c->bytes = 0;
    c->repeats = false;
    while (q->head < q->tail && c->n < room) {
        size_t i = q->items[q->head % q->room];
        uint64_t hash = tarn_key_hash(&p->items[i].key);
        bool repeats = tarn_chunk_has(before, hash);
        bytes += p->items[i].tensor.bytes;
        if (c->n > 0 && (bytes > most || (repeats && !c->repeats) || tarn_chunk_has(c, hash)))
            break;
        q->head++;
        q->bytes -= p->items[i].tensor.bytes;
        c->bytes = bytes;
        c->repeats |= repeats;
        tarn_chunk_add(p, c, i, hash);
    }
}

/* The chunk's items become final or go back to the queue. Returns how many were `busy`. */
static uint32_t chunk_settle(struct tarn_put *p, struct tarn_chunk *c, struct queue *q)
{
    uint32_t busy = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        struct tarn_put_job *job = &c->jobs[i];
        struct tarn_item *item = &p->items[job->index];
        bool time = tarn_now_ns() < p->deadline_ns && !tarn_canceled(p->cancel);
        if (job->again && time && (job->busy || ++q->tries[job->index] < TARN_PUT_TRIES)) {
            busy += job->busy;
            queue_add(p, q, job->index);
            continue;
        }
        item->status = tarn_reason_fail(&job->failure);
        if (item->status == 0)
            continue;
        tarn_verdict_of(&p->verdict, job->index, item->status, "put", &item->key);
        tarn_count(p->client, 0, TARN_COUNT_ERRORS, 1);
    }
    tarn_chunk_empty(c);
    return busy;
}

/* Writes the chunk. Chunks grow while writing is fast (a GPU moves 8 MiB in 8 us), and shrink when it is
 * slow. */
static void chunk_write(struct tarn_put *p, struct tarn_chunk *c)
{
    uint64_t start = tarn_now_ns();

    tarn_chunk_write(p, c);
    uint64_t took = tarn_now_ns() - start;
    if (took < TARN_CHUNK_NS && c->bytes > p->chunk_bytes / 2)
        p->chunk_bytes *= 2;
    else if (took > 4 * TARN_CHUNK_NS && p->chunk_bytes > TARN_CHUNK_BYTES)
        p->chunk_bytes /= 2;
}

/* --- the pipeline ------------------------------------------------------------------------------- */

/* Other threads have reserved all that the session may: waits a little for their COMMITs. */
static void wait_for_others(const struct tarn_put *p, uint32_t *wait_ms)
{
    *wait_ms = *wait_ms < 16 ? *wait_ms * 2 + 1 : 16;
    tarn_cancel_pause(p->cancel, p->deadline_ns, (int)*wait_ms);
}

static uint32_t chunk_end(struct tarn_put *p, struct tarn_chunk *c, struct queue *q)
{
    tarn_chunk_stored(p, c);
    return chunk_settle(p, c, q);
}

/* Chunk k is written in round k, and settled two rounds later. */
static void pipeline(struct tarn_put *p, struct queue *q, struct tarn_chunk chunks[CHUNKS])
{
    uint32_t wait_ms = 0, left = 1;

    for (uint32_t k = 0; k < CHUNKS; k++)
        chunks[k].turn = k % TARN_PUT_TURNS;
    chunk_fill(p, &chunks[0], &chunks[CHUNKS - 1], q);
    tarn_chunk_ask(p, &chunks[0]);
    for (uint32_t k = 0; left > 0; k++) {
        struct tarn_chunk *cur = &chunks[k % CHUNKS], *next = &chunks[(k + 1) % CHUNKS];
        struct tarn_chunk *oldest = &chunks[(k + 2) % CHUNKS], *before = &chunks[(k + 3) % CHUNKS];
        tarn_chunk_granted(p, cur);
        chunk_fill(p, next, cur, q);
        tarn_chunk_ask(p, next);
        chunk_write(p, cur);
        uint32_t busy = chunk_end(p, oldest, q);
        if (cur->repeats)
            busy += chunk_end(p, before, q);
        tarn_chunk_commit(p, cur);
        left = cur->n + next->n + before->n;
        if (busy > 0 && left == 0)
            wait_for_others(p, &wait_ms);
        if (next->n == 0) {
            chunk_fill(p, next, cur, q);
            tarn_chunk_ask(p, next);
            left += next->n;
        }
    }
}

/* Checks all items and queues the valid ones. */
static void admit(struct tarn_put *p, struct queue *q)
{
    for (size_t i = 0; i < p->n; i++) {
        int rc = tarn_put_check(&p->items[i], i, true);
        p->items[i].status = rc;
        if (rc == 0) {
            queue_add(p, q, i);
        } else {
            tarn_verdict_note(&p->verdict, i, rc);
            tarn_count(p->client, 0, TARN_COUNT_ERRORS, 1);
        }
    }
}

static int run(struct tarn_put *p, struct queue *q)
{
    struct tarn_chunk chunks[CHUNKS] = {0};
    int rc = 0;

    for (int i = 0; rc == 0 && i < CHUNKS; i++)
        rc = tarn_chunk_init(&chunks[i], p->replicas);
    if (rc == 0) {
        tarn_flight_init(&p->flight, p->client, p->cancel);
        pipeline(p, q, chunks);
        tarn_flight_end(&p->flight);
        tarn_put_give_conns(p);
        free(p->nodes);
    }
    for (int i = 0; i < CHUNKS; i++)
        tarn_chunk_free(&chunks[i]);
    return rc;
}

/* One object in host memory, whose node cannot be replaced by another. */
static bool is_small(const struct tarn_put *p)
{
    const struct tarn_item *item = &p->items[0];

    return p->n == 1 && p->replicas == 1 && p->ncandidates == 1 && !item->layout &&
           item->tensor.bytes <= TARN_SMALL_BYTES && tarn_items_on_gpus(item, 1) == 0;
}

int tarn_put_run(struct tarn_client *c, struct tarn_item *items, size_t n, const struct tarn_put_options *o,
                 uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_put p = {.client = c,
                         .items = items,
                         .n = n,
                         .deadline_ns = deadline_ns,
                         .cancel = cancel,
                         .chunk_bytes = TARN_CHUNK_BYTES};
    struct queue q;

    if (n > 0 && !items)
        return tarn_fail(TARN_E_INVALID, "put: items are NULL");
    int rc = queue_init(&q, n);
    if (rc != 0)
        return rc;
    admit(&p, &q);
    if (q.tail > 0) {
        rc = tarn_put_plan(&p, o);
        p.small = is_small(&p);
        bool many_processors = tarn_processors() >= 4;
        p.spins = n == 1 && many_processors;
        p.few = many_processors ? TARN_CHUNK_FEW : 2 * TARN_CHUNK_FEW;
        if (rc == 0)
            rc = run(&p, &q);
        for (size_t i = 0; rc != 0 && i < n; i++)
            if (items[i].status == 0)
                items[i].status = rc;
        tarn_put_unplan(&p);
    }
    free(q.items);
    free(q.tries);
    return rc != 0 ? rc : tarn_verdict_end(&p.verdict);
}

int tarn_put(struct tarn_client *c, struct tarn_item *items, size_t n, const struct tarn_put_options *given)
{
    struct tarn_put_options o;
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    if ((rc = tarn_options_copy(&o, sizeof o, given)) != 0 ||
        (rc = tarn_flags_check("put", o.flags, TARN_PUT_FLAGS)) != 0)
        return rc;
    struct tarn_cancel own, *cancel = tarn_client_cancel(c, &own);
    uint64_t deadline = tarn_client_deadline(c, o.timeout_ms);
    if (o.after)
        rc = tarn_event_wait(o.after, deadline, cancel);
    for (size_t i = 0; rc != 0 && items && i < n; i++)
        items[i].status = rc;
    return rc ? rc : tarn_put_run(c, items, n, &o, deadline, cancel);
}
