/* SPDX-License-Identifier: Apache-2.0 */
/* Raw files: bytes without a header. The caller gives their type and shape; the default is u8. */
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "client/cli/file.h"

int tarn_raw_describe(uint64_t bytes, const struct tarn_file_hint *hint, struct tarn_tensor *t)
{
    struct tarn_tensor d = {.bytes = bytes, .dtype = hint->dtype < 0 ? TARN_U8 : (uint32_t)hint->dtype};
    uint32_t element = tarn_dtype_bytes(d.dtype);

    if (element == 0)
        return tarn_fail(TARN_E_INVALID, "raw: no element type %u", d.dtype);
    if (hint->shape) {
        int rc = tarn_shape_parse(hint->shape, strlen(hint->shape), &d);
        if (rc == 0)
            rc = tarn_tensor_check(&d);
        if (rc != 0)
            return rc;
    } else if (bytes % element) {
        return tarn_fail(TARN_E_INVALID,
                         "raw: %llu bytes are no whole number of %s elements of %u: give another --dtype",
                         (unsigned long long)bytes, tarn_dtype_name(d.dtype), element);
    } else {
        d.ndim = 1;
        d.shape[0] = bytes / element;
    }
    *t = d;
    return 0;
}
