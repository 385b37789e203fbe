/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rows_check.h"

#include <cuda_runtime_api.h>

extern "C" void *stream_handle(struct stream *s);

/* A warp checks a row. */
static __global__ void check(struct rows_check c)
{
    const uint32_t row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= c.n)
        return;
    const int32_t status = c.status[row];
    const uint32_t page = c.rows[row] / c.rows_per_page;
    const uint32_t *word = (const uint32_t *)(c.to + (uint64_t)row * c.row_bytes);
    bool right = true;
    for (uint32_t i = lane; status == 0 && i < c.row_bytes / 4; i += 32)
        right &= word[i] == word[0];
    right = __all_sync(~0u, right);
    if (lane > 0)
        return;
    right &= status || (word[0] >= c.least[page] && word[0] <= c.most[page]);
    atomicAdd(status == TARN_E_STALE ? c.stale : status ? c.other : right ? c.good : c.wrong, 1ull);
}

static __global__ void spin(const volatile uint32_t *word)
{
    while (!*word)
        ;
}

extern "C" void stream_spin(struct stream *s, const uint32_t *word)
{
    spin<<<1, 1, 0, (cudaStream_t)stream_handle(s)>>>(word);
}

extern "C" void rows_check(struct stream *s, const struct rows_check *c)
{
    cudaStream_t stream = (cudaStream_t)stream_handle(s);
    check<<<(c->n + 7) / 8, 256, 0, stream>>>(*c);
}

static __device__ void add(struct rows_loop_found *to, const struct rows_loop_found *f)
{
    atomicAdd(&to->good, f->good);
    atomicAdd(&to->stale, f->stale);
    atomicAdd(&to->wrong, f->wrong);
    atomicAdd(&to->other, f->other);
    atomicMax(&to->late_ns, f->late_ns);
}

/* A warp's row of the block; the outcome is the first lane's. */
static __device__ void note(const struct rows_loop *l, uint32_t row, uint64_t late_ns, struct rows_loop_found *f)
{
    const int32_t status = l->status[row];
    const uint32_t page = l->rows[row] / l->table.rows_per_page;
    const uint32_t *word = (const uint32_t *)(l->to + (uint64_t)row * l->table.row_bytes);
    bool right = true;
    for (uint32_t i = threadIdx.x % 32; status == 0 && i < l->table.row_bytes / 4; i += 32)
        right &= word[i] == page + 1;
    right = __all_sync(~0u, right);
    ++*(status == TARN_E_STALE ? &f->stale : status ? &f->other : right ? &f->good : &f->wrong);
    if (status == 0 && late_ns > f->late_ns)
        f->late_ns = late_ns;
}

static __global__ void loop(const __grid_constant__ struct rows_loop l)
{
    const uint32_t first = ROWS_LOOP_BLOCK * blockIdx.x, bytes = l.table.row_bytes;
    const uint64_t begun = tarn_dev_now(), minute_ns = 60000000000ull;
    struct rows_loop_found found = {};
    uint64_t gone_at = 0;
    bool end = false;
    while (!end) {
        const uint64_t now = tarn_dev_now();
        if (!gone_at && tarn_dev_load32(&l.host->gone))
            gone_at = now;
        tarn_dev_get_block(&l.table, l.rows + first, ROWS_LOOP_BLOCK, l.to + (uint64_t)first * bytes, bytes,
                           l.status + first);
        for (uint32_t i = threadIdx.x / 32; i < ROWS_LOOP_BLOCK; i += blockDim.x / 32)
            note(&l, first + i, gone_at ? now - gone_at : 0, &found);
        if (blockIdx.x == 0 && threadIdx.x == 0)
            tarn_dev_store32(&l.host->runs, l.host->runs + 1);
        end = __syncthreads_or(now - begun > minute_ns || (gone_at && now - gone_at > l.after_ns));
    }
    if (threadIdx.x % 32 == 0)
        add(l.found, &found);
}

extern "C" void rows_loop(struct stream *s, const struct rows_loop *l)
{
    cudaStream_t stream = (cudaStream_t)stream_handle(s);
    loop<<<l->n / ROWS_LOOP_BLOCK, 256, 0, stream>>>(*l);
}
