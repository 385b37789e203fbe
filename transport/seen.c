/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/seen.h"

#include "base/error.h"

#define LONG 16 /* pieces; looking at fewer takes no time beside a launch */

uint32_t tarn_memory_gpu(const struct tarn_cuda_memory *m)
{
    return m->kind == TARN_CUDA_DEVICE ? (uint32_t)m->device + 1 : 0;
}

/* The range that an address lies in: most follow the last one, or the one that followed that before. Pageable
 * memory has no ranges to remember. */
struct tarn_seen_range tarn_seen_range(struct tarn_seen *seen, uintptr_t at)
{
    struct tarn_cuda_memory m;

    for (uint32_t i = 0, k = seen->last; i < seen->n; i++, k++) {
        k = k < seen->n ? k : 0;
        if (at >= seen->ranges[k].begin && at < seen->ranges[k].end) {
            seen->last = k;
            return seen->ranges[k];
        }
    }
    tarn_cuda_memory_of((const void *)at, &m);
    const struct tarn_seen_range found = {m.begin, m.end, tarn_memory_gpu(&m)};
    if (m.end - m.begin > 1) {
        seen->last = seen->n < TARN_SEEN_MAX ? seen->n++ : (seen->last + 1) % TARN_SEEN_MAX;
        seen->ranges[seen->last] = found;
    }
    return found;
}

/* What one pass over a list gives. */
struct summary {
    uintptr_t low, high; /* all pieces lie between */
    uint64_t bytes;      /* UINT64_MAX: too many to count */
};

static struct summary sum_up(const struct tarn_piece *pieces, uint32_t n)
{
    struct summary s = {.low = UINTPTR_MAX};
    bool over = false;

    for (const struct tarn_piece *p = pieces; p < pieces + n; p++) {
        uint64_t bytes = p->bytes;
        uintptr_t at = (uintptr_t)p->addr, end = at + bytes;
        if (p->count > 1)
            end = at + tarn_piece_span(p);
        if (bytes == 0)
            continue;
        if (p->count > 1)
            over |= __builtin_mul_overflow(bytes, p->count, &bytes);
        over |= __builtin_add_overflow(s.bytes, bytes, &s.bytes);
        over |= end < at;
        s.low = at < s.low ? at : s.low;
        s.high = end > s.high ? end : s.high;
    }
    if (over)
        s.bytes = UINT64_MAX;
    return s;
}

static const struct tarn_piece *first_of(const struct tarn_piece *pieces, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (pieces[i].bytes > 0)
            return &pieces[i];
    return NULL;
}

static int without_address(const struct tarn_piece *pieces, uint32_t n)
{
    uint32_t i = 0;

    while (i < n && (pieces[i].addr || pieces[i].bytes == 0))
        i++;
    return tarn_fail(TARN_E_INVALID, "piece %u has no address", i);
}

/* Where they lie in more than one allocation: piece by piece. */
static int check_each(const struct tarn_piece *pieces, uint32_t n, struct tarn_seen *seen, uint32_t gpu)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct tarn_piece *p = &pieces[i];
        uintptr_t at = (uintptr_t)p->addr, last = at + tarn_piece_span(p) - 1;
        if (p->bytes == 0)
            continue;
        struct tarn_seen_range r = tarn_seen_range(seen, at);
        if (r.gpu != gpu || (last >= r.end && tarn_seen_range(seen, last).gpu != gpu))
            return tarn_fail(TARN_E_INVALID,
                             "piece %u at %p is not in memory of GPU %u, where the first one is: make it an "
                             "item for each memory",
                             i, p->addr, gpu - 1);
    }
    return 0;
}

int tarn_pieces_gpu(const struct tarn_piece *pieces, uint32_t n, struct tarn_seen *seen, uint32_t *gpu_p)
{
    if (n > 0 && seen->pieces == pieces && seen->npieces == n) {
        *gpu_p = seen->gpu;
        return 0;
    }
    struct summary s = sum_up(pieces, n);
    const struct tarn_piece *first = first_of(pieces, n);
    struct tarn_seen_range r = {0};
    if (first && s.low == 0)
        return without_address(pieces, n);
    if (first)
        r = tarn_seen_range(seen, (uintptr_t)first->addr);
    bool together = s.low >= r.begin && s.high <= r.end && s.bytes != UINT64_MAX;
    int rc = r.gpu && !together ? check_each(pieces, n, seen, r.gpu) : 0;
    if (rc != 0)
        return rc;
    seen->pieces = pieces;
    seen->npieces = n;
    seen->bytes = s.bytes;
    *gpu_p = seen->gpu = r.gpu;
    return 0;
}

uint64_t tarn_seen_bytes(const struct tarn_seen *seen, const struct tarn_piece *pieces, uint32_t n)
{
    bool known = n > 0 && seen->pieces == pieces && seen->npieces == n;

    return known ? seen->bytes : tarn_pieces_bytes(pieces, n);
}

bool tarn_pieces_glance(const struct tarn_piece *pieces, uint32_t n, struct tarn_seen *seen, uint32_t *gpu_p)
{
    if (n < LONG || pieces[0].bytes == 0 || !pieces[0].addr)
        return false;
    *gpu_p = tarn_seen_range(seen, (uintptr_t)pieces[0].addr).gpu;
    return *gpu_p > 0;
}

int tarn_work_look(struct tarn_work *w)
{
    uint32_t gpu;
    int rc = tarn_pieces_gpu(w->pieces, w->npieces, w->seen, &gpu);
    uint64_t bytes = tarn_seen_bytes(w->seen, w->pieces, w->npieces);

    if (rc == 0 && (bytes > w->bytes || (bytes < w->bytes && !w->seen->at_most)))
        rc = TARN_E_SIZE;
    if (rc == 0) {
        w->bytes = bytes;
        w->seen = NULL;
    }
    return rc;
}
