/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process of a proxy is stopped or killed while its kernel waits. A child process has client, table,
 * proxy and kernel. The parent stops it first, then lets the kernel ask through memory that the three share:
 * on a GPU the kernel goes on alone. The stand-in's kernel stands still with its process, so there it asks
 * later.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <tarn/proxy.h>

#include "base/clock.h"
#include "tests/device.h"
#include "tests/ring_ask.h"
#include "tests/standin/cuda_standin.h"
#include "tests/stream.h"
#include "tests/world.h"

enum { BYTES = 65536, SHARED = 4096, START_MS = 60000, LATER_MS = 20000 };
#define STOP_S 3
#define WAIT_NS TARN_NS_PER_S /* of the kernel whose process is stopped */
#define KILL_NS (30 * TARN_NS_PER_S)

static const struct world_plan plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=16M", "--pool", "gpu0:device=0,bytes=16M"}};

/* --- the child ---------------------------------------------------------------------------------- */

/* Its arguments. */
static struct {
    const char *self, *redis, *shared;
    uint64_t timeout_ns;
} args;

struct asker {
    struct tarn_client *client;
    struct device *device;
    struct tarn_proxy *proxy;
    struct stream *stream;
    struct ring_asked *first, *later; /* asked by the parent's leave; at once */
    uint8_t *to;
};

static void *map_shared(void)
{
    FILE *f = fopen(args.shared, "r+");
    assert_non_null(f);
    void *p = mmap(NULL, SHARED, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
    fclose(f);
    assert_ptr_not_equal(p, MAP_FAILED);
    assert_int_equal(tarn_cuda_pin(p, SHARED, true), 0);
    return p;
}

static void make(struct asker *a)
{
    const struct tarn_table_options to = {.size = sizeof(to), .npages = 1, .timeout_ms = 20000};
    const struct tarn_key key = key_of("k");
    struct tarn_table *table;
    a->client = client_open(args.redis, (struct tarn_options){.timeout_ms = 20000});
    a->device = device_open(0);
    a->to = device_alloc(a->device, BYTES);
    a->first = map_shared();
    a->later = pinned_new(SHARED);
    a->later->go = 1;
    a->stream = stream_open(0);
    assert_int_equal(tarn_table_new(a->client, &to, &table), 0);
    assert_int_equal(tarn_table_set(table, 0, &key, 1, NULL, 0, NULL), 0);
    const struct tarn_proxy_range range = {a->to, BYTES};
    const struct tarn_proxy_options o = {
        .size = sizeof(o), .nrings = 1, .table = table, .ranges = &range, .nranges = 1};
    if (tarn_proxy_new(a->client, &o, &a->proxy))
        fail_msg("a proxy: %s", tarn_last_error());
}

static void launch(struct asker *a, struct ring_asked *asked, uint64_t timeout_ns)
{
    struct ring_ask k = {.command = {.op = TARN_RING_GET, .bytes = BYTES, .address = (uintptr_t)a->to},
                         .timeout_ns = timeout_ns,
                         .asked = asked};
    assert_int_equal(tarn_proxy_ring(a->proxy, 0, &k.ring), 0);
    ring_ask(a->stream, &k);
}

/* A get by another kernel. True: it has brought the bytes. */
static bool gets(struct asker *a)
{
    device_set(a->device, a->to, 0, BYTES);
    launch(a, a->later, LATER_MS * TARN_NS_PER_MS);
    stream_settle(a->stream);
    if (a->later->rc || a->later->status)
        return false;
    device_expect(a->device, a->to, 'k', BYTES);
    return true;
}

static void asks(void **state)
{
    struct asker a;
    (void)state;
    make(&a);
    assert_true(gets(&a)); /* kernels are loaded at their first use */
    launch(&a, a.first, args.timeout_ns);
    stream_settle(a.stream);
    HARNESS_UNTIL(gets(&a), LATER_MS);
    assert_true(gets(&a));
    tarn_close(a.client);
    stream_close(a.stream);
    device_drop(a.device, a.to);
    pinned_free(a.later, SHARED);
    tarn_cuda_unpin(a.first);
    munmap(a.first, SHARED);
    device_close(a.device);
}

/* --- the parent --------------------------------------------------------------------------------- */

struct scene {
    struct world *w;
    struct device *device; /* whose memory the parent uses, too, before and after */
    int fd;
    struct ring_asked *asked; /* shared with the child and its kernel */
};

static int start(void **state)
{
    void *w;
    *state = NULL;
    if (!devices_there())
        return 0;
    struct scene *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    assert_int_equal(world_start(&w, &plan), 0);
    s->w = w;
    s->device = device_open(0);
    s->fd = memfd_create("asked", 0);
    assert_int_equal(ftruncate(s->fd, SHARED), 0);
    s->asked = mmap(NULL, SHARED, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    assert_ptr_not_equal(s->asked, MAP_FAILED);
    *state = s;
    return 0;
}

static int stop(void **state)
{
    struct scene *s = *state;
    if (!s)
        return 0;
    munmap(s->asked, SHARED);
    close(s->fd);
    device_close(s->device);
    void *w = s->w;
    free(s);
    return world_stop(&w);
}

static struct scene *need(void **state)
{
    devices_need(1);
    return *state;
}

static struct harness_process *spawn(struct scene *s, uint64_t timeout_ns)
{
    char shared[64], timeout[24];
    snprintf(shared, sizeof(shared), "/proc/%d/fd/%d", (int)getpid(), s->fd);
    snprintf(timeout, sizeof(timeout), "%llu", (unsigned long long)timeout_ns);
    const char *argv[] = {args.self, s->w->redis->url, shared, timeout, NULL};
    memset(s->asked, 0, sizeof(*s->asked));
    unsetenv("TEST_FILTER"); /* the child runs what it is for */
    return harness_spawn(s->w->h, "asker", argv);
}

static uint32_t now(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Its kernel runs, and its process stands still. */
static struct harness_process *stopped(struct scene *s, uint64_t timeout_ns)
{
    struct harness_process *child = spawn(s, timeout_ns);
    HARNESS_UNTIL(now(&s->asked->begun) || !harness_running(child), START_MS);
    if (!harness_running(child))
        fail_msg("the child has ended: %s", harness_log(child));
    harness_signal(child, SIGSTOP);
    return child;
}

static void let_ask(struct scene *s)
{
    __atomic_store_n(&s->asked->go, 1, __ATOMIC_RELEASE);
}

static void ends_well(struct harness_process *child)
{
    if (harness_wait(child, START_MS))
        fail_msg("the child: %s", harness_log(child));
}

/* Node and GPU serve this process and another asker. */
static void all_others_are_served(struct scene *s)
{
    const struct tarn_put_options replace = {.size = sizeof(replace), .flags = TARN_PUT_REPLACE};
    struct tarn_client *c = world_client(s->w, NULL);
    uint8_t *to = device_alloc(s->device, BYTES);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(client_get(c, "k", 'k', BYTES), 0);
        assert_int_equal(piece_get(c, "k", to, BYTES), 0);
        device_expect(s->device, to, 'k', BYTES);
        device_set(s->device, to, 0, BYTES);
        assert_int_equal(client_put(c, "k", 'k', BYTES, &replace), 0);
    }
    device_drop(s->device, to);
    tarn_close(c);
    struct harness_process *other = spawn(s, LATER_MS * TARN_NS_PER_MS);
    let_ask(s);
    ends_well(other);
    assert_int_equal(s->asked->rc, 0);
    assert_int_equal(s->asked->status, 0);
}

static void put(struct scene *s)
{
    struct tarn_client *c = world_client(s->w, NULL);
    const struct tarn_put_options o = {.size = sizeof(o), .place = "node0/cpu0"};
    assert_int_equal(client_put(c, "k", 'k', BYTES, &o), 0);
    tarn_close(c);
}

static void stopped_while_its_kernel_waits(void **state)
{
    struct scene *s = need(state);
    put(s);
    struct harness_process *child = stopped(s, WAIT_NS);
    let_ask(s);
    if (!tarn_standin_play) {
        HARNESS_UNTIL(now(&s->asked->ended), LATER_MS);
        print_message("the kernel waited for %.3f s\n", (double)s->asked->waited_ns / 1e9);
        assert_int_equal(s->asked->rc, TARN_E_TIMEOUT);
        assert_true(s->asked->waited_ns >= WAIT_NS && s->asked->waited_ns < WAIT_NS * 3 / 2);
    }
    nanosleep(&(struct timespec){.tv_sec = STOP_S}, NULL); /* the failure, not synchronisation */
    harness_signal(child, SIGCONT);
    ends_well(child);
    assert_true(s->asked->rc == TARN_E_TIMEOUT || (s->asked->rc == 0 && s->asked->status == 0));
    all_others_are_served(s);
}

static void killed_while_its_kernel_waits(void **state)
{
    struct scene *s = need(state);
    put(s);
    struct harness_process *child = stopped(s, KILL_NS);
    let_ask(s);
    if (!tarn_standin_play)
        HARNESS_UNTIL(now(&s->asked->pushed), LATER_MS);
    harness_kill(child);
    assert_false(now(&s->asked->ended));
    all_others_are_served(s);
}

#define WITH(start_, name_) \
    { \
#name_, name_, start_, stop, NULL \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH(start, stopped_while_its_kernel_waits),
        WITH(start, killed_while_its_kernel_waits),
    };
    const struct CMUnitTest child[] = {cmocka_unit_test(asks)};
    args.self = argv[0];
    if (argc < 4)
        return cmocka_run_group_tests_name("proxies of stopped processes", tests, NULL, NULL);
    args.redis = argv[1];
    args.shared = argv[2];
    args.timeout_ns = strtoull(argv[3], NULL, 10);
    return cmocka_run_group_tests_name("asker", child, NULL, NULL);
}
