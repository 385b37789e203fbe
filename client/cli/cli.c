/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main of the `tarn` command: finds the command, reads its options, runs it, and turns what it returns
 * into one line on standard error and an exit status.
 */
#include "client/cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define BYTES_A_SECOND (64ull << 20) /* slower than this a request may time out */

int cli_exit_status(int code)
{
    switch (tarn_error_class(code)) {
    case TARN_CLASS_NONE:
        return 0;
    case TARN_CLASS_MISS:
        return 1;
    case TARN_CLASS_REQUEST:
        return 2;
    case TARN_CLASS_RETRY:
        return 3;
    case TARN_CLASS_RECONNECT:
        return 4;
    case TARN_CLASS_RELOCATE:
        return 5;
    case TARN_CLASS_FATAL:
        return 6;
    }
    return 6;
}

int cli_error(struct cli *c, int code, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "%s: ", c->name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    if (c->first_error == 0)
        c->first_error = code;
    return code;
}

struct cli_failure cli_failure(int code)
{
    struct cli_failure f = {.code = code};

    snprintf(f.sentence, sizeof f.sentence, "%s", tarn_last_error());
    return f;
}

/* The library names keys as 'key'. */
static bool names_key(const char *sentence, const char *key)
{
    size_t n = strlen(key);

    for (const char *at = sentence; (at = strchr(at, '\'')); at++) {
        if (strncmp(at + 1, key, n) == 0 && at[n + 1] == '\'')
            return true;
    }
    return false;
}

void cli_item_error(struct cli *c, int code, const char *key, const struct cli_failure *batch,
                    const char *remedy)
{
    if (names_key(batch->sentence, key))
        cli_error(c, code, "%s%s", batch->sentence, remedy);
    else if (code == batch->code && *batch->sentence && !strstr(batch->sentence, "key '"))
        cli_error(c, code, "%s: %s%s", key, batch->sentence, remedy);
    else
        cli_error(c, code, "%s: %s%s", key, tarn_strerror(code), remedy);
}

int cli_connect(struct cli *c)
{
    struct tarn_options o = {
        .size = sizeof o,
        .redis = c->common->redis,
        .ns = c->common->ns,
        .transports = c->common->transports,
        .secret = c->common->secret,
        .timeout_ms = (uint32_t)c->common->timeout_ms,
    };

    return tarn_open(&o, &c->client);
}

int cli_want_args(const struct cli *c, int least, int most, const char *what)
{
    if (c->nargs < least)
        return tarn_fail(TARN_E_INVALID, "%s is missing: see `%s --help`", what, c->name);
    if (c->nargs > most)
        return tarn_fail(TARN_E_INVALID, "too many arguments (\"%s\"): see `%s --help`", c->args[most],
                         c->name);
    return 0;
}

uint32_t cli_timeout(const struct cli *c, uint64_t bytes)
{
    uint64_t ms = (uint64_t)c->common->timeout_ms + bytes / BYTES_A_SECOND * 1000;

    return ms < INT_MAX ? (uint32_t)ms : INT_MAX;
}

/* --- running one command ------------------------------------------------------------------------ */

static int run_parsed(const struct cli_command *command, struct cli *c, const void *config)
{
    int rc;

    if (c->common->help) {
        struct tarn_buf help = {0};
        tarn_options_help(command->program, &help);
        return cli_print(&help);
    }
    rc = command->run(c, config);
    tarn_close(c->client);
    c->client = NULL;
    return rc;
}

/* argv[0] is the command's name. */
static int run_command(const struct cli_command *command, int argc, char **argv)
{
    const struct tarn_program *p = command->program;
    struct tarn_options_parsed parsed = {0};
    struct cli c = {.name = p->name};
    void *config = calloc(1, command->config_bytes);
    int status;

    if (!config) {
        cli_error(&c, TARN_E_NO_MEMORY, "no memory");
        return cli_exit_status(TARN_E_NO_MEMORY);
    }
    int rc = tarn_options_parse(p, argc, argv, config, &parsed);
    if (rc != 0) {
        cli_error(&c, rc, "%s", tarn_last_error());
        status = cli_exit_status(TARN_E_INVALID);
        goto free_config;
    }
    c.common = config;
    c.args = parsed.args;
    c.nargs = parsed.nargs;
    rc = run_parsed(command, &c, config);
    if (fflush(stdout) != 0 && rc == 0)
        rc = tarn_fail(TARN_E_SYSTEM, "standard output: %m");
    if (rc < 0 && c.first_error == 0)
        cli_error(&c, rc, "%s", tarn_last_error());
    status = cli_exit_status(c.first_error);
free_config:
    tarn_options_free(p, config, &parsed);
    free(config);
    return status;
}

/* --- tarn itself -------------------------------------------------------------------------------- */

static int unknown(const char *name)
{
    const char *near = cli_near(name);

    if (*name == '-')
        fprintf(stderr, "tarn: %s: options come after the command: tarn COMMAND %s ...\n", name, name);
    else if (near)
        fprintf(stderr, "tarn: no command \"%s\": did you mean `tarn %s`?\n", name, near);
    else
        fprintf(stderr, "tarn: no command \"%s\": see `tarn help`\n", name);
    return cli_exit_status(TARN_E_INVALID);
}

/* Prints the text and returns the exit status. */
static int finish(struct tarn_buf *text)
{
    struct cli c = {.name = "tarn"};
    int rc = cli_print(text);

    if (rc == 0 && fflush(stdout) != 0)
        rc = tarn_fail(TARN_E_SYSTEM, "standard output: %m");
    if (rc != 0)
        cli_error(&c, rc, "%s", tarn_last_error());
    return cli_exit_status(rc);
}

/* tarn help [COMMAND] */
static int help(int argc, char **argv)
{
    struct tarn_buf text = {0};
    const struct cli_command *command = argc > 1 ? cli_find(argv[1]) : NULL;

    if (argc > 1 && !command)
        return unknown(argv[1]);
    if (command)
        tarn_options_help(command->program, &text);
    else
        cli_overview(&text);
    return finish(&text);
}

static void version(struct tarn_buf *text)
{
    tarn_buf_printf(text, "tarn %s\n", tarn_version());
}

static int document(void (*make)(struct tarn_buf *))
{
    struct tarn_buf text = {0};

    make(&text);
    return finish(&text);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;

    if (!name) {
        struct tarn_buf text = {0};
        cli_overview(&text);
        if (!text.failed)
            fputs(text.data, stderr);
        tarn_buf_free(&text);
        return cli_exit_status(TARN_E_INVALID);
    }
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return help(argc - 1, argv + 1);
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0 || strcmp(name, "version") == 0)
        return document(version);
    if (strcmp(name, "--man") == 0)
        return document(cli_man);
    if (strcmp(name, "--markdown") == 0)
        return document(cli_markdown);
    const struct cli_command *command = cli_find(name);
    return command ? run_command(command, argc - 1, argv + 1) : unknown(name);
}
