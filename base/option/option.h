/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options: one table a program (or subcommand) makes the parser, the environment names, the
 * configuration file, --help, --print-conf, the man page and docs/options.md.
 *
 * Order: default, configuration file, environment, flag; the last wins. For an option named
 * "heartbeat-ms" the flag is --heartbeat-ms VALUE (or =VALUE), the variable TARN_HEARTBEAT_MS, the
 * file line "heartbeat-ms = VALUE" (# begins a comment). A BOOL flag takes no value (--json) and has
 * a --no- form. A LIST may be given several times and replaces the lower source's list. Unknown names
 * in any of the three (variables: only with `env_check`) fail with the nearest name.
 */
#ifndef TARN_BASE_OPTION_H
#define TARN_BASE_OPTION_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"

enum tarn_option_type {
    TARN_OPT_BOOL,   /* bool */
    TARN_OPT_INT,    /* int64_t, min..max */
    TARN_OPT_SIZE,   /* uint64_t, "64M", min..max */
    TARN_OPT_STRING, /* char *, NULL when default is NULL */
    TARN_OPT_LIST,   /* struct tarn_option_list */
};

struct tarn_option_list {
    char **values;
    size_t n;
};

enum {
    TARN_OPT_SECRET = 1,    /* --print-conf shows (set) in place of the value */
    TARN_OPT_FLAG_ONLY = 2, /* no environment, no file */
};

struct tarn_option {
    const char *name;
    char letter; /* short flag or 0 */
    enum tarn_option_type type;
    size_t offset;       /* of the member in the program's configuration struct */
    const char *initial; /* default as text, NULL for none */
    int64_t min, max;    /* INT, SIZE; both 0: no limit */
    const char *unit;    /* metavar: "MS", "BYTES", "ADDRESS" */
    int flags;
    const char *help; /* prose, one or more sentences */
};

struct tarn_program {
    const char *name;        /* "tarnd", "tarn put" */
    const char *arguments;   /* "FILE KEY", "" */
    const char *brief;       /* "storage node of tarn" */
    const char *description; /* prose for --help and the man page; paragraphs parted by a blank line */
    const char *examples;    /* verbatim lines or NULL */
    const struct tarn_option *options;
    size_t noptions;
    const char *env_check;       /* prefix that every variable must be known under ("TARN_"), or NULL */
    const char *const *env_also; /* NULL-ended: variables of other programs that are fine */
};

/* Where each value came from, for --print-conf and CONFIG GET. */
enum tarn_option_source { TARN_FROM_DEFAULT, TARN_FROM_FILE, TARN_FROM_ENV, TARN_FROM_FLAG };

struct tarn_options_parsed {
    enum tarn_option_source *sources; /* one an option */
    char **args;                      /* what is left after the options; points into argv */
    int nargs;
};

/*
 * Fills `config` (zeroed by the caller). conf_file: "--config" 's value is handled here when the
 * table has an option named "config". TARN_E_CONFIG with one sentence on any error; config is then
 * to be freed as well. Strings in config are owned by it.
 */
int tarn_options_parse(const struct tarn_program *p, int argc, char **argv, void *config,
                       struct tarn_options_parsed *out);
void tarn_options_free(const struct tarn_program *p, void *config, struct tarn_options_parsed *parsed);

/* Sets one option from text, as from a flag: used for tests and by the parser. */
int tarn_option_set(const struct tarn_program *p, const struct tarn_option *o, void *config,
                    const char *value);
/* The value as text (secrets hidden unless `reveal`). */
void tarn_option_format(const struct tarn_option *o, const void *config, int reveal, struct tarn_buf *out);

void tarn_options_help(const struct tarn_program *p, struct tarn_buf *out);
/* "name = value   # from env" lines that --config accepts again. */
void tarn_options_print_conf(const struct tarn_program *p, const void *config,
                             const struct tarn_options_parsed *parsed, struct tarn_buf *out);
/* A Markdown section and an mdoc(7) page for the program; subs are its subcommands (may be NULL). */
void tarn_options_markdown(const struct tarn_program *p, struct tarn_buf *out);
void tarn_options_man(const struct tarn_program *p, const struct tarn_program *const *subs, size_t nsubs,
                      struct tarn_buf *out);

#endif
