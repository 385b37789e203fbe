/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/window_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <utlist.h>

#include "client/window/lender.h"
#include "tests/standin/cuda_standin.h"
#include "tests/tcpx/child.h"
#include "tests/transports.h"
#include "transport/cuda/cuda.h"

static void take_gpu_memory(struct window_pair *p)
{
    uint8_t handle[TARN_CUDA_HANDLE];
    assert_int_equal(tarn_cuda_alloc(0, WINDOW_ROOM, &p->lent, handle), 0);
    p->memory = tarn_standin_reach(0, p->lent, WINDOW_ROOM);
}

enum memory { PRIVATE, SHARED, GPU };

static int start_over(void **state, const char *transports, enum memory memory)
{
    static const struct world_plan plan = {.nodes = 0};
    struct window_pair *p = calloc(1, sizeof(*p));
    void *w;
    assert_int_equal(world_start(&w, &plan), 0);
    p->w = w;
    p->over = transports;
    p->lender = world_client(p->w, NULL);
    p->peer = world_client(p->w, transports);
    p->shared = memory == SHARED;
    if (memory == GPU)
        take_gpu_memory(p);
    else if (p->shared)
        assert_int_equal(tarn_window_alloc(WINDOW_ROOM, 0, (void **)&p->memory), 0);
    else
        p->memory = malloc(WINDOW_ROOM);
    if (!p->lent)
        p->lent = p->memory;
    p->own = malloc(WINDOW_ROOM);
    for (size_t i = 0; i < WINDOW_ROOM; i++) {
        p->memory[i] = (unsigned char)(i * 7 + i / 251);
        p->own[i] = (unsigned char)(i * 13 + 5);
    }
    assert_int_equal(tarn_window_new(p->lender, p->lent, WINDOW_ROOM, &p->window), 0);
    *state = p;
    return 0;
}

int window_start_tcp(void **state)
{
    return start_over(state, "tcp", PRIVATE);
}

/* With the plugin that is a fixture. */
int window_start_tcpx(void **state)
{
    child_configure("fixture-v7");
    return start_over(state, "tcpx", PRIVATE);
}

int window_start_shm(void **state)
{
    return start_over(state, "shm", SHARED);
}

int window_start_gpu(void **state)
{
    return start_over(state, "cuda_ipc", GPU);
}

int window_start_gpu_tcp(void **state)
{
    return start_over(state, "tcp", GPU);
}

int window_start_rdma(void **state)
{
    return start_over(state, "rdma", SHARED);
}

int window_stop(void **state)
{
    struct window_pair *p = *state;
    void *w = p->w;
    tarn_close(p->peer);
    tarn_close(p->lender);
    if (p->lent != p->memory)
        tarn_cuda_free(0, p->lent);
    else if (p->shared)
        tarn_window_free(p->memory);
    else
        free(p->memory);
    free(p->own);
    free(p);
    return world_stop(&w);
}

struct tarn_lease *window_lease(const struct window_pair *p, const struct tarn_run *runs, uint32_t n,
                                uint32_t flags)
{
    const struct tarn_lease_options o = {.size = sizeof(o), .flags = flags};
    struct tarn_lease *l;
    if (tarn_lease(p->window, runs, n, &o, &l))
        fail_msg("lease: %s", tarn_last_error());
    return l;
}

int window_try_reach(const struct window_pair *p, const struct tarn_lease *l, struct tarn_reach **r)
{
    char text[TARN_DESCRIPTOR_MAX];
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    return tarn_reach(p->peer, text, 0, r);
}

struct tarn_reach *window_reach(const struct window_pair *p, const struct tarn_lease *l)
{
    struct tarn_reach *r;
    if (window_try_reach(p, l, &r))
        fail_msg("reach: %s", tarn_last_error());
    return r;
}

int window_move(struct tarn_reach *r, bool write, void *addr, uint64_t bytes, uint64_t offset)
{
    const struct tarn_piece piece = {.addr = addr, .bytes = bytes};
    struct tarn_move m = {.pieces = &piece, .npieces = 1, .offset = offset};
    int rc = write ? tarn_write(r, &m, 1, NULL) : tarn_read(r, &m, 1, NULL);
    if (rc != TARN_E_INVALID && rc != TARN_E_AUTH)
        assert_int_equal(m.status, rc);
    if (getenv("WINDOW_TRACE") && rc)
        print_message("%s: %d %s\n", write ? "write" : "read", rc, tarn_last_error());
    return rc;
}

int window_tell(struct tarn_reach *r, struct tarn_move *m, size_t n, uint64_t tag, const char *data)
{
    const struct tarn_notify notify = {.tag = tag, .data = data, .bytes = (uint32_t)strlen(data)};
    const struct tarn_move_options o = {.size = sizeof(o), .notify = &notify};
    return tarn_write(r, m, n, &o);
}

static bool queue_is_full(const struct window_pair *p)
{
    struct tarn_lent *l = &p->window->lender->lent;
    pthread_mutex_lock(&l->lock);
    bool full = p->window->nnotices >= TARN_LENT_NOTICES;
    pthread_mutex_unlock(&l->lock);
    return full;
}

/* How many wait in the queue, and in rings behind it. */
static uint64_t seen(const struct window_pair *p)
{
    struct tarn_lent *l = &p->window->lender->lent;
    const struct tarn_lent_ring *r;
    struct tarn_notice got;
    pthread_mutex_lock(&l->lock);
    uint64_t n = p->window->nnotices;
    LL_FOREACH (l->rings, r)
        for (uint32_t k = 0; k < r->places && tarn_notices_peek(r->ring, r->places, r->at + k, &got); k++)
            n++;
    pthread_mutex_unlock(&l->lock);
    return n;
}

uint64_t window_fill(const struct window_pair *p, struct tarn_reach *r)
{
    uint64_t until = harness_now_ms() + 30000;
    for (uint64_t sent = 0;;) {
        bool full = queue_is_full(p);
        int rc = window_tell(r, NULL, 0, sent, "abc");
        assert_true(rc == 0 || rc == TARN_E_AGAIN);
        if (rc && full) {
            HARNESS_UNTIL(seen(p) >= sent, 10000);
            return sent;
        }
        sent += rc == 0;
        assert_true(sent < 100000 && harness_now_ms() < until);
    }
}

static void skipped(void **state)
{
    (void)state;
    find_transport("rdma")->probe();
    harness_skip("rdma", tarn_last_error());
}

static int run(const char *name, const struct CMUnitTest *tests, size_t n)
{
    return _cmocka_run_group_tests(name, tests, n, NULL, NULL);
}

int window_run(int argc, char **argv, const struct CMUnitTest *here, size_t nhere,
               const struct CMUnitTest *gpu, size_t ngpu, const struct CMUnitTest *rdma, size_t nrdma)
{
    const struct CMUnitTest no_rdma[] = {cmocka_unit_test(skipped)};
    int failed = argc > 1 && !strcmp(argv[1], "rdma") ? 0 : run("here", here, nhere);
    if (tarn_standin_reach && argc == 1)
        failed += run("gpu", gpu, ngpu);
    return failed + (find_transport("rdma")->probe() ? run("no rdma", no_rdma, 1) : run("rdma", rdma, nrdma));
}
