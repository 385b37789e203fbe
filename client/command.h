/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a control command. */
#ifndef TARN_CLIENT_COMMAND_H
#define TARN_CLIENT_COMMAND_H

#include <stddef.h>
#include <stdint.h>

/* Arguments of a command being put together. */
struct tarn_command {
    const char **argv;
    size_t *lens;
    char *text; /* numbers */
    int n, max;
    size_t text_bytes, text_room;
};

/* Room for `max` arguments and `text` bytes of formatted ones. */
int tarn_command_init(struct tarn_command *a, int max, size_t text);
void tarn_command_add(struct tarn_command *a, const void *data, size_t bytes);
void tarn_command_str(struct tarn_command *a, const char *s);
/* Copies the text. */
void tarn_command_text(struct tarn_command *a, const char *s);
void tarn_command_u64(struct tarn_command *a, uint64_t v);
void tarn_command_gen(struct tarn_command *a, uint64_t gen);
void tarn_command_free(struct tarn_command *a);

#endif
