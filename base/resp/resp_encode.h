/* SPDX-License-Identifier: Apache-2.0 */
/* RESP into a buffer: replies, and the strings of commands. */
#ifndef TARN_BASE_RESP_ENCODE_H
#define TARN_BASE_RESP_ENCODE_H

#include <stdint.h>

#include "base/buf.h"

/* Text of simple strings and errors must have no CR or LF (they are replaced). */
void tarn_resp_add_simple(struct tarn_buf *b, const char *text);
void tarn_resp_add_error(struct tarn_buf *b, int code, const char *text); /* "-EXISTS text" */
void tarn_resp_add_string(struct tarn_buf *b, const void *data, size_t bytes);
void tarn_resp_add_integer(struct tarn_buf *b, int64_t v);
void tarn_resp_add_array(struct tarn_buf *b, size_t n);

#endif
