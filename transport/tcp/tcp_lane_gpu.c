/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP, client half: works whose pieces are GPU memory. The first of them makes the lane's stage
 * (tcp_stage.h).
 *
 * A get is received into the stage and copied to the pieces. It ends when its last part is copied. Works end
 * in the order of their answers, so later ones wait for it.
 *
 * A put is copied into the stage, as far ahead as there is room, and sent from there. Its request goes out
 * with the first part that is copied.
 *
 * When a GPU fails, the lane still receives or sends all bytes, so that the connection stays in step. The
 * work ends with the GPU's failure.
 */
#include "transport/tcp/tcp_lane.h"

int tarn_tcp_lane_prepare(struct tarn_tcp_lane *n, int device)
{
    int rc = tarn_copiers_open(n->copiers, device);
    if (rc || n->stage)
        return rc;
    rc = tarn_stage_new(&n->stage);
    if (!rc)
        n->stage->to_gpu = n->op == TARN_TCP_GET;
    return rc;
}

static void fail_work(struct tarn_work *w, const struct tarn_reason *failure)
{
    if (!failure || tarn_tcp_course(w)->status)
        return;
    tarn_tcp_course(w)->status = failure->code;
    w->why = failure->text;
}

static void land(struct tarn_tcp_lane *n)
{
    for (struct tarn_stage_part *p; (p = tarn_stage_passed(n->stage, 0)); tarn_stage_drop(n->stage)) {
        struct tarn_work *w = p->owner;
        fail_work(w, p->failure);
        if (p->last)
            tarn_tcp_course(w)->ended = true;
    }
}

/* Puts what waits to be sent into the stage, as far as there is room. */
static void fill(struct tarn_tcp_lane *n)
{
    for (struct tarn_work *w; (w = n->unstaged); n->unstaged = w->next, n->staged = 0) {
        if (n->staged == 0)
            n->staged_at = (struct tarn_cursor){0};
        while (w->gpu && n->staged < w->bytes) {
            uint8_t *memory;
            uint64_t room = tarn_stage_room(n->stage, &memory), left = w->bytes - n->staged;
            uint64_t bytes = room < left ? room : left;
            if (bytes == 0)
                return;
            struct tarn_stage_part *p = tarn_stage_add(n->stage, n->copiers, (int)w->gpu - 1, bytes);
            p->owner = w;
            p->pieces = w->pieces;
            p->npieces = w->npieces;
            p->at = n->staged_at;
            tarn_cursor_skip(&n->staged_at, w->pieces, w->npieces, bytes);
            n->staged += bytes;
            if (n->staged == w->bytes)
                tarn_stage_align(n->stage);
        }
    }
}

bool tarn_tcp_lane_stage(struct tarn_tcp_lane *n)
{
    if (!n->stage)
        return false;
    if (n->op == TARN_TCP_PUT)
        fill(n);
    bool moved = tarn_stage_move(n->stage, n->copiers);
    if (n->op == TARN_TCP_GET)
        land(n);
    return moved;
}

bool tarn_tcp_lane_copying(const struct tarn_tcp_lane *n)
{
    return n->stage && tarn_stage_moving(n->stage);
}

void tarn_tcp_lane_arrived(struct tarn_tcp_lane *n, struct tarn_work *w, uint64_t bytes)
{
    struct tarn_stage_part *p = tarn_stage_grow(n->stage, bytes);
    if (!p) {
        p = tarn_stage_add(n->stage, n->copiers, (int)w->gpu - 1, bytes);
        p->owner = w;
        p->pieces = w->pieces;
        p->npieces = w->npieces;
        p->at = n->received_at;
    }
    p->last = bytes == n->payload_left;
    if (p->last)
        tarn_stage_align(n->stage);
    if (p->last || p->bytes >= TARN_STAGE_PART / 2)
        tarn_stage_give(n->stage, n->copiers);
}

void tarn_tcp_lane_passed_on(struct tarn_tcp_lane *n, struct tarn_work *w, uint64_t bytes)
{
    fail_work(w, tarn_stage_sent(n->stage, bytes));
}
