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

const char *tarn_error_name(int code)
{
    switch (code) {
    case TARN_OK:
        return "OK";
#define NAME_CASE(name_, value_, class_, text_) \
    case TARN_E_##name_: \
        return #name_;
        TARN_ERRORS(NAME_CASE)
#undef NAME_CASE
    default:
        return "UNKNOWN";
    }
}

const char *tarn_strerror(int code)
{
    switch (code) {
    case TARN_OK:
        return "success";
#define TEXT_CASE(name_, value_, class_, text_) \
    case TARN_E_##name_: \
        return text_;
        TARN_ERRORS(TEXT_CASE)
#undef TEXT_CASE
    default:
        return "unknown error code";
    }
}

enum tarn_error_class tarn_error_class(int code)
{
    switch (code) {
#define CLASS_CASE(name_, value_, class_, text_) \
    case TARN_E_##name_: \
        return TARN_CLASS_##class_;
        TARN_ERRORS(CLASS_CASE)
#undef CLASS_CASE
    default:
        return code < 0 ? TARN_CLASS_FATAL : TARN_CLASS_NONE;
    }
}

int tarn_error_parse(const char *name, unsigned long n, int unknown)
{
    static const struct {
        const char *name;
        int code;
    } codes[] = {
#define CODE_ROW(name_, value_, class_, text_) {#name_, value_},
        TARN_ERRORS(CODE_ROW)
#undef CODE_ROW
    };

    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (strlen(codes[i].name) == n && memcmp(codes[i].name, name, n) == 0)
            return codes[i].code;
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

const char *tarn_last_error(void)
{
    return last_error;
}
