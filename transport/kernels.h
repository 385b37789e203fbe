/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of kernels.cu, as cuda_runtime.c launches them. */
#ifndef TARN_TRANSPORT_KERNELS_H
#define TARN_TRANSPORT_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A contiguous run to copy, as a kernel reads it. */
struct tarn_run {
    uint64_t from, to, bytes;
};

/* Runs are cut to this, so that a long one keeps many blocks busy. */
#define TARN_RUN_MAX (64u << 10)

/*
 * Copies n runs on a stream of the current device with at most `blocks` thread blocks; `runs` must be
 * readable by the device until they are done. `mean` is their mean size.
 */
cudaError_t tarn_kernel_copy_runs(const struct tarn_run *runs, uint32_t n, uint64_t mean, uint32_t blocks,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
