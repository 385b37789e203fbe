/* SPDX-License-Identifier: Apache-2.0 */
/* Commands are encoded as they are put together; only the number of arguments is known at the end. */
#include "base/resp/command.h"

#include <string.h>

#include "base/resp/resp_encode.h"
#include "base/text.h"

void tarn_command_add(struct tarn_command *c, const void *data, size_t bytes)
{
    tarn_resp_add_string(&c->strings, data, bytes);
    c->n++;
}

void tarn_command_str(struct tarn_command *c, const char *s)
{
    tarn_command_add(c, s, strlen(s));
}

void tarn_command_vstrs(struct tarn_command *c, va_list strings)
{
    for (const char *s; (s = va_arg(strings, const char *));)
        tarn_command_str(c, s);
}

void tarn_command_strs(struct tarn_command *c, ...)
{
    va_list strings;

    va_start(strings, c);
    tarn_command_vstrs(c, strings);
    va_end(strings);
}

void tarn_command_u64(struct tarn_command *c, uint64_t v)
{
    char number[24];

    tarn_command_add(c, number, (size_t)(tarn_u64_format(v, number) - number));
}

void tarn_command_gen(struct tarn_command *c, uint64_t gen)
{
    char number[24];

    tarn_command_add(c, number, (size_t)(tarn_gen_format(gen, number) - number));
}

void tarn_command_empty(struct tarn_command *c)
{
    c->strings.bytes = c->n = 0;
    c->strings.failed = false;
}

void tarn_command_free(struct tarn_command *c)
{
    tarn_buf_free(&c->strings);
    c->n = 0;
}
