/* SPDX-License-Identifier: Apache-2.0 */
/* Output of commands: tables, bars, ages, keys, JSON, progress. */
#include "client/cli/cli_text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "client/cli/cli.h"

/* --- tables ------------------------------------------------------------------------------------- */

struct cli_cell {
    char *text;
    enum cli_colour colour;
};

static const char *const colour_codes[] = {
    [CLI_PLAIN] = "",         [CLI_BOLD] = "\033[1m",    [CLI_RED] = "\033[31m",
    [CLI_GREEN] = "\033[32m", [CLI_YELLOW] = "\033[33m",
};

static void add_cell(struct cli_table *t, enum cli_colour colour, const char *fmt, va_list ap)
{
    char *text = NULL;

    if (t->n == t->room) {
        size_t room = t->room ? 2 * t->room : 64;
        struct cli_cell *cells = reallocarray(t->cells, room, sizeof *cells);
        if (!cells) {
            t->failed = true;
            return;
        }
        t->cells = cells;
        t->room = room;
    }
    if (vasprintf(&text, fmt, ap) < 0) {
        t->failed = true;
        return;
    }
    tarn_one_line(text); /* it may be text that nodes published */
    t->cells[t->n++] = (struct cli_cell){text, colour};
}

void cli_cell(struct cli_table *t, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add_cell(t, CLI_PLAIN, fmt, ap);
    va_end(ap);
}

void cli_cell_in(struct cli_table *t, enum cli_colour colour, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add_cell(t, colour, fmt, ap);
    va_end(ap);
}

void cli_row(struct cli_table *t, ...)
{
    va_list ap;

    va_start(ap, t);
    for (const char *text; (text = va_arg(ap, const char *));)
        cli_cell(t, "%s", text);
    va_end(ap);
}

static size_t column_width(const struct cli_table *t, size_t column, size_t columns)
{
    size_t width = 0;

    for (size_t i = column; i < t->n; i += columns) {
        size_t n = strlen(t->cells[i].text);
        width = n > width ? n : width;
    }
    return width;
}

/* Padding stays outside the colours; no spaces at the end of a line. */
static void print_cell(const struct cli_cell *cell, char align, size_t width, bool last, bool coloured,
                       struct tarn_buf *out)
{
    const char *code = coloured ? colour_codes[cell->colour] : "";
    int padding = (int)(width - strlen(cell->text));

    if (align == 'r')
        tarn_buf_printf(out, "%*s", padding, "");
    tarn_buf_printf(out, "%s%s%s", code, cell->text, *code ? "\033[0m" : "");
    if (last) {
        while (out->bytes && out->data[out->bytes - 1] == ' ')
            out->bytes--;
        tarn_buf_printf(out, "\n");
    } else {
        tarn_buf_printf(out, "%*s", align == 'r' ? 2 : padding + 2, "");
    }
}

void cli_table_print(struct cli_table *t, bool coloured, struct tarn_buf *out)
{
    size_t columns = strlen(t->align), widths[32];

    for (size_t c = 0; c < columns; c++)
        widths[c] = column_width(t, c, columns);
    for (size_t i = 0; t->n > columns && i < t->n; i++) {
        if (i < columns)
            t->cells[i].colour = CLI_BOLD;
        print_cell(&t->cells[i], t->align[i % columns], widths[i % columns], i % columns == columns - 1,
                   coloured, out);
    }
    for (size_t i = 0; i < t->n; i++)
        free(t->cells[i].text);
    free(t->cells);
    out->failed |= t->failed;
    *t = (struct cli_table){.align = t->align};
}

bool cli_coloured(void)
{
    const char *term = tarn_env_raw("TERM");

    return isatty(STDOUT_FILENO) && !tarn_env("NO_COLOR") && term && strcmp(term, "dumb") != 0;
}

/* --- values ------------------------------------------------------------------------------------- */

void cli_fill_bar(uint64_t used, uint64_t total, size_t width, char out[40])
{
    double share = total ? fmin((double)used / (double)total, 1) : 0;
    char bar[CLI_BAR_MAX + 1];

    memset(bar, '-', sizeof bar);
    memset(bar, '#', (size_t)lround(share * (double)width));
    bar[width] = '\0';
    snprintf(out, 40, "[%s] %3.0f%%", bar, 100 * share);
}

void cli_age_format(uint64_t ms, char out[16])
{
    unsigned long long s = ms / 1000;

    if (s < 60)
        snprintf(out, 16, "%.1f s", (double)ms / 1000);
    else if (s < 3600)
        snprintf(out, 16, "%llum %llus", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, 16, "%lluh %llum", s / 3600, s / 60 % 60);
    else
        snprintf(out, 16, "%llud %lluh", s / 86400 % 1000000, s / 3600 % 24);
}

void cli_tensor_format(const struct tarn_tensor *t, char out[TARN_SHAPE_TEXT + 16])
{
    char shape[TARN_SHAPE_TEXT];
    const char *dtype = tarn_dtype_name(t->dtype);

    tarn_shape_format(t, shape);
    snprintf(out, TARN_SHAPE_TEXT + 16, "%s[%s]", dtype ? dtype : "?", shape);
}

char *cli_key_text(const struct tarn_key *key)
{
    size_t room = 3 * key->bytes + 1;
    char *text = malloc(room);

    if (!text || tarn_key_escape(key, text, room) < 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* The bytes of a text that is not written as a key; cut at the maximum length of a key. */
static size_t guess_key(const char *text, char bytes[TARN_KEY_MAX])
{
    size_t n = 0;

    for (; *text && n < TARN_KEY_MAX; n++) {
        const char hex[] = {text[0] == '%' ? text[1] : 'x', text[1] ? text[2] : '\0', '\0'};
        bool escape = isxdigit((unsigned char)hex[0]) && isxdigit((unsigned char)hex[1]);
        bytes[n] = escape ? (char)strtoul(hex, NULL, 16) : *text;
        text += escape ? 3 : 1;
    }
    return n;
}

int cli_key_parse(const char *text, char bytes[TARN_KEY_MAX + 1], struct tarn_key *key)
{
    int n = tarn_key_unescape(text, bytes, TARN_KEY_MAX + 1);

    if (n < 0 && *text && strlen(text) <= TARN_KEY_MAX) {
        char *meant = cli_key_text(&(struct tarn_key){bytes, guess_key(text, bytes)});
        if (meant)
            tarn_fail(
                n,
                "key \"%s\": white space, control and non-ASCII bytes and %% are written %%XX, others as "
                "themselves: write %s",
                text, meant);
        free(meant);
    }
    if (n < 0)
        return n;
    *key = (struct tarn_key){bytes, (size_t)n};
    return 0;
}

bool cli_first_line(const char *path, char *line, int bytes)
{
    FILE *f = fopen(path, "re");

    line[0] = '\0';
    if (!f)
        return false;
    if (!fgets(line, bytes, f))
        line[0] = '\0';
    fclose(f);
    line[strcspn(line, "\n")] = '\0';
    return true;
}

/* --- output ------------------------------------------------------------------------------------- */

int cli_print(struct tarn_buf *b)
{
    int rc = b->failed ? tarn_fail(TARN_E_NO_MEMORY, "no memory for the output") : 0;

    if (rc == 0 && b->bytes && fwrite(b->data, b->bytes, 1, stdout) != 1)
        rc = tarn_fail(TARN_E_SYSTEM, "standard output: %m");
    tarn_buf_free(b);
    return rc;
}

int cli_print_json(json_t *document, bool line)
{
    size_t flags = line ? JSON_COMPACT : JSON_INDENT(2);
    int rc = 0;

    if (!document)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory for the output");
    if (json_dumpf(document, stdout, flags) != 0 || putchar('\n') == EOF || fflush(stdout) != 0)
        rc = tarn_fail(TARN_E_SYSTEM, "standard output: %m");
    json_decref(document);
    return rc;
}

int cli_print_either(const struct cli *c, struct cli_table *t, json_t *document)
{
    struct tarn_buf out = {0};

    cli_table_print(t, cli_coloured(), &out);
    if (!c->common->json) {
        json_decref(document);
        return cli_print(&out);
    }
    tarn_buf_free(&out);
    return cli_print_json(document, false);
}

void cli_json_tensor(json_t *object, const struct tarn_tensor *t)
{
    const char *dtype = tarn_dtype_name(t->dtype);
    json_t *shape = json_array();

    for (uint32_t i = 0; i < t->ndim; i++)
        json_array_append_new(shape, cli_json_u64(t->shape[i]));
    json_object_set_new(object, "bytes", cli_json_u64(t->bytes));
    json_object_set_new(object, "dtype", dtype ? json_string(dtype) : json_null());
    json_object_set_new(object, "shape", shape);
}

json_t *cli_json_u64(uint64_t v)
{
    char text[24];

    if (v <= 1ull << 53)
        return json_integer((json_int_t)v);
    snprintf(text, sizeof text, "%llu", (unsigned long long)v);
    return json_string(text);
}

json_t *cli_json_hex(uint64_t v)
{
    char text[17];

    snprintf(text, sizeof text, "%016llx", (unsigned long long)v);
    return json_string(text);
}

/* --- progress ----------------------------------------------------------------------------------- */

#define QUICK_NS (300 * TARN_NS_PER_MS) /* shorter transfers show no progress */
#define REDRAW_NS (100 * TARN_NS_PER_MS)

void cli_progress_start(struct cli_progress *p, const struct cli *c, const char *verb, uint64_t total)
{
    *p = (struct cli_progress){
        .on = !c->common->quiet && isatty(STDERR_FILENO),
        .verb = verb,
        .total = total,
        .started_ns = tarn_now_ns(),
    };
}

void cli_progress_add(struct cli_progress *p, uint64_t bytes)
{
    uint64_t now = tarn_now_ns();
    char done[16], total[16], left[16];

    p->done += bytes;
    if (!p->on || now - p->started_ns < QUICK_NS || now - p->printed_ns < REDRAW_NS || p->done == 0)
        return;
    double seconds = (double)(now - p->started_ns) / 1e9;
    double rate = (double)p->done / seconds;
    p->printed_ns = now;
    p->shown = true;
    tarn_size_format(p->done, done);
    tarn_size_format(p->total, total);
    cli_age_format((uint64_t)((double)(p->total - p->done) / rate * 1000), left);
    fprintf(stderr, "\r%s %s of %s (%.0f%%)  %.2f GB/s  %s left\033[K", p->verb, done, total,
            100 * (double)p->done / (double)p->total, rate / 1e9, left);
}

double cli_progress_end(struct cli_progress *p)
{
    if (p->shown)
        fprintf(stderr, "\r\033[K");
    return (double)(tarn_now_ns() - p->started_ns) / 1e9;
}
