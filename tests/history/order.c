/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is there one order of a key's writes that fits all gets?
 *
 * w precedes v if w was over before v began. w also precedes v if w displaces, both were over before a get
 * began, and the get returned v. An order exists if the writes can be placed one by one, each after all
 * writes that precede it. Few writes are candidates for the next place, because candidates overlap.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/history/key.h"

enum { CYCLE_NODES_MAX = 4000 }; /* the search for a cycle includes at most this many writes */

struct order {
    struct history_write **by_start, **by_end,
        **displacing; /* next_...: index of the first one that may not be placed yet */
    size_t n, ndisplacing, next_start, next_end, next_displacing;
    struct history_write **ready; /* all writes that were over before these began are placed */
    size_t nready;
};

static bool comes_before(const struct history_write *w, const struct history_write *v)
{
    if (w == v)
        return false;
    return w->over_ns < v->op->start_ns || (w->displaces && v->last && w->over_ns < v->last->start_ns);
}

static int by_start(const void *pa, const void *pb)
{
    const struct history_write *const *a = pa, *const *b = pb;
    return (*a)->op->start_ns < (*b)->op->start_ns ? -1 : (*a)->op->start_ns > (*b)->op->start_ns;
}

static int by_end(const void *pa, const void *pb)
{
    const struct history_write *const *a = pa, *const *b = pb;
    return (*a)->over_ns < (*b)->over_ns ? -1 : (*a)->over_ns > (*b)->over_ns;
}

static size_t skip_placed(struct history_write *const *at, size_t i, size_t n)
{
    while (i < n && at[i]->is_placed)
        i++;
    return i;
}

/* Are all writes placed that precede this ready one? Of the unplaced displacing writes (without the write
 * itself) only the one that is over first needs a check. */
static bool is_free(const struct order *o, const struct history_write *v)
{
    size_t i = skip_placed(o->displacing, o->next_displacing, o->ndisplacing);
    if (i < o->ndisplacing && o->displacing[i] == v)
        i = skip_placed(o->displacing, i + 1, o->ndisplacing);
    return i == o->ndisplacing || !comes_before(o->displacing[i], v);
}

/* Places one write. False: no ready write is free. */
static bool place_one(struct order *o)
{
    o->next_end = skip_placed(o->by_end, o->next_end, o->n);
    o->next_displacing = skip_placed(o->displacing, o->next_displacing, o->ndisplacing);
    while (o->next_start < o->n &&
           o->by_start[o->next_start]->op->start_ns <= o->by_end[o->next_end]->over_ns)
        o->ready[o->nready++] = o->by_start[o->next_start++];
    for (size_t i = 0; i < o->nready; i++) {
        struct history_write *v = o->ready[i];
        if (!is_free(o, v))
            continue;
        v->is_placed = true;
        o->ready[i] = o->ready[--o->nready];
        return true;
    }
    return false;
}

/* --- the shortest cycle ------------------------------------------------------------------------- */

/* Reports the writes of a cycle, from `last` back to `start`, and the gets that prove it. */
static void report_cycle(struct history_report *r, struct history_write *const *at, const size_t *from,
                         size_t start, size_t last)
{
    const struct history_op *parts[HISTORY_PARTS_MAX + 3];
    size_t n = 0, i = last, next = start;
    for (;; next = i, i = from[i]) {
        parts[n++] = at[i]->op;
        if (at[i]->over_ns != at[i]->op->gone_ns)
            parts[n++] = at[i]->seen;
        if (at[i]->over_ns >= at[next]->op->start_ns)
            parts[n++] = at[next]->last;
        if (i == start || n >= HISTORY_PARTS_MAX)
            break;
    }
    history_found(r, HISTORY_IN_TURN, parts, n);
}

/* Breadth-first search from `start` for a write that precedes `start`. Returns the length of the cycle; 0:
 * none shorter than `most`. */
static size_t cycle_from(struct history_write *const *at, size_t n, size_t start, size_t most, size_t *from,
                         size_t *queue, size_t *last_p)
{
    size_t head = 0, tail = 0, length = 1, level_end = 1;
    for (size_t i = 0; i < n; i++)
        from[i] = SIZE_MAX;
    queue[tail++] = start;
    while (head < tail && length < most) {
        size_t w = queue[head++];
        if (w != start && comes_before(at[w], at[start])) {
            *last_p = w;
            return length;
        }
        for (size_t v = 0; v < n; v++)
            if (v != start && from[v] == SIZE_MAX && comes_before(at[w], at[v])) {
                from[v] = w;
                queue[tail++] = v;
            }
        if (head == level_end) {
            length++;
            level_end = tail;
        }
    }
    return 0;
}

static void find_cycle(struct history_report *r, struct history_write *const *at, size_t n, size_t *from,
                       size_t *queue)
{
    size_t best = SIZE_MAX, best_start = 0, last;
    for (size_t start = 0; start < n && best > 2; start++) {
        size_t length = cycle_from(at, n, start, best, from, queue, &last);
        if (length) {
            best = length;
            best_start = start;
        }
    }
    if (best != SIZE_MAX && cycle_from(at, n, best_start, SIZE_MAX, from, queue, &last))
        report_cycle(r, at, from, best_start, last);
    else
        history_found(r, HISTORY_IN_TURN, NULL, 0);
}

/* Searches the writes that are not placed, the earliest first. They contain a cycle. */
static bool report(struct order *o, struct history_report *r)
{
    size_t n = 0, *from = malloc(2 * CYCLE_NODES_MAX * sizeof *from);
    if (!from)
        return false;
    for (size_t i = 0; i < o->n && n < CYCLE_NODES_MAX; i++)
        if (!o->by_start[i]->is_placed)
            o->by_end[n++] = o->by_start[i];
    find_cycle(r, o->by_end, n, from, from + CYCLE_NODES_MAX);
    free(from);
    return true;
}

/* --- one key ------------------------------------------------------------------------------------ */

static void fill(struct order *o, struct history_key *k)
{
    for (size_t i = 0; i < k->nwrites; i++)
        if (k->writes[i].is_in_order)
            o->by_start[o->n++] = &k->writes[i];
    memcpy(o->by_end, o->by_start, o->n * sizeof *o->by_end);
    qsort(o->by_start, o->n, sizeof *o->by_start, by_start);
    qsort(o->by_end, o->n, sizeof *o->by_end, by_end);
    o->displacing = k->displacing;
    o->ndisplacing = k->ndisplacing;
}

bool history_check_order(struct history_key *k, struct history_report *r)
{
    struct order o = {0};
    struct history_write **room = calloc(3 * (k->nwrites + 1), sizeof *room);
    bool ok = true;
    if (!room)
        return false;
    o.by_start = room;
    o.by_end = room + k->nwrites;
    o.ready = room + 2 * k->nwrites;
    fill(&o, k);
    for (size_t placed = 0; placed < o.n; placed++)
        if (!place_one(&o)) {
            ok = report(&o, r);
            break;
        }
    free(room);
    return ok;
}
