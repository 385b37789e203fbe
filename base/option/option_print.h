/* SPDX-License-Identifier: Apache-2.0 */
/* For --help and for the pages made from the option table. */
#ifndef TARN_BASE_OPTION_PRINT_H
#define TARN_BASE_OPTION_PRINT_H

#include "base/buf.h"
#include "base/option/option_table.h"

/* Calls fn for each paragraph of prose; paragraphs are separated by blank lines. */
typedef void (*tarn_option_paragraph_fn)(void *arg, const char *text, size_t bytes);
void tarn_option_paragraphs(const char *text, tarn_option_paragraph_fn fn, void *arg);

/* The option's help with its default and bounds. */
void tarn_option_prose(const struct tarn_option *o, struct tarn_buf *out);
/* The name of the value in --help ("MS"); NULL for a BOOL. */
const char *tarn_option_metavar(const struct tarn_option *o);
bool tarn_option_has_no(const struct tarn_option *o);
bool tarn_option_any_settable(const struct tarn_program *p);

void tarn_options_help(const struct tarn_program *p, struct tarn_buf *out);
/* "name = value   # from env" lines that --config accepts again. */
void tarn_options_print_conf(const struct tarn_program *p, const void *config,
                             const struct tarn_options_parsed *parsed, struct tarn_buf *out);

#endif
