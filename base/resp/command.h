/* SPDX-License-Identifier: Apache-2.0 */
/* A command being put together, for Redis or a node. Zeroed, it is empty. */
#ifndef TARN_BASE_RESP_COMMAND_H
#define TARN_BASE_RESP_COMMAND_H

#include <stdint.h>

#include "base/buf.h"

/* Arguments are copied. When memory runs out, tarn_resp_append_command() says so. */
struct tarn_command {
    struct tarn_buf strings; /* the arguments as RESP strings */
    size_t n;
};

void tarn_command_add(struct tarn_command *c, const void *data, size_t bytes);
void tarn_command_str(struct tarn_command *c, const char *s);
/* Several strings; the last argument is NULL. */
void tarn_command_strs(struct tarn_command *c, ...) __attribute__((sentinel));
void tarn_command_vstrs(struct tarn_command *c, va_list strings);
void tarn_command_u64(struct tarn_command *c, uint64_t v);
/* 16 hexadecimal digits. */
void tarn_command_gen(struct tarn_command *c, uint64_t gen);
/* Empties it and keeps its memory. */
void tarn_command_empty(struct tarn_command *c);
void tarn_command_free(struct tarn_command *c);

#endif
