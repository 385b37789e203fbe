/* SPDX-License-Identifier: Apache-2.0 */
/* Makes logfmt lines. A line is cut at LINE_BYTES, and can never be split by what a peer sent. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"

#define LINE_BYTES 1024

const char *tarn_log_level_name(enum tarn_log_level level)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    return level <= TARN_LOG_DEBUG ? names[level] : "debug";
}

void tarn_log(const struct tarn_logger *l, enum tarn_log_level level, const char *at, const char *fmt, ...)
{
    if (!tarn_log_wants(l, level))
        return;

    char line[LINE_BYTES];
    int saved_errno = errno;
    int n = snprintf(line, sizeof line, "level=%s at=%s ", tarn_log_level_name(level), at);
    if (n < 0 || (size_t)n >= sizeof line)
        return;

    va_list ap;
    va_start(ap, fmt);
    errno = saved_errno; /* for "%m" */
    int rest = vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    va_end(ap);
    if (rest < 0)
        return;

    tarn_one_line(line);
    l->fn(l->arg, level, line);
    errno = saved_errno;
}
