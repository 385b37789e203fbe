/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking: the bytes of a message that has come go from bounce memory to where they belong.
 *
 *   start: fragments are cut to copies and given to a queue  -->  poll: they are done, in order of start
 *
 * Three ways, which differ only in how long it takes:
 *   d2d     a copy of the copy engines for each fragment
 *   host    the same, but to staging memory of the host, and from there to the device by as few as can be
 *   kernel  all of them by one launch
 * To memory of the host host goes straight. Where both ends are the host's, all three are memcpy(), and done
 * when start returns. Pageable memory, which the GPU does not reach, goes through staging memory in all
 * three: start gathers it there, or poll scatters it from there.
 *
 * An unpacker is used by one thread, and may serve several comms of a GPU: tickets end in the order in which
 * they were given out, as page tokens are to be returned. The memory at both ends stays until the ticket has
 * ended or the unpacker is closed.
 */
#ifndef TARN_TRANSPORT_TCPX_UNPACK_H
#define TARN_TRANSPORT_TCPX_UNPACK_H

#include "transport/tcpx/plugin/tcpx_settings.h"
#include "transport/tcpx/tcpx_fragments.h"

struct tarn_tcpx_unpacker;

/*
 * device: whose queue does the copies; -1: there are none, both ends are always the host's. chunk_bytes: of
 * the largest message, depth: how many may be under way, 1 to TARN_TCPX_SLOTS. Staging memory, where it is
 * needed, is pinned when it is first, as much as both make.
 */
int tarn_tcpx_unpack_open(enum tarn_tcpx_way way, int device, uint32_t chunk_bytes, uint32_t depth,
                          struct tarn_tcpx_unpacker **u_p);
/* Waits until copies under way are done. NULL is allowed. */
void tarn_tcpx_unpack_close(struct tarn_tcpx_unpacker *u);

/* Bounce memory of a comm, of which tarn_cuda_memory_of() is asked once. */
struct tarn_tcpx_bounce {
    enum tarn_cuda_kind kind;
    int device; /* of DEVICE */
    const void *pool;
    const void *linear; /* of fragments that are; NULL: none. Pinned, unless both ends are the host's */
};

/* Where a message goes: to bytes [offset, +its bytes) of pieces, which are all of one kind. */
struct tarn_tcpx_into {
    enum tarn_cuda_kind kind;
    int device;
    const struct tarn_piece *pieces;
    uint32_t npieces;
    uint64_t bytes; /* total of the pieces */
    uint64_t offset;
};

/*
 * Begins to unpack a checked list. The list, *bounce and *into are used only during the call; the pieces stay
 * as the memory does. Never waits. AGAIN: no room now, poll and try again; INVALID: it does not fit;
 * NOT_REACHABLE: the queue's device does not reach the other one. Nothing was done then. Anything else: CUDA
 * failed, close the unpacker.
 */
int tarn_tcpx_unpack_start(struct tarn_tcpx_unpacker *u, const struct tarn_tcpx_fragments *f,
                           const struct tarn_tcpx_bounce *bounce, const struct tarn_tcpx_into *into,
                           uint64_t *ticket_p);
/* 0: that ticket and all before it have ended, their bytes are where they belong. AGAIN: not yet. Else CUDA
 * failed: close the unpacker. */
int tarn_tcpx_unpack_poll(struct tarn_tcpx_unpacker *u, uint64_t ticket);

#endif
