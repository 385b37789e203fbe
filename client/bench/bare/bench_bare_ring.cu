/* SPDX-License-Identifier: Apache-2.0 */
/* Producers of `tarn-bench ring` as kernels. */
#include "client/bench/bench_ring.h"

#include <stdlib.h>

#include <cuda_runtime_api.h>

extern "C" {
#include "base/error.h"
}

struct bench_ring_run {
    cudaStream_t stream;
};

static __global__ void produce(const struct bench_ring_task *tasks)
{
    const struct bench_ring_task t = tasks[blockIdx.x];
    bench_ring_produce(&t);
}

static int failed(cudaError_t e, const char *call)
{
    cudaGetLastError();
    return tarn_fail(TARN_E_SYSTEM, "the ring benchmark: %s: %s", call, cudaGetErrorString(e));
}

int bench_ring_start(struct bench_bare *b, const struct bench_ring_task *tasks, uint32_t n,
                     struct bench_ring_run **run_p)
{
    struct bench_ring_run *run = (struct bench_ring_run *)calloc(1, sizeof *run);

    if (!run)
        return tarn_fail(TARN_E_NO_MEMORY, "the ring benchmark: out of memory");
    run->stream = (cudaStream_t)bench_bare_stream(b);
    produce<<<n, 1, 0, run->stream>>>(tasks);
    cudaError_t e = cudaGetLastError();
    if (e) {
        free(run);
        return failed(e, "a kernel");
    }
    *run_p = run;
    return 0;
}

int bench_ring_finish(struct bench_ring_run *run)
{
    cudaError_t e = cudaStreamSynchronize(run->stream);

    free(run);
    return e ? failed(e, "cudaStreamSynchronize") : 0;
}
