/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrong calls: each gets its error code and a sentence that names the object, the cause and the remedy. None
 * leaves anything behind.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include <tarn/tarn.h>

#define MIB (1024u * 1024u)

static struct harness *h;
static struct harness_redis *redis;
static struct harness_node *node;
static struct tarn_client *client;

static int start(void **state)
{
    (void)state;
    h = harness_new();
    redis = harness_redis_start(h, NULL);
    node = harness_node_start(h, "node0", redis, "--pool", "cpu0:bytes=16M", NULL);
    struct tarn_options o = {.size = sizeof o, .redis = redis->url};
    assert_int_equal(tarn_open(&o, &client), 0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    tarn_close(client);
    harness_free(h);
    return 0;
}

static int put(struct tarn_key key, struct tarn_tensor tensor, void *data, uint64_t bytes)
{
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = {.key = key, .pieces = &piece, .npieces = 1, .tensor = tensor};
    int status = tarn_put(client, &item, 1, NULL);
    assert_int_equal(status, item.status);
    return status;
}

static int get(struct tarn_key key, void *data, uint64_t bytes)
{
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = {.key = key, .pieces = &piece, .npieces = 1};
    return tarn_get(client, &item, 1, NULL);
}

static void says(const char *word)
{
    if (!strstr(tarn_last_error(), word))
        fail_msg("\"%s\" does not say \"%s\"", tarn_last_error(), word);
}

static struct tarn_key text(const char *s)
{
    return (struct tarn_key){.data = s, .bytes = strlen(s)};
}

/* Fails if the node's INFO still shows `what`. */
static void expect_node_empty_of(const char *what)
{
    redisReply *r = harness_call(node->control, "INFO", NULL);
    assert_true(r->type == REDIS_REPLY_STRING);
    if (strstr(r->str, what))
        fail_msg("INFO still shows \"%s\":\n%s", what, r->str);
    freeReplyObject(r);
}

static void key_lengths(void **state)
{
    (void)state;
    char data[8] = {0}, longest[TARN_KEY_MAX + 1];
    memset(longest, 'k', sizeof longest);
    assert_int_equal(put((struct tarn_key){"", 0}, tarn_bytes(8), data, 8), TARN_E_INVALID);
    says("key");
    struct tarn_key too_long = {longest, sizeof longest};
    assert_int_equal(put(too_long, tarn_bytes(8), data, 8), TARN_E_INVALID);
    says("1024");
    assert_int_equal(get(too_long, data, 8), TARN_E_INVALID);
    assert_int_equal(get((struct tarn_key){"", 0}, data, 8), TARN_E_INVALID);
    struct tarn_key just = {longest, TARN_KEY_MAX};
    assert_int_equal(put(just, tarn_bytes(8), data, 8), 0);
    assert_int_equal(get(just, data, 8), 0);
}

static void binary_keys(void **state)
{
    (void)state;
    char all[256], data[16] = "binary key value", back[16];
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    assert_int_equal(put((struct tarn_key){all, sizeof all}, tarn_bytes(16), data, 16), 0);
    assert_int_equal(get((struct tarn_key){all, sizeof all}, back, 16), 0);
    assert_memory_equal(back, data, 16);
    assert_int_equal(get((struct tarn_key){all, 255}, back, 16), TARN_E_NOT_FOUND);
}

static void larger_than_any_pool(void **state)
{
    (void)state;
    char *data = calloc(1, 17 * MIB);
    assert_int_equal(put(text("huge"), tarn_bytes(17 * MIB), data, 17 * MIB), TARN_E_TOO_LARGE);
    says("huge");
    assert_int_equal(get(text("huge"), data, 17 * MIB), TARN_E_NOT_FOUND);
    free(data);
    struct tarn_tensor absurd = tarn_bytes(UINT64_MAX / 2);
    struct tarn_piece piece = {.addr = &absurd, .bytes = UINT64_MAX / 2};
    struct tarn_item item = {.key = text("absurd"), .pieces = &piece, .npieces = 1, .tensor = absurd};
    assert_int_equal(tarn_put(client, &item, 1, NULL), TARN_E_TOO_LARGE);
}

static void shape_and_size_disagree(void **state)
{
    (void)state;
    char data[24] = {0};
    struct tarn_tensor t = {.bytes = 24, .dtype = TARN_F32, .ndim = 2, .shape = {2, 4}};
    assert_int_equal(put(text("shape"), t, data, 24), TARN_E_INVALID);
    says("32");
    t.shape[1] = UINT64_MAX;
    assert_int_equal(put(text("shape"), t, data, 24), TARN_E_INVALID);
    t = (struct tarn_tensor){.bytes = 24, .dtype = TARN_F32, .ndim = 9};
    assert_int_equal(put(text("shape"), t, data, 24), TARN_E_INVALID);
    /* The pieces do not add up to the tensor's size. */
    assert_int_equal(put(text("shape"), tarn_bytes(24), data, 23), TARN_E_INVALID);
    assert_int_equal(get(text("shape"), data, 24), TARN_E_NOT_FOUND);
}

static void unknown_dtype(void **state)
{
    (void)state;
    char data[8] = {0};
    struct tarn_tensor t = {.bytes = 8, .dtype = TARN_DTYPE_COUNT, .ndim = 1, .shape = {8}};
    assert_int_equal(put(text("dtype"), t, data, 8), TARN_E_INVALID);
    says("dtype");
}

static void pieces_that_overflow(void **state)
{
    (void)state;
    char data[8];
    struct tarn_piece pieces[2] = {{.addr = data, .bytes = UINT64_MAX}, {.addr = data, .bytes = 9}};
    struct tarn_item item = {
        .key = text("overflow"), .pieces = pieces, .npieces = 2, .tensor = tarn_bytes(8)};
    assert_int_equal(tarn_put(client, &item, 1, NULL), TARN_E_INVALID);
    item.tensor = tarn_bytes(0);
    assert_true(tarn_get(client, &item, 1, NULL) < 0);
}

static void zero_length_is_legal_and_not_absent(void **state)
{
    (void)state;
    struct tarn_item item = {.key = text("nothing"), .tensor = tarn_bytes(0)};
    assert_int_equal(tarn_put(client, &item, 1, NULL), 0);
    struct tarn_item got = {.key = text("nothing")};
    assert_int_equal(tarn_get(client, &got, 1, NULL), 0);
    assert_int_equal(got.tensor.bytes, 0);
    struct tarn_item absent = {.key = text("absent")};
    assert_int_equal(tarn_get(client, &absent, 1, NULL), TARN_E_NOT_FOUND);
}

static void options_that_do_not_exist(void **state)
{
    (void)state;
    struct tarn_client *c = NULL;
    struct tarn_options o = {.size = sizeof o, .redis = redis->url, .transports = "smh"};
    assert_int_equal(tarn_open(&o, &c), TARN_E_CONFIG);
    says("shm");
    o = (struct tarn_options){.size = sizeof o, .redis = "http://127.0.0.1:1"};
    assert_int_equal(tarn_open(&o, &c), TARN_E_CONFIG);
    says("http");
    o = (struct tarn_options){.size = sizeof o, .redis = redis->url, .ns = "with space"};
    assert_int_equal(tarn_open(&o, &c), TARN_E_CONFIG);
    o = (struct tarn_options){.size = sizeof o, .redis = redis->url, .reserved = "x"};
    assert_int_equal(tarn_open(&o, &c), TARN_E_INVALID);
    says("reserved");
    o.reserved = NULL;
    setenv("TARN_FAULTS", "shm:nonsense=1", 1);
    assert_int_equal(tarn_open(&o, &c), TARN_E_CONFIG);
    says("faults: \"nonsense=1\"");
    unsetenv("TARN_FAULTS");
    assert_null(c);
    struct tarn_item item = {.key = text("placed"), .tensor = tarn_bytes(0)};
    struct tarn_put_options p = {.size = sizeof p, .place = "no-such-node"};
    assert_true(tarn_put(client, &item, 1, &p) < 0);
    says("no-such-node");
    p = (struct tarn_put_options){.size = sizeof p, .replicas = 3};
    assert_true(tarn_put(client, &item, 1, &p) < 0);
    says("3");
    assert_int_equal(tarn_get(client, &item, 1, NULL), TARN_E_NOT_FOUND);
}

static void nothing_was_left_reserved(void **state)
{
    (void)state;
    expect_node_empty_of("reserved=1");
    harness_passed(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(key_lengths),
        cmocka_unit_test(binary_keys),
        cmocka_unit_test(larger_than_any_pool),
        cmocka_unit_test(shape_and_size_disagree),
        cmocka_unit_test(unknown_dtype),
        cmocka_unit_test(pieces_that_overflow),
        cmocka_unit_test(zero_length_is_legal_and_not_absent),
        cmocka_unit_test(options_that_do_not_exist),
        cmocka_unit_test(nothing_was_left_reserved),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
