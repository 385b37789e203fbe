/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes of a lease: one flight over the links to its lender.
 *
 * A read that fails on the way is tried again, by the next transport if need be, or once more when the lender
 * still answers. A write is not, once a link has taken it: bytes of the first try might arrive behind those
 * of a later write, and replace them.
 *
 * Small submitted reads that a worker finds queued share a flight and a link (run_together()). Each has its
 * own deadline and cancel. What does not go through at once, because a link must be opened, breaks or is
 * closed for another read's sake, is queued again and runs alone.
 *
 * Writes that each tell something (tarn_move_each()) share a flight, too. Such a write is never repeated when
 * its link was closed: unlike one that is alone on its link, it may have told already.
 */
#include "client/window/move.h"

#include <stdlib.h>

#include "base/container.h"
#include "client/check.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/event.h"
#include "client/flight.h"
#include "client/health.h"
#include "client/link.h"
#include "client/op.h"
#include "client/peer_nodes.h"
#include "client/way.h"
#include "transport/seen.h"

struct job {
    struct tarn_move *move;
    struct tarn_transfer x;
    struct tarn_reason refusal; /* x.why */
    struct tarn_way way;
    uint64_t tried; /* as in struct tarn_choice */
    bool flying;
    bool again;                       /* the token was shown again */
    bool revived;                     /* it is tried once more, since the lender still answers */
    struct tarn_operation *op;        /* run_together(): ends with the job */
    const struct tarn_notify *notify; /* tarn_move_each(): goes with the job; NULL: nothing */
};

struct batch {
    struct tarn_reach *reach;
    bool write;
    uint64_t deadline_ns;
    struct tarn_cancel *cancel;
    struct tarn_flight flight;
    struct tarn_seen seen;
    struct job *jobs;
    size_t n;
    struct tarn_reason why; /* of the first job that failed */
    const struct tarn_notify *notify;
    bool untold;          /* the notification went with the last job in vain, since the queue was full */
    tarn_moved_fn *moved; /* tarn_move_each(): told of each end; else NULL */
    void *arg;
};

static void finish(struct batch *b, struct job *j, int status)
{
    j->flying = false;
    j->move->status = status;
    if (status && !b->why.code)
        tarn_reason_keep(&b->why, status);
    if (b->moved)
        b->moved(b->arg, (size_t)(j - b->jobs), status);
}

/* --- posting ------------------------------------------------------------------------------------ */

static bool choose(const struct batch *b, struct job *j)
{
    const struct tarn_loc l = {.node = b->reach->lender, .pool = b->reach->window};
    const struct tarn_choice q = {
        .locs = &l, .nlocs = 1, .gpu = j->x.work.gpu, .write = b->write, .tried = j->tried};
    return tarn_way_choose(b->reach->client, &q, tarn_now_ns(), &j->way);
}

/* Do both sides have a transport that reaches the window from where this client is? */
static bool may_reach(const struct batch *b)
{
    const struct tarn_client *c = b->reach->client;
    const struct tarn_peer_node *lender = b->reach->lender;
    uint8_t common = atomic_load(&lender->pool_transports[b->reach->window]);
    for (int t = 0; t < c->ntransports; t++) {
        bool far = !(c->transports[t]->caps & TARN_CAP_SAME_HOST);
        if (common & (1u << t) && (far || atomic_load(&lender->near)))
            return true;
    }
    return false;
}

static int unreachable(const struct batch *b, const struct job *j)
{
    struct tarn_peer_node *lender = b->reach->lender;
    if (tarn_now_ns() >= b->deadline_ns)
        return tarn_peer_node_fail(lender, TARN_E_TIMEOUT, "the deadline has passed: raise timeout_ms");
    if (atomic_load(&lender->health) != TARN_UP || atomic_load(&lender->superseded))
        return tarn_peer_node_fail(lender, TARN_E_NODE_DOWN, "does not answer: has its process ended?");
    if (b->reach->descriptor.gpu && !may_reach(b))
        return tarn_peer_node_fail(lender, TARN_E_NOT_REACHABLE,
                                   "window %u is memory of a GPU: clients of the lender's host reach it by "
                                   "cuda_ipc, all by tcpx or tcp: give both sides one of these",
                                   b->reach->window);
    return tarn_link_unreachable(lender, b->write, j->x.work.gpu);
}

/* What goes with this job. That of the whole call goes with the last one: the others have ended. */
static const struct tarn_notify *told_with(const struct batch *b, const struct job *j)
{
    if (b->moved)
        return j->notify;
    return !b->why.code && j == &b->jobs[b->n - 1] ? b->notify : NULL;
}

/* Waits for the keeper's word on a lender that has just failed. */
static bool answers(const struct batch *b)
{
    struct tarn_peer_node *lender = b->reach->lender;
    return atomic_load(&lender->health) == TARN_UP ||
           tarn_peer_node_settled(lender, b->deadline_ns, b->cancel);
}

static void post(struct batch *b, struct job *j)
{
    while (answers(b) && choose(b, j)) {
        j->x.work.notify = told_with(b, j);
        int rc = tarn_flight_post(&b->flight, j->way.side, &j->x, UINT64_MAX);
        j->flying = rc == 0;
        if (rc == 0)
            return;
        if (rc == TARN_E_NODE_DOWN || rc == TARN_E_TIMEOUT || rc == TARN_E_CANCELED) {
            finish(b, j, rc);
            return;
        }
        j->tried |= tarn_way_bit(&j->way);
    }
    finish(b, j, unreachable(b, j));
}

/* --- outcomes ----------------------------------------------------------------------------------- */

static int in_doubt(const struct batch *b, int code, const char *what)
{
    if (b->write)
        atomic_store(&b->reach->doubt, true);
    return tarn_peer_node_fail(b->reach->lender, code, "%s%s", what,
                               b->write ? "; until the lease ends, bytes of the write may still arrive" : "");
}

/* Can nothing of the first try arrive any more? The lender has cut off what a closed link of a one-sided
 * transport had posted. */
static bool may_repeat(const struct batch *b, const struct job *j)
{
    bool cut_off = j->x.fl && !j->x.fl->loose && (j->way.side->ops->caps & TARN_CAP_ONE_SIDED);
    if (b->moved && b->n > 1 && j->notify)
        return false;
    return (!b->write || cut_off) && tarn_now_ns() < b->deadline_ns;
}

static void broken(struct batch *b, struct job *j)
{
    if (!b->write && !j->x.fresh && tarn_now_ns() < b->deadline_ns) { /* a pooled link has died */
        tarn_link_flush(j->way.side);
        post(b, j);
        return;
    }
    struct tarn_reason why;
    tarn_reason_keep(&why, in_doubt(b, TARN_E_NODE_DOWN, "the data connection broke"));
    bool other = tarn_link_lost(j->way.side, b->reach->window, j->x.work.gpu, why.text);
    if (!other)
        tarn_peer_node_failed(b->reach->lender, why.code, why.text, 0);
    if (!b->write && (other || (!j->revived && answers(b)))) {
        j->revived |= !other;
        j->tried |= other ? tarn_way_bit(&j->way) : 0;
        post(b, j);
        return;
    }
    finish(b, j, tarn_reason_fail(&why));
}

static void refused(struct batch *b, struct job *j, int status)
{
    finish(b, j,
           tarn_peer_node_fail(b->reach->lender, status, "%s",
                               j->x.refused ? j->x.why->text : tarn_strerror(status)));
}

static void shown_again(struct batch *b, struct job *j)
{
    int rc = j->again ? TARN_E_AUTH : tarn_reach_again(b->reach, b->deadline_ns, b->cancel);
    if (j->again) {
        refused(b, j, rc);
    } else if (rc) {
        finish(b, j, rc);
    } else {
        j->again = true;
        tarn_link_flush(j->way.side); /* those of the old session */
        tarn_flight_drop(&b->flight, j->way.side);
        post(b, j);
    }
}

/* A lender that takes part in each transfer serves many together for little more than one. */
static void note_transport(const struct batch *b, const struct job *j)
{
    bool both = !(j->way.side->ops->caps & TARN_CAP_ONE_SIDED);
    if (atomic_load(&b->reach->together) != both)
        atomic_store(&b->reach->together, both);
}

static int untold(const struct batch *b)
{
    return tarn_peer_node_fail(
        b->reach->lender, TARN_E_AGAIN,
        "its queue of notifications is full: the bytes are in place, so tell again with a "
        "write of no moves");
}

static void done(struct batch *b, struct job *j)
{
    int status = j->x.work.status;
    switch (status) {
    case 0:
        note_transport(b, j);
        b->untold = j->x.work.untold;
        finish(b, j, b->moved && b->untold ? untold(b) : 0);
        break;
    case TARN_E_NOT_REACHABLE: /* by this transport */
    case TARN_E_UNAVAILABLE:
        j->tried |= tarn_way_bit(&j->way);
        post(b, j);
        break;
    case TARN_E_NODE_DOWN:
        broken(b, j);
        break;
    case TARN_E_AGAIN: /* its link was closed for another transfer's sake */
        if (may_repeat(b, j))
            post(b, j);
        else
            finish(b, j, in_doubt(b, TARN_E_NODE_DOWN, "another transfer has broken the link"));
        break;
    case TARN_E_AUTH: /* the session has ended; nothing was moved */
        shown_again(b, j);
        break;
    case TARN_E_STALE:
        finish(b, j,
               tarn_peer_node_fail(b->reach->lender, status,
                                   "window %u lease %u: has ended: ask the lender for a new one",
                                   b->reach->window, b->reach->slot));
        break;
    default:
        refused(b, j, status);
        break;
    }
}

static void landed(struct batch *b, struct job *j)
{
    j->flying = false;
    switch (j->x.end) {
    case TARN_END_DONE:
        done(b, j);
        break;
    case TARN_END_BROKEN:
        broken(b, j);
        break;
    case TARN_END_SILENT:
        finish(b, j, in_doubt(b, TARN_E_NODE_DOWN, "does not answer: it is paused or cut off"));
        break;
    case TARN_END_EXPIRED:
        finish(b, j, in_doubt(b, TARN_E_TIMEOUT, "the deadline passed: raise timeout_ms"));
        break;
    case TARN_END_CANCELED:
        finish(b, j, tarn_cancel_fail());
        break;
    case TARN_END_SHIFTED:
        if (b->write)
            finish(b, j, in_doubt(b, TARN_E_NODE_DOWN, "another transfer has closed the link"));
        else
            post(b, j);
        break;
    }
}

/* --- a call ------------------------------------------------------------------------------------- */

/* Checks a move and fills its work. */
static int aim(struct batch *b, struct job *j)
{
    const struct tarn_reach *r = b->reach;
    const struct tarn_move *m = j->move;
    const char *call = b->write ? "write" : "read";
    int rc = tarn_pieces_check(call, (size_t)(j - b->jobs), m->pieces, m->npieces);
    if (rc)
        return rc;
    uint64_t bytes = tarn_pieces_bytes(m->pieces, m->npieces);
    if (m->offset > r->known.lease.runs.bytes || bytes > r->known.lease.runs.bytes - m->offset)
        return tarn_fail(
            TARN_E_SIZE,
            "%s: item %zu: %llu bytes at offset %llu: the lease has %llu: give a range inside of it", call,
            (size_t)(j - b->jobs), (unsigned long long)bytes, (unsigned long long)m->offset,
            (unsigned long long)r->known.lease.runs.bytes);
    j->x.work = (struct tarn_work){.pool = r->window,
                                   .slot = r->slot,
                                   .gen = r->gen,
                                   .offset = m->offset,
                                   .bytes = bytes,
                                   .lease = &r->known.lease,
                                   .pieces = m->pieces,
                                   .npieces = m->npieces};
    j->x.deadline_ns = b->deadline_ns;
    j->x.patience_ns = UINT64_MAX;
    j->x.why = &j->refusal;
    return tarn_pieces_gpu(m->pieces, m->npieces, &b->seen, &j->x.work.gpu);
}

static void begin_jobs(struct batch *b, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        int rc = aim(b, &b->jobs[i]);
        if (rc)
            finish(b, &b->jobs[i], rc);
        else
            post(b, &b->jobs[i]);
    }
}

static void end_jobs(struct batch *b)
{
    for (struct tarn_transfer *x; (x = tarn_flight_next(&b->flight)) != NULL;)
        landed(b, TARN_CONTAINER_OF(x, struct job, x));
}

/* Ends all; what still flies then is canceled. */
static void end_batch(struct batch *b)
{
    end_jobs(b);
    for (size_t i = 0; i < b->n; i++)
        if (b->jobs[i].flying)
            finish(b, &b->jobs[i], in_doubt(b, TARN_E_CANCELED, "canceled"));
    tarn_flight_end(&b->flight);
}

static void run(struct batch *b)
{
    tarn_flight_init(&b->flight, b->reach->client, b->cancel);
    size_t last = b->notify && b->n > 1 ? b->n - 1 : b->n; /* it tells of all, so it waits for them */
    begin_jobs(b, 0, last);
    end_jobs(b);
    begin_jobs(b, last, b->n);
    end_batch(b);
}

/* Several such works together would be copied by a kernel, which waits for kernels that fill the GPU. */
static bool is_copied_by_gpu(const struct batch *b, const struct job *j)
{
    return j->flying && (j->x.work.gpu || b->reach->descriptor.gpu) &&
           !(j->way.side->ops->caps & TARN_CAP_KEYS);
}

static void run_each(struct batch *b)
{
    tarn_flight_init(&b->flight, b->reach->client, b->cancel);
    for (size_t i = 0; i < b->n; i++) {
        begin_jobs(b, i, i + 1);
        if (is_copied_by_gpu(b, &b->jobs[i]))
            end_jobs(b);
    }
    end_batch(b);
}

static int check(const struct tarn_reach *r, const struct tarn_move *moves, size_t n,
                 const struct tarn_move_options *o, bool write)
{
    const char *call = write ? "write" : "read";
    if (!r || (n && !moves))
        return tarn_fail(TARN_E_INVALID, "%s: NULL: pass what tarn_reach() made, and %zu moves", call, n);
    if (write && !r->write)
        return tarn_fail(TARN_E_AUTH,
                         "write: the lease is for reading: ask its lender for one with TARN_LEASE_WRITE");
    if (o->notify && (!write || o->notify->bytes > TARN_NOTIFY_MAX || (o->notify->bytes && !o->notify->data)))
        return tarn_fail(TARN_E_INVALID, "%s: a notification goes with a write, and has at most %d bytes",
                         call, TARN_NOTIFY_MAX);
    return tarn_flags_check(call, o->flags, 0);
}

/* One call, blocking or submitted. */
struct call {
    struct tarn_reach *reach;
    struct tarn_move *moves;
    size_t n;
    bool write;
    struct tarn_move_options options;
    struct tarn_notify notify; /* submitted: a copy of the options' */
};

static int begin(struct call *k, const struct tarn_move_options *given)
{
    int rc = tarn_options_copy(&k->options, sizeof(k->options), given);
    if (!rc)
        rc = check(k->reach, k->moves, k->n, &k->options, k->write);
    return rc ? rc : tarn_client_enter(k->reach->client);
}

static int run_call(void *arg, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct call *k = arg;
    struct tarn_move nothing = {.npieces = 0};
    struct job one = {.tried = 0};
    struct batch b = {.reach = k->reach,
                      .write = k->write,
                      .n = k->n ? k->n : 1,
                      .deadline_ns = deadline_ns,
                      .cancel = cancel,
                      .notify = k->options.notify};
    b.jobs = b.n > 1 ? calloc(b.n, sizeof(*b.jobs)) : &one;
    if (!b.jobs)
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory for %zu items", k->write ? "write" : "read",
                         k->n);
    for (size_t i = 0; i < b.n; i++)
        b.jobs[i].move = k->n ? &k->moves[i] : &nothing;
    tarn_seen_clear(&b.seen);
    run(&b);
    if (b.n > 1)
        free(b.jobs);
    return b.untold && !b.why.code ? untold(&b) : tarn_reason_fail(&b.why);
}

int tarn_move_run(struct tarn_reach *r, struct tarn_move *moves, size_t n, bool write, uint64_t deadline_ns,
                  struct tarn_cancel *cancel)
{
    struct call k = {.reach = r, .moves = moves, .n = n, .write = write};
    return run_call(&k, deadline_ns, cancel);
}

int tarn_move_tell(struct tarn_reach *r, struct tarn_move *moves, size_t n, const struct tarn_notify *notify,
                   uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct call k = {.reach = r, .moves = moves, .n = n, .write = true, .options.notify = notify};
    int rc = check(r, moves, n, &k.options, true);
    return rc ? rc : run_call(&k, deadline_ns, cancel);
}

void tarn_move_each(struct tarn_reach *r, struct tarn_told_move *moves, size_t n, uint64_t deadline_ns,
                    struct tarn_cancel *cancel, tarn_moved_fn *moved, void *arg)
{
    const struct tarn_move_options none = {.size = sizeof none};
    struct job *jobs = calloc(n, sizeof(*jobs));
    struct batch b = {.reach = r,
                      .write = true,
                      .deadline_ns = deadline_ns,
                      .cancel = cancel,
                      .jobs = jobs,
                      .n = n,
                      .moved = moved,
                      .arg = arg};
    int rc = jobs ? check(r, &moves[0].move, n, &none, true)
                  : tarn_fail(TARN_E_NO_MEMORY, "write: out of memory for %zu items", n);
    tarn_seen_clear(&b.seen);
    for (size_t i = 0; i < n; i++) {
        if (rc)
            moved(arg, i, rc);
        else
            jobs[i] = (struct job){.move = &moves[i].move, .notify = moves[i].notify};
    }
    if (!rc)
        run_each(&b);
    free(jobs);
}

static int move(struct call *k, const struct tarn_move_options *given)
{
    struct tarn_cancel own;
    int rc = begin(k, given);
    if (rc || (k->n == 0 && !k->options.notify))
        return rc;
    uint64_t deadline = tarn_client_deadline(k->reach->client, k->options.timeout_ms);
    struct tarn_cancel *cancel = tarn_client_cancel(k->reach->client, &own);
    rc = k->options.after ? tarn_event_wait(k->options.after, deadline, cancel) : 0;
    return rc ? rc : run_call(k, deadline, cancel);
}

int tarn_read(struct tarn_reach *r, struct tarn_move *moves, size_t n, const struct tarn_move_options *o)
{
    return move(&(struct call){.reach = r, .moves = moves, .n = n}, o);
}

int tarn_write(struct tarn_reach *r, struct tarn_move *moves, size_t n, const struct tarn_move_options *o)
{
    return move(&(struct call){.reach = r, .moves = moves, .n = n, .write = true}, o);
}

/* --- submitted ---------------------------------------------------------------------------------- */

static bool uses(const void *arg, const void *addr, uint64_t bytes)
{
    const struct call *k = arg;
    for (size_t i = 0; i < k->n; i++)
        for (uint32_t j = 0; j < k->moves[i].npieces; j++)
            if (tarn_piece_overlaps(&k->moves[i].pieces[j], addr, bytes))
                return true;
    return false;
}

static void unrun(void *arg, int status)
{
    const struct call *k = arg;
    for (size_t i = 0; i < k->n; i++)
        k->moves[i].status = status;
}

/* Has one that has not ended been canceled? */
static bool any_canceled(void *arg)
{
    const struct batch *b = arg;
    for (size_t i = 0; i < b->n; i++)
        if (b->jobs[i].op && atomic_load(&b->jobs[i].op->cancel.on))
            return true;
    return false;
}

/* Ends the operation, if it can end so. Its reach may be gone afterwards. */
static void landed_together(const struct batch *b, struct job *j)
{
    struct tarn_operation *op = j->op;
    bool expired = j->x.end == TARN_END_EXPIRED;
    if (!expired && (j->x.end != TARN_END_DONE || j->x.work.status))
        return;
    j->op = NULL;
    j->move->status = expired ? tarn_peer_node_fail(b->reach->lender, TARN_E_TIMEOUT,
                                                    "the deadline passed: raise timeout_ms")
                              : 0;
    tarn_op_complete(b->flight.client, op, j->move->status);
}

/* Posts a read if nothing has to be waited for. */
static void post_at_once(struct batch *b, struct job *j)
{
    uint64_t now = tarn_now_ns();
    if (aim(b, j) || !choose(b, j) || tarn_flight_opens(&b->flight, j->way.side))
        return;
    j->x.deadline_ns = j->op->deadline_ns;
    j->x.cancel = &j->op->cancel;
    tarn_flight_post(&b->flight, j->way.side, &j->x, now);
}

static void run_together(struct tarn_client *c, struct tarn_operation *const *ops, size_t n, int cancel_fd)
{
    const struct call *first = ops[0]->arg;
    struct job *jobs = calloc(n, sizeof(*jobs));
    struct batch b = {.reach = first->reach, .jobs = jobs, .n = jobs ? n : 0};
    struct tarn_cancel any = {.fd = cancel_fd, .others = any_canceled, .others_arg = &b};
    tarn_seen_clear(&b.seen);
    tarn_flight_init(&b.flight, c, &any);
    for (size_t i = 0; i < b.n; i++) {
        const struct call *k = ops[i]->arg;
        jobs[i] = (struct job){.move = k->moves, .op = ops[i]};
        post_at_once(&b, &jobs[i]);
    }
    for (struct tarn_transfer *x; (x = tarn_flight_next(&b.flight)) != NULL;)
        landed_together(&b, TARN_CONTAINER_OF(x, struct job, x));
    tarn_flight_end(&b.flight);
    for (size_t i = 0; i < n; i++)
        if (!jobs || jobs[i].op)
            tarn_op_requeue(c, ops[i]);
    free(jobs);
}

/* May it run together with other reads of the lease? */
static bool is_small_read(const struct call *k)
{
    return !k->write && k->n == 1 && atomic_load(&k->reach->together) && k->moves->pieces;
}

static int submit(const struct call *as, const struct tarn_move_options *given, uint64_t cookie,
                  tarn_op *op_p)
{
    struct call *k = malloc(sizeof(*k));
    if (!k)
        return tarn_fail(TARN_E_NO_MEMORY, "submit: out of memory");
    *k = *as;
    int rc = begin(k, given);
    if (!rc && k->options.notify) {
        k->notify = *k->options.notify;
        k->options.notify = &k->notify;
    }
    if (!rc) {
        bool small = is_small_read(k);
        const struct tarn_op_task t = {.kind = k->write ? TARN_OP_WRITE : TARN_OP_READ,
                                       .timeout_ms = k->options.timeout_ms,
                                       .cookie = cookie,
                                       .after = k->options.after,
                                       .run = run_call,
                                       .unrun = unrun,
                                       .run_together = small ? run_together : NULL,
                                       .group = k->reach,
                                       .bytes =
                                           small ? tarn_pieces_bytes(k->moves->pieces, k->moves->npieces) : 0,
                                       .uses = uses,
                                       .arg = k};
        rc = tarn_op_submit(k->reach->client, &t, op_p);
    }
    if (rc)
        free(k);
    return rc;
}

int tarn_submit_read(struct tarn_reach *r, struct tarn_move *moves, size_t n,
                     const struct tarn_move_options *o, uint64_t cookie, tarn_op *op_p)
{
    return submit(&(struct call){.reach = r, .moves = moves, .n = n}, o, cookie, op_p);
}

int tarn_submit_write(struct tarn_reach *r, struct tarn_move *moves, size_t n,
                      const struct tarn_move_options *o, uint64_t cookie, tarn_op *op_p)
{
    return submit(&(struct call){.reach = r, .moves = moves, .n = n, .write = true}, o, cookie, op_p);
}
