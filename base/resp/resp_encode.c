/* SPDX-License-Identifier: Apache-2.0 */
/* RESP into a buffer. */
#include "base/resp/resp_encode.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"

#define HEADER_MAX 24

/* "<type><number>\r\n"; returns its end. */
static char *header(char type, int64_t number, char *out)
{
    *out++ = type;
    if (number < 0)
        *out++ = '-';
    out = tarn_u64_format(number < 0 ? 0 - (uint64_t)number : (uint64_t)number, out);
    return stpcpy(out, "\r\n");
}

static void add_header(struct tarn_buf *b, char type, int64_t number)
{
    char text[HEADER_MAX];

    tarn_buf_add(b, text, (size_t)(header(type, number, text) - text));
}

/* Text up to the line's end; a CR or LF in it would end it early and be read as the next reply. */
static void add_line(struct tarn_buf *b, const char *text)
{
    size_t from = b->bytes;

    tarn_buf_add(b, text, strlen(text));
    for (size_t i = from; i < b->bytes; i++)
        if (b->data[i] == '\r' || b->data[i] == '\n')
            b->data[i] = ' ';
    tarn_buf_add(b, "\r\n", 2);
}

void tarn_resp_add_simple(struct tarn_buf *b, const char *text)
{
    tarn_buf_add(b, "+", 1);
    add_line(b, text);
}

void tarn_resp_add_error(struct tarn_buf *b, int code, const char *text)
{
    tarn_buf_printf(b, "-%s ", tarn_error_name(code));
    add_line(b, text);
}

void tarn_resp_add_string(struct tarn_buf *b, const void *data, size_t bytes)
{
    char *out = tarn_buf_room(b, HEADER_MAX + bytes + 2);

    if (!out)
        return;
    out = header('$', (int64_t)bytes, out);
    if (bytes > 0)
        memcpy(out, data, bytes);
    out = stpcpy(out + bytes, "\r\n");
    b->bytes = (size_t)(out - b->data);
}

void tarn_resp_add_integer(struct tarn_buf *b, int64_t v)
{
    add_header(b, ':', v);
}

void tarn_resp_add_array(struct tarn_buf *b, size_t n)
{
    add_header(b, '*', (int64_t)n);
}
