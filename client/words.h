/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a control command. */
#ifndef TARN_CLIENT_WORDS_H
#define TARN_CLIENT_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* Arguments of a command being put together. */
struct tarn_words {
    const char **argv;
    size_t *lens;
    char *text; /* numbers */
    int n, max;
    size_t text_bytes, text_room;
};

/* Room for `max` arguments and `text` bytes of formatted ones. */
int tarn_words_init(struct tarn_words *a, int max, size_t text);
void tarn_words_add(struct tarn_words *a, const void *data, size_t bytes);
void tarn_words_str(struct tarn_words *a, const char *s);
/* Copies the text. */
void tarn_words_text(struct tarn_words *a, const char *s);
void tarn_words_u64(struct tarn_words *a, uint64_t v);
void tarn_words_gen(struct tarn_words *a, uint64_t gen);
void tarn_words_free(struct tarn_words *a);

#endif
