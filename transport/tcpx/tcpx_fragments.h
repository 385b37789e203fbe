/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fragments: where the parts of a message lie in a receiver's bounce memory, and where they belong.
 *
 *   slot of a plugin's metadata --tarn_tcpx_fragments_read-->  list  --tarn_tcpx_cut_next--> copies
 *   lists from elsewhere --------_add, then _check---------->
 *
 * A checked list is sorted by position in the message, and its fragments cover the message exactly: each
 * begins where the previous one ends. Fragments that are also adjacent in bounce memory are joined. Before
 * the check, nothing written by a plugin or kernel is used as an address.
 *
 * Nothing here allocates, waits, or accesses the described bytes.
 */
#ifndef TARN_TRANSPORT_TCPX_FRAGMENTS_H
#define TARN_TRANSPORT_TCPX_FRAGMENTS_H

#include "transport/tcpx/plugin/tcpx_abi.h"
#include "transport/transport.h"

#define TARN_TCPX_MESSAGE_MAX 0x7fffffffu /* sizes are int in the ABI */

struct tarn_tcpx_fragment {
    uint64_t src; /* offset in the bounce memory; linear: in the buffer given to recvmsg() */
    uint64_t dst; /* offset in the message */
    uint32_t bytes;
    uint32_t linear; /* bool: the kernel copied it to host memory */
};

struct tarn_tcpx_fragments {
    uint32_t n;
    uint64_t bytes, linear_bytes; /* size of the message, and its bytes in the linear buffer; set by the
                                   * check */
    struct tarn_tcpx_fragment at[TARN_TCPX_FRAGMENTS];
    struct tarn_tcpx_fragment spare[TARN_TCPX_FRAGMENTS]; /* scratch for sorting */
};

/*
 * Reads the list of a comm's k-th completed receive from its metadata; k counts from 0 and includes empty
 * ones. `expected`: the message's size as the sender announced it over tarn's own connection. pool_bytes:
 * size of the bounce memory, UINT64_MAX if unknown. PROTOCOL: the list does not fit such a message; the
 * comm is unusable.
 */
int tarn_tcpx_fragments_read(struct tarn_tcpx_fragments *f, const struct tarn_tcpx_meta *meta, uint64_t k,
                             uint64_t expected, uint64_t pool_bytes);

/* The two steps of it, for lists from elsewhere. n starts at 0. linear_bytes: size of the linear buffer. */
int tarn_tcpx_fragments_add(struct tarn_tcpx_fragments *f, struct tarn_tcpx_fragment fragment);
int tarn_tcpx_fragments_check(struct tarn_tcpx_fragments *f, uint64_t expected, uint64_t pool_bytes,
                              uint64_t linear_bytes);

/*
 * A walk over a checked list, cut where runs of the destination end. What it points to must stay until the
 * walk is over.
 */
struct tarn_tcpx_cut {
    const struct tarn_tcpx_fragment *at;
    uint32_t n;
    uint32_t done; /* bytes of the first fragment that are done */
    const uint8_t *pool, *linear;
    const struct tarn_piece *pieces;
    uint32_t npieces;
    struct tarn_cursor cursor; /* where the message continues in the pieces */
};

/* The next copies, at most max, in the order of the message. Returns their number, 0 at the end. */
size_t tarn_tcpx_cut_next(struct tarn_tcpx_cut *c, struct tarn_cuda_piece *out, size_t max);

#endif
