/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A row's memory and its content. Every object has its own pattern, made from a seed and its number. The
 * pattern differs in every 8-byte word, so bytes of another object, slice or place are detected.
 */
#include "client/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tarn/layout.h>

#include "base/error.h"

#define PASS_BYTES (64ull << 20)
#define PASS_OBJECTS_MIN 4
#define PASS_OBJECTS_MAX 1024

/* --- patterns ----------------------------------------------------------------------------------- */

void bench_pattern_fill(void *data, uint64_t bytes, uint64_t seed, uint64_t offset)
{
    char *out = data;
    uint64_t index = offset / 8, word;

    for (; bytes >= 8; bytes -= 8, out += 8) {
        word = bench_pattern_word(seed, index++);
        memcpy(out, &word, 8);
    }
    word = bench_pattern_word(seed, index);
    memcpy(out, &word, bytes);
}

uint64_t bench_pattern_check(const void *data, uint64_t bytes, uint64_t seed, uint64_t offset)
{
    const char *in = data;
    uint64_t done = 0, word, found;

    for (; bytes - done >= 8; done += 8) {
        memcpy(&found, in + done, 8);
        word = bench_pattern_word(seed, (offset + done) / 8);
        if (found != word)
            return offset + done + (uint64_t)__builtin_ctzll(found ^ word) / 8;
    }
    word = bench_pattern_word(seed, (offset + done) / 8);
    for (uint64_t i = 0; done + i < bytes; i++)
        if (in[done + i] != ((const char *)&word)[i])
            return offset + done + i;
    return UINT64_MAX;
}

int bench_check(const void *data, uint64_t bytes, uint64_t seed, size_t object)
{
    uint64_t at = bench_pattern_check(data, bytes, bench_pattern_seed(seed, object), 0);

    if (at == UINT64_MAX)
        return 0;
    return tarn_fail(TARN_E_INVALID, "object %zu: byte %llu of %llu is wrong", object, (unsigned long long)at,
                     (unsigned long long)bytes);
}

/* --- memory ------------------------------------------------------------------------------------- */

int bench_map(uint64_t bytes, bool shared, char **memory_p)
{
    int fd = shared ? memfd_create("tarn-bench", MFD_CLOEXEC) : -1;

    if (shared && (fd < 0 || ftruncate(fd, (off_t)bytes) != 0))
        goto close_fd;
    char *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (memory == MAP_FAILED)
        goto close_fd;
    if (fd >= 0)
        close(fd);
    memset(memory, BENCH_POISON, bytes);
    *memory_p = memory;
    return 0;

close_fd:
    tarn_fail(TARN_E_NO_MEMORY, "%llu bytes of memory for the benchmark: %m: free some",
              (unsigned long long)bytes);
    if (fd >= 0)
        close(fd);
    return TARN_E_NO_MEMORY;
}

/* --- loads -------------------------------------------------------------------------------------- */

size_t bench_load_ops(uint64_t bytes, uint32_t depth, uint32_t threads)
{
    uint64_t objects = PASS_BYTES / bytes;

    if (objects < PASS_OBJECTS_MIN)
        objects = PASS_OBJECTS_MIN;
    if (objects > PASS_OBJECTS_MAX)
        objects = PASS_OBJECTS_MAX;
    uint64_t ops = objects / depth, least = 2 * (uint64_t)threads;
    return ops > least ? ops : least;
}

/* Fisher-Yates with a fixed seed: the same scatter in every run. */
static void shuffle_pieces(struct tarn_piece *pieces, size_t n)
{
    for (size_t i = n - 1; i > 0; i--) {
        size_t j = bench_pattern_word(42, i) % (i + 1);
        struct tarn_piece other = pieces[j];
        pieces[j] = pieces[i];
        pieces[i] = other;
    }
}

static void cut_pieces(struct bench_load *l)
{
    uint64_t piece_bytes = l->bytes / l->npieces;
    size_t n = l->objects * l->npieces;

    for (size_t i = 0; i < n; i++)
        l->pieces[i] = (struct tarn_piece){.addr = l->memory + i * piece_bytes, .bytes = piece_bytes};
    if (l->npieces > 1)
        shuffle_pieces(l->pieces, n);
}

static void shuffle_pages(uint32_t *pages, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pages[i] = (uint32_t)i;
    for (size_t i = n - 1; i > 0; i--) {
        size_t j = bench_pattern_word(42, i) % (i + 1);
        uint32_t other = pages[j];
        pages[j] = pages[i];
        pages[i] = other;
    }
}

static int make_layout(struct bench_load *l, uint64_t page_bytes, size_t npages)
{
    void **bases = calloc(l->arrays, sizeof *bases);
    const struct tarn_layout_options o = {
        .size = sizeof o, .bases = bases, .nbases = l->arrays, .page_bytes = page_bytes, .npages = npages};

    if (!bases)
        return tarn_fail(TARN_E_NO_MEMORY, "a load of %u arrays: out of memory", l->arrays);
    for (uint32_t a = 0; a < l->arrays; a++)
        bases[a] = l->memory + a * npages * page_bytes;
    int rc = tarn_layout_new(&o, &l->layout);
    free(bases);
    return rc;
}

/* The object's pieces are array after array, as a layout has them. */
static int cut_pages(struct bench_load *l)
{
    uint64_t page_bytes = l->bytes / l->npieces;
    size_t each = l->npieces / l->arrays, npages = l->objects * each;

    l->pages = calloc(npages, sizeof *l->pages);
    if (!l->pages)
        return tarn_fail(TARN_E_NO_MEMORY, "a load of %zu pages: out of memory", npages);
    shuffle_pages(l->pages, npages);
    for (size_t i = 0; i < l->objects; i++)
        for (size_t k = 0; k < l->npieces; k++) {
            size_t at = k / each * npages + l->pages[i * each + k % each];
            l->pieces[i * l->npieces + k] =
                (struct tarn_piece){.addr = l->memory + at * page_bytes, .bytes = page_bytes};
        }
    return make_layout(l, page_bytes, npages);
}

static int make_memory(struct bench_load *l, const struct bench_site *site)
{
    int rc = 0;

    l->pieces = calloc(l->objects * l->npieces, sizeof *l->pieces);
    if (!l->pieces)
        return tarn_fail(TARN_E_NO_MEMORY, "a load of %zu objects in %u pieces: out of memory", l->objects,
                         l->npieces);
    if (!site && !l->borrowed)
        rc = bench_map(l->memory_bytes, false, &l->memory);
    else if (site)
        rc = bench_gpu_memory_new(site, l->memory_bytes, &l->gpu, &l->memory);
    if (rc != 0)
        return rc;
    if (l->arrays)
        rc = cut_pages(l);
    else
        cut_pieces(l);
    if (rc != 0)
        return rc;
    return l->gpu ? bench_gpu_memory_cut(l) : 0;
}

/* Makes a load of the shape's geometry and, if it borrows any, memory. */
static int load_new(const struct bench_site *site, const struct bench_load *shape, struct bench_load **l_p)
{
    struct bench_load *l = calloc(1, sizeof *l);

    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "a load of the benchmark: out of memory");
    *l = *shape;
    l->objects = (l->ops + l->threads) * l->depth;
    l->memory_bytes = l->objects * l->bytes;
    int rc = make_memory(l, site);
    if (rc == 0)
        *l_p = l;
    else
        bench_load_free(l);
    return rc;
}

int bench_load_new(uint64_t bytes, uint32_t npieces, uint32_t depth, uint32_t threads, size_t ops,
                   struct bench_load **l_p)
{
    return bench_load_new_at(NULL, bytes, npieces, depth, threads, ops, l_p);
}

int bench_load_new_at(const struct bench_site *site, uint64_t bytes, uint32_t npieces, uint32_t depth,
                      uint32_t threads, size_t ops, struct bench_load **l_p)
{
    const struct bench_load shape = {
        .bytes = bytes, .npieces = npieces, .depth = depth, .threads = threads, .ops = ops};
    return load_new(site, &shape, l_p);
}

int bench_load_new_paged(const struct bench_site *site, uint64_t bytes, uint32_t npieces, uint32_t arrays,
                         uint32_t depth, size_t ops, struct bench_load **l_p)
{
    const struct bench_load shape = {
        .bytes = bytes, .npieces = npieces, .depth = depth, .threads = 1, .ops = ops, .arrays = arrays};
    return load_new(site, &shape, l_p);
}

int bench_load_new_over(char *memory, uint64_t bytes, uint32_t npieces, uint32_t depth, size_t ops,
                        struct bench_load **l_p)
{
    const struct bench_load shape = {.bytes = bytes,
                                     .npieces = npieces,
                                     .depth = depth,
                                     .threads = 1,
                                     .ops = ops,
                                     .memory = memory,
                                     .borrowed = true};
    return load_new(NULL, &shape, l_p);
}

void bench_load_free(struct bench_load *l)
{
    if (!l)
        return;
    if (l->gpu)
        bench_gpu_memory_free(l->gpu);
    else if (l->memory && !l->borrowed)
        munmap(l->memory, l->memory_bytes);
    tarn_layout_free(l->layout);
    free(l->pages);
    free(l->pieces);
    free(l);
}

void bench_load_poison(struct bench_load *l)
{
    if (l->gpu)
        bench_gpu_memory_poison(l);
    else
        memset(l->memory, BENCH_POISON, l->memory_bytes);
}

void bench_load_fill(struct bench_load *l, uint64_t seed)
{
    l->seed = seed;
    if (l->gpu) {
        bench_gpu_memory_fill(l);
        return;
    }
    for (size_t i = 0; i < l->objects; i++) {
        const struct tarn_piece *p = bench_load_pieces(l, i);
        uint64_t offset = 0, object_seed = bench_pattern_seed(seed, i);
        for (uint32_t k = 0; k < l->npieces; offset += p[k].bytes, k++)
            bench_pattern_fill(p[k].addr, p[k].bytes, object_seed, offset);
    }
}

int bench_load_check(const struct bench_load *l)
{
    return bench_load_check_first(l, l->objects);
}

int bench_load_check_first(const struct bench_load *l, size_t objects)
{
    if (l->gpu)
        return bench_gpu_memory_check(l, objects);
    for (size_t i = 0; i < objects; i++) {
        const struct tarn_piece *p = bench_load_pieces(l, i);
        uint64_t offset = 0, object_seed = bench_pattern_seed(l->seed, i);
        for (uint32_t k = 0; k < l->npieces; offset += p[k].bytes, k++) {
            uint64_t at = bench_pattern_check(p[k].addr, p[k].bytes, object_seed, offset);
            if (at != UINT64_MAX)
                return tarn_fail(TARN_E_INVALID, "object %zu: byte %llu of %llu is wrong", i,
                                 (unsigned long long)at, (unsigned long long)l->bytes);
        }
    }
    return 0;
}
