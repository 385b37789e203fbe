/* SPDX-License-Identifier: Apache-2.0 */
/* The first failed item of a batch, and why. */
#include "client/verdict.h"

#include <stdarg.h>
#include <stdio.h>

#include "client/check.h"

void tarn_verdict_note(struct tarn_verdict *v, size_t i, int code)
{
    if (v->code != 0 && i > v->index)
        return;
    v->index = i;
    v->code = code;
    snprintf(v->text, sizeof v->text, "%s", tarn_last_error());
}

void tarn_verdict_say(struct tarn_verdict *v, size_t i, int code, const char *verb,
                      const struct tarn_key *key, const char *fmt, ...)
{
    char name[96], why[sizeof v->text];
    va_list ap;

    if (v->code != 0 && i > v->index)
        return;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    v->index = i;
    v->code = code;
    tarn_key_text(key, name);
    if (snprintf(v->text, sizeof v->text, "%s key '%s': %s", verb, name, why) < 0)
        v->text[0] = '\0';
}

int tarn_verdict_end(const struct tarn_verdict *v)
{
    return v->code ? tarn_fail(v->code, "%s", v->text) : 0;
}
