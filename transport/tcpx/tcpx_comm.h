/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A comm: a plugin's connection that carries messages one way, driven by the plugin's rules. The receiver
 * listens, the sender connects. The listening end's handle goes to the sender over tarn's own connection.
 *
 *   new --poll--> ready --send/recv, progress--> ... --close-->
 *     \--------------------\--- failed: can only be closed
 *
 * Requests end in the order in which they were posted:
 *
 *   sends     posted --test--> done
 *   receives  posted --test--> there --checked, unpacking begun--> --unpacked--> given back, done
 *
 * Only the oldest request that is not there is tested, and the plugin has at most `window` at once. The comm
 * fails when a request stays the oldest for STALL_MS, or when the plugin reports a failed request; later
 * requests are then void.
 *
 * A plugin with its own bounce memory is told of no destination memory. A plugin without (PLAIN) is told of
 * two kinds: memory lent to it (a mapping of the caller's) and memory of this end (a pool). A message that
 * lies contiguously there is received *in place*. All others go to the comm's memory and are unpacked from
 * there as from bounce memory. So memory that was not lent is never written late.
 *
 * In place relies on the rules that NCCL relies on: the plugin writes no more than was posted, since that is
 * what the peer, a tarn, sends; nothing after test() reports done; and nothing after closeRecv(). So a
 * message's memory belongs to its owner again once it is done or tarn_tcpx_comm_close() has returned, and not
 * before.
 *
 * One thread at a time uses a comm and all comms of its gear.
 */
#ifndef TARN_TRANSPORT_TCPX_COMM_H
#define TARN_TRANSPORT_TCPX_COMM_H

#include "transport/tcpx/tcpx_gear.h"
#include "transport/tcpx/tcpx_memory.h"

/* Waits for running unpacking. Its comms are closed before, or never make progress again. */
void tarn_tcpx_gear_close(struct tarn_tcpx_gear *g);

struct tarn_tcpx_comm;

/* A message was sent, or has arrived at its destination. Called in the order of posting; it may post. */
typedef void (*tarn_tcpx_done_fn)(void *owner, uint32_t bytes);

/* A message has come: sets where its bytes go, for which they must stay. False: nowhere, drop them. */
typedef bool (*tarn_tcpx_aim_fn)(void *owner, struct tarn_tcpx_into *into, uint32_t bytes);

/* --- making and ending (tcpx_setup.c) ----------------------------------------------------------- */

/* gpu: owner of the memory at this end; -1: the host. handle: of the listening end, to connect to; NULL:
 * listens. */
int tarn_tcpx_comm_new(struct tarn_tcpx_gear *g, int gpu, tarn_tcpx_done_fn done, const uint8_t *handle,
                       struct tarn_tcpx_comm **c_p);
/* The listening end's handle for the peer. AGAIN: not ready yet. */
int tarn_tcpx_comm_handle(struct tarn_tcpx_comm *c, uint8_t handle[TARN_TCPX_HANDLE]);
/* Continues the set-up. AGAIN: not ready yet; 0: ready. */
int tarn_tcpx_comm_poll(struct tarn_tcpx_comm *c);
/*
 * Closes and frees; NULL is allowed. AGAIN: a message is still being unpacked; nothing was done. A set-up
 * that has not ended is left to itself (tcpx_dial.h).
 */
int tarn_tcpx_comm_close(struct tarn_tcpx_comm *c);

/* --- messages ----------------------------------------------------------------------------------- */

/* Is there room for one more message? */
bool tarn_tcpx_comm_room(const struct tarn_tcpx_comm *c);
bool tarn_tcpx_comm_busy(const struct tarn_tcpx_comm *c);
/* AGAIN: the plugin has no room now. bytes: 1 to the gear's chunk. p: result of tarn_tcpx_ranges_find(),
 * owned by the comm from here on unless this fails; NULL: the bytes are in this end's own memory. */
int tarn_tcpx_comm_send(struct tarn_tcpx_comm *c, void *data, uint32_t bytes, const struct tarn_tcpx_place *p,
                        void *owner);
/* From now on, receives are given no pieces: aim() is asked for them when the message has come. */
void tarn_tcpx_comm_aim_late(struct tarn_tcpx_comm *c, tarn_tcpx_aim_fn aim);
/* Posts a receive for a message of this size, to bytes [into->offset, + bytes) of into->pieces. The pieces
 * must stay. */
int tarn_tcpx_comm_recv(struct tarn_tcpx_comm *c, uint32_t bytes, const struct tarn_tcpx_into *into,
                        void *owner);
/* 1: progress was made; 0: none; else the comm has failed. */
int tarn_tcpx_comm_progress(struct tarn_tcpx_comm *c);

/* Opens the gear's unpacker for the comm's GPU if there is none. */
int tarn_tcpx_comm_unpacker(struct tarn_tcpx_comm *c);
/* Call the unpacker. After a failure of the GPU nothing is in flight any more, and the gear opens a new
 * unpacker next time. */
int tarn_tcpx_comm_unpack(struct tarn_tcpx_comm *c, const struct tarn_tcpx_fragments *f,
                          const struct tarn_tcpx_bounce *from, const struct tarn_tcpx_into *to,
                          uint64_t *ticket_p);
int tarn_tcpx_comm_unpacked(struct tarn_tcpx_comm *c, uint64_t ticket);

#endif
