/* SPDX-License-Identifier: Apache-2.0 */
/* RESP into a buffer. */
#include "base/resp/resp_encode.h"

#include <string.h>

#include "base/error.h"

/* "<type><number>\r\n", without the cost of printf: a long pipeline has thousands. */
static void add_header(struct tarn_buf *b, char type, int64_t number)
{
    char text[24];
    char *at = text + sizeof text;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;

    *--at = '\n';
    *--at = '\r';
    do
        *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0)
        *--at = '-';
    *--at = type;
    tarn_buf_add(b, at, (size_t)(text + sizeof text - at));
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
    add_header(b, '$', (int64_t)bytes);
    tarn_buf_add(b, data, bytes);
    tarn_buf_add(b, "\r\n", 2);
}

void tarn_resp_add_integer(struct tarn_buf *b, int64_t v)
{
    add_header(b, ':', v);
}

void tarn_resp_add_array(struct tarn_buf *b, size_t n)
{
    add_header(b, '*', (int64_t)n);
}
