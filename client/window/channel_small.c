/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/channel_small.h"

#include <string.h>

#include "transport/cuda/cuda.h"
#include "transport/pieces.h"
#include "transport/seen.h"

#define AT_ONCE 64 /* runs */

/* Copies `bytes` bytes of an item of a GPU from or to `data`. */
static int copy_gpu(int device, const struct tarn_channel_item *item, uint64_t bytes, char *data, bool put)
{
    struct tarn_cuda_piece pieces[AT_ONCE];
    struct tarn_cursor at = {0};
    int rc = 0;
    while (!rc && bytes > 0) {
        size_t n = 0;
        for (uint64_t took; n < AT_ONCE && bytes > 0; n++, bytes -= took, data += took) {
            void *there;
            took = tarn_cursor_next(&at, item->pieces, item->npieces, bytes, &there);
            pieces[n] = put ? (struct tarn_cuda_piece){data, there, took}
                            : (struct tarn_cuda_piece){there, data, took};
        }
        rc = tarn_cuda_copy_now(device, pieces, n);
    }
    return rc;
}

static void copy_host(const struct tarn_channel_item *item, uint64_t bytes, char *data, bool put)
{
    struct tarn_cursor at = {0};
    for (uint64_t took; bytes > 0; bytes -= took, data += took) {
        void *there;
        took = tarn_cursor_next(&at, item->pieces, item->npieces, bytes, &there);
        memcpy(put ? there : data, put ? data : there, took);
    }
}

static int copy(const struct tarn_channel_item *item, uint64_t bytes, struct tarn_seen *seen, char *data,
                bool put)
{
    uint32_t gpu;
    int rc = tarn_pieces_gpu(item->pieces, item->npieces, seen, &gpu);
    if (rc || bytes == 0)
        return rc;
    if (gpu)
        return copy_gpu((int)gpu - 1, item, bytes, data, put);
    copy_host(item, bytes, data, put);
    return 0;
}

int tarn_channel_gather(const struct tarn_channel_call *k, char *data)
{
    struct tarn_seen seen;
    int rc = 0;
    tarn_seen_clear(&seen);
    for (size_t i = 0; !rc && i < k->n; i++) {
        uint64_t bytes = tarn_pieces_bytes(k->items[i].pieces, k->items[i].npieces);
        rc = copy(&k->items[i], bytes, &seen, data, false);
        data += bytes;
    }
    return rc;
}

int tarn_channel_scatter(const struct tarn_channel_call *k, const char *data)
{
    struct tarn_seen seen;
    int rc = 0;
    tarn_seen_clear(&seen);
    for (size_t i = 0; !rc && i < k->n; i++) {
        rc = copy(&k->items[i], k->items[i].bytes, &seen, (char *)data, true);
        data += k->items[i].bytes;
    }
    return rc;
}
