/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main() of the `tarn` command: finds the command, reads its options, runs it, and turns its result into
 * one line on standard error and an exit status.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/option/option.h"
#include "base/option/option_print.h"
#include "base/process.h"
#include "client/cli/cli.h"
#include "client/cli/cli_help.h"
#include "client/cli/cli_text.h"

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

/* Looks for --json before the options are read, or if they cannot be. */
static bool asks_for_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "-j") == 0)
            return true;
    return false;
}

/* argv[0] is the command's name. */
static int run_command(const struct cli_command *command, int argc, char **argv)
{
    const struct tarn_program *p = command->program;
    struct tarn_options_parsed parsed = {0};
    struct cli c = {.name = p->name, .json = asks_for_json(argc, argv)};
    void *config = calloc(1, command->config_bytes);
    int status;

    if (!config) {
        cli_error(&c, TARN_E_NO_MEMORY, "no memory");
        return cli_exit_status(TARN_E_NO_MEMORY);
    }
    int rc = tarn_options_parse(p, argc, argv, config, &parsed);
    if (rc != 0) {
        cli_error(&c, TARN_E_INVALID, "%s", tarn_last_error());
        status = cli_exit_status(TARN_E_INVALID);
        goto free_config;
    }
    c.common = config;
    c.program = p;
    c.sources = parsed.sources;
    c.json = c.common->json;
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

/* argv[0] is the unknown word. */
static int unknown(int argc, char **argv)
{
    struct cli c = {.name = "tarn", .json = asks_for_json(argc, argv)};
    const char *name = argv[0], *near = cli_near(name);

    if (*name == '-')
        cli_error(&c, TARN_E_INVALID, "%s: options come after the command: tarn COMMAND %s ...", name, name);
    else if (near)
        cli_error(&c, TARN_E_INVALID, "no command \"%s\": did you mean `tarn %s`?", name, near);
    else
        cli_error(&c, TARN_E_INVALID, "no command \"%s\": see `tarn help`", name);
    return cli_exit_status(TARN_E_INVALID);
}

static int too_many(const char *argument)
{
    return tarn_fail(TARN_E_INVALID, "too many arguments (\"%s\"): see `tarn help`", argument);
}

/* Prints the text, or the last error if rc is not 0. Returns the exit status. */
static int finish(int rc, struct tarn_buf *text)
{
    struct cli c = {.name = "tarn"};

    if (rc == 0)
        rc = cli_print(text);
    if (rc == 0 && fflush(stdout) != 0)
        rc = tarn_fail(TARN_E_SYSTEM, "standard output: %m");
    if (rc != 0)
        cli_error(&c, rc, "%s", tarn_last_error());
    tarn_buf_free(text);
    return cli_exit_status(rc);
}

/* tarn help [COMMAND] */
static int help(int argc, char **argv)
{
    struct tarn_buf text = {0};
    const struct cli_command *command = argc > 1 ? cli_find(argv[1]) : NULL;

    if (argc > 1 && !command)
        return unknown(argc - 1, argv + 1);
    if (command)
        tarn_options_help(command->program, &text);
    else
        cli_overview(&text);
    return finish(argc > 2 ? too_many(argv[2]) : 0, &text);
}

/* Version, man page, options page, completion. False: argv[0] names none of them. */
static bool document(int argc, char **argv, int *status)
{
    const char *name = argv[0];
    struct tarn_buf text = {0};
    int rc = argc > 1 ? too_many(argv[1]) : 0;

    if (strcmp(name, "--completion") == 0)
        rc = argc > 2 ? too_many(argv[2]) : cli_completion(argc > 1 ? argv[1] : "", &text);
    else if (strcmp(name, "--man") == 0)
        cli_man(&text);
    else if (strcmp(name, "--markdown") == 0)
        cli_markdown(&text);
    else if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0 || strcmp(name, "version") == 0)
        tarn_buf_printf(&text, "tarn %s\n", tarn_version());
    else
        return false;
    *status = finish(rc, &text);
    return true;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;

    tarn_process_begin();
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
    int status;
    if (document(argc - 1, argv + 1, &status))
        return status;
    const struct cli_command *command = cli_find(name);
    return command ? run_command(command, argc - 1, argv + 1) : unknown(argc - 1, argv + 1);
}
