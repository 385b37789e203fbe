/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/answer.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"

int tarn_answer_begin(struct tarn_answer *a, const struct tarn_link *l, const char *text)
{
    size_t bytes;
    *a = (struct tarn_answer){.link = l, .text = text, .at = text};
    const char *version = tarn_answer_word(a, &bytes);
    if (bytes == 2 && memcmp(version, "v1", 2) == 0)
        return 0;
    return tarn_fail(TARN_E_VERSION,
                     "node %s: %s: ATTACH answer \"%.20s\" where v1 was expected: run the same version of "
                     "tarn on both sides",
                     l->node, l->transport, text);
}

const char *tarn_answer_word(struct tarn_answer *a, size_t *bytes)
{
    const char *word = a->at + strspn(a->at, " ");
    *bytes = strcspn(word, " ");
    a->at = word + *bytes;
    return word;
}

uint64_t tarn_answer_number(struct tarn_answer *a, int base, uint64_t max)
{
    size_t bytes;
    uint64_t v = 0;
    const char *word = tarn_answer_word(a, &bytes);
    if (bytes == 0 || tarn_u64_parse(word, bytes, base, max, &v))
        a->failed = true;
    return a->failed ? 0 : v;
}

int tarn_answer_malformed(const struct tarn_answer *a)
{
    return tarn_fail(TARN_E_PROTOCOL, "node %s: %s: malformed ATTACH answer \"%.100s\"", a->link->node,
                     a->link->transport, a->text);
}
