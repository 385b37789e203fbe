/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/reuse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "base/error.h"

#define SAMPLE_MAX 16384
#define EVENTS_MAX 32768    /* then all counts are halved: what is old weighs less and less */
#define SAMPLED_TURNOVERS 8 /* turnovers after which an evicted key leaves the sample */
#define PRIOR_USES 0.25     /* the hazard before anything is known: uses in the time of an age */
#define PRIOR_FLAT 0.25     /* turnovers of age up to which that hazard is about the same */
#define PRIOR_EVENTS 2      /* what it weighs */
#define PRIOR_CLASS 4       /* events that a class's factor is taken as 1 for */
#define NO_SLOT UINT32_MAX

struct sampled {
    uint32_t key;
    uint32_t slot; /* NO_SLOT: evicted */
    uint32_t used; /* tick of the last use known */
    uint32_t upto; /* exposure is counted up to this tick */
    uint32_t class;
    UT_hash_handle hh;
};

struct counts {
    double events[TARN_AGES], exposure[TARN_AGES];
};

struct tarn_reuse {
    const _Atomic uint32_t *touch;
    struct sampled *sample;
    uint32_t share; /* keys of this mixed hash or less are in the sample */
    double events;  /* of all */
    struct counts by_class[TARN_CLASSES], all;
    double worth[TARN_CLASSES][TARN_AGES];
};

int tarn_reuse_new(const _Atomic uint32_t *touch, struct tarn_reuse **r_p)
{
    struct tarn_reuse *r = calloc(1, sizeof(*r));
    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "eviction: out of memory");
    r->touch = touch;
    r->share = UINT32_MAX;
    tarn_reuse_learn(r, 0, 0);
    *r_p = r;
    return 0;
}

void tarn_reuse_free(struct tarn_reuse *r)
{
    if (!r)
        return;
    struct sampled *k, *next;
    HASH_ITER (hh, r->sample, k, next) {
        HASH_DEL(r->sample, k);
        free(k);
    }
    free(r);
}

/* --- counting ----------------------------------------------------------------------------------- */

/* Ticks from one to the other; clocks of clients may run a little ahead: that is 0. */
static uint32_t ticks_between(uint32_t from, uint32_t to)
{
    int32_t ticks = (int32_t)(to - from);
    return ticks > 0 ? (uint32_t)ticks : 0;
}

/* A key of the class was unused at all ages of [from, to). */
static void count_exposure(struct tarn_reuse *r, uint32_t class, uint32_t from, uint32_t to)
{
    double at = from;
    for (uint32_t b = tarn_age_bucket(from); at < to; b++) {
        double end = tarn_age_begin(b + 1);
        double ticks = (to < end ? to : end) - at;
        r->by_class[class].exposure[b] += ticks;
        r->all.exposure[b] += ticks;
        at = end;
    }
}

static void expose(struct tarn_reuse *r, struct sampled *k, uint32_t now)
{
    if (ticks_between(k->upto, now) == 0)
        return;
    count_exposure(r, k->class, k->upto - k->used, now - k->used);
    k->upto = now;
}

static void count_use(struct tarn_reuse *r, struct sampled *k, uint32_t when)
{
    expose(r, k, when);
    uint32_t b = tarn_age_bucket(ticks_between(k->used, when));
    r->by_class[k->class].events[b]++;
    r->all.events[b]++;
    r->events++;
    k->used = k->upto = when;
}

static void halve(struct counts *c)
{
    for (uint32_t b = 0; b < TARN_AGES; b++) {
        c->events[b] /= 2;
        c->exposure[b] /= 2;
    }
}

static void forget_half(struct tarn_reuse *r)
{
    r->events /= 2;
    halve(&r->all);
    for (uint32_t c = 0; c < TARN_CLASSES; c++)
        halve(&r->by_class[c]);
}

/* --- the sample --------------------------------------------------------------------------------- */

static bool is_sampled(const struct tarn_reuse *r, uint32_t key)
{
    return key * 2654435761u <= r->share; /* a multiplicative hash (D. Knuth, TAOCP 3, 6.4) */
}

static struct sampled *find(const struct tarn_reuse *r, uint32_t key)
{
    struct sampled *k = NULL;
    if (is_sampled(r, key))
        HASH_FIND(hh, r->sample, &key, sizeof(key), k);
    return k;
}

static void drop(struct tarn_reuse *r, struct sampled *k)
{
    HASH_DEL(r->sample, k);
    free(k);
}

/* The sample is full: from now on it has half of the keys. */
static void thin_out(struct tarn_reuse *r)
{
    struct sampled *k, *next;
    r->share /= 2;
    HASH_ITER (hh, r->sample, k, next) {
        if (!is_sampled(r, k->key))
            drop(r, k);
    }
    forget_half(r);
}

/* Without memory the key is not in the sample. */
static void sample_key(struct tarn_reuse *r, const struct sampled *first)
{
    if (HASH_COUNT(r->sample) >= SAMPLE_MAX)
        thin_out(r);
    struct sampled *k = is_sampled(r, first->key) ? malloc(sizeof(*k)) : NULL;
    if (!k)
        return;
    *k = *first;
    HASH_ADD(hh, r->sample, key, sizeof(k->key), k);
    if (!k->hh.tbl)
        free(k);
}

void tarn_reuse_put(struct tarn_reuse *r, uint32_t key, uint32_t slot, uint32_t class, uint32_t now)
{
    struct sampled *k = find(r, key);
    if (k) {
        count_use(r, k, now);
        k->slot = slot;
        k->class = class;
    } else if (is_sampled(r, key)) {
        sample_key(r, &(struct sampled){.key = key, .slot = slot, .used = now, .upto = now, .class = class});
    }
}

void tarn_reuse_used(struct tarn_reuse *r, uint32_t key, uint32_t class, uint32_t when)
{
    struct sampled *k = find(r, key);
    if (!k)
        return;
    if (k->used != when)
        count_use(r, k, when);
    k->class = class;
}

void tarn_reuse_left(struct tarn_reuse *r, uint32_t key, bool evicted)
{
    struct sampled *k = find(r, key);
    if (k && evicted)
        k->slot = NO_SLOT;
    else if (k)
        drop(r, k);
}

/* --- worth -------------------------------------------------------------------------------------- */

/* Uses of keys of a class, by those that all keys would have had in its place. */
static double factor(const struct counts *c, const double *hazard)
{
    double events = PRIOR_CLASS, expected = PRIOR_CLASS;
    for (uint32_t b = 0; b < TARN_AGES; b++) {
        events += c->events[b];
        expected += c->exposure[b] * hazard[b];
    }
    return events / expected;
}

/* Hazards from counts, drawn to what was expected where little was counted. */
static void compute_hazards(const struct counts *c, const double *expected, double *hazard)
{
    for (uint32_t b = 0; b < TARN_AGES; b++)
        hazard[b] = (c->events[b] + PRIOR_EVENTS) / (c->exposure[b] + PRIOR_EVENTS / expected[b]);
}

static void compute_worth(const double *hazard, double *worth)
{
    double used[TARN_AGES], stays[TARN_AGES]; /* of what reaches a bucket: share used in it, ticks in it */
    for (uint32_t b = 0; b < TARN_AGES; b++) {
        used[b] = -expm1(-hazard[b] * (tarn_age_begin(b + 1) - tarn_age_begin(b)));
        stays[b] = used[b] / hazard[b];
    }
    for (uint32_t from = 0; from < TARN_AGES; from++) {
        double left = 1, uses = 0, ticks = 0;
        worth[from] = 0;
        for (uint32_t b = from; b < TARN_AGES; b++) {
            uses += left * used[b];
            ticks += left * stays[b];
            left *= 1 - used[b];
            if (uses > worth[from] * ticks)
                worth[from] = uses / ticks;
        }
    }
}

/* More uses never make an object worth less: what seems so is chance, or the age of those that were used. */
static void raise_worth(double *worth, const double *fewer_uses)
{
    for (uint32_t b = 0; b < TARN_AGES; b++)
        worth[b] = worth[b] < fewer_uses[b] ? fewer_uses[b] : worth[b];
}

static void compute(struct tarn_reuse *r, uint32_t turnover)
{
    double prior[TARN_AGES], all[TARN_AGES];
    for (uint32_t b = 0; b < TARN_AGES; b++) {
        double age = (tarn_age_begin(b) + tarn_age_begin(b + 1)) / 2;
        prior[b] = PRIOR_USES / (age + 1 + PRIOR_FLAT * turnover);
    }
    compute_hazards(&r->all, prior, all);
    for (uint32_t c = 0; c < TARN_CLASSES; c++) {
        double f = factor(&r->by_class[c], all), expected[TARN_AGES], hazard[TARN_AGES];
        for (uint32_t b = 0; b < TARN_AGES; b++)
            expected[b] = all[b] * f;
        compute_hazards(&r->by_class[c], expected, hazard);
        compute_worth(hazard, r->worth[c]);
        if (c >= TARN_CLASS_STEP)
            raise_worth(r->worth[c], r->worth[c - TARN_CLASS_STEP]);
    }
}

void tarn_reuse_learn(struct tarn_reuse *r, uint32_t now, uint32_t turnover)
{
    struct sampled *k, *next;
    HASH_ITER (hh, r->sample, k, next) {
        uint32_t when = k->used;
        if (k->slot != NO_SLOT)
            when = atomic_load_explicit(&r->touch[k->slot], memory_order_relaxed);
        /* What is ahead of the clock is noticed later. */
        if (ticks_between(k->used, when) > 0 && ticks_between(now, when) == 0)
            count_use(r, k, when);
        expose(r, k, now);
        if (k->slot == NO_SLOT && turnover && ticks_between(k->used, now) / SAMPLED_TURNOVERS > turnover)
            drop(r, k);
    }
    if (r->events > EVENTS_MAX)
        forget_half(r);
    compute(r, turnover);
}

double tarn_reuse_worth(const struct tarn_reuse *r, uint32_t class, uint32_t bucket)
{
    return r->worth[class][bucket];
}
