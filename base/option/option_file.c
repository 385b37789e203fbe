/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration file: lines of
 *   NAME = VALUE   # comment
 * A '#' begins a comment at the start of the line or after a blank. A value in double quotes may contain '#'
 * and begin or end with blanks. In quotes \" \\ and \n stand for a quote, a backslash and a newline.
 */
#include "base/option/option_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

#define FILE_BYTES_MAX (1024 * 1024)

static const char blanks[] = " \t\r";

static char *trim(char *text)
{
    text += strspn(text, blanks);
    size_t bytes = strlen(text);
    while (bytes && strchr(blanks, text[bytes - 1]))
        text[--bytes] = '\0';
    return text;
}

/* Removes quotes and escapes in place. NULL: the closing quote is missing, or more than a comment follows. */
static char *unquote(char *text)
{
    char *to = text, *at = text + 1;

    for (; *at && *at != '"'; at++) {
        bool escaped = *at == '\\' && at[1];
        at += escaped;
        *to++ = escaped && *at == 'n' ? '\n' : *at;
    }
    if (*at != '"')
        return NULL;
    at = trim(at + 1);
    *to = '\0';
    return *at == '\0' || *at == '#' ? text : NULL;
}

/* The value of a line: the quoted text, or everything up to a comment. */
static char *line_value(char *text)
{
    text = trim(text);
    if (*text == '"')
        return unquote(text);
    for (char *c = text; *c; c++) {
        if (*c == '#' && (c == text || strchr(blanks, c[-1]))) {
            *c = '\0';
            break;
        }
    }
    return trim(text);
}

void tarn_option_quote(const char *value, struct tarn_buf *out)
{
    size_t bytes = strlen(value);

    if (bytes && !strpbrk(value, "\"#\\\n\r") && !strchr(blanks, value[0]) &&
        !strchr(blanks, value[bytes - 1])) {
        tarn_buf_add(out, value, bytes);
        return;
    }
    tarn_buf_add(out, "\"", 1);
    for (const char *c = value; *c; c++) {
        if (*c == '\n')
            tarn_buf_add(out, "\\n", 2);
        else
            tarn_buf_printf(out, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c);
    }
    tarn_buf_add(out, "\"", 1);
}

static int read_line(const char *path, int number, char *line, tarn_option_line_fn fn, void *arg)
{
    char *name = trim(line), *equals = strchr(name, '='), *value;
    char where[320];

    if (*name == '\0' || *name == '#')
        return 0;
    if (!equals) /* not shown: it may be a secret */
        return tarn_fail(TARN_E_CONFIG, "%.200s:%d: has no \"=\": write NAME = VALUE", path, number);
    *equals = '\0';
    name = trim(name);
    snprintf(where, sizeof where, "%.200s:%d: %.80s", path, number, name);
    value = line_value(equals + 1);
    if (!value)
        return tarn_fail(TARN_E_CONFIG, "%s: the value begins with \" but does not end with it", where);
    return fn(arg, where, name, value);
}

/* Reads fd to its end. */
static int load(int fd, const char *path, char **text_p)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return tarn_fail(TARN_E_CONFIG, "--config: %.200s: %m", path);
    if (!S_ISREG(st.st_mode) || st.st_size > FILE_BYTES_MAX)
        return tarn_fail(
            TARN_E_CONFIG,
            "--config: %.200s: is no file of at most %d bytes: name one with lines of NAME = VALUE", path,
            FILE_BYTES_MAX);
    char *text = calloc(1, (size_t)st.st_size + 1);
    if (!text)
        return tarn_fail(TARN_E_NO_MEMORY, "--config: %.200s: out of memory", path);
    if (read(fd, text, (size_t)st.st_size) < 0) {
        free(text);
        return tarn_fail(TARN_E_CONFIG, "--config: %.200s: cannot be read: %m", path);
    }
    *text_p = text;
    return 0;
}

int tarn_option_read_file(const char *path, bool required, tarn_option_line_fn fn, void *arg)
{
    char *text = NULL;
    int number = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 && errno == ENOENT && !required)
        return 0;
    if (fd < 0)
        return tarn_fail(TARN_E_CONFIG, "--config: %.200s: %m: name a file that this user may read", path);
    int rc = load(fd, path, &text);
    close(fd);

    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line && rc == 0; line = strsep(&rest, "\n"))
        rc = read_line(path, ++number, line, fn, arg);
    free(text);
    return rc;
}
