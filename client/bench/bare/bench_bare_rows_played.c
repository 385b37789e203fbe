/* SPDX-License-Identifier: Apache-2.0 */
/* bench_rows.h for builds without the CUDA runtime; the figures mean nothing. */
#include "client/bench/bench_rows.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"

struct bench_watch {
    uint64_t begin_ns;
};

int bench_watch_new(struct bench_bare *b, struct bench_watch **w_p)
{
    (void)b;
    *w_p = calloc(1, sizeof **w_p);
    return *w_p ? 0 : tarn_fail(TARN_E_NO_MEMORY, "bare calls: out of memory");
}

void bench_watch_free(struct bench_watch *w)
{
    free(w);
}

int bench_watch_begin(struct bench_watch *w)
{
    w->begin_ns = tarn_now_ns();
    return 0;
}

int bench_watch_end(struct bench_watch *w, uint64_t *ns_p)
{
    *ns_p = tarn_now_ns() - w->begin_ns;
    return 0;
}

int bench_bare_copy(struct bench_bare *b, const void *from, void *to, uint64_t bytes)
{
    void *tos[1] = {to};
    const void *froms[1] = {from};
    size_t sizes[1] = {bytes};

    return bench_bare_each(b, &(struct bench_copies){tos, froms, sizes, 1});
}

int bench_bare_rows(struct bench_bare *b, const void *const *from, uint32_t n, void *to, uint32_t row_bytes)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = bench_bare_copy(b, from[i], (char *)to + (uint64_t)i * row_bytes, row_bytes);
    return rc;
}
