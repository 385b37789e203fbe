/* SPDX-License-Identifier: Apache-2.0 */
/* Element types, made from TARN_DTYPES, and the check that dtype, shape and size agree. */
#include "base/text.h"

#include <string.h>

#include "base/error.h"

struct dtype_row {
    const char *name;
    uint32_t bytes;
};

static const struct dtype_row dtypes[TARN_DTYPE_COUNT] = {
#define DTYPE_ROW(name_, text_, bits_) [TARN_##name_] = {text_, bits_ / 8},
    TARN_DTYPES(DTYPE_ROW)
#undef DTYPE_ROW
};

uint32_t tarn_dtype_bytes(uint32_t dtype)
{
    return dtype < TARN_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *tarn_dtype_name(uint32_t dtype)
{
    return dtype < TARN_DTYPE_COUNT ? dtypes[dtype].name : NULL;
}

int tarn_dtype_parse_n(const char *text, size_t bytes)
{
    for (int i = 0; i < TARN_DTYPE_COUNT; i++)
        if (tarn_text_is(text, bytes, dtypes[i].name))
            return i;
    return tarn_fail(TARN_E_INVALID, "dtype \"%.*s\" is unknown: use one like u8, bf16, f16, f32, f8_e4m3",
                     (int)(bytes < 32 ? bytes : 32), text);
}

int tarn_dtype_parse(const char *name)
{
    return tarn_dtype_parse_n(name ? name : "", name ? strlen(name) : 0);
}

bool tarn_tensor_bytes(const struct tarn_tensor *t, uint64_t *out)
{
    uint64_t product = tarn_dtype_bytes(t->dtype);

    for (uint32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            product = 0;
    for (uint32_t i = 0; i < t->ndim; i++)
        if (__builtin_mul_overflow(product, t->shape[i], &product))
            return false;
    *out = product;
    return true;
}

bool tarn_tensor_equal(const struct tarn_tensor *a, const struct tarn_tensor *b)
{
    return a->bytes == b->bytes && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, a->ndim * sizeof a->shape[0]) == 0;
}

int tarn_tensor_check(const struct tarn_tensor *t)
{
    uint64_t expected = 0;
    char shape[TARN_SHAPE_TEXT];

    if (!t)
        return tarn_fail(TARN_E_INVALID, "tensor: NULL: pass the address of one");
    if (!tarn_dtype_bytes(t->dtype))
        return tarn_fail(TARN_E_INVALID, "tensor: dtype %u is unknown: known are 0 to %d", t->dtype,
                         TARN_DTYPE_COUNT - 1);
    if (t->ndim > TARN_DIMS_MAX)
        return tarn_fail(TARN_E_INVALID, "tensor: %u dimensions: at most %d are allowed", t->ndim,
                         TARN_DIMS_MAX);
    tarn_shape_format(t, shape);
    if (!tarn_tensor_bytes(t, &expected))
        return tarn_fail(TARN_E_INVALID,
                         "tensor: shape [%s] of %s is more than 2^64 bytes: give a smaller one", shape,
                         tarn_dtype_name(t->dtype));
    if (expected != t->bytes)
        return tarn_fail(
            TARN_E_INVALID, "tensor: shape [%s] of %s takes %llu bytes, but bytes is %llu: make them agree",
            shape, tarn_dtype_name(t->dtype), (unsigned long long)expected, (unsigned long long)t->bytes);
    return 0;
}
