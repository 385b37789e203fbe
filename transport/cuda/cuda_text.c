/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cuda/cuda_text.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

static bool is_group_end(int byte)
{
    return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

static bool byte_parse(const char *text, uint8_t *out)
{
    uint64_t byte;
    if (tarn_u64_parse(text, 2, 16, UINT8_MAX, &byte))
        return false;
    *out = (uint8_t)byte;
    return true;
}

void tarn_cuda_uuid_format(const uint8_t uuid[TARN_CUDA_UUID], char out[TARN_CUDA_UUID_TEXT])
{
    int n = snprintf(out, TARN_CUDA_UUID_TEXT, "GPU-");
    for (int i = 0; i < TARN_CUDA_UUID; i++)
        n += snprintf(out + n, TARN_CUDA_UUID_TEXT - (size_t)n, is_group_end(i) ? "-%02x" : "%02x", uuid[i]);
}

bool tarn_cuda_uuid_parse(const char *text, size_t bytes, uint8_t uuid[TARN_CUDA_UUID])
{
    const char *end = text + bytes;
    if (bytes > 4 && (!memcmp(text, "GPU-", 4) || !memcmp(text, "MIG-", 4)))
        text += 4;
    if (end - text != 2 * TARN_CUDA_UUID + 4)
        return false;
    for (int i = 0; i < TARN_CUDA_UUID; i++) {
        if (is_group_end(i) && *text++ != '-')
            return false;
        if (!byte_parse(text, &uuid[i]))
            return false;
        text += 2;
    }
    return true;
}

void tarn_cuda_handle_format(const uint8_t handle[TARN_CUDA_HANDLE], char out[TARN_CUDA_HANDLE_TEXT])
{
    for (int i = 0; i < TARN_CUDA_HANDLE; i++)
        snprintf(out + 2 * i, 3, "%02x", handle[i]);
}

bool tarn_cuda_handle_parse(const char *text, size_t bytes, uint8_t handle[TARN_CUDA_HANDLE])
{
    bool ok = bytes == 2 * TARN_CUDA_HANDLE;
    for (int i = 0; ok && i < TARN_CUDA_HANDLE; i++)
        ok = byte_parse(text + 2 * i, &handle[i]);
    return ok;
}
