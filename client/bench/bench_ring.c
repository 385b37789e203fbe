/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command ring (tarn/ring.h) beside a bare one (bench_ring.h). Producers are blocks of one thread on the
 * first GPU; the thread that measures is the only consumer of all their rings. It answers each command at
 * once, so nothing is measured but the ring.
 *
 *   ring_trip   one command at a time: GPU, CPU, GPU
 *   ring_rate   as many as there is room for
 *   ring_at     latency at a controlled rate; what is late counts from when it was due
 *   proxied_get one GET at a time, carried out by a proxy's thread (bench_ring_gets.c)
 *
 * Times are the GPU's. Each command's content is checked. With played producers there are 100 times fewer
 * commands, and targets are not checked.
 */
#include "client/bench/bench_ring.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/bench/bench.h"
#include "client/bench/bench_ring_gets.h"
#include "client/gpu/ring.h"
#include "transport/cuda/cuda.h"

#define PRODUCERS_MAX 32
#define SHRUNK 100
#define IDLE_POLLS 4096 /* how often an idle consumer looks at the clock */

struct plan {
    const char *bench, *note;
    uint32_t producers;
    bool one_by_one;
    bool gets;         /* commands are gets, carried out */
    double mops;       /* asked of all producers together; 0: as many as there is room for */
    uint64_t commands; /* a producer and slice */
};

struct ring_bench {
    struct bench_env *e;
    struct bench_report *rep;
    struct bench_bare *bare;
    struct bench_gets *gets;
    bool played;
    double ticks_per_ns; /* of the GPU's finer clock, as last measured */
    char cuda[96], gpu[80];
};

/* --- a contestant ------------------------------------------------------------------------------- */

struct contest {
    struct ring_bench *b;
    const struct plan *plan;
    uint64_t commands;
    bool is_bare;
    struct tarn_ring_consumer *ours[PRODUCERS_MAX];
    struct tarn_proxy *proxy; /* has the ring of gets */
    struct bench_bare_ring bare[PRODUCERS_MAX];
    uint64_t seen[PRODUCERS_MAX]; /* commands of each ring, ever */
    void *tasks, *reports, *took; /* on the device */
    uint32_t *took_here;
};

static int our_answer(struct tarn_ring_consumer *r, uint64_t *address_p)
{
    struct tarn_ring_command c;
    uint64_t number;
    int rc = tarn_ring_take(r, &c, &number);

    if (rc != 0)
        return rc;
    *address_p = c.address;
    return tarn_ring_complete(r, number, 0);
}

static int bare_answer(struct contest *k, uint32_t i, uint64_t *address_p)
{
    int rc = bench_bare_ring_next(&k->bare[i], address_p);

    if (rc == 0 && k->plan->gets)
        rc = bench_gets_copy(k->b->gets);
    if (rc == 0)
        bench_bare_ring_answer(&k->bare[i]);
    return rc;
}

static int answer(struct contest *k, uint32_t i)
{
    uint64_t address = 0;
    int rc = k->is_bare ? bare_answer(k, i, &address) : our_answer(k->ours[i], &address);

    if (rc == 0 && !k->plan->gets && address != bench_ring_address(k->seen[i]))
        rc = tarn_fail(TARN_E_INVALID, "command %llu of ring %u has another's content",
                       (unsigned long long)k->seen[i], i);
    k->seen[i] += rc == 0;
    return rc;
}

/* Answers all commands of a slice. */
static int serve(struct contest *k)
{
    bool by_proxy = k->plan->gets && !k->is_bare;
    uint64_t left = by_proxy ? 0 : k->commands * k->plan->producers,
             deadline = tarn_now_ns() + BENCH_RING_LIMIT_NS;

    for (uint32_t idle = 0; left > 0;) {
        idle++;
        for (uint32_t i = 0; i < k->plan->producers; i++) {
            int rc = answer(k, i);
            if (rc != 0 && rc != TARN_E_AGAIN)
                return rc;
            left -= rc == 0;
            idle = rc == 0 ? 0 : idle;
        }
        if (idle > 0 && k->b->played)
            sched_yield();
        if (idle % IDLE_POLLS == IDLE_POLLS - 1 && (bench_interrupted() || tarn_now_ns() > deadline))
            return tarn_fail(TARN_E_TIMEOUT, "%llu commands do not come", (unsigned long long)left);
    }
    return 0;
}

/* --- results ------------------------------------------------------------------------------------ */

static void add_latencies(const struct contest *k, uint32_t producer, struct bench_hist *h)
{
    const uint32_t *took = k->took_here + producer * k->commands;

    for (uint64_t i = 0; i < k->commands; i++)
        bench_hist_add(h, (uint64_t)(took[i] / k->b->ticks_per_ns));
}

static int collect(struct contest *k, double *items_s, struct bench_hist *h)
{
    struct bench_ring_report reports[PRODUCERS_MAX];
    uint32_t n = k->plan->producers;
    uint64_t longest = 1;
    int rc = bench_bare_fetch(k->b->bare, k->reports, n * sizeof reports[0], reports);

    if (rc == 0)
        rc = bench_bare_fetch(k->b->bare, k->took, n * k->commands * sizeof *k->took_here, k->took_here);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        if (reports[i].rc != 0)
            rc = tarn_fail(reports[i].rc, "producer %u: %s", i, tarn_strerror(reports[i].rc));
        if (reports[i].ns > 0)
            k->b->ticks_per_ns = (double)reports[i].ticks / (double)reports[i].ns;
        longest = reports[i].ns > longest ? reports[i].ns : longest;
    }
    *items_s = (double)(k->commands * n) * 1e9 / (double)longest;
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        if (k->plan->one_by_one || k->plan->mops > 0)
            add_latencies(k, i, h);
    return rc;
}

static int slice(void *arg, double *items_s, struct bench_hist *h)
{
    struct contest *k = arg;
    struct bench_ring_run *run;
    int rc = k->plan->gets ? bench_gets_poison(k->b->gets) : 0;

    if (rc == 0)
        rc = bench_ring_start(k->b->bare, k->tasks, k->plan->producers, &run);

    if (rc != 0)
        return rc;
    int served = serve(k);
    for (uint32_t i = 0; served != 0 && !k->is_bare && i < k->plan->producers; i++)
        tarn_ring_abort(k->ours[i]);
    rc = bench_ring_finish(run);
    if (rc == 0 && served == 0)
        rc = collect(k, items_s, h);
    if (rc == 0 && served == 0 && k->plan->gets)
        rc = bench_gets_check(k->b->gets);
    return served ? served : rc;
}

/* --- set up ------------------------------------------------------------------------------------- */

static int new_ring(struct contest *k, uint32_t i, struct tarn_ring *ring)
{
    const struct tarn_ring_options o = {.size = BENCH_RING_SIZE, .rows = 1, .pinned = true};
    int rc;

    if (k->is_bare) {
        rc = bench_bare_ring_new(&k->bare[i]);
        if (rc == 0)
            *ring = bench_bare_ring_shared(&k->bare[i]);
    } else if (k->plan->gets) {
        rc = bench_gets_proxy(k->b->gets, &k->proxy);
        if (rc == 0)
            rc = tarn_proxy_ring(k->proxy, i, ring);
    } else {
        rc = tarn_ring_new(&o, &k->ours[i]);
        if (rc == 0)
            *ring = *tarn_ring_shared(k->ours[i]);
    }
    return rc;
}

static int new_results(struct contest *k)
{
    static const struct bench_ring_report none[PRODUCERS_MAX];
    uint64_t bytes = k->plan->producers * k->commands * sizeof *k->took_here;

    k->took_here = calloc(1, bytes);
    if (!k->took_here)
        return tarn_fail(TARN_E_NO_MEMORY, "the ring benchmark: out of memory");
    int rc = bench_bare_upload(k->b->bare, k->took_here, bytes, &k->took);
    return rc ? rc : bench_bare_upload(k->b->bare, none, sizeof none, &k->reports);
}

static int new_tasks(struct contest *k)
{
    struct bench_ring_task tasks[PRODUCERS_MAX] = {0};
    const struct plan *p = k->plan;
    double gap_ns = p->mops > 0 ? p->producers * 1e3 / p->mops : 0;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < p->producers; i++) {
        rc = new_ring(k, i, &tasks[i].ring);
        tasks[i].bare = k->is_bare;
        tasks[i].one_by_one = p->one_by_one;
        tasks[i].to = p->gets ? bench_gets_to(k->b->gets) : 0;
        tasks[i].commands = k->commands;
        tasks[i].gap = (uint64_t)(gap_ns * k->b->ticks_per_ns);
        tasks[i].took = (uint32_t *)k->took + i * k->commands;
        tasks[i].report = (struct bench_ring_report *)k->reports + i;
    }
    return rc ? rc : bench_bare_upload(k->b->bare, tasks, sizeof tasks, &k->tasks);
}

static void close_contest(void *arg)
{
    struct contest *k = arg;
    void *const on_device[] = {k->tasks, k->reports, k->took};

    for (size_t i = 0; i < sizeof on_device / sizeof on_device[0]; i++)
        if (on_device[i])
            bench_bare_drop(k->b->bare, on_device[i]);
    for (uint32_t i = 0; i < PRODUCERS_MAX; i++) {
        tarn_ring_free(k->ours[i]);
        bench_bare_ring_free(&k->bare[i]);
    }
    tarn_proxy_free(k->proxy);
    free(k->took_here);
    free(k);
}

static const struct bench_ops contest_ops = {.slice = slice, .close = close_contest};

static int add(struct ring_bench *b, struct bench_row *r, const struct plan *p, bool bare)
{
    struct contest *k = calloc(1, sizeof *k);

    if (!k)
        return tarn_fail(TARN_E_NO_MEMORY, "the ring benchmark: out of memory");
    *k = (struct contest){
        .b = b, .plan = p, .is_bare = bare, .commands = p->commands / (b->played ? SHRUNK : 1)};
    int rc = new_results(k);
    if (rc == 0)
        rc = new_tasks(k);
    if (rc != 0) {
        close_contest(k);
        return rc;
    }
    return bench_row_add(r, bare ? BENCH_LIMIT : BENCH_OURS, bare ? "bare ring" : "tarn", &contest_ops, k,
                         NULL);
}

/* --- rows --------------------------------------------------------------------------------------- */

static void targets(struct bench_row *r, const struct plan *p)
{
    const struct bench_contestant *ours = bench_row_find(r, BENCH_OURS), *bare = bench_row_limit(r);

    if (p->one_by_one)
        bench_at_most(r, "p50 / bare ring", bench_p50_ratio(r, bare), p->gets ? 1.25 : 1.2);
    if (p->one_by_one || p->mops > 0)
        return;
    bench_at_least(r, "of the bare ring's rate", bench_rate_ratio(r, bare), 0.8);
    bench_at_least(r, "Mops", bench_median(&ours->items_s) / 1e6, 4);
}

static void figures(const struct ring_bench *b, struct bench_row *r, const struct plan *p)
{
    const struct bench_contestant *bare = bench_row_limit(r);

    bench_row_figure(r, "Mops", bench_median(&bench_row_find(r, BENCH_OURS)->items_s) / 1e6);
    bench_row_figure(r, "bare_Mops", bench_median(&bare->items_s) / 1e6);
    if (p->one_by_one || p->mops > 0) {
        bench_row_figure(r, "p50_ratio", bench_p50_ratio(r, bare));
        bench_row_figure(r, "bare_p50_us", bench_hist_us(&bare->latency, 0.5));
        bench_row_figure(r, "bare_p99_us", bench_hist_us(&bare->latency, 0.99));
        bench_row_figure(r, "bare_p999_us", bench_hist_us(&bare->latency, 0.999));
    }
    if (!b->played)
        targets(r, p);
}

static int ring_row(struct ring_bench *b, const struct plan *p)
{
    struct bench_row *r = bench_row_new(p->bench, p->note, 0);

    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "the ring benchmark: out of memory");
    int rc = add(b, r, p, false);
    if (rc == 0)
        rc = add(b, r, p, true);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0)
        figures(b, r, p);
    json_object_set_new(r->figures, "cuda", json_string(b->cuda));
    json_object_set_new(r->figures, "gpu", json_string(b->gpu));
    return bench_report_row(b->rep, r, rc);
}

static int rows(struct ring_bench *b)
{
    static const struct plan plans[] = {
        {"ring_trip", "1 ring", 1, true, false, 0, 20000},
        {"ring_rate", "1 ring", 1, false, false, 0, 400000},
        {"ring_rate", "8 rings", 8, false, false, 0, 100000},
        {"ring_rate", "32 rings", 32, false, false, 0, 25000},
        {"ring_at", "0.1 Mops, 1 ring", 1, false, false, 0.1, 5000},
        {"ring_at", "0.5 Mops, 1 ring", 1, false, false, 0.5, 25000},
        {"ring_at", "1 Mops, 1 ring", 1, false, false, 1, 50000},
        {"ring_at", "2 Mops, 1 ring", 1, false, false, 2, 100000},
        {"ring_at", "3 Mops, 1 ring", 1, false, false, 3, 150000},
        {"ring_at", "4 Mops, 1 ring", 1, false, false, 4, 200000},
        {"ring_at", "1 Mops, 8 rings", 8, false, false, 1, 6000},
        {"ring_at", "4 Mops, 8 rings", 8, false, false, 4, 25000},
        {"ring_at", "8 Mops, 8 rings", 8, false, false, 8, 50000},
    };
    static const struct plan gets = {"proxied_get", "4 KiB, CPU pool", 1, true, true, 0, 20000};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof plans / sizeof plans[0]; i++)
        rc = ring_row(b, &plans[i]);
    if (rc == 0)
        rc = bench_gets_open(b->e, &b->gets);
    if (rc == 0)
        rc = ring_row(b, &gets);
    bench_gets_close(b->gets);
    return rc;
}

int bench_group_ring(struct bench_env *e, struct bench_report *rep)
{
    struct ring_bench b = {.e = e, .rep = rep, .played = bench_bare_played(), .ticks_per_ns = 1};
    struct tarn_cuda_device d;
    int n, rc = tarn_cuda_count(&n);

    if (rc == 0)
        rc = tarn_cuda_describe(0, &d);
    if (rc == 0)
        rc = bench_bare_open(0, &b.bare);
    if (rc != 0)
        return rc;
    bench_bare_describe(b.cuda, sizeof b.cuda);
    snprintf(b.gpu, sizeof b.gpu, "0 %s", d.name);
    printf("GPU %s; %s\n", b.gpu, b.cuda);
    if (b.played) {
        e->seconds = 0;
        e->quick = true;
    }
    rc = rows(&b);
    bench_bare_close(b.bare);
    return rc;
}
