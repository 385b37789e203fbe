/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cuda_ipc_lane.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

#define BATCH 4096
#define PARTS 4096
#define RING_BYTES (8ull << 20)
#define STRETCH (1ull << 20)  /* of pageable memory at a time */
#define LINE 256              /* stretches begin at multiples of it */
#define AT_ONCE (64ull << 10) /* a stretch of this size is given without waiting for more */

struct part {
    struct tarn_work *work;
    uint64_t pieces; /* given when so many of the lane's have been */
    uint64_t mark;   /* 0: not marked */
    bool last;       /* the work ends with it */
    /* of a work in pageable memory: */
    struct tarn_cursor cursor; /* where it begins among the work's pieces */
    uint8_t *stretch;          /* NULL: another work's part */
    uint64_t bytes, ring_end;
};

struct tarn_ipc_lane {
    int device;
    struct tarn_cuda_queue *queue;
    void (*ended)(void *arg, struct tarn_work *w, int status);
    void *arg;
    struct tarn_work *waiting, **waiting_end;
    struct tarn_cursor cursor; /* of the first that waits, */
    uint64_t done;             /* and how much of it is in parts or the batch */
    uint32_t nbatch;
    uint64_t added, given;         /* pieces, ever */
    uint32_t first, count, marked; /* parts; the first `marked` of them are */
    uint8_t *ring;                 /* NULL: not needed so far */
    uint64_t ring_head, ring_tail; /* bytes, ever */
    struct tarn_cuda_piece batch[BATCH];
    struct part parts[PARTS];
};

/* What a lane keeps in a work: scratch[0] the range in the pool, [1] flags. */
enum { PUT = 1, PAGEABLE = 2 };

static struct part *part_at(struct tarn_ipc_lane *l, uint32_t i)
{
    return &l->parts[(l->first + i) % PARTS];
}

int tarn_ipc_lane_open(int device, void (*ended)(void *arg, struct tarn_work *w, int status), void *arg,
                       struct tarn_ipc_lane **lane_p)
{
    struct tarn_ipc_lane *l = calloc(1, sizeof(*l));
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "cuda_ipc: out of memory");
    int rc = tarn_cuda_queue_open(device, &l->queue);
    if (rc) {
        free(l);
        return rc;
    }
    l->device = device;
    l->ended = ended;
    l->arg = arg;
    l->waiting_end = &l->waiting;
    *lane_p = l;
    return 0;
}

bool tarn_ipc_lane_busy(const struct tarn_ipc_lane *l)
{
    return l->waiting || l->count > 0;
}

void tarn_ipc_lane_post(struct tarn_ipc_lane *l, struct tarn_work *w, bool put, bool pageable, uint8_t *at)
{
    w->scratch[0] = (uintptr_t)at;
    w->scratch[1] = (put ? PUT : 0) | (pageable ? PAGEABLE : 0);
    w->next = NULL;
    *l->waiting_end = w;
    l->waiting_end = &w->next;
}

/* --- the ring ----------------------------------------------------------------------------------- */

static int ring_open(struct tarn_ipc_lane *l)
{
    void *ring = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED)
        return tarn_fail(TARN_E_NO_MEMORY, "cuda_ipc: out of memory");
    int rc = tarn_cuda_pin(ring, RING_BYTES, true);
    if (rc) {
        munmap(ring, RING_BYTES);
        return rc;
    }
    l->ring = ring;
    return 0;
}

static void ring_close(struct tarn_ipc_lane *l)
{
    if (!l->ring)
        return;
    tarn_cuda_unpin(l->ring);
    munmap(l->ring, RING_BYTES);
}

/* Room for a stretch, which must not be cut by the ring's end; NULL: none now. */
static uint8_t *ring_take(struct tarn_ipc_lane *l, uint64_t bytes)
{
    uint64_t at = l->ring_head % RING_BYTES, room = (bytes + LINE - 1) / LINE * LINE;
    uint64_t skip = at + room > RING_BYTES ? RING_BYTES - at : 0;
    if (l->ring_head + skip + room - l->ring_tail > RING_BYTES)
        return NULL;
    l->ring_head += skip + room;
    return l->ring + (skip ? 0 : at);
}

/* Moves a stretch's bytes between the ring and a work's pieces. */
static void stretch_copy(const struct tarn_work *w, struct tarn_cursor *c, uint8_t *stretch, uint64_t bytes,
                         bool to_stretch)
{
    void *addr;
    for (uint64_t n; bytes > 0 && (n = tarn_cursor_next(c, w->pieces, w->npieces, bytes, &addr)) > 0;
         bytes -= n) {
        if (to_stretch)
            memcpy(stretch, addr, n);
        else
            memcpy(addr, stretch, n);
        stretch += n;
    }
}

static void cursor_skip(struct tarn_cursor *c, const struct tarn_work *w, uint64_t bytes)
{
    void *addr;
    for (uint64_t n; bytes > 0 && (n = tarn_cursor_next(c, w->pieces, w->npieces, bytes, &addr)) > 0;
         bytes -= n)
        ;
}

/* --- filling the batch -------------------------------------------------------------------------- */

/* The batch must have room. Neighbours on both sides become one. */
static void add_piece(struct tarn_ipc_lane *l, uint8_t *pool, uint8_t *memory, uint64_t bytes, bool put)
{
    struct tarn_cuda_piece p = {put ? memory : pool, put ? pool : memory, bytes};
    struct tarn_cuda_piece *last = l->nbatch ? &l->batch[l->nbatch - 1] : NULL;
    if (last && (const uint8_t *)last->from + last->bytes == p.from &&
        (uint8_t *)last->to + last->bytes == p.to) {
        last->bytes += bytes;
        return;
    }
    l->batch[l->nbatch++] = p;
    l->added++;
}

static struct part *add_part(struct tarn_ipc_lane *l, struct tarn_work *w)
{
    struct part *p = part_at(l, l->count++);
    *p = (struct part){.work = w, .pieces = l->added, .last = l->done == w->bytes};
    if (p->last) {
        l->waiting = w->next;
        if (!l->waiting)
            l->waiting_end = &l->waiting;
        l->cursor = (struct tarn_cursor){0};
        l->done = 0;
    }
    return p;
}

/* Of a work that the GPU reaches. False: no more room. */
static bool fill_direct(struct tarn_ipc_lane *l, struct tarn_work *w)
{
    uint8_t *pool = (uint8_t *)(uintptr_t)w->scratch[0];
    while (l->done < w->bytes) {
        void *memory;
        if (l->nbatch == BATCH)
            return false;
        uint64_t n = tarn_cursor_next(&l->cursor, w->pieces, w->npieces, w->bytes - l->done, &memory);
        add_piece(l, pool + l->done, memory, n, w->scratch[1] & PUT);
        l->done += n;
    }
    add_part(l, w);
    return true;
}

/* One stretch of a work in pageable memory. False: no more room, or better given now. */
static bool fill_stretch(struct tarn_ipc_lane *l, struct tarn_work *w)
{
    uint64_t left = w->bytes - l->done, n = left < STRETCH ? left : STRETCH;
    uint8_t *pool = (uint8_t *)(uintptr_t)w->scratch[0] + l->done, *stretch = ring_take(l, n);
    struct tarn_cursor begin = l->cursor;
    bool put = w->scratch[1] & PUT;
    if (!stretch)
        return false;
    if (put)
        stretch_copy(w, &l->cursor, stretch, n, true);
    else
        cursor_skip(&l->cursor, w, n);
    add_piece(l, pool, stretch, n, put);
    l->done += n;
    struct part *p = add_part(l, w);
    p->cursor = begin;
    p->stretch = stretch;
    p->bytes = n;
    p->ring_end = l->ring_head;
    return n < AT_ONCE;
}

static int fill(struct tarn_ipc_lane *l)
{
    bool room = true;
    while (room && l->waiting && l->count < PARTS && l->nbatch < BATCH) {
        bool pageable = l->waiting->scratch[1] & PAGEABLE;
        int rc = pageable && !l->ring ? ring_open(l) : 0;
        if (rc)
            return rc;
        room = pageable ? fill_stretch(l, l->waiting) : fill_direct(l, l->waiting);
    }
    return 0;
}

/* --- giving ------------------------------------------------------------------------------------- */

/* A mark behind all parts that have been given whole. */
static int mark_given(struct tarn_ipc_lane *l)
{
    uint64_t mark;
    if (l->marked == l->count || part_at(l, l->marked)->pieces > l->given)
        return 0;
    int rc = tarn_cuda_mark(l->queue, &mark);
    if (rc)
        return rc == TARN_E_AGAIN ? 0 : rc;
    for (; l->marked < l->count && part_at(l, l->marked)->pieces <= l->given; l->marked++)
        part_at(l, l->marked)->mark = mark;
    return 0;
}

/* Gives what the queue has room for; *moved: something was. */
static int give(struct tarn_ipc_lane *l, bool *moved)
{
    size_t taken = 0;
    int rc = l->nbatch ? tarn_cuda_copy(l->queue, l->batch, l->nbatch, &taken) : 0;
    *moved = taken > 0;
    l->given += taken;
    l->nbatch -= (uint32_t)taken;
    if (taken && l->nbatch)
        memmove(l->batch, l->batch + taken, l->nbatch * sizeof(l->batch[0]));
    return rc ? rc : mark_given(l);
}

/* --- ending ------------------------------------------------------------------------------------- */

static void end_part(struct tarn_ipc_lane *l)
{
    struct part p = *part_at(l, 0);
    l->first = (l->first + 1) % PARTS;
    l->count--;
    l->marked--;
    if (p.stretch && !(p.work->scratch[1] & PUT))
        stretch_copy(p.work, &p.cursor, p.stretch, p.bytes, false);
    if (p.stretch)
        l->ring_tail = p.ring_end;
    if (p.last)
        l->ended(l->arg, p.work, 0);
}

/* Ends the parts whose copies are done. 1: there were any. */
static int end_parts(struct tarn_ipc_lane *l)
{
    int moved = 0;
    while (l->marked > 0) {
        int rc = tarn_cuda_poll(l->queue, part_at(l, 0)->mark);
        if (rc == TARN_E_AGAIN)
            break;
        if (rc)
            return rc;
        end_part(l);
        moved = 1;
    }
    return moved;
}

int tarn_ipc_lane_progress(struct tarn_ipc_lane *l)
{
    bool more = true;
    int moved = end_parts(l), rc = moved < 0 ? moved : 0;
    while (!rc && more && (l->waiting || l->nbatch || l->marked < l->count)) {
        rc = fill(l);
        if (!rc)
            rc = give(l, &more);
        moved |= more;
    }
    return rc ? rc : moved;
}

void tarn_ipc_lane_close(struct tarn_ipc_lane *l, int status)
{
    tarn_cuda_queue_close(l->queue);
    for (uint32_t i = 0; i < l->count; i++)
        if (part_at(l, i)->last)
            l->ended(l->arg, part_at(l, i)->work, status);
    for (struct tarn_work *w = l->waiting, *next; w; w = next) {
        next = w->next;
        l->ended(l->arg, w, status);
    }
    ring_close(l);
    free(l);
}
