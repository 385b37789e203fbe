/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fragments: where in a receiver's bounce memory the parts of one message lie, and where they belong.
 *
 *   slot of a plugin's metadata --tarn_tcpx_fragments_read-->  list  --tarn_tcpx_cut_next--> copies
 *   lists from elsewhere --------_add, then _check---------->
 *
 * A list that was checked has been put in the order of the message, and its fragments cover the message
 * exactly: each begins where the one before ends, and neighbours that also lie side by side in the bounce
 * memory have become one. Nothing that a plugin or a kernel wrote is used for an address before that.
 *
 * Nothing here allocates, waits, or touches the bytes that are described.
 */
#ifndef TARN_TRANSPORT_TCPX_FRAGMENTS_H
#define TARN_TRANSPORT_TCPX_FRAGMENTS_H

#include "transport/tcpx/plugin/tcpx_abi.h"
#include "transport/transport.h"

#define TARN_TCPX_MESSAGE_MAX 0x7fffffffu /* sizes are int in the ABI */

struct tarn_tcpx_fragment {
    uint64_t src; /* from the start of the bounce memory; linear: of the buffer that recvmsg() was given */
    uint64_t dst; /* from the start of the message */
    uint32_t bytes;
    uint32_t linear; /* bool: the kernel copied it to host memory */
};

struct tarn_tcpx_fragments {
    uint32_t n;
    uint64_t bytes, linear_bytes; /* of the message, and of them in the linear buffer; set by the check */
    struct tarn_tcpx_fragment at[TARN_TCPX_FRAGMENTS];
    struct tarn_tcpx_fragment spare[TARN_TCPX_FRAGMENTS]; /* for sorting */
};

/*
 * The list of the k-th receive of a comm that is done, k counting from 0 and empty ones too, from the
 * metadata of that comm. `expected`: bytes of the message, as the sender announced them over tarn's own
 * connection; pool_bytes: of the bounce memory, UINT64_MAX when that is not known.
 * PROTOCOL: the list is not that of such a message; what the comm brings is of no use any more.
 */
int tarn_tcpx_fragments_read(struct tarn_tcpx_fragments *f, const struct tarn_tcpx_meta *meta, uint64_t k,
                             uint64_t expected, uint64_t pool_bytes);

/* The two halves of it, for lists from elsewhere: n is 0 at first; linear_bytes: of that buffer. */
int tarn_tcpx_fragments_add(struct tarn_tcpx_fragments *f, struct tarn_tcpx_fragment fragment);
int tarn_tcpx_fragments_check(struct tarn_tcpx_fragments *f, uint64_t expected, uint64_t pool_bytes,
                              uint64_t linear_bytes);

/*
 * A walk over a checked list that cuts it where the destination's runs end. What is pointed to stays until
 * the walk is over.
 */
struct tarn_tcpx_cut {
    const struct tarn_tcpx_fragment *at;
    uint32_t n;
    uint32_t done; /* bytes of the first that are done */
    const uint8_t *pool, *linear;
    const struct tarn_piece *pieces;
    uint32_t npieces;
    struct tarn_cursor cursor; /* where in the pieces the message goes on */
};

/* The next copies, max at most, in the order of the message; how many, 0 at the end. */
size_t tarn_tcpx_cut_next(struct tarn_tcpx_cut *c, struct tarn_cuda_piece *out, size_t max);

#endif
