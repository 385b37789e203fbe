/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of strided pieces: the defaults of a piece, checks, and contiguous runs in order. */
#ifndef TARN_TRANSPORT_PIECES_H
#define TARN_TRANSPORT_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <tarn/tarn.h>

/* Bytes from one run of a piece to the next, and the number of runs, with the defaults of tarn.h. */
static inline uint64_t tarn_piece_stride(const struct tarn_piece *p)
{
    return p->stride ? p->stride : p->bytes;
}
static inline uint64_t tarn_piece_count(const struct tarn_piece *p)
{
    return p->count ? p->count : 1;
}
/* Bytes from the first byte of a piece to its last. */
static inline uint64_t tarn_piece_span(const struct tarn_piece *p)
{
    return (tarn_piece_count(p) - 1) * tarn_piece_stride(p) + p->bytes;
}

/* Has it bytes in [addr, addr + bytes), or between its runs there? */
static inline bool tarn_piece_overlaps(const struct tarn_piece *p, const void *addr, uint64_t bytes)
{
    uintptr_t from = (uintptr_t)p->addr, to = from + tarn_piece_span(p);

    return from < (uintptr_t)addr + bytes && (uintptr_t)addr < to;
}

/* INVALID when pieces of item number `item` cannot be memory; `what` begins the sentence. */
int tarn_pieces_check(const char *what, size_t item, const struct tarn_piece *pieces, uint32_t n);
/* How many pieces are checked at first. A long list is read only once, when its bytes are moved. */
static inline uint32_t tarn_first_pieces(uint32_t n)
{
    return n < 8 ? n : 8;
}
/* Total bytes; UINT64_MAX when it overflows. */
uint64_t tarn_pieces_bytes(const struct tarn_piece *pieces, uint32_t n);
/* A position in a list of strided pieces. Zero it to start. */
struct tarn_cursor {
    uint32_t piece;
    uint64_t run, done; /* run within the piece, bytes done of the run */
};
/* The position of byte `offset`; the end if the pieces have fewer bytes. Their total must not overflow. */
struct tarn_cursor tarn_cursor_at(const struct tarn_piece *pieces, uint32_t n, uint64_t offset);
/* Advances the cursor over the next contiguous run of at most `max` bytes. Returns its size; 0 at the end.
 * Merges runs that touch. */
uint64_t tarn_cursor_next(struct tarn_cursor *c, const struct tarn_piece *pieces, uint32_t n, uint64_t max,
                          void **addr_p);
/* Moves the cursor on by `bytes`. The pieces must have as many left. */
void tarn_cursor_skip(struct tarn_cursor *c, const struct tarn_piece *pieces, uint32_t n, uint64_t bytes);

/* The runs of a lease, for quick access to any of their bytes. The lender has addresses, a peer offsets in
 * the window. */
struct tarn_runs {
    uint32_t n;
    struct tarn_piece *piece; /* n */
    uint64_t *before;         /* n: bytes of the pieces before it */
    uint64_t bytes, end;      /* in all; and where the last byte's run ends */
};
/* Room for n pieces, which are zero. False: out of memory. */
bool tarn_runs_new(struct tarn_runs *r, uint32_t n);
void tarn_runs_free(struct tarn_runs *r);
/* Counts the bytes, once all pieces are set. False: they have more than 2^64, or wrap around. */
bool tarn_runs_count(struct tarn_runs *r);
/* Advances two cursors, one in runs and one in pieces, over bytes that are contiguous in both, at most `max`.
 * Returns how many. Both must have as many left. */
uint64_t tarn_cursor_next_both(struct tarn_cursor *far, const struct tarn_runs *r, struct tarn_cursor *near,
                               const struct tarn_piece *pieces, uint32_t n, uint64_t max, void **far_p,
                               void **near_p);
/* The position of byte `offset`; the end if they have fewer. */
struct tarn_cursor tarn_runs_at(const struct tarn_runs *r, uint64_t offset);

#endif
