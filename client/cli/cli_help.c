/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands, and the description of `tarn` as a whole: overview, man page, Markdown. */
#include "client/cli/cli_help.h"

#include <string.h>

#include "base/option/option_pages.h"
#include "client/cli/cli.h"

const struct cli_command *const cli_commands[] = {
    &cli_put,  &cli_get,  &cli_ls,    &cli_stat,   &cli_rm,     &cli_pin, &cli_unpin,  &cli_touch, &cli_ttl,
    &cli_info, &cli_ping, &cli_drain, &cli_config, &cli_doctor, &cli_top, &cli_events, NULL,
};
#define COMMANDS (CLI_COUNT(cli_commands) - 1)

/* Options that main() handles itself, listed here for the documents. */
struct tarn_config {
    bool help, version, man, markdown;
    char *completion;
};

static const struct tarn_option options[] = {
    CLI_FLAG("help", 'h', offsetof(struct tarn_config, help), "Print the commands."),
    CLI_FLAG("version", 'V', offsetof(struct tarn_config, version), "Print the version."),
    CLI_FLAG("man", 0, offsetof(struct tarn_config, man), "Print the man page."),
    CLI_FLAG("markdown", 0, offsetof(struct tarn_config, markdown),
             "Print the reference of all commands in Markdown."),
    CLI_TEXT(
        "completion", 0, offsetof(struct tarn_config, completion), "SHELL",
        "Print a script that completes command lines, for bash or zsh. `make install` puts both in place."),
};

#define EXIT_STATUS \
    "Exit status: 0 when all went well; else by the first error: 1 no such key,\n" \
    "2 wrong usage or request, 3 try again (full, busy, timed out), 4 a node or Redis\n" \
    "does not answer, 5 moved or not reachable from here, 6 nothing helps\n" \
    "(authentication, configuration, this machine)."

static const struct tarn_program tarn = {
    .name = "tarn",
    .arguments = "COMMAND [OPTION...] [ARGUMENT]...",
    .brief = "put tensors into the pools of tarn nodes, get and inspect them",
    .description =
        "The bytes move between this process and the nodes' pools directly, by the cheapest transport that "
        "reaches them; `tarn info` says which. The directory in Redis says where each tensor is.\n"
        "\n"
        "Keys are any bytes. As text, here and in Redis, white space, control and non-ASCII bytes and % are "
        "written %XX.\n"
        "\n" EXIT_STATUS,
    .examples = "tarn put weights.safetensors --prefix model/\n"
                "tarn ls 'model/*' -l\n"
                "tarn get model/layer0.weight -o layer0.npy\n"
                "tarn info\n",
    .options = options,
    .noptions = CLI_COUNT(options),
};

/* The name without "tarn ". */
static const char *short_name(const struct cli_command *command)
{
    return command->program->name + strlen("tarn ");
}

const struct cli_command *cli_find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(short_name(cli_commands[i]), name) == 0)
            return cli_commands[i];
    }
    return NULL;
}

const char *cli_near(const char *name)
{
    const char *names[COMMANDS];

    for (size_t i = 0; i < COMMANDS; i++)
        names[i] = short_name(cli_commands[i]);
    return tarn_nearest(name, names, COMMANDS);
}

void cli_overview(struct tarn_buf *out)
{
    tarn_buf_printf(out, "Usage: tarn COMMAND [OPTION...] [ARGUMENT]...\ntarn: %s\n\nCommands:\n",
                    tarn.brief);
    for (size_t i = 0; i < COMMANDS; i++)
        tarn_buf_printf(out, "  %-8s %s\n", short_name(cli_commands[i]), cli_commands[i]->program->brief);
    tarn_buf_printf(out, "\n`tarn help COMMAND` has the options of each.\n\n" EXIT_STATUS "\n");
}

static void list_programs(const struct tarn_program *subs[COMMANDS])
{
    for (size_t i = 0; i < COMMANDS; i++)
        subs[i] = cli_commands[i]->program;
}

void cli_man(struct tarn_buf *out)
{
    const struct tarn_program *subs[COMMANDS];

    list_programs(subs);
    tarn_options_man(&tarn, subs, COMMANDS, out);
}

int cli_completion(const char *shell, struct tarn_buf *out)
{
    const struct tarn_program *subs[COMMANDS];

    list_programs(subs);
    return tarn_options_completion(&tarn, subs, COMMANDS, shell, out);
}

void cli_markdown(struct tarn_buf *out)
{
    tarn_options_markdown(&tarn, out);
    tarn_options_markdown_common(cli_commands[0]->program, out);
    for (size_t i = 0; i < COMMANDS; i++)
        tarn_options_markdown(cli_commands[i]->program, out);
}
