/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the option table for the terminal: --help and --print-conf.
 */
#include "base/option/option_print.h"

#include <stdio.h>
#include <string.h>

#include "base/option/option_file.h"
#include "base/option/option_value.h"

#define WIDTH 80
#define HELP_COLUMN 30
#define COMMENT_COLUMN 40

/* --- prose -------------------------------------------------------------------------------------- */

static void pad_to(struct tarn_buf *out, size_t from, size_t column)
{
    tarn_buf_printf(out, "%*s", column > from ? (int)(column - from) : 0, "");
}

/* Wraps one paragraph. The cursor is at column `from`; lines begin at `indent`. Ends with a newline. */
static void wrap_paragraph(const char *text, size_t bytes, size_t from, size_t indent, struct tarn_buf *out)
{
    size_t column = from;
    bool line_empty = true;

    while (bytes) {
        size_t skip = strspn(text, " \n");
        skip = skip < bytes ? skip : bytes;
        text += skip;
        bytes -= skip;
        size_t word = strcspn(text, " \n");
        word = word < bytes ? word : bytes;
        if (word == 0)
            break;
        if (!line_empty && column + 1 + word > WIDTH) {
            tarn_buf_add(out, "\n", 1);
            column = 0;
            line_empty = true;
        }
        if (line_empty) {
            pad_to(out, column, indent);
            column = column > indent ? column : indent;
        } else {
            tarn_buf_add(out, " ", 1);
            column++;
        }
        tarn_buf_add(out, text, word);
        column += word;
        line_empty = false;
        text += word;
        bytes -= word;
    }
    tarn_buf_add(out, "\n", 1);
}

void tarn_option_paragraphs(const char *text, tarn_option_paragraph_fn fn, void *arg)
{
    while (*text) {
        const char *end = strstr(text, "\n\n");
        size_t bytes = end ? (size_t)(end - text) : strlen(text);
        if (bytes)
            fn(arg, text, bytes);
        text += bytes;
        text += strspn(text, "\n");
    }
}

void tarn_option_prose(const struct tarn_option *o, struct tarn_buf *out)
{
    char bounds[72];
    bool shows_default = o->initial && *o->initial && o->type != TARN_OPT_BOOL;

    tarn_option_bounds(o, bounds);
    tarn_buf_printf(out, "%s", o->help);
    if (o->type == TARN_OPT_LIST)
        tarn_buf_printf(out, " May be given several times.");
    if (shows_default && bounds[0])
        tarn_buf_printf(out, " Default %s, allowed %s.", o->initial, bounds);
    else if (shows_default)
        tarn_buf_printf(out, " Default %s.", o->initial);
    else if (bounds[0])
        tarn_buf_printf(out, " Allowed: %s.", bounds);
    else if (o->type == TARN_OPT_BOOL && o->initial && strcmp(o->initial, "true") == 0)
        tarn_buf_printf(out, " On by default.");
}

const char *tarn_option_metavar(const struct tarn_option *o)
{
    if (o->type == TARN_OPT_BOOL)
        return NULL;
    return o->unit ? o->unit : o->type == TARN_OPT_SIZE ? "SIZE" : o->type == TARN_OPT_INT ? "N" : "VALUE";
}

/* Is the --no- form useful? Only if the default, the file or the environment can set the option to true. */
bool tarn_option_has_no(const struct tarn_option *o)
{
    return o->type == TARN_OPT_BOOL &&
           (tarn_option_settable(o) || (o->initial && strcmp(o->initial, "true") == 0));
}

bool tarn_option_any_settable(const struct tarn_program *p)
{
    for (size_t i = 0; i < p->noptions; i++)
        if (tarn_option_settable(&p->options[i]))
            return true;
    return false;
}

/* --- --help ------------------------------------------------------------------------------------- */

static void help_paragraph(void *arg, const char *text, size_t bytes)
{
    struct tarn_buf *out = arg;
    tarn_buf_add(out, "\n", 1);
    wrap_paragraph(text, bytes, 0, 0, out);
}

static void help_option(const struct tarn_option *o, struct tarn_buf *out)
{
    const char *metavar = tarn_option_metavar(o);
    struct tarn_buf prose = {0};
    size_t start = out->bytes;

    if (o->letter)
        tarn_buf_printf(out, "  -%c, ", o->letter);
    else
        tarn_buf_printf(out, "      ");
    tarn_buf_printf(out, "--%s%s%s%s", tarn_option_has_no(o) ? "[no-]" : "", o->name, metavar ? " " : "",
                    metavar ? metavar : "");
    size_t column = out->bytes - start;
    if (column + 2 > HELP_COLUMN) {
        tarn_buf_add(out, "\n", 1);
        column = 0;
    }
    tarn_option_prose(o, &prose);
    if (prose.data)
        wrap_paragraph(prose.data, prose.bytes, column, HELP_COLUMN, out);
    out->failed |= prose.failed;
    tarn_buf_free(&prose);
}

/* Explains the other sources of options, with an option of the table as the example. */
static void help_sources(const struct tarn_program *p, struct tarn_buf *out)
{
    const struct tarn_option *o = NULL;
    bool has_file = false;

    for (size_t i = 0; i < p->noptions; i++) {
        const struct tarn_option *candidate = &p->options[i];
        if (strcmp(candidate->name, "config") == 0)
            has_file = true;
        else if (tarn_option_settable(candidate) && (!o || o->type == TARN_OPT_BOOL))
            o = candidate;
    }
    if (!o)
        return;

    struct tarn_buf text = {0};
    const char *metavar = tarn_option_metavar(o), *value = metavar ? metavar : "true";
    char env[TARN_OPTION_NAME_MAX];
    tarn_option_env_name(o, env);
    tarn_buf_printf(&text, "--%s%s%s can also be given as %s=%s in the environment", o->name,
                    metavar ? " " : "", metavar ? metavar : "", env, value);
    if (has_file)
        tarn_buf_printf(&text, ", or as a line \"%s = %s\" in the file that --config names", o->name, value);
    tarn_buf_printf(&text, "; others likewise. Flags win over the environment%s.",
                    has_file ? ", and that over the file" : "");
    if (text.data)
        help_paragraph(out, text.data, text.bytes);
    out->failed |= text.failed;
    tarn_buf_free(&text);
}

void tarn_options_help(const struct tarn_program *p, struct tarn_buf *out)
{
    bool has_arguments = p->arguments && *p->arguments;

    tarn_buf_printf(out, "Usage: %s%s%s%s\n", p->name, p->noptions ? " [OPTION...]" : "",
                    has_arguments ? " " : "", has_arguments ? p->arguments : "");
    tarn_buf_printf(out, "%s: %s\n", p->name, p->brief);
    if (p->description)
        tarn_option_paragraphs(p->description, help_paragraph, out);
    if (p->noptions > p->ncommon)
        tarn_buf_printf(out, "\nOptions:\n");
    for (size_t i = p->ncommon; i < p->noptions; i++)
        help_option(&p->options[i], out);
    if (p->ncommon)
        tarn_buf_printf(out, "\nOptions of every command:\n");
    for (size_t i = 0; i < p->ncommon; i++)
        help_option(&p->options[i], out);
    help_sources(p, out);
    if (p->examples)
        tarn_buf_printf(out, "\nExamples:\n%s%s", p->examples,
                        p->examples[strlen(p->examples) - 1] == '\n' ? "" : "\n");
}

/* --- --print-conf ------------------------------------------------------------------------------- */

static void conf_line(const char *comment, const char *name, const char *value, const char *from,
                      struct tarn_buf *out)
{
    size_t start = out->bytes;

    tarn_buf_printf(out, "%s%s = ", comment, name);
    tarn_buf_printf(out, "%s", value);
    pad_to(out, out->bytes - start, COMMENT_COLUMN);
    tarn_buf_printf(out, "  # from %s\n", from);
}

static void quoted_line(const struct tarn_option *o, const char *comment, const char *value, const char *from,
                        struct tarn_buf *out)
{
    struct tarn_buf quoted = {0};

    tarn_option_quote(value, &quoted);
    if (quoted.data)
        conf_line(comment, o->name, quoted.data, from, out);
    out->failed |= quoted.failed;
    tarn_buf_free(&quoted);
}

/* Prints an option. Hidden values, unset options and the file's own name become comments. */
static void conf_option(const struct tarn_option *o, const void *config, const char *from,
                        struct tarn_buf *out)
{
    const struct tarn_option_list *list = tarn_option_at(o, config);
    bool is_string = o->type == TARN_OPT_STRING, is_list = o->type == TARN_OPT_LIST;
    struct tarn_buf value = {0};

    if ((is_string && !*(char *const *)tarn_option_at(o, config)) || (is_list && list->n == 0)) {
        conf_line("# ", o->name, "", from, out);
        return;
    }
    if (is_list && !(o->flags & TARN_OPT_SECRET)) {
        for (size_t i = 0; i < list->n; i++)
            quoted_line(o, "", list->values[i], from, out);
        return;
    }
    tarn_option_format(o, config, 0, &value);
    bool hidden = o->flags & TARN_OPT_LOGIN && value.data &&
                  strcmp(value.data, *(char *const *)tarn_option_at(o, config)) != 0;
    bool comment = hidden || o->flags & TARN_OPT_SECRET || strcmp(o->name, "config") == 0;
    quoted_line(o, comment ? "# " : "", value.data ? value.data : "", from, out);
    out->failed |= value.failed;
    tarn_buf_free(&value);
}

void tarn_options_print_conf(const struct tarn_program *p, const void *config,
                             const struct tarn_options_parsed *parsed, struct tarn_buf *out)
{
    static const char *const sources[] = {"default", "file", "env", "flag"};

    for (size_t i = 0; i < p->noptions; i++)
        if (tarn_option_settable(&p->options[i]))
            conf_option(&p->options[i], config,
                        parsed->over_file[i] ? "env, over the file" : sources[parsed->sources[i]], out);
}
