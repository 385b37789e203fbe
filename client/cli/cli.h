/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `tarn` command. cli.c has main and the table of commands; each cli_*.c has one command or a few
 * that belong together, with its own table of options. A command prints its result on standard output,
 * as text for people or, with --json, as one JSON document, and everything else on standard error.
 *
 * Exit status: 0, or by the class of the first error (tarn/error.h): 1 miss, 2 request or usage,
 * 3 retry, 4 reconnect, 5 relocate, 6 fatal.
 */
#ifndef TARN_CLIENT_CLI_H
#define TARN_CLIENT_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "base/buf.h"
#include "base/option/option.h"
#include "base/text.h"

/* The first member of every command's configuration. */
struct cli_common {
    char *redis, *ns, *secret, *transports;
    int64_t timeout_ms;
    bool json, quiet, help;
};

/* Rows of the commands' tables. What belongs to one command only is no matter of the environment. */
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

/* The rows for struct cli_common, first in every command's table. */
#define CLI_COMMON(member_) offsetof(struct cli_common, member_)
#define CLI_COMMON_OPTIONS \
    {.name = "redis", \
     .letter = 'r', \
     .type = TARN_OPT_STRING, \
     .offset = CLI_COMMON(redis), \
     .unit = "ADDRESS", \
     .help = "Redis that has the directory: redis://[user[:password]@]host[:port][/db] or " \
             "unix:///path[?db=N]. Without it redis://127.0.0.1:6379."}, \
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
         .help = "Shared secret of the nodes' control connections. Better given in the environment, where " \
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

#define CLI_COUNT(array_) (sizeof(array_) / sizeof(array_)[0])

/* One run of a command. */
struct cli {
    const char *name; /* "tarn put" */
    const struct cli_common *common;
    char **args;
    int nargs;
    struct tarn_client *client; /* after cli_connect() */
    int first_error;            /* of cli_error() */
};

/* 0 or a TARN_E code with its sentence in the last error, unless cli_error() has told it already. */
typedef int (*cli_run_fn)(struct cli *c, const void *config);

struct cli_command {
    const struct tarn_program *program;
    size_t config_bytes;
    cli_run_fn run;
};

extern const struct cli_command cli_put, cli_get, cli_ls, cli_stat, cli_rm, cli_info, cli_doctor, cli_top,
    cli_events;

/* The plural's ending. */
#define CLI_S(n_) ((n_) == 1 ? "" : "s")

/* --- cli.c -------------------------------------------------------------------------------------- */

int cli_connect(struct cli *c);
/* Prints "tarn put: sentence" on standard error and remembers the first code. Returns the code. */
int cli_error(struct cli *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/*
 * How a batch ended. The library leaves one sentence for the batch: it is told for the item that it
 * names, or for all with its code when it names none. Others have the text of their code.
 */
struct cli_failure {
    int code;
    char sentence[512];
};
struct cli_failure cli_failure(int code);
void cli_item_error(struct cli *c, int code, const char *key, const struct cli_failure *batch,
                    const char *remedy);
/* INVALID with a sentence when the number of arguments is not from `least` to `most`. */
int cli_want_args(const struct cli *c, int least, int most, const char *what);
/* The timeout for a request that moves so many bytes. */
uint32_t cli_timeout(const struct cli *c, uint64_t bytes);
/* Exit status for a code. */
int cli_exit_status(int code);

/* --- cli_help.c --------------------------------------------------------------------------------- */

/* The help, man page or Markdown of all of `tarn`. */
void cli_overview(struct tarn_buf *out);
void cli_man(struct tarn_buf *out);
void cli_markdown(struct tarn_buf *out);
/* Every command, NULL-ended. */
extern const struct cli_command *const cli_commands[];
const struct cli_command *cli_find(const char *name);
/* The command nearest to a wrong name, or NULL. */
const char *cli_near(const char *name);

/* --- cli_text.c --------------------------------------------------------------------------------- */

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

/* --- cli_rdma.c --------------------------------------------------------------------------------- */

struct cli_rdma_port {
    char name[80]; /* "mlx5_0:1" */
    char state[24], link[24], rate[48];
    bool active;
    bool used; /* by tarn; then also: */
    uint32_t mtu, gid_index;
    char gid[48];
};
typedef void (*cli_rdma_fn)(void *arg, const struct cli_rdma_port *p);
#define CLI_RDMA_WHY 300
/* Calls fn for each port; returns how many. `why`: the sentence when tarn can use none, else empty. */
int cli_rdma_ports(char why[CLI_RDMA_WHY], cli_rdma_fn fn, void *arg);
/* "ACTIVE, Ethernet, 100 Gb/sec (4X EDR), MTU 4096, GID 3 ::ffff:10.0.0.1" */
void cli_rdma_port_text(const struct cli_rdma_port *p, char *out, size_t bytes);

#endif
