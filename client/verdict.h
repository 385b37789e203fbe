/* SPDX-License-Identifier: Apache-2.0 */
/* What a batch says of its first failed item. */
#ifndef TARN_CLIENT_VERDICT_H
#define TARN_CLIENT_VERDICT_H

#include <stddef.h>

#include <tarn/tarn.h>

#include "base/error.h"

/* The first failed item of a batch, and its sentence for tarn_last_error(). */
struct tarn_verdict {
    size_t index;
    int code; /* 0: none failed */
    char text[TARN_SENTENCE];
};

/* Notes item i's failure with the thread's last error as its sentence. */
void tarn_verdict_note(struct tarn_verdict *v, size_t i, int code);
/* The same with a sentence "<verb> key '<key>': ..."; formats nothing unless it is the first failure. */
void tarn_verdict_say(struct tarn_verdict *v, size_t i, int code, const char *verb,
                      const struct tarn_key *key, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Leaves the sentence as the thread's last error and returns the code. */
int tarn_verdict_end(const struct tarn_verdict *v);

#endif
