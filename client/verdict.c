/* SPDX-License-Identifier: Apache-2.0 */
#include "client/verdict.h"

#include <stdarg.h>
#include <stdio.h>

#include "client/check.h"

void tarn_verdict_note(struct tarn_verdict *v, size_t i, int code)
{
    if (v->why.code != 0 && i > v->index)
        return;
    v->index = i;
    tarn_reason_keep(&v->why, code);
}

void tarn_verdict_of(struct tarn_verdict *v, size_t i, int code, const char *verb, const struct tarn_key *key)
{
    struct tarn_reason why;

    tarn_reason_keep(&why, code);
    tarn_verdict_say(v, i, code, verb, key, "%s", why.text);
}

void tarn_verdict_say(struct tarn_verdict *v, size_t i, int code, const char *verb,
                      const struct tarn_key *key, const char *fmt, ...)
{
    char name[96], why[TARN_SENTENCE];
    va_list ap;

    if (v->why.code != 0 && i > v->index)
        return;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    v->index = i;
    tarn_reason_keep(&v->why, tarn_fail(code, "%s key '%s': %s", verb, tarn_key_text(key, name), why));
}

int tarn_verdict_end(const struct tarn_verdict *v)
{
    return tarn_reason_fail(&v->why);
}
