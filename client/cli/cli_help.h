/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands, and the description of `tarn` as a whole. */
#ifndef TARN_CLIENT_CLI_HELP_H
#define TARN_CLIENT_CLI_HELP_H

#include "client/cli/cli.h"

/* Help, man page or Markdown for all of `tarn`. */
void cli_overview(struct tarn_buf *out);
void cli_man(struct tarn_buf *out);
void cli_markdown(struct tarn_buf *out);
/* INVALID unless `shell` is bash or zsh. */
int cli_completion(const char *shell, struct tarn_buf *out);
/* All commands, ending with NULL. */
extern const struct cli_command *const cli_commands[];
const struct cli_command *cli_find(const char *name);
/* The command whose name is nearest to a mistyped one, or NULL. */
const char *cli_near(const char *name);

#endif
