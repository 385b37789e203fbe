/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for hit tables, launched by cuda_table.c.
 *
 * A gather is two kernels. The first copies, and leaves in a row's status the stamp of the page that it has read
 * (stamps are positive). The second compares generations. It begins early and looks the rows up, then waits for
 * the first (programmatic dependent launch), and behind that needs no fence. A
 * block reads neighbouring generations once for all its rows, because the GPU does reads of the same sector of
 * host memory one after the other: when each row read its own, 2048 rows of 161 pages took 150 us.
 */
#include <tarn/device.h>

#include "transport/cuda/table_kernels.h"

#define BLOCK 256
#define BLOCKS_PER_SM 3
#define CHECKERS 1024         /* threads of a block, and rows that it checks at a time */
#define PLACES (2 * CHECKERS) /* for pairs of generations, found by hashing */

static __device__ void let_check_begin(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

static __device__ void wait_for_copies(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* --- copying ------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    gather(const __grid_constant__ struct tarn_dev_table table, const uint32_t *rows, uint32_t n, uint8_t *to,
           uint64_t stride, int32_t *status)
{
    const uint32_t part = (n + gridDim.x - 1) / gridDim.x, begin = part * blockIdx.x;
    const uint32_t end = begin + part < n ? begin + part : n;
    let_check_begin();
    for (uint32_t first = begin; first < end; first += TARN_DEV_WARP) {
        const uint32_t count = end - first < TARN_DEV_WARP ? end - first : TARN_DEV_WARP;
        const bool late = tarn_dev_is_late(&table);
        struct tarn_dev_row r = {0};
        tarn_dev_copy_tile(&table, rows + first, count, to + first * stride, stride, late, &r);
        if (threadIdx.x < count) {
            status[first + threadIdx.x] = r.status ? r.status : (int32_t)r.stamp;
            tarn_dev_note(&table, &r, r.status, late);
        }
        __syncthreads();
    }
}

/* --- checking ----------------------------------------------------------------------------------- */

/* Pairs of generations, by address; 0: an empty place. */
struct pairs {
    unsigned long long at[PLACES];
    struct tarn_half pair[PLACES];
};

/* The place of the generation's pair. *first: this thread has put it there. */
static __device__ uint32_t place_of(struct pairs *s, const uint32_t *gen_at, bool *first)
{
    const unsigned long long at = (unsigned long long)gen_at & ~(unsigned long long)(sizeof(struct tarn_half) - 1);
    uint32_t place = (uint32_t)((at / sizeof(struct tarn_half) * 0x9e3779b97f4a7c15ull) >> 32) % PLACES;
    for (;; place = (place + 1) % PLACES) {
        const unsigned long long there = atomicCAS(&s->at[place], 0ull, at);
        *first = there == 0;
        if (*first || there == at)
            return place;
    }
}

static __device__ uint32_t gen_in(const struct tarn_half *pair, const uint32_t *gen_at)
{
    return (uint32_t)((uintptr_t)gen_at & sizeof(uint64_t) ? pair->b : pair->a);
}

/* The status of a row whose page was r when it was copied, if it has the same stamp. */
static __device__ int32_t verdict(const struct tarn_dev_row *r, int32_t stamp, const struct tarn_half *pair)
{
    const bool same = !r->status && r->stamp == (uint32_t)stamp;
    return same && gen_in(pair, r->gen_at) == r->gen ? 0 : TARN_E_STALE;
}

static __global__ void __launch_bounds__(CHECKERS)
    check(const __grid_constant__ struct tarn_dev_table table, const uint32_t *rows, uint32_t n, int32_t *status)
{
    __shared__ struct pairs pairs;
    for (uint32_t begin = blockIdx.x * CHECKERS; begin < n; begin += gridDim.x * CHECKERS) {
        const uint32_t i = begin + threadIdx.x;
        struct tarn_dev_row r = {0};
        uint32_t place = 0;
        bool first = false;
        for (uint32_t p = threadIdx.x; p < PLACES; p += CHECKERS)
            pairs.at[p] = 0;
        __syncthreads();
        if (i < n)
            r = tarn_dev_find(&table, rows[i], false);
        if (i < n && !r.status)
            place = place_of(&pairs, r.gen_at, &first);
        wait_for_copies();
        if (first)
            pairs.pair[place] = tarn_dev_half_read((const struct tarn_half *)pairs.at[place]);
        const int32_t stamp = i < n ? status[i] : 0;
        __syncthreads();
        const int32_t found = stamp > 0 ? verdict(&r, stamp, &pairs.pair[place]) : 0;
        if (stamp > 0)
            status[i] = found;
        if (found)
            tarn_dev_note(&table, &r, found, false);
        __syncthreads();
    }
}

/* --- launching ---------------------------------------------------------------------------------- */

/* A small row needs one warp, and a large one a whole block. */
extern "C" cudaError_t tarn_kernel_gather(const struct tarn_dev_table *table, const uint32_t *rows, uint32_t n,
                                          void *to, uint64_t stride, int32_t *status,
                                          const struct tarn_kernel_device *d, cudaStream_t stream)
{
    const uint32_t warps = BLOCK / 32, most = (uint32_t)d->sms * BLOCKS_PER_SM;
    const uint32_t wanted = table->row_bytes > 4096 ? n : (n + warps - 1) / warps;
    const uint32_t tiles = (n + CHECKERS - 1) / CHECKERS;
    cudaLaunchConfig_t launch = {};
    cudaLaunchAttribute early = {};
    gather<<<wanted < most ? wanted : most, BLOCK, 0, stream>>>(*table, rows, n, (uint8_t *)to, stride, status);
    cudaError_t e = cudaGetLastError();
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    launch.gridDim = dim3(tiles < (uint32_t)d->sms ? tiles : (uint32_t)d->sms);
    launch.blockDim = dim3(CHECKERS);
    launch.stream = stream;
    launch.attrs = &early;
    launch.numAttrs = d->overlaps;
    return e ? e : cudaLaunchKernelEx(&launch, check, *table, rows, n, status);
}

static __global__ void tell_time(uint64_t *at)
{
    tarn_dev_store64(at, tarn_dev_now());
}

extern "C" cudaError_t tarn_kernel_time(uint64_t *at, cudaStream_t stream)
{
    tell_time<<<1, 1, 0, stream>>>(at);
    return cudaGetLastError();
}
