/* SPDX-License-Identifier: Apache-2.0 */
/* The limit of shared memory: memcpy between a load's buffers and memory of the same size. */
#include "client/bench/bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

struct copier {
    struct bench_load *load;
    const void **from; /* get: the objects in the pool */
    char *memory;      /* put: the memfd mapping */
};

static int copy_begin(void *arg, uint64_t round)
{
    struct copier *m = arg;

    if (m->memory)
        bench_load_fill(m->load, round + 1);
    else
        bench_load_poison(m->load);
    return 0;
}

static int copy_get(void *arg, uint32_t thread, size_t i)
{
    struct copier *m = arg;

    (void)thread;
    for (size_t k = i * m->load->depth; k < (i + 1) * m->load->depth; k++) {
        const struct tarn_piece *p = bench_load_pieces(m->load, k);
        const char *from = m->from[k];
        for (uint32_t n = 0; n < m->load->npieces; from += p[n].bytes, n++)
            memcpy(p[n].addr, from, p[n].bytes);
    }
    return 0;
}

static int copy_put(void *arg, uint32_t thread, size_t i)
{
    struct copier *m = arg;

    (void)thread;
    for (size_t k = i * m->load->depth; k < (i + 1) * m->load->depth; k++) {
        const struct tarn_piece *p = bench_load_pieces(m->load, k);
        char *to = m->memory + k * m->load->bytes;
        for (uint32_t n = 0; n < m->load->npieces; to += p[n].bytes, n++)
            memcpy(to, p[n].addr, p[n].bytes);
    }
    return 0;
}

static int copy_end(void *arg)
{
    struct copier *m = arg;
    int rc = 0;

    if (!m->memory)
        return bench_load_check(m->load);
    for (size_t i = 0; rc == 0 && i < m->load->objects; i++)
        rc = bench_check(m->memory + i * m->load->bytes, m->load->bytes, m->load->seed, i);
    return rc;
}

static void copy_close(void *arg)
{
    struct copier *m = arg;

    if (m->memory)
        munmap(m->memory, m->load->memory_bytes);
    free(m);
}

static const struct bench_ops copy_get_ops = {
    .begin = copy_begin, .op = copy_get, .end = copy_end, .close = copy_close};
static const struct bench_ops copy_put_ops = {
    .begin = copy_begin, .op = copy_put, .end = copy_end, .close = copy_close};

int bench_add_memcpy(struct bench_row *r, struct bench_load *l, const void **from)
{
    struct copier *m = calloc(1, sizeof *m);
    int rc = m ? 0 : TARN_E_NO_MEMORY;

    if (rc == 0) {
        *m = (struct copier){.load = l, .from = from};
        rc = from ? 0 : bench_map(l->memory_bytes, true, &m->memory);
    }
    if (rc != 0) {
        free(m);
        return tarn_fail(rc, "memcpy: out of memory");
    }
    return bench_row_add(r, BENCH_LIMIT, "memcpy", from ? &copy_get_ops : &copy_put_ops, m, l);
}
