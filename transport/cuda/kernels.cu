/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernel for paged blocks: one launch for any number of scattered pieces.
 *
 * The speed of such a copy depends on how much is in flight. A thread has eight loads of 16 bytes in flight,
 * so a warp has 4 KiB. A piece gets as many warps as its size can use (its team), and all multiprocessors are
 * full of warps. If source and destination differ in their low bits, the widest access that suits both
 * replaces 16 bytes. A few single bytes lead to an aligned address.
 *
 * A short list goes with the launch, as an argument. A longer one is in host memory, behind PCIe. Each block
 * reads a tile of the list at a time, at once, and only once. There are more blocks than run at a time, of
 * small tiles: multiprocessors are not equally fast, and those that are done take the next block.
 *
 * A launch may begin while the previous one still runs on some multiprocessors (programmatic dependent
 * launch; CUDA Programming Guide). Their pieces do not overlap, so copying need not wait. But whoever waits
 * for the later launch assumes that the earlier one is done, so the later launch ends after it. Anything else
 * on the stream between two launches would prevent the overlap. So the last block of a launch writes the
 * launch's mark, after it has made all writes visible system-wide: fences are cumulative (PTX ISA, Memory
 * Consistency Model), so the other blocks only need to make theirs visible to the device.
 *
 * Loads are ordinary loads through the second-level cache, even from memory written by a NIC. That cache
 * is coherent, so data that was there when the launch was requested is seen. Only a kernel that runs while
 * the NIC writes would need volatile loads.
 */
#include <string.h>

#include "transport/cuda/kernels.h"
#include "transport/cuda/kernels_run.h"

#define WARP 32
#define WARPS 8 /* in a block */
#define BLOCKS_PER_SM 4
#define BLOCK (WARP * WARPS)
#define UNROLL 8
#define WARP_BYTES (WARP * UNROLL * 16)
#define WAVES 64 /* at most so many times the blocks that run at a time */
#define TILE 32  /* pieces in a tile, at most */
#define TILE_BYTES (256u << 10) /* ... and bytes, unless one piece has more */
#define FEW 16  /* entries with pages */

/* The team's size is a compile-time constant, so that all loads of a thread use one address and fixed
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

/* Separate, so that it takes no registers from the common case. */
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

/* Waits until the previous launches have ended and their writes are visible. */
static __device__ void wait_for_those_ahead(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Finished blocks of a launch; 0 between launches. */
static __device__ uint32_t counters[TARN_KERNEL_COUNTERS];

/* Called by a block when all its warps are done. */
static __device__ void sign_off(const struct tarn_kernel_mark &mark)
{
    wait_for_those_ahead();
    if (!mark.at || threadIdx.x > 0)
        return;
    __threadfence();
    if (atomicInc(&counters[mark.counter], gridDim.x - 1) < gridDim.x - 1)
        return;
    __threadfence_system();
    *(volatile uint32_t *)mark.at = mark.number;
}

struct short_list {
    struct tarn_cuda_piece pieces[TARN_KERNEL_SHORT];
};
struct long_list {
    const struct tarn_cuda_piece *pieces;
};

/* Tiles of `tile` pieces; TEAM warps for each piece. */
template <uint32_t TEAM, typename LIST>
static __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    copy_pieces(const __grid_constant__ LIST list, uint32_t n, uint32_t tile, struct tarn_kernel_mark mark)
{
    const uint32_t words = sizeof(list.pieces[0]) / sizeof(uint64_t), warp = threadIdx.x / WARP;
    __shared__ struct tarn_cuda_piece here[TILE];
    let_next_begin();
    for (uint32_t first = blockIdx.x * tile; first < n; first += gridDim.x * tile) {
        uint32_t count = n - first < tile ? n - first : tile;
        if (threadIdx.x < count * words)
            ((uint64_t *)here)[threadIdx.x] = ((const uint64_t *)(list.pieces + first))[threadIdx.x];
        __syncthreads();
        for (uint32_t unit = warp; unit < count * TEAM; unit += WARPS)
            copy_piece<TEAM * WARP>(here[unit / TEAM], unit % TEAM * WARP + threadIdx.x % WARP);
        __syncthreads();
    }
    sign_off(mark);
}

struct paged_buffer {
    char *base[TARN_CUDA_BASES_MAX];
    uint64_t page_bytes, stride;
    uint32_t nbases;
    bool put;
};

static __device__ void find_run(const struct paged_buffer &buffer, const struct tarn_cuda_pages &e, uint32_t b,
                                uint32_t j, struct tarn_cuda_piece *out)
{
    char *near = buffer.base[b] + e.page[j] * buffer.stride;
    char *far = (char *)e.far + b * e.far_stride + j * buffer.page_bytes;
    out->from = buffer.put ? near : far;
    out->to = buffer.put ? far : near;
    out->bytes = buffer.page_bytes;
}

/* They go with the launch: many blocks that read the same few lines of host memory wait for each other. */
struct few_pages {
    struct tarn_cuda_pages entries[FEW];
};
struct many_pages {
    const struct tarn_cuda_pages *entries;
};

/* Each entry counts as `width` runs; those that it lacks are skipped. Tiles of `tile` runs. */
template <uint32_t TEAM, typename LIST>
static __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    copy_pages(const __grid_constant__ struct paged_buffer buffer, const __grid_constant__ LIST list,
               uint32_t total, uint32_t width, uint32_t tile, struct tarn_kernel_mark mark)
{
    const uint32_t warp = threadIdx.x / WARP;
    __shared__ struct tarn_cuda_pages here[TILE + 1];
    let_next_begin();
    for (uint32_t first = blockIdx.x * tile; first < total; first += gridDim.x * tile) {
        uint32_t count = total - first < tile ? total - first : tile, entry = first / width;
        uint32_t nentries = (first + count - 1) / width - entry + 1;
        uint32_t words = nentries * (uint32_t)(sizeof(here[0]) / sizeof(uint64_t));
        for (uint32_t i = threadIdx.x; i < words; i += BLOCK)
            ((uint64_t *)here)[i] = ((const uint64_t *)(list.entries + entry))[i];
        __syncthreads();
        for (uint32_t unit = warp; unit < count * TEAM; unit += WARPS) {
            uint32_t run = first + unit / TEAM;
            const struct tarn_cuda_pages &e = here[run / width - entry];
            struct tarn_cuda_piece p;
            run %= width;
            if (run >= e.n * buffer.nbases)
                continue;
            find_run(buffer, e, run / e.n, run % e.n, &p);
            copy_piece<TEAM * WARP>(p, unit % TEAM * WARP + threadIdx.x % WARP);
        }
        __syncthreads();
    }
    sign_off(mark);
}

/* How many warps of a piece of that size have work at least once; at most a block's. */
static uint32_t team_of(uint64_t bytes)
{
    return bytes <= WARP_BYTES ? 1 : bytes <= 2 * WARP_BYTES ? 2 : bytes <= 4 * WARP_BYTES ? 4 : 8;
}

template <typename LIST> static auto kernel_for(uint32_t team)
{
    return team == 1   ? copy_pieces<1, LIST>
           : team == 2 ? copy_pieces<2, LIST>
           : team == 4 ? copy_pieces<4, LIST>
                       : copy_pieces<8, LIST>;
}

template <typename LIST> static auto pages_kernel_for(uint32_t team)
{
    return team == 1   ? copy_pages<1, LIST>
           : team == 2 ? copy_pages<2, LIST>
           : team == 4 ? copy_pages<4, LIST>
                       : copy_pages<8, LIST>;
}

/* Kernels compiled without programmatic dependent launch must not be launched with it. */
extern "C" cudaError_t tarn_kernel_look(int device, struct tarn_kernel_device *d)
{
    struct cudaFuncAttributes code;
    int major = 0;
    cudaError_t e = cudaDeviceGetAttribute(&d->sms, cudaDevAttrMultiProcessorCount, device);
    if (!e)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (!e)
        e = cudaFuncGetAttributes(&code, (const void *)copy_pieces<1, long_list>);
    d->overlaps = !e && major >= 9 && code.ptxVersion >= 90;
    return e;
}

/* Of n pieces of so many bytes, for which `team` warps each have work: how many a block takes at a time. All its
 * warps shall have work. */
static uint32_t tile_for(uint32_t n, uint64_t bytes, uint32_t team, const struct tarn_kernel_device *d)
{
    uint32_t tile = n / ((uint32_t)d->sms * BLOCKS_PER_SM);
    if (tile > TILE)
        tile = TILE;
    if (tile * bytes > TILE_BYTES)
        tile = (uint32_t)(TILE_BYTES / bytes);
    return tile < WARPS / team ? WARPS / team : tile;
}

/* For n pieces. */
static cudaLaunchConfig_t launch_for(uint32_t n, uint32_t tile, const struct tarn_kernel_device *d,
                                     cudaStream_t stream, cudaLaunchAttribute *early)
{
    uint32_t tiles = (n + tile - 1) / tile, blocks = (uint32_t)d->sms * BLOCKS_PER_SM * WAVES;
    cudaLaunchConfig_t launch = {};
    early->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early->val.programmaticStreamSerializationAllowed = 1;
    launch.gridDim = dim3(tiles < blocks ? tiles : blocks);
    launch.blockDim = dim3(BLOCK);
    launch.stream = stream;
    launch.attrs = early;
    launch.numAttrs = d->overlaps;
    return launch;
}

extern "C" cudaError_t tarn_kernel_copy(const struct tarn_cuda_piece *pieces, uint32_t n, uint64_t bytes,
                                        const struct tarn_kernel_mark *mark, const struct tarn_kernel_device *d,
                                        cudaStream_t stream)
{
    uint32_t team = team_of(bytes / n), tile = tile_for(n, bytes / n, team, d);
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t launch = launch_for(n, tile, d, stream, &early);
    if (n > TARN_KERNEL_SHORT)
        return cudaLaunchKernelEx(&launch, kernel_for<long_list>(team), long_list{pieces}, n, tile, *mark);
    struct short_list list;
    memcpy(list.pieces, pieces, n * sizeof(pieces[0]));
    return cudaLaunchKernelEx(&launch, kernel_for<short_list>(team), list, n, tile, *mark);
}

extern "C" cudaError_t tarn_kernel_copy_pages(const struct tarn_cuda_paged *buffer,
                                              const struct tarn_cuda_pages *entries, uint32_t n,
                                              uint32_t width, uint32_t total, bool put,
                                              const struct tarn_kernel_mark *mark,
                                              const struct tarn_kernel_device *d, cudaStream_t stream)
{
    uint32_t team = team_of(buffer->page_bytes), tile = tile_for(total, buffer->page_bytes, team, d);
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t launch = launch_for(n * width, tile, d, stream, &early);
    struct paged_buffer b;
    memcpy(b.base, buffer->bases, buffer->nbases * sizeof(b.base[0]));
    b.page_bytes = buffer->page_bytes;
    b.stride = buffer->stride;
    b.nbases = buffer->nbases;
    b.put = put;
    if (n > FEW)
        return cudaLaunchKernelEx(&launch, pages_kernel_for<many_pages>(team), b, many_pages{entries}, n * width,
                                  width, tile, *mark);
    struct few_pages few;
    memcpy(few.entries, entries, n * sizeof(entries[0]));
    return cudaLaunchKernelEx(&launch, pages_kernel_for<few_pages>(team), b, few, n * width, width, tile, *mark);
}
