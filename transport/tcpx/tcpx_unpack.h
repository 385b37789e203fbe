/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking: copies the bytes of a received message from bounce memory to their destination.
 *
 *   start: fragments are cut into copies and given to a queue  -->  poll: they are done, in order of start
 *
 * Three ways, which differ only in speed:
 *
 *   d2d     one copy by the copy engines for each fragment
 *   host    the same to staging memory of the host, from there to the device in as few copies as possible
 *   kernel  all copies in one launch
 *
 * If the destination is host memory, "host" copies directly. If both ends are host memory, all three are
 * memcpy(), done when start returns. Pageable memory, which the GPU does not reach, goes through staging
 * memory in all three: start gathers it there, or poll scatters it from there.
 *
 * One thread at a time uses an unpacker. It may serve several comms of a GPU: tickets end in the order of
 * start, which is also the order in which page tokens must be returned. The memory at both ends must stay
 * until the ticket has ended or the unpacker is closed.
 */
#ifndef TARN_TRANSPORT_TCPX_UNPACK_H
#define TARN_TRANSPORT_TCPX_UNPACK_H

#include "transport/tcpx/plugin/tcpx_settings.h"
#include "transport/tcpx/tcpx_fragments.h"

struct tarn_tcpx_unpacker;

/*
 * device: its queue does the copies; -1: no queue, both ends are always host memory. chunk_bytes: size of
 * the largest message. depth: messages in flight, 1 to TARN_TCPX_SLOTS. Staging memory for depth messages
 * is pinned when first needed.
 */
int tarn_tcpx_unpack_open(enum tarn_tcpx_way way, int device, uint32_t chunk_bytes, uint32_t depth,
                          struct tarn_tcpx_unpacker **u_p);
/* Waits for running copies. NULL is allowed. */
void tarn_tcpx_unpack_close(struct tarn_tcpx_unpacker *u);

/* A comm's bounce memory, with the result of one tarn_cuda_memory_of(). */
struct tarn_tcpx_bounce {
    enum tarn_cuda_kind kind;
    int device; /* owner, if DEVICE */
    const void *pool;
    const void *linear; /* base of linear fragments; NULL: none. Pinned, unless both ends are host memory */
};

/* Destination of a message: bytes [offset, + size) of pieces, all of one kind. */
struct tarn_tcpx_into {
    enum tarn_cuda_kind kind;
    int device;
    const struct tarn_piece *pieces;
    uint32_t npieces;
    uint64_t bytes; /* total size of the pieces */
    uint64_t offset;
};

/*
 * Begins to unpack a checked list. The list, *bounce and *into are used only during the call; the pieces
 * must stay as long as the memory. Never waits. AGAIN: no room now, poll and try again. INVALID: does not
 * fit. NOT_REACHABLE: the queue's device does not reach the other one. After these errors nothing was
 * done. Other errors: CUDA failed, close the unpacker.
 */
int tarn_tcpx_unpack_start(struct tarn_tcpx_unpacker *u, const struct tarn_tcpx_fragments *f,
                           const struct tarn_tcpx_bounce *bounce, const struct tarn_tcpx_into *into,
                           uint64_t *ticket_p);
/* 0: this ticket and all before it have ended, and their bytes are in place. AGAIN: not yet. Other errors:
 * CUDA failed, close the unpacker. */
int tarn_tcpx_unpack_poll(struct tarn_tcpx_unpacker *u, uint64_t ticket);

#endif
