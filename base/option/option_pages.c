/* SPDX-License-Identifier: Apache-2.0 */
/* Pages made from the option table: a Markdown section and an mdoc(7) manual page. */
#include "base/option/option_pages.h"

#include <stdio.h>
#include <string.h>

#include "base/option/option_print.h"
#include "base/option/option_value.h"

#define PAGE_DATE "November 21, 2026" /* fixed, so that the page is the same wherever it is made */
#define MAN_WIDTH 76

/* --- Markdown ----------------------------------------------------------------------------------- */

/* Text for a table cell. Escapes Markdown markup. */
static void markdown_cell(const char *text, struct tarn_buf *out)
{
    for (; *text; text++) {
        if (*text == '\n')
            tarn_buf_add(out, " ", 1);
        else if (*text == '<')
            tarn_buf_add(out, "&lt;", 4);
        else
            tarn_buf_printf(out, "%s%c", strchr("|*_`\\", *text) ? "\\" : "", *text);
    }
}

static void markdown_paragraph(void *arg, const char *text, size_t bytes)
{
    struct tarn_buf *out = arg;
    tarn_buf_printf(out, "\n%.*s\n", (int)bytes, text);
}

/* A table cell with code; empty for "". */
static void markdown_code(const char *text, struct tarn_buf *out)
{
    if (text && *text)
        tarn_buf_printf(out, "`%s` | ", text);
    else
        tarn_buf_printf(out, " | ");
}

static void markdown_option(const struct tarn_option *o, struct tarn_buf *out)
{
    const char *metavar = tarn_option_metavar(o);
    char env[TARN_OPTION_NAME_MAX], bounds[72];

    tarn_option_env_name(o, env);
    tarn_option_bounds(o, bounds);
    tarn_buf_printf(out, "| `");
    if (o->letter)
        tarn_buf_printf(out, "-%c, ", o->letter);
    tarn_buf_printf(out, "--%s%s%s%s` | ", tarn_option_has_no(o) ? "[no-]" : "", o->name, metavar ? " " : "",
                    metavar ? metavar : "");
    markdown_code(tarn_option_settable(o) ? env : NULL, out);
    markdown_code(o->initial, out);
    tarn_buf_printf(out, "%s | ", bounds);
    markdown_cell(o->help, out);
    tarn_buf_printf(out, "%s |\n", o->type == TARN_OPT_LIST ? " May be given several times." : "");
}

/* Options [first, end). */
static void markdown_table(const struct tarn_program *p, size_t first, size_t end, struct tarn_buf *out)
{
    if (first < end)
        tarn_buf_printf(out,
                        "\n| option | variable | default | allowed | meaning |\n|---|---|---|---|---|\n");
    for (size_t i = first; i < end; i++)
        markdown_option(&p->options[i], out);
}

void tarn_options_markdown_common(const struct tarn_program *p, struct tarn_buf *out)
{
    tarn_buf_printf(out, "## Options of every command\n");
    markdown_table(p, 0, p->ncommon, out);
    tarn_buf_printf(out, "\n");
}

void tarn_options_markdown(const struct tarn_program *p, struct tarn_buf *out)
{
    bool has_arguments = p->arguments && *p->arguments;

    tarn_buf_printf(out, "## %s\n\n`%s%s%s%s`: %s\n", p->name, p->name, p->noptions ? " [OPTION...]" : "",
                    has_arguments ? " " : "", has_arguments ? p->arguments : "", p->brief);
    if (p->description)
        tarn_option_paragraphs(p->description, markdown_paragraph, out);
    markdown_table(p, p->ncommon, p->noptions, out);
    if (p->examples)
        tarn_buf_printf(out, "\n```\n%s%s```\n", p->examples,
                        p->examples[strlen(p->examples) - 1] == '\n' ? "" : "\n");
    tarn_buf_printf(out, "\n");
}

/* --- mdoc --------------------------------------------------------------------------------------- */

/* Adds one character of text. Escapes '-', so that users can copy options from the prose. */
static void man_char(char c, bool line_start, struct tarn_buf *out)
{
    if (line_start && (c == '.' || c == '\''))
        tarn_buf_add(out, "\\&", 2);
    if (c == '\\')
        tarn_buf_add(out, "\\e", 2);
    else if (c == '-')
        tarn_buf_add(out, "\\-", 2);
    else
        tarn_buf_add(out, &c, 1);
}

/* Does `word` end a sentence? A capital must follow in `rest`, so "e.g." does not end one. */
static bool ends_sentence(const char *word, size_t bytes, const char *rest, size_t rest_bytes)
{
    return bytes > 1 && strchr(".?!", word[bytes - 1]) &&
           (rest_bytes < 2 || (rest[1] >= 'A' && rest[1] <= 'Z') || rest[1] == '-');
}

/* Prose for mdoc: short lines, and each sentence begins a new line. */
static void man_prose(const char *text, size_t bytes, struct tarn_buf *out)
{
    size_t column = 0;

    while (bytes) {
        size_t word = 0;
        while (word < bytes && text[word] != ' ' && text[word] != '\n')
            word++;
        if (word && column && column + 1 + word > MAN_WIDTH) {
            tarn_buf_add(out, "\n", 1);
            column = 0;
        } else if (word && column) {
            tarn_buf_add(out, " ", 1);
            column++;
        }
        for (size_t i = 0; i < word; i++)
            man_char(text[i], column + i == 0, out);
        column += word;
        if (ends_sentence(text, word, text + word, bytes - word)) {
            tarn_buf_add(out, "\n", 1);
            column = 0;
        }
        size_t used = word < bytes ? word + 1 : word;
        text += used;
        bytes -= used;
    }
    if (column)
        tarn_buf_add(out, "\n", 1);
}

struct man_state {
    struct tarn_buf *out;
    bool first; /* no paragraph break is needed yet */
};

static void man_paragraph(void *arg, const char *text, size_t bytes)
{
    struct man_state *s = arg;
    if (!s->first)
        tarn_buf_printf(s->out, ".Pp\n");
    s->first = false;
    man_prose(text, bytes, s->out);
}

/* Adds a quoted argument of a macro line. Escapes quotes and backslashes in it. */
static void man_argument(const char *text, struct tarn_buf *out)
{
    tarn_buf_add(out, "\"", 1);
    for (; *text; text++) {
        if (*text == '"')
            tarn_buf_add(out, "\"\"", 2);
        else
            man_char(*text == '\n' ? ' ' : *text, false, out);
    }
    tarn_buf_add(out, "\"", 1);
}

static void man_option(const struct tarn_option *o, struct tarn_buf *out)
{
    const char *metavar = tarn_option_metavar(o);
    struct tarn_buf prose = {0};

    tarn_buf_printf(out, ".It ");
    if (o->letter)
        tarn_buf_printf(out, "Fl %c , ", o->letter);
    tarn_buf_printf(out, "Fl \\-%s%s", tarn_option_has_no(o) ? "[no\\-]" : "", o->name);
    if (metavar) {
        tarn_buf_printf(out, " Ar ");
        man_argument(metavar, out);
    }
    tarn_buf_add(out, "\n", 1);
    tarn_option_prose(o, &prose);
    if (prose.data)
        man_prose(prose.data, prose.bytes, out);
    out->failed |= prose.failed;
    tarn_buf_free(&prose);
}

/* Options [first, end). */
static void man_options(const struct tarn_program *p, size_t first, size_t end, struct tarn_buf *out)
{
    if (first == end)
        return;
    tarn_buf_printf(out, ".Bl -tag -width Ds\n");
    for (size_t i = first; i < end; i++)
        man_option(&p->options[i], out);
    tarn_buf_printf(out, ".El\n");
}

static void man_synopsis(const struct tarn_program *p, struct tarn_buf *out)
{
    tarn_buf_printf(out, ".Nm %s\n", p->name);
    if (p->noptions)
        tarn_buf_printf(out, ".Op Ar option ...\n");
    if (p->arguments && *p->arguments) {
        tarn_buf_printf(out, ".Ar ");
        man_argument(p->arguments, out);
        tarn_buf_add(out, "\n", 1);
    }
}

static void man_examples(const char *examples, struct tarn_buf *out)
{
    bool line_start = true;

    tarn_buf_printf(out, ".Bd -literal\n");
    for (const char *c = examples; *c; c++) {
        if (*c == '\n' && line_start)
            tarn_buf_add(out, "\\&", 2); /* mdoc sources should not have empty lines */
        man_char(*c, line_start, out);
        line_start = *c == '\n';
    }
    tarn_buf_printf(out, "%s.Ed\n", line_start ? "" : "\n");
}

static void man_subcommand(const struct tarn_program *p, struct tarn_buf *out)
{
    struct man_state s = {.out = out, .first = false};

    tarn_buf_printf(out, ".Ss ");
    man_argument(p->name, out);
    tarn_buf_add(out, "\n", 1);
    man_synopsis(p, out);
    tarn_buf_printf(out, ".Pp\n");
    man_prose(p->brief, strlen(p->brief), out);
    if (p->description)
        tarn_option_paragraphs(p->description, man_paragraph, &s);
    man_options(p, p->ncommon, p->noptions, out);
    if (p->examples) {
        tarn_buf_printf(out, ".Pp\nExamples:\n");
        man_examples(p->examples, out);
    }
}

static void man_sources(const struct tarn_program *p, struct tarn_buf *out)
{
    char env[TARN_OPTION_NAME_MAX];

    if (!tarn_option_any_settable(p))
        return;
    tarn_buf_printf(out, ".Sh ENVIRONMENT\n"
                         "Flags win over the environment, and that wins over the configuration file.\n"
                         "A variable of a list holds its values parted by blanks.\n"
                         "An empty variable counts as unset.\n"
                         ".Bl -tag -width Ds\n");
    for (size_t i = 0; i < p->noptions; i++) {
        if (!tarn_option_settable(&p->options[i]))
            continue;
        tarn_option_env_name(&p->options[i], env);
        tarn_buf_printf(out, ".It Ev %s\nas\n.Fl \\-%s\n", env, p->options[i].name);
    }
    tarn_buf_printf(out, ".El\n");
}

static void man_file(const struct tarn_program *p, struct tarn_buf *out)
{
    for (size_t i = 0; i < p->noptions; i++)
        if (strcmp(p->options[i].name, "config") == 0)
            tarn_buf_printf(out,
                            ".Sh FILES\n"
                            "The configuration file has lines of the form\n"
                            ".Dq NAME = VALUE ,\n"
                            "where NAME is that of an option without its dashes.\n"
                            "A number sign begins a comment.\n"
                            "A value with blanks at its ends or a number sign is put in double quotes.\n");
}

static void man_title(const char *name, struct tarn_buf *out)
{
    for (const char *c = name; *c; c++) {
        char upper = *c == ' ' ? '-' : *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
        tarn_buf_add(out, &upper, 1);
    }
}

void tarn_options_man(const struct tarn_program *p, const struct tarn_program *const *subs, size_t nsubs,
                      struct tarn_buf *out)
{
    struct man_state s = {.out = out, .first = true};

    tarn_buf_printf(out, ".Dd " PAGE_DATE "\n.Dt ");
    man_title(p->name, out);
    tarn_buf_printf(out, " 1\n.Os\n.Sh NAME\n.Nm %s\n.Nd ", p->name);
    man_argument(p->brief, out);
    tarn_buf_printf(out, "\n.Sh SYNOPSIS\n");
    man_synopsis(p, out);
    tarn_buf_printf(out, ".Sh DESCRIPTION\n");
    if (p->description)
        tarn_option_paragraphs(p->description, man_paragraph, &s);
    if (p->noptions && p->description)
        tarn_buf_printf(out, ".Pp\n");
    if (p->noptions)
        tarn_buf_printf(out, "The options are:\n");
    man_options(p, 0, p->noptions, out);
    if (nsubs && subs[0]->ncommon)
        tarn_buf_printf(out, ".Sh OPTIONS OF EVERY COMMAND\n");
    if (nsubs)
        man_options(subs[0], 0, subs[0]->ncommon, out);
    if (nsubs)
        tarn_buf_printf(out, ".Sh COMMANDS\n");
    for (size_t i = 0; i < nsubs; i++)
        man_subcommand(subs[i], out);
    man_sources(nsubs ? subs[0] : p, out);
    man_file(p, out);
    if (p->examples) {
        tarn_buf_printf(out, ".Sh EXAMPLES\n");
        man_examples(p->examples, out);
    }
}
