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

extern const struct tarn_transport_ops tarn_rdma_ops;

/* rdma_node.c */
int tarn_rdma_serve(const struct tarn_serve *serve, struct tarn_node_half **s_p);
bool tarn_rdma_serves(const struct tarn_node_half *s, uint32_t pool);
void tarn_rdma_describe(const struct tarn_node_half *s, uint32_t pool, char *text, size_t text_bytes);
int tarn_rdma_attach(struct tarn_node_half *s, struct tarn_attach *a);
void tarn_rdma_detach_link(struct tarn_node_half *s, uint64_t session, uint64_t link);
void tarn_rdma_detach(struct tarn_node_half *s, uint64_t session);
void tarn_rdma_stop(struct tarn_node_half *s);

#endif
