/* SPDX-License-Identifier: Apache-2.0 */
/* The value of one option: read from text, check its bounds, write as text, free. */
#include "base/option/option_value.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

/* An exact size: "64M", "4096" as "4K", "4097". */
static void exact_size(uint64_t bytes, char out[32])
{
    static const char letters[] = "KMGTP";
    size_t unit = 0;

    while (bytes && bytes % 1024 == 0 && unit < sizeof letters - 1) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 32, "%llu%.*s", (unsigned long long)bytes, unit ? 1 : 0, letters + (unit ? unit - 1 : 0));
}

void tarn_option_bounds(const struct tarn_option *o, char out[72])
{
    char low[32], high[32];

    out[0] = '\0';
    if (!tarn_option_bounded(o) || (o->type != TARN_OPT_INT && o->type != TARN_OPT_SIZE))
        return;
    if (o->type == TARN_OPT_SIZE) {
        exact_size((uint64_t)o->min, low);
        exact_size((uint64_t)o->max, high);
    } else {
        snprintf(low, sizeof low, "%lld", (long long)o->min);
        snprintf(high, sizeof high, "%lld", (long long)o->max);
    }
    snprintf(out, 72, "%s to %s", low, high);
}

void tarn_option_env_name(const struct tarn_option *o, char out[TARN_OPTION_NAME_MAX])
{
    snprintf(out, TARN_OPTION_NAME_MAX, TARN_OPTION_ENV_PREFIX "%s", o->name);
    for (char *c = out; *c; c++) {
        if (*c == '-')
            *c = '_';
        else if (*c >= 'a' && *c <= 'z')
            *c = (char)(*c - 'a' + 'A');
    }
}

/* --- from text ---------------------------------------------------------------------------------- */

static int assign_bool(bool *out, const char *where, const char *value)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};

    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (strcmp(value, yes[i]) == 0) {
            *out = true;
            return 0;
        }
        if (strcmp(value, no[i]) == 0) {
            *out = false;
            return 0;
        }
    }
    return tarn_fail(TARN_E_CONFIG, "%s: \"%.80s\" is neither true nor false: write one of these", where,
                     value);
}

static int out_of_range(const struct tarn_option *o, const char *where, const char *value)
{
    char bounds[72];

    tarn_option_bounds(o, bounds);
    return tarn_fail(TARN_E_CONFIG, "%s: %.40s is out of range: must be %s%s%s", where, value,
                     bounds[0] ? bounds : "a number of 64 bits", o->unit ? " " : "", o->unit ? o->unit : "");
}

static int assign_int(const struct tarn_option *o, int64_t *out, const char *where, const char *value)
{
    char *end, bounds[72];
    long long n;

    errno = 0;
    n = strtoll(value, &end, 10);
    if (end == value || *end || strchr(" \t\n\v\f\r+", *value)) {
        tarn_option_bounds(o, bounds);
        return tarn_fail(TARN_E_CONFIG, "%s: \"%.80s\" is no whole number%s%s%s%s", where, value,
                         o->unit ? " of " : "", o->unit ? o->unit : "", bounds[0] ? ": must be " : "",
                         bounds);
    }
    if (errno == ERANGE || (tarn_option_bounded(o) && (n < o->min || n > o->max)))
        return out_of_range(o, where, value);
    *out = n;
    return 0;
}

static int assign_size(const struct tarn_option *o, uint64_t *out, const char *where, const char *value)
{
    struct tarn_reason why;
    uint64_t bytes = 0;

    if (*value == '-')
        return out_of_range(o, where, value);
    if (tarn_reason_keep(&why, tarn_size_parse(value, &bytes)) != 0)
        return tarn_fail(TARN_E_CONFIG, "%s: %s", where, why.text);
    if (tarn_option_bounded(o) && (bytes < (uint64_t)o->min || bytes > (uint64_t)o->max))
        return out_of_range(o, where, value);
    *out = bytes;
    return 0;
}

static int no_memory(const char *where)
{
    return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory", where);
}

static int assign_string(char **out, const char *where, const char *value)
{
    char *copy = strdup(value);

    if (!copy)
        return no_memory(where);
    free(*out);
    *out = copy;
    return 0;
}

static int assign_list(struct tarn_option_list *list, const char *where, const char *value)
{
    char **values = realloc(list->values, (list->n + 1) * sizeof *values);

    if (!values)
        return no_memory(where);
    list->values = values;
    values[list->n] = strdup(value);
    if (!values[list->n])
        return no_memory(where);
    list->n++;
    return 0;
}

int tarn_option_assign(const struct tarn_option *o, void *config, const char *where, const char *value)
{
    void *at = tarn_option_at(o, config);

    if ((o->flags & TARN_OPT_SECRET) && !*value)
        return tarn_fail(TARN_E_CONFIG, "%s: is empty: give a secret, or leave it out", where);
    switch (o->type) {
    case TARN_OPT_BOOL:
        return assign_bool(at, where, value);
    case TARN_OPT_INT:
        return assign_int(o, at, where, value);
    case TARN_OPT_SIZE:
        return assign_size(o, at, where, value);
    case TARN_OPT_STRING:
        return assign_string(at, where, value);
    case TARN_OPT_LIST:
        return assign_list(at, where, value);
    }
    return tarn_fail(TARN_E_CONFIG, "%s: unknown type of option", where);
}

int tarn_option_assign_words(const struct tarn_option *o, void *config, const char *where, const char *value)
{
    static const char blanks[] = " \t\n";
    int rc = 0;

    for (const char *at = value + strspn(value, blanks); *at && rc == 0; at += strspn(at, blanks)) {
        size_t bytes = strcspn(at, blanks);
        char *word = strndup(at, bytes);
        rc = word ? tarn_option_assign(o, config, where, word) : no_memory(where);
        free(word);
        at += bytes;
    }
    return rc;
}

/* --- to text, and away -------------------------------------------------------------------------- */

static void format_list(const struct tarn_option_list *list, struct tarn_buf *out)
{
    for (size_t i = 0; i < list->n; i++)
        tarn_buf_printf(out, "%s%s", i ? " " : "", list->values[i]);
}

static bool is_set(const struct tarn_option *o, const void *at)
{
    return o->type == TARN_OPT_LIST ? ((const struct tarn_option_list *)at)->n > 0
                                    : o->type != TARN_OPT_STRING || *(char *const *)at != NULL;
}

/* Writes the URI without users and passwords: those before the last @, and sentinels' behind a ?. Where these
 * cannot be told apart, and without a scheme, it writes "(set)". */
static void format_without_login(const char *uri, struct tarn_buf *out)
{
    const char *scheme = strstr(uri, "://");
    const char *rest = scheme ? scheme + 3 : NULL, *at = rest && *rest != '/' ? strrchr(rest, '@') : NULL;
    const char *query = scheme ? strstr(rest, "?sentinel_") : NULL;
    const char *shown = at ? at + 1 : rest;

    if (scheme && !(query && query < shown))
        tarn_buf_printf(out, "%.*s%.*s", (int)(rest - uri), uri,
                        (int)(query ? (size_t)(query - shown) : strlen(shown)), shown);
    else
        tarn_buf_printf(out, "(set)");
}

void tarn_option_format(const struct tarn_option *o, const void *config, int reveal, struct tarn_buf *out)
{
    const void *at = tarn_option_at(o, config);
    char size[32];

    if (!is_set(o, at))
        return;
    if (o->flags & TARN_OPT_SECRET && !reveal) {
        tarn_buf_printf(out, "(set)");
        return;
    }
    switch (o->type) {
    case TARN_OPT_BOOL:
        tarn_buf_printf(out, "%s", *(const bool *)at ? "true" : "false");
        break;
    case TARN_OPT_INT:
        tarn_buf_printf(out, "%lld", (long long)*(const int64_t *)at);
        break;
    case TARN_OPT_SIZE:
        exact_size(*(const uint64_t *)at, size);
        tarn_buf_printf(out, "%s", size);
        break;
    case TARN_OPT_STRING:
        if (o->flags & TARN_OPT_LOGIN && !reveal)
            format_without_login(*(char *const *)at, out);
        else
            tarn_buf_printf(out, "%s", *(char *const *)at);
        break;
    case TARN_OPT_LIST:
        format_list(at, out);
        break;
    }
}

static void clear_list(struct tarn_option_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->values[i]);
    free(list->values);
    *list = (struct tarn_option_list){0};
}

void tarn_option_clear(const struct tarn_option *o, void *config)
{
    void *at = tarn_option_at(o, config);

    if (o->type == TARN_OPT_LIST) {
        clear_list(at);
    } else if (o->type == TARN_OPT_STRING) {
        free(*(char **)at);
        *(char **)at = NULL;
    }
}
