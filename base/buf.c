/* SPDX-License-Identifier: Apache-2.0 */
/* The growing byte buffer: room doubles, so appending is linear over all. */
#include "base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 256

/* Makes room for `bytes` more and the NUL behind them. */
static bool make_room(struct tarn_buf *b, size_t bytes)
{
    if (b->failed)
        return false;
    if (bytes < b->room - b->bytes)
        return true;

    size_t room = b->room ? b->room : FIRST_ROOM;
    while (room - b->bytes <= bytes && room <= SIZE_MAX / 2)
        room *= 2;
    char *data = room - b->bytes > bytes ? realloc(b->data, room) : NULL;
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->room = room;
    return true;
}

char *tarn_buf_room(struct tarn_buf *b, size_t bytes)
{
    return make_room(b, bytes) ? b->data + b->bytes : NULL;
}

void tarn_buf_add(struct tarn_buf *b, const void *data, size_t bytes)
{
    if (!make_room(b, bytes))
        return;
    if (bytes)
        memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
    b->data[b->bytes] = '\0';
}

void tarn_buf_vprintf(struct tarn_buf *b, const char *fmt, va_list ap)
{
    va_list again;

    va_copy(again, ap);
    if (make_room(b, 0)) {
        int n = vsnprintf(b->data + b->bytes, b->room - b->bytes, fmt, ap);
        if (n < 0) {
            b->failed = true;
        } else if ((size_t)n < b->room - b->bytes) {
            b->bytes += (size_t)n;
        } else if (make_room(b, (size_t)n)) {
            vsnprintf(b->data + b->bytes, b->room - b->bytes, fmt, again);
            b->bytes += (size_t)n;
        }
    }
    if (b->data)
        b->data[b->bytes] = '\0';
    va_end(again);
}

void tarn_buf_printf(struct tarn_buf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    tarn_buf_vprintf(b, fmt, ap);
    va_end(ap);
}

void tarn_buf_consume(struct tarn_buf *b, size_t bytes)
{
    if (bytes == 0)
        return;
    if (bytes > b->bytes)
        bytes = b->bytes;
    b->bytes -= bytes;
    if (b->data) {
        memmove(b->data, b->data + bytes, b->bytes);
        b->data[b->bytes] = '\0';
    }
}

void tarn_buf_free(struct tarn_buf *b)
{
    free(b->data);
    *b = (struct tarn_buf){0};
}
