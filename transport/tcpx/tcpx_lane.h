/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX, client half: tcpx_link.c (links: connecting, waiting, closing), tcpx_lane.c (works of a lane) and
 * tcpx_stage.c (source of puts). One thread at a time uses a link and everything in it.
 */
#ifndef TARN_TRANSPORT_TCPX_LANE_H
#define TARN_TRANSPORT_TCPX_LANE_H

#include "transport/tcpx/tcpx.h"
#include "transport/tcpx/tcpx_comm.h"

#define TARN_TCPX_AHEAD 2 /* messages gathered while the plugin has a full window */

/*
 * Puts are sent from a ring of messages. The CPU, or the GPU that owns the memory, gathers each message there
 * from the caller's pieces:
 *
 *   room --gathered--> full --copied, sent--> in flight --done--> room
 *
 * Messages that the plugin may send from their place pass through the ring in turn, too, but are full at
 * once.
 */
struct tarn_tcpx_slot {
    struct tarn_work *work;
    uint32_t bytes, filled;
    uint64_t mark; /* in the GPU's queue; 0: none was needed, or none has been set yet */
    void *lent;    /* sent from here; NULL: from the ring */
    struct tarn_tcpx_place place;
};

struct tarn_tcpx_stage {
    int gpu; /* GPU that gathers; -1: the CPU */
    uint32_t chunk_bytes, depth;
    uint8_t *ring;
    bool on_gpu, pinned;
    struct tarn_cuda_queue *queue;
    uint64_t begun, full, sent, done; /* counts of messages, in this order */
    struct tarn_tcpx_slot slots[TARN_TCPX_REQUESTS + TARN_TCPX_AHEAD];
};

/* direct: the plugin accepts the GPU's memory. */
int tarn_tcpx_stage_open(struct tarn_tcpx_stage *s, int gpu, bool direct, uint32_t chunk_bytes,
                         uint32_t depth);
/* Waits for running copies and returns lent memory that was not sent. An unopened stage is allowed. */
void tarn_tcpx_stage_close(struct tarn_tcpx_stage *s);
/* Begins a message with the work's next bytes. There must be room, and the previous message must be full. */
void tarn_tcpx_stage_begin(struct tarn_tcpx_stage *s, struct tarn_work *w, uint32_t bytes);
/* Adds a message of the work's next bytes that is sent from where they are. The same conditions apply. */
void tarn_tcpx_stage_lend(struct tarn_tcpx_stage *s, struct tarn_work *w, uint32_t bytes, void *at,
                          const struct tarn_tcpx_place *p);
/* Gathers from the cursor on. 0: the message is full; AGAIN: the GPU has no room now. */
int tarn_tcpx_stage_fill(struct tarn_tcpx_stage *s, struct tarn_cursor *at);
/* The next message to send, completely copied; NULL: none. An error is the GPU's. */
int tarn_tcpx_stage_next(struct tarn_tcpx_stage *s, struct tarn_tcpx_slot **slot_p, uint8_t **memory_p);

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
