/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the .npy parser. An accepted tensor must lie inside the file and be the same after a rewrite. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

static void write_again(const struct tarn_file_entry *e)
{
    struct tarn_buf b = {0};
    struct tarn_file_entry again;

    demand(tarn_npy_header(&e->tensor, &b) == 0 && b.bytes % 64 == 0);
    size_t header = b.bytes;
    if (e->tensor.bytes <= 65536) {
        char *zeros = calloc(1, e->tensor.bytes + 1);
        demand(zeros != NULL);
        tarn_buf_add(&b, zeros, e->tensor.bytes);
        free(zeros);
        demand(tarn_npy_parse(b.data, b.bytes, (int)e->tensor.dtype, &again) == 0 && again.offset == header);
        demand(again.tensor.ndim == e->tensor.ndim && again.tensor.bytes == e->tensor.bytes);
    }
    tarn_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    for (int dtype = -1; dtype < TARN_DTYPE_COUNT; dtype += 4) {
        struct tarn_file_entry e = {0};
        int rc = tarn_npy_parse(data, bytes, dtype, &e);
        if (rc != 0) {
            demand(rc < 0 && *tarn_last_error());
            continue;
        }
        demand(tarn_tensor_check(&e.tensor) == 0);
        demand(e.offset <= bytes && e.tensor.bytes == bytes - e.offset);
        write_again(&e);
    }
    return 0;
}
