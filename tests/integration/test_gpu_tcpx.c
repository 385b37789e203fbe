/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fragments that the fixture plugin receives into GPU bounce memory are unpacked to GPU memory in all three
 * ways. Random messages from GPU memory are cut at random over 1 to 8 sockets. Every byte of the three
 * destinations is compared, also those around the message. With the CUDA stand-in, source and bounce memory
 * are the host's, because no plugin knows the stand-in.
 *
 * GPU_TCPX_SEED= repeats a run.
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "tests/harness.h"
#include "tests/tcpx/bare.h"
#include "tests/tcpx/child.h"
#include "tests/tcpx/counters.h"
#include "transport/tcpx/tcpx_unpack.h"

enum { WAYS = 3, PAGE = 4096, GUARD = 64, MESSAGES = 150, CHUNK = TARN_TCPX_CHUNK, SOURCE = 2 * CHUNK };
/* A destination: the message is anywhere in it, with guards around it. */
enum { TARGET = CHUNK + PAGE + 2 * GUARD, BLANK = 0xee };

static uint64_t seed;

static uint32_t rnd(uint32_t below)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 33) % below;
}

/* --- in a child --------------------------------------------------------------------------------- */

static struct {
    struct tarn_cuda_queue *queue;
    uint8_t *pinned, *source, *source_copy, *target[WAYS];
    struct tarn_tcpx_unpacker *unpacker[WAYS];
} gpu;

static uint8_t *map_pinned(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    CHECK(tarn_cuda_pin(at, bytes, true) == 0);
    return at;
}

/* Returns page-aligned memory; small allocations are not aligned to pages. */
static uint8_t *gpu_memory(size_t bytes)
{
    uint8_t handle[TARN_CUDA_HANDLE];
    void *at;
    CHECK(tarn_cuda_alloc(0, bytes + PAGE, &at, handle) == 0);
    return (uint8_t *)(((uintptr_t)at + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
}

/* Copies between pinned memory and the GPU. */
static void copy(void *to, const void *from, size_t bytes)
{
    struct tarn_cuda_piece piece = {from, to, bytes};
    uint64_t mark;
    size_t taken = 0;
    int rc;
    while (taken == 0)
        CHECK(tarn_cuda_copy(gpu.queue, &piece, 1, &taken) == 0);
    CHECK(tarn_cuda_mark(gpu.queue, &mark) == 0);
    while ((rc = tarn_cuda_poll(gpu.queue, mark)) == TARN_E_AGAIN)
        sched_yield();
    CHECK(rc == 0);
}

/* Makes the GPU current in this thread, as the plugin requires. */
static void prepare(void)
{
    int before;
    CHECK(tarn_cuda_lend(0, &before) == 0);
    CHECK(tarn_cuda_queue_open(0, &gpu.queue) == 0);
    gpu.pinned = map_pinned(SOURCE + TARGET);
    gpu.source_copy = malloc(SOURCE);
    CHECK(gpu.source_copy);
    for (int i = 0; i < SOURCE; i++)
        gpu.source_copy[i] = (uint8_t)rnd(256);
    memcpy(gpu.pinned, gpu.source_copy, SOURCE);
    gpu.source = gpu_memory(SOURCE);
    copy(gpu.source, gpu.pinned, SOURCE);
    for (int way = 0; way < WAYS; way++) {
        gpu.target[way] = gpu_memory(TARGET);
        CHECK(tarn_tcpx_unpack_open((enum tarn_tcpx_way)way, 0, CHUNK, 1, &gpu.unpacker[way]) == 0);
    }
}

static void blank_targets(void)
{
    uint8_t *stage = gpu.pinned + SOURCE;
    memset(stage, BLANK, TARGET);
    for (int way = 0; way < WAYS; way++)
        copy(gpu.target[way], stage, TARGET);
}

static void unpack(int way, const struct tarn_tcpx_fragments *list, const void *pool, uint64_t offset)
{
    struct tarn_cuda_memory m;
    uint64_t ticket;
    int rc;
    tarn_cuda_memory_of(pool, &m);
    CHECK(m.kind == TARN_CUDA_DEVICE);
    struct tarn_tcpx_bounce bounce = {m.kind, m.device, pool, NULL};
    struct tarn_piece piece = {gpu.target[way], TARGET, 0, 1};
    struct tarn_tcpx_into into = {TARN_CUDA_DEVICE, 0, &piece, 1, TARGET, offset};
    CHECK(tarn_tcpx_unpack_start(gpu.unpacker[way], list, &bounce, &into, &ticket) == 0);
    while ((rc = tarn_tcpx_unpack_poll(gpu.unpacker[way], ticket)) == TARN_E_AGAIN)
        sched_yield();
    CHECK(rc == 0);
}

static void expect_target(int way, uint64_t offset, const uint8_t *message, uint32_t bytes)
{
    const uint8_t *got = gpu.pinned + SOURCE;
    copy(gpu.pinned + SOURCE, gpu.target[way], TARGET);
    for (uint64_t i = 0; i < TARGET; i++)
        if (got[i] != (i >= offset && i < offset + bytes ? message[i - offset] : BLANK)) {
            printf("%s: %u bytes for %llu: byte %llu is wrong\n", tarn_tcpx_way_name((enum tarn_tcpx_way)way),
                   bytes, (unsigned long long)offset, (unsigned long long)i);
            CHECK(!"the bytes that were sent");
        }
}

static void pass(struct tarn_tcpx_plugin *p, void *send, void *recv)
{
    uint64_t end = tarn_deadline(20000);
    int sent = TARN_E_AGAIN, received = TARN_E_AGAIN;
    while (sent || received) {
        CHECK(tarn_now_ns() < end);
        sent = sent ? tarn_tcpx_test(p, send) : 0;
        received = received ? tarn_tcpx_test(p, recv) : 0;
        CHECK((sent == 0 || sent == TARN_E_AGAIN) && (received == 0 || received == TARN_E_AGAIN));
    }
}

struct ends {
    struct bare b;
    struct tarn_tcpx_unpack unpack; /* a copy */
    void *source_mr, *dummy_mr, *dummy;
};

static uint32_t one_message(struct tarn_tcpx_plugin *p, struct ends *e, uint64_t k)
{
    static const uint32_t odd_sizes[] = {0, 1, 15, 17, PAGE, CHUNK};
    static struct tarn_tcpx_fragments list;
    uint32_t bytes = k < 6 ? odd_sizes[k] : rnd(rnd(2) ? CHUNK + 1 : 3 * PAGE);
    uint32_t off = rnd(SOURCE - bytes);
    uint64_t offset = GUARD + rnd(TARGET - 2 * GUARD - bytes + 1);
    void *send, *recv;
    CHECK(tarn_tcpx_irecv(p, e->b.recv, e->dummy, 1, e->dummy_mr, &recv) == 0);
    CHECK(tarn_tcpx_isend(p, e->b.send, gpu.source + off, bytes, e->source_mr, &send) == 0);
    pass(p, send, recv);
    CHECK(tarn_tcpx_fragments_read(&list, e->unpack.meta, k, bytes, UINT64_MAX) == 0);
    blank_targets();
    for (int way = 0; way < WAYS; way++)
        unpack(way, &list, e->unpack.bounce, offset);
    CHECK(tarn_tcpx_consumed(p, e->b.recv, recv) == 0);
    for (int way = 0; way < WAYS; way++)
        expect_target(way, offset, gpu.source_copy + off, bytes);
    return list.n;
}

static void open_ends(struct tarn_tcpx_plugin *p, struct ends *e)
{
    CHECK(bare_open(p, 0, &e->b) == 0);
    uint8_t *stage = gpu.pinned + SOURCE;
    copy(stage, e->b.device.handle, sizeof(e->unpack));
    memcpy(&e->unpack, stage, sizeof(e->unpack));
    e->dummy = gpu_memory(PAGE);
    CHECK(tarn_tcpx_reg(p, e->b.send, gpu.source, SOURCE, TARN_TCPX_CUDA, &e->source_mr) == 0);
    CHECK(tarn_tcpx_reg(p, e->b.recv, e->dummy, PAGE, TARN_TCPX_CUDA, &e->dummy_mr) == 0);
}

static void expect_pages_back(const struct tarn_tcpx_plugin *p)
{
    void *handle = dlopen(p->path, RTLD_LAZY | RTLD_NOLOAD);
    fixture_counters_fn counters =
        handle ? (fixture_counters_fn)dlsym(handle, FIXTURE_COUNTERS_SYMBOL) : NULL;
    CHECK(counters);
    CHECK(counters()->tokens_taken > 0 && counters()->tokens_taken == counters()->tokens_returned);
    CHECK(counters()->refused == 0);
}

static int messages_in_child(void *arg)
{
    struct tarn_tcpx_plugin *p;
    struct ends e = {.dummy = NULL};
    char options[96];
    uint64_t fragments = 0;
    prepare();
    snprintf(options, sizeof(options), "gpu=1,pages=4096,seed=%u,cut_min=%u", 1 + rnd(1000000),
             1 + rnd(1400));
    setenv("TCPX_FIXTURE", options, 1);
    setenv("NCCL_SOCKET_NTHREADS", "1", 1);
    setenv("NCCL_NSOCKS_PERTHREAD", arg, 1);
    unsetenv("NCCL_DYNAMIC_CHUNK_SIZE");
    CHECK(tarn_tcpx_plugin_open(child_plugin("fixture-v7"), NULL, &p) == 0);
    open_ends(p, &e);
    for (uint64_t k = 0; k < MESSAGES; k++)
        fragments += one_message(p, &e, k);
    expect_pages_back(p);
    printf("%s sockets, %s: %d messages in %llu fragments, by three ways\n", (const char *)arg, options,
           MESSAGES, (unsigned long long)fragments);
    bare_close(&e.b);
    return 0;
}

/* --- the tests ---------------------------------------------------------------------------------- */

static int count_in_child(void *arg)
{
    int n = 0;
    (void)arg;
    if (tarn_cuda_count(&n))
        printf("%s\n", tarn_last_error());
    return n;
}

/* Does not start CUDA in this process: CUDA started before a fork() does not work in the child. */
static void need_gpu(void)
{
    char out[512];
    if (child_run(count_in_child, NULL, CHILD_SECONDS, out, sizeof(out)) == 0) {
        out[strcspn(out, "\n")] = '\0';
        harness_skip("gpu", out);
    }
}

static void three_ways_bring_the_same_bytes_from_the_plugin(void **state)
{
    static const char *const sockets[] = {"1", "4", "8"};
    char out[4096];
    (void)state;
    need_gpu();
    const char *given = getenv("GPU_TCPX_SEED");
    uint64_t first = given ? strtoull(given, NULL, 10) : tarn_random64();
    print_message("           seed %llu\n", (unsigned long long)first);
    for (int i = 0; i < 3; i++) {
        seed = first + (uint64_t)i;
        if (child_run(messages_in_child, (void *)sockets[i], CHILD_SECONDS, out, sizeof(out)))
            fail_msg("%s sockets: %s", sockets[i], out);
        print_message("%s", out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(three_ways_bring_the_same_bytes_from_the_plugin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
