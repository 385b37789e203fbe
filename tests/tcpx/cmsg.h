/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the control messages of recvmsg() for data that a NIC has put into device memory. Each message names
 * a fragment. A plugin for TCPX reads them and gives tarn a list of fragments. Here they become that list
 * (tcpx_fragments.h) directly, so that the kernel's messages are tested with the code that unpacks them.
 *
 * There are two dialects. Both have a control message for a fragment in device memory: the receiver owns the
 * fragment's page until it returns the token. Both have another one for bytes that the kernel has copied to
 * the iovec instead:
 *
 *            device's  copied  layout
 *   DEVMEM   99        98      {u32 offset, size, token}                       the kernels that TCPX runs on
 *   DMABUF   79        78      {u64 offset, u32 size, token, dmabuf, flags}    Linux 6.12 and later
 *
 * The control messages name the fragments in the order of their bytes. Without a control message all bytes
 * are in the iovec.
 *
 * The numbers are those of the generic architectures; parisc and sparc have others.
 */
#ifndef TARN_TESTS_TCPX_CMSG_H
#define TARN_TESTS_TCPX_CMSG_H

#include <sys/socket.h>

#include "transport/tcpx/tcpx_fragments.h"

enum received_dialect { RECEIVED_DEVMEM, RECEIVED_DMABUF };

/* One message, collected from several recvmsg(). */
struct received {
    enum received_dialect dialect;
    uint32_t dmabuf; /* the dma-buf that is bound to the queue; DEVMEM does not name it */
    uint64_t bytes;  /* received bytes */
    uint64_t linear; /* of those, bytes in iovecs, which must be contiguous */
    struct tarn_tcpx_fragments list;
    /* Return these when the bytes have been used, also after a failed call: they are complete even then. */
    uint32_t ntokens;
    uint32_t tokens[TARN_TCPX_FRAGMENTS];
};

void received_begin(struct received *r, enum received_dialect dialect, uint32_t dmabuf);
/*
 * Adds the data of one recvmsg() with MSG_SOCK_DEVMEM. `bytes` is its result, above 0. PROTOCOL: control
 * messages are missing, malformed, or do not add up to `bytes`; close the socket then.
 */
int received_add(struct received *r, const struct msghdr *m, size_t bytes);
/* Call when the message is complete. Checks the list as tarn_tcpx_fragments_read() does. */
int received_end(struct received *r, uint64_t expected, uint64_t pool_bytes);

#endif
