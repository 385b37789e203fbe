/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What recvmsg() says about data that a NIC has put into memory of a device: control messages, each of which
 * names a fragment. A plugin for TCPX reads them and lists the fragments to tarn; here they become that list
 * (tcpx_fragments.h) directly, so that what the kernel says is tested against what unpacks it.
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
#ifndef TARN_TESTS_TCPX_CMSG_H
#define TARN_TESTS_TCPX_CMSG_H

#include <sys/socket.h>

#include "transport/tcpx/tcpx_fragments.h"

enum received_dialect { RECEIVED_DEVMEM, RECEIVED_DMABUF };

/* One message in the making, from as many recvmsg() as it takes. */
struct received {
    enum received_dialect dialect;
    uint32_t dmabuf; /* the one that is bound to the queue; DEVMEM does not say */
    uint64_t bytes;  /* that have come, */
    uint64_t linear; /* and how many of them to iovecs, which are taken to be one behind the other */
    struct tarn_tcpx_fragments list;
    /* To be given back once the bytes are used, and also when a call failed: all that it saw are here. */
    uint32_t ntokens;
    uint32_t tokens[TARN_TCPX_FRAGMENTS];
};

void received_begin(struct received *r, enum received_dialect dialect, uint32_t dmabuf);
/*
 * Adds what one recvmsg() with MSG_SOCK_DEVMEM brought; `bytes` is what it returned, above 0. PROTOCOL:
 * control messages are missing, malformed, or not about `bytes` bytes; the socket is of no use any more.
 */
int received_add(struct received *r, const struct msghdr *m, size_t bytes);
/* The message is complete: checks the list against what was announced. As tarn_tcpx_fragments_read(). */
int received_end(struct received *r, uint64_t expected, uint64_t pool_bytes);

#endif
