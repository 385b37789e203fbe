/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of kernels.cu, launched by cuda_runtime.c and cuda_queue.c. */
#ifndef TARN_TRANSPORT_KERNELS_H
#define TARN_TRANSPORT_KERNELS_H

#include <cuda_runtime_api.h>

#include "transport/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Properties of the current device that the kernels need. */
struct tarn_kernel_device {
    int sms;       /* multiprocessors */
    bool overlaps; /* a launch may begin before the previous one has ended */
};
cudaError_t tarn_kernel_look(int device, struct tarn_kernel_device *d);

/* What a launch writes when it and all earlier work on its stream are done; `at` NULL: nothing. */
struct tarn_kernel_mark {
    uint32_t *at; /* host memory */
    uint32_t number;
    uint32_t counter; /* one counter, which no other stream may use */
};
enum { TARN_KERNEL_COUNTERS = 1024 };

enum { TARN_KERNEL_SHORT = 128 };
/*
 * Copies n pieces, `bytes` in total, on a stream of the current device, which is `d`. The list is in host
 * memory. If it is longer than TARN_KERNEL_SHORT, the device must be able to read it until they are done. If
 * launches overlap, this one may copy while the previous ones on the stream still do; it ends after them.
 */
cudaError_t tarn_kernel_copy(const struct tarn_cuda_piece *pieces, uint32_t n, uint64_t bytes,
                             const struct tarn_kernel_mark *mark, const struct tarn_kernel_device *d,
                             cudaStream_t stream);

/* Copies the pages that n entries in host memory name, which the device must be able to read until they are
 * done. width: the most runs that an entry has; total: runs of all. Otherwise as tarn_kernel_copy(). */
cudaError_t tarn_kernel_copy_pages(const struct tarn_cuda_paged *buffer,
                                   const struct tarn_cuda_pages *entries, uint32_t n, uint32_t width,
                                   uint32_t total, bool put, const struct tarn_kernel_mark *mark,
                                   const struct tarn_kernel_device *d, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
