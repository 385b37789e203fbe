/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA UUIDs and handles as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "transport/cuda/cuda_text.h"

static const char text[] = "GPU-00010203-0405-0607-0809-0a0b0c0d0eff";

static bool parses(const char *what, uint8_t uuid[TARN_CUDA_UUID])
{
    return tarn_cuda_uuid_parse(what, strlen(what), uuid);
}

static void a_uuid_survives_formatting_and_parsing(void **state)
{
    uint8_t uuid[TARN_CUDA_UUID] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255},
            got[TARN_CUDA_UUID];
    char out[TARN_CUDA_UUID_TEXT];
    (void)state;
    tarn_cuda_uuid_format(uuid, out);
    assert_string_equal(out, text);
    assert_true(parses(text, got));
    assert_memory_equal(got, uuid, sizeof(uuid));
    assert_true(parses(text + 4, got));
    assert_true(parses("MIG-00010203-0405-0607-0809-0A0B0C0D0EFF", got));
    assert_memory_equal(got, uuid, sizeof(uuid));
}

static void malformed_uuids_are_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "0",
                                      "GPU-",
                                      "GPU-00010203-0405-0607-0809-0a0b0c0d0ef",
                                      "GPU-00010203-0405-0607-0809-0a0b0c0d0efff",
                                      "GPU-00010203+0405-0607-0809-0a0b0c0d0eff",
                                      "GPU-0001020g-0405-0607-0809-0a0b0c0d0eff",
                                      "TPU-00010203-0405-0607-0809-0a0b0c0d0eff"};
    uint8_t got[TARN_CUDA_UUID];
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(parses(bad[i], got));
    assert_false(tarn_cuda_uuid_parse(text, sizeof(text) - 2, got)); /* cut short */
}

static void a_handle_survives_formatting_and_parsing(void **state)
{
    uint8_t handle[TARN_CUDA_HANDLE], got[TARN_CUDA_HANDLE];
    char out[TARN_CUDA_HANDLE_TEXT];
    (void)state;
    for (int i = 0; i < TARN_CUDA_HANDLE; i++)
        handle[i] = (uint8_t)(i * 37);
    tarn_cuda_handle_format(handle, out);
    assert_int_equal(strlen(out), 2 * TARN_CUDA_HANDLE);
    assert_true(tarn_cuda_handle_parse(out, strlen(out), got));
    assert_memory_equal(got, handle, sizeof(handle));
    assert_false(tarn_cuda_handle_parse(out, strlen(out) - 1, got));
    out[7] = 'x';
    assert_false(tarn_cuda_handle_parse(out, strlen(out), got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_uuid_survives_formatting_and_parsing),
        cmocka_unit_test(malformed_uuids_are_refused),
        cmocka_unit_test(a_handle_survives_formatting_and_parsing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
