/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for hit tables, launched by cuda_table.c.
 *
 * A gather of parts of pages is two kernels. The first copies, and leaves in a row's status the stamp of the page that it has read
 * (stamps are positive). The second compares generations. It begins early and looks the rows up, then waits for
 * the first (programmatic dependent launch), and behind that needs no fence.
 *
 * What it costs is reading generations in the host's memory: 10 us for 2048 single ones, and 2.5 us for each
 * further read of the same sector, since the GPU does those one after the other. So a block reads the lines of
 * memory that its rows' generations are in, each once, whole. If there are too many lines for that, the rows are
 * far apart, and each reads its own.
 *
 * A gather of whole pages, no more than the table has, is one kernel: few of their generations are neighbours, and
 * the blocks read them while others copy.
 */
#include <tarn/device.h>

#include "transport/cuda/table_kernels.h"

#define BLOCK 256
#define BLOCKS_PER_SM 3
#define CHECKERS 1024          /* threads of a block */
#define EACH 2                 /* rows of a thread */
#define TILE (CHECKERS * EACH) /* rows that a block checks at a time */
#define PLACES (2 * TILE)      /* for lines, found by hashing */
#define LINE 128
#define HALVES (LINE / 16) /* of a line */
#define LINES 384          /* that are read whole */

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

/* Copies and checks. */
static __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    get(const __grid_constant__ struct tarn_dev_table table, const uint32_t *rows, uint32_t n, uint8_t *to,
        uint64_t stride, int32_t *status)
{
    tarn_dev_get_grid(&table, rows, n, to, stride, status);
}

/* --- checking ----------------------------------------------------------------------------------- */

/* Lines of generations that a block's rows need. */
struct lines {
    unsigned long long at[PLACES]; /* by hash; 0: an empty place */
    uint16_t number[PLACES];
    uint32_t n;
    unsigned long long list[LINES];
    struct tarn_half line[LINES][HALVES];
};

/* The place of the generation's line; notes the line if it is new. */
static __device__ uint32_t place_of(struct lines *l, const uint32_t *gen_at)
{
    const unsigned long long at = (unsigned long long)gen_at & ~(unsigned long long)(LINE - 1);
    uint32_t place = (uint32_t)((at / LINE * 0x9e3779b97f4a7c15ull) >> 32) % PLACES;
    for (;; place = (place + 1) % PLACES) {
        const unsigned long long there = atomicCAS(&l->at[place], 0ull, at);
        if (there == 0) {
            const uint32_t number = atomicAdd(&l->n, 1u);
            l->number[place] = (uint16_t)number;
            if (number < LINES)
                l->list[number] = at;
        }
        if (there == 0 || there == at)
            return place;
    }
}

static __device__ void read_lines(struct lines *l)
{
    for (uint32_t i = threadIdx.x; i < l->n * HALVES; i += CHECKERS)
        l->line[i / HALVES][i % HALVES] =
            tarn_dev_half_read((const struct tarn_half *)l->list[i / HALVES] + i % HALVES);
}

/* The low half of the generation, as it is now. */
static __device__ uint32_t gen_now(const struct lines *l, uint32_t place, const uint32_t *gen_at)
{
    if (l->n > LINES)
        return tarn_dev_load32(gen_at);
    const struct tarn_half *half = &l->line[l->number[place]][(uintptr_t)gen_at % LINE / 16];
    return (uint32_t)((uintptr_t)gen_at & sizeof(uint64_t) ? half->b : half->a);
}

/* Rows of a tile, looked up. */
struct tile {
    struct tarn_dev_row row[EACH];
    uint32_t place[EACH];
};

static __device__ void look_up(const struct tarn_dev_table *table, const uint32_t *rows, uint32_t n, uint32_t begin,
                               struct lines *l, struct tile *t)
{
    for (uint32_t p = threadIdx.x; p < PLACES; p += CHECKERS)
        l->at[p] = 0;
    if (threadIdx.x == 0)
        l->n = 0;
    __syncthreads();
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = begin + k * CHECKERS + threadIdx.x;
        t->row[k].status = TARN_E_INVALID;
        if (i < n)
            t->row[k] = tarn_dev_find(table, rows[i], false);
    }
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++)
        if (!t->row[k].status)
            t->place[k] = place_of(l, t->row[k].gen_at);
    __syncthreads();
}

/* A row was copied when its page had this stamp. */
static __device__ int32_t verdict(const struct lines *l, const struct tile *t, uint32_t k, int32_t stamp)
{
    const struct tarn_dev_row *r = &t->row[k];
    const bool same = !r->status && r->stamp == (uint32_t)stamp;
    return same && gen_now(l, t->place[k], r->gen_at) == r->gen ? 0 : TARN_E_STALE;
}

static __global__ void __launch_bounds__(CHECKERS)
    check(const __grid_constant__ struct tarn_dev_table table, const uint32_t *rows, uint32_t n, int32_t *status)
{
    extern __shared__ struct lines lines[];
    struct tile t;
    for (uint32_t begin = blockIdx.x * TILE; begin < n; begin += gridDim.x * TILE) {
        look_up(&table, rows, n, begin, lines, &t);
        wait_for_copies();
        if (lines->n <= LINES)
            read_lines(lines);
        __syncthreads();
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++) {
            const uint32_t i = begin + k * CHECKERS + threadIdx.x;
            const int32_t stamp = i < n ? status[i] : 0;
            const int32_t found = stamp > 0 ? verdict(lines, &t, k, stamp) : 0;
            if (stamp > 0)
                status[i] = found;
            if (found)
                tarn_dev_note(&table, &t.row[k], found, false);
        }
        __syncthreads();
    }
}

/* --- launching ---------------------------------------------------------------------------------- */

extern "C" cudaError_t tarn_kernel_gather_ready(void)
{
    struct cudaFuncAttributes code;
    cudaError_t e = cudaFuncGetAttributes(&code, gather);
    if (!e)
        e = cudaFuncGetAttributes(&code, get);
    return e ? e : cudaFuncSetAttribute(check, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(struct lines));
}

/* A small row needs one warp, and a large one a whole block. */
extern "C" cudaError_t tarn_kernel_gather(const struct tarn_dev_table *table, const uint32_t *rows, uint32_t n,
                                          void *to, uint64_t stride, int32_t *status,
                                          const struct tarn_kernel_device *d, cudaStream_t stream)
{
    const uint32_t warps = BLOCK / 32, most = (uint32_t)d->sms * BLOCKS_PER_SM;
    const uint32_t wanted = table->row_bytes > 4096 ? n : (n + warps - 1) / warps;
    const uint32_t tiles = (n + TILE - 1) / TILE;
    cudaLaunchConfig_t launch = {};
    cudaLaunchAttribute early = {};
    if (table->rows_per_page == 1 && n <= table->npages) {
        get<<<wanted < most ? wanted : most, BLOCK, 0, stream>>>(*table, rows, n, (uint8_t *)to, stride, status);
        return cudaGetLastError();
    }
    gather<<<wanted < most ? wanted : most, BLOCK, 0, stream>>>(*table, rows, n, (uint8_t *)to, stride, status);
    cudaError_t e = cudaGetLastError();
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    launch.gridDim = dim3(tiles < (uint32_t)d->sms ? tiles : (uint32_t)d->sms);
    launch.blockDim = dim3(CHECKERS);
    launch.dynamicSmemBytes = sizeof(struct lines);
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
