/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values as text: shapes ("32,128"), sizes ("64M"), unsigned numbers, random bits.
 *
 * Keys as text: every byte outside 0x21..0x7e, and '%', becomes %XX (upper-case hex). So printable
 * keys stay themselves, no key contains white space, and the escape is reversible.
 * (tarn_key_escape/unescape of tarn.h are implemented here too.)
 */
#ifndef TARN_BASE_TEXT_H
#define TARN_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include <tarn/tarn.h>

#define TARN_SHAPE_TEXT 176 /* room for 8 dimensions of 20 digits, commas, NUL */
#define TARN_KEY_TEXT (3 * TARN_KEY_MAX + 1)

/* "2,16,8"; "" for a scalar. */
void tarn_shape_format(const struct tarn_tensor *t, char out[TARN_SHAPE_TEXT]);
/* Sets t->ndim and t->shape. TARN_E_INVALID: not such a list, more than TARN_DIMS_MAX, overflow. */
int tarn_shape_parse(const char *text, size_t bytes, struct tarn_tensor *t);

/* Whole text must be the number. base 10 or 16. TARN_E_INVALID otherwise or when above max. */
int tarn_u64_parse(const char *text, size_t bytes, int base, uint64_t max, uint64_t *out);
/* "4096", "64K", "1.5G", "2T" (powers of 1024; an optional B or iB is allowed). */
int tarn_size_parse(const char *text, uint64_t *out);
/* "1.5 GiB" for people. */
void tarn_size_format(uint64_t bytes, char out[16]);

/* A dtype name and a tensor from the wire: name must be exact. TARN_E_INVALID when unknown. */
int tarn_dtype_parse_n(const char *text, size_t bytes);

/* 64 random bits from the kernel; never 0. */
uint64_t tarn_random64(void);

/* 128 random bits that nobody can guess, as 32 hex digits. SYSTEM when the kernel gives none. */
#define TARN_SECRET_TEXT 33
int tarn_secret_make(char out[TARN_SECRET_TEXT]);

/* The entry of `names` nearest to `word` (edit distance at most 3), or NULL: for "did you mean". */
const char *tarn_nearest(const char *word, const char *const *names, size_t n);

#endif
