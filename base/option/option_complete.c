/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion scripts for bash and zsh, made from the option table. They complete commands and options. The
 * shell completes arguments and values as file names.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/option/option_pages.h"
#include "base/option/option_print.h"

/* --- bash --------------------------------------------------------------------------------------- */

static void bash_options(const struct tarn_program *p, struct tarn_buf *out)
{
    for (size_t i = 0; i < p->noptions; i++) {
        const struct tarn_option *o = &p->options[i];
        tarn_buf_printf(out, " --%s", o->name);
        if (tarn_option_has_no(o))
            tarn_buf_printf(out, " --no-%s", o->name);
    }
}

/* The name after "tarn ". */
static const char *command_name(const struct tarn_program *p, const struct tarn_program *sub)
{
    return sub->name + strlen(p->name) + 1;
}

static void bash_commands(const struct tarn_program *p, const struct tarn_program *const *subs, size_t nsubs,
                          struct tarn_buf *out)
{
    for (size_t i = 0; i < nsubs; i++)
        tarn_buf_printf(out, " %s", command_name(p, subs[i]));
}

static void bash(const struct tarn_program *p, const struct tarn_program *const *subs, size_t nsubs,
                 struct tarn_buf *out)
{
    tarn_buf_printf(out,
                    "# Completion of %s for bash, made by `%s --completion bash`.\n"
                    "_%s()\n"
                    "{\n"
                    "    local cur=${COMP_WORDS[COMP_CWORD]} words='",
                    p->name, p->name, p->name);
    bash_options(p, out);
    if (nsubs)
        tarn_buf_printf(out, " help");
    bash_commands(p, subs, nsubs, out);
    tarn_buf_printf(out, "'\n");
    if (nsubs) {
        tarn_buf_printf(out, "    if [ \"$COMP_CWORD\" -gt 1 ]; then\n"
                             "        case ${COMP_WORDS[1]} in\n"
                             "        help) words='");
        bash_commands(p, subs, nsubs, out);
        tarn_buf_printf(out, "' ;;\n");
        for (size_t i = 0; i < nsubs; i++) {
            tarn_buf_printf(out, "        %s) words='", command_name(p, subs[i]));
            bash_options(subs[i], out);
            tarn_buf_printf(out, "' ;;\n");
        }
        tarn_buf_printf(out, "        *) words= ;;\n"
                             "        esac\n"
                             "    fi\n");
    }
    tarn_buf_printf(
        out,
        "    COMPREPLY=()\n"
        "    case $cur:$COMP_CWORD:${COMP_WORDS[1]} in\n"
        "    -* | *:1:* | *:help) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\") ;;\n"
        "    esac\n"
        "}\n"
        "complete -o default -F _%s %s\n",
        p->name, p->name);
}

/* --- zsh ---------------------------------------------------------------------------------------- */

/* Escapes text for single quotes and brackets. */
static void zsh_text(const char *text, size_t bytes, struct tarn_buf *out)
{
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i] == '[' ? '(' : text[i] == ']' ? ')' : text[i] == '\n' ? ' ' : text[i];
        if (c == '\'')
            tarn_buf_printf(out, "'\\''");
        else
            tarn_buf_printf(out, "%s%c", c == ':' || c == '\\' ? "\\" : "", c);
    }
}

/* Length of the first sentence. */
static size_t first_sentence(const char *text)
{
    const char *end = strstr(text, ". ");
    size_t bytes = end ? (size_t)(end - text) : strlen(text);

    return bytes && text[bytes - 1] == '.' ? bytes - 1 : bytes;
}

static void zsh_option(const struct tarn_option *o, struct tarn_buf *out)
{
    const char *metavar = tarn_option_metavar(o), *many = o->type == TARN_OPT_LIST ? "*" : "";

    tarn_buf_printf(out, " \\\n        ");
    if (o->letter)
        tarn_buf_printf(out, "'(-%c --%s)'{-%c,--%s}'[", o->letter, o->name, o->letter, o->name);
    else
        tarn_buf_printf(out, "'%s--%s[", many, o->name);
    zsh_text(o->help, first_sentence(o->help), out);
    tarn_buf_printf(out, "]");
    if (metavar) {
        tarn_buf_printf(out, ":");
        zsh_text(metavar, strlen(metavar), out);
        tarn_buf_printf(out, ":_files");
    }
    tarn_buf_printf(out, "'");
}

static void zsh_arguments(const struct tarn_program *p, struct tarn_buf *out)
{
    tarn_buf_printf(out, "_arguments -s");
    for (size_t i = 0; i < p->noptions; i++)
        zsh_option(&p->options[i], out);
    if (p->arguments && *p->arguments) {
        tarn_buf_printf(out, " \\\n        '*:");
        zsh_text(p->arguments, strlen(p->arguments), out);
        tarn_buf_printf(out, ":_files'");
    }
}

static void zsh(const struct tarn_program *p, const struct tarn_program *const *subs, size_t nsubs,
                struct tarn_buf *out)
{
    tarn_buf_printf(out,
                    "#compdef %s\n"
                    "# Completion of %s for zsh, made by `%s --completion zsh`.\n"
                    "_%s()\n"
                    "{\n"
                    "    ",
                    p->name, p->name, p->name, p->name);
    if (!nsubs) {
        zsh_arguments(p, out);
    } else {
        tarn_buf_printf(out, "local -a commands\n    commands=(\n");
        for (size_t i = 0; i < nsubs; i++) {
            tarn_buf_printf(out, "        '%s:", command_name(p, subs[i]));
            zsh_text(subs[i]->brief, strlen(subs[i]->brief), out);
            tarn_buf_printf(out, "'\n");
        }
        tarn_buf_printf(out, "        'help:show the options of a command'\n"
                             "    )\n"
                             "    if (( CURRENT == 2 )) || [[ $words[2] == help ]]; then\n"
                             "        _describe command commands\n"
                             "        return\n"
                             "    fi\n"
                             "    shift words\n"
                             "    (( CURRENT-- ))\n"
                             "    case $words[1] in\n");
        for (size_t i = 0; i < nsubs; i++) {
            tarn_buf_printf(out, "    %s) ", command_name(p, subs[i]));
            zsh_arguments(subs[i], out);
            tarn_buf_printf(out, " ;;\n");
        }
        tarn_buf_printf(out, "    esac");
    }
    tarn_buf_printf(out, "\n}\n_%s \"$@\"\n", p->name);
}

int tarn_options_completion(const struct tarn_program *p, const struct tarn_program *const *subs,
                            size_t nsubs, const char *shell, struct tarn_buf *out)
{
    if (strcmp(shell, "bash") == 0)
        bash(p, subs, nsubs, out);
    else if (strcmp(shell, "zsh") == 0)
        zsh(p, subs, nsubs, out);
    else
        return tarn_fail(TARN_E_INVALID,
                         "--completion \"%.40s\": there are completions for bash and zsh: name one of these",
                         shell);
    return 0;
}
