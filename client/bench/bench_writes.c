/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0 of `tarn-bench ring --peer` (bench_writes.h): the rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <tarn/proxy.h>

#include "base/error.h"
#include "client/bench/bench_writes.h"
#include "transport/cuda/cuda.h"

#define RINGS_MAX 8
#define QUICKER 8

struct plan {
    const char *note;
    uint32_t bytes, rings;
    bool one_by_one;
    uint32_t ring_size, slots; /* powers of two, slots at least `rings` */
    uint32_t parts;            /* of a ring and slice: more than the ring has room for */
};

struct writes_bench {
    struct bench_env *e;
    struct bench_report *rep;
    const char *transport;
    struct tarn_client *c;    /* over the transport that is measured */
    struct tarn_client *home; /* over all, for the channel and the credit */
    struct tarn_channel *ch;
    struct bench_bare *bare; /* NULL: producers are threads */
    struct bench_credit *credit;
    struct tarn_window *window;
    struct tarn_lease *lease;
    double ticks_per_ns; /* of the producers' finer clock */
    char producers[96];
};

/* --- memory that producers reach ----------------------------------------------------------------- */

static int place(const struct writes_bench *b, const void *data, size_t bytes, void **at_p)
{
    if (b->bare)
        return bench_bare_upload(b->bare, data, bytes, at_p);
    *at_p = malloc(bytes);
    if (!*at_p)
        return tarn_fail(TARN_E_NO_MEMORY, "the ring benchmark: out of memory");
    memcpy(*at_p, data, bytes);
    return 0;
}

static int bring(const struct writes_bench *b, const void *at, size_t bytes, void *data)
{
    if (b->bare)
        return bench_bare_fetch(b->bare, at, bytes, data);
    memcpy(data, at, bytes);
    return 0;
}

static void drop(const struct writes_bench *b, void *at)
{
    if (b->bare && at)
        bench_bare_drop(b->bare, at);
    else
        free(at);
}

/* --- a row -------------------------------------------------------------------------------------- */

/* Both contestants of a row, ours and the wire. */
struct contest {
    struct writes_bench *b;
    const struct plan *plan;
    uint32_t parts;      /* of a ring and slice */
    uint64_t counted[2]; /* parts so far: of ours, of the wire */
    struct tarn_reach *reach;
    struct tarn_proxy *proxy;
    void *sources;
    struct tarn_mr *mr;
    void *tasks, *reports, *took; /* as producers reach them */
    struct bench_writes_task tasks_here[RINGS_MAX];
    uint32_t *took_here;
    const struct bench_wire_ops *wire_ops;
    struct bench_wire *wire;
    char *wire_sources;
};

static struct bench_writes_shape shape_of(const struct contest *k)
{
    return (struct bench_writes_shape){k->plan->bytes, k->plan->slots};
}

static int hear(const struct writes_bench *b, struct bench_writes_answer *a)
{
    int rc = bench_writes_receive(b->ch, a, sizeof *a);

    return rc || !a->status ? rc : tarn_fail(a->status, "rank 1: %s", a->error);
}

static int tell(const struct writes_bench *b, const struct bench_writes_order *q)
{
    return bench_writes_send(b->ch, q, sizeof *q);
}

/* --- ours --------------------------------------------------------------------------------------- */

static int collect(struct contest *k, double *items_s, struct bench_hist *h)
{
    struct bench_ring_report reports[RINGS_MAX];
    uint32_t n = k->plan->rings;
    uint64_t longest = 1;
    int rc = bring(k->b, k->reports, n * sizeof reports[0], reports);

    if (rc == 0)
        rc = bring(k->b, k->took, (size_t)n * k->parts * sizeof *k->took_here, k->took_here);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        if (reports[i].rc != 0)
            rc = tarn_fail(reports[i].rc, "producer %u: %s", i, tarn_strerror(reports[i].rc));
        if (reports[i].ns > 0)
            k->b->ticks_per_ns = (double)reports[i].ticks / (double)reports[i].ns;
        longest = reports[i].ns > longest ? reports[i].ns : longest;
    }
    *items_s = (double)k->parts * n * 1e9 / (double)longest;
    for (uint64_t i = 0; rc == 0 && i < (uint64_t)n * k->parts; i++)
        bench_hist_add(h, (uint64_t)(k->took_here[i] / k->b->ticks_per_ns));
    return rc;
}

/* Runs the producers until they have ended and rank 1 has answered. If rank 1 finds something wrong, they are
 * stopped. */
static int produce(struct contest *k)
{
    struct bench_threads *threads = NULL;
    struct bench_writes_answer a;
    int rc = k->b->bare ? bench_writes_start(k->b->bare, k->tasks, k->plan->rings)
                        : bench_threads_start(k->tasks, k->plan->rings, &threads);

    if (rc != 0)
        return rc;
    struct tarn_reason why;
    if (tarn_reason_keep(&why, hear(k->b, &a)) != 0)
        tarn_proxy_abort(k->proxy);
    if (threads)
        bench_threads_finish(threads);
    else
        rc = bench_writes_finish(k->b->bare);
    return rc ? rc : tarn_reason_fail(&why);
}

static int our_slice(void *arg, double *items_s, struct bench_hist *h)
{
    struct contest *k = arg;
    uint64_t parts = (uint64_t)k->parts * k->plan->rings;
    const struct bench_writes_order q = {
        .what = BENCH_WRITES_OURS, .counted = k->counted[0], .last = k->counted[0] + parts};
    struct tarn_reason why;

    for (uint32_t i = 0; i < k->plan->rings; i++)
        k->tasks_here[i].counted = k->counted[0];
    drop(k->b, k->tasks);
    k->tasks = NULL;
    int rc = place(k->b, k->tasks_here, sizeof k->tasks_here, &k->tasks);
    if (rc == 0)
        rc = tell(k->b, &q);
    if (rc != 0)
        return rc;
    k->counted[0] += parts;
    tarn_reason_keep(&why, produce(k));
    rc = collect(k, items_s, h);
    /* A producer that has failed is why rank 1 misses parts; one that was stopped is not why. */
    if (rc != 0 && (why.code == 0 || (why.code == TARN_E_TIMEOUT && rc != TARN_E_CANCELED)))
        return rc;
    return tarn_reason_fail(&why);
}

static const struct bench_ops our_ops = {.slice = our_slice};

/* --- the wire ----------------------------------------------------------------------------------- */

static int wire_slice(void *arg, double *items_s, struct bench_hist *h)
{
    struct contest *k = arg;
    uint64_t parts = (uint64_t)k->parts * k->plan->rings, start = tarn_dev_now();
    const struct bench_writes_order q = {
        .what = BENCH_WRITES_WIRE, .counted = k->counted[1], .last = k->counted[1] + parts};
    struct bench_writes_answer a;
    int rc = tell(k->b, &q);

    (void)h;
    if (rc != 0)
        return rc;
    k->counted[1] += parts;
    start = tarn_dev_now();
    rc = k->wire_ops->send(k->wire, q.counted, q.last);
    *items_s = (double)parts * 1e9 / (double)(tarn_dev_now() - start);
    int theirs = hear(k->b, &a);
    return rc ? rc : theirs;
}

static const struct bench_ops wire_ops = {.slice = wire_slice};

/* --- set up ------------------------------------------------------------------------------------- */

static int new_sources(struct contest *k)
{
    size_t bytes = (size_t)k->plan->rings * k->plan->ring_size * k->plan->bytes;
    char *memory;
    int rc = bench_map(bytes, false, &memory);

    if (rc != 0)
        return rc;
    k->sources = memory;
    if (k->b->bare) {
        rc = bench_bare_upload(k->b->bare, memory, bytes, &k->sources);
        munmap(memory, bytes);
    }
    if (rc != 0) {
        k->sources = NULL;
        return rc;
    }
    /* Devices that refuse it get copies. */
    if (tarn_register(k->b->c, k->sources, bytes, k->b->bare ? TARN_MEMORY_CUDA : TARN_MEMORY_HOST, &k->mr))
        k->mr = NULL;
    return 0;
}

static int new_results(struct contest *k)
{
    static const struct bench_ring_report none[RINGS_MAX];
    size_t bytes = (size_t)k->plan->rings * k->parts * sizeof *k->took_here;

    k->took_here = calloc(1, bytes);
    if (!k->took_here)
        return tarn_fail(TARN_E_NO_MEMORY, "the ring benchmark: out of memory");
    int rc = place(k->b, k->took_here, bytes, &k->took);
    return rc ? rc : place(k->b, none, sizeof none, &k->reports);
}

/* The first write opens links, and CUDA's queues, before a kernel waits for it. */
static int warm_up(struct contest *k)
{
    const struct tarn_move_options o = {.size = sizeof o, .timeout_ms = BENCH_WRITES_PATIENCE_MS};
    const struct tarn_piece piece = {.addr = k->sources, .bytes = k->plan->bytes};
    struct tarn_move m = {.pieces = &piece, .npieces = 1};

    return tarn_write(k->reach, &m, 1, &o);
}

static int new_proxy(struct contest *k)
{
    const struct plan *p = k->plan;
    const struct tarn_proxy_range range = {k->sources, (uint64_t)p->rings * p->ring_size * p->bytes};
    const struct tarn_proxy_options o = {.size = sizeof o,
                                         .device = k->b->bare ? 0 : -1,
                                         .nrings = p->rings,
                                         .ring_size = p->ring_size,
                                         .timeout_ms = BENCH_WRITES_PATIENCE_MS,
                                         .ranges = &range,
                                         .nranges = 1,
                                         .reaches = &k->reach,
                                         .nreaches = 1};

    return tarn_proxy_new(k->b->c, &o, &k->proxy);
}

static int new_tasks(struct contest *k)
{
    const struct plan *p = k->plan;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < p->rings; i++) {
        struct bench_writes_task *t = &k->tasks_here[i];
        *t = (struct bench_writes_task){.credit = k->b->credit,
                                        .sources = (uint64_t *)k->sources +
                                                   (uint64_t)i * p->ring_size * p->bytes / 8,
                                        .parts = k->parts,
                                        .number = i,
                                        .rings = p->rings,
                                        .slots = p->slots,
                                        .bytes = p->bytes,
                                        .one_by_one = p->one_by_one,
                                        .took = (uint32_t *)k->took + (size_t)i * k->parts,
                                        .report = (struct bench_ring_report *)k->reports + i};
        rc = tarn_proxy_ring(k->proxy, i, &t->ring);
    }
    return rc;
}

static int new_wire(struct contest *k, char *text)
{
    const struct bench_writes_shape shape = shape_of(k);
    int rc = bench_map((uint64_t)shape.bytes * shape.slots, false, &k->wire_sources);

    for (uint32_t i = 0; rc == 0 && i < shape.slots; i++)
        bench_pattern_fill(k->wire_sources + (size_t)i * shape.bytes, shape.bytes, i + 1, 0);
    return rc ? rc : k->wire_ops->offer(k->b->e, &shape, k->wire_sources, text, &k->wire);
}

static int set_up_both(struct contest *k)
{
    struct bench_writes_order q = {.what = BENCH_WRITES_SET_UP, .shape = shape_of(k)};
    struct bench_writes_answer a;
    int rc = tarn_lease_descriptor(k->b->lease, q.credit);

    *k->b->credit = (struct bench_credit){0, ~0ull};
    if (rc == 0 && k->wire_ops) {
        snprintf(q.beside, sizeof q.beside, "%s", k->b->transport);
        rc = new_wire(k, q.wire);
    }
    if (rc == 0)
        rc = tell(k->b, &q);
    if (rc == 0)
        rc = hear(k->b, &a);
    if (rc == 0)
        rc = tarn_reach(k->b->c, a.landing, BENCH_WRITES_PATIENCE_MS, &k->reach);
    if (rc == 0 && k->wire_ops)
        rc = k->wire_ops->join(k->wire, a.wire);
    return rc;
}

static int set_up(struct contest *k)
{
    int rc = set_up_both(k);

    if (rc == 0)
        rc = new_sources(k);
    if (rc == 0)
        rc = new_results(k);
    if (rc == 0)
        rc = warm_up(k);
    if (rc == 0)
        rc = new_proxy(k);
    return rc ? rc : new_tasks(k);
}

static void tear_down(struct contest *k)
{
    tarn_proxy_free(k->proxy);
    if (k->mr)
        tarn_deregister(k->b->c, k->mr);
    if (k->b->bare && k->sources)
        bench_bare_drop(k->b->bare, k->sources);
    else if (k->sources)
        munmap(k->sources, (size_t)k->plan->rings * k->plan->ring_size * k->plan->bytes);
    tarn_reach_free(k->reach);
    if (k->wire_ops)
        k->wire_ops->close(k->wire);
    if (k->wire_sources)
        munmap(k->wire_sources, (size_t)k->plan->bytes * k->plan->slots);
    drop(k->b, k->tasks);
    drop(k->b, k->reports);
    drop(k->b, k->took);
    free(k->took_here);
}

/* --- rows --------------------------------------------------------------------------------------- */

static void figures(const struct contest *k, struct bench_row *r)
{
    const struct bench_contestant *limit = bench_row_limit(r);

    bench_row_figure(r, "Mops", bench_median(&bench_row_find(r, BENCH_OURS)->items_s) / 1e6);
    if (limit)
        bench_row_figure(r, "limit_Mops", bench_median(&limit->items_s) / 1e6);
    bench_row_figure(r, "verified", (double)k->counted[0]);
}

static int measure(struct contest *k, struct bench_row *r)
{
    int rc = set_up(k);

    if (rc == 0)
        rc = bench_row_add(r, BENCH_OURS, "tarn", &our_ops, k, NULL);
    if (rc == 0 && k->wire_ops)
        rc = bench_row_add(r, BENCH_LIMIT, k->wire_ops->name, &wire_ops, k, NULL);
    if (rc == 0)
        rc = bench_row_measure(k->b->e, r);
    if (rc == 0)
        figures(k, r);
    return rc;
}

/* A wrong byte or count ends the run: rank 1 ends, too. */
static int write_row(struct writes_bench *b, const struct plan *p)
{
    struct contest k = {.b = b,
                        .plan = p,
                        .parts = p->parts / (b->e->quick ? QUICKER : 1),
                        .wire_ops = p->one_by_one ? NULL : bench_wire_beside(b->transport)};
    struct bench_row *r = bench_row_new("ring_write", p->note, p->bytes);
    struct tarn_reason why;

    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "the ring benchmark: out of memory");
    int rc = tarn_reason_keep(&why, measure(&k, r));
    json_object_set_new(r->figures, "transport", json_string(b->transport));
    json_object_set_new(r->figures, "producers", json_string(b->producers));
    (void)bench_report_row(b->rep, r, rc);
    tear_down(&k);
    return tarn_reason_fail(&why);
}

static int rows(struct writes_bench *b)
{
    static const struct plan plans[] = {
        {"one at a time", 256, 1, true, 64, 1024, 4096}, {"one at a time", 4096, 1, true, 64, 1024, 4096},
        {"1 ring", 256, 1, false, 512, 1024, 16384},     {"8 rings", 256, 8, false, 512, 1024, 4096},
        {"1 ring", 4096, 1, false, 512, 1024, 16384},    {"8 rings", 4096, 8, false, 512, 1024, 4096},
        {"1 ring", 65536, 1, false, 64, 512, 2048},      {"8 rings", 65536, 8, false, 64, 512, 512},
        {"1 ring", 1 << 20, 1, false, 16, 64, 512},      {"4 rings", 1 << 20, 4, false, 16, 64, 256},
    };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof plans / sizeof plans[0]; i++)
        rc = write_row(b, &plans[i]);
    return rc;
}

/* --- the bench ---------------------------------------------------------------------------------- */

static int find_producers(struct writes_bench *b)
{
    struct tarn_cuda_device d;
    int n = 0, rc;

    snprintf(b->producers, sizeof b->producers, "threads of the CPU: no GPU");
    if (bench_bare_played() || tarn_cuda_count(&n) != 0 || n == 0)
        return 0;
    rc = tarn_cuda_describe(0, &d);
    if (rc == 0)
        rc = bench_bare_open(0, &b->bare);
    snprintf(b->producers, sizeof b->producers, "GPU 0 %s", rc == 0 ? d.name : "");
    return rc;
}

/* With rdma if the environment has devices, otherwise with tcp. */
static void choose_transport(struct writes_bench *b)
{
    struct bench_rails rails;

    b->transport = b->e->transport;
    if (!b->transport)
        b->transport = bench_rails_find(b->e, &rails) == 0 ? "rdma" : "tcp";
}

static int lend_credit(struct writes_bench *b)
{
    const struct tarn_lease_options o = {.size = sizeof o, .flags = TARN_LEASE_WRITE};
    void *memory;
    int rc = tarn_window_alloc(sizeof *b->credit, 0, &memory);

    if (rc != 0)
        return rc;
    b->credit = memory;
    if (b->bare)
        rc = tarn_cuda_pin(memory, sizeof *b->credit, true);
    if (rc == 0)
        rc = tarn_window_new(b->home, memory, sizeof *b->credit, &b->window);
    return rc ? rc : tarn_lease(b->window, NULL, 0, &o, &b->lease);
}

static int open_bench(struct writes_bench *b)
{
    int rc = find_producers(b);

    if (rc != 0)
        return rc;
    choose_transport(b);
    rc = bench_start_directory(b->e);
    if (rc == 0)
        rc = bench_writes_client(b->e, b->transport, &b->c);
    if (rc == 0)
        rc = bench_writes_client(b->e, NULL, &b->home);
    if (rc == 0)
        rc = lend_credit(b);
    if (rc == 0)
        rc = tarn_channel_connect(b->home, b->e->peer, tarn_version(), strlen(tarn_version()) + 1,
                                  BENCH_WRITES_PATIENCE_MS, &b->ch);
    if (rc == 0)
        printf("writes to %s over %s; producers: %s\n", b->e->peer, b->transport, b->producers);
    return rc;
}

static int end(struct writes_bench *b)
{
    const struct bench_writes_order q = {.what = BENCH_WRITES_END};
    struct bench_writes_answer a;
    int rc = tell(b, &q);

    return rc ? rc : hear(b, &a);
}

int bench_writes_rows(struct bench_env *e, struct bench_report *rep)
{
    struct writes_bench b = {.e = e, .rep = rep, .ticks_per_ns = 1};
    struct tarn_reason why;
    int rc = open_bench(&b);

    if (rc == 0)
        rc = rows(&b);
    if (rc == 0)
        rc = end(&b);
    tarn_reason_keep(&why, rc);
    tarn_channel_close(b.ch);
    tarn_close(b.c);
    tarn_close(b.home);
    if (b.bare && b.credit)
        tarn_cuda_unpin(b.credit);
    tarn_window_free(b.credit);
    bench_bare_close(b.bare);
    return tarn_reason_fail(&why);
}
