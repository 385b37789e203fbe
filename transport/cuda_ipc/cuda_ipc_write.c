/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cuda_ipc/cuda_ipc_write.h"

#include "base/error.h"
#include "transport/seen.h"

#define LARGE (16ull << 20) /* runs of at least this size go to the copy engines */
#define AHEAD 128           /* how many pieces ahead to prefetch */

static inline struct tarn_cuda_piece piece_of(const struct tarn_ipc_run *r, uint64_t bytes, bool put)
{
    return put ? (struct tarn_cuda_piece){r->memory, r->pool, bytes}
               : (struct tarn_cuda_piece){r->pool, r->memory, bytes};
}

void tarn_ipc_write_large(struct tarn_ipc_writer *o, struct tarn_ipc_run *r)
{
    o->large = piece_of(r, r->bytes, o->put);
    o->end = o->at;
    r->bytes = 0;
}

static inline bool write_run(struct tarn_ipc_writer *o, struct tarn_ipc_run *r)
{
    if (r->bytes >= LARGE && o->at < o->end)
        tarn_ipc_write_large(o, r);
    while (r->bytes > 0) {
        uint64_t n = r->bytes < TARN_CUDA_PIECE_MAX ? r->bytes : TARN_CUDA_PIECE_MAX;
        if (o->at == o->end)
            return false;
        *o->at++ = piece_of(r, n, o->put);
        o->bytes += n;
        *r = (struct tarn_ipc_run){r->pool + n, r->memory + n, r->bytes - n};
    }
    return true;
}

bool tarn_ipc_write_run(struct tarn_ipc_writer *o, struct tarn_ipc_run *r)
{
    return write_run(o, r);
}

/* The next contiguous range of a work's pieces; false at the end. */
static inline bool next_range(struct tarn_cursor *c, const struct tarn_work *w, uint8_t **addr,
                              uint64_t *bytes)
{
    while (c->piece < w->npieces) {
        const struct tarn_piece *p = &w->pieces[c->piece];
        uint64_t count = tarn_piece_count(p), apart = tarn_piece_stride(p);
        *addr = (uint8_t *)p->addr + c->run * apart;
        *bytes = p->bytes;
        if (apart == p->bytes) {
            if (__builtin_mul_overflow(*bytes, count, bytes))
                *bytes = UINT64_MAX; /* more than any work has */
            count = 1;
        }
        if (++c->run >= count) {
            c->run = 0;
            c->piece++;
        }
        if (*bytes > 0)
            return true;
    }
    return false;
}

/* Is the piece in the memory that the caller named for the work? Looks its allocation up, unless it is the
 * previous one. */
static bool find_range(struct tarn_ipc_place *at, const struct tarn_work *w, const uint8_t *memory,
                       uint64_t n)
{
    uintptr_t first = (uintptr_t)memory;
    struct tarn_seen_range r = tarn_seen_range(w->seen, first);
    if (r.gpu != w->gpu)
        return false;
    at->begin = r.begin;
    at->end = r.end;
    return n <= r.end - first || tarn_seen_range(w->seen, first + n - 1).gpu == w->gpu;
}

static inline bool is_inside(const struct tarn_ipc_place *at, const uint8_t *memory, uint64_t n)
{
    return (uintptr_t)memory >= at->begin && (uintptr_t)memory < at->end && n <= at->end - (uintptr_t)memory;
}

/*
 * Fast path for lists of thousands of pieces: plain ones, each a separate run, with nothing to cut or
 * join. Stops at the first other piece, when the room or the work's bytes end, and before the last piece.
 * False: nothing was written.
 */
static bool write_plain(struct tarn_ipc_writer *o, const struct tarn_work *w, uint8_t *pool,
                        struct tarn_ipc_place *place)
{
    const struct tarn_piece *begin = w->pieces + place->cursor.piece, *p = begin;
    struct tarn_cuda_piece *at = o->at;
    size_t room = (size_t)(o->end - at), left = w->npieces - 1 - place->cursor.piece;
    const struct tarn_piece *end = begin + (left < room ? left : room);
    uint64_t most = TARN_CUDA_PIECE_MAX, offset = place->done;
    uintptr_t low = 0, span = UINTPTR_MAX; /* where pieces may begin; each is shorter than `most` */
    bool put = o->put;
    if (w->seen) {
        low = place->begin;
        span = place->end - place->begin;
        most = most < span ? most : span;
        span -= most;
    }
    for (; p < end; p++, at++) {
        uint8_t *memory = p->addr, *there = pool + offset;
        uint64_t n = p->bytes;
        __builtin_prefetch(p + AHEAD);
        if (p->count > 1 || n - 1 >= most || n > w->bytes - offset ||
            (uintptr_t)memory + n == (uintptr_t)p[1].addr || (uintptr_t)memory - low > span)
            break;
        at->from = put ? memory : there;
        at->to = put ? there : memory;
        at->bytes = n;
        offset += n;
    }
    o->at = at;
    o->bytes += offset - place->done;
    place->cursor.piece += (uint32_t)(p - begin);
    place->done = offset;
    return p > begin;
}

/*
 * The same for a single piece whose runs are apart. If its first and last runs are valid, so are those
 * between. Stops before the last run, which may be adjacent to the next piece.
 */
static bool write_strided(struct tarn_ipc_writer *o, const struct tarn_work *w, uint8_t *pool,
                          struct tarn_ipc_place *place)
{
    const struct tarn_piece *p = &w->pieces[place->cursor.piece];
    struct tarn_cuda_piece *at = o->at;
    uint64_t n = p->bytes, stride = tarn_piece_stride(p), run = place->cursor.run,
             left = w->bytes - place->done, span;
    uintptr_t end;
    if (p->count < 2 || stride == n || n - 1 >= TARN_CUDA_PIECE_MAX)
        return false;
    if (__builtin_mul_overflow(stride, p->count - 1, &span) || __builtin_add_overflow(span, n, &span) ||
        __builtin_add_overflow((uintptr_t)p->addr, span, &end) ||
        (w->seen && !is_inside(place, p->addr, span)))
        return false;
    uint64_t runs = p->count - 1 - run, room = (uint64_t)(o->end - at);
    runs = runs < room ? runs : room;
    runs = runs * n <= left ? runs : left / n; /* `room` keeps the product small */
    uint8_t *memory = (uint8_t *)p->addr + run * stride, *there = pool + place->done;
    for (uint64_t i = 0; i < runs; i++, at++, memory += stride, there += n)
        *at =
            o->put ? (struct tarn_cuda_piece){memory, there, n} : (struct tarn_cuda_piece){there, memory, n};
    o->at = at;
    o->bytes += runs * n;
    place->cursor.run += runs;
    place->done += runs * n;
    return runs > 0;
}

/* All pieces are written, or (more) as many bytes as the work may have. */
static int count_up(struct tarn_work *w, struct tarn_ipc_place *place, bool more)
{
    if (w->seen && (more || (place->done < w->bytes && !w->seen->at_most)))
        return TARN_E_SIZE;
    if (w->seen)
        w->bytes = place->done;
    place->done = w->bytes;
    return 0;
}

int tarn_ipc_write_work(struct tarn_ipc_writer *o, struct tarn_work *w, uint8_t *pool,
                        struct tarn_ipc_place *place)
{
    struct tarn_ipc_place now = *place;
    struct tarn_cursor next;
    uint64_t n;
    uint8_t *memory;
    bool more;
    for (;;) {
        next = now.cursor;
        more = (w->seen || now.done < w->bytes) && next_range(&next, w, &memory, &n);
        if (!more || now.done == w->bytes)
            break;
        if (w->seen && !is_inside(&now, memory, n) && !find_range(&now, w, memory, n))
            return TARN_E_INVALID;
        if (now.run.bytes > 0 && memory != now.run.memory + now.run.bytes && !write_run(o, &now.run)) {
            *place = now;
            return TARN_E_AGAIN;
        }
        if (now.run.bytes == 0 && now.cursor.run == 0 && write_plain(o, w, pool, &now))
            continue;
        if (now.run.bytes == 0 && write_strided(o, w, pool, &now))
            continue;
        if (n > w->bytes - now.done && w->seen)
            return TARN_E_SIZE;
        if (now.run.bytes == 0)
            now.run = (struct tarn_ipc_run){pool + now.done, memory, 0};
        n = n < w->bytes - now.done ? n : w->bytes - now.done;
        now.run.bytes += n;
        now.done += n;
        now.cursor = next;
    }
    bool room = write_run(o, &now.run);
    *place = now;
    return room ? count_up(w, place, more) : TARN_E_AGAIN;
}

int tarn_ipc_write_runs(struct tarn_ipc_writer *o, const struct tarn_work *w, uint8_t *window,
                        struct tarn_ipc_place *place)
{
    const struct tarn_runs *runs = &w->lease->runs;
    void *far, *near;
    while (write_run(o, &place->run)) {
        if (place->done == w->bytes)
            return 0;
        uint64_t n = tarn_cursor_next_both(&place->far, runs, &place->cursor, w->pieces, w->npieces,
                                           w->bytes - place->done, &far, &near);
        place->run = (struct tarn_ipc_run){window + (uintptr_t)far, near, n};
        place->done += n;
    }
    return TARN_E_AGAIN;
}
