/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by cuda_runtime.c and cuda_queue.c: errors, and the thread's device. */
#ifndef TARN_TRANSPORT_CUDA_RUNTIME_H
#define TARN_TRANSPORT_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#include "transport/cuda/cuda.h"

/* Is this error permanent, so that nothing of this process works on the device any more? */
bool tarn_cuda_is_lasting(cudaError_t e);
/* Turns the error into a code and a sentence. Removes it from the thread's CUDA state, so that the
 * application does not see it. */
int tarn_cuda_failed(cudaError_t e, const char *call, int device);

/* Makes a device current in the thread; *before: the previous one. Does nothing if it is current already,
 * because setting it would make a context. */
int tarn_cuda_enter(int device, int *before);
void tarn_cuda_leave(int device, int before);

#endif
