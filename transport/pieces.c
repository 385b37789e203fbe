/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of strided pieces as a sequence of contiguous runs. */
#include "transport/pieces.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"

/* A piece with its defaults filled in, and as one run when its runs touch. */
struct runs {
    char *addr;
    uint64_t bytes, stride, count;
};

static struct runs runs_of(const struct tarn_piece *p)
{
    struct runs r = {p->addr, p->bytes, tarn_piece_stride(p), tarn_piece_count(p)};
    if (r.stride == r.bytes) {
        r.bytes *= r.count;
        r.count = 1;
    }
    return r;
}

/* The last run lies behind the end of what a pointer can reach. */
static bool wraps(const struct tarn_piece *p)
{
    uint64_t last;
    return __builtin_mul_overflow(tarn_piece_stride(p), p->count - 1, &last) ||
           __builtin_add_overflow(last, p->bytes, &last) ||
           __builtin_add_overflow(last, (uintptr_t)p->addr, &last);
}

int tarn_pieces_check(const char *what, size_t item, const struct tarn_piece *pieces, uint32_t n)
{
    if (n > 0 && !pieces)
        return tarn_fail(TARN_E_INVALID, "%s: item %zu: pieces are NULL: give them, or set npieces to 0",
                         what, item);
    for (uint32_t k = 0; k < n; k++) {
        if (!pieces[k].addr && pieces[k].bytes)
            return tarn_fail(TARN_E_INVALID, "%s: item %zu: piece %u has no address: give that of its memory",
                             what, item, k);
        if (pieces[k].count > 1 && wraps(&pieces[k]))
            return tarn_fail(
                TARN_E_INVALID,
                "%s: item %zu: piece %u reaches past all memory: correct its bytes, stride and count", what,
                item, k);
    }
    return 0;
}

uint64_t tarn_pieces_bytes(const struct tarn_piece *pieces, uint32_t n)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t piece;
        if (__builtin_mul_overflow(pieces[i].bytes, tarn_piece_count(&pieces[i]), &piece) ||
            __builtin_add_overflow(total, piece, &total))
            return UINT64_MAX;
    }
    return total;
}

/* The position of byte `offset` of a piece that has more. */
static struct tarn_cursor within(const struct tarn_piece *pieces, uint32_t piece, uint64_t offset)
{
    struct runs r = runs_of(&pieces[piece]);
    return (struct tarn_cursor){.piece = piece, .run = offset / r.bytes, .done = offset % r.bytes};
}

struct tarn_cursor tarn_cursor_at(const struct tarn_piece *pieces, uint32_t n, uint64_t offset)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = pieces[i].bytes * tarn_piece_count(&pieces[i]);
        if (offset < bytes)
            return within(pieces, i, offset);
        offset -= bytes;
    }
    return (struct tarn_cursor){.piece = n};
}

uint64_t tarn_cursor_next(struct tarn_cursor *c, const struct tarn_piece *pieces, uint32_t n, uint64_t max,
                          void **addr_p)
{
    char *start = NULL;
    uint64_t got = 0;
    /* Most lists are one plain piece, and most calls ask for the rest of it. */
    if (n == 1 && c->piece == 0 && c->run == 0 && pieces->count <= 1 && pieces->bytes > 0 &&
        pieces->bytes - c->done <= max) {
        got = pieces->bytes - c->done;
        *addr_p = (char *)pieces->addr + c->done;
        *c = (struct tarn_cursor){.run = 1};
        return got;
    }
    while (c->piece < n && got < max) {
        struct runs r = runs_of(&pieces[c->piece]);
        if (c->run == r.count || r.bytes == 0) {
            *c = (struct tarn_cursor){.piece = c->piece + 1};
            continue;
        }
        char *at = r.addr + c->run * r.stride + c->done;
        if (got && at != start + got)
            break;
        if (!got)
            start = at;
        uint64_t take = r.bytes - c->done < max - got ? r.bytes - c->done : max - got;
        got += take;
        c->done += take;
        if (c->done == r.bytes) {
            c->done = 0;
            c->run++;
        }
    }
    *addr_p = start;
    return got;
}

void tarn_cursor_skip(struct tarn_cursor *c, const struct tarn_piece *pieces, uint32_t n, uint64_t bytes)
{
    while (bytes > 0) {
        void *addr;
        bytes -= tarn_cursor_next(c, pieces, n, bytes, &addr);
    }
}

/* --- runs of a lease ---------------------------------------------------------------------------- */

bool tarn_runs_new(struct tarn_runs *r, uint32_t n)
{
    *r = (struct tarn_runs){.n = n};
    r->piece = calloc(n, sizeof(*r->piece));
    r->before = calloc(n, sizeof(*r->before));
    return r->piece && r->before;
}

void tarn_runs_free(struct tarn_runs *r)
{
    free(r->piece);
    free(r->before);
}

bool tarn_runs_count(struct tarn_runs *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const struct tarn_piece *p = &r->piece[i];
        uint64_t bytes, end;
        if (__builtin_mul_overflow(tarn_piece_count(p), p->bytes, &bytes) ||
            __builtin_mul_overflow(tarn_piece_count(p) - 1, tarn_piece_stride(p), &end) ||
            __builtin_add_overflow(end, p->bytes, &end) ||
            __builtin_add_overflow(end, (uintptr_t)p->addr, &end))
            return false;
        r->before[i] = r->bytes;
        if (__builtin_add_overflow(r->bytes, bytes, &r->bytes))
            return false;
        if (end > r->end)
            r->end = end;
    }
    return true;
}

/* The rest of the piece at the cursor. False: that piece is empty, or has several runs, or is the end. */
static inline bool rest_of_plain(struct tarn_cursor *c, const struct tarn_piece *pieces, uint32_t n,
                                 char **at_p, uint64_t *bytes_p)
{
    if (c->run == 1 && c->piece < n && pieces[c->piece].count <= 1)
        *c = (struct tarn_cursor){.piece = c->piece + 1};
    if (c->piece >= n || pieces[c->piece].count > 1)
        return false;
    *at_p = (char *)pieces[c->piece].addr + c->done;
    *bytes_p = pieces[c->piece].bytes - c->done;
    return *bytes_p > 0;
}

/* Moves the cursor on within a plain piece. */
static inline void take_plain(struct tarn_cursor *c, uint64_t bytes, uint64_t left)
{
    c->done += bytes;
    if (bytes == left)
        *c = (struct tarn_cursor){.piece = c->piece + 1};
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t tarn_cursor_next_both(struct tarn_cursor *far, const struct tarn_runs *r, struct tarn_cursor *near,
                               const struct tarn_piece *pieces, uint32_t n, uint64_t max, void **far_p,
                               void **near_p)
{
    char *a, *b, *first = NULL, *second = NULL;
    uint64_t got = 0, of_a, of_b;
    /* Most are plain, and there may be thousands. */
    while (got < max && rest_of_plain(far, r->piece, r->n, &a, &of_a) &&
           rest_of_plain(near, pieces, n, &b, &of_b) &&
           (got == 0 || (a == first + got && b == second + got))) {
        uint64_t take = least(least(of_a, of_b), max - got);
        first = got ? first : a;
        second = got ? second : b;
        got += take;
        take_plain(far, take, of_a);
        take_plain(near, take, of_b);
    }
    *far_p = first;
    *near_p = second;
    if (got > 0)
        return got;
    struct tarn_cursor begin = *far;
    uint64_t bytes = tarn_cursor_next(far, r->piece, r->n, max, far_p);
    uint64_t room = tarn_cursor_next(near, pieces, n, bytes, near_p);
    if (room < bytes) {
        *far = begin;
        tarn_cursor_skip(far, r->piece, r->n, room);
    }
    return room;
}

struct tarn_cursor tarn_runs_at(const struct tarn_runs *r, uint64_t offset)
{
    uint32_t low = 0, high = r->n; /* it is in [low, high) */
    if (offset >= r->bytes)
        return (struct tarn_cursor){.piece = r->n};
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (r->before[middle] <= offset)
            low = middle;
        else
            high = middle;
    }
    return within(r->piece, low, offset - r->before[low]);
}
