/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong calls of libtarn: each is answered with one whole sentence, and none crashes. */
#include <stdlib.h>
#include <string.h>

#include "tests/world.h"

static const struct world_plan plan = {.nodes = 1,
                                       .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "200"},
                                       .client = {.timeout_ms = 5000}};

static int setup(void **state)
{
    return world_start_client(state, &plan);
}

/* Checks that the last call returned INVALID and said what to do. */
static void refused(int rc, const char *sentence)
{
    assert_int_equal(rc, TARN_E_INVALID);
    if (!strstr(tarn_last_error(), sentence))
        fail_msg("\"%s\" does not say \"%s\"", tarn_last_error(), sentence);
}

static void a_result_needs_an_address(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = w->client;
    struct tarn_key key = key_of("k");
    struct tarn_item item = {.key = key, .tensor = tarn_bytes(1)};
    struct tarn_hits *hits;
    char byte;

    refused(tarn_open(NULL, NULL), "open: nowhere to put the result");
    refused(tarn_lookup(c, &key, 1, NULL, NULL), "look-up: nowhere");
    refused(tarn_match_prefix(c, &key, 1, NULL, &hits, NULL), "match prefix: nowhere");
    refused(tarn_view(c, &key, 0, NULL), "view: nowhere");
    refused(tarn_register(c, &byte, 1, TARN_MEMORY_HOST, NULL), "register: nowhere");
    refused(tarn_put_begin(c, &item, 1, NULL, NULL), "put session: nowhere");
    refused(tarn_wait(c, 1, 0, NULL), "wait: nowhere");
    refused(tarn_drain(c, NULL, 1), "drain: nowhere");
    refused(tarn_stat(c, &key, 0, NULL, NULL), "stat: nowhere");
    refused(tarn_list(c, NULL, 0, NULL, NULL), "list: nowhere");
    refused(tarn_nodes(c, 0, NULL, NULL), "nodes: nowhere");
    refused(tarn_transports(NULL, NULL), "transports: nowhere");
    refused(tarn_events(c, 10, NULL, NULL), "events: nowhere");
    assert_int_equal(tarn_drain(c, NULL, 0), 0);
    harness_passed(w->h);
}

static void a_missing_argument_is_named(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = w->client;
    struct tarn_key key = key_of("k"), none = {NULL, 1}, empty = {"", 0}, long_ = {"", TARN_KEY_MAX + 1};
    struct tarn_piece nowhere = {.bytes = 4};
    struct tarn_piece far = {.addr = &key, .bytes = 1, .stride = UINT64_MAX / 2, .count = 4};
    struct tarn_item no_pieces = {.key = key, .npieces = 1, .tensor = tarn_bytes(4)},
                     no_address = {.key = key, .pieces = &nowhere, .npieces = 1, .tensor = tarn_bytes(4)},
                     wraps = {.key = key, .pieces = &far, .npieces = 1, .tensor = tarn_bytes(4)};
    struct tarn_put_session *s;
    struct tarn_hits *hits;
    struct tarn_mr *mr;
    struct tarn_tensor tensor;
    char text[8];

    refused(tarn_get(NULL, &no_pieces, 1, NULL), "client: NULL: pass what tarn_open() returned");
    refused(tarn_get(c, NULL, 1, NULL), "get: items are NULL");
    refused(tarn_get(c, &no_pieces, 1, NULL), "get: item 0: pieces are NULL");
    refused(tarn_put(c, NULL, 1, NULL), "put: items are NULL");
    refused(tarn_put(c, &no_pieces, 1, NULL), "put: item 0: pieces are NULL");
    refused(tarn_put(c, &no_address, 1, NULL), "piece 0 has no address");
    refused(tarn_put(c, &wraps, 1, NULL),
            "piece 0 reaches past all memory: correct its bytes, stride and count");
    refused(tarn_get(c, &no_address, 1, NULL),
            "get: item 0: piece 0 has no address: give that of its memory");
    refused(tarn_get(c, &wraps, 1, NULL), "get: item 0: piece 0 reaches past all memory");
    refused(tarn_put_begin(c, NULL, 1, NULL, &s), "put: items are NULL");
    refused(tarn_put_begin(c, NULL, 0, NULL, &s), "give at least one");
    refused(tarn_put_write(NULL, 0, 0, &nowhere, 1, 0), "pass what tarn_put_begin() made");
    refused(tarn_put_commit(NULL, NULL, 0), "pass what tarn_put_begin() made");
    refused(tarn_lookup(c, NULL, 1, NULL, &hits), "look-up: keys are NULL");
    refused(tarn_lookup(c, &none, 1, NULL, &hits), "key: NULL");
    refused(tarn_lookup(c, &empty, 1, NULL, &hits), "0 bytes");
    refused(tarn_lookup(c, &long_, 1, NULL, &hits), "1025 bytes");
    refused(tarn_remove(c, NULL, 1, NULL, 0), "remove: keys are NULL");
    refused(tarn_touch(c, NULL, 1), "touch: keys are NULL");
    refused(tarn_pin(c, NULL, 0, 0), "key: NULL");
    refused(tarn_unpin(c, NULL, 0), "key: NULL");
    refused(tarn_deregister(c, NULL), "pass what tarn_register() made");
    refused(tarn_deregister(c, (struct tarn_mr *)text), "has not registered it");
    assert_int_equal(tarn_register(c, text, sizeof text, TARN_MEMORY_HOST, &mr), 0);
    assert_int_equal(tarn_deregister(c, mr), 0);
    refused(tarn_deregister(c, mr), "or not any more");
    assert_int_equal(tarn_register(c, text, sizeof text, TARN_MEMORY_HOST, &mr),
                     0); /* tarn_close() frees it */
    refused(tarn_client_stats(c, NULL), "stats: size is not set");
    refused(tarn_key_escape(NULL, text, sizeof text), "key: NULL");
    refused(tarn_key_unescape(NULL, text, sizeof text), "key: NULL");
    refused(tarn_dtype_parse(NULL), "use one like u8");
    refused(tarn_tensor_check(NULL), "tensor: NULL");
    assert_int_equal(client_put(c, "k", 'a', 4, NULL), 0);
    assert_int_equal(tarn_lookup(c, &key, 1, NULL, &hits), 0);
    refused(tarn_hits_tensor(hits, 0, NULL), "hit: nowhere");
    assert_int_equal(tarn_hits_tensor(hits, 1, &tensor), TARN_E_NOT_FOUND);
    assert_int_equal(tarn_hits_tensor(NULL, 0, &tensor), TARN_E_NOT_FOUND);
    tarn_hits_free(hits);
    harness_passed(w->h);
}

static void unknown_flags_are_refused(void **state)
{
    struct world *w = *state;
    char byte = 'a';
    struct tarn_piece piece = {.addr = &byte, .bytes = 1};
    struct tarn_item item = {.key = key_of("k"), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(1)};
    struct tarn_put_options put = {.size = sizeof put, .flags = TARN_PUT_REPLACE | 1u << 7};
    struct tarn_get_options get = {.size = sizeof get, .flags = TARN_GET_RANGE | 1u << 30};
    struct tarn_put_session *s;

    refused(tarn_put(w->client, &item, 1, &put), "put: flags 0x81: 0x80 is none");
    refused(tarn_put_begin(w->client, &item, 1, &put, &s), "put session: flags");
    refused(tarn_submit_put(w->client, &item, 1, &put, 0, NULL), "put: flags");
    refused(tarn_get(w->client, &item, 1, &get), "0x40000000 is none");
    refused(tarn_submit_get(w->client, &item, 1, &get, 0, NULL), "get: flags");
    put.flags = TARN_PUT_REPLACE | TARN_PUT_PIN;
    assert_int_equal(tarn_put(w->client, &item, 1, &put), 0);
    get.flags = TARN_GET_RANGE | TARN_GET_NO_TOUCH | TARN_GET_NOW;
    assert_int_not_equal(tarn_get(w->client, &item, 1, &get), TARN_E_INVALID);
    harness_passed(w->h);
}

static void an_empty_secret_is_refused(void **state)
{
    struct world *w = *state;
    struct tarn_options o = {.size = sizeof o, .redis = w->redis->url, .secret = ""};
    struct tarn_client *c;

    assert_int_equal(tarn_open(&o, &c), TARN_E_CONFIG);
    assert_non_null(strstr(tarn_last_error(), "secret: is empty"));
    assert_non_null(strstr(tarn_last_error(), "TARN_SECRET"));
    harness_passed(w->h);
}

/* The remedy is at the end of the sentence, so a truncated sentence would lack it. */
static void a_completion_has_the_whole_sentence(void **state)
{
    struct world *w = *state;
    char key[91], bytes[3];
    struct tarn_piece piece = {.addr = bytes, .bytes = sizeof bytes};
    struct tarn_completion done = {0};
    tarn_op op;

    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    struct tarn_item item = {.key = key_of(key), .pieces = &piece, .npieces = 1, .offset = UINT64_MAX};
    assert_int_equal(client_put(w->client, key, 'x', 5, NULL), 0);
    assert_int_equal(tarn_submit_get(w->client, &item, 1, NULL, 0, &op), 0);
    assert_int_equal(tarn_wait(w->client, op, 0, &done), 0);
    assert_int_equal(done.status, TARN_E_SIZE);
    assert_true(strlen(done.error) > 191);
    assert_non_null(strstr(done.error, "size them alike or ask for a range"));
    harness_passed(w->h);
}

#define MISUSE_TEST(f_) cmocka_unit_test_setup_teardown(f_, setup, world_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        MISUSE_TEST(a_result_needs_an_address),           MISUSE_TEST(a_missing_argument_is_named),
        MISUSE_TEST(unknown_flags_are_refused),           MISUSE_TEST(an_empty_secret_is_refused),
        MISUSE_TEST(a_completion_has_the_whole_sentence),
    };
    return cmocka_run_group_tests_name("misuse", tests, NULL, NULL);
}
