/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/layout.h"

#include <stdlib.h>
#include <string.h>

#include "client/check.h"
#include "transport/seen.h"

#define ALL_BASES_MAX (1ull << 30) /* bytes of one page of all arrays */

static int check_sizes(const struct tarn_layout_options *o, uint64_t stride)
{
    if (!o->bases || o->nbases == 0 || o->nbases > TARN_LAYOUT_BASES_MAX)
        return tarn_fail(TARN_E_INVALID, "layout: %u bases: give 1 to %d addresses", o->bases ? o->nbases : 0,
                         TARN_LAYOUT_BASES_MAX);
    if (o->page_bytes == 0 || o->page_bytes > ALL_BASES_MAX / o->nbases)
        return tarn_fail(
            TARN_E_INVALID,
            "layout: pages of %llu bytes in %u arrays: give at least 1 byte, and 1 GiB at most in all",
            (unsigned long long)o->page_bytes, o->nbases);
    if (stride < o->page_bytes)
        return tarn_fail(TARN_E_INVALID, "layout: stride %llu: pages have %llu bytes and must not overlap",
                         (unsigned long long)stride, (unsigned long long)o->page_bytes);
    if (o->npages == 0 || o->npages > 1ull << 32)
        return tarn_fail(TARN_E_INVALID, "layout: %llu pages: give 1 to 2^32", (unsigned long long)o->npages);
    return 0;
}

/* All arrays must lie where the first does. */
static int check_memory(const struct tarn_layout_options *o, uint64_t stride, uint32_t *gpu_p)
{
    struct tarn_seen seen;
    uint64_t span;
    tarn_seen_clear(&seen);
    if (__builtin_mul_overflow(o->npages - 1, stride, &span) ||
        __builtin_add_overflow(span, o->page_bytes, &span))
        span = UINT64_MAX;
    for (uint32_t i = 0; i < o->nbases; i++) {
        uintptr_t at = (uintptr_t)o->bases[i], last;
        if (!at || __builtin_add_overflow(at, span - 1, &last))
            return tarn_fail(TARN_E_INVALID, "layout: base %u at %p: %llu pages reach past all memory", i,
                             o->bases[i], (unsigned long long)o->npages);
        uint32_t gpu = tarn_seen_range(&seen, at).gpu;
        if (i == 0)
            *gpu_p = gpu;
        if (gpu != *gpu_p || (gpu && tarn_seen_range(&seen, last).gpu != gpu))
            return tarn_fail(
                TARN_E_INVALID,
                "layout: base %u at %p: its pages are not all where base 0 is: make a layout for "
                "each memory, and give the pages that there are",
                i, o->bases[i]);
    }
    return 0;
}

int tarn_layout_new(const struct tarn_layout_options *given, struct tarn_layout **l_p)
{
    struct tarn_layout_options o;
    uint32_t gpu;
    int rc = tarn_out_check("layout", l_p);
    if (!rc)
        rc = tarn_options_copy(&o, sizeof(o), given);
    if (rc)
        return rc;
    uint64_t stride = o.stride ? o.stride : o.page_bytes;
    rc = check_sizes(&o, stride);
    if (!rc)
        rc = check_memory(&o, stride, &gpu);
    if (rc)
        return rc;
    struct tarn_layout *l = malloc(sizeof(*l) + o.nbases * sizeof(l->bases[0]));
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "layout: out of memory for %u bases", o.nbases);
    *l = (struct tarn_layout){.buffer = {l->bases, o.nbases, o.page_bytes, stride},
                              .npages = o.npages,
                              .gpu = gpu,
                              .in_one_list = gpu && o.nbases <= TARN_CUDA_BASES_MAX &&
                                             o.page_bytes <= TARN_CUDA_PIECE_MAX};
    memcpy(l->bases, o.bases, o.nbases * sizeof(l->bases[0]));
    *l_p = l;
    return 0;
}

void tarn_layout_free(struct tarn_layout *l)
{
    free(l);
}
