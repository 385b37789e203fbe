/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcpx/tcpx_stage.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "transport/cuda/cuda.h"

enum { BATCH = 256 };

static uint64_t ring_bytes(const struct tarn_tcpx_stage *s)
{
    return (uint64_t)s->depth * s->chunk_bytes;
}

static int host_ring(struct tarn_tcpx_stage *s)
{
    void *at = mmap(NULL, ring_bytes(s), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: %llu bytes to send from: %m",
                         (unsigned long long)ring_bytes(s));
    s->ring = at;
    int rc = s->gpu < 0 ? 0 : tarn_cuda_pin(at, ring_bytes(s), true);
    s->pinned = s->gpu >= 0 && rc == 0;
    return rc;
}

int tarn_tcpx_stage_open(struct tarn_tcpx_stage *s, int gpu, bool direct, uint32_t chunk_bytes,
                         uint32_t depth)
{
    uint8_t unused[TARN_CUDA_HANDLE];
    *s = (struct tarn_tcpx_stage){
        .gpu = gpu, .chunk_bytes = chunk_bytes, .depth = depth, .on_gpu = gpu >= 0 && direct};
    int rc = gpu < 0 ? 0 : tarn_cuda_queue_open(gpu, &s->queue);
    if (!rc)
        rc = s->on_gpu ? tarn_cuda_alloc(gpu, ring_bytes(s), (void **)&s->ring, unused) : host_ring(s);
    if (rc)
        tarn_tcpx_stage_close(s);
    return rc;
}

void tarn_tcpx_stage_close(struct tarn_tcpx_stage *s)
{
    for (; s->sent < s->full; s->sent++)
        tarn_tcpx_mapping_unuse(s->slots[s->sent % s->depth].place.mapping);
    tarn_cuda_queue_close(s->queue);
    if (s->pinned)
        tarn_cuda_unpin(s->ring);
    if (s->ring && s->on_gpu)
        tarn_cuda_free(s->gpu, s->ring);
    else if (s->ring)
        munmap(s->ring, ring_bytes(s));
    s->queue = NULL;
    s->ring = NULL;
    s->pinned = false;
}

int tarn_tcpx_stage_clear(struct tarn_tcpx_stage *s)
{
    if (!s->on_gpu)
        return 0; /* mmap() has done that */
    uint8_t *zeros = calloc(1, s->chunk_bytes);
    int rc = zeros ? 0 : tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory");
    for (uint32_t i = 0; !rc && i < s->depth; i++) {
        struct tarn_cuda_piece p = {zeros, s->ring + (uint64_t)i * s->chunk_bytes, s->chunk_bytes};
        rc = tarn_cuda_copy_now(s->gpu, &p, 1);
    }
    free(zeros);
    return rc;
}

static struct tarn_tcpx_slot *slot_at(struct tarn_tcpx_stage *s, uint64_t k, uint8_t **memory_p)
{
    uint64_t i = k % s->depth;
    *memory_p = s->ring + i * s->chunk_bytes;
    return &s->slots[i];
}

bool tarn_tcpx_stage_has_room(const struct tarn_tcpx_stage *s)
{
    return s->full == s->begun && s->begun - s->done < s->depth;
}

static void begin(struct tarn_tcpx_stage *s, struct tarn_tcpx_slot slot)
{
    s->slots[s->begun++ % s->depth] = slot;
}

void tarn_tcpx_stage_begin(struct tarn_tcpx_stage *s, void *owner, const struct tarn_piece *pieces,
                           uint32_t npieces, uint32_t bytes)
{
    begin(s, (struct tarn_tcpx_slot){.owner = owner, .pieces = pieces, .npieces = npieces, .bytes = bytes});
}

void tarn_tcpx_stage_lend(struct tarn_tcpx_stage *s, void *owner, uint32_t bytes, void *at,
                          const struct tarn_tcpx_place *p)
{
    begin(s, (struct tarn_tcpx_slot){.owner = owner, .bytes = bytes, .lent = at, .place = *p});
    s->full++;
}

void tarn_tcpx_stage_repeat(struct tarn_tcpx_stage *s, void *owner, uint32_t bytes)
{
    begin(s, (struct tarn_tcpx_slot){.owner = owner, .bytes = bytes});
    s->full++;
}

static void gather(struct tarn_tcpx_slot *slot, uint8_t *memory, struct tarn_cursor *at)
{
    while (slot->filled < slot->bytes) {
        void *from;
        uint64_t n = tarn_cursor_next(at, slot->pieces, slot->npieces, slot->bytes - slot->filled, &from);
        memcpy(memory + slot->filled, from, n);
        slot->filled += (uint32_t)n;
    }
}

/* Gathers one batch. AGAIN: the queue did not take all of it; the cursor is after the part it took. */
static int gather_by_gpu(struct tarn_tcpx_stage *s, struct tarn_tcpx_slot *slot, uint8_t *memory,
                         struct tarn_cursor *at)
{
    struct tarn_cuda_piece batch[BATCH];
    struct tarn_cursor ahead = *at;
    uint32_t filled = slot->filled;
    size_t n = 0, taken = 0;
    void *from;
    for (; n < BATCH && filled < slot->bytes; n++) {
        uint64_t bytes = tarn_cursor_next(&ahead, slot->pieces, slot->npieces, slot->bytes - filled, &from);
        batch[n] = (struct tarn_cuda_piece){from, memory + filled, bytes};
        filled += (uint32_t)bytes;
    }
    int rc = tarn_cuda_copy(s->queue, batch, n, &taken);
    for (size_t i = 0; i < taken; i++) {
        tarn_cursor_next(at, slot->pieces, slot->npieces, batch[i].bytes, &from);
        slot->filled += (uint32_t)batch[i].bytes;
    }
    return rc ? rc : taken < n ? TARN_E_AGAIN : 0;
}

int tarn_tcpx_stage_fill(struct tarn_tcpx_stage *s, struct tarn_cursor *at)
{
    uint8_t *memory;
    struct tarn_tcpx_slot *slot = slot_at(s, s->full, &memory);
    int rc = 0;
    if (s->queue) {
        while (!rc && slot->filled < slot->bytes)
            rc = gather_by_gpu(s, slot, memory, at);
        if (!rc)
            rc = tarn_cuda_mark(s->queue, &slot->mark);
    } else {
        gather(slot, memory, at);
    }
    s->full += rc == 0;
    return rc;
}

int tarn_tcpx_stage_copied(struct tarn_tcpx_stage *s, uint64_t k)
{
    struct tarn_tcpx_slot *slot = &s->slots[k % s->depth];
    int rc = slot->mark ? tarn_cuda_poll(s->queue, slot->mark) : 0;
    if (!rc)
        slot->mark = 0;
    return rc;
}

int tarn_tcpx_stage_next(struct tarn_tcpx_stage *s, struct tarn_tcpx_slot **slot_p, uint8_t **memory_p)
{
    *slot_p = NULL;
    if (s->sent == s->full)
        return 0;
    struct tarn_tcpx_slot *slot = slot_at(s, s->sent, memory_p);
    int rc = tarn_tcpx_stage_copied(s, s->sent);
    if (rc)
        return rc == TARN_E_AGAIN ? 0 : rc;
    if (slot->lent)
        *memory_p = slot->lent;
    *slot_p = slot;
    return 0;
}
