/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of kernels.cu, as cuda_runtime.c launches them. */
#ifndef TARN_TRANSPORT_KERNELS_H
#define TARN_TRANSPORT_KERNELS_H

#include <cuda_runtime_api.h>

#include "transport/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Copies n pieces, of `bytes` in all, on a stream of the current device, which has so many multiprocessors; the
 * list must be readable by the device until they are done.
 */
cudaError_t tarn_kernel_copy(const struct tarn_cuda_piece *pieces, uint32_t n, uint64_t bytes, uint32_t sms,
                             cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
