/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A comm: a plugin's connection that carries messages one way, and the rules under which the plugin can be
 * driven. The receiver listens, the sender connects; what names the listening end goes from the one to the
 * other over tarn's own connection.
 *
 *   new --poll--> ready --send/recv, progress--> ... --close-->
 *     \--------------------\--- failed: only close is left
 *
 * Requests end in the order in which they were posted:
 *   sends     posted --test--> done
 *   receives  posted --test--> there --checked, unpacking begun--> --unpacked--> given back to the plugin,
 * done Only the oldest request that is not there is tested, and at most `window` are the plugin's at once. A
 * request that is the oldest for STALL_MS fails the comm, as does one that the plugin says has failed: what
 * was posted behind it means nothing any more.
 *
 * A plugin with bounce memory of its own is told of no memory that a message goes to. One without (PLAIN) is
 * told of two kinds: what was lent to it (a mapping of the caller's) or is this end's own (a pool), where a
 * message that lies there side by side is put *in place*; all else goes to memory of the comm's, and is
 * unpacked from there as from bounce memory. So memory that nobody has lent is never written late.
 *
 * In place the rules are those that NCCL itself relies on: no more is written than was posted, which is what
 * the peer, a tarn, sends; nothing after test() said done; and nothing after closeRecv(), whatever was
 * posted. So a message's memory is its owner's again when it is done, or behind tarn_tcpx_comm_close(), and
 * not before.
 *
 * A comm, and all comms of a gear, belong to one thread at a time.
 */
#ifndef TARN_TRANSPORT_TCPX_COMM_H
#define TARN_TRANSPORT_TCPX_COMM_H

#include "transport/tcpx/tcpx_gear.h"
#include "transport/tcpx/tcpx_memory.h"

/* Waits for what is being unpacked. Its comms are closed before, or never progress again. */
void tarn_tcpx_gear_close(struct tarn_tcpx_gear *g);

struct tarn_tcpx_comm;

/* A message has arrived where it belongs, or was sent. In the order of posting; it may post. */
typedef void (*tarn_tcpx_done_fn)(void *owner, uint32_t bytes);

/* Is there room for one more? */
bool tarn_tcpx_comm_room(const struct tarn_tcpx_comm *c);
bool tarn_tcpx_comm_busy(const struct tarn_tcpx_comm *c);
/* AGAIN: the plugin has no room now. bytes: 1 to the gear's chunk. p: what tarn_tcpx_ranges_find() said, the
 * comm's from then on unless this fails; NULL: they are in this end's own memory. */
int tarn_tcpx_comm_send(struct tarn_tcpx_comm *c, void *data, uint32_t bytes, const struct tarn_tcpx_place *p,
                        void *owner);
/* A message of so many bytes is coming, for bytes [into->offset, + bytes) of into->pieces, which stay. */
int tarn_tcpx_comm_recv(struct tarn_tcpx_comm *c, uint32_t bytes, const struct tarn_tcpx_into *into,
                        void *owner);
/* 1: something moved; 0: nothing did; else the comm has failed. */
int tarn_tcpx_comm_progress(struct tarn_tcpx_comm *c);

/* The gear's unpacker for the comm's GPU, which is opened if there is none. */
int tarn_tcpx_comm_unpacker(struct tarn_tcpx_comm *c);
/* As the calls of the unpacker. When the GPU fails nothing is under way any more: the gear's next one is
 * another. */
int tarn_tcpx_comm_unpack(struct tarn_tcpx_comm *c, const struct tarn_tcpx_fragments *f,
                          const struct tarn_tcpx_bounce *from, const struct tarn_tcpx_into *to,
                          uint64_t *ticket_p);
int tarn_tcpx_comm_unpacked(struct tarn_tcpx_comm *c, uint64_t ticket);

#endif
