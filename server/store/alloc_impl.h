/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the allocator, for alloc.c and the test that walks its invariants. */
#ifndef TARN_SERVER_ALLOC_IMPL_H
#define TARN_SERVER_ALLOC_IMPL_H

#include <stdint.h>

#define NONE UINT32_MAX
#define LOWEST 0 /* the extent at 0: splitting and merging keep the lower node */
#define ROW_BITS 5
#define CLASSES_A_ROW (1u << ROW_BITS)
#define ROWS (64 - ROW_BITS + 1)
#define CLASSES (ROWS * CLASSES_A_ROW)
#define BANDS 32

struct extent {
    uint64_t at, units;    /* units 0: the node is unused */
    uint32_t below, above; /* neighbours in address; above also links unused nodes */
    uint32_t prev, next;   /* holes of the same band and class */
    uint32_t owner;        /* NONE: a hole */
};

/* Holes that begin in a part of the pool. Zero is empty, so that a new one takes no memory. */
struct band {
    uint64_t rows; /* which rows have a hole */
    uint32_t columns[ROWS];
    uint32_t heads[CLASSES]; /* plus 1 */
    uint64_t extents;        /* used ones that begin here */
};

struct tarn_alloc {
    uint64_t units, used; /* in units */
    uint64_t band_units;
    uint32_t shift; /* log2 of a unit */
    uint64_t holes, extents;
    struct extent *nodes;
    uint32_t nnodes, room; /* nodes ever used; nodes there is memory for */
    uint32_t unused;       /* first unused node below nnodes */
    struct band bands[BANDS];
};

/* The size class of a hole. */
static inline uint32_t class_of(uint64_t units)
{
    if (units < CLASSES_A_ROW)
        return (uint32_t)units;
    uint32_t row = 63 - (uint32_t)__builtin_clzll(units) - ROW_BITS;
    return (row + 1) * CLASSES_A_ROW + (uint32_t)(units >> row) % CLASSES_A_ROW;
}

#endif
