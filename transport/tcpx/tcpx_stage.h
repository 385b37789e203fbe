/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX: what is not sent from where it lies. Messages are sent from a ring. The CPU, or the GPU that owns the
 * memory, gathers each one there:
 *
 *   room --gathered--> full --copied, sent--> in flight --done--> room
 *
 * Messages that the plugin may send from their place pass through the ring in turn, too, but are full at
 * once. A client's puts are sent so, and the gets from a lender's windows.
 */
#ifndef TARN_TRANSPORT_TCPX_STAGE_H
#define TARN_TRANSPORT_TCPX_STAGE_H

#include "transport/pieces.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"
#include "transport/tcpx/tcpx_memory.h"

struct tarn_cuda_queue;

#define TARN_TCPX_AHEAD 2 /* messages gathered while the plugin has a full window */

struct tarn_tcpx_slot {
    void *owner;
    const struct tarn_piece *pieces;
    uint32_t npieces, bytes, filled;
    uint64_t mark; /* in the GPU's queue; 0: none was needed, or none has been set yet */
    void *lent;    /* sent from here; NULL: from the ring */
    struct tarn_tcpx_place place;
    bool pinned; /* the node half's: a lease is pinned until the message has been copied */
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
/* May a message begin: is there room, and is the previous one full? */
bool tarn_tcpx_stage_has_room(const struct tarn_tcpx_stage *s);
/* Begins a message of so many bytes of the pieces, which must stay until it has been copied. */
void tarn_tcpx_stage_begin(struct tarn_tcpx_stage *s, void *owner, const struct tarn_piece *pieces,
                           uint32_t npieces, uint32_t bytes);
/* Adds a full message that is sent from where its bytes are. */
void tarn_tcpx_stage_lend(struct tarn_tcpx_stage *s, void *owner, uint32_t bytes, void *at,
                          const struct tarn_tcpx_place *p);
/* Adds a full message of what its place in the ring has: bytes that were sent from there before, else those
 * that tarn_tcpx_stage_clear() wrote. */
void tarn_tcpx_stage_repeat(struct tarn_tcpx_stage *s, void *owner, uint32_t bytes);
/* Fills the ring with zeros, before its first message. */
int tarn_tcpx_stage_clear(struct tarn_tcpx_stage *s);
/* Gathers from the cursor in the pieces on. 0: the message is full; AGAIN: the GPU has no room now. */
int tarn_tcpx_stage_fill(struct tarn_tcpx_stage *s, struct tarn_cursor *at);
/* Has full message k been copied? 0; AGAIN: not yet. Other errors are the GPU's. */
int tarn_tcpx_stage_copied(struct tarn_tcpx_stage *s, uint64_t k);
/* The next message to send, completely copied; NULL: none. An error is the GPU's. */
int tarn_tcpx_stage_next(struct tarn_tcpx_stage *s, struct tarn_tcpx_slot **slot_p, uint8_t **memory_p);

#endif
