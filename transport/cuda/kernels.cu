/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernel for paged blocks: one launch for any number of scattered pieces.
 *
 * What limits such a copy is how much is under way. A thread has eight loads of 16 bytes in flight, a warp 4
 * KiB; a piece has as many warps as its size can use (its team), and the chip's multiprocessors have all the
 * warps they can hold. Where source and destination do not agree in their low bits, the widest access that
 * fits both is used in place of 16 bytes; a few single bytes lead to an aligned address.
 *
 * The list lies in memory of the host, behind PCIe: a block reads a tile of it at a time, in one go and once.
 *
 * A launch begins while the multiprocessors that the one ahead has left would be idle (programmatic dependent
 * launch; CUDA Programming Guide). Their pieces do not overlap, so there is nothing to wait for before copying; but
 * whoever waits for the later launch takes the earlier one for done, too, so it ends behind that. Anything else on the
 * stream between two launches would keep them apart; so a launch writes its mark itself: its last block does, all
 * having said that what they wrote is to be seen by the whole machine.
 *
 * The loads are ordinary ones of the second level, also of memory that a NIC has written to: that level is
 * coherent, so what was there when the launch was asked for is seen. Only a kernel that runs while the NIC writes
 * would need volatile loads.
 */
#include "transport/cuda/kernels.h"
#include "transport/cuda/kernels_run.h"

#define WARP 32
#define WARPS 8 /* of a block */
#define BLOCKS_PER_SM 4
#define BLOCK (WARP * WARPS)
#define UNROLL 8
#define WARP_BYTES (WARP * UNROLL * 16)
#define TILE 32 /* pieces of a tile at most */

/* The team's size is known to the compiler, so that all loads of a thread have one address and fixed
 * distances. */
template <uint32_t TEAM>
static __device__ void copy_wide(uint4 *to, const uint4 *from, uint32_t n, uint32_t rank)
{
#pragma unroll 1
    for (uint32_t i = rank; i < n; i += UNROLL * TEAM) {
        uint4 v[UNROLL];
#pragma unroll
        for (uint32_t k = 0; k < UNROLL; k++)
            if (i + k * TEAM < n)
                v[k] = __ldcg(from + i + k * TEAM);
#pragma unroll
        for (uint32_t k = 0; k < UNROLL; k++)
            if (i + k * TEAM < n)
                to[i + k * TEAM] = v[k];
    }
}

/* Apart, so that it takes no registers from what is the rule. */
template <typename T, uint32_t TEAM>
static __device__ __noinline__ void copy_narrow(T *to, const T *from, uint32_t n, uint32_t rank)
{
    uint32_t i = rank;
    for (; i + 3 * TEAM < n; i += 4 * TEAM) {
        T a = from[i], b = from[i + TEAM], c = from[i + 2 * TEAM], d = from[i + 3 * TEAM];
        to[i] = a;
        to[i + TEAM] = b;
        to[i + 2 * TEAM] = c;
        to[i + 3 * TEAM] = d;
    }
    for (; i < n; i += TEAM)
        to[i] = from[i];
}

template <typename T, uint32_t TEAM>
static __device__ void copy_narrow_as(char *to, const char *from, uint32_t bytes, uint32_t rank)
{
    copy_narrow<T, TEAM>((T *)to, (const T *)from, bytes / (uint32_t)sizeof(T), rank);
}

template <uint32_t TEAM> static __device__ void copy_piece(const struct tarn_cuda_piece &p, uint32_t rank)
{
    char *to = (char *)p.to;
    const char *from = (const char *)p.from;
    uint32_t bytes = (uint32_t)p.bytes;
    struct tarn_run_plan plan = tarn_run_plan((uintptr_t)from, (uintptr_t)to, bytes);
    uint32_t head = plan.head, width = plan.width;
    if (rank < head)
        to[rank] = from[rank];
    to += head;
    from += head;
    bytes -= head;
    if (width == 16)
        copy_wide<TEAM>((uint4 *)to, (const uint4 *)from, bytes / 16, rank);
    else if (width == 8)
        copy_narrow_as<uint64_t, TEAM>(to, from, bytes, rank);
    else if (width == 4)
        copy_narrow_as<uint32_t, TEAM>(to, from, bytes, rank);
    else if (width == 2)
        copy_narrow_as<uint16_t, TEAM>(to, from, bytes, rank);
    else
        copy_narrow_as<uint8_t, TEAM>(to, from, bytes, rank);
    uint32_t tail = bytes & (width - 1);
    if (rank < tail)
        to[bytes - tail + rank] = from[bytes - tail + rank];
}

/* The next launch may begin as soon as all blocks have said this. */
static __device__ void let_next_begin(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Until the launches ahead have ended, and what they wrote is seen. */
static __device__ void wait_for_those_ahead(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Blocks of a launch that have ended; 0 between launches. */
static __device__ uint32_t counters[TARN_KERNEL_COUNTERS];

/* Of a block all of whose warps have done their part. */
static __device__ void sign_off(const struct tarn_kernel_mark &mark)
{
    wait_for_those_ahead();
    if (!mark.at || threadIdx.x > 0)
        return;
    __threadfence_system();
    if (atomicInc(&counters[mark.counter], gridDim.x - 1) < gridDim.x - 1)
        return;
    __threadfence_system();
    *(volatile uint32_t *)mark.at = mark.number;
}

/* Tiles of `tile` pieces; TEAM warps for each piece. */
template <uint32_t TEAM>
static __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    copy_pieces(const struct tarn_cuda_piece *pieces, uint32_t n, uint32_t tile, struct tarn_kernel_mark mark)
{
    const uint32_t words = sizeof(pieces[0]) / sizeof(uint64_t), warp = threadIdx.x / WARP;
    __shared__ struct tarn_cuda_piece here[TILE];
    let_next_begin();
    for (uint32_t first = blockIdx.x * tile; first < n; first += gridDim.x * tile) {
        uint32_t count = n - first < tile ? n - first : tile;
        if (threadIdx.x < count * words)
            ((uint64_t *)here)[threadIdx.x] = ((const uint64_t *)(pieces + first))[threadIdx.x];
        __syncthreads();
        for (uint32_t unit = warp; unit < count * TEAM; unit += WARPS)
            copy_piece<TEAM * WARP>(here[unit / TEAM], unit % TEAM * WARP + threadIdx.x % WARP);
        __syncthreads();
    }
    sign_off(mark);
}

typedef void kernel(const struct tarn_cuda_piece *pieces, uint32_t n, uint32_t tile, struct tarn_kernel_mark mark);

/* With so many warps for a piece that each has something to do at least once; a block has no more. */
static kernel *kernel_for(uint64_t mean, uint32_t *team)
{
    *team = mean <= WARP_BYTES ? 1 : mean <= 2 * WARP_BYTES ? 2 : mean <= 4 * WARP_BYTES ? 4 : 8;
    return *team == 1   ? copy_pieces<1>
           : *team == 2 ? copy_pieces<2>
           : *team == 4 ? copy_pieces<4>
                        : copy_pieces<8>;
}

/* Code that says nothing of launches to come must not be launched as if it did. */
extern "C" cudaError_t tarn_kernel_look(int device, struct tarn_kernel_device *d)
{
    struct cudaFuncAttributes code;
    int major = 0;
    cudaError_t e = cudaDeviceGetAttribute(&d->sms, cudaDevAttrMultiProcessorCount, device);
    if (!e)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (!e)
        e = cudaFuncGetAttributes(&code, (const void *)copy_pieces<1>);
    d->overlaps = !e && major >= 9 && code.ptxVersion >= 90;
    return e;
}

extern "C" cudaError_t tarn_kernel_copy(const struct tarn_cuda_piece *pieces, uint32_t n, uint64_t bytes,
                                        const struct tarn_kernel_mark *mark, const struct tarn_kernel_device *d,
                                        cudaStream_t stream)
{
    uint32_t team, blocks = (uint32_t)d->sms * BLOCKS_PER_SM, tile = n / blocks;
    kernel *k = kernel_for(bytes / n, &team);
    /* A tile a block, but something to do for all of its warps. */
    tile = tile < WARPS / team ? WARPS / team : tile < TILE ? tile : TILE;
    uint32_t tiles = (n + tile - 1) / tile;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(tiles < blocks ? tiles : blocks);
    launch.blockDim = dim3(BLOCK);
    launch.stream = stream;
    launch.attrs = &early;
    launch.numAttrs = d->overlaps;
    return cudaLaunchKernelEx(&launch, k, pieces, n, tile, *mark);
}
