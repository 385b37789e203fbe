/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX, client half: the works of a lane.
 *
 *   queued --GET, PUT--> asked --ANSWER--> answered --messages posted, and arrived--> ended   (gets)
 *                                          answered --messages gathered, sent; DONE--> ended  (puts)
 *
 * Receives are posted, and messages sent, when the node has answered: one that it refuses has no bytes on the
 * plugin's connection, which could not be told from the next one's. The node answers and sends at once, so a
 * get waits no longer for that.
 */
#include "transport/tcpx/tcpx_lane.h"
#include "transport/tcpx/plugin/tcpx_nic.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/tcpx/plugin/tcpx_settings.h"

#define USUAL_NS TARN_NS_PER_S
#define LISTEN_MS 1000u /* extra time allowed for listening */

/* What a lane keeps in a work's context. A work of a lease is heard of by DONE, as puts are. */
struct course {
    uint64_t posted, moved; /* bytes */
    int status;
    bool answered, heard /* DONE */, ended;
};
_Static_assert(sizeof(struct course) <= TARN_WORK_CONTEXT, "fits a work");

static struct course *course(const struct tarn_work *w)
{
    return (struct course *)w->context;
}

static void end(struct tarn_work *w, int status)
{
    course(w)->ended = true;
    course(w)->status = status;
}

/* --- works -------------------------------------------------------------------------------------- */

void tarn_tcpx_lane_queue(struct tarn_tcpx_lane *n, struct tarn_work *w)
{
    w->next = NULL;
    w->untold = false;
    *course(w) = (struct course){0};
    if (n->last)
        n->last->next = w;
    else
        n->first = w;
    n->last = w;
    if (!n->unasked)
        n->unasked = w;
    if (!n->unanswered)
        n->unanswered = w;
    if (!n->unposted)
        n->unposted = w;
}

static void pop(struct tarn_tcpx_lane *n, int status, const char *why)
{
    struct tarn_work *w = n->first;
    n->first = w->next;
    n->first_tag++;
    if (!n->first)
        n->last = NULL;
    w->status = status;
    w->why = status ? why : NULL;
    n->moved |= status == 0;
    w->done(w);
}

/* Ends works in order. A callback may queue new ones. */
static int reap(struct tarn_tcpx_lane *n)
{
    int moved = 0;
    while (n->first && course(n->first)->ended && n->first != n->unposted) {
        n->asked--;
        moved = 1;
        pop(n, course(n->first)->status, NULL);
    }
    return moved;
}

/* Do the requested gets have so many messages left that later requests can wait and be sent together? The
 * node must still have a window of messages when it receives them. */
static bool has_enough(const struct tarn_tcpx_lane *n)
{
    uint64_t messages = 0, enough = n->gear->plugin->window * 5 / 4, chunk = n->gear->chunk_bytes;
    for (const struct tarn_work *w = n->first; w != n->unasked && messages < enough; w = w->next)
        messages += course(w)->ended ? 0 : (w->bytes - course(w)->moved + chunk - 1) / chunk;
    return messages >= enough;
}

static void say_notice(const struct tarn_tcpx_lane *n, const struct tarn_work *w)
{
    struct tarn_notice notice = {0};
    tarn_notice_of(w, &notice);
    tarn_tcpx_wire_say(n->wire, (struct tarn_tcpx_frame){.op = TARN_TCPX_TELL, .lane = n->id}, &notice);
}

static void ask(struct tarn_tcpx_lane *n)
{
    if (n->state == TARN_TCPX_LANE_LISTENING || (!n->puts && has_enough(n)))
        return;
    for (; n->unasked && n->asked < TARN_TCPX_ASKED; n->unasked = n->unasked->next, n->asked++) {
        const struct tarn_work *w = n->unasked;
        const struct tarn_tcpx_frame f = {.op = n->puts ? TARN_TCPX_PUT : TARN_TCPX_GET,
                                          .flags = !n->puts && !w->touch ? TARN_TCPX_NO_TOUCH : 0,
                                          .lane = n->id,
                                          .pool = w->pool,
                                          .slot = w->slot,
                                          .tag = n->ask_tag++,
                                          .gen = w->gen,
                                          .offset = w->offset,
                                          .bytes = w->bytes};
        if (n->puts && w->notify)
            say_notice(n, w);
        tarn_tcpx_wire_say(n->wire, f, NULL);
    }
}

/* Ends the work if the node has done with it, and the plugin, too. */
static void end_if_over(struct tarn_work *w)
{
    if (course(w)->heard && course(w)->moved == w->bytes)
        end(w, course(w)->status);
}

/* Callback of the comm: a slot of the stage is free again. */
static void sent(void *owner, uint32_t bytes)
{
    struct tarn_tcpx_stage *s = owner;
    struct tarn_work *w = s->slots[s->done++ % s->depth].owner;
    course(w)->moved += bytes;
    end_if_over(w);
}

/* --- what the node says ------------------------------------------------------------------------- */

static int garbled(const char *what)
{
    return tarn_fail(TARN_E_PROTOCOL, "tcpx: received %s", what);
}

static int answered(struct tarn_tcpx_lane *n, const struct tarn_tcpx_frame *f)
{
    struct tarn_work *w = n->unanswered;
    if (!w || w == n->unasked || f->tag != n->answer_tag || f->status > 0)
        return garbled("the answer to something not asked");
    n->unanswered = w->next;
    n->answer_tag++;
    course(w)->answered = true;
    if (f->status || (w->bytes == 0 && !n->puts))
        end(w, f->status);
    return 0;
}

/* Does the plugin have all of it? */
static bool is_handed_over(const struct tarn_tcpx_lane *n, const struct tarn_work *w)
{
    const struct tarn_tcpx_stage *s = &n->stage;
    for (uint64_t k = s->sent; k < s->begun; k++)
        if (s->slots[k % s->depth].owner == w)
            return false;
    return course(w)->posted == w->bytes;
}

static int done(struct tarn_tcpx_lane *n, const struct tarn_tcpx_frame *f)
{
    struct tarn_work *w = n->first;
    for (uint64_t tag = n->first_tag; w && w != n->unanswered && tag != f->tag; tag++)
        w = w->next;
    if (!w || w == n->unanswered || course(w)->heard || course(w)->ended ||
        (n->puts ? !is_handed_over(n, w) : !w->lease) || (w->lease ? f->status > 0 : f->status != 0))
        return garbled("the end of a work that is not at its end");
    w->untold = w->notify && f->status == TARN_E_AGAIN;
    course(w)->status = w->untold ? 0 : f->status;
    course(w)->heard = true;
    end_if_over(w);
    return 0;
}

int tarn_tcpx_lane_hear(struct tarn_tcpx_lane *n, const struct tarn_tcpx_message *m)
{
    switch (m->frame.op) {
    case TARN_TCPX_ANSWER:
        return answered(n, &m->frame);
    case TARN_TCPX_DONE:
        return done(n, &m->frame);
    case TARN_TCPX_UP:
        n->up = true;
        return 0;
    case TARN_TCPX_HANDLE_IS:
        break;
    default:
        return garbled("a message of no use");
    }
    if (n->state != TARN_TCPX_LANE_ASKING)
        return garbled("a handle that was not asked for");
    int rc = tarn_tcpx_comm_new(n->gear, n->gpu, sent, m->body, &n->comm);
    if (!rc)
        n->state = TARN_TCPX_LANE_OPENING;
    return rc;
}

/* --- gets --------------------------------------------------------------------------------------- */

/* Callback of the comm: a message is at its destination. */
static void arrived(void *owner, uint32_t bytes)
{
    struct tarn_work *w = owner;
    course(w)->moved += bytes;
    course(w)->heard |= !w->lease;
    end_if_over(w);
}

static uint32_t next_bytes(const struct tarn_tcpx_lane *n, const struct tarn_work *w)
{
    uint64_t left = w->bytes - course(w)->posted;
    return left < n->gear->chunk_bytes ? (uint32_t)left : n->gear->chunk_bytes;
}

/* The work whose next message is due, if it has been answered. */
static struct tarn_work *due(struct tarn_tcpx_lane *n)
{
    while (n->unposted && course(n->unposted)->answered) {
        struct tarn_work *w = n->unposted;
        bool refused = course(w)->ended && course(w)->status;
        if (!refused && course(w)->posted < w->bytes)
            return w;
        n->unposted = w->next;
        n->gathered_at = (struct tarn_cursor){0};
    }
    return NULL;
}

static int post_receives(struct tarn_tcpx_lane *n)
{
    struct tarn_work *w;
    int moved = 0;
    while ((w = due(n)) && tarn_tcpx_comm_room(n->comm)) {
        uint32_t bytes = next_bytes(n, w);
        const struct tarn_tcpx_into into = {.kind = n->gpu < 0 ? TARN_CUDA_HOST : TARN_CUDA_DEVICE,
                                            .device = n->gpu,
                                            .pieces = w->pieces,
                                            .npieces = w->npieces,
                                            .bytes = w->bytes,
                                            .offset = course(w)->posted};
        int rc = tarn_tcpx_comm_recv(n->comm, bytes, &into, w);
        if (rc)
            return rc == TARN_E_AGAIN ? moved : rc;
        course(w)->posted += bytes;
        moved = 1;
    }
    return moved;
}

/* --- puts --------------------------------------------------------------------------------------- */

/* If the next message can be sent from where it is, adds it as a full one. */
static bool lend(struct tarn_tcpx_lane *n, struct tarn_work *w)
{
    struct tarn_cursor at = n->gathered_at;
    uint32_t bytes = next_bytes(n, w);
    struct tarn_tcpx_place p;
    void *from;
    if (n->gpu >= 0 || tarn_cursor_next(&at, w->pieces, w->npieces, bytes, &from) < bytes ||
        !tarn_tcpx_ranges_find(n->comm, from, bytes, &p))
        return false;
    tarn_tcpx_stage_lend(&n->stage, w, bytes, from, &p);
    n->gathered_at = at;
    course(w)->posted += bytes;
    return true;
}

/* Adds messages that need no copy, and at most one that does: sends must not wait for copies of later
 * messages. */
static int gather(struct tarn_tcpx_lane *n)
{
    struct tarn_tcpx_stage *s = &n->stage;
    struct tarn_work *w;
    int moved = 0;
    for (; tarn_tcpx_stage_has_room(s) && (w = due(n)) && lend(n, w); moved = 1)
        ;
    w = due(n);
    if (tarn_tcpx_stage_has_room(s) && w)
        tarn_tcpx_stage_begin(s, w, w->pieces, w->npieces, next_bytes(n, w));
    if (s->full == s->begun)
        return moved;
    int rc = tarn_tcpx_stage_fill(s, &n->gathered_at);
    if (rc)
        return rc == TARN_E_AGAIN ? moved : rc;
    course(w)->posted += next_bytes(n, w);
    return 1;
}

static int send_full(struct tarn_tcpx_lane *n)
{
    struct tarn_tcpx_stage *s = &n->stage;
    struct tarn_tcpx_slot *slot;
    uint8_t *memory;
    int moved = 0;
    while (tarn_tcpx_comm_room(n->comm)) {
        int rc = tarn_tcpx_stage_next(s, &slot, &memory);
        if (rc || !slot)
            return rc ? rc : moved;
        rc = tarn_tcpx_comm_send(n->comm, memory, slot->bytes, slot->lent ? &slot->place : NULL, s);
        if (rc)
            return rc == TARN_E_AGAIN ? moved : rc;
        s->sent++;
        moved = 1;
    }
    return moved;
}

/* Sends gathered messages before gathering more, so that the peer is busy meanwhile. */
static int post_sends(struct tarn_tcpx_lane *n)
{
    int before = send_full(n), full = before < 0 ? before : gather(n), after = full < 0 ? full : send_full(n);
    return after < 0 ? after : before | full | after;
}

/* --- the lane ----------------------------------------------------------------------------------- */

static void say_open(struct tarn_tcpx_lane *n, const uint8_t handle[TARN_TCPX_HANDLE])
{
    const struct tarn_tcpx_frame f = {
        .op = TARN_TCPX_OPEN, .flags = n->puts ? TARN_TCPX_PUTS : 0, .lane = n->id, .pool = n->pool};
    tarn_tcpx_wire_say(n->wire, f, handle);
}

int tarn_tcpx_lane_new(struct tarn_tcpx_gear *g, struct tarn_tcpx_wire *wire, uint32_t id, uint32_t pool,
                       int gpu, bool puts, struct tarn_tcpx_lane **n_p)
{
    const uint8_t none[TARN_TCPX_HANDLE] = {0};
    struct tarn_tcpx_lane *n = calloc(1, sizeof(*n));
    if (!n)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory for a lane");
    *n = (struct tarn_tcpx_lane){.wire = wire, .gear = g, .id = id, .pool = pool, .gpu = gpu, .puts = puts};
    bool direct = g->plugin->devices[tarn_tcpx_nic(g->plugin, gpu)].gpu;
    int rc = puts ? tarn_tcpx_stage_open(&n->stage, gpu, direct, g->chunk_bytes,
                                         g->plugin->window + TARN_TCPX_AHEAD)
                  : tarn_tcpx_comm_new(g, gpu, arrived, NULL, &n->comm);
    if (rc) {
        free(n);
        return rc;
    }
    n->state = puts ? TARN_TCPX_LANE_ASKING : TARN_TCPX_LANE_LISTENING;
    n->begun_ns = tarn_now_ns();
    if (puts)
        say_open(n, none);
    *n_p = n;
    return 0;
}

/* Sends the handle to the node, which connects to it. */
static int tell_handle(struct tarn_tcpx_lane *n)
{
    uint8_t handle[TARN_TCPX_HANDLE];
    int rc = tarn_tcpx_comm_handle(n->comm, handle);
    if (rc)
        return rc;
    say_open(n, handle);
    n->state = TARN_TCPX_LANE_OPENING;
    return 0;
}

/* 0: the set-up is within its time limit. */
static int check_late(const struct tarn_tcpx_lane *n)
{
    if (tarn_now_ns() <= n->begun_ns + (n->gear->setup_ms + LISTEN_MS) * TARN_NS_PER_MS)
        return 0;
    return tarn_fail(
        TARN_E_UNAVAILABLE,
        "tcpx plugin %s: no connection within %u ms: does the node's plugin reach this host, and the "
        "other way round? see the node's log; " TARN_TCPX_STALL_VARIABLE " gives it more time",
        n->gear->plugin->name, n->gear->setup_ms + LISTEN_MS);
}

static int open_comm(struct tarn_tcpx_lane *n)
{
    int rc = n->state == TARN_TCPX_LANE_LISTENING ? tell_handle(n) : 0;
    if (!rc)
        rc = n->comm ? tarn_tcpx_comm_poll(n->comm) : TARN_E_AGAIN;
    if (rc)
        return rc == TARN_E_AGAIN ? check_late(n) : rc;
    n->state = TARN_TCPX_LANE_OPEN;
    if (n->puts)
        rc = tarn_tcpx_ranges_own(n->comm, n->stage.ring, (uint64_t)n->stage.depth * n->stage.chunk_bytes,
                                  n->stage.on_gpu);
    return rc ? rc : 1;
}

int tarn_tcpx_lane_advance(struct tarn_tcpx_lane *n)
{
    int moved = 0;
    ask(n);
    if (n->state != TARN_TCPX_LANE_OPEN)
        moved = open_comm(n);
    if (moved < 0 || n->state != TARN_TCPX_LANE_OPEN)
        return moved;
    int late = n->up ? 0 : check_late(n); /* the node's end is ready */
    if (late)
        return late;
    int posted = n->puts ? post_sends(n) : post_receives(n);
    int ended = posted < 0 ? posted : tarn_tcpx_comm_progress(n->comm);
    due(n);
    int reaped = reap(n);
    ask(n);
    return ended < 0 ? ended : moved | posted | ended | reaped;
}

bool tarn_tcpx_lane_opens(const struct tarn_tcpx_lane *n)
{
    return !n->up && n->first && tarn_now_ns() - n->begun_ns < USUAL_NS;
}

bool tarn_tcpx_lane_polls(const struct tarn_tcpx_lane *n)
{
    return n->state == TARN_TCPX_LANE_LISTENING || n->state == TARN_TCPX_LANE_OPENING ||
           (n->comm && tarn_tcpx_comm_busy(n->comm)) || n->stage.sent < n->stage.begun;
}

bool tarn_tcpx_lane_awaits(const struct tarn_tcpx_lane *n)
{
    return !n->up || n->state != TARN_TCPX_LANE_OPEN || n->puts || n->unanswered != n->unasked ||
           !tarn_tcpx_comm_busy(n->comm) || (n->first && n->first->lease);
}

void tarn_tcpx_lane_cut(struct tarn_tcpx_lane *n)
{
    while (tarn_tcpx_comm_close(n->comm) == TARN_E_AGAIN)
        sched_yield(); /* a GPU's copy, which ends soon or fails */
    n->comm = NULL;
    tarn_tcpx_stage_close(&n->stage);
}

void tarn_tcpx_lane_fail(struct tarn_tcpx_lane *n, const struct tarn_reason *why)
{
    n->unasked = n->unanswered = n->unposted = NULL;
    while (n->first)
        pop(n, why->code, why->text);
}
