/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The option parser. It reads the command line first, since that names the configuration file. Then it sets
 * the values from the weakest source to the strongest: default, file, environment, flag. With --help or
 * --version it reads neither file nor environment: they may be broken.
 */
#include "base/option/option.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "base/option/option_file.h"
#include "base/option/option_value.h"
#include "base/text.h"

extern char **environ;

/* A flag as it was given. */
struct given {
    const struct tarn_option *option;
    const char *value;
};

/* The state of one parse. */
struct parse {
    const struct tarn_program *p;
    void *config;
    struct tarn_options_parsed *out;
    struct given *given;
    size_t ngiven;
};

/* --- names -------------------------------------------------------------------------------------- */

static const struct tarn_option *find_name(const struct tarn_program *p, const char *name, size_t bytes)
{
    for (size_t i = 0; i < p->noptions; i++)
        if (tarn_text_is(name, bytes, p->options[i].name))
            return &p->options[i];
    return NULL;
}

static const struct tarn_option *find_letter(const struct tarn_program *p, char letter)
{
    for (size_t i = 0; i < p->noptions; i++)
        if (letter && p->options[i].letter == letter)
            return &p->options[i];
    return NULL;
}

static const struct tarn_option *find_env(const struct tarn_program *p, const char *name, size_t bytes)
{
    char known[TARN_OPTION_NAME_MAX];

    for (size_t i = 0; i < p->noptions; i++) {
        tarn_option_env_name(&p->options[i], known);
        if (tarn_option_settable(&p->options[i]) && tarn_text_is(name, bytes, known))
            return &p->options[i];
    }
    return NULL;
}

/* Fails for an unknown name. `where` and `prefix` ("--", "TARN_", "") show it as the user wrote it. */
static int unknown_name(const struct tarn_program *p, const char *where, const char *prefix, const char *name)
{
    const char **names = calloc(p->noptions + 1, sizeof *names);
    const char *nearest = NULL;
    char as_env[TARN_OPTION_NAME_MAX];
    int rc;

    for (size_t i = 0; names && i < p->noptions; i++)
        names[i] = p->options[i].name;
    if (names)
        nearest = tarn_nearest(name, names, p->noptions);
    if (nearest && strcmp(prefix, TARN_OPTION_ENV_PREFIX) == 0) {
        tarn_option_env_name(find_name(p, nearest, strlen(nearest)), as_env);
        prefix = "";
        nearest = as_env;
    }
    if (nearest)
        rc = tarn_fail(TARN_E_CONFIG, "%s: no such option: did you mean %s%s?", where, prefix, nearest);
    else
        rc = tarn_fail(TARN_E_CONFIG, "%s: no such option: %s --help lists them", where, p->name);
    free(names);
    return rc;
}

/* --- setting ------------------------------------------------------------------------------------ */

static int apply(struct parse *s, const struct tarn_option *o, enum tarn_option_source from,
                 const char *where, const char *value)
{
    enum tarn_option_source *source = &s->out->sources[o - s->p->options];

    if (o->type == TARN_OPT_LIST && *source != from)
        tarn_option_clear(o, s->config);
    s->out->over_file[o - s->p->options] = *source == TARN_FROM_FILE && from == TARN_FROM_ENV;
    *source = from;
    if (o->type == TARN_OPT_LIST && (from == TARN_FROM_ENV || from == TARN_FROM_DEFAULT))
        return tarn_option_assign_words(o, s->config, where, value);
    return tarn_option_assign(o, s->config, where, value);
}

static int apply_defaults(struct parse *s)
{
    int rc = 0;

    for (const struct tarn_option *o = s->p->options; o < s->p->options + s->p->noptions && rc == 0; o++)
        if (o->initial)
            rc = apply(s, o, TARN_FROM_DEFAULT, o->name, o->initial);
    return rc;
}

/*
 * Overwrites a secret in argv with '*', because ps shows command lines to all users. In a URI it overwrites
 * only user and password.
 */
static void hide(const struct given *g)
{
    char *from = (char *)(uintptr_t)g->value, *to = from + strlen(from);

    if (g->option->flags & TARN_OPT_LOGIN) {
        char *scheme = strstr(from, "://");
        to = strrchr(from, '@');
        from = scheme ? scheme + 3 : from;
    } else if (!(g->option->flags & TARN_OPT_SECRET)) {
        return;
    }
    while (to && from < to)
        *from++ = '*';
}

static int apply_flags(struct parse *s)
{
    char where[TARN_OPTION_NAME_MAX + 2];
    int rc = 0;

    for (size_t i = 0; i < s->ngiven && rc == 0; i++) {
        snprintf(where, sizeof where, "--%s", s->given[i].option->name);
        rc = apply(s, s->given[i].option, TARN_FROM_FLAG, where, s->given[i].value);
    }
    return rc;
}

/* --- the command line --------------------------------------------------------------------------- */

static void give(struct parse *s, const struct tarn_option *o, const char *value)
{
    s->given[s->ngiven++] = (struct given){o, value};
}

static int needs_value(const struct tarn_option *o)
{
    return tarn_fail(TARN_E_CONFIG, "--%s: needs a value: --%s %s", o->name, o->name,
                     o->unit ? o->unit : "VALUE");
}

/* "--name", "--name=value", "--name value", "--no-name". *i is the index of the argument used last. */
static int read_long(struct parse *s, int argc, char **argv, int *i)
{
    const char *name = argv[*i] + 2;
    size_t bytes = strcspn(name, "=");
    const char *value = name[bytes] ? name + bytes + 1 : NULL;
    const struct tarn_option *o = find_name(s->p, name, bytes);
    bool on = true;

    if (!o && strncmp(name, "no-", 3) == 0) {
        o = find_name(s->p, name + 3, bytes - 3);
        if (o && o->type != TARN_OPT_BOOL)
            o = NULL;
        on = false;
    }
    if (!o) {
        char shown[TARN_OPTION_NAME_MAX];
        snprintf(shown, sizeof shown, "--%.*s", (int)bytes, name);
        return unknown_name(s->p, shown, "--", shown + 2);
    }
    if (o->type == TARN_OPT_BOOL) {
        if (value)
            return tarn_fail(TARN_E_CONFIG, "--%s: takes no value: use --%s or --no-%s", o->name, o->name,
                             o->name);
        give(s, o, on ? "true" : "false");
        return 0;
    }
    if (!value && *i + 1 < argc)
        value = argv[++*i];
    if (!value)
        return needs_value(o);
    give(s, o, value);
    return 0;
}

/* "-j", "-n5", "-n 5", "-jn5". */
static int read_letters(struct parse *s, int argc, char **argv, int *i)
{
    for (const char *at = argv[*i] + 1; *at; at++) {
        const struct tarn_option *o = find_letter(s->p, *at);
        if (!o)
            return tarn_fail(TARN_E_CONFIG, "-%c: no such option: %s --help lists them", *at, s->p->name);
        if (o->type == TARN_OPT_BOOL) {
            give(s, o, "true");
            continue;
        }
        const char *value = at[1] ? at + 1 : *i + 1 < argc ? argv[++*i] : NULL;
        if (!value)
            return needs_value(o);
        give(s, o, value);
        break;
    }
    return 0;
}

static size_t count_letters(int argc, char **argv)
{
    size_t n = 0;

    for (int i = 1; i < argc; i++)
        n += strlen(argv[i]);
    return n;
}

static int read_command_line(struct parse *s, int argc, char **argv)
{
    bool options_end = false;
    int rc = 0;

    /* Enough room: an option takes at least one character. */
    s->given = calloc(count_letters(argc, argv) + 1, sizeof *s->given);
    s->out->args = calloc((size_t)argc + 1, sizeof *s->out->args);
    if (!s->given || !s->out->args)
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory for its options", s->p->name);
    for (int i = 1; i < argc && rc == 0; i++) {
        if (options_end || argv[i][0] != '-' || argv[i][1] == '\0')
            s->out->args[s->out->nargs++] = argv[i];
        else if (strcmp(argv[i], "--") == 0)
            options_end = true;
        else if (argv[i][1] == '-')
            rc = read_long(s, argc, argv, &i);
        else
            rc = read_letters(s, argc, argv, &i);
    }
    return rc;
}

static bool asks_for_text_only(const struct parse *s)
{
    for (size_t i = 0; i < s->ngiven; i++) {
        const struct tarn_option *o = s->given[i].option;
        if (o->type == TARN_OPT_BOOL && (strcmp(o->name, "help") == 0 || strcmp(o->name, "version") == 0))
            return true;
    }
    return false;
}

/* --- the environment ---------------------------------------------------------------------------- */

static bool is_other_programs(const struct tarn_program *p, const char *name, size_t bytes)
{
    for (size_t i = 0; p->env_also && p->env_also[i]; i++)
        if (tarn_text_is(name, bytes, p->env_also[i]))
            return true;
    return false;
}

static int unknown_variable(const struct tarn_program *p, const char *name, size_t bytes)
{
    char shown[TARN_OPTION_NAME_MAX], as_option[TARN_OPTION_NAME_MAX] = "";
    size_t prefix = strlen(TARN_OPTION_ENV_PREFIX);

    snprintf(shown, sizeof shown, "%.*s", (int)bytes, name);
    if (strncmp(shown, TARN_OPTION_ENV_PREFIX, prefix) == 0)
        snprintf(as_option, sizeof as_option, "%s", shown + prefix);
    for (char *c = as_option; *c; c++)
        *c = *c == '_' ? '-' : *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
    if (find_name(p, as_option, strlen(as_option)))
        return tarn_fail(TARN_E_CONFIG, "%s: is for the command line alone: give --%s", shown, as_option);
    return unknown_name(p, shown, TARN_OPTION_ENV_PREFIX, as_option);
}

/* An empty variable counts as unset. */
static int read_environment(struct parse *s)
{
    const char *checked = s->p->env_check;
    int rc = 0;

    for (char **e = environ; e && *e && rc == 0; e++) {
        size_t bytes = strcspn(*e, "=");
        const struct tarn_option *o = find_env(s->p, *e, bytes);
        char name[TARN_OPTION_NAME_MAX];
        if (o && (*e)[bytes] && (*e)[bytes + 1]) {
            tarn_option_env_name(o, name);
            rc = apply(s, o, TARN_FROM_ENV, name, *e + bytes + 1);
        } else if (!o && checked && strncmp(*e, checked, strlen(checked)) == 0 &&
                   !is_other_programs(s->p, *e, bytes)) {
            rc = unknown_variable(s->p, *e, bytes);
        }
    }
    return rc;
}

/* --- the file ----------------------------------------------------------------------------------- */

static int on_line(void *arg, const char *where, const char *name, const char *value)
{
    struct parse *s = arg;
    const struct tarn_option *o = find_name(s->p, name, strlen(name));

    if (!o)
        return unknown_name(s->p, where, "", name);
    if (!tarn_option_settable(o) || strcmp(o->name, "config") == 0)
        return tarn_fail(TARN_E_CONFIG, "%s: cannot be set in a file: give --%s", where, o->name);
    return apply(s, o, TARN_FROM_FILE, where, value);
}

/*
 * Reads the configuration file. The usual order of sources decides which file. Only the default file may be
 * missing.
 */
static int read_config_file(struct parse *s)
{
    const struct tarn_option *o = find_name(s->p, "config", strlen("config"));
    const char *path = NULL;
    char env[TARN_OPTION_NAME_MAX];
    bool required = true;

    if (!o || o->type != TARN_OPT_STRING)
        return 0;
    for (size_t i = 0; i < s->ngiven; i++)
        if (s->given[i].option == o)
            path = s->given[i].value;
    if (!path && tarn_option_settable(o)) {
        tarn_option_env_name(o, env);
        path = tarn_env(env);
    }
    if (!path) {
        path = o->initial;
        required = false;
    }
    return path && *path ? tarn_option_read_file(path, required, on_line, s) : 0;
}

/* --- all together ------------------------------------------------------------------------------- */

int tarn_options_parse(const struct tarn_program *p, int argc, char **argv, void *config,
                       struct tarn_options_parsed *out)
{
    struct parse s = {.p = p, .config = config, .out = out};
    int rc = 0;

    *out = (struct tarn_options_parsed){.sources = calloc(p->noptions + 1, sizeof *out->sources),
                                        .over_file = calloc(p->noptions + 1, sizeof *out->over_file)};
    if (!out->sources || !out->over_file)
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory for its options", p->name);
    rc = apply_defaults(&s);
    if (rc == 0)
        rc = read_command_line(&s, argc, argv);
    if (rc == 0 && !asks_for_text_only(&s)) {
        rc = read_config_file(&s);
        if (rc == 0)
            rc = read_environment(&s);
    }
    if (rc == 0)
        rc = apply_flags(&s);
    for (size_t i = 0; i < s.ngiven; i++)
        hide(&s.given[i]);
    free(s.given);
    return rc;
}

void tarn_options_free(const struct tarn_program *p, void *config, struct tarn_options_parsed *parsed)
{
    for (size_t i = 0; i < p->noptions; i++)
        tarn_option_clear(&p->options[i], config);
    free(parsed->sources);
    free(parsed->over_file);
    free(parsed->args);
    *parsed = (struct tarn_options_parsed){0};
}
