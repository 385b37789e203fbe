/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ring_ask.h"

#include <cuda_runtime_api.h>

extern "C" void *stream_handle(struct stream *s);

static __global__ void kernel(const __grid_constant__ struct ring_ask a)
{
    ring_ask_play(&a);
}

extern "C" void ring_ask(struct stream *s, const struct ring_ask *a)
{
    cudaStream_t stream = (cudaStream_t)stream_handle(s);
    kernel<<<1, 1, 0, stream>>>(*a);
}
