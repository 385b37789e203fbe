/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for hit tables, launched by cuda_table.c.
 *
 * A gather is two kernels. The first copies, and leaves in a row's status the stamp of the page that it has read
 * (stamps are positive). The second compares generations. It begins early and looks the rows up, then waits for
 * the first (programmatic dependent launch), and behind that needs no fence.
 *
 * What it costs is reading generations in the host's memory: 10 us for 2048 single ones, and 2.5 us for each
 * further read of the same sector, since the GPU does those one after the other. So a block reads the lines of
 * memory that its rows' generations are in, each once, whole, and keeps the low halves. Rows whose lines its shared
 * memory has no room for read their own.
 */
#include <tarn/device.h>

#include "transport/cuda/table_kernels.h"

#define WARP 32
#define BLOCK 256
#define BLOCKS_PER_SM 3
#define CHECKERS 1024          /* threads of a block */
#define EACH 2                 /* rows of a thread */
#define TILE (CHECKERS * EACH) /* rows that a block checks at a time */
#define LINE 128               /* bytes */
#define HALVES (LINE / 16)     /* of a line */
#define UNDER_WAY 2            /* halves that a thread reads at a time; more take registers that gathers need */

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

/* How many places (a power of two) and lines a block has room for. */
struct room {
    uint32_t places, lines;
};

/* Lines of generations that a block's rows need, in its shared memory. */
struct lines {
    struct room room;
    uint32_t *n;
    unsigned long long *list; /* the first room.lines of them */
    uint2 *gens;              /* the low halves of two generations: HALVES of these for each line in the list */
    unsigned long long *at;   /* by hash, a place each; 0: an empty place */
    uint16_t *number;         /* by place */
};

#define FIRST_BYTES 8 /* of shared memory, for n */
#define LINE_BYTES (sizeof(unsigned long long) + HALVES * sizeof(uint2))
#define PLACE_BYTES (sizeof(unsigned long long) + sizeof(uint16_t))

static __device__ struct lines lines_in(uint8_t *memory, struct room room)
{
    struct lines l;
    l.room = room;
    l.n = (uint32_t *)memory;
    l.list = (unsigned long long *)(memory + FIRST_BYTES);
    l.gens = (uint2 *)(l.list + room.lines);
    l.at = (unsigned long long *)(l.gens + HALVES * room.lines);
    l.number = (uint16_t *)(l.at + room.places);
    return l;
}

/* The place of the generation's line; notes the line if it is new. */
static __device__ uint32_t place_of(const struct lines *l, const uint32_t *gen_at)
{
    const unsigned long long at = (unsigned long long)gen_at & ~(unsigned long long)(LINE - 1);
    const uint32_t last = l->room.places - 1;
    uint32_t place = (uint32_t)((at / LINE * 0x9e3779b97f4a7c15ull) >> 32) & last;
    for (;; place = (place + 1) & last) {
        const unsigned long long there = atomicCAS(&l->at[place], 0ull, at);
        if (there == 0) {
            const uint32_t number = atomicAdd(l->n, 1u);
            l->number[place] = (uint16_t)number;
            if (number < l->room.lines)
                l->list[number] = at;
        }
        if (there == 0 || there == at)
            return place;
    }
}

static __device__ void read_lines(const struct lines *l)
{
    const uint32_t n = HALVES * (*l->n < l->room.lines ? *l->n : l->room.lines);
    for (uint32_t i = threadIdx.x; i < n; i += UNDER_WAY * CHECKERS) {
        struct tarn_half v[UNDER_WAY];
#pragma unroll
        for (uint32_t k = 0, at = i; k < UNDER_WAY; k++, at += CHECKERS)
            if (at < n)
                v[k] = tarn_dev_half_read((const struct tarn_half *)l->list[at / HALVES] + at % HALVES);
#pragma unroll
        for (uint32_t k = 0, at = i; k < UNDER_WAY; k++, at += CHECKERS)
            if (at < n)
                l->gens[at] = make_uint2((uint32_t)v[k].a, (uint32_t)v[k].b);
    }
}

/* The low half of the generation, as it is now. */
static __device__ uint32_t gen_now(const struct lines *l, uint32_t place, const uint32_t *gen_at)
{
    const uint32_t number = l->number[place];
    if (number >= l->room.lines)
        return tarn_dev_load32(gen_at);
    const uint2 pair = l->gens[HALVES * number + (uintptr_t)gen_at % LINE / 16];
    return (uintptr_t)gen_at & sizeof(uint64_t) ? pair.y : pair.x;
}

/* Rows of a tile, looked up. */
struct tile {
    struct tarn_dev_row row[EACH];
    uint32_t place[EACH];
};

static __device__ void look_up(const struct tarn_dev_table *table, const uint32_t *rows, uint32_t n, uint32_t begin,
                               const struct lines *l, struct tile *t)
{
    for (uint32_t p = threadIdx.x; p < l->room.places; p += CHECKERS)
        l->at[p] = 0;
    if (threadIdx.x == 0)
        *l->n = 0;
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
    check(const __grid_constant__ struct tarn_dev_table table, const uint32_t *rows, uint32_t n, int32_t *status,
          struct room room)
{
    extern __shared__ __align__(8) uint8_t memory[];
    const struct lines lines = lines_in(memory, room);
    struct tile t;
    for (uint32_t begin = blockIdx.x * TILE; begin < n; begin += gridDim.x * TILE) {
        look_up(&table, rows, n, begin, &lines, &t);
        wait_for_copies();
        read_lines(&lines);
        __syncthreads();
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++) {
            const uint32_t i = begin + k * CHECKERS + threadIdx.x;
            const int32_t stamp = i < n ? status[i] : 0;
            const int32_t found = stamp > 0 ? verdict(&lines, &t, k, stamp) : 0;
            if (stamp > 0)
                status[i] = found;
            if (found)
                tarn_dev_note(&table, &t.row[k], found, false);
        }
        __syncthreads();
    }
}

/* --- launching ---------------------------------------------------------------------------------- */

extern "C" cudaError_t tarn_kernel_gather_ready(const struct tarn_kernel_device *d)
{
    return cudaFuncSetAttribute(check, cudaFuncAttributeMaxDynamicSharedMemorySize, d->shared);
}

/* Rows are in no more lines than there are pages. Only while a page moves there may be one more, so places are for a
 * line a row. */
static struct room room_for(uint32_t n, uint32_t npages, const struct tarn_kernel_device *d)
{
    const uint32_t rows = n < TILE ? n : TILE;
    struct room r = {WARP, rows < npages ? rows : npages};
    while (r.places < 2 * rows)
        r.places *= 2;
    const uint32_t most = (uint32_t)((d->shared - FIRST_BYTES - r.places * PLACE_BYTES) / LINE_BYTES);
    r.lines = r.lines < most ? r.lines : most;
    return r;
}

/* A small row needs one warp, and a large one a whole block. */
extern "C" cudaError_t tarn_kernel_gather(const struct tarn_dev_table *table, const uint32_t *rows, uint32_t n,
                                          void *to, uint64_t stride, int32_t *status,
                                          const struct tarn_kernel_device *d, cudaStream_t stream)
{
    const uint32_t warps = BLOCK / WARP, most = (uint32_t)d->sms * BLOCKS_PER_SM;
    const uint32_t wanted = table->row_bytes > 4096 ? n : (n + warps - 1) / warps;
    const uint32_t tiles = (n + TILE - 1) / TILE;
    const struct room room = room_for(n, table->npages, d);
    cudaLaunchConfig_t launch = {};
    cudaLaunchAttribute early = {};
    gather<<<wanted < most ? wanted : most, BLOCK, 0, stream>>>(*table, rows, n, (uint8_t *)to, stride, status);
    cudaError_t e = cudaGetLastError();
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    launch.gridDim = dim3(tiles < (uint32_t)d->sms ? tiles : (uint32_t)d->sms);
    launch.blockDim = dim3(CHECKERS);
    launch.dynamicSmemBytes = FIRST_BYTES + room.lines * LINE_BYTES + room.places * PLACE_BYTES;
    launch.stream = stream;
    launch.attrs = &early;
    launch.numAttrs = d->overlaps;
    return e ? e : cudaLaunchKernelEx(&launch, check, *table, rows, n, status, room);
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
