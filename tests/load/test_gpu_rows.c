/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels read very many rows by direct gets while writers replace and remove the objects, and a small pool
 * evicts them. Each row that a get calls good is checked on the GPU: whole, of one version, and none older
 * than what had been put when the get began. STORM_ROWS: how many rows to read (2 million).
 *
 * And one kernel gets rows without a pause while their node is killed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include <tarn/table.h>

#include "base/clock.h"
#include "tests/device.h"
#include "tests/rows_check.h"
#include "tests/standin/cuda_standin.h"
#include "tests/stream.h"
#include "tests/world.h"

enum { KEYS = 96, PER_PAGE = 64, ROW = 576, BYTES = PER_PAGE * ROW, ROWS = 2048, SETS = 16, WRITERS = 2 };

/* Room for about two thirds of the objects. */
static const struct world_plan plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=2432K", "--pool", "gpu0:device=0,bytes=2432K"}};

struct storm {
    struct world *w;
    const char *place;
    struct device *device;
    struct stream *stream;
    struct tarn_client *client;
    struct tarn_table *table;
    unsigned seed;
    /* pinned: by key; what a get that begins now finds at least, and the newest that has been begun */
    uint32_t *least, *most;
    /* of the device */
    uint32_t *rows, *least_before, *most_after;
    int32_t *status;
    uint8_t *to;
    unsigned long long *counts; /* good, stale, wrong, other */
    _Atomic bool stop;
    _Atomic unsigned writers, changes, next_key;
};

static uint32_t next(unsigned *x, uint32_t below)
{
    *x = *x * 1664525 + 1013904223;
    return (*x >> 8) % below;
}

static struct tarn_key key_at(char name[16], uint32_t k)
{
    snprintf(name, 16, "storm%u", k);
    return key_of(name);
}

/* Each writer has keys of its own, so that a key's versions follow one another. */
static void *writer_main(void *arg)
{
    struct storm *st = arg;
    unsigned me = atomic_fetch_add(&st->writers, 1), x = st->seed + me;
    struct tarn_client *c = world_client(st->w, "cuda_ipc,shm,tcp");
    uint32_t *words = malloc(BYTES);
    const struct tarn_put_options o = {.size = sizeof(o), .flags = TARN_PUT_REPLACE, .place = st->place};
    while (!st->stop) {
        char name[16];
        uint32_t k = next(&x, KEYS / WRITERS) * WRITERS + me, v = st->most[k] + 1;
        bool removes = next(&x, 12) == 0;
        const struct tarn_key key = key_at(name, k);
        struct tarn_piece piece = {.addr = words, .bytes = BYTES};
        struct tarn_item item = {.key = key, .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
        for (uint32_t i = 0; i < BYTES / 4; i++)
            words[i] = v;
        __atomic_store_n(&st->most[k], v, __ATOMIC_SEQ_CST);
        nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL); /* a writer's pace, not synchronisation */
        if (removes ? tarn_remove(c, &key, 1, NULL, 0) : tarn_put(c, &item, 1, &o))
            continue; /* nothing is promised then */
        __atomic_store_n(&st->least[k], removes ? v + 1 : v, __ATOMIC_SEQ_CST);
        atomic_fetch_add(&st->changes, 1);
    }
    free(words);
    tarn_close(c);
    return NULL;
}

static void make(struct storm *st)
{
    const struct tarn_table_options o = {.size = sizeof(o), .npages = KEYS};
    char names[KEYS][16];
    struct tarn_key keys[KEYS];
    uint32_t *rows = malloc(SETS * ROWS * sizeof(*rows));
    st->device = device_open(0);
    st->stream = stream_open(0);
    st->client = world_client(st->w, "cuda_ipc,shm,tcp");
    st->least = pinned_new(4096);
    st->most = pinned_new(4096);
    memset(st->least, 0, 4096);
    memset(st->most, 0, 4096);
    st->rows = device_alloc(st->device, SETS * ROWS * sizeof(*rows));
    st->least_before = device_alloc(st->device, KEYS * sizeof(uint32_t));
    st->most_after = device_alloc(st->device, KEYS * sizeof(uint32_t));
    st->status = device_alloc(st->device, ROWS * sizeof(int32_t));
    st->to = device_alloc(st->device, ROWS * ROW);
    st->counts = device_alloc(st->device, 4 * sizeof(*st->counts));
    for (uint32_t i = 0; i < SETS * ROWS; i++)
        rows[i] = next(&st->seed, KEYS * PER_PAGE);
    device_write(st->device, st->rows, rows, SETS * ROWS * sizeof(*rows));
    for (uint32_t k = 0; k < KEYS; k++)
        keys[k] = key_at(names[k], k);
    assert_int_equal(tarn_table_new(st->client, &o, &st->table), 0);
    tarn_table_set(st->table, 0, keys, KEYS, NULL, 0, NULL); /* none is there so far */
    free(rows);
}

static void drop(struct storm *st)
{
    tarn_close(st->client);
    stream_close(st->stream);
    device_drop(st->device, st->rows);
    device_drop(st->device, st->least_before);
    device_drop(st->device, st->most_after);
    device_drop(st->device, st->status);
    device_drop(st->device, st->to);
    device_drop(st->device, st->counts);
    device_close(st->device);
    pinned_free(st->least, 4096);
    pinned_free(st->most, 4096);
}

/* The stream copies what `least` is before the gather, and what `most` is after it. */
static void gather_and_check(struct storm *st, uint32_t set)
{
    const struct tarn_gather g = {.size = sizeof(g),
                                  .row_bytes = ROW,
                                  .rows_per_page = PER_PAGE,
                                  .rows = st->rows + set * ROWS,
                                  .n = ROWS,
                                  .to = st->to,
                                  .stride = ROW,
                                  .status = st->status};
    const struct rows_check c = {.rows = g.rows,
                                 .status = g.status,
                                 .to = st->to,
                                 .n = ROWS,
                                 .row_bytes = ROW,
                                 .rows_per_page = PER_PAGE,
                                 .least = st->least_before,
                                 .most = st->most_after,
                                 .good = st->counts,
                                 .stale = st->counts + 1,
                                 .wrong = st->counts + 2,
                                 .other = st->counts + 3};
    stream_copy(st->stream, st->least_before, st->least, KEYS * sizeof(uint32_t));
    if (tarn_standin_fail)
        stream_settle(st->stream); /* its gathers take place at once */
    if (tarn_table_gather(st->table, &g, stream_handle(st->stream)))
        fail_msg("a gather: %s", tarn_last_error());
    stream_copy(st->stream, st->most_after, st->most, KEYS * sizeof(uint32_t));
    if (tarn_standin_fail)
        stream_settle(st->stream);
    rows_check(st->stream, &c);
}

static void storm(void **state, const char *place)
{
    devices_need(1);
    const char *text = getenv("STORM_ROWS");
    unsigned long long wanted = text ? strtoull(text, NULL, 10) : 2000000, counts[4] = {0};
    struct storm st = {.w = *state, .place = place, .seed = (unsigned)harness_now_ms()};
    pthread_t writers[WRITERS];
    print_message("seed %u\n", st.seed);
    make(&st);
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&writers[i], NULL, writer_main, &st), 0);
    const uint64_t limit_s = 100 + wanted / 2000000;
    for (uint64_t end = harness_now_ms() + limit_s * 1000; counts[0] < wanted && counts[2] == 0;) {
        for (uint32_t i = 0; i < (tarn_standin_fail ? 64 : 1024); i++)
            gather_and_check(&st, i % SETS);
        stream_settle(st.stream);
        device_read(st.device, counts, st.counts, sizeof(counts));
        if (harness_now_ms() > end)
            fail_msg("in %llu s %llu rows were good, of %llu; %llu stale, %llu not there, none wrong",
                     (unsigned long long)limit_s, counts[0], wanted, counts[1], counts[3]);
    }
    st.stop = true;
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    print_message("%s: %llu rows good, %llu stale, %llu not there, %llu wrong; %u changes\n", place,
                  counts[0], counts[1], counts[3], counts[2], (unsigned)st.changes);
    assert_int_equal(counts[2], 0);
    assert_true(counts[1] > 0 && st.changes > 50);
    drop(&st);
}

static void rows_of_a_host_pool(void **state)
{
    storm(state, "node0/cpu0");
}

static void rows_of_a_gpu_pool(void **state)
{
    storm(state, "node0/gpu0");
}

/* --- a node that is killed under a kernel --------------------------------------------------------- */

enum { LOOP_PAGES = 32, LOOP_ROWS = 512 };
#define AFTER_NS (2 * TARN_NS_PER_S)
#define LEASE_NS (1100 * TARN_NS_PER_MS) /* a table's lease is a second; and what clocks may differ by */

/* All words of page k are k + 1. */
static void put_pages(struct storm *st)
{
    char names[LOOP_PAGES][16];
    struct tarn_key keys[LOOP_PAGES];
    uint32_t *words = malloc(BYTES);
    const struct tarn_put_options o = {.size = sizeof(o), .flags = TARN_PUT_REPLACE, .place = st->place};
    for (uint32_t k = 0; k < LOOP_PAGES; k++) {
        keys[k] = key_at(names[k], k);
        struct tarn_piece piece = {.addr = words, .bytes = BYTES};
        struct tarn_item item = {.key = keys[k], .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
        for (uint32_t i = 0; i < BYTES / 4; i++)
            words[i] = k + 1;
        HARNESS_UNTIL(tarn_put(st->client, &item, 1, &o) == 0, 20000);
    }
    free(words);
    assert_int_equal(tarn_table_set(st->table, 0, keys, LOOP_PAGES, NULL, 0, NULL), 0);
}

/* Page numbers of `rows` are below LOOP_PAGES. */
static void start_loop(struct storm *st, struct rows_loop *l)
{
    uint32_t rows[LOOP_ROWS];
    for (uint32_t i = 0; i < LOOP_ROWS; i++)
        rows[i] = next(&st->seed, LOOP_PAGES * PER_PAGE);
    device_write(st->device, st->rows, rows, sizeof(rows));
    *l = (struct rows_loop){.table = tarn_table_dev(st->table, ROW),
                            .rows = st->rows,
                            .status = st->status,
                            .to = st->to,
                            .n = LOOP_ROWS,
                            .after_ns = AFTER_NS,
                            .host = pinned_new(4096),
                            .found = device_alloc(st->device, sizeof(*l->found))};
    l->table.rows_per_page = PER_PAGE;
    memset(l->host, 0, sizeof(*l->host));
    rows_loop(st->stream, l);
}

static struct rows_loop_found end_loop(struct storm *st, struct rows_loop *l)
{
    struct rows_loop_found f;
    __atomic_store_n(&l->host->gone, 1, __ATOMIC_RELEASE);
    stream_settle(st->stream);
    device_read(st->device, &f, l->found, sizeof(f));
    device_drop(st->device, l->found);
    pinned_free(l->host, 4096);
    return f;
}

static void killed_under_a_kernel(void **state, const char *place)
{
    devices_need(1);
    struct storm st = {.w = *state, .place = place, .seed = (unsigned)harness_now_ms()};
    struct rows_loop l;
    print_message("seed %u\n", st.seed);
    make(&st);
    put_pages(&st);
    start_loop(&st, &l);
    HARNESS_UNTIL(__atomic_load_n(&l.host->runs, __ATOMIC_ACQUIRE) > 20, 20000);
    harness_kill(st.w->nodes[0]->process);
    struct rows_loop_found f = end_loop(&st, &l);
    print_message("%s: %llu rows good, %llu stale, %llu not there, %llu wrong; good until %.3f s later\n",
                  place, f.good, f.stale, f.other, f.wrong, (double)f.late_ns / 1e9);
    assert_int_equal(f.wrong, 0);
    assert_true(f.good > 0 && f.stale + f.other > 0);
    assert_true(f.late_ns <= LEASE_NS);
    st.w->nodes[0] = world_node(st.w, "node0"); /* the GPU, the client and the table work on */
    put_pages(&st);
    start_loop(&st, &l);
    f = end_loop(&st, &l);
    assert_int_equal(f.wrong, 0);
    assert_true(f.good > 0);
    drop(&st);
}

static void a_host_pool_killed_under_a_kernel(void **state)
{
    killed_under_a_kernel(state, "node0/cpu0");
}

static void a_gpu_pool_killed_under_a_kernel(void **state)
{
    killed_under_a_kernel(state, "node0/gpu0");
}

static int start(void **state)
{
    return devices_there() ? world_start(state, &plan) : 0;
}

static int stop(void **state)
{
    return *state ? world_stop(state) : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_of_a_host_pool, start, stop),
        cmocka_unit_test_setup_teardown(rows_of_a_gpu_pool, start, stop),
        cmocka_unit_test_setup_teardown(a_host_pool_killed_under_a_kernel, start, stop),
        cmocka_unit_test_setup_teardown(a_gpu_pool_killed_under_a_kernel, start, stop),
    };
    return cmocka_run_group_tests_name("storm of rows", tests, NULL, NULL);
}
