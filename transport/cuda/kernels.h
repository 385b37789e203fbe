/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of kernels.cu, as cuda_runtime.c launches them. */
#ifndef TARN_TRANSPORT_KERNELS_H
#define TARN_TRANSPORT_KERNELS_H

#include <cuda_runtime_api.h>

#include "transport/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The current device, as the kernels need it. */
struct tarn_kernel_device {
    int sms;       /* multiprocessors */
    bool overlaps; /* a launch may begin before the one ahead of it has ended */
};
cudaError_t tarn_kernel_look(int device, struct tarn_kernel_device *d);

/* What a launch writes when all before it on its stream and itself have been done; `at` NULL: nothing. */
struct tarn_kernel_mark {
    uint32_t *at; /* memory of the host */
    uint32_t number;
    uint32_t counter; /* one of these, for no other stream to use */
};
enum { TARN_KERNEL_COUNTERS = 1024 };

/*
 * Copies n pieces, of `bytes` in all, on a stream of the current device, which is `d`; the list must be
 * readable by the device until they are done. Where launches overlap this one may copy while those right
 * ahead of it on the stream still do; it ends after them.
 */
cudaError_t tarn_kernel_copy(const struct tarn_cuda_piece *pieces, uint32_t n, uint64_t bytes,
                             const struct tarn_kernel_mark *mark, const struct tarn_kernel_device *d,
                             cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
