/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a kernel asks a proxy for in `tarn-bench ring`: an object of 4 KiB in a CPU pool, into memory of the
 * GPU. The bare ring's consumer copies as many bytes from pinned memory, by cudaMemcpyAsync() and
 * cudaStreamSynchronize().
 */
#include "client/bench/bench_ring_gets.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "client/bench/bench.h"
#include "transport/cuda/cuda.h"

#define SEED 4711

struct bench_gets {
    struct bench_bare *copier; /* its stream; the kernel's is another */
    struct tarn_client *c;
    struct tarn_table *table;
    char *image; /* the object's bytes, pinned */
    bool pinned;
    void *to; /* on the device */
};

static int put_object(struct bench_gets *g)
{
    const struct tarn_table_options to = {.size = sizeof to, .npages = 1};
    const struct tarn_put_options po = {.size = sizeof po, .flags = TARN_PUT_REPLACE};
    struct tarn_piece piece = {.addr = g->image, .bytes = BENCH_GETS_BYTES};
    struct tarn_item item = {
        .key = {"proxied", 7}, .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BENCH_GETS_BYTES)};
    int rc = tarn_put(g->c, &item, 1, &po);

    if (rc == 0)
        rc = tarn_table_new(g->c, &to, &g->table);
    return rc ? rc : tarn_table_set(g->table, 0, &item.key, 1, NULL, 0, NULL);
}

static int make(struct bench_env *e, struct bench_gets *g)
{
    int rc = bench_start_node(e, "cpu0:bytes=64M");

    if (rc == 0)
        rc = bench_client(e, NULL, &g->c);
    if (rc == 0)
        rc = bench_bare_open(0, &g->copier);
    if (rc == 0)
        rc = bench_map(BENCH_GETS_BYTES, false, &g->image);
    if (rc != 0)
        return rc;
    bench_pattern_fill(g->image, BENCH_GETS_BYTES, SEED, 0);
    rc = tarn_cuda_pin(g->image, BENCH_GETS_BYTES, true);
    g->pinned = rc == 0;
    if (rc == 0)
        rc = bench_bare_upload(g->copier, g->image, BENCH_GETS_BYTES, &g->to);
    return rc ? rc : put_object(g);
}

int bench_gets_open(struct bench_env *e, struct bench_gets **g_p)
{
    struct bench_gets *g = calloc(1, sizeof *g);
    struct tarn_reason why;

    if (!g)
        return tarn_fail(TARN_E_NO_MEMORY, "the ring benchmark: out of memory");
    int rc = make(e, g);
    if (rc != 0) {
        tarn_reason_keep(&why, rc);
        bench_gets_close(g);
        return tarn_reason_fail(&why);
    }
    *g_p = g;
    return 0;
}

void bench_gets_close(struct bench_gets *g)
{
    if (!g)
        return;
    tarn_close(g->c); /* with the table */
    if (g->to)
        bench_bare_drop(g->copier, g->to);
    if (g->pinned)
        tarn_cuda_unpin(g->image);
    if (g->image)
        munmap(g->image, BENCH_GETS_BYTES);
    bench_bare_close(g->copier);
    free(g);
}

uint64_t bench_gets_to(const struct bench_gets *g)
{
    return (uintptr_t)g->to;
}

int bench_gets_proxy(struct bench_gets *g, struct tarn_proxy **p_p)
{
    const struct tarn_proxy_range range = {g->to, BENCH_GETS_BYTES};
    const struct tarn_proxy_options o = {
        .size = sizeof o, .nrings = 1, .table = g->table, .ranges = &range, .nranges = 1};

    return tarn_proxy_new(g->c, &o, p_p);
}

int bench_gets_copy(struct bench_gets *g)
{
    const void *from = g->image;
    size_t bytes = BENCH_GETS_BYTES;

    return bench_bare_each(g->copier, &(struct bench_copies){&g->to, &from, &bytes, 1});
}

int bench_gets_poison(struct bench_gets *g)
{
    return bench_bare_poison(g->copier, g->to, BENCH_GETS_BYTES);
}

int bench_gets_check(struct bench_gets *g)
{
    char got[BENCH_GETS_BYTES];
    int rc = bench_bare_fetch(g->copier, g->to, sizeof got, got);

    if (rc == 0 && memcmp(got, g->image, sizeof got) != 0)
        return tarn_fail(TARN_E_INVALID, "a proxied get has brought wrong bytes");
    return rc;
}
