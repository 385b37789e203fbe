/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fixture plugin makes the faults that the test requests. Without faults, random messages, cut and mixed,
 * arrive with every byte right and every page given back.
 *
 * TCPX_FIXTURE_MESSAGES=100000 makes the random part long. TCPX_FIXTURE_SEED= repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "tests/harness.h"
#include "tests/tcpx/scene.h"
#include "transport/cuda/cuda.h"

#define COUNT(a_) (sizeof(a_) / sizeof *(a_))

/* --- faults ------------------------------------------------------------------------------------- */

/* Expected results of test() for the second message's requests. Set before the process begins. */
static struct {
    int send, recv; /* TARN_E_AGAIN: never done */
} wanted;

static bool turn(struct world *w, void *request, int *rc, int want)
{
    if (*rc == TARN_E_AGAIN)
        *rc = tarn_tcpx_test(w->p, request);
    return *rc == want;
}

static void pass_two(struct world *w)
{
    void *recv[2] = {world_recv(w), world_recv(w)}, *send = world_send(w, 0, 100000);
    world_pass(w, send, recv[0]);
    world_check(w, 0, 0, 100000);
    send = world_send(w, 1, 100000);

    int sent = TARN_E_AGAIN, received = TARN_E_AGAIN;
    uint64_t late = tarn_deadline(SCENE_LATE_MS), never = 0;
    while (never == 0 || tarn_now_ns() < never) {
        bool both = turn(w, send, &sent, wanted.send);
        both = turn(w, recv[1], &received, wanted.recv) && both;
        CHECK(tarn_now_ns() < late);
        if (both && never == 0)
            never = tarn_deadline(SCENE_NEVER_MS);
    }
    CHECK(sent == wanted.send && received == wanted.recv);
}

static int second_ends_as_wanted(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    pass_two(&w);
    return 0;
}

static int second_is_late(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    uint64_t start = tarn_now_ns();
    void *recv = world_recv(&w), *send = world_send(&w, 0, 100000);
    world_pass(&w, send, recv);
    CHECK(tarn_now_ns() - start >= 30 * TARN_NS_PER_MS);
    return 0;
}

/* The receiver ends at its second request, before anything was sent. */
static int first_loses_receiver(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *recv = world_recv(&w), *send = world_send(&w, 0, 100000);
    world_recv(&w);
    CHECK(bare_wait(p, recv, SCENE_LATE_MS) == TARN_E_NODE_DOWN);
    CHECK(bare_wait(p, send, SCENE_LATE_MS) == TARN_E_NODE_DOWN);
    return 0;
}

static int second_list_is_wrong(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    const struct tarn_tcpx_meta *meta = w.b.unpack->meta;
    pass_two(&w);
    if (strstr(getenv("TCPX_FIXTURE"), "bad_src")) {
        bool outside = false;
        for (uint64_t i = 0; i < meta->cnt[1]; i++)
            outside |= (uint64_t)meta->mem[1][i].src_off + meta->mem[1][i].len > 16384 * WORLD_PAGE;
        CHECK(outside);
    } else {
        CHECK(bare_place(&w.b, 1, w.target, 100000) == UINT64_MAX);
    }
    return 0;
}

static int passes_one(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *recv = world_recv(&w), *send = world_send(&w, 0, 1000);
    world_pass(&w, send, recv);
    return 0;
}

static void the_fixture_makes_the_requested_faults(void **state)
{
    static const struct {
        const char *options;
        int (*body)(struct tarn_tcpx_plugin *p);
        int send, recv;
        const char *ends;
    } faults[] = {
        {"delay_ms=30", second_is_late, 0, 0, NULL},
        {"send_error=2", second_ends_as_wanted, TARN_E_UNAVAILABLE, 0, NULL},
        {"recv_error=2", second_ends_as_wanted, 0, TARN_E_UNAVAILABLE, NULL},
        {"send_hang=2", second_ends_as_wanted, TARN_E_AGAIN, 0, NULL},
        {"recv_hang=2", second_ends_as_wanted, 0, TARN_E_AGAIN, NULL},
        {"drop_after=1", second_ends_as_wanted, 0, TARN_E_AGAIN, NULL},
        {"send_close=2", second_ends_as_wanted, TARN_E_NODE_DOWN, TARN_E_NODE_DOWN, NULL},
        {"recv_close=2", first_loses_receiver, 0, 0, NULL},
        {"bad_dst=2", second_list_is_wrong, 0, 0, NULL},
        {"bad_src=2", second_list_is_wrong, 0, 0, NULL},
        {"bad_sum=2", second_list_is_wrong, 0, 0, NULL},
        {"bad_count=2", second_list_is_wrong, 0, 0, NULL},
        {"send_exit=1", passes_one, 0, 0, "exit: send_exit"},
        {"recv_exit=1", passes_one, 0, 0, "exit: recv_exit"},
        {"recv_hnag=2", passes_one, 0, 0, "a name that is not known"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(faults); i++) {
        const struct scene s = {.plugin = "fixture-v7",
                                .options = faults[i].options,
                                .sockets = "2",
                                .body = faults[i].body,
                                .ends = faults[i].ends};
        wanted.send = faults[i].send;
        wanted.recv = faults[i].recv;
        scene_play(&s);
    }
}

/* --- all at once -------------------------------------------------------------------------------- */

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static int passes_random_messages(struct tarn_tcpx_plugin *p)
{
    const struct bare_load load = {.messages = number_from("TCPX_FIXTURE_MESSAGES", 40),
                                   .bytes = 8 << 20,
                                   .seed = number_from("TCPX_FIXTURE_SEED", tarn_random64()),
                                   .chunk = p->chunk_bytes,
                                   .window = 12};
    struct fixture_counters *c = scene_counters(p);
    struct bare_result result = {0};
    struct bare b;
    CHECK(bare_open(p, 0, &b) == 0);
    int rc = bare_run(&b, &load, &result);
    printf("random: %s: %llu messages in %llu requests, %.1f MB/s, seed %llu, %llu wrong\n", p->name,
           (unsigned long long)load.messages, (unsigned long long)result.requests,
           (double)result.bytes / result.seconds / 1e6, (unsigned long long)load.seed,
           (unsigned long long)result.wrong);
    CHECK(rc == 0);
    bare_close(&b);
    CHECK(result.wrong == 0 && result.requests >= load.messages);
    CHECK(c->bytes_received == result.bytes);
    CHECK(c->tokens_taken == c->tokens_returned && c->tokens_dropped == 0 && c->tokens_leaked == 0);
    CHECK((c->tokens_taken > 0) == (b.unpack != NULL));
    CHECK(c->comms == 0 && c->regs == 0 && c->listens == 0 && c->requests == 0 && c->refused == 0);
    return 0;
}

static void random_messages_arrive_and_all_pages_go_back(void **state)
{
    char path[] = "/tmp/tarn-tcpx-XXXXXX";
    static const struct scene scenes[] = {
        {.plugin = "fixture-v7", .sockets = "1", .body = passes_random_messages},
        {.plugin = "fixture-v7", .sockets = "4", .body = passes_random_messages},
        {.plugin = "fixture-v7",
         .sockets = "8",
         .options = "cut_min=300,seed=7",
         .body = passes_random_messages},
        {.plugin = "fixture-v7", .sockets = "4", .options = "plain=1", .body = passes_random_messages},
        {.plugin = "fixture-v7", .sockets = "4", .options = "gpu=1", .body = passes_random_messages},
        {.plugin = "fixture-v8", .sockets = "3", .body = passes_random_messages, .chunk = "100001"},
        {.plugin = "fixture-v6", .sockets = "4", .body = passes_random_messages},
        {.plugin = "fixture-v7",
         .sockets = "4",
         .options = "null_requests=3",
         .body = passes_random_messages},
        {.plugin = "fixture-v6",
         .sockets = "4",
         .options = "accept_blocks=1,connect_blocks=1,null_requests=2",
         .body = passes_random_messages},
    };
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (size_t i = 0; i < COUNT(scenes); i++) {
        struct scene s = scenes[i];
        s.counters = i == 0 ? path : NULL;
        scene_play(&s);
    }
    const struct fixture_counters *shared = mmap(NULL, sizeof(*shared), PROT_READ, MAP_SHARED, fd, 0);
    assert_true(shared != MAP_FAILED);
    assert_true(shared->tokens_taken > 0);
    assert_int_equal(shared->tokens_taken, shared->tokens_returned);
    assert_int_equal(shared->comms, 0);
    munmap((void *)shared, sizeof(*shared));
    close(fd);
    unlink(path);
}

static int passes_what_was_sent(struct tarn_tcpx_plugin *p)
{
    const struct bare_load load = {.messages = number_from("TCPX_FIXTURE_MESSAGES", 200),
                                   .bytes = 8 << 20,
                                   .seed = number_from("TCPX_FIXTURE_SEED", tarn_random64()),
                                   .chunk = p->chunk_bytes,
                                   .window = 6};
    struct bare_result result = {0};
    struct tarn_cuda_memory m;
    struct bare b;
    CHECK(bare_open(p, 0, &b) == 0);
    tarn_cuda_memory_of(b.device.handle, &m);
    if (m.kind == TARN_CUDA_DEVICE) {
        printf("random: %s: its bounce memory is a GPU's: left to the conformance suite\n", p->name);
        return 0;
    }
    int rc = bare_run(&b, &load, &result);
    printf("random: %s: %llu messages, %.1f MB/s, seed %llu, %llu wrong\n", p->name,
           (unsigned long long)load.messages, (double)result.bytes / result.seconds / 1e6,
           (unsigned long long)load.seed, (unsigned long long)result.wrong);
    CHECK(rc == 0 && result.wrong == 0 && result.requests >= load.messages);
    bare_close(&b);
    return 0;
}

/* Only the ABI of this plugin is known. */
static void random_messages_pass_the_given_plugin(void **state)
{
    const char *plugin = getenv("TARN_TCPX_PLUGIN");
    (void)state;
    if (!plugin || !strchr(plugin, '/'))
        harness_skip("tcpx-plugin", "TARN_TCPX_PLUGIN names no library");
    const struct scene s = {.plugin = plugin,
                            .options = getenv("TCPX_FIXTURE"),
                            .sockets = getenv("NCCL_NSOCKS_PERTHREAD"),
                            .chunk = getenv("NCCL_DYNAMIC_CHUNK_SIZE"),
                            .body = passes_what_was_sent};
    scene_play(&s);
}

static void *runs_a_comm(void *arg)
{
    const struct bare_load load = {
        .messages = 10, .bytes = 1 << 20, .seed = tarn_random64(), .chunk = TARN_TCPX_CHUNK, .window = 6};
    struct bare_result result = {0};
    struct bare b;
    CHECK(bare_open(arg, 0, &b) == 0);
    CHECK(bare_run(&b, &load, &result) == 0 && result.wrong == 0);
    bare_close(&b);
    return NULL;
}

static int runs_comms_side_by_side(struct tarn_tcpx_plugin *p)
{
    pthread_t threads[3];
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, runs_a_comm, p) == 0);
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(scene_counters(p)->tokens_taken == scene_counters(p)->tokens_returned);
    return 0;
}

static void comms_run_in_different_threads(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .sockets = "2", .body = runs_comms_side_by_side};
    (void)state;
    scene_play(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fixture_makes_the_requested_faults),
        cmocka_unit_test(random_messages_arrive_and_all_pages_go_back),
        cmocka_unit_test(comms_run_in_different_threads),
        cmocka_unit_test(random_messages_pass_the_given_plugin),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
