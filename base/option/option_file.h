/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file: lines NAME = VALUE. */
#ifndef TARN_BASE_OPTION_FILE_H
#define TARN_BASE_OPTION_FILE_H

#include <stdbool.h>

#include "base/buf.h"

/* Called with each setting of a configuration file; `where` is "file:3: name". Not 0 ends the reading. */
typedef int (*tarn_option_line_fn)(void *arg, const char *where, const char *name, const char *value);

/* Reads NAME = VALUE lines. A missing file is an error when it is `required`. */
int tarn_option_read_file(const char *path, bool required, tarn_option_line_fn fn, void *arg);
/* Writes a value so that the file reader reads it back: in quotes if need be. */
void tarn_option_quote(const char *value, struct tarn_buf *out);

#endif
