/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX, client half: tcpx_client.c (links: connecting, waiting, closing), tcpx_lane.c (the works of a lane)
 * and tcpx_stage.c (what puts are sent from). A link and all that is its belong to one thread at a time.
 */
#ifndef TARN_TRANSPORT_TCPX_LANE_H
#define TARN_TRANSPORT_TCPX_LANE_H

#include "transport/tcpx/tcpx.h"
#include "transport/tcpx/tcpx_setup.h"

#define TARN_TCPX_AHEAD 2 /* messages that are gathered while the plugin has a window of them */

/*
 * Puts are sent from a ring of messages that are gathered there from the caller's pieces, by the CPU or the
 * GPU whose memory they are:  room --gathered--> full --copied, sent--> under way --done--> room
 * Messages that the plugin may send from where they are go through the ring, too, in their turn, but are full
 * at once.
 */
struct tarn_tcpx_slot {
    struct tarn_work *work;
    uint32_t bytes, filled;
    uint64_t mark; /* of the GPU's queue; 0: none was needed, or has been made */
    void *lent;    /* it is sent from there; NULL: from the ring */
    struct tarn_tcpx_place place;
};

struct tarn_tcpx_stage {
    int gpu; /* whose memory is gathered; -1: the host's */
    uint32_t chunk_bytes, depth;
    uint8_t *ring;
    bool on_gpu, pinned;
    struct tarn_cuda_queue *queue;
    uint64_t begun, full, sent, done; /* messages, ever, in this order */
    struct tarn_tcpx_slot slots[TARN_TCPX_REQUESTS + TARN_TCPX_AHEAD];
};

/* direct: the plugin takes memory of the GPU. */
int tarn_tcpx_stage_open(struct tarn_tcpx_stage *s, int gpu, bool direct, uint32_t chunk_bytes,
                         uint32_t depth);
/* Waits for copies under way, and gives back what was lent and not sent. What was not opened is allowed. */
void tarn_tcpx_stage_close(struct tarn_tcpx_stage *s);
/* Begins a message of the work's next bytes. There is room, and the one before is full. */
void tarn_tcpx_stage_begin(struct tarn_tcpx_stage *s, struct tarn_work *w, uint32_t bytes);
/* A message of the work's next bytes that is sent from where they are. The same holds. */
void tarn_tcpx_stage_lend(struct tarn_tcpx_stage *s, struct tarn_work *w, uint32_t bytes, void *at,
                          const struct tarn_tcpx_place *p);
/* Gathers from the cursor on: 0 when the message is full, AGAIN when the GPU has no room now. */
int tarn_tcpx_stage_fill(struct tarn_tcpx_stage *s, struct tarn_cursor *at);
/* The next message to send, all of it copied; NULL: there is none. An error is the GPU's. */
int tarn_tcpx_stage_next(struct tarn_tcpx_stage *s, struct tarn_tcpx_slot **slot_p, uint8_t **memory_p);

/* Has a lane's comm, and how far that is. */
enum tarn_tcpx_lane_state {
    TARN_TCPX_LANE_LISTENING, /* gets: the node is told of no handle yet */
    TARN_TCPX_LANE_ASKING,    /* puts: for the node's handle */
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
    /* Works, oldest first. Each of these is at, or behind, the one before: not answered, not posted in full,
     * not asked for. */
    struct tarn_work *first, *last, *unposted, *unanswered, *unasked;
    uint32_t asked; /* and not ended */
    bool moved;     /* a work has ended well */
    bool up;        /* the node's end is set up */
    uint64_t begun_ns;
    uint64_t first_tag, answer_tag,
        ask_tag; /* of first, unanswered, unasked: a work's is one more than the one before */
    struct tarn_tcpx_stage stage;
    struct tarn_cursor gathered_at; /* in the pieces of `unposted` */
};

int tarn_tcpx_lane_new(struct tarn_tcpx_gear *g, struct tarn_tcpx_wire *wire, uint32_t id, uint32_t pool,
                       int gpu, bool puts, struct tarn_tcpx_lane **n_p);
void tarn_tcpx_lane_queue(struct tarn_tcpx_lane *n, struct tarn_work *w);
/* HANDLE, ANSWER and DONE of the lane. */
int tarn_tcpx_lane_hear(struct tarn_tcpx_lane *n, const struct tarn_tcpx_message *m);
/* 1: something moved; 0: not; else the link is of no use. */
int tarn_tcpx_lane_advance(struct tarn_tcpx_lane *n);
/* Is it being set up, and has been for no longer than that takes as a rule? */
bool tarn_tcpx_lane_opens(const struct tarn_tcpx_lane *n);
/* Does it have to be looked at for something to move? */
bool tarn_tcpx_lane_polls(const struct tarn_tcpx_lane *n);
/* Has the node to say something before all that it was asked for has moved? */
bool tarn_tcpx_lane_awaits(const struct tarn_tcpx_lane *n);
/* Ends the plugin's part: nothing touches memory of works any more. */
void tarn_tcpx_lane_cut(struct tarn_tcpx_lane *n);
/* Ends all works. */
void tarn_tcpx_lane_fail(struct tarn_tcpx_lane *n, int status, const char *why);
void tarn_tcpx_lane_free(struct tarn_tcpx_lane *n);

#endif
