/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA IPC transport's table, for the registry, and its node half, which the table in cuda_ipc.c names.
 */
#ifndef TARN_TRANSPORT_CUDA_IPC_H
#define TARN_TRANSPORT_CUDA_IPC_H

#include "transport/transport.h"

/* Of a pool in an ATTACH answer: arena (CPU pools only), gen, touch. */
enum { TARN_CUDA_IPC_FDS = 3 };

extern const struct tarn_transport_ops tarn_cuda_ipc_ops;

int tarn_cuda_ipc_serve(const struct tarn_serve *serve, struct tarn_node_half **s_p);
bool tarn_cuda_ipc_serves(const struct tarn_node_half *s, uint32_t pool);
void tarn_cuda_ipc_describe(const struct tarn_node_half *s, uint32_t pool, char *text, size_t text_bytes);
int tarn_cuda_ipc_attach(struct tarn_node_half *s, struct tarn_attach *a);
void tarn_cuda_ipc_detach(struct tarn_node_half *s, uint64_t session);
void tarn_cuda_ipc_stop(struct tarn_node_half *s);

#endif
