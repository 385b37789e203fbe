/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network plugin's log lines, passed on to tarn's loggers. The plugin logs from all its threads and without
 * limit (a warning for each receive into host memory), and its logger has no argument. So the state is
 * process-wide, under one lock. The lock is held while a line is passed on, so a removed logger is not used
 * any more. A logger must not call the plugin.
 *
 * Lines are counted for each place in the plugin's source, so a flood from one place hides no lines of
 * others. Places that collide in the table share a count.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"

#define PLACES 256
#define LINE_BYTES 512

struct sink {
    struct sink *next;
    const struct tarn_logger *log;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sink *sinks;
static struct tarn_tcpx_limit places[PLACES];

bool tarn_tcpx_limit_pass(struct tarn_tcpx_limit *l, uint64_t now_ns, uint64_t *left_out)
{
    if (now_ns >= l->window_end_ns) {
        l->window_end_ns = now_ns + TARN_TCPX_LOG_WINDOW_MS * TARN_NS_PER_MS;
        l->lines = 0;
    }
    if (l->lines == TARN_TCPX_LOG_BURST) {
        l->left_out++;
        return false;
    }
    l->lines++;
    *left_out = l->left_out;
    l->left_out = 0;
    return true;
}

int tarn_tcpx_log_add(const struct tarn_logger *log)
{
    if (!log)
        return 0;
    struct sink *s = malloc(sizeof(*s));
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx plugin: no memory for its logger");
    *s = (struct sink){.log = log};

    pthread_mutex_lock(&lock);
    LL_APPEND(sinks, s);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Reports suppressed lines if no later line would. */
static void tell_left_out(const struct tarn_logger *log)
{
    uint64_t left_out = 0;
    for (int i = 0; i < PLACES; i++) {
        left_out += places[i].left_out;
        places[i].left_out = 0;
    }
    if (left_out)
        tarn_log(log, TARN_LOG_WARN, "tcpx_plugin", "msg=\"lines were left out\" left_out=%llu",
                 (unsigned long long)left_out);
}

void tarn_tcpx_log_remove(const struct tarn_logger *log)
{
    pthread_mutex_lock(&lock);
    struct sink *s;
    LL_SEARCH_SCALAR(sinks, s, log, log);
    if (s && s == sinks)
        tell_left_out(log);
    if (s)
        LL_DELETE(sinks, s);
    free(s);
    pthread_mutex_unlock(&lock);
}

static enum tarn_log_level level_of(int level)
{
    switch (level) {
    case TARN_TCPX_LOG_ABORT:
        return TARN_LOG_ERROR;
    case TARN_TCPX_LOG_WARN:
        return TARN_LOG_WARN;
    case TARN_TCPX_LOG_VERSION:
        return TARN_LOG_INFO;
    default:
        return TARN_LOG_DEBUG;
    }
}

static struct tarn_tcpx_limit *place_of(const char *file, int line)
{
    uint32_t h = (uint32_t)line;
    for (const char *c = file; *c; c++)
        h = h * 31 + (unsigned char)*c;
    return &places[(h * 2654435761u) >> 24];
}
_Static_assert(PLACES == 1 << 8, "the hash's high 8 bits");

static void hand_on(const struct tarn_logger *log, enum tarn_log_level level, const char *file, int line,
                    const char *text)
{
    uint64_t left_out = 0;
    char more[48] = "";
    if (!tarn_tcpx_limit_pass(place_of(file, line), tarn_now_ns(), &left_out))
        return;
    if (left_out)
        snprintf(more, sizeof(more), " left_out=%llu", (unsigned long long)left_out);
    tarn_log(log, level, "tcpx_plugin", "msg=\"%s\" where=%s:%d%s", text, file, line, more);
}

void tarn_tcpx_log_line(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    int saved_errno = errno;
    char text[LINE_BYTES] = "";
    (void)flags;
    if (level == TARN_TCPX_LOG_NONE || !fmt)
        return;

    pthread_mutex_lock(&lock);
    if (sinks && tarn_log_wants(sinks->log, level_of(level))) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
        for (char *quote = text; (quote = strchr(quote, '"'));)
            *quote = '\'';
        hand_on(sinks->log, level_of(level), file ? file : "?", line, text);
    }
    pthread_mutex_unlock(&lock);
    errno = saved_errno;
}
