/* SPDX-License-Identifier: Apache-2.0 */
/* What commands print: tables, numbers, keys, JSON and progress. */
#ifndef TARN_CLIENT_CLI_TEXT_H
#define TARN_CLIENT_CLI_TEXT_H

#include <jansson.h>

#include "client/cli/cli.h"

enum cli_colour { CLI_PLAIN, CLI_BOLD, CLI_DIM, CLI_RED, CLI_GREEN, CLI_YELLOW };

/* A table with aligned columns; the first row is its heading. Cells are kept until it is printed. */
struct cli_table {
    const char *align; /* one 'l' or 'r' a column */
    struct cli_cell *cells;
    size_t n, room;
    bool failed;
};

void cli_cell(struct cli_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cli_cell_in(struct cli_table *t, enum cli_colour colour, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Appends the table to `out` and frees its cells. A table without rows below its heading prints nothing. */
void cli_table_print(struct cli_table *t, bool coloured, struct tarn_buf *out);

/* Whether standard output likes colours: a terminal, and NO_COLOR is not set. */
bool cli_coloured(void);
#define CLI_BAR_MAX 20
/* "[#####-----]  50%", with a bar of this width */
void cli_fill_bar(uint64_t used, uint64_t total, size_t width, char out[40]);
/* "3d 4h", "12.3 s" */
void cli_age_format(uint64_t ms, char out[16]);
/* "f32[2,3]" */
void cli_tensor_format(const struct tarn_tensor *t, char out[TARN_SHAPE_TEXT + 16]);
/* The escaped key, in memory of its own; NULL without memory. */
char *cli_key_text(const struct tarn_key *key);
/* A key from the command line into `bytes`. INVALID. */
int cli_key_parse(const char *text, char bytes[TARN_KEY_MAX + 1], struct tarn_key *key);
/* Writes the buffer to standard output and frees it. */
int cli_print(struct tarn_buf *b);
/* Prints the document, in one line when `line`, and drops it. NULL is NO_MEMORY. */
int cli_print_json(json_t *document, bool line);
/* Members every described tensor has: bytes, dtype, shape. */
void cli_json_tensor(json_t *object, const struct tarn_tensor *t);
/* A number; text where it is over 2^53, which many readers of JSON round. */
json_t *cli_json_u64(uint64_t v);
/* hex text of 16 digits */
json_t *cli_json_hex(uint64_t v);

/* A line on standard error that says how far a transfer is; silent when it is no terminal or quick. */
struct cli_progress {
    bool on, shown;
    const char *verb;
    uint64_t total, done, started_ns, printed_ns;
};
void cli_progress_start(struct cli_progress *p, const struct cli *c, const char *verb, uint64_t total);
void cli_progress_add(struct cli_progress *p, uint64_t bytes);
/* Wipes the line; returns the seconds since the start. */
double cli_progress_end(struct cli_progress *p);

#endif
