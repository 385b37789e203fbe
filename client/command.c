/* SPDX-License-Identifier: Apache-2.0 */
/* Putting together the arguments of a control command. */
#include "client/command.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

int tarn_command_init(struct tarn_command *a, int max, size_t text)
{
    memset(a, 0, sizeof *a);
    a->argv = malloc((size_t)max * sizeof *a->argv);
    a->lens = malloc((size_t)max * sizeof *a->lens);
    a->text = malloc(text ? text : 1);
    a->max = max;
    a->text_room = text;
    if (a->argv && a->lens && a->text)
        return 0;
    tarn_command_free(a);
    return tarn_fail(TARN_E_NO_MEMORY, "command: out of memory");
}

void tarn_command_add(struct tarn_command *a, const void *data, size_t bytes)
{
    if (a->n == a->max)
        return;
    a->argv[a->n] = data;
    a->lens[a->n++] = bytes;
}

void tarn_command_str(struct tarn_command *a, const char *s)
{
    tarn_command_add(a, s, strlen(s));
}

void tarn_command_text(struct tarn_command *a, const char *s)
{
    size_t n = strlen(s);

    if (n > a->text_room - a->text_bytes)
        return;
    memcpy(a->text + a->text_bytes, s, n);
    tarn_command_add(a, a->text + a->text_bytes, n);
    a->text_bytes += n;
}

void tarn_command_u64(struct tarn_command *a, uint64_t v)
{
    char number[24];

    snprintf(number, sizeof number, "%" PRIu64, v);
    tarn_command_text(a, number);
}

void tarn_command_gen(struct tarn_command *a, uint64_t gen)
{
    char number[24];

    snprintf(number, sizeof number, "%016" PRIx64, gen);
    tarn_command_text(a, number);
}

void tarn_command_free(struct tarn_command *a)
{
    free(a->argv);
    free(a->lens);
    free(a->text);
    memset(a, 0, sizeof *a);
}
