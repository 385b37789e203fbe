/* SPDX-License-Identifier: Apache-2.0 */
/* How functions fail: they return a negative TARN_E_* and leave one sentence for the thread. */
#ifndef TARN_BASE_ERROR_H
#define TARN_BASE_ERROR_H

#include <tarn/error.h>

/* The size of a last error. Buffers for one have this size, so that none is cut. */
#define TARN_SENTENCE 512

/*
 * Stores the sentence (object, cause, remedy with the current value) as this thread's last error
 * and returns `code`. Does not touch errno, so "%m" in fmt prints the cause. Call it where the
 * failure is first named; callers above pass the code on.
 */
int tarn_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Replaces control characters, so that text of a peer or user stays one line and cannot change the terminal.
 */
void tarn_one_line(char *text);

/* Sets this thread's last error, e.g. to the sentence of a completion that another thread has made. */
void tarn_last_error_set(const char *text);

/* A failure as a value: to judge it, to carry it to another thread, or to report it later. Code 0: no
 * failure, no text. */
struct tarn_reason {
    int code;
    char text[TARN_SENTENCE];
};

/* Keeps what the last call returned, `code`, together with this thread's last error. Returns `code`. */
int tarn_reason_keep(struct tarn_reason *reason, int code);

/* Makes the reason this thread's last error, unless its code is 0. Returns its code. */
int tarn_reason_fail(const struct tarn_reason *reason);

/* The code whose name is the first `n` bytes of `name` ("EXISTS"), or `unknown` when there is none. */
int tarn_error_parse(const char *name, unsigned long n, int unknown);

#endif
