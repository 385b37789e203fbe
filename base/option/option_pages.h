/* SPDX-License-Identifier: Apache-2.0 */
/* Pages and completion scripts made from the table. */
#ifndef TARN_BASE_OPTION_PAGES_H
#define TARN_BASE_OPTION_PAGES_H

#include "base/buf.h"
#include "base/option/option_table.h"

/* A Markdown section and an mdoc(7) page for the program; subs are its subcommands (may be NULL). */
void tarn_options_markdown(const struct tarn_program *p, struct tarn_buf *out);
/* A section with the options that p shares with other commands. */
void tarn_options_markdown_common(const struct tarn_program *p, struct tarn_buf *out);
void tarn_options_man(const struct tarn_program *p, const struct tarn_program *const *subs, size_t nsubs,
                      struct tarn_buf *out);
/* A script that completes the program's command line, for "bash" or "zsh"; else INVALID. */
int tarn_options_completion(const struct tarn_program *p, const struct tarn_program *const *subs,
                            size_t nsubs, const char *shell, struct tarn_buf *out);

#endif
