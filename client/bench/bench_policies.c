/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tries eviction policies on a trace of prefix-block requests: the node's own code (server/store/evict.h)
 * over a pool that is only played, at the trace's own times. So it takes seconds where a replay takes minutes
 * or hours.
 *
 * For each request the leading run of blocks that are there counts as hit, and the rest is put, as
 * `tarn-bench replay` does. Belady's bound knows the future: it keeps the blocks that are asked for again
 * soonest (L. A. Belady, IBM Systems Journal 5, 1966), and does not keep at all what is not asked for again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/option/option.h"
#include "client/bench/bench.h"
#include "server/store/evict.h"

#define TICKS_A_MS 0.1
#define PUT_TOGETHER 64 /* blocks for which room is made before the first is there, as a put does */
#define SIZES_MAX 16
#define NONE UINT32_MAX
#define ENOUGH 0.9 /* of the hits that any size has */

struct config {
    bool help;
    char *trace, *json, *sizes;
    int64_t requests;
};

static const struct tarn_option options[] = {
    {"trace", 0, TARN_OPT_STRING, offsetof(struct config, trace), NULL, 0, 0, "FILE", TARN_OPT_FLAG_ONLY,
     "The trace: JSON lines with timestamp (milliseconds) and hash_ids."},
    {"capacity-blocks", 0, TARN_OPT_STRING, offsetof(struct config, sizes), NULL, 0, 0, "LIST",
     TARN_OPT_FLAG_ONLY,
     "Sizes of the pool in blocks, parted by commas, 16 at most. Without it parts of the trace's blocks: "
     "1/256, "
     "1/128, and so on, to all."},
    {"requests", 0, TARN_OPT_INT, offsetof(struct config, requests), "0", 0, INT64_MAX, "N",
     TARN_OPT_FLAG_ONLY, "Only the first N requests. 0: all."},
    {"json", 0, TARN_OPT_STRING, offsetof(struct config, json), NULL, 0, 0, "FILE", TARN_OPT_FLAG_ONLY,
     "Also write the results here."},
    {"help", 'h', TARN_OPT_BOOL, offsetof(struct config, help), "0", 0, 0, NULL, TARN_OPT_FLAG_ONLY,
     "Print this and exit."},
};

static const struct tarn_program program = {
    .name = "tarn-bench policies",
    .arguments = "",
    .brief = "try eviction policies on a trace",
    .description =
        "Plays a node's pool of several sizes under each eviction policy, and prints the prefix-hit ratio: "
        "blocks of the leading run that are there by all blocks asked for. Says which policy and size fit. "
        "Nothing is stored; `tarn-bench replay` measures the real store.\n\n"
        "chains: puts say which block continues which (TARN_PUT_CHAIN). belady: the bound for any policy.",
    .examples = "tarn-bench policies --trace conversation_trace.jsonl --capacity-blocks 1000,10000",
    .options = options,
    .noptions = sizeof options / sizeof options[0],
};

static const struct policy {
    const char *name;
    enum tarn_eviction eviction;
    bool chains, belady;
} policies[] = {
    {"lru", TARN_EVICT_LRU, false, false},
    {"adaptive", TARN_EVICT_ADAPTIVE, false, false},
    {"adaptive, chains", TARN_EVICT_ADAPTIVE, true, false},
    {"belady", 0, false, true},
};
#define POLICIES (sizeof policies / sizeof policies[0])

/* --- the trace, in memory ----------------------------------------------------------------------- */

struct block {
    uint64_t id;
    uint32_t number;
    UT_hash_handle hh;
};

struct request {
    double ms;
    size_t at, n; /* of blocks */
};

struct work {
    const struct config *c;
    struct request *requests;
    size_t nrequests, requests_room;
    uint32_t *blocks; /* of all requests: numbers from 0 */
    size_t nblocks, blocks_room;
    struct block *known;
    uint32_t different;
    uint64_t sizes[SIZES_MAX];
    size_t nsizes;
    double ratio[SIZES_MAX][POLICIES];
};

static int out_of_memory(void)
{
    return tarn_fail(TARN_E_NO_MEMORY, "policies: out of memory");
}

static int number_of(struct work *w, uint64_t id, uint32_t *number_p)
{
    struct block *b = NULL;

    HASH_FIND(hh, w->known, &id, sizeof id, b);
    if (!b) {
        b = calloc(1, sizeof *b);
        if (!b)
            return out_of_memory();
        *b = (struct block){.id = id, .number = w->different++};
        HASH_ADD(hh, w->known, id, sizeof b->id, b);
        if (!b->hh.tbl) {
            free(b);
            return out_of_memory();
        }
    }
    *number_p = b->number;
    return 0;
}

static int grow(void **array, size_t *room, size_t need, size_t each)
{
    if (need <= *room)
        return 0;
    void *more = realloc(*array, 2 * need * each);
    if (!more)
        return out_of_memory();
    *array = more;
    *room = 2 * need;
    return 0;
}

static int add_request(struct work *w, const struct bench_trace *t)
{
    int rc = grow((void **)&w->requests, &w->requests_room, w->nrequests + 1, sizeof *w->requests);

    if (rc == 0)
        rc = grow((void **)&w->blocks, &w->blocks_room, w->nblocks + t->n, sizeof *w->blocks);
    if (rc == 0)
        w->requests[w->nrequests++] = (struct request){.ms = t->ms, .at = w->nblocks, .n = t->n};
    for (size_t i = 0; rc == 0 && i < t->n; i++)
        rc = number_of(w, t->ids[i], &w->blocks[w->nblocks++]);
    return rc;
}

static int read_trace(struct work *w)
{
    struct bench_trace t;
    bool more = true;
    int rc = bench_trace_open(&t, w->c->trace);

    while (rc == 0 && more && (!w->c->requests || t.requests < (uint64_t)w->c->requests)) {
        rc = bench_trace_next(&t, &more);
        if (rc == 0 && more)
            rc = add_request(w, &t);
    }
    bench_trace_close(&t);
    if (rc == 0 && w->nblocks == 0)
        rc = tarn_fail(TARN_E_FORMAT, "--trace %s: no request has a block", w->c->trace);
    return rc;
}

static int choose_sizes(struct work *w)
{
    if (!w->c->sizes) {
        for (uint64_t part = 256; part >= 1; part /= 2) {
            if (w->different / part)
                w->sizes[w->nsizes++] = w->different / part;
        }
        return 0;
    }
    for (const char *at = w->c->sizes; *at;) {
        char *end;
        uint64_t size = strtoull(at, &end, 10);
        if (end == at || (*end && *end != ',') || size == 0 || size >= NONE || w->nsizes == SIZES_MAX)
            return tarn_fail(
                TARN_E_CONFIG,
                "--capacity-blocks %s: give 1 to %d numbers of blocks, from 1 on, parted by commas",
                w->c->sizes, SIZES_MAX);
        w->sizes[w->nsizes++] = size;
        at = *end ? end + 1 : end;
    }
    return w->nsizes ? 0 : tarn_fail(TARN_E_CONFIG, "--capacity-blocks: the list is empty");
}

/* --- a played pool ------------------------------------------------------------------------------ */

struct pool {
    struct tarn_evict *evict;
    _Atomic uint32_t *touch;
    uint32_t *slot_of;  /* by block; NONE: not there */
    uint32_t *block_of; /* by slot */
    uint32_t *free_slots;
    uint32_t nfree;
    bool chains;
};

static bool always_idle(void *arg, uint32_t slot)
{
    (void)arg;
    (void)slot;
    return true;
}

static void pool_close(struct pool *p)
{
    tarn_evict_free(p->evict);
    free(p->touch);
    free(p->slot_of);
    free(p->block_of);
    free(p->free_slots);
}

static int pool_open(struct pool *p, const struct work *w, const struct policy *policy, uint64_t size)
{
    uint32_t slots = size < w->different ? (uint32_t)size : w->different;

    *p = (struct pool){.chains = policy->chains};
    p->touch = calloc(slots, sizeof *p->touch);
    p->slot_of = calloc(w->different, sizeof *p->slot_of);
    p->block_of = calloc(slots, sizeof *p->block_of);
    p->free_slots = calloc(slots, sizeof *p->free_slots);
    if (!p->touch || !p->slot_of || !p->block_of || !p->free_slots)
        return out_of_memory();
    memset(p->slot_of, 0xff, w->different * sizeof *p->slot_of);
    while (p->nfree < slots) {
        p->free_slots[p->nfree] = slots - 1 - p->nfree;
        p->nfree++;
    }
    struct tarn_evict_view view = {p->touch, slots, always_idle, NULL};
    return tarn_evict_new(&view, policy->eviction, &p->evict);
}

/* A slot for a block that continues that of slot `after`. NONE: all are reserved. */
static uint32_t reserve(struct pool *p, uint32_t block, uint32_t after, uint32_t now)
{
    struct tarn_evict_hold hold = {0};

    if (p->chains && after != NONE)
        hold = tarn_evict_hold(p->evict, after);
    if (p->nfree == 0) {
        uint32_t victim = tarn_evict_victim(p->evict, now, 0);
        if (victim == NONE) {
            tarn_evict_let_go(p->evict, hold, now);
            return NONE;
        }
        tarn_evict_remove(p->evict, victim, true, now);
        p->slot_of[p->block_of[victim]] = NONE;
        p->free_slots[p->nfree++] = victim;
    }
    uint32_t slot = p->free_slots[--p->nfree];
    p->block_of[slot] = block;
    tarn_evict_reserve(p->evict, slot, hold);
    return slot;
}

/* Puts up to PUT_TOGETHER blocks; before: the block that the first continues, NONE if none. */
static void put(struct pool *p, const uint32_t *blocks, size_t n, uint32_t before, uint32_t now)
{
    uint32_t slots[PUT_TOGETHER], after = before == NONE ? NONE : p->slot_of[before];

    for (size_t i = 0; i < n; i++) {
        slots[i] = NONE;
        if (p->slot_of[blocks[i]] != NONE) {
            after = p->slot_of[blocks[i]];
            atomic_store_explicit(&p->touch[after], now, memory_order_relaxed);
            continue;
        }
        slots[i] = reserve(p, blocks[i], after, now);
        after = slots[i];
    }
    for (size_t i = 0; i < n; i++) {
        if (slots[i] == NONE)
            continue;
        p->slot_of[blocks[i]] = slots[i];
        atomic_store_explicit(&p->touch[slots[i]], now, memory_order_relaxed);
        uint32_t key = (uint32_t)tarn_hash(&blocks[i], sizeof blocks[i], 1);
        tarn_evict_add(p->evict, slots[i], key, false, now);
    }
}

/* Returns the leading blocks that are there. */
static size_t play_request(struct pool *p, const uint32_t *blocks, size_t n, uint32_t now)
{
    size_t hits = 0;

    tarn_evict_tick(p->evict, now);
    while (hits < n && p->slot_of[blocks[hits]] != NONE)
        atomic_store_explicit(&p->touch[p->slot_of[blocks[hits++]]], now, memory_order_relaxed);
    for (size_t i = hits; i < n; i += PUT_TOGETHER)
        put(p, blocks + i, n - i < PUT_TOGETHER ? n - i : PUT_TOGETHER, i ? blocks[i - 1] : NONE, now);
    return hits;
}

static int play(const struct work *w, const struct policy *policy, uint64_t size, double *ratio_p)
{
    struct pool p;
    uint64_t hits = 0;
    int rc = pool_open(&p, w, policy, size);

    for (size_t i = 0; rc == 0 && i < w->nrequests; i++) {
        const struct request *r = &w->requests[i];
        hits += play_request(&p, w->blocks + r->at, r->n, 1 + (uint32_t)(r->ms * TICKS_A_MS));
    }
    pool_close(&p);
    *ratio_p = (double)hits / (double)w->nblocks;
    return rc;
}

/* --- Belady's bound ----------------------------------------------------------------------------- */

/* A block that is there, and the request that asks for it next. Entries of earlier times are left in the
 * heap. */
struct awaited {
    uint32_t next, depth, block;
};

struct heap {
    struct awaited *list;
    size_t n, room;
};

/* The one that is asked for last leaves first; of the same request the end of the chain. */
static bool leaves_before(const struct awaited *a, const struct awaited *b)
{
    return a->next != b->next ? a->next > b->next : a->depth > b->depth;
}

static int push(struct heap *h, struct awaited a)
{
    int rc = grow((void **)&h->list, &h->room, h->n + 1, sizeof *h->list);

    if (rc != 0)
        return rc;
    size_t i = h->n++;
    for (; i > 0 && leaves_before(&a, &h->list[(i - 1) / 2]); i = (i - 1) / 2)
        h->list[i] = h->list[(i - 1) / 2];
    h->list[i] = a;
    return 0;
}

static struct awaited pop(struct heap *h)
{
    struct awaited top = h->list[0], last = h->list[--h->n];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < h->n && leaves_before(&h->list[child + 1], &h->list[child]))
            child++;
        if (child >= h->n || !leaves_before(&h->list[child], &last))
            break;
        h->list[i] = h->list[child];
        i = child;
    }
    h->list[i] = last;
    return top;
}

/* next[i]: the request that asks next for the block at place i of the trace; NONE: none does. */
static uint32_t *next_uses(const struct work *w)
{
    uint32_t *next = calloc(w->nblocks, sizeof *next), *last = calloc(w->different, sizeof *last);

    if (next && last) {
        memset(last, 0xff, w->different * sizeof *last);
        for (size_t i = w->nrequests; i-- > 0;) {
            const struct request *r = &w->requests[i];
            for (size_t j = 0; j < r->n; j++)
                next[r->at + j] = last[w->blocks[r->at + j]];
            for (size_t j = 0; j < r->n; j++)
                last[w->blocks[r->at + j]] = (uint32_t)i;
        }
    }
    free(last);
    return next;
}

static int belady(const struct work *w, uint64_t size, double *ratio_p)
{
    uint32_t *next = next_uses(w),
             *kept = calloc(w->different, sizeof *kept); /* the next use; 0: not there */
    struct heap h = {0};
    uint64_t there = 0, hits = 0;
    int rc = next && kept ? 0 : out_of_memory();

    for (size_t i = 0; rc == 0 && i < w->nrequests; i++) {
        const struct request *r = &w->requests[i];
        size_t run = 0;
        while (run < r->n && kept[w->blocks[r->at + run]])
            run++;
        hits += run;
        for (size_t j = 0; rc == 0 && j < r->n; j++) {
            uint32_t b = w->blocks[r->at + j], use = next[r->at + j] == NONE ? 0 : next[r->at + j];
            there = there + (use != 0) - (kept[b] != 0);
            kept[b] = use;
            if (use)
                rc = push(&h, (struct awaited){use, (uint32_t)j, b});
        }
        while (rc == 0 && there > size) {
            struct awaited a = pop(&h);
            if (kept[a.block] != a.next)
                continue;
            kept[a.block] = 0;
            there--;
        }
    }
    free(next);
    free(kept);
    free(h.list);
    *ratio_p = (double)hits / (double)w->nblocks;
    return rc;
}

/* --- results ------------------------------------------------------------------------------------ */

static void print_head(const struct work *w)
{
    printf("%zu requests, %zu blocks asked for, %u different\n%12s", w->nrequests, w->nblocks, w->different,
           "blocks");
    for (size_t p = 0; p < POLICIES; p++)
        printf("  %*s", (int)strlen(policies[p].name) < 8 ? 8 : (int)strlen(policies[p].name),
               policies[p].name);
    printf("\n");
}

static void print_size(const struct work *w, size_t s)
{
    printf("%12llu", (unsigned long long)w->sizes[s]);
    for (size_t p = 0; p < POLICIES; p++)
        printf("  %*.4f", (int)strlen(policies[p].name) < 8 ? 8 : (int)strlen(policies[p].name),
               w->ratio[s][p]);
    printf("\n");
    fflush(stdout);
}

/* Which policy hits most in the mean of the sizes, and the smallest size at which it has nearly all hits. */
static void print_advice(const struct work *w)
{
    size_t best = 0, s = 0;
    double most = -1, all = 0;

    for (size_t p = 0; p < POLICIES; p++) {
        double sum = 0;
        for (size_t i = 0; i < w->nsizes; i++)
            sum += w->ratio[i][p];
        if (!policies[p].belady && sum > most) {
            most = sum;
            best = p;
        }
    }
    for (size_t i = 0; i < w->nsizes; i++)
        all = w->ratio[i][best] > all ? w->ratio[i][best] : all;
    for (size_t i = w->nsizes; i-- > 0;) {
        if (w->ratio[i][best] >= ENOUGH * all &&
            (w->ratio[s][best] < ENOUGH * all || w->sizes[i] < w->sizes[s]))
            s = i;
    }
    printf("best of these sizes: --eviction %s%s; %llu blocks have %.0f %% of the hits of the best size\n",
           policies[best].eviction == TARN_EVICT_LRU ? "lru" : "adaptive",
           policies[best].chains ? ", with chains" : "", (unsigned long long)w->sizes[s],
           all > 0 ? 100 * w->ratio[s][best] / all : 0);
}

static int write_json(const struct work *w)
{
    json_t *rows = json_array(), *j = json_object();

    for (size_t s = 0; s < w->nsizes; s++) {
        json_t *row = json_object();
        json_object_set_new(row, "blocks", json_integer((json_int_t)w->sizes[s]));
        for (size_t p = 0; p < POLICIES; p++)
            json_object_set_new(row, policies[p].name, json_real(w->ratio[s][p]));
        json_array_append_new(rows, row);
    }
    json_object_set_new(j, "bench", json_string("policies"));
    json_object_set_new(j, "trace", json_string(w->c->trace));
    json_object_set_new(j, "prefix_hit_ratio", rows);
    int rc = bench_write_json(j, w->c->json);
    json_decref(j);
    return rc;
}

static int run(struct work *w)
{
    int rc = read_trace(w);

    if (rc == 0)
        rc = choose_sizes(w);
    if (rc == 0)
        print_head(w);
    for (size_t s = 0; rc == 0 && s < w->nsizes; s++) {
        for (size_t p = 0; rc == 0 && p < POLICIES; p++) {
            double *ratio = &w->ratio[s][p];
            rc = policies[p].belady ? belady(w, w->sizes[s], ratio)
                                    : play(w, &policies[p], w->sizes[s], ratio);
        }
        if (rc == 0)
            print_size(w, s);
    }
    if (rc == 0)
        print_advice(w);
    return rc == 0 && w->c->json ? write_json(w) : rc;
}

static int policies_run(const void *config)
{
    const struct config *c = config;
    struct work w = {.c = c};
    struct block *b, *next;
    int rc = run(&w);

    if (rc != 0)
        fprintf(stderr, "tarn-bench policies: %s\n", tarn_last_error());
    HASH_ITER (hh, w.known, b, next) {
        HASH_DEL(w.known, b);
        free(b);
    }
    free(w.requests);
    free(w.blocks);
    return rc != 0;
}

int bench_policies_main(int argc, char **argv)
{
    struct config c = {0};

    return bench_program_main(&program, argc, argv, &c, &c.help, policies_run);
}
