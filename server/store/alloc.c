/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two-level segregated fit, out of band, in bands.
 *
 * The pool is cut into extents, used or holes, which lie side by side without gaps; each is a node of
 * one array, linked to the nodes below and above it in address. Two neighbouring holes are always
 * merged. Sizes and places are kept in units of `align`.
 *
 * A hole is in a list of holes of its size class. Classes split every power of two into
 * CLASSES_A_ROW steps, and two levels of bitmaps find the next class that has a hole.
 *
 * Placement decides how full a pool gets before a large request is refused. With best fit alone small objects
 * settle between large ones, and the holes of large ones never join again. So the address space is cut into
 * BANDS bands, each with its own class lists. Each band offers its best fit. The cheapest offer is taken; its
 * cost is the logarithm of what would be left of the hole, plus the number of extents below the band for a
 * small request, above it for a large one. Extents are counted, not bytes, so the small objects' region has a
 * fine scale however narrow it is. Small objects gather at the low end, large ones at the high end. On 1 GiB
 * with churn of 4 KiB to 4 MiB, a pool can stay 85 % full; best fit alone refuses there.
 */
#include "server/store/alloc.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"
#include "server/store/alloc_impl.h"

#define SCAN_MAX 8                 /* holes of a class and band that are compared for the best fit */
#define LAST_SCAN_MAX 1024         /* holes looked at before a request is refused */
#define LARGE_PART 800             /* larger than that part of the pool is large */
#define LOG_ONE 256                /* log2 is in 1/256 */
#define PLACE_WEIGHT (7 * LOG_ONE) /* the far end weighs as much as 2^7 times the rest */

/* --- size classes ------------------------------------------------------------------------------- */

/* The band's first class from `c` on that has a hole, or NONE. */
static uint32_t class_next(const struct band *b, uint32_t c)
{
    uint32_t row = c / CLASSES_A_ROW;
    if (row >= ROWS)
        return NONE;
    uint32_t bits = b->columns[row] & (UINT32_MAX << c % CLASSES_A_ROW);
    if (!bits) {
        uint64_t rows = b->rows & ~((2ull << row) - 1);
        if (!rows)
            return NONE;
        row = (uint32_t)__builtin_ctzll(rows);
        bits = b->columns[row];
    }
    return row * CLASSES_A_ROW + (uint32_t)__builtin_ctz(bits);
}

static struct band *band_of(struct tarn_alloc *a, const struct extent *e)
{
    return &a->bands[e->at / a->band_units];
}

static void hole_link(struct tarn_alloc *a, uint32_t i)
{
    struct extent *e = &a->nodes[i];
    struct band *b = band_of(a, e);
    uint32_t c = class_of(e->units);
    e->owner = NONE;
    e->prev = NONE;
    e->next = b->heads[c] - 1; /* 0 becomes NONE */
    if (e->next != NONE)
        a->nodes[e->next].prev = i;
    b->heads[c] = i + 1;
    b->columns[c / CLASSES_A_ROW] |= 1u << c % CLASSES_A_ROW;
    b->rows |= 1ull << c / CLASSES_A_ROW;
    a->holes++;
}

/* To be called before its place or size changes. */
static void hole_unlink(struct tarn_alloc *a, uint32_t i)
{
    struct extent *e = &a->nodes[i];
    struct band *b = band_of(a, e);
    uint32_t c = class_of(e->units);
    if (e->next != NONE)
        a->nodes[e->next].prev = e->prev;
    if (e->prev != NONE)
        a->nodes[e->prev].next = e->next;
    else
        b->heads[c] = e->next + 1;
    if (!b->heads[c]) {
        b->columns[c / CLASSES_A_ROW] &= ~(1u << c % CLASSES_A_ROW);
        if (!b->columns[c / CLASSES_A_ROW])
            b->rows &= ~(1ull << c / CLASSES_A_ROW);
    }
    a->holes--;
}

/* --- nodes -------------------------------------------------------------------------------------- */

static uint32_t node_new(struct tarn_alloc *a)
{
    uint32_t i = a->unused;
    if (i != NONE) {
        a->unused = a->nodes[i].above;
        return i;
    }
    if (a->nnodes == a->room) {
        uint64_t room = a->room ? 2ull * a->room : 64;
        if (room > NONE)
            return NONE;
        struct extent *nodes = realloc(a->nodes, room * sizeof(*nodes));
        if (!nodes)
            return NONE;
        a->nodes = nodes;
        a->room = (uint32_t)room;
    }
    return a->nnodes++;
}

static void node_drop(struct tarn_alloc *a, uint32_t i)
{
    a->nodes[i].units = 0;
    a->nodes[i].above = a->unused;
    a->unused = i;
}

/* Puts a node for [at, at + units) above node `low`, which has been shortened for it. */
static uint32_t node_insert_above(struct tarn_alloc *a, uint32_t low, uint64_t at, uint64_t units)
{
    uint32_t i = node_new(a);
    if (i == NONE)
        return NONE;
    struct extent *e = &a->nodes[i];
    *e = (struct extent){.at = at, .units = units, .below = low, .above = a->nodes[low].above, .owner = NONE};
    if (e->above != NONE)
        a->nodes[e->above].below = i;
    a->nodes[low].above = i;
    return i;
}

/* Makes `low` swallow the node above it. */
static void node_merge_above(struct tarn_alloc *a, uint32_t low)
{
    uint32_t high = a->nodes[low].above;
    a->nodes[low].units += a->nodes[high].units;
    a->nodes[low].above = a->nodes[high].above;
    if (a->nodes[low].above != NONE)
        a->nodes[a->nodes[low].above].below = low;
    node_drop(a, high);
}

/* --- extents ------------------------------------------------------------------------------------ */

int tarn_alloc_new(uint64_t bytes, uint64_t align, struct tarn_alloc **a_p)
{
    if (align < 64 || (align & (align - 1)) || bytes < align)
        return tarn_fail(TARN_E_INVALID, "allocator: %llu bytes in units of %llu are no pool",
                         (unsigned long long)bytes, (unsigned long long)align);
    struct tarn_alloc *a = calloc(1, sizeof(*a));
    if (!a)
        return tarn_fail(TARN_E_NO_MEMORY, "allocator: out of memory");
    a->shift = (uint32_t)__builtin_ctzll(align);
    a->units = bytes >> a->shift;
    a->band_units = (a->units - 1) / BANDS + 1;
    a->unused = NONE;
    uint32_t whole = node_new(a);
    if (whole == NONE) {
        free(a);
        return tarn_fail(TARN_E_NO_MEMORY, "allocator: out of memory");
    }
    a->nodes[whole] = (struct extent){.units = a->units, .below = NONE, .above = NONE};
    hole_link(a, whole);
    *a_p = a;
    return 0;
}

void tarn_alloc_free(struct tarn_alloc *a)
{
    if (!a)
        return;
    free(a->nodes);
    free(a);
}

static uint64_t units_of(const struct tarn_alloc *a, uint64_t bytes)
{
    return bytes ? ((bytes - 1) >> a->shift) + 1 : 1;
}

uint64_t tarn_extent_round(const struct tarn_alloc *a, uint64_t bytes)
{
    return units_of(a, bytes) << a->shift;
}

/* --- choosing a hole ---------------------------------------------------------------------------- */

/* The smallest hole of a class with at least `units`, among the first *looks. */
static uint32_t best_of_class(const struct tarn_alloc *a, const struct band *b, uint32_t c, uint64_t units,
                              uint32_t *looks)
{
    uint32_t best = NONE;
    for (uint32_t i = b->heads[c] - 1; i != NONE && *looks > 0; i = a->nodes[i].next, --*looks) {
        if (a->nodes[i].units >= units && (best == NONE || a->nodes[i].units < a->nodes[best].units))
            best = i;
        if (a->nodes[i].units == units)
            break;
    }
    return best;
}

/* A band's best fit, or nearly. A hole of the request's own class may be missed if there are many. */
static uint32_t best_of_band(const struct tarn_alloc *a, const struct band *b, uint64_t units)
{
    uint32_t own = class_of(units), looks = SCAN_MAX;
    uint32_t i = best_of_class(a, b, own, units, &looks);
    if (i != NONE)
        return i;
    uint32_t c = class_next(b, own + 1);
    looks = SCAN_MAX;
    return c != NONE ? best_of_class(a, b, c, units, &looks) : NONE;
}

/* log2, linear between powers of two. */
static int64_t log_of(uint64_t x)
{
    int k = 63 - __builtin_clzll(x);
    return (int64_t)k * LOG_ONE + (int64_t)(((x - (1ull << k)) * LOG_ONE) >> k);
}

/* The hole for a request; small ones prefer few extents below it, large ones few above it. */
static uint32_t choose_hole(const struct tarn_alloc *a, uint64_t units, bool large)
{
    uint32_t best = NONE;
    int64_t best_cost = INT64_MAX;
    uint64_t below = 0, all = a->extents ? a->extents : 1;
    for (const struct band *b = a->bands; b < a->bands + BANDS; below += b->extents, b++) {
        uint32_t i = b->rows ? best_of_band(a, b, units) : NONE;
        if (i == NONE)
            continue;
        uint64_t far = large ? a->extents - below : below;
        int64_t cost = log_of(a->nodes[i].units - units + 1) + (int64_t)(far * PLACE_WEIGHT / all);
        if (cost < best_cost) {
            best = i;
            best_cost = cost;
        }
    }
    return best;
}

/* Before refusing: holes of the request's own class that were not looked at. */
static uint32_t choose_overlooked(const struct tarn_alloc *a, uint64_t units)
{
    uint32_t looks = LAST_SCAN_MAX, best = NONE;
    for (const struct band *b = a->bands; best == NONE && b < a->bands + BANDS; b++)
        best = best_of_class(a, b, class_of(units), units, &looks);
    return best;
}

/* --- using it ----------------------------------------------------------------------------------- */

/* Cuts `units` from the low or the high end of hole i; the node of that part, or NONE. */
static uint32_t cut(struct tarn_alloc *a, uint32_t i, uint64_t units, bool high)
{
    uint64_t at = a->nodes[i].at, left = a->nodes[i].units - units;
    if (!left) {
        hole_unlink(a, i);
        return i;
    }
    uint64_t low_units = high ? left : units;
    uint32_t upper = node_insert_above(a, i, at + low_units, high ? units : left);
    if (upper == NONE)
        return NONE;
    hole_unlink(a, i);
    a->nodes[i].units = low_units;
    hole_link(a, high ? i : upper);
    return high ? upper : i;
}

uint64_t tarn_extent_new(struct tarn_alloc *a, uint64_t bytes, uint32_t owner, uint32_t *handle_p)
{
    uint64_t units = units_of(a, bytes);
    bool large = units > a->units / LARGE_PART;
    uint32_t i = choose_hole(a, units, large);
    if (i == NONE)
        i = choose_overlooked(a, units);
    if (i != NONE)
        i = cut(a, i, units, large);
    if (i == NONE)
        return TARN_ALLOC_NONE;
    a->nodes[i].owner = owner;
    a->used += units;
    a->extents++;
    band_of(a, &a->nodes[i])->extents++;
    *handle_p = i;
    return a->nodes[i].at << a->shift;
}

/* The hole above the last extent taken. `above` NONE: that one ended the pool. */
static uint32_t hole_at_the_top(const struct tarn_alloc *a, uint32_t last)
{
    return last == NONE ? LOWEST : a->nodes[last].above;
}

bool tarn_extent_take(struct tarn_alloc *a, uint64_t offset, uint64_t bytes, uint32_t owner, uint32_t *top_p,
                      uint32_t *handle_p)
{
    uint64_t units = units_of(a, bytes), at = offset >> a->shift;
    uint32_t i = hole_at_the_top(a, *top_p);
    if (i == NONE || offset != at << a->shift || units > a->units || at < a->nodes[i].at ||
        at > a->units - units)
        return false;
    if (at > a->nodes[i].at) { /* what lies between stays a hole */
        uint32_t low = cut(a, i, at - a->nodes[i].at, false);
        if (low == NONE)
            return false;
        hole_link(a, low);
        i = a->nodes[low].above;
    }
    i = cut(a, i, units, false);
    if (i == NONE)
        return false;
    a->nodes[i].owner = owner;
    a->used += units;
    a->extents++;
    band_of(a, &a->nodes[i])->extents++;
    *top_p = *handle_p = i;
    return true;
}

static bool is_hole(const struct tarn_alloc *a, uint32_t i)
{
    return i != NONE && a->nodes[i].owner == NONE;
}

void tarn_extent_free(struct tarn_alloc *a, uint32_t handle)
{
    uint32_t i = handle;
    a->used -= a->nodes[i].units;
    a->extents--;
    band_of(a, &a->nodes[i])->extents--;
    if (is_hole(a, a->nodes[i].above)) {
        hole_unlink(a, a->nodes[i].above);
        node_merge_above(a, i);
    }
    if (is_hole(a, a->nodes[i].below)) {
        i = a->nodes[i].below;
        hole_unlink(a, i);
        node_merge_above(a, i);
    }
    hole_link(a, i);
}

uint32_t tarn_extent_neighbour(const struct tarn_alloc *a, uint32_t handle, int dir, uint64_t *bytes_p,
                               uint32_t *owner_p)
{
    uint32_t i;
    if (handle == NONE)
        i = dir > 0 ? LOWEST : NONE;
    else
        i = dir < 0 ? a->nodes[handle].below : a->nodes[handle].above;
    if (i == NONE)
        return NONE;
    *bytes_p = a->nodes[i].units << a->shift;
    *owner_p = a->nodes[i].owner;
    return i;
}

static uint64_t largest_of_band(const struct tarn_alloc *a, const struct band *b)
{
    uint64_t largest = 0;
    if (!b->rows)
        return 0;
    uint32_t row = 63 - (uint32_t)__builtin_clzll(b->rows);
    uint32_t c = row * CLASSES_A_ROW + 31 - (uint32_t)__builtin_clz(b->columns[row]);
    for (uint32_t i = b->heads[c] - 1; i != NONE; i = a->nodes[i].next)
        largest = a->nodes[i].units > largest ? a->nodes[i].units : largest;
    return largest;
}

void tarn_alloc_stats(const struct tarn_alloc *a, struct tarn_alloc_stats *s)
{
    uint64_t largest = 0;
    for (const struct band *b = a->bands; b < a->bands + BANDS; b++) {
        uint64_t units = largest_of_band(a, b);
        largest = units > largest ? units : largest;
    }
    *s = (struct tarn_alloc_stats){
        .bytes = a->units << a->shift,
        .used = a->used << a->shift,
        .largest_hole = largest << a->shift,
        .holes = a->holes,
        .extents = a->extents,
    };
}
