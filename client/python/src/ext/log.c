/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's log lines. They come from any of its threads. These must not wait for the GIL, which they
 * never get while the interpreter ends. So up to LINES_MAX lines are kept; the next thread that leaves a
 * call passes them to the logger. Newer lines beyond the limit are only counted.
 */
#include "ext.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LINES_MAX 1024

struct line {
    struct line *next;
    enum tarn_log_level level;
    char text[];
};

struct lines {
    pthread_mutex_t lock;
    struct line *first, **last;
    _Atomic unsigned count; /* also read without the lock */
    unsigned dropped;
};

struct lines *lines_new(void)
{
    struct lines *l = calloc(1, sizeof *l);

    if (l) {
        pthread_mutex_init(&l->lock, NULL);
        l->last = &l->first;
    }
    return l;
}

static void free_list(struct line *line)
{
    while (line) {
        struct line *next = line->next;
        free(line);
        line = next;
    }
}

void lines_free(struct lines *l)
{
    if (!l)
        return;
    free_list(l->first);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

void lines_add(void *lines, enum tarn_log_level level, const char *text)
{
    struct lines *l = lines;
    size_t bytes = strlen(text) + 1;
    struct line *line = malloc(sizeof *line + bytes);

    if (line) {
        line->next = NULL;
        line->level = level;
        memcpy(line->text, text, bytes);
    }
    pthread_mutex_lock(&l->lock);
    if (line && l->count < LINES_MAX) {
        *l->last = line;
        l->last = &line->next;
        l->count++;
        line = NULL;
    } else {
        l->dropped++;
    }
    pthread_mutex_unlock(&l->lock);
    free(line);
}

/* Levels of Python's logging. */
static int python_level(enum tarn_log_level level)
{
    static const int levels[] = {40, 30, 20, 10};

    return level <= TARN_LOG_DEBUG ? levels[level] : 10;
}

static void give(PyObject *logger, enum tarn_log_level level, const char *text)
{
    PyObject *line = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *rc = line ? PyObject_CallMethod(logger, "log", "isO", python_level(level), "%s", line) : NULL;

    if (!rc)
        PyErr_WriteUnraisable(logger);
    Py_XDECREF(rc);
    Py_XDECREF(line);
}

void lines_give(struct lines *l, PyObject *logger)
{
    if (!l || l->count == 0)
        return;
    pthread_mutex_lock(&l->lock);
    struct line *first = l->first;
    unsigned dropped = l->dropped;
    l->first = NULL;
    l->last = &l->first;
    l->count = 0;
    l->dropped = 0;
    pthread_mutex_unlock(&l->lock);

    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    for (struct line *line = first; line; line = line->next)
        give(logger, line->level, line->text);
    if (dropped > 0) {
        char text[64];
        PyOS_snprintf(text, sizeof text, "event=lines_dropped count=%u", dropped);
        give(logger, TARN_LOG_WARN, text);
    }
    free_list(first);
    PyErr_Restore(type, value, trace);
}
