/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's side of a bare ring (bench_ring.h). */
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "client/bench/bench.h"
#include "client/bench/bench_ring.h"
#include "transport/cuda/cuda.h"

#define LINE 128

struct bench_bare_memory {
    _Alignas(LINE) uint64_t done;
    _Alignas(LINE) uint64_t tail;
    _Alignas(LINE) struct tarn_half slots[2 * BENCH_RING_SIZE];
};

int bench_bare_ring_new(struct bench_bare_ring *r)
{
    char *memory = NULL;
    int rc = bench_map(sizeof *r->memory, false, &memory);

    if (rc != 0)
        return rc;
    memset(memory, 0, sizeof *r->memory);
    r->memory = (struct bench_bare_memory *)(void *)memory;
    rc = tarn_cuda_pin(r->memory, sizeof *r->memory, true);
    r->pinned = rc == 0;
    return rc;
}

void bench_bare_ring_free(struct bench_bare_ring *r)
{
    if (r->pinned)
        tarn_cuda_unpin(r->memory);
    if (r->memory)
        munmap(r->memory, sizeof *r->memory);
}

struct tarn_ring bench_bare_ring_shared(const struct bench_bare_ring *r)
{
    return (struct tarn_ring){.slots = r->memory->slots,
                              .done = &r->memory->done,
                              .tail = &r->memory->tail,
                              .size = BENCH_RING_SIZE};
}

int bench_bare_ring_next(const struct bench_bare_ring *r, uint64_t *address_p)
{
    const struct tarn_half *slot = &r->memory->slots[2 * (r->head % BENCH_RING_SIZE)];
    uint32_t stamp = tarn_ring_stamp(r->head);

    if (tarn_dev_load64(&slot[0].b) >> 32 != stamp || tarn_dev_load64(&slot[1].b) >> 32 != stamp)
        return TARN_E_AGAIN;
    *address_p = tarn_dev_load64(&slot[0].a);
    return 0;
}

void bench_bare_ring_answer(struct bench_bare_ring *r)
{
    tarn_dev_store64(&r->memory->done, ++r->head);
}
