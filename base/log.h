/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logging without globals: whoever owns a component hands it a logger. Lines are logfmt:
 *   level=warn at=directory msg="redis is away" cause="Connection refused" retry_ms=250
 */
#ifndef TARN_BASE_LOG_H
#define TARN_BASE_LOG_H

#include <stdatomic.h>

#include <tarn/tarn.h>

struct tarn_logger {
    _Atomic enum tarn_log_level level; /* lines above it are dropped; a node's may change while it runs */
    tarn_log_fn fn;                    /* NULL: no logging */
    void *arg;
};

/* `at` names the component; fmt makes the rest of the line, e.g. "msg=\"...\" node=%s". l may be NULL. */
void tarn_log(const struct tarn_logger *l, enum tarn_log_level level, const char *at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

const char *tarn_log_level_name(enum tarn_log_level level);

static inline int tarn_log_wants(const struct tarn_logger *l, enum tarn_log_level level)
{
    return l && l->fn && level <= l->level;
}

#endif
