/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rows_check.h"

#include <cuda_runtime_api.h>

#include <tarn/error.h>

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
    const uint32_t most = ((const volatile uint32_t *)c.most)[page];
    right &= status || (word[0] >= c.least[page] && word[0] <= most);
    atomicAdd(status == TARN_E_STALE ? c.stale : status ? c.other : right ? c.good : c.wrong, 1ull);
}

extern "C" void rows_check(struct stream *s, const struct rows_check *c)
{
    cudaStream_t stream = (cudaStream_t)stream_handle(s);
    check<<<(c->n + 7) / 8, 256, 0, stream>>>(*c);
}
