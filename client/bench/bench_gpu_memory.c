/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads in GPU memory or in pinned host memory. The GPU fills and checks them, so verifying gigabytes every
 * round takes only milliseconds.
 */
#include "client/bench/bench.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"
#include "transport/cuda/cuda.h"

#define SPAN_BYTES (256u << 10)

struct bench_gpu_memory {
    struct bench_site site;
    void *memory;
    uint64_t bytes;
    void *spans; /* in device memory; the spans of one object are adjacent */
    size_t spans_each;
    int failed; /* error of a fill or poisoning since the last check */
};

static int pinned_new(uint64_t bytes, char **memory_p)
{
    int rc = bench_map(bytes, true, memory_p);

    if (rc != 0)
        return rc;
    rc = tarn_cuda_pin(*memory_p, bytes, true);
    if (rc != 0)
        munmap(*memory_p, bytes);
    return rc;
}

int bench_gpu_memory_new(const struct bench_site *site, uint64_t bytes, struct bench_gpu_memory **g_p,
                         char **memory_p)
{
    struct bench_gpu_memory *g = calloc(1, sizeof *g);
    uint8_t handle[TARN_CUDA_HANDLE];
    char *pinned = NULL;
    int rc;

    if (!g)
        return tarn_fail(TARN_E_NO_MEMORY, "a load of the benchmark: out of memory");
    *g = (struct bench_gpu_memory){.site = *site, .bytes = bytes};
    if (site->pinned) {
        rc = pinned_new(bytes, &pinned);
        g->memory = pinned;
    } else {
        rc = tarn_cuda_alloc(site->device, bytes, &g->memory, handle);
    }
    if (rc != 0) {
        free(g);
        return rc;
    }
    *g_p = g;
    *memory_p = g->memory;
    return 0;
}

void bench_gpu_memory_free(struct bench_gpu_memory *g)
{
    if (g->spans)
        bench_bare_drop(g->site.bare, g->spans);
    if (g->site.pinned) {
        tarn_cuda_unpin(g->memory);
        munmap(g->memory, g->bytes);
    } else {
        tarn_cuda_free(g->site.device, g->memory);
    }
    free(g);
}

/* Writes the spans of an object. Returns their number. */
static size_t cut_object(const struct bench_load *l, size_t object, struct bench_span *spans)
{
    const struct tarn_piece *p = bench_load_pieces(l, object);
    uint64_t first = 0;
    size_t n = 0;

    for (uint32_t k = 0; k < l->npieces; k++) {
        for (uint64_t at = 0, bytes; at < p[k].bytes; at += bytes, first += bytes / 8) {
            bytes = p[k].bytes - at < SPAN_BYTES ? p[k].bytes - at : SPAN_BYTES;
            spans[n++] = (struct bench_span){(uint64_t)(uintptr_t)p[k].addr + at, bytes / 8, object, first};
        }
    }
    return n;
}

int bench_gpu_memory_cut(struct bench_load *l)
{
    struct bench_gpu_memory *g = l->gpu;
    uint64_t piece = l->bytes / l->npieces;
    size_t each = l->npieces * ((piece + SPAN_BYTES - 1) / SPAN_BYTES);
    struct bench_span *spans = calloc(l->objects * each, sizeof *spans);

    if (!spans)
        return tarn_fail(TARN_E_NO_MEMORY, "a load of the benchmark: out of memory");
    for (size_t i = 0; i < l->objects; i++)
        cut_object(l, i, spans + i * each);
    g->spans_each = each;
    int rc = bench_bare_upload(g->site.bare, spans, l->objects * each * sizeof *spans, &g->spans);
    free(spans);
    return rc;
}

void bench_gpu_memory_poison(struct bench_load *l)
{
    int rc = bench_bare_poison(l->gpu->site.bare, l->memory, l->memory_bytes);

    l->gpu->failed = l->gpu->failed ? l->gpu->failed : rc;
}

void bench_gpu_memory_fill(struct bench_load *l)
{
    int rc = bench_bare_fill(l->gpu->site.bare, l->gpu->spans, l->objects * l->gpu->spans_each, l->seed);

    l->gpu->failed = l->gpu->failed ? l->gpu->failed : rc;
}

int bench_gpu_memory_check(const struct bench_load *l, size_t objects)
{
    struct bench_gpu_memory *g = l->gpu;
    uint64_t object, offset;

    if (g->failed)
        return tarn_fail(g->failed, "the bytes to compare with could not be written to GPU %d",
                         g->site.device);
    int rc = bench_bare_check(g->site.bare, g->spans, objects * g->spans_each, l->seed, &object, &offset);
    if (rc != 0 || offset == UINT64_MAX)
        return rc;
    return tarn_fail(TARN_E_INVALID, "object %llu: the word at byte %llu of %llu is wrong",
                     (unsigned long long)object, (unsigned long long)offset, (unsigned long long)l->bytes);
}

/* --- test of the check -------------------------------------------------------------------------- */

static int prove(struct bench_load *l)
{
    bench_load_fill(l, 1);
    int rc = bench_load_check(l);
    if (rc != 0)
        return rc;
    l->seed = 2;
    if (bench_load_check(l) != TARN_E_INVALID)
        return tarn_fail(TARN_E_SYSTEM, "GPU %d takes one content for another", l->gpu->site.device);
    bench_load_fill(l, 2);
    bench_load_poison(l);
    if (bench_load_check(l) != TARN_E_INVALID)
        return tarn_fail(TARN_E_SYSTEM, "GPU %d takes overwritten bytes for right ones", l->gpu->site.device);
    return 0;
}

int bench_gpu_memory_prove(const struct bench_site *site)
{
    struct bench_load *l = NULL;
    int rc = bench_load_new_at(site, 1 << 20, 16, 1, 1, 3, &l);

    if (rc == 0)
        rc = prove(l);
    bench_load_free(l);
    return rc;
}
