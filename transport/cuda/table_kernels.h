/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of table.cu. */
#ifndef TARN_TRANSPORT_TABLE_KERNELS_H
#define TARN_TRANSPORT_TABLE_KERNELS_H

#include <cuda_runtime_api.h>

#include <tarn/device.h>

#include "transport/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the kernels of gathers on the current device, which is `d`. The driver would do it with the first
 * gather, and wait until no kernel runs. */
cudaError_t tarn_kernel_gather_ready(void);
/* tarn_dev_get() of n rows, on a stream of the current device, which is `d`. n > 0. */
cudaError_t tarn_kernel_gather(const struct tarn_dev_table *table, const uint32_t *rows, uint32_t n, void *to,
                               uint64_t stride, int32_t *status, const struct tarn_kernel_device *d,
                               cudaStream_t stream);
/* Stores tarn_dev_now(). */
cudaError_t tarn_kernel_time(uint64_t *at, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
