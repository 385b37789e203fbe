/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fixture plugin behaves as the TCPX plugin was observed to behave (docs/tcpx.md): each rule and each
 * trap, through the loader's calls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <dlfcn.h>

#include "base/clock.h"
#include "tests/tcpx/scene.h"

#define COUNT(a_) (sizeof(a_) / sizeof *(a_))

enum { POISON = 0xdb, LEAK_PAGES = 1000 };

/* --- start and connections ---------------------------------------------------------------------- */

static int inits_twice(struct tarn_tcpx_plugin *p)
{
    CHECK(p->calls.init(tarn_tcpx_log_line) == TARN_TCPX_INTERNAL_ERROR);
    CHECK(scene_was_said("gpu lib init twice"));
    return 0;
}

static void a_second_init_fails(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .body = inits_twice};
    (void)state;
    scene_play(&s);
}

static int inits_without_logger(struct tarn_tcpx_plugin *p)
{
    return p->calls.init(NULL);
}

static void init_without_a_logger_crashes(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .body = inits_without_logger, .ends = "crash: init"};
    (void)state;
    scene_play(&s);
}

static int connects_slowly(struct tarn_tcpx_plugin *p)
{
    uint8_t handle[TARN_TCPX_HANDLE], before[TARN_TCPX_HANDLE];
    struct tarn_tcpx_device_handle device = {0};
    void *listening, *send, *recv;
    CHECK(tarn_tcpx_listen(p, 0, handle, &listening) == 0);
    memcpy(before, handle, sizeof(handle));
    uint64_t start = tarn_now_ns();
    CHECK(tarn_tcpx_connect(p, 0, handle, &send) == 0 && !send);
    CHECK(memcmp(before, handle, sizeof(handle)) != 0); /* now has the state pointer */
    CHECK(tarn_tcpx_accept(p, listening, &device, &recv) == 0 && !recv);
    while (!send)
        CHECK(tarn_tcpx_connect(p, 0, handle, &send) == 0);
    while (!recv)
        CHECK(tarn_tcpx_accept(p, listening, &device, &recv) == 0);
    CHECK(tarn_now_ns() - start >= 30 * TARN_NS_PER_MS);
    CHECK(device.device_type == TARN_TCPX_DEVICE_UNPACK && device.device_version == 7 && device.size == 24);
    CHECK(device.handle);

    /* Only one accept per listen. */
    struct tarn_tcpx_device_handle *at = &device;
    CHECK(p->calls.accept.v7(listening, &recv, &at) == 12334);
    CHECK(tarn_tcpx_accept(p, listening, &device, &recv) == TARN_E_UNAVAILABLE);
    CHECK(strstr(tarn_last_error(), "accept gave 12334"));
    return 0;
}

static void connections_take_several_calls_and_one_accept(void **state)
{
    const struct scene s = {"fixture-v7", "setup_ms=30", "4", connects_slowly, NULL, NULL, NULL};
    (void)state;
    scene_play(&s);
}

static int accepts_without_device(struct tarn_tcpx_plugin *p)
{
    uint8_t handle[TARN_TCPX_HANDLE], memory[64];
    struct tarn_tcpx_device_handle *none = NULL;
    void *listening, *send = NULL, *recv = NULL, *mr, *r;
    CHECK(tarn_tcpx_listen(p, 0, handle, &listening) == 0);
    while (!send || !recv) {
        if (!send)
            CHECK(tarn_tcpx_connect(p, 0, handle, &send) == 0);
        CHECK(p->calls.accept.v7(listening, &recv, &none) == 0);
    }
    CHECK(tarn_tcpx_reg(p, recv, memory, sizeof(memory), TARN_TCPX_HOST, &mr) == 0);
    fprintf(stderr, "accepted\n");
    return tarn_tcpx_irecv(p, recv, memory, 1, mr, &r);
}

static void a_comm_without_device_handle_crashes_at_a_receive(void **state)
{
    const struct scene s = {.plugin = "fixture-v7",
                            .body = accepts_without_device,
                            .ends = "accepted\ntcpx fixture: crash: a receive"};
    (void)state;
    scene_play(&s);
}

static int closes_while_accepting(struct tarn_tcpx_plugin *p)
{
    uint8_t handle[TARN_TCPX_HANDLE];
    struct tarn_tcpx_device_handle device;
    void *listening, *recv;
    CHECK(tarn_tcpx_listen(p, 0, handle, &listening) == 0);
    CHECK(tarn_tcpx_close_listen(p, listening) == 0);
    CHECK(tarn_tcpx_listen(p, 0, handle, &listening) == 0);
    CHECK(tarn_tcpx_accept(p, listening, &device, &recv) == 0);
    return tarn_tcpx_close_listen(p, listening);
}

static void closing_a_listener_that_accepts_crashes(void **state)
{
    const struct scene s = {
        .plugin = "fixture-v7", .body = closes_while_accepting, .ends = "crash: closeListen"};
    (void)state;
    scene_play(&s);
}

static int connects_without_a_listener(struct tarn_tcpx_plugin *p)
{
    uint8_t handle[TARN_TCPX_HANDLE];
    void *listening, *send;
    int rc = 0;
    CHECK(tarn_tcpx_listen(p, 0, handle, &listening) == 0);
    CHECK(tarn_tcpx_close_listen(p, listening) == 0);
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = tarn_tcpx_connect(p, 0, handle, &send);
    CHECK(rc == TARN_E_NODE_DOWN && strstr(tarn_last_error(), "connect gave 2"));
    return 0;
}

static void connecting_without_a_listener_fails(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .body = connects_without_a_listener};
    (void)state;
    scene_play(&s);
}

/* --- memory ------------------------------------------------------------------------------------- */

static int registers(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *mr;
    CHECK(tarn_tcpx_reg(p, w.b.send, w.source + 2048, WORLD_PAGE, TARN_TCPX_CUDA, &mr) == TARN_E_INVALID);
    CHECK(strstr(tarn_last_error(), "no multiple of 4096") && !scene_was_said("not aligned"));
    if (p->version == 7)
        CHECK(p->calls.reg_mr.v6(w.b.send, w.source + 2048, WORLD_PAGE, TARN_TCPX_CUDA, &mr) == 3 &&
              scene_was_said("not aligned"));
    CHECK(tarn_tcpx_reg(p, w.b.send, w.source + 2048, WORLD_PAGE, TARN_TCPX_HOST, &mr) == 0);
    CHECK(tarn_tcpx_dereg(p, w.b.send, mr) == 0);
    CHECK(p->version == 8 || p->calls.reg_mr.v6(w.b.send, w.source, -1, TARN_TCPX_HOST, &mr) == 3);
    CHECK(!p->calls.reg_mr_dmabuf);
    world_end(&w);
    return 0;
}

static void gpu_memory_is_aligned(void **state)
{
    const struct scene v7 = {.plugin = "fixture-v7", .body = registers};
    const struct scene v8 = {.plugin = "fixture-v8", .body = registers};
    (void)state;
    scene_play(&v7);
    scene_play(&v8);
}

static int registers_no_more(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p); /* has three pieces of memory */
    void *mr;
    CHECK(tarn_tcpx_reg(p, w.b.send, w.source, WORLD_PAGE, TARN_TCPX_CUDA, &mr) == TARN_E_UNAVAILABLE);
    CHECK(strstr(tarn_last_error(), "regMr gave 3") && strstr(tarn_last_error(), "DMA buffer") &&
          strstr(tarn_last_error(), "RxDM"));
    CHECK(tarn_tcpx_reg(p, w.b.send, w.source, WORLD_PAGE, TARN_TCPX_CUDA, &mr) == 0);
    return 0;
}

static void gpu_memory_without_dma_buffers_has_its_own_error(void **state)
{
    const struct scene s = {"fixture-v7", "reg_error=4", NULL, registers_no_more, NULL, NULL, NULL};
    (void)state;
    scene_play(&s);
}

static int accepts_without_rxdm(struct tarn_tcpx_plugin *p)
{
    struct bare b;
    CHECK(bare_open(p, 0, &b) == TARN_E_UNAVAILABLE);
    CHECK(strstr(tarn_last_error(), "accept gave 3") && strstr(tarn_last_error(), "RxDM"));
    return 0;
}

static void accepting_without_rxdm_fails(void **state)
{
    const struct scene s = {"fixture-v7", "accept_error=3", NULL, accepts_without_rxdm, NULL, NULL, NULL};
    (void)state;
    scene_play(&s);
}

static int receives_zeros(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    for (int i = 0; i < 3; i++) {
        void *recv = world_recv(&w), *send = world_send(&w, 3, 20000);
        world_pass(&w, send, recv);
        if (i != 1) {
            world_check(&w, (uint64_t)i, 3, 20000);
            continue;
        }
        CHECK(bare_place(&w.b, 1, w.target, 20000) == 20000);
        for (int k = 0; k < 20000; k++)
            CHECK(w.target[k] == 0);
    }
    return 0;
}

static void bytes_can_be_wrong(void **state)
{
    const struct scene s = {"fixture-v7", "bad_bytes=2", "4", receives_zeros, NULL, NULL, NULL};
    (void)state;
    scene_play(&s);
}

static int makes_a_world(struct tarn_tcpx_plugin *p)
{
    world_new(p);
    return 0;
}

static void gpu_memory_needs_a_pci_path(void **state)
{
    const struct scene s = {"fixture-v7", "pci=0", NULL, makes_a_world, "crash: GPU memory", NULL, NULL};
    (void)state;
    scene_play(&s);
}

static int sends_from_outside(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *r, *got = world_recv(&w);
    CHECK(tarn_tcpx_isend(p, w.b.send, w.source + WORLD_SOURCE - 10, 11, w.source_mr, &r) == 0);
    CHECK(bare_wait(p, r, SCENE_NEVER_MS) == TARN_E_AGAIN && scene_was_said("helper thread"));
    CHECK(bare_wait(p, got, SCENE_NEVER_MS) == TARN_E_AGAIN);
    return 0;
}

static void sending_unregistered_memory_never_ends(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .body = sends_from_outside};
    (void)state;
    scene_play(&s);
}

/* --- requests ----------------------------------------------------------------------------------- */

static int posts_seventeen(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *sends[TARN_TCPX_REQUESTS], *recvs[TARN_TCPX_REQUESTS], *more;
    for (int i = 0; i < TARN_TCPX_REQUESTS; i++) {
        recvs[i] = world_recv(&w);
        sends[i] = world_send(&w, 0, 100);
    }
    CHECK(tarn_tcpx_isend(p, w.b.send, w.source, 1, w.source_mr, &more) == TARN_E_UNAVAILABLE);
    CHECK(strstr(tarn_last_error(), "isend gave 3"));
    CHECK(tarn_tcpx_irecv(p, w.b.recv, w.dummy, 1, w.dummy_mr, &more) == TARN_E_UNAVAILABLE);
    CHECK(strstr(tarn_last_error(), "irecv gave 3"));
    for (int i = 0; i < TARN_TCPX_REQUESTS; i++)
        world_pass(&w, sends[i], recvs[i]);

    /* A send request ends when it is done. A receive request ends only when it is reported as consumed. */
    world_send(&w, 0, 1);
    CHECK(tarn_tcpx_irecv(p, w.b.recv, w.dummy, 1, w.dummy_mr, &more) == TARN_E_UNAVAILABLE);
    CHECK(tarn_tcpx_consumed(p, w.b.recv, recvs[0]) == 0);
    CHECK(tarn_tcpx_irecv(p, w.b.recv, w.dummy, 1, w.dummy_mr, &more) == 0);
    CHECK(scene_counters(p)->refused == 3);
    return 0;
}

static void the_seventeenth_request_fails(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .body = posts_seventeen};
    (void)state;
    scene_play(&s);
}

static int receives_more_than_posted(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    memset(w.dummy, 0x77, WORLD_PAGE);
    void *recv = world_recv(&w), *send = world_send(&w, 3, 500000), *request[2] = {send, recv};
    bool ended[2] = {false, false};
    while (!ended[0] || !ended[1])
        for (int i = 0; i < 2; i++) {
            int done = 0, size = 0x5a5a;
            if (ended[i])
                continue;
            CHECK(p->calls.test(request[i], &done, &size) == 0);
            CHECK(size == 0x5a5a); /* the size is not reported */
            ended[i] = done;
        }
    world_check(&w, 0, 3, 500000);
    for (int i = 0; i < WORLD_PAGE; i++)
        CHECK(w.dummy[i] == 0x77);
    CHECK(tarn_tcpx_consumed(p, w.b.recv, recv) == 0);
    world_end(&w);
    return 0;
}

static void the_posted_size_is_no_limit_and_no_size_is_reported(void **state)
{
    const struct scene v7 = {.plugin = "fixture-v7", .body = receives_more_than_posted};
    const struct scene v8 = {.plugin = "fixture-v8", .sockets = "8", .body = receives_more_than_posted};
    (void)state;
    scene_play(&v7);
    scene_play(&v8);
}

static int tests_out_of_order(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *recv[2] = {world_recv(&w), world_recv(&w)};
    void *send[2] = {world_send(&w, 0, 10), world_send(&w, 10, 10)};
    CHECK(tarn_tcpx_test(p, recv[1]) == TARN_E_UNAVAILABLE && strstr(tarn_last_error(), "test gave 3"));
    CHECK(tarn_tcpx_test(p, send[1]) == TARN_E_UNAVAILABLE && scene_was_said("invalid request"));
    CHECK(tarn_tcpx_consumed(p, w.b.recv, recv[0]) == TARN_E_UNAVAILABLE);
    world_pass(&w, send[0], recv[0]);
    CHECK(tarn_tcpx_test(p, recv[0]) == TARN_E_UNAVAILABLE); /* already done */
    world_pass(&w, send[1], recv[1]);
    CHECK(tarn_tcpx_consumed(p, w.b.recv, recv[1]) == TARN_E_UNAVAILABLE);
    CHECK(strstr(tarn_last_error(), "irecvConsumed gave 3"));
    CHECK(tarn_tcpx_consumed(p, w.b.recv, recv[0]) == 0);
    CHECK(tarn_tcpx_consumed(p, w.b.recv, recv[0]) == TARN_E_UNAVAILABLE);
    CHECK(tarn_tcpx_consumed(p, w.b.recv, recv[1]) == 0);
    world_end(&w);
    return 0;
}

static void requests_end_in_their_order(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .body = tests_out_of_order};
    (void)state;
    scene_play(&s);
}

static int flushes(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *data = w.dummy, *r;
    int size = 1;
    return p->calls.iflush(w.b.recv, 1, &data, &size, &w.dummy_mr, &r);
}

static void iflush_crashes(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .body = flushes, .ends = "crash: iflush"};
    (void)state;
    scene_play(&s);
}

static int uses_slots(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    for (uint32_t k = 0; k < 40; k++) {
        uint32_t bytes = k % 3 ? k * 1000 : 0;
        void *recv = world_recv(&w), *send = world_send(&w, k, bytes);
        world_pass(&w, send, recv);
        CHECK((w.b.unpack->meta->cnt[k % TARN_TCPX_SLOTS] == 0) == (bytes == 0));
        world_check(&w, k, k, bytes);
        CHECK(tarn_tcpx_consumed(p, w.b.recv, recv) == 0);
        CHECK(w.b.unpack->meta->cnt[k % TARN_TCPX_SLOTS] >
              TARN_TCPX_FRAGMENTS); /* so a second read is noticed */
    }
    world_end(&w);
    return 0;
}

static void every_receive_has_its_slot_even_an_empty_one(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .sockets = "4", .body = uses_slots};
    (void)state;
    scene_play(&s);
}

static int returns_pages(struct tarn_tcpx_plugin *p)
{
    static union tarn_tcpx_load list[TARN_TCPX_FRAGMENTS];
    struct world w = world_new(p);
    struct fixture_counters *c = scene_counters(p);
    void *recv = world_recv(&w), *send = world_send(&w, 0, 300000);
    world_pass(&w, send, recv);
    uint64_t n = w.b.unpack->meta->cnt[0];
    CHECK(n > 1 && n <= TARN_TCPX_FRAGMENTS && c->tokens_taken == n && c->tokens_returned == 0);
    memcpy(list, w.b.unpack->meta->mem[0], n * sizeof(list[0]));
    CHECK(tarn_tcpx_consumed(p, w.b.recv, recv) == 0);
    CHECK(c->tokens_returned == n);
    for (uint64_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < list[i].len; j++)
            CHECK(((uint8_t *)w.b.unpack->bounce)[list[i].src_off + j] == POISON);

    /* Requests that were not consumed end with the comm. */
    recv = world_recv(&w);
    send = world_send(&w, 0, 300000);
    world_pass(&w, send, recv);
    CHECK(c->requests == 1);
    world_end(&w);
    CHECK(c->tokens_dropped > 0 && c->tokens_taken == c->tokens_returned + c->tokens_dropped);
    CHECK(c->comms == 0 && c->regs == 0 && c->listens == 0 && c->requests == 0);
    CHECK(c->sends == 2 && c->receives == 2 && c->bytes_sent == 600000 && c->bytes_received == 600000);
    return 0;
}

static void pages_go_back_poisoned_and_are_counted(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .sockets = "4", .body = returns_pages};
    (void)state;
    scene_play(&s);
}

static int looks_at_lists(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    bool out_of_order = false, unaligned = false;
    for (uint32_t k = 0; k < 8; k++) {
        void *recv = world_recv(&w), *send = world_send(&w, 0, 500000);
        world_pass(&w, send, recv);
        const struct tarn_tcpx_meta *meta = w.b.unpack->meta;
        for (uint64_t i = 1; i < meta->cnt[k]; i++) {
            out_of_order |= meta->mem[k][i].dst_off < meta->mem[k][i - 1].dst_off;
            unaligned |= (meta->mem[k][i].dst_off | meta->mem[k][i].src_off) & 1;
        }
        world_check(&w, k, 0, 500000);
        CHECK(tarn_tcpx_consumed(p, w.b.recv, recv) == 0);
    }
    CHECK(out_of_order && unaligned);
    world_end(&w);
    return 0;
}

static void lists_are_in_no_order_and_unaligned(void **state)
{
    const struct scene one = {.plugin = "fixture-v7", .body = looks_at_lists};
    const struct scene four = {.plugin = "fixture-v7", .sockets = "4", .body = looks_at_lists};
    (void)state;
    scene_play(&one);
    scene_play(&four);
}

/* --- the end of a peer, and errors that are not reported ---------------------------------------- */

static int loses_the_sender(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *recv[10], *send[10];
    for (int i = 0; i < 10; i++) {
        recv[i] = world_recv(&w);
        send[i] = world_send(&w, 0, 4096);
    }
    for (int i = 0; i < 10; i++)
        CHECK(bare_wait(p, send[i], SCENE_LATE_MS) == 0); /* all are done */
    CHECK(tarn_tcpx_close_send(p, w.b.send) == 0);
    int rc = 0, arrived = 0;
    while (arrived < 10 && (rc = bare_wait(p, recv[arrived], SCENE_LATE_MS)) == 0)
        arrived++;
    CHECK(rc == TARN_E_NODE_DOWN && strstr(tarn_last_error(), "test gave 2"));
    CHECK(scene_was_said("Connection closed by remote peer"));
    return 0;
}

static void a_done_send_may_not_be_delivered(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .sockets = "4", .body = loses_the_sender};
    (void)state;
    scene_play(&s);
}

static int loses_the_receiver(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *send[TARN_TCPX_REQUESTS];
    for (int i = 0; i < TARN_TCPX_REQUESTS; i++)
        send[i] = world_send(&w, 0, TARN_TCPX_CHUNK);
    CHECK(tarn_tcpx_close_recv(p, w.b.recv) == 0);
    int rc = 0;
    for (int i = 0; i < TARN_TCPX_REQUESTS && rc == 0; i++)
        rc = bare_wait(p, send[i], SCENE_LATE_MS);
    CHECK(rc == TARN_E_NODE_DOWN && strstr(tarn_last_error(), "test gave 2"));
    return 0;
}

static void a_send_to_a_closed_receiver_fails(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .sockets = "4", .body = loses_the_receiver};
    (void)state;
    scene_play(&s);
}

static int breaks_a_socket(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *recv[2] = {world_recv(&w), world_recv(&w)};
    void *send[2] = {world_send(&w, 0, 300000), NULL};
    world_pass(&w, send[0], recv[0]);
    send[1] = world_send(&w, 0, 300000);
    CHECK(bare_wait(p, send[1], SCENE_NEVER_MS) == TARN_E_AGAIN);
    CHECK(bare_wait(p, recv[1], SCENE_NEVER_MS) == TARN_E_AGAIN);
    CHECK(scene_was_said("helper thread: send") && scene_was_said("helper thread: receive"));
    return 0;
}

static void an_error_of_a_helper_is_only_logged(void **state)
{
    const struct scene s = {.plugin = "fixture-v7", .options = "helper_error=2", .body = breaks_a_socket};
    (void)state;
    scene_play(&s);
}

/* --- chunks and fragments ----------------------------------------------------------------------- */

/* Calls the plugin directly, because the loader refuses this. */
static int sends_in_chunks_of_nothing(void *arg)
{
    void *handle = dlopen(child_plugin("fixture-v7"), RTLD_NOW | RTLD_LOCAL);
    CHECK(handle);
    const struct tarn_tcpx_table *v7 = dlsym(handle, TARN_TCPX_SYMBOL_V7);
    CHECK(v7);
    static struct tarn_tcpx_plugin p;
    p = (struct tarn_tcpx_plugin){
        .version = 7, .calls = *v7, .ndevices = 1, .devices = {{.mode = TARN_TCPX_UNPACK}}};
    scene_setenv("NCCL_DYNAMIC_CHUNK_SIZE", arg);
    CHECK(v7->init(tarn_tcpx_log_line) == 0);
    struct world w = world_new(&p);
    void *empty = world_recv(&w), *recv = world_recv(&w);
    world_pass(&w, world_send(&w, 0, 0), empty);
    CHECK(bare_wait(&p, world_send(&w, 0, 1), SCENE_NEVER_MS) == TARN_E_AGAIN);
    CHECK(bare_wait(&p, recv, SCENE_NEVER_MS) == TARN_E_AGAIN);
    return 0;
}

static void without_a_chunk_size_nothing_moves(void **state)
{
    char out[4096];
    (void)state;
    if (child_run(sends_in_chunks_of_nothing, NULL, 60, out, sizeof(out)))
        fail_msg("not set: %s", out);
    if (child_run(sends_in_chunks_of_nothing, "0", 60, out, sizeof(out)))
        fail_msg("0: %s", out);
}

static int sends_above_the_chunk(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    struct fixture_counters *c = scene_counters(p);
    uint64_t k = 0;
    for (; k < 20; k++) {
        void *recv = world_recv(&w), *send = world_send(&w, 0, 65536);
        world_pass(&w, send, recv);
        CHECK(tarn_tcpx_consumed(p, w.b.recv, recv) == 0);
    }
    CHECK(c->tokens_leaked == 0 && c->tokens_taken == c->tokens_returned);
    for (bool drained = false; !drained; k++) {
        void *recv = world_recv(&w), *send = world_send(&w, 0, 200000);
        uint64_t late = tarn_deadline(SCENE_LATE_MS);
        int rc = TARN_E_AGAIN;
        for (bool sent = false; rc == TARN_E_AGAIN && !drained;) {
            sent = sent || tarn_tcpx_test(p, send) == 0;
            rc = tarn_tcpx_test(p, recv);
            drained = rc == TARN_E_AGAIN && c->tokens_taken - c->tokens_returned == LEAK_PAGES;
            CHECK(tarn_now_ns() < late);
        }
        CHECK(drained ? bare_wait(p, recv, SCENE_NEVER_MS) == TARN_E_AGAIN
                      : rc == 0 && tarn_tcpx_consumed(p, w.b.recv, recv) == 0);
    }
    CHECK(c->tokens_leaked > 0 && k > 21); /* the first messages succeed */
    return 0;
}

static void messages_above_the_chunk_leak_pages(void **state)
{
    const struct scene s = {.plugin = "fixture-v7",
                            .options = "pages=1000",
                            .sockets = "4",
                            .body = sends_above_the_chunk,
                            .chunk = "65536"};
    (void)state;
    scene_play(&s);
}

static int sends_one_chunk(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *recv = world_recv(&w), *send = world_send(&w, 0, TARN_TCPX_CHUNK);
    world_pass(&w, send, recv);
    return 0;
}

static void more_than_2048_fragments_end_the_process(void **state)
{
    const struct scene s = {
        "fixture-v7", "cut_max=200", NULL, sends_one_chunk, "exit: more than 2048 fragments", NULL, NULL};
    (void)state;
    scene_play(&s);
}

/* --- without unpacking -------------------------------------------------------------------------- */

static int receives_into_host_memory(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    for (uint32_t k = 0; k < 40; k++) {
        void *recv, *send = world_send(&w, k, k * 5000);
        CHECK(tarn_tcpx_irecv(p, w.b.recv, w.target, 1, w.target_mr, &recv) == 0);
        world_pass(&w, send, recv);
        CHECK(memcmp(w.target, w.source + k, k * 5000) == 0);
        CHECK(tarn_tcpx_consumed(p, w.b.recv, recv) == 0);
        CHECK(!w.b.unpack || w.b.unpack->meta->cnt[k % TARN_TCPX_SLOTS] != 1);
    }
    CHECK(scene_was_said("into host memory") == (p->version != 6));
    CHECK(scene_counters(p)->tokens_taken == 0);
    world_end(&w);
    return 0;
}

static void host_memory_is_filled_by_the_plugin(void **state)
{
    static const struct scene scenes[] = {
        {.plugin = "fixture-v6", .sockets = "4", .body = receives_into_host_memory},
        {.plugin = "fixture-v7", .sockets = "4", .body = receives_into_host_memory},
        {.plugin = "fixture-v7", .options = "plain=1", .sockets = "4", .body = receives_into_host_memory},
        {.plugin = "fixture-v8", .options = "plain=1", .body = receives_into_host_memory},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(scenes); i++)
        scene_play(&scenes[i]);
}

/* --- GPU memory --------------------------------------------------------------------------------- */

static int passes_over_gpu(struct tarn_tcpx_plugin *p)
{
    struct world w = world_new(p);
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *mr, *send;
    CHECK(driver);
    int (*alloc)(void **, size_t) = (int (*)(void **, size_t))dlsym(driver, "cuMemAlloc_v2");
    void *memory;
    CHECK(alloc && alloc(&memory, WORLD_SOURCE) == 0);
    memcpy(memory, w.source, WORLD_SOURCE);
    CHECK(tarn_tcpx_reg(p, w.b.send, memory, WORLD_SOURCE, TARN_TCPX_CUDA, &mr) == 0);
    for (uint32_t k = 0; k < 20; k++) {
        void *recv = world_recv(&w);
        CHECK(tarn_tcpx_isend(p, w.b.send, (uint8_t *)memory + k, k * 20000, mr, &send) == 0);
        world_pass(&w, send, recv);
        world_check(&w, k, k, k * 20000);
        CHECK(tarn_tcpx_consumed(p, w.b.recv, recv) == 0);
    }
    CHECK(tarn_tcpx_dereg(p, w.b.send, mr) == 0);
    world_end(&w);
    return 0;
}

/* With a driver that plays a GPU: sockets are not read into the bounce memory itself. */
static void gpu_memory_goes_through_the_driver(void **state)
{
    const struct scene send = {
        .plugin = "fixture-v7", .options = "gpu=1", .sockets = "4", .body = passes_over_gpu};
    const struct scene pages = {
        .plugin = "fixture-v7", .options = "gpu=1", .sockets = "4", .body = returns_pages};
    (void)state;
    scene_play(&send);
    scene_play(&pages);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_init_fails),
        cmocka_unit_test(init_without_a_logger_crashes),
        cmocka_unit_test(connections_take_several_calls_and_one_accept),
        cmocka_unit_test(a_comm_without_device_handle_crashes_at_a_receive),
        cmocka_unit_test(closing_a_listener_that_accepts_crashes),
        cmocka_unit_test(connecting_without_a_listener_fails),
        cmocka_unit_test(gpu_memory_is_aligned),
        cmocka_unit_test(gpu_memory_without_dma_buffers_has_its_own_error),
        cmocka_unit_test(accepting_without_rxdm_fails),
        cmocka_unit_test(bytes_can_be_wrong),
        cmocka_unit_test(gpu_memory_needs_a_pci_path),
        cmocka_unit_test(sending_unregistered_memory_never_ends),
        cmocka_unit_test(the_seventeenth_request_fails),
        cmocka_unit_test(the_posted_size_is_no_limit_and_no_size_is_reported),
        cmocka_unit_test(requests_end_in_their_order),
        cmocka_unit_test(iflush_crashes),
        cmocka_unit_test(every_receive_has_its_slot_even_an_empty_one),
        cmocka_unit_test(pages_go_back_poisoned_and_are_counted),
        cmocka_unit_test(lists_are_in_no_order_and_unaligned),
        cmocka_unit_test(a_done_send_may_not_be_delivered),
        cmocka_unit_test(a_send_to_a_closed_receiver_fails),
        cmocka_unit_test(an_error_of_a_helper_is_only_logged),
        cmocka_unit_test(without_a_chunk_size_nothing_moves),
        cmocka_unit_test(messages_above_the_chunk_leak_pages),
        cmocka_unit_test(more_than_2048_fragments_end_the_process),
        cmocka_unit_test(host_memory_is_filled_by_the_plugin),
        cmocka_unit_test(gpu_memory_goes_through_the_driver),

    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
