/* SPDX-License-Identifier: Apache-2.0 */
/* bench_bare.h with the CUDA runtime. */
#include "client/bench/bench_bare.h"

#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

extern "C" {
#include "base/error.h"
}

#define BLOCK 256
#define BLOCKS_PER_SM 8
#define OFFSET_BITS 40 /* low bits of a wrong word's place: the offset; above them: the object */

struct bench_bare {
    int device;
    unsigned blocks; /* enough to fill the GPU */
    cudaStream_t stream;
    unsigned long long *wrong; /* on the device */
};

static int failed(const struct bench_bare *b, cudaError_t e, const char *call)
{
    cudaGetLastError();
    return tarn_fail(TARN_E_SYSTEM, "bare CUDA: %s on device %d: %s", call, b->device, cudaGetErrorString(e));
}

static int wait_for(struct bench_bare *b, cudaError_t e, const char *call)
{
    if (!e)
        e = cudaStreamSynchronize(b->stream);
    return e ? failed(b, e, call) : 0;
}

/* --- streams ------------------------------------------------------------------------------------ */

bool bench_bare_played(void)
{
    return false;
}

void bench_bare_describe(char *text, size_t text_bytes)
{
    int runtime = 0, driver = 0;

    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    snprintf(text, text_bytes, "CUDA runtime %d.%d, driver for up to %d.%d", runtime / 1000,
             runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
}

int bench_bare_open(int device, struct bench_bare **b_p)
{
    struct bench_bare *b = (struct bench_bare *)calloc(1, sizeof *b);
    int sms = 0;

    if (!b)
        return tarn_fail(TARN_E_NO_MEMORY, "bare CUDA: out of memory");
    b->device = device;
    cudaError_t e = cudaSetDevice(device);
    if (!e)
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (!e)
        e = cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking);
    if (!e)
        e = cudaMalloc((void **)&b->wrong, sizeof *b->wrong);
    b->blocks = (unsigned)sms * BLOCKS_PER_SM;
    if (e) {
        int rc = failed(b, e, "a stream");
        bench_bare_close(b);
        return rc;
    }
    *b_p = b;
    return 0;
}

void bench_bare_close(struct bench_bare *b)
{
    if (!b)
        return;
    cudaSetDevice(b->device);
    if (b->stream)
        cudaStreamDestroy(b->stream);
    cudaFree(b->wrong);
    cudaGetLastError();
    free(b);
}

void *bench_bare_stream(struct bench_bare *b)
{
    cudaSetDevice(b->device);
    return b->stream;
}

int bench_bare_upload(struct bench_bare *b, const void *data, size_t bytes, void **at_p)
{
    void *at = NULL;

    cudaSetDevice(b->device);
    cudaError_t e = cudaMalloc(&at, bytes);
    if (e)
        return failed(b, e, "cudaMalloc");
    int rc = wait_for(b, cudaMemcpyAsync(at, data, bytes, cudaMemcpyDefault, b->stream), "cudaMemcpyAsync");
    if (rc)
        cudaFree(at);
    else
        *at_p = at;
    return rc;
}

int bench_bare_fetch(struct bench_bare *b, const void *at, size_t bytes, void *data)
{
    cudaSetDevice(b->device);
    return wait_for(b, cudaMemcpyAsync(data, at, bytes, cudaMemcpyDefault, b->stream), "cudaMemcpyAsync");
}

void bench_bare_drop(struct bench_bare *b, void *at)
{
    cudaSetDevice(b->device);
    cudaFree(at);
    cudaGetLastError();
}

/* --- copies ------------------------------------------------------------------------------------- */

int bench_bare_each(struct bench_bare *b, const struct bench_copies *c)
{
    cudaError_t e = cudaSuccess;

    for (size_t i = 0; !e && i < c->n; i++)
        e = cudaMemcpyAsync(c->to[i], c->from[i], c->bytes[i], cudaMemcpyDefault, b->stream);
    return wait_for(b, e, "cudaMemcpyAsync");
}

int bench_bare_batch(struct bench_bare *b, const struct bench_copies *c)
{
#if CUDART_VERSION >= 12080
    struct cudaMemcpyAttributes how = {};
    size_t first = 0;

    how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    cudaSetDevice(b->device);
#if CUDART_VERSION >= 13000
    cudaError_t e = cudaMemcpyBatchAsync(c->to, c->from, c->bytes, c->n, &how, &first, 1, b->stream);
#else
    size_t which = 0;
    cudaError_t e =
        cudaMemcpyBatchAsync(c->to, (void **)c->from, c->bytes, c->n, &how, &first, 1, &which, b->stream);
#endif
    return wait_for(b, e, "cudaMemcpyBatchAsync");
#else
    return tarn_fail(TARN_E_UNSUPPORTED, "cudaMemcpyBatchAsync: CUDA %d.%d: take 12.8 or later",
                     CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
#endif
}

/* Each run has gridDim.y blocks. Each block copies a part: 16 bytes an access, 4 loads in flight a thread. */
static __global__ void __launch_bounds__(BLOCK) gather(const struct bench_run *runs)
{
    const struct bench_run r = runs[blockIdx.x];
    const uint4 *from = (const uint4 *)r.from;
    uint4 *to = (uint4 *)r.to;
    uint64_t all = r.bytes / sizeof *to, part = (all + gridDim.y - 1) / gridDim.y;
    uint64_t begin = blockIdx.y * part, end = begin + part < all ? begin + part : all;
    uint64_t i = begin + threadIdx.x;

    for (; i + 3 * BLOCK < end; i += 4 * BLOCK) {
        uint4 v = from[i], w = from[i + BLOCK], x = from[i + 2 * BLOCK], y = from[i + 3 * BLOCK];
        to[i] = v;
        to[i + BLOCK] = w;
        to[i + 2 * BLOCK] = x;
        to[i + 3 * BLOCK] = y;
    }
    for (; i < end; i += BLOCK)
        to[i] = from[i];
}

int bench_bare_gather(struct bench_bare *b, const struct bench_run *runs, size_t n, uint64_t bytes)
{
    uint64_t parts = b->blocks / n, most = bytes / (4 * BLOCK * sizeof(uint4));

    parts = parts < most ? parts : most;
    cudaSetDevice(b->device);
    gather<<<dim3((unsigned)n, parts ? (unsigned)parts : 1), BLOCK, 0, b->stream>>>(runs);
    return wait_for(b, cudaGetLastError(), "the gather kernel");
}

/* --- patterns ----------------------------------------------------------------------------------- */

int bench_bare_poison(struct bench_bare *b, void *at, uint64_t bytes)
{
    cudaSetDevice(b->device);
    return wait_for(b, cudaMemsetAsync(at, BENCH_POISON, bytes, b->stream), "cudaMemsetAsync");
}

static __global__ void __launch_bounds__(BLOCK) fill(const struct bench_span *spans, size_t n, uint64_t seed)
{
    for (size_t k = blockIdx.x; k < n; k += gridDim.x) {
        const struct bench_span s = spans[k];
        uint64_t own = bench_pattern_seed(seed, s.object), *words = (uint64_t *)s.at;
        for (uint64_t i = threadIdx.x; i < s.words; i += BLOCK)
            words[i] = bench_pattern_word(own, s.first + i);
    }
}

static __global__ void __launch_bounds__(BLOCK)
    check(const struct bench_span *spans, size_t n, uint64_t seed, unsigned long long *wrong)
{
    for (size_t k = blockIdx.x; k < n; k += gridDim.x) {
        const struct bench_span s = spans[k];
        uint64_t own = bench_pattern_seed(seed, s.object);
        const uint64_t *words = (const uint64_t *)s.at;
        for (uint64_t i = threadIdx.x; i < s.words; i += BLOCK)
            if (words[i] != bench_pattern_word(own, s.first + i))
                atomicMin(wrong,
                          (unsigned long long)(s.object << OFFSET_BITS | (s.first + i) * sizeof *words));
    }
}

static unsigned blocks_for(const struct bench_bare *b, size_t n)
{
    return n < b->blocks ? (unsigned)n : b->blocks;
}

int bench_bare_fill(struct bench_bare *b, const struct bench_span *spans, size_t n, uint64_t seed)
{
    cudaSetDevice(b->device);
    fill<<<blocks_for(b, n), BLOCK, 0, b->stream>>>(spans, n, seed);
    return wait_for(b, cudaGetLastError(), "filling");
}

int bench_bare_check(struct bench_bare *b, const struct bench_span *spans, size_t n, uint64_t seed,
                     uint64_t *object_p, uint64_t *offset_p)
{
    unsigned long long wrong = 0;

    cudaSetDevice(b->device);
    cudaError_t e = cudaMemsetAsync(b->wrong, 0xff, sizeof wrong, b->stream);
    if (!e) {
        check<<<blocks_for(b, n), BLOCK, 0, b->stream>>>(spans, n, seed, b->wrong);
        e = cudaGetLastError();
    }
    if (!e)
        e = cudaMemcpyAsync(&wrong, b->wrong, sizeof wrong, cudaMemcpyDefault, b->stream);
    int rc = wait_for(b, e, "checking");
    bool none = wrong == ~0ull;
    *object_p = none ? UINT64_MAX : wrong >> OFFSET_BITS;
    *offset_p = none ? UINT64_MAX : wrong & ((1ull << OFFSET_BITS) - 1);
    return rc;
}
