/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX, client half: tcpx_link.c (links: connecting, waiting, closing) and tcpx_lane.c (works of a lane). One
 * thread at a time uses a link and everything in it.
 */
#ifndef TARN_TRANSPORT_TCPX_LANE_H
#define TARN_TRANSPORT_TCPX_LANE_H

#include "transport/tcpx/tcpx.h"
#include "transport/tcpx/tcpx_comm.h"
#include "transport/tcpx/tcpx_stage.h"

/* State of a lane's comm. */
enum tarn_tcpx_lane_state {
    TARN_TCPX_LANE_LISTENING, /* gets: the node has no handle yet */
    TARN_TCPX_LANE_ASKING,    /* puts: waiting for the node's handle */
    TARN_TCPX_LANE_OPENING,
    TARN_TCPX_LANE_OPEN
};

struct tarn_tcpx_lane {
    struct tarn_tcpx_lane *next;
    struct tarn_tcpx_wire *wire;
    struct tarn_tcpx_gear *gear;
    uint32_t id, pool;
    int gpu;
    bool puts;
    enum tarn_tcpx_lane_state state;
    struct tarn_tcpx_comm *comm;
    /* Works, oldest first. Each of these is the same as, or later than, the one before: not answered, not
     * fully posted, not requested. */
    struct tarn_work *first, *last, *unposted, *unanswered, *unasked;
    uint32_t asked; /* requested and not ended */
    bool moved;     /* a work has succeeded */
    bool up;        /* the node's end is ready */
    uint64_t begun_ns;
    uint64_t first_tag, answer_tag,
        ask_tag; /* of first, unanswered, unasked: a work's is one more than the one before */
    struct tarn_tcpx_stage stage;
    struct tarn_cursor gathered_at; /* position in the pieces of `unposted` */
};

int tarn_tcpx_lane_new(struct tarn_tcpx_gear *g, struct tarn_tcpx_wire *wire, uint32_t id, uint32_t pool,
                       int gpu, bool puts, struct tarn_tcpx_lane **n_p);
void tarn_tcpx_lane_queue(struct tarn_tcpx_lane *n, struct tarn_work *w);
/* Handles HANDLE, ANSWER and DONE for the lane. */
int tarn_tcpx_lane_hear(struct tarn_tcpx_lane *n, const struct tarn_tcpx_message *m);
/* 1: progress was made; 0: none; else the link is unusable. */
int tarn_tcpx_lane_advance(struct tarn_tcpx_lane *n);
/* Is it being set up, for no longer than this usually takes? */
bool tarn_tcpx_lane_opens(const struct tarn_tcpx_lane *n);
/* Does it need polling to make progress? */
bool tarn_tcpx_lane_polls(const struct tarn_tcpx_lane *n);
/* Must the node say something before all requested bytes can move? */
bool tarn_tcpx_lane_awaits(const struct tarn_tcpx_lane *n);
/* Ends the plugin's part: memory of works is not accessed any more. */
void tarn_tcpx_lane_cut(struct tarn_tcpx_lane *n);
/* Ends all works, before the lane is freed. *why stays. */
void tarn_tcpx_lane_fail(struct tarn_tcpx_lane *n, const struct tarn_reason *why);

#endif
