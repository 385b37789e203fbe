/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU pools from the option to the bytes: what a node refuses and reports, what it publishes, how GPUs are
 * identified, which memory may be mixed, and what remains when CUDA fails. Uses the machine's GPUs or the
 * stand-in.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/device.h"
#include "tests/node_client.h"
#include "tests/standin/cuda_standin.h"
#include "tests/world.h"
#include "transport/cuda/cuda_text.h"

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

static void need_standin(void)
{
    devices_need(2);
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in fails and hides on demand");
}

/* --- the node ----------------------------------------------------------------------------------- */

static void refuses(struct world *w, const char *pool, const char *sentence, const char *other)
{
    static int n;
    char name[32];
    snprintf(name, sizeof name, "refused%d", n++);
    struct harness_process *p = harness_node_spawn(w->h, name, w->redis, "--pool", pool, NULL);
    assert_int_equal(harness_wait(p, HARNESS_TIMEOUT_MS), 1);
    assert_non_null(strstr(harness_log(p), sentence));
    assert_non_null(strstr(harness_log(p), other));
}

static void a_missing_gpu_is_refused_with_a_list_of_the_others(void **state)
{
    struct tarn_cuda_device d;
    char uuid[TARN_CUDA_UUID_TEXT];
    devices_need(1);
    assert_int_equal(tarn_cuda_describe(0, &d), 0);
    tarn_cuda_uuid_format(d.uuid, uuid);
    refuses(*state, "gpu7:device=99,bytes=1M", "pool gpu7: device 99: there is no such GPU", uuid);
    refuses(*state, "gpu7:device=GPU-00000000-0000-0000-0000-000000000000,bytes=1M", "no such GPU", uuid);
    refuses(*state, "gpu7:device=first,bytes=1M", "no such GPU", uuid);
    harness_passed(((struct world *)*state)->h);
}

static void a_pool_larger_than_the_gpu_is_refused_with_the_free_bytes(void **state)
{
    devices_need(1);
    refuses(*state, "gpu7:device=0,bytes=4T", "pool gpu7", "free");
    harness_passed(((struct world *)*state)->h);
}

static void the_directory_and_info_name_the_gpu(void **state)
{
    devices_need(1);
    struct world *w = *state;
    struct tarn_cuda_device d;
    char uuid[TARN_CUDA_UUID_TEXT];
    assert_int_equal(tarn_cuda_describe(0, &d), 0);
    tarn_cuda_uuid_format(d.uuid, uuid);
    redisReply *r = harness_redis_call(w->redis, "HMGET", "tarn:default:pool:node0/gpu0", "kind", "device",
                                       "cuda_ipc", "transports", NULL);
    assert_int_equal(r->elements, 4);
    assert_string_equal(r->element[0]->str, "gpu");
    assert_string_equal(r->element[1]->str, uuid);
    assert_int_equal(strncmp(r->element[2]->str, uuid, strlen(uuid)), 0);
    assert_int_equal(strlen(r->element[2]->str), strlen(uuid) + strlen(" 67108864 ") + 2 * TARN_CUDA_HANDLE);
    assert_string_equal(r->element[3]->str, "cuda_ipc,tcp");
    freeReplyObject(r);
    r = harness_call(w->nodes[0]->local, "INFO", "pools", NULL);
    assert_non_null(strstr(r->str, "name=gpu0,kind=gpu,device=GPU-"));
    assert_non_null(strstr(r->str, "name=cpu0,kind=cpu,bytes="));
    freeReplyObject(r);
    harness_passed(w->h);
}

/* --- puts and gets ------------------------------------------------------------------------------ */

static void puts_that_name_no_pool_leave_the_gpu_alone(void **state)
{
    devices_need(1);
    struct world *w = *state;
    client_put_each(w->client, "k", 20, 'x', MIB, NULL);
    assert_int_equal(
        harness_redis_integer(w->redis, "EVAL",
                              "local n=0 for _,k in ipairs(redis.call('KEYS','tarn:default:o:*')) do "
                              "n=n+redis.call('HEXISTS',k,'@node0/gpu0') end return n",
                              "0", NULL),
        0);
    harness_passed(w->h);
}

/* Also far from the pool's beginning and at odd offsets: a handle refers to the arena, the offset is
 * added. */
static void every_offset_of_a_pool_is_reached(void **state)
{
    enum { N = 40 };
    devices_need(1);
    struct world *w = *state;
    struct device *d = device_open(0);
    size_t bytes = MIB + 12345;
    uint8_t *memory = device_alloc(d, bytes);
    char key[16];
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof key, "o%d", i);
        device_set(d, memory, (uint8_t)(i + 1), bytes);
        assert_int_equal(piece_put(w->client, key, memory, bytes, "node0/gpu0"), 0);
    }
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof key, "o%d", i);
        assert_int_equal(piece_get(w->client, key, memory, bytes), 0);
        device_expect(d, memory, (uint8_t)(i + 1), bytes);
    }
    device_drop(d, memory);
    device_close(d);
    harness_passed(w->h);
}

/* TARN_GET_NOW waits for GPUs of this host, if the client knows the object and the way to it. It waits for
 * nothing else. */
static void get_now_waits_for_copies_by_a_gpu(void **state)
{
    devices_need(1);
    struct world *w = *state;
    struct device *d = device_open(0);
    uint8_t *memory = device_alloc(d, 4096);
    struct tarn_piece pieces[2] = {{.addr = memory, .bytes = 2048}, {.addr = memory + 2048, .bytes = 2048}};
    struct tarn_item items[2] = {{.key = key_of("known"), .pieces = &pieces[0], .npieces = 1},
                                 {.key = key_of("known2"), .pieces = &pieces[1], .npieces = 1}};
    struct tarn_get_options now = {.size = sizeof now, .flags = TARN_GET_NOW};
    device_set(d, memory, 7, 4096);
    assert_int_equal(piece_put(w->client, "known", memory, 2048, "node0/gpu0"), 0);
    assert_int_equal(piece_put(w->client, "known2", memory, 2048, "node0/gpu0"), 0);
    struct tarn_client *fresh = world_client(w, "cuda_ipc");
    assert_int_equal(tarn_get(fresh, items, 2, &now), TARN_E_AGAIN);
    assert_int_equal(items[1].status, TARN_E_AGAIN);
    assert_int_equal(tarn_get(fresh, items, 2, NULL), 0);
    device_set(d, memory, 0, 4096);
    assert_int_equal(tarn_get(fresh, items, 2, &now), 0);
    device_expect(d, memory, 7, 4096);
    tarn_close(fresh);
    device_drop(d, memory);
    device_close(d);
    harness_passed(w->h);
}

/* The first item that would wait for others ends the call's waiting, wherever it is in it. */
static void get_now_ends_at_the_first_item_that_waits_for_others(void **state)
{
    devices_need(1);
    struct world *w = *state;
    struct device *d = device_open(0);
    uint8_t *memory = device_alloc(d, 3 * 2048);
    static const char *const orders[] = {"known unknown known", "unknown known known", "known known unknown"};
    device_set(d, memory, 7, 2048);
    assert_int_equal(piece_put(w->client, "known", memory, 2048, "node0/gpu0"), 0);
    assert_int_equal(piece_put(w->client, "unknown", memory, 2048, "node0/gpu0"), 0);
    for (int order = 0; order < 3; order++) {
        struct tarn_client *fresh = world_client(w, "cuda_ipc");
        struct tarn_get_options now = {.size = sizeof now, .flags = TARN_GET_NOW};
        struct tarn_piece pieces[3];
        struct tarn_item items[3];
        int again = 0, far = order == 0 ? 1 : order == 1 ? 0 : 2;
        for (int i = 0; i < 3; i++) {
            pieces[i] = (struct tarn_piece){.addr = memory + i * 2048, .bytes = 2048};
            items[i] = (struct tarn_item){
                .key = key_of(i == far ? "unknown" : "known"), .pieces = &pieces[i], .npieces = 1};
        }
        assert_int_equal(piece_get(fresh, "known", memory, 2048), 0);
        assert_int_equal(tarn_get(fresh, items, 3, &now), TARN_E_AGAIN);
        assert_non_null(strstr(tarn_last_error(), "TARN_GET_NOW"));
        for (int i = 0; i < 3; i++) {
            again += items[i].status == TARN_E_AGAIN;
            if (items[i].status != (i < far ? 0 : TARN_E_AGAIN))
                fail_msg("%s: item %d: %d", orders[order], i, items[i].status);
        }
        assert_int_equal(again, 3 - far);
        assert_int_equal(tarn_get(fresh, items, 3, NULL), 0);
        tarn_close(fresh);
    }
    device_drop(d, memory);
    device_close(d);
    harness_passed(w->h);
}

static void an_item_uses_one_kind_of_memory(void **state)
{
    devices_need(1);
    struct world *w = *state;
    struct device *d = device_open(0);
    uint8_t *there = device_alloc(d, 4096), here[64] = {0};
    struct tarn_piece pieces[] = {{.addr = there, .bytes = 64}, {.addr = here, .bytes = 64}};
    struct tarn_item item = {
        .key = key_of("mixed"), .pieces = pieces, .npieces = 2, .tensor = tarn_bytes(128)};
    assert_int_equal(tarn_put(w->client, &item, 1, NULL), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "piece 1"));
    assert_int_equal(client_put(w->client, "mixed", 'm', 128, NULL), 0);
    assert_int_equal(tarn_get(w->client, &item, 1, NULL), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "piece 1"));
    device_drop(d, there);
    device_close(d);
    harness_passed(w->h);
}

static void memory_is_registered_only_with_its_own_kind(void **state)
{
    devices_need(1);
    struct world *w = *state;
    struct device *d = device_open(0);
    uint8_t *there = device_alloc(d, 4096), here[4096] = {0};
    struct tarn_mr *mr;
    assert_int_equal(tarn_register(w->client, there, 4096, TARN_MEMORY_CUDA, &mr), 0);
    assert_int_equal(tarn_deregister(w->client, mr), 0);
    assert_int_equal(tarn_register(w->client, there, 4096, TARN_MEMORY_HOST, &mr), TARN_E_INVALID);
    assert_int_equal(tarn_register(w->client, here, 4096, TARN_MEMORY_CUDA, &mr), TARN_E_INVALID);
    device_drop(d, there);
    device_close(d);
    harness_passed(w->h);
}

static void transports_that_do_not_know_gpu_memory_leave_it_alone(void **state)
{
    devices_need(1);
    struct world *w = *state;
    struct tarn_client *c = world_client(w, "shm");
    struct device *d = device_open(0);
    uint8_t *there = device_alloc(d, 4096);
    assert_int_equal(piece_put(c, "k", there, 4096, NULL), TARN_E_NOT_REACHABLE);
    assert_non_null(strstr(tarn_last_error(), "GPU memory"));
    assert_int_equal(client_put(c, "k", 'k', 4096, NULL), 0);
    assert_int_equal(piece_get(c, "k", there, 4096), TARN_E_NOT_REACHABLE);
    tarn_close(c);
    device_drop(d, there);
    device_close(d);
    harness_passed(w->h);
}

/* --- which GPU is which ------------------------------------------------------------------------- */

/* Puts and gets with the memory of a device. Its number here does not say which GPU it is. */
static int round_trip(struct tarn_client *c, int ordinal)
{
    struct device *d = device_open(ordinal);
    uint8_t *there = device_alloc(d, 100000);
    device_set(d, there, (uint8_t)(7 + ordinal), 100000);
    int rc = piece_put(c, "k", there, 100000, "node0/gpu0");
    device_set(d, there, 0, 100000);
    if (!rc)
        rc = piece_get(c, "k", there, 100000);
    if (!rc)
        device_expect(d, there, (uint8_t)(7 + ordinal), 100000);
    device_drop(d, there);
    device_close(d);
    return rc;
}

/* test_gpu_pools --client REDIS: a cuda_ipc round trip with each GPU that the process sees. Prints the
 * results. */
static int client_main(const char *redis)
{
    struct tarn_client *c =
        client_open(redis, (struct tarn_options){.timeout_ms = 3000, .transports = "cuda_ipc"});
    for (int i = 0; i < devices_there(); i++) {
        int rc = round_trip(c, i);
        printf("%s %s\n", tarn_error_name(rc), rc ? tarn_last_error() : "");
    }
    tarn_close(c);
    return 0;
}

static const char *say_of_client(struct world *w, const char *visible)
{
    const char *argv[] = {self, "--client", w->redis->url, NULL};
    setenv("STANDIN_VISIBLE", visible, 1);
    struct harness_process *p = harness_spawn(w->h, "client", argv);
    unsetenv("STANDIN_VISIBLE");
    assert_int_equal(harness_wait(p, HARNESS_TIMEOUT_MS), 0);
    return harness_stdout(p, NULL);
}

/* The node numbers its GPUs in another order than its client. */
static void a_pool_is_found_by_its_uuid(void **state)
{
    need_standin();
    struct world *w = *state;
    assert_string_equal(say_of_client(w, "1,0"), "OK \nOK \n");
    harness_passed(w->h);
}

static void a_gpu_that_is_hidden_is_named(void **state)
{
    need_standin();
    struct world *w = *state;
    const char *said = say_of_client(w, "1");
    assert_non_null(strstr(said, "NOT_REACHABLE"));
    assert_non_null(strstr(said, "CUDA_VISIBLE_DEVICES"));
    harness_passed(w->h);
}

/* --- when CUDA fails ---------------------------------------------------------------------------- */

static void a_lost_device_fails_only_its_own_operations(void **state)
{
    need_standin();
    struct world *w = *state;
    struct device *d = device_open(0);
    uint8_t *there = device_alloc(d, 4096);
    assert_int_equal(client_put(w->client, "host", 'h', 4096, NULL), 0);
    assert_int_equal(piece_put(w->client, "k", there, 4096, "node0/gpu0"), 0);
    tarn_standin_fail("lost:1");
    assert_int_equal(piece_get(w->client, "k", there, 4096), TARN_E_UNAVAILABLE);
    assert_non_null(strstr(tarn_last_error(), "device 0"));
    assert_int_equal(piece_put(w->client, "k2", there, 4096, "node0/gpu0"), TARN_E_UNAVAILABLE);
    assert_int_equal(client_get(w->client, "host", 'h', 4096), 0);
    tarn_standin_fail(NULL);
    device_drop(d, there);
    device_close(d);
    harness_passed(w->h);
}

/* Each call fails once. The operation reports that failure or succeeds on a retry, and the next one works. */
static void a_call_that_fails_once_does_no_lasting_harm(void **state)
{
    static const char *const calls[] = {"open:1", "pin:1", "queue:1", "copy:1", "mark:1", "poll:1"};
    need_standin();
    struct world *w = *state;
    struct device *d = device_open(0);
    uint8_t *there = device_alloc(d, 4096);
    device_set(d, there, 9, 4096);
    assert_int_equal(piece_put(w->client, "k", there, 4096, "node0/gpu0"), 0);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        struct tarn_client *c = world_client(w, NULL);
        tarn_standin_fail(calls[i]);
        int rc = piece_get(c, "k", there, 4096);
        tarn_standin_fail(NULL);
        if (rc != 0)
            assert_non_null(strstr(tarn_last_error(), "told to fail"));
        device_set(d, there, 0, 4096);
        assert_int_equal(piece_get(c, "k", there, 4096), 0);
        device_expect(d, there, 9, 4096);
        assert_int_equal(piece_put(c, "again", there, 4096, "node0/gpu0"), 0);
        tarn_close(c);
    }
    device_drop(d, there);
    device_close(d);
    harness_passed(w->h);
}

/* By STORE the node's CPU writes, and the client's reads. */
static void small_objects_go_to_and_from_gpus_without_the_cpu(void **state)
{
    devices_need(1);
    struct world *w = *state;
    struct device *d = device_open(0);
    uint8_t *there = device_alloc(d, 4096);
    char host[4096] = "", deadline[24];
    device_set(d, there, 9, 4096);
    assert_int_equal(piece_put(w->client, "first", host, 1, "node0/cpu0"), 0);
    long long before = node_figure(w->nodes[0]->local, "stores");
    assert_int_equal(piece_put(w->client, "to a gpu", host, 4096, "node0/gpu0"), 0);
    assert_int_equal(piece_put(w->client, "from a gpu", there, 4096, "node0/cpu0"), 0);
    assert_int_equal(node_figure(w->nodes[0]->local, "stores"), before);
    assert_int_equal(piece_put(w->client, "neither", host, 4096, "node0/cpu0"), 0);
    assert_int_equal(node_figure(w->nodes[0]->local, "stores"), before + 1);
    struct node_client c = node_connect(w->nodes[0]->control);
    snprintf(deadline, sizeof deadline, "%s", node_deadline(&c, 5000));
    freeReplyObject(
        harness_command(c.resp, "RESERVE", "gpu0", "absent", "7", "0", "0", "", "k", "3", "u8", "3", NULL));
    assert_error(harness_command(c.resp, "STORE", deadline, "abc", NULL), "NOT_REACHABLE");
    node_close(&c);
    device_drop(d, there);
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
        TEST(a_missing_gpu_is_refused_with_a_list_of_the_others),
        TEST(a_pool_larger_than_the_gpu_is_refused_with_the_free_bytes),
        TEST(the_directory_and_info_name_the_gpu),
        TEST(puts_that_name_no_pool_leave_the_gpu_alone),
        TEST(every_offset_of_a_pool_is_reached),
        TEST(an_item_uses_one_kind_of_memory),
        TEST(memory_is_registered_only_with_its_own_kind),
        TEST(transports_that_do_not_know_gpu_memory_leave_it_alone),
        TEST(small_objects_go_to_and_from_gpus_without_the_cpu),
        TEST(a_pool_is_found_by_its_uuid),
        TEST(a_gpu_that_is_hidden_is_named),
        TEST(a_call_that_fails_once_does_no_lasting_harm),
        TEST(get_now_waits_for_copies_by_a_gpu),
        TEST(get_now_ends_at_the_first_item_that_waits_for_others),
        TEST(a_lost_device_fails_only_its_own_operations),
    };
    return cmocka_run_group_tests_name("gpu pools", tests, NULL, NULL);
}
