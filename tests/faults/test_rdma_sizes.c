/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma: objects across the regions in which a pool is registered, objects of more bytes than 32 bits count,
 * and empty objects. Objects put by rdma are also read by tcp, and the other way round, because both halves
 * of rdma could be wrong in the same way.
 *
 *   RDMA_LARGE=1      objects over 2 and 4 GiB, too: memory for 11 GiB, two to five minutes
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/node_client.h"
#include "tests/rdma.h"

/* Neither a power of two nor a multiple of the sizes below. 268 whole pages. */
#define REGION "1100000"
#define REGION_BYTES (268u * 4096)
#define POOL_REGIONS 31 /* of a pool of 32 MiB */
#define BIGGEST (7u * MIB)

static const struct world_plan regions = {
    .nodes = 1,
    .args = {"--pool", "cpu0:bytes=32M", "--heartbeat-ms", "2000", "--rdma-region-bytes", REGION},
    .client = {.transports = "rdma", .timeout_ms = 5000}};

static int start(void **state)
{
    rdma_need(false);
    return world_start_client(state, &regions);
}

static struct tarn_item item_of(const char *key, const struct tarn_piece *pieces, uint32_t n, size_t bytes)
{
    return (struct tarn_item){
        .key = key_of(key), .pieces = pieces, .npieces = n, .tensor = tarn_bytes(bytes)};
}

/* Puts with one client and gets with the other. */
static void cross(struct tarn_client *from, struct tarn_client *to, uint32_t key, char *data, size_t bytes)
{
    char name[32];
    snprintf(name, sizeof(name), "cross%u", key % 4);
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = item_of(name, &piece, 1, bytes);
    marked_fill(data, bytes, key, 1);
    if (tarn_put(from, &item, 1, &replacing))
        fail_msg("put of %zu bytes: %s", bytes, tarn_last_error());
    memset(data, 0xee, bytes);
    if (tarn_get(to, &item, 1, NULL))
        fail_msg("get of %zu bytes: %s", bytes, tarn_last_error());
    assert_int_equal(marked_version(data, bytes, key), 1);
}

static void objects_lie_across_regions(void **state)
{
    struct world *w = *state;
    struct tarn_client *tcp = world_client(w, "tcp");
    static const size_t sizes[] = {8,       20000,   REGION_BYTES - 1,     REGION_BYTES,    REGION_BYTES + 1,
                                   MIB,     3000001, 2 * REGION_BYTES + 8, 5 * MIB + 12345, 300000,
                                   BIGGEST, 16384,   4 * REGION_BYTES};
    char *data = malloc(BIGGEST);
    assert_non_null(data);
    assert_true(rdma_objects().mr >= 2 * POOL_REGIONS); /* each region for readers and for writers */
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            uint32_t key = round * 100 + i;
            cross(w->client, w->client, key, data, sizes[i]);
            cross(w->client, tcp, key, data, sizes[i]);
            cross(tcp, w->client, key, data, sizes[i]);
        }
    }
    free(data);
    tarn_close(tcp);
    harness_passed(w->h);
}

/* Memory in runs that are longer or shorter than the rest of a region. */
static void pieces_meet_borders_anywhere(void **state)
{
    struct world *w = *state;
    static const size_t runs[] = {100, 4097, 70001, REGION_BYTES / 3, REGION_BYTES + 5};
    char *in = malloc(BIGGEST), *out = malloc(2 * BIGGEST);
    assert_true(in && out);
    for (uint32_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        uint32_t n = (uint32_t)(BIGGEST / runs[i]);
        size_t bytes = n * runs[i], apart = runs[i] + 24;
        struct tarn_piece whole = {.addr = in, .bytes = bytes}, parts = {out, runs[i], apart, n};
        struct tarn_item put = item_of("runs", &whole, 1, bytes), get = item_of("runs", &parts, 1, bytes);
        marked_fill(in, bytes, i, 1);
        memset(out, 0, 2 * BIGGEST);
        if (tarn_put(w->client, &put, 1, &replacing) || tarn_get(w->client, &get, 1, NULL))
            fail_msg("runs of %zu bytes: %s", runs[i], tarn_last_error());
        for (uint32_t k = 0; k < n; k++)
            assert_memory_equal(out + k * apart, in + k * runs[i], runs[i]);
        memset(in, 0, bytes);
        if (tarn_put(w->client, &get, 1, &replacing) || tarn_get(w->client, &put, 1, NULL))
            fail_msg("runs of %zu bytes: %s", runs[i], tarn_last_error());
        assert_int_equal(marked_version(in, bytes, i), 1);
    }
    free(in);
    free(out);
    harness_passed(w->h);
}

static void ranges_begin_and_end_anywhere(void **state)
{
    struct world *w = *state;
    char *in = malloc(BIGGEST), *out = malloc(BIGGEST);
    uint32_t seed = 12345;
    assert_true(in && out);
    marked_fill(in, BIGGEST, 1, 1);
    struct tarn_piece piece = {.addr = in, .bytes = BIGGEST};
    struct tarn_item item = item_of("whole", &piece, 1, BIGGEST);
    assert_int_equal(tarn_put(w->client, &item, 1, NULL), 0);
    struct tarn_get_options o = {.size = sizeof(o), .flags = TARN_GET_RANGE};
    for (int i = 0; i < 60; i++) {
        seed = seed * 1664525u + 1013904223u;
        size_t offset = i % 2 ? (i % 6 + 1) * REGION_BYTES - i : seed % BIGGEST;
        seed = seed * 1664525u + 1013904223u;
        size_t bytes = seed % (i % 3 ? 3 * REGION_BYTES : 20000);
        bytes = bytes < BIGGEST - offset ? bytes : BIGGEST - offset;
        piece = (struct tarn_piece){.addr = out, .bytes = bytes};
        item = item_of("whole", &piece, 1, 0);
        item.offset = offset;
        memset(out, 0xee, bytes);
        if (tarn_get(w->client, &item, 1, &o))
            fail_msg("[%zu, +%zu): %s", offset, bytes, tarn_last_error());
        assert_memory_equal(out, in + offset, bytes);
    }
    free(in);
    free(out);
    harness_passed(w->h);
}

/* Empty objects in a batch with others, in place of others, read as ranges, and at a node with several
 * regions. */
static void empty_objects_mix_with_others(void **state)
{
    struct world *w = *state;
    enum { N = 24 };
    static char names[N][16], data[N][3000];
    struct tarn_item items[N];
    struct tarn_piece pieces[N][3];
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < N; i++) {
            size_t bytes = (i + round) % 3 ? 1 + i * 100 : 0;
            snprintf(names[i], sizeof(names[i]), "some%u", i);
            pieces[i][0] = (struct tarn_piece){.addr = data[i], .bytes = bytes / 2};
            pieces[i][1] = (struct tarn_piece){.addr = NULL, .bytes = 0};
            pieces[i][2] = (struct tarn_piece){.addr = data[i] + bytes / 2, .bytes = bytes - bytes / 2};
            items[i] = item_of(names[i], pieces[i], 3, bytes);
            memset(data[i], (int)(round * N + i), sizeof(data[i]));
        }
        if (tarn_put(w->client, items, N, &replacing))
            fail_msg("put: %s", tarn_last_error());
        memset(data, 0xee, sizeof(data));
        if (tarn_get(w->client, items, N, NULL))
            fail_msg("get: %s", tarn_last_error());
        for (uint32_t i = 0; i < N; i++)
            for (size_t at = 0; at < sizeof(data[i]); at++)
                assert_int_equal((unsigned char)data[i][at],
                                 at < items[i].tensor.bytes ? round * N + i : 0xee);
    }
    harness_passed(w->h);
}

/* --- more bytes than 32 bits count -------------------------------------------------------------- */

#define LARGEST ((4ull << 30) + 12345)
#define TIMEOUT_MS 600000

static const struct world_plan large = {
    .nodes = 1,
    .args = {"--pool", "cpu0:bytes=4600M,huge=1,slots=64", "--heartbeat-ms", "1000"},
    .client = {.transports = "rdma", .timeout_ms = TIMEOUT_MS}};

/* Uses huge pages: with pages of 4096 bytes, the emulator needs more time to load the pool than the
 * harness waits for a node. */
static int start_large(void **state)
{
    rdma_need(false);
    if (!getenv("RDMA_LARGE"))
        return 0;
    FILE *f = fopen("/proc/sys/vm/nr_hugepages", "we");
    if (!f || fprintf(f, "2310\n") < 0 || fclose(f))
        fail_msg("no huge pages");
    return world_start_client(state, &large);
}

static int stop_large(void **state)
{
    return *state ? rdma_stop(state) : 0;
}

static void objects_larger_than_32_bits(void **state)
{
    struct world *w = *state;
    if (!w)
        harness_skip("large", "it takes a VM of 11 GiB: TARN_RDMA_VM_MEMORY=11264 RDMA_LARGE=1");
    static const uint64_t sizes[] = {(2ull << 30) - 1, (2ull << 30) + 4097, (4ull << 30) - 8, LARGEST};
    char *data = mmap(NULL, LARGEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(data != MAP_FAILED);
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t begun = harness_now_ms();
        struct tarn_piece piece = {.addr = data, .bytes = sizes[i]};
        struct tarn_item item = item_of("large", &piece, 1, sizes[i]);
        marked_fill(data, sizes[i], i, 1);
        uint64_t filled = harness_now_ms();
        if (tarn_put(w->client, &item, 1, &replacing))
            fail_msg("put of %llu bytes: %s", (unsigned long long)sizes[i], tarn_last_error());
        uint64_t put = harness_now_ms();
        memset(data, 0xee, sizes[i]);
        uint64_t cleared = harness_now_ms();
        if (tarn_get(w->client, &item, 1, NULL))
            fail_msg("get of %llu bytes: %s", (unsigned long long)sizes[i], tarn_last_error());
        uint64_t got = harness_now_ms();
        assert_int_equal(marked_version(data, sizes[i], i), 1);
        print_message("           %llu bytes: put %llu ms, get %llu ms, of %llu in all\n",
                      (unsigned long long)sizes[i], (unsigned long long)(put - filled),
                      (unsigned long long)(got - cleared), (unsigned long long)(harness_now_ms() - begun));
        tarn_remove(w->client, &item.key, 1, NULL, TIMEOUT_MS);
    }
    munmap(data, LARGEST);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, rdma_stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(objects_lie_across_regions),
        CASE(pieces_meet_borders_anywhere),
        CASE(ranges_begin_and_end_anywhere),
        CASE(empty_objects_mix_with_others),
        cmocka_unit_test_setup_teardown(objects_larger_than_32_bits, start_large, stop_large),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
