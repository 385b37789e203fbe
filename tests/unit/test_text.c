/* SPDX-License-Identifier: Apache-2.0 */
/* Text and back: errors, dtypes, shapes, numbers, sizes, keys, similar names, buffers and log lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

#define COUNT(a_) (sizeof(a_) / sizeof *(a_))

/* --- errors ------------------------------------------------------------------------------------- */

static void error_names_are_reversible(void **state)
{
    (void)state;
    for (int code = -1; strcmp(tarn_error_name(code), "UNKNOWN") != 0; code--) {
        const char *name = tarn_error_name(code);
        assert_int_equal(tarn_error_parse(name, strlen(name), 0), code);
        assert_int_not_equal(tarn_error_class(code), TARN_CLASS_NONE);
        assert_true(strlen(tarn_strerror(code)) > 3);
    }
    assert_string_equal(tarn_error_name(TARN_E_CONFIG), "CONFIG");
    assert_int_equal(tarn_error_class(TARN_E_STALE), TARN_CLASS_RELOCATE);
    assert_int_equal(tarn_error_class(0), TARN_CLASS_NONE);
    assert_int_equal(tarn_error_class(7), TARN_CLASS_NONE);
    assert_int_equal(tarn_error_parse("EXIST", 5, -99), -99);
    assert_int_equal(tarn_error_parse("EXISTS the key", 6, -99), TARN_E_EXISTS);
    assert_non_null(tarn_strerror(-12345));
}

static void last_error_may_quote_itself(void **state)
{
    char huge[4000];

    (void)state;
    assert_int_equal(tarn_fail(TARN_E_SIZE, "inner %d", 7), TARN_E_SIZE);
    assert_int_equal(tarn_fail(TARN_E_CONFIG, "outer: %s", tarn_last_error()), TARN_E_CONFIG);
    assert_string_equal(tarn_last_error(), "outer: inner 7");
    tarn_last_error_set(tarn_last_error() + 7);
    assert_string_equal(tarn_last_error(), "inner 7");

    memset(huge, 'x', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    tarn_fail(TARN_E_SIZE, "%s", huge);
    assert_in_range(strlen(tarn_last_error()), 100, sizeof huge - 2);
    tarn_last_error_set(huge);
    assert_in_range(strlen(tarn_last_error()), 100, sizeof huge - 2);
}

/* --- tensors ------------------------------------------------------------------------------------ */

static void a_reason_carries_a_failure(void **state)
{
    struct tarn_reason reason, none;

    (void)state;
    assert_int_equal(tarn_reason_keep(&reason, tarn_fail(TARN_E_STALE, "key k: replaced")), TARN_E_STALE);
    assert_int_equal(tarn_reason_keep(&none, TARN_OK), TARN_OK);
    assert_string_equal(none.text, "");
    tarn_fail(TARN_E_CONFIG, "another");
    assert_int_equal(tarn_reason_fail(&none), TARN_OK);
    assert_string_equal(tarn_last_error(), "another");
    assert_int_equal(tarn_reason_fail(&reason), TARN_E_STALE);
    assert_string_equal(tarn_last_error(), "key k: replaced");
}

static void dtypes(void **state)
{
    (void)state;
    for (uint32_t d = 0; d < TARN_DTYPE_COUNT; d++) {
        assert_int_equal(tarn_dtype_parse(tarn_dtype_name(d)), d);
        assert_in_range(tarn_dtype_bytes(d), 1, 16);
    }
    assert_int_equal(tarn_dtype_parse("bf16"), TARN_BF16);
    assert_int_equal(tarn_dtype_bytes(TARN_BF16), 2);
    assert_int_equal(tarn_dtype_bytes(TARN_C128), 16);
    assert_int_equal(tarn_dtype_parse("BF16"), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "BF16"));
    assert_int_equal(tarn_dtype_parse(""), TARN_E_INVALID);
    assert_int_equal(tarn_dtype_parse_n("f32x", 3), TARN_F32);
    assert_null(tarn_dtype_name(TARN_DTYPE_COUNT));
    assert_int_equal(tarn_dtype_bytes(UINT32_MAX), 0);
}

static void tensors_must_agree(void **state)
{
    struct tarn_tensor t = {.bytes = 2 * 3 * 4, .dtype = TARN_F32, .ndim = 2, .shape = {2, 3}};
    struct tarn_tensor plain = tarn_bytes(77), scalar = {.bytes = 8, .dtype = TARN_F64};

    (void)state;
    assert_int_equal(tarn_tensor_check(&t), 0);
    assert_int_equal(tarn_tensor_check(&plain), 0);
    assert_int_equal(tarn_tensor_check(&scalar), 0);
    t.bytes = 23;
    assert_int_equal(tarn_tensor_check(&t), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "24"));
    assert_non_null(strstr(tarn_last_error(), "23"));
    t.shape[0] = UINT64_MAX;
    assert_int_equal(tarn_tensor_check(&t), TARN_E_INVALID);
    t.shape[1] = t.bytes = 0; /* valid, however large the other dimension */
    assert_int_equal(tarn_tensor_check(&t), 0);
    t.ndim = TARN_DIMS_MAX + 1;
    assert_int_equal(tarn_tensor_check(&t), TARN_E_INVALID);
    t.ndim = 0;
    t.dtype = 1000;
    assert_int_equal(tarn_tensor_check(&t), TARN_E_INVALID);
}

static void shapes(void **state)
{
    static const char *const bad[] = {
        ",", "1,", ",1", "1,,2", "-1", "1 ,2", "x", "1,2,3,4,5,6,7,8,9", "18446744073709551616", "0x10"};
    struct tarn_tensor t = {.ndim = 3, .shape = {9, 9, 9}};
    char text[TARN_SHAPE_TEXT];

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(tarn_shape_parse(bad[i], strlen(bad[i]), &t), TARN_E_INVALID);
        assert_int_equal(t.ndim, 3); /* a failure changes nothing */
        assert_int_equal(t.shape[1], 9);
    }
    static const char *const good[] = {"", "0", "7", "2,16,8",
                                       "18446744073709551615,18446744073709551615,18446744073709551615,"
                                       "18446744073709551615,18446744073709551615,18446744073709551615,"
                                       "18446744073709551615,18446744073709551615"};
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(tarn_shape_parse(good[i], strlen(good[i]), &t), 0);
        tarn_shape_format(&t, text);
        assert_string_equal(text, good[i]);
    }
    assert_int_equal(tarn_shape_parse("2,16]", 4, &t), 0);
    assert_int_equal(t.ndim, 2);
    assert_int_equal(t.shape[1], 16);
}

/* --- numbers ------------------------------------------------------------------------------------ */

static void numbers(void **state)
{
    uint64_t v = 5;

    (void)state;
    assert_int_equal(tarn_u64_parse("18446744073709551615", 20, 10, UINT64_MAX, &v), 0);
    assert_true(v == UINT64_MAX);
    assert_int_equal(tarn_u64_parse("ffffFFFFffffffff", 16, 16, UINT64_MAX, &v), 0);
    assert_true(v == UINT64_MAX);
    assert_int_equal(tarn_u64_parse("007", 3, 10, 7, &v), 0);
    assert_true(v == 7);
    static const char *const bad[] = {
        "", "-1", "+1", " 1", "1 ", "0x1", "a", "18446744073709551616", "8", "99999999999999999999999999"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(tarn_u64_parse(bad[i], strlen(bad[i]), 10, 7, &v), TARN_E_INVALID);
        assert_true(v == 7);
    }
}

static void sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},           {"4096", 4096},       {"64K", 65536},
                {"64k", 65536},     {"64KiB", 65536},     {"64KB", 65536},
                {"10B", 10},        {"1.5G", 3ull << 29}, {"0.25M", 1 << 18},
                {"2T", 2ull << 40}, {"1P", 1ull << 50},   {"18446744073709551615", UINT64_MAX}};
    static const char *const bad[] = {
        "",        "K",     "1X",   "1.5", "-1",  "1 K",       "1.K",
        ".5K",     "1e3",   "0x10", "1KK", "1iB", "16777216T", "18446744073709551616",
        "1.2345K", "1.5.5K"};
    uint64_t v = 0;

    (void)state;
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(tarn_size_parse(good[i].text, &v), 0);
        assert_true(v == good[i].bytes);
    }
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(tarn_size_parse(bad[i], &v), TARN_E_INVALID);
    assert_true(v == UINT64_MAX);
}

static void sizes_for_people(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } rows[] = {{0, "0 B"},
                {1023, "1023 B"},
                {1024, "1 KiB"},
                {1536, "1.5 KiB"},
                {(1 << 20) - 1, "1 MiB"},
                {3ull << 29, "1.5 GiB"},
                {10 * 1024, "10 KiB"},
                {UINT64_MAX, "16 EiB"}};
    char text[16];

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        tarn_size_format(rows[i].bytes, text);
        assert_string_equal(text, rows[i].text);
    }
}

static void random_bits_differ(void **state)
{
    (void)state;
    uint64_t a = tarn_random64(), b = tarn_random64();
    assert_true(a != b && a && b);
}

/* --- keys --------------------------------------------------------------------------------------- */

static void keys_as_text(void **state)
{
    unsigned char every[256], back[TARN_KEY_MAX + 1];
    char text[TARN_KEY_TEXT];
    struct tarn_key key = {every, sizeof every}, spaced = {"a b%\n\xff~", 7};

    (void)state;
    for (int i = 0; i < 256; i++)
        every[i] = (unsigned char)i;
    int n = tarn_key_escape(&key, text, sizeof text);
    assert_int_equal(n, strlen(text));
    for (int i = 0; i < n; i++)
        assert_in_range(text[i], 0x21, 0x7e);
    assert_int_equal(tarn_key_unescape(text, back, sizeof back), 256);
    assert_memory_equal(back, every, 256);

    assert_int_equal(tarn_key_escape(&spaced, text, sizeof text), 15);
    assert_string_equal(text, "a%20b%25%0A%FF~");
}

static void longest_key(void **state)
{
    char bytes[TARN_KEY_MAX + 1], text[TARN_KEY_TEXT + 3], back[TARN_KEY_MAX + 1];
    struct tarn_key key = {bytes, TARN_KEY_MAX};

    (void)state;
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(tarn_key_escape(&key, text, TARN_KEY_TEXT), 3 * TARN_KEY_MAX);
    assert_int_equal(tarn_key_escape(&key, text, TARN_KEY_TEXT - 1), TARN_E_INVALID);
    assert_int_equal(tarn_key_escape(&key, text, 0), TARN_E_INVALID);
    tarn_key_escape(&key, text, TARN_KEY_TEXT);
    assert_int_equal(tarn_key_unescape(text, back, sizeof back), TARN_KEY_MAX);
    assert_memory_equal(back, bytes, TARN_KEY_MAX);
    assert_int_equal(tarn_key_unescape(text, back, sizeof back - 1), TARN_E_INVALID);
    memcpy(text + 3 * TARN_KEY_MAX, "x", 2);
    assert_int_equal(tarn_key_unescape(text, back, sizeof back), TARN_E_INVALID);
    key.bytes = TARN_KEY_MAX + 1;
    assert_int_equal(tarn_key_escape(&key, text, sizeof text), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "1024"));
    key.bytes = 0;
    assert_int_equal(tarn_key_escape(&key, text, sizeof text), TARN_E_INVALID);
}

/* A key has only one text. Other texts would name objects that cannot be found. */
static void only_the_one_text_of_a_key(void **state)
{
    static const char *const bad[] = {"",    "%",        "a%2", "%zz", "%2f", "%41",
                                      "a b", "\xc3\xa4", "a\n", "%%",  "%7E"};
    char back[TARN_KEY_MAX + 1];

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(tarn_key_unescape(bad[i], back, sizeof back), TARN_E_INVALID);
    assert_int_equal(tarn_key_unescape("%FFa%00", back, sizeof back), 3);
    assert_memory_equal(back,
                        "\xff"
                        "a\0",
                        3);
}

/* --- similar names ------------------------------------------------------------------------------ */

static void nearest_name(void **state)
{
    static const char *const names[] = {"heartbeat-ms", "listen", "pool", "ls", "redis", "log-level"};
    char huge[200];

    (void)state;
    assert_string_equal(tarn_nearest("hartbeat-ms", names, COUNT(names)), "heartbeat-ms");
    assert_string_equal(tarn_nearest("lisetn", names, COUNT(names)), "listen");
    assert_string_equal(tarn_nearest("redis", names, COUNT(names)), "redis");
    assert_string_equal(tarn_nearest("pools", names, COUNT(names)), "pool");
    assert_null(tarn_nearest("xy", names, COUNT(names)));
    assert_null(tarn_nearest("completely-else", names, COUNT(names)));
    assert_null(tarn_nearest("", names, COUNT(names)));
    memset(huge, 'l', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    assert_null(tarn_nearest(huge, names, COUNT(names)));
}

/* --- buffers and log lines ---------------------------------------------------------------------- */

static void buffer_grows_and_shrinks(void **state)
{
    struct tarn_buf b = {0};

    (void)state;
    tarn_buf_consume(&b, 3);
    for (int i = 0; i < 10000; i++)
        tarn_buf_printf(&b, "%d,", i);
    assert_false(b.failed);
    assert_int_equal(b.bytes, 48890);
    assert_int_equal(strlen(b.data), b.bytes);
    tarn_buf_consume(&b, b.bytes - 5);
    assert_string_equal(b.data, "9999,");
    tarn_buf_consume(&b, 100);
    assert_string_equal(b.data, "");
    tarn_buf_add(&b, "\0x", 2);
    assert_int_equal(b.bytes, 2);
    tarn_buf_free(&b);
    assert_null(b.data);
}

static void buffer_stays_failed(void **state)
{
    struct tarn_buf b = {0};

    (void)state;
    tarn_buf_add(&b, "abc", 3);
    tarn_buf_add(&b, "abc", SIZE_MAX - 1);
    assert_true(b.failed);
    tarn_buf_add(&b, "d", 1);
    tarn_buf_printf(&b, "%d", 1);
    assert_string_equal(b.data, "abc");
    tarn_buf_free(&b);
}

static void keep_line(void *arg, enum tarn_log_level level, const char *line)
{
    (void)level;
    snprintf(arg, 2000, "%s", line);
}

static void log_lines(void **state)
{
    char line[2000] = "", huge[3000];
    struct tarn_logger l = {.level = TARN_LOG_WARN, .fn = keep_line, .arg = line};

    (void)state;
    tarn_log(&l, TARN_LOG_INFO, "test", "msg=\"dropped\"");
    assert_string_equal(line, "");
    tarn_log(&l, TARN_LOG_WARN, "test", "msg=\"a\nlevel=error forged\" n=%d", 5);
    assert_string_equal(line, "level=warn at=test msg=\"a?level=error forged\" n=5");
    memset(huge, 'x', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    tarn_log(&l, TARN_LOG_ERROR, "test", "%s", huge);
    assert_in_range(strlen(line), 500, sizeof line - 1);
    tarn_log(NULL, TARN_LOG_ERROR, "test", "no logger");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_names_are_reversible),
        cmocka_unit_test(last_error_may_quote_itself),
        cmocka_unit_test(a_reason_carries_a_failure),
        cmocka_unit_test(dtypes),
        cmocka_unit_test(tensors_must_agree),
        cmocka_unit_test(shapes),
        cmocka_unit_test(numbers),
        cmocka_unit_test(sizes),
        cmocka_unit_test(sizes_for_people),
        cmocka_unit_test(random_bits_differ),
        cmocka_unit_test(keys_as_text),
        cmocka_unit_test(longest_key),
        cmocka_unit_test(only_the_one_text_of_a_key),
        cmocka_unit_test(nearest_name),
        cmocka_unit_test(buffer_grows_and_shrinks),
        cmocka_unit_test(buffer_stays_failed),
        cmocka_unit_test(log_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
