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
 * for each joined rail. The node posts nothing on its queue pairs. It stops them at DETACH and when the
 * session ends; from then on the client can write nothing. They are destroyed later by a thread.
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
