/* SPDX-License-Identifier: Apache-2.0 */
/* What cuda_runtime.c and cuda_queue.c share: errors, and the thread's device. */
#ifndef TARN_TRANSPORT_CUDA_RUNTIME_H
#define TARN_TRANSPORT_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#include "transport/cuda/cuda.h"

/* Is it an error after which nothing of this process's works on the device any more? */
bool tarn_cuda_is_lasting(cudaError_t e);
/* The error as a code and a sentence. It is taken out of the thread's CUDA state, so that the application
 * does not find it there. */
int tarn_cuda_failed(cudaError_t e, const char *call, int device);

/* Makes a device the thread's; what it was before goes to *before. Setting it makes a context, so that is
 * only done where it is another one. */
int tarn_cuda_enter(int device, int *before);
void tarn_cuda_leave(int device, int before);

#endif
