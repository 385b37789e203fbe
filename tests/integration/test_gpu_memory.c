/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which memory can be used how: each kind of memory with each kind of pool, several kinds in one call, views
 * of GPU memory, GPUs that cannot access each other; and what the log says about the path of the bytes. Uses
 * the machine's GPUs or the stand-in.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "tests/device.h"
#include "tests/standin/cuda_standin.h"
#include "tests/stream.h"
#include "tests/world.h"

enum { BYTES = 1234567, ROOM = BYTES + 64 };

static const struct world_plan one_gpu = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=64M", "--pool", "gpu0:device=0,bytes=64M"}};
static const char *self;

static int start(void **state)
{
    return devices_there() ? world_start_client(state, &one_gpu) : 0;
}

static int stop(void **state)
{
    return *state ? world_stop(state) : 0;
}

/* --- what the client logs ----------------------------------------------------------------------- */

struct lines {
    pthread_mutex_t lock;
    char text[1 << 20];
    size_t used;
};

static void keep_line(void *arg, enum tarn_log_level level, const char *line)
{
    struct lines *l = arg;
    (void)level;
    pthread_mutex_lock(&l->lock);
    int n = snprintf(l->text + l->used, sizeof(l->text) - l->used, "%s\n", line);
    l->used += l->used + (size_t)n < sizeof(l->text) ? (size_t)n : 0;
    pthread_mutex_unlock(&l->lock);
}

static struct lines *lines_new(void)
{
    struct lines *l = calloc(1, sizeof(*l));
    assert_non_null(l);
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

static void lines_forget(struct lines *l)
{
    pthread_mutex_lock(&l->lock);
    l->used = 0;
    l->text[0] = '\0';
    pthread_mutex_unlock(&l->lock);
}

static int lines_with(struct lines *l, const char *what)
{
    int n = 0;
    pthread_mutex_lock(&l->lock);
    for (const char *at = l->text; (at = strstr(at, what)) != NULL; at++)
        n++;
    pthread_mutex_unlock(&l->lock);
    return n;
}

static struct tarn_client *talkative_client(struct world *w, struct lines *l)
{
    return client_open(w->redis->url,
                       (struct tarn_options){.log = keep_line, .log_arg = l, .log_level = TARN_LOG_DEBUG});
}

/* --- kinds -------------------------------------------------------------------------------------- */

enum kind { PAGEABLE, PINNED, MANAGED, DEVICE, KINDS };

static void *memory_new(struct device *d, enum kind k)
{
    switch (k) {
    case PINNED:
        return pinned_new(ROOM);
    case MANAGED:
        return managed_new(ROOM);
    default:
        return device_alloc(k == DEVICE ? d : NULL, ROOM);
    }
}

static void memory_free(struct device *d, enum kind k, void *addr)
{
    switch (k) {
    case PINNED:
        pinned_free(addr, ROOM);
        break;
    case MANAGED:
        managed_free(addr, ROOM);
        break;
    default:
        device_drop(k == DEVICE ? d : NULL, addr);
    }
}

/* Each kind of memory, from its beginning and from an offset, to and from each pool. The log tells the
 * path. */
static void every_kind_of_memory_goes_to_every_pool(void **state)
{
    static const char *const places[] = {"node0/cpu0", "node0/gpu0"};
    static const char *const copies[KINDS][2] = {
        [PAGEABLE] = {NULL, "copy=\"DMA by way of pinned memory\""},
        [PINNED] = {NULL, "copy=\"DMA\""},
        [MANAGED] = {NULL, "copy=\"DMA\""},
        [DEVICE] = {"copy=\"DMA\"", "copy=\"within the GPU\""},
    };
    devices_need(1);
    struct world *w = *state;
    struct lines *log = lines_new();
    struct tarn_client *c = talkative_client(w, log);
    struct device *d = device_open(0);
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < 4; i++) {
            struct device *via = k == DEVICE ? d : NULL;
            uint8_t *memory = memory_new(d, (enum kind)k), byte = (uint8_t)(10 + 4 * k + i);
            size_t within = i % 2 ? 37 : 0;
            lines_forget(log);
            device_set(via, memory, 0xee, ROOM);
            device_set(via, memory + within, byte, BYTES);
            assert_int_equal(piece_put(c, "k", memory + within, BYTES, places[i / 2]), 0);
            device_set(via, memory, 0xee, ROOM);
            assert_int_equal(piece_get(c, "k", memory + within, BYTES), 0);
            device_expect(via, memory + within, byte, BYTES);
            device_expect(via, memory + within + BYTES, 0xee, ROOM - BYTES - within);
            if (within)
                device_expect(via, memory, 0xee, within);
            if (copies[k][i / 2])
                assert_int_equal(lines_with(log, copies[k][i / 2]), 2);
            else
                assert_int_equal(lines_with(log, "copy="), 0);
            assert_int_equal(lines_with(log, "transport=cuda_ipc"), copies[k][i / 2] ? 2 : 0);
            assert_int_equal(lines_with(log, "transport=shm"), copies[k][i / 2] ? 0 : 2);
            memory_free(d, (enum kind)k, memory);
        }
    tarn_close(c);
    free(log);
    device_close(d);
    harness_passed(w->h);
}

/* All memory of an item is of one kind, but the items may differ. */
static void items_of_a_call_may_use_different_memory(void **state)
{
    enum { N = 60, SMALL = 5000 };
    devices_need(1);
    struct world *w = *state;
    struct tarn_piece pieces[N];
    struct tarn_item items[N];
    struct device *d[2] = {device_open(0), devices_there() > 1 ? device_open(1) : NULL};
    char keys[N][8];
    for (int i = 0; i < N; i++) {
        struct device *via = i % 3 == 2 ? NULL : d[i % 3];
        snprintf(keys[i], sizeof keys[i], "m%d", i);
        pieces[i] = (struct tarn_piece){.addr = device_alloc(via, SMALL), .bytes = SMALL};
        device_set(via, pieces[i].addr, (uint8_t)(i + 1), SMALL);
        items[i] = (struct tarn_item){
            .key = key_of(keys[i]), .pieces = &pieces[i], .npieces = 1, .tensor = tarn_bytes(SMALL)};
    }
    for (int p = 0; p < 2; p++) {
        struct tarn_put_options o = {
            .size = sizeof o, .place = p ? "node0/cpu0" : "node0/gpu0", .flags = TARN_PUT_REPLACE};
        assert_int_equal(tarn_put(w->client, items, N, &o), 0);
        for (int i = 0; i < N; i++)
            device_set(i % 3 == 2 ? NULL : d[i % 3], pieces[i].addr, 0, SMALL);
        assert_int_equal(tarn_get(w->client, items, N, NULL), 0);
        for (int i = 0; i < N; i++)
            device_expect(i % 3 == 2 ? NULL : d[i % 3], pieces[i].addr, (uint8_t)(i + 1), SMALL);
    }
    for (int i = 0; i < N; i++)
        device_drop(i % 3 == 2 ? NULL : d[i % 3], pieces[i].addr);
    device_close(d[0]);
    device_close(d[1]);
    harness_passed(w->h);
}

static void two_gpus_in_one_item_are_refused(void **state)
{
    devices_need(2);
    struct world *w = *state;
    struct device *a = device_open(0), *b = device_open(1);
    struct tarn_piece pieces[] = {{.addr = device_alloc(a, 64), .bytes = 64},
                                  {.addr = device_alloc(b, 64), .bytes = 64}};
    struct tarn_item item = {
        .key = key_of("mixed"), .pieces = pieces, .npieces = 2, .tensor = tarn_bytes(128)};
    assert_int_equal(tarn_put(w->client, &item, 1, NULL), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "piece 1"));
    device_drop(a, pieces[0].addr);
    device_drop(b, pieces[1].addr);
    device_close(a);
    device_close(b);
    harness_passed(w->h);
}

/* --- views -------------------------------------------------------------------------------------- */

static void a_view_of_gpu_memory_does_not_change(void **state)
{
    devices_need(1);
    struct world *w = *state;
    struct device *d = device_open(0);
    uint8_t *memory = device_alloc(d, BYTES);
    struct stream *s = stream_open(0);
    struct tarn_key key = key_of("k"), cpu = key_of("c");
    struct tarn_view v, again, host;
    device_set(d, memory, 7, BYTES);
    assert_int_equal(piece_put(w->client, "k", memory, BYTES, "node0/gpu0"), 0);
    assert_int_equal(tarn_view(w->client, &key, 0, &v), 0);
    assert_int_equal(v.kind, TARN_MEMORY_CUDA);
    assert_int_equal(v.device, 0);
    assert_int_equal(v.tensor.bytes, BYTES);
    /* Replaces the object and fills the pool. Other objects would take its place if it were free. */
    for (int i = 0; i < 200; i++) {
        char name[8];
        snprintf(name, sizeof name, i ? "o%d" : "k", i);
        device_set(d, memory, 8, BYTES);
        assert_int_equal(piece_put(w->client, name, memory, BYTES, "node0/gpu0"), 0);
    }
    stream_copy(s, memory, v.addr, BYTES);
    stream_settle(s);
    device_expect(d, memory, 7, BYTES);
    tarn_release(w->client, &v);
    assert_null(v.addr);
    assert_int_equal(piece_put(w->client, "k", memory, BYTES, "node0/gpu0"), 0);
    assert_int_equal(tarn_view(w->client, &key, 0, &v), 0);
    assert_int_equal(tarn_view(w->client, &key, 0, &again), 0);
    assert_ptr_equal(v.addr, again.addr);
    assert_int_equal(client_put(w->client, "c", 'c', 100, NULL), 0);
    assert_int_equal(tarn_view(w->client, &cpu, 0, &host), 0);
    assert_int_equal(host.kind, TARN_MEMORY_HOST);
    assert_int_equal(host.device, -1);
    assert_int_equal(((const char *)host.addr)[99], 'c');
    tarn_release(w->client, &again);
    tarn_release(w->client, &host);
    /* v is left for tarn_close() to release. */
    stream_close(s);
    device_drop(d, memory);
    device_close(d);
    harness_passed(w->h);
}

struct writer {
    struct tarn_client *client;
    void *memory;
    _Atomic bool stop;
};

static void *replace(void *arg)
{
    struct writer *w = arg;
    while (!w->stop)
        piece_put(w->client, "k", w->memory, 4096, "node0/gpu0");
    return NULL;
}

/* A hot object: after repeated stale copies, the CPU must not copy from the address that a view would
 * have. */
static void gets_beside_views_return_right_bytes(void **state)
{
    devices_need(1);
    struct world *w = *state;
    struct device *d = device_open(0);
    uint8_t *memory = device_alloc(d, 4096);
    struct writer writer = {.client = w->client, .memory = device_alloc(d, 4096)};
    struct tarn_key key = key_of("k");
    struct tarn_view v;
    pthread_t thread;
    struct tarn_client *c = client_open_faulty(w->redis->url, (struct tarn_options){0}, "cuda_ipc:stale=0.6");
    device_set(d, writer.memory, 5, 4096);
    assert_int_equal(piece_put(w->client, "k", writer.memory, 4096, "node0/gpu0"), 0);
    while (tarn_view(c, &key, 0, &v))
        ;
    assert_int_equal(pthread_create(&thread, NULL, replace, &writer), 0);
    for (int i = 0; i < 200; i++) {
        int rc = piece_get(c, "k", memory, 4096);
        assert_true(rc == 0 || rc == TARN_E_NOT_FOUND);
        if (rc == 0)
            device_expect(d, memory, 5, 4096);
    }
    writer.stop = true;
    pthread_join(thread, NULL);
    tarn_release(c, &v);
    tarn_close(c);
    device_drop(d, memory);
    device_drop(d, writer.memory);
    device_close(d);
    harness_passed(w->h);
}

/* --- clients that see other GPUs, or none ------------------------------------------------------- */

/* Fails each copy of a get and of a put in turn. No operation may succeed in part, and the next one must
 * be complete. */
static void fail_copies(struct tarn_client *c, struct tarn_item *item, struct device *d, uint8_t *memory)
{
    struct tarn_put_options o = {.size = sizeof o, .place = "node0/gpu0", .flags = TARN_PUT_REPLACE};
    char what[16];
    int failed = 0;
    for (int n = 1; n <= 20; n++) {
        snprintf(what, sizeof what, "copy:%d", n);
        tarn_standin_fail(what);
        int put = tarn_put(c, item, 1, &o);
        tarn_standin_fail(NULL);
        device_set(d, memory, 0, 5 * BYTES);
        tarn_standin_fail(what);
        int get = tarn_get(c, item, 1, NULL);
        tarn_standin_fail(NULL);
        for (int row = 0; get == 0 && row < 1399; row++)
            device_expect(d, memory + 4111 * row, 1, 4099);
        failed += (get != 0) + (put != 0);
        int rc = tarn_get(c, item, 1, NULL);
        if (rc)
            printf("after copy %d: %s %s\n", n, tarn_error_name(rc), tarn_last_error());
        else
            device_expect(d, memory, 1, 4099);
    }
    printf("failed=%d\n", failed);
}

/* A view and a round trip with each GPU that the process sees. Prints one line for each. */
static int client_main(const char *redis)
{
    struct lines *log = lines_new();
    struct tarn_client *c = client_open(
        redis, (struct tarn_options){
                   .timeout_ms = 3000, .log = keep_line, .log_arg = log, .log_level = TARN_LOG_DEBUG});
    struct tarn_key key = key_of("seen");
    struct tarn_view v;
    int rc = tarn_view(c, &key, 0, &v);
    printf("view %s %s\n", tarn_error_name(rc), rc ? tarn_last_error() : "");
    for (int i = 0; i < devices_there(); i++) {
        struct device *d = device_open(i);
        uint8_t *memory = device_alloc(d, 5 * BYTES);
        struct tarn_piece rows = {.addr = memory, .bytes = 4099, .stride = 4111, .count = 1400};
        struct tarn_item item = {
            .key = key_of("k"), .pieces = &rows, .npieces = 1, .tensor = tarn_bytes(4099 * 1400)};
        struct tarn_put_options o = {.size = sizeof o, .place = "node0/gpu0", .flags = TARN_PUT_REPLACE};
        device_set(d, memory, 1, 5 * BYTES);
        device_set(d, memory + 4111 * 1399, (uint8_t)(20 + i), 4099);
        rc = tarn_put(c, &item, 1, &o);
        device_set(d, memory, 0, 5 * BYTES);
        if (rc == 0)
            rc = tarn_get(c, &item, 1, NULL);
        if (rc == 0) {
            device_expect(d, memory + 4111 * 700, 1, 4099);
            device_expect(d, memory + 4111 * 700 + 4099, 0, 12);
            device_expect(d, memory + 4111 * 1399, (uint8_t)(20 + i), 4099);
        }
        printf("gpu%d %s %s far=%d\n", i, tarn_error_name(rc), rc ? tarn_last_error() : "",
               lines_with(log, "copy=\"through the host, without peer access\""));
        if (i == 1 && getenv("FAIL_COPIES"))
            fail_copies(c, &item, d, memory);
        device_drop(d, memory);
        device_close(d);
    }
    tarn_close(c);
    free(log);
    return 0;
}

static const char *say_of_client(struct world *w, const char *variable, const char *value)
{
    const char *argv[] = {self, "--client", w->redis->url, NULL};
    struct device *d = device_open(0);
    uint8_t *memory = device_alloc(d, 4096);
    assert_int_equal(piece_put(w->client, "seen", memory, 4096, "node0/gpu0"), 0);
    device_drop(d, memory);
    device_close(d);
    setenv(variable, value, 1);
    struct harness_process *p = harness_spawn(w->h, "client", argv);
    unsetenv(variable);
    assert_int_equal(harness_wait(p, HARNESS_TIMEOUT_MS), 0);
    return harness_stdout(p, NULL);
}

static void need_standin(void)
{
    devices_need(2);
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in fails and hides on demand");
}

static void gpus_without_peer_access_go_through_the_host(void **state)
{
    need_standin();
    struct world *w = *state;
    assert_string_equal(say_of_client(w, "STANDIN_PEERS", "0"), "view OK \ngpu0 OK  far=0\ngpu1 OK  far=2\n");
    harness_passed(w->h);
}

static void a_second_hop_that_fails_does_no_lasting_harm(void **state)
{
    need_standin();
    struct world *w = *state;
    setenv("STANDIN_PEERS", "0", 1);
    const char *said = say_of_client(w, "FAIL_COPIES", "1");
    unsetenv("STANDIN_PEERS");
    const char *failed = strstr(said, "failed=");
    assert_null(strstr(said, "after copy"));
    assert_non_null(failed);
    assert_true(atoi(failed + 7) > 2);
    harness_passed(w->h);
}

static void a_client_without_gpus_has_no_view_of_one(void **state)
{
    need_standin();
    struct world *w = *state;
    const char *said = say_of_client(w, "STANDIN_VISIBLE", "none");
    assert_non_null(strstr(said, "view NOT_REACHABLE"));
    assert_non_null(strstr(said, "no device is visible"));
    assert_non_null(strstr(said, "get it"));
    harness_passed(w->h);
}

static void a_client_that_sees_another_gpu_gets_the_reason(void **state)
{
    need_standin();
    struct world *w = *state;
    const char *said = say_of_client(w, "STANDIN_VISIBLE", "1");
    assert_non_null(strstr(said, "view NOT_REACHABLE"));
    assert_non_null(strstr(said, "CUDA_VISIBLE_DEVICES"));
    harness_passed(w->h);
}

static void a_lost_device_is_logged_once(void **state)
{
    need_standin();
    struct world *w = *state;
    struct lines *log = lines_new();
    struct tarn_client *c = talkative_client(w, log);
    struct device *d = device_open(0);
    uint8_t *memory = device_alloc(d, 4096);
    assert_int_equal(client_put(w->client, "host", 'h', 4096, NULL), 0);
    assert_int_equal(piece_put(c, "k", memory, 4096, "node0/gpu0"), 0);
    tarn_standin_fail("lost:1");
    for (int i = 0; i < 5; i++)
        assert_int_equal(piece_get(c, "k", memory, 4096), TARN_E_UNAVAILABLE);
    assert_int_equal(lines_with(log, "level=warn"), 1);
    assert_int_equal(lines_with(log, "set aside for good"), 1);
    assert_int_equal(lines_with(log, "an illegal memory access"), 1);
    assert_int_equal(client_get(c, "host", 'h', 4096), 0);
    tarn_standin_fail(NULL);
    tarn_close(c);
    free(log);
    device_drop(d, memory);
    device_close(d);
    harness_passed(w->h);
}

#define TEST(_f) cmocka_unit_test_setup_teardown(_f, start, stop)

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "--client") == 0)
        return client_main(argv[2]);
    const struct CMUnitTest tests[] = {
        TEST(every_kind_of_memory_goes_to_every_pool),
        TEST(items_of_a_call_may_use_different_memory),
        TEST(two_gpus_in_one_item_are_refused),
        TEST(a_view_of_gpu_memory_does_not_change),
        TEST(gets_beside_views_return_right_bytes),
        TEST(gpus_without_peer_access_go_through_the_host),
        TEST(a_second_hop_that_fails_does_no_lasting_harm),
        TEST(a_client_without_gpus_has_no_view_of_one),
        TEST(a_client_that_sees_another_gpu_gets_the_reason),
        TEST(a_lost_device_is_logged_once),
    };
    return cmocka_run_group_tests_name("gpu memory", tests, NULL, NULL);
}
