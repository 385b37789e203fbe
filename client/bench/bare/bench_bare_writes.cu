/* SPDX-License-Identifier: Apache-2.0 */
/* Producers of `tarn-bench ring --peer` as kernels. */
#include "client/bench/bench_writes_produce.h"

#include <cuda_runtime_api.h>

extern "C" {
#include "base/error.h"
}

#define THREADS 512

static __global__ void produce(const struct bench_writes_task *tasks)
{
    __shared__ struct bench_writes_state s;
    const struct bench_writes_task t = tasks[blockIdx.x];

    bench_writes_produce(&t, &s);
}

static int failed(cudaError_t e, const char *call)
{
    cudaGetLastError();
    return tarn_fail(TARN_E_SYSTEM, "the ring benchmark: %s: %s", call, cudaGetErrorString(e));
}

int bench_writes_start(struct bench_bare *b, const struct bench_writes_task *tasks, uint32_t n)
{
    produce<<<n, THREADS, 0, (cudaStream_t)bench_bare_stream(b)>>>(tasks);
    cudaError_t e = cudaGetLastError();
    return e ? failed(e, "a kernel") : 0;
}

int bench_writes_finish(struct bench_bare *b)
{
    cudaError_t e = cudaStreamSynchronize((cudaStream_t)bench_bare_stream(b));
    return e ? failed(e, "cudaStreamSynchronize") : 0;
}
