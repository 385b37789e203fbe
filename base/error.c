/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error names, texts and classes, all made from TARN_ERRORS, and the sentence that each thread keeps
 * about its last failure. That sentence is the only state base has; no other thread can see it.
 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[TARN_SENTENCE];

static const struct row {
    int code;
    const char *name, *text;
    enum tarn_error_class class;
} rows[] = {
#define ROW(name_, value_, class_, text_) {value_, #name_, text_, TARN_CLASS_##class_},
    TARN_ERRORS(ROW)
#undef ROW
};

/* NULL: no such code. */
static const struct row *find(int code)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].code == code)
            return &rows[i];
    return NULL;
}

const char *tarn_error_name(int code)
{
    const struct row *row = find(code);

    return row ? row->name : code == TARN_OK ? "OK" : "UNKNOWN";
}

const char *tarn_strerror(int code)
{
    const struct row *row = find(code);

    return row ? row->text : code == TARN_OK ? "success" : "unknown error code";
}

enum tarn_error_class tarn_error_class(int code)
{
    const struct row *row = find(code);

    return row ? row->class : code < 0 ? TARN_CLASS_FATAL : TARN_CLASS_NONE;
}

int tarn_error_parse(const char *name, unsigned long n, int unknown)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0)
            return rows[i].code;
    return unknown;
}

void tarn_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

int tarn_fail(int code, const char *fmt, ...)
{
    /* A copy first: the arguments may point into the last error itself. */
    char text[TARN_SENTENCE];
    int saved_errno = errno;
    va_list ap;

    va_start(ap, fmt);
    if (vsnprintf(text, sizeof text, fmt, ap) < 0)
        snprintf(text, sizeof text, "%s", tarn_strerror(code));
    va_end(ap);
    tarn_last_error_set(text);
    errno = saved_errno;
    return code;
}

void tarn_last_error_set(const char *text)
{
    size_t n = strnlen(text, sizeof last_error - 1);

    memmove(last_error, text, n);
    last_error[n] = '\0';
    tarn_one_line(last_error);
}

int tarn_reason_keep(struct tarn_reason *reason, int code)
{
    reason->code = code;
    snprintf(reason->text, sizeof reason->text, "%s", code ? last_error : "");
    return code;
}

int tarn_reason_fail(const struct tarn_reason *reason)
{
    if (reason->code)
        tarn_last_error_set(reason->text);
    return reason->code;
}

const char *tarn_last_error(void)
{
    return last_error;
}
