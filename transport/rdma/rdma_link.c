/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA, client half: works become jobs on the lanes of a link. */
#include "transport/rdma/rdma_link.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { BOUNCES = 64, BOUNCE_BYTES = 16384, TICKS_BYTES = 4096 };
#define BOUNCE_ALL ((size_t)BOUNCES * BOUNCE_BYTES + TICKS_BYTES + TARN_TELL_BYTES(TARN_JOBS))
#define STRIPE_BYTES (256ull << 10)    /* smaller parts do not justify another rail */
#define SPIN_NS (2 * TARN_NS_PER_MS)   /* a lone work is polled for at most this long */
#define QUIET_NS (50 * TARN_NS_PER_MS) /* without completions for this long, check the ports */
#define SPARSE \
    4 /* pieces are registered as one span when it is at most this \
         many times their bytes */

/* --- jobs --------------------------------------------------------------------------------------- */

static char *bounce_take(struct tarn_rdma_link *l)
{
    if (!l->bounces)
        return NULL;
    int i = __builtin_ctzll(l->bounces);
    l->bounces &= ~(1ull << i);
    return l->bounce->addr + (size_t)i * BOUNCE_BYTES;
}

static void bounce_copy(const struct tarn_job *job, bool out)
{
    const struct tarn_work *w = job->work;
    struct tarn_cursor c = {0};
    char *at = job->bounce.addr;
    void *addr;
    for (uint64_t n; (n = tarn_cursor_next(&c, w->pieces, w->npieces, UINT64_MAX, &addr)) > 0; at += n)
        memcpy(out ? at : addr, out ? addr : at, n);
}

static void bounce_give(struct tarn_rdma_link *l, struct tarn_job *job)
{
    if (!job->bounce.addr)
        return;
    l->bounces |= 1ull << ((char *)job->bounce.addr - l->bounce->addr) / BOUNCE_BYTES;
    job->bounce.addr = NULL;
}

/* The job is over: releases its memory, then tells the caller. */
static void end_job(struct tarn_rdma_link *l, struct tarn_job *job, int status)
{
    struct tarn_work *w = job->work;
    if (status == 0 && job->bounce.addr && !job->put)
        bounce_copy(job, false);
    if (status == 0 && w->gpu && w->bytes > 0 && !job->put)
        status = tarn_cuda_flush((int)w->gpu - 1);
    bounce_give(l, job);
    tarn_cover_end(&job->cover);
    job->work = NULL;
    job->next = l->free_jobs;
    l->free_jobs = job;
    l->busy--;
    if (status == 0 && !job->put && w->touch && !l->broken)
        tarn_touch_note(l, w->pool, w->slot);
    w->status = status;
    w->done(w);
}

/* --- memory of a work --------------------------------------------------------------------------- */

/* The span of all pieces if they lie close together: one registration instead of many. */
static bool span_of(const struct tarn_work *w, char **from, uint64_t *bytes)
{
    char *low = NULL, *high = NULL;
    for (uint32_t i = 0; i < w->npieces; i++) {
        const struct tarn_piece *p = &w->pieces[i];
        if (p->bytes == 0)
            continue;
        char *start = p->addr, *end = start + tarn_piece_span(p);
        low = !low || start < low ? start : low;
        high = !high || end > high ? end : high;
    }
    *from = low;
    *bytes = (uint64_t)(high - low);
    return low && *bytes / SPARSE <= w->bytes;
}

static int cover_pieces(struct tarn_rdma_link *l, struct tarn_job *job)
{
    const struct tarn_work *w = job->work;
    struct tarn_cursor c = {0};
    char *from;
    uint64_t bytes;
    void *addr;
    int rc = 0;
    if (span_of(w, &from, &bytes) && tarn_cover_add(l->local, &job->cover, from, bytes, job->put, false) == 0)
        return 0;
    for (uint64_t n; !rc && (n = tarn_cursor_next(&c, w->pieces, w->npieces, UINT64_MAX, &addr)) > 0;)
        rc = tarn_cover_add(l->local, &job->cover, addr, n, job->put, true);
    return rc;
}

/* GPU memory is registered or refused, never copied. A refusal leaves the work to the next transport. */
static int cover_gpu(struct tarn_rdma_link *l, struct tarn_job *job)
{
    uint32_t gpu = job->work->gpu;
    int rc = tarn_gpu_refused(l->local, gpu);
    if (rc == 0)
        rc = cover_pieces(l, job);
    return rc == TARN_E_UNSUPPORTED ? tarn_gpu_refuse(l->local, gpu) : rc;
}

static int prepare(struct tarn_rdma_link *l, struct tarn_job *job)
{
    const struct tarn_work *w = job->work;
    job->pieces = w->pieces;
    job->npieces = w->npieces;
    job->cover.gpu = w->gpu != 0;
    if (w->bytes == 0)
        return 0;
    if (tarn_cover_mapped(l->local, &job->cover, w, job->put))
        return 0;
    if (w->gpu)
        return cover_gpu(l, job);
    if (w->bytes > BOUNCE_BYTES || tarn_rdma_mapped(l->local, w->pieces, w->npieces))
        return cover_pieces(l, job);
    char *bounce = bounce_take(l);
    if (!bounce)
        return cover_pieces(l, job);
    job->bounce = (struct tarn_piece){.addr = bounce, .bytes = w->bytes};
    job->pieces = &job->bounce;
    job->npieces = 1;
    if (job->put)
        bounce_copy(job, true);
    return tarn_cover_borrow(&job->cover, l->bounce);
}

/* --- strips ------------------------------------------------------------------------------------- */

/* The measured speed if it is known for all lanes, else the port's. */
static double speed_of(const struct tarn_rdma_lane *n)
{
    const struct tarn_rdma_link *l = n->link;
    for (uint32_t k = 0; k < l->nlanes; k++)
        if (l->lanes[k].joined && l->lanes[k].bytes_ns <= 0)
            return n->rail->speed ? n->rail->speed : 1;
    return n->bytes_ns;
}

/* The lane that would first complete one more small strip. */
static struct tarn_rdma_lane *least_loaded(struct tarn_rdma_link *l)
{
    struct tarn_rdma_lane *best = NULL;
    for (uint32_t k = 0; k < l->nlanes; k++) {
        struct tarn_rdma_lane *n = &l->lanes[k];
        if (n->joined && (!best || (double)n->queued / speed_of(n) < (double)best->queued / speed_of(best)))
            best = n;
    }
    return best;
}

/* The notification goes when the last byte has arrived. */
static void strip_ended(struct tarn_rdma_link *l, struct tarn_job *job, int status)
{
    if (job->status == 0)
        job->status = status;
    if (--job->strips > 0)
        return;
    if (!job->tells) {
        end_job(l, job, job->status);
        return;
    }
    job->tells = false;
    job->strips = 1;
    tarn_rdma_lane_queue(least_loaded(l), job, 0, 0, true);
}

/* Small works use one lane. Large ones use all, in whole pages, in proportion to their speeds. */
static void cut(struct tarn_rdma_link *l, struct tarn_job *job)
{
    uint64_t bytes = job->work->bytes, offset = 0;
    double total = 0;
    uint32_t joined = 0;
    for (uint32_t k = 0; bytes >= 2 * STRIPE_BYTES && k < l->nlanes; k++)
        if (l->lanes[k].joined) {
            total += speed_of(&l->lanes[k]);
            joined++;
        }
    if (joined <= 1) {
        job->strips = 1;
        tarn_rdma_lane_queue(least_loaded(l), job, 0, bytes, job->tells);
        job->tells = false;
        return;
    }
    job->strips = 1; /* keeps the job alive while strips are made */
    for (uint32_t k = 0; k < l->nlanes && offset < bytes; k++) {
        struct tarn_rdma_lane *n = &l->lanes[k];
        if (!n->joined)
            continue;
        uint64_t part = (uint64_t)((double)bytes * speed_of(n) / total) & ~4095ull;
        if (part < STRIPE_BYTES)
            part = STRIPE_BYTES;
        if (--joined == 0 || part > bytes - offset)
            part = bytes - offset;
        job->strips++;
        tarn_rdma_lane_queue(n, job, offset, part, false);
        offset += part;
    }
    job->strips--;
}

/* --- works -------------------------------------------------------------------------------------- */

static bool inside(const struct tarn_rdma_link *l, const struct tarn_work *w)
{
    if (w->pool >= l->npools)
        return false;
    const struct tarn_rdma_peer_memory *m = &l->pools[w->pool];
    if (w->lease)
        return w->slot < m->nslots && w->lease->runs.end <= m->bytes;
    return w->slot < m->nslots && w->offset <= m->bytes && w->bytes <= m->bytes - w->offset;
}

/* Queue pairs stop first. After that no memory is accessed, and all works can end. */
static void break_link(struct tarn_rdma_link *l, int status)
{
    l->broken = true;
    for (uint32_t k = 0; k < l->nlanes; k++)
        tarn_rdma_lane_close(&l->lanes[k]);
    for (uint32_t i = 0; l->jobs && i < TARN_JOBS; i++)
        if (l->jobs[i].work)
            end_job(l, &l->jobs[i], l->jobs[i].status ? l->jobs[i].status : status);
}

/* A rail is missing. Checks whether it is up now, or whether a new link would have it again. */
static void seek_rail(struct tarn_rdma_link *l)
{
    if (l->joining)
        tarn_rdma_lanes_look(l);
    if (l->whole_ns && !l->busy && tarn_now_ns() >= l->whole_ns)
        break_link(l, TARN_E_NODE_DOWN);
}

static int submit(struct tarn_rdma_link *l, struct tarn_work *w, bool put)
{
    struct tarn_job *job = l->free_jobs;
    if (l->whole_ns)
        seek_rail(l);
    if (l->broken)
        return TARN_E_AGAIN; /* progress() must report the end: only then do callers let go of the link */
    if (!inside(l, w) || tarn_gen_readable(w->gen) == (put && !w->lease))
        return tarn_link_stale(&l->link, w->pool, w->slot);
    int room = put && w->notify ? tarn_tell_room(l) : 0;
    if (!job || room == TARN_E_AGAIN)
        return TARN_E_AGAIN;
    w->untold = room != 0;
    bool tells = put && w->notify && !w->untold;
    if (put && w->bytes == 0 && !tells) {
        w->status = 0;
        return 0;
    }
    job->work = w;
    job->put = put;
    job->checked = !put || w->bytes == 0;
    job->tells = tells;
    job->status = 0;
    int rc = prepare(l, job);
    if (rc) {
        bounce_give(l, job);
        tarn_cover_end(&job->cover);
        job->work = NULL;
        return rc;
    }
    l->free_jobs = job->next;
    if (l->busy++ == 0)
        l->quiet_ns = 0;
    if (tells)
        job->number = l->tell.next++;
    cut(l, job);
    return TARN_INPROGRESS;
}

static int rdma_get(struct tarn_link *l, struct tarn_work *w)
{
    return submit(tarn_rdma_link(l), w, false);
}

static int rdma_put(struct tarn_link *l, struct tarn_work *w)
{
    if (!l->writable)
        return tarn_fail(TARN_E_NOT_REACHABLE, "node %s: rdma: has read access only: attach with write",
                         l->node);
    return submit(tarn_rdma_link(l), w, true);
}

static bool has_puts(struct tarn_rdma_lane *n)
{
    for (uint64_t i = n->head; i < n->tail; i++)
        if (n->ring[i % n->ring_size].job->put)
            return true;
    return false;
}

/* The lane failed: moves its gets to the others. False if that is impossible. */
static bool lose_lane(struct tarn_rdma_link *l, struct tarn_rdma_lane *n)
{
    uint64_t until = tarn_now_ns() + TARN_RAIL_ASIDE_NS;
    bool asked = l->tell.asked == TARN_TELL_ASKED && l->tell.lane == n;
    bool puts = has_puts(n) || asked;
    atomic_store(&l->local->aside_ns[n->index], until);
    tarn_rdma_lane_stop(n);
    if (puts || !least_loaded(l))
        return false;
    for (uint64_t i = n->head; i < n->tail; i++) {
        const struct tarn_strip *s = &n->ring[i % n->ring_size];
        tarn_rdma_lane_queue(least_loaded(l), s->job, s->offset, s->bytes, false);
    }
    tarn_rdma_lane_close(n);
    l->whole_ns = until;
    return true;
}

static int lane_progress(struct tarn_rdma_lane *n)
{
    int done = tarn_rdma_lane_poll(n);
    int rc = done < 0 ? done : tarn_rdma_lane_post(n);
    return rc ? rc : done;
}

/* Returns the number of completions; negative: the link is broken. */
static int step(struct tarn_rdma_link *l)
{
    uint32_t busy = l->busy;
    int total = 0;
    if (l->broken)
        return TARN_E_NODE_DOWN;
    for (uint32_t k = 0; k < l->nlanes; k++) {
        if (!l->lanes[k].joined)
            continue;
        int done = lane_progress(&l->lanes[k]);
        if (done == TARN_E_AGAIN) { /* keys of a window are void: works may be tried on a new link */
            break_link(l, TARN_E_AGAIN);
            return TARN_E_AGAIN;
        }
        if (done < 0 && (done == TARN_E_INVALID || !lose_lane(l, &l->lanes[k]))) {
            break_link(l, TARN_E_NODE_DOWN);
            return TARN_E_NODE_DOWN;
        }
        total += done > 0 ? done : 0;
    }
    if (l->touches.n > 0 && (l->busy < busy || l->busy == 0)) /* after works ended, or when idle */
        tarn_touch_tend(l);
    if (total > 0)
        l->quiet_ns = 0;
    return total;
}

/* Not called for each completion: reading the clock would cost too much. */
static void note_quiet(struct tarn_rdma_link *l, uint64_t now)
{
    if (l->quiet_ns == 0)
        l->quiet_ns = now;
}

/* Devices keep trying when their own port is down, some of them forever. Fail the lanes with work on such
 * a port. */
static int look_at_ports(struct tarn_rdma_link *l)
{
    uint64_t now = tarn_now_ns();
    note_quiet(l, now);
    if (now - l->quiet_ns < QUIET_NS)
        return 0;
    l->quiet_ns = now;
    for (uint32_t k = 0; k < l->nlanes; k++) {
        struct tarn_rdma_lane *n = &l->lanes[k];
        if (!n->joined || n->head == n->tail || tarn_rail_active(n->rail) || lose_lane(l, n))
            continue;
        break_link(l, TARN_E_NODE_DOWN);
        return TARN_E_NODE_DOWN;
    }
    return 0;
}

/* Asks for events, then polls: completions before that cause no event. */
static int arm(struct tarn_rdma_link *l)
{
    int rc = 0;
    for (uint32_t k = 0; !rc && !l->broken && k < l->nlanes; k++)
        if (l->lanes[k].joined)
            rc = tarn_rdma_lane_arm(&l->lanes[k]);
    if (rc)
        break_link(l, TARN_E_NODE_DOWN);
    return step(l);
}

static int rdma_progress(struct tarn_link *link)
{
    struct tarn_rdma_link *l = tarn_rdma_link(link);
    for (uint32_t k = 0; k < l->nlanes; k++)
        if (l->lanes[k].joined)
            tarn_rdma_lane_disarm(&l->lanes[k]);
    int done = step(l);
    if (done == 0 && l->busy)
        done = look_at_ports(l);
    if (done >= 0 && l->busy)
        done = arm(l);
    if (l->busy)
        note_quiet(l, tarn_now_ns());
    return done < 0 ? done : 0;
}

/* --- waiting ------------------------------------------------------------------------------------ */

static int rdma_wait_fd(const struct tarn_link *link, short *events)
{
    const struct tarn_rdma_link *l = tarn_rdma_link(link);
    bool waits = !l->broken && l->busy;
    *events = waits ? POLLIN : 0;
    return waits ? l->epoll_fd : -1;
}

/* Polls while a single work is in flight, because a wake-up takes as long as the work. */
static int rdma_wait(struct tarn_link *link, uint64_t deadline_ns)
{
    struct tarn_rdma_link *l = tarn_rdma_link(link);
    uint64_t begin = tarn_now_ns(), now;
    uint64_t until = begin + (2 * l->usual_ns < SPIN_NS ? 2 * l->usual_ns : SPIN_NS);
    uint32_t busy = l->busy;
    bool moved = false, posted = false; /* the first step mostly just posts */
    if (until > deadline_ns)
        until = deadline_ns;
    if (!busy)
        return rdma_progress(link);
    do {
        int done = step(l);
        if (done < 0)
            return done;
        if (l->busy < busy) {
            l->usual_ns += (tarn_now_ns() - begin) / 8;
            l->usual_ns -= l->usual_ns / 8;
            return 1;
        }
        moved |= done > 0;
        now = done > 0 || !posted ? begin : tarn_now_ns();
        posted = true;
    } while (now < until);
    if (moved)
        return 1;
    note_quiet(l, now);
    int rc = arm(l);
    if (rc == 0)
        rc = tarn_wait_by_poll(&tarn_rdma_ops, link, deadline_ns);
    if (rc > 0 && l->usual_ns < SPIN_NS)
        l->usual_ns += (tarn_now_ns() - begin) / 8;
    return rc;
}

/* --- connecting --------------------------------------------------------------------------------- */

static void rdma_close(struct tarn_link *link)
{
    struct tarn_rdma_link *l = tarn_rdma_link(link);
    if (!l->broken && !l->busy)
        tarn_touch_finish(l);
    break_link(l, TARN_E_CANCELED);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    if (l->bounce) {
        char *memory = l->bounce->addr;
        tarn_region_free(l->bounce);
        munmap(memory, BOUNCE_ALL);
    }
    free(l->pools);
    free(l->jobs);
    free(l);
}

static int open_jobs(struct tarn_rdma_link *l)
{
    l->jobs = calloc(TARN_JOBS, sizeof *l->jobs);
    if (!l->jobs)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: rdma: out of memory", l->link.node);
    for (uint32_t i = 0; i < TARN_JOBS; i++) {
        l->jobs[i].next = l->free_jobs;
        l->free_jobs = &l->jobs[i];
    }
    return 0;
}

/* Memory of the link for devices: bounce chunks, then the ticks, then notifications. Not inherited by
 * children: copy-on-write would take the pages from the device. */
static int open_bounce(struct tarn_rdma_link *l)
{
    size_t bytes = BOUNCE_ALL;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return tarn_fail(TARN_E_NO_MEMORY, "node %s: rdma: out of memory", l->link.node);
    madvise(memory, bytes, MADV_DONTFORK);
    int rc = tarn_region_new(&l->local->rails, false, memory, bytes, IBV_ACCESS_LOCAL_WRITE, &l->bounce);
    if (rc) {
        munmap(memory, bytes);
        return rc;
    }
    l->bounces = UINT64_MAX;
    l->touches.ticks = (uint32_t *)(void *)(memory + (size_t)BOUNCES * BOUNCE_BYTES);
    tarn_tell_init(&l->tell, memory + (size_t)BOUNCES * BOUNCE_BYTES + TICKS_BYTES);
    return 0;
}

static int open_lanes(struct tarn_rdma_link *l)
{
    int rc = 0;
    uint64_t now = tarn_now_ns();
    for (uint32_t k = 0; !rc && k < l->local->rails.n; k++) {
        uint64_t aside = atomic_load(&l->local->aside_ns[k]);
        if (aside > now)
            l->whole_ns = aside;
        else if (!tarn_rail_active(&l->local->rails.rail[k]))
            l->whole_ns = now + TARN_RAIL_ASIDE_NS;
        else
            rc = tarn_rdma_lane_open(l, k,
                                     &l->lanes[l->nlanes++]); /* counted even if it failed, for closing */
    }
    if (!rc && l->nlanes == 0)
        rc = tarn_fail(TARN_E_NOT_REACHABLE,
                       "node %s: rdma: all %u rails are down or have failed within the last %u s: see "
                       "ibv_devinfo",
                       l->link.node, l->local->rails.n, (unsigned)(TARN_RAIL_ASIDE_NS / TARN_NS_PER_S));
    return rc;
}

static int rdma_offer(const struct tarn_peer *p, char text[TARN_OFFER_TEXT], struct tarn_link **l_p)
{
    struct tarn_rdma_link *l = tarn_link_new("rdma", p, sizeof *l);
    if (!l)
        return TARN_E_NO_MEMORY;
    l->local = tarn_rdma_local(p->local);
    l->tick_base_ns = p->tick_base_ns;
    l->windows = p->windows;
    l->usual_ns = SPIN_NS / 4;
    l->strip_ended = strip_ended;
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int rc = l->epoll_fd < 0
                 ? tarn_fail(TARN_E_SYSTEM, "node %s: rdma: %m: raise the limit of open files", l->link.node)
                 : open_jobs(l);
    if (!rc)
        rc = open_lanes(l); /* first, since this repeats while no rail is up */
    if (!rc)
        rc = open_bounce(l);
    if (rc) {
        rdma_close(&l->link);
        return rc;
    }
    size_t n = (size_t)snprintf(text, TARN_OFFER_TEXT, "v1");
    for (uint32_t k = 0; k < l->nlanes; k++) {
        char end[TARN_ENDPOINT_TEXT];
        tarn_endpoint_format(&l->lanes[k].own, end);
        n += (size_t)snprintf(text + n, TARN_OFFER_TEXT - n, " %s", end);
    }
    *l_p = &l->link;
    return 0;
}

static int begin(struct tarn_rdma_link *l, const struct tarn_peer *p)
{
    l->link.writable = p->write;
    int rc = tarn_rdma_read_answer(l, p->text);
    return rc ? rc : tarn_rdma_lanes_begin(l);
}

static int rdma_connect(const struct tarn_peer *p, struct tarn_link **l_p)
{
    struct tarn_rdma_link *l = tarn_rdma_link(*l_p);
    int rc = l->pools ? 0 : begin(l, p);
    if (!rc)
        rc = tarn_rdma_lanes_await(l, p->deadline_ns);
    if (rc < 0) {
        rdma_close(&l->link);
        *l_p = NULL;
    }
    return rc;
}

static void rdma_touch(struct tarn_link *link, uint32_t pool, uint32_t slot)
{
    struct tarn_rdma_link *l = tarn_rdma_link(link);
    struct tarn_work w = {.pool = pool, .slot = slot};
    if (l->broken || !inside(l, &w))
        return;
    tarn_touch_note(l, pool, slot);
    tarn_touch_tend(l);
}

const struct tarn_transport_ops tarn_rdma_ops = {
    .name = "rdma",
    .caps = TARN_RDMA_CAPS,
    .probe = tarn_rdma_probe,
    .local_open = tarn_rdma_local_open,
    .local_close = tarn_rdma_local_close,
    .map = tarn_rdma_map,
    .unmap = tarn_rdma_unmap,
    .ready = tarn_no_ready,
    .offer = rdma_offer,
    .connect = rdma_connect,
    .learn = tarn_rdma_learn,
    .get = rdma_get,
    .put = rdma_put,
    .progress = rdma_progress,
    .wait_fd = rdma_wait_fd,
    .wait = rdma_wait,
    .touch = rdma_touch,
    .view = tarn_no_view,
    .unview = tarn_no_unview,
    .address = tarn_no_address,
    .close = rdma_close,
};
