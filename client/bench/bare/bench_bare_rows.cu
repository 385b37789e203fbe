/* SPDX-License-Identifier: Apache-2.0 */
/* bench_rows.h with the CUDA runtime. */
#include "client/bench/bench_rows.h"

#include <stdlib.h>

#include <cuda_runtime_api.h>

extern "C" {
#include "base/error.h"
}

#define BLOCK 256
#define BLOCKS_PER_SM 3
#define WARP 32
#define WARPS (BLOCK / WARP)
#define UNROLL 8

static int failed(cudaError_t e, const char *call)
{
    cudaGetLastError();
    return tarn_fail(TARN_E_SYSTEM, "bare CUDA: %s: %s", call, cudaGetErrorString(e));
}

/* --- time --------------------------------------------------------------------------------------- */

struct bench_watch {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    uint32_t *go; /* in memory of the host */
};

static __global__ void hold(const volatile uint32_t *go)
{
    while (!*go)
        ;
}

int bench_watch_new(struct bench_bare *b, struct bench_watch **w_p)
{
    struct bench_watch *w = (struct bench_watch *)calloc(1, sizeof *w);

    if (!w)
        return tarn_fail(TARN_E_NO_MEMORY, "bare CUDA: out of memory");
    w->stream = (cudaStream_t)bench_bare_stream(b);
    cudaError_t e = cudaEventCreate(&w->begin);
    if (!e)
        e = cudaEventCreate(&w->end);
    if (!e)
        e = cudaHostAlloc((void **)&w->go, sizeof *w->go, cudaHostAllocDefault);
    if (e) {
        bench_watch_free(w);
        return failed(e, "cudaEventCreate");
    }
    *w_p = w;
    return 0;
}

void bench_watch_free(struct bench_watch *w)
{
    if (!w)
        return;
    if (w->begin)
        cudaEventDestroy(w->begin);
    if (w->end)
        cudaEventDestroy(w->end);
    cudaFreeHost(w->go);
    free(w);
}

int bench_watch_begin(struct bench_watch *w)
{
    *(volatile uint32_t *)w->go = 0;
    hold<<<1, 1, 0, w->stream>>>(w->go);
    cudaError_t e = cudaGetLastError();
    if (!e)
        e = cudaEventRecord(w->begin, w->stream);
    return e ? failed(e, "cudaEventRecord") : 0;
}

int bench_watch_end(struct bench_watch *w, uint64_t *ns_p)
{
    float ms = 0;
    cudaError_t e = cudaEventRecord(w->end, w->stream);
    *(volatile uint32_t *)w->go = 1;
    if (!e)
        e = cudaEventSynchronize(w->end);
    if (!e)
        e = cudaEventElapsedTime(&ms, w->begin, w->end);
    *ns_p = (uint64_t)((double)ms * 1e6);
    return e ? failed(e, "cudaEventElapsedTime") : 0;
}

/* --- rows --------------------------------------------------------------------------------------- */

static __device__ void copy_row(uint4 *to, const uint4 *from, uint32_t n, uint32_t rank, uint32_t width)
{
#pragma unroll 1
    for (uint32_t i = rank; i < n; i += UNROLL * width) {
        uint4 v[UNROLL];
#pragma unroll
        for (uint32_t k = 0; k < UNROLL; k++)
            if (i + k * width < n)
                v[k] = __ldcg(from + i + k * width);
#pragma unroll
        for (uint32_t k = 0; k < UNROLL; k++)
            if (i + k * width < n)
                to[i + k * width] = v[k];
    }
}

/* Divides the rows among blocks and warps as tarn_dev_get_grid() does. */
static __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    copy_rows(const void *const *from, uint32_t n, char *to, uint32_t row_bytes)
{
    __shared__ const void *here[WARP];
    const uint32_t part = (n + gridDim.x - 1) / gridDim.x, begin = part * blockIdx.x;
    const uint32_t end = begin + part < n ? begin + part : n;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (uint32_t first = begin; first < end; first += WARP) {
        const uint32_t count = end - first < WARP ? end - first : WARP, team = WARPS > count ? WARPS / count : 1;
        if (threadIdx.x < count)
            here[threadIdx.x] = from[first + threadIdx.x];
        __syncthreads();
        for (uint32_t i = warp; i < count * team; i += WARPS)
            copy_row((uint4 *)(to + (uint64_t)(first + i / team) * row_bytes), (const uint4 *)here[i / team],
                     row_bytes / (uint32_t)sizeof(uint4), i % team * WARP + lane, team * WARP);
        __syncthreads();
    }
}

int bench_bare_rows(struct bench_bare *b, const void *const *from, uint32_t n, void *to, uint32_t row_bytes)
{
    cudaStream_t stream = (cudaStream_t)bench_bare_stream(b);
    int device = 0, sms = 0;

    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    uint32_t wanted = row_bytes > 4096 ? n : (n + WARPS - 1) / WARPS, most = (uint32_t)sms * BLOCKS_PER_SM;
    copy_rows<<<wanted < most ? wanted : most, BLOCK, 0, stream>>>(from, n, (char *)to, row_bytes);
    cudaError_t e = cudaGetLastError();
    return e ? failed(e, "the plain kernel") : 0;
}

int bench_bare_copy(struct bench_bare *b, const void *from, void *to, uint64_t bytes)
{
    cudaError_t e = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, (cudaStream_t)bench_bare_stream(b));
    return e ? failed(e, "cudaMemcpyAsync") : 0;
}
