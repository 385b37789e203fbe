/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by both halves: is the transport usable here? */
#include "transport/cuda_ipc/cuda_ipc.h"

#include "transport/cuda/cuda.h"

int tarn_cuda_ipc_probe(void)
{
    int n;
    return tarn_cuda_count(&n);
}
