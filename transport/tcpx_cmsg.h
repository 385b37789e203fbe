/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What recvmsg() says about data that a NIC has put into memory of a device: control messages, each of which
 * names a fragment. They become the list that tcpx_fragments.h has, so that what unpacks a plugin's receives
 * unpacks these.
 *
 * There are two dialects. Both have a control message for a fragment in the device's memory, whose page is
 * the receiver's until it gives the token back, and one for bytes that the kernel has copied to the iovec
 * instead:
 *
 *            device's  copied  layout
 *   DEVMEM   99        98      {u32 offset, size, token}                       the kernels that TCPX runs on
 *   DMABUF   79        78      {u64 offset, u32 size, token, dmabuf, flags}    Linux 6.12 and later
 *
 * The fragments of a message follow each other in the order in which they are named. No control message
 * at all means that all is in the iovec.
 *
 * The numbers are those of the generic architectures; parisc and sparc have others.
 */
#ifndef TARN_TRANSPORT_TCPX_CMSG_H
#define TARN_TRANSPORT_TCPX_CMSG_H

#include <sys/socket.h>

#include "transport/tcpx_fragments.h"

enum tarn_tcpx_dialect { TARN_TCPX_CMSG_DEVMEM, TARN_TCPX_CMSG_DMABUF };

/* One message in the making, from as many recvmsg() as it takes. */
struct tarn_tcpx_received {
    enum tarn_tcpx_dialect dialect;
    uint32_t dmabuf; /* the one that is bound to the queue; DEVMEM does not say */
    uint64_t bytes;  /* that have come, */
    uint64_t linear; /* and how many of them to iovecs, which are taken to be one behind the other */
    struct tarn_tcpx_fragments list;
    /* To be given back once the bytes are used, and also when a call failed: all that it saw are here. */
    uint32_t ntokens;
    uint32_t tokens[TARN_TCPX_FRAGMENTS];
};

void tarn_tcpx_received_begin(struct tarn_tcpx_received *r, enum tarn_tcpx_dialect dialect, uint32_t dmabuf);
/*
 * Adds what one recvmsg() with MSG_SOCK_DEVMEM brought; `bytes` is what it returned, above 0. PROTOCOL:
 * control messages are missing, malformed, or not about `bytes` bytes; the socket is of no use any more.
 */
int tarn_tcpx_received_add(struct tarn_tcpx_received *r, const struct msghdr *m, size_t bytes);
/* The message is complete: checks the list against what was announced. As tarn_tcpx_fragments_read(). */
int tarn_tcpx_received_end(struct tarn_tcpx_received *r, uint64_t expected, uint64_t pool_bytes);

#endif
