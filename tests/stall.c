/* SPDX-License-Identifier: Apache-2.0 */
/* How long the host kept this process from running; see stall.h. */
#include "tests/stall.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/harness.h"

enum { METERS_MAX = 8, KEPT = 512, WAKE_MS = 2, STALL_MS = 10 };

struct meter {
    pthread_t thread;
    struct stalls *stalls;
    int cpu;
    _Atomic uint64_t seen_ns; /* all stalls up to this time are recorded */
    size_t n;
    struct {
        uint64_t from_ns, to_ns;
    } at[KEPT]; /* the latest ones */
};

struct stalls {
    pthread_mutex_t lock;
    atomic_bool stops;
    stall_fn fn;
    void *arg;
    int nmeters;
    struct meter meters[METERS_MAX];
};

static void write_down(struct meter *m, uint64_t from_ns, uint64_t to_ns)
{
    pthread_mutex_lock(&m->stalls->lock);
    m->at[m->n % KEPT].from_ns = from_ns;
    m->at[m->n++ % KEPT].to_ns = to_ns;
    pthread_mutex_unlock(&m->stalls->lock);
    if (m->stalls->fn)
        m->stalls->fn(m->stalls->arg, from_ns, to_ns);
}

static void *run(void *arg)
{
    struct meter *m = arg;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)m->cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    uint64_t last = tarn_now_ns();
    while (!atomic_load(&m->stalls->stops)) {
        poll(NULL, 0, WAKE_MS);
        uint64_t now = tarn_now_ns();
        if (now - last >= STALL_MS * TARN_NS_PER_MS)
            write_down(m, last, now);
        atomic_store(&m->seen_ns, now);
        last = now;
    }
    return NULL;
}

static void wait_seen(struct stalls *s, uint64_t until_ns)
{
    for (int i = 0; i < s->nmeters; i++)
        while (atomic_load(&s->meters[i].seen_ns) < until_ns)
            poll(NULL, 0, WAKE_MS);
}

struct stalls *stalls_start(stall_fn fn, void *arg)
{
    cpu_set_t all;
    struct stalls *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->fn = fn;
    s->arg = arg;
    pthread_mutex_init(&s->lock, NULL);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && s->nmeters < METERS_MAX; cpu++) {
        struct meter *m = &s->meters[s->nmeters];
        if (!CPU_ISSET((size_t)cpu, &all))
            continue;
        m->stalls = s;
        m->cpu = cpu;
        assert_int_equal(pthread_create(&m->thread, NULL, run, m), 0);
        s->nmeters++;
    }
    wait_seen(s, 1);
    return s;
}

void stalls_stop(struct stalls *s)
{
    if (!s)
        return;
    atomic_store(&s->stops, true);
    for (int i = 0; i < s->nmeters; i++)
        pthread_join(s->meters[i].thread, NULL);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* The end of the recorded stall that covers `at`, or `at` if none does. Lowers *next_p to the next stall's
 * begin. */
static uint64_t covered(struct stalls *s, uint64_t at, uint64_t *next_p)
{
    uint64_t end = at;
    for (int i = 0; i < s->nmeters; i++) {
        struct meter *m = &s->meters[i];
        for (size_t k = 0; k < m->n && k < KEPT; k++) {
            uint64_t from = m->at[k].from_ns, to = m->at[k].to_ns;
            if (from <= at && to > end)
                end = to;
            if (from > at && from < *next_p)
                *next_p = from;
        }
    }
    return end;
}

uint64_t stalls_within(struct stalls *s, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t total = 0;
    wait_seen(s, to_ns);
    pthread_mutex_lock(&s->lock);
    for (uint64_t at = from_ns; at < to_ns;) {
        uint64_t next = to_ns, end = covered(s, at, &next);
        end = end < to_ns ? end : to_ns;
        total += end - at;
        at = end > at ? end : next;
    }
    pthread_mutex_unlock(&s->lock);
    return total;
}
