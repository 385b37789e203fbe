/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file: lines NAME = VALUE. */
#ifndef TARN_BASE_OPTION_FILE_H
#define TARN_BASE_OPTION_FILE_H

#include <stdbool.h>

#include "base/buf.h"

/* Called for each setting of a configuration file. `where` is "file:3: name". Nonzero stops the reading. */
typedef int (*tarn_option_line_fn)(void *arg, const char *where, const char *name, const char *value);

/* Reads NAME = VALUE lines. A missing file is an error when it is `required`. */
int tarn_option_read_file(const char *path, bool required, tarn_option_line_fn fn, void *arg);
/* Writes a value in the file's syntax, in quotes if needed. */
void tarn_option_quote(const char *value, struct tarn_buf *out);

#endif
