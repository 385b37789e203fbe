/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernel for paged blocks: one launch for any number of scattered runs.
 *
 * A run is copied by a team: a warp for small runs, a block for large ones. Where source and destination
 * agree in their low bits, a few single bytes lead to an aligned address and 16 bytes go at a time, four
 * loads in flight a thread: what matters over NVLink and PCIe is how much is under way. Where they do not
 * agree, the widest access that fits both is used.
 */
#include "transport/kernels.h"

#define BLOCK 256
#define WARP 32
#define SMALL_RUN 8192 /* mean size up to which warps are the teams */

template <typename T>
static __device__ void copy_as(char *to, const char *from, uint64_t bytes, uint32_t rank, uint32_t team)
{
    const T *src = (const T *)from;
    T *dst = (T *)to;
    uint64_t n = bytes / sizeof(T), i = rank;
    for (; i + 3 * team < n; i += 4 * team) {
        T a = src[i], b = src[i + team], c = src[i + 2 * team], d = src[i + 3 * team];
        dst[i] = a;
        dst[i + team] = b;
        dst[i + 2 * team] = c;
        dst[i + 3 * team] = d;
    }
    for (; i < n; i += team)
        dst[i] = src[i];
    uint64_t tail = n * sizeof(T) + rank;
    if (tail < bytes)
        to[tail] = from[tail];
}

/* The tail is shorter than 16 bytes and than a team. */
static __device__ void copy_run(const struct tarn_run &r, uint32_t rank, uint32_t team)
{
    char *to = (char *)r.to;
    const char *from = (const char *)r.from;
    uint64_t bytes = r.bytes;
    uint32_t differ = (uint32_t)(r.to ^ r.from) & 15;
    uint32_t width = differ ? differ & -differ : 16;
    uint32_t head = (uint32_t)-r.to & (width - 1);
    head = head < bytes ? head : (uint32_t)bytes;
    if (rank < head)
        to[rank] = from[rank];
    to += head;
    from += head;
    bytes -= head;
    switch (width) {
    case 16:
        return copy_as<uint4>(to, from, bytes, rank, team);
    case 8:
        return copy_as<uint64_t>(to, from, bytes, rank, team);
    case 4:
        return copy_as<uint32_t>(to, from, bytes, rank, team);
    case 2:
        return copy_as<uint16_t>(to, from, bytes, rank, team);
    default:
        return copy_as<uint8_t>(to, from, bytes, rank, team);
    }
}

template <uint32_t TEAM>
static __global__ void __launch_bounds__(BLOCK) copy_runs(const struct tarn_run *runs, uint32_t n)
{
    uint32_t teams = BLOCK / TEAM, rank = threadIdx.x % TEAM;
    for (uint32_t i = blockIdx.x * teams + threadIdx.x / TEAM; i < n; i += gridDim.x * teams)
        copy_run(runs[i], rank, TEAM);
}

extern "C" cudaError_t tarn_kernel_copy_runs(const struct tarn_run *runs, uint32_t n, uint64_t mean,
                                             uint32_t blocks, cudaStream_t stream)
{
    bool warps = mean <= SMALL_RUN;
    uint32_t wanted = warps ? (n + BLOCK / WARP - 1) / (BLOCK / WARP) : n;
    uint32_t grid = wanted < blocks ? wanted : blocks;
    if (warps)
        copy_runs<WARP><<<grid, BLOCK, 0, stream>>>(runs, n);
    else
        copy_runs<BLOCK><<<grid, BLOCK, 0, stream>>>(runs, n);
    return cudaGetLastError();
}
