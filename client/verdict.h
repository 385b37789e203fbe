/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict on a batch: its first failed item, and why. */
#ifndef TARN_CLIENT_VERDICT_H
#define TARN_CLIENT_VERDICT_H

#include <stddef.h>

#include <tarn/tarn.h>

#include "base/error.h"

/* The first failed item of a batch. */
struct tarn_verdict {
    size_t index;
    struct tarn_reason why; /* code 0: none failed */
};

/* Notes item i's failure with the thread's last error as its sentence. */
void tarn_verdict_note(struct tarn_verdict *v, size_t i, int code);
/* The same, with "<verb> key '<key>': " in front of the sentence. */
void tarn_verdict_of(struct tarn_verdict *v, size_t i, int code, const char *verb,
                     const struct tarn_key *key);
/* The same with another sentence; formats nothing unless it is the first failure. */
void tarn_verdict_say(struct tarn_verdict *v, size_t i, int code, const char *verb,
                      const struct tarn_key *key, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Makes it the thread's last error and returns the code. */
int tarn_verdict_end(const struct tarn_verdict *v);

#endif
