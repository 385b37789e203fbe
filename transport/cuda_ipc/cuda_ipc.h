/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA IPC transport: its two tables, and what both halves need. */
#ifndef TARN_TRANSPORT_CUDA_IPC_H
#define TARN_TRANSPORT_CUDA_IPC_H

#include "transport/transport.h"

enum {
    TARN_CUDA_IPC_CAPS = TARN_CAP_SAME_HOST | TARN_CAP_VIEW | TARN_CAP_ONE_SIDED | TARN_CAP_GPU |
                         TARN_CAP_LATE | TARN_CAP_CHECKS | TARN_CAP_WINDOWS | TARN_CAP_LAYOUTS
};

extern const struct tarn_transport_ops tarn_cuda_ipc_ops;
extern const struct tarn_node_half_ops tarn_cuda_ipc_node_ops;

int tarn_cuda_ipc_probe(void);

#endif
