/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Least recently used, by sampling, as Redis does it. Every call draws a few slots at random and keeps the
 * oldest seen so far as candidates. The oldest candidate is the victim. So the victim is the oldest of far
 * more slots than one call looks at. Ages are read anew at every call, because readers touch slots by
 * themselves.
 *
 * Members lie dense in one array: a random draw never hits an empty slot.
 */
#include "server/store/evict.h"

#include <stdlib.h>

#include "base/error.h"
#include "server/store/pool.h"

#define SAMPLES 16
#define CANDIDATES 16
#define NONE UINT32_MAX

struct tarn_evict {
    struct tarn_evict_view view;
    uint32_t *members; /* slots */
    uint32_t *where;   /* by slot: its place in members, plus 1 */
    uint32_t n;
    uint32_t candidates[CANDIDATES];
    uint32_t ncandidates;
    uint64_t random;
};

int tarn_evict_new(const struct tarn_evict_view *view, uint64_t seed, struct tarn_evict **e_p)
{
    uint64_t bytes = view->nslots * sizeof(uint32_t);
    struct tarn_evict *e = calloc(1, sizeof(*e));
    if (!e)
        return tarn_fail(TARN_E_NO_MEMORY, "eviction: out of memory");
    *e = (struct tarn_evict){.view = *view, .random = seed};
    e->members = tarn_lazy_new(bytes);
    e->where = tarn_lazy_new(bytes);
    if (!e->members || !e->where) {
        tarn_evict_free(e);
        return tarn_fail(TARN_E_NO_MEMORY, "eviction: %u slots: out of memory", view->nslots);
    }
    *e_p = e;
    return 0;
}

void tarn_evict_free(struct tarn_evict *e)
{
    if (!e)
        return;
    tarn_lazy_free(e->members, e->view.nslots * sizeof(uint32_t));
    tarn_lazy_free(e->where, e->view.nslots * sizeof(uint32_t));
    free(e);
}

void tarn_evict_add(struct tarn_evict *e, uint32_t slot)
{
    e->members[e->n++] = slot;
    e->where[slot] = e->n;
}

void tarn_evict_remove(struct tarn_evict *e, uint32_t slot)
{
    uint32_t at = e->where[slot] - 1, last = e->members[--e->n];
    e->members[at] = last;
    e->where[last] = at + 1;
    e->where[slot] = 0;
    for (uint32_t i = 0; i < e->ncandidates; i++) {
        if (e->candidates[i] == slot)
            e->candidates[i--] = e->candidates[--e->ncandidates];
    }
}

/* splitmix64 (S. Vigna), scaled to [0, n). */
static uint32_t draw(struct tarn_evict *e, uint32_t n)
{
    uint64_t z = e->random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return (uint32_t)((z >> 32) * n >> 32);
}

/* Takes the slot in when there is room, or in place of the youngest candidate if that is younger. */
static void offer(struct tarn_evict *e, uint32_t slot, uint32_t now)
{
    uint32_t age = tarn_evict_age(e->view.touch, slot, now), youngest = 0, youngest_age = UINT32_MAX;
    for (uint32_t i = 0; i < e->ncandidates; i++) {
        if (e->candidates[i] == slot)
            return;
        uint32_t a = tarn_evict_age(e->view.touch, e->candidates[i], now);
        if (a < youngest_age) {
            youngest = i;
            youngest_age = a;
        }
    }
    if (e->ncandidates < CANDIDATES)
        e->candidates[e->ncandidates++] = slot;
    else if (youngest_age < age)
        e->candidates[youngest] = slot;
}

/* Takes the oldest candidate that is still idle out of the pool. */
static uint32_t take_oldest(struct tarn_evict *e, uint32_t now)
{
    while (e->ncandidates > 0) {
        uint32_t oldest = 0, oldest_age = 0;
        for (uint32_t i = 0; i < e->ncandidates; i++) {
            uint32_t a = tarn_evict_age(e->view.touch, e->candidates[i], now);
            if (a > oldest_age) {
                oldest = i;
                oldest_age = a;
            }
        }
        uint32_t slot = e->candidates[oldest];
        e->candidates[oldest] = e->candidates[--e->ncandidates];
        if (e->view.idle(e->view.arg, slot))
            return slot;
    }
    return NONE;
}

uint32_t tarn_evict_victim(struct tarn_evict *e, uint32_t now)
{
    for (uint32_t i = 0; i < SAMPLES && e->n > 0; i++) {
        uint32_t slot = e->members[draw(e, e->n)];
        if (e->view.idle(e->view.arg, slot))
            offer(e, slot, now);
    }
    uint32_t slot = take_oldest(e, now);
    if (slot != NONE || e->n == 0)
        return slot;
    /* Nearly all are in use: look at every one, from a random place on. */
    uint32_t start = draw(e, e->n);
    for (uint32_t i = 0; i < e->n; i++) {
        slot = e->members[(start + i) % e->n];
        if (e->view.idle(e->view.arg, slot))
            return slot;
    }
    return NONE;
}
