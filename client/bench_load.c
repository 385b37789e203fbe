/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's memory of a row and what is in it. Every object has a pattern of its own, made from a
 * seed and its number, different in every 8-byte word: bytes of another object, of another slice, or
 * from another place are all found.
 */
#include "client/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

#define PASS_BYTES (64ull << 20)
#define PASS_OBJECTS_MIN 4
#define PASS_OBJECTS_MAX 1024
#define POISON 0xa5

/* --- patterns ----------------------------------------------------------------------------------- */

static uint64_t pattern_word(uint64_t seed, uint64_t index)
{
    uint64_t x = (seed + index * 0x9e3779b97f4a7c15ull) * 0xd6e8feb86659fd93ull;
    return x ^ (x >> 32);
}

uint64_t bench_pattern_seed(uint64_t seed, uint64_t object)
{
    return pattern_word(pattern_word(seed, 1), object);
}

void bench_pattern_fill(void *data, uint64_t bytes, uint64_t seed, uint64_t offset)
{
    char *out = data;
    uint64_t index = offset / 8, word;

    for (; bytes >= 8; bytes -= 8, out += 8) {
        word = pattern_word(seed, index++);
        memcpy(out, &word, 8);
    }
    word = pattern_word(seed, index);
    memcpy(out, &word, bytes);
}

uint64_t bench_pattern_check(const void *data, uint64_t bytes, uint64_t seed, uint64_t offset)
{
    const char *in = data;
    uint64_t done = 0, word, found;

    for (; bytes - done >= 8; done += 8) {
        memcpy(&found, in + done, 8);
        word = pattern_word(seed, (offset + done) / 8);
        if (found != word)
            return offset + done + (uint64_t)__builtin_ctzll(found ^ word) / 8;
    }
    word = pattern_word(seed, (offset + done) / 8);
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
    memset(memory, POISON, bytes);
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
        size_t j = pattern_word(42, i) % (i + 1);
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

int bench_load_new(uint64_t bytes, uint32_t npieces, uint32_t depth, uint32_t threads, size_t ops,
                   struct bench_load **l_p)
{
    struct bench_load *l = calloc(1, sizeof *l);

    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "a load of the benchmark: out of memory");
    *l = (struct bench_load){
        .bytes = bytes, .npieces = npieces, .depth = depth, .threads = threads, .ops = ops};
    l->objects = (ops + threads) * depth;
    l->memory_bytes = l->objects * bytes;
    l->pieces = calloc(l->objects * npieces, sizeof *l->pieces);
    if (!l->pieces || bench_map(l->memory_bytes, false, &l->memory) != 0) {
        bench_load_free(l);
        return tarn_fail(TARN_E_NO_MEMORY, "a load of %llu bytes: out of memory",
                         (unsigned long long)(bytes * (ops + threads) * depth));
    }
    cut_pieces(l);
    *l_p = l;
    return 0;
}

void bench_load_free(struct bench_load *l)
{
    if (!l)
        return;
    if (l->memory)
        munmap(l->memory, l->memory_bytes);
    free(l->pieces);
    free(l);
}

void bench_load_poison(struct bench_load *l)
{
    memset(l->memory, POISON, l->memory_bytes);
}

void bench_load_fill(struct bench_load *l, uint64_t seed)
{
    l->seed = seed;
    for (size_t i = 0; i < l->objects; i++) {
        const struct tarn_piece *p = bench_load_pieces(l, i);
        uint64_t offset = 0, object_seed = bench_pattern_seed(seed, i);
        for (uint32_t k = 0; k < l->npieces; offset += p[k].bytes, k++)
            bench_pattern_fill(p[k].addr, p[k].bytes, object_seed, offset);
    }
}

int bench_load_check(const struct bench_load *l)
{
    for (size_t i = 0; i < l->objects; i++) {
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
