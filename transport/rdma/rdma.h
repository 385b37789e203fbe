/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA over reliable connected queue pairs: the table, and what its halves say to each other at ATTACH.
 *
 *   client                                          node
 *   offer()    queue pairs in INIT, one a rail
 *              -- ATTACH rdma r|w "v1 N end..." -->  attach()  for each end the rail that reaches it and a
 *                                                    queue pair joined with it
 *   connect()  <-- "v1 ID N end|-... pools" ------
 *              joins those that were answered
 *
 * The answer names for each pool where arena, generations and use times lie and their remote keys, for each
 * joined rail its own. The node posts nothing on its queue pairs; it stops them at DETACH, and when the
 * session ends: from then on nothing more is written by that client. They are destroyed in their time.
 */
#ifndef TARN_TRANSPORT_RDMA_H
#define TARN_TRANSPORT_RDMA_H

#include "transport/transport.h"

enum { TARN_RDMA_CAPS = TARN_CAP_ONE_SIDED | TARN_CAP_UNCHECKED | TARN_CAP_GPU | TARN_CAP_RETURNS };

extern const struct tarn_transport_ops tarn_rdma_ops;
extern const struct tarn_node_half_ops tarn_rdma_node_ops;

int tarn_rdma_probe(char *why, size_t why_bytes);

#endif
