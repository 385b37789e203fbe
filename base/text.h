/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values as text: shapes ("32,128"), sizes ("64M"), unsigned numbers, random bits; and tarn_key_escape() and
 * tarn_key_unescape() of tarn.h: every byte outside 0x21..0x7e, and '%', becomes %XX in upper-case hex.
 */
#ifndef TARN_BASE_TEXT_H
#define TARN_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tarn/tarn.h>

#define TARN_SHAPE_TEXT 176 /* room for 8 dimensions of 20 digits, commas, NUL */
#define TARN_KEY_TEXT (3 * TARN_KEY_MAX + 1)

/* What a snprintf() would write, at a tenth of its cost, for what is sent with each object: up to 20 decimal
 * digits, or 16 hex digits, and a NUL, whose place is returned. */
char *tarn_u64_format(uint64_t v, char *out);
char *tarn_gen_format(uint64_t gen, char *out);

/* "2,16,8"; "" for a scalar. */
void tarn_shape_format(const struct tarn_tensor *t, char out[TARN_SHAPE_TEXT]);
/* Sets t->ndim and t->shape. TARN_E_INVALID: not such a list, more than TARN_DIMS_MAX, overflow. */
int tarn_shape_parse(const char *text, size_t bytes, struct tarn_tensor *t);

/* Is the text, which need not end with a NUL, this name? */
static inline bool tarn_text_is(const char *text, size_t bytes, const char *name)
{
    return strlen(name) == bytes && memcmp(name, text, bytes) == 0;
}

/* The whole text must be a number of base 10 or 16, at most `max`; else TARN_E_INVALID, without a sentence.
 */
int tarn_u64_parse(const char *text, size_t bytes, int base, uint64_t max, uint64_t *out);
/* "4096", "64K", "1.5G", "2T" (powers of 1024; an optional B or iB is allowed). */
int tarn_size_parse(const char *text, uint64_t *out);
/* "1.5 GiB" for people. */
void tarn_size_format(uint64_t bytes, char out[16]);

/* As tarn_dtype_parse(), of a text that does not end with a NUL. */
int tarn_dtype_parse_n(const char *text, size_t bytes);
/* Element count times element size; false when that is more than 64 bits. A zero anywhere makes it 0. */
bool tarn_tensor_bytes(const struct tarn_tensor *t, uint64_t *out);
bool tarn_tensor_equal(const struct tarn_tensor *a, const struct tarn_tensor *b);

/* 64 random bits from the kernel; never 0. */
uint64_t tarn_random64(void);

/* 128 random bits that nobody can guess, as 32 hex digits. SYSTEM when the kernel gives none. */
#define TARN_SECRET_TEXT 33
int tarn_secret_make(char out[TARN_SECRET_TEXT]);

/* For "did you mean": the name nearest to `word`, at an edit distance of at most 3, or NULL. */
const char *tarn_nearest(const char *word, const char *const *names, size_t n);

#endif
