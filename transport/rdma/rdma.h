/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA over reliable connected queue pairs: the transport's tables, and what its halves exchange at ATTACH.
 *
 *   client                                          node
 *   offer()    queue pairs in INIT, one a rail
 *              -- ATTACH rdma r|w "v1 N end..." -->  attach()  for each end picks the rail that reaches
 *                                                    it and joins a queue pair with it
 *   connect()  <-- "v1 ID N end|-... pools" ------
 *              joins the queue pairs that the answer names
 *
 * For each pool the answer has the addresses of arena, generations and use times, and their remote keys
 * for each joined rail. Windows are entered one by one instead (ENTER); a link for writing to windows gets
 * the address and keys of its ring for notifications.
 *
 * The node posts nothing on its queue pairs but, for windows, receives of notifications: its CPU takes no
 * part in gets, nor in puts that tell nothing. It stops the queue pairs at DETACH and when the session ends;
 * from then on the client can write nothing. They are destroyed later by a thread.
 *
 * A put with a notification (rdma_tell.c, rdma_node_inbox.h):
 *
 *   client                                          lender
 *   WRITE bytes ...            ==>                  memory of the lease
 *   WRITE_WITH_IMM notice, n   ==>                  place n of the link's ring; a receive completes
 *                                                   posts the receive again
 *                                                   the lease still is? to the window's queue: else dropped
 *                                                   the place counts as popped
 *   READ popped, when it knows of no free place
 */
#ifndef TARN_TRANSPORT_RDMA_H
#define TARN_TRANSPORT_RDMA_H

#include "transport/transport.h"

enum {
    TARN_RDMA_CAPS = TARN_CAP_ONE_SIDED | TARN_CAP_UNCHECKED | TARN_CAP_GPU | TARN_CAP_RETURNS |
                     TARN_CAP_KEYS | TARN_CAP_WINDOWS
};

extern const struct tarn_transport_ops tarn_rdma_ops;
extern const struct tarn_node_half_ops tarn_rdma_node_ops;

int tarn_rdma_probe(void);

#endif
