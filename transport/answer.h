/* SPDX-License-Identifier: Apache-2.0 */
/* How client halves read the node's answer to ATTACH: words, the first of them "v1". */
#ifndef TARN_TRANSPORT_ANSWER_H
#define TARN_TRANSPORT_ANSWER_H

#include "transport/transport.h"

struct tarn_answer {
    const struct tarn_link *link; /* for messages */
    const char *text, *at;
    bool failed; /* a word was missing or no such number */
};

/* VERSION: it does not begin with "v1". */
int tarn_answer_begin(struct tarn_answer *a, const struct tarn_link *l, const char *text);
/* The next word, not ended by NUL; without bytes at the end. */
const char *tarn_answer_word(struct tarn_answer *a, size_t *bytes);
/* The next word as a number of at most `max`; 0 when it or an earlier one is none. */
uint64_t tarn_answer_number(struct tarn_answer *a, int base, uint64_t max);
/* PROTOCOL. */
int tarn_answer_malformed(const struct tarn_answer *a);

#endif
