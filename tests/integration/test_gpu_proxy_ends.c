/* SPDX-License-Identifier: Apache-2.0 */
/* Proxies: nodes and links that fail, and how proxies, tables and clients end while kernels wait. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/proxy_scene.h"
#include "tests/standin/cuda_standin.h"

/* --- nodes that fail ---------------------------------------------------------------------------- */

static void commands_complete_out_of_order(void **state)
{
    struct scene *s = scene_need(state);
    enum { SLOW = 12 }; /* more than workers; each takes one, since they are for the GPU */
    const struct tarn_ring_command quick = get_of(1, 0, BYTES, s->host);
    struct tarn_ring_command slow;
    uint64_t paused[SLOW];
    scene_begin(s, "tcp");
    scene_put(s, 0, "paused", 'p', "node0");
    scene_put(s, 1, "runs", 'r', "node1");
    assert_int_equal(ask(s, &quick), 0);
    memset(s->host, 0, ROOM);
    harness_signal(s->w->nodes[0]->process, SIGSTOP);
    for (int i = 0; i < SLOW; i++) {
        slow = get_of(0, 0, BYTES, s->gpu + i * BYTES);
        paused[i] = push(s, &slow);
    }
    uint64_t end = push(s, &quiet);
    for (int i = 0; i < 30; i++)
        assert_int_equal(ask(s, &quick), 0);
    for (int i = 0; i < SLOW; i++)
        assert_true(is_under_way(s, paused[i]));
    assert_true(is_under_way(s, end));
    assert_int_equal(s->host[BYTES - 1], 'r');
    harness_signal(s->w->nodes[0]->process, SIGCONT);
    for (int i = 0; i < SLOW; i++)
        status_of(s, paused[i]); /* its node was silent, or it has answered after all */
    assert_int_equal(status_of(s, end), 0);
    HARNESS_UNTIL(ask(s, &slow) == 0, 8000);
    device_expect(s->device, s->gpu + (SLOW - 1) * BYTES, 'p', BYTES);
}

/* Gets the page until it is told to end. */
struct asking {
    struct tarn_ring ring;
    void *to;
    _Atomic bool end;
    _Atomic uint64_t good, bad;
    int rc;
    pthread_t thread;
};

static void *keep_asking(void *arg)
{
    struct asking *a = arg;
    const struct tarn_ring_command c = get_of(0, 0, BYTES, a->to);
    struct tarn_ring_producer p;
    uint64_t number;
    int status = 1, rc = tarn_dev_ring_open(&p, &a->ring);
    while (rc == 0 && !a->end) {
        rc = tarn_dev_ring_push(&p, &c, LONG_NS, &number);
        if (rc == 0)
            rc = tarn_dev_ring_wait(&p, number, LONG_NS, &status);
        *(status ? &a->bad : &a->good) += 1;
    }
    a->rc = rc;
    return NULL;
}

static void start_asking(struct scene *s, struct asking *a)
{
    *a = (struct asking){.ring = s->ring.ring, .to = s->host};
    assert_int_equal(pthread_create(&a->thread, NULL, keep_asking, a), 0);
    HARNESS_UNTIL(a->good > 0, 8000);
}

static void end_asking(struct asking *a)
{
    a->end = true;
    pthread_join(a->thread, NULL);
    assert_int_equal(a->rc, 0);
}

static void a_node_killed_under_a_kernel(void **state, const char *transports)
{
    struct scene *s = scene_need(state);
    struct asking a;
    scene_begin(s, transports);
    scene_put(s, 0, "k", 'k', "node0");
    start_asking(s, &a);
    harness_kill(s->w->nodes[0]->process);
    HARNESS_UNTIL(a.bad > 0, 8000);
    scene_put(s, 0, "k", 'n', "node1");
    uint64_t before = a.good;
    HARNESS_UNTIL(a.good > before + 10, 20000);
    end_asking(&a);
    assert_int_equal(s->host[0], 'n');
}

static void a_node_killed_under_a_kernel_over_shm(void **state)
{
    a_node_killed_under_a_kernel(state, NULL);
}

static void a_node_killed_under_a_kernel_over_tcp(void **state)
{
    a_node_killed_under_a_kernel(state, "tcp");
}

static void another_copy_serves_on(void **state)
{
    struct scene *s = scene_need(state);
    struct asking a;
    scene_begin(s, "tcp");
    assert_int_equal(client_put(s->client, "k", 'k', BYTES, &twice), 0);
    scene_name(s, 0, "k");
    start_asking(s, &a);
    harness_kill(s->w->nodes[0]->process);
    uint64_t before = a.good;
    HARNESS_UNTIL(a.good > before + 100, 8000);
    end_asking(&a);
    assert_int_equal(a.bad, 0);
}

/* Links that fail: gets that end with 0 have the right bytes, and all others can be asked for again. */
static void links_that_fail(void **state)
{
    struct scene *s = scene_need(state);
    static const char *faults[] = {"tcp:error=0.2,lose=0.1,refuse=0.1;seed=5",
                                   "shm:error=0.2,stale=0.3;cuda_ipc:error=0.2,stale=0.3;seed=6"};
    for (size_t i = 0; i < 2; i++) {
        scene_begin_faulty(s, i ? NULL : "tcp", faults[i], 0);
        scene_put(s, 0, "k", 'k', "node0");
        for (int n = 0; n < 60; n++) {
            uint8_t *to = n % 2 ? s->host : s->gpu;
            const struct tarn_ring_command c = get_of(0, 0, 5000, to);
            device_set(n % 2 ? NULL : s->device, to, 0, 5000);
            HARNESS_UNTIL(ask(s, &c) == 0, 20000);
            device_expect(n % 2 ? NULL : s->device, to, 'k', 5000);
        }
        scene_end(s);
    }
}

static void a_command_has_a_deadline(void **state)
{
    struct scene *s = scene_need(state);
    const struct tarn_ring_command c = get_of(0, 0, BYTES, s->host);
    scene_begin_faulty(s, "tcp", "tcp:drop=1", 300);
    scene_put(s, 0, "k", 'k', "node0");
    uint64_t begun = harness_now_ms();
    int status = ask(s, &c);
    assert_true(status == TARN_E_TIMEOUT ||
                status == TARN_E_NODE_DOWN); /* on a busy host the node seems silent */
    assert_true(harness_now_ms() - begun < 300 + 8000 * harness_slower());
}

/* A GPU that does not copy for a while. */
static void copies_that_fail(void **state)
{
    struct scene *s = scene_need(state);
    const struct tarn_ring_command c = get_of(0, 0, BYTES, s->gpu);
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in's copies fail on demand");
    scene_begin(s, NULL);
    scene_put(s, 0, "k", 'k', "node0");
    assert_int_equal(ask(s, &c), 0);
    tarn_standin_fail("copy:*");
    assert_int_not_equal(ask(s, &c), 0);
    assert_int_equal(ask(s, &quiet), 0);
    tarn_standin_fail(NULL);
    device_set(s->device, s->gpu, 0, BYTES);
    HARNESS_UNTIL(ask(s, &c) == 0, 8000);
    device_expect(s->device, s->gpu, 'k', BYTES);
}

/* --- ends --------------------------------------------------------------------------------------- */

/* A kernel that waits for what does not come. */
struct waiting {
    struct tarn_ring_producer p;
    struct tarn_ring_command c;
    _Atomic bool pushed;
    int rc;
    pthread_t thread;
};

static void wait_for_one(void *arg)
{
    struct waiting *k = arg;
    uint64_t number = 0;
    int status;
    k->rc = tarn_dev_ring_push(&k->p, &k->c, LONG_NS, &number);
    k->pushed = true;
    if (k->rc == 0)
        k->rc = tarn_dev_ring_wait(&k->p, number, LONG_NS, &status);
}

static void *play_waiting(void *arg)
{
    if (tarn_standin_play)
        tarn_standin_play(wait_for_one, arg);
    else
        wait_for_one(arg);
    return NULL;
}

/* Over a link on which no answer comes. */
static void start_waiting(struct scene *s, struct waiting *k)
{
    scene_begin_faulty(s, "tcp", "tcp:drop=1", 0);
    scene_put(s, 0, "k", 'k', "node0");
    *k = (struct waiting){.p = s->ring, .c = get_of(0, 0, BYTES, s->host)};
    assert_int_equal(pthread_create(&k->thread, NULL, play_waiting, k), 0);
    HARNESS_UNTIL(k->pushed, 8000);
}

static void an_abort_ends_a_kernels_wait(void **state)
{
    struct scene *s = scene_need(state);
    struct waiting k;
    uint64_t number;
    start_waiting(s, &k);
    uint64_t begun = harness_now_ms();
    tarn_proxy_abort(s->proxy);
    pthread_join(k.thread, NULL);
    assert_int_equal(k.rc, TARN_E_CANCELED);
    assert_true(harness_now_ms() - begun < 8000 * harness_slower());
    for (int i = 0; i < 64; i++) /* what comes then is not carried out */
        tarn_dev_ring_push(&k.p, &quiet, 0, &number);
    assert_int_equal(tarn_dev_ring_wait_all(&k.p, LONG_NS), TARN_E_CANCELED);
    tarn_proxy_abort(s->proxy);
    tarn_proxy_free(s->proxy);
}

/* Freeing a proxy or closing its client ends the kernel's wait, and waits for the kernel. */
static void wait_through_the_end(void **state, bool close)
{
    struct scene *s = scene_need(state);
    struct waiting k;
    if (!tarn_standin_play)
        harness_skip("standin", "a thread that plays a kernel is one that CUDA does not know");
    start_waiting(s, &k);
    if (close) {
        scene_end(s);
    } else {
        tarn_proxy_free(s->proxy);
    }
    pthread_join(k.thread, NULL);
    assert_int_equal(k.rc, TARN_E_CANCELED);
}

static void a_proxy_freed_under_a_kernel(void **state)
{
    wait_through_the_end(state, false);
}

static void a_client_closed_under_a_kernel(void **state)
{
    wait_through_the_end(state, true);
}

static void a_table_freed_under_a_kernel(void **state)
{
    struct scene *s = scene_need(state);
    struct asking a;
    scene_begin(s, NULL);
    scene_put(s, 0, "k", 'k', NULL);
    start_asking(s, &a);
    tarn_table_free(s->table);
    s->table = NULL;
    HARNESS_UNTIL(a.bad > 0, 8000);
    uint64_t before = a.good;
    HARNESS_UNTIL(a.bad > 100, 8000);
    assert_int_equal(a.good, before);
    a.end = true;
    pthread_join(a.thread, NULL);
    assert_int_equal(a.rc, 0);
}

static void a_table_freed_while_it_is_looked_at(void **state)
{
    struct scene *s = scene_need(state);
    for (int i = 0; i < 10; i++) {
        scene_begin(s, NULL);
        scene_put(s, 0, "k", 'k', NULL);
        for (int n = 0; n < 60; n++)
            push(s, &refresh);
        tarn_table_free(s->table);
        s->table = NULL;
        assert_int_equal(ask(s, &refresh), TARN_E_INVALID);
        assert_int_equal(tarn_dev_ring_wait_all(&s->ring, LONG_NS), 0);
        scene_end(s);
    }
}

/* What was made before the failure is given back: another proxy can be made. */
static void proxies_that_cannot_be_made(void **state)
{
    struct scene *s = scene_need(state);
    struct tarn_proxy *p;
    struct rlimit limit, few;
    s->client = world_client(s->w, NULL);
    struct tarn_proxy_options o = scene_options(s, 3, 16);
    o.size = sizeof(o);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    int next = dup(0);
    close(next);
    few = (struct rlimit){(rlim_t)next + 4, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    int rc = tarn_proxy_new(s->client, &o, &p);
    setrlimit(RLIMIT_NOFILE, &limit);
    assert_int_equal(rc, TARN_E_SYSTEM);
    assert_non_null(strstr(tarn_last_error(), "open files"));
    if (tarn_standin_fail) {
        tarn_standin_fail("pin:2");
        assert_int_equal(tarn_proxy_new(s->client, &o, &p), TARN_E_SYSTEM);
        tarn_standin_fail("alloc:1");
        assert_int_equal(tarn_proxy_new(s->client, &o, &p), TARN_E_SYSTEM);
        tarn_standin_fail(NULL);
    }
    scene_proxy(s, &o);
    assert_int_equal(ask(s, &quiet), 0);
}

static void proxies_end_with_their_client(void **state)
{
    struct scene *s = scene_need(state);
    s->client = world_client(s->w, NULL);
    for (int i = 0; i < 4; i++) {
        const struct tarn_proxy_options o = scene_options(s, 5, 16);
        scene_proxy(s, &o);
        tarn_proxy_free(i % 2 ? s->proxy : NULL);
    }
    tarn_proxy_abort(NULL);
}

#define WITH(start_, name_) \
    { \
#name_, name_, start_, scene_stop, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(scene_start_two, commands_complete_out_of_order),
        WITH(scene_start_two, a_node_killed_under_a_kernel_over_shm),
        WITH(scene_start_two, a_node_killed_under_a_kernel_over_tcp),
        WITH(scene_start_two, another_copy_serves_on),
        WITH(scene_start_two, links_that_fail),
        WITH(scene_start_two, copies_that_fail),
        WITH(scene_start_two, a_command_has_a_deadline),
        WITH(scene_start_two, an_abort_ends_a_kernels_wait),
        WITH(scene_start_two, a_proxy_freed_under_a_kernel),
        WITH(scene_start_two, a_client_closed_under_a_kernel),
        WITH(scene_start_two, a_table_freed_under_a_kernel),
        WITH(scene_start_two, a_table_freed_while_it_is_looked_at),
        WITH(scene_start, proxies_that_cannot_be_made),
        WITH(scene_start, proxies_end_with_their_client),
    };
    return cmocka_run_group_tests_name("proxy, ends", tests, NULL, NULL);
}
