/* SPDX-License-Identifier: Apache-2.0 */
/* Pages made from the table: mdoc(7) and Markdown. */
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

#endif
