/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cuda_ipc/cuda_ipc_lane.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "transport/cuda_ipc/cuda_ipc_pool.h"
#include "transport/cuda_ipc/cuda_ipc_write.h"
#include "transport/layout.h"

#define PARTS 4096
#define FIRST 1024            /* runs of the first list, made while the GPU is idle; */
#define LIST 8192             /* each next list doubles, up to this: every launch has overhead */
#define STRETCH (1ull << 20)  /* of pageable memory */
#define FAR_PIECES 256        /* copied at a time */
#define LINE 256              /* alignment of stretches */
#define AT_ONCE (64ull << 10) /* a stretch of this size is given without waiting for more */

struct part {
    struct tarn_work *work;
    uint64_t runs;             /* the part is started when the lane has started this many runs */
    uint64_t mark;             /* 0: no mark yet */
    bool last;                 /* the work ends with this part, */
    int status;                /* with this status */
    uint8_t *stretch;          /* in the ring; NULL: the work needs none, and the rest means nothing */
    struct tarn_cursor cursor; /* its start in the work's pieces */
    uint64_t bytes, ring_end;
};

struct tarn_ipc_lane {
    struct tarn_ipc_local *local;
    int device;
    struct tarn_cuda_queue *queue;
    void (*ended)(void *arg, struct tarn_work *w, int status);
    void *arg;
    struct tarn_work *waiting, **waiting_end;
    /* Of the first waiting work: */
    struct tarn_ipc_place place;
    struct tarn_cuda_piece large;     /* for the copy engines, before everything else; bytes 0: none */
    struct tarn_cuda_piece *list;     /* lent by the queue while something is in it */
    size_t nlist, room;               /* runs in the list, and its capacity */
    const struct tarn_layout *layout; /* the list names its pages; NULL: it has pieces */
    bool pages_put;
    uint64_t list_bytes, list_runs;                /* of pieces; of pages */
    uint64_t burst;                                /* capacity of the list, in runs */
    uint64_t added, started;                       /* counts of runs; `large` is one */
    uint64_t pending;                              /* approximate number of runs of waiting works */
    uint32_t first, count, marked;                 /* parts; the first `marked` of them have marks */
    uint8_t *ring;                                 /* NULL: not needed so far */
    uint64_t ring_head, ring_tail;                 /* counts of bytes */
    struct tarn_cuda_queue *far[TARN_IPC_DEVICES]; /* NULL: not needed so far */
    int failed;                                    /* failure of one of these, or of an early start */
    struct part parts[PARTS];
};

static struct tarn_ipc_course *course(const struct tarn_work *w)
{
    return tarn_ipc_course(w);
}

static struct part *part_at(struct tarn_ipc_lane *l, uint32_t i)
{
    return &l->parts[(l->first + i) % PARTS];
}

int tarn_ipc_lane_open(struct tarn_ipc_local *local, int device, struct tarn_cuda_queue *queue,
                       void (*ended)(void *arg, struct tarn_work *w, int status), void *arg,
                       struct tarn_ipc_lane **lane_p)
{
    struct tarn_ipc_lane *l = calloc(1, sizeof(*l));
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "cuda_ipc: out of memory");
    l->local = local;
    l->device = device;
    l->queue = queue;
    l->ended = ended;
    l->arg = arg;
    l->waiting_end = &l->waiting;
    *lane_p = l;
    return 0;
}

int tarn_ipc_lane_ready(struct tarn_ipc_lane *l, enum tarn_ipc_way way, int gpu, struct tarn_ipc_want *want)
{
    if (way != TARN_IPC_DIRECT && !l->ring && !(l->ring = tarn_ipc_ring_take(l->local))) {
        *want = (struct tarn_ipc_want){TARN_IPC_PINNED, NULL, -1};
        return TARN_E_AGAIN;
    }
    if (way == TARN_IPC_FAR && !l->far[gpu] && !(l->far[gpu] = tarn_ipc_queue_take(l->local, gpu))) {
        *want = (struct tarn_ipc_want){TARN_IPC_QUEUE, NULL, gpu};
        return TARN_E_AGAIN;
    }
    return 0;
}

bool tarn_ipc_lane_busy(const struct tarn_ipc_lane *l)
{
    return l->waiting || l->count > 0;
}

/* --- the ring ----------------------------------------------------------------------------------- */

/* Room for a contiguous stretch; NULL: none now. */
static uint8_t *ring_take(struct tarn_ipc_lane *l, uint64_t bytes)
{
    uint64_t at = l->ring_head % (uint64_t)TARN_IPC_RING, room = (bytes + LINE - 1) / LINE * LINE;
    uint64_t skip = at + room > (uint64_t)TARN_IPC_RING ? (uint64_t)TARN_IPC_RING - at : 0;
    if (l->ring_head + skip + room - l->ring_tail > (uint64_t)TARN_IPC_RING)
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

static int wait_for(struct tarn_cuda_queue *q, uint64_t mark)
{
    int rc;
    while ((rc = tarn_cuda_poll(q, mark)) == TARN_E_AGAIN)
        sched_yield();
    return rc;
}

/* Copies with another GPU's queue, and waits. */
static int far_copy(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n)
{
    uint64_t mark;
    size_t taken;
    int rc = 0;
    for (size_t at = 0; !rc && at < n; at += taken)
        rc = tarn_cuda_copy(q, pieces + at, n - at, &taken);
    if (!rc)
        rc = tarn_cuda_mark(q, &mark);
    return rc ? rc : wait_for(q, mark);
}

/* stretch_copy() for pieces in memory of a GPU that this one does not reach. */
static void far_stretch(struct tarn_ipc_lane *l, const struct tarn_work *w, struct tarn_cursor *c,
                        uint8_t *stretch, uint64_t bytes, bool to_stretch)
{
    int device = (int)w->gpu - 1;
    struct tarn_cuda_piece pieces[FAR_PIECES];
    void *addr;
    while (!l->failed && bytes > 0) {
        size_t n = 0;
        for (uint64_t got; n < FAR_PIECES && bytes > 0; bytes -= got, stretch += got) {
            got = tarn_cursor_next(c, w->pieces, w->npieces, bytes, &addr);
            pieces[n++] = to_stretch ? (struct tarn_cuda_piece){addr, stretch, got}
                                     : (struct tarn_cuda_piece){stretch, addr, got};
        }
        l->failed = far_copy(l->far[device], pieces, n);
    }
}

static void stage(struct tarn_ipc_lane *l, const struct tarn_work *w, struct tarn_cursor *c, uint8_t *stretch,
                  uint64_t bytes, bool to_stretch)
{
    if (course(w)->far)
        far_stretch(l, w, c, stretch, bytes, to_stretch);
    else
        stretch_copy(w, c, stretch, bytes, to_stretch);
}

/* --- making lists ------------------------------------------------------------------------------- */

_Static_assert(AT_ONCE <= TARN_CUDA_PIECE_MAX, "smaller stretches are one piece of a list");

static bool is_full(const struct tarn_ipc_lane *l)
{
    if (l->layout)
        return l->nlist == tarn_cuda_pages_room(l->room) || l->list_runs >= l->burst;
    return l->nlist == l->room || l->large.bytes > 0;
}

/* A list is of pieces, or of pages of one layout that are all moved one way. */
static bool is_of_list(const struct tarn_ipc_lane *l, const struct tarn_work *w)
{
    return l->layout == w->layout && (!w->layout || l->pages_put == course(w)->put);
}

static struct tarn_ipc_writer writer_of(struct tarn_ipc_lane *l, const struct tarn_work *w)
{
    return (struct tarn_ipc_writer){.at = l->list + l->nlist,
                                    .end = l->list + (l->large.bytes ? l->nlist : l->room),
                                    .put = course(w)->put};
}

static void writer_end(struct tarn_ipc_lane *l, const struct tarn_ipc_writer *o)
{
    size_t n = (size_t)(o->at - l->list);
    l->added += n - l->nlist + (o->large.bytes > 0);
    l->nlist = n;
    l->list_bytes += o->bytes;
    if (o->large.bytes > 0)
        l->large = o->large;
}

static struct part *add_part(struct tarn_ipc_lane *l, struct tarn_work *w)
{
    struct part *p = part_at(l, l->count++);
    p->work = w;
    p->runs = l->added;
    p->mark = 0;
    p->last = l->place.done == w->bytes;
    p->status = 0;
    p->stretch = NULL;
    if (p->last) {
        l->pending -= course(w)->runs;
        l->waiting = w->next;
        if (!l->waiting)
            l->waiting_end = &l->waiting;
        l->place = (struct tarn_ipc_place){0};
    }
    return p;
}

/* For a work that the GPU reaches. False: no more room now. */
static bool fill_direct(struct tarn_ipc_lane *l, struct tarn_work *w)
{
    struct tarn_ipc_writer o = writer_of(l, w);
    int rc = course(w)->scattered ? tarn_ipc_write_runs(&o, w, course(w)->at, &l->place)
                                  : tarn_ipc_write_work(&o, w, course(w)->at, &l->place);
    writer_end(l, &o);
    if (rc == TARN_E_AGAIN)
        return false;
    if (rc) /* of an invalid work nothing more is copied */
        l->place.done = w->bytes;
    add_part(l, w)->status = rc;
    return true;
}

/* For a work with a layout. False: no more room now. */
static bool fill_pages(struct tarn_ipc_lane *l, struct tarn_work *w)
{
    struct tarn_cuda_pages *list = (struct tarn_cuda_pages *)(void *)l->list;
    size_t room = tarn_cuda_pages_room(l->room), begin = l->nlist;
    uint64_t page_bytes = w->layout->buffer.page_bytes;
    uint32_t page = l->place.cursor.piece;
    bool rest = page > 0; /* of a work that the last list has cut: it is not cut again */
    for (uint32_t n; page < w->npieces && l->nlist < room && (rest || l->list_runs < l->burst); page += n) {
        struct tarn_cuda_pages *e = &list[l->nlist++];
        n = w->npieces - page < TARN_CUDA_PAGES_MAX ? w->npieces - page : TARN_CUDA_PAGES_MAX;
        e->far = course(w)->at + page * page_bytes;
        e->far_stride = w->npieces * page_bytes;
        e->n = n;
        memcpy(e->page, w->pages + page, n * sizeof(e->page[0]));
        l->list_runs += (uint64_t)n * w->layout->buffer.nbases;
    }
    l->added += l->nlist - begin;
    l->place.cursor.piece = page;
    if (page < w->npieces)
        return false;
    l->place.done = w->bytes;
    add_part(l, w);
    return true;
}

/* Where the next stretch lies in the pool, and its bytes. A stretch is part of one run of a lease. */
static uint8_t *next_stretch(const struct tarn_ipc_lane *l, const struct tarn_work *w,
                             struct tarn_cursor *far, uint64_t *bytes_p)
{
    uint64_t left = w->bytes - l->place.done, n = left < STRETCH ? left : STRETCH;
    void *offset;
    *bytes_p = n;
    if (!course(w)->scattered)
        return course(w)->at + l->place.done;
    *bytes_p = tarn_cursor_next(far, w->lease->runs.piece, w->lease->runs.n, n, &offset);
    return course(w)->at + (uintptr_t)offset;
}

/* One stretch of a work in pageable memory. False: no more room now. */
static bool fill_stretch(struct tarn_ipc_lane *l, struct tarn_work *w)
{
    struct tarn_cursor begin = l->place.cursor, far = l->place.far;
    uint64_t n;
    uint8_t *at = next_stretch(l, w, &far, &n), *stretch = is_full(l) ? NULL : ring_take(l, n);
    bool put = course(w)->put;
    if (!stretch)
        return false;
    l->place.far = far;
    if (put)
        stage(l, w, &l->place.cursor, stretch, n, true);
    else
        tarn_cursor_skip(&l->place.cursor, w->pieces, w->npieces, n);
    struct tarn_ipc_run run = {at, stretch, n};
    struct tarn_ipc_writer o = writer_of(l, w);
    if (n >= AT_ONCE)
        tarn_ipc_write_large(&o, &run);
    tarn_ipc_write_run(&o, &run);
    writer_end(l, &o);
    l->place.done += n;
    struct part *p = add_part(l, w);
    p->cursor = begin;
    p->stretch = stretch;
    p->bytes = n;
    p->ring_end = l->ring_head;
    return true;
}

/* Is there just one run? The copy engines are as fast as a launch, and leave the multiprocessors free. */
static bool is_one_run(const struct tarn_ipc_lane *l, const struct tarn_work *w, struct tarn_ipc_run *r)
{
    struct tarn_cursor c = {0};
    void *memory;
    if (l->nlist > 0 || l->place.done > 0 || w->next || course(w)->scattered)
        return false;
    uint64_t n = tarn_cursor_next(&c, w->pieces, w->npieces, w->bytes, &memory);
    *r = (struct tarn_ipc_run){course(w)->at, memory, n};
    return n == w->bytes;
}

/* False: no more room now. */
static bool fill_some(struct tarn_ipc_lane *l, struct tarn_work *w)
{
    struct tarn_ipc_run one;
    if (l->nlist == 0) {
        l->layout = w->layout;
        l->pages_put = course(w)->put;
    }
    if (!is_of_list(l, w))
        return false;
    if (w->layout)
        return fill_pages(l, w);
    if (course(w)->scattered && l->place.done == 0 && l->place.run.bytes == 0)
        l->place.far = tarn_runs_at(&w->lease->runs, w->offset);
    if (course(w)->staged)
        return fill_stretch(l, w);
    if (!is_one_run(l, w, &one))
        return fill_direct(l, w);
    struct tarn_ipc_writer o = writer_of(l, w);
    tarn_ipc_write_large(&o, &one);
    writer_end(l, &o);
    l->place.done = w->bytes;
    add_part(l, w);
    return true;
}

static int fill(struct tarn_ipc_lane *l)
{
    size_t room = 0;
    bool more = true;
    if (l->nlist == 0) { /* asking again would drop what has not been started */
        l->list = tarn_cuda_list(l->queue, &room);
        l->room = !l->list ? 0 : room < l->burst ? room : l->burst;
    }
    while (more && l->waiting && l->count < PARTS && !is_full(l)) {
        more = fill_some(l, l->waiting);
        if (l->failed)
            return l->failed;
    }
    return 0;
}

/* --- giving ------------------------------------------------------------------------------------- */

/* For works that go through the ring the bytes are not there when the copy is done, so they get no event. */
static void tell_given(const struct tarn_ipc_lane *l, const struct part *p)
{
    struct tarn_last_copy *c = p->work->last_copy;
    if (!c || !p->last || p->stretch || p->status)
        return;
    c->event = tarn_cuda_mark_event(l->queue);
    if (!c->event)
        return;
    c->queue = l->queue;
    c->given(p->work);
}

/* Sets a mark after all parts that are completely started. */
static int mark_started(struct tarn_ipc_lane *l)
{
    uint64_t mark;
    if (l->marked == l->count || part_at(l, l->marked)->runs > l->started)
        return 0;
    int rc = tarn_cuda_mark(l->queue, &mark);
    if (rc)
        return rc == TARN_E_AGAIN ? 0 : rc;
    for (; l->marked < l->count && part_at(l, l->marked)->runs <= l->started; l->marked++) {
        part_at(l, l->marked)->mark = mark;
        tell_given(l, part_at(l, l->marked));
    }
    return 0;
}

static int start_list(struct tarn_ipc_lane *l)
{
    int rc = l->layout ? tarn_cuda_start_pages(l->queue, &l->layout->buffer, l->nlist, l->pages_put)
                       : tarn_cuda_start(l->queue, l->nlist, l->list_bytes);
    if (rc)
        return rc;
    l->started += l->nlist;
    l->nlist = 0;
    l->list_bytes = 0;
    l->list_runs = 0;
    l->burst = l->burst * 2 < LIST ? l->burst * 2 : LIST;
    return 0;
}

/* Gives what was made to the queue. *moved: there was something. */
static int give(struct tarn_ipc_lane *l, bool *moved)
{
    size_t taken = 0;
    *moved = l->nlist > 0;
    int rc = l->nlist > 0 ? start_list(l) : 0;
    if (!rc && l->large.bytes > 0)
        rc = tarn_cuda_copy(l->queue, &l->large, 1, &taken);
    if (taken) {
        l->started++;
        l->large.bytes = 0;
        *moved = true;
    }
    return rc ? rc : mark_started(l);
}

/* Starts full lists while the call's other works are still being posted. */
static void start_early(struct tarn_ipc_lane *l)
{
    bool moved = true;
    int rc = l->failed ? l->failed : fill(l);
    while (!rc && moved && is_full(l)) {
        rc = give(l, &moved);
        if (!rc)
            rc = fill(l);
    }
    l->failed = rc;
}

/* Estimates the number of runs by assuming that all pieces are like the first. */
static uint64_t about_runs(const struct tarn_work *w)
{
    const struct tarn_piece *p = w->pieces;
    if (w->layout)
        return (uint64_t)w->npieces * w->layout->buffer.nbases;
    bool apart = w->npieces > 0 && p->count > 1 && tarn_piece_stride(p) != p->bytes;
    return !apart ? w->npieces : w->npieces * (p->count < LIST ? p->count : LIST);
}

/* The address of a lease's range, if it is contiguous. */
static bool is_one_range(const struct tarn_work *w, uint8_t *window, uint8_t **at_p)
{
    const struct tarn_runs *runs = &w->lease->runs;
    struct tarn_cursor c = tarn_runs_at(runs, w->offset);
    void *offset;
    bool is = tarn_cursor_next(&c, runs->piece, runs->n, w->bytes, &offset) == w->bytes;
    *at_p = is ? window + (uintptr_t)offset : window;
    return is;
}

void tarn_ipc_lane_post(struct tarn_ipc_lane *l, struct tarn_work *w, bool put, enum tarn_ipc_way way,
                        uint8_t *at)
{
    struct tarn_ipc_course *course = tarn_ipc_course(w);
    if (!tarn_ipc_lane_busy(l)) {
        l->burst = FIRST;
        l->first = 0; /* these parts are in the CPU's cache */
    }
    course->at = at;
    course->runs = about_runs(w);
    course->put = put;
    course->staged = way != TARN_IPC_DIRECT;
    course->far = way == TARN_IPC_FAR;
    course->scattered = w->lease && !is_one_range(w, at, &course->at);
    w->next = NULL;
    *l->waiting_end = w;
    l->waiting_end = &w->next;
    l->pending += course->runs;
    if (l->pending + l->nlist >= l->burst)
        start_early(l);
}

/* --- ending ------------------------------------------------------------------------------------- */

static int end_part(struct tarn_ipc_lane *l)
{
    struct part p = *part_at(l, 0);
    if (p.stretch && !course(p.work)->put)
        stage(l, p.work, &p.cursor, p.stretch, p.bytes, false);
    if (l->failed)
        return l->failed;
    l->first = (l->first + 1) % PARTS;
    l->count--;
    l->marked--;
    if (p.stretch)
        l->ring_tail = p.ring_end;
    if (p.last)
        l->ended(l->arg, p.work, p.status);
    return 0;
}

/* Ends parts whose copies are done. 1: there were any. */
static int end_parts(struct tarn_ipc_lane *l)
{
    int moved = 0;
    while (l->marked > 0) {
        int rc = tarn_cuda_poll(l->queue, part_at(l, 0)->mark);
        if (rc == TARN_E_AGAIN)
            break;
        if (!rc)
            rc = end_part(l);
        if (rc)
            return rc;
        moved = 1;
    }
    return moved;
}

int tarn_ipc_lane_progress(struct tarn_ipc_lane *l)
{
    bool more = true;
    int moved = l->failed ? l->failed : end_parts(l), rc = moved < 0 ? moved : 0;
    while (!rc && more && (l->waiting || l->large.bytes || l->marked < l->count)) {
        rc = fill(l);
        if (!rc)
            rc = give(l, &more);
        moved |= more;
    }
    return rc ? rc : moved;
}

static void take_back(struct tarn_work *w)
{
    struct tarn_last_copy *c = w->last_copy;
    if (!c || !c->event)
        return;
    c->event = NULL;
    c->given(w);
}

/* Keeps the queues, in which nothing is in flight any more. */
static void put_by(struct tarn_ipc_lane *l)
{
    tarn_ipc_queue_give(l->local, l->device, l->queue);
    for (int i = 0; i < TARN_IPC_DEVICES; i++)
        tarn_ipc_queue_give(l->local, i, l->far[i]);
}

static void close_queues(struct tarn_ipc_lane *l)
{
    tarn_cuda_queue_close(l->queue);
    for (int i = 0; i < TARN_IPC_DEVICES; i++)
        tarn_cuda_queue_close(l->far[i]);
}

/* Works whose copies were given to the GPU end normally: streams may already wait for them, so they could
 * not be repeated. */
void tarn_ipc_lane_close(struct tarn_ipc_lane *l, int status)
{
    uint64_t last;
    for (uint32_t i = 0; i < l->marked; i++)
        take_back(part_at(l, i)->work);
    bool ended = l->marked == 0 || wait_for(l->queue, part_at(l, l->marked - 1)->mark) == 0;
    if (ended && !l->failed && tarn_cuda_mark(l->queue, &last) == 0 && wait_for(l->queue, last) == 0)
        put_by(l);
    else
        close_queues(l);
    for (uint32_t i = 0; i < l->count; i++) {
        struct tarn_work *w = part_at(l, i)->work;
        if (part_at(l, i)->last)
            l->ended(l->arg, w, ended && w->last_copy && w->last_copy->queue ? 0 : status);
    }
    for (struct tarn_work *w = l->waiting, *next; w; w = next) {
        next = w->next;
        l->ended(l->arg, w, status);
    }
    tarn_ipc_ring_give(l->local, l->ring);
    free(l);
}
