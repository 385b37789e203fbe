/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all commands of `tarn` share: the common options, errors, and the client. cli_main.c has main(). Each
 * other cli_*.c has one command, or a few related ones, with its own table of options.
 *
 * A command prints its result on standard output, as text or, with --json, as one JSON document. Everything
 * else goes to standard error.
 *
 * The exit status is 0 or follows the class of the first error (tarn/error.h): 1 miss, 2 request or usage,
 * 3 retry, 4 reconnect, 5 relocate, 6 fatal.
 */
#ifndef TARN_CLIENT_CLI_H
#define TARN_CLIENT_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/option/option_table.h"
#include "base/text.h"

/* The first member of every command's configuration. */
struct cli_common {
    char *redis, *ns, *secret, *transports;
    int64_t timeout_ms;
    bool json, quiet, help;
};

/* Rows of the commands' option tables. Options of a single command have no environment variable. */
#define CLI_TEXT(name_, letter_, offset_, unit_, help_) \
    { \
        .name = name_, .letter = letter_, .type = TARN_OPT_STRING, .offset = offset_, .unit = unit_, \
        .flags = TARN_OPT_FLAG_ONLY, .help = help_ \
    }
#define CLI_FLAG(name_, letter_, offset_, help_) \
    { \
        .name = name_, .letter = letter_, .type = TARN_OPT_BOOL, .offset = offset_, .initial = "no", \
        .flags = TARN_OPT_FLAG_ONLY, .help = help_ \
    }
#define CLI_INT(name_, letter_, offset_, initial_, min_, max_, unit_, help_) \
    { \
        .name = name_, .letter = letter_, .type = TARN_OPT_INT, .offset = offset_, .initial = initial_, \
        .min = min_, .max = max_, .unit = unit_, .flags = TARN_OPT_FLAG_ONLY, .help = help_ \
    }

/* The rows for struct cli_common. They come first in every command's table. */
#define CLI_COMMON(member_) offsetof(struct cli_common, member_)
#define CLI_COMMON_OPTIONS \
    {.name = "redis", \
     .letter = 'r', \
     .type = TARN_OPT_STRING, \
     .offset = CLI_COMMON(redis), \
     .unit = "ADDRESS", \
     .flags = TARN_OPT_LOGIN, \
     .help = "Redis that has the directory: redis://[user[:password]@]host[:port][/db], " \
             "unix:///path[?db=N], or with Sentinel " \
             "redis+sentinel://[user[:password]@]host[:port][,host...]/name[/db]. Without it " \
             "redis://127.0.0.1:6379."}, \
        {.name = "ns", \
         .letter = 'n', \
         .type = TARN_OPT_STRING, \
         .offset = CLI_COMMON(ns), \
         .initial = "default", \
         .unit = "NAME", \
         .help = "Namespace of nodes and keys."}, \
        {.name = "secret", \
         .type = TARN_OPT_STRING, \
         .offset = CLI_COMMON(secret), \
         .unit = "TEXT", \
         .flags = TARN_OPT_SECRET, \
         .help = "Shared secret of the nodes' control connections. Without it, the secret that a node " \
                 "generated and published in Redis. Better given in the environment, where " \
                 "other users of the machine do not see it."}, \
        {.name = "transports", \
         .type = TARN_OPT_STRING, \
         .offset = CLI_COMMON(transports), \
         .unit = "LIST", \
         .help = \
             "Transports to use, in order of preference, such as shm,tcp. Without it all that work here."}, \
        {.name = "timeout-ms", \
         .type = TARN_OPT_INT, \
         .offset = CLI_COMMON(timeout_ms), \
         .initial = "5000", \
         .min = 1, \
         .max = 86400000, \
         .unit = "MS", \
         .help = "Deadline of each request, to which a second is added for every 64 MiB that it moves."}, \
        CLI_FLAG("json", 'j', CLI_COMMON(json), "Print JSON for programs."), \
        CLI_FLAG("quiet", 'q', CLI_COMMON(quiet), \
                 "Show no progress; put, get, rm and doctor print nothing when all went well."), \
        CLI_FLAG("help", 'h', CLI_COMMON(help), "Print this text.")

#define CLI_NCOMMON 8 /* number of these rows */

/* The rows of a command's table, for its struct tarn_program. */
#define CLI_OPTIONS(rows_) .options = rows_, .ncommon = CLI_NCOMMON, .noptions = CLI_COUNT(rows_)

#define CLI_COUNT(array_) (sizeof(array_) / sizeof(array_)[0])

/* One run of a command. */
struct cli {
    const char *name; /* "tarn put" */
    bool json;        /* print errors as JSON objects, too */
    const struct cli_common *common;
    const struct tarn_program *program;
    const enum tarn_option_source *sources; /* sources of the command's options */
    char **args;
    int nargs;
    struct tarn_client *client; /* set by cli_connect() */
    bool not_opened;            /* cli_connect() has failed */
    int first_error;            /* first code that cli_error() was given */
};

/* Returns 0 or a TARN_E code. The last error has its sentence, unless cli_error() has printed it already. */
typedef int (*cli_run_fn)(struct cli *c, const void *config);

struct cli_command {
    const struct tarn_program *program;
    size_t config_bytes;
    cli_run_fn run;
};

/* The commands. Each is defined in its cli_*.c. */
extern const struct cli_command cli_put, cli_get, cli_ls, cli_stat, cli_rm, cli_pin, cli_unpin, cli_touch,
    cli_ttl, cli_info, cli_ping, cli_drain, cli_config, cli_doctor, cli_top, cli_events;

/* The plural's ending. */
#define CLI_S(n_) ((n_) == 1 ? "" : "s")

int cli_connect(struct cli *c);
/* Connects with `secret` instead of --secret; NULL: with TARN_SECRET's. */
int cli_connect_with(struct cli *c, const char *secret);
/* Prints "tarn put: sentence" on standard error, or {"error": {...}} with --json, and remembers the first
 * code. Names the environment variable that may be the cause. Returns the code. */
int cli_error(struct cli *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/*
 * The error of one item. The library leaves one sentence for a batch. It belongs to the item that it
 * names, or, if it names none, to all items with its code. Other items get their code's text.
 */
void cli_item_error(struct cli *c, int code, const struct tarn_key *key, const struct tarn_reason *batch,
                    const char *remedy);
/* INVALID, with a sentence, unless there are `least` to `most` arguments. */
int cli_want_args(const struct cli *c, int least, int most, const char *what);
/* The timeout for a request that moves `bytes`. */
uint32_t cli_timeout(const struct cli *c, uint64_t bytes);
/* The exit status for a code. */
int cli_exit_status(int code);
/* "OK", "NOT_FOUND"; "NOT_TRIED" for items that were not tried because of an earlier failure. */
const char *cli_status_name(int32_t status);
/* A string; NULL is null. If the text is not UTF-8, %XX stands for each byte above 0x7f. */
json_t *cli_json_text(const char *text);

#endif
