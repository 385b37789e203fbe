/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cuda/cuda_text.h"

#include <string.h>

static const char digits[] = "0123456789abcdef";

static bool is_group_end(int byte)
{
    return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

static int digit(char c)
{
    const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static bool byte_parse(const char *text, uint8_t *out)
{
    int high = digit(text[0]), low = high < 0 ? -1 : digit(text[1]);
    if (low < 0)
        return false;
    *out = (uint8_t)(high << 4 | low);
    return true;
}

static char *byte_format(char *at, uint8_t byte)
{
    *at++ = digits[byte >> 4];
    *at++ = digits[byte & 15];
    return at;
}

void tarn_cuda_uuid_format(const uint8_t uuid[TARN_CUDA_UUID], char out[TARN_CUDA_UUID_TEXT])
{
    memcpy(out, "GPU-", 4);
    out += 4;
    for (int i = 0; i < TARN_CUDA_UUID; i++) {
        if (is_group_end(i))
            *out++ = '-';
        out = byte_format(out, uuid[i]);
    }
    *out = '\0';
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
        out = byte_format(out, handle[i]);
    *out = '\0';
}

bool tarn_cuda_handle_parse(const char *text, size_t bytes, uint8_t handle[TARN_CUDA_HANDLE])
{
    bool ok = bytes == 2 * TARN_CUDA_HANDLE;
    for (int i = 0; ok && i < TARN_CUDA_HANDLE; i++)
        ok = byte_parse(text + 2 * i, &handle[i]);
    return ok;
}
