/* SPDX-License-Identifier: Apache-2.0 */
/* A growing byte buffer. After an allocation failure it stays `failed` and ignores further appends. */
#ifndef TARN_BASE_BUF_H
#define TARN_BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct tarn_buf {
    char *data; /* NUL-terminated once anything was appended */
    size_t bytes, room;
    bool failed;
};

void tarn_buf_add(struct tarn_buf *b, const void *data, size_t bytes);
/* Room for this many bytes and a NUL behind what is there; NULL: it has failed. Who writes there sets
 * `bytes`, and ends with a NUL. */
char *tarn_buf_room(struct tarn_buf *b, size_t bytes);
void tarn_buf_printf(struct tarn_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tarn_buf_vprintf(struct tarn_buf *b, const char *fmt, va_list ap);
/* Drops the first `bytes` bytes. */
void tarn_buf_consume(struct tarn_buf *b, size_t bytes);
void tarn_buf_free(struct tarn_buf *b);

#endif
