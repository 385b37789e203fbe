/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proxies: what kernels ask for in command rings is carried out by threads of the client.
 * test_gpu_proxy_ends.c has what fails and ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/stat.h>

#include "client/gpu/near.h"
#include "client/gpu/table_impl.h"
#include "tests/proxy_scene.h"
#include "tests/standin/cuda_standin.h"

/* --- gets --------------------------------------------------------------------------------------- */

/* What byte i of object number `object` is. */
static uint8_t byte_of(uint32_t object, uint64_t i)
{
    return (uint8_t)(object * 37 + i * 11 + i / 251 * 7);
}

/* Page k becomes object k, of BYTES bytes. */
static void put_pages(struct scene *s, uint32_t n, const char *place)
{
    struct tarn_client *c = world_client(s->w, NULL);
    for (uint32_t k = 0; k < n; k++) {
        char name[24];
        snprintf(name, sizeof(name), "object%u", k);
        for (uint32_t i = 0; i < BYTES; i++)
            s->seen[i] = byte_of(k, i);
        assert_int_equal(piece_put(c, name, s->seen, BYTES, place), 0);
        scene_name(s, k, name);
    }
    tarn_close(c);
}

/* Copies memory of a range to s->seen. */
static void look(struct scene *s, const uint8_t *at, size_t bytes)
{
    if (at >= s->gpu && at < s->gpu + ROOM)
        device_read(s->device, s->seen, at, bytes);
    else
        memcpy(s->seen, at, bytes);
}

static uint32_t random_to(struct scene *s, uint32_t below)
{
    s->seed = s->seed * 1664525 + 1013904223;
    return (s->seed >> 8) % below;
}

/* Gets part of a page, checks it, and that nothing around it has changed. */
static void get_part(struct scene *s, uint8_t *to, uint32_t page, uint32_t offset, uint32_t bytes)
{
    const struct tarn_ring_command c = get_of(page, offset, bytes, to + 64);
    struct device *d = to == s->gpu ? s->device : NULL;
    device_set(d, to, 0xee, bytes + 128);
    int status = ask(s, &c);
    if (status)
        fail_msg("page %u, %u bytes from %u: %s", page, bytes, offset, tarn_error_name(status));
    look(s, to, bytes + 128);
    for (uint32_t i = 0; i < bytes + 128; i++) {
        bool inside = i >= 64 && i < 64 + bytes;
        uint8_t is = s->seen[i], expected = inside ? byte_of(page, offset + i - 64) : 0xee;
        if (is != expected)
            fail_msg("page %u, byte %u of %u from %u: is %#x, not %#x", page, i, bytes, offset, is, expected);
    }
}

static void gets_over(void **state, const char *transports, const char *place)
{
    struct scene *s = scene_need(state);
    scene_begin(s, transports);
    put_pages(s, 8, place);
    for (int i = 0; i < 60; i++) {
        uint32_t offset = i % 3 ? random_to(s, BYTES) : 0;
        uint32_t bytes = i % 3 == 0 ? BYTES : i % 3 == 1 ? 1 + random_to(s, BYTES - offset) : BYTES - offset;
        get_part(s, i % 2 ? s->gpu : s->host, random_to(s, 8), offset, bytes);
    }
}

static void gets_from_host_memory(void **state)
{
    gets_over(state, NULL, "node0/cpu0");
}

static void gets_from_a_gpu(void **state)
{
    gets_over(state, NULL, "node0/gpu0");
}

static void gets_over_tcp(void **state)
{
    gets_over(state, "tcp", "node0/cpu0");
}

static void gets_from_a_gpu_over_tcp(void **state)
{
    gets_over(state, "tcp", "node0/gpu0");
}

/* --- many commands ------------------------------------------------------------------------------ */

enum { RINGS = 3, SIZE = 4, MANY = 4000, PART = 64 };

/* A kernel with a ring of its own. */
struct kernel {
    struct tarn_ring ring;
    const uint8_t *object; /* what PART bytes at an offset must be */
    uint8_t *to;           /* SIZE parts */
    uint32_t page, wrong;
    int rc;
    pthread_t thread;
};

static uint32_t offset_of(uint64_t n)
{
    return (uint32_t)(n * 997 % (BYTES - PART));
}

static int collect(struct kernel *k, const struct tarn_ring_producer *p, uint64_t n)
{
    int status = 1, rc = tarn_dev_ring_wait(p, n, LONG_NS, &status);
    tarn_dev_fence();
    k->wrong += rc == 0 && (status != 0 || memcmp(k->to + n % SIZE * PART, k->object + offset_of(n), PART));
    return rc;
}

static void *play_many(void *arg)
{
    struct kernel *k = arg;
    struct tarn_ring_producer p;
    uint64_t number;
    int rc = tarn_dev_ring_open(&p, &k->ring);
    for (uint64_t n = 0; rc == 0 && n < MANY; n++) {
        const struct tarn_ring_command c = get_of(k->page, offset_of(n), PART, k->to + n % SIZE * PART);
        if (n >= SIZE)
            rc = collect(k, &p, n - SIZE);
        if (rc == 0)
            rc = tarn_dev_ring_push(&p, &c, LONG_NS, &number);
    }
    for (uint64_t n = MANY - SIZE; rc == 0 && n < MANY; n++)
        rc = collect(k, &p, n);
    k->rc = rc ? rc : tarn_dev_ring_wait_all(&p, LONG_NS);
    tarn_dev_ring_close(&p);
    return NULL;
}

static void many_over(void **state, const char *transports)
{
    struct scene *s = scene_need(state);
    struct kernel kernels[RINGS];
    s->client = world_client(s->w, transports);
    struct tarn_proxy_options o = scene_options(s, RINGS, SIZE);
    o.threads = 2;
    scene_proxy(s, &o);
    put_pages(s, 1, "node0/cpu0");
    for (uint32_t i = 0; i < RINGS; i++) {
        kernels[i] = (struct kernel){.object = s->seen, .to = s->host + i * SIZE * PART};
        assert_int_equal(tarn_proxy_ring(s->proxy, i, &kernels[i].ring), 0);
        assert_int_equal(pthread_create(&kernels[i].thread, NULL, play_many, &kernels[i]), 0);
    }
    for (uint32_t i = 0; i < RINGS; i++) {
        pthread_join(kernels[i].thread, NULL);
        assert_int_equal(kernels[i].rc, 0);
        assert_int_equal(kernels[i].wrong, 0);
    }
}

static void more_commands_than_the_ring_has_room_for(void **state)
{
    many_over(state, NULL);
}

static void more_commands_than_workers(void **state)
{
    many_over(state, "tcp");
}

/* --- QUIET and REFRESH -------------------------------------------------------------------------- */

struct first {
    struct scene *s;
    int rc[8], status[8];
};

/* Asks for several at once, so that several links are needed. */
static void first_kernel(void *arg)
{
    struct first *f = arg;
    uint64_t numbers[8];
    for (uint32_t i = 0; i < 8; i++) {
        struct tarn_ring_command c = get_of(i, 0, BYTES, f->s->gpu + i * BYTES);
        f->rc[i] = tarn_dev_ring_push(&f->s->ring, &c, LONG_NS, &numbers[i]);
    }
    for (uint32_t i = 0; i < 8; i++)
        if (f->rc[i] == 0)
            f->rc[i] = tarn_dev_ring_wait(&f->s->ring, numbers[i], LONG_NS / 3, &f->status[i]);
}

/* What CUDA cannot do beside a running kernel was done before. */
static void first_gets_while_a_kernel_runs(void **state, const char *place)
{
    struct scene *s = scene_need(state);
    struct first f = {.s = s};
    if (!tarn_standin_play)
        harness_skip("standin", "on a GPU, tarn-bench ring does this");
    scene_begin(s, "cuda_ipc");
    put_pages(s, 8, place);
    tarn_standin_play(first_kernel, &f);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(f.rc[i], 0);
        assert_int_equal(f.status[i], 0);
    }
}

static void first_gets_from_host_memory_while_a_kernel_runs(void **state)
{
    first_gets_while_a_kernel_runs(state, "node0/cpu0");
}

static void first_gets_from_a_gpu_while_a_kernel_runs(void **state)
{
    first_gets_while_a_kernel_runs(state, "node0/gpu0");
}

static void a_quiet_on_its_own_completes(void **state)
{
    struct scene *s = scene_need(state);
    scene_begin(s, NULL);
    for (int i = 0; i < 200; i++)
        assert_int_equal(ask(s, &quiet), 0);
}

static void a_refresh_looks_again(void **state)
{
    struct scene *s = scene_need(state);
    const struct tarn_ring_command c = get_of(0, 0, BYTES, s->host);
    scene_begin(s, NULL);
    scene_name(s, 0, "later");
    assert_int_equal(ask(s, &refresh), TARN_E_NOT_FOUND);
    assert_int_equal(ask(s, &c), TARN_E_NOT_FOUND);
    assert_int_equal(s->table->pages[0].status, TARN_E_NOT_FOUND);
    struct tarn_client *other = world_client(s->w, NULL);
    assert_int_equal(client_put(other, "later", 'l', BYTES, NULL), 0);
    tarn_close(other);
    assert_int_equal(ask(s, &refresh), 0);
    assert_int_equal(s->table->pages[0].status, 0); /* kernels read it themselves */
    assert_int_equal(ask(s, &c), 0);
    assert_int_equal(s->host[BYTES - 1], 'l');
}

static void a_refresh_of_what_only_a_proxy_reaches(void **state)
{
    struct scene *s = scene_need(state);
    scene_begin(s, "tcp");
    scene_put(s, 0, "far", 'f', NULL);
    const struct tarn_ring_command c = get_of(0, 0, BYTES, s->gpu);
    assert_int_equal(ask(s, &refresh), TARN_E_NOT_REACHABLE);
    assert_int_equal(ask(s, &c), 0);
    device_expect(s->device, s->gpu, 'f', BYTES);
}

/* Once a put has returned, no get that a kernel asks for brings the older bytes. */
static void replaced_objects(void **state)
{
    struct scene *s = scene_need(state);
    scene_begin(s, NULL);
    for (int i = 0; i < 20; i++) {
        uint8_t *to = i % 2 ? s->host : s->gpu, byte = (uint8_t)('a' + i);
        const struct tarn_ring_command c = get_of(0, 7, 1000, to);
        scene_put(s, 0, "k", (char)byte, i % 4 < 2 ? "node0/cpu0" : "node0/gpu0");
        assert_int_equal(ask(s, &c), 0);
        look(s, to, 1000);
        for (int k = 0; k < 1000; k++)
            assert_int_equal(s->seen[k], byte);
    }
}

/* The first command after a pause, in which the thread sleeps. */
static void a_command_after_a_pause(void **state)
{
    struct scene *s = scene_need(state);
    scene_begin(s, NULL);
    put_pages(s, 1, NULL);
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 20; k++)
            harness_pause();
        get_part(s, s->host, 0, 0, 4096);
    }
}

/* --- wrong commands ----------------------------------------------------------------------------- */

static void wrong_commands(void **state)
{
    enum { GET = TARN_RING_GET, WRITE, REFRESH, QUIET };
    struct scene *s = scene_need(state);
    scene_begin(s, NULL);
    put_pages(s, 1, NULL);
    const uintptr_t host = (uintptr_t)s->host, gpu = (uintptr_t)s->gpu;
    const struct {
        struct tarn_ring_command c;
        int status;
    } wrong[] = {
        {{.op = GET, .bytes = 1, .address = host, .index = PAGES}, TARN_E_INVALID},
        {{.op = GET, .bytes = 1, .address = host, .index = UINT32_MAX}, TARN_E_INVALID},
        {{.op = GET, .bytes = 1, .address = host, .index = 1}, TARN_E_NOT_FOUND}, /* of no object */
        {{.op = GET, .bytes = 1, .address = host - 1}, TARN_E_INVALID},
        {{.op = GET, .bytes = 2, .address = host - 1}, TARN_E_INVALID},
        {{.op = GET, .bytes = 2, .address = host + ROOM - 1}, TARN_E_INVALID},
        {{.op = GET, .bytes = 1, .address = host + ROOM}, TARN_E_INVALID},
        {{.op = GET, .bytes = 2, .address = gpu + ROOM - 1}, TARN_E_INVALID},
        {{.op = GET, .bytes = 1, .address = gpu - 1}, TARN_E_INVALID},
        {{.op = GET, .bytes = 1, .address = 1}, TARN_E_INVALID},
        {{.op = GET, .bytes = 1, .address = UINT64_MAX - 1}, TARN_E_INVALID},
        {{.op = GET, .bytes = BYTES + 1, .address = host}, TARN_E_SIZE},
        {{.op = GET, .bytes = BYTES + 1, .address = gpu}, TARN_E_SIZE},
        {{.op = GET, .bytes = 1, .address = host, .offset = BYTES}, TARN_E_SIZE},
        {{.op = GET, .bytes = 1, .address = host, .offset = UINT32_MAX}, TARN_E_SIZE},
        {{.op = GET, .bytes = 2, .address = host, .offset = BYTES - 1}, TARN_E_SIZE},
        {{.op = GET, .address = host}, TARN_E_INVALID},
        {{.op = GET, .bytes = 1, .address = host, .notify = 1}, TARN_E_INVALID},
        {{.op = WRITE, .bytes = 1, .address = host}, TARN_E_INVALID}, /* there are no reaches */
        {{.op = REFRESH, .index = PAGES}, TARN_E_INVALID},
        {{.op = REFRESH, .index = 1}, TARN_E_NOT_FOUND},
        {{.op = REFRESH, .bytes = 1}, TARN_E_INVALID},
        {{.op = QUIET, .address = host}, TARN_E_INVALID},
        {{.op = 0}, TARN_E_INVALID},
        {{.op = QUIET + 1}, TARN_E_INVALID},
        {{.op = 255, .bytes = 1, .address = host}, TARN_E_INVALID},
    };
    memset(s->host, 0xee, ROOM);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        uint64_t number = push(s, &wrong[i].c), behind = push(s, &quiet);
        if (status_of(s, number) != wrong[i].status)
            fail_msg("wrong command %zu: %s", i, tarn_error_name(status_of(s, number)));
        assert_int_equal(status_of(s, behind), 0);
    }
    for (size_t i = 0; i < ROOM; i++)
        assert_int_equal(s->host[i], 0xee);
    get_part(s, s->host, 0, BYTES - 1, 1);
}

/* Whatever a kernel writes: each command has a status, and no byte outside of the ranges changes. */
static void random_commands(void **state)
{
    struct scene *s = scene_need(state);
    scene_begin(s, NULL);
    put_pages(s, 2, NULL);
    unsigned good = 0, many = 5000;
    for (unsigned i = 0; i < many; i++) {
        struct tarn_ring_command c = {.op = random_to(s, 6), .index = random_to(s, 4)};
        c.bytes = random_to(s, 4) ? random_to(s, 200) : 0;
        c.address = random_to(s, 4) ? (uintptr_t)s->host + random_to(s, ROOM + 200) - 100 : 0;
        c.offset = random_to(s, 3) ? random_to(s, BYTES + 100) : 0;
        c.notify = random_to(s, 8) == 0;
        int status = ask(s, &c);
        bool inside = c.address >= (uintptr_t)s->host && c.address + c.bytes <= (uintptr_t)s->host + ROOM;
        bool fits = c.op == TARN_RING_GET && c.index < 2 && c.bytes && inside && !c.notify &&
                    c.offset + c.bytes <= BYTES;
        if (c.op == TARN_RING_GET && (status == 0) != fits)
            fail_msg("page %u, %u bytes from %u at %llx: %s", c.index, c.bytes, c.offset,
                     (unsigned long long)c.address, tarn_error_name(status));
        good += fits;
    }
    print_message("%u of %u good\n", good, many);
    assert_true(good > 50);
}

static void a_ring_that_breaks_leaves_the_others(void **state)
{
    struct scene *s = scene_need(state);
    struct tarn_ring_producer other;
    uint64_t number = 0;
    int status = 1;
    s->client = world_client(s->w, NULL);
    const struct tarn_proxy_options o = scene_options(s, 2, 8);
    scene_proxy(s, &o);
    scene_open_ring(s, 1, &other);
    const struct tarn_half foreign = {0, 77ull << 32};
    tarn_dev_half_write(&s->ring.ring.slots[0], foreign, 0);
    HARNESS_UNTIL(tarn_dev_load32(s->ring.ring.state) == (uint32_t)TARN_E_PROTOCOL, 8000);
    assert_int_equal(tarn_dev_ring_push(&other, &quiet, LONG_NS, &number), 0);
    assert_int_equal(tarn_dev_ring_wait(&other, number, LONG_NS, &status), 0);
    assert_int_equal(status, 0);
}

/* --- calls -------------------------------------------------------------------------------------- */

static void wrong_proxies(void **state)
{
    struct scene *s = scene_need(state);
    s->client = world_client(s->w, NULL);
    struct tarn_client *other = world_client(s->w, NULL);
    struct tarn_proxy *p;
    struct tarn_ring ring;
    struct tarn_reach *none = NULL;
    struct tarn_proxy_range range = {s->gpu, ROOM + 4096};
    const struct tarn_proxy_options good = scene_options(s, 2, 16);
    struct tarn_proxy_options o = good;
#define REFUSED(change_) \
    do { \
        o = good; \
        o.size = sizeof(o); \
        change_; \
        assert_int_equal(tarn_proxy_new(s->client, &o, &p), TARN_E_INVALID); \
    } while (0)
    REFUSED(o.device = devices_there());
    REFUSED(o.device = -2);
    REFUSED(o.flags = 1u << 31);
    REFUSED(o.nrings = 0);
    REFUSED(o.nrings = TARN_PROXY_RINGS_MAX + 1);
    REFUSED(o.ring_size = 3);
    assert_non_null(strstr(tarn_last_error(), "power of two"));
    REFUSED(o.threads = 3);
    REFUSED(o.ranges = NULL);
    REFUSED(o.nranges = TARN_PROXY_RANGES_MAX + 1);
    REFUSED(o.nreaches = 1);
    REFUSED((o.nreaches = 1, o.reaches = &none));
    REFUSED((o.nranges = 1, o.ranges = &range)); /* past the allocation */
    assert_non_null(strstr(tarn_last_error(), "are not of one memory"));
    range = (struct tarn_proxy_range){NULL, 1};
    REFUSED((o.nranges = 1, o.ranges = &range));
    range = (struct tarn_proxy_range){s->host, 0};
    REFUSED((o.nranges = 1, o.ranges = &range));
    range = (struct tarn_proxy_range){s->host, UINT64_MAX};
    REFUSED((o.nranges = 1, o.ranges = &range));
    o = good;
    o.size = sizeof(o);
    assert_int_equal(tarn_proxy_new(other, &o, &p), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "another client"));
    assert_int_equal(tarn_proxy_new(s->client, &o, NULL), TARN_E_INVALID);
    assert_int_equal(tarn_proxy_new(NULL, &o, &p), TARN_E_INVALID);
    scene_proxy(s, &good);
    assert_int_equal(tarn_proxy_ring(s->proxy, 2, &ring), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "ring 2: it has 2"));
    assert_int_equal(tarn_proxy_ring(s->proxy, 1, NULL), TARN_E_INVALID);
    assert_int_equal(tarn_proxy_ring(NULL, 0, &ring), TARN_E_INVALID);
    tarn_close(other);
}

/* --- CPUs --------------------------------------------------------------------------------------- */

static void write_file(const char *root, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    for (char *slash = path + strlen(root); (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* The CPUs of a device's node as a mask, or -1. */
static int near(const char *root, const char *node, const char *list, int allowed_mask)
{
    cpu_set_t allowed, cpus;
    int mask = 0;
    CPU_ZERO(&allowed);
    for (size_t i = 0; i < 16; i++)
        if (allowed_mask >> i & 1)
            CPU_SET(i, &allowed);
    write_file(root, "bus/pci/devices/0000:0a:00.0/numa_node", node);
    write_file(root, "devices/system/node/node1/cpulist", list);
    if (!tarn_near_cpus(root, "0000:0a:00.0", &allowed, &cpus))
        return -1;
    for (size_t i = 0; i < 16; i++)
        mask |= CPU_ISSET(i, &cpus) ? 1 << i : 0;
    return mask;
}

static void cpus_near_a_device(void **state)
{
    struct harness *h = harness_new();
    const char *root = harness_dir(h);
    cpu_set_t all, cpus;
    (void)state;
    memset(&all, 0xff, sizeof(all));
    assert_false(tarn_near_cpus(root, "0000:0a:00.0", &all, &cpus));
    assert_int_equal(near(root, "1\n", "0-3,8,10-11\n", 0xffff), 0xd0f);
    assert_int_equal(near(root, "1\n", "0-3,8,10-11\n", 0x806), 0x806); /* of those that are allowed */
    assert_int_equal(near(root, "1\n", "5\n", 0xffff), 0x20);
    assert_int_equal(near(root, "1\n", "5\n", 0x10), -1);
    assert_int_equal(near(root, "-1\n", "0-3\n", 0xffff), -1);
    assert_int_equal(near(root, "2\n", "0-3\n", 0xffff), -1); /* of which nothing is told */
    assert_int_equal(near(root, "1\n", "3-0\n", 0xffff), -1);
    assert_int_equal(near(root, "1\n", "x\n", 0xffff), -1);
    assert_int_equal(near(root, "1\n", "\n", 0xffff), -1);
    assert_int_equal(near(root, "1\n", "0-99999999999\n", 0x6), 0x6);
    harness_passed(h);
    harness_free(h);
}

#define WITH(start_, name_) \
    { \
#name_, name_, start_, scene_stop, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(scene_start, gets_from_host_memory),
        WITH(scene_start, gets_from_a_gpu),
        WITH(scene_start, gets_over_tcp),
        WITH(scene_start, gets_from_a_gpu_over_tcp),
        WITH(scene_start, more_commands_than_the_ring_has_room_for),
        WITH(scene_start, more_commands_than_workers),
        WITH(scene_start, first_gets_from_host_memory_while_a_kernel_runs),
        WITH(scene_start, first_gets_from_a_gpu_while_a_kernel_runs),
        WITH(scene_start, a_quiet_on_its_own_completes),
        WITH(scene_start, a_refresh_looks_again),
        WITH(scene_start, a_refresh_of_what_only_a_proxy_reaches),
        WITH(scene_start, replaced_objects),
        WITH(scene_start, a_command_after_a_pause),
        WITH(scene_start, wrong_commands),
        WITH(scene_start, random_commands),
        WITH(scene_start, a_ring_that_breaks_leaves_the_others),
        WITH(scene_start, wrong_proxies),
        cmocka_unit_test(cpus_near_a_device),
    };
    return cmocka_run_group_tests_name("proxy", tests, NULL, NULL);
}
