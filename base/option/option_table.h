/* SPDX-License-Identifier: Apache-2.0 */
/* The table of options, and the source of each value; option.h says how they are used. */
#ifndef TARN_BASE_OPTION_TABLE_H
#define TARN_BASE_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
    TARN_OPT_SECRET = 1,    /* --print-conf shows (set) instead of the value */
    TARN_OPT_FLAG_ONLY = 2, /* no environment, no file */
    TARN_OPT_LOGIN = 4,     /* STRING, a URI: --print-conf shows it without user and password */
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
    const char *description; /* prose for --help and the man page; paragraphs separated by blank lines */
    const char *examples;    /* verbatim lines or NULL */
    const struct tarn_option *options;
    size_t noptions;
    size_t ncommon;        /* the first ncommon options are common to all commands: pages list them once */
    const char *env_check; /* variables with this prefix ("TARN_") must be options; NULL: no check */
    const char *const *env_also; /* other variables that are allowed; NULL-terminated */
};

/* Where each value came from, for --print-conf and CONFIG GET. */
enum tarn_option_source { TARN_FROM_DEFAULT, TARN_FROM_FILE, TARN_FROM_ENV, TARN_FROM_FLAG };

struct tarn_options_parsed {
    enum tarn_option_source *sources; /* for each option */
    bool *over_file;                  /* for each option: the environment has overridden the file */
    char **args;                      /* arguments that are not options; point into argv */
    int nargs;
};

#endif
