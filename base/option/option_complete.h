/* SPDX-License-Identifier: Apache-2.0 */
/* Completion scripts made from the table. */
#ifndef TARN_BASE_OPTION_COMPLETE_H
#define TARN_BASE_OPTION_COMPLETE_H

#include "base/buf.h"
#include "base/option/option_table.h"

/* A script that completes the program's command line, for "bash" or "zsh"; else INVALID. */
int tarn_options_completion(const struct tarn_program *p, const struct tarn_program *const *subs,
                            size_t nsubs, const char *shell, struct tarn_buf *out);

#endif
