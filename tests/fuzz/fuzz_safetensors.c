/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the .safetensors parser. Accepted tensors must cover the file without gap or overlap. They and the
 * metadata must be the same after a rewrite. The first bytes of the input are the header's length, as in a
 * file. A fuzzer rarely guesses the right length, so the input is also tried with the right length.
 */
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

static void write_again(struct tarn_file_entry *entries, size_t n, const uint8_t *file)
{
    struct tarn_buf b = {0};
    struct tarn_file_entry *again = NULL;
    size_t nagain = 0, nmetadata = n > 0 && tarn_safetensors_is_metadata(&entries[0]);
    uint64_t data = 0, metadata_at = n > 0 ? entries[0].offset : 0;

    for (size_t i = nmetadata; i < n; i++)
        data += entries[i].tensor.bytes;
    demand(tarn_safetensors_header(entries, n, &b) == 0 && b.bytes % 64 == 0);
    if (nmetadata)
        memcpy(b.data + entries[0].offset, file + metadata_at, entries[0].tensor.bytes);
    char *zeros = calloc(1, data + 1);
    demand(zeros != NULL);
    tarn_buf_add(&b, zeros, data);
    free(zeros);
    demand(tarn_safetensors_parse(b.data, b.bytes, &again, &nagain) == 0 && nagain == n);
    tarn_file_entries_free(again, nagain);
    tarn_buf_free(&b);
}

static void try(const uint8_t *data, size_t bytes)
{
    struct tarn_file_entry *entries = NULL;
    size_t n = 0;
    int rc = tarn_safetensors_parse(data, bytes, &entries, &n);

    if (rc != 0) {
        demand(rc < 0 && !entries && *tarn_last_error());
        return;
    }
    size_t first = n > 0 && tarn_safetensors_is_metadata(&entries[0]);
    uint64_t at = n > first ? entries[first].offset : bytes;
    for (size_t i = 0; i < n; i++) {
        demand(tarn_tensor_check(&entries[i].tensor) == 0);
        demand(entries[i].name && (i < first || entries[i].offset == at));
        at += i < first ? 0 : entries[i].tensor.bytes;
    }
    demand(at == bytes);
    write_again(entries, n, data);
    tarn_file_entries_free(entries, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    try(data, bytes);
    if (bytes < 8)
        return 0;
    /* The header ends at the last brace. */
    size_t end = bytes;
    while (end > 8 && data[end - 1] != '}')
        end--;
    uint8_t *fitting = malloc(bytes);
    demand(fitting != NULL);
    memcpy(fitting, data, bytes);
    for (int i = 0; i < 8; i++)
        fitting[i] = (uint8_t)((uint64_t)(end - 8) >> (8 * i));
    try(fitting, bytes);
    free(fitting);
    return 0;
}
