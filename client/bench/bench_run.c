/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rounds of a row. In a round every contestant runs one slice. Each round begins with another contestant.
 * Rounds repeat until the median of ours/limit has settled or the row's time is up.
 *
 * A slice with several threads starts all threads, lets each do its warm-up operation and opens the gate. It
 * then measures from the start of the first thread to the end of the last. With one thread it adds up the
 * times of the operations, so the work between operations (verifying, freeing) does not count.
 */
#include "client/bench/bench.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

#define ROUNDS_MIN 7
#define ROUNDS_MIN_QUICK 3
#define SETTLED_PART 0.004

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t ready;
    bool open;
};

struct worker {
    struct bench_contestant *c;
    struct gate *gate; /* NULL: the only thread */
    uint32_t thread;
    int status;
    char error[TARN_SENTENCE];
    uint64_t first_ns, last_ns, busy_ns;
    struct bench_hist latency;
};

/* --- slices ------------------------------------------------------------------------------------- */

static int one_op(struct worker *w, size_t i, bool timed)
{
    const struct bench_ops *ops = w->c->ops;
    uint64_t start = tarn_now_ns();
    int rc = ops->op(w->c->arg, w->thread, i);
    uint64_t end = tarn_now_ns();

    if (rc == 0 && ops->after)
        rc = ops->after(w->c->arg, w->thread, i);
    if (!timed)
        return rc;
    bench_hist_add(&w->latency, end - start);
    w->busy_ns += end - start;
    w->last_ns = end;
    return rc;
}

static void wait_at_gate(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->ready++;
    pthread_cond_broadcast(&g->changed);
    while (!g->open)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(struct gate *g, uint32_t when_ready)
{
    pthread_mutex_lock(&g->lock);
    while (g->ready < when_ready)
        pthread_cond_wait(&g->changed, &g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void *work(void *arg)
{
    struct worker *w = arg;

    w->status = one_op(w, w->c->nops + w->thread, false);
    if (w->gate)
        wait_at_gate(w->gate);
    w->first_ns = w->last_ns = tarn_now_ns();
    for (size_t i = w->thread; w->status == 0 && i < w->c->nops; i += w->c->threads)
        w->status = one_op(w, i, true);
    if (w->status != 0)
        snprintf(w->error, sizeof w->error, "%s", tarn_last_error());
    return NULL;
}

static int work_in_threads(struct worker *workers, pthread_t *threads, uint32_t n)
{
    struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    uint32_t started = 0;

    for (; started < n; started++) {
        workers[started].gate = &gate;
        if (pthread_create(&threads[started], NULL, work, &workers[started]) != 0)
            break;
    }
    open_gate(&gate, started);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return started == n ? 0 : tarn_fail(TARN_E_SYSTEM, "only %u of %u threads could be started", started, n);
}

/* Adds the slice's figures to the contestant. */
static int collect(struct bench_contestant *c, const struct worker *workers, struct bench_hist *h,
                   double *items_s)
{
    uint64_t first = workers[0].first_ns, last = workers[0].last_ns;

    bench_hist_clear(h);
    for (uint32_t i = 0; i < c->threads; i++) {
        const struct worker *w = &workers[i];
        if (w->status != 0)
            return tarn_fail(w->status, "%s", w->error);
        bench_hist_merge(h, &w->latency);
        first = w->first_ns < first ? w->first_ns : first;
        last = w->last_ns > last ? w->last_ns : last;
    }
    uint64_t took = c->threads == 1 ? workers[0].busy_ns : last - first;
    *items_s = (double)c->nops * c->depth * 1e9 / (double)(took ? took : 1);
    return 0;
}

static int timed_slice(struct bench_contestant *c, struct bench_hist *h, double *items_s)
{
    struct worker *workers = calloc(c->threads, sizeof *workers);
    pthread_t *threads = calloc(c->threads, sizeof *threads);
    int rc = 0;

    if (!workers || !threads) {
        rc = tarn_fail(TARN_E_NO_MEMORY, "%u threads: out of memory", c->threads);
        goto free_workers;
    }
    for (uint32_t i = 0; i < c->threads; i++) {
        workers[i].c = c;
        workers[i].thread = i;
    }
    if (c->threads == 1)
        work(&workers[0]);
    else
        rc = work_in_threads(workers, threads, c->threads);
    if (rc == 0)
        rc = collect(c, workers, h, items_s);

free_workers:
    free(threads);
    free(workers);
    return rc;
}

int bench_slice_timed(struct bench_contestant *c, struct bench_hist *h, double *items_s)
{
    bench_hist_clear(h);
    return c->ops->slice ? c->ops->slice(c->arg, items_s, h) : timed_slice(c, h, items_s);
}

static int slice(struct bench_contestant *c, uint64_t round, struct bench_hist *h, double *items_s)
{
    int rc = c->ops->begin ? c->ops->begin(c->arg, round) : 0;

    if (rc == 0)
        rc = bench_slice_timed(c, h, items_s);
    /* Also after a failure, to remove the objects that the slice has put. The failure's error text stays. */
    char why[TARN_SENTENCE];
    snprintf(why, sizeof why, "%s", tarn_last_error());
    int end = c->ops->end ? c->ops->end(c->arg) : 0;
    return rc ? tarn_fail(rc, "%s", why) : end;
}

/* --- rounds ------------------------------------------------------------------------------------- */

static int contest(const struct bench_env *e, struct bench_row *r, struct bench_contestant *c, uint64_t round,
                   struct bench_hist *h)
{
    double items_s = 0, cpu = bench_cpu_s(e->node.pid);
    uint64_t start = tarn_now_ns();
    int rc = slice(c, round, h, &items_s);

    if (c->role == BENCH_OURS && round > 0) {
        r->node_cpu_s += bench_cpu_s(e->node.pid) - cpu;
        r->wall_s += (double)(tarn_now_ns() - start) / 1e9;
    }
    if (rc != 0 && c->role == BENCH_PEER) {
        c->dropped = true;
        snprintf(r->error, sizeof r->error, "%s: %s", c->name, tarn_last_error());
        return 0;
    }
    if (rc != 0)
        return tarn_fail(rc, "%s: %s", c->name, tarn_last_error());
    if (round > 0) { /* round 0 warms up */
        bench_hist_merge(&c->latency, h);
        bench_series_add(&c->items_s, items_s);
        bench_series_add(&c->p50_us, bench_hist_us(h, 0.5));
    }
    return 0;
}

static bool row_settled(const struct bench_row *r)
{
    const struct bench_contestant *ours = bench_row_find(r, BENCH_OURS), *limit = bench_row_limit(r);
    struct bench_series ratios;

    if (!limit)
        return bench_settled(&ours->p50_us, SETTLED_PART);
    bench_ratios(&ours->items_s, &limit->items_s, &ratios);
    return bench_settled(&ratios, SETTLED_PART);
}

int bench_row_measure(const struct bench_env *e, struct bench_row *r)
{
    struct bench_hist *h = malloc(sizeof *h);
    uint64_t start = tarn_now_ns(), rounds_min = e->quick ? ROUNDS_MIN_QUICK : ROUNDS_MIN;
    int rc = 0;

    if (!h)
        return tarn_fail(TARN_E_NO_MEMORY, "a row of the benchmark: out of memory");
    for (uint64_t round = 0; rc == 0 && round <= BENCH_ROUNDS_MAX; round++) {
        double took_s = (double)(tarn_now_ns() - start) / 1e9;
        if (round > rounds_min && (took_s > e->seconds || row_settled(r)))
            break;
        for (size_t i = 0; rc == 0 && i < r->n; i++) {
            struct bench_contestant *c = r->contestants[(i + round) % r->n];
            if (bench_interrupted())
                rc = tarn_fail(TARN_E_CANCELED, "interrupted");
            else if (!c->dropped)
                rc = contest(e, r, c, round, h);
        }
    }
    free(h);
    return rc;
}

/* --- rows --------------------------------------------------------------------------------------- */

struct bench_row *bench_row_new(const char *bench, const char *note, uint64_t bytes)
{
    struct bench_row *r = calloc(1, sizeof *r);

    if (!r)
        return NULL;
    snprintf(r->bench, sizeof r->bench, "%s", bench);
    snprintf(r->note, sizeof r->note, "%s", note);
    r->bytes = bytes;
    r->pieces = r->threads = r->depth = 1;
    r->met = true;
    r->figures = json_object();
    return r;
}

void bench_row_free(struct bench_row *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++) {
        struct bench_contestant *c = r->contestants[i];
        if (c->ops->close)
            c->ops->close(c->arg);
        free(c);
    }
    json_decref(r->figures);
    free(r);
}

int bench_row_add(struct bench_row *r, enum bench_role role, const char *name, const struct bench_ops *ops,
                  void *arg, const struct bench_load *l)
{
    struct bench_contestant *c = r->n < BENCH_CONTESTANTS_MAX ? calloc(1, sizeof *c) : NULL;

    if (!c) {
        if (ops->close)
            ops->close(arg);
        return tarn_fail(TARN_E_NO_MEMORY, "%s: a contestant: out of memory", r->bench);
    }
    snprintf(c->name, sizeof c->name, "%s", name);
    c->role = role;
    c->ops = ops;
    c->arg = arg;
    c->depth = l ? l->depth : 1;
    c->threads = l ? l->threads : 1;
    c->nops = l ? l->ops : 1;
    r->contestants[r->n++] = c;
    if (role == BENCH_OURS && l) {
        r->pieces = l->npieces;
        r->threads = l->threads;
        r->depth = l->depth;
    }
    return 0;
}

struct bench_contestant *bench_row_find(const struct bench_row *r, enum bench_role role)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->contestants[i]->role == role)
            return r->contestants[i];
    return NULL;
}

struct bench_contestant *bench_row_named(const struct bench_row *r, const char *name)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->contestants[i]->name, name) == 0)
            return r->contestants[i];
    return NULL;
}

struct bench_contestant *bench_row_limit(const struct bench_row *r)
{
    struct bench_contestant *best = NULL;

    for (size_t i = 0; i < r->n; i++) {
        struct bench_contestant *c = r->contestants[i];
        if (c->role == BENCH_LIMIT && (!best || bench_median(&c->items_s) > bench_median(&best->items_s)))
            best = c;
    }
    return best;
}

static double median_of(void (*combine)(const struct bench_series *, const struct bench_series *,
                                        struct bench_series *),
                        const struct bench_series *a, const struct bench_series *b)
{
    struct bench_series out;

    combine(a, b, &out);
    return bench_median(&out);
}

double bench_rate_ratio(const struct bench_row *r, const struct bench_contestant *other)
{
    return median_of(bench_ratios, &bench_row_find(r, BENCH_OURS)->items_s, &other->items_s);
}

double bench_p50_ratio(const struct bench_row *r, const struct bench_contestant *other)
{
    return median_of(bench_ratios, &bench_row_find(r, BENCH_OURS)->p50_us, &other->p50_us);
}

double bench_p50_extra_us(const struct bench_row *r, const struct bench_contestant *other)
{
    return median_of(bench_differences, &bench_row_find(r, BENCH_OURS)->p50_us, &other->p50_us);
}

/* --- figures and targets ------------------------------------------------------------------------ */

void bench_row_figure(struct bench_row *r, const char *name, double value)
{
    json_object_set_new(r->figures, name, json_real(value));
}

static void note_target(struct bench_row *r, const char *what, const char *sign, double bound, bool met)
{
    size_t n = strlen(r->target);

    snprintf(r->target + n, sizeof r->target - n, "%s%s %s %g", n ? "; " : "", what, sign, bound);
    r->met = r->met && met;
}

void bench_at_least(struct bench_row *r, const char *what, double measured, double bound)
{
    note_target(r, what, ">=", bound, measured >= bound);
}

void bench_at_most(struct bench_row *r, const char *what, double measured, double bound)
{
    note_target(r, what, "<=", bound, measured <= bound);
}
