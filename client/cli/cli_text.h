/* SPDX-License-Identifier: Apache-2.0 */
/* Output of commands: tables, numbers, keys, JSON and progress. */
#ifndef TARN_CLIENT_CLI_TEXT_H
#define TARN_CLIENT_CLI_TEXT_H

#include <jansson.h>

#include "client/cli/cli.h"

enum cli_colour { CLI_PLAIN, CLI_BOLD, CLI_RED, CLI_GREEN, CLI_YELLOW };

/* A table with aligned columns. The first row is the heading. Cells are kept until it is printed. */
struct cli_table {
    const char *align; /* one 'l' or 'r' for each column */
    struct cli_cell *cells;
    size_t n, room;
    bool failed;
};

void cli_cell(struct cli_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cli_cell_in(struct cli_table *t, enum cli_colour colour, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Adds cells of these texts, up to NULL. */
void cli_row(struct cli_table *t, ...) __attribute__((sentinel));
/* Appends the table to `out` and frees its cells. Prints nothing if there are no rows below the heading. */
void cli_table_print(struct cli_table *t, bool coloured, struct tarn_buf *out);

/* Is standard output a terminal, with NO_COLOR unset? */
bool cli_coloured(void);
#define CLI_BAR_MAX 20
/* "[#####-----]  50%", with a bar of this width */
void cli_fill_bar(uint64_t used, uint64_t total, size_t width, char out[40]);
/* "3d 4h", "12.3 s" */
void cli_age_format(uint64_t ms, char out[16]);
/* "f32[2,3]" */
void cli_tensor_format(const struct tarn_tensor *t, char out[TARN_SHAPE_TEXT + 16]);
/* The escaped key, to be freed by the caller; NULL: out of memory. */
char *cli_key_text(const struct tarn_key *key);
/* Reads the first line of a file, without its newline; false if there is no such file. */
bool cli_first_line(const char *path, char *line, int bytes);
/* Parses a key from the command line into `bytes`. INVALID. */
int cli_key_parse(const char *text, char bytes[TARN_KEY_MAX + 1], struct tarn_key *key);
/* Writes the buffer to standard output and frees it. */
int cli_print(struct tarn_buf *b);
/* Prints the document with --json, else the table. Frees both. */
int cli_print_either(const struct cli *c, struct cli_table *t, json_t *document);
/* Prints and frees the document, in one line if `line`. A NULL document is NO_MEMORY. */
int cli_print_json(json_t *document, bool line);
/* Adds the members of every described tensor: bytes, dtype, shape. */
void cli_json_tensor(json_t *object, const struct tarn_tensor *t);
/* A number, or text above 2^53, where many JSON readers round. */
json_t *cli_json_u64(uint64_t v);
/* 16 hexadecimal digits, as text. */
json_t *cli_json_hex(uint64_t v);

/* A line on standard error that shows a transfer's progress. Silent if standard error is no terminal or
 * the transfer is quick. */
struct cli_progress {
    bool on, shown;
    const char *verb;
    uint64_t total, done, started_ns, printed_ns;
};
void cli_progress_start(struct cli_progress *p, const struct cli *c, const char *verb, uint64_t total);
void cli_progress_add(struct cli_progress *p, uint64_t bytes);
/* Wipes the line. Returns the seconds since the start. */
double cli_progress_end(struct cli_progress *p);

#endif
