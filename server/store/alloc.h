/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extent allocator over offsets: two-level segregated fit (M. Masmano et al., "TLSF: a new dynamic
 * memory allocator for real-time systems", ECRTS 2004), with its headers out of band, since a GPU
 * pool cannot hold them. Knows numbers only. One thread.
 */
#ifndef TARN_SERVER_ALLOC_H
#define TARN_SERVER_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

struct tarn_alloc;

#define TARN_ALLOC_NONE UINT64_MAX

/* Manages [0, bytes). Every extent begins at, and is rounded up to, a multiple of align (a power of two, >=
 * 64). */
int tarn_alloc_new(uint64_t bytes, uint64_t align, struct tarn_alloc **a_p);
void tarn_alloc_free(struct tarn_alloc *a);

/*
 * Offset of a new extent of at least `bytes` (0 counts as 1), or TARN_ALLOC_NONE when no hole is
 * large enough. *handle_p is what the extent is freed by. `owner` is the caller's tag (a slot).
 */
uint64_t tarn_extent_new(struct tarn_alloc *a, uint64_t bytes, uint32_t owner, uint32_t *handle_p);
/*
 * For a pool taken over: takes the range of an extent that lies there already. Ranges come in the order of
 * their offsets. *top_p is UINT32_MAX at the first, and then left alone. False: not a range of its own, or
 * out of memory.
 */
bool tarn_extent_take(struct tarn_alloc *a, uint64_t offset, uint64_t bytes, uint32_t owner, uint32_t *top_p,
                      uint32_t *handle_p);
void tarn_extent_free(struct tarn_alloc *a, uint32_t handle);

/* The size that such a request takes, rounding included. */
uint64_t tarn_extent_round(const struct tarn_alloc *a, uint64_t bytes);

/*
 * Neighbours, for eviction that needs a hole: what lies at the next-lower (dir < 0) or next-higher
 * address of extent `handle`; with handle UINT32_MAX and dir > 0 the lowest extent. Returns the neighbour's
 * handle or UINT32_MAX at the pool's edge; *bytes_p its size, *owner_p its owner, or UINT32_MAX when it is a
 * hole.
 */
uint32_t tarn_extent_neighbour(const struct tarn_alloc *a, uint32_t handle, int dir, uint64_t *bytes_p,
                               uint32_t *owner_p);

struct tarn_alloc_stats {
    uint64_t bytes, used, largest_hole, holes, extents;
};
void tarn_alloc_stats(const struct tarn_alloc *a, struct tarn_alloc_stats *s);

#endif
