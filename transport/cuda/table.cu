/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for hit tables, launched by cuda_table.c. */
#include <tarn/device.h>

#include "transport/cuda/table_kernels.h"

#define BLOCK 256
#define BLOCKS_PER_SM 3

static __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    gather(const __grid_constant__ struct tarn_dev_table table, const uint32_t *rows, uint32_t n, void *to,
           uint64_t stride, int32_t *status)
{
    tarn_dev_get_grid(&table, rows, n, to, stride, status);
}

static __global__ void tell_time(uint64_t *at)
{
    tarn_dev_store64(at, tarn_dev_now());
}

/* A small row needs one warp, and a large one a whole block; the rest is the number of blocks. */
extern "C" cudaError_t tarn_kernel_gather(const struct tarn_dev_table *table, const uint32_t *rows, uint32_t n,
                                          void *to, uint64_t stride, int32_t *status, int sms,
                                          cudaStream_t stream)
{
    const uint32_t warps = BLOCK / 32, most = (uint32_t)sms * BLOCKS_PER_SM;
    const uint32_t wanted = table->row_bytes > 4096 ? n : (n + warps - 1) / warps;
    gather<<<wanted < most ? wanted : most, BLOCK, 0, stream>>>(*table, rows, n, to, stride, status);
    return cudaGetLastError();
}

extern "C" cudaError_t tarn_kernel_time(uint64_t *at, cudaStream_t stream)
{
    tell_time<<<1, 1, 0, stream>>>(at);
    return cudaGetLastError();
}
